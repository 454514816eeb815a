//! What would a recorded run take if something were different? Its plan is run in virtual time, with costs that come
//! from its own events: what the plan says of slow workers and links is not looked at.

use std::collections::BTreeMap;

use paceline_analyze::{Explanation, WhatIf};
use paceline_plan::Plan;
use paceline_protocol::{Averages, Options, Setup, Strategy};
use paceline_resolve::Registries;
use paceline_sim::{Costs, Host, SizesOnly};
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
const BUCKET: usize = 4 << 20;

/// A recorded run as the simulator sees it.
pub struct FittedRun {
    plan: Plan,
    registries: Registries,
    params: usize,
    pace: Pace,
    /// What a worker without any excuse takes.
    usual: f64,
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
}

/// A run that differs from the recorded one.
struct Variant {
    strategy: &'static Strategy,
    setup: Setup,
    pace: Pace,
}

impl FittedRun {
    /// Of a run; none if its strategy is not known, or nothing was exchanged.
    pub fn new(plan: &Plan, registries: &Registries, params: usize, said: &Explanation) -> Option<Self> {
        let wires = said.wires.as_ref()?;
        registries.protocols.strategies.find(&plan.strategy)?;
        let workers: Vec<_> = said.ranks.iter().filter(|r| r.role == "worker").collect();
        let compute: Vec<f64> = workers.iter().map(|r| 1e9 * r.compute_s).collect();
        let mut sorted = compute.clone();
        sorted.sort_by(f64::total_cmp);
        let usual = sorted[(sorted.len() - 1) / 2];
        let per_step = wires.messages_per_step.max(1.0) * said.ranks.len() as f64;
        let mut model = Self {
            registries: registries.clone(),
            plan: Plan { network: None, straggler: None, hosts: None, ..plan.clone() },
            params,
            pace: Pace {
                compute,
                latency_ns: 1e9 * wires.latency_s,
                ns_per_byte: wires.bytes_per_s.map_or(FAST, |b| 1e9 / b),
                speed: [1.0; 2],
            },
            usual,
            steps: (MESSAGES / per_step).clamp(STEPS[0], STEPS[1]) as u64,
            step_s: 0.0,
        };
        model.fit(said)?;
        Some(model)
    }

    /// Finds how fast ranks handle messages: first from what workers and servers spent on that, then so that a step
    /// takes what it took.
    fn fit(&mut self, said: &Explanation) -> Option<()> {
        let own = |role: &str, of: fn(&paceline_analyze::RankTimes) -> f64| {
            let all: Vec<f64> = said.ranks.iter().filter(|r| r.role == role).map(of).collect();
            if all.is_empty() { 0.0 } else { paceline_statistics::mean(&all) }
        };
        let (_, spent) = self.run(&self.variant(None)?)?;
        let worker = own("worker", |r| r.send_s + r.apply_s) / spent[0].max(1e-9);
        // Per update a server's row tells of one worker's push; how busy it was does not depend on that.
        let server = own("server", |r| r.busy) * said.step_s / spent[1].max(1e-9);
        let within = |slower: f64| if slower > 0.0 { 1.0 / slower.clamp(0.02, 500.0) } else { 1.0 };
        let first = [within(worker), within(server)];
        let (wanted, link) = (said.step_s, [self.pace.latency_ns, self.pace.ns_per_byte]);
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
            // Its pass, and an update: nothing is exchanged.
            let apply = Calibration::defaults().ns_per_element("apply", self.params) * self.params as f64;
            let alone = 1e-9 * (self.usual + apply / self.pace.speed[0].max(1.0));
            return Some(alone * self.pace.compute.len() as f64 / self.step_s);
        }
        let (step_s, _) = self.run(&self.variant(Some(what_if))?)?;
        Some(step_s / self.step_s)
    }

    fn variant(&self, what_if: Option<WhatIf>) -> Option<Variant> {
        let (mut plan, mut pace) = (self.plan.clone(), self.pace.clone());
        let to = |plan: &mut Plan, strategy: &str, servers: usize, sync: &str| {
            (plan.strategy, plan.servers, plan.sync) = (strategy.into(), servers, sync.into());
            plan.options = BTreeMap::new();
        };
        match what_if {
            None | Some(WhatIf::OneWorker) => {}
            Some(WhatIf::NoStraggler) => pace.compute.iter_mut().for_each(|c| *c = c.min(self.usual)),
            Some(WhatIf::LetGo) => {
                let servers = plan.servers.max(1);
                to(&mut plan, "ps", servers, "asp");
            }
            Some(WhatIf::MoreServers) => plan.servers *= 2,
            Some(WhatIf::FasterServers) => pace.speed[1] = pace.speed[1].max(pace.speed[0]),
            Some(WhatIf::Ring) => to(&mut plan, "ring-allreduce", 0, "bsp"),
            Some(WhatIf::Bandwidth) => pace.ns_per_byte /= 10.0,
            Some(WhatIf::Latency) => pace.latency_ns /= 10.0,
            Some(WhatIf::FewerHops) => {
                let better = if plan.workers.is_power_of_two() { "halving-doubling" } else { "tree" };
                if plan.strategy == better || plan.servers > 0 {
                    return None;
                }
                to(&mut plan, better, 0, "bsp");
            }
            Some(WhatIf::Half) => {
                if plan.compression.is_some() {
                    return None;
                }
                plan.compression = Some("fp16".into());
            }
            Some(WhatIf::Bucket) => plan.bucket = plan.bucket.max(BUCKET),
            Some(WhatIf::Local) => to(&mut plan, "local", 0, "bsp"),
            Some(WhatIf::MoreWorkers) => {
                plan.workers *= 2;
                pace.compute = pace.compute.iter().chain(&pace.compute).map(|c| c / 2.0).collect();
            }
        }
        let strategy = self.registries.protocols.strategies.find(&plan.strategy)?;
        // Whole rounds of those who exchange every few steps.
        let steps = if what_if == Some(WhatIf::Local) { self.steps.next_multiple_of(8) } else { self.steps };
        let setup = self.setup(&plan, strategy, steps)?;
        Some(Variant { strategy, setup, pace })
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
        let setup = Setup {
            shares: plan.shares,
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

    /// Seconds of a step, and what a worker and a server spend on messages in one.
    fn run(&self, variant: &Variant) -> Option<(f64, [f64; 2])> {
        let Variant { strategy, setup, pace: Pace { compute, latency_ns, ns_per_byte, speed } } = variant;
        let defaults = Calibration::defaults();
        let transport = TransportCost::unmeasured(self.registries.transports.find(&self.plan.transport)?);
        let host = |rank: usize| Host {
            speed: speed[usize::from(rank >= setup.workers)],
            slowdown: Vec::new(),
            latency: *latency_ns as u64,
            per_byte: *ns_per_byte,
        };
        let costs = Costs {
            compute: (0..setup.workers)
                .map(|r| (compute[r] / setup.positions(r).len() as f64) as u64)
                .collect(),
            message: (transport.message_s.median * 1e9) as u64,
            byte: transport.ns_per_byte(self.params),
            work: price::work(&self.plan, setup.coder, &defaults, self.params),
            hosts: (0..setup.world()).map(host).collect(),
            buffer: self.plan.buffer.unwrap_or(price::BUFFER),
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

/// Asks the simulator about every change that an explanation names, and about one worker alone.
pub fn predict(said: &mut Explanation, plan: &Plan, registries: &Registries, params: usize) {
    if let Some(model) = FittedRun::new(plan, registries, params, said) {
        said.predict(&|what_if| model.ratio(what_if));
    }
}
