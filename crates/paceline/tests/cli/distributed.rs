//! `paceline train` with several processes.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{ENDLESS, PATIENCE, Running, paceline, signal};

fn result(words: &str) -> Value {
    let ran = paceline(words);
    assert_eq!(ran.code, 0, "{words}: {}", ran.stderr);
    ran.result()
}

#[test]
fn processes_over_tcp_give_the_parameters_of_threads_bit_for_bit() {
    // Threads in process equal one worker with the whole batch (paceline-train's tests).
    for model in ["mlp", "lenet"] {
        for workers in [2, 3, 4] {
            for strategy in
                ["ring-allreduce", "ring-reduce", "ps --servers 1", "ps --servers 2", "ps --servers 3"]
            {
                let words = format!(
                    "train --quiet --model {model} --workers {workers} --strategy {strategy} --steps 6 --batch 24 --bucket 64KiB"
                );
                let threads = result(&format!("{words} --transport inproc"));
                let processes = result(&words);
                assert_eq!(threads["params_sha256"], processes["params_sha256"], "{words}");
                let ranks = processes["ranks"].as_array().unwrap();
                let workers: Vec<_> = ranks.iter().filter(|r| r["role"] == "worker").collect();
                assert!(workers.iter().all(|w| w["params_sha256"] == workers[0]["params_sha256"]), "{words}");
                assert!(workers.iter().all(|w| w["sent_bytes"].as_u64().unwrap() > 0), "{words}");
            }
        }
    }
}

#[test]
fn every_strategy_learns_digits_with_4_workers() {
    for options in [
        "--strategy ring-allreduce",
        "--strategy ring-reduce",
        "--strategy ps --servers 2",
        "--strategy ps --servers 1 --sync asp --lr 0.02 --momentum 0.5",
        "--strategy ps --servers 2 --sync ssp --staleness 2 --lr 0.02 --momentum 0.5",
    ] {
        let result = result(&format!("train --quiet --workers 4 --batch 16 --epochs 12 {options}"));
        let accuracy = result["final_accuracy"].as_f64().unwrap();
        assert!(accuracy >= 0.93, "{options}: {accuracy}");
        assert_eq!(result["samples"].as_u64(), Some(12 * 1438), "{options}");
    }
}

#[test]
fn under_ssp_a_straggler_bounds_the_staleness_of_the_others() {
    // One of two workers is five times slower: between its read and its write the other one can make at
    // most 2s + 1 updates.
    for bound in [0, 1, 2] {
        let words = format!(
            "train --quiet --workers 2 --servers 1 --strategy ps --sync ssp --staleness {bound} --epochs 2 --straggler rank=1,factor=5"
        );
        let most = result(&words)["staleness"]["max"].as_f64().unwrap();
        assert!(most <= f64::from(2 * bound + 1), "ssp({bound}): {most}");
    }
    let asp = result("train --quiet --workers 2 --servers 1 --strategy ps --sync asp --epochs 2");
    assert_eq!(asp["samples"].as_u64(), Some(2 * 1438));
    assert!(asp["staleness"]["max"].as_f64().unwrap() >= asp["staleness"]["mean"].as_f64().unwrap());
}

#[test]
fn a_run_can_be_stopped_after_a_step_without_changing_the_steps_before() {
    let whole = result("train --quiet --workers 2 --steps 8 --schedule cosine");
    let part = result("train --quiet --workers 2 --steps 8 --schedule cosine --stop-after-step 5");
    assert_eq!(part["steps"], 5);
    assert_ne!(whole["params_sha256"], part["params_sha256"]);
    let single = result("train --quiet --workers 1 --strategy ring-allreduce --steps 8 --stop-after-step 5");
    let plain = result("train --quiet --workers 1 --steps 8 --stop-after-step 5");
    assert_eq!(single["params_sha256"], plain["params_sha256"], "one worker is plain SGD");
}

