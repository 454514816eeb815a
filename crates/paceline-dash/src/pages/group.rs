//! The page of a study, or of all runs: how far it is, what it found, filters, parallel coordinates that filter too, the
//! table of runs, and charts.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use paceline_analyze::charts::{self, ChartInput};
use paceline_analyze::report::findings_html;
use paceline_analyze::sheet::escape;
use paceline_analyze::table::number;
use paceline_analyze::{Analysis, AnalysisRequest};
use serde_json::{Value, json};

use super::parts::{self, badge, progress, seconds, tile};
use super::{Page, PageResult, Room, filters, frame, table};
use crate::background::{AnalysisTask, BackgroundResult, Fragment, PATIENCE};
use crate::group::{Group, Member, StudyOverview, stamp};
use crate::query::{Query, encode};
use crate::route::ServerState;
use crate::select::{RunFilter, chooses};

use super::filters::LEVELS;

/// Factors that parallel coordinates have.
const FACTORS: usize = 12;
/// Runs whose findings a first page waits for.
const AT_ONCE: usize = 1000;
/// Runs that parallel coordinates draw.
const LINES: usize = 5000;

pub struct View {
    pub base: String,
    pub of: GroupKind,
}

pub enum GroupKind {
    Study(Box<StudyOverview>),
    Runs(Arc<Group>),
}

impl View {
    fn group(&self) -> &Group {
        match &self.of {
            GroupKind::Study(study) => &study.group,
            GroupKind::Runs(group) => group,
        }
    }
}

pub fn page(site: &ServerState, view: &View, query: &Query) -> PageResult {
    let group = view.group();
    let chosen = RunFilter::new(group, query);
    let members = chosen.members();
    let shown = analysed(site, view, query, &members);
    let mut lines = String::new();
    if group.varied().next().is_some() {
        lines = format!(
            include_str!("../assets/lines.html"),
            response = escape(group.responses.first().map_or("", |response| &response.name)),
            base = escape(&view.base),
            stamp = stamp(&group.members.iter().filter(|m| m.counts).collect::<Vec<_>>())
        );
    }
    let filters = filters::html(&view.base, group, query, &chosen);
    // A study is read for what it found; among all runs, some are looked for.
    let mut body = match &view.of {
        GroupKind::Study(study) => {
            head_of_study(study, &members)
                + &parts::told(&shown)
                + &filters
                + &lines
                + &table::html(&view.base, group, members, query)
        }
        GroupKind::Runs(_) => {
            head_of_runs(group)
                + &filters
                + &table::html(&view.base, group, members, query)
                + &parts::told(&shown)
                + &lines
        }
    };
    let filters_only = query.without(|name, _| !chooses(name));
    body += &parts::charts(&shown, &format!("{}/charts{}", view.base, filters_only.address()));
    let room = if matches!(view.of, GroupKind::Runs(_)) { Room::Runs } else { Room::None };
    Ok(frame(room, &group.title, &body))
}

pub fn charts(site: &ServerState, view: &View, query: &Query) -> PageResult {
    let members = RunFilter::new(view.group(), query).members();
    Ok(Page::charts(analysed(site, view, query, &members)))
}

/// Findings and charts of some runs, as far as they are there.
fn analysed(site: &ServerState, view: &View, query: &Query, members: &[&Member]) -> BackgroundResult {
    let group = view.group();
    let counted: Vec<&Member> = members.iter().copied().filter(|m| m.counts).collect();
    let key = format!("{}{}", view.base, query.without(|name, _| !chooses(name)).address());
    // Of thousands of runs it takes longer than a page may.
    let patience = if counted.len() > AT_ONCE { Duration::ZERO } else { PATIENCE };
    let aside = group.members.iter().filter(|m| m.aside()).count();
    site.background.ask(&key, stamp(&(&counted, aside)), patience, || {
        let table = group.table(&counted);
        // Runs of other programs have no page.
        let linked = counted.iter().all(|m| m.run.is_some());
        let work = move || {
            let n = table.measured(0).len();
            if n == 0 {
                let told = "<section class=\"waiting\"><h2>Findings</h2><p class=\"note\">No run here has ended well yet.\
                            </p></section>";
                return Fragment { told: told.into(), charts: parts::figures(&[]), of: "no runs".into() };
            }
            let ask = AnalysisRequest::of_settings(&table);
            let analysis = Analysis::new(&table, ask);
            let mut figures = charts::charts(&ChartInput { table: &table, analysis: &analysis, ask });
            // The page draws them itself, to be brushed.
            figures.retain(|figure| figure.id != "parallel");
            let link = |run: &str| format!("/run/{}", encode(run));
            let mut told = String::new();
            for note in &analysis.notes {
                let _ = writeln!(told, "<p class=\"note\">{}</p>", escape(note));
            }
            told += &findings_html(&analysis.findings, linked.then_some(&link as &dyn Fn(&str) -> String));
            let of = format!("{n} {}", if n == 1 { "run" } else { "runs" });
            Fragment { told, charts: parts::figures(&figures), of }
        };
        Box::new(work) as AnalysisTask
    })
}

fn tiles_of(group: &Group, members: &[&Member]) -> String {
    let mut html = String::new();
    if let (Some((with, value)), Some(response)) = (group.best(members), group.responses.first()) {
        html += &tile(&format!("best {}", response.name), &response.show(value), &with);
    }
    html
}

fn count(members: &[&Member], states: &[&str]) -> u64 {
    members.iter().filter(|m| states.contains(&m.state.as_str())).count() as u64
}

