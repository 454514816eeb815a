//! A distributed run, from the plan to the result.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use paceline_data::{Dataset, Folders};
use paceline_nn::{Compute, Outcome};
use paceline_plan::{Plan, PlanError};
use paceline_protocol::{Agreement, Refusal};
use paceline_record::event::SCHEMA;
use paceline_record::process::Started;
use paceline_record::{Batch, Event, Recorder, Recording, RunResult};
use paceline_train::Replica;
use paceline_train::model::params_sha256;
use paceline_wire::{Interfaces, Key, TRANSPORTS, Transport, TransportKind, inproc, registry};

use crate::control::{FromRank, ToRank};
use crate::emulated::Emulated;
use crate::error::LaunchError;
use crate::fleet::{Fleet, News};
use crate::gather::{Gather, mean};
use crate::rank::{Seat, role};

/// Time that ranks have to listen and to begin, loading included.
const START: Duration = Duration::from_secs(60);
/// Sizes of a connection's buffer that can be asked for.
const BUFFERS: RangeInclusive<usize> = 4 << 10..=1 << 30;
/// Time that a lost rank's process has to end before the loss is told without its cause of death.
const BLAME: Duration = Duration::from_secs(1);

/// What a run needs from outside.
pub struct Launch<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// The dataset, loaded.
    pub dataset: &'a Dataset,
    /// Where ranks find it.
    pub folders: &'a Folders,
    /// The run's id.
    pub run: &'a str,
    /// The program, and the word that makes it a rank.
    pub program: (PathBuf, &'static str),
    /// When this process began.
    pub started: Started,
    /// What to record of each rank, if anything.
    pub recording: Option<Recording>,
}

/// The transport that a run asks for, if its buffers can be what it asks for.
pub fn transport(name: &str, buffer: Option<usize>) -> Result<&'static TransportKind, PlanError> {
    let refuse = |flag: &str, value: &str, problem: String| {
        Err(PlanError { flag: flag.into(), value: value.into(), problem })
    };
    let names = |which: fn(&TransportKind) -> bool| {
        TRANSPORTS.iter().filter(|kind| which(kind)).map(|kind| kind.name).collect::<Vec<_>>().join(", ")
    };
    let Some(kind) = registry::find(name) else {
        return refuse("--transport", name, format!("valid: {}", names(|_| true)));
    };
    let Some(bytes) = buffer else { return Ok(kind) };
    if kind.buffer.is_none() {
        let with = names(|kind| kind.buffer.is_some());
        let problem = format!("{name} has no buffer to size ({}); valid with {with}", kind.about);
        return refuse("--buffer", &bytes.to_string(), problem);
    }
    if !BUFFERS.contains(&bytes) {
        return refuse("--buffer", &bytes.to_string(), "must be between 4KiB and 1GiB".into());
    }
    Ok(kind)
}

/// Whether the strategy can be run with the plan.
pub fn check(plan: &Plan, dataset: &Dataset) -> Result<(), LaunchError> {
    transport(&plan.transport, plan.buffer)?;
    if let (Some(hosts), None) = (&plan.hosts, plan.network) {
        let problem =
            "says where ranks sit; give --network as well, e.g. 1gbit,200us, to emulate hosts".into();
        return Err(PlanError { flag: "--hosts".into(), value: hosts.to_string(), problem }.into());
    }
    let seat = Seat::new(plan, dataset, 0)?;
    seat.strategy.check(&seat.setup).map_err(|refusal| {
        let Refusal { flag, value, problem } = refusal;
        PlanError { flag, value, problem }
    })?;
    Ok(())
}

/// Runs it.
pub fn run(launch: &Launch<'_>, report: &mut dyn FnMut(Event<'_>)) -> Result<RunResult, LaunchError> {
    check(launch.plan, launch.dataset)?;
    std::thread::scope(|scope| {
        let (jobs, to_do) = channel::<Snapshot>();
        let (done, results) = channel();
        // Snapshots are evaluated beside the run: watching it must not wait.
        scope.spawn(move || {
            for job in to_do {
                let Snapshot { step, train_s, params, state } = job;
                let outcome = evaluate(launch, params, state);
                if done.send((step, train_s, outcome)).is_err() {
                    return;
                }
            }
        });
        let watch = Watch::new(launch, Some(jobs), results);
        match transport(&launch.plan.transport, launch.plan.buffer)?.bind {
            Some(_) => as_processes(launch, watch, report),
            None => as_threads(launch, watch, report),
        }
    })
}

