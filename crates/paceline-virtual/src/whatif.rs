//! What would a recorded run take if something were different? Its plan is run in virtual time, with costs that come
//! from its own events: what the plan says of slow workers and links is not looked at.
//!
//! - [`stages`]: the same of runs whose network is cut into stages

mod stages;

use paceline_analyze::{ExplainError, Explanation, GradientReady, RankTimes, RecordedRun, SlowGroup, WhatIf};
use paceline_plan::{NetworkLimits, Plan};
use paceline_protocol::{Averages, Options, Setup, Strategy};
use paceline_resolve::{Registries, TypedPlan, paths, strategy_of};
use paceline_sim::{Costs, Host, PassPart, SizesOnly};
use paceline_train::worker::MESSAGE;

use crate::calibration::{Calibration, TransportCost};
use crate::price;

/// Nanoseconds per byte of links that hold nobody up.
const FAST: f64 = 0.05;
/// Messages of a simulation, about: what-ifs are to be answered at once.
const MESSAGES: f64 = 30_000.0;
const STEPS: [f64; 2] = [2.0, 24.0];
/// Halvings of the interval in which the ranks' own work is looked for.
const HALVINGS: usize = 8;
/// By how much own work may differ from round numbers, as a power of two either way.
const RANGE: f64 = 7.0;
/// By how much a step may take longer or shorter than it took, as a part of it.
const CLOSE: f64 = 0.1;
/// A server that takes so many times as long as the fastest is slower.
const SLOWER: f64 = 1.5;
/// Seconds under way from which a message leaves its host.
const FAR_S: f64 = 1e-4;

/// A recorded run as the simulator sees it.
pub struct FittedRun {
    plan: Plan,
    registries: Registries,
    params: usize,
    pace: Pace,
    /// Workers as they were recorded.
    workers: Vec<RankTimes>,
    slow: Option<SlowGroup>,
    /// How compute times vary.
    jitter: Vec<f64>,
    cores: Option<usize>,
    /// When gradients are final, where a script told.
    parts: Vec<PassPart>,
    simulated: bool,
    /// How fast ranks handle messages by what they spent on that, however long they waited.
    own_speed: [f64; 2],
    /// Whether messages between workers leave their hosts.
    spread: bool,
    steps: u64,
    /// Seconds of a step as it was.
    pub step_s: f64,
}

/// How fast ranks and links are.
#[derive(Clone)]
struct Pace {
    compute: Vec<f64>,
    latency_ns: f64,
    ns_per_byte: f64,
    /// How fast workers and servers handle messages, relative to round numbers.
    speed: [f64; 2],
    /// How many times as long each server takes as the fastest of them.
    server_slowness: Vec<f64>,
    /// The same of workers.
    worker_slowness: Vec<f64>,
    /// Whether compute times vary.
    varies: bool,
    /// What encoding and decoding cost, relative to round numbers.
    codec: f64,
    /// Whether messages are longer than any of the recorded ones: how fast their bytes are copied is not known.
    longer: bool,
}

/// A run that differs from the recorded one.
struct Variant {
    plan: Plan,
    strategy: &'static Strategy,
    setup: Setup,
    pace: Pace,
    /// Samples of a step, relative to now.
    samples: f64,
}

impl FittedRun {
    /// Of a run; none if its strategy is not known, or nothing was exchanged.
    pub fn new(plan: &Plan, registries: &Registries, params: usize, said: &Explanation) -> Option<Self> {
        let wires = said.wires.as_ref()?;
        of_registry_or_file(plan, registries)?;
        let workers: Vec<RankTimes> = said.ranks.iter().filter(|r| r.role == "worker").cloned().collect();
        let per_step = wires.messages_per_step.max(1.0) * said.ranks.len() as f64;
        let work: Vec<f64> =
            said.ranks.iter().filter(|r| r.role == "server").map(|r| r.send_s + r.apply_s).collect();
        let fastest = work.iter().copied().fold(f64::INFINITY, f64::min).max(1e-9);
        let slowness = |work: &f64| if work / fastest < SLOWER { 1.0 } else { work / fastest };
        let mut model = Self {
            registries: registries.clone(),
            plan: plan.clone(),
            params,
            pace: Pace {
                compute: workers.iter().map(|r| 1e9 * r.compute_s).collect(),
                latency_ns: 1e9 * wires.latency_s,
                ns_per_byte: wires.bytes_per_s.map_or(FAST, |b| 1e9 / b),
                speed: [1.0; 2],
                server_slowness: work.iter().map(slowness).collect(),
                worker_slowness: slow_updates(&workers, said.verdict.slow.as_ref()),
                varies: true,
                codec: 1.0,
                longer: false,
            },
            workers,
            slow: said.verdict.slow.clone(),
            jitter: said.jitter.clone(),
            cores: said.cores,
            parts: parts(&said.ready),
            simulated: said.origin != "measured",
            own_speed: [1.0; 2],
            spread: said.origin != "measured" || wires.bytes_per_s.is_some() || wires.latency_s >= FAR_S,
            steps: (MESSAGES / per_step).clamp(STEPS[0], STEPS[1]) as u64,
            step_s: 0.0,
        };
        model.fit(said)?;
        Some(model)
    }

