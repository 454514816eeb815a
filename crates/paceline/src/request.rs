//! One run, from its plan to its record: made by `train`, gone on with by `resume`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use paceline_data::{Dataset, Folders};
use paceline_launch::devices::{ScriptConditions, ScriptDevices};
use paceline_launch::engine::watch_parent;
use paceline_launch::run::{self, Launch};
use paceline_launch::{CheckpointContext, Interrupt, capacity};
use paceline_pipeline::StageMemory;
use paceline_plan::Plan;
use paceline_record::event::SCHEMA;
use paceline_record::process::Started;
use paceline_record::store::{EventSink, run_folder};
use paceline_record::{
    Checkpoints, Damaged, Event, EventWords, NewRun, Record, Recording, RunLabels, RunOrigin, RunResult,
    plan_lines,
};
use paceline_resolve::TypedPlan;
use paceline_train::{Layout, model, weights, worker};
use paceline_virtual::run::samples;
use serde_json::json;

use crate::failure::Failure;
use crate::flags::registries;
use crate::output::{self, Follow, Show};
use crate::verbs::listen::Listening;
use crate::verbs::store::BUILD;

/// A run to be made, or to go on.
pub struct RunRequest {
    pub plan: Plan,
    pub folders: Folders,
    pub store: PathBuf,
    pub run: String,
    /// Whether it goes on from its last checkpoint.
    pub resumes: bool,
    /// What is recorded, if anything is.
    pub recording: Option<Recording>,
    /// What people call it; a run that goes on has its own already.
    pub labels: RunLabels,
}

/// Stores the end of a run that ended well, and prints its result whether or not the store took it.
pub fn conclude(
    result: RunResult,
    mut summary: String,
    record: Option<Record>,
    run: &str,
    origin: RunOrigin,
    show: Show,
) -> Result<(), Failure> {
    let path = record.as_ref().map(|record| record.path().to_owned());
    let kept = record.map_or(Ok(()), |record| record.finish(&result));
    if let (Some(path), Ok(())) = (path, &kept) {
        summary += &format!("recorded in {}: paceline show {run}\n", path.display());
    }
    if show.to_people() {
        output::text(&summary)?;
    } else {
        show.note(summary.trim_end());
        output::result(result, origin)?;
    }
    kept.map_err(|error| Failure::not_recorded(&error))
}

/// Tells what would be run (`data`: where samples are, and whether it learns): everything is checked, nothing started.
pub fn dry_run(plan: &Plan, data: (&Folders, bool), labels: &RunLabels, show: Show) -> Result<(), Failure> {
    let typed = TypedPlan::new(plan, registries().runs())?;
    if plan.script.is_some() {
        run::check(&typed, registries().runs(), None)?;
        return dry_run_script(plan, labels, show);
    }
    let dataset = loaded(&typed, data.0, data.1, show)?;
    let graph = model::graph(&typed, &dataset)?;
    let memory = model::stage_memory(&typed, &graph)?;
    let buffers: Option<Vec<usize>> = memory.map(|all| all.iter().map(StageMemory::buffers).collect());
    let samples = samples(plan, &dataset, data.1);
    let setup = worker::setup(&typed, &Layout::of(&graph), samples);
    let (parameters, steps) = (setup.params, setup.end());
    let kernels = paceline_nn::accel::Level::detect().to_string();
    let (hash, run) = (plan.hash(), "");
    let words = || {
        let plan_sha256 = hash.clone();
        let start = Event::Start { schema: SCHEMA, run, plan, plan_sha256, parameters, steps, kernels };
        let what = EventWords::default().line(&start).unwrap_or_default();
        let command = labels.command.as_deref().unwrap_or_default();
        let line =
            |(stage, n): (usize, &usize)| format!("stage {stage}: {:.3} MB of buffers\n", 1e-6 * *n as f64);
        let buffers: String = buffers.iter().flatten().enumerate().map(line).collect();
        format!("{what}\nplan {hash}:{}\n{buffers}{command}\nnothing was started\n", plan_lines(plan))
    };
    let mut document = json!({"type": "plan", "plan": plan, "plan_sha256": hash, "parameters": parameters,
        "steps": steps, "samples": plan.total_samples(samples), "labels": labels});
    // By stage: as many bytes as the result says of its ranks.
    if let Some(buffers) = &buffers {
        document["buffer_bytes"] = json!(buffers);
    }
    show.print(&document, words)
}

/// The same for a script, of which nothing is known before it runs.
fn dry_run_script(plan: &Plan, labels: &RunLabels, show: Show) -> Result<(), Failure> {
    let hash = plan.hash();
    let words = || {
        let command = labels.command.as_deref().unwrap_or_default();
        format!("plan {hash}:{}\n{command}\nnothing was started\n", plan_lines(plan))
    };
    let document = json!({"type": "plan", "plan": plan, "plan_sha256": hash, "labels": labels});
    show.print(&document, words)
}

/// The plan's dataset, if it fits the plan.
fn loaded(plan: &TypedPlan<'_>, folders: &Folders, learn: bool, show: Show) -> Result<Dataset, Failure> {
    let dataset = plan.dataset()?.load(folders, &model::settings(plan))?;
    plan.check(samples(plan, &dataset, learn))?;
    plan.check_test(dataset.test.len())?;
    weights::check(plan, &dataset)?.iter().for_each(|note| show.note(note));
    Ok(dataset)
}

