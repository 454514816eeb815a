//! Which samples a step gets.
//!
//! The global batch of step t is a slice of the epoch's permutation, the same set of samples for every
//! number of workers that makes the same global batch; each worker takes its even share of the slice.
//! The tail of an epoch, and of the run, is a smaller batch.
//!
//! Where samples are not independent and identically distributed, each worker has a part of its own for the
//! whole run, and the epoch's permutation is composed from the parts so that every share falls into its
//! worker's part. The lengths of batches and shares stay what they are, so timing is comparable between
//! shardings; the set of samples of a global batch then depends on the number of workers.

use std::ops::Range;

use paceline_random::{Purpose, Stream};

use crate::sharding::{Parts, Sharding};

/// The order of a run's samples.
#[derive(Debug)]
pub struct Order {
    shuffle: Stream,
    samples: usize,
    global_batch: usize,
    total: u64,
    /// The workers' parts, unless every worker draws from the whole.
    parts: Option<Parts>,
    /// The permutations at hand and their epochs: an even and an odd one, so that looking ahead into the next
    /// epoch and back costs nothing.
    permutations: [(u64, Vec<u32>); 2],
}

impl Order {
    /// `total` samples of work over a split of `samples`, in global batches of `global_batch`.
    pub fn new(seed: u64, samples: usize, global_batch: usize, total: u64) -> Self {
        Self::of(seed, samples, global_batch, total, None)
    }

    /// `total` samples of work over the split with these labels, in global batches of `global_batch`, each
    /// worker with the samples that `sharding` gives it.
    ///
    /// [`Sharding::Iid`] is [`Order::new`]. With the others every sample belongs to one worker for the
    /// whole run. A worker's part is as large as its shares of a whole epoch, so parts differ by one sample
    /// at most where the global batch is a multiple of the workers.
    ///
    /// A run that ends inside the last step of an epoch may share that step out differently from a whole
    /// epoch. A worker that has no sample left for it repeats one of its own; one that never had any (fewer
    /// samples than workers) borrows.
    pub fn sharded(
        seed: u64,
        labels: &[u16],
        workers: usize,
        global_batch: usize,
        total: u64,
        sharding: Sharding,
    ) -> Self {
        assert!(workers > 0 && global_batch > 0, "at least one worker, and batches of at least one");
        let (full, tail) = (labels.len() / global_batch, labels.len() % global_batch);
        let capacity = |r| full * share(global_batch, r, workers).len() + share(tail, r, workers).len();
        let parts = sharding.parts(seed, labels, (0..workers).map(capacity));
        Self::of(seed, labels.len(), global_batch, total, parts)
    }

    fn of(seed: u64, samples: usize, global_batch: usize, total: u64, parts: Option<Parts>) -> Self {
        assert!(samples > 0 && global_batch > 0, "samples to train on, in batches of at least one");
        let shuffle = Stream::new(seed, Purpose::Shuffle);
        let permutations = [(0, Vec::new()), (1, Vec::new())];
        Self { shuffle, samples, global_batch, total, parts, permutations }
    }

