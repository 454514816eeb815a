//! Measurements of the exchange itself: all-reduce through the real engine, and point to point as its
//! floor. Every rank times each repetition; a repetition takes as long as its slowest rank.

use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_launch::{
    EmulatedNetwork, LaunchError, ProcessEvent, RankAccount, RankCommand, RankEvent, RankProcesses, RankTask,
    run,
};
use paceline_memory::{Allocator, TensorStorage};
use paceline_plan::NetworkLimits;
use paceline_protocol::{Action, Buf, Input, Region, Setup, Topology, choose_paths};
use paceline_record::process;
use paceline_resolve::Registries;
use paceline_train::memory::{Bodies, Memory};
use paceline_train::worker::MESSAGE;
use paceline_train::{Begin, Engine, Segment, TrainError};
use paceline_wire::registry::Mesh;
use paceline_wire::{Interfaces, Key, Source, Span, Transport, identity};
use serde::{Deserialize, Serialize};

use crate::end::{End, MEMORY};
use crate::explain::Timed;
use crate::{channels, exits, ps};

/// Repetitions that are not counted.
pub(crate) const WARM_UP: usize = 3;
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Kinds of messages between two ranks.
const BODY: u8 = 1;
const READY: u8 = 2;

/// Bytes per second that even an overloaded machine moves.
const SLOWEST: f64 = 20e6;
/// Bytes per second that one core touches, roughly.
const TOUCHING: f64 = 10e9;
/// Bytes that a cache keeps together.
const LINE: usize = 64;

/// What a rank tells at its end: its account, and the seconds of what it timed.
pub type Account = (RankAccount, Vec<f32>);

/// What ranks do in a measurement.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub enum Task {
    /// A strategy's all-reduce, or point to point.
    #[default]
    Exchange,
    /// A strategy's all-reduce, with what its time is spent on.
    Explain,
    /// Messages within pairs of ranks.
    Channel(channels::Task),
    /// Pushes to parameter servers, and pulls.
    Serve(ps::Task),
    /// The answers of a network with early exits, tier by tier.
    Answer(Box<exits::ExitTask>),
}

/// Who measures: `program WORD` is a rank, and names stand for these.
pub struct BenchProgram<'a> {
    /// This program.
    pub program: PathBuf,
    /// The word that makes it a rank.
    pub word: &'a str,
    /// What it knows.
    pub registries: &'a Registries,
}

/// A rank, and what it plays its part with.
pub(crate) struct RankPart<'a> {
    pub(crate) rank: usize,
    pub(crate) transport: Box<dyn Transport>,
    pub(crate) registries: &'a Registries,
    /// CPU time so far of what the rank is: a process or a thread.
    pub(crate) cpu_seconds: fn() -> f64,
}

/// What is measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Bench {
    /// A strategy's name, or `p2p`.
    pub what: String,
    /// What the ranks do.
    pub task: Task,
    /// What they talk over.
    pub transport: String,
    /// Bytes of each connection's buffer.
    pub buffer: Option<usize>,
    /// Emulated links; each rank is a host of its own.
    pub network: Option<NetworkLimits>,
    /// Number of ranks, servers left out.
    pub workers: usize,
    /// Point to point: both sides send at once.
    pub duplex: bool,
    /// Point to point: bytes that each side touches before every exchange, as a pass before it would: what is sent
    /// is then in no core's own cache.
    pub touched: usize,
    /// Point to point: bodies stay in the sender's memory, and the receiver takes them in from there.
    pub lent: bool,
    /// Lengths, in elements.
    pub sizes: Vec<usize>,
    /// Seconds per size, roughly.
    pub seconds: f64,
}

/// One size's figures.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct Row {
    pub bytes: usize,
    pub repetitions: usize,
    pub seconds_median: f64,
    pub seconds_p95: f64,
    /// Bytes per second of the operation.
    pub algbw_bytes_per_s: f64,
    /// Bytes per second that each link must move for it.
    pub busbw_bytes_per_s: f64,
}

/// Rows for people.
pub fn table(rows: &[Row]) -> String {
    let mut text =
        format!("{:>12} {:>12} {:>12} {:>12} {:>12}\n", "bytes", "median µs", "p95 µs", "MB/s", "bus MB/s");
    for r in rows {
        text += &format!(
            "{:>12} {:>12.1} {:>12.1} {:>12.0} {:>12.0}\n",
            r.bytes,
            r.seconds_median * 1e6,
            r.seconds_p95 * 1e6,
            r.algbw_bytes_per_s / 1e6,
            r.busbw_bytes_per_s / 1e6
        );
    }
    text
}

