//! Inside a rank: what it does once it knows its plan and has its transport.

mod life;

use std::cell::RefCell;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use paceline_attach::{Gives, ScriptOptimizer, Takes};
use paceline_data::Dataset;
use paceline_nn::{Compute, Graph, Outcome};
use paceline_pipeline::StagePlan;
use paceline_plan::Plan;
use paceline_protocol::{ReplicaAgreement, Setup, Strategy};
use paceline_record::{FailureKind, RankState, process};
use paceline_resolve::TypedPlan;
use paceline_train::server::ServerEvent;
use paceline_train::worker::WorkerEvent;
use paceline_train::{
    Generation, GradientSource, GroupOptimiser, Layout, MemberControl, NativeSource, PartRanges, Pause,
    ScriptSource, Segment, SegmentControl, StageSource, StepGate, Times, TrainError, Update, VERDICT, model,
    script_exchange, server, weights, worker,
};
use paceline_wire::{Interfaces, StreamOptions, Transport, WireError, identity};
use sha2::{Digest, Sha256};

use crate::control::{RankAccount, RankCommand, RankEvent};
use crate::emulated::EmulatedNetwork;
use crate::fault;
use crate::member::{Member, MemberLinks};
use crate::pauses::pack;
use crate::recorder::RankRecorder;

pub use life::{PlayTask, main};

/// Pieces of the wait for a verdict: a process that was suspended has waited no longer than one.
const VERDICT_PIECES: u32 = 1200;
/// Parameters of a script's model, as long as it has not attached.
const UNKNOWN: usize = 1 << 20;
/// Time between two reports of steps.
const REPORT: Duration = Duration::from_millis(50);

/// `worker` or `server`.
pub(crate) fn role(plan: &Plan, rank: usize) -> &'static str {
    if plan.is_worker(rank) { "worker" } else { identity::role(plan.workers, rank) }
}

/// What every rank of a run must agree on: the plan, down to the last flag.
fn model_hash(plan: &Plan) -> [u8; 32] {
    Sha256::digest(plan.hash().as_bytes()).into()
}

/// What the ranks of a run train.
#[derive(Clone)]
pub(crate) enum RankModel<'a> {
    /// A network of this program.
    Native { dataset: &'a Dataset, graph: Arc<Graph> },
    /// A script's, of which only sizes are known, and how its optimiser is set.
    Script { layout: Layout, optimizer: Option<ScriptOptimizer> },
}

/// A rank's view of a run.
pub(crate) struct RankContext<'a> {
    pub plan: TypedPlan<'a>,
    pub model: RankModel<'a>,
    pub strategy: &'static Strategy,
    pub setup: Setup,
    /// Where the model is cut, if it is.
    pub stages: Option<StagePlan>,
    pub rank: usize,
}

impl<'a> RankContext<'a> {
    /// The view of a rank; of a script nothing is known yet where there is no dataset.
    pub fn new(plan: &TypedPlan<'a>, dataset: Option<&'a Dataset>, rank: usize) -> Result<Self, TrainError> {
        let Some(dataset) = dataset else {
            let unknown = Layout { params: UNKNOWN, ..Layout::default() };
            return Ok(Self::of_script(plan, unknown, None, rank));
        };
        let plan = plan.clone();
        let graph = Arc::new(model::graph(&plan, dataset)?);
        let stages = plan.stage_plan(&graph)?;
        let (strategy, setup) = (
            plan.strategy,
            worker::staged_setup(&plan, &Layout::of(&graph), stages.as_ref(), dataset.train.len()),
        );
        Ok(Self { plan, model: RankModel::Native { dataset, graph }, strategy, setup, stages, rank })
    }

    /// The view of a rank of a run whose scripts have attached.
    pub fn of_script(
        plan: &TypedPlan<'a>,
        layout: Layout,
        optimizer: Option<ScriptOptimizer>,
        rank: usize,
    ) -> Self {
        let plan = plan.clone();
        let (strategy, setup) = (plan.strategy, worker::setup(&plan, &layout, 0));
        Self { plan, model: RankModel::Script { layout, optimizer }, strategy, setup, stages: None, rank }
    }

