//! The whole life of a rank's process.

use std::sync::Arc;
use std::time::Duration;

use paceline_attach::ScriptListener;
use paceline_data::Folders;
use paceline_record::RankState;
use paceline_resolve::{Registries, TypedPlan, unknown};
use paceline_train::{Generation, Segment, TrainError, model};
use paceline_wire::{Door, Identity, Key, StreamOptions, Transport, inproc};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::{RankContext, RankControl, RankStart, ScriptKnown, cores, emulate, failed, model_hash, options};
use crate::control::{self, RankAccount, RankCommand, RankEvent, RankTask, ScriptCommon};
use crate::emulated::EmulatedNetwork;
use crate::member::{self, MemberLinks};
use crate::pauses::unpack;
use crate::recorder::{self, RankRecorder};
use crate::{fault, interrupt, liveness, scripts};

/// How long ranks may take to find each other.
const CONNECT: Duration = Duration::from_secs(20);
/// How long the members of an elastic run's first generation may take: one that is lost meanwhile is not found.
const FIRST: Duration = Duration::from_secs(10);
/// How long a waiting server leaves its core to others before it sleeps. It has little to do, and all wait for it: woken, it goes
/// before a worker that computes on the same core; while it only yields, it comes after that worker's whole pass. (Measured, two and four
/// workers on two cores: at once 10 to 20% slower than from 50 to 200 µs on; with 600 µs some runs take 1.5 times as long.)
const SERVER_YIELDS: Duration = Duration::from_micros(100);
/// Time for a handshake between machines.
const FAR_HANDSHAKE: Duration = Duration::from_secs(5);

/// Does a rank's part of a task: its account, and the numbers it measured.
pub type PlayTask =
    fn(&RankTask, usize, Box<dyn Transport>, &Registries) -> Result<(RankAccount, Vec<f32>), TrainError>;

/// The whole life of a rank's process: its orders come from standard input, its words go to standard
/// output. When the launcher is gone, so is the rank.
/// `play` does tasks other than training.
pub fn main(registries: &Registries, play: PlayTask) {
    interrupt::pass_on(|signal| {
        let said = if signal.is_notice() { RankEvent::Drained } else { RankEvent::Interrupted };
        // A launcher that has ended takes this process with it.
        let _ = control::write(&mut std::io::stdout().lock(), &said, &[]);
    });
    let mut say = |message: RankEvent, numbers: &[f32]| {
        // A launcher that does not listen any more has ended: nothing is left to tell.
        let _ = control::write(&mut std::io::stdout().lock(), &message, numbers);
    };
    if let Err(failure) = life(&mut say, registries, play) {
        say(failure, &[]);
    }
}

/// Tells the launcher, from a thread of its own, that this process lives.
fn pulse() {
    let beat = || {
        while control::write(&mut std::io::stdout().lock(), &RankEvent::Alive, &[]).is_ok() {
            std::thread::sleep(liveness::PULSE);
        }
    };
    // A rank that cannot start a thread says nothing, and is not missed.
    let _ = std::thread::Builder::new().name("pulse".into()).spawn(beat);
}

