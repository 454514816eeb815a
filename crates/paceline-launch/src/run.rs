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
use paceline_record::{Batch, Event, Recording, RunResult};
use paceline_train::model::params_sha256;
use paceline_train::{Brake, Replica, TrainError};
use paceline_wire::{Interfaces, Key, TRANSPORTS, Transport, TransportKind, inproc, registry};

use crate::agent;
use crate::control::{FromRank, ToRank};
use crate::crew::{Crew, Hosts, Raw, Tidings};
use crate::emulated::Emulated;
use crate::error::LaunchError;
use crate::fleet::News;
use crate::gather::{Gather, mean};
use crate::joining::{self, Over};
use crate::ledger::Ledger;
use crate::muster::{self, Listen};
use crate::pauses::{Decision, Harbour, Pauses, pack, unpack};
use crate::rank::{Leash, Seat, Told, role};
use crate::vitals::{self, Sign, Vitals};

/// Time that ranks have to listen and to begin, loading included.
const START: Duration = Duration::from_secs(60);
/// Sizes of a connection's buffer that can be asked for.
const BUFFERS: RangeInclusive<usize> = 4 << 10..=1 << 30;
/// Time that a lost rank's process has to end before the loss is told without its cause of death.
const BLAME: Duration = Duration::from_secs(1);

/// What a run needs from outside.
#[derive(Clone)]
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
    /// Where the run's checkpoints are, and what may end it early.
    pub harbour: &'a Harbour,
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

/// Whether the hosts of a plan can be what the run asks for: other machines that join it, or emulated ones.
pub fn check_hosts(plan: &Plan, joined: bool) -> Result<(), PlanError> {
    let refuse = |flag: &str, value: &dyn ToString, problem: String| {
        Err(PlanError { flag: flag.into(), value: value.to_string(), problem })
    };
    if !joined {
        let problem = "says where ranks sit; give --network, e.g. 1gbit,200us, to emulate hosts, or --listen for \
                       other machines to join";
        return match (&plan.hosts, plan.network) {
            (Some(hosts), None) => refuse("--hosts", hosts, problem.into()),
            _ => Ok(()),
        };
    }
    let kind = transport(&plan.transport, plan.buffer)?;
    if kind.bind_at.is_none() {
        let far: Vec<_> = TRANSPORTS.iter().filter(|k| k.bind_at.is_some()).map(|k| k.name).collect();
        let problem = format!(
            "does not go to other machines ({}); valid with --listen: {}",
            kind.about,
            far.join(", ")
        );
        return refuse("--transport", &kind.name, problem);
    }
    if let Some(network) = plan.network {
        return refuse("--network", &network, "emulates links on one machine; --listen has real ones".into());
    }
    let hosts = plan.host_count();
    if hosts < 2 {
        let problem = "with --listen at least 2 hosts are needed, this one included: --hosts 2".into();
        return refuse("--hosts", &hosts, problem);
    }
    let layout = plan.layout();
    if let Some(idle) = (0..hosts).find(|host| !layout.contains(host)) {
        let problem = format!("host {idle} would have nothing to do; give more --workers or fewer hosts");
        return refuse("--hosts", &hosts, problem);
    }
    Ok(())
}

/// Whether the strategy can be run with the plan.
pub fn check(plan: &Plan, dataset: &Dataset) -> Result<(), LaunchError> {
    transport(&plan.transport, plan.buffer)?;
    let seat = Seat::new(plan, dataset, 0)?;
    seat.strategy.check(&seat.setup).map_err(|refusal| {
        let Refusal { flag, value, problem } = refusal;
        PlanError { flag, value, problem }
    })?;
    Ok(())
}

