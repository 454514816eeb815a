//! A table of runs that others have made, as the workload: the space is the set of its rows.

use std::collections::BTreeMap;
use std::path::Path;

use paceline_plan::{Axis, Condition, Objective, Point, Sheet, SheetRow, Space, TableError, Value, nearest};
use paceline_registry::Registry;
use paceline_statistics::distinct;

use crate::problem::{Joins, Observation, Prior, Problem, TrialOutcome};
use crate::samplers::{self, SamplerError, SamplerKind};

/// A table that cannot be explored.
#[derive(Debug, thiserror::Error)]
pub enum ExplorationError {
    /// The file or the columns are wrong.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The sampler does not suit it.
    #[error("--sampler {0}")]
    Sampler(#[from] SamplerError),
    /// Regret is not defined.
    #[error("regret needs one objective, and a row that meets the conditions")]
    NoRegret,
}

/// Columns and rows.
#[derive(Clone, Debug)]
pub struct LookupTable {
    /// The columns' names.
    pub columns: Vec<String>,
    /// The rows; cells in the order of the columns.
    pub rows: Vec<Vec<Value>>,
}

impl LookupTable {
    /// Reads comma-separated values, also gzipped.
    pub fn read(path: &Path) -> Result<Self, ExplorationError> {
        let sheet = Sheet::read(path);
        Ok(sheet.map_err(|problem| TableError::File { path: path.into(), problem })?.into())
    }

    fn column(&self, flag: &'static str, name: &str) -> Result<usize, TableError> {
        self.columns.iter().position(|c| c == name).ok_or_else(|| {
            let near = nearest(name, self.columns.iter().map(String::as_str));
            let hint = near.map_or_else(
                || format!("columns: {}", self.columns.join(", ")),
                |near| format!("did you mean `{near}`?"),
            );
            TableError::Ask { flag, value: name.into(), problem: format!("there is no such column; {hint}") }
        })
    }

