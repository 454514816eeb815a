//! A worker of a run. One worker alone is the same: a participant without peers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_data::{Dataset, Order, order};
use paceline_nn::{Compute, Graph, Outcome, Pass};
use paceline_plan::{Plan, Straggler};
use paceline_protocol::{
    Agreement, GradientScale, Input, Load, Options, Rank, SINGLE, Setup, Strategy, Tensor, Trace,
};
use paceline_random::{Purpose, Stream};
use paceline_record::process::thread_cpu_seconds;
use paceline_record::{Observer, StepRow};
use paceline_resolve::TypedPlan;
use paceline_wire::Transport;

use crate::clock::{Clock, Phase};
use crate::engine::{Begin, Engine, Times};
use crate::error::TrainError;
use crate::memory::{DuringBackward, Finished, Scratch, Whole};
use crate::model::Replica;
use crate::observe::{Steps, Watch};
use crate::segment::{Account, Pause, Segment, SegmentControl, part, restore};
use crate::update::Update;
use crate::weights;

/// Most elements of one message: half a megabyte stays in cache between receiving and summing.
pub const MESSAGE: usize = 128 * 1024;

/// What a strategy is told about a plan.
pub fn setup(plan: &TypedPlan<'_>, graph: &Graph, samples: usize) -> Setup {
    let total = plan.total_samples(samples);
    let order = Order::new(plan.seed, samples, plan.batch * plan.workers, total);
    let steps = order.steps().min(plan.stop_after_step.unwrap_or(u64::MAX));
    let options = Options(plan.options.clone());
    // Where a run switches is a fraction of the whole plan, wherever it is stopped.
    let sync = (plan.consistency.make)(&options, order.steps());
    // One worker alone sends nothing: its gradient is one piece.
    let bucket =
        if plan.document.strategy == SINGLE { graph.param_count() } else { plan.bucket / size_of::<f32>() };
    Setup {
        bucket: bucket.max(1),
        message: MESSAGE,
        tensors: graph.params().iter().map(|tensor| matrix(&tensor.shape, tensor.range.start)).collect(),
        sync,
        averages: plan.averages,
        coder: plan.coder,
        options,
        seed: plan.seed,
        ..Setup::new(plan.workers, plan.servers, graph.param_count(), steps)
    }
}

/// A tensor as a matrix, as square as its sizes allow.
fn matrix(shape: &[usize], offset: usize) -> Tensor {
    let split = |at: usize| (shape[..at].iter().product(), shape[at..].iter().product());
    let (rows, cols) = (0..=shape.len())
        .map(split)
        .min_by_key(|(rows, cols): &(usize, usize)| rows + cols)
        .unwrap_or((1, 1));
    Tensor { offset, rows, cols }
}

/// The order of a plan's samples.
pub fn order(plan: &TypedPlan<'_>, dataset: &Dataset) -> Order {
    let (global, total) = (plan.batch * plan.workers, plan.total_samples(dataset.train.len()));
    Order::sharded(plan.seed, dataset.train.labels(), plan.workers, global, total, plan.sharding)
}

/// The samples of a worker's step, and what their summed loss's gradient is scaled by.
pub fn batch<'a>(
    plan: &Plan,
    setup: &Setup,
    order: &'a mut Order,
    rank: Rank,
    begin: Begin,
) -> (Pass<'a>, f64) {
    let (at, share) = place(plan, setup, order, rank, &begin);
    let global = order.batch_len(at);
    let ids = order.batch(at, share, plan.workers);
    let scale = match begin.scale {
        GradientScale::Part => 1.0 / global as f64,
        GradientScale::Own => 1.0 / ids.len().max(1) as f64,
        GradientScale::Even => plan.workers as f64 / global as f64,
    };
    (Pass { samples: ids.len(), training: true, seed: plan.seed, step: begin.unit.step, ids }, scale)
}

