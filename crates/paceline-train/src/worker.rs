//! A worker of a run. One worker alone is the same: a participant without peers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_data::Order;
use paceline_memory::{Allocator, TensorStorage};
use paceline_nn::{Compute, Outcome};
use paceline_pipeline::{StageMemory, StagePlan};
use paceline_plan::TrainingLength;
use paceline_protocol::{
    BatchLengths, Buf, Input, Options, Participant, Rank, ReplicaAgreement, SINGLE, Setup, Strategy, Trace,
    WorkerLoad,
};
use paceline_record::{Observer, StageRow, StepRow};
use paceline_resolve::TypedPlan;
use paceline_wire::Transport;

use crate::clock::{Clock, Phase};
use crate::crossings::Crossings;
use crate::engine::{Begin, Engine, Times};
use crate::error::TrainError;
use crate::members::{Generation, NextGeneration};
use crate::memory::{Scratch, WholeMemory};
use crate::observe::{Steps, Watch};
use crate::segment::{Account, Pause, Segment, SegmentControl, part, part_in_one_piece, restore};
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
    // One worker alone sends nothing: its gradient is one piece, unless it is to be handed over as if it were not alone.
    let staged = plan.script.as_ref().is_some_and(|script| script.staged);
    let whole = plan.document.strategy == SINGLE && !staged;
    let bucket = if whole { layout.params } else { plan.bucket / size_of::<f32>() };
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

    /// Lays the optimiser's memory out, so that it can be handed to another worker.
    fn show_optimiser(&mut self) {
        let blocks = 0..self.update.blocks();
        self.scratch.optimiser = blocks.map(|block| self.update.block(block, 0..self.params.len())).collect();
    }

    fn whole(&mut self) -> WholeMemory<'_> {
        let Self { params, grads, crossings, scratch, update } = self;
        WholeMemory { params, grads, crossings, scratch, update }
    }
}

/// A worker at work: what lasts from one generation of its run to the next.
struct Worker<'a> {
    job: &'a Job<'a>,
    /// Its present place: what the strategy is told of the generation, which member of it this is, and the generation
    /// itself where members may change.
    setup: Setup,
    rank: Rank,
    generation: Option<Generation>,
    engine: Engine,
    buffers: Buffers,
    allocator: Allocator,
    slowness: Slowness,
    agreement: ReplicaAgreement,
    together: bool,
    clock: Clock,
    steps: Steps,
    /// Steps of the run, own steps and samples done.
    done: u64,
    own: u64,
    taken: u64,
    /// Samples of steps that were completed.
    settled: u64,
    /// Sums of the last step.
    last: Outcome,
    evaluated: Option<u64>,
    /// Whether the evaluation after the last step of an earlier generation may be missing.
    evaluation_due: bool,
}

/// How a worker came to the end of a generation.
enum GenerationEnd {
    /// All work is done, or the run ends early.
    Finished,
    /// The run has paused, or was given up, and does not go on.
    Stopped,
}

/// Trains until the run ends; `None` if it pauses and does not go on, or goes on without this worker.
pub fn run(
    job: &Job<'_>,
    source: &mut dyn GradientSource,
    transport: Box<dyn Transport>,
    control: &mut SegmentControl<'_>,
    say: &mut dyn FnMut(WorkerEvent),
) -> Result<Option<Summary>, TrainError> {
    let mut worker = Worker::start(job, source, transport, control)?;
    say(WorkerEvent::Started);
    loop {
        let end = worker.generation(source, control, say).and_then(|end| match end {
            GenerationEnd::Finished => worker.conclude(control).map(|()| end),
            GenerationEnd::Stopped => Ok(end),
        });
        match end {
            Ok(GenerationEnd::Finished) => return worker.summary(source, say).map(Some),
            Ok(GenerationEnd::Stopped) => return Ok(None),
            Err(TrainError::Lost { .. } | TrainError::Regroup) if worker.generation.is_some() => {
                if !worker.regroup(source, control, say)? {
                    return Ok(None);
                }
            }
            Err(error) => return Err(error),
        }
    }
}

