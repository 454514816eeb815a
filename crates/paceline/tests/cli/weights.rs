//! Weights that a run starts from, layers that it leaves alone, and what it hands on.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{paceline, result};

/// Trains with checkpoints, six steps if nothing else is said, and exports the weights of the last one; the file, and what was said about it.
fn exported(place: &Path, name: &str, words: &str) -> (PathBuf, Value) {
    let (store, file) = (place.join(name), place.join(format!("{name}.safetensors")));
    let usual = "--steps 6 --checkpoint-every 2";
    let work = if words.contains("--checkpoint-every") { "" } else { usual };
    result(&format!("train --quiet --batch 16 {work} {words} --store {}", store.display()));
    let words = format!("export-weights last --json --store {} --out {}", store.display(), file.display());
    let ran = paceline(&words);
    assert_eq!(ran.code, 0, "{words}: {}", ran.stderr);
    (file, ran.result())
}

/// A tensor's bytes.
fn tensor(file: &Path, name: &str) -> Vec<u8> {
    let bytes = fs::read(file).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let at = |i: usize| 8 + length + header[name]["data_offsets"][i].as_u64().expect(name) as usize;
    bytes[at(0)..at(1)].to_vec()
}

#[test]
fn exported_weights_start_another_run_whatever_the_strategy() {
    let place = tempfile::tempdir().unwrap();
    let (file, first) = exported(place.path(), "first", "--workers 1");
    assert_eq!((&first["model"], &first["step"]), (&"mlp".into(), &4.into()));
    // With so small a rate that no number changes, what comes out is what went in. (It is also one that plain
    // JSON parsers read back a bit off: the plan would no longer be the checkpoints'.)
    for kind in [
        "--workers 1",
        "--workers 2",
        "--workers 2 --transport inproc",
        "--workers 2 --servers 2 --strategy ps",
        "--workers 2 --strategy gossip",
    ] {
        let words = format!("{kind} --lr 1e-30 --seed 2 --init {}", file.display());
        let (_, again) = exported(place.path(), &kind.replace([' ', '-'], ""), &words);
        assert_eq!(again["params_sha256"], first["params_sha256"], "{kind}");
    }
}

#[test]
fn infer_tells_accuracy_latency_and_throughput_of_given_weights() {
    let place = tempfile::tempdir().unwrap();
    let (file, _) = exported(place.path(), "first", "--workers 1 --epochs 3 --checkpoint-every 60");
    let infer = format!("infer --init {} --batch 1,8 --threads 1,2 --seconds 0.05", file.display());
    let ran = paceline(&format!("{infer} --json --quiet"));
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert!(report["accuracy"].as_f64().unwrap() > 0.7, "{report}");
    let rows = report["rows"].as_array().unwrap();
    let measured: Vec<_> = rows.iter().map(|row| [&row["threads"], &row["batch"]]).collect();
    assert_eq!(serde_json::json!(measured), serde_json::json!([[1, 1], [1, 8], [2, 1], [2, 8]]));
    for row in rows {
        let [p50, p95, p99, rate] =
            ["p50_ms", "p95_ms", "p99_ms", "samples_per_s"].map(|key| row[key].as_f64().unwrap());
        assert!(0.0 < p50 && p50 <= p95 && p95 <= p99 && rate > 0.0, "{row}");
    }
    let table = paceline(&infer);
    for word in ["accuracy", "p99 (ms)", "samples/s", "first.safetensors"] {
        assert!(table.stdout.contains(word), "{word}: {}", table.stdout);
    }
    let untrained = paceline("infer --seconds 0.02 --batch 4 --quiet");
    assert!(untrained.stdout.contains("untrained"), "{} {}", untrained.stdout, untrained.stderr);
    assert_eq!(paceline("infer --batch 0").code, 2);
    assert_eq!(paceline(&format!("infer --model lenet --init {}", file.display())).code, 3);
}

