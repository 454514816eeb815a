//! Other members for a run under way because somebody asks for them.

use paceline_protocol::{MemberId, ServerShard};

use super::{Commands, ElasticRun, MemberState};

/// What is to be done so that a run has other members.
#[derive(Debug, Default)]
pub(crate) struct Resized {
    pub commands: Commands,
    /// Members whose processes are to be started.
    pub starts: Vec<MemberId>,
    /// The same, for people.
    pub words: String,
}

/// Workers in words, with the verb for one or several.
fn words(workers: &[MemberId], (one, several): (&str, &str)) -> String {
    let numbers: Vec<String> = workers.iter().map(ToString::to_string).collect();
    match &numbers[..] {
        [only] => format!("worker {only} {one}"),
        _ => format!("workers {} {several}", numbers.join(", ")),
    }
}

impl ElasticRun {
    /// Workers that take part and stay.
    pub(super) fn staying(&self) -> Vec<MemberId> {
        let stays = |member: &MemberId| {
            let gone = matches!(self.states[*member], MemberState::Gone | MemberState::Starting);
            !self.drained[*member] && !gone && self.states[*member] != MemberState::Waiting
        };
        self.membership.workers.iter().copied().filter(stays).collect()
    }

    /// Workers that could take part at once, or soon.
    pub(super) fn reserve(&self, state: &MemberState) -> Vec<MemberId> {
        let members = (0..self.states.len()).filter(|member| !self.is_server(*member));
        members.filter(|member| self.states[*member] == *state).collect()
    }

    /// Members without a process that the run has use for: workers that were lost or left before those that it never had,
    /// and servers.
    pub fn missing(&self) -> Vec<MemberId> {
        if self.concluded {
            return Vec::new();
        }
        let ready =
            [MemberState::Waiting, MemberState::Starting].iter().map(|state| self.reserve(state).len());
        let here = self.staying().len() + ready.sum::<usize>();
        let mut missing = self.reserve(&MemberState::Gone);
        missing.extend(self.reserve(&MemberState::Absent));
        missing.truncate(self.wanted.min(self.base.shares()).saturating_sub(here));
        let servers = self.base.workers..self.base.world();
        missing.extend(servers.filter(|server| self.states[*server] == MemberState::Gone));
        missing
    }

    /// The run is to go on with so many workers; what is to be done, or why it cannot be.
    pub fn resize(&mut self, workers: usize, at_s: f64) -> Result<Resized, String> {
        let (least, most) = (self.elastic.least, self.elastic.most.min(self.base.shares()));
        if !(least..=most).contains(&workers) {
            return Err(format!("the run has {least} to {most} workers (--elastic {least}..{most})"));
        }
        if self.concluded {
            return Err("all its work is done".into());
        }
        let staying = self.staying();
        let (here, waiting) = (staying.len(), self.reserve(&MemberState::Waiting));
        let coming = waiting.len() + self.reserve(&MemberState::Starting).len();
        let mut resized = Resized::default();
        if workers <= here {
            let leaving = &staying[workers..];
            leaving.iter().for_each(|member| self.drained[*member] = true);
            resized.words = match leaving {
                [] => format!("it has {workers} already"),
                _ => format!("{workers} workers: {} to leave", words(leaving, ("is", "are"))),
            };
            self.wanted = workers;
            if leaving.is_empty() {
                return Ok(resized);
            }
        } else if let Some(problem) = self.is_closed() {
            return Err(format!("it has {here} workers, and cannot have more: {problem}"));
        } else {
            let needed = workers.saturating_sub(here + coming);
            let mut starts = self.reserve(&MemberState::Gone);
            starts.extend(self.reserve(&MemberState::Absent));
            if starts.len() < needed {
                let problem = "workers that were told to leave have not left yet: try it again in a moment";
                return Err(problem.into());
            }
            starts.truncate(needed);
            self.wanted = workers;
            resized.words = match &starts[..] {
                [] => format!("{workers} workers: those that wait join"),
                _ => format!("{workers} workers: {} once loaded", words(&starts, ("joins", "join"))),
            };
            resized.starts = starts;
            if waiting.is_empty() {
                return Ok(resized);
            }
            if self.scripts.is_some() {
                resized.commands = self.ask_to_hand_over();
                return Ok(resized);
            }
        }
        self.begin_change(at_s);
        resized.commands = self.ask_to_stand();
        Ok(resized)
    }

