//! Throughput of parameter servers: workers that compute nothing push and pull through the real strategy and
//! the real engine; servers sum and update as in training (SGD with momentum). A repeat has processes of its
//! own.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use paceline_analyze::Quantiles;
use paceline_launch::{LaunchError, RankAccount};
use paceline_nn::Compute;
use paceline_nn::optim::{OPTIMISERS, Optimiser, Settings, Step};
use paceline_plan::PlanError;
use paceline_protocol::{
    Action, Buf, Buffers, Input, Options, Protocols, Refusal, Setup, Strategy, ps_messages,
};
use paceline_record::process;
use paceline_train::memory::{Bodies, Memory, add};
use paceline_train::worker::MESSAGE;
use paceline_train::{Begin, Engine, TrainError};
use paceline_wire::{Source, Span};
use serde::{Deserialize, Serialize};

use crate::document::Servers;
use crate::exchange::{self, Account, Bench, BenchProgram, RankPart, WARM_UP};
use crate::payload::{self, Payload};
use crate::servers_document::{ServerRepeat, ServerUse, ServersConfig, ServersPoint};
use crate::sweep::{Progress, SweepRules, order};

/// Rounds of a repeat, besides those that warm up.
const ROUNDS: std::ops::RangeInclusive<u64> = 5..=20_000;
/// Rounds of the run that tells how long a round takes.
const PILOT: u64 = 10;

/// What a benchmark of servers is to measure.
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct Sweep {
    pub rules: SweepRules,
    pub workers: Vec<usize>,
    pub servers: Vec<usize>,
    /// Lengths of models, in elements; the length of `model` if there are none.
    pub sizes: Vec<usize>,
    pub syncs: Vec<String>,
}

struct Point {
    bench: Bench,
    of: ServersConfig,
    buckets: Vec<usize>,
    messages: usize,
    repeats: Vec<ServerRepeat>,
}

impl Sweep {
    /// Measures everything.
    pub fn run(
        &self,
        by: &BenchProgram<'_>,
        report: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Servers, LaunchError> {
        let rules = &self.rules;
        let (combinations, left_out) = rules.over.combinations(&by.registries.transports)?;
        let load_average = process::load_average();
        let mut points = Vec::new();
        for (transport, buffer) in &combinations {
            for (&workers, &servers) in
                self.workers.iter().flat_map(|w| self.servers.iter().map(move |s| (w, s)))
            {
                for (sync, payload) in
                    self.syncs.iter().flat_map(|s| rules.payloads.iter().map(move |p| (s, p)))
                {
                    let (transport, buffer_bytes, sync) = (transport.clone(), *buffer, sync.clone());
                    let name = payload.name.to_owned();
                    let of = ServersConfig { transport, buffer_bytes, workers, servers, sync, payload: name };
                    points.extend(self.points(&of, payload, &by.registries.protocols)?);
                }
            }
        }
        let order = order(rules.seed, points.len(), rules.repeats);
        let total = points.len() + order.len();
        let mut done = 0;
        let mut next = |point: &Point| {
            let ServersConfig { transport, workers, servers, sync, .. } = &point.of;
            let name = format!("{transport} {sync}, {workers} workers, {servers} servers");
            report(Progress { done, total, next: &name });
            done += 1;
        };
        // How many rounds fill the time is tried out once; every repeat has as many.
        for point in &mut points {
            next(point);
            point.set_rounds(PILOT);
            let pilot = repeat(0, &point.bench, &point.bench.accounts(by)?);
            point.set_rounds((rules.seconds / pilot.round_s.median.max(1e-9)) as u64);
        }
        for (place, at) in order.into_iter().enumerate() {
            next(&points[at]);
            let accounts = points[at].bench.accounts(by)?;
            let measured = repeat(place, &points[at].bench, &accounts);
            points[at].repeats.push(measured);
        }
        let point = |Point { of, buckets, messages, repeats, .. }| {
            let bytes = buckets.iter().map(|len: &usize| 4 * len).collect();
            ServersPoint::new(of, bytes, messages, repeats)
        };
        Ok(rules.document("ps", load_average, left_out, points.into_iter().map(point).collect()))
    }

    /// The points of a configuration, one per size, if it can be run.
    fn points(
        &self,
        of: &ServersConfig,
        by: &Payload,
        protocols: &Protocols,
    ) -> Result<Vec<Point>, PlanError> {
        let tensors = payload::tensors(self.rules.model);
        let own = [tensors.iter().sum()];
        let sizes = if self.sizes.is_empty() { &own[..] } else { &self.sizes };
        let point = |&size: &usize| {
            if size < of.servers {
                let problem = format!("a model of {} bytes has not one parameter for each", 4 * size);
                return Err(PlanError { flag: "--servers".into(), value: of.servers.to_string(), problem });
            }
            let buckets = by.buckets(size, &tensors, self.rules.seed);
            // The buckets are in the order of backward, which begins at the end of the parameters.
            let mut cuts: Vec<usize> = buckets
                .iter()
                .scan(size, |at, len| {
                    *at -= len;
                    Some(*at)
                })
                .collect();
            cuts.reverse();
            let (servers, sync) = (of.servers, of.sync.clone());
            let task = Task { servers, params: size, cuts, sync, rounds: PILOT };
            let setup = task.setup(of.workers, protocols)?;
            strategy(protocols).check(&setup).map_err(refused)?;
            let (transport, buffer, workers) = (of.transport.clone(), of.buffer_bytes, of.workers);
            let (task, seconds) = (exchange::Task::Serve(task), self.rules.seconds);
            let bench = Bench { task, transport, buffer, workers, seconds, ..Bench::default() };
            Ok(Point { bench, of: of.clone(), buckets, messages: ps_messages(&setup), repeats: Vec::new() })
        };
        sizes.iter().map(point).collect()
    }
}

impl Point {
    fn set_rounds(&mut self, rounds: u64) {
        if let exchange::Task::Serve(task) = &mut self.bench.task {
            task.rounds = rounds.clamp(*ROUNDS.start(), *ROUNDS.end());
        }
    }
}

fn repeat(order: usize, bench: &Bench, accounts: &[Account]) -> ServerRepeat {
    let (workers, servers) = accounts.split_at(bench.workers);
    let rounds: Vec<f64> = workers.iter().flat_map(|(_, times)| times).map(|&t| f64::from(t)).collect();
    ServerRepeat {
        order,
        rounds: workers.iter().map(|(_, times)| times.len() as u64).collect(),
        round_s: Quantiles::of(&rounds),
        seconds: workers.iter().map(|(done, _)| done.train_s).fold(0.0, f64::max),
        servers: servers
            .iter()
            .map(|(done, _)| ServerUse {
                seconds: done.train_s,
                cpu_s: done.cpu_s,
                wait_s: done.wait_s,
                apply_s: done.apply_s,
                sent_bytes: done.sent_bytes,
                received_bytes: done.received_bytes,
            })
            .collect(),
    }
}

fn strategy(protocols: &Protocols) -> &'static Strategy {
    protocols.strategies.find("ps").expect("the parameter server is registered")
}

