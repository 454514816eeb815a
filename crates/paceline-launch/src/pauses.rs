//! The launcher's side of pauses: gathers what the ranks keep into checkpoints, and says where the run goes on, or
//! that it stops.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use paceline_data::Dataset;
use paceline_plan::Plan;
use paceline_record::{Checkpoint, Checkpoints, RankState};
use paceline_resolve::TypedPlan;
use paceline_train::{Segment, recut};
use serde::{Deserialize, Serialize};

use crate::control::RankCommand;
use crate::error::LaunchError;
use crate::interrupt::Interrupt;
use crate::rank::RankContext;

/// Steps that stages with servers go on after all have said where they could stop, so that each server looks at what it was
/// told before it hands out that step.
const SERVERS_LOOK: u64 = 2;

/// Where a run's checkpoints are, and what may end it early.
#[derive(Clone, Debug)]
pub struct CheckpointContext {
    /// Where checkpoints are written.
    pub checkpoints: Checkpoints,
    /// What the run goes on from.
    pub resumed: Option<Arc<Checkpoint>>,
    /// The request to save and stop.
    pub interrupt: Arc<Interrupt>,
}

impl CheckpointContext {
    /// Whether the last checkpoint in a run's folder can be cut into the stages of its plan.
    pub fn check_cut(folder: &Path, plan: &TypedPlan<'_>, dataset: &Dataset) -> Result<(), LaunchError> {
        let checkpoints = Checkpoints::of(folder);
        let resumed = checkpoints.latest(&plan.checkpoint_hash())?.0.map(Arc::new);
        Self { checkpoints, resumed, interrupt: Interrupt::default().into() }.cut(plan, Some(dataset))
    }

    /// Cuts what the run goes on from into the stages of its plan, if it has others.
    pub(crate) fn cut(&mut self, plan: &TypedPlan<'_>, dataset: Option<&Dataset>) -> Result<(), LaunchError> {
        let Some(resumed) = self.resumed.as_ref().filter(|_| plan.script.is_none()) else {
            return Ok(());
        };
        let context = RankContext::new(plan, dataset, 0)?;
        if let Some(parts) = recut(&resumed.parts, (plan.workers, plan.servers), &context.part_ranges())? {
            self.resumed = Some(Arc::new(Checkpoint { parts, ..(**resumed).clone() }));
        }
        Ok(())
    }
}

/// A part without its numbers, which travel behind it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PackedState {
    /// Names and lengths, in the order of the numbers.
    tensors: Vec<(String, usize)>,
    account: String,
}

/// A part as it travels.
pub fn pack(part: &RankState) -> (PackedState, Vec<f32>) {
    let tensors = part.tensors.iter().map(|(name, numbers)| (name.clone(), numbers.len())).collect();
    let numbers = part.tensors.iter().flat_map(|(_, numbers)| numbers).copied().collect();
    (PackedState { tensors, account: part.account.clone() }, numbers)
}

/// A part that has travelled; none if numbers are missing.
pub fn unpack(packed: PackedState, numbers: &[f32]) -> Option<RankState> {
    let mut rest = numbers;
    let mut tensors = Vec::with_capacity(packed.tensors.len());
    for (name, len) in packed.tensors {
        let (own, others) = rest.split_at_checked(len)?;
        tensors.push((name, own.to_vec()));
        rest = others;
    }
    rest.is_empty().then_some(RankState { tensors, account: packed.account })
}

/// What happens when everybody has paused.
#[derive(Debug)]
pub enum PauseDecision {
    /// It goes on with this segment.
    GoOn(Segment),
    /// It stops here; where it was saved.
    Stop { step: u64, path: PathBuf },
    /// It has reached its target, and ends here.
    End,
}

/// The pauses of a run under way.
pub struct Pauses<'a> {
    plan: &'a Plan,
    checkpointing: &'a CheckpointContext,
    steps: u64,
    /// Whether workers make every step together.
    together: bool,
    segment: Segment,
    parts: Vec<Option<RankState>>,
    /// Steps done, as ranks that know have reported.
    told: Option<u64>,
    /// Where each rank could stop.
    held: Vec<Option<u64>>,
    /// Ranks that have done all their work.
    ended: Vec<bool>,
    /// Whether ranks were asked to stop, and how often they were: members that change are asked again.
    stopping: bool,
    request: u32,
    /// Whether the run has reached its target, and is to end at the next step that all reach.
    reached: bool,
    /// Whether all ranks were told where.
    stop_told: bool,
    /// Where stages stop, once their servers were told.
    servers_told: Option<u64>,
    /// Who takes part now, by process, and the server that chooses where to stop; all of the plan's ranks, unless members
    /// change.
    part: Vec<bool>,
    chooser: usize,
}

