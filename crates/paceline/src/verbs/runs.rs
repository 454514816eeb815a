//! `paceline runs`: what is in the store.

use paceline_analyze::sheet::aligned;
use paceline_record::store::RunRow;
use serde::Serialize;

use super::store::Where;
use crate::failure::Failure;
use crate::output::{self, Show};

/// Flags of `paceline runs`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    store: Where,
}

/// A run, as programs see it.
#[derive(Serialize)]
pub struct ListedRun<'a> {
    run: &'a str,
    state: &'a str,
    origin: &'a str,
    started_s: f64,
    seconds: f64,
    strategy: &'a str,
    model: &'a str,
    data: &'a str,
    workers: usize,
    servers: usize,
    steps: Option<u64>,
    steps_done: u64,
    samples_per_s: Option<f64>,
    train_loss: Option<f64>,
    accuracy: Option<f64>,
    error: Option<&'a str>,
    dropped_rows: u64,
}

/// What is listed of a run.
pub fn listed(run: &RunRow) -> ListedRun<'_> {
    let plan = run.plan.as_ref();
    ListedRun {
        run: &run.run,
        state: &run.state,
        origin: &run.origin,
        started_s: run.started_s,
        seconds: run.age_s(),
        strategy: plan.map_or("?", |p| &p.strategy),
        model: plan.map_or("?", |p| &p.model),
        data: plan.map_or("?", |p| &p.data),
        workers: plan.map_or(0, |p| p.workers),
        servers: plan.map_or(0, |p| p.servers),
        steps: run.steps,
        steps_done: run.steps_done,
        samples_per_s: run.samples_per_s(),
        train_loss: run.train_loss,
        accuracy: run.accuracy,
        error: run.error.as_deref(),
        dropped_rows: run.dropped_rows,
    }
}

/// `paceline runs`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    let runs = args.store.open()?.runs()?;
    let rows: Vec<ListedRun<'_>> = runs.iter().map(listed).collect();
    if show.json {
        return Ok(output::json(&rows)?);
    }
    if rows.is_empty() {
        output::note("no runs");
        return Ok(());
    }
    Ok(output::text(&table(&rows))?)
}

pub fn table(rows: &[ListedRun<'_>]) -> String {
    let or =
        |value: Option<f64>, digits: usize| value.map_or_else(|| "-".into(), |v| format!("{v:.digits$}"));
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|r| {
            let steps = r.steps.map_or_else(|| "?".into(), |n| n.to_string());
            let ranks =
                if r.servers > 0 { format!("{}+{}", r.workers, r.servers) } else { r.workers.to_string() };
            vec![
                r.run.into(),
                if r.origin == "simulated" { format!("{}, simulated", r.state) } else { r.state.into() },
                format!("{} on {}", r.model, r.data),
                r.strategy.into(),
                ranks,
                format!("{}/{steps}", r.steps_done),
                format!("{:.1}", r.seconds),
                or(r.samples_per_s, 0),
                or(r.accuracy.map(|a| 100.0 * a), 2),
                r.error.unwrap_or_default().into(),
            ]
        })
        .collect();
    let head =
        ["run", "state", "what", "strategy", "ranks", "steps", "s", "samples/s", "accuracy %", "error"];
    aligned(&head, 1, &cells)
}
