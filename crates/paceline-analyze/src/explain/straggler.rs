//! Workers that hold the others up.

use paceline_statistics::median;

use super::advice::Change;
use super::links::{machine, quantile};
use super::sentence::{Part, Sentence, count, name, percent, plain, seconds};
use super::verdict::{Case, Cause, Verdict};
use super::{RankTimes, RecordedStep, WhatIf};

/// A worker whose faster steps take so many times those of the others is a straggler,
const SLOWER: f64 = 1.4;
/// if its usual steps take longer as well.
const USUALLY_SLOWER: f64 = 1.1;

/// Workers that are slower than the others.
#[derive(Clone, Debug)]
pub struct SlowGroup {
    /// The slower ones.
    pub ranks: Vec<usize>,
    /// Seconds that the others compute per step.
    pub usual_s: f64,
}

/// A kind of hosts is slower than the others from so many times on.
const SLOWER_KIND: f64 = 1.25;

/// What alike hosts are called: `spot-3` and `spot-12` are both `spot`.
fn kind(host: &str) -> &str {
    let kind = machine(host).trim_end_matches(|c: char| c.is_ascii_digit() || "-_.".contains(c));
    if kind.is_empty() { machine(host) } else { kind }
}

type Timed<'a> = (f64, &'a RankTimes);

/// Workers by their hosts: all others, and those of the kind that is slowest, if it is slower than all others.
fn slow_kind<'a>(sorted: &[Timed<'a>]) -> Option<(Vec<Timed<'a>>, Vec<Timed<'a>>)> {
    let middle = |of: &[Timed<'_>]| median(&of.iter().map(|(time, _)| *time).collect::<Vec<_>>());
    let slowest = kind(&sorted.last()?.1.host);
    let (slow, others): (Vec<_>, Vec<_>) = sorted.iter().partition(|(_, r)| kind(&r.host) == slowest);
    let limit = if slow.len() == 1 { SLOWER } else { SLOWER_KIND };
    let apart = !others.is_empty() && middle(&slow) > limit * middle(&others);
    apart.then_some((others, slow))
}

/// The one kind of hosts that all of them are on, if the others are not.
fn own_kind<'a>(slow: &[(f64, &'a RankTimes)], others: &[(f64, &RankTimes)]) -> Option<&'a str> {
    let first = kind(&slow.first()?.1.host);
    let all = slow.iter().all(|(_, r)| kind(&r.host) == first);
    (all && others.iter().all(|(_, r)| kind(&r.host) != first)).then_some(first)
}

/// What a worker computes: samples that come late are a cause of their own, and so are cores that ranks are short of.
fn own_pass(step: &RecordedStep, short_of_cores: bool) -> f64 {
    let core_wait = step.core_wait_s.filter(|_| short_of_cores).unwrap_or(0.0);
    (step.compute_s - step.data_s - core_wait).max(0.0)
}

