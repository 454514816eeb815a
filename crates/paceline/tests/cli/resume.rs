//! Runs that are interrupted, killed or lose a rank, and go on.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::{ENDLESS, PATIENCE, Running, gone, paceline, run, signal};

/// A store of its own.
fn store() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn words(store: &Path, words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    command.args(words.split_whitespace()).arg("--store").arg(store);
    command
}

/// The run's id and folder in a store that has one run.
fn only_run(store: &Path) -> (String, PathBuf) {
    let entry = std::fs::read_dir(store.join("runs")).unwrap().next().unwrap().unwrap();
    (entry.file_name().to_string_lossy().into_owned(), entry.path())
}

fn result(store: &Path, text: &str) -> Value {
    let ran = run(&mut words(store, text));
    assert_eq!(ran.code, 0, "{text}: {}", ran.stderr);
    ran.result()
}

/// The same but for what is measured.
fn numbers(result: &Value) -> [&Value; 6] {
    ["steps", "samples", "train_loss", "final_loss", "final_accuracy", "params_sha256"]
        .map(|key| &result[key])
}

const KINDS: [&str; 7] = [
    "--workers 1",
    "--workers 1 --optimizer adam",
    "--workers 2 --servers 2 --strategy ps",
    "--workers 3 --transport inproc",
    "--workers 2 --strategy stepwise --transport shm",
    "--workers 2 --compression topk,ratio=0.2 --transport uds",
    "--workers 2 --shares 3 --compression topk,ratio=0.2 --micro-batches 2",
];

#[test]
fn checkpoints_change_no_number() {
    for kind in KINDS {
        let base = format!("train --quiet --steps 12 --batch 16 {kind}");
        let (plain, saving) = (store(), store());
        let expected = result(plain.path(), &base);
        let saved = result(saving.path(), &format!("{base} --checkpoint-every 5 --keep 1"));
        assert_eq!(numbers(&expected), numbers(&saved), "{kind}");
        let checkpoints = only_run(saving.path()).1.join("checkpoints");
        let kept: Vec<_> = std::fs::read_dir(checkpoints).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(kept, ["step-000000000010"], "{kind}");
    }
}

#[test]
fn an_interrupted_run_saves_and_goes_on_bit_for_bit() {
    for kind in KINDS {
        // Long enough that the first signal comes in the middle.
        let epochs = if kind.contains("--workers 1") { 400 } else { 60 };
        let base = format!("--epochs {epochs} --batch 8 {kind}");
        let (plain, cut) = (store(), store());
        let expected = result(plain.path(), &format!("train --quiet {base}"));
        let mut resumed = None;
        for _ in 0..3 {
            let running = match &resumed {
                None => Running::start(&format!("{base} --store {}", cut.path().display())),
                Some(id) => Running::resume(&format!("{id} --store {}", cut.path().display())),
            };
            assert!(signal("INT", running.id()));
            let (code, text) = running.end();
            if code == 0 {
                assert!(resumed.is_some(), "{kind}: the run did not stop: {text}");
                break;
            }
            let (id, _) = only_run(cut.path());
            assert_eq!(code, 130, "{kind}: {text}");
            assert!(text.contains(&format!("paceline resume {id}")), "{kind}: {text}");
            resumed = Some(id);
        }
        let again = result(cut.path(), "resume last --quiet");
        assert_eq!(numbers(&expected), numbers(&again), "{kind}");
        // Once it has ended, its result is all there is to tell.
        assert_eq!(numbers(&result(cut.path(), "resume last")), numbers(&expected), "{kind}");
    }
}

