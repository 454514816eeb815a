//! The training clock, seen from the launcher.

use std::time::Instant;

/// The workers' training clock, as the launcher knows it: what they have told, and what has passed since.
#[derive(Default)]
pub(crate) struct TrainingClock {
    told_s: f64,
    /// When that was told; none while it stands, since a model is evaluated.
    since: Option<Instant>,
    known: bool,
}

impl TrainingClock {
    /// Somebody's clock stands here and runs; whether this is the first that is heard of it.
    pub fn told(&mut self, train_s: f64) -> bool {
        if train_s >= self.told_s || !self.known {
            (self.told_s, self.since) = (train_s, Some(Instant::now()));
        }
        !std::mem::replace(&mut self.known, true)
    }

    pub fn stands_at(&mut self, train_s: f64) {
        (self.told_s, self.since) = (self.told_s.max(train_s), None);
    }

    /// It runs again, if it stood.
    pub fn runs(&mut self) {
        self.since = self.since.or_else(|| Some(Instant::now()));
    }

    pub fn now_s(&self) -> f64 {
        self.told_s + self.since.map_or(0.0, |since| since.elapsed().as_secs_f64())
    }

    pub fn known(&self) -> Option<f64> {
        self.known.then(|| self.now_s())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_known_from_the_first_word_and_stands_while_a_model_is_evaluated() {
        let mut clock = TrainingClock::default();
        assert_eq!(clock.known(), None);
        assert!(clock.told(3.0), "the first that is heard of it");
        assert!(!clock.told(2.0) && clock.now_s() >= 3.0, "it does not run backwards");
        clock.stands_at(4.0);
        assert_eq!((clock.now_s(), clock.known()), (4.0, Some(4.0)));
        clock.runs();
        assert!(clock.now_s() >= 4.0);
    }
}