    /// A row by its columns' names.
    pub fn named(&self, row: usize) -> serde_json::Map<String, serde_json::Value> {
        let cells = self.columns.iter().zip(&self.rows[row]);
        cells.map(|(name, value)| (name.clone(), serde_json::to_value(value).expect("plain data"))).collect()
    }
}

impl From<Sheet> for LookupTable {
    fn from(sheet: Sheet) -> Self {
        let row = |row: SheetRow| row.fields.iter().map(|field| Value::read(field)).collect();
        Self { columns: sheet.columns, rows: sheet.rows.into_iter().map(row).collect() }
    }
}

/// What is asked of a table.
#[derive(Clone, Debug)]
pub struct ExplorationRequest {
    /// The columns that are axes.
    pub axes: Vec<String>,
    /// The columns that are wanted low or high.
    pub objectives: Vec<Objective>,
    /// Conditions on columns.
    pub constraints: Vec<Condition>,
    /// How often a row is looked up.
    pub budget: usize,
    /// The column that says what was expected of the first objective.
    pub prior: Option<String>,
}

/// A table ready to be explored.
#[derive(Clone, Debug)]
pub struct Exploration {
    table: LookupTable,
    problem: Problem,
    /// Rows by point, in the order of the table.
    rows: Vec<(Point, usize)>,
    budget: usize,
    all: Vec<Observation>,
}

impl Exploration {
    /// Checks what is asked against the table.
    pub fn new(table: LookupTable, ask: &ExplorationRequest) -> Result<Self, ExplorationError> {
        let refuse = |flag: &'static str, value: &str, problem: String| {
            Err(TableError::Ask { flag, value: value.into(), problem }.into())
        };
        if ask.axes.is_empty() {
            let problem = format!("name the columns that vary; columns: {}", table.columns.join(", "));
            return refuse("--axis", "", problem);
        }
        let mut axes = Vec::new();
        for name in &ask.axes {
            let column = table.column("--axis", name)?;
            let levels = distinct(table.rows.iter().map(|row| row[column].clone()));
            axes.push((column, Axis::new(name, levels)));
        }
        let mut measured: Vec<(String, usize)> = Vec::new();
        let mut figures = |flag: &'static str, name: &str| -> Result<usize, TableError> {
            let column = table.column(flag, name)?;
            if let Some(row) = table.rows.iter().position(|row| row[column].number().is_none()) {
                let problem = format!("row {} has `{}`, not a number", row + 1, table.rows[row][column]);
                return Err(TableError::Ask { flag, value: name.into(), problem });
            }
            if measured.iter().all(|(known, _)| known != name) {
                measured.push((name.into(), column));
            }
            Ok(column)
        };
        for objective in &ask.objectives {
            figures("--objective", &objective.metric)?;
        }
        let (mut on_axes, mut limits) = (Vec::new(), Vec::new());
        for constraint in &ask.constraints {
            if constraint.names().iter().all(|name| ask.axes.iter().any(|a| a == name)) {
                on_axes.push(constraint.clone());
                continue;
            }
            for name in constraint.names().into_iter().filter(|name| ask.axes.iter().all(|a| a != name)) {
                figures("--constraint", name)?;
            }
            limits.push(constraint.clone());
        }
        let expected = ask.prior.as_ref().map(|name| figures("--prior", name)).transpose()?;
        let mut rows: Vec<(Point, usize)> = Vec::new();
        for (i, row) in table.rows.iter().enumerate() {
            let level = |(column, axis): &(usize, Axis)| {
                axis.levels.iter().position(|l| *l == row[*column]).map(|l| l as u32)
            };
            let point = Point(axes.iter().map(level).collect());
            if let Some((_, first)) = rows.iter().find(|(known, _)| *known == point) {
                let value = ask.axes.join(", ");
                let problem =
                    format!("rows {} and {} have the same levels; name further axes", first + 1, i + 1);
                return refuse("--axis", &value, problem);
            }
            let lookup = |name: &str| Some(row[table.columns.iter().position(|c| c == name)?].clone());
            if on_axes.iter().all(|c| c.allows(&lookup)) {
                rows.push((point, i));
            }
        }
        if rows.is_empty() {
            return refuse("--constraint", "", "no row meets the conditions on axes".into());
        }
        let points = rows.iter().map(|(point, _)| point.clone()).collect();
        let space = Space::listed(axes.into_iter().map(|(_, axis)| axis).collect(), points);
        let space = space.map_err(|e| TableError::Ask {
            flag: "--axis",
            value: e.subject.clone(),
            problem: e.problem.clone(),
        })?;
        let problem = Problem {
            space,
            objectives: ask.objectives.clone(),
            limits,
            seed: 1,
            budget: Some(ask.budget),
            duplicates: false,
            joins: Joins::new(),
            clock: None,
            prior: expected.map(|column| {
                let figure = |row: usize| table.rows[row][column].number().unwrap_or(f64::NAN);
                Prior(rows.iter().map(|(point, row)| (point.clone(), figure(*row))).collect())
            }),
        };
        let all = rows
            .iter()
            .map(|(point, row)| {
                let metrics: BTreeMap<String, f64> = measured
                    .iter()
                    .filter_map(|(name, column)| Some((name.clone(), table.rows[*row][*column].number()?)))
                    .collect();
                Observation { point: point.clone(), share: 1.0, outcome: TrialOutcome::Measured(metrics) }
            })
            .collect();
        Ok(Self { table, problem, rows, budget: ask.budget, all })
    }

    /// The table.
    pub fn table(&self) -> &LookupTable {
        &self.table
    }

    /// The problem, without a seed of its own.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Explores with a sampler: which rows it looked up, in order, and what each suggestion took, in seconds.
    pub fn run(
        &self,
        samplers: &Registry<SamplerKind>,
        sampler: &str,
        seed: u64,
    ) -> Result<Explored, ExplorationError> {
        let (kind, _) = samplers::find(samplers, sampler)?;
        if kind.shortens {
            let problem = format!("{sampler} begins with shortened runs, and a table has only whole ones");
            return Err(SamplerError(problem).into());
        }
        let problem = Problem { seed, ..self.problem.clone() };
        let mut sampler = samplers::make(samplers, sampler, &problem)?;
        let mut explored =
            Explored { rows: Vec::new(), history: Vec::new(), suggest_s: Vec::new(), notes: sampler.notes() };
        while explored.history.len() < self.budget {
            let start = std::time::Instant::now();
            let Some(suggestion) = sampler.next(&explored.history) else { break };
            explored.suggest_s.push(start.elapsed().as_secs_f64());
            let at = self.rows.iter().position(|(point, _)| *point == suggestion.point);
            let at = at.expect("samplers suggest points of the space");
            explored.rows.push(self.rows[at].1);
            explored.history.push(self.all[at].clone());
        }
        Ok(explored)
    }

    /// How far a first objective's best feasible value after each evaluation is from the best feasible in the table,
    /// as a fraction of that one. Before anything feasible was found, the worst feasible value counts. `None` with
    /// several objectives, or if nothing is feasible.
    pub fn regrets(&self, rows: &[usize]) -> Option<Vec<f64>> {
        if self.problem.objectives.len() != 1 {
            return None;
        }
        let loss = |o: &Observation| {
            self.problem.feasible(o).then(|| self.problem.losses(o).map(|l| l[0])).flatten()
        };
        let feasible = || self.all.iter().filter_map(loss);
        let (best, worst) = (feasible().reduce(f64::min)?, feasible().reduce(f64::max)?);
        let mut reached = worst;
        let mut regrets = Vec::with_capacity(rows.len());
        for row in rows {
            let at = self.rows.iter().position(|(_, r)| r == row)?;
            reached = loss(&self.all[at]).map_or(reached, |value| reached.min(value));
            regrets.push((reached - best) / best.abs().max(f64::MIN_POSITIVE));
        }
        Some(regrets)
    }
}

