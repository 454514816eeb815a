//! The one input of an analysis: runs with the levels of their factors and what they measured, wherever they come
//! from. A file of comma-separated values and a study of the store both become a [`StudyTable`].

mod csv;
mod recorded;
mod response;
mod workloads;

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;

use crate::figure::ChartAxis;

pub use csv::{ColumnRoles, MOST_ROWS, RowSample, StudyTableError, read};
pub use paceline_plan::Goal;
pub use recorded::{NONE, all_settings, recorded, settings, varied};
pub use response::{Response, number, short};
pub use workloads::WorkloadTraits;

/// Runs, what varied between them, and what they measured.
#[derive(Clone, Debug, Serialize)]
pub struct StudyTable {
    /// Its name: of the file or of the study.
    pub name: String,
    /// What varied on purpose; every level occurs in some run.
    pub factors: Vec<Factor>,
    /// What was measured; the first is the one that is explained.
    pub responses: Vec<Response>,
    /// The runs.
    pub runs: Vec<Run>,
    /// Whether the order of the runs tells when they were made, and was not chosen by their levels: only then does a
    /// drift of the machine show.
    pub timed: bool,
    /// What runs had one worker alone, whatever their levels say.
    #[serde(skip)]
    pub alone: Vec<RunRole>,
    /// The factor whose levels are workloads: given, not chosen, so that its own effect is a block's. It never counts as
    /// something that mattered and never competes as the best; how other factors act on each workload does count.
    pub workload: Option<usize>,
    /// What is known about the workloads; none where nobody says.
    pub workloads: Vec<WorkloadTraits>,
    /// What one more run of every configuration would take, where somebody knows.
    pub repeats: Option<RepeatCost>,
    /// What was left out on the way, in words.
    pub notes: Vec<String>,
}

/// How often configurations were run, and what one more run of each would take.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct RepeatCost {
    pub repeats: u64,
    pub seconds: f64,
}

/// What a run is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunRole {
    /// To be analysed.
    #[default]
    Point,
    /// A repeat of the same configuration, made to see the machine drift.
    Control,
    /// One worker alone, to be compared with.
    Baseline,
}

/// The factor that a study of several workloads has.
pub const WORKLOAD: &str = "workload";

/// The level of a factor that cannot act in a run, such as the strategy of one worker.
pub const ABSENT: &str = "–";

/// Something that varied on purpose.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Factor {
    /// Its name.
    pub name: String,
    /// Its levels: numbers in ascending order, words in the order of the alphabet.
    pub levels: Vec<FactorLevel>,
}

/// One level of a factor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FactorLevel {
    /// As it was written.
    pub text: String,
    /// As a number, where it is one.
    #[serde(skip)]
    pub number: Option<f64>,
}

impl FactorLevel {
    /// Whether it says that the factor is not there.
    pub fn absent(&self) -> bool {
        self.text == ABSENT
    }
}

impl FactorLevel {
    /// A level as it was written; a number where it reads as a finite one. Nothing written means that the factor is
    /// not there.
    pub fn read(text: &str) -> Self {
        let text = written(text);
        let number = text.trim().parse::<f64>().ok().filter(|n| n.is_finite());
        Self { text: text.into(), number }
    }
}

fn written(text: &str) -> &str {
    match text.trim() {
        "" => ABSENT,
        text => text,
    }
}

impl Factor {
    /// Its numbers, where every level is one.
    pub fn numbers(&self) -> Option<Vec<f64>> {
        self.levels.iter().map(|level| level.number).collect()
    }

    /// The numbers of the levels at which it acts, where every one of them is a number.
    pub fn acting_numbers(&self) -> Option<Vec<f64>> {
        self.levels[..self.acting()].iter().map(|level| level.number).collect()
    }

    /// How many levels it has where it can act; a level that says that it cannot comes last.
    pub fn acting(&self) -> usize {
        self.levels.iter().filter(|level| !level.absent()).count()
    }

