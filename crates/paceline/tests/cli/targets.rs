//! Runs of several processes that end at a target.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::{Ran, paceline, result, run};

/// A run that reaches its target within a few evaluations.
const TARGET: &str = "--batch 16 --epochs 20 --eval-every 4 --lr 0.03 --target-accuracy 0.5 --stop-at-target";

fn in_store(store: &Path, words: &str, fault: Option<(&str, &str)>) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    run(command.args(words.split_whitespace()).arg("--store").arg(store).envs(fault))
}

/// What a run that ended must say the same of, every time.
fn end(result: &Value) -> [&Value; 6] {
    ["steps", "samples", "final_loss", "final_accuracy", "params_sha256", "stopped_at_target"]
        .map(|key| &result[key])
}

#[test]
fn a_target_ends_processes_where_it_ends_threads() {
    for (words, transport) in [
        ("--workers 3 --strategy ring-allreduce", "tcp"),
        ("--workers 3 --strategy tree --network 1gbit,1ms", "uds"),
        ("--workers 3 --strategy stepwise --variant rotate", "shm"),
        ("--workers 3 --strategy gossip", "grpc"),
        ("--workers 2 --servers 2 --strategy ps", "tcp"),
        ("--workers 2 --servers 1 --strategy ps --compression fp16 --checkpoint-every 3", "shm"),
    ] {
        let over =
            |transport: &str| result(&format!("train --quiet {TARGET} {words} --transport {transport}"));
        let (threads, processes) = (over("inproc"), over(transport));
        assert_eq!(end(&threads), end(&processes), "{words} over {transport}");
        assert_eq!(threads["stopped_at_target"], threads["steps"], "{words}");
        assert!(threads["time_to_accuracy_s"].is_number(), "{words}");
    }
}

#[test]
fn asynchronous_processes_end_well_at_a_common_step_and_the_record_says_so() {
    let store = tempfile::tempdir().unwrap();
    for sync in ["asp", "ssp --staleness 2 --transport uds --checkpoint-every 5"] {
        let words = format!("train {TARGET} --workers 3 --servers 2 --strategy ps --sync {sync}");
        let ran = in_store(store.path(), &words, None);
        assert_eq!(ran.code, 0, "{sync}: {}", ran.stderr);
        let result = ran.result();
        // 30 steps of 48 samples, the last of 46, are an epoch.
        let steps = result["steps"].as_u64().unwrap();
        assert_eq!(result["samples"], 1438 * (steps / 30) + 48 * (steps % 30), "{sync}");
        assert_eq!(result["stopped_at_target"], steps, "{sync}");
        let said = format!("s of training; the run ended there, after step {steps}");
        assert!(ran.stderr.contains(&said), "{sync}: {}", ran.stderr);
    }
    let runs = in_store(store.path(), "runs --json", None).stdout;
    let runs: Vec<Value> = serde_json::from_str(&runs).unwrap_or_else(|e| panic!("{e}: {runs}"));
    assert_eq!(runs.len(), 2);
    assert!(runs.iter().all(|run| run["state"] == "ok"), "{runs:?}");
}

#[test]
fn a_rank_that_dies_while_others_wait_for_the_verdict_is_named() {
    let (die, stop) = ("PACELINE_TEST_DIE", "PACELINE_TEST_STOP");
    for (words, fault, cause) in [
        ("--workers 3 --strategy ring-allreduce", die, "SIGKILL"),
        ("--workers 3 --strategy gossip --transport shm", die, "SIGKILL"),
        ("--workers 2 --servers 1 --strategy ps", die, "SIGKILL"),
        ("--workers 2 --servers 1 --strategy ps --compression fp16", die, "SIGKILL"),
        ("--workers 3 --strategy tree", stop, "nothing was heard of it for 5 s"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
        let words = format!("train --quiet {TARGET} {words}");
        let ran = run(command.args(words.split_whitespace()).env(fault, "1:4"));
        assert_eq!(ran.code, 4, "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains("worker 1") && ran.stderr.contains(cause), "{words}: {}", ran.stderr);
    }
}

#[test]
fn a_run_that_lost_a_rank_goes_on_to_where_it_would_have_ended() {
    for words in ["--workers 2 --strategy tree", "--workers 2 --servers 1 --strategy ps --compression fp16"] {
        let store = tempfile::tempdir().unwrap();
        let words = format!("train --quiet {TARGET} {words} --checkpoint-every 3");
        let expected = result(&words);
        let lost = in_store(store.path(), &words, Some(("PACELINE_TEST_DIE", "1:4")));
        assert_eq!(lost.code, 4, "{words}: {}", lost.stderr);
        let resumed = in_store(store.path(), "resume last --quiet", None);
        assert_eq!(resumed.code, 0, "{words}: {}", resumed.stderr);
        assert_eq!(end(&resumed.result()), end(&expected), "{words}");
    }
}

#[test]
fn virtual_time_evaluates_nothing_without_learning() {
    let ran = paceline("simulate --workers 2 --target-accuracy 0.5 --stop-at-target");
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    assert!(ran.stderr.contains("without --learn"), "{}", ran.stderr);
    let words = format!("--quiet {TARGET} --workers 3 --strategy halving-doubling");
    let [real, simulated] = ["train", "simulate --learn"].map(|verb| result(&format!("{verb} {words}")));
    assert_eq!(end(&real), end(&simulated));
}
