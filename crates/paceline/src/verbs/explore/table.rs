//! `paceline explore --table` and `paceline bench samplers`: a table of runs made by others as the workload.

use std::path::{Path, PathBuf};

use paceline_explore::samplers::SAMPLERS;
use paceline_explore::table::{Exploration, ExplorationRequest, LookupTable};
use paceline_plan::{Condition, Goal, Objective};
use paceline_random::{Purpose, Stream};
use paceline_record::figures::Figures;
use paceline_statistics::mean;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::failure::Failure;
use crate::output::{self, Show};

/// Which samplers can be used with a table: rows cannot be made shorter.
pub fn samplers() -> String {
    let all = SAMPLERS.iter().filter(|kind| !kind.shortens).map(|kind| kind.name);
    format!("How rows are chosen: {}", all.collect::<Vec<_>>().join(", "))
}

/// What is asked of a table.
#[derive(clap::Args, Clone, Debug)]
pub struct Asked {
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

impl Asked {
    fn exploration(&self, table: &Path) -> Result<Exploration, Failure> {
        let goal = if self.maximize { Goal::Maximize } else { Goal::Minimize };
        if self.objectives.is_empty() {
            return Err(Failure::usage("--objective COLUMN is missing: what is wanted?"));
        }
        let (table, figures) = (LookupTable::read(table)?, Figures::default());
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
pub fn explore(table: &Path, sampler: &str, asked: &Asked, show: Show) -> Result<(), Failure> {
    let exploration = asked.exploration(table)?;
    let explored = exploration.run(sampler, asked.seed)?;
    let problem = exploration.problem();
    let row = |at: usize| exploration.table().named(explored.rows[at]);
    let best: Vec<Map<String, Value>> = problem.best(&explored.history).into_iter().map(row).collect();
    let feasible = explored.history.iter().filter(|o| problem.feasible(o)).count();
    let regret = exploration.regrets(&explored.rows).and_then(|regrets| regrets.last().copied());
    if show.json {
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
    let mut text = String::new();
    for note in explored.notes.iter().filter(|_| !show.quiet) {
        output::note(note);
    }
    for found in &best {
        let cells: Vec<String> = found
            .iter()
            .filter(|(name, _)| {
                asked.axes.contains(name)
                    || problem.objectives.iter().any(|o| o.metric == **name)
                    || problem.limits.iter().any(|c| c.names().contains(&name.as_str()))
            })
            .map(|(name, value)| format!("{name} {}", value.to_string().trim_matches('"')))
            .collect();
        text += &format!("best: {}\n", cells.join(", "));
    }
    if best.is_empty() {
        text += "nothing that was looked up meets the conditions\n";
    }
    text += &format!(
        "{} rows looked up by {sampler}, {feasible} of them meet the conditions",
        explored.rows.len()
    );
    text += &match regret {
        Some(regret) => format!("; {:.1}% from the best of the whole table\n", 100.0 * regret),
        None => "\n".into(),
    };
    Ok(output::text(&text)?)
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
    asked: Asked,
}

/// One sampler over all seeds.
#[derive(Serialize)]
struct Curve {
    sampler: String,
    /// Mean evaluations until the regret is at most 5%; one more than the budget where it never is.
    evaluations_to_5_percent: Estimate,
    /// Mean regret after each evaluation.
    mean_regret: Vec<f64>,
    regret_at_15: Option<Estimate>,
    regret_at_30: Option<Estimate>,
    /// Median and greatest seconds of the suggestion after the most observations.
    last_suggestion_s: [f64; 2],
    /// Regret after each evaluation, by seed.
    regrets: Vec<Vec<f64>>,
}

/// A mean with its 95% interval, by bootstrap over seeds.
#[derive(Clone, Copy, Serialize)]
struct Estimate {
    mean: f64,
    low: f64,
    high: f64,
}

fn estimate(values: &[f64]) -> Estimate {
    const DRAWS: u64 = 2000;
    let n = values.len() as u64;
    let mean = |of: &mut dyn Iterator<Item = f64>| of.sum::<f64>() / n as f64;
    let stream = Stream::new(1, Purpose::Bench);
    let mut means: Vec<f64> =
        (0..DRAWS).map(|d| mean(&mut (0..n).map(|i| values[stream.fork(d).below(i, n) as usize]))).collect();
    means.sort_by(f64::total_cmp);
    let at = |share: f64| means[((DRAWS - 1) as f64 * share).round() as usize];
    Estimate { mean: mean(&mut values.iter().copied()), low: at(0.025), high: at(0.975) }
}

/// `paceline bench samplers`.
pub fn bench(args: &BenchArgs, show: Show) -> Result<(), Failure> {
    let exploration = args.asked.exploration(&args.table)?;
    let budget = args.asked.budget as usize;
    let mut curves = Vec::new();
    for sampler in &args.samplers {
        let (mut regrets, mut last): (Vec<Vec<f64>>, Vec<f64>) = (Vec::new(), Vec::new());
        for seed in args.asked.seed..args.asked.seed.saturating_add(args.repeats) {
            let explored = exploration.run(sampler, seed)?;
            let Some(mut regret) = exploration.regrets(&explored.rows) else {
                return Err(Failure::usage(
                    "regret needs one objective, and a row that meets the conditions",
                ));
            };
            // A design that ends before the budget stays where it is.
            let end = regret.last().copied().unwrap_or(f64::NAN);
            regret.resize(regret.len().max(budget.min(exploration.table().rows.len())), end);
            regrets.push(regret);
            last.extend(explored.suggest_s.last());
        }
        let to_goal: Vec<f64> = regrets
            .iter()
            .map(|r| r.iter().position(|v| *v <= 0.05).map_or(budget + 1, |i| i + 1) as f64)
            .collect();
        let steps = regrets.iter().map(Vec::len).min().unwrap_or(0);
        let column = |i: usize| -> Vec<f64> { regrets.iter().map(|r| r[i]).collect() };
        let at = |n: usize| (n <= steps).then(|| estimate(&column(n - 1)));
        last.sort_by(f64::total_cmp);
        curves.push(Curve {
            sampler: sampler.clone(),
            evaluations_to_5_percent: estimate(&to_goal),
            mean_regret: (0..steps).map(|i| mean(&column(i))).collect(),
            regret_at_15: at(15),
            regret_at_30: at(30),
            last_suggestion_s: [last[last.len() / 2], last[last.len() - 1]],
            regrets,
        });
    }
    if show.json {
        return Ok(output::json(&json!({
            "type": "result", "table": args.table, "repeats": args.repeats, "budget": budget, "curves": curves,
        }))?);
    }
    let marks: Vec<usize> = [1, 5, 10, 15, 20, 30, 40, 60, 100, 200]
        .into_iter()
        .filter(|n| *n <= curves[0].mean_regret.len())
        .collect();
    let mut text = format!(
        "mean regret of {} seeds: the best feasible value found so far, above the best in the table, as a fraction \
         of that;\nuntil one is found, the worst feasible value counts\n\n{:<16}",
        args.repeats, "evaluations"
    );
    marks.iter().for_each(|n| text += &format!("{n:>8}"));
    text += "   until 5% (95% interval)   last suggestion\n";
    for curve in &curves {
        text += &format!("{:<16}", curve.sampler);
        marks.iter().for_each(|n| text += &format!("{:>8.3}", curve.mean_regret[n - 1]));
        let Estimate { mean, low, high } = curve.evaluations_to_5_percent;
        let interval = format!("{mean:.1} ({low:.1} to {high:.1})");
        text += &format!("   {interval:>23}   {:>9.2} ms\n", 1e3 * curve.last_suggestion_s[0]);
    }
    Ok(output::text(&text)?)
}