    /// Numbers of state that the model has besides its parameters.
    pub fn state_count(&self) -> usize {
        match &self.model {
            RankModel::Native { graph, .. } => graph.state_count(),
            RankModel::Script { .. } => 0,
        }
    }

    /// The part of the parameters that a server owns.
    pub fn shard(&self) -> std::ops::Range<usize> {
        let own = self.own_setup();
        own.shards()[(self.rank - self.plan.workers) / self.setup.stage_count()].clone()
    }

    /// What the ranks of one's own stage are told that average among themselves.
    fn own_setup(&self) -> Setup {
        self.setup.of_stage(self.setup.stage_of(self.rank))
    }

    /// The part of the model that each rank of a replica has: one, if it is not cut into stages.
    pub fn part_ranges(&self) -> Vec<PartRanges> {
        match (&self.stages, &self.model) {
            (Some(stages), _) => stages.parts.iter().map(PartRanges::of).collect(),
            (None, RankModel::Native { graph, .. }) => vec![PartRanges::of(&graph.whole())],
            (None, RankModel::Script { layout, .. }) => {
                vec![PartRanges { params: 0..layout.params, state: 0..layout.state }]
            }
        }
    }

    /// How far the workers' models agree.
    pub fn agreement(&self) -> ReplicaAgreement {
        self.strategy.agreement_of_members(&self.setup, self.plan.elastic.is_some())
    }

    /// Whether the launcher counts the steps of each worker: what one that is lost has not told of is made anew, or dropped.
    fn counts_steps(&self) -> bool {
        self.plan.elastic.is_some() && self.strategy.own_weights(&self.setup)
    }

    /// Whether workers make every step together.
    pub fn together(&self) -> bool {
        self.strategy.deterministic(&self.setup)
    }

    /// Whether workers stand still at each evaluation but the last until the launcher has said what came of it: where
    /// batch norm's statistics are averaged first, and where steps are made together and a target ends the run.
    pub fn awaits_verdicts(&self) -> bool {
        let averaged =
            self.agreement() != ReplicaAgreement::Apart && self.state_count() > 0 && self.plan.workers > 1;
        // A script reports when it likes; its target ends the run as a request to stop does.
        // Stages are put together and evaluated elsewhere, while nobody else uses the cores.
        let staged = self.setup.stages.is_some() || self.plan.elastic.is_some() && self.together();
        averaged || staged || self.plan.stop_at_target && self.together() && self.plan.script.is_none()
    }

    /// Plays the rank's part to the end; `say` takes what it tells, the last thing being its account.
    pub fn play(
        &self,
        transport: Box<dyn Transport>,
        start: RankStart,
        control: RankControl,
        recorder: &RankRecorder,
        say: &mut dyn FnMut(RankEvent, &[f32]),
    ) {
        let RankControl { segment, restored, gate, told, member } = control;
        let say = RefCell::new(say);
        let say = |said: RankEvent, numbers: &[f32]| (say.borrow_mut())(said, numbers);
        let pause = &mut |Pause { step, part }: Pause| {
            let (part, numbers) = pack(&part);
            recorder.flush();
            say(RankEvent::Paused { step, part }, &numbers);
            loop {
                match told.recv() {
                    Ok(PauseCommand::Next(segment)) => return Ok(segment),
                    Ok(PauseCommand::Stand) => return Err(TrainError::Regroup),
                    Ok(_) => {}
                    Err(_) => return Ok(None),
                }
            }
        };
        let verdict = &mut |step: u64| await_verdict(&told, step, VERDICT);
        let verdict: Option<&mut dyn FnMut(u64) -> Result<bool, TrainError>> =
            if self.awaits_verdicts() { Some(verdict) } else { None };
        let mut member = member.map(|(first, links)| Member {
            first,
            links,
            told: &told,
            say: &say,
            door: None,
            addresses: Vec::new(),
        });
        let members = member.as_mut().map(|member| member as &mut dyn MemberControl);
        let control = &mut SegmentControl { restored, segment, gate, pause, verdict, members };
        let played = if self.plan.is_worker(self.rank) {
            self.work(transport, start, control, recorder, &say)
        } else {
            self.serve(transport, &start, control, recorder, &say)
        };
        recorder.close();
        if let Err(error) = played {
            say(failed(&error), &[]);
        }
    }

