//! The conformance suite of strategies, in virtual time: every strategy in the registry must pass it, with
//! every consistency model, codec and variant that it has.

mod consistency;
mod exact;
mod faults;
mod feedback;
mod hosting;
mod identities;
mod mixing;
mod stepwise;

use paceline_protocol::{
    Averages, CODECS, Coder, Family, GradientScale, Options, Participant, Protocols, ReplicaAgreement,
    STRATEGIES, Setup, SizedPath, Strategy, Tensor, WorkUnit, consistency as models,
};
use paceline_random::{Purpose, Stream};
use paceline_sim::{Costs, Crash, NumericMemory, SimulationReport, WorkCost, simulate};

/// A strategy with everything that can be chosen.
#[derive(Clone)]
struct Case {
    strategy: &'static Strategy,
    sync: &'static str,
    options: Options,
    averages: Averages,
    coder: Option<Coder>,
}

impl Case {
    fn new(strategy: &str, sync: &'static str, options: &[(&str, &str)]) -> Self {
        let strategy = paceline_protocol::find(strategy).unwrap();
        let mut options = Options::of(options);
        Protocols::default().resolve(strategy, sync, &mut options).unwrap();
        Self { strategy, sync, options, averages: strategy.averages[0], coder: None }
    }

    fn name(&self) -> String {
        let Self { strategy, sync, options, averages, coder } = self;
        let coder = coder.map_or_else(String::new, |c| c.to_string());
        format!("{} {sync} {} {:?} {coder}", strategy.name, averages.name(), options.0.values())
    }

    /// A setup of these choices.
    fn setup(&self, base: Setup) -> Setup {
        let sync = (models::find(self.sync).unwrap().make)(&self.options, base.end());
        let (options, averages, coder) = (self.options.clone(), self.averages, self.coder);
        Setup { sync, options, averages, coder, ..base }
    }

    /// A setup drawn from a seed: 1 to 8 workers, 1 to 3 servers, hosts, sizes that divide nothing evenly.
    fn draw(&self, seed: u64) -> Setup {
        let s = Stream::new(seed, Purpose::Virtual).fork(9);
        let workers = 1 + s.below(0, 8) as usize;
        let servers = if self.strategy.servers { 1 + s.below(1, 3) as usize } else { 0 };
        let params = 3 + s.below(2, 60) as usize;
        // Each worker its own host, hosts with several, one with all.
        let group = [1, 2, 3, 8][s.below(6, 4) as usize];
        // A vector in front of a matrix.
        let (front, cols) = (params % 5, 3);
        let tensor = |offset, rows, cols| Tensor { offset, rows, cols };
        let tensors = vec![tensor(0, 1, front), tensor(front, (params - front) / cols, cols)];
        self.setup(Setup {
            bucket: 1 + s.below(3, 40) as usize,
            message: 1 + s.below(4, 20) as usize,
            tensors,
            hosts: (0..8).map(|rank| rank / group).collect(),
            paths: paths(),
            generation: 3,
            seed,
            ..Setup::new(workers, servers, params, 1 + s.below(5, 25))
        })
    }

    fn agreement(&self, setup: &Setup) -> ReplicaAgreement {
        (self.strategy.agreement)(setup)
    }
}

/// Lengths of buckets are drawn between 4 and 160 bytes: each of these paths gets some.
fn paths() -> Vec<SizedPath> {
    let sized = |below_bytes, name| {
        let strategy = paceline_protocol::find(name).unwrap();
        SizedPath { below_bytes, name: strategy.name, path: strategy.path.unwrap() }
    };
    vec![
        sized(Some(32), "direct"),
        sized(Some(64), "tree"),
        sized(Some(96), "hierarchical"),
        sized(None, "ring-allreduce"),
    ]
}

/// Every strategy with every consistency model, and the variants of those that have some.
fn main_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for strategy in STRATEGIES {
        for sync in Protocols::default().syncs(strategy) {
            cases.push(Case::new(strategy.name, sync, &[]));
        }
    }
    for variant in ["naive", "rotate", "push-sum", "periodic", "chunked"] {
        cases.push(Case::new("stepwise", "bsp", &[("variant", variant)]));
    }
    cases.push(Case::new("gossip", "bsp", &[("neighbours", "1")]));
    cases.push(Case::new("ps", "switch", &[("straggler-policy", "greedy"), ("switch-at", "0.8")]));
    cases
}

