//! The training clock: it runs from the first step's start and stands still during evaluation.

use std::time::{Duration, Instant};

/// What a worker's time is spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Gathering and normalising a batch.
    Data,
    /// Forward pass and loss.
    Forward,
    Backward,
    Apply,
    /// Evaluation, outside the training clock.
    Evaluate,
    /// Exchanging with other ranks and waiting for them.
    Exchange,
}

/// Seconds per phase.
#[derive(Debug)]
pub struct Clock {
    last: Instant,
    spent: [Duration; 6],
}

impl Default for Clock {
    fn default() -> Self {
        Self { last: Instant::now(), spent: [Duration::ZERO; 6] }
    }
}

impl Clock {
    /// Counts the time since the last call (or the start) as spent in `phase`.
    pub fn lap(&mut self, phase: Phase) {
        let now = Instant::now();
        self.spent[phase as usize] += now - self.last;
        self.last = now;
    }

    /// Goes on from what another clock has measured.
    pub(crate) fn resumed(spent: &[u64]) -> Self {
        let mut clock = Self::default();
        clock.spent.iter_mut().zip(spent).for_each(|(own, &ns)| *own = Duration::from_nanos(ns));
        clock
    }

    /// Time spent in each phase.
    pub(crate) fn spent(&self) -> [Duration; 6] {
        self.spent
    }

    /// Seconds spent in a phase.
    pub fn seconds(&self, phase: Phase) -> f64 {
        self.spent[phase as usize].as_secs_f64()
    }

    /// The training clock, in seconds.
    pub fn train(&self) -> f64 {
        // Whole durations are exact: an evaluation does not change the last digit.
        let all: Duration = self.spent.iter().sum();
        (all - self.spent[Phase::Evaluate as usize]).as_secs_f64()
    }

    /// Counts time that somebody else has measured as spent in `phase`; what has passed here meanwhile is nobody's.
    pub fn spend(&mut self, time: Duration, phase: Phase) {
        self.spent[phase as usize] += time;
        self.last = Instant::now();
    }

    /// Counts time that was spent in the one phase as spent in the other.
    pub fn shift(&mut self, time: Duration, from: Phase, to: Phase) {
        let time = time.min(self.spent[from as usize]);
        self.spent[from as usize] -= time;
        self.spent[to as usize] += time;
    }
}
