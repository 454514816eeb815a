//! How much slower ranks are that share the cores: each by itself, or all in step.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Instant;

use paceline_nn::models::Model;
use paceline_registry::Registry;
use paceline_statistics::mean;

use super::{CLASSES, Effort, Subject};
use crate::calibration::{CoreSharing, MedianEstimate};

/// Models whose passes of 64 samples are shorter and many times longer than a scheduler's turn.
const SHORT: &str = "mlp";
const LONG: &str = "lenet";

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
        Subject::new(graph, 64, 1, dataset)
    };
    let mut counts: Vec<usize> = (1..=cores.min(4)).chain([cores, cores + 1, 2 * cores]).collect();
    counts.sort_unstable();
    counts.dedup();
    let apart = |count: usize| -> Vec<f64> {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..count)
                .map(|_| {
                    scope.spawn(|| {
                        let (mut subject, mut all) = (subject(SHORT), Vec::new());
                        while !over.load(Ordering::Relaxed) || all.len() < 6 {
                            let start = Instant::now();
                            subject.run();
                            all.push(start.elapsed().as_secs_f64());
                        }
                        all.split_off(2)
                    })
                })
                .collect();
            std::thread::sleep(2 * effort.each);
            over.store(true, Ordering::Relaxed);
            // Means: where ranks take turns, few passes take much longer.
            ranks.into_iter().map(|rank| mean(&rank.join().expect("a rank does not panic"))).collect()
        })
    };
    // Until the last of all has done its pass, again and again.
    let together = |model: &str, count: usize| -> Vec<f64> {
        let (over, barrier) = (AtomicBool::new(false), Barrier::new(count));
        std::thread::scope(|scope| {
            let rank = || {
                let (mut subject, mut all) = (subject(model), Vec::new());
                let begun = Instant::now();
                let mut last = begun;
                loop {
                    if all.len() >= 6 && begun.elapsed() > 2 * effort.each {
                        over.store(true, Ordering::Relaxed);
                    }
                    barrier.wait();
                    // Nobody says so between this and the next time that all wait.
                    if over.load(Ordering::Relaxed) {
                        return all;
                    }
                    subject.run();
                    barrier.wait();
                    // From end to end: this rank may not be the first to begin.
                    let end = Instant::now();
                    all.push((end - std::mem::replace(&mut last, end)).as_secs_f64());
                }
            };
            let ranks: Vec<_> = (0..count).map(|_| scope.spawn(rank)).collect();
            let mut all = ranks.into_iter().map(|rank| rank.join().expect("a rank does not panic"));
            all.next().unwrap_or_default().split_off(2)
        })
    };
    let relative = |times: &dyn Fn(usize) -> Vec<f64>| -> Vec<MedianEstimate> {
        let alone = MedianEstimate::mean(&times(1)).median;
        let relative = |count: &usize| match count {
            1 => MedianEstimate::round(1.0),
            _ => MedianEstimate::mean(&times(*count)).times(1.0 / alone),
        };
        counts.iter().map(relative).collect()
    };
    let apart = relative(&apart);
    let [short, long] = [SHORT, LONG].map(|model| relative(&|count| together(model, count)));
    let sharing = |(i, &processes): (usize, &usize)| CoreSharing {
        processes,
        slowdown: apart[i],
        in_step: Some(short[i]),
        in_step_long: Some(long[i]),
    };
    counts.iter().enumerate().map(sharing).collect()
}
