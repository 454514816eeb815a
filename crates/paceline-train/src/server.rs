//! A server of a distributed run: one shard of the parameters.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use paceline_memory::Allocator;
use paceline_nn::Compute;
use paceline_protocol::{Input, Rank, Setup, Strategy, Trace};
use paceline_record::{Observer, StepRow};
use paceline_resolve::TypedPlan;
use paceline_wire::Transport;

use crate::clock::Clock;
use crate::crossings::Crossings;
use crate::engine::{Engine, Times};
use crate::error::TrainError;
use crate::memory::{Scratch, WholeMemory};
use crate::observe::{Steps, Watch};
use crate::segment::{Account, Pause, Segment, SegmentControl, StagePlace, VERDICT, part, restore};
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
    pub plan: &'a TypedPlan<'a>,
    /// The parameters that training starts from: those of its stage, where the model is cut into stages.
    pub start: &'a [f32],
    /// Ranges of them that stay as they are.
    pub frozen: &'a [Range<usize>],
    /// What is made of gradients; made anew for each run.
    pub update: &'a dyn Fn(Arc<Compute>) -> Update,
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
pub enum ServerEvent<'a> {
    /// Updates were applied: what they took, with how many there are now; the parameters now.
    Updates(StepRow, &'a [f32]),
    /// A stranger was turned away.
    Refused(String),
}

/// Serves until every worker has finished, showing `look` what happens; `None` if the run pauses and does not go on.
pub fn run(
    job: &Job<'_>,
    transport: Box<dyn Transport>,
    control: &mut SegmentControl<'_>,
    look: &mut dyn FnMut(ServerEvent<'_>),
) -> Result<Option<Summary>, TrainError> {
    let Job { plan, setup, rank, .. } = *job;
    let compute = Arc::new(Compute::new(plan.threads, plan.pin));
    let mut update = (job.update)(compute);
    // The parameters of one stage, where the model is cut into stages.
    let own = setup.of_stage(setup.stage_of(rank));
    let numbers = own.params;
    let refused = |source| TrainError::Memory { numbers, source };
    let zeros = || Allocator::Private.zeros(numbers).map_err(refused);
    let (mut params, mut grads) = (zeros()?, [zeros()?]);
    params.copy_from_slice(job.start);
    update.freeze(job.frozen, &params);
    let participant = |Segment { from, to, generation }: Segment| {
        let steps = Some(to).filter(|to| *to < u64::MAX);
        job.strategy.participant(&Setup { from, steps, generation, ..setup.clone() }, rank)
    };
    let links = job.strategy.links_of(setup, rank);
    let mut engine = Engine::new(participant(control.segment), transport, links, setup.world());
    engine.trace = job.traced.then(Trace::default);
    engine.watch = job.observer.clone().map(|observer| Watch::new(observer, setup.world()));
    if plan.script.is_some() {
        // How long a script takes between two exchanges is watched where it runs.
        engine.be_patient(Duration::MAX);
    }
    if control.verdict.is_some() {
        // Workers that wait for a verdict are silent.
        engine.be_patient(VERDICT);
    }
    let mut scratch = Scratch::new(engine.scratch(), Allocator::Private).map_err(refused)?;
    let shard = own.shards()[(rank - setup.workers) / setup.stage_count()].clone();
    if let Some(part) = control.restored.take() {
        let named = &mut [("params", &mut params[shard.clone()])];
        let account = restore(&part, named, &mut update, &mut scratch)?;
        engine.times = account.times(setup.world());
        engine.staleness = account.staleness;
    }

    let mut memory = WholeMemory {
        params: &mut params,
        grads: &mut grads,
        crossings: &mut Crossings::default(),
        scratch: &mut scratch,
        update: &mut update,
    };
    // What workers push while peers are greeted is applied at the start, and looked at like everything else.
    let (mut seen, mut told) = (engine.staleness.len(), false);
    engine.greet(&mut memory)?;
    engine.start(&mut memory)?;
    // A server's phases are all its engine's.
    let clock = Clock::default();
    let mut steps = Steps::begin(&clock, &engine.times);
    loop {
        if engine.over()? {
            let (segment, stopped) = (control.segment, control.gate.stop().is_some());
            // Every unit of work has left one update here.
            let step = engine.staleness.len() / own.shares();
            let finished = segment.to == setup.end() && (!stopped || step as u64 == setup.end());
            if finished || engine.left().is_some() {
                break;
            }
            engine.settle(&mut memory)?;
            let place = setup.stages.as_ref().map(|stages| StagePlace {
                stages: setup.stage_count(),
                params: stages.stages[setup.stage_of(rank)].params.start,
                state: 0,
            });
            let account = Account { staleness: engine.staleness.clone(), place, ..Account::default() };
            let account = account.note(&clock, &engine.times);
            let part =
                part(account, &[("params", &memory.params[shard.clone()])], memory.update, memory.scratch);
            let Some(next) = (control.pause)(Pause { step: Some(step as u64), part }) else {
                engine.finish(&mut memory)?;
                return Ok(None);
            };
            if next.from == setup.end() {
                break;
            }
            control.segment = next;
            engine = engine.succeed(participant(next), next.generation);
            engine.start(&mut memory)?;
            steps.skip(&clock, &engine.times);
            told = false;
            continue;
        }
        if let Some(stop) = control.gate.stop().filter(|_| !told) {
            told = true;
            engine.input(Input::StopAt(stop), &mut memory)?;
        }
        engine.wait(&mut memory)?;
        if control.gate.abandoned() {
            return Ok(None);
        }
        engine.refused.drain(..).for_each(|cause| look(ServerEvent::Refused(cause)));
        if engine.staleness.len() > seen {
            let staleness = engine.staleness[seen..].iter().max().copied();
            seen = engine.staleness.len();
            let row = StepRow { staleness, ..steps.end(seen as u64, &clock, &engine.times) };
            look(ServerEvent::Updates(row, memory.params));
        }
    }
    engine.finish(&mut memory)?;
    Ok(Some(Summary {
        traffic: engine.traffic(),
        times: engine.times,
        staleness: engine.staleness,
        trace: engine.trace,
        params: params.to_vec(),
    }))
}