impl Bench {
    /// Repetitions of a size: the same on every rank, without asking.
    pub(crate) fn repetitions(&self, size: usize) -> usize {
        let (latency, rate) = self.network.map_or((40e-6, 0.8e9), |network| {
            (40e-6 + 2e-9 * network.latency_ns as f64, (network.bits_per_s as f64 / 8.0).min(0.8e9))
        });
        let guess = latency + 4.0 * size as f64 / rate + self.touched as f64 / TOUCHING;
        ((self.seconds / guess) as usize).clamp(5, 5_000)
    }

    fn setup(&self, size: usize, round: usize, registries: &Registries) -> Setup {
        // Emulated links are between hosts: then each rank has its own.
        let hosts = if self.network.is_some() { Vec::new() } else { vec![0; self.workers] };
        let memory = registries.transports.find(&self.transport).is_some_and(|kind| kind.memory);
        let topology = if hosts.is_empty() { Topology::apart(self.workers) } else { Topology::of(&hosts) };
        Setup {
            hosts,
            paths: choose_paths(&topology, memory, false),
            message: MESSAGE,
            generation: round as u32,
            ..Setup::new(self.workers, 0, size, (WARM_UP + self.repetitions(size)) as u64)
        }
    }

    fn emulated(&self) -> Option<EmulatedNetwork> {
        self.network.map(|network| EmulatedNetwork::apart(network, self.world()))
    }

    /// Number of ranks.
    pub fn world(&self) -> usize {
        match &self.task {
            Task::Serve(task) => self.workers + task.servers,
            Task::Exchange | Task::Explain | Task::Channel(_) | Task::Answer(_) => self.workers,
        }
    }

    /// Bytes that are moved however little time was asked for.
    fn least_bytes(&self) -> u64 {
        let elements = match &self.task {
            Task::Exchange | Task::Explain | Task::Answer(_) => 0,
            Task::Channel(task) => 6 * task.sizes.iter().sum::<usize>() * self.workers,
            Task::Serve(task) => 2 * task.params * self.workers * (WARM_UP + task.rounds as usize),
        };
        4 * elements as u64
    }

    fn links(&self, rank: usize, registries: &Registries) -> Vec<usize> {
        match &self.task {
            Task::Exchange | Task::Explain => {}
            Task::Channel(_) => return channels::links(self.workers, rank),
            Task::Answer(_) => return exits::links(self.workers, rank),
            Task::Serve(task) => return task.links(self.workers, rank, &registries.protocols),
        }
        match registries.protocols.strategies.find(&self.what) {
            Some(strategy) => (strategy.links)(&self.setup(1, 0, registries), rank),
            None => vec![1 - rank],
        }
    }

    fn play(&self, part: RankPart<'_>) -> Result<Account, TrainError> {
        match &self.task {
            Task::Exchange | Task::Explain => {
                self.exchange(part).map(|times| (RankAccount::default(), times))
            }
            Task::Channel(task) => task.play(self, part),
            Task::Serve(task) => task.play(self.workers, part),
            Task::Answer(task) => task.play(part),
        }
    }

    /// The same as a rank's process is told.
    fn task(&self, rank: usize, registries: &Registries) -> RankTask {
        RankTask {
            transport: self.transport.clone(),
            buffer: self.buffer,
            network: self.network,
            workers: self.workers,
            world: self.world(),
            links: self.links(rank, registries),
            document: serde_json::to_value(self).expect("a measurement is plain data"),
        }
    }