    /// An axis of charts: its levels in their order.
    pub(crate) fn axis(&self) -> ChartAxis {
        ChartAxis::names(&self.name, self.levels.iter().map(|level| level.text.clone()))
    }

    /// `name = level`.
    pub fn at(&self, level: usize) -> String {
        format!("{} = {}", self.name, self.levels[level].text)
    }
}

/// One run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Run<L = usize> {
    /// What it is called where it came from.
    pub id: String,
    /// Its level of each factor.
    pub levels: Vec<L>,
    /// What it measured, in the order of the responses, before any logarithm.
    pub values: Vec<Option<f64>>,
    /// Where it did not reach what was to be measured (a target, a better run): what that takes at least.
    pub bounds: Vec<Option<f64>>,
    /// When it was made, relative to the others.
    pub order: f64,
    /// What it was made together with: a day, a machine, a repeat of the whole design.
    pub block: Option<String>,
    /// What it is for.
    pub role: RunRole,
    /// Whether its configuration breaks a condition, so that it cannot be the best.
    pub forbidden: bool,
}

/// A run before its levels are numbered: as they were written.
pub type RawRun = Run<String>;

impl StudyTable {
    /// Numbers the levels of runs.
    pub fn new(name: &str, factors: &[String], responses: Vec<Response>, raw: Vec<RawRun>) -> Self {
        let number = |(i, name): (usize, &String)| {
            // Controls may sit outside of the space that is analysed.
            let texts: HashSet<&str> = raw
                .iter()
                .filter(|run| run.role == RunRole::Point || name == WORKLOAD)
                .map(|run| written(&run.levels[i]))
                .collect();
            let mut levels: Vec<FactorLevel> = texts.into_iter().map(FactorLevel::read).collect();
            let all = levels.iter().all(|level| level.number.is_some() || level.absent());
            levels.sort_by(|a, b| match (all, a.number, b.number) {
                (true, Some(x), Some(y)) => x.total_cmp(&y).then_with(|| a.text.cmp(&b.text)),
                _ => (a.absent(), &a.text).cmp(&(b.absent(), &b.text)),
            });
            Factor { name: name.clone(), levels }
        };
        let factors: Vec<Factor> = factors.iter().enumerate().map(number).collect();
        let places: Vec<HashMap<&str, usize>> = factors
            .iter()
            .map(|factor| {
                factor.levels.iter().enumerate().map(|(at, level)| (level.text.as_str(), at)).collect()
            })
            .collect();
        let place = |RawRun { id, levels, values, mut bounds, order, block, role, forbidden }: RawRun| {
            let at = |(places, text): (&HashMap<&str, usize>, &String)| {
                places.get(written(text)).copied().unwrap_or(0)
            };
            let levels = places.iter().zip(&levels).map(at).collect();
            bounds.resize(responses.len(), None);
            Run { id, levels, values, bounds, order, block, role, forbidden }
        };
        let runs = raw.into_iter().map(place).collect();
        let workload = factors.iter().position(|factor| factor.name == WORKLOAD);
        Self {
            name: name.into(),
            factors,
            responses,
            runs,
            timed: false,
            alone: Vec::new(),
            workload,
            workloads: Vec::new(),
            repeats: None,
            notes: Vec::new(),
        }
    }

    /// The factor whose levels are workloads, where there are several of them.
    pub fn several_workloads(&self) -> Option<usize> {
        self.workload.filter(|f| self.factors[*f].levels.len() > 1)
    }

    /// A run's workload, where there are several.
    pub(crate) fn workload_of(&self, run: &Run) -> Option<usize> {
        self.several_workloads().map(|f| run.levels[f])
    }

    /// Runs of points that have a value of the response, on its scale.
    pub fn measured(&self, response: usize) -> Vec<(&Run, f64)> {
        self.observed(response).into_iter().filter(|(run, _)| run.role == RunRole::Point).collect()
    }

