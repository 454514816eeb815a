//! From levels to columns: sums to zero, so that a factor's effect is an average over the levels of all others.

use std::ops::Range;

use crate::linear::Fit;
use crate::noise::StudyClock;
use crate::table::{Factor, Run, RunRole, StudyTable};

/// Numeric factors of more levels are slopes.
pub const MOST_LEVELS: usize = 8;
/// Degrees of freedom that must be left for the noise before interactions are fitted.
const LEAST_DF: usize = 8;
/// Of slopes of more levels, the ends are told.
const MOST_TOLD: usize = 64;

#[derive(Clone, Debug, PartialEq)]
pub enum Coding {
    /// A column per level but the last, which is minus their sum.
    Levels(usize),
    /// One column, from −1 at the least level to 1 at the greatest.
    Slope {
        /// Whether the logarithm is what is even.
        log: bool,
        places: Vec<f64>,
    },
}

impl Coding {
    /// Where the factor cannot act, every entry is zero.
    pub fn of(factor: &Factor) -> Self {
        let levels = factor.acting();
        match factor.acting_numbers() {
            Some(numbers) if levels > MOST_LEVELS => {
                let (low, high) = (numbers[0], numbers[levels - 1]);
                let log = low > 0.0 && high / low >= 10.0;
                let place = |x: f64| if log { x.ln() } else { x };
                let (low, high) = (place(low), place(high));
                let places = numbers.iter().map(|x| 2.0 * (place(*x) - low) / (high - low) - 1.0).collect();
                Self::Slope { log, places }
            }
            _ => Self::Levels(levels),
        }
    }

    pub fn width(&self) -> usize {
        match self {
            Self::Levels(levels) => levels - 1,
            Self::Slope { .. } => 1,
        }
    }

