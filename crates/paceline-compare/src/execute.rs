//! One run: in virtual time in this process, or a real one in processes of its own.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use paceline_launch::trial::{Trial, TrialEvent, TrialPlace, cores};
use paceline_record::process::Started;
use paceline_record::{Event, FailureKind, Recording, RunLabels, RunResult};
use paceline_study::{TrialDocument, TrialTask};
use paceline_virtual::VirtualError;
use paceline_virtual::run::{Scenario, run as run_virtual};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::error::CompareFailure;
use crate::journal::{ComparedEnd, EndedRun, RunKey};
use crate::request::StrategyComparison;

/// How long one look for news takes.
const LOOK: Duration = Duration::from_millis(50);

/// An evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct CurvePoint {
    pub step: u64,
    /// The training clock, in seconds.
    pub seconds: f64,
    pub loss: f64,
    pub accuracy: f64,
}

/// What a run has come to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct RunFigures {
    /// On the whole test split, when all samples are done.
    pub accuracy: f64,
    pub loss: f64,
    pub steps: u64,
    /// The training clock.
    pub seconds: f64,
    /// Bytes that a worker sends, on the average.
    pub sent_bytes: f64,
    /// SHA-256 of the evaluated parameters: the same bits in the same.
    pub params_sha256: String,
    /// The evaluations of the run.
    pub curve: Vec<CurvePoint>,
}

impl RunFigures {
    fn new(result: &RunResult, mut curve: Vec<CurvePoint>) -> Self {
        curve.sort_by_key(|point| point.step);
        curve.dedup_by_key(|point| point.step);
        let workers = || result.ranks.iter().filter(|rank| rank.role == "worker");
        let sent: f64 = workers().map(|rank| rank.sent_bytes as f64).sum();
        Self {
            accuracy: result.final_accuracy,
            loss: result.final_loss,
            steps: result.steps,
            seconds: result.seconds.train,
            sent_bytes: sent / workers().count().max(1) as f64,
            params_sha256: result.params_sha256.clone(),
            curve,
        }
    }

    /// The end of the run; numbers that are none mean that it has diverged.
    fn end(self) -> ComparedEnd {
        let curve = self.curve.iter().flat_map(|point| [point.seconds, point.loss, point.accuracy]);
        let finite = curve.chain([self.accuracy, self.loss, self.seconds]).all(f64::is_finite);
        if finite { ComparedEnd::Ok { figures: self } } else { ComparedEnd::Diverged }
    }

    /// When its accuracy was this for the first time, on the training clock.
    pub fn reached_s(&self, accuracy: f64) -> Option<f64> {
        self.curve.iter().find(|point| point.accuracy >= accuracy).map(|point| point.seconds)
    }

    /// Mean seconds between two evaluations: what a time to a target is exact to.
    pub fn resolution_s(&self) -> f64 {
        self.seconds / self.curve.len().max(1) as f64
    }

    /// Accuracy and loss over the later half of the evaluations.
    pub(crate) fn later_half(&self) -> (f64, f64) {
        let half = &self.curve[self.curve.len() / 2..];
        if half.is_empty() {
            return (self.accuracy, self.loss);
        }
        let mean = |of: fn(&CurvePoint) -> f64| half.iter().map(of).sum::<f64>() / half.len() as f64;
        (mean(|p| p.accuracy), mean(|p| p.loss))
    }
}

