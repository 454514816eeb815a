//! How much slower ranks are that share the cores: each by itself, or all in step. Two busy cores of a virtual machine hold
//! each other up by nothing in one minute and by a tenth in another: rounds are spread, as those of messages are. While each rank
//! has a core, a pass that took much longer was disturbed by something else: medians leave it out.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use paceline_nn::Graph;
use paceline_nn::models::Model;
use paceline_registry::Registry;
use paceline_statistics::{mean, median};

use super::rounds::RoundSchedule;
use super::{Effort, Samples, Subject};
use crate::calibration::{CoreSharing, MedianEstimate};
use crate::pass::CLASSES;

/// Models whose passes of 64 samples are shorter and many times longer than a scheduler's turn.
const SHORT: &str = "mlp";
const LONG: &str = "lenet";
/// Passes of a rank that are not counted, and those that are made at least.
const WARM_UP: usize = 2;
const LEAST: usize = 6;
/// Rounds of a study's pass.
const OF_PASS: usize = 3;

/// Makes what a rank computes.
type MakeSubject<'m, 'd> = &'m (dyn Fn() -> Subject<'d> + Sync);

/// How much slower each of 1, 2, … computing ranks is, up to twice as many as there are cores.
pub(super) struct SharedCores {
    rounds: RoundSchedule,
    window: Duration,
    cores: usize,
    counts: Vec<usize>,
    short: Arc<Graph>,
    long: Arc<Graph>,
    dataset: Arc<[u8]>,
    /// Of each round, for each count.
    apart: Vec<Vec<f64>>,
    in_step: Vec<Vec<f64>>,
    in_step_long: Vec<Vec<f64>>,
}

impl SharedCores {
    /// Nothing is measured yet.
    pub(super) fn new(effort: &Effort, cores: usize, models: &Registry<Model>, dataset: &Arc<[u8]>) -> Self {
        let graph = |model: &str| {
            let model = models.find(model).expect("the registry has it");
            Arc::new(model.build(model.native_input, CLASSES).expect("a model takes its own input"))
        };
        let mut counts: Vec<usize> = (1..=cores.min(4)).chain([cores, cores + 1, 2 * cores]).collect();
        counts.sort_unstable();
        counts.dedup();
        Self {
            rounds: RoundSchedule::new(effort.sharing, effort.apart),
            window: effort.each / 2,
            cores,
            counts,
            short: graph(SHORT),
            long: graph(LONG),
            dataset: Arc::clone(dataset),
            apart: Vec::new(),
            in_step: Vec::new(),
            in_step_long: Vec::new(),
        }
    }

    /// The next round, if it is time for it.
    pub(super) fn between(&mut self) {
        if self.rounds.due() {
            self.round();
        }
    }

    /// The rounds that are left, and what came of all.
    pub(super) fn finish(mut self) -> Vec<CoreSharing> {
        while self.rounds.left() {
            self.round();
        }
        let sharing = |(i, &processes): (usize, &usize)| CoreSharing {
            processes,
            slowdown: of_count(&self.apart, i),
            in_step: Some(of_count(&self.in_step, i)),
            in_step_long: Some(of_count(&self.in_step_long, i)),
        };
        self.counts.iter().enumerate().map(sharing).collect()
    }

    fn round(&mut self) {
        let (window, cores, counts) = (self.window, self.cores, &self.counts);
        let samples = || Samples::Drawn(Arc::clone(&self.dataset));
        let short = || Subject::new(Arc::clone(&self.short), 64, 1, samples());
        let long = || Subject::new(Arc::clone(&self.long), 64, 1, samples());
        let in_step = |subject: MakeSubject<'_, '_>| {
            relative(counts, &|count| together(subject, window, count, count <= cores))
        };
        self.apart.push(relative(counts, &|count| apart(&short, window, count, count <= cores)));
        self.in_step.push(in_step(&short));
        self.in_step_long.push(in_step(&long));
        self.rounds.count();
    }
}

/// The same of one pass that so many threads compute, for as many ranks as `counts` says.
pub(super) fn of_pass(
    subject: MakeSubject<'_, '_>,
    window: Duration,
    threads: usize,
    counts: &[usize],
) -> Vec<CoreSharing> {
    if counts.iter().all(|count| *count == 1) {
        return Vec::new();
    }
    let window = window / OF_PASS as u32;
    let cores = available_parallelism().map_or(1, usize::from);
    let enough = |count: usize| count * threads <= cores;
    let round = |_| {
        let apart = relative(counts, &|count| apart(subject, window, count, enough(count)));
        (apart, relative(counts, &|count| together(subject, window, count, enough(count))))
    };
    let (apart, in_step): (Vec<_>, Vec<_>) = (0..OF_PASS).map(round).unzip();
    let sharing = |(i, &processes): (usize, &usize)| CoreSharing {
        processes,
        slowdown: of_count(&apart, i),
        in_step: Some(of_count(&in_step, i)),
        in_step_long: Some(of_count(&in_step, i)),
    };
    counts.iter().enumerate().map(sharing).collect()
}

