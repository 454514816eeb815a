//! Runs beside each other.

use paceline_analyze::charts::learning::{CurveAxis, learning};
use paceline_analyze::charts::run as drawn;
use paceline_analyze::figure::Figure;
use paceline_analyze::report::explanation_html;
use paceline_analyze::sheet::{TextTable, escape};
use paceline_analyze::table::{NONE, Response, all_settings, number};
use paceline_analyze::{Explanation, RecordedRun, RunComparison};
use paceline_record::figures::Figures;
use paceline_record::store::RunRow;
use paceline_record::{RecordError, Store};
use paceline_statistics::median;

use super::beside::{BesideTable, Cell, figures, key};
use crate::pages::note;
use crate::pages::parts::{bytes, called, link, state, tagged, tags};
use crate::query::Query;
use crate::route::ServerState;

/// Figures of which more is neither better nor worse.
const NEITHER: [&str; 2] = ["steps", "samples"];

/// Runs of which each is told beside the fastest at once; of more, a click unfolds it.
const TOLD: usize = 6;

/// The origin of runs that were really made.
const MEASURED: &str = "measured";

/// What runs are called; where two have the same name, their ids tell them apart.
fn names(runs: &[RunRow]) -> Vec<String> {
    let name = |run: &RunRow| match runs.iter().filter(|other| called(other) == called(run)).count() {
        1 => called(run).to_owned(),
        _ => format!("{} ({})", called(run), run.run),
    };
    runs.iter().map(name).collect()
}

/// Settings and figures side by side.
pub fn tables(site: &ServerState, runs: &[RunRow], query: &Query) -> String {
    let mut html = String::from("<ol class=\"keys\" aria-label=\"Runs that are compared\">");
    for (i, run) in runs.iter().enumerate() {
        let less = query.without(|name, value| name == "pick" && value == run.run);
        let gone = if runs.len() > 2 {
            format!(
                " <a data-go class=\"gone\" href=\"/compare{}\" aria-label=\"leave out {}\">×</a>",
                escape(&less.address()),
                escape(&run.run)
            )
        } else {
            String::new()
        };
        let tags = tags(&run.labels.tags, false, tagged);
        html += &format!("<li>{}{} {}{tags}{gone}</li>\n", key(i), link(run), state(run));
    }
    html += "</ol>\n";
    if let [a, b] = runs {
        let pairs = [b, a].map(|run| ("pick".to_owned(), run.run.clone()));
        let other = format!("/compare{}", Query(pairs.to_vec()).address());
        html += &format!("<p><a href=\"{}\">the other way round</a></p>\n", escape(&other));
    }
    html += &settings_table(site, runs).html(
        runs.len(),
        "settings",
        "Their settings are the same: one is a repeat of the other.",
    );
    html +=
        &figures_table(runs, &site.cache.figures).html(runs.len(), "figures", "They have no figures yet.");
    html
}

fn heads(runs: &[RunRow]) -> Vec<String> {
    let id = |run: &RunRow| match &run.labels.name {
        Some(_) => format!("<small>{}</small>", escape(&run.run)),
        None => String::new(),
    };
    runs.iter().enumerate().map(|(i, run)| format!("{}{}{}", key(i), link(run), id(run))).collect()
}

/// What a run was told, and where it was made.
fn told(run: &RunRow) -> Vec<(String, String)> {
    let mut own = all_settings(run);
    own.push(("origin".into(), run.origin.clone()));
    own.push(("host".into(), run.host.clone()));
    own.push(("version".into(), format!("{} ({})", run.build[0], run.build[1])));
    own
}