/// Consistency models that servers can be measured with.
pub fn syncs(protocols: &Protocols) -> Vec<&'static str> {
    protocols.syncs(strategy(protocols))
}

fn refused(refusal: Refusal) -> PlanError {
    let Refusal { flag, value, problem } = refusal;
    PlanError { flag, value, problem }
}

/// What the ranks of a measurement are told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    /// Number of servers: the ranks behind the workers.
    pub servers: usize,
    /// Length of the model.
    pub params: usize,
    /// Where its buckets begin.
    pub cuts: Vec<usize>,
    /// Consistency model.
    pub sync: String,
    /// Rounds per worker, besides those that warm up.
    pub rounds: u64,
}

impl Task {
    fn setup(&self, workers: usize, protocols: &Protocols) -> Result<Setup, PlanError> {
        let steps = WARM_UP as u64 + self.rounds;
        let mut options = Options::default();
        protocols.resolve(strategy(protocols), &self.sync, &mut options).map_err(refused)?;
        let sync = protocols.consistency(&self.sync, &options, steps);
        let (message, cuts) = (MESSAGE, self.cuts.clone());
        Ok(Setup { message, cuts, sync, options, ..Setup::new(workers, self.servers, self.params, steps) })
    }

    fn checked(&self, workers: usize, protocols: &Protocols) -> Setup {
        self.setup(workers, protocols).expect("the launcher has checked it")
    }

    pub(super) fn links(&self, workers: usize, rank: usize, protocols: &Protocols) -> Vec<usize> {
        (strategy(protocols).links)(&self.checked(workers, protocols), rank)
    }

    /// Plays a rank's part. A worker tells the times of its rounds and its clock (`train_s`), a server its
    /// clock, CPU time, waiting, updating and bytes.
    pub(super) fn play(&self, workers: usize, part: RankPart<'_>) -> Result<Account, TrainError> {
        let RankPart { rank, transport, registries, cpu_seconds } = part;
        let protocols = &registries.protocols;
        let (setup, strategy) = (self.checked(workers, protocols), strategy(protocols));
        let links = (strategy.links)(&setup, rank);
        let mut engine = Engine::new(strategy.participant(&setup, rank), transport, links, setup.world());
        let mut memory = Model::new(&setup, rank, engine.scratch());
        let account = if rank < workers {
            work(&mut engine, &mut memory, &setup)?
        } else {
            serve(&mut engine, &mut memory, cpu_seconds)?
        };
        engine.finish(&mut memory)?;
        Ok(account)
    }
}

