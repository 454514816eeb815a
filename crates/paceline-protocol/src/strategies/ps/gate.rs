//! When a worker may start its next step: one gate per consistency model.

use crate::consistency::Sync;
use crate::vocabulary::{Load, Rank, Time};

/// Weight of the newest step in smoothed figures.
const NEWEST: f64 = 0.3;

/// Where everybody is: steps whose push is complete on this shard.
#[derive(Clone, Debug)]
pub(super) struct Race {
    pub clocks: Vec<u64>,
    /// Workers that have no more work are out of the race.
    pub gone: Vec<bool>,
}

impl Race {
    pub(super) fn new(workers: usize) -> Self {
        Self { clocks: vec![0; workers], gone: vec![false; workers] }
    }

    fn racing(&self) -> impl Iterator<Item = Rank> + '_ {
        (0..self.clocks.len()).filter(|&w| !self.gone[w])
    }

    /// The least clock.
    pub(super) fn slowest(&self) -> u64 {
        self.racing().map(|w| self.clocks[w]).min().unwrap_or(u64::MAX)
    }

    fn fastest(&self) -> u64 {
        self.racing().map(|w| self.clocks[w]).max().unwrap_or(0)
    }

    fn lead(&self, worker: Rank) -> u64 {
        self.clocks[worker].saturating_sub(self.slowest())
    }
}

/// Decides when a worker may start its next step.
pub(super) trait Gate: Send {
    /// A worker's push is complete; its clock has advanced.
    fn pushed(&mut self, _now: Time, _worker: Rank, _load: Load) {}
    /// Whether a worker may start its next step now.
    fn open(&mut self, worker: Rank, race: &Race) -> bool;
}

/// The gate of a consistency model.
pub(super) fn gate(sync: Sync, workers: usize) -> Box<dyn Gate> {
    match sync {
        Sync::Bsp | Sync::Asp | Sync::Switch { .. } => Box::new(Free),
        Sync::Ssp(bound) | Sync::Essp(bound) => Box::new(Bounded(bound)),
        Sync::Dssp { lower, upper } => Box::new(Dynamic::new(lower, upper, workers)),
        Sync::Adaptive { base, lower, upper, least_steps } => Box::new(Adaptive {
            base,
            lower,
            upper,
            least_steps,
            speeds: vec![None; workers],
            met: Vec::new(),
        }),
    }
}

/// Always open.
struct Free;

impl Gate for Free {
    fn open(&mut self, _: Rank, _: &Race) -> bool {
        true
    }
}

/// Open up to a lead.
struct Bounded(u64);

impl Gate for Bounded {
    fn open(&mut self, worker: Rank, race: &Race) -> bool {
        race.lead(worker) <= self.0
    }
}

/// DSSP: the fastest worker beyond the lower bound is granted the extra steps after which it is predicted
/// to wait least.
struct Dynamic {
    lower: u64,
    /// Extra steps at most.
    most: u64,
    /// When each worker pushed last and, the second time on, the interval before that.
    pushes: Vec<Option<(Time, Option<Time>)>>,
    /// Extra steps granted since the lead was last within the lower bound.
    granted: Vec<Option<u64>>,
}

impl Dynamic {
    fn new(lower: u64, upper: u64, workers: usize) -> Self {
        Self { lower, most: upper - lower, pushes: vec![None; workers], granted: vec![None; workers] }
    }

    /// The extra steps with the least predicted wait; the fewest of those that are equally good.
    fn extra(&self, worker: Rank, slow: Rank) -> u64 {
        let (Some((last, Some(interval))), Some((slow_last, Some(slow_interval)))) =
            (self.pushes[worker], self.pushes[slow])
        else {
            return 0;
        };
        let wait = |extra: u64| {
            let done = last + extra * interval;
            // The slowest worker's first push at or after that; one is expected after its last in any case.
            let behind = done.saturating_sub(slow_last).div_ceil(slow_interval.max(1)).max(1);
            slow_last + behind * slow_interval - done.min(slow_last + behind * slow_interval)
        };
        (0..=self.most).min_by_key(|&extra| wait(extra)).unwrap_or(0)
    }
}

impl Gate for Dynamic {
    fn pushed(&mut self, now: Time, worker: Rank, _: Load) {
        let interval = self.pushes[worker].map(|(last, _)| now - last);
        self.pushes[worker] = Some((now, interval));
    }

    fn open(&mut self, worker: Rank, race: &Race) -> bool {
        let lead = race.lead(worker);
        if lead <= self.lower {
            self.granted[worker] = None;
            return true;
        }
        if self.granted[worker].is_none() && race.clocks[worker] == race.fastest() {
            let slow = race.racing().find(|&w| race.clocks[w] == race.slowest()).unwrap_or(worker);
            self.granted[worker] = Some(self.extra(worker, slow));
        }
        self.granted[worker].is_some_and(|extra| lead <= self.lower + extra)
    }
}

/// A bound per worker that follows its speed.
struct Adaptive {
    base: u64,
    lower: u64,
    upper: u64,
    least_steps: u64,
    speeds: Vec<Option<Speed>>,
    /// Everybody's clock at the last synchronisation.
    met: Vec<u64>,
}