fn life(
    say: &mut dyn FnMut(RankEvent, &[f32]),
    registries: &Registries,
    play: PlayTask,
) -> Result<(), RankEvent> {
    let mut orders = std::io::stdin();
    let Ok(Some((order, _))) = control::read(&mut orders) else { return Ok(()) };
    let (transport, buffer) = match &order {
        RankCommand::Config { plan, rank, .. } => {
            fault::strike(*rank, 0);
            pulse();
            (&plan.transport, plan.buffer)
        }
        RankCommand::Task { task, .. } => (&task.transport, task.buffer),
        _ => return Ok(()),
    };
    let kind = registries
        .transports
        .find(transport)
        .ok_or_else(|| failed(&unknown("transport", transport).into()))?;
    let place = if let RankCommand::Config { place, .. } = &order { *place } else { None };
    let door = member::listen(kind, place).map_err(|e| failed(&e.into()))?;
    // A run under way does not wait until one that joins it has loaded what it needs.
    let late = matches!(&order, RankCommand::Config { plan, .. } if plan.elastic.is_some());
    let address = door.address();
    let listens = || RankEvent::Bound { address: address.clone() };
    if !late {
        say(listens(), &[]);
    }
    match order {
        RankCommand::Config { plan, run, rank, key, folders, recording, conditions, .. } => {
            if plan.pin {
                let (index, ranks) =
                    place.map_or((rank, plan.workers + plan.servers), |place| (place.index, place.ranks));
                keep_to_own_cores(index, ranks, plan.threads);
            }
            let typed = TypedPlan::new(&plan, registries).map_err(|error| failed(&error.into()))?;
            let mut dataset = None;
            if plan.script.is_none() {
                let kind = typed.dataset().map_err(|error| failed(&error.into()))?;
                let loaded = kind.load(&Folders(folders), &model::settings(&plan));
                dataset = Some(loaded.map_err(|error| failed(&error.into()))?);
            }
            let mut context = RankContext::new(&typed, dataset.as_ref(), rank).map_err(|e| failed(&e))?;
            let mut start = RankStart::default();
            if plan.script.is_some() && plan.is_worker(rank) {
                let listener: ScriptListener = Arc::new(|event| {
                    let told = scripts::event(event);
                    // A launcher that does not listen any more has ended: nothing is left to tell.
                    let _ = control::write(&mut std::io::stdout().lock(), &told, &[]);
                });
                start.source =
                    Some(scripts::attach(&typed, rank, recording.is_some(), &conditions, listener, say)?);
            }
            if late {
                say(listens(), &[]);
            }
            let Some(peers) = peers(&mut orders) else { return Ok(()) };
            if let (Some(script), Some(number)) = (&mut start.source, peers.stands_for) {
                script.stand_for(number);
            }
            if let Some(known) = peers.script {
                start.params = known.params;
                context = RankContext::of_script(&typed, known.layout, known.optimizer, rank);
            }
            let first = peers.known.generation.as_deref();
            let (place_in, workers, world) = match first {
                Some(first) => (first.rank, first.workers, first.workers + first.servers),
                None => (rank, plan.workers, context.setup.world()),
            };
            let identity = Identity {
                run,
                rank: place_in,
                workers,
                world,
                model_hash: model_hash(&plan),
                key: Key::from(key),
            };
            let links = match first {
                Some(first) => context.strategy.links_of(&first.setup(&context.setup), first.rank),
                None => context.strategy.links_of(&context.setup, rank),
            };
            let emulated = EmulatedNetwork::of(&plan);
            let ranks = place.map_or(identity.world, |place| place.ranks);
            // A script's rank has a process beside it that computes.
            let processes = if plan.script.is_some() { 2 } else { 1 };
            let mut options = options(processes * ranks * plan.threads, buffer);
            // A thread beside one that is kept to its core would be kept there, too.
            options.spare_core &= !plan.pin;
            if place_in >= workers {
                options.yielding = SERVER_YIELDS;
            }
            if place.is_some() {
                // Packets between machines may have to be sent again.
                options.handshake = FAR_HANDSHAKE;
            }
            let members = first.cloned().map(|first| {
                let emulated = emulated.clone().zip(peers.known.interfaces.clone());
                (first, MemberLinks { kind, place, identity: identity.clone(), options, emulated })
            });
            let (transport, mut control) =
                connect(door, orders, peers.known, identity, &links, options, emulated)?;
            control.member = members;
            context.play(
                transport,
                start,
                control,
                &RankRecorder::open(recording, &registries.metrics, recorder::to_launcher),
                say,
            );
        }
        RankCommand::Task { task, rank, key } => {
            // As MPI's launchers do: a scheduler that puts two ranks on one core would be measured instead.
            if task.world <= cores() {
                keep_to_own_cores(rank, task.world, 1);
            }
            let identity = Identity {
                run: "bench".into(),
                rank,
                workers: task.workers,
                world: task.world,
                model_hash: [0; 32],
                key: Key::from(key),
            };
            let emulated = task.network.map(|network| EmulatedNetwork::apart(network, task.world));
            let options = options(task.world, buffer);
            let Some(Peers { known: peers, .. }) = peers(&mut orders) else { return Ok(()) };
            let (transport, _) = connect(door, orders, peers, identity, &task.links, options, emulated)?;
            let (account, times) = play(&task, rank, transport, registries).map_err(|e| failed(&e))?;
            say(RankEvent::Done(Box::new(account)), &times);
        }
        _ => {}
    }
    Ok(())
}