impl Exploration {
    /// What a sampler found, for people: the best rows by the columns that were asked about, and how good they are.
    pub fn summary(&self, explored: &Explored, axes: &[String], sampler: &str) -> String {
        let mut text = String::new();
        let best = self.problem.best(&explored.history);
        for found in &best {
            let asked = |name: &String| {
                axes.contains(name)
                    || self.problem.objectives.iter().any(|o| o.metric == *name)
                    || self.problem.limits.iter().any(|c| c.names().contains(&name.as_str()))
            };
            let row = self.table.named(explored.rows[*found]);
            let cells: Vec<String> = row
                .iter()
                .filter(|(name, _)| asked(name))
                .map(|(name, value)| format!("{name} {}", value.to_string().trim_matches('"')))
                .collect();
            text += &format!("best: {}\n", cells.join(", "));
        }
        if best.is_empty() {
            text += "nothing that was looked up meets the conditions\n";
        }
        let feasible = explored.history.iter().filter(|o| self.problem.feasible(o)).count();
        let rows = explored.rows.len();
        text += &format!("{rows} rows looked up by {sampler}, {feasible} of them meet the conditions");
        text + &match self.regrets(&explored.rows).and_then(|regrets| regrets.last().copied()) {
            Some(regret) => format!("; {:.1}% from the best of the whole table\n", 100.0 * regret),
            None => "\n".into(),
        }
    }
}

/// What a sampler did with a table.
#[derive(Clone, Debug)]
pub struct Explored {
    /// Rows of the table, from 0, in the order in which they were looked up.
    pub rows: Vec<usize>,
    pub history: Vec<Observation>,
    /// Seconds that each suggestion took.
    pub suggest_s: Vec<f64>,
    /// What the sampler says about its points.
    pub notes: Vec<String>,
}
