//! Members that change: what a rank of an elastic run is told of each generation, and what it asks of whoever leads it.
//!
//! A generation ends for a rank when it has lost a peer, or when its leader asks. It then says where its parameters
//! stand, is told the next generation, makes the update that it has put off if it is told to, takes its new place,
//! connects anew and goes on.

use paceline_protocol::{GenerationMembers, MemberId, Rank, RankStanding, Setup};
use paceline_record::RankState;
use paceline_wire::Transport;
use serde::{Deserialize, Serialize};

use crate::error::TrainError;
use crate::segment::Segment;

/// One generation of an elastic run, as one of its members sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Generation {
    /// The member's rank in this generation.
    pub rank: Rank,
    /// Workers: ranks from 0.
    pub workers: usize,
    /// Servers: the ranks behind them.
    pub servers: usize,
    /// The member of each rank.
    pub members: Vec<MemberId>,
    /// Who hosts what, and what is handed over first.
    pub hosting: GenerationMembers,
    /// The steps to do.
    pub segment: Segment,
    /// The training clock, in seconds: that of a member that joins begins there.
    pub clock_s: f64,
}

impl Generation {
    /// What the strategy is told; `base` is the run with the members that it begins with.
    pub fn setup(&self, base: &Setup) -> Setup {
        base.of_members(self.workers, self.servers, self.hosting.clone())
    }

    /// Whether the run was under way before.
    pub(crate) fn goes_on(&self) -> bool {
        self.segment.generation > 0
    }

    /// The first step that this member computes: one that is behind gets to the others' first one by itself.
    pub(crate) fn first_step(&self) -> u64 {
        self.hosting.first_step(self.rank, self.segment.from)
    }

    /// Whether this member hands the optimiser's memory to another one.
    pub(crate) fn gives_optimiser(&self) -> bool {
        self.hosting.handovers.iter().any(|handover| handover.from == self.rank && handover.optimiser)
    }
}

/// How a member goes on.
#[derive(Debug)]
pub enum NextGeneration {
    /// With this generation; first it makes the update that it has put off, if it is to `commit`.
    GoOn {
        /// The generation.
        generation: Box<Generation>,
        /// Whether the put-off update is made.
        commit: bool,
    },
    /// It leaves the run.
    Leave,
}

/// What leads a member through the generations of an elastic run.
pub trait MemberControl {
    /// The generation that the member begins with.
    fn first(&self) -> Generation;

    /// Says where the member stands, with what it hands over to who joins there, and waits for what is next.
    fn stand(
        &mut self,
        generation: u32,
        standing: RankStanding,
        handed: Option<RankState>,
    ) -> Result<NextGeneration, TrainError>;

    /// Says that the member has nothing to hand over to who joins, and why.
    fn cannot_hand_over(&mut self, problem: String);

    /// Connects the member to its peers in a generation.
    fn connect(&mut self, generation: &Generation, links: &[Rank]) -> Result<Box<dyn Transport>, TrainError>;

    /// All work of the generation is done here: waits until it is done everywhere. Whether the run is over; if not, the
    /// members regroup.
    fn conclude(&mut self, generation: u32) -> Result<bool, TrainError>;

    /// The first step of a generation begins.
    fn resumed(&mut self, generation: u32);
}
