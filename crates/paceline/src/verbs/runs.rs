//! `paceline runs`: what is in the store.

use paceline_analyze::sheet::{WIDTH, aligned, wrapped};
use paceline_plan::printable;
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

/// What fits a terminal: the rest is in `--json` and `paceline show`; why runs failed stands below.
pub fn table(rows: &[ListedRun<'_>]) -> String {
    let cells = |r: &ListedRun<'_>| {
        let steps = r.steps.map_or_else(|| "?".into(), |n| n.to_string());
        let state = if r.origin == "simulated" && r.state == "ok" { r.origin } else { r.state };
        let servers = if r.servers > 0 { format!("+{}", r.servers) } else { String::new() };
        vec![
            r.run.into(),
            state.into(),
            format!("{} on {}", r.model, r.data),
            format!("{} {}{servers}", r.strategy, r.workers),
            if r.steps == Some(r.steps_done) { steps } else { format!("{}/{steps}", r.steps_done) },
            r.accuracy.map_or_else(|| "-".into(), |accuracy| format!("{:.2}", 100.0 * accuracy)),
        ]
    };
    let head = ["run", "state", "what", "strategy, ranks", "steps", "acc. %"];
    let mut text = aligned(&head, 4, &rows.iter().map(cells).collect::<Vec<_>>());
    for (run, error) in rows.iter().filter_map(|row| Some((row.run, row.error?))) {
        text += &wrapped(&format!("{run}: {}\n", printable(error)), WIDTH, 2);
    }
    text
}
