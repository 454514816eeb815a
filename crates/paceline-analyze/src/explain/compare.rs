//! Two runs beside each other: what was measured goes before what was predicted.

use paceline_statistics::median;
use serde::Serialize;

use super::advice::{GainSource, alike};
use super::sentence::{ExactFigures, Part, Sentence, counted, name, percent, plain, seconds};
use super::whatif::faster;
use super::{Explanation, RankTimes, WhatIf, workers};

/// Two runs beside each other.
#[derive(Clone, Debug, Serialize)]
pub struct RunComparison {
    /// Samples per second of the first over those of the second.
    pub speed: f64,
    /// By how much the first's step is longer, in seconds, by what it is spent on: computing, handling, waiting, updating.
    pub longer_s: [(&'static str, f64); 4],
    /// A direct answer.
    pub sentence: Sentence,
}

/// A worker that computes so many times as long for as many samples computes longer.
const LONGER: f64 = 1.15;

impl RunComparison {
    /// Why is the first slower (or faster) than the second?
    pub fn new(a: &Explanation, b: &Explanation) -> Self {
        let typical = |of: &Explanation, part: fn(&RankTimes) -> f64| {
            median(&workers(&of.ranks).iter().map(|r| part(r)).collect::<Vec<_>>())
        };
        type TimePart = (&'static str, fn(&RankTimes) -> f64);
        let parts: [TimePart; 4] = [
            ("computing", |r| r.compute_s),
            ("sending, receiving and summing", |r| r.send_s),
            ("waiting", |r| r.wait_s),
            ("updating", |r| r.apply_s),
        ];
        let longer_s = parts.map(|(name, part)| (name, typical(a, part) - typical(b, part)));
        let speed = a.samples_per_s / b.samples_per_s;
        // Which way a difference explains the speed.
        let sign = if speed < 1.0 { 1.0 } else { -1.0 };
        let most = longer_s.iter().max_by(|x, y| (x.1 * sign).total_cmp(&(y.1 * sign)));
        let most = most.copied().unwrap_or(("computing", 0.0));
        let (na, nb) = (workers(&a.ranks).len(), workers(&b.ranks).len());
        let mut sentence = Sentence::new(
            "{} ({}, {} samples/s) is {} {} ({}, {} samples/s): a step takes {} instead of {}; the greatest difference \
             is {}, {} {} per step",
            [
                name(&a.run),
                counted("workers", na, "worker", "workers"),
                plain("samples_per_s", a.samples_per_s),
                faster("vs_times", speed),
                name(&b.run),
                counted("vs_workers", nb, "worker", "workers"),
                plain("vs_samples_per_s", b.samples_per_s),
                seconds("step_s", a.step_s),
                seconds("vs_step_s", b.step_s),
                Part::Words(most.0),
                seconds("vs_longer_s", most.1.abs()),
                Part::Words(if most.1 >= 0.0 { "more" } else { "less" }),
            ],
        );
        let (samples_a, samples_b) = (typical(a, |r| r.samples), typical(b, |r| r.samples));
        let per_sample = |of: &Explanation, samples: f64| typical(of, |r| r.compute_s) / samples.max(1.0);
        let slowed = per_sample(a, samples_a) / per_sample(b, samples_b).max(1e-12);
        if na > nb && slowed > LONGER {
            let core_wait = typical(a, |r| r.core_wait_s.unwrap_or(0.0)) / a.step_s;
            let why = if core_wait > 0.05 {
                Sentence::new(
                    "they share cores, and one is ready to go on and has none for {} of a step",
                    [percent("core_wait_share", core_wait.min(1.0))],
                )
            } else {
                Sentence::new("they are in each other's way, or their machines are slower", [])
            };
            sentence = sentence.then(Sentence::new(
                ". A worker computes {} times as long for as many samples: {}",
                [plain("vs_compute_times", slowed), Part::Sentence(why)],
            ));
        }
        if speed < 1.0 && na > nb {
            let work = na as f64 * samples_a / (nb as f64 * samples_b).max(1.0);
            sentence = sentence.then(Sentence::new(
                ". {} do {} times the work per step and would be faster if a step took less than {}, but exchanging \
                 takes {} of it: {}",
                [
                    counted("workers", na, "worker", "workers"),
                    plain("vs_work_times", work),
                    seconds("vs_worthwhile_step_s", work * b.step_s),
                    seconds("vs_exchange_s", typical(a, |r| r.send_s) + typical(a, |r| r.wait_s)),
                    Part::Sentence(a.verdict.sentence.clone()),
                ],
            ));
        }
        Self { speed, longer_s, sentence }
    }

    /// The exact values of the numbers in its sentence.
    pub fn figures(&self) -> &ExactFigures {
        self.sentence.figures()
    }
}

impl Explanation {
    /// Puts what another run has measured in the place of what was predicted of the same, and leaves out predictions
    /// that it contradicts.
    pub fn measured_beside(&mut self, other: &Self) {
        let ratio = self.samples_per_s / other.samples_per_s;
        let (own, others) = (workers(&self.ranks).len(), workers(&other.ranks).len());
        let plans = self.plan.as_ref().zip(other.plan.as_ref());
        let same_work = plans.is_none_or(|(a, b)| (&a.data, &a.model) == (&b.data, &b.model));
        let alone = own > 1 && others == 1 && same_work && ratio.is_finite() && ratio > 0.0;
        self.alone = alone.then(|| self.beside_one(ratio, Some(other.run.clone())));
        for change in &mut self.verdict.changes {
            let same = plans.is_some_and(|(own, other)| {
                change.if_.changed(own, self.cores).is_some_and(|new| alike(&new, other))
            });
            if same {
                change.found(ratio, self.step_s, GainSource::Measured(other.run.clone()));
            }
        }
        // Whichever number of workers was slower is no advice, whatever was predicted of it.
        let other_is_slower = ratio > 1.0;
        self.verdict.changes.retain(|change| match change.if_ {
            WhatIf::MoreWorkers => own == others || (others > own) != other_is_slower,
            WhatIf::FewerWorkers => own == others || (others < own) != other_is_slower,
            _ => true,
        });
        self.put_in_order();
    }
}
