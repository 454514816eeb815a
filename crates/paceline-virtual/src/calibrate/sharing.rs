//! How much slower ranks are that share the cores: each by itself, or all in step.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use paceline_nn::models::Model;
use paceline_registry::Registry;
use paceline_statistics::mean;

use super::{Effort, Samples, Subject};
use crate::calibration::{CoreSharing, MedianEstimate};
use crate::pass::CLASSES;

/// Models whose passes of 64 samples are shorter and many times longer than a scheduler's turn.
const SHORT: &str = "mlp";
const LONG: &str = "lenet";
/// Passes of a rank that are not counted, and those that are made at least.
const WARM_UP: usize = 2;
const LEAST: usize = 6;

/// Makes what a rank computes.
type MakeSubject<'m, 'd> = &'m (dyn Fn() -> Subject<'d> + Sync);

/// How much slower each of 1, 2, … computing ranks is, up to twice as many as there are cores.
pub(super) fn sharing(
    effort: &Effort,
    cores: usize,
    models: &Registry<Model>,
    dataset: &Arc<[u8]>,
) -> Vec<CoreSharing> {
    let subject = |model: &str| {
        let model = models.find(model).expect("the registry has it");
        let graph = Arc::new(model.build(model.native_input, CLASSES).expect("a model takes its own input"));
        Subject::new(graph, 64, 1, Samples::Drawn(Arc::clone(dataset)))
    };
    let mut counts: Vec<usize> = (1..=cores.min(4)).chain([cores, cores + 1, 2 * cores]).collect();
    counts.sort_unstable();
    counts.dedup();
    let window = 2 * effort.each;
    let apart = relative(&counts, &|count| apart(&|| subject(SHORT), window, count));
    let [short, long] =
        [SHORT, LONG].map(|model| relative(&counts, &|count| together(&|| subject(model), window, count)));
    let sharing = |(i, &processes): (usize, &usize)| CoreSharing {
        processes,
        slowdown: apart[i],
        in_step: Some(short[i]),
        in_step_long: Some(long[i]),
    };
    counts.iter().enumerate().map(sharing).collect()
}

/// The same of one pass, for as many ranks as `counts` says.
pub(super) fn of_pass(subject: MakeSubject<'_, '_>, window: Duration, counts: &[usize]) -> Vec<CoreSharing> {
    if counts.iter().all(|count| *count == 1) {
        return Vec::new();
    }
    let apart = relative(counts, &|count| apart(subject, window, count));
    let together = relative(counts, &|count| together(subject, window, count));
    let sharing = |(i, &processes): (usize, &usize)| CoreSharing {
        processes,
        slowdown: apart[i],
        in_step: Some(together[i]),
        in_step_long: Some(together[i]),
    };
    counts.iter().enumerate().map(sharing).collect()
}

/// Times of so many ranks, relative to those of one.
fn relative(counts: &[usize], times: &dyn Fn(usize) -> Vec<f64>) -> Vec<MedianEstimate> {
    let alone = MedianEstimate::mean(&times(1)).median;
    let relative = |count: &usize| match count {
        1 => MedianEstimate::round(1.0),
        _ => MedianEstimate::mean(&times(*count)).times(1.0 / alone),
    };
    counts.iter().map(relative).collect()
}

/// The mean pass of each of `count` ranks that go on by themselves.
fn apart(subject: MakeSubject<'_, '_>, window: Duration, count: usize) -> Vec<f64> {
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
        // Means: where ranks take turns, few passes take much longer.
        ranks.into_iter().map(|rank| mean(&rank.join().expect("a rank does not panic"))).collect()
    })
}

/// Times until the last of `count` ranks that begin together has done its pass, again and again.
fn together(subject: MakeSubject<'_, '_>, window: Duration, count: usize) -> Vec<f64> {
    let (over, barrier) = (AtomicBool::new(false), Barrier::new(count));
    std::thread::scope(|scope| {
        let rank = || {
            let (mut subject, mut all) = (subject(), Vec::new());
            let begun = Instant::now();
            let mut last = begun;
            loop {
                if all.len() >= LEAST && begun.elapsed() > window {
                    over.store(true, Ordering::Relaxed);
                }
                barrier.wait();
                // Nobody says so between this and the next time that all wait.
                if over.load(Ordering::Relaxed) {
                    return all;
                }
                subject.run().expect("these samples were read before");
                barrier.wait();
                // From end to end: this rank may not be the first to begin.
                let end = Instant::now();
                all.push((end - std::mem::replace(&mut last, end)).as_secs_f64());
            }
        };
        let ranks: Vec<_> = (0..count).map(|_| scope.spawn(rank)).collect();
        let mut all = ranks.into_iter().map(|rank| rank.join().expect("a rank does not panic"));
        all.next().unwrap_or_default().split_off(WARM_UP)
    })
}
