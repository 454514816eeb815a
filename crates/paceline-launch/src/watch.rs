//! What the launcher knows of a run under way: takes what the ranks say, has their models evaluated, tells who is
//! lost or late, and ends with the result.

mod clock;
mod losses;
mod members;
mod result;

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use paceline_nn::Outcome;
use paceline_plan::PlanError;
use paceline_protocol::{Refusal, ReplicaAgreement};
use paceline_record::event::SCHEMA;
use paceline_record::{Event, FailureKind};
use paceline_train::native::mean;
use paceline_train::{PartRanges, TensorLayout, TrainError, USED_TENSORS};

use crate::control::{RankCommand, RankEvent, ScriptCommon};
use crate::elastic::{Commands, ElasticRun};
use crate::error::LaunchError;
use crate::gather::Gather;
use crate::liveness::Missing;
use crate::pauses::{PauseDecision, Pauses, pack, unpack};
use crate::rank::{RankContext, role};
use crate::run::Launch;
use crate::staged::whole_model;

use clock::TrainingClock;
use members::elastic;
pub(crate) use result::evaluate;

/// Time that ranks have to listen and to begin, loading included.
const START: Duration = Duration::from_secs(60);

/// Longest time that the parts of an evaluation which workers wait for may take after the first one.
const EVALUATION: Duration = Duration::from_secs(600);

/// A model to be evaluated.
pub(crate) struct Snapshot {
    pub(crate) step: u64,
    pub(crate) train_s: f64,
    pub(crate) params: Vec<f32>,
    pub(crate) state: Option<Vec<f32>>,
}

/// Step and training clock of a snapshot, and what came of it.
pub(crate) type Evaluated = (u64, f64, Result<Outcome, TrainError>);

/// A snapshot of which parts are missing.
struct Incomplete {
    step: u64,
    train_s: f64,
    /// Whether the servers show it, or the workers.
    of_servers: bool,
    /// What they have shown.
    parts: Vec<Option<Vec<f32>>>,
}

/// What is to be done about something that a rank has said.
pub(crate) enum Reaction {
    Nothing,
    Connect,
    TellAll(Box<RankCommand>),
    /// To members of an elastic run; then those may regroup.
    Members(Commands),
    Tell(Vec<usize>, Box<RankCommand>),
}

impl Reaction {
    pub(crate) fn tell_all(order: RankCommand) -> Self {
        Self::TellAll(Box::new(order))
    }
}