/// Runs it; with `listen` on other machines too, which it waits for first. A run that loses a rank starts again from
/// its last checkpoint, as often as the plan says.
pub fn run(
    launch: &Launch<'_>,
    listen: Option<Listen>,
    report: &mut dyn FnMut(Event<'_>),
) -> Result<RunResult, LaunchError> {
    let plan = launch.plan;
    check_hosts(plan, listen.is_some())?;
    check(plan, launch.dataset)?;
    if plan.restarts > 0 && listen.is_some() {
        let problem = "a machine that is lost does not come back by itself: not with --listen".into();
        return Err(PlanError { flag: "--on-loss".into(), value: "restart".into(), problem }.into());
    }
    let mut done = attempt(launch, listen, report);
    let mut harbour = launch.harbour.clone();
    for left in (0..plan.restarts).rev() {
        let Err(error) = &done else { break };
        if error.code() != 4 {
            break;
        }
        harbour.resumed = harbour.checkpoints.latest(&plan.hash())?.0.map(Arc::new);
        let step = harbour.resumed.as_ref().map_or(0, |checkpoint| checkpoint.step);
        report(Event::Restarted { step, cause: &error.to_string(), left });
        done = attempt(&Launch { harbour: &harbour, ..launch.clone() }, None, report);
    }
    done
}

/// Runs it once, from the beginning or from where it was saved.
fn attempt(
    launch: &Launch<'_>,
    listen: Option<Listen>,
    report: &mut dyn FnMut(Event<'_>),
) -> Result<RunResult, LaunchError> {
    let (sender, heard) = channel();
    let hosts = match listen {
        Some(listen) => {
            let limit = longest_word(launch)?;
            Some(muster::muster(launch, listen, limit, sender.clone(), &heard, report)?)
        }
        None => None,
    };
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
            Some(_) => as_processes(launch, watch, hosts, (sender, heard), report),
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

/// Step and training clock of a snapshot, and what came of it.
type Evaluated = (u64, f64, Result<Outcome, TrainError>);

/// A snapshot of which parts are missing.
struct Incomplete {
    step: u64,
    train_s: f64,
    /// What the servers, or the workers, have shown.
    parts: Vec<Option<Vec<f32>>>,
}

/// Most bytes of what a machine may say at once: a model, its state, and some words.
fn longest_word(launch: &Launch<'_>) -> Result<usize, LaunchError> {
    let seat = Seat::new(launch.plan, launch.dataset, 0)?;
    // Parameters, what the optimiser remembers and what a strategy puts by; and a line for each update.
    let numbers = 8 * seat.setup.params + seat.graph.state_count();
    let updates = 24 * seat.setup.steps as usize * launch.plan.workers;
    Ok(joining::DOCUMENT + size_of::<f32>() * numbers + updates)
}

fn as_processes(
    launch: &Launch<'_>,
    mut watch: Watch<'_>,
    hosts: Option<Hosts>,
    channel: (Sender<Raw>, Receiver<Raw>),
    report: &mut dyn FnMut(Event<'_>),
) -> Result<RunResult, LaunchError> {
    let key = *Key::generate().map_err(TrainError::from)?.as_bytes();
    let mut crew = Crew::start(launch, key, hosts, channel)?;
    let done = lead(launch, &mut watch, &mut crew, report).and_then(|()| watch.finish(report));
    crew.dismiss(match &done {
        Ok(result) => Over { result: serde_json::to_value(result).ok(), ..Over::default() },
        Err(e) => Over { code: e.code(), message: e.to_string(), hint: e.hint(), result: None },
    });
    done
}

/// Watches over every rank until all have given their accounts.
fn lead(
    launch: &Launch<'_>,
    watch: &mut Watch<'_>,
    crew: &mut Crew,
    report: &mut dyn FnMut(Event<'_>),
) -> Result<(), LaunchError> {
    let world = launch.plan.workers + launch.plan.servers;
    let interfaces = Emulated::of(launch.plan).map(|emulated| emulated.interfaces()).transpose()?;
    watch.announce(report);
    let mut ended = vec![(false, false); world];
    // A rank that gave up because it lost a peer is a victim; who died without a word is not.
    let mut blamed: Option<(Instant, usize, LaunchError)> = None;
    let (mut vitals, clock) = (Vitals::new(world), Instant::now());
    while !watch.gather.complete() {
        let tidings = crew.next(watch.patience());
        let mut signs = vitals.look(clock.elapsed());
        match &tidings {
            Some(Tidings::Rank(News::Said(rank, said, _))) => {
                signs.extend(vitals.heard(*rank));
                if let FromRank::Done(_) | FromRank::Failed { .. } = said {
                    vitals.forget(*rank);
                }
            }
            Some(Tidings::Rank(News::Silent(rank) | News::Exited(rank))) => vitals.forget(*rank),
            _ => {}
        }
        watch.signs(&signs, crew, report)?;
        if watch.side_results(report)? {
            (0..launch.plan.workers).for_each(|rank| crew.tell(rank, ToRank::GoOn, &[]));
        }
        if let Some(order) = watch.pauses.interrupted() {
            crew.tell_all(&order);
        }
        let failure = match tidings {
            Some(Tidings::Rank(News::Said(rank, mut said, numbers))) => {
                locate(&mut said, rank, crew);
                if let FromRank::Failed { lost: Some(lost), message, hint, code } = said {
                    watch.victims[rank] = true;
                    let role = role(launch.plan, rank);
                    let told = LaunchError::Failed { role, rank, message, hint, code };
                    blamed = blamed.or(Some((Instant::now(), lost, told)));
                } else {
                    match watch.take(rank, said, numbers, report)? {
                        Then::Nothing => {}
                        Then::Connect => {
                            for rank in 0..world {
                                let interfaces = interfaces.as_ref().and_then(Interfaces::path);
                                let (order, numbers) = watch.peers(rank, interfaces);
                                crew.tell(rank, order, &numbers);
                            }
                        }
                        Then::TellAll(order) => crew.tell_all(&order),
                    }
                }
                None
            }
            Some(Tidings::Rank(News::Silent(rank))) => {
                ended[rank].0 = true;
                watch.died(rank, ended[rank], crew)
            }
            Some(Tidings::Rank(News::Exited(rank))) => {
                ended[rank].1 = true;
                watch.died(rank, ended[rank], crew)
            }
            Some(Tidings::Lost { host, cause }) => Some(watch.host_lost(crew.host(host), cause)),
            Some(Tidings::Seen { host, there }) => {
                let (name, _) = crew.host(host);
                report(Event::Host { host, name: &name, state: if there { "back" } else { "quiet" } });
                None
            }
            Some(Tidings::Refused { cause }) => {
                report(Event::Refused { rank: None, cause: &cause });
                None
            }
            Some(Tidings::Nothing) => None,
            None => watch.late(),
        };
        if let Some(failure) = failure {
            return Err(failure);
        }
        // Of a machine that is under suspicion it is soon known whether it is lost: then that is the cause.
        let ripe = |(since, lost, _): &(Instant, usize, _)| since.elapsed() > BLAME && !crew.quiet(*lost);
        if let Some((_, _, told)) = blamed.take_if(|blamed| ripe(blamed)) {
            return Err(told);
        }
    }
    Ok(())
}

/// Adds the machine to what a rank says, where it matters which one it was.
fn locate(said: &mut FromRank, rank: usize, crew: &Crew) {
    match said {
        FromRank::Failed { message, lost, .. } => {
            if let Some(place) = crew.place(rank) {
                *message = format!("on {place}: {message}");
            }
            if let Some((lost, place)) = lost.and_then(|lost| Some((lost, crew.place(lost)?))) {
                *message += &format!(" (rank {lost} is on {place})");
            }
        }
        FromRank::Done(account) => {
            if let (None, Some(name)) = (crew.place(rank), crew.own_name()) {
                account.host = name;
            }
        }
        FromRank::Recorded(batch) => {
            if let (Some(site), None, Some(name)) = (&mut batch.site, crew.place(rank), crew.own_name()) {
                site.host = name;
            }
        }
        _ => {}
    }
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
        let mut leashes: Vec<(Sender<Told>, Arc<Brake>)> = Vec::new();
        for (rank, transport) in inproc::mesh(world).into_iter().enumerate() {
            let (emulated, interfaces) = (&emulated, &interfaces);
            let sender = sender.clone();
            let (tell, told) = channel();
            let (stretch, restored) = (watch.pauses.stretch(), watch.pauses.restored(rank).cloned());
            let leash = Leash { stretch, restored, brake: Arc::default(), told };
            leashes.push((tell, Arc::clone(&leash.brake)));
            let to_launcher = sender.clone();
            // Of several ranks in one process, one tells of it.
            let recording = launch.recording.map(|r| Recording { process: rank == 0, host: rank == 0, ..r });
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
                    let ship = move |batch: &Batch, _| {
                        let said = FromRank::Recorded(Box::new(batch.clone()));
                        to_launcher.send((rank, said, batch.numbers())).is_ok()
                    };
                    let ledger = Ledger::open(recording, || Box::new(ship));
                    seat.play(transport, leash, &ledger, say);
                }
            });
        }
        drop(sender);
        loop {
            let mut then = watch.pauses.interrupted().map_or(Then::Nothing, Then::tell_all);
            match news.recv_timeout(watch.patience()) {
                Ok((rank, said, numbers)) => match watch.take(rank, said, numbers, report)? {
                    Then::Nothing => {}
                    other => then = other,
                },
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if watch.side_results(report)? {
                // A rank that has ended does not wait.
                leashes.iter().for_each(|(tell, _)| tell.send(Told::GoOn).unwrap_or_default());
            }
            let Then::TellAll(order) = then else { continue };
            match *order {
                ToRank::Hold => {
                    let workers = leashes[..launch.plan.workers].iter().enumerate();
                    let held: Vec<_> = workers.map(|(rank, (_, brake))| (rank, brake.hold())).collect();
                    let stops = held.into_iter().filter_map(|(rank, step)| watch.pauses.held(rank, step));
                    if let Some(ToRank::StopAt { step }) = stops.last() {
                        leashes.iter().for_each(|(_, brake)| brake.stop_at(step));
                    }
                }
                ToRank::StopAt { step } => leashes.iter().for_each(|(_, brake)| brake.stop_at(step)),
                ToRank::Next { stretch } => {
                    leashes.iter().for_each(|(tell, _)| tell.send(Told::Next(stretch)).unwrap_or_default());
                }
                _ => {}
            }
        }
        Ok::<(), LaunchError>(())
    })?;
    watch.finish(report)
}

/// What is to be done about something that a rank has said.
enum Then {
    Nothing,
    /// Everybody's address is known.
    Connect,
    TellAll(Box<ToRank>),
}

impl Then {
    fn tell_all(order: ToRank) -> Self {
        Self::TellAll(Box::new(order))
    }
}

/// What the launcher knows of a run under way.
struct Watch<'a> {
    launch: &'a Launch<'a>,
    pauses: Pauses<'a>,
    steps_in_all: u64,
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
    results: Receiver<Evaluated>,
}

