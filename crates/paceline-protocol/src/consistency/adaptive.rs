//! A lead per worker that follows its speed.

use super::{BOUNDS, Consistency, ConsistencyModel, Gate, STALENESS, WorkerClocks};
use crate::options::{Kind, Parameter};
use crate::vocabulary::{Rank, Time, WorkerLoad};

/// Weight of the newest step in smoothed figures.
const NEWEST: f64 = 0.3;

const LEAST_STEPS: Parameter = Parameter {
    name: "least-steps",
    about: "steps that the slowest worker makes between two synchronisations, at least",
    default: "1",
    kind: Kind::Count { least: 0 },
};

pub(super) const ADAPTIVE: ConsistencyModel = ConsistencyModel {
    name: "adaptive",
    about: "ssp with a bound per worker that follows its speed",
    detail: "Zhang et al. 2018; the full text was not found, this is our reading. A worker's speed is \
             its \
             share of a core divided by the CPU seconds of its steps, both smoothed; its bound is --staleness times its speed relative to the slowest, between L and U. When the fastest has made U steps \
             since the last synchronisation and the slowest fewer than --least-steps, everybody waits for it.",
    parameters: &[&STALENESS, &BOUNDS, &LEAST_STEPS],
    whole_batches: false,
    make: |options, _| {
        let (base, least_steps) = (options.count(&STALENESS), options.count(&LEAST_STEPS));
        let (lower, upper) = options.bounds(&BOUNDS);
        let gate = move |workers| {
            let (speeds, met) = (vec![None; workers], Vec::new());
            Box::new(Adaptive { base, lower, upper, least_steps, speeds, met }) as Box<dyn Gate>
        };
        Consistency { central: true, ..Consistency::gated(gate) }
    },
};

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

    fn bound(&self, worker: Rank, race: &WorkerClocks) -> u64 {
        let slowest = race.racing().filter_map(|w| self.speed(w)).fold(f64::INFINITY, f64::min);
        let relative = self.speed(worker).map_or(1.0, |v| (v / slowest).max(1.0));
        ((self.base as f64 * relative).round() as u64).clamp(self.lower, self.upper)
    }

    /// Whether everybody has to wait for the slowest.
    fn must_meet(&mut self, race: &WorkerClocks) -> bool {
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
    fn pushed(&mut self, _: Time, worker: Rank, load: WorkerLoad) {
        let (cpu, work) = (f64::from(load.cpu), f64::from(load.cpu) * f64::from(load.step_s));
        let smooth = |old: f64, new: f64| old + NEWEST * (new - old);
        self.speeds[worker] = Some(match self.speeds[worker] {
            Some(old) => Speed { cpu: smooth(old.cpu, cpu), work: smooth(old.work, work) },
            None => Speed { cpu, work },
        });
    }

    fn open(&mut self, worker: Rank, race: &WorkerClocks) -> bool {
        let lead = race.lead(worker);
        lead == 0 || !self.must_meet(race) && lead <= self.bound(worker, race)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn race(clocks: &[u64]) -> WorkerClocks {
        WorkerClocks { clocks: clocks.to_vec(), gone: vec![false; clocks.len()] }
    }

    #[test]
    fn adaptive_bounds_follow_the_speed_and_the_slowest_is_waited_for() {
        let mut gate =
            Adaptive { base: 2, lower: 1, upper: 8, least_steps: 1, speeds: vec![None; 2], met: vec![] };
        assert_eq!(gate.bound(0, &race(&[0, 0])), 2, "nothing known: the base");
        // The same work, but worker 1 has a third of a core.
        gate.pushed(0, 0, WorkerLoad { cpu: 0.9, step_s: 0.1 });
        gate.pushed(0, 1, WorkerLoad { cpu: 0.3, step_s: 0.3 });
        assert_eq!((gate.bound(0, &race(&[0, 0])), gate.bound(1, &race(&[0, 0]))), (6, 2));
        assert!(gate.open(0, &race(&[6, 0])) && !gate.open(0, &race(&[7, 0])));
        gate.pushed(0, 1, WorkerLoad { cpu: 0.01, step_s: 10.0 });
        assert_eq!(gate.bound(0, &race(&[0, 0])), 8, "never above the greatest");
        assert!(!gate.open(0, &race(&[8, 0])), "the slowest has made no step: everybody waits");
        assert!(gate.open(1, &race(&[8, 0])) && gate.open(0, &race(&[8, 1])));
    }
}