    fn work(
        &self,
        transport: Box<dyn Transport>,
        start: RankStart,
        control: &mut SegmentControl<'_>,
        recorder: &RankRecorder,
        say: &dyn Fn(RankEvent, &[f32]),
    ) -> Result<(), TrainError> {
        let Self { plan, strategy, setup, rank, .. } = self;
        let compute = Arc::new(Compute::new(plan.threads, plan.pin));
        let (mut native, mut staged, mut attached) = (None, None, start.source);
        let samples = match &self.model {
            RankModel::Native { dataset, graph } => {
                let (graph, compute) = (Arc::clone(graph), Arc::clone(&compute));
                match &self.stages {
                    None => native = Some(NativeSource::new(plan, setup, dataset, graph, compute, *rank)),
                    Some(stages) => {
                        staged = Some(StageSource::new(plan, setup, stages, dataset, graph, compute, *rank));
                    }
                }
                dataset.train.len()
            }
            RankModel::Script { .. } => 0,
        };
        if let Some(script) = &mut attached {
            script.start_from(start.params);
        }
        let source: &mut dyn GradientSource = match (&mut native, &mut staged, &mut attached) {
            (Some(native), ..) => native,
            (_, Some(stage), _) => stage,
            (_, _, Some(script)) => script,
            (None, None, None) => unreachable!("a worker has a network or a script"),
        };
        let observer = recorder.observer();
        let job =
            worker::Job { plan, samples, compute, strategy, setup, rank: *rank, observer, traced: false };
        let (mut told, counts_steps) = (Instant::now(), self.counts_steps());
        let ran = worker::run(&job, source, transport, control, &mut |said| match said {
            WorkerEvent::Refused(cause) => say(RankEvent::Refused { cause }, &[]),
            WorkerEvent::Started => say(RankEvent::Started, &[]),
            WorkerEvent::Step { step, samples, row, train_s } => {
                fault::strike(*rank, step);
                if told.elapsed() >= REPORT || step == 1 {
                    told = Instant::now();
                    let loss = Some(row.loss).filter(|loss| loss.is_finite());
                    say(RankEvent::Step { step, samples, loss, train_s }, &[]);
                } else if counts_steps {
                    say(RankEvent::Stepped { step }, &[]);
                }
                recorder.step(row);
            }
            WorkerEvent::Reported { step, samples, train_s, values } => {
                let values =
                    values.into_iter().map(|(name, value)| (name, Some(value).filter(|v| v.is_finite())));
                say(RankEvent::Reported { step, samples, train_s, values: values.collect() }, &[]);
            }
            WorkerEvent::Evaluated { step, train_s, outcome } => {
                let Outcome { loss, correct, predictions, samples } = outcome;
                say(RankEvent::Evaluated { step, train_s, loss, correct, predictions, samples }, &[]);
            }
            WorkerEvent::Snapshot { step, train_s, numbers } => {
                say(RankEvent::Snapshot { step, train_s: Some(train_s) }, &numbers);
            }
        })?;
        // The last rows come before the account.
        recorder.close();
        let Some(summary) = ran else { return Ok(()) };
        let (own, beside) = (account(&summary.times, summary.traffic), summary.beside);
        let account = RankAccount {
            steps: summary.steps,
            samples: summary.samples,
            train_s: summary.train_s,
            last_loss: summary.last.loss,
            last_samples: summary.last.samples,
            params_sha256: model::params_sha256(&summary.params),
            accuracy: summary.accuracy,
            phases: summary.phases,
            buffer_bytes: summary.memory.map(|memory| memory.buffers() as u64),
            staging_s: beside.staging.as_secs_f64(),
            ready_us: beside.ready_us,
            cpu_s: own.cpu_s + beside.cpu_s,
            rss_peak_bytes: own.rss_peak_bytes + beside.rss_peak_bytes,
            ..own
        };
        // The launcher evaluates the mean of models that differ, and any on samples that evaluations left out.
        // (A script's own are nobody's to evaluate.)
        let elastic = plan.elastic.is_some();
        let left_out = plan.eval_samples.is_some() && (plan.servers == 0 && *rank == 0 || elastic);
        // Stages are put together there, those of the first replica.
        let stage = setup.stages.is_some() && *rank < setup.stage_count();
        let shown = summary.accuracy.is_some() || left_out || stage;
        let params = if shown { &summary.params[..] } else { &[] };
        say(RankEvent::Done(Box::new(account)), &[params, &summary.state].concat());
        Ok(())
    }