#[test]
fn frozen_layers_do_not_change_whatever_moves_the_others() {
    let place = tempfile::tempdir().unwrap();
    let (file, _) = exported(place.path(), "first", "--workers 1");
    for kind in [
        "--workers 1 --weight-decay 0.1",
        "--workers 1 --optimizer adamw --weight-decay 0.1",
        "--workers 3 --compression topk,ratio=0.2",
        "--workers 3 --strategy gossip --weight-decay 0.1",
        "--workers 3 --strategy stepwise",
        "--workers 3 --strategy tree --averages weights",
        "--workers 2 --servers 2 --strategy ps --weight-decay 0.1 --compression fp16",
    ] {
        let words = format!("{kind} --init {} --freeze fc1,fc3", file.display());
        let (after, _) = exported(place.path(), &kind.replace([' ', '-', ',', '='], ""), &words);
        for (name, frozen) in
            [("fc1.weight", true), ("fc1.bias", true), ("fc2.weight", false), ("fc3.bias", true)]
        {
            assert_eq!(tensor(&file, name) == tensor(&after, name), frozen, "{kind}: {name}");
        }
    }
}

#[test]
fn weights_that_do_not_fit_are_refused_before_anything_starts() {
    let place = tempfile::tempdir().unwrap();
    let (file, _) = exported(place.path(), "first", "--workers 1");
    let (store, file) = (place.path().join("store"), file.display().to_string());
    let train = format!("train --steps 2 --store {}", store.display());
    fs::write(place.path().join("none.safetensors"), b"hello, world").unwrap();
    let none = place.path().join("none.safetensors").display().to_string();
    for (words, problem) in [
        (format!("--init {file} --data synthetic"), "fc1.weight is [256, 64] in the file"),
        (format!("--init {file} --model lenet --workers 2"), "does not have conv1.weight"),
        (format!("--init {none} --init-partial"), "no safetensors file"),
        (format!("--init {none}.not"), "No such file"),
        ("--freeze fc9".into(), "fc9: there is no such layer to train; there are fc1, fc2, fc3"),
        ("--freeze fc1,fc2,fc3".into(), "nothing is left to train"),
    ] {
        let ran = paceline(&format!("{train} {words}"));
        assert_eq!((ran.code, ran.stdout.as_str()), (3, ""), "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains(problem) && ran.stderr.contains("hint:"), "{words}: {}", ran.stderr);
        assert!(!store.exists(), "{words}: nothing is recorded");
    }
    assert_eq!(paceline(&format!("{train} --init-partial")).code, 2);
    let ran = paceline(&format!("{train} --init {file} --init-partial --data synthetic --workers 2"));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stderr.contains("left out of") && ran.stderr.contains("fc1.weight"), "{}", ran.stderr);
}

#[test]
fn a_checkpoint_can_be_named_and_a_run_without_one_says_so() {
    let place = tempfile::tempdir().unwrap();
    let store = place.path().join("plain");
    result(&format!("train --quiet --steps 2 --store {}", store.display()));
    let out = place.path().join("out.safetensors");
    let export = |run: &str| {
        paceline(&format!("export-weights {run} --store {} --out {}", store.display(), out.display()))
    };
    let ran = export("last");
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("has no checkpoint") && ran.stderr.contains("--checkpoint-every"));
    assert_eq!(export("nowhere").code, 5);
    assert!(!out.exists());

    // One checkpoint by its folder.
    let (file, last) = exported(place.path(), "kept", "--workers 1");
    let runs = place.path().join("kept/runs");
    let run = fs::read_dir(runs).unwrap().next().unwrap().unwrap().path();
    let folder = run.join("checkpoints/step-000000000002");
    let ran = export(folder.to_str().unwrap());
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.contains("after step 2"), "{}", ran.stdout);
    assert_eq!(last["step"], 4);
    assert_ne!(tensor(&out, "fc1.weight"), tensor(&file, "fc1.weight"));
}