fn work(engine: &mut Engine, memory: &mut Model, setup: &Setup) -> Result<Account, TrainError> {
    let (mut times, mut begin, mut clock) = (Vec::new(), None, 0.0);
    engine.start(memory)?;
    while let Some(Begin { step, .. }) = engine.next_step(memory)? {
        let start = Instant::now();
        for bucket in setup.buckets() {
            engine.input(Input::GradReady { from: bucket.start }, memory)?;
            engine.poll(memory)?;
        }
        engine.input(Input::BackwardDone, memory)?;
        engine.step_over(memory)?;
        if step == 0 {
            let missing = memory.params.iter().position(|v| v.is_nan());
            assert_eq!(missing, None, "a parameter that was never pulled");
        }
        if step >= WARM_UP as u64 {
            times.push(start.elapsed().as_secs_f32());
            clock = begin.get_or_insert(start).elapsed().as_secs_f64();
        }
    }
    Ok((RankAccount { train_s: clock, ..RankAccount::default() }, times))
}

fn serve(engine: &mut Engine, memory: &mut Model, cpu_seconds: fn() -> f64) -> Result<Account, TrainError> {
    engine.start(memory)?;
    let (start, cpu) = (Instant::now(), cpu_seconds());
    while !engine.over()? {
        engine.wait(memory)?;
    }
    let (sent_bytes, received_bytes) = engine.traffic();
    let done = RankAccount {
        train_s: start.elapsed().as_secs_f64(),
        cpu_s: cpu_seconds() - cpu,
        wait_s: engine.times.wait.as_secs_f64(),
        apply_s: engine.times.apply.as_secs_f64(),
        sent_bytes,
        received_bytes,
        ..RankAccount::default()
    };
    Ok((done, Vec::new()))
}

/// Parameters and gradients without a network.
struct Model {
    params: Vec<f32>,
    grads: Vec<f32>,
    scratch: Vec<Vec<f32>>,
    work: Vec<u32>,
    optimiser: &'static Optimiser,
    settings: Settings,
    compute: Arc<Compute>,
    /// The optimiser's memory of each range, by the range's start, and how often it was updated.
    ranges: HashMap<usize, (Vec<f32>, u64)>,
}

impl Model {
    fn new(setup: &Setup, rank: usize, scratch: Vec<usize>) -> Self {
        // A worker has nothing before its first pull; that it then has everything is checked.
        let first = if rank < setup.workers { f32::NAN } else { 0.5 };
        Self {
            params: vec![first; setup.params],
            grads: (0..setup.params).map(|i| (i % 251 + 1) as f32 * 1e-3).collect(),
            scratch: scratch.into_iter().map(|len| vec![0.0; len]).collect(),
            work: Vec::new(),
            optimiser: &OPTIMISERS[0],
            settings: Settings::default(),
            compute: Arc::new(Compute::new(1, false)),
            ranges: HashMap::new(),
        }
    }
}

impl Source for Model {
    fn slices<'a>(&'a self, span: Span, f: &mut dyn FnMut(&'a [f32])) {
        let buffer = match paceline_train::memory::region(span).buf {
            Buf::Param => &self.params,
            Buf::Grad | Buf::HostedGrad(_) => &self.grads,
            Buf::Scratch(n) => &self.scratch[usize::from(n)],
            Buf::Value(_) | Buf::Slope(_) | Buf::Optimiser(_) | Buf::Msg(_) => {
                unreachable!("a span is never a received body")
            }
        };
        f(&buffer[span.offset..span.offset + span.len]);
    }
}

impl Memory for Model {
    fn compute(&mut self, action: &Action, bodies: Bodies<'_>) -> bool {
        if let Action::Apply { params, grad, .. } = *action {
            let grads = match grad.buf {
                Buf::Msg(msg) => bodies.get(msg),
                _ => &self.grads[grad.range()],
            };
            let (memory, updates) = self.ranges.entry(params.offset).or_default();
            memory.resize((self.optimiser.memory)(&self.settings) * params.len, 0.0);
            *updates += 1;
            // So small a rate that no number of rounds leads anywhere.
            let lr = 1e-9;
            let update = Step { params: &mut self.params[params.range()], grads, memory, lr, step: *updates };
            self.optimiser.apply(&self.compute, &self.settings, update);
            return true;
        }
        let Self { params: param, grads: grad, scratch, work, .. } = self;
        let mut all = Buffers { param, grads: std::slice::from_mut(grad), scratch, work, accumulate: add };
        all.compute(action, &|msg| bodies.get(msg));
        true
    }
}