    fn serve(
        &self,
        transport: Box<dyn Transport>,
        start: &RankStart,
        control: &mut SegmentControl<'_>,
        recorder: &RankRecorder,
        say: &dyn Fn(RankEvent, &[f32]),
    ) -> Result<(), TrainError> {
        let Self { plan, strategy, setup, rank, .. } = self;
        let stage = setup.stage_of(*rank);
        let (params, frozen) = match &self.model {
            RankModel::Native { graph, .. } => {
                let part = self.stages.as_ref().map_or(graph.whole(), |stages| stages.parts[stage].clone());
                (&model::start_part(plan, graph, &part)?.0, weights::frozen_part(plan, graph, &part)?)
            }
            RankModel::Script { .. } => (&start.params, Vec::new()),
        };
        self.server_update(Arc::new(Compute::new(1, false)))?;
        let update =
            &|compute: Arc<Compute>| self.server_update(compute).unwrap_or_else(|_| Update::by_scripts());
        let observer = recorder.observer();
        let (start, frozen) = (&params[..], &frozen[..]);
        let job = server::Job {
            plan,
            start,
            frozen,
            update,
            strategy,
            setup,
            rank: *rank,
            observer,
            traced: false,
        };
        let shard = self.shard();
        let every = self.snapshot_every();
        let shares = self.own_setup().shares() as u64;
        let all = setup.end().saturating_mul(shares);
        let mut struck = 0;
        let mut round = every.map_or(0, |every| control.segment.from * shares / every);
        let ran = server::run(&job, transport, control, &mut |seen| match seen {
            ServerEvent::Refused(cause) => say(RankEvent::Refused { cause }, &[]),
            ServerEvent::Updates(row, params) => {
                let updates = row.step;
                recorder.step(row);
                (struck..updates / shares).for_each(|step| fault::strike(*rank, step + 1));
                struck = updates / shares;
                // What all updates have made is evaluated at the end.
                if updates < all && every.is_some_and(|every| updates / every > round) {
                    round += 1;
                    let step = round * every.unwrap_or(1) / shares;
                    say(RankEvent::Snapshot { step, train_s: None }, &params[shard.clone()]);
                }
            }
        })?;
        recorder.close();
        let Some(summary) = ran else { return Ok(()) };
        // Which shards it has at the end is the launcher's to know, where members may change.
        let apart = plan.elastic.is_some() && !self.together();
        let own = if apart { &summary.params[..] } else { &summary.params[shard.clone()] };
        let account = RankAccount {
            steps: if apart { summary.steps } else { 0 },
            params_sha256: model::params_sha256(own),
            staleness: summary.staleness,
            ..account(&summary.times, summary.traffic)
        };
        say(RankEvent::Done(Box::new(account)), own);
        Ok(())
    }

    /// What a server makes of gradients.
    fn server_update(&self, compute: Arc<Compute>) -> Result<Update, TrainError> {
        let (layout, optimizer) = match &self.model {
            RankModel::Native { dataset, .. } => {
                return Ok(Update::new(&self.plan, dataset.train.len(), compute));
            }
            RankModel::Script { layout, optimizer } => (layout, optimizer),
        };
        let (gives, takes) = script_exchange(&self.plan);
        let ranges: Vec<_> = layout.tensors.iter().map(|tensor| tensor.range.clone()).collect();
        let described =
            optimizer.as_ref().filter(|_| gives == Gives::Gradients && takes == Takes::Parameters);
        let grouped = described.map(|described| {
            GroupOptimiser::new(described, &self.plan.optimisers, &ranges, compute).map_err(|problem| {
                let hint = "leave --apply out: then the script's own optimiser makes the updates".into();
                TrainError::Script { message: problem, hint, kind: FailureKind::Plan }
            })
        });
        Ok(Update::for_scripts(gives, takes, grouped.transpose()?))
    }

