//! A server of a distributed run: one shard of the parameters.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use paceline_memory::{Allocator, TensorStorage};
use paceline_nn::Compute;
use paceline_protocol::{Buf, Input, PartStanding, Rank, Setup, Strategy, Trace, WorkLeft};
use paceline_record::{Observer, StepRow};
use paceline_resolve::TypedPlan;
use paceline_wire::Transport;

use crate::clock::Clock;
use crate::crossings::Crossings;
use crate::engine::{Engine, Times};
use crate::error::TrainError;
use crate::members::{Generation, NextGeneration};
use crate::memory::{Scratch, WholeMemory};
use crate::observe::{Steps, Watch};
use crate::segment::{
    Account, Pause, Segment, SegmentControl, StagePlace, VERDICT, part, part_in_one_piece, restore,
};
use crate::update::Update;
use crate::worker::participant;

/// What came of a server.
pub struct Summary {
    /// Steps of which it has all updates.
    pub steps: u64,
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

/// A server at work: what lasts from one generation of its run to the next.
struct Server<'a> {
    job: &'a Job<'a>,
    /// Its present place, and the generation where members may change.
    setup: Setup,
    rank: Rank,
    generation: Option<Generation>,
    engine: Engine,
    params: TensorStorage,
    /// Sums of gradients, for each position.
    grads: Vec<TensorStorage>,
    crossings: Crossings,
    scratch: Scratch,
    update: Update,
    clock: Clock,
    steps: Steps,
    /// Updates that were looked at.
    seen: usize,
    /// Whether its first participant was started.
    begun: bool,
}

