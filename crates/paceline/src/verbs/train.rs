//! `paceline train`: one run.

use std::path::{Path, PathBuf};

use paceline_plan::{Plan, StudyError};
use paceline_protocol::SINGLE;
use paceline_record::process::{self, Started};
use paceline_record::store::{run_name, run_note, run_tag};
use paceline_record::{FailureKind, Recording, RunLabels};
use paceline_resolve::{PlanSettings, RunConfig, command_line, quoted, resolve};
use paceline_virtual::{Calibration, HardwareModel};

use super::listen::Listening;
use super::store::Where;
use crate::failure::Failure;
use crate::flags::{PlanFlags, RecordingFlags, registries};
use crate::output::Show;
use crate::request::{RunRequest, dry_run};

/// Flags of `paceline train`.
#[derive(clap::Args, Debug)]
#[group(skip)]
pub struct Args {
    #[command(flatten)]
    run: RunArgs,
    /// What this machine costs, as `paceline calibrate` measured it: --strategy auto takes the paths that are the fastest
    /// by it, and --cuts auto cuts by it [default: by rule, and by counted operations]
    #[arg(long, value_name = "FILE")]
    calibration: Option<PathBuf>,
}

/// Flags of a run, real or in virtual time.
#[derive(clap::Args, Debug)]
#[group(skip)]
pub struct RunArgs {
    #[command(flatten)]
    settings: PlanFlags,
    /// Settings from a file, keys as in [workload] of a study; flags win (name, tag and note are possible too)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check everything and print the plan; nothing is started or recorded
    #[arg(long)]
    pub dry_run: bool,
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
    /// Arguments of the script
    #[arg(last = true, value_name = "ARGS", requires = "script")]
    script_args: Vec<String>,
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

/// A flag that names a file, with its absolute path.
pub fn file_flag(flag: &str, path: &Path) -> Vec<String> {
    let path = std::path::absolute(path).ok().and_then(|path| path.to_str().map(str::to_owned));
    path.into_iter().flat_map(|path| [format!("--{flag}"), path]).collect()
}

/// A run as flags and file describe it.
pub struct ResolvedRun {
    pub plan: Plan,
    pub settings: PlanSettings,
    pub labels: RunLabels,
}

impl RunArgs {
    /// The run that the flags describe, over what the file says.
    pub fn resolved(&self) -> Result<ResolvedRun, Failure> {
        self.resolved_on(None)
    }

    /// The same where an engine or a file says how many hosts there are: as many workers unless something else is said.
    fn resolved_on(&self, hosts: Option<usize>) -> Result<ResolvedRun, Failure> {
        let mut started = PlanSettings::new(&registries().settings);
        let number = |name| hosts.map(|hosts| (name, hosts.to_string()));
        [number("hosts"), number("workers")].into_iter().flatten().for_each(|(name, n)| started.put(name, n));
        let mut flags = self.settings.0.clone().overridden_by(&self.kept.0);
        if !self.script_args.is_empty() {
            let words: Vec<String> = self.script_args.iter().map(|word| quoted(word)).collect();
            flags.put("args", words.join(" "));
        }
        let mut labels = self.labels.labels();
        let Some(path) = &self.config else {
            let settings = started.overridden_by(&flags);
            return Ok(ResolvedRun { plan: resolve(&settings)?, settings, labels });
        };
        let hint = "its keys are flags of `paceline train`, whose --help lists them; name, tag and note, too";
        let wrong = |error: StudyError| Failure::new(FailureKind::Plan, error.to_string(), hint);
        let config = RunConfig::read(path, &registries().settings).map_err(wrong)?;
        let words = |key, check| config.labels(key, check).map_err(wrong);
        labels.name = labels.name.or(words("name", run_name)?.pop());
        labels.note = labels.note.or(words("note", run_note)?.pop());
        labels.add_tags(&words("tag", run_tag)?);
        let settings = started.overridden_by(&config.settings).overridden_by(&flags);
        let plan = resolve(&settings);
        let plan = plan.map_err(|error| config.place(error, &flags).map_or_else(Failure::from, wrong))?;
        Ok(ResolvedRun { plan, settings, labels })
    }

    /// The store's folder.
    pub fn store(&self) -> PathBuf {
        self.store.folder()
    }

    /// Where the run is recorded, and what; nothing if it is not to be.
    pub fn recording(&self, settings: &PlanSettings) -> Result<Option<(PathBuf, Recording)>, Failure> {
        let recording = settings.recording()?;
        Ok((!self.no_record).then(|| (self.store.folder(), recording)))
    }
}

/// `paceline train`: runs the plan that the flags describe.
pub fn train(Args { run: args, calibration }: &Args, show: Show, started: Started) -> Result<(), Failure> {
    let listening = args.listening.with_job(&args.store.folder())?;
    if listening.task().is_some_and(|task| task.rank > 0) && args.dry_run {
        return Ok(());
    }
    if listening.take_part(args.settings.0.data_folders(), show)? {
        return Ok(());
    }
    let ResolvedRun { mut plan, settings, mut labels } = args.resolved_on(listening.hosts())?;
    listening.check(&plan, plan.strategy == SINGLE && plan.stages == 1)?;
    let mut more = Vec::new();
    if let Some(file) = calibration {
        let known = HardwareModel::calibrated(Calibration::load(file)?);
        known.decide(&mut plan, registries().runs(), &settings.data_folders())?;
        more = file_flag("calibration", file);
    }
    more.extend(args.listening.words());
    labels.command = command_line("train", &settings, &more);
    let folders = settings.data_folders();
    if args.dry_run {
        return dry_run(&plan, (&folders, true), &labels, show);
    }
    let request = RunRequest {
        plan,
        folders,
        store: args.store.folder(),
        run: process::new_run_id(),
        resumes: false,
        recording: args.recording(&settings)?.map(|(_, recording)| recording),
        labels,
    };
    request.execute(&listening, show, started)
}