/// A model to be evaluated.
struct Snapshot {
    step: u64,
    train_s: f64,
    params: Vec<f32>,
    state: Option<Vec<f32>>,
}

/// A snapshot of which parts are missing.
struct Incomplete {
    step: u64,
    train_s: f64,
    /// What the servers, or the workers, have shown.
    parts: Vec<Option<Vec<f32>>>,
}

fn as_processes(
    launch: &Launch<'_>,
    mut watch: Watch<'_>,
    report: &mut dyn FnMut(Event<'_>),
) -> Result<RunResult, LaunchError> {
    let system = |what: &str| {
        let what = what.to_owned();
        move |source| LaunchError::System { what, source }
    };
    let world = launch.plan.workers + launch.plan.servers;
    let key = *Key::generate().map_err(paceline_train::TrainError::from)?.as_bytes();
    let orders: Vec<ToRank> = (0..world)
        .map(|rank| ToRank::Config {
            plan: Box::new(launch.plan.clone()),
            run: launch.run.to_owned(),
            rank,
            key,
            folders: launch.folders.0.clone(),
            // Of several ranks on one machine, one tells of it.
            recording: launch.recording.map(|r| Recording { host: rank == 0, ..r }),
        })
        .collect();
    let interfaces = Emulated::of(launch.plan).map(|emulated| emulated.interfaces()).transpose()?;
    let mut fleet =
        Fleet::start(&launch.program.0, launch.program.1, &orders).map_err(system("starting a process"))?;
    watch.announce(report);
    let mut ended = vec![(false, false); world];
    // A rank that gave up because it lost a peer is a victim; who died without a word is not.
    let mut blamed: Option<(Instant, LaunchError)> = None;
    while !watch.gather.complete() {
        let news = fleet.news.recv_timeout(watch.patience()).ok();
        if watch.side_results(report) {
            // A rank that has died meanwhile is told of by its process's end.
            (0..launch.plan.workers).for_each(|rank| drop(fleet.tell(rank, &ToRank::GoOn)));
        }
        let failure = match news {
            Some(News::Said(rank, FromRank::Failed { lost: Some(_), message, hint, code }, _)) => {
                watch.victims[rank] = true;
                let role = role(launch.plan, rank);
                let told = LaunchError::Failed { role, rank, message, hint, code };
                blamed = blamed.or(Some((Instant::now(), told)));
                None
            }
            Some(News::Said(rank, said, numbers)) => {
                let all_bound = watch.take(rank, said, numbers, report)?;
                if all_bound {
                    let interfaces = interfaces.as_ref().and_then(Interfaces::path);
                    let order = ToRank::Peers { addresses: watch.addresses.clone(), interfaces };
                    for rank in 0..world {
                        // A rank that has died meanwhile is told of by its process's end.
                        let _ = fleet.tell(rank, &order);
                    }
                }
                None
            }
            Some(News::Silent(rank)) => {
                ended[rank].0 = true;
                watch.died(rank, ended[rank], &mut fleet)
            }
            Some(News::Exited(rank)) => {
                ended[rank].1 = true;
                watch.died(rank, ended[rank], &mut fleet)
            }
            None => watch.late(),
        };
        if let Some(failure) = failure {
            fleet.end(Duration::ZERO);
            return Err(failure);
        }
        if blamed.as_ref().is_some_and(|(since, _)| since.elapsed() > BLAME) {
            fleet.end(Duration::ZERO);
            return Err(blamed.expect("it was just there").1);
        }
    }
    drop(fleet);
    watch.finish(report)
}

/// All ranks as threads of this process, over the in-process transport.
fn as_threads(
    launch: &Launch<'_>,
    mut watch: Watch<'_>,
    report: &mut dyn FnMut(Event<'_>),
) -> Result<RunResult, LaunchError> {
    watch.announce(report);
    let (sender, news) = channel();
    let world = launch.plan.workers + launch.plan.servers;
    let emulated = Emulated::of(launch.plan);
    let interfaces = emulated.as_ref().map(Emulated::interfaces).transpose()?.map(Arc::new);
    let own_core = world * launch.plan.threads <= std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let mut go_ons = Vec::new();
        for (rank, transport) in inproc::mesh(world).into_iter().enumerate() {
            let (emulated, interfaces) = (&emulated, &interfaces);
            let sender = sender.clone();
            let to_launcher = sender.clone();
            // Of several ranks in one process, one tells of it.
            let recording = launch.recording.map(|r| Recording { process: rank == 0, host: rank == 0, ..r });
            let (go_on, told) = channel();
            go_ons.push(go_on);
            scope.spawn(move || {
                let say = &mut |said: FromRank, numbers: &[f32]| {
                    // After a failure nobody listens any more.
                    let _ = sender.send((rank, said, numbers.to_vec()));
                };
                let mut transport: Box<dyn Transport> = Box::new(transport);
                if let (Some(emulated), Some(interfaces)) = (emulated, interfaces) {
                    transport = emulated.wrap(transport, Arc::clone(interfaces), None, own_core);
                }
                if let Ok(seat) = Seat::new(launch.plan, launch.dataset, rank) {
                    let recorder = recording.map(|recording| {
                        let ship = move |batch: &Batch, _| {
                            let said = FromRank::Recorded(Box::new(batch.clone()));
                            to_launcher.send((rank, said, batch.numbers())).is_ok()
                        };
                        Recorder::start(recording, Box::new(ship))
                    });
                    seat.play(transport, &told, recorder, say);
                }
            });
        }
        drop(sender);
        loop {
            match news.recv_timeout(watch.patience()) {
                Ok((rank, said, numbers)) => drop(watch.take(rank, said, numbers, report)?),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if watch.side_results(report) {
                // A rank that has ended does not wait.
                go_ons.iter().for_each(|go_on| go_on.send(()).unwrap_or_default());
            }
        }
        Ok::<(), LaunchError>(())
    })?;
    watch.finish(report)
}

/// What the launcher knows of a run under way.
struct Watch<'a> {
    launch: &'a Launch<'a>,
    gather: Gather<'a>,
    addresses: Vec<String>,
    /// Ranks that have begun.
    begun: usize,
    startup: Option<f64>,
    began: Instant,
    /// The last step that each rank told of.
    steps: Vec<u64>,
    /// Ranks that gave up because they lost a peer.
    victims: Vec<bool>,
    agreement: Agreement,
    /// Length of the parameters.
    params: usize,
    /// Snapshots of which parts are missing.
    snapshots: Vec<Incomplete>,
    /// Snapshots that are being evaluated.
    under_way: usize,
    /// Where complete ones go; none once the run is over.
    jobs: Option<Sender<Snapshot>>,
    results: Receiver<(u64, f64, Outcome)>,
}

