//! Workers that hold the others up.

use paceline_statistics::median;

use super::links::quantile;
use super::verdict::{Case, Cause, Change, Verdict, percent, seconds};
use super::{RankTimes, RecordedStep, WhatIf};

/// A worker whose faster steps take so many times those of the others is a straggler,
const SLOWER: f64 = 1.4;
/// if its usual steps take longer as well.
const USUALLY_SLOWER: f64 = 1.1;
impl Case<'_> {
    /// A worker, or a few, that compute longer than the others.
    pub fn straggler(&self) -> Option<Verdict> {
        let workers = self.workers();
        if workers.len() < 2 {
            return None;
        }
        // By their faster steps, which others who use the same cores now and then leave alone: the widest gap between
        // those who compute faster and the few, half of them at most, who compute slower.
        let swift = |rank: usize| {
            quantile(self.recorded.steady(rank).iter().map(|s| s.compute_s).collect(), 0.1).unwrap_or(0.0)
        };
        let mut sorted: Vec<(f64, &RankTimes)> = workers.iter().map(|r| (swift(r.rank), *r)).collect();
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
        let gap = |i: usize| sorted[i].0 / sorted[i - 1].0.max(1e-12);
        let at = (sorted.len().div_ceil(2)..sorted.len()).max_by(|a, b| gap(*a).total_cmp(&gap(*b)))?;
        let (others, slow) = sorted.split_at(at);
        let &(swiftest, slowest) = slow.last()?;
        let swift_usual = median(&others.iter().map(|(swift, _)| *swift).collect::<Vec<_>>());
        let usual = median(&others.iter().map(|(_, r)| r.compute_s).collect::<Vec<_>>());
        if gap(at) < SLOWER || slowest.compute_s < USUALLY_SLOWER * usual {
            return self.moving_straggler();
        }
        let mean = |rank: usize, of: fn(&RecordedStep) -> f64| {
            let steps = self.recorded.steady(rank);
            steps.iter().map(of).sum::<f64>() / steps.len().max(1) as f64
        };
        let of_others =
            |of: &dyn Fn(&RankTimes) -> f64| median(&others.iter().map(|(_, r)| of(r)).collect::<Vec<_>>());
        // If nobody is held up by it, it costs only its own share of the work.
        let duration = |r: &RankTimes| mean(r.rank, RecordedStep::duration_s).max(1e-12);
        let held_up = of_others(&duration) > 0.8 * duration(slowest);
        let share = if held_up {
            // What the others wait longer than it does: a straggler itself has nobody to wait for.
            let longer = |of: &dyn Fn(&RankTimes) -> f64| of_others(of) - of(slowest);
            let longer = longer(&|r| r.wait_s).max(longer(&|r| mean(r.rank, |s| s.wait_s)));
            (slowest.compute_s - usual).max(swiftest - swift_usual).min(longer).max(0.0) / duration(slowest)
        } else {
            let all: f64 = workers.iter().map(|r| 1.0 / duration(r)).sum();
            let most = workers.iter().map(|r| 1.0 / duration(r)).fold(0.0, f64::max);
            1.0 - all / (all - 1.0 / duration(slowest) + most)
        };
        let effect = if held_up { "the others wait for it" } else { "the others go on without it" };
        let sentence = format!(
            "Worker {} on {} is a straggler: it computes {:.1} times as long per step as the others ({} against {}), \
             and {effect}",
            slowest.rank,
            slowest.host,
            swiftest / swift_usual,
            seconds(swiftest),
            seconds(swift_usual)
        );
        let what =
            format!("free or replace rank {} (look at what else runs on {})", slowest.rank, slowest.host);
        let mut changes = vec![Change::new(WhatIf::NoStraggler, share, what)];
        changes.extend(self.let_go(held_up, share));
        Some(Verdict { cause: Cause::Straggler, share, rank: Some(slowest.rank), sentence, changes })
    }

    /// One worker is slow in each step, but not always the same.
    fn moving_straggler(&self) -> Option<Verdict> {
        let ranks: Vec<usize> = self.workers().iter().map(|r| r.rank).collect();
        let steps: Vec<Vec<RecordedStep>> = ranks.iter().map(|r| self.recorded.steady(*r)).collect();
        let count = steps.iter().map(Vec::len).min().filter(|count| ranks.len() >= 3 && *count >= 8)?;
        // The slowest of each step against the middle of them, as far as the others wait longer than it does.
        let of = |step: usize| {
            let mut all: Vec<&RecordedStep> =
                steps.iter().map(|own| &own[own.len() - count + step]).collect();
            all.sort_by(|a, b| a.compute_s.total_cmp(&b.compute_s));
            let (middle, slowest) = (all[(all.len() - 1) / 2], all.pop()?);
            let waits = median(&all.iter().map(|s| s.wait_s).collect::<Vec<_>>()) - slowest.wait_s;
            let longer = (slowest.compute_s - middle.compute_s).min(waits);
            (longer > middle.compute_s).then_some(longer)
        };
        let slow: Vec<f64> = (0..count).filter_map(of).collect();
        let lost = slow.iter().sum::<f64>() / count as f64;
        let share = lost / self.step_s;
        if slow.len() * 3 < count * 2 || share < 0.3 {
            return None;
        }
        let sentence = format!(
            "In {} of the steps one worker is a straggler, now this one, now that: it computes at least twice as long as \
             the others, which costs {} per step",
            percent(slow.len() as f64 / count as f64),
            seconds(lost)
        );
        let mut changes = vec![Change::new(
            WhatIf::NoStraggler,
            share,
            "steady compute times: look at what else runs on the workers' cores",
        )];
        changes.extend(self.let_go(true, share));
        Some(Verdict { cause: Cause::Straggler, share, rank: None, sentence, changes })
    }

    /// Not waiting for a straggler.
    fn let_go(&self, held_up: bool, share: f64) -> Option<Change> {
        let workers = self.workers().len() as f64;
        let servers = !self.recorded.servers().is_empty();
        let what = if servers {
            "let the others go on: --sync asp, ssp or dssp"
        } else {
            "let the others go on: --strategy ps with --sync asp or ssp, or gossip"
        };
        held_up.then(|| Change::new(WhatIf::LetGo, share * (workers - 1.0) / workers, what))
    }
}