/// The rest: other settings, what is averaged, codecs.
fn more_cases() -> Vec<Case> {
    let mut cases = vec![
        Case::new("stepwise", "bsp", &[("start", "rotate-1")]),
        Case::new("stepwise", "bsp", &[("variant", "chunked"), ("debias", "push-sum")]),
        Case::new("stepwise", "bsp", &[("variant", "push-sum"), ("sync-every", "2")]),
        Case::new("stepwise", "bsp", &[("variant", "naive"), ("sync-every", "1")]),
        Case::new("stepwise", "bsp", &[("variant", "chunked"), ("sync-every", "1")]),
        Case {
            averages: Averages::Gradients,
            ..Case::new("stepwise", "bsp", &[("variant", "rotate"), ("sync-every", "2")])
        },
        Case::new("local", "bsp", &[("local-steps", "1")]),
        Case::new("local", "bsp", &[("local-steps", "2"), ("outer", "nesterov")]),
        Case::new("ps", "ssp", &[("staleness", "0")]),
        Case::new("ps", "dssp", &[("staleness-bounds", "0,2")]),
        Case::new("ps", "adaptive", &[("staleness", "1"), ("staleness-bounds", "0,3"), ("least-steps", "2")]),
        Case::new("ps", "switch", &[("switch-at", "0")]),
        Case::new("ps", "switch", &[("switch-at", "1")]),
    ];
    for strategy in STRATEGIES {
        let base = Case::new(strategy.name, "bsp", &[]);
        for &averages in &strategy.averages[1..] {
            let case = Case { averages, ..base.clone() };
            if (strategy.check)(&case.setup(Setup::new(2, 1, 9, 1))).is_ok() {
                cases.push(case);
            }
        }
        for coder in CODECS.iter().map(Coder::new).filter(|c| strategy.codecs().contains(&c.codec.name)) {
            cases.push(Case { coder: Some(coder), ..base.clone() });
            if strategy.name == "ps" {
                let asynchronous = Case::new("ps", "asp", &[]);
                cases.push(Case { coder: Some(coder), ..asynchronous });
            }
            if coder.codec.family == Family::PerHop
                && strategy.averages.len() > 1
                && strategy.name != "stepwise"
            {
                cases.push(Case { coder: Some(coder), averages: strategy.averages[1], ..base.clone() });
            }
        }
    }
    let together = Case::new("stepwise", "bsp", &[("variant", "naive"), ("sync-every", "1")]);
    let coder = "fp16".parse().ok();
    cases.push(Case { coder, ..together });
    cases
}

fn all() -> Vec<Case> {
    [main_cases(), more_cases()].concat()
}

fn costs(setup: &Setup, seed: u64) -> Costs {
    let s = Stream::new(seed, Purpose::Virtual).fork(10);
    Costs {
        compute: (0..setup.workers).map(|r| 500 + s.below(r as u64, 5_000)).collect(),
        latency: s.below(100, 2_000),
        per_byte: s.unit(101) * 10.0,
        work: WorkCost::uniform(s.unit(102)),
        spread: 3.0 * s.unit(103),
        seed,
        ..Costs::constant(0, 0, 0, 0.0)
    }
}

/// A worker's gradient: its share's pull towards a point that belongs to the unit, over all shares.
fn gradient(shares: usize, unit: WorkUnit, scale: GradientScale, params: &[f32], grads: &mut [f32]) {
    let s = Stream::new(unit.step * 100 + unit.share as u64, Purpose::Bench);
    let scale = if scale == GradientScale::Part { 0.2 / shares as f32 } else { 0.2 };
    for (i, (g, p)) in grads.iter_mut().zip(params).enumerate() {
        *g = scale * (p - s.uniform(i as u64, -1.0, 1.0) as f32);
    }
}

fn start(params: usize) -> Vec<f32> {
    (0..params).map(|i| (i as f32 * 0.37).sin()).collect()
}

fn make(strategy: &Strategy, setup: &Setup) -> Vec<Box<dyn Participant>> {
    (0..setup.world()).map(|r| strategy.participant(setup, r)).collect()
}

/// Puts a unit's gradient into a rank's buffer.
type Gradient = Box<dyn FnMut(usize, WorkUnit, GradientScale, &[f32], &mut [f32])>;

/// Real numbers for every rank.
fn numbers(setup: &Setup, scratch: Vec<Vec<usize>>) -> NumericMemory<Gradient> {
    let shares = setup.shares();
    let gradient: Gradient = Box::new(move |_, unit, scale, p, g| gradient(shares, unit, scale, p, g));
    NumericMemory::new(&start(setup.params), scratch, gradient)
}

/// Runs with real numbers; the report and each rank's parameters.
fn run(case: &Case, setup: &Setup, costs: &Costs, crash: Option<Crash>) -> (SimulationReport, Vec<Vec<f32>>) {
    let participants = make(case.strategy, setup);
    let scratch = participants.iter().map(|p| p.scratch()).collect();
    let mut memory = numbers(setup, scratch);
    let report = simulate(setup, participants, costs, &mut memory, crash, &[]);
    let dead = crash.map(|crash| crash.rank);
    let released = (0..setup.world()).filter(|r| Some(*r) != dead).all(|r| memory.held(r) == 0);
    assert!(released, "{}: every body is released", case.name());
    let params = (0..setup.world()).map(|r| memory.params(r).to_vec()).collect();
    (report, params)
}
