//! A worker of a run. One worker alone is the same: a participant without peers.

mod evaluation;
mod job;
mod members;

use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_memory::{Allocator, TensorStorage};
use paceline_nn::Outcome;
use paceline_pipeline::StageMemory;
use paceline_protocol::{
    Buf, Input, Participant, Rank, ReplicaAgreement, Setup, Strategy, Trace, WorkerLoad,
};
use paceline_record::{StageRow, StepRow};
use paceline_wire::Transport;

use crate::clock::{Clock, Phase};
use crate::crossings::Crossings;
use crate::engine::{Begin, Engine};
use crate::error::TrainError;
use crate::members::Generation;
use crate::memory::{Scratch, WholeMemory};
use crate::observe::{Steps, Watch};
use crate::segment::{Account, Pause, Segment, SegmentControl, part, part_in_one_piece, restore};
use crate::source::{AfterStep, GradientSource, SourceReport};
pub use crate::unit::Slowness;
use crate::unit::{Computed, compute};
use crate::update::Update;

pub use job::{Job, Summary, WorkerEvent, setup, staged_setup};
use members::evaluation_due;

/// Most elements of one message: half a megabyte stays in cache between receiving and summing.
pub const MESSAGE: usize = 128 * 1024;

/// How long a stage waits for others without hearing of them.
const STAGE_PATIENCE: Duration = Duration::from_secs(600);

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
        self.crossings.storages().try_for_each(|(buf, storage)| engine.lend(buf, storage))
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
    /// Whether its first participant was started.
    begun: bool,
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
    loop {
        let begun = worker.begin(control, say);
        let end = begun.and_then(|()| worker.generation(source, control, say)).and_then(|end| match end {
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
        let lends = engine.lends() && job.strategy.lends(&setup);
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
            source.restore_own(part.numbers("own"));
            engine.times = account.times(engine.times.wait_for.len());
        }
        if generation.as_ref().is_some_and(Generation::gives_optimiser) {
            buffers.show_optimiser();
        }
        let (mut own, mut taken) = (account.own_steps, account.samples);
        if setup.world() == 1 && source.evaluates() {
            // Checkpoints of one worker alone did not always say.
            (own, taken) = (account.steps, source.samples_before(account.steps));
        }
        let mut clock = Clock::resumed(&account.clock);
        let joins = generation.as_ref().filter(|generation| generation.goes_on());
        if let Some(generation) = joins {
            // Its own count is that of the run, as everybody's is.
            (account.steps, own) = (generation.segment.from, generation.segment.from);
            clock.spend(Duration::from_secs_f64(generation.clock_s), Phase::Exchange);
        }
        let evaluation_due = joins.is_some() && evaluation_due(source, account.steps, setup.end());
        Ok(Self {
            slowness: Slowness {
                straggler: plan.straggler,
                rank: job.rank,
                workers: plan.workers,
                seed: plan.seed,
            },
            agreement: job.strategy.agreement_of_members(job.setup, generation.is_some()),
            together: setup.sync.always_together(setup.end()),
            steps: Steps::begin(&clock, &engine.times),
            done: account.steps,
            own,
            taken,
            settled: taken,
            last: Outcome { loss: account.last_loss, samples: account.last_samples, ..Outcome::default() },
            evaluated: None,
            evaluation_due,
            begun: false,
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
                self.settled += source.caught_up(self.done, &self.buffers.params)?;
                self.taken = self.settled;
                members.resumed(control.segment.generation);
            }
            // One that cannot hand anything over goes on.
            self.handed_over(source, control);
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
            let due = match self.generation {
                Some(_) => self.setup.shares_at(self.rank, step).len(),
                None => self.buffers.grads.len(),
            };
            let mut next = Some(begin);
            for number in 0..due {
                // Units of one step follow each other without anybody else's help, unless the run ends.
                let unit = if number == 0 {
                    next.take()
                } else {
                    self.engine.next_step(&mut self.buffers.whole())?
                };
                let Some(begin) = unit else { continue 'run };
                let slot =
                    self.generation.as_ref().map_or(number, |_| self.setup.slot(self.rank, begin.unit));
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
            let next = match self.engine.next_begin() {
                Some(begin) if control.gate.takes_hand_over(control.segment.generation) => {
                    AfterStep::HandOver(begin.scale)
                }
                Some(begin) => AfterStep::Next(begin.scale),
                None if self.finished(control) => AfterStep::End,
                None => AfterStep::Pause,
            };
            self.step_done(source, say, (step, next), (overlap, live))?;
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

    /// A step is done: everybody is told, and what comes next.
    fn step_done(
        &mut self,
        source: &mut dyn GradientSource,
        say: &mut dyn FnMut(WorkerEvent),
        (step, next): (u64, AfterStep),
        (overlap, live): (Duration, u64),
    ) -> Result<(), TrainError> {
        self.clock.lap(Phase::Exchange);
        (self.done, self.own, self.settled) = (step + 1, self.own + 1, self.taken);
        source.settled(step, next, &self.buffers.params)?;
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
        let params = source.params_to_save().unwrap_or(&self.buffers.params);
        let named = [("params", params), ("state", source.state())];
        let Buffers { update, scratch, .. } = &self.buffers;
        let part = match self.generation {
            Some(_) => part_in_one_piece(account, &named, update, self.setup.params, self.done),
            None => part(account, &named, update, scratch),
        };
        let knows = self.setup.servers == 0 || self.generation.is_some() && self.together;
        let step = knows.then_some(self.done);
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
            Some(generation) => {
                generation.hosting.settled();
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
            // What a step that was given up has taken is not trained on.
            samples: if self.generation.is_some() { self.settled } else { self.taken },
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
