//! Studies beside each other: their best, how their runs are spread, what differs in their settings.

use std::collections::BTreeMap;
use std::sync::Arc;

use paceline_analyze::figure::{ChartAxis, ChartMark, Dot, Figure, Panel};
use paceline_analyze::sheet::escape;
use paceline_analyze::table::{ABSENT, Response, number, settings, short};
use paceline_statistics::{median, quantile, sorted};

use super::beside::{BesideTable, Cell, figures as cells, key};
use crate::group::{StudyOverview, by_level};
use crate::pages::parts::{badge, study_link};
use crate::query::Query;
use crate::route::ServerState;

type Named = (String, Arc<StudyOverview>);

/// Levels that are listed one by one.
const LISTED: usize = 6;

/// What studies found, and what they varied, side by side.
pub fn tables(site: &ServerState, studies: &[Named], query: &Query) -> String {
    let mut html = String::from("<ol class=\"keys\" aria-label=\"Studies that are compared\">");
    for (i, (name, study)) in studies.iter().enumerate() {
        let less = query.without(|known, value| known == "study" && value == name);
        let gone = if studies.len() > 2 {
            format!(
                " <a data-go class=\"gone\" href=\"/compare{}\" aria-label=\"leave out {}\">×</a>",
                escape(&less.address()),
                escape(name)
            )
        } else {
            String::new()
        };
        html += &format!("<li>{}{} {}{gone}</li>\n", key(i), study_link(name), badge(study.state));
    }
    html += "</ol>\n";
    html += &found(studies).html(studies.len(), "facts", "No run of them has ended well yet.");
    html += &varied(site, studies).html(studies.len(), "settings", "They explore the same settings.");
    html
}

fn heads(studies: &[Named]) -> Vec<String> {
    studies.iter().enumerate().map(|(i, (name, _))| format!("{}{}", key(i), study_link(name))).collect()
}

/// Objectives of any of them, each once.
fn objectives(studies: &[Named]) -> Vec<Response> {
    let mut all: Vec<Response> = Vec::new();
    for response in studies.iter().flat_map(|(_, study)| &study.group.responses) {
        if !all.iter().any(|known| known.is(&response.name)) {
            all.push(response.clone());
        }
    }
    all
}

/// What the points of a study measured, the least first.
fn values(study: &StudyOverview, response: &Response) -> Vec<f64> {
    let Some(r) = study.group.responses.iter().position(|own| own.is(&response.name)) else {
        return Vec::new();
    };
    let points = study.group.members.iter().filter(|m| m.counts && !m.aside());
    sorted(&points.filter_map(|m| m.value(r)).collect::<Vec<_>>())
}

fn found(studies: &[Named]) -> BesideTable {
    let text = |of: &dyn Fn(&StudyOverview) -> String| -> Vec<Cell> {
        studies.iter().map(|(_, study)| (of(study), false)).collect()
    };
    let mut rows = vec![
        ("sampler".to_owned(), text(&|s| s.sampler.clone())),
        (
            "runs ended".to_owned(),
            text(&|s| {
                let ended = s.group.members.iter().filter(|m| m.state != "running").count() as u64;
                format!("{ended} of {}", s.expected.max(ended))
            }),
        ),
        (
            "best configuration".to_owned(),
            text(&|s| s.group.best.as_ref().map_or_else(|| "–".into(), |(with, _)| with.clone())),
        ),
    ];
    for response in objectives(studies) {
        let better = |a: f64, b: f64| response.better(a, b);
        let measured: Vec<Vec<f64>> = studies.iter().map(|(_, study)| values(study, &response)).collect();
        let best = |all: &Vec<f64>| all.iter().copied().reduce(|a, b| if better(b, a) { b } else { a });
        let middle = |all: &Vec<f64>| (!all.is_empty()).then(|| median(all));
        for (which, of) in [("best", &best as &dyn Fn(&Vec<f64>) -> Option<f64>), ("median", &middle)] {
            let of_each: Vec<Option<f64>> = measured.iter().map(of).collect();
            rows.push((
                format!("{which} {}", response.named()),
                cells(&of_each, number, Some(&better), |_| true),
            ));
        }
        let quartiles = |all: &Vec<f64>| match all.len() {
            0 => ("–".to_owned(), false),
            _ => (format!("{} to {}", number(quantile(all, 0.25)), number(quantile(all, 0.75))), false),
        };
        rows.push((format!("middle half of {}", response.named()), measured.iter().map(quartiles).collect()));
    }
    let (title, note) =
        ("What they found", "The best of each is marked; a study's best is its best single run.");
    BesideTable { id: "found", title, note, heads: heads(studies), figures: false, rows }
}

