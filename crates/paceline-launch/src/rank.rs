//! Inside a rank: what it does once it knows its plan and has its transport.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use paceline_data::{Dataset, Folders};
use paceline_nn::Graph;
use paceline_plan::Plan;
use paceline_protocol::{Agreement, Setup, Strategy};
use paceline_record::recorder::{Ship, Wait};
use paceline_record::{Batch, Recorder, process};
use paceline_train::engine::Times;
use paceline_train::server::Seen;
use paceline_train::worker::Said;
use paceline_train::{TrainError, model, server, worker};
use paceline_wire::{Door, Identity, Interfaces, Key, Options, Transport, WireError, identity, registry};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use sha2::{Digest, Sha256};

use crate::control::{self, Done, FromRank, ToRank};
use crate::emulated::Emulated;

/// How long ranks may take to find each other.
const CONNECT: Duration = Duration::from_secs(20);
/// Longest time that an evaluation which everybody waits for may take.
const EVALUATION: Duration = Duration::from_secs(600);
/// Time between two reports of steps.
const REPORT: Duration = Duration::from_millis(50);

/// Bytes of the pipe to the launcher.
const PIPE: usize = 1 << 20;

/// `worker` or `server`.
pub fn role(plan: &Plan, rank: usize) -> &'static str {
    identity::role(plan.workers, rank)
}

/// What every rank of a run must agree on: the plan, down to the last flag.
pub fn model_hash(plan: &Plan) -> [u8; 32] {
    Sha256::digest(plan.hash().as_bytes()).into()
}

/// A rank's view of a run.
pub struct Seat<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// The dataset.
    pub dataset: &'a Dataset,
    /// The network.
    pub graph: Arc<Graph>,
    /// The strategy.
    pub strategy: &'static Strategy,
    /// What it is told.
    pub setup: Setup,
    /// This rank.
    pub rank: usize,
}

impl<'a> Seat<'a> {
    /// Takes a seat.
    pub fn new(plan: &'a Plan, dataset: &'a Dataset, rank: usize) -> Result<Self, TrainError> {
        let graph = Arc::new(model::graph(plan, dataset)?);
        let strategy =
            paceline_protocol::find(&plan.strategy).expect("the plan's names come from the registries");
        let setup = worker::setup(plan, &graph, dataset.train.len());
        Ok(Self { plan, dataset, graph, strategy, setup, rank })
    }

    /// The part of the parameters that a server owns.
    pub fn shard(&self) -> std::ops::Range<usize> {
        self.setup.shards()[self.rank - self.plan.workers].clone()
    }

    /// How far the workers' models agree.
    pub fn agreement(&self) -> Agreement {
        (self.strategy.agreement)(&self.setup)
    }

    /// Plays the rank's part to the end; `say` takes what it tells, the last thing being its account.
    /// `go_on` ends the waiting for an evaluation that others make.
    pub fn play(
        &self,
        transport: Box<dyn Transport>,
        go_on: &Receiver<()>,
        recorder: Option<Recorder>,
        say: &mut dyn FnMut(FromRank, &[f32]),
    ) {
        let played = if self.rank < self.plan.workers {
            self.work(transport, go_on, recorder, say)
        } else {
            self.serve(transport, recorder, say)
        };
        if let Err(error) = played {
            say(failed(&error), &[]);
        }
    }

    fn work(
        &self,
        transport: Box<dyn Transport>,
        go_on: &Receiver<()>,
        mut recorder: Option<Recorder>,
        say: &mut dyn FnMut(FromRank, &[f32]),
    ) -> Result<(), TrainError> {
        let Self { plan, dataset, strategy, setup, rank, .. } = self;
        let graph = Arc::clone(&self.graph);
        let observer = recorder.as_ref().map(Recorder::observer);
        let job = worker::Job { plan, dataset, graph, strategy, setup, rank: *rank, observer, traced: false };
        let mut told = Instant::now();
        // Workers that go on together stand still during an evaluation; those that do not must not.
        let waits = self.agreement() != Agreement::Apart;
        let summary = worker::run(&job, transport, &mut |said| match said {
            Said::Refused(cause) => say(FromRank::Refused { cause }, &[]),
            Said::Started => say(FromRank::Started, &[]),
            Said::Step { row, train_s } => {
                if told.elapsed() >= REPORT || row.step == 1 {
                    told = Instant::now();
                    say(FromRank::Step { step: row.step, loss: row.loss, train_s }, &[]);
                }
                recorder.iter_mut().for_each(|recorder| recorder.step(row));
            }
            Said::Evaluated { step, train_s, outcome } => {
                let (loss, correct, samples) = (outcome.loss, outcome.correct, outcome.samples);
                say(FromRank::Evaluated { step, train_s, loss, correct, samples }, &[]);
            }
            Said::Snapshot { step, train_s, numbers } => {
                say(FromRank::Snapshot { step, train_s: Some(train_s) }, &numbers);
                if waits {
                    // A launcher that has ended lets nobody wait: its ranks end with it.
                    let _ = go_on.recv_timeout(EVALUATION);
                }
            }
        })?;
        // The last rows come before the account.
        drop(recorder);
        let account = Done {
            steps: summary.steps,
            samples: summary.samples,
            train_s: summary.train_s,
            last_loss: summary.last.loss,
            last_samples: summary.last.samples,
            params_sha256: model::params_sha256(&summary.params),
            accuracy: summary.accuracy,
            phases: summary.phases,
            ..account(&summary.times, summary.traffic)
        };
        let params = if summary.accuracy.is_some() { &summary.params[..] } else { &[] };
        say(FromRank::Done(Box::new(account)), &[params, &summary.state].concat());
        Ok(())
    }

