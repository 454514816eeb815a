//! Shares of a global batch on fewer workers give the parameters of as many workers, micro-batches those of one pass;
//! a worker that runs out of work ends the run for everybody.

mod ranks;

use std::sync::Arc;
use std::time::Duration;

use paceline_data::Dataset;
use paceline_nn::Compute;
use paceline_plan::{Plan, TrainingLength};
use paceline_protocol::{STRATEGIES, find};
use paceline_random::{Purpose, Stream};
use paceline_train::{Layout, Segment, Update, model, worker};
use paceline_wire::TRANSPORTS;

use ranks::{Ran, Way, choose, digits, plan, typed};

const STEPS: u64 = 6;
const SHARES: usize = 4;

/// A plan of so many workers that trains a few steps.
fn small(model: &str, strategy: &str, optimizer: &str, workers: usize) -> Plan {
    let servers = if strategy == "ps" { 2 } else { 0 };
    let base = choose(plan(model, strategy, workers, servers), strategy, "bsp", &[]);
    let work = TrainingLength::Steps(STEPS);
    let (averages, optimizer) = ("gradients".into(), optimizer.into());
    Plan { averages, optimizer, work, batch: 13, bucket: 4096, stop_after_step: Some(STEPS), ..base }
}

fn go(plan: &Plan, dataset: &Dataset, over: &str, way: Way) -> Ran {
    let strategy = find(&plan.strategy).unwrap();
    let layout = Layout::of(&model::graph(&typed(plan), dataset).unwrap());
    let to = worker::setup(&typed(plan), &layout, dataset.train.len()).end();
    let way = Way { stretches: vec![Segment { from: 0, to, generation: 0 }], ..way };
    let ran = ranks::run(plan, dataset, strategy, over, way, &mut Vec::new());
    ran.unwrap_or_else(|_| panic!("it does not stop"))
}

/// Whether so many workers with four shares end up with the parameters of four workers.
fn check(base: &Plan, workers: usize, over: &str, dataset: &Dataset, want: &[f32]) {
    let plan = Plan { workers, shares: Some(SHARES).filter(|s| *s != workers), ..base.clone() };
    let ran = go(&plan, dataset, over, Way::default());
    let what = format!("{} {} {} {workers} workers over {over}", plan.strategy, plan.model, plan.optimizer);
    for (rank, params) in ran.params.iter().enumerate() {
        assert!(params == want, "{what}: rank {rank}");
    }
    assert!(ran.ends.iter().all(|end| *end == (STEPS, None)), "{what}: {:?}", ran.ends);
}

/// The strategies that spread their shares.
fn strategies() -> Vec<&'static str> {
    let spreads = STRATEGIES.iter().filter(|strategy| strategy.path.is_some() || strategy.servers);
    spreads.map(|strategy| strategy.name).collect()
}

#[test]
fn four_shares_give_the_parameters_of_four_workers_whoever_computes_them() {
    let dataset = digits();
    for strategy in strategies() {
        for optimizer in ["sgd", "adam"] {
            let base = small("mlp", strategy, optimizer, SHARES);
            let want = &go(&base, &dataset, "inproc", Way::default()).params[0];
            (1..=SHARES).for_each(|workers| check(&base, workers, "inproc", &dataset, want));
        }
    }
}

#[test]
fn so_it_is_over_every_transport_with_every_family_of_codecs_and_with_batch_norm() {
    let dataset = digits();
    for (transport, strategy) in TRANSPORTS.iter().zip(strategies().into_iter().cycle()) {
        let base = small("mlp", strategy, "sgd", SHARES);
        let want = &go(&base, &dataset, "inproc", Way::default()).params[0];
        check(&base, 2, transport.name, &dataset, want);
        check(&base, 3, transport.name, &dataset, want);
    }
    for codec in ["fp16", "2bit", "powersgd"] {
        let base = Plan { compression: Some(codec.into()), ..small("mlp", "tree", "sgd", SHARES) };
        let want = &go(&base, &dataset, "inproc", Way::default()).params[0];
        (1..SHARES).for_each(|workers| check(&base, workers, "inproc", &dataset, want));
    }
    let base = small("resnet20", "ring-allreduce", "sgd", SHARES);
    let base = Plan { work: TrainingLength::Steps(2), stop_after_step: Some(2), batch: 3, ..base };
    let four = go(&base, &dataset, "inproc", Way::default());
    let two = go(&Plan { workers: 2, shares: Some(SHARES), ..base }, &dataset, "inproc", Way::default());
    assert!(two.params[0] == four.params[0]);
    // Each position has statistics of its own: those of the four workers, in their order.
    assert!(!two.states[0].is_empty() && two.states.concat() == four.states.concat());
}

#[test]
fn where_members_may_change_a_run_that_nothing_happens_to_gives_the_same_parameters_over_every_transport() {
    let dataset = digits();
    let changing = || Way { members: true, ..Way::default() };
    for strategy in strategies() {
        let base = small("mlp", strategy, "adam", SHARES);
        let want = &go(&base, &dataset, "inproc", Way::default()).params;
        let others = if strategy == "ps" { 0 } else { TRANSPORTS.len() - 2 };
        for transport in TRANSPORTS.iter().skip(others) {
            let got = go(&base, &dataset, transport.name, changing()).params;
            assert!(got == *want, "{strategy} over {}", transport.name);
        }
        assert!(go(&base, &dataset, "inproc", changing()).params == *want, "{strategy}");
    }
    let base = small("mlp", "ring-allreduce", "adam", SHARES);
    let want = &go(&base, &dataset, "inproc", Way::default()).params;
    for transport in TRANSPORTS {
        let fewer = Plan { workers: 3, shares: Some(SHARES), ..base.clone() };
        let got = go(&fewer, &dataset, transport.name, changing()).params;
        assert!(got.iter().all(|got| *got == want[0]), "over {}", transport.name);
    }
}