impl<'a> Worker<'a> {
    /// A worker in its place, with its buffers, connected and ready for its first step.
    fn start(
        job: &'a Job<'a>,
        source: &mut dyn GradientSource,
        transport: Box<dyn Transport>,
        control: &mut SegmentControl<'_>,
    ) -> Result<Self, TrainError> {
        let plan = job.plan;
        let generation = control.members.as_ref().map(|members| members.first());
        let (setup, rank) = match &generation {
            Some(generation) => (generation.setup(job.setup), generation.rank),
            None => (job.setup.clone(), job.rank),
        };
        if generation.is_some() {
            source.take_place(&setup, rank)?;
        }
        let participant = participant(job.strategy, &setup, rank, control.segment);
        let links = job.strategy.links_of(&setup, rank);
        let mut engine = Engine::new(participant, transport, links, setup.world());
        engine.trace = job.traced.then(Trace::default);
        engine.watch = job.observer.clone().map(|observer| Watch::new(observer, setup.world()));
        if let Some(generation) = &generation {
            engine.of_members(&generation.members, control.segment.generation, &control.gate);
        }
        engine.arrivals = source.arrivals();
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
        let numbers = source.layout().params;
        let refused = |source| TrainError::Memory { numbers, source };
        let lends = engine.lends() && (stages.is_some() || job.strategy.lends(setup.coder));
        let allocator = if lends { Allocator::Shared } else { Allocator::Private };
        let (params, grads) = source.buffers(setup.positions(rank).len(), allocator).map_err(refused)?;
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

        let mut account = Account::default();
        if let Some(part) = control.restored.take() {
            let named = &mut [("params", &mut buffers.params[..])];
            account = restore(&part, named, &mut buffers.update, &mut buffers.scratch)?;
            source.restore(part.numbers("state"))?;
            engine.times = account.times(setup.world());
        }
        if generation.as_ref().is_some_and(Generation::gives_optimiser) {
            buffers.show_optimiser();
        }
        engine.greet(&mut buffers.whole())?;
        engine.start(&mut buffers.whole())?;
        let (mut own, mut taken) = (account.own_steps, account.samples);
        if setup.world() == 1 && source.evaluates() {
            // Checkpoints of one worker alone did not always say.
            (own, taken) = (account.steps, source.samples_before(account.steps));
        }
        let clock = Clock::resumed(&account.clock);
        Ok(Self {
            slowness: Slowness {
                straggler: plan.straggler,
                rank: job.rank,
                workers: plan.workers,
                seed: plan.seed,
            },
            agreement: (job.strategy.agreement)(job.setup),
            together: setup.sync.always_together(setup.end()),
            steps: Steps::begin(&clock, &engine.times),
            done: account.steps,
            own,
            taken,
            settled: taken,
            last: Outcome { loss: account.last_loss, samples: account.last_samples, ..Outcome::default() },
            evaluated: None,
            evaluation_due: false,
            job,
            setup,
            rank,
            generation,
            engine,
            buffers,
            allocator,
            clock,
        })
    }

    /// Whether nothing is left to do. Where steps are not made together, only the launcher knows.
    fn finished(&self, control: &SegmentControl<'_>) -> bool {
        let (alone, end) = (self.setup.servers == 0, self.setup.end());
        let stopped = control.gate.stop().is_some();
        control.segment.to == end && (!stopped || (alone || self.together) && self.done == end)
    }

