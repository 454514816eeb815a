//! Whether ranks live, and whether they let others wait too long: each says that it lives from a thread of its own,
//! whatever it computes or waits for. Policy without processes or clocks.

use std::time::Duration;

/// Time between two signs of life of a rank.
pub const PULSE: Duration = Duration::from_millis(250);
/// A rank that was silent for so long is under suspicion.
pub const SUSPECT: Duration = Duration::from_secs(2);
/// A rank that was silent for so long is dead.
pub const DEAD: Duration = Duration::from_secs(5);
/// Most of a silence that counts at once: a launcher that stood still itself has heard nobody.
const MOST: Duration = Duration::from_millis(250);

/// What becomes of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LivenessChange {
    /// Nothing was heard of it for a while.
    Suspect(usize),
    /// It was under suspicion, and is there again.
    Back(usize),
    /// It is taken for dead.
    Dead(usize),
}

/// The signs of life of all ranks.
#[derive(Debug)]
pub struct Liveness {
    /// How long each rank was silent; none if it need not say anything any more.
    ranks: Vec<Option<Duration>>,
    /// The time of the last look.
    looked: Option<Duration>,
}

impl Liveness {
    /// Every rank is watched from its start: one that stands still before its first word is missed like any other.
    pub fn new(ranks: usize) -> Self {
        Self { ranks: vec![Some(Duration::ZERO); ranks], looked: None }
    }

    /// A rank has said something.
    pub fn heard(&mut self, rank: usize) -> Option<LivenessChange> {
        let silence = std::mem::take(self.ranks[rank].as_mut()?);
        (silence >= SUSPECT).then_some(LivenessChange::Back(rank))
    }

    /// A rank's process was just started.
    pub fn begin(&mut self, rank: usize) {
        self.ranks[rank] = Some(Duration::ZERO);
    }

    /// A rank has ended, or is about to: its silence is no sign.
    pub fn forget(&mut self, rank: usize) {
        self.ranks[rank] = None;
    }

    /// Looks at all ranks; `now` is the time on any clock that only runs forward.
    pub fn look(&mut self, now: Duration) -> Vec<LivenessChange> {
        let passed = now.saturating_sub(self.looked.unwrap_or(now)).min(MOST);
        self.looked = Some(now);
        let mut signs = Vec::new();
        for (rank, life) in self.ranks.iter_mut().enumerate() {
            let Some(silence) = life else { continue };
            let before = *silence;
            *silence += passed;
            if before < DEAD && *silence >= DEAD {
                signs.push(LivenessChange::Dead(rank));
            } else if before < SUSPECT && *silence >= SUSPECT {
                signs.push(LivenessChange::Suspect(rank));
            }
        }
        signs
    }
}

/// How long something that others wait for has been missing.
#[derive(Debug, Default)]
pub struct Missing {
    since: Duration,
    /// The time of the last look.
    looked: Option<Duration>,
}

impl Missing {
    /// Looks at it; `now` is the time on any clock that only runs forward. Whether it has been missing for `limit`.
    pub fn look(&mut self, now: Duration, missing: bool, limit: Duration) -> bool {
        let passed = now.saturating_sub(self.looked.unwrap_or(now)).min(MOST);
        self.looked = Some(now);
        self.since = if missing { self.since + passed } else { Duration::ZERO };
        self.since >= limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_for_too_long_is_told_but_not_what_a_launcher_slept_through() {
        let (mut part, limit) = (Missing::default(), Duration::from_secs(600));
        let mut look = |ms: u64, missing| part.look(Duration::from_millis(ms), missing, limit);
        assert!((0..5_000).all(|n| !look(n * 100, true)), "500 s");
        assert!(!look(500_000, false), "it came");
        assert!((5_000..10_990).all(|n| !look(n * 100, true)), "598.9 s of another one");
        assert!(
            !look(90_000_000, true),
            "a launcher that stood still for a day has waited no longer than once"
        );
        assert_eq!([1, 2, 3, 4].map(|n| look(90_000_000 + n * 250, true)), [false, false, false, true]);
    }

    /// Looks every 50 ms for a time; what was seen, and when.
    fn watch(liveness: &mut Liveness, from: u64, to: u64) -> Vec<(u64, LivenessChange)> {
        let at = |ms: u64| liveness.look(Duration::from_millis(ms)).into_iter().map(move |sign| (ms, sign));
        (from / 50..to / 50).map(|n| n * 50).flat_map(at).collect()
    }

    #[test]
    fn a_rank_that_stops_is_suspected_after_2_s_and_dead_after_5_s() {
        let mut liveness = Liveness::new(2);
        let seen = watch(&mut Liveness::new(1), 0, 60_000);
        assert_eq!(
            seen,
            [(2_000, LivenessChange::Suspect(0)), (5_000, LivenessChange::Dead(0))],
            "who was never heard is missed"
        );
        watch(&mut liveness, 0, 1_000);
        liveness.heard(0);
        liveness.heard(1);
        liveness.forget(0);
        let seen = watch(&mut liveness, 1_000, 70_000);
        assert_eq!(seen, [(2_950, LivenessChange::Suspect(1)), (5_950, LivenessChange::Dead(1))]);
    }

    #[test]
    fn a_pause_of_4_s_is_suspected_and_forgiven_and_one_of_1_s_is_nothing() {
        let mut liveness = Liveness::new(1);
        for (pause, expected) in [(1_000, vec![]), (4_000, vec![(2_000, LivenessChange::Suspect(0))])] {
            let mut vitals_now = Liveness::new(1);
            vitals_now.heard(0);
            assert_eq!(watch(&mut vitals_now, 0, pause), expected);
            assert_eq!(vitals_now.heard(0), (pause > 2_000).then_some(LivenessChange::Back(0)));
        }
        // A launcher that was stopped itself takes nobody for dead.
        liveness.heard(0);
        assert_eq!(liveness.look(Duration::from_secs(1)), []);
        assert_eq!(liveness.look(Duration::from_secs(100)), []);
    }
}
