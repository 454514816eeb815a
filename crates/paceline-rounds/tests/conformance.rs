//! Every example passes the conformance suite, with 500 fault seeds.

use std::sync::Arc;

use paceline_conformance::{FAULT_SEEDS, StrategyCase, case};
use paceline_rounds::Program;

fn check(file: &str) {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/strategies");
    let text = std::fs::read_to_string(folder.join(file)).unwrap();
    let program = Arc::new(Program::parse(file, &text).unwrap_or_else(|error| panic!("{error}")));
    let plain = StrategyCase::of_file(program);
    case(&plain, FAULT_SEEDS);
    case(&StrategyCase { coder: "fp16".parse().ok(), ..plain }, FAULT_SEEDS / 5);
}

/// What is exchanged while the gradient is computed, what is kept from one iteration to the next, and swaps.
#[test]
fn early_exchanges_carried_registers_and_swaps() {
    let early = r#"
        name = "early, late and swapped"
        registers = ["own", "theirs", "older"]
        [[round]]
        do = [
            { copy = "own", of = "x" },
            { send = "own", to = ["(rank + 1) mod workers"], into = "theirs", keep = 0 },
            { copy = "theirs", of = "own", when = "workers == 1" },
            { copy = "older", of = "theirs", when = "step == 0" },
            { swap = ["older", "theirs"] },
            { update = "x" },
            { set = "x", of = "theirs", keep = 0.5, add = 0.5, when = "workers > 1" },
        ]
    "#;
    let program = Arc::new(Program::parse("early.toml", early).unwrap());
    case(&StrategyCase::of_file(program), FAULT_SEEDS);
}

/// Several hops per step, which otherwise begin with 32 workers.
#[test]
fn travelling_averages_with_a_short_lap() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/strategies");
    let text = std::fs::read_to_string(folder.join("travelling-averages.toml")).unwrap();
    let short = text.replace("lap = 16", "lap = 2");
    assert_ne!(short, text);
    let program = Arc::new(Program::parse("short-lap.toml", &short).unwrap());
    case(&StrategyCase::of_file(program), FAULT_SEEDS);
}

macro_rules! examples {
    ($($name:ident $file:literal)*) => {
        $(
            #[test]
            fn $name() {
                check($file);
            }
        )*

        #[test]
        fn no_example_is_left_out() {
            let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/strategies");
            let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut files: Vec<String> = files.filter(|file| file.ends_with(".toml")).collect();
            files.sort();
            let mut known = vec![$($file),*];
            known.sort_unstable();
            assert_eq!(files, known);
        }
    };
}

examples! {
    gossip "gossip.toml"
    gossip_pairs "gossip-pairs.toml"
    hierarchical "hierarchical.toml"
    local "local.toml"
    push_sum "push-sum.toml"
    ring_allreduce "ring-allreduce.toml"
    ring_reduce "ring-reduce.toml"
    stepwise_chunked "stepwise-chunked.toml"
    stepwise_naive "stepwise-naive.toml"
    stepwise_periodic "stepwise-periodic.toml"
    stepwise_push_sum "stepwise-push-sum.toml"
    stepwise_random_start "stepwise-random-start.toml"
    stepwise_rotate "stepwise-rotate.toml"
    travelling_averages "travelling-averages.toml"
}