    /// Finds how fast ranks handle messages: first from what workers and servers spent on that, then so that a step
    /// takes what it took.
    fn fit(&mut self, said: &Explanation) -> Option<()> {
        let own = |role: &str, of: fn(&RankTimes) -> f64| {
            let all: Vec<f64> = said.ranks.iter().filter(|r| r.role == role).map(of).collect();
            if all.is_empty() { 0.0 } else { paceline_statistics::mean(&all) }
        };
        self.pace.codec = 0.0;
        let (_, without) = self.run(&self.variant(None)?)?;
        self.pace.codec = 1.0;
        let (_, spent) = self.run(&self.variant(None)?)?;
        let encoding = own("worker", |r| r.codec_s);
        if encoding > 0.0 && spent[0] > without[0] {
            self.pace.codec = encoding / (spent[0] - without[0]);
        }
        // Encoding is not only done while sending.
        let worker =
            own("worker", |r| (r.send_s - r.codec_s).max(0.1 * r.send_s) + r.apply_s) / without[0].max(1e-9);
        // Per update a server's row tells of one worker's push; how busy it was does not depend on that.
        let server = own("server", |r| r.busy) * said.mean_step_s() / spent[1].max(1e-9);
        let within = |slower: f64| if slower > 0.0 { 1.0 / slower.clamp(0.02, 500.0) } else { 1.0 };
        let first = [within(worker), within(server)];
        self.own_speed = first;
        let (wanted, link) = (said.mean_step_s(), [self.pace.latency_ns, self.pace.ns_per_byte]);
        self.search(wanted, |model, power| model.pace.speed = first.map(|speed| speed / power.exp2()))?;
        if self.step_s > (1.0 + CLOSE) * wanted {
            // Links were taken for slower than they are: messages were held up by something else as well.
            self.search(wanted, |model, power| {
                let links = link.map(|cost| cost * (power - RANGE).exp2());
                [model.pace.latency_ns, model.pace.ns_per_byte] = links;
            })?;
        }
        // What is not understood is not predicted.
        ((self.step_s / wanted - 1.0).abs() <= 2.0 * CLOSE).then_some(())
    }

    /// Sets something to the power of two at which a step takes as long as wanted.
    fn search(&mut self, wanted: f64, set: impl Fn(&mut Self, f64)) -> Option<()> {
        let (mut low, mut high) = (-RANGE, RANGE);
        for _ in 0..HALVINGS {
            let middle = (low + high) / 2.0;
            set(self, middle);
            (self.step_s, _) = self.run(&self.variant(None)?)?;
            if self.step_s < wanted { low = middle } else { high = middle }
        }
        Some(())
    }

    /// Seconds that the work of a step takes after a change, relative to now.
    pub fn ratio(&self, what_if: WhatIf) -> Option<f64> {
        if what_if == WhatIf::OneWorker {
            // Its pass, on a core of its own, and an update: nothing is exchanged.
            let apply =
                Calibration::defaults().ns_per_element("apply", self.params, 0.0) * self.params as f64;
            let mut all: Vec<f64> = self.workers.iter().map(RankTimes::on_core_s).collect();
            all.sort_by(f64::total_cmp);
            let alone = all[(all.len() - 1) / 2] + 1e-9 * apply / self.pace.speed[0].max(1.0);
            return Some(alone * self.workers.len() as f64 / self.step_s);
        }
        let variant = self.variant(Some(what_if))?;
        let (step_s, _) = self.run(&variant)?;
        Some(step_s / variant.samples / self.step_s)
    }

