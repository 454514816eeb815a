//! `paceline explore --table` and `paceline bench samplers`: a table of runs made by others as the workload.

use std::path::{Path, PathBuf};

use paceline_explore::regret::{self, RegretCurve};
use paceline_explore::{Exploration, ExplorationRequest, LookupTable};
use paceline_plan::{Condition, Goal, Objective};
use serde_json::{Map, Value, json};

use crate::failure::Failure;
use crate::flags::registries;
use crate::output::{self, Show};

/// Which samplers can be used with a table: rows cannot be made shorter.
pub fn samplers() -> String {
    let all = registries().samplers.iter().filter(|kind| !kind.shortens).map(|kind| kind.name);
    format!("How rows are chosen: {}", all.collect::<Vec<_>>().join(", "))
}

/// What is asked of a table.
#[derive(clap::Args, Clone, Debug)]
pub struct TableQuery {
    /// A column that varies; give it once per axis
    #[arg(long = "axis", value_name = "COLUMN")]
    axes: Vec<String>,
    /// A column that is wanted low or high
    #[arg(long = "objective", value_name = "COLUMN")]
    objectives: Vec<String>,
    /// Less of the objective is better (the default)
    #[arg(long, conflicts_with = "maximize")]
    minimize: bool,
    /// More of the objective is better
    #[arg(long)]
    maximize: bool,
    /// A condition on columns, e.g. "accuracy >= 0.85"
    #[arg(long = "constraint", value_name = "CONDITION", value_parser = |s: &str| Condition::parse(s))]
    constraints: Vec<Condition>,
    /// A column with what was expected of the objective before anything was run, e.g. by `paceline predict` (bayes)
    #[arg(long, value_name = "COLUMN")]
    prior: Option<String>,
    /// How many rows are looked up
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    budget: u64,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl TableQuery {
    fn exploration(&self, table: &Path) -> Result<Exploration, Failure> {
        let goal = if self.maximize { Goal::Maximize } else { Goal::Minimize };
        if self.objectives.is_empty() {
            return Err(Failure::usage("--objective COLUMN is missing: what is wanted?"));
        }
        let (table, figures) = (LookupTable::read(table)?, &registries().figures);
        // A table may have a figure under a name that it had before.
        let column = |name: &str| {
            figures
                .column(&table.columns, name)
                .map_or_else(|| name.to_owned(), |at| table.columns[at].clone())
        };
        let ask = ExplorationRequest {
            axes: self.axes.clone(),
            objectives: self.objectives.iter().map(|name| Objective { metric: column(name), goal }).collect(),
            constraints: self.constraints.iter().map(|c| c.clone().renamed(&column)).collect(),
            budget: self.budget as usize,
            prior: self.prior.clone(),
        };
        Ok(Exploration::new(table, &ask)?)
    }
}

/// `paceline explore --table`.
pub fn explore(table: &Path, sampler: &str, asked: &TableQuery, show: Show) -> Result<(), Failure> {
    let exploration = asked.exploration(table)?;
    let explored = exploration.run(&registries().samplers, sampler, asked.seed)?;
    let problem = exploration.problem();
    if show.json {
        let row = |at: usize| exploration.table().named(explored.rows[at]);
        let best: Vec<Map<String, Value>> = problem.best(&explored.history).into_iter().map(row).collect();
        let feasible = explored.history.iter().filter(|o| problem.feasible(o)).count();
        let regret = exploration.regrets(&explored.rows).and_then(|regrets| regrets.last().copied());
        let history: Vec<_> = (0..explored.rows.len()).map(row).collect();
        let single = problem.objectives.len() == 1;
        return Ok(output::json(&json!({
            "type": "result",
            "table": table,
            "sampler": sampler,
            "seed": asked.seed,
            "objectives": asked.objectives,
            "best": if single { best.first().cloned().map(Value::Object).unwrap_or(Value::Null) } else { json!(best) },
            "evaluations": explored.rows.len(),
            "feasible": feasible,
            "regret": regret,
            "notes": explored.notes,
            "history": history,
        }))?);
    }
    for note in explored.notes.iter().filter(|_| !show.quiet) {
        output::note(note);
    }
    Ok(output::text(&exploration.summary(&explored, &asked.axes, sampler))?)
}

/// Flags of `paceline bench samplers`.
#[derive(clap::Args, Debug)]
pub struct BenchArgs {
    /// The table: comma-separated values with a header, also gzipped
    #[arg(long, value_name = "FILE")]
    table: PathBuf,
    #[arg(long, help = samplers(), value_delimiter = ',', default_value = "random,lhs,sobol,bayes")]
    samplers: Vec<String>,
    /// How often each explores the table, with seeds that follow --seed
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    repeats: u64,
    #[command(flatten)]
    asked: TableQuery,
}

/// `paceline bench samplers`.
pub fn bench(args: &BenchArgs, show: Show) -> Result<(), Failure> {
    let exploration = args.asked.exploration(&args.table)?;
    let (budget, repeats) = (args.asked.budget as usize, args.repeats);
    let seeds = args.asked.seed..args.asked.seed.saturating_add(repeats);
    let samplers = &registries().samplers;
    let curve =
        |sampler: &String| RegretCurve::measure(&exploration, samplers, sampler, budget, seeds.clone());
    let curves = args.samplers.iter().map(curve).collect::<Result<Vec<_>, _>>()?;
    show.print(
        &json!({
            "type": "result", "table": args.table, "repeats": repeats, "budget": budget, "curves": curves,
        }),
        || regret::text(&curves, repeats),
    )
}