    /// The seconds of every repetition of every size, one after the other; then what explains them, if that is asked for.
    fn exchange(&self, part: RankPart<'_>) -> Result<Vec<f32>, TrainError> {
        let RankPart { rank, transport, registries, cpu_seconds } = part;
        let (mut all, mut figures) = (Vec::new(), Vec::new());
        let Some(strategy) = registries.protocols.strategies.find(&self.what) else {
            let cpu_seconds = process::thread_cpu_seconds;
            if self.lent {
                let storage = self.storage(Allocator::Shared)?;
                let mut transport = transport;
                let unlent = |source| TrainError::Memory { numbers: storage.len(), source };
                if let Some(file) = storage.descriptor_to_read().map_err(unlent)? {
                    transport.lend(0, file)?;
                }
                let mut end = End::new(transport, Flat(storage, 0), self.workers, cpu_seconds);
                end.take_bodies_in(self.sizes.iter().copied().max().unwrap_or(0));
                // What the peer has read is written more slowly than before, what it wrote is read more slowly: that is
                // the price of memory that is shared, and it is paid in the passes between two exchanges.
                let used = |end: &mut End<TensorStorage>, size: usize, evict: &mut dyn FnMut()| {
                    let first = end.use_bodies(size);
                    evict();
                    (first - end.use_bodies(size)).max(0.0)
                };
                self.point_to_point(rank, end, used, &mut all)?;
            } else {
                let end = End::new(transport, Flat(Vec::new(), 0), self.workers, cpu_seconds);
                let fresh = |end: &mut End, size: usize, _: &mut dyn FnMut()| {
                    end.memory = Flat(vec![1.0; size.min(MEMORY)], 0);
                    0.0
                };
                self.point_to_point(rank, end, fresh, &mut all)?;
            }
            return Ok(all);
        };
        let participant =
            |round: usize| strategy.participant(&self.setup(self.sizes[round], round, registries), rank);
        let mut engine = Engine::new(participant(0), transport, self.links(rank, registries), self.workers);
        let storage = self.storage(if engine.lends() { Allocator::Shared } else { Allocator::Private })?;
        engine.lend(Buf::Grad, &storage)?;
        let explained = matches!(self.task, Task::Explain).then_some(cpu_seconds);
        let mut memory = Timed::new(Flat(storage, 0), explained);
        for (round, &size) in self.sizes.iter().enumerate() {
            if round > 0 {
                engine.succeed(participant(round), round as u32);
            }
            memory.inner.1 = size;
            memory.inner.0[..size].fill((rank + 1) as f32);
            self.allreduce(&mut engine, &mut memory, rank, size, &mut all)?;
            figures.extend(memory.figures(size, self.repetitions(size)));
        }
        engine.finish(&mut memory)?;
        all.extend(figures);
        Ok(all)
    }

    /// Memory for the longest message.
    fn storage(&self, allocator: Allocator) -> Result<TensorStorage, TrainError> {
        let numbers = self.sizes.iter().copied().max().unwrap_or(0);
        allocator.zeros(numbers).map_err(|source| TrainError::Memory { numbers, source })
    }

    /// All-reduces of one size, checked once and timed after the warm-up.
    fn allreduce(
        &self,
        engine: &mut Engine,
        memory: &mut Timed<Flat<TensorStorage>>,
        rank: usize,
        size: usize,
        all: &mut Vec<f32>,
    ) -> Result<(), TrainError> {
        engine.start(memory)?;
        while let Some(Begin { step, .. }) = engine.next_step(memory)? {
            if step == WARM_UP as u64 {
                memory.begin();
            }
            let start = Instant::now();
            engine.input(Input::GradReady { from: 0 }, memory)?;
            engine.input(Input::BackwardDone, memory)?;
            engine.step_over(memory)?;
            if step >= WARM_UP as u64 {
                all.push(start.elapsed().as_secs_f32());
            }
            if step == 0 {
                let sum = (self.workers * (self.workers + 1) / 2) as f32;
                let numbers = &mut memory.inner.0[..size];
                if let Some(wrong) = numbers.iter().position(|&v| v != sum) {
                    panic!("rank {rank}: element {wrong} of {size} is {} instead of {sum}", numbers[wrong]);
                }
                numbers.fill(0.0);
            }
        }
        Ok(())
    }