#[test]
fn asynchronous_runs_go_on_with_exact_counts() {
    for sync in ["asp", "ssp", "switch --switch-at 0.5"] {
        let (cut, base) = (
            store(),
            format!("--epochs 20 --batch 8 --workers 2 --servers 2 --strategy ps --lr 0.01 --sync {sync}"),
        );
        let running = Running::start(&format!("{base} --store {}", cut.path().display()));
        assert!(signal("INT", running.id()));
        let (code, text) = running.end();
        assert!([0, 130].contains(&code), "{sync}: {text}");
        let ran = result(cut.path(), "resume last --quiet");
        assert_eq!(ran["samples"].as_u64().unwrap(), 20 * 1438, "{sync}");
    }
}

#[test]
fn a_run_that_loses_a_rank_starts_again_from_its_checkpoint() {
    for (kind, victim) in [("--workers 2", 1), ("--workers 2 --servers 1 --strategy ps", 2)] {
        let (plain, lossy) = (store(), store());
        let base = format!("--epochs 20 --batch 8 {kind} --checkpoint-every 200");
        let expected = result(plain.path(), &format!("train --quiet {base}"));
        let text = format!("{base} --on-loss restart --store {}", lossy.path().display());
        let running = Running::start(&text);
        let ranks = running.ranks();
        assert!(signal("KILL", ranks[victim]));
        let restarted = running.next("restarted");
        assert!(restarted["cause"].as_str().unwrap().contains("SIGKILL"), "{restarted}");
        let last = running.rest().pop().unwrap();
        assert_eq!((last["type"].as_str(), running.end().0), (Some("result"), 0));
        assert_eq!(numbers(&expected), numbers(&last), "{kind}");
        assert!(ranks.iter().all(|&pid| gone(pid)));
    }
}

#[test]
fn damaged_checkpoints_are_named_and_the_one_before_is_taken() {
    let (plain, cut) = (store(), store());
    let base = "--epochs 60 --batch 8 --workers 1 --checkpoint-every 500";
    let expected = result(plain.path(), &format!("train --quiet {base}"));
    let running = Running::start(&format!("{base} --store {}", cut.path().display()));
    running.next("checkpoint");
    running.next("checkpoint");
    drop(running);
    let folder = only_run(cut.path()).1.join("checkpoints");
    let mut kept: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).collect();
    kept.retain(|path| path.file_name().unwrap().to_string_lossy().starts_with("step-"));
    kept.sort();
    std::fs::write(kept.last().unwrap().join("rank-0.safetensors"), b"no numbers at all").unwrap();
    let ran = run(&mut words(cut.path(), "resume last"));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stderr.contains("cannot be used: rank-0.safetensors"), "{}", ran.stderr);
    assert_eq!(numbers(&ran.result()), numbers(&expected));
}

#[test]
fn what_cannot_be_resumed_or_saved_is_said() {
    let empty = store();
    let ran = run(&mut words(empty.path(), "resume last"));
    assert_eq!(ran.code, 5, "{}", ran.stderr);
    for (text, code, reason) in [
        ("train --checkpoint-every 0", 3, "at least 1 step"),
        ("train --keep 0", 3, "at least 1 checkpoint"),
        ("train --on-loss pray", 2, "restart"),
        ("resume", 2, "RUN"),
    ] {
        let ran = paceline(text);
        assert_eq!((ran.code, ran.stdout.as_str()), (code, ""), "{text}: {}", ran.stderr);
        assert!(ran.stderr.contains(reason), "{text}: {}", ran.stderr);
    }
}

#[test]
fn a_second_signal_ends_the_run_at_once() {
    let cut = store();
    // Steps of several seconds: the first signal waits for one of them.
    let running = Running::start(&format!(
        "{ENDLESS} --workers 2 --straggler rank=0,factor=3000 --store {}",
        cut.path().display()
    ));
    let ranks = running.ranks();
    assert!(signal("INT", running.id()));
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(signal("INT", running.id()));
    assert_eq!(running.end().0, 130);
    let start = std::time::Instant::now();
    while !ranks.iter().all(|&pid| gone(pid)) {
        assert!(start.elapsed() < PATIENCE, "ranks outlive their launcher");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
