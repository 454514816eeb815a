//! A distributed run, from the plan to the result.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use paceline_data::{Dataset, Folders};
use paceline_plan::{Plan, PlanError};
use paceline_protocol::Refusal;
use paceline_record::process::Started;
use paceline_record::{Batch, Event, FailureKind, Recording, RunResult};
use paceline_train::{Brake, TrainError};
use paceline_wire::{Interfaces, Key, TRANSPORTS, Transport, TransportKind, inproc, registry};

use crate::control::{RankCommand, RankEvent};
use crate::emulated::Emulated;
use crate::error::LaunchError;
use crate::joining::{self, RunEnd};
use crate::pauses::CheckpointContext;
use crate::processes::ProcessEvent;
use crate::rank::{PauseCommand, RankContext, RankControl, role};
use crate::ranks::{Hosts, Incoming, Ranks, RanksEvent};
use crate::recorder::RankRecorder;
use crate::rendezvous::{self, Listen};
use crate::vitals::Vitals;
use crate::watch::{Reaction, Snapshot, Watch, evaluate};

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
    pub checkpointing: &'a CheckpointContext,
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
    let context = RankContext::new(plan, dataset, 0)?;
    context.strategy.check(&context.setup).map_err(|refusal| {
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
    let mut checkpointing = launch.checkpointing.clone();
    for left in (0..plan.restarts).rev() {
        let Err(error) = &done else { break };
        if error.kind() != FailureKind::Lost {
            break;
        }
        checkpointing.resumed = checkpointing.checkpoints.latest(&plan.hash())?.0.map(Arc::new);
        let step = checkpointing.resumed.as_ref().map_or(0, |checkpoint| checkpoint.step);
        report(Event::Restarted { step, cause: &error.to_string(), left });
        done = attempt(&Launch { checkpointing: &checkpointing, ..launch.clone() }, None, report);
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
            Some(rendezvous::rendezvous(launch, listen, limit, sender.clone(), &heard, report)?)
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

/// Most bytes of what a machine may say at once: a model, its state, and some words.
fn longest_word(launch: &Launch<'_>) -> Result<usize, LaunchError> {
    let context = RankContext::new(launch.plan, launch.dataset, 0)?;
    // Parameters, what the optimiser remembers and what a strategy puts by; and a line for each update.
    let numbers = 8 * context.setup.params + context.graph.state_count();
    let updates = 24 * context.setup.steps as usize * launch.plan.workers;
    Ok(joining::DOCUMENT + size_of::<f32>() * numbers + updates)
}

fn as_processes(
    launch: &Launch<'_>,
    mut watch: Watch<'_>,
    hosts: Option<Hosts>,
    channel: (Sender<Incoming>, Receiver<Incoming>),
    report: &mut dyn FnMut(Event<'_>),
) -> Result<RunResult, LaunchError> {
    let key = *Key::generate().map_err(TrainError::from)?.as_bytes();
    let mut ranks = Ranks::start(launch, key, hosts, channel)?;
    let done = lead(launch, &mut watch, &mut ranks, report).and_then(|()| watch.finish(report));
    ranks.dismiss(match &done {
        Ok(result) => RunEnd { result: serde_json::to_value(result).ok(), ..RunEnd::default() },
        Err(e) => RunEnd { failure: Some(e.kind()), message: e.to_string(), hint: e.hint(), result: None },
    });
    done
}

/// Watches over every rank until all have given their accounts.
fn lead(
    launch: &Launch<'_>,
    watch: &mut Watch<'_>,
    ranks: &mut Ranks,
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
        let tidings = ranks.next(watch.patience());
        let mut signs = vitals.look(clock.elapsed());
        match &tidings {
            Some(RanksEvent::Rank(ProcessEvent::Rank(rank, said, _))) => {
                signs.extend(vitals.heard(*rank));
                if let RankEvent::Done(_) | RankEvent::Failed { .. } = said {
                    vitals.forget(*rank);
                }
            }
            Some(RanksEvent::Rank(ProcessEvent::Closed(rank) | ProcessEvent::Exited(rank))) => {
                vitals.forget(*rank)
            }
            _ => {}
        }
        watch.signs(&signs, ranks, report)?;
        if watch.side_results(report)? {
            (0..launch.plan.workers).for_each(|rank| ranks.tell(rank, RankCommand::GoOn, &[]));
        }
        let failure = match tidings {
            Some(RanksEvent::Rank(ProcessEvent::Rank(rank, mut said, numbers))) => {
                locate(&mut said, rank, ranks);
                if let RankEvent::Failed { lost: Some(lost), message, hint, kind } = said {
                    watch.victims[rank] = true;
                    let role = role(launch.plan, rank);
                    let told = LaunchError::Failed { role, rank, message, hint, kind };
                    blamed = blamed.or(Some((Instant::now(), lost, told)));
                } else {
                    match watch.take(rank, said, numbers, report)? {
                        Reaction::Nothing => {}
                        Reaction::Connect => {
                            for rank in 0..world {
                                let interfaces = interfaces.as_ref().and_then(Interfaces::path);
                                let (order, numbers) = watch.peers(rank, interfaces);
                                ranks.tell(rank, order, &numbers);
                            }
                        }
                        Reaction::TellAll(order) => ranks.tell_all(&order),
                    }
                }
                None
            }
            Some(RanksEvent::Rank(ProcessEvent::Closed(rank))) => {
                ended[rank].0 = true;
                watch.died(rank, ended[rank], ranks)
            }
            Some(RanksEvent::Rank(ProcessEvent::Exited(rank))) => {
                ended[rank].1 = true;
                watch.died(rank, ended[rank], ranks)
            }
            Some(RanksEvent::HostLost { host, cause }) => Some(watch.host_lost(ranks.host(host), cause)),
            Some(RanksEvent::HostLiveness { host, there }) => {
                let (name, _) = ranks.host(host);
                report(Event::Host { host, name: &name, state: if there { "back" } else { "quiet" } });
                None
            }
            Some(RanksEvent::Refused { cause }) => {
                report(Event::Refused { rank: None, cause: &cause });
                None
            }
            Some(RanksEvent::Nothing) => None,
            None => watch.late(),
        };
        if let Some(failure) = failure {
            return Err(failure);
        }
        if let Some(order) = watch.interrupted()? {
            watch.pauses.asked_first().into_iter().for_each(|rank| ranks.tell(rank, order.clone(), &[]));
        }
        // Of a machine that is under suspicion it is soon known whether it is lost: then that is the cause.
        let ripe = |(since, lost, _): &(Instant, usize, _)| since.elapsed() > BLAME && !ranks.quiet(*lost);
        if let Some((_, _, told)) = blamed.take_if(|blamed| ripe(blamed)) {
            return Err(told);
        }
    }
    Ok(())
}

/// Adds the machine to what a rank says, where it matters which one it was.
fn locate(said: &mut RankEvent, rank: usize, ranks: &Ranks) {
    match said {
        RankEvent::Failed { message, lost, .. } => {
            if let Some(place) = ranks.place(rank) {
                *message = format!("on {place}: {message}");
            }
            if let Some((lost, place)) = lost.and_then(|lost| Some((lost, ranks.place(lost)?))) {
                *message += &format!(" (rank {lost} is on {place})");
            }
        }
        RankEvent::Done(account) => {
            if let (None, Some(name)) = (ranks.place(rank), ranks.own_name()) {
                account.host = name;
            }
        }
        RankEvent::Recorded(batch) => {
            if let (Some(site), None, Some(name)) = (&mut batch.site, ranks.place(rank), ranks.own_name()) {
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
    watch.connected = true;
    let (sender, news) = channel();
    let world = launch.plan.workers + launch.plan.servers;
    let emulated = Emulated::of(launch.plan);
    let interfaces = emulated.as_ref().map(Emulated::interfaces).transpose()?.map(Arc::new);
    let own_core = world * launch.plan.threads <= std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let mut controls: Vec<(Sender<PauseCommand>, Arc<Brake>)> = Vec::new();
        for (rank, transport) in inproc::mesh(world).into_iter().enumerate() {
            let (emulated, interfaces) = (&emulated, &interfaces);
            let sender = sender.clone();
            let (tell, told) = channel();
            let (segment, restored) = (watch.pauses.segment(), watch.pauses.restored(rank).cloned());
            let brake = Arc::new(Brake::starting_at(segment.from));
            let control = RankControl { segment, restored, brake, told };
            controls.push((tell, Arc::clone(&control.brake)));
            let to_launcher = sender.clone();
            // Of several ranks in one process, one tells of it.
            let recording = launch.recording.map(|r| Recording { process: rank == 0, host: rank == 0, ..r });
            scope.spawn(move || {
                let say = &mut |said: RankEvent, numbers: &[f32]| {
                    // After a failure nobody listens any more.
                    let _ = sender.send((rank, said, numbers.to_vec()));
                };
                let mut transport: Box<dyn Transport> = Box::new(transport);
                if let (Some(emulated), Some(interfaces)) = (emulated, interfaces) {
                    transport = emulated.wrap(transport, Arc::clone(interfaces), None, own_core);
                }
                if let Ok(context) = RankContext::new(launch.plan, launch.dataset, rank) {
                    let ship = move |batch: &Batch, _| {
                        let said = RankEvent::Recorded(Box::new(batch.clone()));
                        to_launcher.send((rank, said, batch.numbers())).is_ok()
                    };
                    let recorder = RankRecorder::open(recording, || Box::new(ship));
                    context.play(transport, control, &recorder, say);
                }
            });
        }
        drop(sender);
        let mut blamed: Option<(Instant, LaunchError)> = None;
        loop {
            if let Some(order) = watch.interrupted()? {
                for rank in watch.pauses.asked_first() {
                    let brake = &controls[rank].1;
                    let step = match order {
                        RankCommand::StopAt { step } => {
                            brake.stop_at(step);
                            step
                        }
                        _ => brake.hold(),
                    };
                    if let Some(RankCommand::StopAt { step }) = watch.pauses.held(rank, step) {
                        controls.iter().for_each(|(_, brake)| brake.stop_at(step));
                    }
                }
            }
            let then = match news.recv_timeout(watch.patience()) {
                // Who lost a peer is a victim: the peer may still say why it gave up.
                Ok((rank, RankEvent::Failed { lost: Some(_), message, hint, kind }, _)) => {
                    let role = role(launch.plan, rank);
                    let told = LaunchError::Failed { role, rank, message, hint, kind };
                    blamed = blamed.or(Some((Instant::now(), told)));
                    Reaction::Nothing
                }
                Ok((rank, said, numbers)) => watch.take(rank, said, numbers, report)?,
                Err(RecvTimeoutError::Timeout) => Reaction::Nothing,
                Err(RecvTimeoutError::Disconnected) => match blamed {
                    Some((_, told)) => return Err(told),
                    None => break,
                },
            };
            if let Some((_, told)) = blamed.take_if(|(since, _)| since.elapsed() > BLAME) {
                return Err(told);
            }
            if watch.side_results(report)? {
                // A rank that has ended does not wait.
                controls.iter().for_each(|(tell, _)| tell.send(PauseCommand::GoOn).unwrap_or_default());
            }
            if let Reaction::TellAll(order) = then
                && let RankCommand::Next { segment } = *order
            {
                controls
                    .iter()
                    .for_each(|(tell, _)| tell.send(PauseCommand::Next(segment)).unwrap_or_default());
            }
        }
        Ok::<(), LaunchError>(())
    })?;
    watch.finish(report)
}
