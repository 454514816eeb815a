//! A worker of a distributed run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_data::{Dataset, Order, order};
use paceline_nn::{Compute, Graph, Outcome, Pass};
use paceline_plan::{Plan, Straggler};
use paceline_protocol::{Input, Rank, Setup, Strategy, Sync, Trace};
use paceline_random::{Purpose, Stream};
use paceline_wire::Transport;

use crate::clock::{Clock, Phase};
use crate::engine::{Engine, Times};
use crate::error::TrainError;
use crate::memory::{AfterBackward, DuringBackward, Finished};
use crate::model::Replica;
use crate::update::Update;

/// Most elements of one message: half a megabyte stays in cache between receiving and summing.
pub const MESSAGE: usize = 128 * 1024;

/// What a strategy is told about a plan.
pub fn setup(plan: &Plan, params: usize, samples: usize) -> Setup {
    let total = plan.total_samples(samples);
    let order = Order::new(plan.seed, samples, plan.batch * plan.workers, total);
    Setup {
        workers: plan.workers,
        servers: plan.servers,
        params,
        bucket: (plan.bucket / size_of::<f32>()).max(1),
        message: MESSAGE,
        steps: order.steps().min(plan.stop_after_step.unwrap_or(u64::MAX)),
        sync: match plan.sync.as_str() {
            "asp" => Sync::Asp,
            "ssp" => Sync::Ssp(plan.staleness.unwrap_or(0)),
            _ => Sync::Bsp,
        },
        generation: 0,
    }
}

/// What a worker tells while it trains.
#[derive(Clone, Debug)]
pub enum Said {
    /// A stranger was turned away.
    Refused(String),
    /// The first step begins.
    Started,
    /// A step is done.
    Step {
        /// Steps done by this worker.
        step: u64,
        /// Mean loss of its share.
        loss: f64,
        /// Its training clock, in seconds.
        train_s: f64,
    },
    /// It has evaluated its part of the test split.
    Evaluated {
        /// Steps done.
        step: u64,
        /// Its training clock, in seconds.
        train_s: f64,
        /// Sums over its part.
        outcome: Outcome,
    },
}

/// What came of a worker.
pub struct Summary {
    /// Steps done.
    pub steps: u64,
    /// Samples done.
    pub samples: u64,
    /// Training clock, in seconds.
    pub train_s: f64,
    /// Sums of its last step.
    pub last: Outcome,
    /// Its parameters.
    pub params: Vec<f32>,
    /// Its batch-norm statistics.
    pub state: Vec<f32>,
    /// Time spent on others.
    pub times: Times,
    /// Where the compute time went: data, forward, backward.
    pub phases: [f64; 3],
    /// Bytes sent and received.
    pub traffic: (u64, u64),
    /// What was done, if asked for.
    pub trace: Option<Trace>,
}

/// A worker's place in a run.
pub struct Job<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// The dataset.
    pub dataset: &'a Dataset,
    /// The network.
    pub graph: Arc<Graph>,
    /// The strategy.
    pub strategy: &'static Strategy,
    /// What it is told.
    pub setup: &'a Setup,
    /// This worker.
    pub rank: Rank,
    /// Whether to keep a trace.
    pub traced: bool,
}