/// Serves until every worker has finished, showing `look` what happens; `None` if the run pauses and does not go on, or
/// goes on without this server.
pub fn run(
    job: &Job<'_>,
    transport: Box<dyn Transport>,
    control: &mut SegmentControl<'_>,
    look: &mut dyn FnMut(ServerEvent<'_>),
) -> Result<Option<Summary>, TrainError> {
    let mut server = Server::start(job, transport, control)?;
    loop {
        let begun = server.begin(control);
        let served = begun.and_then(|()| server.generation(control, look));
        let served =
            served.and_then(|over| if over { server.conclude(control).map(|()| true) } else { Ok(false) });
        match served {
            Ok(true) => break,
            Ok(false) => return Ok(None),
            Err(TrainError::Lost { .. } | TrainError::Regroup) if server.generation.is_some() => {
                if !server.regroup(control)? {
                    return Ok(None);
                }
            }
            Err(error) => return Err(error),
        }
    }
    let steps = server.step();
    let (engine, mut memory) = server.parts();
    engine.finish(&mut memory)?;
    let Server { engine, params, .. } = server;
    Ok(Some(Summary {
        steps,
        traffic: engine.traffic(),
        times: engine.times,
        staleness: engine.staleness,
        trace: engine.trace,
        params: params.to_vec(),
    }))
}

impl<'a> Server<'a> {
    /// A server in its place, with its buffers, connected and started.
    fn start(
        job: &'a Job<'a>,
        transport: Box<dyn Transport>,
        control: &mut SegmentControl<'_>,
    ) -> Result<Self, TrainError> {
        let plan = job.plan;
        let generation = control.members.as_ref().map(|members| members.first());
        let (setup, rank) = match &generation {
            Some(generation) => (generation.setup(job.setup), generation.rank),
            None => (job.setup.clone(), job.rank),
        };
        let mut update = (job.update)(Arc::new(Compute::new(plan.threads, plan.pin)));
        // The parameters of one stage, where the model is cut into stages.
        let own = job.setup.of_stage(job.setup.stage_of(job.rank));
        let numbers = own.params;
        let refused = |source| TrainError::Memory { numbers, source };
        let participant = participant(job.strategy, &setup, rank, control.segment);
        let links = job.strategy.links_of(&setup, rank);
        let mut engine = Engine::new(participant, transport, links, setup.world());
        engine.trace = job.traced.then(Trace::default);
        engine.watch = job.observer.clone().map(|observer| Watch::new(observer, setup.world()));
        if let Some(generation) = &generation {
            engine.of_members(&generation.members, control.segment.generation, &control.gate);
        }
        if plan.script.is_some() {
            // How long a script takes between two exchanges is watched where it runs.
            engine.be_patient(Duration::MAX);
        }
        if control.verdict.is_some() {
            // Workers that wait for a verdict are silent.
            engine.be_patient(VERDICT);
        }
        let mut params = allocator(lends_params(job, &setup, &engine)).zeros(numbers).map_err(refused)?;
        params.copy_from_slice(job.start);
        update.freeze(job.frozen, &params);
        let mut scratch = Scratch::new(engine.scratch(), Allocator::Private).map_err(refused)?;
        if let Some(part) = control.restored.take() {
            let shard = own.shards()[(job.rank - job.setup.workers) / job.setup.stage_count()].clone();
            let named = &mut [("params", &mut params[shard])];
            let account = restore(&part, named, &mut update, &mut scratch)?;
            engine.times = account.times(setup.world());
            engine.staleness = account.staleness;
        }
        // A server's phases are all its engine's.
        let clock = Clock::default();
        let grads = positions(&setup, rank, numbers, &engine).map_err(refused)?;
        let mut server = Self {
            steps: Steps::begin(&clock, &engine.times),
            // What workers push while peers are greeted is applied at the start, and looked at like everything else.
            seen: engine.staleness.len(),
            grads,
            crossings: Crossings::default(),
            job,
            setup,
            rank,
            generation,
            engine,
            params,
            scratch,
            update,
            clock,
            begun: false,
        };
        server.lend_to_peers()?;
        server.show_optimiser();
        server.count_updates();
        Ok(server)
    }

    /// Greets its peers and starts, the first time.
    fn begin(&mut self, control: &SegmentControl<'_>) -> Result<(), TrainError> {
        if self.begun {
            return Ok(());
        }
        if control.gate.asked_to_stop(control.segment.generation) && self.generation.is_some() {
            // It is not connected to anybody.
            return Err(TrainError::Regroup);
        }
        let (engine, mut memory) = self.parts();
        engine.greet(&mut memory)?;
        self.begun = true;
        let (engine, mut memory) = self.parts();
        engine.start(&mut memory)?;
        self.steps.skip(&self.clock, &self.engine.times);
        Ok(())
    }

    /// The engine, and the memory that it works on.
    fn parts(&mut self) -> (&mut Engine, WholeMemory<'_>) {
        let Self { engine, params, grads, crossings, scratch, update, .. } = self;
        (engine, WholeMemory { params, grads, crossings, scratch, update })
    }

    /// Lays the optimiser's memory out, if it is to be handed to another server.
    fn show_optimiser(&mut self) {
        if self.generation.as_ref().is_some_and(Generation::gives_optimiser) {
            let blocks = 0..self.update.blocks();
            self.scratch.optimiser = blocks.map(|b| self.update.block(b, 0..self.params.len())).collect();
        }
    }

    /// Notes how many updates each part has, where they are not those of steps: whoever is handed what the optimiser
    /// remembers goes on counting from there.
    fn count_updates(&mut self) {
        if self.setup.batch.is_none() {
            return;
        }
        let work = self.generation.as_ref().and_then(|generation| generation.hosting.work.as_ref());
        let (parts, units) = (self.engine.standing().parts, self.setup.units());
        let first = self.generation.as_ref().map_or(0, |generation| generation.segment.from);
        for PartStanding { part, range, .. } in parts {
            let lacking = |work: &WorkLeft| work.next - work.lacking(part).len() as u64;
            self.update.counted(range.start, work.map_or(first * units, lacking));
        }
    }

    /// Serves until the run ends: whether it has come to its end, or stops. The generation's end is an error.
    fn generation(
        &mut self,
        control: &mut SegmentControl<'_>,
        look: &mut dyn FnMut(ServerEvent<'_>),
    ) -> Result<bool, TrainError> {
        let mut told = false;
        loop {
            if self.engine.over()? {
                let (segment, stopped) = (control.segment, control.gate.stop().is_some());
                let (step, end) = (self.step(), self.setup.end());
                let finished = segment.to == end && (!stopped || step == end);
                if finished || self.engine.left().is_some() {
                    return Ok(true);
                }
                let Some(next) = self.pause(control, step)? else { return Ok(false) };
                if next.from == end {
                    return Ok(true);
                }
                control.segment = next;
                if let Some(generation) = &mut self.generation {
                    generation.hosting.settled();
                    self.setup = generation.setup(self.job.setup);
                }
                let participant = participant(self.job.strategy, &self.setup, self.rank, next);
                self.engine.succeed(participant, next.generation);
                let (engine, mut memory) = self.parts();
                engine.start(&mut memory)?;
                self.steps.skip(&self.clock, &self.engine.times);
                told = false;
                continue;
            }
            if let Some(stop) = control.gate.stop().filter(|_| !told) {
                told = true;
                let (engine, mut memory) = self.parts();
                engine.input(Input::StopAt(stop), &mut memory)?;
            }
            let (engine, mut memory) = self.parts();
            engine.wait(&mut memory)?;
            if control.gate.abandoned() {
                return Ok(false);
            }
            self.engine.refused.drain(..).for_each(|cause| look(ServerEvent::Refused(cause)));
            if self.engine.staleness.len() > self.seen {
                let staleness = self.engine.staleness[self.seen..].iter().max().copied();
                self.seen = self.engine.staleness.len();
                let row = self.steps.end(self.seen as u64, &self.clock, &self.engine.times);
                look(ServerEvent::Updates(StepRow { staleness, ..row }, &self.params));
            }
        }
    }

    /// Steps whose updates were made here.
    fn step(&self) -> u64 {
        if self.generation.is_some() {
            let parts = self.engine.standing().parts;
            let made = parts.iter().map(PartStanding::first_missing).min().unwrap_or(0);
            return if self.setup.batch.is_some() { made / self.setup.units() } else { made };
        }
        // Every unit of work has left one update.
        (self.engine.staleness.len() / self.setup.of_stage(self.setup.stage_of(self.rank)).shares()) as u64
    }

    /// Hands over what the server needs to go on; the next segment, if there is one.
    fn pause(&mut self, control: &mut SegmentControl<'_>, step: u64) -> Result<Option<Segment>, TrainError> {
        let (engine, mut memory) = self.parts();
        engine.settle(&mut memory)?;
        let Self { setup, rank, params, update, scratch, .. } = &*self;
        let place = setup.stages.as_ref().map(|stages| StagePlace {
            stages: setup.stage_count(),
            params: stages.stages[setup.stage_of(*rank)].params.start,
            state: 0,
        });
        let account = Account { staleness: self.engine.staleness.clone(), place, ..Account::default() };
        let account = account.note(&self.clock, &self.engine.times);
        let (part, step) = match self.generation {
            // Which shards it has is the launcher's to know, and which step this is the workers', if they make it together.
            Some(_) => {
                let named = [("params", &params[..])];
                let knows = setup.batch.is_some() && !self.engine.standing().parts.is_empty();
                let updates = if setup.batch.is_some() { step * setup.units() } else { step };
                let step = knows.then_some(step);
                (part_in_one_piece(account, &named, update, setup.params, updates), step)
            }
            None => {
                let own = setup.of_stage(setup.stage_of(*rank));
                let shard = own.shards()[(rank - setup.workers) / setup.stage_count()].clone();
                (part(account, &[("params", &params[shard])], update, scratch), Some(step))
            }
        };
        let next = (control.pause)(Pause { step, part })?;
        if next.is_none() {
            let (engine, mut memory) = self.parts();
            engine.finish(&mut memory)?;
        }
        Ok(next)
    }

    /// All work is done here; in a run whose members may change, waits until it is done everywhere.
    fn conclude(&mut self, control: &mut SegmentControl<'_>) -> Result<(), TrainError> {
        let Some(members) = &mut control.members else { return Ok(()) };
        let (engine, mut memory) = self.parts();
        engine.settle(&mut memory)?;
        if members.conclude(control.segment.generation)? { Ok(()) } else { Err(TrainError::Regroup) }
    }

    /// Goes on as a member of the next generation; whether it has one.
    fn regroup(&mut self, control: &mut SegmentControl<'_>) -> Result<bool, TrainError> {
        if std::mem::replace(&mut self.begun, true) {
            let (engine, mut memory) = self.parts();
            engine.stop_here(&mut memory)?;
        }
        let mut standing = self.engine.standing();
        let numbers = self.params.len();
        let refused = |source| TrainError::Memory { numbers, source };
        loop {
            let Some(members) = &mut control.members else { return Ok(false) };
            let NextGeneration::GoOn { generation, .. } =
                members.stand(control.segment.generation, standing, None)?
            else {
                return Ok(false);
            };
            control.segment = generation.segment;
            (self.setup, self.rank) = (generation.setup(self.job.setup), generation.rank);
            let participant = participant(self.job.strategy, &self.setup, self.rank, control.segment);
            self.scratch = Scratch::new(participant.scratch(), Allocator::Private).map_err(refused)?;
            self.grads = positions(&self.setup, self.rank, numbers, &self.engine).map_err(refused)?;
            let links = self.job.strategy.links_of(&self.setup, self.rank);
            let connected = members.connect(&generation, &links);
            let (own, number) = (generation.members.clone(), generation.segment.generation);
            self.generation = Some(*generation);
            match connected {
                Ok(transport) => {
                    self.engine.reconnect(participant, transport, links, &own, number);
                    break;
                }
                // Somebody else was lost meanwhile.
                Err(TrainError::Wire(_) | TrainError::Regroup) => standing = participant.standing(),
                Err(error) => return Err(error),
            }
        }
        self.lend_to_peers()?;
        self.show_optimiser();
        self.count_updates();
        let (engine, mut memory) = self.parts();
        engine.start(&mut memory)?;
        self.steps.skip(&self.clock, &self.engine.times);
        Ok(true)
    }
}

/// Room for the sums of each position that a server hosts: anew in each generation, since peers may still have the old one's
/// memory mapped.
fn positions(
    setup: &Setup,
    rank: Rank,
    numbers: usize,
    engine: &Engine,
) -> std::io::Result<Vec<TensorStorage>> {
    let count = setup.membership.as_ref().map_or(1, |_| setup.positions(rank).len().max(1));
    (0..count).map(|_| allocator(lends_sums(setup, engine)).zeros(numbers)).collect()
}

fn allocator(lent: bool) -> Allocator {
    if lent { Allocator::Shared } else { Allocator::Private }
}

/// Whether workers read parameters where they lie: these do not change before all of them have taken them.
fn lends_params(job: &Job<'_>, setup: &Setup, engine: &Engine) -> bool {
    engine.lends() && job.strategy.lends(setup)
}

/// Whether backups read sums where they lie: a sum is left alone until its backup has made the update.
fn lends_sums(setup: &Setup, engine: &Engine) -> bool {
    engine.lends() && setup.backups()
}

impl Server<'_> {
    /// Lets peers read what they take from here.
    fn lend_to_peers(&mut self) -> Result<(), TrainError> {
        let Self { job, setup, engine, params, grads, .. } = self;
        if lends_params(job, setup, engine) {
            engine.lend(Buf::Param, params)?;
        }
        if lends_sums(setup, engine) {
            let buffer = |n: usize| if n == 0 { Buf::Grad } else { Buf::HostedGrad(n as u16) };
            grads.iter().enumerate().try_for_each(|(n, grads)| engine.lend(buffer(n), grads))?;
        }
        Ok(())
    }
}
