//! Runs beside each other, and studies: what differs in their settings, in their figures, how they learn, and why.

mod beside;
mod runs;
mod studies;

use std::sync::Arc;

use hyper::StatusCode;
use paceline_analyze::charts::learning::CurveAxis;
use paceline_analyze::sheet::escape;
use paceline_record::store::RunRow;

use super::parts;
use super::run::{find, version};
use super::{Page, PageResult, Room, frame, of_store, problem};
use crate::background::{BackgroundResult, Fragment};
use crate::group::{StudyOverview, stamp};
use crate::query::Query;
use crate::route::ServerState;

/// Runs or studies that can be compared at once: so many can be told apart by colours and dashes.
pub const MOST: usize = 20;

/// What an address names: `pick=RUN` (or `a=RUN&b=RUN`), `study=NAME`, and `by=…` for what curves are drawn against.
struct Comparison {
    runs: Vec<RunRow>,
    studies: Vec<(String, Arc<StudyOverview>)>,
    against: CurveAxis,
    query: Query,
}

impl Comparison {
    fn read(site: &ServerState, query: &Query) -> Result<Self, Page> {
        let picks = ["a", "b"].into_iter().filter_map(|name| query.get(name)).chain(query.all("pick"));
        let mut runs: Vec<RunRow> = Vec::new();
        for pick in picks {
            let run = find(site, pick)?;
            if runs.iter().all(|known| known.id != run.id) {
                runs.push(run);
            }
        }
        let mut studies: Vec<(String, Arc<StudyOverview>)> = Vec::new();
        for name in query.all("study") {
            let missing =
                |error: String| problem(StatusCode::NOT_FOUND, "This study cannot be shown", &error);
            if studies.iter().all(|(known, _)| known != name) {
                studies.push((name.to_owned(), site.cache.study(name).map_err(missing)?));
            }
        }
        for (what, count, other) in
            [("runs", runs.len(), studies.len()), ("studies", studies.len(), runs.len())]
        {
            if count == 1 || (count == 0 && other == 0) {
                let hint = format!("{count} was named: tick the boxes of two or more {what}, then compare.");
                let hint = if count == 0 { hint.replace("0 was", "None was") } else { hint };
                return Err(problem(StatusCode::BAD_REQUEST, &format!("Two {what} are needed"), &hint));
            }
            if count > MOST {
                let hint =
                    format!("{count} were named; up to {MOST} {what} can be told apart beside each other.");
                return Err(problem(StatusCode::BAD_REQUEST, &format!("These are too many {what}"), &hint));
            }
        }
        let against = query.get("by").and_then(|by| CurveAxis::ALL.into_iter().find(|(_, word)| *word == by));
        let mut own = Query::default();
        own.0.extend(runs.iter().map(|run| ("pick".to_owned(), run.run.clone())));
        own.0.extend(studies.iter().map(|(name, _)| ("study".to_owned(), name.clone())));
        let against = against.map_or_else(CurveAxis::default, |(axis, _)| axis);
        let by = CurveAxis::ALL.iter().find(|(axis, _)| *axis == against && against != CurveAxis::default());
        own = own.with("by", by.map_or("", |(_, word)| word));
        Ok(Self { runs, studies, against, query: own })
    }

    /// Findings and charts, as far as they are there.
    fn shown(&self, site: &ServerState) -> BackgroundResult {
        let key = format!("/compare{}", self.query.address());
        let of_studies: Vec<u64> =
            self.studies.iter().map(|(_, study)| stamp(&study.group.members)).collect();
        let now = stamp(&(self.runs.iter().map(version).collect::<Vec<_>>(), of_studies));
        let (runs, studies, against) = (self.runs.clone(), self.studies.clone(), self.against);
        of_store(site, &key, now, move |store| {
            let (mut told, mut figures) = (String::new(), studies::figures(&studies));
            if !runs.is_empty() {
                let (words, of_runs) = runs::explained(store, &runs, against)?;
                told += &words;
                figures.splice(0..0, of_runs);
            }
            let of = match (runs.len(), studies.len()) {
                (0, n) => format!("{n} studies"),
                (n, 0) => format!("{n} runs"),
                (n, m) => format!("{n} runs and {m} studies"),
            };
            Ok(Fragment { told, charts: parts::figures(&figures), of })
        })
    }

    fn title(&self) -> String {
        match (self.runs.as_slice(), self.studies.as_slice()) {
            ([a, b], []) => format!("{} and {}", parts::called(a), parts::called(b)),
            ([], [a, b]) => format!("{} and {}", a.0, b.0),
            (runs, []) => format!("{} runs beside each other", runs.len()),
            ([], studies) => format!("{} studies beside each other", studies.len()),
            (runs, studies) => format!("{} runs and {} studies", runs.len(), studies.len()),
        }
    }
}

pub fn page(site: &ServerState, query: &Query) -> PageResult {
    let compared = Comparison::read(site, query)?;
    let shown = compared.shown(site);
    let title = compared.title();
    let mut body = format!(
        "<div id=\"head\" data-live data-news=\"\"><p class=\"crumbs\"><a href=\"/\">Overview</a> / \
         <a href=\"/runs\">Runs</a> / Comparison</p><h1>{}</h1>\n",
        escape(&title)
    );
    if !compared.runs.is_empty() {
        body += &runs::tables(site, &compared.runs, &compared.query);
    }
    if !compared.studies.is_empty() {
        body += &studies::tables(site, &compared.studies, &compared.query);
    }
    body += "</div>\n";
    if compared.runs.is_empty() {
        body += "<div id=\"told\" data-live></div>\n";
    } else {
        body += &parts::told(&shown);
        body += &switch(&compared);
    }
    body += &parts::charts(&shown, &format!("/compare/charts{}", compared.query.address()));
    Ok(frame(Room::Comparison, &title, &body))
}

/// Links that choose what curves are drawn against.
fn switch(compared: &Comparison) -> String {
    let link = |(axis, word): (CurveAxis, &str)| {
        let current = if axis == compared.against { " aria-current=\"true\"" } else { "" };
        let value = if axis == CurveAxis::default() { "" } else { word };
        let to = format!("/compare{}", compared.query.with("by", value).address());
        format!("<a data-go href=\"{}\"{current}>{word}</a>", escape(&to))
    };
    let links: String = CurveAxis::ALL.map(link).concat();
    format!(
        "<nav id=\"against\" class=\"switch\" data-live aria-label=\"Curves against\"><span>Curves against</span>{links}</nav>\n"
    )
}

pub fn charts(site: &ServerState, query: &Query) -> PageResult {
    Ok(Page::charts(Comparison::read(site, query)?.shown(site)))
}