    /// Messages of every size; `between` uses the memory of as many elements before each, and says how many seconds of
    /// that the exchange before has to answer for.
    fn point_to_point<B: Deref<Target = [f32]>>(
        &self,
        rank: usize,
        mut end: End<B>,
        between: impl Fn(&mut End<B>, usize, &mut dyn FnMut()) -> f32,
        all: &mut Vec<f32>,
    ) -> Result<(), TrainError> {
        let peer = 1 - rank;
        let mut touched = vec![0u8; self.touched];
        for (size, repetition) in
            self.sizes.iter().flat_map(|&s| (0..WARM_UP + self.repetitions(s)).map(move |r| (s, r)))
        {
            let mut evict = || {
                touched.iter_mut().step_by(LINE).for_each(|byte| *byte = byte.wrapping_add(1));
                std::hint::black_box(&mut touched);
            };
            let later = between(&mut end, size, &mut evict);
            end.step = repetition as u64;
            evict();
            if !touched.is_empty() {
                // Both begin when both are ready.
                end.send(peer, READY, 0)?;
                end.receive(peer, READY)?;
                end.drain(peer, 0)?;
            }
            let start = Instant::now();
            match (self.duplex, rank) {
                (true, _) => {
                    end.send(peer, BODY, size)?;
                    end.receive(peer, BODY)?;
                }
                // The side that only receives answers with an empty message; the other side waits for it.
                (false, 0) => {
                    end.send(peer, BODY, size)?;
                    end.receive(peer, READY)?;
                }
                (false, _) => {
                    end.receive(peer, BODY)?;
                    end.send(peer, READY, 0)?;
                }
            }
            end.drain(peer, 0)?;
            if repetition >= WARM_UP {
                all.push(start.elapsed().as_secs_f32() + later);
            }
        }
        Ok(())
    }

    /// Puts the ranks' times together.
    pub fn rows(&self, times: &[Vec<f32>]) -> Vec<Row> {
        let mut at = 0;
        let factor = match self.what.as_str() {
            "p2p" => 1.0,
            _ => 2.0 * (self.workers - 1) as f64 / self.workers as f64,
        };
        self.sizes
            .iter()
            .map(|&size| {
                let n = self.repetitions(size);
                let slowest = |i: usize| times.iter().map(|t| f64::from(t[i])).fold(0.0, f64::max);
                let mut each: Vec<f64> = (at..at + n).map(slowest).collect();
                at += n;
                each.sort_by(f64::total_cmp);
                let (median, p95) = (each[n / 2], each[(n * 95).div_ceil(100) - 1]);
                let bandwidth = 4.0 * size as f64 / median;
                Row {
                    bytes: 4 * size,
                    repetitions: n,
                    seconds_median: median,
                    seconds_p95: p95,
                    algbw_bytes_per_s: bandwidth,
                    busbw_bytes_per_s: bandwidth * factor,
                }
            })
            .collect()
    }

    /// Runs it with processes, or with threads if that is what the transport is for.
    pub fn run(&self, by: &BenchProgram<'_>) -> Result<Vec<Row>, LaunchError> {
        let accounts = self.accounts(by)?;
        Ok(self.rows(&accounts.into_iter().map(|(_, times)| times).collect::<Vec<_>>()))
    }

    /// The same, with what each rank tells.
    pub fn accounts(&self, by: &BenchProgram<'_>) -> Result<Vec<Account>, LaunchError> {
        match run::transport(&by.registries.transports, &self.transport, self.buffer)?.mesh {
            Some(mesh) => self.as_threads(mesh, by.registries),
            None => self.as_processes(by),
        }
    }

