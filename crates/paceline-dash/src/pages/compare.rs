//! Two runs beside each other: what differs in their settings, in their figures, and why.

use hyper::StatusCode;
use paceline_analyze::charts::run as drawn;
use paceline_analyze::figure::Figure;
use paceline_analyze::report::explanation_html;
use paceline_analyze::sheet::{TextTable, escape};
use paceline_analyze::table::{Response, number, settings};
use paceline_analyze::{Explanation, RecordedRun, RunComparison};
use paceline_record::figures::Figures;
use paceline_record::store::RunRow;
use paceline_record::{RecordError, Store};

use super::parts::{self, badge, link};
use super::run::{find, version};
use super::{Page, PageResult, Room, frame, note, of_store, problem};
use crate::background::{BackgroundResult, Fragment};
use crate::group::stamp;
use crate::query::{Query, encode};
use crate::route::ServerState;

/// The two runs of an address: `pick=A&pick=B`, or `a=A&b=B`.
fn pair(site: &ServerState, query: &Query) -> Result<[RunRow; 2], Page> {
    let picks: Vec<&str> =
        ["a", "b"].into_iter().filter_map(|n| query.get(n)).chain(query.all("pick")).collect();
    match picks.as_slice() {
        [a, b] => Ok([find(site, a)?, find(site, b)?]),
        _ => Err(problem(
            StatusCode::BAD_REQUEST,
            "Two runs are needed",
            &format!("{} were picked: tick the boxes of two runs, then compare.", picks.len()),
        )),
    }
}

pub fn page(site: &ServerState, query: &Query) -> PageResult {
    let runs = pair(site, query)?;
    let shown = compared(site, &runs);
    let [a, b] = &runs;
    let other = format!("/compare?a={}&b={}", encode(&b.run), encode(&a.run));
    let mut body = format!(
        "<div id=\"head\" data-live data-news=\"\"><p class=\"crumbs\"><a href=\"/\">Overview</a> / \
         <a href=\"/runs\">Runs</a> / Comparison</p><h1>{} and {}</h1>\n<p>{} {} · {} {} · \
         <a href=\"{}\">the other way round</a></p>\n{}{}</div>\n",
        escape(&a.run),
        escape(&b.run),
        link(&a.run),
        badge(&a.state),
        link(&b.run),
        badge(&b.state),
        escape(&other),
        figures(&runs, &site.cache.figures).html(),
        differences(&runs)
    );
    body += &parts::told(&shown);
    body += &parts::charts(&shown, &format!("/compare/charts?a={}&b={}", encode(&a.run), encode(&b.run)));
    Ok(frame(Room::None, &format!("{} and {}", a.run, b.run), &body))
}

pub fn charts(site: &ServerState, query: &Query) -> PageResult {
    Ok(Page::charts(compared(site, &pair(site, query)?)))
}

fn compared(site: &ServerState, runs: &[RunRow; 2]) -> BackgroundResult {
    let key = format!("/compare?a={}&b={}", encode(&runs[0].run), encode(&runs[1].run));
    let (stamp, own) = (stamp(&runs.each_ref().map(version)), runs.clone());
    of_store(site, &key, stamp, move |store| fragment(store, &own))
}

fn fragment(store: &Store, runs: &[RunRow; 2]) -> Result<Fragment, RecordError> {
    let (mut explained, mut told) = (Vec::new(), String::new());
    for run in runs {
        match Explanation::new(&RecordedRun::read(store, run)?) {
            Ok(explanation) => explained.push(explanation),
            Err(error) => told += &(note(&error) + "\n"),
        }
    }
    if let [a, b] = explained.as_slice() {
        let words = escape(&RunComparison::new(a, b).sentence);
        told += &format!("<section><h2>What makes the difference</h2><p>{words}</p></section>\n");
    }
    explained.iter().for_each(|explanation| told += &explanation_html(explanation));
    let mut figures: Vec<Figure> =
        [drawn::accuracy(store, runs)?, drawn::loss(store, runs)?].into_iter().flatten().collect();
    for (i, run) in runs.iter().enumerate() {
        for mut figure in drawn::charts(store, run)? {
            figure.id = format!("{}-{}", figure.id, i + 1);
            figure.title = format!("{} of {}", figure.title, run.run);
            figures.push(figure);
        }
    }
    Ok(Fragment { told, charts: parts::figures(&figures), of: "both runs".into() })
}

fn figures([a, b]: &[RunRow; 2], figures: &Figures) -> TextTable {
    let note = "What the first has, as a part of the second.";
    let mut sheet = TextTable::new("Figures", &["", &a.run, &b.run, "first, % of second"], 1, note);
    for figure in figures.of_runs() {
        let (first, second) = (a.figure(figure), b.figure(figure));
        if first.is_none() && second.is_none() {
            continue;
        }
        let show = |value: Option<f64>| value.map_or_else(|| "–".into(), number);
        let part = first.zip(second).filter(|(_, b)| *b != 0.0).map(|(a, b)| 100.0 * a / b);
        let name = Response::figure(figures, figure.name, false).named();
        sheet.rows.push(vec![name, show(first), show(second), show(part)]);
    }
    sheet
}

fn differences([a, b]: &[RunRow; 2]) -> String {
    let (first, second) = (settings(a), settings(b));
    let mut sheet = TextTable::new("Settings that differ", &["setting", &a.run, &b.run], 3, "");
    let value = |of: &[(String, String)], name: &str| {
        of.iter().find(|(known, _)| known == name).map_or_else(|| "–".to_owned(), |(_, v)| v.clone())
    };
    let more = second.iter().filter(|(name, _)| !first.iter().any(|(known, _)| known == name));
    for (name, _) in first.iter().chain(more) {
        let (x, y) = (value(&first, name), value(&second, name));
        if x != y {
            sheet.rows.push(vec![name.clone(), x, y]);
        }
    }
    if sheet.rows.is_empty() {
        return "<p class=\"note\">Their settings are the same: one is a repeat of the other.</p>\n".into();
    }
    sheet.html()
}