    /// Whether the model is evaluated before the end: servers do not see its state.
    pub fn evaluates_on_the_way(&self) -> bool {
        let servers = self.agreement() == ReplicaAgreement::Apart && self.plan.servers > 0;
        !servers || self.state_count() == 0
    }

    /// Units of work between two snapshots of the servers' model; none where workers evaluate by themselves, where the
    /// model has state that servers do not see, or where members may change.
    fn snapshot_every(&self) -> Option<u64> {
        let RankModel::Native { dataset, .. } = &self.model else { return None };
        let apart = self.agreement() == ReplicaAgreement::Apart;
        if !apart || !self.evaluates_on_the_way() || self.plan.elastic.is_some() {
            return None;
        }
        let per_epoch = dataset.train.len().div_ceil(self.plan.global_batch()) as u64;
        Some(self.plan.eval_every.unwrap_or(per_epoch) * self.plan.shares() as u64)
    }
}

/// Waits for the verdict on the evaluation after a step: whether the run ends with it.
fn await_verdict(told: &Receiver<PauseCommand>, step: u64, limit: Duration) -> Result<bool, TrainError> {
    let mut pieces = 0;
    while pieces < VERDICT_PIECES {
        match told.recv_timeout(limit / VERDICT_PIECES) {
            Ok(PauseCommand::Verdict { step: of, ends }) if of == step => return Ok(ends),
            Ok(PauseCommand::Stand) => return Err(TrainError::Regroup),
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) => pieces += 1,
            // A launcher that gives the run up says so at the gate.
            Err(RecvTimeoutError::Disconnected) => return Ok(false),
        }
    }
    Err(TrainError::Verdict { step, seconds: limit.as_secs() })
}

fn account(times: &Times, (sent_bytes, received_bytes): (u64, u64)) -> RankAccount {
    RankAccount {
        send_s: times.send.as_secs_f64(),
        wait_s: times.wait.as_secs_f64(),
        wait_for_s: times.wait_for.iter().map(Duration::as_secs_f64).collect(),
        apply_s: times.apply.as_secs_f64(),
        sent_bytes,
        received_bytes,
        cpu_s: process::cpu_seconds(),
        rss_peak_bytes: process::peak_memory_bytes(),
        host: process::host(),
        ..RankAccount::default()
    }
}

/// The event of a failure.
pub(crate) fn failed(error: &TrainError) -> RankEvent {
    let lost = match error {
        TrainError::Lost { rank, .. } | TrainError::Silent { rank, .. } => Some(*rank),
        _ => None,
    };
    RankEvent::Failed { message: error.to_string(), hint: error.hint(), kind: error.kind(), lost }
}

/// Cores that this process could use when it began.
fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Options of a rank's connections, where `threads` threads compute on its machine.
pub(crate) fn options(threads: usize, buffer: Option<usize>) -> StreamOptions {
    let cores = cores();
    StreamOptions {
        max_body: worker::MESSAGE,
        own_core: threads <= cores,
        spare_core: 2 * threads <= cores,
        buffer,
        ..StreamOptions::default()
    }
}

/// How the launcher leads a rank: where it begins, and what it is told on the way.
pub(crate) struct RankControl {
    /// The rank's place in the first generation, and how it connects in later ones, where members may change.
    member: Option<(Generation, MemberLinks)>,
    segment: Segment,
    /// What the rank had when the run paused, if it goes on.
    restored: Option<RankState>,
    gate: Arc<StepGate>,
    told: Receiver<PauseCommand>,
}

impl RankControl {
    /// The control of a rank that begins with this segment, and the launcher's end of it.
    pub fn new(segment: Segment, restored: Option<RankState>) -> (Self, RankMailbox) {
        let (pauses, told) = channel();
        let gate = Arc::new(StepGate::starting_at(segment.from));
        let mailbox = RankMailbox { gate: Arc::clone(&gate), pauses };
        (Self { segment, restored, gate, told, member: None }, mailbox)
    }
}

/// Where a rank's commands go once it has begun.
pub(crate) struct RankMailbox {
    gate: Arc<StepGate>,
    pauses: Sender<PauseCommand>,
}

