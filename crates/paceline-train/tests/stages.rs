//! Networks that are cut into stages give the parameters of one worker with the same micro-batches, bit for bit: over every
//! transport, along every pipeline, with replicas that average, and where they go on with other stages.

mod ranks;

use paceline_data::Dataset;
use paceline_pipeline::PIPELINES;
use paceline_plan::{Plan, TrainingLength};
use paceline_protocol::{STRATEGIES, find};
use paceline_record::RankState;
use paceline_train::{Layout, PartRanges, Segment, model, recut, worker};
use paceline_wire::TRANSPORTS;

use ranks::{Ran, Way, choose, digits, plan, typed};

const STEPS: u64 = 4;

/// A plan of so many replicas in stages that trains a few steps.
fn staged(model: &str, strategy: &str, replicas: usize, stages: usize, micro_batches: usize) -> Plan {
    let servers = if strategy == "ps" { 2 } else { 0 };
    let base = choose(plan(model, strategy, replicas, servers), strategy, "bsp", &[]);
    let base =
        Plan { averages: "gradients".into(), optimizer: "adam".into(), weight_decay: 0.01, lr: 0.01, ..base };
    Plan {
        workers: replicas * stages,
        stages,
        pipeline: (stages > 1).then(|| "1f1b".into()),
        micro_batches,
        work: TrainingLength::Steps(STEPS),
        stop_after_step: Some(STEPS),
        batch: 13,
        bucket: 4096,
        ..base
    }
}

/// A part of the way of a run: all of it, or what is left of it.
fn way(plan: &Plan, dataset: &Dataset, from: u64, to: Option<u64>, restored: Vec<RankState>) -> Way {
    let layout = Layout::of(&model::graph(&typed(plan), dataset).unwrap());
    let end = worker::setup(&typed(plan), &layout, dataset.train.len()).end();
    let segment = Segment { from, to: to.unwrap_or(end), generation: 0 };
    Way { stretches: vec![segment], restored, ..Way::default() }
}

fn go(plan: &Plan, dataset: &Dataset, over: &str) -> Ran {
    let strategy = find(&plan.strategy).unwrap();
    let way = way(plan, dataset, 0, None, Vec::new());
    let ran = ranks::run(plan, dataset, strategy, over, way, &mut Vec::new());
    ran.unwrap_or_else(|_| panic!("it does not stop"))
}

/// The parameters and the state of each replica.
fn replicas(ran: &Ran, stages: usize) -> Vec<(Vec<f32>, Vec<f32>)> {
    let whole =
        |numbers: &[Vec<f32>]| -> Vec<Vec<f32>> { numbers.chunks(stages).map(<[_]>::concat).collect() };
    whole(&ran.params).into_iter().zip(whole(&ran.states)).collect()
}

/// Whether a plan in stages comes to what it comes to without any.
fn check(plan: &Plan, dataset: &Dataset, over: &str, want: &[(Vec<f32>, Vec<f32>)]) {
    let ran = go(plan, dataset, over);
    let Plan { model, strategy, stages, micro_batches, pipeline, .. } = plan;
    let what =
        format!("{model} {strategy} {stages} stages {micro_batches} micro-batches {pipeline:?} over {over}");
    assert!(replicas(&ran, *stages) == want, "{what}");
    assert!(
        ran.ends.iter().all(|end| *end == (plan.stop_after_step.unwrap(), None)),
        "{what}: {:?}",
        ran.ends
    );
}

/// What the same run comes to without stages.
fn whole(plan: &Plan, dataset: &Dataset) -> Vec<(Vec<f32>, Vec<f32>)> {
    let plan = Plan { workers: plan.replicas(), stages: 1, pipeline: None, cuts: Vec::new(), ..plan.clone() };
    replicas(&go(&plan, dataset, "inproc"), 1)
}

#[test]
fn stages_give_the_parameters_of_one_worker_along_every_pipeline() {
    let dataset = digits();
    for micro_batches in [1, 3, 8] {
        let base = staged("lenet", "single", 1, 2, micro_batches);
        let want = whole(&base, &dataset);
        for pipeline in PIPELINES {
            for stages in [2, 3] {
                let pipeline = Some(pipeline.name.into());
                let plan = Plan { workers: stages, stages, pipeline, ..base.clone() };
                check(&plan, &dataset, "inproc", &want);
            }
        }
    }
}
