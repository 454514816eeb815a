//! How a global batch is cut up: shares on fewer workers, micro-batches.

use serde_json::Value;

use crate::support::{paceline, result};

/// The result of a run of a few steps.
fn train(words: &str) -> Value {
    let size = if words.contains("--steps") { "" } else { "--steps 6 --batch 13" };
    result(&format!("train --quiet --seed 3 {size} {words}"))
}

fn hash(words: &str) -> String {
    train(words)["params_sha256"].as_str().unwrap().to_owned()
}

/// The first line of what a refused plan is told.
fn refusal(words: &str) -> String {
    let ran = paceline(&format!("train --quiet --steps 2 {words}"));
    assert_eq!(ran.code, 3, "{words}: {}", ran.stderr);
    ran.stderr.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn shares_on_fewer_processes_give_what_as_many_workers_give() {
    for (kind, transport) in [
        ("", "tcp"),
        ("--strategy tree --optimizer adam", "uds"),
        ("--strategy halving-doubling --compression int8", "shm"),
        ("--strategy ps --servers 2", "grpc"),
        ("--strategy ring-reduce --shard by-label --lr-scaling linear", "inproc"),
    ] {
        let four = train(&format!("--workers 4 {kind} --transport {transport}"));
        for workers in [1, 2, 3] {
            let fewer = train(&format!("--workers {workers} --shares 4 {kind} --transport {transport}"));
            for key in ["params_sha256", "steps", "samples", "final_accuracy"] {
                assert_eq!(fewer[key], four[key], "{workers} workers, {kind}, {key}");
            }
        }
    }
    // One share per worker is what there is anyway.
    assert_eq!(hash("--workers 2 --shares 2"), hash("--workers 2"));
}

#[test]
fn statistics_of_batch_norm_are_those_of_the_shares() {
    let words = "--model resnet20 --steps 2 --batch 3";
    let four = train(&format!("--workers 4 {words}"));
    for workers in [1, 3] {
        let fewer = train(&format!("--workers {workers} --shares 4 {words}"));
        for key in ["params_sha256", "final_accuracy", "final_loss"] {
            assert_eq!(fewer[key], four[key], "{workers} workers, {key}");
        }
    }
}

#[test]
fn virtual_time_has_shares_too() {
    for kind in [
        "--workers 2 --shares 5",
        "--workers 2 --shares 4 --servers 1 --strategy ps",
        "--workers 1 --shares 3",
    ] {
        let words = format!("--steps 6 --batch 13 --seed 3 {kind}");
        let simulated = result(&format!("simulate --quiet --learn {words}"));
        assert_eq!(simulated["params_sha256"], train(kind)["params_sha256"], "{kind}");
        // Without numbers it takes as long.
        let timed = result(&format!("simulate --quiet {words}"));
        assert_eq!(timed["seconds"]["train"], simulated["seconds"]["train"], "{kind}");
    }
    // Two workers with two shares each compute twice as long as with one.
    let compute = |words: &str| {
        let words =
            format!("simulate --quiet --jitter off --steps 6 --batch 64 --model lenet --workers 2 {words}");
        result(&words)["ranks"][0]["compute_s"].as_f64().unwrap()
    };
    let ratio = compute("--shares 4") / compute("");
    assert!((1.9..2.1).contains(&ratio), "{ratio}");
}

#[test]
fn micro_batches_change_no_number_without_batch_norm() {
    let one = train("--workers 2 --model lenet");
    for micro_batches in [2, 5, 13] {
        let more = train(&format!("--workers 2 --model lenet --micro-batches {micro_batches}"));
        for key in ["params_sha256", "steps", "samples"] {
            assert_eq!(more[key], one[key], "{micro_batches}, {key}");
        }
    }
    assert_eq!(hash("--micro-batches 3"), hash(""), "one worker alone");
}

#[test]
fn what_cannot_be_cut_up_is_refused_with_a_reason() {
    for (words, flag, reason) in [
        ("--workers 3 --shares 2", "--shares 2", "at least 3 shares"),
        ("--workers 2 --shares 4 --strategy stepwise", "--shares 4", "weights of its own"),
        ("--workers 2 --shares 4 --strategy gossip", "--shares 4", "weights of its own"),
        ("--workers 2 --shares 4 --averages weights", "--shares 4", "weights of its own"),
        ("--workers 2 --shares 4 --strategy ps --servers 1 --sync asp", "--shares 4", "--sync bsp"),
        ("--workers 1 --shares 500", "--shares 500", "at most 128"),
        ("--batch 4 --micro-batches 5", "--micro-batches 5", "between 1 and --batch (4)"),
        ("--micro-batches 0", "--micro-batches 0", "between 1 and --batch"),
    ] {
        let said = refusal(words);
        assert!(said.contains(flag) && said.contains(reason), "{words}: {said}");
    }
}

#[test]
fn a_model_is_shown_with_what_micro_batches_do_to_memory_and_batch_norm() {
    let bytes = |words: &str| {
        let shown = result(&format!("model show {words} --json"));
        (shown["micro_batch"].as_u64().unwrap(), shown["pass_bytes"].as_u64().unwrap())
    };
    let (whole, quarter) = (bytes("lenet --batch 30"), bytes("lenet --batch 30 --micro-batches 4"));
    assert_eq!((whole.0, quarter.0), (30, 8));
    assert_eq!(whole.1 * 8, quarter.1 * 30, "memory is that of a pass");
    let text = |words: &str| paceline(&format!("model show {words}")).stdout;
    assert!(text("lenet --micro-batches 4").contains("bit for bit those of one pass"));
    assert!(text("resnet20 --micro-batches 4").contains("batch norm sees one pass at a time"));
    assert!(!text("resnet20").contains("passes"));
    assert_eq!(paceline("model show lenet --batch 4 --micro-batches 5").code, 3);
}