    /// A level's entries in them.
    pub fn entries(&self, level: usize) -> Vec<f64> {
        match self {
            Self::Levels(levels) if level + 1 == *levels => vec![-1.0; levels - 1],
            Self::Levels(levels) => (0..levels - 1).map(|i| f64::from(u8::from(i == level))).collect(),
            Self::Slope { places, .. } => vec![places.get(level).copied().unwrap_or(0.0)],
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Term {
    /// Places of the factors.
    pub factors: Vec<usize>,
    /// Their names, with `:` between.
    pub name: String,
    pub columns: Range<usize>,
}

#[derive(Clone, Debug)]
pub struct ModelMatrix {
    /// How each factor is coded; none where it has one level.
    pub codings: Vec<Option<Coding>>,
    /// Factors, then pairs.
    pub terms: Vec<Term>,
    /// What is the workloads' own, where there are several: no term, but a block.
    pub workload: Option<Term>,
    /// Columns of what is no factor, the first of all ones included: blocks, controls, the drift, workloads.
    pub nuisance: usize,
    /// The column of the drift.
    pub drift: Option<usize>,
    pub columns: Vec<Vec<f64>>,
    /// Whether pairs were left out because there are too few runs.
    pub without_pairs: bool,
}

/// Pairs that a model has.
#[derive(Clone, Copy, PartialEq)]
enum Pairs {
    All,
    /// Those of a workload and a factor.
    OfWorkloads,
    None,
}

impl ModelMatrix {
    /// The model of a response: every factor and, where the runs allow it, every pair.
    pub fn new(table: &StudyTable, response: usize) -> Self {
        let runs = modelled(table, response).len();
        let enough = |design: &Self| {
            // Columns that depend on others cost nothing.
            let zeros = vec![0.0; runs];
            runs >= runs - Fit::new(&design.columns, &zeros).df + LEAST_DF
        };
        let full = Self::with(table, response, Pairs::All);
        if full.terms.iter().all(|term| term.factors.len() == 1) || enough(&full) {
            return full;
        }
        // How factors act on each workload matters more than how they act on each other.
        if full.workload.is_some() {
            let some = Self::with(table, response, Pairs::OfWorkloads);
            if enough(&some) {
                return Self { without_pairs: some.terms.len() < full.terms.len(), ..some };
            }
        }
        Self { without_pairs: true, ..Self::with(table, response, Pairs::None) }
    }

    fn with(table: &StudyTable, response: usize, pairs: Pairs) -> Self {
        let coding = |f: &Factor| (f.acting() > 1).then(|| Coding::of(f));
        let codings: Vec<Option<Coding>> = table.factors.iter().map(coding).collect();
        let varied: Vec<usize> = (0..codings.len()).filter(|i| codings[*i].is_some()).collect();
        let runs = modelled(table, response);
        let mut blocks: Vec<&str> = runs.iter().filter_map(|(run, _)| run.block.as_deref()).collect();
        blocks.sort_unstable();
        blocks.dedup();
        // Controls and the baseline have means of their own, on each workload.
        let kind = |run: &Run| (run.role, table.workload_of(run));
        let mut roles: Vec<_> =
            runs.iter().map(|(run, _)| kind(run)).filter(|(role, _)| *role != RunRole::Point).collect();
        roles.sort_unstable();
        roles.dedup();
        let clock = if table.timed { StudyClock::new(&runs) } else { None };
        let of_roles = blocks.len().max(1);
        let drift = clock.map(|_| of_roles + roles.len());
        let mut width = of_roles + roles.len() + usize::from(drift.is_some());
        let given = table.several_workloads().and_then(|f| Some((f, codings[f].as_ref()?)));
        let workload = given.map(|(f, coding)| Term {
            factors: vec![f],
            name: table.factors[f].name.clone(),
            columns: width..width + coding.width(),
        });
        width += workload.as_ref().map_or(0, |own| own.columns.len());
        let nuisance = width;
        let mut terms = Vec::new();
        let mut add = |factors: Vec<usize>| {
            let own: usize = factors.iter().map(|f| codings[*f].as_ref().map_or(0, Coding::width)).product();
            let names: Vec<&str> = factors.iter().map(|f| table.factors[*f].name.as_str()).collect();
            terms.push(Term { name: names.join(":"), factors, columns: width..width + own });
            width += own;
        };
        let given = given.map(|(f, _)| f);
        varied.iter().filter(|f| Some(**f) != given).for_each(|f| add(vec![*f]));
        for (i, f) in varied.iter().enumerate() {
            let modelled = |g: &&usize| match pairs {
                Pairs::All => true,
                Pairs::OfWorkloads => [Some(*f), Some(**g)].contains(&given),
                Pairs::None => false,
            };
            varied[i + 1..].iter().filter(modelled).for_each(|g| add(vec![*f, *g]));
        }
        let mut design =
            Self { codings, terms, workload, nuisance, drift, columns: Vec::new(), without_pairs: false };
        let row = |run: &Run| {
            let mut row = vec![0.0; width];
            row[0] = 1.0;
            if run.role == RunRole::Point {
                row = design.row(&run.levels, width);
            }
            if let Some(at) = run.block.as_deref().and_then(|own| blocks.iter().position(|b| *b == own)) {
                row[1..of_roles].copy_from_slice(&Coding::Levels(blocks.len()).entries(at));
            }
            if let Some(at) = roles.iter().position(|role| *role == kind(run)) {
                row[of_roles + at] = 1.0;
            }
            if let Some((clock, drift)) = clock.zip(drift) {
                row[drift] = clock.at(run);
            }
            row
        };
        let rows: Vec<Vec<f64>> = runs.iter().map(|(run, _)| row(run)).collect();
        design.columns = (0..width).map(|j| rows.iter().map(|row| row[j]).collect()).collect();
        design
    }

    fn row(&self, levels: &[usize], width: usize) -> Vec<f64> {
        let mut row = vec![0.0; width];
        row[0] = 1.0;
        for term in self.workload.iter().chain(&self.terms) {
            row[term.columns.clone()].copy_from_slice(&self.entries(&term.factors, levels));
        }
        row
    }

    fn entries(&self, factors: &[usize], levels: &[usize]) -> Vec<f64> {
        let own = |f: &usize| self.codings[*f].as_ref().map_or_else(Vec::new, |c| c.entries(levels[*f]));
        match factors {
            [f] => own(f),
            [f, g] => own(f).iter().flat_map(|a| own(g).into_iter().map(move |b| a * b)).collect(),
            _ => unreachable!("terms are factors and pairs"),
        }
    }

    /// Weights of a term at levels of its factors (given in the order of the table).
    pub fn weights(&self, term: &Term, levels: &[usize]) -> Vec<f64> {
        let mut weights = vec![0.0; self.columns.len()];
        weights[term.columns.clone()].copy_from_slice(&self.entries(&term.factors, levels));
        weights
    }

    pub fn configuration(&self, levels: &[usize]) -> Vec<f64> {
        self.row(levels, self.columns.len())
    }

    /// Levels of a factor that are told one by one: all, but of a long slope its ends, since it is a line between them.
    pub fn told_levels(&self, factor: usize) -> Vec<usize> {
        match &self.codings[factor] {
            Some(Coding::Slope { places, .. }) if places.len() > MOST_TOLD => vec![0, places.len() - 1],
            Some(Coding::Slope { places, .. }) => (0..places.len()).collect(),
            Some(Coding::Levels(levels)) => (0..*levels).collect(),
            None => vec![0],
        }
    }

    pub fn term(&self, factors: &[usize]) -> Option<&Term> {
        self.terms.iter().find(|term| term.factors == factors)
    }
}

/// The runs that a model has: with those that tell of the machine alone, where their order does.
pub fn modelled(table: &StudyTable, response: usize) -> Vec<(&Run, f64)> {
    if table.timed { table.observed(response) } else { table.measured(response) }
}

pub fn minus(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}
