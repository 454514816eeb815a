//! Changes that whoever can simulate a run is asked about.

use serde::Serialize;

use super::verdict::seconds;
use super::{Explanation, workers};
use crate::table::number;

/// A change of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhatIf {
    /// Everybody computes as fast as the others do.
    NoStraggler,
    /// Nobody waits for a straggler.
    LetGo,
    /// Twice as many servers.
    MoreServers,
    /// Servers that handle messages as fast as workers do.
    FasterServers,
    /// Workers sum round a ring, without servers.
    Ring,
    /// Ten times the bandwidth.
    Bandwidth,
    /// A tenth of the latency.
    Latency,
    /// Fewer messages one after another.
    FewerHops,
    /// Messages of half the size.
    Half,
    /// Larger buckets.
    Bucket,
    /// Workers exchange every 8 steps.
    Local,
    /// Twice as many workers, each with half of the batch.
    MoreWorkers,
    /// One worker alone.
    OneWorker,
}

/// What one worker alone would do.
#[derive(Clone, Debug, Serialize)]
pub struct SingleWorkerEstimate {
    /// Samples per second, predicted by simulation.
    pub samples_per_s: f64,
    /// How many times as fast the run is.
    pub speed_up: f64,
    /// Why the workers together are as fast, or slow, as they are.
    pub sentence: String,
}

/// Changes that save less than this part of a step are not worth a word.
const WORTH: f64 = 0.02;

impl Explanation {
    /// Asks `simulate` how long the work of a step takes after each change, relative to now, and puts the changes in
    /// that order; those that it cannot tell keep what the recorded chain allows, behind the others.
    pub fn predict(&mut self, simulate: &dyn Fn(WhatIf) -> Option<f64>) {
        for change in &mut self.verdict.changes {
            if let Some(ratio) = simulate(change.if_).filter(|r| r.is_finite()) {
                (change.gain, change.predicted) = (1.0 - ratio, true);
                change.step_s = Some(ratio * self.step_s);
            }
        }
        let changes = &mut self.verdict.changes;
        changes.retain(|c| c.gain >= WORTH);
        changes.sort_by(|a, b| b.predicted.cmp(&a.predicted).then(b.gain.total_cmp(&a.gain)));
        let workers = workers(&self.ranks);
        let (count, ratio) = (workers.len(), simulate(WhatIf::OneWorker));
        let Some(ratio) = ratio.filter(|ratio| count > 1 && *ratio > 0.0) else { return };
        let exchanging = workers.iter().map(|r| r.send_s + r.wait_s).sum::<f64>() / count as f64;
        let mut sentence = if ratio < 1.0 {
            format!("{count} workers are {} times slower than one would be", number(1.0 / ratio))
        } else {
            format!("{count} workers are {} times faster than one would be", number(ratio))
        };
        sentence += &format!(
            " ({} samples/s against {}, predicted by simulation): a step of all takes {}, of which a worker spends {} \
             sending and waiting; one worker would take {} for the same samples",
            number(self.samples_per_s),
            number(self.samples_per_s / ratio),
            seconds(self.step_s),
            seconds(exchanging),
            seconds(ratio * self.step_s),
        );
        self.alone = Some(SingleWorkerEstimate {
            samples_per_s: self.samples_per_s / ratio,
            speed_up: ratio,
            sentence,
        });
    }
}
