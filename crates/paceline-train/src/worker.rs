//! A worker of a run. One worker alone is the same: a participant without peers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_data::Order;
use paceline_memory::{Allocator, TensorStorage};
use paceline_nn::{Compute, Outcome};
use paceline_pipeline::{StageMemory, StagePlan};
use paceline_plan::TrainingLength;
use paceline_protocol::{
    BatchLengths, Buf, Input, Options, Rank, ReplicaAgreement, SINGLE, Setup, Strategy, Trace, WorkerLoad,
};
use paceline_record::{Observer, StageRow, StepRow};
use paceline_resolve::TypedPlan;
use paceline_wire::Transport;

use crate::clock::{Clock, Phase};
use crate::crossings::Crossings;
use crate::engine::{Engine, Times};
use crate::error::TrainError;
use crate::memory::{Scratch, WholeMemory};
use crate::observe::{Steps, Watch};
use crate::segment::{Account, Pause, Segment, SegmentControl, part, restore};
use crate::source::{AfterStep, GradientSource, Layout, SourceCosts, SourceReport};
pub use crate::unit::Slowness;
use crate::unit::{Computed, compute};
use crate::update::Update;

/// Most elements of one message: half a megabyte stays in cache between receiving and summing.
pub const MESSAGE: usize = 128 * 1024;

/// How long a stage waits for others without hearing of them.
const STAGE_PATIENCE: Duration = Duration::from_secs(600);

/// What a strategy is told about a plan.
pub fn setup(plan: &TypedPlan<'_>, layout: &Layout, samples: usize) -> Setup {
    let planned = match (&plan.script, plan.work) {
        (None, _) => {
            let total = plan.total_samples(samples);
            Order::new(plan.seed, samples, plan.global_batch(), total).steps()
        }
        (Some(_), TrainingLength::Steps(steps)) => steps,
        (Some(_), _) => u64::MAX,
    };
    let steps = planned.min(plan.stop_after_step.unwrap_or(u64::MAX));
    let options = Options(plan.options.clone());
    // Where a run switches is a fraction of the whole plan, wherever it is stopped.
    let sync = (plan.consistency.make)(&options, planned);
    // One worker alone sends nothing: its gradient is one piece.
    let bucket =
        if plan.document.strategy == SINGLE { layout.params } else { plan.bucket / size_of::<f32>() };
    Setup {
        shares: plan.shares,
        hosts: plan.layout(),
        paths: plan.paths.clone(),
        bucket: bucket.max(1),
        message: MESSAGE,
        tensors: layout.matrices(),
        sync,
        averages: plan.averages,
        coder: plan.coder,
        options,
        program: plan.program.clone(),
        seed: plan.seed,
        steps: Some(steps).filter(|steps| *steps < u64::MAX),
        ..Setup::new(plan.workers, plan.servers, layout.params, steps)
    }
}

