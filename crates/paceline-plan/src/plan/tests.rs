//! Tests of plans.

use super::*;

pub(crate) fn plan() -> Plan {
    Plan { work: TrainingLength::Epochs(1.5), ..Plan::example() }
}

#[test]
fn work_is_counted_in_samples() {
    assert_eq!(plan().total_samples(1438), 2157);
    assert_eq!(Plan { work: TrainingLength::Steps(10), ..plan() }.total_samples(1438), 640);
}

#[test]
fn impossible_plans_name_the_flag_at_fault() {
    let cases: &[(&str, Plan)] = &[
        ("--workers", Plan { workers: 0, ..plan() }),
        ("--batch", Plan { batch: 0, ..plan() }),
        ("--batch", Plan { batch: 101, ..plan() }),
        ("--workers", Plan { workers: 101, batch: 1, ..plan() }),
        ("--workers", Plan { workers: 3, stages: 2, ..plan() }),
        ("--stages", Plan { stages: 0, ..plan() }),
        ("--straggler", Plan { straggler: Some(Straggler::One { rank: 1, factor: 2.0 }), ..plan() }),
        ("--lr", Plan { lr: f64::NAN, ..plan() }),
        ("--lr", Plan { lr: 0.0, ..plan() }),
        ("--momentum", Plan { momentum: 1.0, ..plan() }),
        ("--nesterov", Plan { nesterov: true, momentum: 0.0, ..plan() }),
        ("--weight-decay", Plan { weight_decay: -1.0, ..plan() }),
        ("--warmup", Plan { warmup: 1.0, ..plan() }),
        ("--epochs", Plan { work: TrainingLength::Epochs(-1.0), ..plan() }),
        ("--epochs", Plan { work: TrainingLength::Epochs(1e-9), ..plan() }),
        ("--steps", Plan { work: TrainingLength::Steps(0), ..plan() }),
        ("--target-accuracy", Plan { target_accuracy: Some(98.0), ..plan() }),
        ("--stop-at-target", Plan { stop_at_target: true, ..plan() }),
        ("--eval-every", Plan { eval_every: Some(0), ..plan() }),
        ("--eval-samples", Plan { eval_samples: Some(0), ..plan() }),
        ("--threads", Plan { threads: 0, ..plan() }),
    ];
    assert_eq!(plan().check(100), Ok(()));
    for (flag, plan) in cases {
        assert_eq!(&plan.check(100).unwrap_err().flag, flag, "{plan:?}");
    }
}

// `resolve` checks plans before anything is known of the dataset.
#[test]
fn a_batch_of_zero_names_no_number_of_samples_that_nobody_knows() {
    let refused = Plan { batch: 0, ..plan() }.check(usize::MAX).unwrap_err();
    assert_eq!(refused.to_string(), "--batch 0: at least 1 sample is needed");
    let refused = Plan { batch: 101, ..plan() }.check(100).unwrap_err();
    assert!(refused.problem.contains("100 samples"), "{refused}");
}

#[test]
fn evaluations_take_no_more_samples_than_there_are() {
    let plan = Plan { eval_samples: Some(359), ..plan() };
    assert_eq!(plan.check_test(359), Ok(()));
    let refused = plan.check_test(358).unwrap_err().to_string();
    assert!(refused.starts_with("--eval-samples 359: the test split of digits has only 358"), "{refused}");
}

#[test]
fn numbers_beyond_all_bounds_are_refused_and_do_not_overflow() {
    let most = usize::MAX;
    assert_eq!(Plan { workers: most, servers: 1, ..plan() }.check(most).unwrap_err().flag, "--workers");
    let steps = TrainingLength::Steps(5);
    assert_eq!(Plan { batch: most, work: steps, ..plan() }.check(100).unwrap_err().flag, "--batch");
}

#[test]
fn stragglers_are_read_or_the_forms_are_shown() {
    assert_eq!("rank=1,factor=3".parse(), Ok(Straggler::One { rank: 1, factor: 3.0 }));
    assert_eq!("moving,factor=2".parse(), Ok(Straggler::Moving { factor: 2.0 }));
    assert_eq!("lognormal,sigma=0.5".parse(), Ok(Straggler::Lognormal { sigma: 0.5 }));
    for bad in ["", "rank=1", "rank=1,factor=0.5", "lognormal", "lognormal,sigma=-1", "factor=2,rank=1"] {
        assert!(bad.parse::<Straggler>().unwrap_err().contains("rank=R,factor=F"), "{bad}");
    }
}

#[test]
fn workers_of_a_machine_take_its_gpus_in_turn() {
    let gpus = |all: &[&str]| Script {
        file: String::new(),
        sha256: String::new(),
        args: Vec::new(),
        python: String::new(),
        apply: String::new(),
        delegated: None,
        gpus: all.iter().map(|gpu| (*gpu).to_owned()).collect(),
        without_mps: false,
        staged: false,
        auto: false,
    };
    let here = Plan { workers: 3, script: Some(gpus(&["0", "GPU-b"])), ..plan() };
    let of = |plan: &Plan| (0..4).map(|rank| plan.gpu_of(rank).map(str::to_owned)).collect::<Vec<_>>();
    assert_eq!(of(&here), [Some("0".into()), Some("GPU-b".into()), Some("0".into()), None]);
    // Two workers on each of two machines: both machines begin with their first one.
    let apart = Plan { workers: 4, hosts: Some("2".parse().unwrap()), ..here.clone() };
    let own = Some("0".into());
    assert_eq!(of(&apart), [own.clone(), Some("GPU-b".into()), own, Some("GPU-b".into())]);
    assert_eq!(of(&Plan { script: Some(gpus(&[])), ..here.clone() }), [None, None, None, None]);
    let without = serde_json::to_string(&Plan { script: Some(gpus(&[])), ..here }).unwrap();
    assert!(!without.contains("gpus"), "plans without any have the hashes that they had");
}