impl<'a> Watch<'a> {
    fn new(launch: &'a Launch<'a>, jobs: Option<Sender<Snapshot>>, results: Receiver<Evaluated>) -> Self {
        let world = launch.plan.workers + launch.plan.servers;
        let seat = Seat::new(launch.plan, launch.dataset, 0);
        let steps_in_all = seat.as_ref().map_or(0, |seat| seat.setup.steps);
        let account = launch.harbour.resumed.as_ref().map(|checkpoint| &checkpoint.account[..]);
        Self {
            pauses: Pauses::new(launch.plan, launch.harbour, steps_in_all),
            steps_in_all,
            agreement: seat.as_ref().map_or(Agreement::Apart, Seat::agreement),
            params: seat.map_or(0, |seat| seat.setup.params),
            under_way: 0,
            launch,
            gather: Gather::new(launch.plan, account),
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

    /// What a rank is told when everybody's address is known.
    fn peers(&self, rank: usize, interfaces: Option<String>) -> (ToRank, Vec<f32>) {
        let packed = self.pauses.restored(rank).map(pack);
        let (restored, numbers) = packed.unzip();
        let (addresses, stretch) = (self.addresses.clone(), self.pauses.stretch());
        (ToRank::Peers { addresses, interfaces, stretch, restored }, numbers.unwrap_or_default())
    }

    /// Everybody has paused: saves, and goes on or stops.
    fn pause(&mut self, report: &mut dyn FnMut(Event<'_>)) -> Result<Then, LaunchError> {
        // What was shown before the pause belongs to what is saved.
        while self.under_way > 0 {
            let Ok((step, train_s, outcome)) = self.results.recv() else { break };
            self.under_way -= 1;
            self.gather.whole(step, train_s, outcome?, report);
        }
        report(Event::Paused);
        match self.pauses.decide(self.gather.account())? {
            Decision::GoOn(stretch) => {
                report(Event::Checkpoint { step: stretch.from });
                Ok(Then::TellAll(Box::new(ToRank::Next { stretch: Some(stretch) })))
            }
            Decision::Stop { step, path } => {
                report(Event::Checkpoint { step });
                let (steps, run) = (self.steps_in_all, self.launch.run.to_owned());
                Err(LaunchError::Interrupted { step, steps, path, run })
            }
        }
    }

    /// Takes what a rank says; what is to be done then.
    fn take(
        &mut self,
        rank: usize,
        said: FromRank,
        numbers: Vec<f32>,
        report: &mut dyn FnMut(Event<'_>),
    ) -> Result<Then, LaunchError> {
        let plan = self.launch.plan;
        match said {
            FromRank::Bound { address } => {
                self.addresses[rank] = address;
                let all = self.addresses.iter().all(|a| !a.is_empty());
                return Ok(if all { Then::Connect } else { Then::Nothing });
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
            FromRank::Evaluated { step, train_s, loss, correct, predictions, samples } => {
                self.steps[rank] = step;
                let outcome = Outcome { loss, correct, predictions, samples };
                self.gather.part(rank, step, train_s, outcome, report);
            }
            FromRank::Alive => {}
            FromRank::Snapshot { step, train_s } => self.snapshot(rank, step, train_s, numbers),
            FromRank::Held { step } => {
                return Ok(self.pauses.held(rank, step).map_or(Then::Nothing, Then::tell_all));
            }
            FromRank::Paused { step, part } => {
                let Some(part) = unpack(part, &numbers) else {
                    let problem = format!("rank {rank} sent only a part of what it keeps");
                    return Err(TrainError::Restore { problem }.into());
                };
                if self.pauses.paused(rank, step, part) {
                    return self.pause(report);
                }
            }
            FromRank::Refused { cause } => report(Event::Refused { rank: Some(rank), cause: &cause }),
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
        Ok(Then::Nothing)
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
    fn side_results(&mut self, report: &mut dyn FnMut(Event<'_>)) -> Result<bool, LaunchError> {
        let mut any = false;
        while let Ok((step, train_s, outcome)) = self.results.try_recv() {
            self.under_way -= 1;
            self.gather.whole(step, train_s, outcome?, report);
            any = true;
        }
        Ok(any)
    }

    /// A rank whose process has ended and whose pipe is closed, without an account: the failure to tell.
    fn died(&self, rank: usize, ended: (bool, bool), crew: &mut Crew) -> Option<LaunchError> {
        if ended != (true, true) || self.gather.done[rank].is_some() || self.victims[rank] {
            return None;
        }
        let mut cause = crew.status(rank).unwrap_or_else(|| "its process has ended".into());
        if let Some(place) = crew.place(rank) {
            cause += &format!(", on {place}");
        }
        let role = role(self.launch.plan, rank);
        Some(LaunchError::Lost { role, rank, pid: crew.pid(rank), when: self.when(&[rank]), cause })
    }

    /// Tells of ranks that are silent, and gives those up that are for too long: ending the run ends their processes,
    /// stopped ones too, so that nothing of them comes late. (A machine that is silent is told of by itself.)
    fn signs(
        &self,
        signs: &[Sign],
        crew: &Crew,
        report: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), LaunchError> {
        for &sign in signs {
            match sign {
                Sign::Suspect(rank) | Sign::Dead(rank) if crew.quiet(rank) => {}
                Sign::Suspect(rank) => report(Event::Liveness { rank, state: "suspect" }),
                Sign::Back(rank) => report(Event::Liveness { rank, state: "back" }),
                Sign::Dead(rank) => {
                    let place = crew.place(rank).map_or_else(String::new, |place| format!(", on {place}"));
                    let cause = format!("nothing was heard of it for {} s{place}", vitals::DEAD.as_secs());
                    let (role, pid, when) =
                        (role(self.launch.plan, rank), crew.pid(rank), self.when(&[rank]));
                    return Err(LaunchError::Lost { role, rank, pid, when, cause });
                }
            }
        }
        Ok(())
    }

    /// How far ranks had come, as far as they told.
    fn when(&self, ranks: &[usize]) -> String {
        match ranks.iter().map(|&rank| self.steps[rank]).max() {
            Some(0) | None if self.begun == 0 => "before the first step".into(),
            step => format!("after step {}", step.unwrap_or_default()),
        }
    }

    /// A machine that is gone, with all its ranks.
    fn host_lost(&self, (host, ranks): (String, Vec<usize>), cause: String) -> LaunchError {
        let when = self.when(&ranks);
        LaunchError::HostLost { host, ranks: agent::words(self.launch.plan, &ranks), when, cause }
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

    fn finish(&mut self, report: &mut dyn FnMut(Event<'_>)) -> Result<RunResult, LaunchError> {
        self.jobs = None;
        while let Ok((step, train_s, outcome)) = self.results.recv() {
            self.gather.whole(step, train_s, outcome?, report);
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
            let outcome = evaluate(launch, params, Some(state))?;
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
fn evaluate(launch: &Launch<'_>, params: Vec<f32>, state: Option<Vec<f32>>) -> Result<Outcome, TrainError> {
    let seat = Seat::new(launch.plan, launch.dataset, 0)?;
    let compute = Arc::new(Compute::new(1, false));
    let mut replica = Replica::new(launch.plan, seat.graph, compute)?;
    replica.params = params;
    if let Some(state) = state {
        replica.state = state;
    }
    replica.evaluate(launch.dataset, 0..launch.dataset.test.len())
}
