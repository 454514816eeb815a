//! `paceline resume`: goes on with a run from its last checkpoint.

use std::path::PathBuf;

use paceline_record::process::Started;
use paceline_record::{Origin, RunDirectory};

use super::data::{self, Place};
use super::listen::Listening;
use super::train;
use crate::failure::Failure;
use crate::output::{self, Show};
use crate::voyage::Voyage;

/// Flags of `paceline resume`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The run: its id, the beginning of it, or `last`
    run: String,
    #[command(flatten)]
    place: Place,
    /// Folder that runs are recorded in [default: PACELINE_STORE, then .paceline]
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    #[command(flatten)]
    listening: Listening,
}

/// Goes on with a run; ends as `paceline train` does.
pub fn run(args: &Args, show: Show, started: Started) -> Result<(), Failure> {
    let store = train::store(args.store.as_deref());
    let (run, plan, result) = RunDirectory::find(&store, &args.run)?;
    if let Some(result) = result {
        if !show.quiet {
            output::note(&format!("run {run} has ended already; this is its result"));
        }
        return Ok(output::json(&result)?);
    }
    plan.check(usize::MAX)?;
    args.listening.check(&plan, plan.strategy == crate::voyage::SINGLE)?;
    let voyage = Voyage { plan, folders: data::folders(&args.place), store, run, resumes: true };
    let (result, summary) = voyage.sail(&args.listening, show, started)?;
    if !show.quiet {
        output::note(summary.trim_end());
    }
    Ok(output::result(result, Origin::Measured)?)
}