#[test]
fn with_a_script_only_what_is_the_plans_own_counts() {
    assert_eq!(plan().settings()["batch"], 64);
    let script = Script {
        file: "/a/train.py".into(),
        sha256: "00".into(),
        args: vec!["--lr".into(), "0.1".into()],
        python: "python3".into(),
        apply: "worker".into(),
        delegated: None,
        gpus: Vec::new(),
        without_mps: false,
        staged: false,
        auto: false,
    };
    let ours = Plan { model: "train.py".into(), script: Some(script.clone()), ..plan() };
    assert_eq!(ours.subject(), "train.py");
    let settings = ours.settings();
    assert!(OF_NATIVE.iter().all(|name| !settings.contains_key(*name)), "{settings:?}");
    assert_eq!((&settings["args"], &settings["transport"]), (&"--lr 0.1".into(), &"tcp".into()));
    let theirs = Script { delegated: Some("gloo".into()), ..script };
    let theirs = Plan { script: Some(theirs), ..ours };
    assert!(theirs.delegated() && !theirs.settings().contains_key("transport"));
    // Every name is one of a plan.
    let all = Plan { script: None, ..theirs };
    let document = serde_json::to_value(&all).unwrap();
    let left_out = [
        "paths",
        "strategy-file",
        "model-file",
        "init",
        "frozen",
        "stages",
        "pipeline",
        "cuts",
        "shares",
        "elastic",
        "revoke",
        "micro-batches",
        "eval-samples",
    ];
    for name in OF_NATIVE.iter().chain(OF_OWN_EXCHANGE).filter(|name| !left_out.contains(name)) {
        assert!(document.get(name).is_some(), "{name}");
    }
}

#[test]
fn the_hash_tells_plans_apart() {
    assert_eq!(plan().hash(), plan().hash());
    assert_ne!(plan().hash(), Plan { seed: 2, ..plan() }.hash());
    assert_ne!(plan().hash(), Plan { eval_samples: Some(9), ..plan() }.hash());
    let ring = PathRule { below_bytes: None, path: "ring-allreduce".into() };
    assert_ne!(plan().hash(), Plan { paths: vec![ring], ..plan() }.hash());
    let file = |text: &str| Plan { strategy_file: Some(text.into()), ..plan() }.hash();
    assert_ne!(plan().hash(), file("name = \"a\""));
    assert_ne!(file("name = \"b\""), file("name = \"a\""));
}

#[test]
fn checkpoints_are_those_of_the_same_run_without_stages() {
    let two = Plan { workers: 2, transport: "shm".into(), strategy: "auto".into(), ..plan() };
    assert_eq!(two.checkpoint_hash(), two.hash());
    let staged = Plan { workers: 6, stages: 3, pipeline: Some("gpipe".into()), ..two.clone() };
    assert_ne!(staged.hash(), two.hash());
    assert_eq!((staged.checkpoint_hash(), staged.replicas(), staged.global_batch()), (two.hash(), 2, 128));
    let cut = Plan { workers: 8, stages: 4, pipeline: Some("1f1b".into()), cuts: vec!["fc".into()], ..two };
    assert_eq!(cut.checkpoint_hash(), staged.checkpoint_hash());
    let alone = Plan { workers: 3, stages: 3, transport: "uds".into(), ..plan() };
    assert_eq!(alone.checkpoint_hash(), plan().hash());
    let document = serde_json::to_value(plan()).unwrap();
    assert!(["stages", "pipeline", "cuts"].iter().all(|name| document.get(name).is_none()));
}

#[test]
fn the_paths_of_buckets_are_told_in_words_and_absent_where_there_is_no_choice() {
    let rule = |below_bytes, path: &str| PathRule { below_bytes, path: path.into() };
    let paths = vec![rule(Some(65_536), "halving-doubling"), rule(None, "ring-allreduce")];
    let chosen = Plan { strategy: "auto".into(), paths, ..plan() };
    assert_eq!(chosen.averaging(), "auto: halving-doubling below 64 KiB, else ring-allreduce");
    let document = serde_json::to_value(&chosen).unwrap();
    assert_eq!(document["paths"][0], serde_json::json!({"below-bytes": 65_536, "path": "halving-doubling"}));
    assert_eq!(serde_json::from_value::<Plan>(document).unwrap(), chosen);
    assert_eq!(plan().averaging(), "single");
    assert!(serde_json::to_value(plan()).unwrap().get("paths").is_none());
    assert!(serde_json::to_value(plan()).unwrap().get("strategy-file").is_none());
}
