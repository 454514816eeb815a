//! Runs that end at a target, and evaluations that take a part of the test split: real ones, with ranks as threads, and
//! the same in virtual time.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use paceline_launch::run::{Launch, run as launch};
use paceline_launch::{CheckpointContext, Interrupt, LaunchError};
use paceline_plan::{Plan, Value};
use paceline_record::process::Started;
use paceline_record::{Checkpoints, Event, Recording, RunResult};
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
    let dataset = typed.dataset().unwrap().load(&Default::default(), &model::settings(plan)).unwrap();
    let checkpoints = Checkpoints::of(folder);
    let resumed = checkpoints.latest(&plan.hash()).unwrap().0.map(Arc::new);
    let interrupt = Arc::new(Interrupt::default());
    let checkpointing = CheckpointContext { checkpoints, resumed, interrupt: Arc::clone(&interrupt) };
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
        recording: Some(Recording::default()),
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
    let dataset = typed.dataset().unwrap().load(&Default::default(), &model::settings(plan)).unwrap();
    let terms = Terms { registries: &registries, calibration: None, cluster: None, jitter: None };
    let (run, started) = ("r1", Started::now());
    let scenario =
        Scenario { plan, dataset: &dataset, terms, learn: true, changes: None, trace: 0, run, started };
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
        // The clock stood still from the evaluation on. (Servers that are evaluated have none.)
        let (reached, clock) = (ended.result.time_to_accuracy_s, ended.result.seconds.train);
        assert!(
            reached == Some(clock) || reached.is_some() && plan.compression.as_deref() == Some("fp16"),
            "{words}"
        );
        assert_eq!(ended.result.stopped_at_target, Some(at), "{words}");
        let until = Plan { stop_at_target: false, stop_after_step: Some(at), ..plan.clone() };
        assert_eq!(ended.result.params_sha256, trained(&until).result.params_sha256, "{words}");
        for again in [trained(&plan), simulated(&plan)] {
            assert_eq!(again.evaluations, ended.evaluations, "{words}");
            let told = |ran: &Ran| (ran.result.steps, ran.result.samples, ran.result.params_sha256.clone());
            assert_eq!(told(&again), told(&ended), "{words}");
        }
    }
}

/// The plan with a small network that has batch norm.
fn normalised(plan: Plan) -> Plan {
    let layer = |kind: &str, settings: &str| format!("[[layer]]\nkind = \"{kind}\"\n{settings}\n");
    let network = [
        layer("dense", "outputs = 32"),
        layer("batch-norm", "relu = true"),
        layer("dense", "outputs = \"classes\""),
    ];
    Plan { model: "normalised.toml".into(), model_file: Some(network.concat()), ..plan }
}

#[test]
fn batch_norms_statistics_are_averaged_before_the_verdict() {
    let run = "--transport inproc --batch 16 --steps 24 --eval-every 4 --lr 0.03";
    for words in [
        "--workers 2 --strategy tree",
        "--workers 3 --servers 2 --strategy ps --checkpoint-every 4",
        "--workers 2 --strategy gossip",
    ] {
        let (plan, at) = with_target(&normalised(plan(&format!("{words} {run}"))));
        let (ended, again) = (trained(&plan), simulated(&plan));
        assert_eq!((ended.result.steps, again.result.steps), (at, at), "{words}");
        assert_eq!(ended.result.params_sha256, again.result.params_sha256, "{words}");
    }
}

#[test]
fn runs_whose_workers_do_not_step_together_end_at_the_next_step_that_all_reach() {
    for sync in ["asp", "ssp --staleness 1", "essp", "dssp", "adaptive", "switch --switch-at 0.01"] {
        for servers in [1, 2] {
            let words = format!(
                "--workers 3 --servers {servers} --strategy ps --sync {sync} --transport inproc --batch 16 \
                 --epochs 400 --eval-every 2 --lr 0.02 --momentum 0.5 --target-accuracy 0.4 --stop-at-target"
            );
            let plan = plan(&words);
            for ran in [trained(&plan), simulated(&plan)] {
                let (steps, samples) = (ran.result.steps, ran.result.samples);
                // 1,438 samples make 30 steps of 48 and no smaller one but the last, of 46.
                assert_eq!(samples, 1438 * (steps / 30) + 48 * (steps % 30), "{words}: {steps} steps");
                assert!(steps < 400 * 30 && ran.first(0.4) <= steps, "{words}: {:?}", ran.evaluations);
                assert_eq!(ran.evaluations.last().map(|(step, _)| *step), Some(steps), "{words}");
                assert_eq!(ran.result.ranks.len(), 3 + servers, "{words}");
                assert_eq!(ran.result.stopped_at_target, Some(steps), "{words}");
            }
        }
    }
}