/// What the launcher knows of a run under way.
pub(crate) struct Watch<'a> {
    launch: &'a Launch<'a>,
    pub(crate) pauses: Pauses<'a>,
    steps_in_all: u64,
    pub(crate) gather: Gather<'a>,
    addresses: Vec<String>,
    /// Whether ranks know their peers.
    connected: bool,
    begun: usize,
    startup: Option<f64>,
    began: Instant,
    /// The last step that each rank told of.
    steps: Vec<u64>,
    /// Steps and samples that each worker told of last, together.
    told: Vec<(u64, u64)>,
    /// Ranks that gave up because they lost a peer.
    pub(crate) victims: Vec<bool>,
    agreement: ReplicaAgreement,
    /// Whether workers make every step together, and whether they wait for the verdict on each evaluation.
    together: bool,
    awaited: bool,
    /// Verdicts that workers have not been told.
    pub(crate) verdicts: Vec<RankCommand>,
    /// How long parts of an evaluation that workers wait for have been missing.
    missing: Missing,
    /// What each worker's script is, and the parameters of the first one.
    attached: Vec<Option<ScriptCommon>>,
    framework: String,
    start: Vec<f32>,
    params: usize,
    state: usize,
    /// Where each stage lies in the model, if it is cut into stages.
    stages: Option<Vec<PartRanges>>,
    /// The members of the run, where they may change.
    pub(crate) elastic: Option<ElasticRun>,
    /// How the processes of members that are gone have ended.
    deaths: BTreeMap<usize, String>,
    /// The furthest step whose model was evaluated, or is.
    shown: Option<u64>,
    clock: TrainingClock,
    /// Where the training clock of a run that went on from a checkpoint began, until somebody has taken note.
    pub(crate) resumed_at: Option<f64>,
    /// Snapshots of which parts are missing.
    snapshots: Vec<Incomplete>,
    /// Snapshots that are being evaluated.
    under_way: usize,
    /// Where complete ones go; none once the run is over.
    jobs: Option<Sender<Snapshot>>,
    results: Receiver<Evaluated>,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(
        launch: &'a Launch<'a>,
        jobs: Option<Sender<Snapshot>>,
        results: Receiver<Evaluated>,
    ) -> Self {
        let world = launch.plan.members();
        let context = RankContext::new(launch.plan, launch.dataset, 0);
        let steps_in_all = context.as_ref().map_or(0, |context| context.setup.end());
        let together = context.as_ref().is_ok_and(RankContext::together);
        // One worker alone once kept its evaluations in its own part.
        let account = launch.checkpointing.resumed.as_ref().map(|checkpoint| match &checkpoint.account[..] {
            "{}" => &checkpoint.parts[0].account[..],
            account => account,
        });
        let samples = launch.dataset.map(|dataset| dataset.train.len());
        let gather = Gather::new(launch.plan, samples, account);
        let mut watch = Self {
            pauses: Pauses::new(launch.plan, launch.checkpointing, steps_in_all, together),
            steps_in_all,
            agreement: context.as_ref().map_or(ReplicaAgreement::Apart, RankContext::agreement),
            state: context.as_ref().map_or(0, RankContext::state_count),
            together,
            awaited: context.as_ref().is_ok_and(RankContext::awaits_verdicts),
            verdicts: Vec::new(),
            missing: Missing::default(),
            stages: context
                .as_ref()
                .ok()
                .filter(|context| context.stages.is_some())
                .map(RankContext::part_ranges),
            elastic: context.as_ref().ok().and_then(|context| elastic(launch, context)),
            deaths: BTreeMap::new(),
            shown: None,
            clock: TrainingClock::default(),
            resumed_at: None,
            params: context.map_or(0, |context| context.setup.params),
            attached: vec![None; world],
            framework: String::new(),
            start: Vec::new(),
            under_way: 0,
            launch,
            gather,
            addresses: vec![String::new(); world],
            connected: false,
            begun: 0,
            startup: None,
            began: Instant::now(),
            steps: vec![0; world],
            told: vec![(0, 0); world],
            victims: vec![false; world],
            snapshots: Vec::new(),
            jobs,
            results,
        };
        watch.look_at_target();
        watch
    }

    /// Workers that do not make their steps together end where they can once the target is reached.
    fn look_at_target(&mut self) {
        let apart = !self.together || self.launch.plan.script.is_some();
        if self.launch.plan.stop_at_target && apart && self.gather.reached() {
            self.pauses.end_at_target();
        }
    }

    /// Takes the outcome of an evaluation; whoever waits for it is to be told.
    fn evaluated(&mut self, step: u64, train_s: f64, outcome: Outcome, report: &mut dyn FnMut(Event<'_>)) {
        self.gather.evaluation(step, train_s, outcome, report);
        self.look_at_target();
        self.clock.runs();
        if self.awaited {
            let ends = self.launch.plan.stop_at_target && self.gather.reached();
            self.verdicts.push(RankCommand::Verdict { step, ends });
        }
    }

    /// Every worker has begun its first step.
    fn training_began(&mut self) {
        if self.startup.is_none() {
            self.startup = Some(self.launch.started.seconds());
            self.began = Instant::now();
            if self.launch.checkpointing.resumed.is_none() {
                self.clock.told(0.0);
            }
        }
    }

    /// Whether all ranks know each other.
    pub(crate) fn connected(&self) -> bool {
        self.connected
    }

    pub(crate) fn announce(&self, report: &mut dyn FnMut(Event<'_>)) {
        if self.launch.plan.script.is_some() {
            // How large it is will be known when every script has attached.
            return;
        }
        if let Ok(context) = RankContext::new(self.launch.plan, self.launch.dataset, 0) {
            report(Event::Start {
                schema: SCHEMA,
                run: self.launch.run,
                plan: self.launch.plan,
                plan_sha256: self.launch.plan.hash(),
                parameters: context.setup.params,
                steps: context.setup.end(),
                kernels: paceline_nn::accel::Level::detect().to_string(),
            });
        }
    }

    /// What a rank is told when everybody's address is known.
    pub(crate) fn peers(&mut self, rank: usize, interfaces: Option<String>) -> (RankCommand, Vec<f32>) {
        let packed = self.pauses.restored(rank).map(pack);
        let (restored, numbers) = packed.unzip();
        let (mut addresses, segment) = (self.addresses.clone(), self.pauses.segment());
        let mut generation = None;
        if let Some(elastic) = &mut self.elastic {
            elastic.addresses.clone_from(&addresses);
            generation = Some(Box::new(elastic.first(rank, segment)));
            addresses.truncate(elastic.membership.ranks().count());
        }
        let script = self.attached.first().and_then(Clone::clone);
        let mut numbers = numbers.unwrap_or_default();
        numbers.extend_from_slice(&self.start);
        let stands_for = None;
        let order =
            RankCommand::Peers { addresses, interfaces, segment, restored, generation, script, stands_for };
        (order, numbers)
    }

    /// Whether every rank listens, and every script has attached: then the run begins.
    fn ready(&mut self, report: &mut dyn FnMut(Event<'_>)) -> Result<Reaction, LaunchError> {
        let plan = self.launch.plan;
        let attached = plan.script.is_none() || self.attached[..plan.workers].iter().all(Option::is_some);
        let begin = &self.addresses[..plan.processes()];
        self.connected = attached && begin.iter().all(|a| !a.is_empty());
        if !self.connected {
            return Ok(Reaction::Nothing);
        }
        if plan.script.is_some() {
            self.scripts_begin(report)?;
        }
        Ok(Reaction::Connect)
    }

    /// A worker's script has attached; what is wrong with it, if it is another one than the first worker's.
    fn attach(
        &mut self,
        rank: usize,
        common: ScriptCommon,
        framework: &str,
        params: Vec<f32>,
        report: &mut dyn FnMut(Event<'_>),
    ) -> Result<Reaction, LaunchError> {
        if rank == 0 {
            self.start = params;
        }
        (self.attached[rank], self.framework) = (Some(common), framework.to_owned());
        if let Some((rank, problem)) = self.misfit() {
            let hint =
                "all workers run the same script: does its model depend on the rank, or on the machine?";
            let (role, kind) = (role(self.launch.plan, rank), FailureKind::Plan);
            return Err(LaunchError::Failed { role, rank, message: problem, hint: hint.into(), kind });
        }
        self.ready(report)
    }

    /// All scripts have attached: what the run trains is known.
    fn scripts_begin(&mut self, report: &mut dyn FnMut(Event<'_>)) -> Result<(), LaunchError> {
        let plan = self.launch.plan;
        if let Some(Some(common)) = self.attached.first() {
            let context = RankContext::of_script(plan, common.layout.clone(), None, 0);
            let refused = |Refusal { flag, value, problem }| PlanError { flag, value, problem };
            if !plan.alone() {
                context.strategy.check(&context.setup).map_err(refused)?;
            }
            self.params = context.setup.params;
            self.elastic = elastic(self.launch, &context);
            self.began = Instant::now();
            // Flags of use are no parameters.
            let own = common.layout.tensors.iter().filter(|tensor| tensor.name != USED_TENSORS);
            let tensors: Vec<_> = own.map(|tensor| (&tensor.name[..], tensor.range.len())).collect();
            report(Event::Start {
                schema: SCHEMA,
                run: self.launch.run,
                plan,
                plan_sha256: plan.hash(),
                parameters: tensors.iter().map(|(_, len)| len).sum(),
                steps: context.setup.end(),
                kernels: paceline_nn::accel::Level::detect().to_string(),
            });
            report(Event::Attached { framework: &self.framework, tensors });
        }
        Ok(())
    }

    /// A worker whose script has other tensors than the first worker's, and which.
    pub(crate) fn misfit(&self) -> Option<(usize, String)> {
        let first = self.attached.first()?.as_ref()?;
        let other = |(rank, common): (usize, &Option<ScriptCommon>)| {
            let common = common.as_ref().filter(|common| common.layout != first.layout)?;
            let words = |common: &ScriptCommon| -> Vec<String> {
                let own = common.layout.tensors.iter().filter(|tensor| tensor.name != USED_TENSORS);
                own.map(|TensorLayout { name, shape, .. }| format!("{name} {shape:?}")).collect()
            };
            let (ours, theirs) = (words(common), words(first));
            let at =
                ours.iter().zip(&theirs).position(|(a, b)| a != b).unwrap_or(ours.len().min(theirs.len()));
            let [own, zero] = [&ours, &theirs].map(|all| all.get(at).map_or("no more", String::as_str));
            Some((
                rank,
                format!("its script has another model than rank 0's: tensor {at} is {own}, there {zero}"),
            ))
        };
        self.attached.iter().enumerate().find_map(other)
    }

    /// What to tell every rank if it is to stop early, and all of them know their peers.
    pub(crate) fn interrupted(&mut self) -> Result<Option<RankCommand>, LaunchError> {
        if self.launch.checkpointing.interrupt.abandoned() {
            let when = self.when(&(0..self.steps.len()).collect::<Vec<_>>());
            return Err(LaunchError::Abandoned { when, run: self.launch.run.to_owned() });
        }
        Ok(if self.connected { self.pauses.stop_requested() } else { None })
    }

    /// Everybody has paused: saves, and goes on or stops.
    fn pause(&mut self, report: &mut dyn FnMut(Event<'_>)) -> Result<Reaction, LaunchError> {
        // What was shown before the pause belongs to what is saved.
        while self.under_way > 0 {
            let Ok((step, train_s, outcome)) = self.results.recv() else { break };
            self.under_way -= 1;
            self.evaluated(step, train_s, outcome?, report);
        }
        report(Event::Paused);
        let kept = self.pauses.kept();
        let parts = self.elastic.as_ref().and_then(|elastic| elastic.parts(kept, self.state));
        match self.pauses.decide(self.gather.account(), parts)? {
            PauseDecision::End => Ok(Reaction::tell_all(self.pauses.end())),
            PauseDecision::GoOn(segment) => {
                report(Event::Checkpoint { step: segment.from });
                let next = RankCommand::Next { segment: Some(segment) };
                let Some(elastic) = &mut self.elastic else { return Ok(Reaction::tell_all(next)) };
                elastic.went_on(segment);
                let members = elastic.membership.ranks();
                Ok(Reaction::Members(members.map(|member| (member, next.clone())).collect()))
            }
            PauseDecision::Stop { step, path } => {
                report(Event::Checkpoint { step });
                let steps = Some(self.steps_in_all).filter(|steps| *steps < u64::MAX);
                let run = self.launch.run.to_owned();
                Err(LaunchError::Interrupted { step, steps, path, run })
            }
        }
    }

    /// Takes what a rank says; what is to be done then.
    pub(crate) fn take(
        &mut self,
        rank: usize,
        said: RankEvent,
        numbers: Vec<f32>,
        report: &mut dyn FnMut(Event<'_>),
    ) -> Result<Reaction, LaunchError> {
        let plan = self.launch.plan;
        match said {
            RankEvent::Bound { address } => {
                report(Event::Bound { rank, address: &address });
                if let (true, Some(elastic)) = (self.connected, &mut self.elastic) {
                    return Ok(Reaction::Members(elastic.listens(rank, address, self.clock.now_s())));
                }
                self.addresses[rank] = address;
                return self.ready(report);
            }
            RankEvent::Attached { common, framework } => {
                return self.attach(rank, common, &framework, numbers, report);
            }
            RankEvent::Script { .. } => {}
            RankEvent::Said { line } => report(Event::Script { rank, line: &line }),
            RankEvent::Waiting { text } => report(Event::ScriptWait { rank, text: &text }),
            RankEvent::Reported { step, samples, train_s, values } => {
                if rank == self.elastic.as_ref().map_or(0, ElasticRun::first_worker) {
                    let of_members = self.samples_of_scripts(step);
                    let samples = of_members.unwrap_or_else(|| self.gather.samples_before(step, samples));
                    self.gather.report(step, samples, train_s, &values, report);
                    self.look_at_target();
                }
            }
            RankEvent::Standing { generation, standing, address, handed } => {
                let Some(elastic) = &mut self.elastic else { return Ok(Reaction::Nothing) };
                let (handed, now_s) =
                    (handed.and_then(|packed| unpack(*packed, &numbers)), self.clock.now_s());
                let commands = elastic.stood(rank, generation, standing, (address, handed), now_s);
                return Ok(Reaction::Members(commands));
            }
            RankEvent::HandsNothing { problem } => return Ok(self.nobody_joins(rank, &problem, report)),
            RankEvent::Resumed { generation } => {
                if generation > 0 {
                    // Somebody may have been lost before its first step began.
                    self.training_began();
                }
                for change in self.elastic.as_mut().map_or(&[][..], |elastic| elastic.resumed(generation)) {
                    report(Event::Membership { change });
                }
            }
            RankEvent::Concluded { generation } => {
                let Some(elastic) = &mut self.elastic else { return Ok(Reaction::Nothing) };
                return Ok(Reaction::Members(elastic.concluded(rank, generation)));
            }
            RankEvent::Drained => {
                let Some(elastic) = &mut self.elastic else {
                    self.launch.checkpointing.interrupt.request();
                    return Ok(Reaction::Nothing);
                };
                return Ok(Reaction::Members(elastic.drain(&[rank], self.clock.now_s())));
            }
            RankEvent::Started => {
                self.begun += 1;
                if self.begun == plan.workers {
                    self.training_began();
                }
            }
            RankEvent::Step { step, samples, loss, train_s } => {
                (self.steps[rank], self.told[rank]) = (step, (step, samples));
                if self.clock.told(train_s) && self.launch.checkpointing.resumed.is_some() {
                    self.resumed_at = Some(train_s);
                }
                if let Some(elastic) = &mut self.elastic {
                    elastic.stepped(rank, step);
                }
                // The last stage knows the loss.
                let teller = self.elastic.as_ref().map_or(plan.stages - 1, ElasticRun::first_worker);
                if rank == teller {
                    let of_members = self.samples_of_scripts(step);
                    let samples = of_members.unwrap_or_else(|| self.gather.samples_before(step, samples));
                    let train_loss = loss.unwrap_or(f64::NAN);
                    report(Event::Progress { step, samples, train_s, train_loss });
                }
            }
            RankEvent::Stepped { step } => {
                self.steps[rank] = step;
                self.elastic.iter_mut().for_each(|elastic| elastic.stepped(rank, step));
            }
            RankEvent::Evaluated { step, train_s, loss, correct, predictions, samples } => {
                self.steps[rank] = step;
                let outcome = Outcome { loss, correct, predictions, samples };
                if let Some((train_s, outcome)) = self.gather.part(rank, step, train_s, outcome) {
                    self.evaluated(step, train_s, outcome, report);
                }
            }
            RankEvent::Alive => {}
            RankEvent::Interrupted => self.launch.checkpointing.interrupt.request(),
            RankEvent::Snapshot { step, train_s } => self.snapshot(rank, step, train_s, numbers),
            RankEvent::Held { step, request } => {
                return Ok(match self.pauses.answered(rank, step, request) {
                    Some(order) => Reaction::Tell(self.pauses.told_now(), Box::new(order)),
                    None => Reaction::Nothing,
                });
            }
            RankEvent::Paused { step, part } => {
                let Some(part) = unpack(part, &numbers) else {
                    let problem = format!("rank {rank} sent only a part of what it keeps");
                    return Err(TrainError::Restore { problem }.into());
                };
                let all = self.pauses.paused(rank, step, part);
                // Members that were asked to stand do so from here, and pause again at the end of a later segment.
                if self.elastic.as_ref().is_some_and(ElasticRun::is_changing) {
                    return Ok(Reaction::Nothing);
                }
                if all {
                    return self.pause(report);
                }
                if let Some(order) = self.pauses.finish() {
                    return Ok(Reaction::tell_all(order));
                }
            }
            RankEvent::Refused { cause } => report(Event::Refused { rank: Some(rank), cause: &cause }),
            RankEvent::Recorded(batch) => {
                report(Event::Batch { rank, batch: &batch.with_numbers(&numbers) });
            }
            RankEvent::Done(account) => {
                self.told[rank] = (account.steps, account.samples);
                self.gather.done[rank] = Some(*account);
                self.gather.numbers[rank] = numbers;
                if let Some(order) = self.pauses.ended(rank) {
                    return Ok(Reaction::Tell(self.pauses.told_now(), Box::new(order)));
                }
                return Ok(self.pauses.finish().map_or(Reaction::Nothing, Reaction::tell_all));
            }
            RankEvent::Failed { message, hint, kind, .. } => {
                return Err(LaunchError::Failed { role: role(plan, rank), rank, message, hint, kind });
            }
        }
        Ok(Reaction::Nothing)
    }

    /// How long to wait for news: not long while somebody waits for an evaluation.
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_millis(if self.under_way > 0 { 1 } else { 50 })
    }

    /// A part of the model at an evaluation that the ranks cannot make alone; the last one sets it off.
    fn snapshot(&mut self, rank: usize, step: u64, train_s: Option<f64>, numbers: Vec<f32>) {
        let plan = self.launch.plan;
        if self.elastic.is_some() {
            return self.snapshot_of_shares(rank, step, train_s.unwrap_or_default(), numbers);
        }
        let (index, parts) =
            if rank < plan.workers { (rank, plan.workers) } else { (rank - plan.workers, plan.servers) };
        let at = self.snapshots.iter().position(|s| s.step == step).unwrap_or_else(|| {
            let train_s = train_s.unwrap_or_else(|| self.began.elapsed().as_secs_f64());
            let of_servers = rank >= plan.workers;
            self.snapshots.push(Incomplete { step, train_s, of_servers, parts: vec![None; parts] });
            self.snapshots.len() - 1
        });
        let snapshot = &mut self.snapshots[at];
        snapshot.train_s = snapshot.train_s.max(train_s.unwrap_or_default());
        snapshot.parts[index] = Some(numbers);
        if snapshot.parts.iter().all(Option::is_some) {
            let Incomplete { step, train_s, parts, .. } = self.snapshots.swap_remove(at);
            let parts: Vec<Vec<f32>> = parts.into_iter().flatten().collect();
            let (params, state) =
                if rank < plan.workers { self.model(&parts) } else { (parts.concat(), None) };
            if let Some(jobs) = &self.jobs {
                self.under_way += 1;
                // The evaluator listens as long as the run lasts.
                let _ = jobs.send(Snapshot { step, train_s, params, state });
            }
        }
    }

    /// Whether every rank that is to give its account has.
    pub(crate) fn complete(&self) -> bool {
        match &self.elastic {
            None => self.gather.complete(),
            Some(elastic) => elastic.complete(|member| self.gather.gave_account(member)),
        }
    }

    /// The model out of what the workers have shown, in their order: parameters (if they agree, the first worker's
    /// alone) and the state of each position, whose mean counts.
    fn model(&self, parts: &[Vec<f32>]) -> (Vec<f32>, Option<Vec<f32>>) {
        if let Some(stages) = &self.stages {
            let (params, state) = whole_model(stages, parts);
            return (params, Some(state));
        }
        let mut all = parts.concat();
        if self.agreement == ReplicaAgreement::Apart {
            let mut mean = mean(&all, self.params + self.state);
            let state = mean.split_off(self.params);
            return (mean, Some(state));
        }
        let states = all.split_off(self.params);
        (all, Some(mean(&states, self.state)))
    }

    /// Takes what was evaluated beside the run.
    pub(crate) fn side_results(&mut self, report: &mut dyn FnMut(Event<'_>)) -> Result<(), LaunchError> {
        while let Ok((step, train_s, outcome)) = self.results.try_recv() {
            self.under_way -= 1;
            self.evaluated(step, train_s, outcome?, report);
        }
        Ok(())
    }

    /// The workers, by process.
    pub(crate) fn workers(&self) -> Vec<usize> {
        let all = || (0..self.launch.plan.workers).collect();
        self.elastic.as_ref().map_or_else(all, |elastic| elastic.membership.workers.clone())
    }
}
