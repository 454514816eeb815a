//! A run that is interrupted after any of its steps, saved to disk and gone on with by other processes' engines ends
//! with the same numbers, bit for bit, as one that was left alone: parameters and the loss of every step.

mod ranks;

use std::collections::BTreeMap;

use paceline_plan::{Plan, TrainingLength};
use paceline_protocol::{Protocols, SINGLE};
use paceline_record::{Checkpoint, Checkpoints, RankState};
use paceline_train::Segment;

use ranks::{Losses, Way, choose, digits, plan};

const STEPS: u64 = 60;

/// The rest of a run, from after `from` steps.
fn rest(from: u64) -> Segment {
    Segment { from, to: STEPS, generation: 0 }
}

/// Parts as they come back from a checkpoint on disk.
fn through_the_disk(checkpoints: &Checkpoints, step: u64, parts: Vec<RankState>) -> Vec<RankState> {
    let plan_sha256 = "the same plan".to_owned();
    let saved = Checkpoint { step, plan_sha256: plan_sha256.clone(), account: String::new(), parts };
    checkpoints.save(&saved, 1).unwrap();
    let (found, damaged) = checkpoints.latest(&plan_sha256).unwrap();
    assert_eq!((found.as_ref(), damaged), (Some(&saved), vec![]));
    found.unwrap().parts
}

/// Bits of the losses, which are what must be the same.
fn bits(losses: &Losses) -> Vec<BTreeMap<u64, u64>> {
    losses.iter().map(|own| own.iter().map(|(&step, loss)| (step, loss.to_bits())).collect()).collect()
}

/// Interrupts a distributed run after each step: in one run after every one of them, and in a run each.
fn check(plan: &Plan) {
    let (dataset, strategy) = (digits(), Protocols::default().of_plan(&plan.strategy).unwrap());
    let name = &plan.strategy;
    let go = |way: Way, losses: &mut Losses| ranks::run(plan, &dataset, strategy, "inproc", way, losses);
    let mut expected = Losses::new();
    let whole = Way { stretches: vec![rest(0)], ..Way::default() };
    let whole = go(whole, &mut expected).expect("it is not interrupted");
    assert!(expected.iter().all(|own| own.len() as u64 == STEPS), "{name}");
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::of(folder.path());

    let (mut parts, mut losses) = (Vec::new(), Losses::new());
    for stop in 1..STEPS {
        let way =
            Way { stretches: vec![rest(stop - 1)], restored: parts, stop: Some(stop), ..Way::default() };
        let stopped = go(way, &mut losses).err().unwrap_or_else(|| panic!("{name}: no stop at {stop}"));
        parts = through_the_disk(&checkpoints, stop, stopped);
        assert!(losses.iter().all(|own| own.len() as u64 == stop), "{name}: exactly {stop} steps");
        // And to the end from here.
        let (mut once, way) =
            (losses.clone(), Way { stretches: vec![rest(stop)], restored: parts.clone(), ..Way::default() });
        let ran = go(way, &mut once).ok().unwrap_or_else(|| panic!("{name}: stopped again after {stop}"));
        assert!(ran.params == whole.params, "{name}: parameters, interrupted after step {stop}");
        assert_eq!(bits(&once), bits(&expected), "{name}: losses, interrupted after step {stop}");
    }
    let ran = go(Way { stretches: vec![rest(STEPS - 1)], restored: parts, ..Way::default() }, &mut losses);
    let ran = ran.expect("it is not interrupted");
    assert!(ran.params == whole.params, "{name}: parameters, interrupted after every step");
    assert_eq!(bits(&losses), bits(&expected), "{name}: losses, interrupted after every step");
}

fn small(strategy: &str, workers: usize, servers: usize, options: &[(&str, &str)]) -> Plan {
    // Less than an epoch, so that there are exactly so many steps.
    let base =
        Plan { batch: 7, work: TrainingLength::Steps(STEPS), ..plan("mlp", strategy, workers, servers) };
    choose(base, strategy, "bsp", options)
}

#[test]
fn ps_bsp_interrupted_after_each_step_is_bit_identical() {
    check(&small("ps", 2, 2, &[]));
}

#[test]
fn ring_allreduce_interrupted_after_each_step_is_bit_identical() {
    check(&small("ring-allreduce", 3, 0, &[]));
}

#[test]
fn stepwise_random_start_interrupted_after_each_step_is_bit_identical() {
    check(&small("stepwise", 3, 0, &[("variant", "random-start")]));
}

#[test]
fn one_worker_interrupted_after_each_step_is_bit_identical() {
    check(&Plan { batch: 7, work: TrainingLength::Steps(STEPS), ..plan("mlp", SINGLE, 1, 0) });
}