#[test]
fn impossible_plans_are_refused_with_what_would_be_valid() {
    for (words, reason) in [
        ("--workers 2 --staleness 3", "--sync ssp --staleness 3"),
        ("--workers 2 --servers 1", "ring-allreduce has no servers"),
        ("--workers 2 --strategy ps", "needs at least 1 server"),
        ("--workers 2 --sync asp", "valid: bsp"),
        ("--workers 2 --sync ssp", "e.g. --sync ssp --staleness 3"),
        ("--sync asp", "one worker alone"),
        ("--workers 1500 --batch 1", "1438 samples"),
        ("--workers 2 --straggler rank=2,factor=3", "counted from 0"),
        ("--workers 0", "at least 1"),
    ] {
        let ran = paceline(&format!("train {words}"));
        assert_eq!((ran.code, ran.stdout.as_str()), (3, ""), "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains(reason), "{words}: {}", ran.stderr);
    }
    assert_eq!(paceline("train --strategy rings").code, 2);
    assert_eq!(paceline("train --straggler rank=1").code, 2);
}

/// A process that has ended, or is only waiting to be reaped.
fn gone(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.is_empty() || status.contains(") Z ")
}

#[test]
fn a_process_that_dies_ends_the_run_and_is_named() {
    for (words, rank, name) in [
        ("--workers 3", 1, "worker 1"),
        ("--workers 3 --strategy ring-reduce", 2, "worker 2"),
        ("--workers 2 --servers 2 --strategy ps", 0, "worker 0"),
        ("--workers 2 --servers 2 --strategy ps", 3, "server 3"),
        ("--workers 2 --servers 1 --strategy ps --sync asp", 2, "server 2"),
    ] {
        let run = Running::start(&format!("{ENDLESS} {words}"));
        let ranks = run.ranks();
        assert!(signal("KILL", ranks[rank]));
        let (code, text) = run.end();
        assert_eq!(code, 4, "{words}: {text}");
        let error = text.lines().find(|l| l.starts_with("error:")).unwrap_or_default();
        assert!(
            error.contains(name) && error.contains("step") && error.contains("SIGKILL"),
            "{words}: {text}"
        );
        assert!(ranks.iter().all(|&pid| gone(pid)), "{words}: nothing is left behind");
    }
}

#[test]
fn when_the_launcher_dies_its_ranks_die_too() {
    let run = Running::start(&format!("{ENDLESS} --workers 2 --servers 1 --strategy ps"));
    let ranks = run.ranks();
    assert_eq!(ranks.len(), 3);
    // Dropping the run kills its launcher, and nobody else.
    drop(run);
    let start = Instant::now();
    while !ranks.iter().all(|&pid| gone(pid)) {
        assert!(start.elapsed() < PATIENCE, "ranks outlive their launcher");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn divergence_of_a_worker_is_told_as_such() {
    let ran = paceline("train --workers 2 --lr 1e6 --epochs 100");
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("diverged") && ran.stderr.contains("worker"), "{}", ran.stderr);
}

#[test]
fn exchange_benchmarks_print_the_fields_of_the_contract() {
    for words in [
        "bench allreduce --workers 3 --sizes 4KiB,1MiB --seconds 0.01 --json",
        "bench allreduce --workers 2 --sizes 4 --seconds 0.01 --transport inproc --json",
        "bench p2p --duplex --sizes 64KiB --seconds 0.01 --json",
        "bench p2p --sizes 64KiB,4MiB --seconds 0.01 --json",
    ] {
        let rows = result_document(words);
        for row in rows["results"].as_array().unwrap() {
            for field in ["bytes", "seconds_median", "seconds_p95", "algbw_bytes_per_s", "busbw_bytes_per_s"]
            {
                assert!(row[field].as_f64().unwrap() > 0.0, "{words}: {field}");
            }
        }
    }
}

fn result_document(words: &str) -> Value {
    let ran = paceline(words);
    assert_eq!(ran.code, 0, "{words}: {}", ran.stderr);
    serde_json::from_str(&ran.stdout).expect("one JSON document")
}