    /// A member is to leave because somebody asks for it; what is to be done, or why it cannot be.
    pub fn asked_to_drain(&mut self, member: MemberId, at_s: f64) -> Result<Resized, String> {
        if member >= self.states.len() {
            return Err(format!(
                "there is no rank {member}: the run has ranks 0 to {}",
                self.states.len() - 1
            ));
        }
        if self.concluded {
            return Err("all its work is done".into());
        }
        if !self.takes_part(member) || self.is_gone(member) {
            return Err(format!("rank {member} does not take part at present"));
        }
        if self.drained[member] {
            return Err(format!("rank {member} is leaving already"));
        }
        if self.is_server(member) {
            let there = |other: MemberId| other != member && !self.drained[other] && !self.is_gone(other);
            let alone = |shard: &ServerShard| {
                let holders = [Some(shard.primary), shard.backup];
                holders.contains(&Some(member)) && !holders.into_iter().flatten().any(there)
            };
            if let Some(shard) = self.membership.shards.iter().position(alone) {
                return Err(format!("server {member} has the only copy of server shard {shard}"));
            }
        } else {
            let (left, least) = (self.staying().len() - 1, self.elastic.least);
            if left + self.reserve(&MemberState::Waiting).len() < least {
                return Err(format!("{left} workers would be left, and the run needs at least {least}"));
            }
        }
        let words = format!("rank {member} hands over its part, and leaves");
        Ok(Resized { commands: self.drain(&[member], at_s), starts: Vec::new(), words })
    }
}

#[cfg(test)]
mod tests {
    use paceline_plan::Elastic;
    use paceline_protocol::{RankStanding, Setup};
    use paceline_record::RankState;

    use super::*;
    use crate::control::RankCommand;

    fn run(workers: usize, servers: usize, elastic: Elastic) -> ElasticRun {
        let base = Setup { shares: Some(4), ..Setup::new(workers, servers, 100, 50) };
        ElasticRun::new(elastic, base, 0)
    }

    const TWO_TO_FOUR: Elastic = Elastic { least: 2, most: 4, spares: 0, backup: false };

    /// Everybody who is asked to stand does, at a step.
    fn regrouped(run: &mut ElasticRun, asked: &Commands, at: u64) -> Commands {
        for (member, command) in asked {
            let RankCommand::Stand { generation } = command else { panic!("{command:?}") };
            let standing = RankStanding { at, ..RankStanding::default() };
            run.stood(*member, *generation, standing, (format!("address {member}"), None), 0.0);
        }
        run.regroup(false, |_| 50, |dropped| dropped.steps.clone().count()).unwrap().expect("all stand").1
    }

    #[test]
    fn the_highest_leave_and_the_lost_come_back_before_others_join() {
        let mut run = run(3, 0, TWO_TO_FOUR);
        assert!(run.resize(1, 0.0).unwrap_err().contains("2 to 4 workers"));
        assert!(run.resize(5, 0.0).is_err());
        assert_eq!(run.resize(3, 0.0).unwrap().words, "it has 3 already");
        let shrinks = run.resize(2, 1.0).unwrap();
        assert_eq!((shrinks.commands.len(), &shrinks.words[..]), (3, "2 workers: worker 2 is to leave"));
        let told = regrouped(&mut run, &shrinks.commands, 7);
        assert!(matches!(told.last(), Some((2, RankCommand::Next { segment: None }))), "{told:?}");
        assert_eq!(run.membership.workers, [0, 1]);
        let early = run.resize(4, 1.1).unwrap_err();
        assert!(early.contains("have not left yet"), "{early}");
        run.lost(&[2], 1.2);
        let grows = run.resize(4, 1.3).unwrap();
        assert_eq!(
            (&grows.starts[..], grows.commands.len()),
            (&[2, 3][..], 0),
            "the others go on until they listen"
        );
        for member in [2, 3] {
            run.started(member);
            let asked = run.listens(member, format!("address {member}"), 1.4);
            assert_eq!(asked.len(), member, "those who take part are asked to stand");
            let told = regrouped(&mut run, &asked, 9);
            assert!(told.iter().any(|(to, told)| *to == member && matches!(told, RankCommand::Peers { .. })));
        }
        assert_eq!(run.membership.workers, [0, 1, 2, 3]);
    }

