//! What changes would bring: the caller supplies a simulator, or another run that was measured.

use serde::Serialize;

use super::advice::{Change, GainSource};
use super::sentence::{Part, Sentence, counted, name, plain, seconds};
use super::verdict::WORTH;
use super::{Explanation, WhatIf, workers};

/// What one worker alone does.
#[derive(Clone, Debug, Serialize)]
pub struct SingleWorker {
    pub samples_per_s: f64,
    /// How many times as fast the run is.
    pub speed_up: f64,
    /// The run of one worker that was measured; none: it was simulated.
    pub measured: Option<String>,
    /// Why the workers together are as fast, or slow, as they are.
    pub sentence: Sentence,
}

/// Speeds that differ by less are the same.
const SAME: f64 = 0.05;

/// How many times as fast something is: `2.5 times faster than`, or slower, or as fast as.
pub(super) fn faster(id: &'static str, speed: f64) -> Part {
    if (speed - 1.0).abs() < SAME {
        return Part::Words("about as fast as");
    }
    let (times, words) =
        if speed < 1.0 { (1.0 / speed, "{} times slower than") } else { (speed, "{} times faster than") };
    Part::Sentence(Sentence::new(words, [plain(id, times)]))
}

impl Explanation {
    /// Takes gains from a simulator: it tells how long the work of a step takes after each change, relative to now.
    /// Changes are put in that order; those that it cannot tell keep what the recorded chain allows, behind the others.
    pub fn predict(&mut self, simulate: &dyn Fn(WhatIf) -> Option<f64>) {
        for change in &mut self.verdict.changes {
            if let Some(ratio) = simulate(change.if_).filter(|r| r.is_finite()) {
                change.found(ratio, self.step_s, GainSource::Simulated);
            }
        }
        self.put_in_order();
        let (count, ratio) = (workers(&self.ranks).len(), simulate(WhatIf::OneWorker));
        if let Some(ratio) = ratio.filter(|ratio| count > 1 && *ratio > 0.0) {
            self.alone = Some(self.beside_one(ratio, None));
        }
    }

    /// Adds a change that the record says nothing about: a step takes `ratio` times as long after it, by a simulator.
    pub fn add_simulated(&mut self, what_if: WhatIf, ratio: f64) {
        let plan = self.plan.as_ref();
        if let Some(words) = plan.and_then(|plan| what_if.words(Some(plan), self.cores)) {
            let mut change = Change::new(what_if, 0.0, words);
            change.found(ratio, self.step_s, GainSource::Simulated);
            self.verdict.changes.push(change);
            self.put_in_order();
        }
    }

    pub(super) fn put_in_order(&mut self) {
        let known = |source: &GainSource| *source != GainSource::Recorded;
        let changes = &mut self.verdict.changes;
        changes.retain(|c| c.gain >= WORTH);
        changes.sort_by(|a, b| known(&b.source).cmp(&known(&a.source)).then(b.gain.total_cmp(&a.gain)));
    }

    /// Beside one worker, who takes `ratio` times as long for as many samples.
    pub(super) fn beside_one(&self, ratio: f64, measured: Option<String>) -> SingleWorker {
        let workers = workers(&self.ranks);
        let exchanging = workers.iter().map(|r| r.send_s + r.wait_s).sum::<f64>() / workers.len() as f64;
        let samples_per_s = self.samples_per_s / ratio;
        let (one, how, takes) = match &measured {
            None => (
                Part::Words("one would be"),
                Part::Words("predicted by simulation"),
                Part::Words("would take"),
            ),
            Some(run) => (
                Part::Sentence(Sentence::new("the one of {}", [name(run)])),
                Part::Words("both measured"),
                Part::Words("takes"),
            ),
        };
        let sentence = Sentence::new(
            "{} are {} {} ({} samples/s against {}, {}): a step of all takes {}, of which a worker spends {} sending \
             and waiting; one worker {} {} for the same samples",
            [
                counted("workers", workers.len(), "worker", "workers"),
                faster("beside_one_times", ratio),
                one,
                plain("samples_per_s", self.samples_per_s),
                plain("one_samples_per_s", samples_per_s),
                how,
                seconds("step_s", self.step_s),
                seconds("exchange_s", exchanging),
                takes,
                seconds("one_step_s", ratio * self.step_s),
            ],
        );
        SingleWorker { samples_per_s, speed_up: ratio, measured, sentence }
    }
}
