//! Networks that are cut into stages give the parameters of one worker with the same micro-batches, bit for bit: over every
//! transport, along every pipeline, with replicas that average, and where they go on with other stages. Their actions are
//! those of virtual time.

mod ranks;

use paceline_data::Dataset;
use paceline_pipeline::{PIPELINES, StageMemory};
use paceline_plan::{Plan, TrainingLength};
use paceline_protocol::{SINGLE, STRATEGIES};
use paceline_record::RankState;
use paceline_train::{Layout, PartRanges, Segment, model, recut, worker};
use paceline_wire::TRANSPORTS;

use ranks::{Ran, Way, choose, digits, plan, typed, virtual_traces};

const STEPS: u64 = 4;

/// A plan of so many replicas in stages that trains a few steps.
fn staged(model: &str, strategy: &str, replicas: usize, stages: usize, micro_batches: usize) -> Plan {
    let servers = if strategy == "ps" { 6 } else { 0 };
    let base = plan(model, strategy, replicas, servers);
    let base = if strategy == SINGLE { base } else { choose(base, strategy, "bsp", &[]) };
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
    let strategy = typed(plan).strategy;
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
        let base = staged("lenet", SINGLE, 1, 2, micro_batches);
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

#[test]
fn so_it_is_over_every_transport() {
    let dataset = digits();
    for (transport, pipeline) in TRANSPORTS.iter().zip(PIPELINES.iter().cycle()) {
        let pipeline = Some(pipeline.name.into());
        // More numbers go over a crossing than one message takes.
        let plan = Plan { batch: 160, pipeline, ..staged("lenet", SINGLE, 1, 3, 5) };
        check(&plan, &dataset, transport.name, &whole(&plan, &dataset));
    }
}

#[test]
fn batch_norm_recurrence_and_attention_have_the_bits_of_one_worker() {
    let dataset = digits();
    for (model, stages, micro_batches) in [("resnet20", 3, 2), ("gru", 2, 3), ("transformer", 4, 3)] {
        for pipeline in PIPELINES {
            let pipeline = Some(pipeline.name.into());
            let plan = Plan {
                batch: 5,
                stop_after_step: Some(2),
                pipeline,
                ..staged(model, SINGLE, 1, stages, micro_batches)
            };
            check(&plan, &dataset, "inproc", &whole(&plan, &dataset));
        }
    }
}

#[test]
fn a_value_that_a_stage_receives_reads_and_hands_on_keeps_its_bits_and_its_gradients() {
    let dataset = digits();
    // The input of the first residual block is read by its first layer and, a stage later, by its last one.
    let base = staged("resnet20", SINGLE, 1, 3, 3);
    let cuts = ["layer1.0.conv1", "layer1.0.bn2"].map(str::to_owned).to_vec();
    for (over, pipeline) in ["inproc", "shm", "tcp"].iter().zip(PIPELINES.iter().cycle()) {
        let pipeline = Some(pipeline.name.into());
        let plan = Plan { batch: 7, stop_after_step: Some(2), cuts: cuts.clone(), pipeline, ..base.clone() };
        let graph = model::graph(&typed(&plan), &dataset).unwrap();
        let part = &typed(&plan).stage_plan(&graph).unwrap().unwrap().parts[1];
        assert!(part.receives.iter().any(|edge| part.sends.iter().any(|other| other.value == edge.value)));
        check(&plan, &dataset, over, &whole(&plan, &dataset));
    }
}

#[test]
fn replicas_in_stages_are_so_many_workers_along_every_exact_path_and_over_servers() {
    let dataset = digits();
    let spread = STRATEGIES.iter().filter(|s| (s.path.is_some() || s.servers) && s.name != SINGLE);
    for strategy in spread {
        let plan = staged("lenet", strategy.name, 2, 2, 3);
        check(&plan, &dataset, "inproc", &whole(&plan, &dataset));
    }
}

/// Passes in their slots, messages of each link and bucket, and every computation on each place.
#[test]
fn actions_of_stages_are_the_same_as_in_virtual_time() {
    let dataset = digits();
    for pipeline in PIPELINES {
        for (model, strategy, replicas, stages, over) in [
            ("mlp", SINGLE, 1, 2, "inproc"),
            ("mlp", SINGLE, 1, 3, "tcp"),
            ("mlp", "ring-allreduce", 2, 2, "shm"),
            ("mlp", "ps", 2, 3, "inproc"),
            ("lenet", SINGLE, 1, 3, "shm"),
            ("lenet", "ring-allreduce", 2, 2, "tcp"),
            ("lenet", "tree", 2, 3, "inproc"),
        ] {
            let base = staged(model, strategy, replicas, stages, 5);
            same_actions(Plan { pipeline: Some(pipeline.name.into()), ..base }, 13, over, &dataset);
        }
    }
}

/// The same of every transport, and of every kind of network: values that skip stages, recurrence, attention.
#[test]
fn so_they_are_over_every_transport_and_for_every_network() {
    let dataset = digits();
    for pipeline in PIPELINES {
        let pipeline = || Some(pipeline.name.into());
        for transport in TRANSPORTS {
            for (strategy, replicas) in [(SINGLE, 1), ("ring-allreduce", 2), ("ps", 2)] {
                let base = staged("mlp", strategy, replicas, 2, 3);
                same_actions(Plan { pipeline: pipeline(), ..base }, 13, transport.name, &dataset);
            }
        }
        for (model, stages) in [("resnet20", 4), ("gru", 3), ("transformer", 4)] {
            let base = staged(model, SINGLE, 1, stages, 3);
            same_actions(Plan { pipeline: pipeline(), batch: 4, ..base }, 4, "inproc", &dataset);
        }
    }
}

/// Whether real ranks over a transport do what virtual ones do, with batches of so many samples for each replica, of
/// which the last of three has fewer.
fn same_actions(base: Plan, batch: u32, over: &str, dataset: &Dataset) {
    let replicas = base.replicas() as u32;
    let fraction = f64::from(2 * batch * replicas + batch / 2 - 1) / dataset.train.len() as f64;
    let work = TrainingLength::Epochs(fraction);
    let plan = Plan { work, stop_after_step: None, ..base };
    let Plan { model, strategy, stages, .. } = &plan;
    let what = format!("{model} {strategy} {replicas} × {stages} {:?} over {over}", plan.pipeline);
    let real = go(&plan, dataset, over);
    assert!(real.ends.iter().all(|end| *end == (3, None)), "{what}: {:?}", real.ends);
    let virtually = virtual_traces(&plan, dataset, typed(&plan).strategy);
    assert_eq!(real.traces.len(), virtually.len(), "{what}");
    for (rank, (real, virtually)) in real.traces.iter().zip(&virtually).enumerate() {
        assert!(!real.0.is_empty(), "{what}: rank {rank} does nothing");
        assert!(real.0.keys().eq(virtually.0.keys()), "{what}: rank {rank} acts elsewhere");
        for (subject, did) in &real.0 {
            assert_eq!(did, &virtually.0[subject], "{what}: rank {rank}, {subject:?}");
        }
    }
}

/// Traces tell pipelines, cuts and micro-batches apart.
#[test]
fn actions_of_other_programs_are_others() {
    let dataset = digits();
    let plan = staged("mlp", SINGLE, 1, 2, 4);
    let traces = |plan: &Plan| virtual_traces(plan, &dataset, typed(plan).strategy);
    let own = traces(&plan);
    assert!(own.iter().all(|trace| !trace.0.is_empty()));
    for other in [
        Plan { pipeline: Some("gpipe".into()), ..plan.clone() },
        Plan { cuts: vec!["fc3".into()], ..plan.clone() },
        Plan { micro_batches: 3, ..plan.clone() },
    ] {
        assert!(traces(&other) != own, "{other:?}");
    }
}

/// The last batch has fewer samples than replicas have micro-batches, or none for a replica.
#[test]
fn uneven_and_empty_batches_end_as_without_stages() {
    let dataset = digits();
    for (batch, samples) in [(13, 30_u32), (2, 33), (4, 33)] {
        let fraction = f64::from(samples) / dataset.train.len() as f64;
        let base = staged("mlp", "ring-allreduce", 2, 2, 2);
        let plan = Plan { batch, work: TrainingLength::Epochs(fraction), stop_after_step: None, ..base };
        let steps = samples.div_ceil(2 * batch as u32);
        let ran = go(&plan, &dataset, "inproc");
        assert!(replicas(&ran, 2) == whole(&plan, &dataset), "batch {batch}, {samples} samples");
        assert!(ran.ends.iter().all(|end| end.0 == u64::from(steps)), "{:?}", ran.ends);
    }
}

/// The ranks' parts at a pause before this step.
fn paused(plan: &Plan, dataset: &Dataset, before: u64) -> Vec<RankState> {
    let strategy = typed(plan).strategy;
    let way = way(plan, dataset, 0, Some(before), Vec::new());
    match ranks::run(plan, dataset, strategy, "inproc", way, &mut Vec::new()) {
        Ok(_) => panic!("it pauses"),
        Err(parts) => parts,
    }
}

#[test]
fn a_run_goes_on_from_a_pause_with_its_stages_with_others_and_with_none() {
    let dataset = digits();
    for (model, strategy, replicas_in_all) in
        [("lenet", SINGLE, 1), ("resnet20", "ring-allreduce", 2), ("lenet", "ps", 2)]
    {
        let base = Plan { batch: 6, ..staged(model, strategy, replicas_in_all, 2, 3) };
        let want = whole(&base, &dataset);
        let graph = model::graph(&typed(&base), &dataset).unwrap();
        let cut = |stages: usize| {
            let pipeline = (stages > 1).then(|| "gpipe".into());
            Plan { workers: stages * replicas_in_all, stages, pipeline, ..base.clone() }
        };
        for (before, after) in [(2, 2), (2, 3), (3, 2), (2, 1), (1, 3)] {
            let (old, new) = (cut(before), cut(after));
            let parts = paused(&old, &dataset, 2);
            let ranges: Vec<PartRanges> = match typed(&new).stage_plan(&graph).unwrap() {
                Some(stages) => stages.parts.iter().map(PartRanges::of).collect(),
                None => vec![PartRanges::of(&graph.whole())],
            };
            let cut = recut(&parts, (new.workers, new.servers), &ranges).unwrap();
            assert_eq!(cut.is_none(), before == after, "{before} stages, then {after}");
            let way = way(&new, &dataset, 2, None, cut.unwrap_or(parts));
            let strategy = typed(&new).strategy;
            let ran = ranks::run(&new, &dataset, strategy, "inproc", way, &mut Vec::new());
            let ran = ran.unwrap_or_else(|_| panic!("it ends"));
            assert!(replicas(&ran, after) == want, "{model}: {before} stages, then {after}");
        }
    }
}

#[test]
fn buffers_of_a_rank_are_what_was_computed_before_the_run() {
    let dataset = digits();
    for pipeline in PIPELINES {
        for (model, stages) in [("lenet", 3), ("resnet20", 2)] {
            let pipeline = Some(pipeline.name.into());
            let plan = Plan { pipeline, ..staged(model, SINGLE, 1, stages, 5) };
            let graph = model::graph(&typed(&plan), &dataset).unwrap();
            let computed = typed(&plan).stage_plan(&graph).unwrap().unwrap().memory(&graph, 2);
            let counted = go(&plan, &dataset, "inproc").memory;
            assert_eq!(counted.len(), stages);
            for (counted, computed) in counted.into_iter().zip(computed) {
                assert_eq!(counted, Some(StageMemory { held: 0, ..computed }), "{model}");
            }
        }
    }
}