#[test]
fn a_run_that_was_interrupted_and_goes_on_ends_where_it_would_have_ended() {
    for words in [
        "--workers 1",
        "--workers 3 --strategy ring-allreduce",
        "--workers 4 --strategy stepwise --variant rotate",
        "--workers 3 --servers 2 --strategy ps",
        "--workers 2 --servers 2 --strategy ps --compression fp16",
    ] {
        let words = format!("{words} --transport inproc --batch 16 --steps 24 --eval-every 4 --lr 0.03");
        let (plan, at) = with_target(&plan(&words));
        let ended = trained(&plan);
        let mut interrupted = 0;
        for (stop, _) in &ended.evaluations {
            let folder = tempfile::tempdir().unwrap();
            let (resumed, before) = match train(&plan, folder.path(), Some(*stop)) {
                // The stop came with the verdict that ended the run.
                Ok(ran) => (ran, 0),
                Err(LaunchError::Interrupted { step, .. }) => {
                    interrupted += 1;
                    (train(&plan, folder.path(), None).unwrap(), step)
                }
                Err(error) => panic!("{words}, stopped after {stop}: {error}"),
            };
            assert!(before < at, "{words}: interrupted after step {before} of {at}");
            assert_eq!(resumed.result.steps, at, "{words}, stopped after {stop}");
            assert_eq!(
                resumed.result.params_sha256, ended.result.params_sha256,
                "{words}, stopped after {stop}"
            );
        }
        assert!(interrupted > 0, "{words}: {:?}", ended.evaluations);
    }
}

/// What gives a plan its network.
type Model = fn(Plan) -> Plan;

/// Whether an accuracy is that of so many samples.
fn hits(accuracy: f64, samples: usize) -> bool {
    let hits = accuracy * samples as f64;
    (hits - hits.round()).abs() < 1e-9
}

#[test]
fn evaluations_of_a_part_take_the_same_samples_everywhere_and_the_final_figures_take_all() {
    let run = "--transport inproc --batch 12 --steps 12 --eval-every 4";
    let of = |words: &str, samples: &str| plan(&format!("{words} {run} {samples}"));
    // The same model, whoever computes it.
    let shared = [
        "--workers 1 --shares 4 --strategy tree",
        "--workers 2 --shares 4 --strategy tree",
        "--workers 4 --strategy tree",
    ];
    let first = trained(&of(shared[0], "--eval-samples 50"));
    for words in shared {
        for ran in [trained(&of(words, "--eval-samples 50")), simulated(&of(words, "--eval-samples 50"))] {
            assert_eq!(ran.evaluations, first.evaluations, "{words}");
            assert!(ran.evaluations.iter().all(|(_, accuracy)| hits(*accuracy, 50)), "{words}");
        }
    }
    assert_eq!(first.evaluations.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [4, 8, 12]);
    let cases: [(&str, Model); 6] = [
        ("--workers 1", |plan| plan),
        ("--workers 3 --strategy ring-allreduce", |plan| plan),
        ("--workers 3 --strategy gossip", |plan| plan),
        ("--workers 2 --servers 2 --strategy ps", |plan| plan),
        ("--workers 2 --servers 1 --strategy ps --compression fp16", |plan| plan),
        ("--workers 2 --strategy tree", normalised),
    ];
    for (words, model) in cases {
        let [all, part] = ["", "--eval-samples 20"].map(|samples| model(of(words, samples)));
        let again = simulated(&part);
        let (all, part) = (trained(&all), trained(&part));
        let told =
            |ran: &Ran| (ran.result.final_loss, ran.result.final_accuracy, ran.result.params_sha256.clone());
        assert_eq!(told(&part), told(&all), "{words}");
        assert_eq!(told(&part), told(&again), "{words}");
        assert_ne!(part.evaluations, all.evaluations, "{words}");
    }
}

#[test]
fn a_target_is_judged_by_the_samples_that_evaluations_take() {
    let words =
        "--workers 2 --transport inproc --batch 16 --steps 24 --eval-every 4 --lr 0.03 --eval-samples 40";
    let (plan, at) = with_target(&plan(words));
    let ended = trained(&plan);
    assert_eq!(ended.result.steps, at);
    assert!(ended.result.time_to_accuracy_s.is_some());
    // 359 samples are not 40: the final figure is another one.
    assert_ne!(Some(ended.result.final_accuracy), ended.evaluations.last().map(|(_, accuracy)| *accuracy));
}

#[test]
fn what_can_never_be_evaluated_or_taken_is_refused() {
    let refused = |words: &str| {
        let folder = tempfile::tempdir().unwrap();
        let plan = plan(&format!("{words} --transport inproc --steps 4 --batch 8"));
        let plan = if plan.stop_at_target { normalised(plan) } else { plan };
        train(&plan, folder.path(), None).map(drop).unwrap_err().to_string()
    };
    for sync in ["--sync asp", "--compression fp16"] {
        let refused = refused(&format!(
            "--workers 2 --servers 1 --strategy ps {sync} --target-accuracy 0.5 --stop-at-target"
        ));
        assert!(refused.starts_with("--stop-at-target : batch norm's statistics"), "{refused}");
    }
    let refused = refused("--workers 1 --eval-samples 360");
    assert!(refused.starts_with("--eval-samples 360: the test split of digits has only 359"), "{refused}");
}