    fn serve(
        &self,
        transport: Box<dyn Transport>,
        mut recorder: Option<Recorder>,
        say: &mut dyn FnMut(FromRank, &[f32]),
    ) -> Result<(), TrainError> {
        let Self { plan, graph, strategy, setup, rank, dataset } = self;
        let samples = dataset.train.len();
        let observer = recorder.as_ref().map(Recorder::observer);
        let job = server::Job { plan, graph, samples, strategy, setup, rank: *rank, observer, traced: false };
        let shard = self.shard();
        let every = self.snapshot_every();
        let (mut round, all) = (0, setup.steps * plan.workers as u64);
        let summary = server::run(&job, transport, &mut |seen| match seen {
            Seen::Refused(cause) => say(FromRank::Refused { cause }, &[]),
            Seen::Updates(row, params) => {
                let updates = row.step;
                recorder.iter_mut().for_each(|recorder| recorder.step(row));
                // What all updates have made is evaluated at the end.
                if updates < all && every.is_some_and(|every| updates / every > round) {
                    round += 1;
                    let step = round * every.unwrap_or(1) / plan.workers as u64;
                    say(FromRank::Snapshot { step, train_s: None }, &params[shard.clone()]);
                }
            }
        })?;
        drop(recorder);
        let own = &summary.params[shard.clone()];
        let account = Done {
            params_sha256: model::params_sha256(own),
            staleness: summary.staleness,
            ..account(&summary.times, summary.traffic)
        };
        say(FromRank::Done(Box::new(account)), own);
        Ok(())
    }

    /// Units of work between two snapshots of the servers' model; none where workers evaluate by themselves,
    /// or where the model has state that servers do not see.
    fn snapshot_every(&self) -> Option<u64> {
        if self.agreement() != Agreement::Apart || self.graph.state_count() > 0 {
            return None;
        }
        let per_epoch = self.dataset.train.len().div_ceil(self.plan.batch * self.plan.workers) as u64;
        Some(self.plan.eval_every.unwrap_or(per_epoch) * self.plan.workers as u64)
    }
}

fn account(times: &Times, (sent_bytes, received_bytes): (u64, u64)) -> Done {
    Done {
        send_s: times.send.as_secs_f64(),
        wait_s: times.wait.as_secs_f64(),
        wait_for_s: times.wait_for.iter().map(Duration::as_secs_f64).collect(),
        apply_s: times.apply.as_secs_f64(),
        sent_bytes,
        received_bytes,
        cpu_s: process::cpu_seconds(),
        rss_peak_bytes: process::peak_memory_bytes(),
        host: process::host(),
        ..Done::default()
    }
}

/// Keeps this process to cores of its own, the next ones in turn for each rank. (Threads that it starts stay
/// there too.)
fn keep_to_own_cores(rank: usize, threads: usize) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect();
    let mut own = CpuSet::new();
    (0..threads).for_each(|thread| own.set(cores[(rank * threads + thread) % cores.len()]));
    // A rank that may not choose its cores is only slower.
    let _ = sched_setaffinity(None, &own);
}

/// Ships batches over standard output, beside what the rank says there, as long as the pipe has room.
fn to_launcher() -> Ship {
    let stdout = std::io::stdout();
    // A longer pipe holds what the launcher has not read yet; a shorter one only drops rows sooner.
    let size = rustix::pipe::fcntl_setpipe_size(&stdout, PIPE);
    let size = size.or_else(|_| rustix::pipe::fcntl_getpipe_size(&stdout)).unwrap_or(0);
    Box::new(move |batch: &Batch, wait: Wait| {
        let message = FromRank::Recorded(Box::new(batch.clone()));
        let numbers = batch.numbers();
        // A frame that does not fit would keep the rank's next word waiting behind it.
        let waiting = rustix::io::ioctl_fionread(&stdout).unwrap_or(0) as usize;
        if !wait.0 && waiting + 4 * numbers.len() > size / 2 {
            return false;
        }
        // A launcher that does not listen any more has ended: nothing is left to tell.
        control::write(&mut stdout.lock(), &message, &numbers).is_ok()
    })
}