impl Case<'_> {
    /// Whether ranks of a real run are in each other's way.
    fn short_of_cores(&self) -> bool {
        !self.recorded.simulated && self.crowded()
    }

    /// Workers, one or several, that compute longer than the others.
    pub fn straggler(&self) -> Option<Verdict> {
        let workers = self.workers();
        if workers.len() < 2 {
            return None;
        }
        let short = self.short_of_cores();
        // By their faster steps, which others who use the same cores now and then leave alone.
        let swift = |rank: usize| {
            let steps = self.recorded.steady(rank);
            quantile(steps.iter().map(|s| own_pass(s, short)).collect(), 0.1).unwrap_or(0.0)
        };
        let mut sorted: Vec<(f64, &RankTimes)> = workers.iter().map(|r| (swift(r.rank), *r)).collect();
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (others, slow) = match slow_kind(&sorted) {
            Some(groups) => groups,
            None => {
                // The widest gap between those who compute faster and those who compute slower, half of them at most.
                let gap = |i: usize| sorted[i].0 / sorted[i - 1].0.max(1e-12);
                let half = sorted.len().div_ceil(2)..sorted.len();
                let at = half.max_by(|a, b| gap(*a).total_cmp(&gap(*b)))?;
                if gap(at) < SLOWER {
                    return self.moving_straggler();
                }
                let (others, slow) = sorted.split_at(at);
                (others.to_vec(), slow.to_vec())
            }
        };
        let (others, slow) = (others.as_slice(), slow.as_slice());
        let &(swiftest, slowest) = slow.last()?;
        let swift_usual = median(&others.iter().map(|(swift, _)| *swift).collect::<Vec<_>>());
        let own = |r: &RankTimes| {
            let pass = if short { r.on_core_s() } else { r.compute_s };
            (pass - r.data_s).max(0.0)
        };
        let usual = median(&others.iter().map(|(_, r)| own(r)).collect::<Vec<_>>());
        if own(slowest) < USUALLY_SLOWER * usual {
            return self.moving_straggler();
        }
        let mean = |rank: usize, of: fn(&RecordedStep) -> f64| {
            let steps = self.recorded.steady(rank);
            steps.iter().map(of).sum::<f64>() / steps.len().max(1) as f64
        };
        let of_others =
            |of: &dyn Fn(&RankTimes) -> f64| median(&others.iter().map(|(_, r)| of(r)).collect::<Vec<_>>());
        // If nobody is held up by them, they cost only their own share of the work.
        let duration = |r: &RankTimes| mean(r.rank, RecordedStep::duration_s).max(1e-12);
        let held_up = of_others(&duration) > 0.8 * duration(slowest);
        let share = if held_up {
            // What the others wait longer than it does: a straggler itself has nobody to wait for.
            let longer = |of: &dyn Fn(&RankTimes) -> f64| of_others(of) - of(slowest);
            let longer = longer(&|r| r.wait_s).max(longer(&|r| mean(r.rank, |s| s.wait_s)));
            (own(slowest) - usual).max(swiftest - swift_usual).min(longer).max(0.0) / duration(slowest)
        } else {
            let rate = |r: &RankTimes| 1.0 / duration(r);
            let all: f64 = workers.iter().map(|r| rate(r)).sum();
            let most = workers.iter().map(|r| rate(r)).fold(0.0, f64::max);
            let slower: f64 = slow.iter().map(|(_, r)| rate(r)).sum();
            1.0 - all / (all - slower + slow.len() as f64 * most)
        };
        let times = swiftest / swift_usual.max(1e-12);
        let group = self.group(slow, others);
        let numbers = [
            plain("slow_times", times),
            seconds("slow_compute_s", swiftest),
            seconds("usual_compute_s", swift_usual),
            Part::Words(if held_up { "the others wait" } else { "the others go on" }),
        ];
        let [times_part, slow_part, usual_part, effect] = numbers;
        let mut slow_ranks: Vec<usize> = slow.iter().map(|(_, r)| r.rank).collect();
        slow_ranks.sort_unstable();
        let slow_group = SlowGroup { ranks: slow_ranks, usual_s: usual };
        // Who has more samples is no slower machine.
        let samples = slowest.samples / of_others(&|r| r.samples).max(1e-12);
        let uneven = samples > USUALLY_SLOWER && times / samples < SLOWER;
        let (cause, sentence, what) = if uneven {
            let sentence = Sentence::new(
                "Work is uneven: {} more samples per step than the others ({} times as many) and compute {} times as \
                 long ({} against {}), and {}",
                [group.has, plain("samples_times", samples), times_part, slow_part, usual_part, effect],
            );
            (Cause::Imbalance, sentence, Sentence::new("as many samples for every worker", []))
        } else if slow.len() == 1 {
            let sentence = Sentence::new(
                "{} is a straggler: it computes {} times as long per step as the others ({} against {}), and {} for it",
                [group.name, times_part, slow_part, usual_part, effect],
            );
            let what = Sentence::new(
                "free or replace rank {} (look at what else runs on {})",
                [count("slow_rank", slowest.rank), name(&slowest.host)],
            );
            (Cause::Straggler, sentence, what)
        } else {
            let sentence = Sentence::new(
                "{} are stragglers: they compute up to {} times as long per step as the others ({} against {}), and {}",
                [group.name, times_part, slow_part, usual_part, effect],
            );
            let template = if held_up {
                "free or replace all {} (replacing one of them does not help: the others would be waited for)"
            } else {
                "free or replace all {}"
            };
            let what = Sentence::new(template, [group.all]);
            (Cause::Straggler, sentence, what)
        };
        let what_if = if uneven { WhatIf::EvenShares } else { WhatIf::NoStraggler };
        let mut changes = vec![Change::new(what_if, share, what)];
        if held_up {
            let gain = share * (workers.len() - slow.len()) as f64 / workers.len() as f64;
            changes.extend(self.change(WhatIf::LetGo, gain));
        }
        let rank = (slow.len() == 1).then_some(slowest.rank);
        let ranks = slow_group.ranks.clone();
        let verdict = Verdict::of(cause, share, sentence, changes);
        Some(Verdict { rank, ranks, slow: Some(slow_group), ..verdict })
    }

    /// What the slower ones are called: at the beginning of a sentence, as those who have something, and all of them.
    fn group(&self, slow: &[(f64, &RankTimes)], others: &[(f64, &RankTimes)]) -> GroupNames {
        let number = slow.len();
        if let ([(_, only)], _) = (slow, others) {
            let rank = || count("slow_rank", only.rank);
            return GroupNames {
                name: Part::Sentence(Sentence::new("Worker {} on {}", [rank(), name(&only.host)])),
                has: Part::Sentence(Sentence::new("worker {} has", [rank()])),
                all: Part::Sentence(Sentence::new("of rank {}", [rank()])),
            };
        }
        let ranks = || count("slow_ranks", number);
        match own_kind(slow, others) {
            Some(host) => GroupNames {
                name: Part::Sentence(Sentence::new("The {} workers on {}", [ranks(), name(host)])),
                has: Part::Sentence(Sentence::new("{} workers on {} have", [ranks(), name(host)])),
                all: Part::Sentence(Sentence::new("{} workers on {}", [ranks(), name(host)])),
            },
            None => {
                let of = || count("workers", self.workers().len());
                let list = Sentence::new(" (ranks {})", [Part::Sentence(listed(slow))]);
                GroupNames {
                    name: Part::Sentence(Sentence::new(
                        "{} of {} workers{}",
                        [ranks(), of(), Part::Sentence(list)],
                    )),
                    has: Part::Sentence(Sentence::new("{} of {} workers have", [ranks(), of()])),
                    all: Part::Sentence(Sentence::new(
                        "{} (ranks {})",
                        [ranks(), Part::Sentence(listed(slow))],
                    )),
                }
            }
        }
    }

    /// One worker is slow in each step, but not always the same.
    fn moving_straggler(&self) -> Option<Verdict> {
        let ranks: Vec<usize> = self.workers().iter().map(|r| r.rank).collect();
        let steps: Vec<Vec<RecordedStep>> = ranks.iter().map(|r| self.recorded.steady(*r)).collect();
        let count = steps.iter().map(Vec::len).min().filter(|count| ranks.len() >= 3 && *count >= 8)?;
        let short = self.short_of_cores();
        // The slowest of each step against the middle of them, as far as the others wait longer than it does.
        let of = |step: usize| {
            let mut all: Vec<&RecordedStep> =
                steps.iter().map(|own| &own[own.len() - count + step]).collect();
            all.sort_by(|a, b| own_pass(a, short).total_cmp(&own_pass(b, short)));
            let (middle, slowest) = (all[(all.len() - 1) / 2], all.pop()?);
            let waits = median(&all.iter().map(|s| s.wait_s).collect::<Vec<_>>()) - slowest.wait_s;
            let middle = own_pass(middle, short);
            let longer = (own_pass(slowest, short) - middle).min(waits);
            (longer > middle).then_some(longer)
        };
        let slow: Vec<f64> = (0..count).filter_map(of).collect();
        let lost = slow.iter().sum::<f64>() / count as f64;
        let share = lost / self.step_s;
        if slow.len() * 3 < count * 2 || share < 0.3 {
            return None;
        }
        let sentence = Sentence::new(
            "In {} of the steps one worker is a straggler, now this one, now that: it computes at least twice as long as \
             the others, which costs {} per step",
            [percent("slow_steps_share", slow.len() as f64 / count as f64), seconds("slow_cost_s", lost)],
        );
        let steady = Sentence::new("steady compute times: look at what else runs on the workers' cores", []);
        let mut changes = vec![Change::new(WhatIf::NoStraggler, share, steady)];
        let workers = ranks.len() as f64;
        changes.extend(self.change(WhatIf::LetGo, share * (workers - 1.0) / workers));
        Some(Verdict::of(Cause::Straggler, share, sentence, changes))
    }
}

struct GroupNames {
    name: Part,
    has: Part,
    all: Part,
}

/// Up to four ranks by their numbers.
fn listed(slow: &[(f64, &RankTimes)]) -> Sentence {
    let mut ranks: Vec<usize> = slow.iter().map(|(_, r)| r.rank).collect();
    ranks.sort_unstable();
    let mut all = Sentence::default();
    for (i, rank) in ranks.iter().take(4).enumerate() {
        let template = if i == 0 { "{}" } else { ", {}" };
        all = all.then(Sentence::new(template, [count(format!("slow_rank_{i}"), *rank)]));
    }
    if ranks.len() > 4 { all.then(Sentence::new(" and more", [])) } else { all }
}
