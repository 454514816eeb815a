//! Examples with a built-in counterpart do what it does, bit for bit, in virtual time. (Over real transports:
//! `crates/paceline-train/tests/strategy_files.rs`.)

use std::path::Path;
use std::sync::Arc;

use paceline_protocol::{
    FROM_FILE, GradientScale, Options, Participant, Protocols, ReplicaAgreement, Setup, Strategy,
    StrategyProgram, Trace, WorkUnit,
};
use paceline_random::{Purpose, Stream};
use paceline_rounds::Program;
use paceline_sim::{Costs, NumericMemory, WorkCost, simulate};

/// A strategy's parameters: names and values.
type Parameters = &'static [(&'static str, &'static str)];

/// Files, and the built-in strategies that they are.
const COUNTERPARTS: &[(&str, &str, Parameters)] = &[
    ("ring-allreduce", "ring-allreduce", &[]),
    ("ring-reduce", "ring-reduce", &[]),
    ("gossip", "gossip", &[]),
    ("gossip-pairs", "gossip", &[("neighbours", "1")]),
    ("local", "local", &[]),
    ("hierarchical", "hierarchical", &[]),
    ("stepwise-naive", "stepwise", &[("variant", "naive")]),
    ("stepwise-rotate", "stepwise", &[("variant", "rotate")]),
    ("stepwise-random-start", "stepwise", &[("variant", "random-start")]),
    ("stepwise-push-sum", "stepwise", &[("variant", "push-sum")]),
    ("stepwise-periodic", "stepwise", &[("variant", "periodic")]),
    ("stepwise-chunked", "stepwise", &[("variant", "chunked")]),
];

fn program(name: &str) -> Arc<Program> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/strategies");
    let file = format!("{name}.toml");
    let text = std::fs::read_to_string(folder.join(&file)).unwrap();
    Arc::new(Program::parse(&file, &text).unwrap_or_else(|error| panic!("{error}")))
}

/// A setup drawn from a seed, with sizes that divide nothing evenly.
fn draw(seed: u64, hierarchical: bool) -> Setup {
    let s = Stream::new(seed, Purpose::Virtual).fork(26);
    let workers = if hierarchical { 3 + s.below(0, 8) as usize } else { 1 + s.below(0, 9) as usize };
    let params = 3 + s.below(2, 90) as usize;
    // Where a hierarchy is flat, the built-in one takes another path.
    let hosts = if hierarchical { (0..workers).map(|rank| rank / 2).collect() } else { Vec::new() };
    Setup {
        bucket: 1 + s.below(3, 60) as usize,
        message: 1 + s.below(4, 30) as usize,
        hosts,
        generation: 3,
        seed,
        ..Setup::new(workers, 0, params, 1 + s.below(5, 25))
    }
}

fn run(strategy: &Strategy, setup: &Setup, seed: u64) -> (Vec<Trace>, Vec<Vec<f32>>) {
    let s = Stream::new(seed, Purpose::Virtual).fork(27);
    let costs = Costs {
        compute: (0..setup.workers).map(|r| 500 + s.below(r as u64, 5_000)).collect(),
        latency: s.below(100, 2_000),
        per_byte: s.unit(101) * 10.0,
        work: WorkCost::uniform(s.unit(102)),
        spread: 3.0 * s.unit(103),
        seed,
        ..Costs::constant(0, 0, 0, 0.0)
    };
    let participants: Vec<Box<dyn Participant>> =
        (0..setup.workers).map(|rank| strategy.participant(setup, rank)).collect();
    let scratch = participants.iter().map(|p| p.scratch()).collect();
    let gradient = |_: usize, unit: WorkUnit, scale: GradientScale, params: &[f32], grads: &mut [f32]| {
        let s = Stream::new(unit.step * 100 + unit.share as u64, Purpose::Bench);
        let scale = if scale == GradientScale::Part { 0.05 } else { 0.2 };
        for (i, (g, p)) in grads.iter_mut().zip(params).enumerate() {
            *g = scale * (p - s.uniform(i as u64, -1.0, 1.0) as f32);
        }
    };
    let start: Vec<f32> = (0..setup.params).map(|i| (i as f32 * 0.37).sin()).collect();
    let mut memory = NumericMemory::new(&start, scratch, gradient);
    let report = simulate(setup, participants, &costs, &mut memory, None, &[]);
    assert_eq!(report.stuck, [0usize; 0], "seed {seed}");
    let params = (0..setup.workers).map(|rank| memory.params(rank).to_vec()).collect();
    (report.traces, params)
}

#[test]
fn examples_with_a_counterpart_give_its_parameters_and_traces() {
    for (file, name, options) in COUNTERPARTS {
        let program = program(file);
        let builtin = paceline_protocol::find(name).unwrap();
        let mut options = Options::of(options);
        Protocols::default().resolve(builtin, "bsp", &mut options).unwrap();
        for seed in 0..120 {
            let drawn = draw(seed, *name == "hierarchical");
            let averages = builtin.averages[0];
            let theirs = Setup { options: options.clone(), averages, ..drawn.clone() };
            let own = StrategyProgram::averages(&*program);
            let ours = Setup { program: Some(program.clone()), averages: own, ..drawn };
            assert_eq!(own, averages, "{file}");
            FROM_FILE.check(&ours).unwrap_or_else(|refusal| panic!("{file} seed {seed}: {refusal:?}"));
            let what = format!("{file} seed {seed}, {} workers", ours.workers);
            let links = |strategy: &Strategy, setup: &Setup| -> Vec<Vec<usize>> {
                (0..setup.workers).map(|rank| strategy.links_of(setup, rank)).collect()
            };
            // Where receivers follow the step, a file's workers are all connected; where a link is never used, it is not
            // made.
            if !["gossip-pairs", "stepwise-naive", "hierarchical"].contains(file) {
                assert_eq!(links(&FROM_FILE, &ours), links(builtin, &theirs), "{what}: links");
            }
            let (traces, params) = run(&FROM_FILE, &ours, seed);
            let (their_traces, their_params) = run(builtin, &theirs, seed);
            assert_eq!(params, their_params, "{what}: parameters");
            assert_eq!(traces, their_traces, "{what}: traces");
            // What a file's replicas have in common is computed; the built-in ones say less where it is by chance.
            match ((FROM_FILE.agreement)(&ours), (builtin.agreement)(&theirs)) {
                (own, theirs) if own == theirs => {}
                (own, theirs) => {
                    assert_eq!((own, theirs), (ReplicaAgreement::Exact, ReplicaAgreement::Apart), "{what}");
                    assert!(params.iter().all(|replica| *replica == params[0]), "{what}: agreement");
                }
            }
        }
    }
}
