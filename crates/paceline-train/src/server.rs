//! A server of a distributed run: one shard of the parameters.

use std::sync::Arc;

use paceline_nn::{Compute, Graph};
use paceline_plan::Plan;
use paceline_protocol::{Rank, Setup, Strategy, Trace};
use paceline_record::{Observer, StepRow};
use paceline_wire::Transport;

use crate::clock::Clock;
use crate::engine::{Engine, Times};
use crate::error::TrainError;
use crate::memory::{Scratch, Whole};
use crate::observe::{Steps, Watch};
use crate::update::Update;

/// What came of a server.
pub struct Summary {
    /// The parameters; only the shard's part is its own.
    pub params: Vec<f32>,
    /// Time spent.
    pub times: Times,
    /// Bytes sent and received.
    pub traffic: (u64, u64),
    /// Versions between reading and writing, of every update.
    pub staleness: Vec<u64>,
    /// What was done, if asked for.
    pub trace: Option<Trace>,
}

/// A server's place in a run.
pub struct Job<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// The network.
    pub graph: &'a Graph,
    /// Samples of the training split.
    pub samples: usize,
    /// The strategy.
    pub strategy: &'static Strategy,
    /// What it is told.
    pub setup: &'a Setup,
    /// This server.
    pub rank: Rank,
    /// Who records its links and messages.
    pub observer: Option<Arc<Observer>>,
    /// Whether to keep a trace.
    pub traced: bool,
}

/// What can be seen of a server while it serves.
pub enum Seen<'a> {
    /// Updates were applied: what they took, with how many there are now; the parameters now.
    Updates(StepRow, &'a [f32]),
    /// A stranger was turned away.
    Refused(String),
}

/// Serves until every worker has finished, showing `look` what happens.
pub fn run(
    job: &Job<'_>,
    transport: Box<dyn Transport>,
    look: &mut dyn FnMut(Seen<'_>),
) -> Result<Summary, TrainError> {
    let Job { plan, setup, rank, .. } = *job;
    let compute = Arc::new(Compute::new(plan.threads, plan.pin));
    let mut update = Update::new(plan, job.samples, compute);
    let (mut params, mut state) = (vec![0.0; setup.params], vec![0.0; job.graph.state_count()]);
    job.graph.init(plan.seed, &mut params, &mut state);
    let mut grads = vec![0.0; setup.params];
    let participant = (job.strategy.make)(setup, rank);
    let mut engine = Engine::new(participant, transport, (job.strategy.links)(setup, rank), setup.world());
    engine.trace = job.traced.then(Trace::default);
    engine.watch = job.observer.clone().map(|observer| Watch::new(observer, setup.world()));
    let mut scratch = Scratch::new(engine.scratch());

    let mut memory =
        Whole { params: &mut params, grads: &mut grads, scratch: &mut scratch, update: &mut update };
    engine.start(&mut memory)?;
    // A server's phases are all its engine's.
    let (mut seen, clock) = (0, Clock::default());
    let mut steps = Steps::begin(&clock, &engine.times);
    while !engine.over()? {
        engine.wait(&mut memory)?;
        engine.refused.drain(..).for_each(|cause| look(Seen::Refused(cause)));
        if engine.staleness.len() > seen {
            let staleness = engine.staleness[seen..].iter().max().copied();
            seen = engine.staleness.len();
            let row = StepRow { staleness, ..steps.end(seen as u64, &clock, &engine.times) };
            look(Seen::Updates(row, memory.params));
        }
    }
    engine.finish(&mut memory)?;
    Ok(Summary {
        traffic: engine.traffic(),
        times: engine.times,
        staleness: engine.staleness,
        trace: engine.trace,
        params,
    })
}
