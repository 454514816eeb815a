//! Networks cut into stages, in virtual time with real passes: the parameters are those of one worker with the same
//! micro-batches, and of a real run with ranks as threads, bit for bit; times are those of the program.

use std::collections::BTreeMap;
use std::sync::Arc;

use paceline_launch::run::{Launch, run as launch};
use paceline_launch::{CheckpointContext, Interrupt};
use paceline_memory::Allocator;
use paceline_pipeline::StageTimes;
use paceline_plan::{Plan, Value};
use paceline_protocol::BatchLengths;
use paceline_record::process::Started;
use paceline_record::{Checkpoints, Event, RunResult, TraceKind};
use paceline_resolve::{PlanSettings, Registries, SettingTable, TypedPlan, resolve};
use paceline_train::{Crossings, model};
use paceline_virtual::run::{Scenario, run as simulate};
use paceline_virtual::{Terms, words};

fn settings(words: &str) -> PlanSettings {
    let table = Arc::new(SettingTable::new(Registries::default()));
    let mut values = BTreeMap::new();
    for setting in words.split("--").skip(1) {
        let (name, text) = setting.trim().split_once(' ').unwrap();
        values.insert(name.to_owned(), Value::Text(text.into()));
    }
    PlanSettings::from_values(&table, &values).unwrap_or_else(|e| panic!("{words}: {e}"))
}

fn plan(words: &str) -> Plan {
    resolve(&settings(words)).unwrap_or_else(|e| panic!("{words}: {e}"))
}

/// A run in virtual time, and its passes: rank, kind, step, micro-batch.
fn simulated(plan: &Plan, learn: bool, trace: u64) -> (RunResult, Vec<(usize, TraceKind, u64, u64)>) {
    let registries = Registries::default();
    let typed = TypedPlan::new(plan, &registries).unwrap();
    let dataset = typed.dataset().unwrap().load(&Default::default(), &model::settings(plan)).unwrap();
    let terms = Terms { registries: &registries, calibration: None, cluster: None, jitter: None };
    let scenario = Scenario {
        plan,
        dataset: &dataset,
        terms,
        learn,
        changes: None,
        trace,
        run: "r1",
        started: Started::now(),
    };
    let mut passes = Vec::new();
    let result = simulate(&scenario, &mut |event| {
        if let Event::Batch { rank, batch } = event {
            let rows = batch.trace.iter();
            let rows = rows.filter(|row| matches!(row.kind, TraceKind::Forward | TraceKind::Backward));
            passes.extend(rows.map(|row| (rank, row.kind, row.step, row.bucket)));
        }
    });
    (result.unwrap_or_else(|error| panic!("{plan:?}: {error}")), passes)
}