    fn variant(&self, what_if: Option<WhatIf>) -> Option<Variant> {
        let mut pace = self.pace.clone();
        let mut plan = self.plan.clone();
        let mut samples = 1.0;
        if let Some(what_if) = what_if {
            if let Some(new) = what_if.changed(&self.plan, self.cores) {
                plan = new;
            }
            let passes = self.workers.iter().map(|r| Some(1e9 * pass_after(r, what_if, self.step_s)?));
            if let Some(passes) = passes.collect::<Option<Vec<f64>>>() {
                pace.compute = passes;
            }
            match what_if {
                WhatIf::EvenShares => {
                    let mean = paceline_statistics::mean(&pace.compute);
                    pace.compute.iter_mut().for_each(|compute| *compute = mean);
                }
                WhatIf::NoStraggler => {
                    pace.worker_slowness.clear();
                    let Some(slow) = self.slow.as_ref() else {
                        // Now this one, now that: all of it is variation.
                        pace.varies = false;
                        return self.built(plan, pace, samples, self.steps);
                    };
                    slow.ranks
                        .iter()
                        .filter_map(|rank| self.workers.iter().position(|r| r.rank == *rank))
                        .for_each(|i| pace.compute[i] = pace.compute[i].min(1e9 * slow.usual_s));
                }
                WhatIf::FasterServers => {
                    pace.speed[1] = pace.speed[1].max(pace.speed[0]);
                    pace.server_slowness.clear();
                }
                WhatIf::NoSlowServer => pace.server_slowness.clear(),
                WhatIf::Bandwidth => pace.ns_per_byte /= 10.0,
                WhatIf::Latency => pace.latency_ns /= 10.0,
                WhatIf::NoCodec => pace.longer = true,
                // What another codec costs is not known from this run.
                WhatIf::Half if self.plan.compression.is_some() => (pace.codec, pace.longer) = (1.0, true),
                // A script's batch is its own: twice the workers have twice the samples.
                WhatIf::MoreWorkers if self.plan.script.is_some() => {
                    pace.compute = pace.compute.repeat(2);
                    samples = 2.0;
                }
                WhatIf::FewerWorkers if self.plan.script.is_some() => {
                    let own: Vec<f64> = self.workers.iter().map(|r| 1e9 * r.on_core_s()).collect();
                    pace.compute = vec![paceline_statistics::mean(&own); plan.workers];
                    samples = plan.workers as f64 / own.len() as f64;
                    self.uncrowd(&mut pace);
                }
                WhatIf::MoreWorkers => {
                    pace.compute = pace.compute.iter().chain(&pace.compute).map(|c| c / 2.0).collect();
                }
                WhatIf::FewerWorkers => {
                    let all = 1e9 * self.workers.iter().map(RankTimes::on_core_s).sum::<f64>();
                    pace.compute = vec![all / plan.workers as f64; plan.workers];
                    self.uncrowd(&mut pace);
                }
                WhatIf::LargerBatch => samples = 2.0,
                WhatIf::OwnCores => self.uncrowd(&mut pace),
                _ => {}
            }
        }
        // Whole rounds of those who exchange every few steps.
        let steps = if what_if == Some(WhatIf::Local) { self.steps.next_multiple_of(8) } else { self.steps };
        self.built(plan, pace, samples, steps)
    }

    /// What real ranks lose to each other while they wait, and how they vary, is gone with cores of their own.
    fn uncrowd(&self, pace: &mut Pace) {
        if !self.simulated {
            pace.varies = false;
            pace.speed = std::array::from_fn(|role| pace.speed[role].max(self.own_speed[role]));
        }
    }

    fn built(&self, mut plan: Plan, pace: Pace, samples: f64, steps: u64) -> Option<Variant> {
        let asked = |plan: &Plan| (plan.workers, plan.hosts.clone(), plan.compression.is_some());
        if asked(&plan) != asked(&self.plan) {
            let hosts = plan.hosts.clone().filter(|_| !self.resized(&plan));
            plan.paths = paths(&Plan { hosts, ..plan.clone() }, &self.registries.transports);
        }
        let strategy = of_registry_or_file(&plan, &self.registries)?;
        let setup = self.setup(&plan, strategy, steps)?;
        Some(Variant { plan, strategy, setup, pace, samples })
    }

