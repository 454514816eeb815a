//! When a worker may start its next step: one gate per consistency model.

use crate::consistency::Consistency;
use crate::vocabulary::{Load, Rank, Time};

/// Weight of the newest step in smoothed figures.
const NEWEST: f64 = 0.3;

/// Where everybody is: steps whose push has come to this shard.
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
    /// A worker was let go: its next step begins.
    fn released(&mut self, _now: Time, _worker: Rank) {}
    /// Whether a worker may start its next step now; if so it is let go.
    fn open(&mut self, worker: Rank, race: &Race) -> bool;
}

/// The gate of a consistency model.
pub(super) fn gate(sync: Consistency, workers: usize) -> Box<dyn Gate> {
    match sync {
        Consistency::Bsp | Consistency::Asp | Consistency::Switch { .. } => Box::new(Free),
        Consistency::Ssp(bound) | Consistency::Essp(bound) => Box::new(Bounded(bound)),
        Consistency::Dssp { lower, upper } => Box::new(Dynamic::new(lower, upper, workers)),
        Consistency::Adaptive { base, lower, upper, least_steps } => Box::new(Adaptive {
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
    paces: Vec<Pace>,
    /// Extra steps left of a grant since the lead was last within the lower bound.
    granted: Vec<Option<u64>>,
}

/// How fast a worker pushes: time at the gate does not count.
#[derive(Clone, Copy, Default)]
struct Pace {
    /// When it was let go last.
    begun: Time,
    /// When it pushed last.
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
    fn pushed(&mut self, now: Time, worker: Rank, _: Load) {
        let pace = &mut self.paces[worker];
        (pace.pushed, pace.interval) = (now, Some(now - pace.begun));
    }

    fn released(&mut self, now: Time, worker: Rank) {
        self.paces[worker].begun = now;
    }

    fn open(&mut self, worker: Rank, race: &Race) -> bool {
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
        // The fast worker needs 10 for a step, the slow one 45; its second push is due at 90.
        let mut gate = Dynamic::new(1, 6, 2);
        for now in [10, 20, 30, 40, 50] {
            gate.pushed(now, 0, Load::default());
            gate.released(now, 0);
        }
        gate.pushed(45, 1, Load::default());
        gate.released(45, 1);
        // After 4 extra steps it is at 90, when the slow one pushes.
        assert_eq!(gate.extra(0, 1), 4);
        let mut open = |fast, slow| gate.open(0, &race(&[fast, slow]));
        assert!(open(1, 0) && open(2, 0) && open(3, 0) && open(4, 1) && open(5, 1), "four extra steps");
        assert!(!open(6, 1) && !open(6, 2), "they are used up, whatever the lead is now");
        assert!(open(6, 5) && open(7, 5), "and again once the lead was within the lower bound");
        assert!(
            !gate.open(0, &Race { clocks: vec![9, 2, 10], gone: vec![false; 3] })
                || gate.granted[0].is_some()
        );
    }

    #[test]
    fn the_time_that_a_worker_waits_at_the_gate_is_not_its_pace() {
        let mut gate = Dynamic::new(0, 5, 2);
        gate.pushed(10, 0, Load::default());
        gate.released(100, 0);
        gate.pushed(110, 0, Load::default());
        assert_eq!(gate.paces[0].interval, Some(10));
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