fn settings_table(site: &ServerState, runs: &[RunRow]) -> BesideTable {
    let all: Vec<Vec<(String, String)>> = runs.iter().map(told).collect();
    let mut names: Vec<&String> = Vec::new();
    for (name, _) in all.iter().flatten() {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let value = |own: &Vec<(String, String)>, name: &str| -> Cell {
        let found = own.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        (found.unwrap_or_else(|| NONE.into()), false)
    };
    let row = |name: &String| (name.clone(), all.iter().map(|own| value(own, name)).collect());
    let mut rows: Vec<(String, Vec<Cell>)> = names.into_iter().map(row).collect();
    if let Ok(group) = site.cache.group() {
        let of = |run: &RunRow| {
            let member = group.members.iter().find(|m| m.run.as_deref() == Some(&run.run));
            (member.and_then(|m| m.study.clone()).unwrap_or_else(|| NONE.into()), false)
        };
        rows.insert(0, ("study".into(), runs.iter().map(of).collect()));
        let of = |run: &RunRow| (run.labels.workload.clone().unwrap_or_else(|| NONE.into()), false);
        rows.insert(1, ("workload".into(), runs.iter().map(of).collect()));
    }
    let (title, note) = ("Settings that differ", "");
    BesideTable { id: "settings", title, note, heads: heads(runs), figures: false, rows }
}

fn figures_table(runs: &[RunRow], of: &Figures) -> BesideTable {
    let mut heads = heads(runs);
    if runs.len() == 2 {
        heads.push("first, % of second".into());
    }
    // What was simulated is not better than what was measured.
    let mixed = runs.iter().any(|run| run.origin == MEASURED);
    let mut rows = Vec::new();
    for figure in of.of_runs() {
        let values: Vec<Option<f64>> = runs.iter().map(|run| run.figure(figure)).collect();
        if values.iter().all(Option::is_none) {
            continue;
        }
        let response = Response::figure(of, figure.name, false);
        let better = |a: f64, b: f64| response.better(a, b);
        let better = (!NEITHER.contains(&figure.name)).then_some(&better as &dyn Fn(f64, f64) -> bool);
        // Numbers of many digits are hard to compare.
        let (name, show): (String, fn(f64) -> String) = match figure.unit {
            "bytes" => (figure.name.into(), bytes),
            _ => (response.named(), number),
        };
        let mut cells = figures(&values, show, better, |i| !mixed || runs[i].origin == MEASURED);
        if let [first, second] = values.as_slice() {
            let part = first.zip(*second).filter(|(_, b)| *b != 0.0).map(|(a, b)| number(100.0 * a / b));
            cells.push((part.unwrap_or_else(|| "–".into()), false));
        }
        rows.push((name, cells));
    }
    let aside = mixed && runs.iter().any(|run| run.origin != MEASURED);
    let note = if aside { "The best measured one of each is marked." } else { "The best of each is marked." };
    let title = "Figures";
    BesideTable { id: "figures", title, note, heads, figures: true, rows }
}

/// Why they differ, and their charts.
pub fn explained(
    store: &Store,
    runs: &[RunRow],
    against: CurveAxis,
) -> Result<(String, Vec<Figure>), RecordError> {
    let (mut explained, mut told) = (Vec::new(), String::new());
    let names = names(runs);
    for (run, name) in runs.iter().zip(&names) {
        let recorded = RecordedRun { run: name.clone(), ..RecordedRun::read(store, run)? };
        match Explanation::new(&recorded) {
            Ok(explanation) => explained.push(explanation),
            Err(error) => told += &(note(&format!("{name}: {error}")) + "\n"),
        }
    }
    told += &differences(&explained);
    let named: Vec<(String, RunRow)> = names.iter().cloned().zip(runs.iter().cloned()).collect();
    let mut figures: Vec<Figure> = learning(store, &named, against)?.into_iter().collect();
    if runs.len() == 2 {
        explained.iter().for_each(|explanation| told += &explanation_html(explanation));
        for (i, (name, run)) in named.iter().enumerate() {
            for mut figure in drawn::charts(store, run)? {
                figure.id = format!("{}-{}", figure.id, i + 1);
                figure.title = format!("{} of {name}", figure.title);
                figures.push(figure);
            }
        }
    }
    Ok((told, figures))
}

/// Where their time goes, and each run beside the fastest.
fn differences(explained: &[Explanation]) -> String {
    if explained.len() < 2 {
        return String::new();
    }
    let mut html = String::from("<section><h2>What makes the difference</h2>");
    if let [a, b] = explained {
        html += &format!("<p>{}</p>", escape(&RunComparison::new(a, b).sentence));
        return html + "</section>\n";
    }
    let head = ["run", "step, ms", "compute, %", "send, %", "wait, %", "update, %"];
    let note = "Medians over the workers, as parts of a step.";
    let mut sheet = TextTable::new("Where a step's time goes", &head, 1, note);
    for one in explained {
        let workers = || one.ranks.iter().filter(|rank| rank.role == "worker");
        let part = |of: fn(&paceline_analyze::RankTimes) -> f64| {
            let parts: Vec<f64> = workers().map(|rank| 100.0 * of(rank) / rank.step_s.max(1e-12)).collect();
            if parts.is_empty() { "–".to_owned() } else { number(median(&parts)) }
        };
        let mut row = vec![one.run.clone(), number(1e3 * one.step_s)];
        row.extend([part(|r| r.compute_s), part(|r| r.send_s), part(|r| r.wait_s), part(|r| r.apply_s)]);
        sheet.rows.push(row);
    }
    html += &sheet.html();
    let fastest = explained.iter().max_by(|a, b| a.samples_per_s.total_cmp(&b.samples_per_s));
    let others = explained.iter().filter_map(|other| Some((other, fastest.filter(|f| f.run != other.run)?)));
    let sentence = |(other, fastest): (&Explanation, &Explanation)| {
        format!("<li>{}</li>", escape(&RunComparison::new(other, fastest).sentence))
    };
    let sentences: String = others.map(sentence).collect();
    let open = if explained.len() <= TOLD { " open" } else { "" };
    html += &format!(
        "<details class=\"each\"{open}><summary>Each beside the fastest</summary><ul>{sentences}</ul></details>"
    );
    html + "</section>\n"
}
