//! What happened in virtual time.

use paceline_protocol::{GradientScale, Outcome, Rank, Tag, Time, Trace, Work, WorkUnit};
use sha2::{Digest, Sha256};

use crate::notes::Notes;

/// A step that was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartedStep {
    /// When.
    pub at: Time,
    /// By whom.
    pub rank: Rank,
    /// Which step of its own.
    pub step: u64,
    /// On which work.
    pub unit: WorkUnit,
    /// How its gradient is weighted.
    pub scale: GradientScale,
}

/// A pass through a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimulatedPass {
    /// By whom.
    pub rank: Rank,
    /// In which step.
    pub step: u64,
    /// Which one.
    pub work: Work,
    /// When it began.
    pub start: Time,
    /// When it was over, pauses included.
    pub end: Time,
}

#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    pub from: Rank,
    pub to: Rank,
    pub tag: Tag,
    /// Whether it had a body.
    pub body: bool,
}

/// Where a rank's time went, in nanoseconds; the rest it waited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SimulatedTimes {
    /// Forward and backward passes, pauses included.
    pub compute: Time,
    /// Sending, receiving, summing.
    pub exchange: Time,
    pub apply: Time,
    pub end: Time,
    /// Waiting, by the rank that was waited for; empty where nobody asked.
    pub wait_for: Vec<Time>,
    /// Bytes sent, headers included.
    pub sent_bytes: u64,
    /// Bytes received, headers included.
    pub received_bytes: u64,
}

impl SimulatedTimes {
    /// Spends what was spent since `before` so many times again.
    pub(crate) fn repeat(&mut self, before: &Self, times: u64) {
        let again = |now: &mut u64, before: u64| *now += times * (*now - before);
        again(&mut self.compute, before.compute);
        again(&mut self.exchange, before.exchange);
        again(&mut self.apply, before.apply);
        again(&mut self.sent_bytes, before.sent_bytes);
        again(&mut self.received_bytes, before.received_bytes);
        self.wait_for.iter_mut().zip(&before.wait_for).for_each(|(now, before)| again(now, *before));
    }

    /// Time without anything to do.
    pub fn wait(&self) -> Time {
        self.end.saturating_sub(self.compute + self.exchange + self.apply)
    }
}

/// What happened.
#[derive(Clone, Debug, Default)]
pub struct SimulationReport {
    /// Where each rank's time went.
    pub spent: Vec<SimulatedTimes>,
    /// When each worker had finished each of its steps: its next one began, or its run was over.
    pub finished: Vec<Vec<Time>>,
    /// How each rank ended; `None` if it crashed or never ended.
    pub outcomes: Vec<Option<Outcome>>,
    /// Live ranks that never ended although nothing was left to happen: a deadlock.
    pub stuck: Vec<Rank>,
    /// Every update's staleness, by rank.
    pub staleness: Vec<Vec<u64>>,
    /// Bytes of bodies that each rank sent.
    pub sent_bytes: Vec<u64>,
    /// Messages that arrived.
    pub messages: u64,
    /// When the first step began.
    pub first_step: Option<Time>,
    /// Virtual time at the end.
    pub end: Time,
    /// Steps that repeat earlier ones and were not driven themselves.
    pub repeated: u64,
    // The rest is empty unless it was asked for.
    /// Every arrival, in time.
    pub arrivals: Vec<Arrival>,
    /// Every step's start, in time.
    pub steps: Vec<StartedStep>,
    /// Every pass through a stage, by when it ended.
    pub passes: Vec<SimulatedPass>,
    /// What each rank did.
    pub traces: Vec<Trace>,
    /// For whom each rank said that it waits, in order.
    pub waits: Vec<Vec<Rank>>,
    /// What was noted of each rank.
    pub notes: Vec<Notes>,
}

impl SimulationReport {
    /// SHA-256 of every worker's finish times, in hexadecimal.
    pub fn trace_sha256(&self) -> String {
        let mut hash = Sha256::new();
        for times in &self.finished {
            hash.update((times.len() as u64).to_le_bytes());
            for part in times.chunks(512) {
                let bytes: Vec<u8> = part.iter().flat_map(|time| time.to_le_bytes()).collect();
                hash.update(&bytes);
            }
        }
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