    /// The same with controls and the baseline.
    pub fn observed(&self, response: usize) -> Vec<(&Run, f64)> {
        let scale = &self.responses[response];
        let value = |run: &'_ Run| run.values[response].and_then(|value| scale.scaled(value));
        self.runs.iter().filter_map(|run| Some((run, value(run)?))).collect()
    }

    /// Runs of points that did not reach what was to be measured: what it takes at least, on the response's scale.
    pub fn missed(&self, response: usize) -> Vec<(&Run, f64)> {
        let scale = &self.responses[response];
        let missed = |run: &&Run| run.role == RunRole::Point && run.values[response].is_none();
        let bound = |run: &'_ Run| run.bounds[response].and_then(|bound| scale.scaled(bound));
        self.runs.iter().filter(missed).filter_map(|run| Some((run, bound(run)?))).collect()
    }

    /// A configuration in words; factors of one level, and those that cannot act there, are left out.
    pub fn configuration(&self, levels: &[usize]) -> String {
        self.others(levels, usize::MAX)
    }

    /// The same without one factor.
    pub(crate) fn others(&self, levels: &[usize], factor: usize) -> String {
        let all = self.factors.iter().zip(levels).enumerate();
        let varied = all.filter(|(i, (f, l))| *i != factor && f.levels.len() > 1 && !f.levels[**l].absent());
        let word =
            |(_, (f, level)): (_, (&Factor, &usize))| format!("{} {}", f.name, short(&f.levels[*level].text));
        varied.map(word).collect::<Vec<_>>().join(", ")
    }

    /// Runs by configuration, on the response's scale.
    pub fn cells(&self, response: usize) -> BTreeMap<Vec<usize>, Vec<f64>> {
        let mut cells: BTreeMap<Vec<usize>, Vec<f64>> = BTreeMap::new();
        for (run, value) in self.measured(response) {
            cells.entry(run.levels.clone()).or_default().push(value);
        }
        cells
    }

    /// The place of a factor.
    pub fn factor(&self, name: &str) -> Option<usize> {
        self.factors.iter().position(|factor| factor.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(levels: [&str; 2], value: f64, control: bool) -> RawRun {
        let levels = levels.map(String::from).to_vec();
        let role = if control { RunRole::Control } else { RunRole::Point };
        RawRun { levels, values: vec![Some(value)], role, ..RawRun::default() }
    }

    #[test]
    fn numbers_are_ordered_as_numbers_and_controls_make_no_levels() {
        let runs = vec![
            run(["10", "b"], 1.0, false),
            run(["9", "a"], 2.0, false),
            run(["9", "a"], 4.0, false),
            run(["77", "z"], 3.0, true),
        ];
        let responses = vec![Response::parse("time_s").unwrap()];
        let table = StudyTable::new("t", &["n".into(), "w".into()], responses, runs);
        let texts = |i: usize| table.factors[i].levels.iter().map(|l| l.text.as_str()).collect::<Vec<_>>();
        assert_eq!((texts(0), texts(1)), (vec!["9", "10"], vec!["a", "b"]));
        assert_eq!(table.cells(0), BTreeMap::from([(vec![0, 0], vec![2.0, 4.0]), (vec![1, 1], vec![1.0])]));
        assert_eq!(table.configuration(&[1, 0]), "n 10, w a");
    }

    #[test]
    fn a_logarithm_leaves_out_what_has_none() {
        let runs = vec![run(["1", "a"], 0.0, false), run(["2", "a"], std::f64::consts::E, false)];
        let responses = vec![Response::parse("log(time_s)").unwrap()];
        let table = StudyTable::new("t", &["n".into(), "w".into()], responses, runs);
        assert_eq!(table.measured(0).iter().map(|(_, v)| *v).collect::<Vec<_>>(), [1.0]);
    }
}
