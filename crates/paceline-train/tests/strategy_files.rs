//! Strategies from files over real transports: what their built-in counterparts do, bit for bit, and what they do in
//! virtual time.

mod ranks;

use std::path::Path;

use paceline_data::Dataset;
use paceline_plan::{Hosts, Plan, TrainingLength};
use paceline_protocol::{FROM_FILE, Strategy, StrategyProgram, find};
use paceline_resolve::strategy_program;
use paceline_train::Segment;
use paceline_wire::TRANSPORTS;

use ranks::{Ran, Way, choose, digits, plan, virtual_traces};

/// A strategy's parameters: names and values.
type Parameters = &'static [(&'static str, &'static str)];

/// Files, and the built-in strategies that they are.
const COUNTERPARTS: &[(&str, &str, Parameters)] = &[
    ("ring-allreduce.toml", "ring-allreduce", &[]),
    ("ring-reduce.toml", "ring-reduce", &[]),
    ("gossip.toml", "gossip", &[]),
    ("gossip-pairs.toml", "gossip", &[("neighbours", "1")]),
    ("local.toml", "local", &[]),
    ("hierarchical.toml", "hierarchical", &[]),
    ("stepwise-naive.toml", "stepwise", &[("variant", "naive")]),
    ("stepwise-rotate.toml", "stepwise", &[("variant", "rotate")]),
    ("stepwise-random-start.toml", "stepwise", &[("variant", "random-start")]),
    ("stepwise-push-sum.toml", "stepwise", &[("variant", "push-sum")]),
    ("stepwise-periodic.toml", "stepwise", &[("variant", "periodic")]),
    ("stepwise-chunked.toml", "stepwise", &[("variant", "chunked")]),
];

/// Files that no built-in strategy is.
const WITHOUT_COUNTERPART: [&str; 2] = ["push-sum.toml", "travelling-averages.toml"];

/// A plan whose strategy an example describes.
fn of_file(plan: Plan, file: &str) -> Plan {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/strategies");
    let text = std::fs::read_to_string(folder.join(file)).unwrap();
    let program = strategy_program(file, &text).unwrap();
    let averages = program.averages().name().into();
    let options = std::collections::BTreeMap::new();
    Plan { strategy: file.into(), strategy_file: Some(text), averages, options, ..plan }
}

fn run(plan: &Plan, dataset: &Dataset, strategy: &'static Strategy, over: &str, stretches: &[u64]) -> Ran {
    let ends = stretches.iter().copied();
    let mut from = 0;
    let segment = |(i, to): (usize, u64)| {
        let segment = Segment { from, to, generation: i as u32 };
        from = to;
        segment
    };
    let stretches = ends.enumerate().map(segment).collect();
    let way = Way { stretches, ..Way::default() };
    let ran = ranks::run(plan, dataset, strategy, over, way, &mut Vec::new());
    ran.unwrap_or_else(|_| panic!("{} over {over} did not end", plan.strategy))
}

#[test]
fn examples_give_their_counterparts_parameters_and_traces_over_every_transport() {
    let dataset = digits();
    for (file, name, options) in COUNTERPARTS {
        for p in [if *name == "hierarchical" { 3 } else { 2 }, 4] {
            // Nine steps: one of them ends a period of eight.
            let base = Plan { batch: 16, work: TrainingLength::Steps(9), ..plan("mlp", name, p, 0) };
            // Several hosts with several workers, where the strategy looks at them.
            let hosts = (*name == "hierarchical").then_some(Hosts::Count(2));
            let built_in = choose(Plan { hosts, ..base }, name, "bsp", options);
            let theirs = run(&built_in, &dataset, find(name).unwrap(), "inproc", &[9]);
            let own = of_file(built_in.clone(), file);
            let what = format!("{file} with {p} workers");
            let virtually = virtual_traces(&own, &dataset, &FROM_FILE);
            assert!(virtually == theirs.traces, "{what}: traces in virtual time");
            for over in TRANSPORTS.iter().map(|transport| transport.name) {
                let ours = run(&own, &dataset, &FROM_FILE, over, &[9]);
                assert!(ours.params == theirs.params, "{what} over {over}: parameters");
                assert!(ours.traces == theirs.traces, "{what} over {over}: traces");
            }
        }
    }
}

#[test]
fn examples_without_a_counterpart_do_the_same_over_every_transport_and_in_virtual_time() {
    let dataset = digits();
    for file in WITHOUT_COUNTERPART {
        for p in [2, 4] {
            // 35 steps: two laps of travelling averages, within an epoch.
            let base = Plan { batch: 8, work: TrainingLength::Steps(35), ..plan("mlp", "single", p, 0) };
            let plan = of_file(base, file);
            let threads = run(&plan, &dataset, &FROM_FILE, "inproc", &[35]);
            let what = format!("{file} with {p} workers");
            assert!(
                virtual_traces(&plan, &dataset, &FROM_FILE) == threads.traces,
                "{what}: traces in virtual time"
            );
            for over in TRANSPORTS.iter().map(|transport| transport.name).filter(|name| *name != "inproc") {
                let ours = run(&plan, &dataset, &FROM_FILE, over, &[35]);
                assert!(ours.params == threads.params, "{what} over {over}: parameters");
                assert!(ours.traces == threads.traces, "{what} over {over}: traces");
            }
        }
    }
}

#[test]
fn half_precision_is_that_of_the_counterparts() {
    let dataset = digits();
    for (file, name, options) in COUNTERPARTS {
        let base = Plan {
            batch: 16,
            work: TrainingLength::Steps(9),
            compression: Some("fp16".into()),
            hosts: Some(Hosts::Count(2)),
            ..plan("mlp", name, 4, 0)
        };
        let built_in = choose(base, name, "bsp", options);
        let theirs = run(&built_in, &dataset, find(name).unwrap(), "inproc", &[9]);
        let ours = run(&of_file(built_in, file), &dataset, &FROM_FILE, "inproc", &[9]);
        assert!(ours.params == theirs.params, "{file}: parameters");
    }
}

#[test]
fn a_run_that_pauses_ends_with_the_same_numbers() {
    let dataset = digits();
    let files = COUNTERPARTS.iter().map(|(file, ..)| *file).chain(WITHOUT_COUNTERPART);
    for file in files {
        let base = Plan { batch: 16, work: TrainingLength::Steps(9), ..plan("mlp", "single", 3, 0) };
        let plan = of_file(base, file);
        let whole = run(&plan, &dataset, &FROM_FILE, "inproc", &[9]);
        for at in [1, 5, 8] {
            let paused = run(&plan, &dataset, &FROM_FILE, "inproc", &[at, 9]);
            assert!(paused.params == whole.params, "{file} paused at step {at}");
        }
    }
}
