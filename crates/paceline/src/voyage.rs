//! One run, from its plan to its record: made by `train`, gone on with by `resume`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use paceline_data::Folders;
use paceline_launch::alone;
use paceline_launch::pauses::Harbour;
use paceline_launch::run::{self, Launch};
use paceline_plan::Plan;
use paceline_record::process::Started;
use paceline_record::{Checkpoints, Damaged, Event, Origin, RunDirectory, RunResult};
use paceline_train::model;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::failure::Failure;
use crate::output::{self, Follow, Show};
use crate::verbs::listen::Listening;
use crate::verbs::weights;

/// The strategy of one worker alone.
pub const SINGLE: &str = "single";

/// A run to be made, or to go on.
pub struct Voyage {
    pub plan: Plan,
    pub folders: Folders,
    pub store: PathBuf,
    pub run: String,
    /// Whether it goes on from its last checkpoint.
    pub resumes: bool,
}

impl Voyage {
    /// Runs it; the result, and its summary in words.
    pub fn sail(
        self,
        listening: &Listening,
        show: Show,
        started: Started,
    ) -> Result<(RunResult, String), Failure> {
        let Self { plan, folders, store, run: id, resumes } = self;
        let source = paceline_data::find(&plan.data).expect("the plan's names come from the registries");
        let dataset = source.load(&folders, &model::settings(&plan))?;
        plan.check(dataset.train.len())?;
        weights::check(&plan, &dataset, show)?;
        let mut follow = Follow::new(show, Origin::Measured);
        let mut record = match resumes {
            true => RunDirectory::reopen(&store, &id)?,
            false => RunDirectory::create(&store, &id, &plan)?,
        };
        let folder = record.path().to_owned();
        let harbour = harbour(&folder, &plan, resumes, show)?;
        let report = &mut |event: Event<'_>| {
            record.event(&event);
            follow.event(&event);
        };
        let result = if plan.strategy == SINGLE {
            alone::run(&plan, &dataset, &id, started, &harbour, report)
        } else {
            let (listen, _key) = listening.open(&plan, &folder, show)?;
            let program = (std::env::current_exe()?, "rank");
            let (dataset, folders, run) = (&dataset, &folders, &id[..]);
            let launch = Launch { plan: &plan, dataset, folders, run, program, started, harbour: &harbour };
            run::run(&launch, listen, report)
        };
        follow.finish();
        let result = result?;
        let summary = format!("{}recorded in {}\n", follow.summary(&result), record.path().display());
        record.finish(&result)?;
        Ok((result, summary))
    }
}

/// Where a run's checkpoints are, what it goes on from, and what ends it early: Ctrl-C or a polite request to end,
/// once; the second time the program ends at once.
fn harbour(folder: &Path, plan: &Plan, resumes: bool, show: Show) -> Result<Harbour, Failure> {
    let checkpoints = Checkpoints::of(folder);
    let mut resumed = None;
    if resumes {
        let (found, damaged) = checkpoints.latest(&plan.hash())?;
        for Damaged { path, problem } in damaged {
            output::note(&format!("{} cannot be used: {problem}", path.display()));
        }
        let step = found.as_ref().map_or(0, |checkpoint| checkpoint.step);
        if !show.quiet {
            let from = if found.is_some() { "goes on" } else { "there is no checkpoint: it begins again" };
            output::note(&format!("{from} after step {step}"));
        }
        resumed = found.map(Arc::new);
    }
    let interrupt = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, 130, Arc::clone(&interrupt))?;
        flag::register(signal, Arc::clone(&interrupt))?;
    }
    Ok(Harbour { checkpoints, resumed, interrupt })
}