    #[test]
    fn what_is_missing_is_what_was_lost_before_what_never_was_and_no_more_than_is_wanted() {
        let mut run = run(3, 2, Elastic { backup: true, ..TWO_TO_FOUR });
        assert_eq!(run.missing(), [5], "up to the most that the run may have");
        assert!(run.resize(3, 0.0).unwrap().commands.is_empty());
        assert!(run.missing().is_empty(), "it has as many as were asked for");
        // A machine with two workers and a server is lost.
        let asked = run.lost(&[1, 2, 4], 1.0);
        assert_eq!(asked.iter().map(|(member, _)| *member).collect::<Vec<_>>(), [0, 3]);
        assert_eq!(run.missing(), [1, 2, 4]);
        run.started(2);
        assert_eq!(run.missing(), [1, 4], "one of them is on its way");
        run.lost(&[2], 1.1);
        assert_eq!(run.missing(), [1, 2, 4]);
    }

    #[test]
    fn a_step_that_somebody_has_begun_is_made_anew_and_one_that_all_complete_is_not() {
        for (ready, anew) in [(false, 1), (true, 0)] {
            let mut run = run(3, 0, TWO_TO_FOUR);
            for (member, command) in run.lost(&[2], 1.0) {
                let RankCommand::Stand { generation } = command else { panic!("{command:?}") };
                let standing = RankStanding { at: 7, ready, ..RankStanding::default() };
                run.stood(member, generation, standing, (String::new(), None), 1.0);
            }
            run.regroup(false, |_| 50, |_| 0).unwrap().expect("all stand");
            let changes = run.resumed(1).iter().map(|change| (change.step, change.steps_anew));
            assert_eq!(changes.collect::<Vec<_>>(), [(7 + u64::from(ready), anew)]);
        }
    }

    #[test]
    fn who_was_asked_to_leave_or_came_back_is_not_among_the_lost() {
        let mut run = run(4, 0, TWO_TO_FOUR);
        let asked = run.drain(&[0], 1.0);
        regrouped(&mut run, &asked, 7);
        run.lost(&[0], 1.1);
        let asked = run.lost(&[3], 1.2);
        assert_eq!(run.gone(), [3]);
        regrouped(&mut run, &asked, 9);
        run.started(3);
        assert!(run.gone().is_empty());
    }

    #[test]
    fn the_loss_of_a_machine_is_one_change() {
        let mut run = run(4, 0, TWO_TO_FOUR);
        let asked = run.lost(&[2, 3], 1.0);
        assert_eq!(asked.len(), 2, "those that are left are asked to stand");
        regrouped(&mut run, &asked, 7);
        let changes = run.resumed(1).iter().map(|change| (change.lost.clone(), change.workers));
        assert_eq!(changes.collect::<Vec<_>>(), [(vec![2, 3], 2)]);
    }

    #[test]
    fn changes_before_a_step_has_begun_are_told_with_the_next_and_never_go_back_in_time() {
        let mut run = run(4, 0, TWO_TO_FOUR);
        let asked = run.lost(&[3], 2.0);
        regrouped(&mut run, &asked, 7);
        // The clock that this is told by is a little behind.
        let asked = run.lost(&[2], 1.9);
        regrouped(&mut run, &asked, 7);
        assert!(run.resumed(1).is_empty(), "that generation made no step");
        let told: Vec<_> = run.resumed(2).iter().map(|change| (change.lost.clone(), change.at_s)).collect();
        assert_eq!(told, [(vec![3], 2.0), (vec![2], 2.0)]);
        assert!(run.resumed(2).is_empty(), "nothing is told twice");
        let asked = run.drain(&[1], 3.0);
        regrouped(&mut run, &asked, 8);
        assert_eq!(run.resumed(3).len(), 1);
        assert_eq!(run.changes.len(), 3);
    }

    /// What a member is told of what is handed over.
    fn hands_over(told: &Commands) -> Vec<MemberId> {
        let asked = told.iter().filter(|(_, told)| matches!(told, RankCommand::HandOver { .. }));
        asked.map(|(member, _)| *member).collect()
    }