    fn as_processes(&self, by: &BenchProgram<'_>) -> Result<Vec<Account>, LaunchError> {
        let key = *Key::generate().map_err(TrainError::from)?.as_bytes();
        let world = self.world();
        let order = |rank| RankCommand::Task { task: self.task(rank, by.registries), rank, key };
        let orders: Vec<RankCommand> = (0..world).map(order).collect();
        let interfaces = self.emulated().map(|emulated| emulated.interfaces()).transpose()?;
        let mut processes = RankProcesses::start(&by.program, by.word, &orders)?;
        let mut addresses = vec![String::new(); world];
        let mut accounts: Vec<Option<Account>> = vec![None; world];
        let mut ended = vec![0; world];
        let role = |rank| identity::role(self.workers, rank);
        // Ranks say nothing while they measure.
        let slowest = 4.0 * self.seconds + self.least_bytes() as f64 / SLOWEST;
        let patience = 2 * PATIENCE + Duration::from_secs_f64(slowest);
        while accounts.iter().any(Option::is_none) {
            match processes.news.recv_timeout(patience) {
                Ok(ProcessEvent::Rank(rank, RankEvent::Bound { address }, _)) => {
                    addresses[rank] = address;
                    if addresses.iter().all(|a| !a.is_empty()) {
                        for rank in 0..world {
                            let interfaces = interfaces.as_ref().and_then(Interfaces::path);
                            let segment = Segment { from: 0, to: 0, generation: 0 };
                            let addresses = addresses.clone();
                            let order = RankCommand::Peers {
                                generation: None,
                                addresses,
                                interfaces,
                                segment,
                                restored: None,
                                script: None,
                                stands_for: None,
                            };
                            processes.tell(rank, &order, &[]).map_err(|source| LaunchError::System {
                                what: format!("telling rank {rank}"),
                                source,
                            })?;
                        }
                    }
                }
                Ok(ProcessEvent::Rank(rank, RankEvent::Done(done), numbers)) => {
                    accounts[rank] = Some((*done, numbers));
                }
                Ok(ProcessEvent::Rank(rank, RankEvent::Failed { message, hint, kind, .. }, _)) => {
                    return Err(LaunchError::Failed { role: role(rank), rank, message, hint, kind });
                }
                Ok(ProcessEvent::Rank(..)) => {}
                Ok(ProcessEvent::Closed(rank) | ProcessEvent::Exited(rank)) => {
                    ended[rank] += 1;
                    if ended[rank] == 2 && accounts[rank].is_none() {
                        let (role, pid) = (role(rank), processes.pid(rank));
                        let cause = processes.status(rank).map_or_else(String::new, |s| s.to_string());
                        let when = "while measuring".into();
                        return Err(LaunchError::Lost { role, rank, pid, when, cause });
                    }
                }
                Err(_) => {
                    let rank = accounts.iter().position(Option::is_none).unwrap_or(0);
                    let (role, seconds) = (role(rank), patience.as_secs());
                    return Err(LaunchError::Late { role, rank, what: "answer".into(), seconds });
                }
            }
        }
        Ok(accounts.into_iter().flatten().collect())
    }

    fn as_threads(&self, mesh: Mesh, registries: &Registries) -> Result<Vec<Account>, LaunchError> {
        let emulated = self.emulated();
        let interfaces = emulated.as_ref().map(EmulatedNetwork::interfaces).transpose()?.map(Arc::new);
        let own_core = self.world() <= std::thread::available_parallelism().map_or(1, usize::from);
        let accounts: Result<Vec<_>, TrainError> = std::thread::scope(|scope| {
            let (emulated, interfaces) = (emulated.as_ref(), interfaces.as_ref());
            let wrap = move |transport| match (emulated, interfaces) {
                (Some(emulated), Some(interfaces)) => {
                    emulated.wrap(transport, Arc::clone(interfaces), None, own_core)
                }
                _ => transport,
            };
            let spawn = |(rank, transport)| {
                let cpu_seconds = process::thread_cpu_seconds;
                let part = move || RankPart { rank, transport: wrap(transport), registries, cpu_seconds };
                scope.spawn(move || self.play(part()))
            };
            let ranks: Vec<_> = mesh(self.world()).into_iter().enumerate().map(spawn).collect();
            ranks.into_iter().map(|r| r.join().expect("a rank does not panic")).collect()
        });
        Ok(accounts?)
    }
}

/// Plays the part of a rank's process in the measurement that a task describes.
pub fn play(
    task: &RankTask,
    rank: usize,
    transport: Box<dyn Transport>,
    registries: &Registries,
) -> Result<Account, TrainError> {
    let bench = Bench::deserialize(&task.document).expect("the same program wrote the task");
    bench.play(RankPart { rank, transport, registries, cpu_seconds: process::cpu_seconds })
}

/// A gradient buffer without a model, and how many of its elements change together.
pub(crate) struct Flat<B = Vec<f32>>(pub(crate) B, pub(crate) usize);

impl<B: Deref<Target = [f32]>> Source for Flat<B> {
    fn slices<'a>(&'a self, span: Span, f: &mut dyn FnMut(&'a [f32])) {
        f(&self.0[span.offset..span.offset + span.len]);
    }
}

impl<B: DerefMut<Target = [f32]>> Memory for Flat<B> {
    fn compute(&mut self, action: &Action, bodies: Bodies<'_>) -> bool {
        match *action {
            Action::Reduce { dst, src: Region { buf: Buf::Msg(msg), .. } } => {
                bodies.add_to(msg, 0, &mut self.0[dst.range()]);
            }
            Action::Copy { dst, src: Region { buf: Buf::Msg(msg), .. } } => {
                bodies.copy_to(msg, 0, &mut self.0[dst.range()], self.1);
            }
            // There is no model to update.
            Action::Apply { .. } => {}
            _ => unreachable!("a plain sum needs nothing but {action:?}"),
        }
        true
    }
}