/// The same where the network is cut into stages.
pub fn staged_setup(
    plan: &TypedPlan<'_>,
    layout: &Layout,
    stages: Option<&StagePlan>,
    samples: usize,
) -> Setup {
    let order = Order::new(plan.seed, samples, plan.global_batch(), plan.total_samples(samples));
    let batches = || BatchLengths(Arc::new(move |step| order.batch_len(step)));
    Setup { stages: stages.map(|stages| Arc::new(stages.setup(batches()))), ..setup(plan, layout, samples) }
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
        /// Samples that this worker has done.
        samples: u64,
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
    /// Figures that its source has reported.
    Reported {
        /// Steps done.
        step: u64,
        /// Samples that this worker has done.
        samples: u64,
        /// Its training clock, in seconds.
        train_s: f64,
        /// Names and figures.
        values: Vec<(String, f64)>,
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
    /// The batch-norm statistics of its positions, one behind the other.
    pub state: Vec<f32>,
    /// Time spent on others.
    pub times: Times,
    /// Accuracy of its own replica on the whole test split, where replicas differ.
    pub accuracy: Option<f64>,
    /// Where the compute time went: data, forward, backward.
    pub phases: [f64; 3],
    /// Bytes sent and received.
    pub traffic: (u64, u64),
    /// What a source beside has taken.
    pub beside: SourceCosts,
    /// The worker that ran out of work, if that ended the run.
    pub left: Option<Rank>,
    /// The buffers that it had at the end, where the model is cut into stages; bodies under way are not counted.
    pub memory: Option<StageMemory>,
    /// What was done, if asked for.
    pub trace: Option<Trace>,
}

/// A worker's place in a run.
pub struct Job<'a> {
    /// The plan.
    pub plan: &'a TypedPlan<'a>,
    /// Samples of the training split.
    pub samples: usize,
    /// Threads and instruction set of its updates.
    pub compute: Arc<Compute>,
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

/// A worker's buffers, lent to whoever works on them.
pub(crate) struct Buffers {
    pub(crate) params: TensorStorage,
    /// The gradients of each position.
    pub(crate) grads: Vec<TensorStorage>,
    pub(crate) crossings: Crossings,
    pub(crate) scratch: Scratch,
    pub(crate) update: Update,
}

impl Buffers {
    /// Lets the peers read all of them.
    fn lend_to_peers(&self, engine: &mut Engine) -> Result<(), TrainError> {
        engine.lend(Buf::Param, &self.params)?;
        for (n, grads) in self.grads.iter().enumerate() {
            engine.lend(if n == 0 { Buf::Grad } else { Buf::HostedGrad(n as u16) }, grads)?;
        }
        for (n, scratch) in self.scratch.buffers.iter().enumerate() {
            engine.lend(Buf::Scratch(n as u16), scratch)?;
        }
        self.crossings.buffers().try_for_each(|(buf, storage)| engine.lend(buf, storage))
    }

    /// The bytes of all of them, with those of a stage's passes.
    fn counted(&self, passes: usize) -> StageMemory {
        let grads: usize = self.grads.iter().map(|grads| size_of_val(&grads[..])).sum();
        StageMemory {
            parameters: size_of_val(&self.params[..]) + grads,
            optimiser: self.update.remembered().map(|(_, _, memory)| size_of_val(memory)).sum(),
            passes,
            crossings: self.crossings.bytes(),
            held: 0,
        }
    }

    fn whole(&mut self) -> WholeMemory<'_> {
        let Self { params, grads, crossings, scratch, update } = self;
        WholeMemory { params, grads, crossings, scratch, update }
    }
}

