//! A run that is interrupted after any of its steps, saved to disk and gone on with by other processes' engines ends
//! with the same numbers, bit for bit, as one that was left alone: parameters and the loss of every step.

mod ranks;

use std::collections::BTreeMap;
use std::sync::Arc;

use paceline_data::Dataset;
use paceline_plan::{Plan, TrainingLength};
use paceline_protocol::find;
use paceline_record::process::Started;
use paceline_record::{Checkpoint, Checkpoints, Event, RankState, Recording};
use paceline_train::{Brake, Course, Segment, single};

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
    let (dataset, strategy) = (digits(), find(&plan.strategy).unwrap());
    let name = strategy.name;
    let go = |way: Way, losses: &mut Losses| ranks::run(plan, &dataset, strategy, "inproc", way, losses);
    let mut expected = Losses::new();
    let whole = Way { stretches: vec![rest(0)], ..Way::default() };
    let whole = go(whole, &mut expected).expect("it is not interrupted");
    assert!(expected.iter().all(|own| own.len() as u64 == STEPS), "{name}");
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::of(folder.path());

    let (mut parts, mut losses) = (Vec::new(), Losses::new());
    for stop in 1..STEPS {
        let way = Way { stretches: vec![rest(stop - 1)], restored: parts, stop: Some(stop) };
        let stopped = go(way, &mut losses).err().unwrap_or_else(|| panic!("{name}: no stop at {stop}"));
        parts = through_the_disk(&checkpoints, stop, stopped);
        assert!(losses.iter().all(|own| own.len() as u64 == stop), "{name}: exactly {stop} steps");
        // And to the end from here.
        let (mut once, way) =
            (losses.clone(), Way { stretches: vec![rest(stop)], restored: parts.clone(), stop: None });
        let ran = go(way, &mut once).ok().unwrap_or_else(|| panic!("{name}: stopped again after {stop}"));
        assert!(ran.params == whole.params, "{name}: parameters, interrupted after step {stop}");
        assert_eq!(bits(&once), bits(&expected), "{name}: losses, interrupted after step {stop}");
    }
    let ran = go(Way { stretches: vec![rest(STEPS - 1)], restored: parts, stop: None }, &mut losses);
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

/// What one worker alone ends with: its model, its losses' bits, and what it kept if it was interrupted.
#[derive(Debug, Default, PartialEq)]
struct Alone {
    params_sha256: Option<String>,
    losses: BTreeMap<u64, u64>,
    kept: Vec<RankState>,
}

/// One worker from after `from` steps, interrupted after step `stop`.
fn alone(plan: &Plan, data: &Dataset, from: u64, restored: Option<RankState>, stop: Option<u64>) -> Alone {
    let mut told = Alone::default();
    let brake = Arc::new(Brake::default());
    let (mut kept, ring) = (Vec::new(), Arc::clone(&brake));
    let pause = &mut |pause: paceline_train::Pause| {
        assert_eq!(pause.step, stop);
        kept.push(pause.part);
        None
    };
    let course = &mut Course { restored, segment: rest(from), brake, pause };
    let report = &mut |event: Event<'_>| match event {
        // Every step is evaluated: that is when the signal comes.
        Event::Evaluation { step, .. } if Some(step) == stop => ring.stop_at(0),
        Event::Batch { batch, .. } => {
            told.losses.extend(batch.steps.iter().map(|row| (row.step, row.loss.to_bits())));
        }
        _ => {}
    };
    let recording = Some(Recording { sample_hz: 0.0, ..Recording::default() });
    let result = single::run(plan, data, "r", Started::now(), recording, course, report).unwrap();
    told.params_sha256 = result.map(|result| result.params_sha256);
    told.kept = kept;
    told
}

#[test]
fn one_worker_interrupted_after_each_step_is_bit_identical() {
    let base = plan("mlp", "single", 1, 0);
    let (data, plan) = (digits(), Plan { batch: 8, work: TrainingLength::Steps(STEPS), ..base });
    // Evaluations change no number; a run that nobody interrupts needs none.
    let evaluated = Plan { eval_every: Some(1), ..plan.clone() };
    let whole = alone(&plan, &data, 0, None, None);
    assert_eq!(whole.losses.len() as u64, STEPS);
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::of(folder.path());
    let (mut part, mut losses) = (None, BTreeMap::new());
    for stop in 1..STEPS {
        let stopped = alone(&evaluated, &data, stop - 1, part, Some(stop));
        assert_eq!((stopped.params_sha256, stopped.losses.len()), (None, 1), "interrupted after step {stop}");
        losses.extend(stopped.losses);
        part = through_the_disk(&checkpoints, stop, stopped.kept).pop();
        let ran = alone(&plan, &data, stop, part.clone(), None);
        assert_eq!(ran.params_sha256, whole.params_sha256, "interrupted after step {stop}");
        let all: BTreeMap<u64, u64> = losses.iter().chain(&ran.losses).map(|(&k, &v)| (k, v)).collect();
        assert_eq!(all, whole.losses, "interrupted after step {stop}");
    }
    let ran = alone(&plan, &data, STEPS - 1, part, None);
    losses.extend(ran.losses);
    assert_eq!((ran.params_sha256, losses), (whole.params_sha256, whole.losses), "after every step");
}
