//! Measures a script: a few short runs of it, whose records tell what its steps take.

use std::path::{Path, PathBuf};
use std::process::Command;

use paceline_analyze::{Explanation, RecordedRun, RecordedStep};
use paceline_plan::Script;
use paceline_record::{RunResult, ScriptRecord, Store};
use paceline_statistics::{mean, median};

use crate::calibration::{CoreSharing, MedianEstimate};
use crate::error::VirtualError;
use crate::script_time::{ScriptTime, TensorReady};

/// A script that is to be measured.
pub struct ScriptSubject {
    /// The script.
    pub script: Script,
    /// Threads of each worker.
    pub threads: usize,
    /// Numbers of workers that are measured at once; one is measured anyway.
    pub workers: Vec<usize>,
    /// Steps of each run, at most.
    pub steps: u64,
}

impl ScriptSubject {
    /// The GPUs that its workers take in turn, as a flag has them.
    fn gpus(&self) -> Vec<String> {
        let gpus = &self.script.gpus;
        if gpus.is_empty() { Vec::new() } else { vec!["--gpus".into(), gpus.join(",")] }
    }
}

/// A run that was made.
struct MeasuredRun {
    recorded: RecordedRun,
    result: RunResult,
}

impl ScriptSubject {
    /// Measures it with `program`'s runs, telling `say` what comes next.
    pub fn measure(&self, program: &Path, say: &mut dyn FnMut(&str)) -> Result<ScriptTime, VirtualError> {
        let folder = std::env::temp_dir().join(format!("paceline-calibrate-script-{}", std::process::id()));
        let measured = self.measure_in(&folder, program, say);
        // A store that was never made need not be removed.
        let _ = std::fs::remove_dir_all(&folder);
        measured
    }

    fn measure_in(
        &self,
        folder: &Path,
        program: &Path,
        say: &mut dyn FnMut(&str),
    ) -> Result<ScriptTime, VirtualError> {
        let file = file_name(&self.script.file);
        say(&format!("{file}: one worker alone, up to {} steps", self.steps));
        let alone = self.run(&folder.join("alone"), program, &["--workers", "1"])?;
        say(&format!("{file}: one worker whose gradients are handed over"));
        let staged = self.run(&folder.join("staged"), program, &["--workers", "1", "--staging", "always"])?;
        let mut time = self.time(&alone, &staged)?;
        let mut counts: Vec<usize> = self.workers.iter().copied().filter(|count| *count > 1).collect();
        counts.sort_unstable();
        counts.dedup();
        if !counts.is_empty() {
            time.sharing.push(one_worker());
        }
        for count in counts {
            say(&format!("{file}: {count} workers at once"));
            let words = ["--workers", &count.to_string(), "--strategy", "ring-allreduce"];
            let several = self.run(&folder.join(format!("workers-{count}")), program, &words)?;
            time.sharing.push(sharing(&several.recorded, count, time.pass_s.median));
        }
        Ok(time)
    }

    /// Makes a run of the script with these further flags, and reads its record.
    fn run(&self, store: &Path, program: &Path, flags: &[&str]) -> Result<MeasuredRun, VirtualError> {
        let refused = |problem: String| VirtualError::Script { file: file_name(&self.script.file), problem };
        let Script { file, python, args, .. } = &self.script;
        let (threads, steps) = (self.threads.to_string(), self.steps.to_string());
        let mut command = Command::new(program);
        command.args(["train", "--quiet", "--engine", "none", "--script", file, "--python", python]);
        command
            .args(["--threads", &threads, "--steps", &steps])
            .args(self.gpus())
            .args(flags)
            .arg("--store")
            .arg(store);
        let ran = command.arg("--").args(args).output();
        let ran =
            ran.map_err(|error| refused(format!("{} cannot be started: {error}", program.display())))?;
        if !ran.status.success() {
            return Err(refused(format!(
                "its run with {} failed\n{}",
                flags.join(" "),
                String::from_utf8_lossy(&ran.stderr).trim_end()
            )));
        }
        let read = || {
            let store = Store::open(store)?;
            let run = store.runs()?.pop();
            let recorded = run.as_ref().map(|run| RecordedRun::read(&store, run)).transpose()?;
            Ok((recorded, run.and_then(|run| run.result)))
        };
        let read: Result<_, paceline_record::RecordError> = read();
        match read.map_err(|error| refused(error.to_string()))? {
            (Some(recorded), Some(result)) => Ok(MeasuredRun { recorded, result }),
            _ => Err(refused("its run left no record".into())),
        }
    }

