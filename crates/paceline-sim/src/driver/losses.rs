//! Ranks that die, and generations of runs whose members may change.

use paceline_protocol::{Input, Participant, Rank, Setup, Time};

use super::Driver;
use crate::costs::Costs;
use crate::memory::RankMemory;
use crate::queue::Event;
use crate::report::SimulationReport;

/// A rank that dies.
#[derive(Clone, Copy, Debug)]
pub struct Crash {
    /// Who.
    pub rank: Rank,
    /// When.
    pub at: Time,
    /// How long until the others are told.
    pub noticed_after: Time,
}

/// Runs one generation of a run whose members may change: until every live rank has ended. Ranks are to stop together
/// from `stop` on. Returns what happened, and the participants.
pub(crate) fn run_generation<M: RankMemory>(
    setup: &Setup,
    participants: Vec<Box<dyn Participant>>,
    costs: &Costs,
    memory: &mut M,
    crashes: &[Crash],
    stop: Option<Time>,
) -> (SimulationReport, Vec<Box<dyn Participant>>) {
    let mut driver = Driver::new(setup, participants, costs, memory, false);
    driver.ends_with_ranks = true;
    driver.start(&[]);
    driver.crashes(crashes);
    stop.into_iter().for_each(|at| driver.queue.push(at, Event::Stop));
    driver.drive(&mut |_, _| {});
    let participants = driver.members.drain(..).map(|context| context.participant).collect();
    (driver.report, participants)
}

impl<M: RankMemory> Driver<'_, M> {
    pub(super) fn crashes(&mut self, crashes: &[Crash]) {
        for crash in crashes {
            self.queue.push(crash.at, Event::Crash(self.crashes.len() as u32));
            self.crashes.push(*crash);
        }
    }

    /// Tells everybody to end before a step that nobody can have begun when it hears of that: whoever is ahead may be
    /// about to begin the next one.
    pub(super) fn stop_together(&mut self, now: Time) {
        let begun = self.members.iter().filter_map(|context| context.step).max();
        let stop = begun.unwrap_or(self.setup.from).max(self.setup.from) + 2;
        (0..self.members.len()).for_each(|rank| self.put_by(now, rank, Input::StopAt(stop)));
    }

    pub(super) fn die(&mut self, now: Time, Crash { rank: dead, noticed_after, .. }: Crash) {
        if self.report.outcomes[dead].is_some() {
            return;
        }
        self.members[dead].dead = true;
        for rank in (0..self.members.len()).filter(|&rank| rank != dead) {
            self.put_by(now + noticed_after, rank, Input::Lost(dead));
        }
    }
}
