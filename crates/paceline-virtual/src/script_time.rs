//! What a script's steps take, measured: an entry of a calibration.

use paceline_plan::Script;
use serde::{Deserialize, Serialize};

use crate::calibration::{Calibration, CoreSharing, MedianEstimate, four_digits, listed};

/// A script's steps, measured with its gradients handed over and without.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ScriptTime {
    /// The script's name.
    pub file: String,
    /// SHA-256 of its content, in hexadecimal.
    pub sha256: String,
    /// What it was started with.
    pub args: Vec<String>,
    /// Threads of a worker.
    pub threads: usize,
    /// GPUs that the workers took in turn; 0 where none were given to them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub gpus: usize,
    /// What it computes with, as it said itself.
    pub framework: String,
    /// Numbers of the gradient buffer.
    pub params: usize,
    /// Samples of a worker's step.
    pub samples: f64,
    /// Samples of the whole training; none where the measurement ended the script.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_samples: Option<u64>,
    /// Steps that were counted, of one worker.
    pub steps: usize,
    /// Seconds from a run's start to its first step.
    pub startup_s: f64,
    /// Seconds of data, forward and backward of a worker that exchanges nothing.
    pub alone_s: MedianEstimate,
    /// The same where gradients are handed over while backward computes: copying them is a part of it.
    pub pass_s: MedianEstimate,
    /// Seconds of copying gradients, a part of `pass-s`.
    pub staging_s: f64,
    /// Fractions of `pass-s` until the batch was there, and of the forward pass.
    pub data: f64,
    /// See `data`.
    pub forward: f64,
    /// Seconds of the script's own update.
    pub update_s: f64,
    /// Seconds of a pass relative to the median, at equally spaced probabilities from 0 to 1.
    pub quantiles: Vec<f64>,
    /// The tensors, in the order of the parameters; empty where the script did not tell when gradients were final.
    #[serde(default)]
    pub tensor: Vec<TensorReady>,
    /// How much slower a pass is on several workers at once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sharing: Vec<CoreSharing>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// A tensor of a script; in the file `[name, numbers, ready]`.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(from = "(String, usize, f64)", into = "(String, usize, f64)")]
pub struct TensorReady {
    /// Its name.
    pub name: String,
    /// Its length.
    pub numbers: usize,
    /// When it and all tensors behind it were final, as a fraction of the pass.
    pub at: f64,
}

listed!(TensorReady as (String, usize, f64): (name, numbers, at) => (name, numbers, four_digits(at)));

impl ScriptTime {
    /// Whether it is about this script with its arguments, computed by so many threads.
    fn is_of(&self, script: &Script, threads: usize) -> bool {
        (&self.sha256, &self.args, self.threads) == (&script.sha256, &script.args, threads)
    }

    /// Whether it can be computed with.
    pub(crate) fn is_sound(&self) -> bool {
        let times = self.pass_s.is_positive() && self.alone_s.is_positive();
        times && self.samples > 0.0 && self.params > 0
    }

    /// The most workers that were measured at once.
    pub fn most_workers(&self) -> usize {
        self.sharing.iter().map(|sharing| sharing.processes).max().unwrap_or(1)
    }

    /// How many times as long a pass takes where a GPU has so many workers, each by itself and until the last is done: on the
    /// lines between what was measured, and on along the last of them. Where only one was measured, they take turns.
    fn on_one_gpu(&self, workers: usize) -> (f64, f64) {
        let per_gpu =
            |sharing: &CoreSharing| sharing.processes.div_ceil(self.gpus.clamp(1, sharing.processes));
        let median = |sharing: &CoreSharing| {
            let together = sharing.in_step.unwrap_or(sharing.slowdown).median;
            (per_gpu(sharing) as f64, sharing.slowdown.median, together)
        };
        let mut known: Vec<(f64, f64, f64)> = self.sharing.iter().map(median).collect();
        known.retain(|point| point.0 > 1.0);
        known.insert(0, (1.0, 1.0, 1.0));
        known.sort_by(|a, b| a.0.total_cmp(&b.0));
        known.dedup_by_key(|point| point.0 as usize);
        let at = workers as f64;
        let [from, to] = match known[..] {
            [only] => [only, (only.0 + 1.0, only.1 + 1.0, only.2 + 1.0)],
            _ => {
                let above = known.partition_point(|point| point.0 < at).clamp(1, known.len() - 1);
                [known[above - 1], known[above]]
            }
        };
        let line = |y0: f64, y1: f64| (y0 + (y1 - y0) * (at - from.0) / (to.0 - from.0)).max(1.0);
        (line(from.1, to.1), line(from.2, to.2))
    }

