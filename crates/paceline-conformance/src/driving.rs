//! Costs, gradients and runs.

use paceline_protocol::{GradientScale, Participant, Setup, Strategy, WorkUnit};
use paceline_random::{Purpose, Stream};
use paceline_sim::{Costs, Crash, NumericMemory, SimulationReport, WorkCost, simulate};

use crate::case::StrategyCase;

/// Costs drawn from a seed.
pub fn costs(setup: &Setup, seed: u64) -> Costs {
    let s = Stream::new(seed, Purpose::Virtual).fork(10);
    Costs {
        compute: (0..setup.workers).map(|r| 500 + s.below(r as u64, 5_000)).collect(),
        latency: s.below(100, 2_000),
        per_byte: s.unit(101) * 10.0,
        work: WorkCost::uniform(s.unit(102)),
        spread: 3.0 * s.unit(103),
        seed,
        ..Costs::constant(0, 0, 0, 0.0)
    }
}

/// A worker's gradient: its share's pull towards a point that belongs to the unit, over all shares.
pub fn gradient(shares: usize, unit: WorkUnit, scale: GradientScale, params: &[f32], grads: &mut [f32]) {
    let s = Stream::new(unit.step * 100 + unit.share as u64, Purpose::Bench);
    let scale = if scale == GradientScale::Part { 0.2 / shares as f32 } else { 0.2 };
    for (i, (g, p)) in grads.iter_mut().zip(params).enumerate() {
        *g = scale * (p - s.uniform(i as u64, -1.0, 1.0) as f32);
    }
}

/// Where training begins.
pub fn start(params: usize) -> Vec<f32> {
    (0..params).map(|i| (i as f32 * 0.37).sin()).collect()
}

/// Every rank's participant.
pub fn make(strategy: &Strategy, setup: &Setup) -> Vec<Box<dyn Participant>> {
    (0..setup.world()).map(|r| strategy.participant(setup, r)).collect()
}

/// Puts a unit's gradient into a rank's buffer.
pub type Gradient = Box<dyn FnMut(usize, WorkUnit, GradientScale, &[f32], &mut [f32])>;

/// Real numbers for every rank.
pub fn numbers(setup: &Setup, scratch: Vec<Vec<usize>>) -> NumericMemory<Gradient> {
    let shares = setup.shares();
    let gradient: Gradient = Box::new(move |_, unit, scale, p, g| gradient(shares, unit, scale, p, g));
    NumericMemory::new(&start(setup.params), scratch, gradient)
}

/// Runs with real numbers; the report and each rank's parameters.
///
/// # Panics
/// If a body is not released.
pub fn run(
    case: &StrategyCase,
    setup: &Setup,
    costs: &Costs,
    crash: Option<Crash>,
) -> (SimulationReport, Vec<Vec<f32>>) {
    let participants = make(case.strategy, setup);
    let scratch = participants.iter().map(|p| p.scratch()).collect();
    let mut memory = numbers(setup, scratch);
    let report = simulate(setup, participants, costs, &mut memory, crash, &[]);
    let dead = crash.map(|crash| crash.rank);
    let released = (0..setup.world()).filter(|r| Some(*r) != dead).all(|r| memory.held(r) == 0);
    assert!(released, "{}: every body is released", case.name());
    let params = (0..setup.world()).map(|r| memory.params(r).to_vec()).collect();
    (report, params)
}

/// The root of a sum of squares.
pub fn norm(v: impl Iterator<Item = f64>) -> f64 {
    v.map(|x| x * x).sum::<f64>().sqrt()
}
