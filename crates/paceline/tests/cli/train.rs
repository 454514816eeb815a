//! `paceline train` with one worker.

use paceline_testing::{Need, skip};
use serde_json::Value;

use crate::support::{datasets, paceline};

#[test]
fn digits_with_mlp_reach_95_percent() {
    for seed in 1..=3 {
        let ran = paceline(&format!("train --data digits --model mlp --epochs 20 --seed {seed}"));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        let accuracy = ran.result()["final_accuracy"].as_f64().unwrap();
        assert!(accuracy >= 0.95, "seed {seed}: {accuracy}");
    }
}

#[test]
fn every_model_learns_digits() {
    let adam = "--lr 0.002 --optimizer adam";
    for (model, options, wanted) in [
        ("softmax", "--lr 0.02", 0.9),
        ("lenet", "--lr 0.02", 0.95),
        ("resnet20", "--lr 0.02", 0.9),
        ("resnet32", "--lr 0.02", 0.85),
        ("conv1d", adam, 0.9),
        ("gru", adam, 0.9),
        ("lstm", adam, 0.9),
        ("transformer", adam, 0.9),
        ("ddnn", adam, 0.85),
        ("ddnn-edge", adam, 0.8),
    ] {
        let ran = paceline(&format!("train --data digits --model {model} --epochs 6 --threads 2 {options}"));
        let accuracy = ran.result()["final_accuracy"].as_f64().unwrap();
        assert!(accuracy >= wanted, "{model}: {accuracy}");
    }
}

#[test]
fn every_optimiser_schedule_and_option_learns() {
    for options in [
        "--optimizer adam --lr 0.002",
        "--optimizer adamw --lr 0.002 --weight-decay 0.01",
        "--nesterov --weight-decay 0.0005",
        "--momentum 0 --lr 0.2",
        "--schedule cosine --warmup 0.1",
        "--schedule step,every=4,factor=0.3",
        "--threads 2 --pin",
    ] {
        let ran = paceline(&format!("train --epochs 8 {options}"));
        assert_eq!(ran.code, 0, "{options}: {}", ran.stderr);
        let accuracy = ran.result()["final_accuracy"].as_f64().unwrap();
        assert!(accuracy >= 0.9, "{options}: {accuracy}");
    }
}

#[test]
fn the_result_line_has_every_field_of_the_contract() {
    let ran = paceline("train --steps 30 --target-accuracy 0.5 --eval-every 10");
    let result = ran.result();
    for field in [
        "/type",
        "/run",
        "/strategy",
        "/steps",
        "/samples",
        "/seconds/total",
        "/seconds/startup",
        "/seconds/train",
        "/samples_per_s",
        "/train_loss",
        "/final_loss",
        "/final_accuracy",
        "/replicas",
        "/time_to_accuracy_s",
        "/convergence_s",
        "/params_sha256",
        "/staleness/mean",
        "/staleness/p95",
        "/staleness/max",
        "/ranks/0/rank",
        "/ranks/0/role",
        "/ranks/0/host",
        "/ranks/0/params_sha256",
        "/ranks/0/compute_s",
        "/ranks/0/send_s",
        "/ranks/0/wait_s",
        "/ranks/0/apply_s",
        "/ranks/0/sent_bytes",
        "/ranks/0/received_bytes",
        "/ranks/0/cpu_s",
        "/ranks/0/rss_peak_bytes",
    ] {
        assert!(result.pointer(field).is_some(), "{field} is missing in {result}");
    }
    assert_eq!(result["type"], "result");
    assert!(result["time_to_accuracy_s"].as_f64().unwrap() <= result["seconds"]["train"].as_f64().unwrap());
    assert!(result["ranks"][0]["rss_peak_bytes"].as_u64().unwrap() > 1_000_000);
}

#[test]
fn work_is_counted_in_samples_and_epoch_tails_are_smaller_steps() {
    let result = paceline("train --steps 30").result();
    // 1,438 samples make 22 steps of 64 and one of 30; the run ends at exactly 30 · 64 samples.
    assert_eq!((result["samples"].as_u64(), result["steps"].as_u64()), (Some(1920), Some(31)));
    let result = paceline("train --epochs 2.5 --batch 100").result();
    assert_eq!((result["samples"].as_u64(), result["steps"].as_u64()), (Some(3595), Some(38)));
}

#[test]
fn the_same_plan_gives_the_same_parameters_for_any_number_of_threads() {
    let hash = |options: &str| {
        paceline(&format!("train --model lenet --steps 40 {options}")).result()["params_sha256"].clone()
    };
    let first = hash("");
    assert_eq!(first, hash(""));
    assert_eq!(first, hash("--threads 2"));
    assert_eq!(first, hash("--eval-every 7"), "evaluation does not disturb training");
    assert_ne!(first, hash("--seed 2"));
}

#[test]
fn json_streams_events_and_ends_with_the_result() {
    let ran = paceline("train --epochs 3 --json");
    let events: Vec<Value> =
        ran.stdout.lines().map(|l| serde_json::from_str(l).expect("a line of JSON")).collect();
    let kinds: Vec<&str> = events.iter().map(|e| e["type"].as_str().unwrap()).collect();
    assert_eq!(kinds.first(), Some(&"start"));
    assert_eq!(kinds.iter().filter(|k| **k == "evaluation").count(), 3);
    assert_eq!(kinds.last(), Some(&"result"));
    assert_eq!(kinds.iter().filter(|k| **k == "result").count(), 1);
}

#[test]
fn quiet_says_nothing_but_the_result() {
    let ran = paceline("train --epochs 1 --quiet");
    assert_eq!((ran.stdout.lines().count(), ran.stderr.as_str()), (1, ""));
}

#[test]
fn a_target_can_end_the_run() {
    let result = paceline("train --epochs 50 --target-accuracy 0.9 --stop-at-target").result();
    assert!(result["final_accuracy"].as_f64().unwrap() >= 0.9);
    assert!(result["samples"].as_u64().unwrap() < 50 * 1438);
    assert_eq!(result["time_to_accuracy_s"], result["seconds"]["train"]);
}

#[test]
fn mnist_is_read_gzipped_and_trained_within_150_megabytes() {
    let Some(folder) = datasets("mnist") else { return };
    for place in [folder.clone(), folder.join("mnist")] {
        let ran =
            paceline(&format!("train --data mnist --model lenet --steps 20 --data-dir {}", place.display()));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        let result = ran.result();
        assert!(result["final_accuracy"].as_f64().unwrap() > 0.5);
        assert!(result["ranks"][0]["rss_peak_bytes"].as_u64().unwrap() < 150_000_000);
    }
}

#[test]
fn fashion_mnist_is_found_where_debian_puts_it() {
    if !std::path::Path::new("/usr/share/datasets/fashion-mnist").is_dir() {
        return skip(Need::DebianPackage, "dataset-fashion-mnist");
    }
    let ran = paceline("train --data fashion-mnist --model mlp --epochs 0.1");
    assert!(ran.result()["final_accuracy"].as_f64().unwrap() > 0.6, "{}", ran.stderr);
}