    fn setup(&self, plan: &Plan, strategy: &'static Strategy, steps: u64) -> Option<Setup> {
        let mut options = Options(plan.options.clone());
        let protocols = &self.registries.protocols;
        protocols.resolve(strategy, &plan.sync, &mut options).ok()?;
        let sync = protocols.consistency(&plan.sync, &options, steps);
        let same = plan.strategy == self.plan.strategy;
        let averages = match (same, plan.averages.as_str()) {
            (true, "weights") => Averages::Weights,
            (true, _) => Averages::Gradients,
            (false, _) => strategy.averages[0],
        };
        let typed = TypedPlan::new(plan, &self.registries).ok()?;
        let setup = Setup {
            shares: plan.shares,
            hosts: if self.resized(plan) { Vec::new() } else { plan.layout() },
            paths: typed.paths,
            program: typed.program,
            bucket: (plan.bucket / size_of::<f32>()).max(1),
            message: MESSAGE,
            sync,
            averages,
            coder: plan.compression.as_ref().and_then(|text| text.parse().ok()),
            options,
            seed: plan.seed,
            ..Setup::new(plan.workers, plan.servers, self.params, steps)
        };
        // Codecs that look at the tensors need the network, which is not at hand.
        let known = plan.compression.as_ref().is_none_or(|text| !text.starts_with("powersgd"));
        (known && strategy.check(&setup).is_ok()).then_some(setup)
    }

    /// Whether the plan's hosts are those of another number of workers.
    fn resized(&self, plan: &Plan) -> bool {
        plan.hosts.is_some() && plan.workers != self.plan.workers
    }

    /// Who sits where: each rank by itself, unless messages leave hosts and the plan puts ranks together.
    fn layout(&self, plan: &Plan, world: usize) -> Vec<usize> {
        if !self.spread || self.resized(plan) {
            return (0..world).collect();
        }
        let network = Some(NetworkLimits { bits_per_s: u64::MAX, latency_ns: 0 });
        Plan { network, ..plan.clone() }.layout()
    }

    /// Seconds of a step, and what a worker and a server spend on messages in one.
    fn run(&self, variant: &Variant) -> Option<(f64, [f64; 2])> {
        let Variant { plan, strategy, setup, pace, .. } = variant;
        let Pace { compute, latency_ns, ns_per_byte, speed, codec, .. } = pace;
        let Pace { server_slowness, worker_slowness, varies, longer, .. } = pace;
        let defaults = Calibration::defaults();
        let transport = TransportCost::unmeasured(self.registries.transports.find(&plan.transport)?);
        let byte = transport.ns_per_byte(self.params) * if *longer { speed[0].max(1.0) } else { 1.0 };
        let host = |speed: f64| Host {
            speed,
            slowdown: Vec::new(),
            pass_slowdown: Vec::new(),
            latency: *latency_ns as u64,
            per_byte: *ns_per_byte,
        };
        let speed_of = |rank: usize| match rank.checked_sub(setup.workers) {
            None => speed[0] / worker_slowness.get(rank).copied().unwrap_or(1.0),
            Some(server) => speed[1] / server_slowness.get(server).copied().unwrap_or(1.0),
        };
        let layout = self.layout(plan, setup.world());
        let hosts = layout.iter().max().map_or(0, |last| last + 1);
        let mut work = price::work(plan, setup.coder, &defaults, self.params, 0.0);
        if setup.coder.is_some() {
            // Measured: it does not follow how fast messages are handled.
            [&mut work.encode, &mut work.decode, &mut work.product]
                .into_iter()
                .for_each(|cost| *cost *= codec * speed[0]);
        }
        let costs = Costs {
            compute: (0..setup.workers)
                .map(|r| (compute[r] / setup.positions(r).len() as f64) as u64)
                .collect(),
            message: (transport.message_s.median * 1e9) as u64,
            byte,
            work,
            parts: self.parts.clone(),
            // Interfaces are those of the hosts; every rank has a core of its own.
            hosts: (0..hosts)
                .map(|_| host(1.0))
                .chain((0..setup.world()).map(|r| host(speed_of(r))))
                .collect(),
            machines: (0..setup.world()).map(|rank| hosts + rank).collect(),
            layout,
            jitter: if *varies { self.jitter.clone() } else { Vec::new() },
            seed: plan.seed,
            buffer: plan.buffer.unwrap_or(price::BUFFER),
            ..Costs::constant(setup.workers, 0, 0, 0.0)
        };
        let participants = (0..setup.world()).map(|rank| strategy.participant(setup, rank)).collect();
        let happened = paceline_sim::run(setup, participants, &costs, &mut SizesOnly);
        if !happened.stuck.is_empty() {
            return None;
        }
        let last = happened.finished.iter().filter_map(|times| times.last()).max()?;
        let steps = setup.end() as f64;
        let mean = |ranks: std::ops::Range<usize>| {
            let count = ranks.len().max(1) as f64;
            let all = happened.spent[ranks].iter().map(|s| (s.exchange + s.apply) as f64).sum::<f64>();
            1e-9 * all / count / steps
        };
        Some((1e-9 * *last as f64 / steps, [mean(0..setup.workers), mean(setup.workers..setup.world())]))
    }
}

