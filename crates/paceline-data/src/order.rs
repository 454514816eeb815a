//! Which samples a step gets.
//!
//! The global batch of step t is a slice of the epoch's permutation, the same set of samples for every
//! number of workers that makes the same global batch; each worker takes its even share of the slice.
//! The tail of an epoch, and of the run, is a smaller batch.

use std::ops::Range;

use paceline_random::{Purpose, Stream};

/// The order of a run's samples.
#[derive(Debug)]
pub struct Order {
    shuffle: Stream,
    samples: usize,
    global_batch: usize,
    total: u64,
    /// The permutation at hand, and its epoch.
    permutation: Vec<u32>,
    epoch: u64,
}

impl Order {
    /// `total` samples of work over a split of `samples`, in global batches of `global_batch`.
    pub fn new(seed: u64, samples: usize, global_batch: usize, total: u64) -> Self {
        assert!(samples > 0 && global_batch > 0, "samples to train on, in batches of at least one");
        let shuffle = Stream::new(seed, Purpose::Shuffle);
        Self {
            shuffle,
            samples,
            global_batch,
            total,
            permutation: shuffle.fork(0).permutation(samples),
            epoch: 0,
        }
    }

    fn steps_per_epoch(&self) -> u64 {
        self.samples.div_ceil(self.global_batch) as u64
    }

    /// Number of steps of the whole run.
    pub fn steps(&self) -> u64 {
        let (epochs, rest) = (self.total / self.samples as u64, self.total % self.samples as u64);
        epochs * self.steps_per_epoch() + rest.div_ceil(self.global_batch as u64)
    }

    /// Samples that come before step `step`.
    pub fn samples_before(&self, step: u64) -> u64 {
        let (epoch, k) = (step / self.steps_per_epoch(), step % self.steps_per_epoch());
        (epoch * self.samples as u64 + k * self.global_batch as u64).min(self.total)
    }

    /// Samples of the global batch of step `step`.
    pub fn batch_len(&self, step: u64) -> usize {
        (self.samples_before(step + 1) - self.samples_before(step)) as usize
    }

    /// Whether `step` is the last one of an epoch (or of the run).
    pub fn ends_epoch(&self, step: u64) -> bool {
        (step + 1).is_multiple_of(self.steps_per_epoch()) || step + 1 == self.steps()
    }

    /// Epochs that come before step `step`, as a fraction.
    pub fn epochs_before(&self, step: u64) -> f64 {
        self.samples_before(step) as f64 / self.samples as f64
    }

    /// The samples of worker `rank` of `workers` in step `step`.
    pub fn batch(&mut self, step: u64, rank: usize, workers: usize) -> &[u32] {
        let epoch = step / self.steps_per_epoch();
        if epoch != self.epoch {
            self.permutation = self.shuffle.fork(epoch).permutation(self.samples);
            self.epoch = epoch;
        }
        let start = (step % self.steps_per_epoch()) as usize * self.global_batch;
        let share = share(self.batch_len(step), rank, workers);
        &self.permutation[start + share.start..start + share.end]
    }
}

/// The part of a global batch of `len` samples that worker `rank` of `workers` takes: sizes differ by
/// one at most, and a worker may be left without.
pub fn share(len: usize, rank: usize, workers: usize) -> Range<usize> {
    len * rank / workers..len * (rank + 1) / workers
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn workers_together_see_the_global_batch_and_an_epoch_sees_each_sample_once(
            samples in 1usize..200, batch in 1usize..40, workers in 1usize..9, epochs in 1u64..4, seed in any::<u64>(),
        ) {
            let total = samples as u64 * epochs;
            let mut alone = Order::new(seed, samples, batch * workers, total);
            let mut together = Order::new(seed, samples, batch * workers, total);
            let mut seen = vec![0u64; samples];
            for step in 0..alone.steps() {
                let whole = alone.batch(step, 0, 1).to_vec();
                let mut parts = Vec::new();
                for rank in 0..workers {
                    let part = together.batch(step, rank, workers);
                    prop_assert!(part.len() <= batch);
                    parts.extend_from_slice(part);
                }
                prop_assert_eq!(&whole, &parts);
                prop_assert_eq!(whole.len(), alone.batch_len(step));
                whole.iter().for_each(|&i| seen[i as usize] += 1);
            }
            prop_assert!(seen.iter().all(|&n| n == epochs));
        }

        #[test]
        fn the_work_is_exactly_the_samples_asked_for(
            samples in 1usize..50, global in 1usize..60, total in 0u64..500,
        ) {
            let order = Order::new(1, samples, global, total);
            prop_assert_eq!((0..order.steps()).map(|s| order.batch_len(s) as u64).sum::<u64>(), total);
            prop_assert!((0..order.steps()).all(|s| order.batch_len(s) > 0));
        }
    }

    #[test]
    fn epochs_are_shuffled_differently_and_a_tail_ends_them() {
        let mut order = Order::new(1, 10, 4, 20);
        assert_eq!(order.steps(), 6);
        assert_eq!((0..6).map(|s| order.batch_len(s)).collect::<Vec<_>>(), [4, 4, 2, 4, 4, 2]);
        assert_eq!((0..6).filter(|&s| order.ends_epoch(s)).collect::<Vec<_>>(), [2, 5]);
        assert_ne!(order.batch(0, 0, 1).to_vec(), order.batch(3, 0, 1).to_vec());
    }
}
