//! Takes ranks away from a real run, and brings them back, as its file of revocations says. Policy without processes or
//! clocks: what is due comes back as deeds.

use paceline_plan::{Revocations, RevokedRank};

/// What is to be done to a rank's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// It is told that it will be killed.
    Notice(usize),
    Kill(usize),
    /// Another process takes its place.
    Start(usize),
}

/// How far a revocation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Ahead,
    Noticed,
    Killed,
    Done,
}

/// The revocations of a run, and what was done of them.
#[derive(Debug, Default)]
pub(crate) struct Revoking {
    all: Vec<(RevokedRank, Progress)>,
}

impl Revoking {
    /// What a file says, from the beginning.
    pub fn new(revocations: Option<&Revocations>) -> Self {
        let all = revocations.map_or(&[][..], |file| &file.revoke);
        Self { all: all.iter().map(|one| (one.clone(), Progress::Ahead)).collect() }
    }

    /// The run goes on from a checkpoint at a time of the training clock: who was taken away before is there again.
    pub fn begin_at(&mut self, now_s: f64) {
        for (revoked, progress) in &mut self.all {
            if *progress != Progress::Ahead || revoked.at_s < now_s {
                *progress = Progress::Done;
            }
        }
    }

    /// What is due by now, in the order of its times; `gone` tells whether a rank's process has ended.
    pub fn due(&mut self, now_s: f64, gone: impl Fn(usize) -> bool) -> Vec<Deed> {
        let mut deeds = Vec::new();
        for (revoked, progress) in &mut self.all {
            let rank = revoked.rank;
            if *progress == Progress::Ahead && revoked.at_s <= now_s {
                *progress = Progress::Noticed;
                if revoked.notice_s > 0.0 {
                    deeds.push((revoked.at_s, Deed::Notice(rank)));
                }
            }
            if *progress == Progress::Noticed && revoked.kill_s() <= now_s {
                *progress = if revoked.back_after_s.is_some() { Progress::Killed } else { Progress::Done };
                deeds.push((revoked.kill_s(), Deed::Kill(rank)));
            } else if let (Progress::Killed, Some(back)) = (*progress, revoked.back_s())
                && back <= now_s
                && gone(rank)
            {
                *progress = Progress::Done;
                deeds.push((back, Deed::Start(rank)));
            }
        }
        deeds.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        deeds.into_iter().map(|(_, deed)| deed).collect()
    }

    /// A rank's process was started, for whatever reason.
    pub fn is_back(&mut self, rank: usize) {
        let away = |(revoked, progress): &&mut (RevokedRank, Progress)| {
            revoked.rank == rank && *progress == Progress::Killed
        };
        self.all.iter_mut().filter(away).for_each(|(_, progress)| *progress = Progress::Done);
    }

    /// When something is due next.
    pub fn next_s(&self) -> Option<f64> {
        let next = |(revoked, progress): &(RevokedRank, Progress)| match progress {
            Progress::Ahead => Some(revoked.at_s),
            Progress::Noticed => Some(revoked.kill_s()),
            Progress::Killed => revoked.back_s(),
            Progress::Done => None,
        };
        self.all.iter().filter_map(next).min_by(f64::total_cmp)
    }

    /// Whether somebody who is away will be there again.
    pub fn brings_back(&self) -> bool {
        self.all.iter().any(|(revoked, progress)| match progress {
            Progress::Noticed => revoked.back_after_s.is_some(),
            Progress::Killed => true,
            Progress::Ahead | Progress::Done => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revoking(text: &str) -> Revoking {
        Revoking::new(Some(&Revocations::parse(text).unwrap()))
    }

    const FILE: &str = "[[revoke]]\nat-s = 1.0\nrank = 2\nnotice-s = 0.5\nback-after-s = 2.0\n[[revoke]]\nat-s = 1.2\nrank = 0\n";

    #[test]
    fn ranks_are_told_killed_and_started_again_each_once_and_in_order() {
        let mut revoking = revoking(FILE);
        assert!(revoking.due(0.9, |_| false).is_empty());
        assert_eq!(revoking.next_s(), Some(1.0));
        assert_eq!(revoking.due(1.3, |_| false), [Deed::Notice(2), Deed::Kill(0)]);
        assert!(revoking.brings_back());
        assert_eq!(revoking.due(1.5, |_| false), [Deed::Kill(2)]);
        assert!(revoking.due(3.5, |_| false).is_empty(), "its process has not ended yet");
        assert_eq!(revoking.due(3.6, |rank| rank == 2), [Deed::Start(2)]);
        assert!(!revoking.brings_back());
        assert!(revoking.due(99.0, |_| true).is_empty());
        assert_eq!(revoking.next_s(), None);
    }

    #[test]
    fn a_look_that_comes_late_keeps_the_order() {
        assert_eq!(revoking(FILE).due(2.0, |_| true), [Deed::Notice(2), Deed::Kill(0), Deed::Kill(2)]);
    }

    #[test]
    fn what_was_done_before_a_checkpoint_is_not_done_again() {
        let mut revoking = revoking(FILE);
        revoking.begin_at(1.1);
        assert_eq!(revoking.due(9.0, |_| true), [Deed::Kill(0)]);
        let mut again = self::revoking(FILE);
        again.due(1.3, |_| false);
        again.begin_at(0.0);
        assert!(again.due(9.0, |_| true).is_empty(), "a run that starts again is not revoked twice");
    }
}