/// Trains until the run ends; `None` if it pauses and does not go on.
pub fn run(
    job: &Job<'_>,
    source: &mut dyn GradientSource,
    transport: Box<dyn Transport>,
    control: &mut SegmentControl<'_>,
    say: &mut dyn FnMut(WorkerEvent),
) -> Result<Option<Summary>, TrainError> {
    let Job { plan, setup, rank, .. } = *job;
    let participant = |Segment { from, to, generation }: Segment| {
        let steps = Some(to).filter(|to| *to < u64::MAX);
        job.strategy.participant(&Setup { from, steps, generation, ..setup.clone() }, rank)
    };
    let links = job.strategy.links_of(setup, rank);
    let mut engine = Engine::new(participant(control.segment), transport, links, setup.world());
    engine.trace = job.traced.then(Trace::default);
    engine.watch = job.observer.clone().map(|observer| Watch::new(observer, setup.world()));
    if let Some(stream) = source.beside() {
        engine.wake_by(Some(stream));
        // How long a script takes between two exchanges is watched where it runs.
        engine.be_patient(Duration::MAX);
    }
    let stages = setup.stages.as_deref();
    if stages.is_some() {
        // A late stage has nothing to do until the earlier ones have passed something on.
        engine.be_patient(STAGE_PATIENCE);
    }
    let positions = setup.positions(rank).len();
    let numbers = source.layout().params;
    let refused = |source| TrainError::Memory { numbers, source };
    let lends = engine.lends() && (stages.is_some() || job.strategy.lends(setup.coder));
    let allocator = if lends { Allocator::Shared } else { Allocator::Private };
    let (params, grads) = source.buffers(positions, allocator).map_err(refused)?;
    let crossings = stages.map(|all| Crossings::new(all, &all.stages[setup.stage_of(rank)], allocator));
    let mut buffers = Buffers {
        params,
        grads,
        crossings: crossings.transpose().map_err(refused)?.unwrap_or_default(),
        scratch: Scratch::new(engine.scratch(), allocator).map_err(refused)?,
        update: match plan.script {
            None => Update::new(plan, job.samples, Arc::clone(&job.compute)),
            Some(_) => Update::by_scripts(),
        },
    };
    if lends {
        buffers.lend_to_peers(&mut engine)?;
    }
    source.start(&mut buffers.params)?;
    buffers.update.freeze(&source.frozen()?, &buffers.params);
    let slowness = Slowness { straggler: plan.straggler, rank, workers: plan.workers, seed: plan.seed };
    let agreement = (job.strategy.agreement)(setup);
    let together = setup.sync.always_together(setup.end());

    let mut account = Account::default();
    if let Some(part) = control.restored.take() {
        let named = &mut [("params", &mut buffers.params[..])];
        account = restore(&part, named, &mut buffers.update, &mut buffers.scratch)?;
        source.restore(part.numbers("state"))?;
        engine.times = account.times(setup.world());
    }
    engine.greet(&mut buffers.whole())?;
    engine.start(&mut buffers.whole())?;
    say(WorkerEvent::Started);
    let (mut done, mut own, mut taken) = (account.steps, account.own_steps, account.samples);
    if setup.world() == 1 && source.evaluates() {
        // Checkpoints of one worker alone did not always say.
        (own, taken) = (done, source.samples_before(done));
    }
    let mut last = Outcome { loss: account.last_loss, samples: account.last_samples, ..Outcome::default() };
    let mut clock = Clock::resumed(&account.clock);
    let mut steps = Steps::begin(&clock, &engine.times);
    let mut evaluated = None;
    let alone = setup.servers == 0;
    // Where steps are not made together, only the launcher knows whether all work is done.
    let finished = |control: &SegmentControl<'_>, done: u64| {
        let stopped = control.gate.stop().is_some();
        control.segment.to == setup.end() && (!stopped || (alone || together) && done == setup.end())
    };
    'run: loop {
        let Some(begin) = engine.next_step(&mut buffers.whole())? else {
            clock.lap(Phase::Exchange);
            if finished(control, done) || engine.left().is_some() {
                break;
            }
            engine.settle(&mut buffers.whole())?;
            source.save()?;
            tell_reports(source, taken, say);
            let account = Account {
                steps: done,
                own_steps: own,
                samples: taken,
                last_loss: last.loss,
                last_samples: last.samples,
                place: source.place(),
                ..Account::default()
            };
            let named = [("params", &buffers.params[..]), ("state", source.state())];
            let part = part(account.note(&clock, &engine.times), &named, &buffers.update, &buffers.scratch);
            let Some(next) = (control.pause)(Pause { step: alone.then_some(done), part }) else {
                engine.finish(&mut buffers.whole())?;
                return Ok(None);
            };
            clock.lap(Phase::Evaluate);
            if next.from == setup.end() {
                break;
            }
            control.segment = next;
            engine = engine.succeed(participant(next), next.generation);
            engine.start(&mut buffers.whole())?;
            steps.skip(&clock, &engine.times);
            continue;
        };
        let step = begin.step;
        let stop = control.gate.step(step);
        if control.gate.abandoned() {
            return Ok(None);
        }
        if let Some(stop) = stop {
            engine.input(Input::StopAt(stop), &mut buffers.whole())?;
        }
        let beside = source.beside().is_some();
        if !beside {
            // A source beside has begun its step already.
            clock.lap(Phase::Exchange);
        }
        let mut overlap = Duration::ZERO;
        let (mut units, mut live) = (Outcome::default(), 0);
        let mut next = Some(begin);
        for slot in 0..positions {
            // Units of one step follow each other without anybody else's help, unless the run ends.
            let unit = if slot == 0 { next.take() } else { engine.next_step(&mut buffers.whole())? };
            let Some(begin) = unit else { continue 'run };
            let (began, cpu) = (Instant::now(), source.cpu_seconds());
            if !beside {
                steps.pass_begins();
            }
            let Some(Computed { outcome, exchanged, passes, live_slots }) =
                compute(rank, source, &mut engine, &mut buffers, &slowness, (&begin, slot), &mut clock)?
            else {
                let ends = if source.beside().is_some() { Input::RunOut } else { Input::Leave };
                engine.input(ends, &mut buffers.whole())?;
                continue 'run;
            };
            steps.pass_ends();
            units += outcome;
            live = live_slots;
            taken += outcome.samples as u64;
            overlap += exchanged;
            if stages.is_none() {
                let pause = slowness.pause(step, began.elapsed().saturating_sub(exchanged));
                std::thread::sleep(pause);
                clock.lap(Phase::Backward);
                if !beside {
                    clock.shift(exchanged, Phase::Backward, Phase::Exchange);
                }
            }

            let memory = &mut buffers.whole();
            engine.catch_up(memory)?;
            // Stages wait for each other between passes.
            let computed = if stages.is_some() { passes } else { began.elapsed().saturating_sub(exchanged) };
            let step_s = computed.as_secs_f64();
            let own = if beside { 0.0 } else { exchanged.as_secs_f64() };
            let cpu = (source.cpu_seconds() - cpu - own).max(0.0) / step_s;
            engine.input(Input::Load(WorkerLoad { cpu: cpu as f32, step_s: step_s as f32 }), memory)?;
            engine.input_of_pass(Input::BackwardDone, memory)?;
        }
        last = units;
        engine.step_over(&mut buffers.whole())?;
        if engine.left().is_some_and(|(_, before)| !together || step >= before) {
            // The step under way was given up.
            continue;
        }
        clock.lap(Phase::Exchange);
        (done, own) = (step + 1, own + 1);
        source.settled(
            step,
            match engine.next_begin() {
                Some(begin) => AfterStep::Next(begin.scale),
                None if finished(control, done) => AfterStep::End,
                None => AfterStep::Pause,
            },
        )?;
        tell_reports(source, taken, say);
        engine.refused.drain(..).for_each(|cause| say(WorkerEvent::Refused(cause)));
        let stage = stages.map(|_| {
            let first = rank - setup.stage_of(rank);
            StageRow {
                wait_up_ns: steps.waited(&engine.times, first..rank),
                wait_down_ns: steps.waited(&engine.times, rank + 1..first + setup.stage_count()),
                live_slots: live,
                activation_bytes: live * source.slot_bytes() as u64,
            }
        });
        let row = StepRow {
            stage,
            overlap_ns: overlap.as_nanos() as u64,
            samples: last.samples as u64,
            loss: last.mean_loss(),
            ..steps.end(own, &clock, &engine.times)
        };
        say(WorkerEvent::Step { step: done, samples: taken, row, train_s: clock.train() });
        if source.evaluates() && (source.evaluates_after(step) || done == setup.end()) {
            let verdict = control.verdict.as_mut().filter(|_| done < setup.end());
            if verdict.is_some() {
                // Nothing moves while this worker stands still, and others may need what has not left yet.
                engine.settle(&mut buffers.whole())?;
                clock.lap(Phase::Exchange);
            }
            let outcome = evaluate(job, source, agreement, &buffers.params, &mut clock, done, say)?;
            evaluated = Some(done);
            let loss = outcome.map_or(0.0, |outcome| outcome.loss);
            if !loss.is_finite() {
                let samples = source.samples_before(done);
                return Err(TrainError::Diverged { step: done, samples, loss });
            }
            let ends = verdict.map_or(Ok(false), |verdict| verdict(done))?;
            clock.lap(Phase::Evaluate);
            steps.skip(&clock, &engine.times);
            if ends {
                // Everybody leaves before the same step; servers hear of it.
                engine.input(Input::Leave, &mut buffers.whole())?;
                break;
            }
        }
        engine.rest();
    }
    let left = engine.left().map(|(worker, _)| worker);
    engine.finish(&mut buffers.whole())?;
    let own_params = source.finish(&mut clock)?;
    tell_reports(source, taken, say);
    if source.evaluates() && left.is_some() && evaluated != Some(done) {
        evaluate(job, source, agreement, &buffers.params, &mut clock, done, say)?;
    }
    if source.beside().is_some() {
        engine.times.apply += Duration::from_secs_f64(clock.seconds(Phase::Apply));
    }
    let train_s = clock.train();
    let apart = agreement == ReplicaAgreement::Apart && setup.servers == 0;
    let accuracy = match apart && source.evaluates() {
        true => Some(source.evaluate(&buffers.params, true)?.accuracy()),
        false => None,
    };
    let phases = [Phase::Data, Phase::Forward, Phase::Backward].map(|p| clock.seconds(p));
    let memory = stages.map(|_| buffers.counted(source.pass_bytes()));
    Ok(Some(Summary {
        steps: done,
        samples: taken,
        train_s,
        last,
        params: own_params.unwrap_or_else(|| buffers.params.to_vec()),
        state: source.state().to_vec(),
        traffic: engine.traffic(),
        times: engine.times,
        accuracy,
        phases,
        beside: source.costs(),
        left,
        memory,
        trace: engine.trace,
    }))
}

