//! Steps of a run, one after the other, until they repeat.

use paceline_protocol::{Outcome, Setup, Time};

use super::RecurrenceRefusal;
use crate::costs::Costs;
use crate::driver::Progress;
use crate::report::{SimulatedTimes, SimulationReport};

/// What a step takes of everybody besides its pass.
pub(super) struct StepCosts {
    pub(super) spent: Vec<SimulatedTimes>,
    /// Body bytes that each rank sends.
    pub(super) sent_bytes: Vec<u64>,
    pub(super) messages: u64,
}

/// All ranks of a run, evaluated together.
pub(super) trait Together {
    /// Takes everybody through a step with passes that long.
    fn step(&mut self, passes: &[Time]) -> Result<(), RecurrenceRefusal>;

    /// When each rank has ended the step.
    fn ends(&self, ends: &mut Vec<Time>);

    /// Where everything is that the next step begins with, relative to the first rank's end.
    fn state(&self, first: Time) -> Vec<Time>;

    /// Moves everything to a later time.
    fn move_on(&mut self, by: Time);
}

/// Evaluates all steps of a run, each of which costs the same besides its pass.
pub(super) fn run(
    setup: &Setup,
    costs: &Costs,
    each: StepCosts,
    ranks: &mut impl Together,
    progress: Progress<'_>,
) -> Result<SimulationReport, RecurrenceRefusal> {
    let p = setup.workers;
    let end = setup.steps.ok_or(RecurrenceRefusal::OpenEnd)?;
    let steps = end - setup.from;
    let mut report = SimulationReport {
        finished: vec![Vec::with_capacity(steps as usize); p],
        outcomes: vec![Some(Outcome::Completed); p],
        staleness: vec![Vec::new(); p],
        messages: each.messages * steps,
        sent_bytes: each.sent_bytes.iter().map(|bytes| bytes * steps).collect(),
        spent: each.spent,
        ..SimulationReport::default()
    };
    for spent in &mut report.spent {
        spent.exchange *= steps;
        spent.sent_bytes *= steps;
        spent.received_bytes *= steps;
        spent.apply *= steps;
    }
    let (mut before, mut ends) = (Vec::new(), Vec::with_capacity(p));
    let mut step = setup.from;
    while step < end {
        let passes: Vec<Time> = (0..p).map(|rank| costs.pass(rank, rank, step)).collect();
        ranks.step(&passes)?;
        let last = ends.first().copied().unwrap_or(0);
        ends.clear();
        ranks.ends(&mut ends);
        for (rank, at) in ends.iter().enumerate() {
            report.spent[rank].compute += passes[rank];
            report.finished[rank].push(*at);
        }
        step += 1;
        let state = ranks.state(ends.iter().copied().min().unwrap_or(0));
        if state == before {
            let again = costs.repeats(p, step - 2, 1, end);
            let took = ends.first().map_or(0, |end| end - last);
            for (rank, at) in ends.iter_mut().enumerate() {
                report.finished[rank].extend((1..=again).map(|n| *at + n * took));
                report.spent[rank].compute += again * passes[rank];
                *at += again * took;
            }
            ranks.move_on(again * took);
            step += again;
            report.repeated += again;
        }
        before = state;
        progress(step - setup.from, ends.iter().copied().max().unwrap_or(0));
    }
    for (spent, end) in report.spent.iter_mut().zip(ends) {
        spent.end = end;
        report.end = report.end.max(end);
    }
    Ok(report)
}