/// A pass as a script's gradients were final in it.
pub(crate) fn parts(ready: &[GradientReady]) -> Vec<PassPart> {
    let first = ready.iter().map(|one| one.at).fold(f64::INFINITY, f64::min);
    let forward = PassPart { end: 0.999 * first, announces: None };
    let own = ready.iter().map(|one| PassPart { end: one.at, announces: Some(one.from) });
    ready.first().map(|_| forward).into_iter().chain(own).collect()
}

/// How many times as long each worker's updates take as those of the others, of the workers that are slow machines.
/// The strategy of a run whose exchange is this program's: one of the registry, or a file's.
fn of_registry_or_file(plan: &Plan, registries: &Registries) -> Option<&'static Strategy> {
    let exchanges =
        plan.strategy_file.is_some() || registries.protocols.strategies.find(&plan.strategy).is_some();
    strategy_of(plan, &registries.protocols).filter(|_| exchanges)
}

fn slow_updates(workers: &[RankTimes], slow: Option<&SlowGroup>) -> Vec<f64> {
    let is_slow = |r: &&RankTimes| slow.is_some_and(|slow| slow.ranks.contains(&r.rank));
    let others: Vec<f64> = workers.iter().filter(|r| !is_slow(r)).map(|r| r.apply_s).collect();
    let usual = if others.is_empty() { 0.0 } else { paceline_statistics::median(&others) };
    let times = |r: &RankTimes| if usual > 0.0 && is_slow(&r) { (r.apply_s / usual).max(1.0) } else { 1.0 };
    workers.iter().map(times).collect()
}

/// Seconds of a worker's pass after a change of its own work; none where that stays as it is.
fn pass_after(worker: &RankTimes, what_if: WhatIf, step_s: f64) -> Option<f64> {
    let RankTimes { compute_s, data_s, .. } = *worker;
    Some(match what_if {
        WhatIf::OwnCores => worker.on_core_s(),
        // Samples take twice as long, parameters are moved as often as before.
        WhatIf::LargerBatch => 2.0 * compute_s - worker.moving_s,
        // Decoders that are always at work take half of a step for a batch.
        WhatIf::MoreDecoders => compute_s - data_s + (data_s - step_s / 2.0).max(0.0),
        WhatIf::NoDecoding => compute_s - data_s,
        _ => return None,
    })
}

/// Why a recorded run took as long as it did, and what would help according to the simulator.
pub fn explained(recorded: &RecordedRun, registries: &Registries) -> Result<Explanation, ExplainError> {
    if let Some(plan) = recorded.plan.as_ref().filter(|plan| plan.stages > 1) {
        return stages::explained(recorded, plan, registries);
    }
    let mut said = Explanation::new(recorded)?;
    if let Some(plan) = recorded.plan.as_ref().filter(|_| recorded.params > 0) {
        predict(&mut said, plan, registries, recorded.params);
    }
    Ok(said)
}

/// Asks the simulator about every change that an explanation names, and about one worker alone.
pub fn predict(said: &mut Explanation, plan: &Plan, registries: &Registries, params: usize) {
    if let [alone] = said.ranks.as_slice() {
        let (alone, step_s) = (alone.clone(), said.step_s);
        let ratio = |what_if| {
            let samples = if what_if == WhatIf::LargerBatch { 2.0 } else { 1.0 };
            let rest = step_s - alone.compute_s;
            Some((pass_after(&alone, what_if, step_s)? + rest) / samples / step_s)
        };
        said.predict(&ratio);
    } else if let Some(model) = FittedRun::new(plan, registries, params, said) {
        said.predict(&|what_if| model.ratio(what_if));
    }
}
