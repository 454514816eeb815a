//! An engine whose peers may change: from one generation of members to the next.

use std::sync::Arc;
use std::time::Duration;

use paceline_protocol::{Input, Participant, Rank, RankStanding};
use paceline_wire::Transport;

use super::Engine;
use crate::error::TrainError;
use crate::memory::Memory;
use crate::segment::StepGate;

impl Engine {
    /// Lets another participant take over after a change of members, with connections of its own. Times and what is
    /// recorded go by member, not by rank.
    pub fn reconnect(
        &mut self,
        participant: Box<dyn Participant>,
        transport: Box<dyn Transport>,
        links: Vec<Rank>,
        members: &[Rank],
        generation: u32,
    ) {
        self.earlier = self.traffic();
        if let Some(watch) = &mut self.watch {
            watch.keep(&self.links, &*self.transport);
        }
        // Bodies may lie in memory of the connections.
        self.bodies.clear();
        self.later.clear();
        (self.transport, self.links) = (transport, links);
        self.departed = vec![false; members.len()];
        self.rates = vec![1.0; members.len()];
        self.succeed(participant, generation);
        self.name_members(members);
    }

    /// Makes this the engine of a generation whose members may change: a peer that is gone ends the generation, and so does
    /// the gate.
    pub fn of_members(&mut self, members: &[Rank], generation: u32, gate: &Arc<StepGate>) {
        (self.generation, self.gate) = (generation, Some(Arc::clone(gate)));
        self.name_members(members);
    }

    pub(super) fn name_members(&mut self, members: &[Rank]) {
        let most = members.iter().max().map_or(0, |most| most + 1).max(self.times.wait_for.len());
        self.times.wait_for.resize(most, Duration::ZERO);
        if let Some(watch) = &mut self.watch {
            watch.regroup(members, most);
        }
        self.members = Some(members.to_vec());
    }

    /// The number under which a rank is recorded.
    pub(super) fn recorded(&self, rank: Rank) -> Rank {
        self.members.as_ref().and_then(|members| members.get(rank)).copied().unwrap_or(rank)
    }

    /// Where this rank's parameters stand.
    pub fn standing(&self) -> RankStanding {
        self.participant.standing()
    }

    /// Whether the members of this generation were asked to say where they stand.
    pub(super) fn is_asked_to_stop(&self) -> bool {
        let asked = |gate: &Arc<StepGate>| gate.asked_to_stop(self.generation);
        self.outcome.is_none() && self.gate.as_ref().is_some_and(asked)
    }

    /// Stops the participant where it is, as if it had lost a peer.
    pub fn stop_here(&mut self, memory: &mut dyn Memory) -> Result<(), TrainError> {
        (self.leaving, self.begin) = (0, None);
        self.untouchable.clear();
        self.deferred.clear();
        if self.outcome.is_none() {
            self.input(Input::Lost(0), memory)?;
        }
        Ok(())
    }
}
