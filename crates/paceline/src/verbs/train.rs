//! `paceline train`: one run.

use std::path::PathBuf;

use paceline_protocol::SINGLE;
use paceline_record::Recording;
use paceline_record::process::{self, Started};

use super::listen::Listening;
use super::store::Where;
use crate::failure::Failure;
use crate::flags::{PlanFlags, RecordingFlags};
use crate::output::Show;
use crate::request::RunRequest;

/// Flags of `paceline train`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    pub settings: PlanFlags,
    #[command(flatten)]
    store: Where,
    #[command(flatten)]
    kept: RecordingFlags,
    /// Leave no record of the run, and no checkpoint: it cannot be resumed
    #[arg(long, conflicts_with_all = ["store", "sample-hz", "trace", "checkpoint-every", "on-loss"])]
    no_record: bool,
    #[command(flatten)]
    pub listening: Listening,
}

impl Args {
    /// Where the run is recorded, and what; nothing if it is not to be.
    pub fn recording(&self) -> Result<Option<(PathBuf, Recording)>, Failure> {
        let recording = self.kept.0.recording()?;
        Ok((!self.no_record).then(|| (self.store.folder(), recording)))
    }
}

/// `paceline train`: runs the plan that the flags describe.
pub fn train(args: &Args, show: Show, started: Started) -> Result<(), Failure> {
    let plan = paceline_resolve::resolve(&args.settings.0)?;
    args.listening.check(&plan, plan.strategy == SINGLE)?;
    let request = RunRequest {
        plan,
        folders: args.settings.0.data_folders(),
        store: args.store.folder(),
        run: process::new_run_id(),
        resumes: false,
        recording: args.recording()?.map(|(_, recording)| recording),
    };
    request.execute(&args.listening, show, started)
}