#[test]
fn what_an_optimiser_remembers_can_be_taken_over_in_any_pieces() {
    let plan = small("mlp", "ring-allreduce", "adam", 2);
    let (plan, compute) = (typed(&plan), Arc::new(Compute::new(1, false)));
    let new = || Update::new(&plan, 100, Arc::clone(&compute));
    let grads: Vec<f32> = (0..10).map(|i| i as f32 * 0.1 - 0.4).collect();
    let step = |update: &mut Update, params: &mut [f32], step: u64| {
        for lane in [4..10, 0..4] {
            update.apply(lane.start, &mut params[lane.clone()], &grads[lane], step, true);
        }
    };
    let (mut one, mut params) = (new(), vec![0.5; 10]);
    (0..3).for_each(|n| step(&mut one, &mut params, n));
    assert_eq!(one.blocks(), 2);
    let take_over = |from: &Update| {
        let mut to = new();
        for (block, piece) in [(0, 7..10), (1, 0..10), (0, 0..7)] {
            to.take_over(block, piece.start, &from.block(block, piece));
        }
        to
    };
    // Handed on once more before it is used.
    let (mut two, mut copy) = (take_over(&take_over(&one)), params.clone());
    (3..5).for_each(|n| step(&mut one, &mut params, n));
    (3..5).for_each(|n| step(&mut two, &mut copy, n));
    assert_eq!(params, copy);
}

#[test]
fn micro_batches_give_the_parameters_of_one_pass_with_every_strategy() {
    let dataset = digits();
    for strategy in STRATEGIES {
        let base = choose(small("mlp", strategy.name, "sgd", 2), strategy.name, "bsp", &[]);
        let want = go(&base, &dataset, "inproc", Way::default()).params;
        // 13 samples are cut unevenly.
        for micro_batches in [2, 3, 5, 8] {
            let plan = Plan { micro_batches, ..base.clone() };
            let params = go(&plan, &dataset, "inproc", Way::default()).params;
            assert!(params == want, "{}, {micro_batches} micro-batches", strategy.name);
        }
    }
    for model in ["lenet", "gru", "transformer"] {
        let base = Plan { batch: 5, stop_after_step: Some(2), ..small(model, "ring-allreduce", "adam", 2) };
        let want = go(&base, &dataset, "inproc", Way::default()).params;
        for (micro_batches, shares) in [(2, None), (5, None), (3, Some(2))] {
            let workers = if shares.is_some() { 1 } else { 2 };
            let plan = Plan { micro_batches, shares, workers, ..base.clone() };
            let params = &go(&plan, &dataset, "inproc", Way::default()).params[0];
            assert!(*params == want[0], "{model}, {micro_batches} micro-batches, shares {shares:?}");
        }
    }
}

#[test]
fn a_worker_that_leaves_ends_the_run_for_everybody_within_a_second_and_is_named() {
    let dataset = digits();
    for seed in 0..30 {
        let draws = Stream::new(seed, Purpose::Virtual).fork(21);
        let names: Vec<_> = STRATEGIES.iter().map(|strategy| strategy.name).collect();
        let strategy = names[draws.below(0, names.len() as u64) as usize];
        let over = TRANSPORTS[draws.below(1, TRANSPORTS.len() as u64) as usize].name;
        let workers = 2 + draws.below(2, 3) as usize;
        let spread = strategies().contains(&strategy) && seed % 2 == 0;
        let base = choose(small("mlp", strategy, "sgd", workers), strategy, "bsp", &[]);
        // Nobody knows how many steps there are: far more than anybody makes.
        let work = TrainingLength::Steps(1_000_000);
        let plan = Plan {
            work,
            stop_after_step: None,
            shares: spread.then_some(5),
            eval_every: Some(u64::MAX),
            ..base
        };
        let (leaver, units) = (draws.below(3, workers as u64) as usize, draws.below(4, 20));
        let ran = go(&plan, &dataset, over, Way { leaves: Some((leaver, units)), ..Way::default() });
        let what = format!("seed {seed}: {strategy} over {over}, worker {leaver} of {workers} after {units}");
        // One second is asked for.
        assert!(ran.ended_in.unwrap() < Duration::from_secs(3), "{what}: {:?}", ran.ended_in);
        assert!(ran.ends.iter().all(|(_, left)| *left == Some(leaver)), "{what}: {:?}", ran.ends);
        let exact = strategies().contains(&strategy);
        let steps = ran.ends[0].0;
        assert!(!exact || ran.ends.iter().all(|(done, _)| *done == steps), "{what}: {:?}", ran.ends);
        assert!(
            strategy == "ps" || !exact || ran.params.iter().all(|params| *params == ran.params[0]),
            "{what}"
        );
    }
}
