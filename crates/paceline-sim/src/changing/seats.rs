//! Members as the ranks of a generation: their memory, and what they cost.

use std::sync::Arc;

use paceline_protocol::{Action, MemberId, MsgId, Rank, Region, Time};

use crate::costs::{Costs, StepFactor};
use crate::memory::{RankMemory, StepStart};

/// The memory of members, as the ranks of a generation.
pub(super) struct Seats<'m, M> {
    pub(super) memory: &'m mut M,
    pub(super) members: Vec<MemberId>,
    pub(super) began: Time,
    /// The first step of each rank, and the one behind the last that it has finished.
    pub(super) from: Vec<u64>,
    pub(super) told: Vec<u64>,
    /// The step behind the last one that was begun.
    pub(super) begun: u64,
    /// Steps that were finished, by whom and when.
    pub(super) finished: Vec<(MemberId, Time)>,
}

impl<M: RankMemory> RankMemory for Seats<'_, M> {
    type Body = M::Body;

    fn gradient(&mut self, rank: Rank, begin: StepStart) -> bool {
        self.begun = self.begun.max(begin.unit.step + 1);
        self.memory.gradient(self.members[rank], begin)
    }
    fn read(&mut self, rank: Rank, region: Region) -> M::Body {
        self.memory.read(self.members[rank], region)
    }
    fn hold(&mut self, rank: Rank, msg: MsgId, body: M::Body) {
        self.memory.hold(self.members[rank], msg, body);
    }
    fn release(&mut self, rank: Rank, msg: MsgId) {
        self.memory.release(self.members[rank], msg);
    }
    fn compute(&mut self, rank: Rank, action: &Action) {
        self.memory.compute(self.members[rank], action);
    }
    fn step_over(&mut self, rank: Rank, steps: u64, at: Time) {
        let (steps, at) = (self.from[rank] + steps, self.began + at);
        self.told[rank] = steps;
        self.finished.push((self.members[rank], at));
        self.memory.step_over(self.members[rank], steps, at);
    }
    fn enough(&self) -> bool {
        self.memory.enough()
    }
}

/// The costs of members, as the ranks of a generation.
pub(super) fn costs_of(all: &Costs, members: &[MemberId], workers: usize) -> Costs {
    let compute = |member: &MemberId| all.compute.get(*member).or(all.compute.first()).copied().unwrap_or(0);
    // Spares sit where the first worker does, or on hosts of their own.
    let of = |places: &[usize], first: usize| -> Vec<usize> {
        members.iter().map(|member| places.get(*member).copied().unwrap_or(first)).collect()
    };
    let of_members = members.to_vec();
    let slowness = all
        .slowness
        .clone()
        .map(|slowness| StepFactor(Arc::new(move |rank, step| (slowness.0)(of_members[rank], step))));
    Costs {
        compute: members[..workers].iter().map(compute).collect(),
        slowness,
        layout: match &all.layout[..] {
            [] => members.to_vec(),
            [first, ..] => of(&all.layout, *first),
        },
        machines: match &all.machines[..] {
            [] => Vec::new(),
            [first, ..] => of(&all.machines, *first),
        },
        ..all.clone()
    }
}
