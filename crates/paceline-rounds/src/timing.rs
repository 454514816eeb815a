//! Strategies in virtual time: how long an iteration takes behind a link, and what a lost worker does.

use std::sync::Arc;

use paceline_protocol::{Outcome, Participant, Rank, Setup, Strategy};
use paceline_sim::{Costs, Crash, SimulationReport, SizesOnly, simulate};
use serde::Serialize;

use crate::program::Program;
use crate::report::LinkConditions;

/// Steps from whose ends the period is read, and steps before.
const STEPS: u64 = 16;

/// What virtual time says.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VirtualRuns {
    /// Seconds of an iteration of the slowest worker.
    pub period_s: f64,
    /// Seconds of an iteration of ring all-reduce under the same conditions.
    pub ring_allreduce_s: f64,
    /// Workers that never ended, though nothing was left to happen.
    pub stuck: Vec<Rank>,
    /// The worker that was lost, and who of the others ended without naming it: nobody should.
    pub lost: Rank,
    /// Workers that had done all their work when they heard of the loss.
    pub completed: Vec<Rank>,
    /// Those who ended naming it.
    pub named_it: Vec<Rank>,
    /// Those who did neither.
    pub hung: Vec<Rank>,
}

fn setup(conditions: &LinkConditions, workers: usize, seed: u64) -> Setup {
    let bucket = 1 << 20;
    Setup { bucket, message: 128 * 1024, seed, ..Setup::new(workers, 0, conditions.params, 2 * STEPS) }
}

fn simulated(strategy: &Strategy, setup: &Setup, costs: &Costs, crash: Option<Crash>) -> SimulationReport {
    let participants: Vec<Box<dyn Participant>> =
        (0..setup.workers).map(|rank| strategy.participant(setup, rank)).collect();
    simulate(setup, participants, costs, &mut SizesOnly, crash, &[])
}

/// Seconds of an iteration, once it runs evenly.
fn period_s(report: &SimulationReport) -> f64 {
    let at = |step: u64| report.finished.iter().filter_map(|times| times.get(step as usize - 1)).max();
    let (first, last) = (at(STEPS).copied().unwrap_or(0), at(2 * STEPS).copied().unwrap_or(report.end));
    1e-9 * (last.saturating_sub(first)) as f64 / STEPS as f64
}

pub fn virtual_runs(
    program: &Arc<Program>,
    workers: usize,
    seed: u64,
    conditions: &LinkConditions,
) -> VirtualRuns {
    let base = setup(conditions, workers, seed);
    let nanoseconds = |seconds: f64| (1e9 * seconds) as u64;
    let per_byte = 8e9 / conditions.bits_per_s;
    let costs = Costs::constant(
        workers,
        nanoseconds(conditions.compute_s),
        nanoseconds(conditions.latency_s),
        per_byte,
    );
    let strategy = &paceline_protocol::FROM_FILE;
    let averages = paceline_protocol::StrategyProgram::averages(&**program);
    let own = Setup { program: Some(program.clone()), averages, ..base.clone() };
    let whole = simulated(strategy, &own, &costs, None);
    let ring = &paceline_protocol::STRATEGIES[0];
    let lost = workers / 2;
    let crash = Crash { rank: lost, at: whole.end / 2, noticed_after: nanoseconds(conditions.latency_s) };
    let crashed = simulated(strategy, &own, &costs, (workers > 1).then_some(crash));
    let who = |is: &dyn Fn(&Option<Outcome>) -> bool| {
        let others = crashed.outcomes.iter().enumerate().filter(|(rank, _)| *rank != lost && workers > 1);
        others.filter(|(_, outcome)| is(outcome)).map(|(rank, _)| rank).collect()
    };
    VirtualRuns {
        period_s: period_s(&whole),
        ring_allreduce_s: period_s(&simulated(ring, &base, &costs, None)),
        stuck: whole.stuck,
        lost,
        completed: who(&|outcome| *outcome == Some(Outcome::Completed)),
        named_it: who(&|outcome| *outcome == Some(Outcome::Lost(lost))),
        hung: who(&Option::is_none),
    }
}
