//! What is known of the scripts that a study predicts: a calibration measured them, or recorded runs tell. Nothing else
//! knows what a script costs.

use std::path::Path;

use paceline_analyze::{RecordedRun, distinct};
use paceline_plan::{Plan, PlanError, Script};
use paceline_record::store::RunRow;
use paceline_record::{RecordError, Store};
use paceline_virtual::{Calibration, RecordedScript};

use crate::error::StudyFailure;

/// Scripts by their content and arguments, as a calibration or recorded runs tell of them.
pub(crate) struct RecordedScripts<'s> {
    store: Option<&'s Path>,
    calibration: Option<&'s Calibration>,
    runs: Option<(Store, Vec<RunRow>)>,
    known: Vec<(Script, usize, RecordedScript)>,
    /// Those that no run tells of.
    pub unknown: Vec<UnknownScript>,
    delegated: usize,
}

/// A script that no recorded run tells of, and why not.
#[derive(Clone, PartialEq)]
pub(crate) struct UnknownScript {
    args: Vec<String>,
    file: String,
    threads: usize,
    gpus: Vec<String>,
    why: Option<String>,
}

impl UnknownScript {
    /// What is wrong, and what to do.
    pub fn problem(&self) -> String {
        let Self { args, file, threads, gpus, why } = self;
        let mut with = String::new();
        if *threads != 1 {
            with += &format!(" --threads {threads}");
        }
        if !gpus.is_empty() {
            with += &format!(" --gpus {}", gpus.join(","));
        }
        if !args.is_empty() {
            with += &format!(" -- {}", args.join(" "));
        }
        let why = why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
        format!(
            "nothing is known of what this script takes with these arguments{why}: measure it, `paceline calibrate --script \
             {file}{with}`, and give the file as --calibration; or record a run of it, with one worker, e.g. `paceline train \
             --script {file}{with}`"
        )
    }
}

/// Whether two scripts are the same, whoever averages and whatever runs them.
fn same(a: &Script, b: &Script) -> bool {
    (&a.sha256, &a.args) == (&b.sha256, &b.args)
}

impl<'s> RecordedScripts<'s> {
    pub fn new(store: Option<&'s Path>, calibration: Option<&'s Calibration>) -> Self {
        Self { store, calibration, runs: None, known: Vec::new(), unknown: Vec::new(), delegated: 0 }
    }

    /// What is known of a plan's script; none where nothing is, or where its own framework averages.
    pub fn of(&mut self, plan: &Plan) -> Result<Option<&RecordedScript>, StudyFailure> {
        let Some(wanted) = plan.script.clone() else { return Ok(None) };
        if plan.delegated() {
            self.delegated += 1;
            return Ok(None);
        }
        let known =
            |(script, threads, _): &(Script, usize, _)| same(script, &wanted) && *threads == plan.threads;
        if let Some(i) = self.known.iter().position(known) {
            return Ok(Some(&self.known[i].2));
        }
        match self.look(&wanted, plan.threads)? {
            Ok(found) => {
                self.known.push((wanted, plan.threads, found));
                Ok(self.known.last().map(|(_, _, found)| found))
            }
            Err(why) => {
                let Script { args, file, gpus, .. } = wanted;
                let unknown = UnknownScript { args, file, threads: plan.threads, gpus, why };
                if !self.unknown.contains(&unknown) {
                    self.unknown.push(unknown);
                }
                Ok(None)
            }
        }
    }

    /// What the calibration measured; else the run with the fewest ranks, which tells most of the script itself; of those,
    /// the last one.
    fn look(
        &mut self,
        wanted: &Script,
        threads: usize,
    ) -> Result<Result<RecordedScript, Option<String>>, StudyFailure> {
        if let Some(time) = self.calibration.and_then(|known| known.script_time(wanted, threads)) {
            return Ok(Ok(RecordedScript::calibrated(time)));
        }
        if self.runs.is_none() {
            self.runs = match self.store.map(Store::open) {
                None | Some(Err(RecordError::Empty { .. })) => None,
                Some(Err(error)) => return Err(error.into()),
                Some(Ok(store)) => {
                    let runs = store.runs()?;
                    Some((store, runs))
                }
            };
        }
        let Some((store, runs)) = &self.runs else { return Ok(Err(None)) };
        let usable = |run: &&RunRow| {
            let plan = run.plan.as_ref().filter(|plan| !plan.delegated() && plan.threads == threads);
            let script = plan.and_then(|plan| plan.script.as_ref());
            run.origin == "measured"
                && run.result.is_some()
                && script.is_some_and(|script| same(script, wanted))
        };
        let ranks = |run: &RunRow| run.plan.as_ref().map_or(usize::MAX, |plan| plan.workers + plan.servers);
        let chosen = runs.iter().rev().filter(usable).min_by_key(|run| ranks(run));
        let Some((run, result)) = chosen.and_then(|run| Some((run, run.result.as_ref()?))) else {
            return Ok(Err(None));
        };
        Ok(RecordedScript::new(&RecordedRun::read(store, run)?, result.samples, result.seconds.startup)
            .map_err(Some))
    }

    /// What predictions rest on, and what they leave out.
    pub fn notes(&self) -> Vec<String> {
        let from = self.known.iter().map(|(script, _, found)| {
            let args =
                if script.args.is_empty() { String::new() } else { format!(" {}", script.args.join(" ")) };
            let file = Path::new(&script.file).file_name().unwrap_or_default().to_string_lossy();
            format!("{file}{args}: predicted from {}", found.source())
        });
        let mut notes: Vec<String> = from.collect();
        notes.extend(self.unknown.iter().map(|unknown| format!("not predicted: {}", unknown.problem())));
        if self.delegated > 0 {
            let points =
                if self.delegated == 1 { "1 point is" } else { &format!("{} points are", self.delegated) };
            notes.push(format!("{points} not predicted: there the script's own framework averages"));
        }
        distinct(notes)
    }
}

/// What is known of a plan's script: from the calibration, else from a run in the store.
pub fn script_costs(
    plan: &Plan,
    calibration: Option<&Calibration>,
    store: &Path,
) -> Result<RecordedScript, StudyFailure> {
    let mut scripts = RecordedScripts::new(Some(store), calibration);
    if let Some(known) = scripts.of(plan)?.cloned() {
        return Ok(known);
    }
    let problem = match scripts.unknown.first() {
        Some(unknown) => unknown.problem(),
        None => "the script's own framework averages: it is not simulated".into(),
    };
    let file = plan.script.as_ref().map_or("", |script| &script.file);
    Err(PlanError::new("--script", file, problem).into())
}