impl<'a> Pauses<'a> {
    /// The pauses of a run of `steps` steps, which workers make together or not.
    pub fn new(plan: &'a Plan, checkpointing: &'a CheckpointContext, steps: u64, together: bool) -> Self {
        let from = checkpointing.resumed.as_ref().map_or(0, |checkpoint| checkpoint.step).min(steps);
        let (world, processes) = (plan.workers + plan.servers, plan.members());
        let mut pauses = Self {
            part: (0..processes).map(|process| process < world).collect(),
            chooser: plan.workers,
            plan,
            checkpointing,
            steps,
            together,
            segment: Segment { from, to: steps, generation: 0 },
            parts: vec![None; processes],
            told: None,
            held: vec![None; processes],
            ended: vec![false; processes],
            stopping: false,
            request: 0,
            reached: false,
            stop_told: false,
            servers_told: None,
        };
        pauses.segment.to = pauses.end_of(from);
        pauses
    }

    /// Where a segment that begins here ends.
    pub fn end_of(&self, from: u64) -> u64 {
        self.plan.checkpoint_every.map_or(self.steps, |every| ((from / every + 1) * every).min(self.steps))
    }

    pub fn segment(&self) -> Segment {
        self.segment
    }

    /// What a rank begins with.
    pub fn restored(&self, rank: usize) -> Option<&RankState> {
        self.checkpointing.resumed.as_ref().and_then(|checkpoint| checkpoint.parts.get(rank))
    }

    /// Ranks that are asked to stop before the others are told: all but the server that chooses the step. A rank that
    /// does not know of the stop by then would take the end of its work for the end of the run.
    pub fn asked_first(&self) -> Vec<usize> {
        match self.plan.stages {
            1 => self.taking_part().filter(|&rank| rank != self.chooser).collect(),
            // Each stage has a server of its own that would choose.
            _ => (0..self.plan.workers).collect(),
        }
    }

