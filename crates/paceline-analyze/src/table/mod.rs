//! The one input of an analysis: runs with the levels of their factors and what they measured, wherever they come
//! from. A file of comma-separated values and a study of the store both become a [`StudyTable`].

mod csv;
mod recorded;
mod response;

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;

use crate::figure::ChartAxis;

pub use csv::{ColumnRoles, MOST_ROWS, RowSample, StudyTableError, read};
pub use paceline_plan::Goal;
pub use recorded::{recorded, settings, varied};
pub use response::{Response, number, short};

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
    /// What was left out on the way, in words.
    pub notes: Vec<String>,
}

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
    /// A level as it was written; a number where it reads as a finite one.
    pub fn read(text: &str) -> Self {
        let number = text.trim().parse::<f64>().ok().filter(|n| n.is_finite());
        Self { text: text.trim().into(), number }
    }
}

impl Factor {
    /// Its numbers, where every level is one.
    pub fn numbers(&self) -> Option<Vec<f64>> {
        self.levels.iter().map(|level| level.number).collect()
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
    /// When it was made, relative to the others.
    pub order: f64,
    /// What it was made together with: a day, a machine, a repeat of the whole design.
    pub block: Option<String>,
    /// Whether it is a repeat of the same configuration, made to see the machine drift.
    pub control: bool,
}

/// A run before its levels are numbered: as they were written.
pub type RawRun = Run<String>;

impl StudyTable {
    /// Numbers the levels of runs.
    pub fn new(name: &str, factors: &[String], responses: Vec<Response>, raw: Vec<RawRun>) -> Self {
        let number = |(i, name): (usize, &String)| {
            // Controls may sit outside of the space that is analysed.
            let texts: HashSet<&str> =
                raw.iter().filter(|run| !run.control).map(|run| run.levels[i].trim()).collect();
            let mut levels: Vec<FactorLevel> = texts.into_iter().map(FactorLevel::read).collect();
            let all = levels.iter().all(|level| level.number.is_some());
            levels.sort_by(|a, b| match (all, a.number, b.number) {
                (true, Some(x), Some(y)) => x.total_cmp(&y).then_with(|| a.text.cmp(&b.text)),
                _ => a.text.cmp(&b.text),
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
        let place = |RawRun { id, levels, values, order, block, control }: RawRun| {
            let at = |(places, text): (&HashMap<&str, usize>, &String)| {
                places.get(text.trim()).copied().unwrap_or(0)
            };
            let levels = places.iter().zip(&levels).map(at).collect();
            Run { id, levels, values, order, block, control }
        };
        let runs = raw.into_iter().map(place).collect();
        Self { name: name.into(), factors, responses, runs, notes: Vec::new() }
    }

    /// Runs that are analysed (not controls) and have a value of the response, on its scale.
    pub fn measured(&self, response: usize) -> Vec<(&Run, f64)> {
        let scale = &self.responses[response];
        let value = |run: &'_ Run| run.values[response].and_then(|value| scale.scaled(value));
        let runs = self.runs.iter().filter(|run| !run.control);
        runs.filter_map(|run| Some((run, value(run)?))).collect()
    }

    /// A configuration in words; factors of one level are left out.
    pub fn configuration(&self, levels: &[usize]) -> String {
        self.others(levels, usize::MAX)
    }

    /// The same without one factor.
    pub(crate) fn others(&self, levels: &[usize], factor: usize) -> String {
        let all = self.factors.iter().zip(levels).enumerate();
        let varied = all.filter(|(i, (f, _))| *i != factor && f.levels.len() > 1);
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
        RawRun { levels, values: vec![Some(value)], control, ..RawRun::default() }
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
