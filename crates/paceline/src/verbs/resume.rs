//! `paceline resume`: goes on with a study where it was left.

use std::path::Path;

use super::explore::{Running, tell};
use crate::failure::Failure;
use crate::output::{self, Show};
use crate::study::state::State;

/// Flags of `paceline resume`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The study's name, or its file
    study: String,
    /// Make runs again that failed or diverged
    #[arg(long)]
    failed: bool,
    /// Add this many runs to the study's budget
    #[arg(long, value_name = "RUNS", default_value_t = 0)]
    add_budget: u64,
    /// Add this many minutes to the study's time
    #[arg(long, value_name = "MINUTES", default_value_t = 0)]
    add_minutes: u32,
    #[command(flatten)]
    running: Running,
}

/// A study's name, from its name or its file's.
pub fn name(text: &str) -> Result<String, Failure> {
    let path = Path::new(text);
    if path.extension().is_some_and(|e| e == "toml") && path.is_file() {
        return Ok(crate::study::read(path)?.name);
    }
    Ok(text.to_owned())
}

/// `paceline resume`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    let mut state = State::open(&args.running.store.folder(), &name(&args.study)?)?;
    let (runs, minutes) = (args.add_budget, f64::from(args.add_minutes));
    if runs > 0 && state.known.study.runs.is_none() {
        return Err(Failure::usage("--add-budget: the study has no `runs` in its [budget] to add to"));
    }
    if minutes > 0.0 && state.known.study.minutes.is_none() {
        return Err(Failure::usage("--add-minutes: the study has no `minutes` in its [budget] to add to"));
    }
    if runs > 0 || minutes > 0.0 {
        state.add(runs, minutes)?;
    }
    if args.failed {
        for id in state.known.failed() {
            state.retry(id)?;
        }
    }
    if state.known.finished {
        if !show.quiet {
            output::note("the study is finished; --add-budget adds runs, --failed repeats those that failed");
        }
        return tell(&state, show);
    }
    args.running.go(state, show)
}