    fn time(&self, alone: &MeasuredRun, staged: &MeasuredRun) -> Result<ScriptTime, VirtualError> {
        let refused = |problem: String| VirtualError::Script { file: file_name(&self.script.file), problem };
        let explained = |run: &MeasuredRun| Explanation::new(&run.recorded).map_err(|e| refused(e.problem));
        let (_, said) = (explained(alone)?, explained(staged)?);
        let [own, handed] = [alone, staged].map(|run| steady(&run.recorded, 0));
        let of = |steps: &[RecordedStep], what: fn(&RecordedStep) -> f64| -> Vec<f64> {
            steps.iter().map(what).collect()
        };
        let [alone_s, pass_s] =
            [&own, &handed].map(|steps| MedianEstimate::of(&of(steps, |step| step.compute_s)));
        let samples = mean(&of(&handed, |step| step.samples as f64));
        if !pass_s.is_positive() || !alone_s.is_positive() || samples <= 0.0 {
            return Err(refused(
                "its accounts do not say what a step takes, or how many samples it has".into(),
            ));
        }
        let whole = |what: fn(&RecordedStep) -> f64| median(&of(&handed, what)) / pass_s.median;
        let data = whole(|step| step.data_s);
        let record = staged.recorded.script.clone().unwrap_or_default();
        let copied: f64 = record.staging.iter().map(|own| own.staging_s).sum();
        // The script's own update stands in its account with either exchange; a server's is none of it.
        let update_s = median(&of(&own, |step| step.apply_s));
        Ok(ScriptTime {
            file: file_name(&self.script.file),
            sha256: self.script.sha256.clone(),
            args: self.script.args.clone(),
            threads: self.threads,
            gpus: self.script.gpus.len(),
            framework: record.framework.clone(),
            params: staged.recorded.params,
            samples,
            total_samples: (alone.result.steps < self.steps).then_some(alone.result.samples),
            steps: handed.len(),
            startup_s: alone.result.seconds.startup,
            alone_s,
            pass_s,
            staging_s: copied / staged.result.steps.max(1) as f64,
            data,
            forward: (1.0 - data - whole(|step| step.backward_s)).max(0.0),
            update_s,
            quantiles: said.jitter.clone(),
            tensor: tensors(&record, &said),
            sharing: Vec::new(),
        })
    }
}

fn file_name(path: &str) -> String {
    PathBuf::from(path).file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn one_worker() -> CoreSharing {
    let one = MedianEstimate::round(1.0);
    CoreSharing { processes: 1, slowdown: one, in_step: Some(one), in_step_long: Some(one) }
}

/// When each tensor was final: the explanation tells it from the last one to the first.
fn tensors(record: &ScriptRecord, said: &Explanation) -> Vec<TensorReady> {
    let tensor = |((name, numbers), at): (&(String, usize), f64)| TensorReady {
        name: name.clone(),
        numbers: *numbers,
        at,
    };
    let ready = said.ready.iter().rev().map(|ready| ready.at);
    record.tensors.iter().zip(ready).map(tensor).collect()
}

/// The steps of a rank without the first ones, in which a script warms up.
fn steady(run: &RecordedRun, rank: usize) -> Vec<RecordedStep> {
    let own: Vec<RecordedStep> = run.steps.iter().filter(|step| step.rank == rank).copied().collect();
    let skip = (own.len() / 5).clamp(1, 20).min(own.len().saturating_sub(1));
    own[skip..].to_vec()
}

/// How much longer the passes of so many workers take than `alone_s`: each by itself, and until the last is done.
fn sharing(run: &RecordedRun, workers: usize, alone_s: f64) -> CoreSharing {
    let ranks: Vec<Vec<RecordedStep>> = (0..workers).map(|rank| steady(run, rank)).collect();
    let steps = ranks.iter().map(Vec::len).min().unwrap_or(0);
    let pass = |step: usize| ranks.iter().map(move |own| own[step].compute_s);
    let slowest: Vec<f64> = (0..steps).map(|step| pass(step).fold(0.0, f64::max)).collect();
    let all: Vec<f64> = (0..steps).flat_map(pass).collect();
    let relative = |values: &[f64]| {
        let MedianEstimate { median, low, high } = MedianEstimate::of(values).times(1.0 / alone_s);
        // Nobody is faster for being in company: that is noise.
        MedianEstimate { median: median.max(1.0), low: low.max(1.0), high: high.max(1.0) }
    };
    let together = relative(&slowest);
    CoreSharing {
        processes: workers,
        slowdown: relative(&all),
        in_step: Some(together),
        in_step_long: Some(together),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_that_are_in_each_others_way_take_as_long_as_the_slowest_of_them() {
        let step = |rank, step, compute_s| RecordedStep { rank, step, compute_s, ..RecordedStep::default() };
        let pass = |rank: usize, n: u64| match n {
            // Warming up does not count.
            1 | 2 => 9.0,
            _ => 1.0 + rank as f64,
        };
        let steps = (1..=10).flat_map(|n| (0..2).map(move |rank| step(rank, n, pass(rank, n)))).collect();
        let found = sharing(&RecordedRun { steps, ..RecordedRun::default() }, 2, 1.0);
        assert_eq!((found.processes, found.slowdown.median), (2, 1.5));
        assert_eq!(found.in_step.map(|estimate| estimate.median), Some(2.0));
        let steps = (1..=10).flat_map(|n| (0..2).map(move |rank| step(rank, n, 0.5))).collect();
        let faster = sharing(&RecordedRun { steps, ..RecordedRun::default() }, 2, 1.0);
        assert_eq!(faster.slowdown, MedianEstimate::round(1.0), "company makes nobody faster");
    }
}