/// Keeps this process to cores of its own: its part of all cores where each of `ranks` can have `threads` of them, else the
/// next ones in turn. (Threads that it starts stay there too.)
fn keep_to_own_cores(rank: usize, ranks: usize, threads: usize) {
    // Asked before there are fewer.
    cores();
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect();
    let each = threads.max(cores.len() / ranks.max(1));
    let mut own = CpuSet::new();
    (0..each).for_each(|core| own.set(cores[(rank * each + core) % cores.len()]));
    // A rank that may not choose its cores is only slower.
    let _ = sched_setaffinity(None, &own);
}

/// What a rank is told of the others.
struct PeersKnown {
    addresses: Vec<String>,
    interfaces: Option<String>,
    segment: Segment,
    restored: Option<RankState>,
    generation: Option<Box<Generation>>,
}

/// The same, and what is known of the scripts of the run.
struct Peers {
    known: PeersKnown,
    script: Option<ScriptKnown>,
    /// The worker that its script stands for, if it joins others.
    stands_for: Option<usize>,
}

/// Waits for everybody's address: those of the first generation, or of the one that admits a member that joins later. None
/// for a member that was not needed.
fn peers(orders: &mut std::io::Stdin) -> Option<Peers> {
    let (known, mut numbers, script, stands_for) = match control::read(orders) {
        Ok(Some((
            RankCommand::Peers { addresses, interfaces, segment, restored, generation, script, stands_for },
            numbers,
        ))) => (
            PeersKnown { addresses, interfaces, segment, restored: None, generation },
            numbers,
            (restored, script),
            stands_for,
        ),
        Ok(Some((RankCommand::Conclude, _))) => return None,
        _ => {
            paceline_attach::end_scripts();
            std::process::exit(4)
        }
    };
    let (restored, script) = script;
    let script = script.map(|ScriptCommon { layout, optimizer }| {
        // Who joins others has their parameters with the rest.
        let start = if stands_for.is_none() { layout.params } else { 0 };
        let params = numbers.split_off(numbers.len().saturating_sub(start));
        ScriptKnown { layout, optimizer, params }
    });
    let restored = restored.and_then(|packed| unpack(packed, &numbers));
    Some(Peers { known: PeersKnown { restored, ..known }, script, stands_for })
}

/// Connects to the linked ranks. What the launcher says from then on goes to the control; its end is this process's.
fn connect(
    door: Box<dyn Door>,
    mut orders: std::io::Stdin,
    peers: PeersKnown,
    identity: Identity,
    links: &[usize],
    options: StreamOptions,
    emulated: Option<EmulatedNetwork>,
) -> Result<(Box<dyn Transport>, RankControl), RankEvent> {
    let PeersKnown { addresses, interfaces, segment, restored, generation } = peers;
    let deadline = match &generation {
        Some(generation) if generation.segment.generation > 0 => member::CONNECT,
        Some(_) => FIRST,
        None => CONNECT,
    };
    let (control, mailbox) = RankControl::new(segment, restored);
    let gate = Arc::clone(&control.gate);
    std::thread::spawn(move || {
        while let Ok(Some((command, _))) = control::read(&mut orders) {
            if let Some(answer) = mailbox.deliver(command) {
                // A launcher that does not listen any more has ended, and this process ends with it.
                let _ = control::write(&mut std::io::stdout().lock(), &answer, &[]);
            }
        }
        paceline_attach::end_scripts();
        std::process::exit(4);
    });
    let peers: Vec<(usize, String)> = links.iter().map(|&peer| (peer, addresses[peer].clone())).collect();
    // Where members change, ranks are others in each generation.
    let emulated = emulated.map(|network| match &generation {
        Some(generation) => network.of_members(&generation.members),
        None => network,
    });
    let transport = match door.connect(identity, &peers, options, deadline) {
        // Another member was lost meanwhile: this one waits for the next generation.
        Err(_) if generation.is_some() => {
            gate.ask_to_stop(segment.generation);
            return Ok((Box::new(inproc::alone()), control));
        }
        connected => connected.map_err(|e| failed(&e.into()))?,
    };
    Ok((emulate(transport, emulated, interfaces, options)?, control))
}
