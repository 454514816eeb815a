//! Runs samplers over a table of measured configurations: which rows does each look up, and how soon is it near the best?
//!
//! `cargo run -p paceline-explore --example sampler-over-table [FILE.csv]`; without a file a small table is made up.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::path::Path;

use paceline_explore::{Exploration, ExplorationError, ExplorationRequest, LookupTable};
use paceline_plan::{Goal, Objective, Value};
use paceline_registry::Registry;

const BUDGET: usize = 12;

/// Seconds of a made-up run: more workers help until they wait for each other, larger batches until they converge later.
fn seconds(workers: f64, batch: f64) -> f64 {
    40.0 / workers + 3.0 * workers + (batch.log2() - 6.0).powi(2)
}

/// Columns `workers`, `batch` and `seconds`.
fn made_up() -> LookupTable {
    let rows = (1..=8).flat_map(|workers| (4..=10).map(move |power| (f64::from(workers), 2f64.powi(power))));
    let row = |(workers, batch)| [workers, batch, seconds(workers, batch)].map(Value::Number).to_vec();
    let columns = ["workers", "batch", "seconds"].map(str::to_owned).to_vec();
    LookupTable { columns, rows: rows.map(row).collect() }
}

fn main() -> Result<(), ExplorationError> {
    let file = std::env::args().nth(1);
    let table = file.map_or_else(|| Ok(made_up()), |file| LookupTable::read(Path::new(&file)))?;
    let (objective, axes) = table.columns.split_last().expect("a table has columns");
    let ask = ExplorationRequest {
        axes: axes.to_vec(),
        objectives: vec![Objective { metric: objective.clone(), goal: Goal::Minimize }],
        constraints: Vec::new(),
        budget: BUDGET,
        prior: None,
    };
    let exploration = Exploration::new(table, &ask)?;
    for sampler in ["random", "sobol", "bayes"] {
        let explored = exploration.run(&Registry::default(), sampler, 1)?;
        let regrets = exploration.regrets(&explored.rows).unwrap_or_default();
        let last = regrets.last().copied().unwrap_or(f64::NAN);
        println!("{sampler}: {} rows looked up, {:.1}% from the best", explored.rows.len(), 100.0 * last);
    }
    Ok(())
}
