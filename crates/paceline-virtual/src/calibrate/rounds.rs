//! When something is measured that differs from minute to minute: in rounds, spread over the whole calibration.

use std::time::{Duration, Instant};

/// How many rounds are left, and when the next one is due.
pub(super) struct RoundSchedule {
    left: usize,
    apart: Duration,
    last: Instant,
}

impl RoundSchedule {
    /// So many rounds, `apart` from each other as long as there is something else to measure.
    pub(super) fn new(rounds: usize, apart: Duration) -> Self {
        Self { left: rounds, apart, last: Instant::now() }
    }

    /// Whether it is time for the next round.
    pub(super) fn due(&self) -> bool {
        self.left() && self.last.elapsed() >= self.apart
    }

    /// Whether there is another round.
    pub(super) fn left(&self) -> bool {
        self.left > 0
    }

    /// Counts a round that is over now.
    pub(super) fn count(&mut self) {
        (self.left, self.last) = (self.left.saturating_sub(1), Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_due_when_time_has_passed_and_end() {
        let mut rounds = RoundSchedule::new(2, Duration::ZERO);
        assert!(rounds.due());
        rounds.count();
        assert!(rounds.due() && rounds.left());
        rounds.count();
        assert!(!rounds.due() && !rounds.left());
        assert!(!RoundSchedule::new(1, Duration::from_secs(3600)).due());
    }
}