    /// The processes that take part.
    fn taking_part(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.part.len()).filter(|process| self.part[*process])
    }

    /// The members of the run have changed: it goes on with a segment, and what was asked for is asked again.
    pub fn regrouped(&mut self, segment: Segment, part: Vec<bool>, chooser: Option<usize>) {
        let processes = part.len();
        (self.segment, self.part, self.told) = (segment, part, None);
        self.chooser = chooser.unwrap_or(usize::MAX);
        self.parts = vec![None; processes];
        self.held = vec![None; processes];
        self.ended = vec![false; processes];
        (self.stopping, self.stop_told) = (false, false);
    }

    /// What each process keeps, once all have paused.
    pub fn kept(&self) -> &[Option<RankState>] {
        &self.parts
    }

    /// The run has reached its target: it ends at the next step that all reach.
    pub fn end_at_target(&mut self) {
        self.reached = true;
    }

    /// What to tell the ranks that are [`asked_first`](Self::asked_first) if somebody has just asked for a stop, or the
    /// target was just reached. All ranks must know their peers by then.
    pub fn stop_requested(&mut self) -> Option<RankCommand> {
        if self.stopping || !(self.reached || self.checkpointing.interrupt.requested()) {
            return None;
        }
        self.stopping = true;
        self.request += 1;
        let request = self.request;
        // Servers choose the step by themselves; workers without any, and stages, have to agree on one.
        let servers = self.plan.servers > 0 && self.plan.stages == 1;
        Some(if servers { RankCommand::StopAt { step: 0, request } } else { RankCommand::Hold { request } })
    }

    /// A rank answers where it could stop; what to tell everybody once all that were asked have. What it answers to an
    /// earlier request, before members changed, counts for nothing.
    pub fn answered(&mut self, rank: usize, step: u64, request: u32) -> Option<RankCommand> {
        if request == self.request && self.stopping { self.held(rank, step) } else { None }
    }

    fn held(&mut self, rank: usize, step: u64) -> Option<RankCommand> {
        let request = self.request;
        *self.held.get_mut(rank)? = Some(step);
        let all: Option<Vec<u64>> = self.asked_first().into_iter().map(|rank| self.held[rank]).collect();
        let mut step = all?.into_iter().max()?.min(self.steps);
        if self.plan.stages > 1 && self.plan.servers > 0 {
            // Each stage's server hands out units: all must know where to stop before a worker goes on, and look at it at
            // least once before that step. Servers alone are told until all have answered.
            let Some(told) = self.servers_told else {
                step = (step + SERVERS_LOOK).min(self.steps);
                self.servers_told = Some(step);
                return Some(RankCommand::StopAt { step, request });
            };
            if (self.plan.workers..self.held.len()).any(|rank| self.held[rank].is_none()) {
                return None;
            }
            step = told;
        }
        let told = std::mem::replace(&mut self.stop_told, true);
        (!told).then_some(RankCommand::StopAt { step, request })
    }

    /// The ranks that a stop is told now: servers of stages first, until all have answered; then everybody.
    pub fn told_now(&self) -> Vec<usize> {
        let first = if self.stop_told || self.servers_told.is_none() { 0 } else { self.plan.workers };
        self.taking_part().filter(|rank| *rank >= first).collect()
    }

    /// A rank has done all its work: it could stop at the end. What to tell everybody once all that were asked have
    /// answered.
    pub fn ended(&mut self, rank: usize) -> Option<RankCommand> {
        self.held[rank] = Some(self.steps);
        self.ended[rank] = true;
        if self.stopping { self.held(rank, self.steps) } else { None }
    }

    /// What to tell the ranks that have paused, if all others have done their work: everything is done, so they end
    /// too.
    pub fn finish(&mut self) -> Option<RankCommand> {
        let ranks = || self.taking_part().map(|rank| (&self.ended[rank], &self.parts[rank]));
        let waiting = ranks().any(|(ended, part)| !ended && part.is_some());
        if !waiting
            || !ranks().any(|(ended, _)| *ended)
            || !ranks().all(|(ended, part)| *ended || part.is_some())
        {
            return None;
        }
        Some(self.end())
    }

    /// What to tell ranks that have paused when the run ends: nothing is left to do.
    pub fn end(&mut self) -> RankCommand {
        self.parts.iter_mut().for_each(|part| *part = None);
        let (from, to) = (self.steps, self.steps);
        RankCommand::Next { segment: Some(Segment { from, to, generation: self.segment.generation }) }
    }

    /// A rank has paused; whether all have.
    pub fn paused(&mut self, rank: usize, step: Option<u64>, part: RankState) -> bool {
        self.parts[rank] = Some(part);
        self.told = self.told.or(step);
        self.taking_part().all(|rank| self.parts[rank].is_some())
    }

    /// Saves what all ranks have kept, with the launcher's own account, and decides.
    /// In a run whose members have changed, `parts` are what the plan's ranks would have kept.
    pub fn decide(
        &mut self,
        account: String,
        parts: Option<Vec<RankState>>,
    ) -> Result<PauseDecision, LaunchError> {
        if self.reached {
            return Ok(PauseDecision::End);
        }
        let kept: Vec<RankState> = self.parts.iter_mut().filter_map(Option::take).collect();
        let mut parts = parts.unwrap_or(kept);
        let step = self.told.take().unwrap_or(self.segment.to);
        self.hand_out_server_params(&mut parts);
        let plan_sha256 = self.plan.checkpoint_hash();
        let checkpoint = Checkpoint { step, plan_sha256, account, parts };
        let path = self.checkpointing.checkpoints.save(&checkpoint, self.plan.keep)?;
        if self.stopping && step < self.steps {
            return Ok(PauseDecision::Stop { step, path });
        }
        let generation = self.segment.generation + 1;
        self.segment = Segment { from: step, to: self.end_of(step), generation };
        Ok(PauseDecision::GoOn(self.segment))
    }

    /// Workers that go on from servers' parameters begin with the newest ones. Those that step together have what they
    /// were sent, rounded perhaps.
    fn hand_out_server_params(&self, parts: &mut [RankState]) {
        if self.plan.servers == 0 || self.together {
            return;
        }
        let (workers, servers) = parts.split_at_mut(self.plan.workers);
        let params: Vec<f32> = servers.iter().flat_map(|part| part.numbers("params")).copied().collect();
        for part in workers {
            if let Some((_, own)) = part.tensors.iter_mut().find(|(name, _)| name == "params") {
                own.clone_from(&params);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_travel_whole_or_not_at_all() {
        let tensors = vec![("a".into(), vec![1.0, 2.0]), ("b".into(), vec![]), ("c".into(), vec![3.0])];
        let part = RankState { tensors, account: "{}".into() };
        let (packed, numbers) = pack(&part);
        assert_eq!(unpack(packed.clone(), &numbers), Some(part));
        assert_eq!(unpack(packed.clone(), &numbers[..2]), None);
        assert_eq!(unpack(packed, &[&numbers[..], &[4.0]].concat()), None);
    }

    fn plan(workers: usize, servers: usize) -> Plan {
        Plan { workers, servers, strategy: "ps".into(), ..Plan::example() }
    }

    fn context() -> CheckpointContext {
        let interrupt = Arc::default();
        CheckpointContext { checkpoints: Checkpoints::of("nowhere".as_ref()), resumed: None, interrupt }
    }

    fn part() -> RankState {
        RankState { tensors: vec![], account: "{}".into() }
    }

    /// Every order in which three ranks can answer.
    const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

    #[test]
    fn ranks_that_have_ended_count_as_having_answered_a_stop() {
        let (plan, context) = (plan(3, 0), context());
        for (order, ended) in ORDERS.into_iter().flat_map(|order| [(order, 1), (order, 2), (order, 3)]) {
            let mut pauses = Pauses::new(&plan, &context, 40, false);
            // The last of these ranks ends only after the stop was asked for.
            let (before, after) = order[..ended].split_at(ended - 1);
            before.iter().for_each(|&rank| assert!(pauses.ended(rank).is_none()));
            context.interrupt.request();
            assert!(matches!(pauses.stop_requested(), Some(RankCommand::Hold { .. })));
            let mut answers: Vec<_> = after.iter().map(|&rank| pauses.ended(rank)).collect();
            answers.extend(order[ended..].iter().map(|&rank| pauses.held(rank, 7)));
            let stop = answers.pop().unwrap();
            assert!(answers.iter().all(Option::is_none), "{order:?} {ended}: {answers:?}");
            assert!(
                matches!(stop, Some(RankCommand::StopAt { step: 40, .. })),
                "{order:?} {ended}: {stop:?}"
            );
        }
    }

    #[test]
    fn servers_of_stages_know_where_to_stop_before_a_worker_goes_on() {
        let plan = Plan { stages: 2, ..plan(4, 2) };
        let context = context();
        let mut pauses = Pauses::new(&plan, &context, 40, true);
        context.interrupt.request();
        assert!(matches!(pauses.stop_requested(), Some(RankCommand::Hold { .. })));
        assert_eq!(pauses.asked_first(), [0, 1, 2, 3]);
        for (rank, step) in [(2, 7), (0, 8), (3, 7)] {
            assert!(pauses.held(rank, step).is_none());
        }
        assert!(matches!(pauses.held(1, 7), Some(RankCommand::StopAt { step: 10, .. })));
        assert_eq!(pauses.told_now(), [4, 5]);
        assert!(pauses.held(5, 10).is_none());
        assert!(matches!(pauses.held(4, 10), Some(RankCommand::StopAt { step: 10, .. })));
        assert_eq!(pauses.told_now(), [0, 1, 2, 3, 4, 5]);
        // What servers answer once more changes nothing.
        assert!(pauses.held(4, 10).is_none());
    }

    #[test]
    fn what_was_answered_before_members_changed_does_not_count_afterwards() {
        let (plan, context) = (plan(3, 0), context());
        let mut pauses = Pauses::new(&plan, &context, 40, true);
        context.interrupt.request();
        let Some(RankCommand::Hold { request: first }) = pauses.stop_requested() else { panic!("a hold") };
        assert!(pauses.answered(0, 9, first).is_none());
        // Rank 2 is lost; the answer of rank 1 is still under way.
        let segment = Segment { from: 5, to: 40, generation: 1 };
        pauses.regrouped(segment, vec![true, true, false], None);
        assert!(pauses.answered(1, 9, first).is_none());
        let Some(RankCommand::Hold { request }) = pauses.stop_requested() else { panic!("a hold") };
        assert!(pauses.answered(1, 9, first).is_none(), "it is no answer to this request");
        assert!(pauses.answered(1, 7, request).is_none());
        let stop = pauses.answered(0, 8, request);
        assert!(matches!(stop, Some(RankCommand::StopAt { step: 8, .. })), "{stop:?}");
    }

    #[test]
    fn ranks_that_paused_at_the_end_are_told_to_end_once_all_others_have() {
        let (plan, context) = (plan(2, 1), context());
        for (order, paused) in ORDERS.into_iter().flat_map(|order| [(order, 1), (order, 2)]) {
            let mut pauses = Pauses::new(&plan, &context, 40, false);
            let mut answers = Vec::new();
            for (place, rank) in order.into_iter().enumerate() {
                if place < paused {
                    assert!(!pauses.paused(rank, Some(40), part()), "{order:?} {paused}");
                    answers.push(pauses.finish());
                } else {
                    answers.push(pauses.ended(rank).or_else(|| pauses.finish()));
                }
            }
            let last = answers.pop().unwrap();
            assert!(answers.iter().all(Option::is_none), "{order:?} {paused}: {answers:?}");
            let Some(RankCommand::Next { segment: Some(next) }) = last else { panic!("{order:?}: {last:?}") };
            assert_eq!((next.from, next.to), (40, 40), "{order:?} {paused}");
        }
    }
}