impl<'a> Watch<'a> {
    fn new(
        launch: &'a Launch<'a>,
        jobs: Option<Sender<Snapshot>>,
        results: Receiver<(u64, f64, Outcome)>,
    ) -> Self {
        let world = launch.plan.workers + launch.plan.servers;
        let seat = Seat::new(launch.plan, launch.dataset, 0);
        Self {
            agreement: seat.as_ref().map_or(Agreement::Apart, Seat::agreement),
            params: seat.map_or(0, |seat| seat.setup.params),
            under_way: 0,
            launch,
            gather: Gather::new(launch.plan),
            addresses: vec![String::new(); world],
            begun: 0,
            startup: None,
            began: Instant::now(),
            steps: vec![0; world],
            victims: vec![false; world],
            snapshots: Vec::new(),
            jobs,
            results,
        }
    }

    fn announce(&self, report: &mut dyn FnMut(Event<'_>)) {
        if let Ok(seat) = Seat::new(self.launch.plan, self.launch.dataset, 0) {
            report(Event::Start {
                schema: SCHEMA,
                run: self.launch.run,
                plan: self.launch.plan,
                plan_sha256: self.launch.plan.hash(),
                parameters: seat.setup.params,
                steps: seat.setup.steps,
                kernels: paceline_nn::accel::Level::detect().to_string(),
            });
        }
    }

    /// Takes what a rank says; true when the last address has come.
    fn take(
        &mut self,
        rank: usize,
        said: FromRank,
        numbers: Vec<f32>,
        report: &mut dyn FnMut(Event<'_>),
    ) -> Result<bool, LaunchError> {
        let plan = self.launch.plan;
        match said {
            FromRank::Bound { address } => {
                self.addresses[rank] = address;
                return Ok(self.addresses.iter().all(|a| !a.is_empty()));
            }
            FromRank::Started => {
                self.begun += 1;
                if self.begun == plan.workers {
                    self.startup = Some(self.launch.started.seconds());
                    self.began = Instant::now();
                }
            }
            FromRank::Step { step, loss, train_s } => {
                self.steps[rank] = step;
                if rank == 0 {
                    let samples = step * (plan.workers * plan.batch) as u64;
                    report(Event::Progress { step, samples, train_s, train_loss: loss });
                }
            }
            FromRank::Evaluated { step, train_s, loss, correct, samples } => {
                self.steps[rank] = step;
                self.gather.part(step, train_s, Outcome { loss, correct, samples }, report);
            }
            FromRank::Snapshot { step, train_s } => self.snapshot(rank, step, train_s, numbers),
            FromRank::Refused { cause } => report(Event::Refused { rank, cause: &cause }),
            FromRank::Recorded(batch) => {
                report(Event::Batch { rank, batch: &batch.with_numbers(&numbers) });
            }
            FromRank::Done(account) => {
                self.gather.done[rank] = Some(*account);
                self.gather.numbers[rank] = numbers;
            }
            FromRank::Failed { message, hint, code, .. } => {
                return Err(LaunchError::Failed { role: role(plan, rank), rank, message, hint, code });
            }
        }
        Ok(false)
    }

    /// How long to wait for news: not long while somebody waits for an evaluation.
    fn patience(&self) -> Duration {
        Duration::from_millis(if self.under_way > 0 { 1 } else { 50 })
    }

    /// A part of the model at an evaluation that the ranks cannot make alone; the last one sets it off.
    fn snapshot(&mut self, rank: usize, step: u64, train_s: Option<f64>, numbers: Vec<f32>) {
        let plan = self.launch.plan;
        let (index, parts) =
            if rank < plan.workers { (rank, plan.workers) } else { (rank - plan.workers, plan.servers) };
        let at = self.snapshots.iter().position(|s| s.step == step).unwrap_or_else(|| {
            let train_s = train_s.unwrap_or_else(|| self.began.elapsed().as_secs_f64());
            self.snapshots.push(Incomplete { step, train_s, parts: vec![None; parts] });
            self.snapshots.len() - 1
        });
        let snapshot = &mut self.snapshots[at];
        snapshot.train_s = snapshot.train_s.max(train_s.unwrap_or_default());
        snapshot.parts[index] = Some(numbers);
        if snapshot.parts.iter().all(Option::is_some) {
            let Incomplete { step, train_s, parts } = self.snapshots.swap_remove(at);
            let parts: Vec<Vec<f32>> = parts.into_iter().flatten().collect();
            let (params, state) =
                if rank < plan.workers { self.model(parts) } else { (parts.concat(), None) };
            if let Some(jobs) = &self.jobs {
                self.under_way += 1;
                // The evaluator listens as long as the run lasts.
                let _ = jobs.send(Snapshot { step, train_s, params, state });
            }
        }
    }

    /// The model out of what each worker has shown: parameters (if they agree, the first worker's alone) and
    /// state, whose mean counts.
    fn model(&self, mut parts: Vec<Vec<f32>>) -> (Vec<f32>, Option<Vec<f32>>) {
        let params = match self.agreement {
            Agreement::Apart => None,
            _ => {
                let states = parts.get(1).map_or(0, Vec::len);
                let at = parts[0].len() - states;
                let state = parts[0].split_off(at);
                Some(std::mem::replace(&mut parts[0], state))
            }
        };
        let mut mean = mean(&parts);
        match params {
            Some(params) => (params, Some(mean)),
            None => {
                let state = mean.split_off(self.params);
                (mean, Some(state))
            }
        }
    }

    /// Takes what was evaluated beside the run; whether something was.
    fn side_results(&mut self, report: &mut dyn FnMut(Event<'_>)) -> bool {
        let mut any = false;
        while let Ok((step, train_s, outcome)) = self.results.try_recv() {
            self.under_way -= 1;
            self.gather.whole(step, train_s, outcome, report);
            any = true;
        }
        any
    }

    /// A rank whose process has ended and whose pipe is closed, without an account: the failure to tell.
    fn died(&self, rank: usize, ended: (bool, bool), fleet: &mut Fleet) -> Option<LaunchError> {
        if ended != (true, true) || self.gather.done[rank].is_some() || self.victims[rank] {
            return None;
        }
        let cause = match fleet.status(rank) {
            Some(status) => status.to_string(),
            None => "its process has ended".into(),
        };
        let when = match self.steps[rank] {
            0 if self.begun == 0 => "before the first step".into(),
            step => format!("after step {step}"),
        };
        let role = role(self.launch.plan, rank);
        Some(LaunchError::Lost { role, rank, pid: fleet.pid(rank), when, cause })
    }

    /// A rank that does not come up in time.
    fn late(&self) -> Option<LaunchError> {
        if self.startup.is_some() || self.began.elapsed() < START {
            return None;
        }
        let rank = self.addresses.iter().position(String::is_empty).unwrap_or(0);
        let role = role(self.launch.plan, rank);
        Some(LaunchError::Late { role, rank, what: "begin", seconds: START.as_secs() })
    }

    fn finish(mut self, report: &mut dyn FnMut(Event<'_>)) -> Result<RunResult, LaunchError> {
        self.jobs = None;
        while let Ok((step, train_s, outcome)) = self.results.recv() {
            self.gather.whole(step, train_s, outcome, report);
        }
        let (plan, launch) = (self.launch.plan, self.launch);
        let mut model = None;
        // Workers whose models agree have evaluated the last step themselves.
        if self.agreement == Agreement::Apart {
            let mut mean = self.gather.workers_mean();
            let (params, state) = if plan.servers > 0 {
                (self.gather.server_params(), mean)
            } else {
                let state = mean.split_off(self.params);
                (mean, state)
            };
            model = Some(params_sha256(&params));
            let outcome = evaluate(launch, params, Some(state));
            let (steps, train_s) = (self.gather.steps(), self.gather.train_s());
            self.gather.whole(steps, train_s, outcome, report);
        }
        for (rank, done) in self.gather.done[..plan.workers].iter().flatten().enumerate() {
            let [data_s, forward_s, backward_s] = done.phases;
            let (send_s, wait_s, apply_s) = (done.send_s, done.wait_s, done.apply_s);
            let wait_for_s = done.wait_for_s.clone();
            report(Event::Phases {
                rank,
                data_s,
                forward_s,
                backward_s,
                send_s,
                wait_s,
                wait_for_s,
                apply_s,
            });
        }
        Ok(self.gather.result(launch.run, self.startup.unwrap_or_default(), launch.started, model))
    }
}

/// Evaluates parameters on the whole test split, in this process.
fn evaluate(launch: &Launch<'_>, params: Vec<f32>, state: Option<Vec<f32>>) -> Outcome {
    let Ok(seat) = Seat::new(launch.plan, launch.dataset, 0) else { return Outcome::default() };
    let compute = Arc::new(Compute::new(1, false));
    let mut replica = Replica::new(launch.plan, seat.graph, compute);
    replica.params = params;
    if let Some(state) = state {
        replica.state = state;
    }
    replica.evaluate(launch.dataset, 0..launch.dataset.test.len())
}