/// The step and the share of it that a worker takes samples from.
fn place(plan: &Plan, setup: &Setup, order: &Order, rank: Rank, begin: &Begin) -> (u64, usize) {
    // A worker that holds data of its own takes it in its own order, whatever unit it was handed.
    let own_share = plan.shard != "iid" && !setup.sync.always_together(setup.steps);
    match own_share {
        true => (begin.step % order.steps(), rank),
        false => (begin.unit.step, begin.unit.share),
    }
}

/// What a worker tells while it trains.
#[derive(Clone, Debug)]
pub enum WorkerEvent {
    /// A stranger was turned away.
    Refused(String),
    /// The first step begins.
    Started,
    /// A step is done.
    Step {
        /// Steps done, in the count of the whole run.
        step: u64,
        /// What it took, in the worker's own count.
        row: StepRow,
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
    /// Its model at an evaluation that it cannot make alone: parameters (where they count) and state.
    Snapshot {
        /// Steps done.
        step: u64,
        /// Its training clock, in seconds.
        train_s: f64,
        /// Parameters, then state.
        numbers: Vec<f32>,
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
    /// Accuracy of its own replica on the whole test split, where replicas differ.
    pub accuracy: Option<f64>,
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
    pub plan: &'a TypedPlan<'a>,
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
    /// Who records its links and messages.
    pub observer: Option<Arc<Observer>>,
    /// Whether to keep a trace.
    pub traced: bool,
}

/// Trains until the run ends; `None` if it pauses and does not go on.
pub fn run(
    job: &Job<'_>,
    transport: Box<dyn Transport>,
    control: &mut SegmentControl<'_>,
    say: &mut dyn FnMut(WorkerEvent),
) -> Result<Option<Summary>, TrainError> {
    let Job { plan, dataset, setup, rank, .. } = *job;
    let compute = Arc::new(Compute::new(plan.threads, plan.pin));
    let samples = dataset.train.len();
    let mut update = Update::new(plan, samples, Arc::clone(&compute));
    let mut replica = Replica::new(plan, Arc::clone(&job.graph), compute)?;
    update.freeze(&weights::frozen(plan, &job.graph)?, &replica.params);
    let mut order = order(plan, dataset);
    let participant = |Segment { from, to: steps, generation }: Segment| {
        (job.strategy.make)(&Setup { from, steps, generation, ..setup.clone() }, rank)
    };
    let links = (job.strategy.links)(setup, rank);
    let mut engine = Engine::new(participant(control.segment), transport, links, setup.world());
    engine.trace = job.traced.then(Trace::default);
    engine.watch = job.observer.clone().map(|observer| Watch::new(observer, setup.world()));
    let mut scratch = Scratch::new(engine.scratch());
    let slowness = Slowness { straggler: plan.straggler, rank, workers: plan.workers, seed: plan.seed };
    let agreement = (job.strategy.agreement)(setup);
    let together = setup.sync.always_together(setup.steps);

    let mut account = Account::default();
    if let Some(part) = control.restored.take() {
        let named = &mut [("params", &mut replica.params[..]), ("state", &mut replica.state[..])];
        account = restore(&part, named, &mut update, &mut scratch)?;
        engine.times = account.times(setup.world());
    }
    let Replica { params, grads, .. } = &mut replica;
    let mut memory = Whole { params, grads, scratch: &mut scratch, update: &mut update };
    engine.greet(&mut memory)?;
    engine.start(&mut memory)?;
    say(WorkerEvent::Started);
    let (mut done, mut own, mut taken) = (account.steps, account.own_steps, account.samples);
    if setup.world() == 1 {
        // Checkpoints of one worker alone did not always say.
        (own, taken) = (done, order.samples_before(done));
    }
    let mut last = Outcome { loss: account.last_loss, samples: account.last_samples, ..Outcome::default() };
    let mut clock = Clock::resumed(&account.clock);
    let mut steps = Steps::begin(&clock, &engine.times);
    loop {
        let Replica { params, grads, .. } = &mut replica;
        let mut memory = Whole { params, grads, scratch: &mut scratch, update: &mut update };
        let Some(Begin { step, unit, scale }) = engine.next_step(&mut memory)? else {
            clock.lap(Phase::Exchange);
            let alone = setup.servers == 0;
            let (segment, stopped) = (control.segment, control.gate.stop().is_some());
            // Where steps are not made together, only the launcher knows whether all work is done.
            if segment.to == setup.steps && (!stopped || (alone || together) && done == setup.steps) {
                break;
            }
            engine.settle(&mut memory)?;
            let account = Account {
                steps: done,
                own_steps: own,
                samples: taken,
                last_loss: last.loss,
                last_samples: last.samples,
                ..Account::default()
            };
            let named = [("params", &replica.params[..]), ("state", &replica.state[..])];
            let part = part(account.note(&clock, &engine.times), &named, &update, &scratch);
            let next = (control.pause)(Pause { step: alone.then_some(done), part });
            let Replica { params, grads, .. } = &mut replica;
            let mut memory = Whole { params, grads, scratch: &mut scratch, update: &mut update };
            let Some(next) = next else {
                engine.finish(&mut memory)?;
                return Ok(None);
            };
            clock.lap(Phase::Evaluate);
            if next.from == setup.steps {
                break;
            }
            control.segment = next;
            engine = engine.succeed(participant(next), next.generation);
            engine.start(&mut memory)?;
            steps.skip(&clock, &engine.times);
            continue;
        };
        let stop = control.gate.step(step);
        if control.gate.abandoned() {
            return Ok(None);
        }
        if let Some(stop) = stop {
            engine.input(Input::StopAt(stop), &mut memory)?;
        }
        clock.lap(Phase::Exchange);
        let (began, cpu) = (Instant::now(), thread_cpu_seconds());
        let before = order.samples_before(unit.step);
        let begin = Begin { step, unit, scale };
        if dataset.train.streamed() {
            let (at, share) = place(plan, setup, &order, rank, &begin);
            replica.ahead(dataset, plan.seed, unit.step, order.batch(at, share, plan.workers));
            // Where workers do not go on together, who does what next is not known yet.
            if together && step + 1 < setup.steps {
                let (next, own) = (unit.step + 1, order.batch(at + 1, share, plan.workers));
                replica.ahead(dataset, plan.seed, next, own);
            }
        }
        let (pass, scale) = batch(plan, setup, &mut order, rank, begin);
        let taken_now = pass.samples as u64;
        last = replica.forward(dataset, &pass, scale, &mut clock)?;
        if !last.loss.is_finite() {
            return Err(TrainError::Diverged { step: step + 1, samples: before, loss: last.loss });
        }
        taken += taken_now;

        let Replica { network, params, grads, .. } = &mut replica;
        let mut finished = Finished::default();
        let (mut failed, before) = (None, engine.times.send);
        network.backward(&pass, params, grads, &mut |offset, slice| {
            update.quiet(offset, slice);
            finished.push(offset, slice);
            if failed.is_none() {
                let mut memory = DuringBackward { grads: &mut finished, scratch: &mut scratch };
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

        let mut memory = Whole { params, grads, scratch: &mut scratch, update: &mut update };
        engine.catch_up(&mut memory)?;
        let step_s = began.elapsed().saturating_sub(exchanged).as_secs_f64();
        let cpu = (thread_cpu_seconds() - cpu - exchanged.as_secs_f64()).max(0.0) / step_s;
        engine.input(Input::Load(Load { cpu: cpu as f32, step_s: step_s as f32 }), &mut memory)?;
        engine.input(Input::BackwardDone, &mut memory)?;
        engine.step_over(&mut memory)?;
        clock.lap(Phase::Exchange);
        (done, own) = (step + 1, own + 1);
        engine.refused.drain(..).for_each(|cause| say(WorkerEvent::Refused(cause)));
        let row = StepRow {
            overlap_ns: exchanged.as_nanos() as u64,
            samples: last.samples as u64,
            loss: last.mean_loss(),
            ..steps.end(own, &clock, &engine.times)
        };
        say(WorkerEvent::Step { step: done, row, train_s: clock.train() });
        let due = plan.eval_every.map_or(order.ends_epoch(step), |every| done.is_multiple_of(every));
        if due || done == setup.steps {
            let outcome = evaluate(job, agreement, &mut replica, &mut clock, done, say)?;
            steps.skip(&clock, &engine.times);
            let loss = outcome.map_or(0.0, |outcome| outcome.loss);
            if !loss.is_finite() {
                return Err(TrainError::Diverged { step: done, samples: order.samples_before(done), loss });
            }
            let reached = |target| outcome.is_some_and(|outcome| outcome.accuracy() >= target);
            if setup.world() == 1 && plan.stop_at_target && plan.target_accuracy.is_some_and(reached) {
                break;
            }
        }
        engine.rest();
    }
    let Replica { params, grads, .. } = &mut replica;
    engine.finish(&mut Whole { params, grads, scratch: &mut scratch, update: &mut update })?;
    let train_s = clock.train();
    let apart = agreement == Agreement::Apart && setup.servers == 0;
    let accuracy = match apart {
        true => Some(replica.evaluate(dataset, 0..dataset.test.len())?.accuracy()),
        false => None,
    };
    let phases = [Phase::Data, Phase::Forward, Phase::Backward].map(|p| clock.seconds(p));
    Ok(Some(Summary {
        steps: done,
        samples: taken,
        train_s,
        last,
        params: replica.params,
        state: replica.state,
        traffic: engine.traffic(),
        times: engine.times,
        accuracy,
        phases,
        trace: engine.trace,
    }))
}

/// Evaluates what is this worker's to evaluate; its outcome, if there is one. Models that agree are evaluated by all workers together,
/// each on its share of the test split; statistics that differ are averaged first, elsewhere, as are models
/// that differ. Servers show theirs themselves.
fn evaluate(
    job: &Job<'_>,
    agreement: Agreement,
    replica: &mut Replica,
    clock: &mut Clock,
    step: u64,
    say: &mut dyn FnMut(WorkerEvent),
) -> Result<Option<Outcome>, TrainError> {
    let Job { plan, dataset, setup, rank, .. } = *job;
    let train_s = clock.train();
    let common = agreement != Agreement::Apart;
    if common && (replica.state.is_empty() || plan.workers == 1) {
        let part = order::share(dataset.test.len(), rank, plan.workers);
        let outcome = replica.evaluate(dataset, part)?;
        clock.lap(Phase::Evaluate);
        say(WorkerEvent::Evaluated { step, train_s, outcome });
        return Ok(Some(outcome));
    }
    if common {
        let params = if rank == 0 { &replica.params[..] } else { &[] };
        say(WorkerEvent::Snapshot { step, train_s, numbers: [params, &replica.state].concat() });
        clock.lap(Phase::Evaluate);
    } else if setup.servers == 0 && step < setup.steps {
        say(WorkerEvent::Snapshot { step, train_s, numbers: [&replica.params[..], &replica.state].concat() });
        clock.lap(Phase::Evaluate);
    }
    Ok(None)
}

/// Stretches a worker's computation.
pub struct Slowness {
    /// What the plan says.
    pub straggler: Option<Straggler>,
    /// The worker.
    pub rank: Rank,
    /// Number of workers.
    pub workers: usize,
    /// The plan's seed.
    pub seed: u64,
}

impl Slowness {
    /// How many times as long a step takes: at least 1.
    pub fn factor(&self, step: u64) -> f64 {
        let factor: f64 = match self.straggler {
            Some(Straggler::One { rank, factor }) if rank == self.rank => factor,
            Some(Straggler::Moving { factor }) => {
                let slow = Stream::new(self.seed, Purpose::Straggler).below(step, self.workers as u64);
                if slow == self.rank as u64 { factor } else { 1.0 }
            }
            Some(Straggler::Lognormal { sigma }) => {
                let draws = Stream::new(self.seed, Purpose::Straggler).fork(self.rank as u64);
                (sigma * draws.normal(step)).exp()
            }
            _ => 1.0,
        };
        factor.max(1.0)
    }

    fn pause(&self, step: u64, computed: Duration) -> Duration {
        computed.mul_f64(self.factor(step) - 1.0)
    }
}