/// A failure as it is told to the launcher.
fn failed(error: &TrainError) -> FromRank {
    let (code, lost) = match error {
        TrainError::Diverged { .. } => (1, None),
        TrainError::Shape { .. } => (3, None),
        TrainError::Lost { rank, .. } | TrainError::Silent { rank, .. } => (4, Some(*rank)),
        TrainError::Wire(_) => (6, None),
    };
    FromRank::Failed { message: error.to_string(), hint: error.hint().into(), code, lost }
}

/// The whole life of a rank's process: its orders come from standard input, its words go to standard
/// output. When the launcher is gone, so is the rank.
pub fn main() {
    let mut say = |message: FromRank, numbers: &[f32]| {
        // A launcher that does not listen any more has ended: nothing is left to tell.
        let _ = control::write(&mut std::io::stdout().lock(), &message, numbers);
    };
    if let Err(failure) = life(&mut say) {
        say(failure, &[]);
    }
}

fn life(say: &mut dyn FnMut(FromRank, &[f32])) -> Result<(), FromRank> {
    let mut orders = std::io::stdin();
    let Ok(Some((order, _))) = control::read(&mut orders) else { return Ok(()) };
    let (transport, buffer) = match &order {
        ToRank::Config { plan, .. } => (&plan.transport, plan.buffer),
        ToRank::Bench { bench, .. } => (&bench.transport, bench.buffer),
        ToRank::Peers { .. } | ToRank::GoOn => return Ok(()),
    };
    let bind = registry::find(transport).and_then(|kind| kind.bind).expect("the launcher knows who listens");
    let door = bind().map_err(|e| failed(&e.into()))?;
    say(FromRank::Bound { address: door.address() }, &[]);
    match order {
        ToRank::Config { plan, run, rank, key, folders, recording } => {
            if plan.pin {
                keep_to_own_cores(rank, plan.threads);
            }
            let source = paceline_data::find(&plan.data).expect("the plan's names come from the registries");
            let dataset = source.load(&Folders(folders)).map_err(|error| FromRank::Failed {
                message: error.to_string(),
                hint: error.hint(),
                code: 5,
                lost: None,
            })?;
            let seat = Seat::new(&plan, &dataset, rank).map_err(|e| failed(&e))?;
            let identity = Identity {
                run,
                rank,
                workers: plan.workers,
                world: seat.setup.world(),
                model_hash: model_hash(&plan),
                key: Key::from(key),
            };
            let links = (seat.strategy.links)(&seat.setup, rank);
            let emulated = Emulated::of(&plan);
            let (transport, go_on) = connect(door, orders, identity, &links, plan.threads, buffer, emulated)?;
            let recorder = recording.map(|recording| Recorder::start(recording, to_launcher()));
            seat.play(transport, &go_on, recorder, say);
        }
        ToRank::Bench { bench, rank, key } => {
            // As MPI's launchers do: a scheduler that puts two ranks on one core would be measured instead.
            if bench.workers <= std::thread::available_parallelism().map_or(1, usize::from) {
                keep_to_own_cores(rank, 1);
            }
            let identity = Identity {
                run: "bench".into(),
                rank,
                workers: bench.workers,
                world: bench.workers,
                model_hash: [0; 32],
                key: Key::from(key),
            };
            let links = bench.links(rank);
            let (transport, _) = connect(door, orders, identity, &links, 1, buffer, bench.emulated())?;
            let times = bench.play(rank, transport).map_err(|e| failed(&e))?;
            say(FromRank::Done(Box::default()), &times);
        }
        ToRank::Peers { .. } | ToRank::GoOn => {}
    }
    Ok(())
}

/// Waits for everybody's address and connects to the linked ranks. What the launcher says from then on comes
/// out of the channel; its end is this process's.
fn connect(
    door: Box<dyn Door>,
    mut orders: std::io::Stdin,
    identity: Identity,
    links: &[usize],
    threads: usize,
    buffer: Option<usize>,
    emulated: Option<Emulated>,
) -> Result<(Box<dyn Transport>, Receiver<()>), FromRank> {
    let Ok(Some((ToRank::Peers { addresses, interfaces }, _))) = control::read(&mut orders) else {
        std::process::exit(4)
    };
    let (told, go_on) = channel();
    std::thread::spawn(move || {
        while let Ok(Some((ToRank::GoOn, _))) = control::read(&mut orders) {
            // A rank that does not listen any more does not wait.
            let _ = told.send(());
        }
        std::process::exit(4);
    });
    let peers: Vec<(usize, String)> = links.iter().map(|&peer| (peer, addresses[peer].clone())).collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let own_core = identity.world * threads <= cores;
    let options = Options { max_body: worker::MESSAGE, own_core, buffer, ..Options::default() };
    let transport = door.connect(identity, &peers, options, CONNECT).map_err(|e| failed(&e.into()))?;
    let (Some(emulated), Some(path)) = (emulated, interfaces) else { return Ok((transport, go_on)) };
    let interfaces = Interfaces::open(&path, emulated.count())
        .map_err(|e| failed(&WireError::system("open the emulated interfaces")(e).into()))?;
    Ok((emulated.wrap(transport, Arc::new(interfaces), buffer, own_core), go_on))
}
