//! The training clock: it runs from the first step's start and stands still during evaluation.

use std::time::{Duration, Instant};

/// What a worker's time is spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Gathering and normalising a batch.
    Data,
    /// Forward pass and loss.
    Forward,
    /// Backward pass.
    Backward,
    /// Optimiser.
    Apply,
    /// Evaluation, outside the training clock.
    Evaluate,
}

/// Seconds per phase.
#[derive(Debug)]
pub struct Clock {
    last: Instant,
    spent: [Duration; 5],
}

impl Default for Clock {
    fn default() -> Self {
        Self { last: Instant::now(), spent: [Duration::ZERO; 5] }
    }
}

impl Clock {
    /// Counts the time since the last call (or the start) as spent in `phase`.
    pub fn lap(&mut self, phase: Phase) {
        let now = Instant::now();
        self.spent[phase as usize] += now - self.last;
        self.last = now;
    }

    /// Seconds spent in a phase.
    pub fn seconds(&self, phase: Phase) -> f64 {
        self.spent[phase as usize].as_secs_f64()
    }

    /// The training clock, in seconds.
    pub fn train(&self) -> f64 {
        [Phase::Data, Phase::Forward, Phase::Backward, Phase::Apply].iter().map(|&p| self.seconds(p)).sum()
    }
}