/// Tells what a source has reported.
fn tell_reports(source: &mut dyn GradientSource, samples: u64, say: &mut dyn FnMut(WorkerEvent)) {
    for SourceReport { step, train_s, values } in source.reports() {
        say(WorkerEvent::Reported { step, samples, train_s, values });
    }
}

/// Evaluates what is this worker's to evaluate; its outcome, if there is one. Models that agree are evaluated by all
/// workers together, each on its share of the test split; statistics that differ are averaged first, elsewhere, as are
/// models that differ. Stages are put together elsewhere too. Servers show theirs themselves.
fn evaluate(
    job: &Job<'_>,
    source: &mut dyn GradientSource,
    agreement: ReplicaAgreement,
    params: &[f32],
    clock: &mut Clock,
    step: u64,
    say: &mut dyn FnMut(WorkerEvent),
) -> Result<Option<Outcome>, TrainError> {
    let Job { plan, setup, rank, .. } = *job;
    let train_s = clock.train();
    if setup.stages.is_some() {
        // The launcher puts the first replica's stages together, and averages the states of all.
        let params = if rank < setup.stage_count() { params } else { &[] };
        say(WorkerEvent::Snapshot { step, train_s, numbers: [params, source.state()].concat() });
        clock.lap(Phase::Evaluate);
        return Ok(None);
    }
    let common = agreement != ReplicaAgreement::Apart;
    if common && (source.state().is_empty() || plan.workers == 1) {
        let outcome = source.evaluate(params, false)?;
        clock.lap(Phase::Evaluate);
        say(WorkerEvent::Evaluated { step, train_s, outcome });
        return Ok(Some(outcome));
    }
    if common {
        let params = if rank == 0 { params } else { &[] };
        say(WorkerEvent::Snapshot { step, train_s, numbers: [params, source.state()].concat() });
        clock.lap(Phase::Evaluate);
    } else if setup.servers == 0 && step < setup.end() {
        say(WorkerEvent::Snapshot { step, train_s, numbers: [params, source.state()].concat() });
        clock.lap(Phase::Evaluate);
    }
    Ok(None)
}