impl RankMailbox {
    /// Hands a command to the rank; what it answers at once.
    pub fn deliver(&self, command: RankCommand) -> Option<RankEvent> {
        match command {
            // A rank that does not listen any more does not wait.
            RankCommand::Verdict { step, ends } => {
                self.pauses.send(PauseCommand::Verdict { step, ends }).unwrap_or_default();
            }
            RankCommand::Next { segment } => {
                self.pauses.send(PauseCommand::Next(segment)).unwrap_or_default();
            }
            RankCommand::StopAt { step, request } => {
                self.gate.stop_at(step);
                return Some(RankEvent::Held { step, request });
            }
            RankCommand::Stand { generation } => {
                self.gate.ask_to_stop(generation);
                self.pauses.send(PauseCommand::Stand).unwrap_or_default();
            }
            RankCommand::Regroup { generation, addresses, commit } => {
                // What was told before does not hold any more.
                self.gate.ask_to_stop(generation.segment.generation - 1);
                let regroup = PauseCommand::Regroup { generation, addresses, commit };
                self.pauses.send(regroup).unwrap_or_default();
            }
            RankCommand::HandOver { generation } => self.gate.ask_to_hand_over(generation),
            RankCommand::Conclude => self.pauses.send(PauseCommand::Conclude).unwrap_or_default(),
            RankCommand::Hold { request } => {
                return Some(RankEvent::Held { step: self.gate.hold(), request });
            }
            // These come before a rank begins.
            RankCommand::Config { .. } | RankCommand::Task { .. } | RankCommand::Peers { .. } => {}
        }
        None
    }

    /// The run is given up: the rank ends before its next step.
    pub fn abandon(&self) {
        self.gate.abandon();
    }
}

/// What a rank waits for.
#[derive(Clone, Debug)]
pub(crate) enum PauseCommand {
    /// The evaluation after this step is over, and whether the run ends with it.
    Verdict { step: u64, ends: bool },
    /// A pause is over: what to do now, or nothing if the run stops.
    Next(Option<Segment>),
    /// Members are to stop where they are.
    Stand,
    /// The next generation, the addresses of its ranks, and whether the put-off update is made first.
    Regroup { generation: Box<Generation>, addresses: Vec<String>, commit: bool },
    /// All work is done everywhere.
    Conclude,
}

/// What a rank begins with, where it is no native network: its script, and the parameters that all start from.
#[derive(Default)]
pub(crate) struct RankStart {
    pub source: Option<ScriptSource>,
    pub params: Vec<f32>,
}

/// What is known of a run's scripts once all have attached.
pub(crate) struct ScriptKnown {
    pub layout: Layout,
    pub optimizer: Option<ScriptOptimizer>,
    pub params: Vec<f32>,
}

/// Puts a rank's transport on the emulated network, if there is one.
pub(crate) fn emulate(
    transport: Box<dyn Transport>,
    emulated: Option<EmulatedNetwork>,
    interfaces: Option<String>,
    options: StreamOptions,
) -> Result<Box<dyn Transport>, RankEvent> {
    let (Some(emulated), Some(path)) = (emulated, interfaces) else { return Ok(transport) };
    let interfaces = Interfaces::open(&path, emulated.count())
        .map_err(|e| failed(&WireError::system("open the emulated interfaces")(e).into()))?;
    let StreamOptions { buffer, own_core, .. } = options;
    Ok(emulated.wrap(transport, Arc::new(interfaces), buffer, own_core))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_that_never_comes_is_an_error_that_names_the_launcher_and_the_step() {
        let (pauses, told) = channel();
        let verdict = |step, ends| pauses.send(PauseCommand::Verdict { step, ends }).unwrap();
        verdict(4, true);
        verdict(8, false);
        assert!(!await_verdict(&told, 8, VERDICT).unwrap(), "the one on step 4 is another one");
        verdict(12, true);
        assert!(await_verdict(&told, 12, VERDICT).unwrap());
        let late = await_verdict(&told, 16, Duration::ZERO).unwrap_err().to_string();
        assert!(late.contains("the launcher did not say within 0 s") && late.contains("step 16"), "{late}");
        drop(pauses);
        assert!(!await_verdict(&told, 16, VERDICT).unwrap(), "a run that is given up ends at its gate");
    }
}