/// Trains until the run ends.
pub fn run(
    job: &Job<'_>,
    transport: Box<dyn Transport>,
    say: &mut dyn FnMut(Said),
) -> Result<Summary, TrainError> {
    let Job { plan, dataset, setup, rank, .. } = *job;
    let compute = Arc::new(Compute::new(plan.threads, plan.pin));
    let samples = dataset.train.len();
    let mut update = Update::new(plan, samples, Arc::clone(&compute));
    let mut replica = Replica::new(plan, Arc::clone(&job.graph), compute);
    let mut order = Order::new(plan.seed, samples, plan.batch * plan.workers, plan.total_samples(samples));
    let participant = (job.strategy.make)(setup, rank);
    let mut engine = Engine::new(participant, transport, (job.strategy.links)(setup, rank), setup.world());
    engine.trace = job.traced.then(Trace::default);
    let slowness = Slowness { straggler: plan.straggler, rank, seed: plan.seed };
    let synchronous = setup.sync == Sync::Bsp;

    let mut none = Finished::default();
    let Replica { params, .. } = &mut replica;
    engine.start(&mut AfterBackward { grads: &mut none, params, update: &mut update })?;
    say(Said::Started);
    let (mut clock, mut last, mut done, mut taken) = (Clock::default(), Outcome::default(), 0, 0u64);
    loop {
        let Replica { params, .. } = &mut replica;
        let mut memory = AfterBackward { grads: &mut none, params, update: &mut update };
        let Some((step, unit)) = engine.next_step(&mut memory)? else { break };
        clock.lap(Phase::Exchange);
        let began = Instant::now();
        let global = order.batch_len(unit.step);
        let ids = order.batch(unit.step, unit.share, plan.workers);
        let pass = Pass { samples: ids.len(), training: true, seed: plan.seed, step: unit.step, ids };
        // An asynchronous push is an update of its own: the mean over its own samples.
        let scale = 1.0 / if synchronous { global } else { ids.len().max(1) } as f64;
        last = replica.forward(dataset, &pass, scale, &mut clock);
        if !last.loss.is_finite() {
            return Err(TrainError::Diverged {
                step: step + 1,
                samples: order.samples_before(unit.step),
                loss: last.loss,
            });
        }
        taken += ids.len() as u64;

        let Replica { network, params, grads, .. } = &mut replica;
        let mut finished = Finished::default();
        let (mut failed, before) = (None, engine.times.send);
        network.backward(&pass, params, grads, &mut |offset, slice| {
            finished.push(offset, slice);
            if failed.is_none() {
                let mut memory = DuringBackward { grads: &mut finished };
                let input = engine.input(Input::GradReady { from: offset }, &mut memory);
                failed = input.and_then(|()| engine.poll(&mut memory)).err();
            }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        let exchanged = engine.times.send - before;
        let pause = slowness.pause(step, began.elapsed().saturating_sub(exchanged));
        std::thread::sleep(pause);
        clock.lap(Phase::Backward);
        clock.shift(exchanged, Phase::Backward, Phase::Exchange);

        let mut memory = AfterBackward { grads: &mut finished, params, update: &mut update };
        engine.catch_up(&mut memory)?;
        engine.input(Input::BackwardDone, &mut memory)?;
        // Wait here for the step's end: the gradients are lent until then.
        engine.step_over(&mut memory)?;
        clock.lap(Phase::Exchange);
        done = step + 1;
        engine.refused.drain(..).for_each(|cause| say(Said::Refused(cause)));
        say(Said::Step { step: done, loss: last.mean_loss(), train_s: clock.train() });
        let due = plan.eval_every.map_or(order.ends_epoch(step), |every| done.is_multiple_of(every));
        if synchronous && (due || done == setup.steps) {
            let part = order::share(dataset.test.len(), rank, plan.workers);
            let outcome = replica.evaluate(dataset, part);
            clock.lap(Phase::Evaluate);
            say(Said::Evaluated { step: done, train_s: clock.train(), outcome });
        }
        engine.rest();
    }
    let Replica { params, .. } = &mut replica;
    engine.finish(&mut AfterBackward { grads: &mut none, params, update: &mut update })?;
    let phases = [Phase::Data, Phase::Forward, Phase::Backward].map(|p| clock.seconds(p));
    Ok(Summary {
        steps: done,
        samples: taken,
        train_s: clock.train(),
        last,
        params: replica.params,
        state: replica.state,
        traffic: engine.traffic(),
        times: engine.times,
        phases,
        trace: engine.trace,
    })
}

/// Stretches a worker's computation.
struct Slowness {
    straggler: Option<Straggler>,
    rank: Rank,
    seed: u64,
}

impl Slowness {
    fn pause(&self, step: u64, computed: Duration) -> Duration {
        let factor = match self.straggler {
            Some(Straggler::One { rank, factor }) if rank == self.rank => factor,
            Some(Straggler::Lognormal { sigma }) => {
                let draws = Stream::new(self.seed, Purpose::Straggler).fork(self.rank as u64);
                (sigma * draws.normal(step)).exp()
            }
            _ => 1.0,
        };
        computed.mul_f64((factor - 1.0).max(0.0))
    }
}
