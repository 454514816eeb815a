//! Some of the recorded runs, in an order: what `paceline runs` lists.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use paceline_plan::{Condition, Goal, Value, nearest};
use paceline_record::figures::Figures;
use paceline_record::store::RunRow;

use crate::table::{NONE, all_settings};

/// Which runs are wanted. Of several values of one field, any fits; tags must all be there.
#[derive(Clone, Debug, Default)]
pub struct RunSelection {
    /// Studies that they belong to.
    pub studies: Vec<String>,
    /// Workloads of studies.
    pub workloads: Vec<String>,
    /// Tags that they have.
    pub tags: Vec<String>,
    /// Networks.
    pub models: Vec<String>,
    /// Datasets.
    pub data: Vec<String>,
    /// Averaging paths.
    pub strategies: Vec<String>,
    /// `running`, `ok`, …, or `simulated`.
    pub states: Vec<String>,
    /// Conditions on settings, figures and labels.
    pub conditions: Vec<Condition>,
    /// Whether archived runs are wanted, and no others.
    pub archived: bool,
    /// What they are ordered by: a figure (the best first), a setting or a label (ascending). By their start if absent.
    pub sort: Option<String>,
    /// The other way round.
    pub reverse: bool,
    /// How many: the first ones, or the latest where nothing orders them.
    pub limit: Option<usize>,
}

/// Runs that were chosen, and how many more there are.
#[derive(Clone, Debug)]
pub struct ChosenRuns<'a> {
    /// In order.
    pub runs: Vec<&'a RunRow>,
    /// What the limit left out.
    pub more: usize,
}

/// A name that no run has.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is neither a setting nor a figure of these runs{}", nearest.as_ref().map(|n| format!("; did you mean `{n}`?")).unwrap_or_default())]
pub struct UnknownName {
    /// The name.
    pub name: String,
    /// What is written most like it.
    pub nearest: Option<String>,
}

/// What a run has beside settings and figures.
const LABELS: [&str; 8] = ["run", "name", "note", "study", "workload", "state", "origin", "started_s"];

/// A run and what can be asked of it.
struct Candidate<'a> {
    row: &'a RunRow,
    settings: Vec<(String, String)>,
}

impl<'a> Candidate<'a> {
    fn new(row: &'a RunRow) -> Self {
        Self { row, settings: all_settings(row) }
    }

    /// A label, a setting or a figure.
    fn value(&self, name: &str, figures: &Figures) -> Option<Value> {
        let (row, labels) = (self.row, &self.row.labels);
        let text = |text: &str| Some(Value::Text(text.into()));
        match name {
            "run" => text(&row.run),
            "name" => text(labels.name.as_deref()?),
            "note" => text(labels.note.as_deref()?),
            "study" => text(labels.study.as_deref()?),
            "workload" => text(labels.workload.as_deref()?),
            "state" => text(&row.state),
            "origin" => text(&row.origin),
            "started_s" => Some(Value::Number(row.started_s)),
            name => {
                // `steps` is a setting of some plans and a figure of all runs: what was asked for comes first.
                let setting = self.settings.iter().find(|(known, value)| known == name && value != NONE);
                let figure = || figures.find(name).and_then(|figure| row.figure(figure)).map(Value::Number);
                setting.map(|(_, value)| Value::read(value)).or_else(figure)
            }
        }
    }
}

impl RunSelection {
    /// The runs among `rows` (the latest last) that are wanted.
    pub fn choose<'a>(&self, rows: &'a [RunRow], figures: &Figures) -> Result<ChosenRuns<'a>, UnknownName> {
        let all: Vec<Candidate<'a>> = rows.iter().map(Candidate::new).collect();
        let asked = self.conditions.iter().flat_map(Condition::names).chain(self.sort.as_deref());
        asked.filter(|_| !rows.is_empty()).try_for_each(|name| check(name, &all, figures))?;
        let mut chosen: Vec<&Candidate<'a>> = all.iter().filter(|run| self.fits(run, figures)).collect();
        if let Some(name) = &self.sort {
            let best_first = figures.find(name).is_some_and(|figure| figure.goal == Goal::Maximize);
            let falling = best_first != self.reverse;
            let mut keyed: Vec<_> = chosen.into_iter().map(|run| (run.value(name, figures), run)).collect();
            keyed.sort_by(|(a, _), (b, _)| order(a.as_ref(), b.as_ref(), falling));
            chosen = keyed.into_iter().map(|(_, run)| run).collect();
        }
        let more = chosen.len().saturating_sub(self.limit.unwrap_or(usize::MAX));
        // By their start, the latest stand last: they are the ones that stay.
        let kept = if self.sort.is_some() { 0..chosen.len() - more } else { more..chosen.len() };
        let mut runs: Vec<&RunRow> = chosen[kept].iter().map(|run| run.row).collect();
        if self.sort.is_none() && self.reverse {
            runs.reverse();
        }
        Ok(ChosenRuns { runs, more })
    }

    fn fits(&self, run: &Candidate<'_>, figures: &Figures) -> bool {
        let (row, labels, plan) = (run.row, &run.row.labels, run.row.plan.as_ref());
        let any = |wanted: &[String], own: Option<&str>| {
            wanted.is_empty() || own.is_some_and(|own| wanted.iter().any(|value| value == own))
        };
        let state = if row.origin == "simulated" && row.state == "ok" { &row.origin } else { &row.state };
        row.archived == self.archived
            && any(&self.studies, labels.study.as_deref())
            && any(&self.workloads, labels.workload.as_deref())
            && any(&self.models, plan.map(|plan| plan.model.as_str()))
            && any(&self.data, plan.filter(|plan| plan.script.is_none()).map(|plan| plan.data.as_str()))
            && any(&self.strategies, plan.map(|plan| plan.strategy.as_str()))
            && any(&self.states, Some(state))
            && self.tags.iter().all(|tag| labels.tags.contains(tag))
            && self.conditions.iter().all(|c| c.truth(&|name| run.value(name, figures)) == Some(true))
    }
}

/// Whether a name means something for at least one run.
fn check(name: &str, runs: &[Candidate<'_>], figures: &Figures) -> Result<(), UnknownName> {
    let settings: BTreeSet<&str> =
        runs.iter().flat_map(|run| run.settings.iter().map(|(name, _)| name.as_str())).collect();
    if settings.contains(name) || LABELS.contains(&name) || figures.find(name).is_some() {
        return Ok(());
    }
    let known = settings.into_iter().chain(LABELS).chain(figures.of_runs().map(|figure| figure.name));
    Err(UnknownName { name: name.into(), nearest: nearest(name, known).map(str::to_owned) })
}

/// Numbers before words; what has no value comes last either way.
fn order(a: Option<&Value>, b: Option<&Value>, falling: bool) -> Ordering {
    let turned = |order: Ordering| if falling { order.reverse() } else { order };
    match (a, b) {
        (Some(Value::Number(a)), Some(Value::Number(b))) => turned(a.total_cmp(b)),
        (Some(Value::Number(_)), Some(_)) => Ordering::Less,
        (Some(_), Some(Value::Number(_))) => Ordering::Greater,
        (Some(a), Some(b)) => turned(a.to_string().cmp(&b.to_string())),
        (a, b) => b.is_some().cmp(&a.is_some()),
    }
}