/// What came of all rounds for one of the counts: the median, between the fastest and the slowest round.
fn of_count(rounds: &[Vec<f64>], i: usize) -> MedianEstimate {
    let of_rounds: Vec<f64> = rounds.iter().map(|round| round[i]).collect();
    MedianEstimate { median: median(&of_rounds), ..MedianEstimate::of_rounds(&of_rounds) }
}

/// The time of so many ranks, relative to that of one.
fn relative(counts: &[usize], time: &dyn Fn(usize) -> f64) -> Vec<f64> {
    let alone = time(1);
    counts.iter().map(|&count| if count == 1 { 1.0 } else { time(count) / alone }).collect()
}

/// The usual one of several times: where ranks take turns on the `cores`, few passes take much longer, and count.
fn usual(times: &[f64], cores: bool) -> f64 {
    if cores { median(times) } else { mean(times) }
}

/// The usual pass of `count` ranks that go on by themselves.
fn apart(subject: MakeSubject<'_, '_>, window: Duration, count: usize, cores: bool) -> f64 {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let rank = || {
            let (mut subject, mut all) = (subject(), Vec::new());
            while !over.load(Ordering::Relaxed) || all.len() < LEAST {
                let start = Instant::now();
                subject.run().expect("these samples were read before");
                all.push(start.elapsed().as_secs_f64());
            }
            all.split_off(WARM_UP)
        };
        let ranks: Vec<_> = (0..count).map(|_| scope.spawn(rank)).collect();
        std::thread::sleep(window);
        over.store(true, Ordering::Relaxed);
        let of = |passes: Vec<f64>| usual(&passes, cores);
        mean(
            &ranks
                .into_iter()
                .map(|rank| of(rank.join().expect("a rank does not panic")))
                .collect::<Vec<_>>(),
        )
    })
}

/// The usual time from when the first of `count` ranks begins its pass until the last has done its own, again and again. How long it
/// takes them to wait for each other does not count: that is what messages cost. `cores` says whether there are enough
/// for all.
fn together(subject: MakeSubject<'_, '_>, window: Duration, count: usize, cores: bool) -> f64 {
    let (over, line) = (AtomicBool::new(false), StartLine::new(count, cores));
    let passes: Vec<Vec<(Instant, Instant)>> = std::thread::scope(|scope| {
        let rank = || {
            let (mut subject, mut all) = (subject(), Vec::new());
            let begun = Instant::now();
            loop {
                if all.len() >= LEAST && begun.elapsed() > window {
                    over.store(true, Ordering::Relaxed);
                }
                line.wait();
                // Nobody says so between this and the next time that all wait.
                if over.load(Ordering::Relaxed) {
                    return all;
                }
                let begin = Instant::now();
                subject.run().expect("these samples were read before");
                all.push((begin, Instant::now()));
                line.wait();
            }
        };
        let ranks: Vec<_> = (0..count).map(|_| scope.spawn(rank)).collect();
        ranks.into_iter().map(|rank| rank.join().expect("a rank does not panic")).collect()
    });
    let round = |i: usize| {
        let begin = passes.iter().map(|rank| rank[i].0).min();
        let end = passes.iter().map(|rank| rank[i].1).max();
        end.zip(begin).map_or(0.0, |(end, begin)| (end - begin).as_secs_f64())
    };
    usual(&(WARM_UP..passes[0].len()).map(round).collect::<Vec<_>>(), cores)
}

/// Where ranks wait for each other: awake, so that all go on at once, where each has a core.
enum StartLine {
    Awake { count: usize, arrived: AtomicUsize },
    Asleep(Barrier),
}

impl StartLine {
    fn new(count: usize, cores: bool) -> Self {
        if cores {
            Self::Awake { count, arrived: AtomicUsize::new(0) }
        } else {
            Self::Asleep(Barrier::new(count))
        }
    }

    fn wait(&self) {
        match self {
            Self::Awake { count, arrived } => {
                let until = (arrived.fetch_add(1, Ordering::AcqRel) / count + 1) * count;
                while arrived.load(Ordering::Acquire) < until {
                    std::hint::spin_loop();
                }
            }
            Self::Asleep(barrier) => drop(barrier.wait()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disturbed_round_or_pass_counts_only_where_ranks_take_turns() {
        let rounds = [[1.0, 1.1], [1.0, 14.7], [1.0, 1.2]].map(Vec::from);
        assert_eq!(of_count(&rounds, 1), MedianEstimate { median: 1.2, low: 1.1, high: 14.7 });
        assert_eq!([usual(&[1.0, 1.0, 7.0], true), usual(&[1.0, 1.0, 7.0], false)], [1.0, 3.0]);
    }

    #[test]
    fn ranks_leave_a_start_line_when_all_have_come_and_not_before() {
        for cores in [false, true] {
            let (line, came) = (StartLine::new(3, cores), AtomicUsize::new(0));
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        for round in 1..50 {
                            came.fetch_add(1, Ordering::SeqCst);
                            line.wait();
                            assert!(came.load(Ordering::SeqCst) >= 3 * round);
                            line.wait();
                            assert!(came.load(Ordering::SeqCst) <= 3 * (round + 1));
                        }
                    });
                }
            });
        }
    }
}