impl RunRequest {
    /// Runs it, and prints the result and its summary.
    pub fn execute(self, listening: &Listening, show: Show, started: Started) -> Result<(), Failure> {
        let mut record = None;
        let mut follow = Follow::new(show, RunOrigin::Measured, self.recording.is_none());
        let done = self.run(listening, show, started, &mut record, &mut follow);
        follow.finish();
        // It may hold nothing: a key that went with the run, checkpoints that were never made.
        let _ = std::fs::remove_dir(run_folder(&self.store, &self.run));
        let mut result = match done {
            Ok(result) => result,
            Err(failure) => {
                let failure = failure.goes_on(&self.run, &self.store, &self.plan.checkpoint_hash());
                // What went wrong with the run is told, whatever becomes of its record.
                follow.event(&failure.event());
                let _ = record.map(|mut record: Record| {
                    record.event(&failure.event());
                    record.fail(failure.message(), failure.code())
                });
                return Err(failure);
            }
        };
        let summary = follow.summary(&result);
        result.dropped_rows = record.as_ref().map_or(result.dropped_rows, Record::dropped);
        conclude(result, summary, record, &self.run, RunOrigin::Measured, show)
    }

    fn run(
        &self,
        listening: &Listening,
        show: Show,
        started: Started,
        record: &mut Option<Record>,
        follow: &mut Follow,
    ) -> Result<RunResult, Failure> {
        let Self { plan, folders, run: id, recording, .. } = self;
        let interrupt = Interrupt::on_signals()?;
        if let Some(task) = listening.task() {
            watch_parent(task, Arc::clone(&interrupt), |line| output::note(&line));
        }
        let typed = TypedPlan::new(plan, registries().runs())?;
        let dataset = match plan.script {
            None => Some(loaded(&typed, folders, true, show)?),
            Some(_) => None,
        };
        if let (Some(dataset), Some(_)) = (&dataset, recording) {
            capacity::check_space(&typed, dataset, &self.store)?;
        }
        capacity::check(&typed, dataset.as_ref(), recording.is_some(), listening.given())?;
        let devices = ScriptDevices::prepare(plan, listening.given())?;
        let conditions = ScriptConditions {
            meeting: typed.strategy.delegated.map(|_| run::meeting_port()).transpose()?,
            environment: devices.as_ref().map(ScriptDevices::environment).unwrap_or_default(),
        };
        if recording.is_some() {
            // From its row in the store on, a run that is interrupted saves itself and says so.
            interrupt.arm();
        }
        if let (true, Some(dataset)) = (self.resumes, &dataset) {
            // Before the plan is stored: a run whose checkpoint cannot be cut like that keeps the one that it has.
            CheckpointContext::check_cut(&run_folder(&self.store, id), &typed, dataset)?;
        }
        *record = self.record(show)?;
        let folder = run_folder(&self.store, id);
        show.detail(|| {
            let record = match record {
                Some(record) => format!("recorded in {}", record.path().display()),
                None => "not recorded".into(),
            };
            let what = dataset.as_ref().map_or("a script with its own data".into(), |dataset| {
                let (train, test) = (dataset.train.len(), dataset.test.len());
                format!("{train} training and {test} test samples of {}", plan.data)
            });
            format!("{what}; {record}, files in {}", folder.display())
        });
        let checkpointing = self.checkpointing(&folder, interrupt, show)?;
        let report = &mut |event: Event<'_>| {
            if let Some(record) = record {
                record.event(&event);
                record.trouble().into_iter().for_each(|error| follow.unrecorded(error));
            }
            follow.event(&event);
        };
        let (listen, _invitation) = listening.open(plan, &folder, show)?;
        let launch = Launch {
            plan: &typed,
            registries: registries().runs(),
            dataset: dataset.as_ref(),
            conditions: &conditions,
            devices: devices.as_ref(),
            folders,
            run: id,
            program: (std::env::current_exe()?, "rank"),
            started,
            checkpointing: &checkpointing,
            recording: *recording,
        };
        let result = run::run(&launch, listen, report)?;
        show.detail(|| "every rank has ended".into());
        Ok(result)
    }

    /// The record, if one is kept. With `--json` it tells each event once it is stored.
    fn record(&self, show: Show) -> Result<Option<Record>, Failure> {
        if self.recording.is_none() {
            return Ok(None);
        }
        let told = show.json.then(|| {
            // A reader that has gone away is noticed when the result is written.
            Box::new(|line: &str| drop(output::json_line(line))) as EventSink
        });
        let (store, id, plan, metrics) = (&self.store, &self.run, &self.plan, &registries().runs().metrics);
        if self.resumes {
            return Ok(Some(Record::reopen(
                store,
                id,
                (plan, self.labels.command.as_deref()),
                BUILD,
                metrics,
                told,
            )?));
        }
        let new = NewRun { id, plan, labels: &self.labels, origin: RunOrigin::Measured };
        Ok(Some(Record::create(store, &new, BUILD, metrics, told)?))
    }

    /// Where the run's checkpoints are, what it goes on from, and what ends it early.
    fn checkpointing(
        &self,
        folder: &Path,
        interrupt: Arc<Interrupt>,
        show: Show,
    ) -> Result<CheckpointContext, Failure> {
        let checkpoints = Checkpoints::of(folder);
        let mut resumed = None;
        if self.resumes {
            checkpoints.tidy()?;
            let (found, damaged) = checkpoints.latest(&self.plan.checkpoint_hash())?;
            for Damaged { path, problem } in damaged {
                output::note(&format!("{} cannot be used: {problem}", path.display()));
            }
            let step = found.as_ref().map_or(0, |checkpoint| checkpoint.step);
            if !show.quiet {
                let from =
                    if found.is_some() { "goes on" } else { "there is no checkpoint: it begins again" };
                output::note(&format!("{from} after step {step}"));
            }
            resumed = found.map(Arc::new);
        }
        Ok(CheckpointContext { checkpoints, resumed, interrupt })
    }
}
