//! Ranks and machines that are lost, silent or late: the failure to tell.

use std::time::Duration;

use paceline_record::Event;

use super::{EVALUATION, Incomplete, START, Watch};
use crate::agent;
use crate::error::LaunchError;
use crate::liveness::{self, LivenessChange};
use crate::rank::role;
use crate::ranks::Ranks;

impl Watch<'_> {
    /// A rank whose process has ended and whose pipe is closed, without an account: the failure to tell.
    pub(crate) fn died(&self, rank: usize, ended: (bool, bool), ranks: &mut Ranks) -> Option<LaunchError> {
        if ended != (true, true) || self.gather.done[rank].is_some() || self.victims[rank] {
            return None;
        }
        let cause = ranks.status(rank).unwrap_or_else(|| "its process has ended".into());
        Some(self.lost(rank, cause, ranks))
    }

    fn lost(&self, rank: usize, cause: String, ranks: &Ranks) -> LaunchError {
        let (role, pid, when) = (role(self.launch.plan, rank), ranks.pid(rank), self.when(&[rank]));
        let cause = self.deaths.get(&rank).cloned().unwrap_or(cause);
        let mut cause = ranks.place(rank).map_or(cause.clone(), |place| format!("{cause}, on {place}"));
        if let Some(stage) = self.launch.plan.stage_words(rank) {
            cause = format!("{stage}; {cause}");
        }
        LaunchError::Lost { role, rank, pid, when, cause }
    }

    /// Tells of ranks that are silent, and gives those up that are for too long (elastic runs go on without them, and they
    /// come back here): ending the run ends their processes,
    /// stopped ones too, so that nothing of them comes late. (A machine that is silent is told of by itself.)
    pub(crate) fn signs(
        &self,
        signs: &[LivenessChange],
        ranks: &Ranks,
        report: &mut dyn FnMut(Event<'_>),
    ) -> Result<Vec<usize>, LaunchError> {
        let mut silent = Vec::new();
        for &sign in signs {
            match sign {
                LivenessChange::Suspect(rank) | LivenessChange::Dead(rank) if ranks.quiet(rank) => {}
                LivenessChange::Suspect(rank) => report(Event::Liveness { rank, state: "suspect" }),
                LivenessChange::Back(rank) => report(Event::Liveness { rank, state: "back" }),
                LivenessChange::Dead(rank) if self.elastic.is_some() => silent.push(rank),
                LivenessChange::Dead(rank) => {
                    let cause = format!("nothing was heard of it for {} s", liveness::DEAD.as_secs());
                    return Err(self.lost(rank, cause, ranks));
                }
            }
        }
        Ok(silent)
    }

    /// How far ranks had come, as far as they told.
    pub(super) fn when(&self, ranks: &[usize]) -> String {
        match ranks.iter().map(|&rank| self.steps[rank]).max() {
            Some(0) | None if self.begun == 0 => "before the first step".into(),
            step => format!("after step {}", step.unwrap_or_default()),
        }
    }

    /// A machine that is gone, with all its ranks.
    pub(crate) fn host_lost(&self, (host, ranks): (String, Vec<usize>), cause: String) -> LaunchError {
        let when = self.when(&ranks);
        LaunchError::HostLost { host, ranks: agent::words(self.launch.plan, &ranks), when, cause }
    }

    /// A rank that does not come up in time, or lets others wait too long at an evaluation; `now` is the time on any
    /// clock that only runs forward.
    pub(crate) fn late(&mut self, now: Duration) -> Option<LaunchError> {
        let awaited = self.awaited_part();
        let overdue = self.missing.look(now, awaited.is_some(), EVALUATION);
        let (rank, what, limit) = match awaited {
            // A script may take minutes before it attaches; a notice says so.
            _ if self.startup.is_none() && self.launch.plan.script.is_some() && !self.connected => {
                return None;
            }
            _ if self.startup.is_none() && self.began.elapsed() >= START => (
                self.addresses[..self.launch.plan.processes()].iter().position(String::is_empty).unwrap_or(0),
                "begin".into(),
                START,
            ),
            Some((rank, step)) if overdue => {
                (rank, format!("show its part of the evaluation after step {step}"), EVALUATION)
            }
            _ => return None,
        };
        let role = role(self.launch.plan, rank);
        Some(LaunchError::Late { role, rank, what, seconds: limit.as_secs() })
    }

    /// A rank whose part of an evaluation is missing while workers wait for it, and that evaluation's step.
    fn awaited_part(&self) -> Option<(usize, u64)> {
        if !self.awaited {
            return None;
        }
        let missing = |snapshot: &Incomplete| {
            let part = snapshot.parts.iter().position(Option::is_none)?;
            let first = if snapshot.of_servers { self.launch.plan.workers } else { 0 };
            Some((first + part, snapshot.step))
        };
        self.gather.missing().or_else(|| self.snapshots.iter().find_map(missing))
    }
}
