//! Dynamic stale-synchronous: a lead that is raised where the predicted wait is shorter.

use super::{BOUNDS, Consistency, ConsistencyModel, Gate, WorkerClocks};
use crate::vocabulary::{Rank, Time, WorkerLoad};

pub(super) const DSSP: ConsistencyModel = ConsistencyModel {
    name: "dssp",
    about: "ssp whose bound is raised where that shortens the predicted wait",
    detail: "Zhao et al. 2019. Up to a lead of L everybody goes on. The fastest worker beyond it is \
             granted \
             r extra steps, at most U − L: the r whose predicted end lies nearest to a predicted push of \
             the slowest, from the last push intervals of both. No new grant until its lead is L again.",
    parameters: &[&BOUNDS],
    whole_batches: false,
    make: |options, _| {
        let (lower, upper) = options.bounds(&BOUNDS);
        let gate = move |workers| Box::new(Dynamic::new(lower, upper, workers)) as Box<dyn Gate>;
        Consistency { central: true, ..Consistency::gated(gate) }
    },
};

/// DSSP: the fastest worker beyond the lower bound is granted the extra steps after which it is predicted
/// to wait least.
struct Dynamic {
    lower: u64,
    most: u64,
    paces: Vec<Pace>,
    /// Extra steps left of a grant since the lead was last within the lower bound.
    granted: Vec<Option<u64>>,
}

/// How fast a worker pushes: time at the gate does not count.
#[derive(Clone, Copy, Default)]
struct Pace {
    /// When it was let go last.
    begun: Time,
    pushed: Time,
    /// From being let go to its push; none before the first one.
    interval: Option<Time>,
}

impl Dynamic {
    fn new(lower: u64, upper: u64, workers: usize) -> Self {
        let most = upper - lower;
        Self { lower, most, paces: vec![Pace::default(); workers], granted: vec![None; workers] }
    }

    /// The extra steps with the least predicted wait; the fewest of those that are equally good.
    fn extra(&self, worker: Rank, slow: Rank) -> u64 {
        let (Pace { pushed, interval, .. }, slow) = (self.paces[worker], self.paces[slow]);
        let (Some(interval), Some(slow_interval)) = (interval, slow.interval) else { return 0 };
        let wait = |extra: u64| {
            let done = pushed + extra * interval;
            // The slowest worker's first push that is expected at or after that.
            let steps = done.saturating_sub(slow.begun).div_ceil(slow_interval.max(1)).max(1);
            (slow.begun + steps * slow_interval).saturating_sub(done)
        };
        (0..=self.most).min_by_key(|&extra| wait(extra)).unwrap_or(0)
    }
}

impl Gate for Dynamic {
    fn pushed(&mut self, now: Time, worker: Rank, _: WorkerLoad) {
        let pace = &mut self.paces[worker];
        (pace.pushed, pace.interval) = (now, Some(now - pace.begun));
    }

    fn released(&mut self, now: Time, worker: Rank) {
        self.paces[worker].begun = now;
    }

    fn open(&mut self, worker: Rank, race: &WorkerClocks) -> bool {
        if race.lead(worker) <= self.lower {
            self.granted[worker] = None;
            return true;
        }
        if self.granted[worker].is_none() && race.clocks[worker] == race.fastest() {
            let slow = race.racing().find(|&w| race.clocks[w] == race.slowest()).unwrap_or(worker);
            self.granted[worker] = Some(self.extra(worker, slow));
        }
        match &mut self.granted[worker] {
            Some(left @ 1..) => {
                *left -= 1;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ssp::Bounded;
    use super::*;

    fn race(clocks: &[u64]) -> WorkerClocks {
        WorkerClocks { clocks: clocks.to_vec(), gone: vec![false; clocks.len()] }
    }

    #[test]
    fn dssp_grants_the_extra_steps_after_which_the_wait_is_least() {
        // The fast worker needs 10 for a step, the slow one 45; its second push is due at 90.
        let mut gate = Dynamic::new(1, 6, 2);
        for now in [10, 20, 30, 40, 50] {
            gate.pushed(now, 0, WorkerLoad::default());
            gate.released(now, 0);
        }
        gate.pushed(45, 1, WorkerLoad::default());
        gate.released(45, 1);
        // After 4 extra steps it is at 90, when the slow one pushes.
        assert_eq!(gate.extra(0, 1), 4);
        let mut open = |fast, slow| gate.open(0, &race(&[fast, slow]));
        assert!(open(1, 0) && open(2, 0) && open(3, 0) && open(4, 1) && open(5, 1), "four extra steps");
        assert!(!open(6, 1) && !open(6, 2), "they are used up, whatever the lead is now");
        assert!(open(6, 5) && open(7, 5), "and again once the lead was within the lower bound");
        assert!(
            !gate.open(0, &WorkerClocks { clocks: vec![9, 2, 10], gone: vec![false; 3] })
                || gate.granted[0].is_some()
        );
    }

    #[test]
    fn the_time_that_a_worker_waits_at_the_gate_is_not_its_pace() {
        let mut gate = Dynamic::new(0, 5, 2);
        gate.pushed(10, 0, WorkerLoad::default());
        gate.released(100, 0);
        gate.pushed(110, 0, WorkerLoad::default());
        assert_eq!(gate.paces[0].interval, Some(10));
    }

    #[test]
    fn dssp_without_room_is_ssp() {
        let (mut dynamic, mut bounded) = (Dynamic::new(2, 2, 2), Bounded(2));
        for fast in 0..6 {
            dynamic.pushed(fast * 10 + 1, 0, WorkerLoad::default());
            dynamic.pushed(fast * 70 + 1, 1, WorkerLoad::default());
            let race = race(&[fast, 1]);
            assert_eq!(dynamic.open(0, &race), bounded.open(0, &race));
        }
    }
}
