//! `paceline resume`: goes on with a run from its last checkpoint.

use paceline_record::Event;
use paceline_record::process::Started;

use super::data::{self, Place};
use super::listen::Listening;
use super::store::{Kept, Where};
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
    #[command(flatten)]
    store: Where,
    #[command(flatten)]
    kept: Kept,
    #[command(flatten)]
    listening: Listening,
}

/// Goes on with a run; ends as `paceline train` does.
pub fn run(args: &Args, show: Show, started: Started) -> Result<(), Failure> {
    let found = args.store.open()?.find(&args.run)?;
    let run = found.run;
    if let Some(result) = found.result {
        if !show.quiet {
            output::note(&format!("run {run} has ended already; this is its result"));
        }
        return Ok(output::json(&Event::Result(result))?);
    }
    let plan = found.plan.ok_or_else(|| Failure::plan(&run))?;
    plan.check(usize::MAX)?;
    args.listening.check(&plan, plan.strategy == crate::voyage::SINGLE)?;
    let voyage = Voyage {
        plan,
        folders: data::folders(&args.place),
        store: args.store.folder(),
        run,
        resumes: true,
        recording: Some(args.kept.recording()),
    };
    let (result, summary) = voyage.sail(&args.listening, show, started)?;
    if !show.quiet {
        output::note(summary.trim_end());
    }
    Ok(output::json(&Event::Result(result))?)
}