impl StrategyComparison<'_> {
    /// One run in virtual time.
    pub(crate) fn virtual_run(&self, key: &RunKey, steps: u64) -> Result<EndedRun, CompareFailure> {
        let started = Instant::now();
        let (plan, settings) = self.plan(key, steps)?;
        let hardware = self.hardware();
        let scenario = Scenario {
            plan: &plan,
            dataset: &self.dataset,
            terms: hardware.terms(self.registries.runs()),
            learn: true,
            changes: None,
            trace: 0,
            run: "",
            started: Started::now(),
        };
        let mut curve = Vec::new();
        let result = run_virtual(&scenario, &mut |event| {
            if let Event::Evaluation { step, train_s, loss, accuracy, .. } = event {
                curve.push(CurvePoint { step, seconds: train_s, loss, accuracy });
            }
        });
        let end = match result {
            Ok(result) => RunFigures::new(&result, curve).end(),
            Err(VirtualError::Train(error)) if error.kind() == FailureKind::Diverged => ComparedEnd::Diverged,
            Err(error) => return Err(error.into()),
        };
        let (wall_s, command) = (started.elapsed().as_secs_f64(), self.command(key, &settings));
        Ok(EndedRun { end, wall_s, command, run: None })
    }

    /// Runs in virtual time, as many side by side as there are cores; each is handed over when it has ended. No more are
    /// begun when `take` says so, or after an interrupt.
    pub(crate) fn virtual_runs(
        &self,
        keys: &[RunKey],
        steps: u64,
        interrupted: &AtomicBool,
        take: &mut dyn FnMut(RunKey, EndedRun) -> Result<bool, CompareFailure>,
    ) -> Result<(), CompareFailure> {
        let (next, stop) = (&AtomicUsize::new(0), &AtomicBool::new(false));
        thread::scope(|scope| {
            let (sender, ended) = channel();
            for _ in 0..cores().len().clamp(1, keys.len().max(1)) {
                let sender = sender.clone();
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) && !interrupted.load(Ordering::Relaxed) {
                        let Some(key) = keys.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
                        if sender.send((*key, self.virtual_run(key, steps))).is_err() {
                            break;
                        }
                    }
                });
            }
            drop(sender);
            let mut failed = None;
            for (key, run) in ended {
                let goes_on = run.and_then(|run| take(key, run)).unwrap_or_else(|error| {
                    failed = failed.take().or(Some(error));
                    false
                });
                if !goes_on {
                    stop.store(true, Ordering::Relaxed);
                }
            }
            failed.map_or(Ok(()), Err)
        })?;
        if interrupted.load(Ordering::Relaxed) { Err(CompareFailure::Interrupted) } else { Ok(()) }
    }

    /// One real run, recorded in the store under the comparison's name as a tag; ended after `patience_s` seconds.
    pub(crate) fn real_run(
        &self,
        key: &RunKey,
        steps: u64,
        store: &Path,
        patience_s: f64,
        interrupted: &AtomicBool,
    ) -> Result<EndedRun, CompareFailure> {
        let (plan, settings) = self.plan(key, steps)?;
        let command = self.command(key, &settings);
        // Nothing samples the ranks: the comparison asks for their time alone.
        let recording = Some(Recording { sample_hz: 0.0, ..Recording::default() });
        let labels = RunLabels { tags: vec![self.name()], command: command.clone(), ..RunLabels::default() };
        let task = TrialTask::Train { store: store.to_owned(), recording, meeting: None };
        let document = TrialDocument::new(task, plan, &settings).labelled(labels).text()?;
        let program = std::env::current_exe()?;
        // Under an engine, the run is none of its processes.
        let place = TrialPlace { unnumbered: true, ..TrialPlace::default() };
        let mut trial = Trial::start(&program, "keeper", place, &TrialDocument::words()?, &document)
            .map_err(|source| CompareFailure::NotStarted { source })?;
        let (mut told, mut late) = (RealRun::default(), false);
        loop {
            if interrupted.load(Ordering::Relaxed) {
                // Dropping the run ends it.
                return Err(CompareFailure::Interrupted);
            }
            if trial.seconds() > patience_s && !late {
                late = true;
                trial.kill();
            }
            match trial.hear(LOOK) {
                Some(TrialEvent::Line(line)) => told.line(&line),
                Some(TrialEvent::Ended(ended)) => {
                    let end = match told.result {
                        Some(result) if ended.exit.code == Some(0) => {
                            RunFigures::new(&result, told.curve).end()
                        }
                        _ if late => {
                            ComparedEnd::Failed { cause: "the minutes were over while it ran".into() }
                        }
                        _ if told.failure == Some(FailureKind::Diverged) => ComparedEnd::Diverged,
                        _ => ComparedEnd::Failed { cause: ended.cause() },
                    };
                    return Ok(EndedRun { end, wall_s: ended.wall_s, command, run: told.run });
                }
                None => {}
            }
        }
    }
}

/// What a real run has told of itself.
#[derive(Default)]
struct RealRun {
    run: Option<String>,
    curve: Vec<CurvePoint>,
    failure: Option<FailureKind>,
    result: Option<RunResult>,
}

impl RealRun {
    fn line(&mut self, line: &str) {
        let Ok(event) = serde_json::from_str::<Json>(line) else { return };
        match event["type"].as_str() {
            Some("start") => self.run = event["run"].as_str().map(str::to_owned),
            Some("evaluation") => {
                let number = |name: &str| event[name].as_f64().unwrap_or(f64::NAN);
                let step = event["step"].as_u64().unwrap_or_default();
                let (seconds, loss, accuracy) = (number("train_s"), number("loss"), number("accuracy"));
                self.curve.push(CurvePoint { step, seconds, loss, accuracy });
            }
            Some("failed") => self.failure = FailureKind::deserialize(&event["kind"]).ok(),
            Some("result") => self.result = serde_json::from_value(event).ok(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(accuracies: &[f64]) -> RunFigures {
        let point = |(i, accuracy): (usize, &f64)| CurvePoint {
            step: i as u64,
            seconds: i as f64,
            loss: 1.0 - accuracy,
            accuracy: *accuracy,
        };
        RunFigures {
            accuracy: *accuracies.last().unwrap(),
            loss: 0.0,
            steps: 4,
            seconds: 4.0,
            sent_bytes: 0.0,
            params_sha256: String::new(),
            curve: accuracies.iter().enumerate().map(point).collect(),
        }
    }

    #[test]
    fn a_target_is_reached_at_the_first_evaluation_that_has_it() {
        let run = figures(&[0.2, 0.8, 0.7, 0.9]);
        assert_eq!(run.reached_s(0.75), Some(1.0));
        assert_eq!(run.reached_s(0.95), None);
        assert_eq!(run.resolution_s(), 1.0);
        let (accuracy, loss) = run.later_half();
        assert!((accuracy - 0.8).abs() < 1e-12 && (loss - 0.2).abs() < 1e-12);
    }

    #[test]
    fn numbers_that_are_none_mean_that_a_run_has_diverged() {
        assert!(matches!(figures(&[0.1, 0.2]).end(), ComparedEnd::Ok { .. }));
        assert_eq!(figures(&[0.1, f64::NAN]).end(), ComparedEnd::Diverged);
    }
}
