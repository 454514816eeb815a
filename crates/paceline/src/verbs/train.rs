//! `paceline train`: one run.

use std::path::PathBuf;

use paceline_protocol::SINGLE;
use paceline_record::process::{self, Started};
use paceline_record::store::{run_name, run_note, run_tag};
use paceline_record::{Recording, RunLabels};

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
    #[arg(long, conflicts_with_all = ["store", "sample-hz", "trace", "checkpoint-every", "on-loss", "name", "tags", "note"])]
    no_record: bool,
    #[command(flatten)]
    labels: LabelFlags,
    #[command(flatten)]
    pub listening: Listening,
}

/// What people call a run.
#[derive(clap::Args, Clone, Debug)]
pub struct LabelFlags {
    /// Name of the run: verbs take it in place of the run's id. No part of the plan
    #[arg(long, value_name = "NAME", value_parser = run_name)]
    name: Option<String>,
    /// A tag of the run; may be given several times
    #[arg(long = "tag", value_name = "TAG", value_parser = run_tag)]
    tags: Vec<String>,
    /// A note about the run
    #[arg(long, value_name = "TEXT", value_parser = run_note)]
    note: Option<String>,
}

impl LabelFlags {
    pub fn labels(&self) -> RunLabels {
        let Self { name, tags, note } = self.clone();
        let mut labels = RunLabels { name, note, ..RunLabels::default() };
        labels.add_tags(&tags);
        labels
    }
}

impl Args {
    /// Where the run is recorded, and what; nothing if it is not to be.
    pub fn recording(&self) -> Result<Option<(PathBuf, Recording)>, Failure> {
        let recording = self.kept.0.recording()?;
        Ok((!self.no_record).then(|| (self.store.folder(), recording)))
    }

    /// What people call the run.
    pub fn labels(&self) -> RunLabels {
        self.labels.labels()
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
        labels: args.labels(),
    };
    request.execute(&args.listening, show, started)
}
