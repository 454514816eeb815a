//! What became of a run whose members change.

use paceline_protocol::{DroppedSteps, MemberId, Membership, RegroupEnd, Time};

use crate::report::SimulatedTimes;

/// One generation of such a run.
#[derive(Clone, Debug)]
pub struct GenerationReport {
    /// When it began.
    pub began: Time,
    /// When the last of its members stopped.
    pub ended: Time,
    /// Its first step.
    pub from: u64,
    /// The one that the next generation begins with, or the run's end.
    pub to: u64,
    /// Who took part.
    pub membership: Membership,
    /// Members that were lost in it, and when.
    pub lost: Vec<(MemberId, Time)>,
    /// Members that left in time.
    pub left: Vec<MemberId>,
    /// Members that were to be handed parameters before its first step.
    pub handed: Vec<MemberId>,
    /// The step behind the last one that was begun.
    pub begun: u64,
    /// Members that then made an update which others had made before the loss, or all could.
    pub caught_up: Vec<MemberId>,
    /// Parts of servers' parameters that were one update ahead of the workers'.
    pub ahead: usize,
    /// Where workers take units one by one: parts of which one copy had more updates than the other.
    pub levelled: usize,
    /// Units that are done again since some part lacks them.
    pub open: Vec<u64>,
    /// Steps that nobody computed of a share, because its worker was gone.
    pub dropped: Vec<DroppedSteps>,
    /// When the first step began.
    pub first_step: Option<Time>,
}

impl GenerationReport {
    /// Steps that were begun and are made anew.
    pub fn anew(&self) -> u64 {
        self.begun.saturating_sub(self.to)
    }
}

/// What became of a run whose members change.
#[derive(Clone, Debug)]
pub struct ChangingReport {
    /// The generations, in time.
    pub generations: Vec<GenerationReport>,
    /// Why it could not go on, if it did not come to its end.
    pub end: Option<RegroupEnd>,
    /// Ranks that waited for ever: a fault of the strategy.
    pub stuck: Vec<MemberId>,
    /// When it ended.
    pub ended: Time,
    /// When each member finished each of its steps.
    pub finished: Vec<Vec<Time>>,
    /// Where each member's time went.
    pub spent: Vec<SimulatedTimes>,
    /// Messages that arrived.
    pub messages: u64,
    /// How many versions old the parameters were that each update was computed from.
    pub staleness: Vec<u64>,
}

impl ChangingReport {
    /// Each pause: when the members changed, and how long until the next step began.
    pub fn pauses(&self) -> Vec<(Time, Time)> {
        let pairs = self.generations.iter().zip(self.generations.iter().skip(1));
        let pause = |(before, after): (&GenerationReport, &GenerationReport)| {
            let since = before.lost.iter().map(|(_, at)| *at).min().unwrap_or(before.ended);
            (since, after.first_step.unwrap_or(after.ended).saturating_sub(since))
        };
        pairs.map(pause).collect()
    }
}
