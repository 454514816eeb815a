//! Members of a run of scripts: who joins begins with what the script of somebody who takes part keeps, at the step at which
//! that one has stopped for it; and whose share of the data each script reads.

use std::ops::Range;

use paceline_protocol::{MemberId, Membership, Rank, RegroupEnd, Regrouped};
use paceline_record::RankState;

use super::{Commands, ElasticRun, MemberState};
use crate::control::RankCommand;

/// What is known of the members of a run of scripts.
#[derive(Debug)]
pub(crate) struct ScriptMembers {
    /// Why nobody can join, if so.
    closed: Option<String>,
    /// The worker of the plan that each member stands for, while it takes part: whose share of the data it reads.
    numbers: Vec<Option<Rank>>,
    /// The steps that each member has taken part in; the last ones may go on.
    steps: Vec<Vec<Range<u64>>>,
    /// Who was asked for what somebody who joins begins with.
    asked: Option<MemberId>,
    /// What it has handed over, and the step before which it stands.
    handed: Option<(u64, RankState)>,
    /// What those who join the present generation begin with.
    begins_with: Option<RankState>,
}

impl ScriptMembers {
    /// How the run goes on: with those who wait (`workers`) if what they begin with is there, and without them until then.
    /// They count already, so that the run may go on with too few for the step in which one of these saves itself.
    pub fn regroup(
        &self,
        workers: &[MemberId],
        least: usize,
        with: impl Fn(&[MemberId], usize) -> Result<Regrouped, RegroupEnd>,
    ) -> Result<Regrouped, RegroupEnd> {
        let joined = self.handed.as_ref().and_then(|(step, _)| {
            let on = with(workers, least).ok()?;
            (on.from == *step).then_some(on)
        });
        let mut on = match joined {
            Some(on) => on,
            None => with(&[], least).or_else(|end| match workers.len().min(least.saturating_sub(1)) {
                0 => Err(end),
                waiting => with(&[], least - waiting),
            })?,
        };
        // A step that is made anew has another mean: a part that has the former one gets it, too.
        on.ahead.iter_mut().for_each(Vec::clear);
        // Who joins has all from the launcher.
        let rank = |member: &MemberId| on.membership.rank(*member);
        let joined: Vec<Rank> = workers.iter().filter_map(rank).collect();
        on.handovers.retain(|handover| !joined.contains(&handover.to));
        Ok(on)
    }
}

impl ElasticRun {
    /// The same where workers have scripts; `closed` says why nobody can join them, if so.
    pub fn of_scripts(self, closed: Option<String>) -> Self {
        let members = self.states.len();
        let begins = |member: usize| member < self.base.workers;
        let scripts = ScriptMembers {
            closed,
            numbers: (0..members).map(|member| Some(member).filter(|_| begins(member))).collect(),
            steps: (0..members)
                .map(|member| Vec::from_iter(Some(0..u64::MAX).filter(|_| begins(member))))
                .collect(),
            asked: None,
            handed: None,
            begins_with: None,
        };
        Self { scripts: Some(scripts), ..self }
    }

    /// The worker of the plan that a member stands for, if it has a script and takes part.
    pub(super) fn number_of(&self, member: MemberId) -> Option<Rank> {
        self.scripts.as_ref().and_then(|scripts| scripts.numbers[member])
    }

    /// The member that stands for a worker of the plan, where workers have scripts.
    pub(super) fn stands_for(&self, number: Rank) -> Option<MemberId> {
        let stands = |member: &MemberId| self.number_of(*member) == Some(number);
        self.membership.workers.iter().copied().find(stands)
    }

    /// Why nobody can join, if so.
    pub(super) fn is_closed(&self) -> Option<&str> {
        self.scripts.as_ref().and_then(|scripts| scripts.closed.as_deref())
    }

    /// The steps that a member has taken part in; the last ones may go on.
    pub fn steps_of(&self, member: MemberId) -> &[Range<u64>] {
        self.scripts.as_ref().map_or(&[], |scripts| &scripts.steps[member])
    }

    /// Whether a member has joined the run of scripts, and has told of no step since then.
    pub fn has_just_joined(&self, member: MemberId) -> bool {
        let began = self.steps_of(member).last().map(|steps| steps.start);
        began.is_some_and(|began| began > 0 && self.told[member] <= began)
    }