    #[test]
    fn who_joins_scripts_waits_until_one_of_them_has_stopped_for_it_and_begins_there() {
        let mut run = run(3, 0, TWO_TO_FOUR).of_scripts(None);
        let asked = run.lost(&[1], 1.0);
        regrouped(&mut run, &asked, 7);
        let grows = run.resize(4, 2.0).unwrap();
        assert_eq!((&grows.starts[..], grows.commands.len()), (&[1, 3][..], 0));
        run.started(3);
        let asked = run.listens(3, "address 3".into(), 3.0);
        assert_eq!(hands_over(&asked), [0], "nobody else is told anything");
        assert!(!run.is_changing());
        run.started(1);
        assert!(run.listens(1, "address 1".into(), 3.1).is_empty(), "that was asked for already");
        let state = || RankState { tensors: vec![("state".into(), vec![1.0])], account: String::new() };
        let standing = |at| RankStanding { at, ..RankStanding::default() };
        let asked = run.stood(0, 1, standing(9), ("address 0".into(), Some(state())), 3.2);
        assert!(matches!(asked[..], [(2, RankCommand::Stand { .. })]), "{asked:?}");
        run.stood(2, 1, standing(9), ("address 2".into(), None), 3.2);
        let (segment, told) = run.regroup(false, |_| 50, |_| 0).unwrap().expect("all stand");
        assert_eq!((segment.from, run.begins_with()), (9, Some(state())));
        let numbers = told.iter().filter_map(|(member, told)| match told {
            RankCommand::Peers { stands_for, .. } => Some((*member, *stands_for)),
            _ => None,
        });
        assert_eq!(numbers.collect::<Vec<_>>(), [(1, Some(1)), (3, Some(3))]);
        assert_eq!(run.steps_of(1), [0..7, 9..u64::MAX]);
        assert!(run.has_just_joined(1) && !run.has_just_joined(2));
        run.stepped(1, 10);
        assert!(!run.has_just_joined(1));
    }

    #[test]
    fn what_was_handed_over_at_another_step_is_nobodys() {
        let mut run = run(4, 0, Elastic { least: 3, spares: 1, ..TWO_TO_FOUR }).of_scripts(None);
        run.addresses[4] = "address 4".into();
        let asked = run.lost(&[3], 1.0);
        let told = regrouped(&mut run, &asked, 7);
        assert_eq!(hands_over(&told), [0], "one of them saves itself for the spare");
        assert!(told.iter().all(|(member, _)| *member != 4));
        let state = RankState { tensors: vec![("state".into(), vec![1.0])], account: String::new() };
        let standing = |at| RankStanding { at, ..RankStanding::default() };
        run.stood(0, 1, standing(8), ("address 0".into(), Some(state)), 2.0);
        run.stood(1, 1, standing(7), ("address 1".into(), None), 2.0);
        run.lost(&[0], 2.1);
        run.stood(2, 1, standing(7), ("address 2".into(), None), 2.2);
        let (segment, told) =
            run.regroup(false, |_| 50, |_| 0).unwrap_or_else(|_| panic!("it waits")).unwrap();
        assert_eq!((segment.from, run.begins_with()), (7, None));
        assert_eq!(hands_over(&told), [1]);
    }

    #[test]
    fn nobody_is_drained_whom_the_run_cannot_do_without() {
        let mut workers = run(2, 0, TWO_TO_FOUR);
        assert!(workers.asked_to_drain(9, 0.0).is_err());
        let refused = workers.asked_to_drain(1, 0.0).unwrap_err();
        assert!(refused.contains("1 workers would be left"), "{refused}");
        let mut servers = run(2, 2, TWO_TO_FOUR);
        let refused = servers.asked_to_drain(3, 0.0).unwrap_err();
        assert!(refused.contains("the only copy of server shard 1"), "{refused}");
        let mut copies = run(2, 2, Elastic { backup: true, ..TWO_TO_FOUR });
        assert_eq!(copies.asked_to_drain(3, 0.0).unwrap().commands.len(), 4);
        assert!(copies.asked_to_drain(3, 0.0).unwrap_err().contains("leaving already"));
        assert!(copies.asked_to_drain(2, 0.0).unwrap_err().contains("the only copy"));
    }
}