fn head_of_study(study: &StudyOverview, members: &[&Member]) -> String {
    let group = &study.group;
    let all: Vec<&Member> = group.members.iter().collect();
    let ended = all.len() as u64 - count(&all, &["running"]);
    let bad = count(&all, &["failed", "diverged"]);
    let expected = study.expected.max(all.len() as u64);
    let objectives: Vec<String> =
        group.responses.iter().map(|r| format!("{:?} {}", r.goal, r.name).to_lowercase()).collect();
    let news = format!("{ended} of {expected} runs ended, {bad} failed");
    let left = match (study.state, study.left_s) {
        ("finished", _) => "none".to_owned(),
        (_, Some(left)) => format!("about {}", seconds(left)),
        _ => "–".to_owned(),
    };
    let mut html = format!(
        "<div id=\"head\" data-live data-news=\"{news}\"><p class=\"crumbs\"><a href=\"/\">Overview</a> / Study</p>\
         <h1>{} {}</h1>\n<p class=\"note\">{}; sampler {}</p>\n<p class=\"long\">{}</p>\n<dl class=\"tiles\">",
        escape(&group.title),
        badge(study.state),
        escape(&objectives.join(", ")),
        escape(&study.sampler),
        progress(ended, Some(expected), "runs"),
    );
    html += &tile("time left", &left, &format!("{ended} of {expected} runs ended"));
    html += &tile("running", &count(&all, &["running"]).to_string(), "now");
    html += &tile("failed or diverged", &bad.to_string(), "runs");
    html += &tiles_of(group, members);
    html + "</dl></div>\n"
}

fn head_of_runs(group: &Group) -> String {
    let all: Vec<&Member> = group.members.iter().collect();
    let running = count(&all, &["running"]);
    let bad = count(&all, &["failed", "lost"]);
    let news = format!("{} runs, {running} under way", all.len());
    let words = format!("{} recorded, {running} under way, {bad} failed or lost", all.len());
    format!(
        "<div id=\"head\" data-live data-news=\"{news}\"><h1>{}</h1>\n<p class=\"note\">{words}</p></div>\n",
        escape(&group.title),
    )
}

/// The lines of parallel coordinates: axes, and of each run its place on each.
pub fn lines(view: &View, query: &Query) -> String {
    let group = view.group();
    let members: Vec<&Member> = group.members.iter().filter(|m| m.counts && !m.aside()).collect();
    let members = &members[members.len().saturating_sub(LINES)..];
    let chosen = RunFilter::new(group, query);
    let mut axes: Vec<Value> = Vec::new();
    type Place<'a> = Box<dyn Fn(&Member) -> Value + 'a>;
    let mut places: Vec<Place<'_>> = Vec::new();
    let log = |values: &[f64]| {
        let (low, high) = values.iter().fold((f64::INFINITY, 0.0f64), |(l, h), v| (l.min(*v), h.max(*v)));
        low > 0.0 && high / low >= 10.0
    };
    for f in group.varied().take(FACTORS) {
        let (name, levels) = (&group.factors[f], &group.levels[f]);
        let figures: Vec<f64> = levels.iter().filter_map(|level| level.parse().ok()).collect();
        // One level may say that the factor is not there for a point.
        if levels.len() > LEVELS && figures.len() + 1 >= levels.len() {
            axes.push(json!({"name": name, "title": name, "kind": "range", "log": log(&figures)}));
            places.push(Box::new(move |m| json!(m.levels.get(f).and_then(|l| l.parse::<f64>().ok()))));
        } else {
            axes.push(json!({"name": name, "title": name, "kind": "levels", "levels": levels}));
            places.push(Box::new(move |m| {
                json!(m.levels.get(f).and_then(|l| levels.iter().position(|k| k == l)))
            }));
        }
    }
    for (r, response) in group.responses.iter().enumerate() {
        let figures: Vec<f64> = members.iter().filter_map(|m| m.value(r)).collect();
        if !figures.is_empty() {
            axes.push(json!({"name": response.name, "title": response.named(), "kind": "range", "log": log(&figures)}));
            places.push(Box::new(move |m| json!(m.value(r))));
        }
    }
    let response = group.responses.first();
    let mut order: Vec<(usize, f64)> =
        members.iter().enumerate().filter_map(|(i, m)| Some((i, m.value(0)?))).collect();
    order.sort_by(|a, b| match response {
        Some(response) if response.better(a.1, b.1) => std::cmp::Ordering::Less,
        Some(response) if response.better(b.1, a.1) => std::cmp::Ordering::Greater,
        _ => std::cmp::Ordering::Equal,
    });
    // From the best (0) to the worst (1).
    let mut rank = vec![Value::Null; members.len()];
    for (place, (i, _)) in order.iter().enumerate() {
        let part = place as f64 / (order.len().max(2) - 1) as f64;
        rank[*i] = json!((part * 1000.0).round() / 1000.0);
    }
    let row = |(member, rank): (&&Member, Value)| {
        let at: Vec<Value> = places.iter().map(|place| place(member)).collect();
        json!([member.name(), u8::from(chosen.fits(member)), rank, at])
    };
    let rows: Vec<Value> = members.iter().zip(rank).map(row).collect();
    let ends = response.map_or(Value::Null, |r| {
        let end = |at: Option<&(usize, f64)>| at.map(|(_, value)| number(*value));
        json!({"name": r.named(), "best": end(order.first()), "worst": end(order.last())})
    });
    json!({"axes": axes, "rows": rows, "response": ends}).to_string()
}