/// A real run with ranks as threads.
fn trained(plan: &Plan) -> RunResult {
    let registries = Registries::default();
    let typed = TypedPlan::new(plan, &registries).unwrap();
    let dataset = typed.dataset().unwrap().load(&Default::default(), &model::settings(plan)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let checkpointing = CheckpointContext {
        checkpoints: Checkpoints::of(folder.path()),
        resumed: None,
        interrupt: Arc::new(Interrupt::default()),
    };
    let launched = Launch {
        plan: &typed,
        registries: &registries,
        dataset: Some(&dataset),
        conditions: &Default::default(),
        devices: None,
        folders: &Default::default(),
        run: "r1",
        program: ("nowhere".into(), "rank"),
        started: Started::now(),
        checkpointing: &checkpointing,
        recording: None,
    };
    launch(&launched, None, &mut |_| {}).unwrap_or_else(|error| panic!("{plan:?}: {error}"))
}

const BASE: &str = "--data digits --steps 6 --batch 10 --micro-batches 3 --optimizer adam --lr 0.01";

#[test]
fn virtual_parameters_are_one_workers_and_a_real_runs_bit_for_bit() {
    for (model, stages, pipeline) in [("mlp", 2, "gpipe"), ("mlp", 3, "1f1b"), ("resnet20", 4, "1f1b")] {
        let alone = simulated(&plan(&format!("{BASE} --model {model}")), true, 0).0;
        let cut = plan(&format!(
            "{BASE} --model {model} --stages {stages} --pipeline {pipeline} --transport inproc"
        ));
        let (staged, _) = simulated(&cut, true, 0);
        assert_eq!(staged.params_sha256, alone.params_sha256, "{model} in {stages} stages, {pipeline}");
        assert_eq!(staged.samples, alone.samples);
        assert_eq!(staged.train_loss.to_bits(), alone.train_loss.to_bits());
        assert_eq!(staged.final_accuracy, alone.final_accuracy);
        let real = trained(&cut);
        assert_eq!(real.params_sha256, staged.params_sha256, "{model} in {stages} stages, {pipeline}");
        assert_eq!((real.samples, real.steps), (staged.samples, staged.steps));
        assert_eq!(real.final_loss.to_bits(), staged.final_loss.to_bits());
    }
}

#[test]
fn replicas_of_stages_are_as_many_workers_bit_for_bit() {
    for averaging in ["--strategy ring-allreduce", "--strategy ps --servers 2", "--strategy direct"] {
        let workers = simulated(&plan(&format!("{BASE} --workers 2 {averaging}")), true, 0).0;
        let staged = simulated(&plan(&format!("{BASE} --workers 4 --stages 2 {averaging}")), true, 0).0;
        assert_eq!(staged.params_sha256, workers.params_sha256, "{averaging}");
        assert_eq!((staged.samples, staged.steps), (workers.samples, workers.steps), "{averaging}");
        assert_eq!(staged.final_accuracy, workers.final_accuracy, "{averaging}");
    }
}

#[test]
fn a_target_ends_staged_runs_where_it_ends_one_worker() {
    let base = format!("{BASE} --epochs 4 --eval-every 5 --target-accuracy 0.5").replace("--steps 6 ", "");
    let ends = |words: &str| {
        let mut settings = settings(words);
        settings.set("stop-at-target", &Value::Flag(true)).unwrap();
        simulated(&resolve(&settings).unwrap(), true, 0).0
    };
    let (alone, staged) = (ends(&base), ends(&format!("{base} --stages 3")));
    assert_eq!((staged.stopped_at_target, staged.steps), (alone.stopped_at_target, alone.steps));
    assert!(alone.stopped_at_target.is_some());
    assert_eq!(staged.params_sha256, alone.params_sha256);
}

#[test]
fn times_are_the_programs_and_passes_are_in_the_trace() {
    let plan =
        plan("--data digits --model mlp --steps 4 --batch 64 --micro-batches 8 --stages 2 --pipeline gpipe");
    let (result, passes) = simulated(&plan, false, 10_000);
    // Each stage passes each micro-batch once forward and once backward in each step.
    assert_eq!(passes.len(), 2 * 2 * 8 * 4);
    for rank in 0..2 {
        let own: Vec<_> = passes.iter().filter(|pass| pass.0 == rank && pass.2 == 1).collect();
        let forward = own.iter().take(8).map(|pass| (pass.1, pass.3));
        assert!(forward.eq((0..8).map(|micro| (TraceKind::Forward, micro))), "{own:?}");
    }
    // What ranks compute, without messages: the least that a step takes.
    let registries = Registries::default();
    let typed = TypedPlan::new(&plan, &registries).unwrap();
    let dataset = typed.dataset().unwrap().load(&Default::default(), &model::settings(&plan)).unwrap();
    let graph = model::graph(&typed, &dataset).unwrap();
    let stages = typed.stage_plan(&graph).unwrap().unwrap();
    let passes_ns = |rank: usize| (1e9 * result.ranks[rank].compute_s / (4.0 * 8.0)) as u64;
    // How a stage's time is divided between forward and backward decides nothing with gpipe and two stages.
    let times: Vec<_> = (0..2)
        .map(|rank| StageTimes { forward: passes_ns(rank) / 3, backward: passes_ns(rank) * 2 / 3 })
        .collect();
    let least = 4e-9 * stages.program.timeline(&times, 0).length as f64;
    let took = result.seconds.train;
    assert!(took > 0.9 * least && took < 1.6 * least, "{took} s, at least about {least} s");
    let text = words::stages(&typed, &graph, &stages, &result);
    assert!(text.starts_with("2 stages, gpipe, 8 micro-batches: bubble "), "{text}");
    assert!(text.contains("(11.1% if all stages took the same"), "{text}");
}

#[test]
fn what_stages_need_of_memory_is_what_is_allocated() {
    for words in ["--model mlp --stages 3", "--model resnet20 --stages 4 --pipeline gpipe"] {
        let plan = plan(&format!("{BASE} {words}"));
        let registries = Registries::default();
        let typed = TypedPlan::new(&plan, &registries).unwrap();
        let dataset = typed.dataset().unwrap().load(&Default::default(), &model::settings(&plan)).unwrap();
        let graph = model::graph(&typed, &dataset).unwrap();
        let stages = typed.stage_plan(&graph).unwrap().unwrap();
        let setup = stages.setup(BatchLengths::constant(10));
        for (stage, memory) in setup.stages.iter().zip(stages.memory(&graph, 2)) {
            let crossings = Crossings::new(&setup, stage, Allocator::Private).unwrap();
            assert_eq!(memory.crossings, crossings.bytes(), "{words}");
            assert_eq!(memory.optimiser, memory.parameters, "{words}");
        }
    }
}

#[test]
fn settings_that_stages_cannot_have_are_refused_with_their_flag() {
    for (words, flag, said) in [
        ("--stages 2 --workers 3", "--workers", "multiple of --stages (2)"),
        ("--stages 2 --cuts nowhere,fc", "--cuts", ""),
        ("--stages 1 --cuts fc2", "--cuts", "give more --stages"),
        ("--stages 2 --workers 4 --sync asp --strategy ps --servers 2", "--sync", "use --sync bsp"),
        ("--stages 2 --workers 4 --strategy gossip", "--strategy", "ring-allreduce or ps"),
        ("--stages 2 --workers 4 --averages weights", "--averages", "leave it out"),
        ("--stages 2 --workers 4 --compression sign", "--compression", "fp16"),
        ("--stages 2 --workers 4 --shares 8", "--shares", "one share per replica"),
        ("--stages 2 --workers 4 --strategy ps --servers 3", "--servers", "a multiple of 2"),
        ("--stages 2 --compression fp16", "--compression", "averages with nobody"),
    ] {
        let words = format!("{BASE} {words}");
        let refused = match resolve(&settings(&words)) {
            Err(refused) => refused,
            // Where the network is cut is known with the network.
            Ok(plan) => {
                let registries = Registries::default();
                let typed = TypedPlan::new(&plan, &registries).unwrap();
                let data =
                    typed.dataset().unwrap().load(&Default::default(), &model::settings(&plan)).unwrap();
                typed.stage_plan(&model::graph(&typed, &data).unwrap()).unwrap_err()
            }
        };
        assert_eq!(refused.flag, flag, "{words}: {refused}");
        assert!(refused.to_string().contains(said), "{refused}");
    }
    let many = plan(&format!("{BASE} --stages 2"));
    assert_eq!((many.workers, many.replicas(), many.pipeline.as_deref()), (2, 1, Some("1f1b")));
}
