//! Runs that end at a target, and evaluations that take a part of the test split: real ones, with ranks as threads, and
//! the same in virtual time.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use paceline_launch::run::{Launch, run as launch};
use paceline_launch::{CheckpointContext, Interrupt, LaunchError};
use paceline_plan::{Plan, Value};
use paceline_record::process::Started;
use paceline_record::{Checkpoints, Event, RunResult};
use paceline_resolve::{PlanSettings, Registries, SettingTable, TypedPlan, resolve};
use paceline_train::model;
use paceline_virtual::Terms;
use paceline_virtual::run::{Scenario, run as simulate};

/// The plan of a command line's words.
fn plan(words: &str) -> Plan {
    let table = Arc::new(SettingTable::new(Registries::default()));
    let mut values = BTreeMap::new();
    for setting in words.split("--").skip(1) {
        let (name, text) = setting.trim().split_once(' ').unwrap_or((setting.trim(), "true"));
        let value = text.parse().map_or_else(|_| Value::Text(text.into()), Value::Number);
        values.insert(name.to_owned(), if text == "true" { Value::Flag(true) } else { value });
    }
    let settings = PlanSettings::from_values(&table, &values).unwrap_or_else(|e| panic!("{words}: {e}"));
    resolve(&settings).unwrap_or_else(|e| panic!("{words}: {e}"))
}

/// A run's evaluations, steps and accuracies, and its result.
struct Ran {
    evaluations: Vec<(u64, f64)>,
    result: RunResult,
}

impl Ran {
    /// The step at which an accuracy was first reached.
    fn first(&self, target: f64) -> u64 {
        self.evaluations.iter().find(|(_, accuracy)| *accuracy >= target).expect("it was reached").0
    }
}

/// Trains with ranks as threads; a stop is requested at the evaluation after the step `interrupted`.
fn train(plan: &Plan, folder: &Path, interrupted: Option<u64>) -> Result<Ran, LaunchError> {
    let registries = Registries::default();
    let typed = TypedPlan::new(plan, &registries).unwrap();
    let dataset = typed.dataset.load(&Default::default(), &model::settings(plan)).unwrap();
    let checkpoints = Checkpoints::of(folder);
    let resumed = checkpoints.latest(&plan.hash()).unwrap().0.map(Arc::new);
    let interrupt = Arc::new(Interrupt::default());
    let checkpointing = CheckpointContext { checkpoints, resumed, interrupt: Arc::clone(&interrupt) };
    let launched = Launch {
        plan: &typed,
        registries: &registries,
        dataset: &dataset,
        folders: &Default::default(),
        run: "r1",
        program: ("nowhere".into(), "rank"),
        started: Started::now(),
        checkpointing: &checkpointing,
        recording: None,
    };
    let mut evaluations = Vec::new();
    let result = launch(&launched, None, &mut |event: Event<'_>| {
        if let Event::Evaluation { step, accuracy, .. } = event {
            evaluations.push((step, accuracy));
            if interrupted == Some(step) {
                interrupt.request();
            }
        }
    })?;
    Ok(Ran { evaluations, result })
}

fn trained(plan: &Plan) -> Ran {
    let folder = tempfile::tempdir().unwrap();
    train(plan, folder.path(), None).unwrap_or_else(|error| panic!("{plan:?}: {error}"))
}

/// The same in virtual time, with real gradients.
fn simulated(plan: &Plan) -> Ran {
    let registries = Registries::default();
    let typed = TypedPlan::new(plan, &registries).unwrap();
    let dataset = typed.dataset.load(&Default::default(), &model::settings(plan)).unwrap();
    let terms = Terms { registries: &registries, calibration: None, cluster: None, jitter: None };
    let (run, started) = ("r1", Started::now());
    let scenario = Scenario { plan, dataset: &dataset, terms, learn: true, trace: 0, run, started };
    let mut evaluations = Vec::new();
    let result = simulate(&scenario, &mut |event: Event<'_>| {
        if let Event::Evaluation { step, accuracy, .. } = event {
            evaluations.push((step, accuracy));
        }
    });
    Ran { evaluations, result: result.unwrap_or_else(|error| panic!("{plan:?}: {error}")) }
}

/// The plan with a target that an evaluation in the middle of the run reaches, and the step of the first that does.
fn with_target(plan: &Plan) -> (Plan, u64) {
    let whole = trained(plan);
    let middle = whole.evaluations[whole.evaluations.len() / 2].1;
    let at = whole.first(middle);
    assert!(at < whole.result.steps, "{plan:?}: {:?}", whole.evaluations);
    (Plan { target_accuracy: Some(middle), stop_at_target: true, ..plan.clone() }, at)
}

const TOGETHER: &[&str] = &[
    "--workers 1",
    "--workers 3 --strategy ring-allreduce",
    "--workers 3 --strategy ring-reduce --checkpoint-every 3",
    "--workers 3 --strategy tree --averages weights",
    "--workers 4 --strategy halving-doubling --checkpoint-every 4",
    "--workers 2 --shares 4 --strategy ring-allreduce",
    "--workers 3 --strategy ring-allreduce --compression powersgd,rank=2",
    "--workers 3 --strategy tree --compression topk,ratio=0.1",
    "--workers 4 --strategy stepwise --variant naive",
    "--workers 4 --strategy stepwise --variant rotate --checkpoint-every 3",
    "--workers 4 --strategy stepwise --variant push-sum",
    "--workers 4 --strategy stepwise --variant chunked",
    "--workers 4 --strategy gossip",
    "--workers 3 --strategy local --local-steps 3 --outer nesterov",
    "--workers 3 --servers 2 --strategy ps",
    "--workers 3 --servers 2 --strategy ps --checkpoint-every 4",
    "--workers 2 --servers 1 --strategy ps --compression int8",
    "--workers 2 --servers 2 --strategy ps --compression fp16",
    "--workers 2 --servers 1 --strategy ps --sync switch --switch-at 1",
];

#[test]
fn runs_whose_workers_step_together_end_at_the_evaluation_that_reaches_the_target() {
    for words in TOGETHER {
        let words = format!("{words} --transport inproc --batch 16 --steps 24 --eval-every 4 --lr 0.03");
        let (plan, at) = with_target(&plan(&words));
        let ended = trained(&plan);
        assert_eq!(ended.result.steps, at, "{words}");
        assert_eq!(ended.evaluations.last().map(|(step, _)| *step), Some(at), "{words}");
        assert!(ended.result.time_to_accuracy_s.is_some(), "{words}");
        let until = Plan { stop_at_target: false, stop_after_step: Some(at), ..plan.clone() };
        assert_eq!(ended.result.params_sha256, trained(&until).result.params_sha256, "{words}");
        for again in [trained(&plan), simulated(&plan)] {
            assert_eq!(again.evaluations, ended.evaluations, "{words}");
            let told = |ran: &Ran| (ran.result.steps, ran.result.samples, ran.result.params_sha256.clone());
            assert_eq!(told(&again), told(&ended), "{words}");
        }
    }
}