/// Smoothed figures of a worker.
#[derive(Clone, Copy)]
struct Speed {
    /// The fraction of a core that it gets.
    cpu: f64,
    /// CPU seconds of a step.
    work: f64,
}

impl Adaptive {
    /// Steps per second that can be expected of a worker.
    fn speed(&self, worker: Rank) -> Option<f64> {
        self.speeds[worker].map(|s| s.cpu / s.work).filter(|v| v.is_finite() && *v > 0.0)
    }

    fn bound(&self, worker: Rank, race: &Race) -> u64 {
        let slowest = race.racing().filter_map(|w| self.speed(w)).fold(f64::INFINITY, f64::min);
        let relative = self.speed(worker).map_or(1.0, |v| (v / slowest).max(1.0));
        ((self.base as f64 * relative).round() as u64).clamp(self.lower, self.upper)
    }

    /// Whether everybody has to wait for the slowest.
    fn must_meet(&mut self, race: &Race) -> bool {
        self.met.resize(race.clocks.len(), 0);
        let progress = |w: Rank| race.clocks[w] - self.met[w];
        let fast = race.racing().map(progress).max().unwrap_or(0);
        let slow = race.racing().map(progress).min().unwrap_or(0);
        if fast < self.upper.max(1) {
            return false;
        }
        if slow >= self.least_steps {
            self.met.clone_from(&race.clocks);
            return false;
        }
        true
    }
}

impl Gate for Adaptive {
    fn pushed(&mut self, _: Time, worker: Rank, load: Load) {
        let (cpu, work) = (f64::from(load.cpu), f64::from(load.cpu) * f64::from(load.step_s));
        let smooth = |old: f64, new: f64| old + NEWEST * (new - old);
        self.speeds[worker] = Some(match self.speeds[worker] {
            Some(old) => Speed { cpu: smooth(old.cpu, cpu), work: smooth(old.work, work) },
            None => Speed { cpu, work },
        });
    }

    fn open(&mut self, worker: Rank, race: &Race) -> bool {
        let lead = race.lead(worker);
        lead == 0 || !self.must_meet(race) && lead <= self.bound(worker, race)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn race(clocks: &[u64]) -> Race {
        Race { clocks: clocks.to_vec(), gone: vec![false; clocks.len()] }
    }

    #[test]
    fn dssp_grants_the_extra_steps_after_which_the_wait_is_least() {
        // The fast worker pushes every 10, the slow one every 45, its next push being due at 90.
        let mut gate = Dynamic::new(1, 6, 2);
        for now in [10, 20, 30, 40, 50] {
            gate.pushed(now, 0, Load::default());
        }
        gate.pushed(0, 1, Load::default());
        gate.pushed(45, 1, Load::default());
        // After 4 extra steps it is at 90, when the slow one pushes.
        assert_eq!(gate.extra(0, 1), 4);
        let mut open = |fast| gate.open(0, &race(&[fast, 0]));
        assert_eq!((1..8).map(&mut open).collect::<Vec<_>>(), [true, true, true, true, true, false, false]);
        // No new grant until the lead is within the lower bound again.
        assert!(!gate.open(0, &race(&[7, 1])) && gate.open(0, &race(&[7, 6])));
        assert!(!gate.open(0, &Race { clocks: vec![9, 2, 10], gone: vec![false; 3] }), "not the fastest");
    }

    #[test]
    fn dssp_without_room_is_ssp() {
        let (mut dynamic, mut bounded) = (Dynamic::new(2, 2, 2), Bounded(2));
        for fast in 0..6 {
            dynamic.pushed(fast * 10 + 1, 0, Load::default());
            dynamic.pushed(fast * 70 + 1, 1, Load::default());
            let race = race(&[fast, 1]);
            assert_eq!(dynamic.open(0, &race), bounded.open(0, &race));
        }
    }

    #[test]
    fn adaptive_bounds_follow_the_speed_and_the_slowest_is_waited_for() {
        let mut gate =
            Adaptive { base: 2, lower: 1, upper: 8, least_steps: 1, speeds: vec![None; 2], met: vec![] };
        assert_eq!(gate.bound(0, &race(&[0, 0])), 2, "nothing known: the base");
        // The same work, but worker 1 has a third of a core.
        gate.pushed(0, 0, Load { cpu: 0.9, step_s: 0.1 });
        gate.pushed(0, 1, Load { cpu: 0.3, step_s: 0.3 });
        assert_eq!((gate.bound(0, &race(&[0, 0])), gate.bound(1, &race(&[0, 0]))), (6, 2));
        assert!(gate.open(0, &race(&[6, 0])) && !gate.open(0, &race(&[7, 0])));
        gate.pushed(0, 1, Load { cpu: 0.01, step_s: 10.0 });
        assert_eq!(gate.bound(0, &race(&[0, 0])), 8, "never above the greatest");
        assert!(!gate.open(0, &race(&[8, 0])), "the slowest has made no step: everybody waits");
        assert!(gate.open(1, &race(&[8, 0])) && gate.open(0, &race(&[8, 1])));
    }
}