    /// Asks a worker for what somebody who waits begins with, if there is room.
    pub(super) fn ask_to_hand_over(&mut self) -> Commands {
        let (room, waits) = (self.wanted.min(self.base.shares()), self.reserve(&MemberState::Waiting));
        let waits = waits.iter().any(|member| !self.addresses[*member].is_empty());
        let room = waits && self.staying().len() < room && self.change.is_none() && !self.concluded;
        let first = self.first_worker();
        let Some(scripts) = self.scripts.as_mut().filter(|_| room) else { return Vec::new() };
        if scripts.closed.is_some() {
            return self.turn_away();
        }
        if scripts.asked.is_some() {
            return Vec::new();
        }
        scripts.asked = Some(first);
        vec![(first, RankCommand::HandOver { generation: self.generation })]
    }

    /// A worker has handed over what those begin with who join before this step.
    pub(super) fn is_handed(&mut self, member: MemberId, step: u64, handed: Option<RankState>) {
        let Some(scripts) = self.scripts.as_mut().filter(|scripts| scripts.asked == Some(member)) else {
            return;
        };
        scripts.handed = handed.map(|handed| (step, handed));
    }

    /// A worker has nothing to hand over: nobody can join. Those who wait, and what they are told.
    pub fn hands_nothing(&mut self, member: MemberId, problem: &str, at_s: f64) -> (Vec<MemberId>, Commands) {
        let Some(scripts) = self.scripts.as_mut().filter(|scripts| scripts.asked == Some(member)) else {
            return Default::default();
        };
        (scripts.asked, scripts.closed) = (None, Some(format!("worker {member}: {problem}")));
        let waiting = self.reserve(&MemberState::Waiting);
        let mut commands = self.turn_away();
        if self.has_too_few_scripts() {
            self.begin_change(at_s);
            commands.extend(self.ask_to_stand());
        }
        (waiting, commands)
    }

    /// Those who wait are not needed.
    fn turn_away(&mut self) -> Commands {
        let waiting = self.reserve(&MemberState::Waiting);
        waiting.iter().for_each(|member| self.states[*member] = MemberState::Gone);
        waiting.into_iter().map(|member| (member, RankCommand::Conclude)).collect()
    }

    /// Whether a run of scripts goes on with too few workers because somebody was to join.
    pub(super) fn has_too_few_scripts(&self) -> bool {
        let waiting = self.reserve(&MemberState::Waiting).len();
        let few = self.membership.workers.len() + waiting < self.elastic.least;
        self.scripts.is_some() && few && self.change.is_none() && !self.concluded
    }

    /// Notes who takes part from now on, and for which worker of the plan it stands: one that comes back for itself, if nobody
    /// else does, and others for the first of those that are missing.
    pub(super) fn place_scripts(&mut self, before: &Membership, on: &Regrouped) {
        let joins = |member: &MemberId| self.states[*member] == MemberState::Waiting;
        let joined: Vec<MemberId> = on.membership.workers.iter().copied().filter(joins).collect();
        let Some(scripts) = &mut self.scripts else { return };
        for member in before.workers.iter().filter(|member| !on.membership.workers.contains(member)) {
            scripts.numbers[*member] = None;
            scripts.steps[*member].iter_mut().for_each(|steps| steps.end = steps.end.min(on.from));
        }
        for member in &joined {
            // It may have taken part until now, and be another process already.
            scripts.numbers[*member] = None;
            scripts.steps[*member].iter_mut().for_each(|steps| steps.end = steps.end.min(on.from));
        }
        for member in &joined {
            let taken = |number: &Rank| scripts.numbers.contains(&Some(*number));
            let own = Some(*member).filter(|member| *member < self.base.workers && !taken(member));
            let number = own.or_else(|| (0..self.elastic.most).find(|number| !taken(number)));
            scripts.numbers[*member] = number;
            scripts.steps[*member].push(on.from..u64::MAX);
        }
        let handed = scripts.handed.take();
        scripts.begins_with = handed.map(|(_, handed)| handed).filter(|_| !joined.is_empty());
        scripts.asked = None;
    }

    /// What those who join the present generation begin with, to be told once.
    pub fn begins_with(&mut self) -> Option<RankState> {
        self.scripts.as_mut().and_then(|scripts| scripts.begins_with.take())
    }
}