    /// Trains until the run ends, or the generation does: then that is an error.
    fn generation(
        &mut self,
        source: &mut dyn GradientSource,
        control: &mut SegmentControl<'_>,
        say: &mut dyn FnMut(WorkerEvent),
    ) -> Result<GenerationEnd, TrainError> {
        let mut resumes = self.generation.is_some();
        'run: loop {
            let begin = self.engine.next_step(&mut self.buffers.whole())?;
            if let (true, Some(members)) = (std::mem::take(&mut resumes), &mut control.members) {
                self.buffers.scratch.optimiser.clear();
                members.resumed(control.segment.generation);
            }
            if std::mem::take(&mut self.evaluation_due) && self.evaluate(source, control, say)? {
                return Ok(GenerationEnd::Finished);
            }
            let Some(begin) = begin else {
                self.clock.lap(Phase::Exchange);
                if self.finished(control) || self.engine.left().is_some() {
                    return Ok(GenerationEnd::Finished);
                }
                match self.pause(source, control, say)? {
                    None => return Ok(GenerationEnd::Stopped),
                    Some(next) if next.from == self.setup.end() => return Ok(GenerationEnd::Finished),
                    Some(next) => self.go_on(control, next)?,
                }
                continue;
            };
            let step = begin.step;
            let stop = control.gate.step(step);
            if control.gate.abandoned() {
                return Ok(GenerationEnd::Stopped);
            }
            if let Some(stop) = stop {
                self.engine.input(Input::StopAt(stop), &mut self.buffers.whole())?;
            }
            let beside = source.beside().is_some();
            if !beside {
                // A source beside has begun its step already.
                self.clock.lap(Phase::Exchange);
            }
            let mut overlap = Duration::ZERO;
            let (mut units, mut live) = (Outcome::default(), 0);
            let mut next = Some(begin);
            for slot in 0..self.buffers.grads.len() {
                // Units of one step follow each other without anybody else's help, unless the run ends.
                let unit =
                    if slot == 0 { next.take() } else { self.engine.next_step(&mut self.buffers.whole())? };
                let Some(begin) = unit else { continue 'run };
                let Some(unit) = self.unit(source, &begin, slot)? else { continue 'run };
                units += unit.outcome;
                live = unit.live_slots;
                overlap += unit.exchanged;
            }
            self.last = units;
            self.engine.step_over(&mut self.buffers.whole())?;
            if self.engine.left().is_some_and(|(_, before)| !self.together || step >= before) {
                // The step under way was given up.
                continue;
            }
            self.step_done(source, control, say, step, (overlap, live))?;
            if source.evaluates()
                && (source.evaluates_after(step) || self.done == self.setup.end())
                && self.evaluate(source, control, say)?
            {
                // Everybody leaves before the same step; servers hear of it.
                self.engine.input(Input::Leave, &mut self.buffers.whole())?;
                return Ok(GenerationEnd::Finished);
            }
            self.engine.rest();
        }
    }

    /// Computes the gradient of one position; none if there is no more work.
    fn unit(
        &mut self,
        source: &mut dyn GradientSource,
        begin: &Begin,
        slot: usize,
    ) -> Result<Option<Computed>, TrainError> {
        let Self { engine, buffers, slowness, clock, .. } = self;
        let (beside, staged) = (source.beside().is_some(), self.setup.stages.is_some());
        let (began, cpu) = (Instant::now(), source.cpu_seconds());
        if !beside {
            self.steps.pass_begins();
        }
        let Some(computed) = compute(self.rank, source, engine, buffers, slowness, (begin, slot), clock)?
        else {
            let ends = if beside { Input::RunOut } else { Input::Leave };
            engine.input(ends, &mut buffers.whole())?;
            return Ok(None);
        };
        let Computed { outcome, exchanged, passes, .. } = computed;
        self.steps.pass_ends();
        self.taken += outcome.samples as u64;
        if !staged {
            let pause = slowness.pause(begin.step, began.elapsed().saturating_sub(exchanged));
            std::thread::sleep(pause);
            clock.lap(Phase::Backward);
            if !beside {
                clock.shift(exchanged, Phase::Backward, Phase::Exchange);
            }
        }
        let memory = &mut buffers.whole();
        engine.catch_up(memory)?;
        // Stages wait for each other between passes.
        let took = if staged { passes } else { began.elapsed().saturating_sub(exchanged) };
        let step_s = took.as_secs_f64();
        let own = if beside { 0.0 } else { exchanged.as_secs_f64() };
        let cpu = (source.cpu_seconds() - cpu - own).max(0.0) / step_s;
        engine.input(Input::Load(WorkerLoad { cpu: cpu as f32, step_s: step_s as f32 }), memory)?;
        engine.input_of_pass(Input::BackwardDone, memory)?;
        Ok(Some(computed))
    }

    /// A step is done: everybody is told.
    fn step_done(
        &mut self,
        source: &mut dyn GradientSource,
        control: &SegmentControl<'_>,
        say: &mut dyn FnMut(WorkerEvent),
        step: u64,
        (overlap, live): (Duration, u64),
    ) -> Result<(), TrainError> {
        self.clock.lap(Phase::Exchange);
        (self.done, self.own, self.settled) = (step + 1, self.own + 1, self.taken);
        source.settled(
            step,
            match self.engine.next_begin() {
                Some(begin) => AfterStep::Next(begin.scale),
                None if self.finished(control) => AfterStep::End,
                None => AfterStep::Pause,
            },
        )?;
        tell_reports(source, self.taken, say);
        let Self { engine, setup, steps, rank, last, .. } = self;
        engine.refused.drain(..).for_each(|cause| say(WorkerEvent::Refused(cause)));
        let stage = setup.stages.is_some().then(|| {
            let first = *rank - setup.stage_of(*rank);
            StageRow {
                wait_up_ns: steps.waited(&engine.times, first..*rank),
                wait_down_ns: steps.waited(&engine.times, *rank + 1..first + setup.stage_count()),
                live_slots: live,
                activation_bytes: live * source.slot_bytes() as u64,
            }
        });
        let row = StepRow {
            stage,
            overlap_ns: overlap.as_nanos() as u64,
            samples: last.samples as u64,
            loss: last.mean_loss(),
            ..steps.end(self.own, &self.clock, &engine.times)
        };
        say(WorkerEvent::Step { step: self.done, samples: self.taken, row, train_s: self.clock.train() });
        Ok(())
    }

    /// Has the model evaluated after the steps done so far; whether the run ends with that.
    fn evaluate(
        &mut self,
        source: &mut dyn GradientSource,
        control: &mut SegmentControl<'_>,
        say: &mut dyn FnMut(WorkerEvent),
    ) -> Result<bool, TrainError> {
        let done = self.done;
        let verdict = control.verdict.as_mut().filter(|_| done < self.setup.end());
        if verdict.is_some() {
            // Nothing moves while this worker stands still, and others may need what has not left yet.
            self.engine.settle(&mut self.buffers.whole())?;
            self.clock.lap(Phase::Exchange);
        }
        let outcome = self.show(source, say)?;
        self.evaluated = Some(done);
        let loss = outcome.map_or(0.0, |outcome| outcome.loss);
        if !loss.is_finite() {
            let samples = source.samples_before(done);
            return Err(TrainError::Diverged { step: done, samples, loss });
        }
        let ends = verdict.map_or(Ok(false), |verdict| verdict(done))?;
        self.clock.lap(Phase::Evaluate);
        self.steps.skip(&self.clock, &self.engine.times);
        Ok(ends)
    }

    /// Hands over what the worker needs to go on; the next segment, if there is one.
    fn pause(
        &mut self,
        source: &mut dyn GradientSource,
        control: &mut SegmentControl<'_>,
        say: &mut dyn FnMut(WorkerEvent),
    ) -> Result<Option<Segment>, TrainError> {
        self.engine.settle(&mut self.buffers.whole())?;
        source.save()?;
        tell_reports(source, self.taken, say);
        let account = Account {
            steps: self.done,
            own_steps: self.own,
            samples: self.taken,
            last_loss: self.last.loss,
            last_samples: self.last.samples,
            place: source.place(),
            ..Account::default()
        };
        let account = account.note(&self.clock, &self.engine.times);
        let named = [("params", &self.buffers.params[..]), ("state", source.state())];
        let Buffers { update, scratch, .. } = &self.buffers;
        let part = match self.generation {
            Some(_) => part_in_one_piece(account, &named, update, self.setup.params, self.done),
            None => part(account, &named, update, scratch),
        };
        let step = (self.setup.servers == 0 || self.generation.is_some()).then_some(self.done);
        let next = (control.pause)(Pause { step, part })?;
        if next.is_none() {
            self.engine.finish(&mut self.buffers.whole())?;
        }
        self.clock.lap(Phase::Evaluate);
        Ok(next)
    }

    /// Goes on after a pause, with the same members.
    fn go_on(&mut self, control: &mut SegmentControl<'_>, next: Segment) -> Result<(), TrainError> {
        control.segment = next;
        let setup = match &mut self.generation {
            // Everybody has everything by now.
            Some(generation) => {
                generation.hosting.handovers.clear();
                generation.hosting.ahead.clear();
                self.setup = generation.setup(self.job.setup);
                &self.setup
            }
            None => &self.setup,
        };
        let participant = participant(self.job.strategy, setup, self.rank, next);
        self.engine.succeed(participant, next.generation);
        self.engine.start(&mut self.buffers.whole())?;
        self.steps.skip(&self.clock, &self.engine.times);
        Ok(())
    }

    /// All work is done here; in a run whose members may change, waits until it is done everywhere.
    fn conclude(&mut self, control: &mut SegmentControl<'_>) -> Result<(), TrainError> {
        let Some(members) = &mut control.members else { return Ok(()) };
        self.engine.settle(&mut self.buffers.whole())?;
        if members.conclude(control.segment.generation)? { Ok(()) } else { Err(TrainError::Regroup) }
    }

    /// Goes on as a member of the next generation; whether it has one.
    fn regroup(
        &mut self,
        source: &mut dyn GradientSource,
        control: &mut SegmentControl<'_>,
        say: &mut dyn FnMut(WorkerEvent),
    ) -> Result<bool, TrainError> {
        self.engine.stop_here(&mut self.buffers.whole())?;
        let mut standing = self.engine.standing();
        loop {
            let Some(members) = &mut control.members else { return Ok(false) };
            let NextGeneration::GoOn { generation, commit } =
                members.stand(control.segment.generation, standing)?
            else {
                return Ok(false);
            };
            let from = generation.segment.from;
            if commit {
                self.engine.input(Input::Commit(from), &mut self.buffers.whole())?;
                self.step_done(source, control, say, from - 1, (Duration::ZERO, 0))?;
            }
            // A step that was given up is made anew, by whoever.
            (self.done, self.taken) = (from, self.settled);
            let participant = self.take_place(source, control, *generation)?;
            let (Some(members), Some(place)) = (&mut control.members, &self.generation) else {
                return Ok(false);
            };
            let links = self.job.strategy.links_of(&self.setup, self.rank);
            match members.connect(place, &links) {
                Ok(transport) => {
                    let (own, number) = (&place.members, place.segment.generation);
                    self.engine.reconnect(participant, transport, links, own, number);
                    break;
                }
                // Somebody else was lost meanwhile.
                Err(TrainError::Wire(_) | TrainError::Regroup) => standing = participant.standing(),
                Err(error) => return Err(error),
            }
        }
        if self.allocator == Allocator::Shared {
            self.buffers.lend_to_peers(&mut self.engine)?;
        }
        self.engine.start(&mut self.buffers.whole())?;
        self.steps.skip(&self.clock, &self.engine.times);
        Ok(true)
    }

    /// Takes the worker's place in a generation; its participant there.
    fn take_place(
        &mut self,
        source: &mut dyn GradientSource,
        control: &mut SegmentControl<'_>,
        generation: Generation,
    ) -> Result<Box<dyn Participant>, TrainError> {
        control.segment = generation.segment;
        (self.setup, self.rank) = (generation.setup(self.job.setup), generation.rank);
        source.take_place(&self.setup, self.rank)?;
        let numbers = source.layout().params;
        let refused = |source| TrainError::Memory { numbers, source };
        let participant = participant(self.job.strategy, &self.setup, self.rank, control.segment);
        // All of it anew: peers may still have the old memory mapped, and must not see it change.
        let positions = self.setup.positions(self.rank).len();
        let (mut params, grads) = source.buffers(positions, self.allocator).map_err(refused)?;
        params.copy_from_slice(&self.buffers.params);
        let scratch = Scratch::new(participant.scratch(), self.allocator).map_err(refused)?;
        (self.buffers.params, self.buffers.grads, self.buffers.scratch) = (params, grads, scratch);
        if generation.gives_optimiser() {
            self.buffers.show_optimiser();
        }
        let evaluates = source.evaluates();
        let after_step =
            self.done > 0 && (source.evaluates_after(self.done - 1) || self.done == self.setup.end());
        self.evaluation_due = evaluates && after_step;
        self.generation = Some(generation);
        Ok(participant)
    }

    /// What came of the worker.
    fn summary(
        mut self,
        source: &mut dyn GradientSource,
        say: &mut dyn FnMut(WorkerEvent),
    ) -> Result<Summary, TrainError> {
        let left = self.engine.left().map(|(worker, _)| worker);
        self.engine.finish(&mut self.buffers.whole())?;
        let own_params = source.finish(&mut self.clock)?;
        tell_reports(source, self.taken, say);
        if source.evaluates() && left.is_some() && self.evaluated != Some(self.done) {
            self.show(source, say)?;
        }
        let Self { mut engine, buffers, clock, .. } = self;
        if source.beside().is_some() {
            engine.times.apply += Duration::from_secs_f64(clock.seconds(Phase::Apply));
        }
        let train_s = clock.train();
        let apart = self.agreement == ReplicaAgreement::Apart && self.setup.servers == 0;
        let accuracy = match apart && source.evaluates() {
            true => Some(source.evaluate(&buffers.params, true)?.accuracy()),
            false => None,
        };
        let phases = [Phase::Data, Phase::Forward, Phase::Backward].map(|p| clock.seconds(p));
        let memory = self.setup.stages.is_some().then(|| buffers.counted(source.pass_bytes()));
        Ok(Summary {
            steps: self.done,
            samples: self.taken,
            train_s,
            last: self.last,
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
        })
    }

    /// Evaluates what is this worker's to evaluate; its outcome, if there is one. Models that agree are evaluated by all
    /// workers together, each on its share of the test split; statistics that differ are averaged first, elsewhere, as are
    /// models that differ. Stages are put together elsewhere too, and so is what members that may change have. Servers show
    /// theirs themselves.
    fn show(
        &mut self,
        source: &mut dyn GradientSource,
        say: &mut dyn FnMut(WorkerEvent),
    ) -> Result<Option<Outcome>, TrainError> {
        let Self { job, setup, rank, agreement, buffers, clock, done, .. } = self;
        let (step, train_s, common) = (*done, clock.train(), *agreement != ReplicaAgreement::Apart);
        let whole_elsewhere = setup.stages.is_some() || self.generation.is_some();
        if common && !whole_elsewhere && (source.state().is_empty() || job.plan.workers == 1) {
            let outcome = source.evaluate(&buffers.params, false)?;
            clock.lap(Phase::Evaluate);
            say(WorkerEvent::Evaluated { step, train_s, outcome });
            return Ok(Some(outcome));
        }
        // Of models that agree, one is shown: that of the first replica, or of whoever has the first share.
        let first = match self.generation {
            Some(_) => setup.host(0) == *rank,
            None if setup.stages.is_some() => *rank < setup.stage_count(),
            None => *rank == 0 || !common,
        };
        if common || whole_elsewhere || setup.servers == 0 && step < setup.end() {
            let params = if first { &buffers.params[..] } else { &[] };
            say(WorkerEvent::Snapshot { step, train_s, numbers: [params, source.state()].concat() });
            clock.lap(Phase::Evaluate);
        }
        Ok(None)
    }
}

/// The participant of a rank for a segment of steps.
pub(crate) fn participant(
    strategy: &'static Strategy,
    setup: &Setup,
    rank: Rank,
    Segment { from, to, generation }: Segment,
) -> Box<dyn Participant> {
    let steps = Some(to).filter(|to| *to < u64::MAX);
    strategy.participant(&Setup { from, steps, generation, ..setup.clone() }, rank)
}

/// Tells what a source has reported.
fn tell_reports(source: &mut dyn GradientSource, samples: u64, say: &mut dyn FnMut(WorkerEvent)) {
    for SourceReport { step, train_s, values } in source.reports() {
        say(WorkerEvent::Reported { step, samples, train_s, values });
    }
}