/// Settings of their runs; of those that a study varies, all levels.
fn varied(site: &ServerState, studies: &[Named]) -> BesideTable {
    let recorded = site.cache.runs().unwrap_or_default();
    let by_run: BTreeMap<&str, _> = recorded.iter().map(|run| (run.run.as_str(), run)).collect();
    let mut names: Vec<String> = Vec::new();
    let mut all: Vec<BTreeMap<String, Vec<String>>> = Vec::new();
    for (_, study) in studies {
        let group = &study.group;
        let mut own: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let points = group.members.iter().filter(|member| ["", "point"].contains(&member.role));
        for run in points.filter_map(|member| by_run.get(member.run.as_deref()?)) {
            for (name, value) in settings(run) {
                let levels = own.entry(name).or_default();
                if !levels.contains(&value) {
                    levels.push(value);
                }
            }
        }
        own.extend(group.factors.iter().cloned().zip(group.levels.iter().cloned()));
        for levels in own.values_mut() {
            levels.retain(|level| level != ABSENT);
            levels.sort_by(|a, b| by_level(a, b));
        }
        names.extend(own.keys().filter(|name| !names.contains(name)).cloned().collect::<Vec<_>>());
        all.push(own);
    }
    let cell = |own: &BTreeMap<String, Vec<String>>, name: &str| -> Cell {
        let text = match own.get(name).map(Vec::as_slice) {
            None | Some([]) => "–".to_owned(),
            Some(levels) if levels.len() <= LISTED => {
                levels.iter().map(|level| short(level)).collect::<Vec<_>>().join(", ")
            }
            Some([first, .., last]) => {
                format!("{} levels from {} to {}", own[name].len(), short(first), short(last))
            }
            Some([one]) => short(one),
        };
        (text, false)
    };
    let rows =
        names.iter().map(|name| (name.clone(), all.iter().map(|own| cell(own, name)).collect())).collect();
    let (title, note) = ("Settings that differ", "All levels that the runs of a study have.");
    BesideTable { id: "settings", title, note, heads: heads(studies), figures: false, rows }
}

/// Every run of each study by each objective, with the median and the middle half.
pub fn figures(studies: &[Named]) -> Vec<Figure> {
    let figure = |response: &Response| {
        let measured: Vec<Vec<f64>> = studies.iter().map(|(_, study)| values(study, response)).collect();
        let n: usize = measured.iter().map(Vec::len).sum();
        let names = || studies.iter().map(|(name, _)| name.clone());
        let mut marks = Vec::new();
        let mut middles = Vec::new();
        for (i, (values, name)) in measured.iter().zip(names()).enumerate() {
            // Runs of one study stand beside each other, so that equal ones are seen.
            let aside = |at: usize| ((at * 7) % 11) as f64 / 11.0 * 0.3 - 0.15;
            let dots = values.iter().enumerate();
            let dots = dots.map(|(at, value)| Dot::new(i as f64 + aside(at), *value, name.clone())).collect();
            marks.push(ChartMark::dots(&name, dots));
            if !values.is_empty() {
                let range = Some((quantile(values, 0.25), quantile(values, 0.75)));
                middles.push(Dot { x: i as f64 + 0.3, y: median(values), range, label: "median".into() });
            }
        }
        marks.push(ChartMark::dots("median and middle half", middles));
        let y = ChartAxis::fitting(&response.named(), measured.iter().flatten().copied());
        let panel = Panel::new(ChartAxis::names("study", names()), y, marks);
        let reading = "Each dot is a run; beside them the median and the middle half of the runs. A study whose dots lie \
                       apart has more to gain from its settings.";
        Figure {
            id: format!("spread-{}", response.name.replace('.', "-")),
            title: format!("{} by study", response.name),
            reading: reading.into(),
            n: format!("{n} runs"),
            panels: vec![panel],
        }
    };
    objectives(studies).iter().map(figure).filter(|figure| !figure.is_empty()).collect()
}