    /// The samples of an epoch, step by step and in each step rank by rank.
    fn permutation_of(&self, epoch: u64) -> Vec<u32> {
        let shuffle = self.shuffle.fork(epoch);
        let Some(parts) = &self.parts else { return shuffle.permutation(self.samples) };
        let shuffled = parts.shuffled(shuffle);
        // Endless, for the one case where a part is too small: see `sharded`.
        let mut queues: Vec<_> =
            (0..parts.workers()).map(|r| shuffled[parts.range(r)].iter().cycle()).collect();
        let mut permutation = Vec::with_capacity(self.samples);
        let first = epoch * self.steps_per_epoch();
        for step in first..first + self.steps_per_epoch() {
            // The lengths of this run: where it ends, its last step is cut at other places than a full one.
            let len = self.batch_len(step);
            for (rank, queue) in queues.iter_mut().enumerate() {
                for slot in share(len, rank, parts.workers()) {
                    permutation.push(*queue.next().unwrap_or(&shuffled[slot]));
                }
            }
        }
        // What comes after the end of the run is never read, but has its place.
        permutation.resize(self.samples, 0);
        permutation
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

    /// The samples of worker `rank` of `workers` in step `step`. Where workers have parts of their own,
    /// `workers` must be the number that the parts were made for.
    pub fn batch(&mut self, step: u64, rank: usize, workers: usize) -> &[u32] {
        debug_assert!(
            self.parts.as_ref().is_none_or(|p| p.workers() == workers),
            "the parts are those of another number of workers than {workers}"
        );
        let epoch = step / self.steps_per_epoch();
        let (known, permutation) = &self.permutations[(epoch % 2) as usize];
        if *known != epoch || permutation.is_empty() {
            self.permutations[(epoch % 2) as usize] = (epoch, self.permutation_of(epoch));
        }
        let start = (step % self.steps_per_epoch()) as usize * self.global_batch;
        let share = share(self.batch_len(step), rank, workers);
        &self.permutations[(epoch % 2) as usize].1[start + share.start..start + share.end]
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

    fn shardings() -> impl Strategy<Value = Sharding> {
        prop_oneof![
            Just(Sharding::Iid),
            Just(Sharding::ByLabel),
            prop_oneof![Just(1e-6), Just(0.1), Just(1.0), Just(1000.0)].prop_map(Sharding::Dirichlet),
        ]
    }

    fn labels() -> impl Strategy<Value = Vec<u16>> {
        prop::collection::vec(0u16..5, 1..120)
    }

    /// Whose sample each one is, where workers have parts.
    fn owners(order: &Order) -> Option<Vec<usize>> {
        let parts = order.parts.as_ref()?;
        let mut owners = vec![usize::MAX; order.samples];
        for rank in 0..parts.workers() {
            for &i in parts.part(rank) {
                assert_eq!(owners[i as usize], usize::MAX, "sample {i} belongs to two workers");
                owners[i as usize] = rank;
            }
        }
        assert!(!owners.contains(&usize::MAX), "a sample belongs to nobody");
        Some(owners)
    }

    proptest! {
        #[test]
        fn every_sharding_sees_each_sample_once_per_epoch_in_shares_of_the_usual_length(
            labels in labels(), global in 1usize..40, workers in 1usize..9, seed in any::<u64>(), sharding in shardings(),
        ) {
            let total = labels.len() as u64 * 3;
            let mut order = Order::sharded(seed, &labels, workers, global, total, sharding);
            let mut usual = Order::new(seed, labels.len(), global, total);
            prop_assert_eq!(order.steps(), usual.steps());
            let mut seen = vec![0; labels.len()];
            let mut epochs = 0;
            for step in 0..order.steps() {
                for rank in 0..workers {
                    let ids = order.batch(step, rank, workers).to_vec();
                    prop_assert_eq!(ids.len(), usual.batch(step, rank, workers).len());
                    ids.iter().for_each(|&i| seen[i as usize] += 1);
                }
                if order.ends_epoch(step) {
                    epochs += 1;
                    prop_assert!(seen.iter().all(|&n| n == epochs));
                }
            }
            prop_assert_eq!(epochs, 3);
        }

        #[test]
        fn a_worker_only_ever_sees_its_own_part_wherever_the_run_ends(
            labels in labels(), global in 1usize..40, workers in 1usize..9, seed in any::<u64>(), sharding in shardings(),
            epochs in 0.0f64..3.5,
        ) {
            let total = (epochs * labels.len() as f64) as u64;
            let mut order = Order::sharded(seed, &labels, workers, global, total, sharding);
            if let Some(owners) = owners(&order) {
                for step in 0..order.steps() {
                    for rank in 0..workers {
                        let has_part = owners.contains(&rank);
                        let ids = order.batch(step, rank, workers);
                        prop_assert!(!has_part || ids.iter().all(|&i| owners[i as usize] == rank));
                        prop_assert!(has_part || ids.is_empty() || step + 1 == order.steps());
                    }
                }
            }
        }

        #[test]
        fn where_a_run_ends_changes_nothing_before_its_last_step(
            labels in labels(), global in 1usize..40, workers in 1usize..9, seed in any::<u64>(), sharding in shardings(),
            epochs in 0.0f64..2.0,
        ) {
            let total = (epochs * labels.len() as f64) as u64;
            let mut short = Order::sharded(seed, &labels, workers, global, total, sharding);
            let mut long = Order::sharded(seed, &labels, workers, global, labels.len() as u64 * 3, sharding);
            for step in 0..short.steps().saturating_sub(1) {
                for rank in 0..workers {
                    prop_assert_eq!(short.batch(step, rank, workers), long.batch(step, rank, workers));
                }
            }
            prop_assert!(short.batch(short.steps(), 0, workers).is_empty());
        }

        #[test]
        fn the_parts_of_whole_batches_differ_by_one_sample_at_most(
            labels in labels(), batch in 1usize..10, workers in 1usize..9, seed in any::<u64>(), sharding in shardings(),
        ) {
            let order = Order::sharded(seed, &labels, workers, batch * workers, 0, sharding);
            if let Some(parts) = &order.parts {
                let lens = || (0..workers).map(|r| parts.part(r).len());
                prop_assert!(lens().max().unwrap() - lens().min().unwrap() <= 1);
            }
        }

        #[test]
        fn iid_is_the_order_without_parts(
            labels in labels(), global in 1usize..40, workers in 1usize..9, seed in any::<u64>(), total in 0u64..300,
        ) {
            let mut sharded = Order::sharded(seed, &labels, workers, global, total, Sharding::Iid);
            let mut plain = Order::new(seed, labels.len(), global, total);
            prop_assert_eq!(sharded.steps(), plain.steps());
            for step in 0..plain.steps() {
                for rank in 0..workers {
                    prop_assert_eq!(sharded.batch(step, rank, workers), plain.batch(step, rank, workers));
                }
            }
        }

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

    /// The batches of worker 0, for two epochs of 100 samples.
    fn batches(seed: u64, sharding: Sharding) -> Vec<Vec<u32>> {
        let labels: Vec<u16> = (0..100).map(|i| i % 5).collect();
        let mut order = Order::sharded(seed, &labels, 4, 20, 200, sharding);
        (0..order.steps()).map(|step| order.batch(step, 0, 4).to_vec()).collect()
    }

    #[test]
    fn a_seed_determines_the_order_and_epochs_shuffle_a_part_differently() {
        for sharding in [Sharding::Iid, Sharding::ByLabel, Sharding::Dirichlet(0.5)] {
            assert_eq!(batches(1, sharding), batches(1, sharding), "{sharding}");
            assert_ne!(batches(1, sharding), batches(2, sharding), "{sharding}");
            let both = batches(1, sharding);
            let (first, second) = both.split_at(both.len() / 2);
            assert_ne!(first, second, "{sharding}");
        }
    }

    #[test]
    fn a_step_is_the_same_whatever_was_asked_before() {
        let labels: Vec<u16> = (0..100).map(|i| i % 5).collect();
        let mut jumping = Order::sharded(1, &labels, 4, 20, 200, Sharding::ByLabel);
        let in_order = batches(1, Sharding::ByLabel);
        for step in [7, 0, 9, 3, 7] {
            assert_eq!(jumping.batch(step, 0, 4), in_order[step as usize]);
        }
    }

    #[test]
    fn a_worker_whose_part_is_used_up_repeats_its_own_where_the_run_ends_early() {
        // Of the whole tail of three, rank 2 of five gets nothing; of a tail of two, it gets one.
        let labels = [0u16; 8];
        assert_eq!((share(3, 2, 5).len(), share(2, 2, 5).len()), (0, 1));
        let mut order = Order::sharded(1, &labels, 5, 5, 7, Sharding::ByLabel);
        let first = order.batch(0, 2, 5).to_vec();
        assert_eq!(order.batch(1, 2, 5), first);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "another number of workers")]
    fn parts_refuse_another_number_of_workers() {
        Order::sharded(1, &[0, 1, 2, 3], 2, 2, 4, Sharding::ByLabel).batch(0, 0, 1);
    }
}