    /// How much slower passes are with 1, 2, … workers of a machine with so many GPUs.
    pub(crate) fn sharing_of_gpus(&self, workers: usize, gpus: usize) -> Vec<CoreSharing> {
        let sharing = |processes: usize| {
            let (apart, together) = self.on_one_gpu(processes.div_ceil(gpus.max(1)));
            let together = Some(MedianEstimate::round(together));
            let slowdown = MedianEstimate::round(apart);
            CoreSharing { processes, slowdown, in_step: together, in_step_long: together }
        };
        (1..=workers).map(sharing).collect()
    }

    /// The most workers of one GPU that were measured.
    pub(crate) fn most_on_one_gpu(&self) -> usize {
        let per_gpu =
            |sharing: &CoreSharing| sharing.processes.div_ceil(self.gpus.clamp(1, sharing.processes));
        self.sharing.iter().map(per_gpu).max().unwrap_or(1)
    }

    /// Bytes of a step's gradients.
    pub fn gradient_bytes(&self) -> usize {
        self.params * size_of::<f32>()
    }
}

impl Calibration {
    /// What was measured of a script with its arguments and so many threads.
    pub fn script_time(&self, script: &Script, threads: usize) -> Option<&ScriptTime> {
        self.script.iter().find(|known| known.is_of(script, threads))
    }

    /// Adds a script's steps, in place of what was measured of it before.
    pub fn add_script(&mut self, time: ScriptTime) {
        let of = |known: &ScriptTime| (known.sha256.clone(), known.args.clone(), known.threads);
        self.script.retain(|known| of(known) != of(&time));
        self.script.push(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_of_one_gpu_take_what_was_measured_and_go_on_along_the_line() {
        let round = MedianEstimate::round;
        let sharing = |processes, slowdown: f64| CoreSharing {
            processes,
            slowdown: round(slowdown),
            in_step: Some(round(slowdown + 0.5)),
            in_step_long: None,
        };
        let mut time = ScriptTime {
            file: "t.py".into(),
            sha256: String::new(),
            args: Vec::new(),
            threads: 1,
            gpus: 1,
            framework: String::new(),
            params: 10,
            samples: 4.0,
            total_samples: None,
            steps: 10,
            startup_s: 1.0,
            alone_s: round(1.0),
            pass_s: round(1.1),
            staging_s: 0.0,
            data: 0.0,
            forward: 0.3,
            update_s: 0.0,
            quantiles: Vec::new(),
            tensor: Vec::new(),
            sharing: vec![sharing(1, 1.0), sharing(2, 1.6)],
        };
        let of = |time: &ScriptTime, workers, gpus| {
            let all = time.sharing_of_gpus(workers, gpus);
            let last = all.last().unwrap();
            (last.slowdown.median, last.in_step.unwrap().median)
        };
        let close = |a: (f64, f64), b: (f64, f64)| (a.0 - b.0).abs() < 1e-12 && (a.1 - b.1).abs() < 1e-12;
        assert!(close(of(&time, 1, 1), (1.0, 1.0)) && close(of(&time, 2, 1), (1.6, 2.1)));
        assert!(close(of(&time, 4, 1), (2.8, 4.3)), "{:?}", of(&time, 4, 1));
        assert!(close(of(&time, 8, 4), (1.6, 2.1)), "two on each of four");
        assert_eq!(time.most_on_one_gpu(), 2);
        // Two workers on two GPUs say nothing of two on one: those would take turns.
        time.gpus = 2;
        assert!(close(of(&time, 2, 1), (2.0, 2.0)), "{:?}", of(&time, 2, 1));
        assert_eq!(toml::from_str::<ScriptTime>(&toml::to_string(&time).unwrap()).unwrap(), time);
    }
}
