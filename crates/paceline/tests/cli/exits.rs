//! Networks with early exits: answers of devices, gateway, edge and cloud as ranks are those of one process.

use serde_json::Value;

use crate::support::{paceline, result};

/// What `infer` tells as JSON.
fn answered(words: &str) -> Value {
    let ran = paceline(&format!("infer {words} --json --quiet"));
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{words}");
    serde_json::from_str(&ran.stdout).unwrap()
}

/// Answers are the same, samples leave once, and bytes are those of the formula. Scores and features of a device and sample.
fn holds(words: &str, report: &Value, scores: f64, features: f64) {
    let distributed = &report["distributed"];
    assert_eq!(distributed["different"], 0, "{words}");
    let samples = report["test_samples"].as_u64().unwrap();
    assert_eq!(distributed["samples"], samples, "{words}");
    let left = |exit: &Value| exit["left"].as_u64().unwrap();
    let exits = report["exits"].as_array().unwrap();
    assert_eq!(exits.iter().map(left).sum::<u64>(), samples, "{words}");
    assert_eq!(distributed["body_bytes"], distributed["formula_bytes"], "{words}");
    assert_eq!(report["without_device"].as_array().unwrap().len(), 6, "{words}");
    if report["lost"].as_array().unwrap().is_empty() {
        let open = samples - left(&exits[0]);
        let formula = 6.0 * (samples as f64 * scores + open as f64 * features);
        assert_eq!(distributed["body_bytes"].as_f64().unwrap(), formula, "{words}");
    }
    for tier in distributed["tiers"].as_array().unwrap() {
        // A header has 72 bytes, and a body is filled up to four.
        let [headers, messages] = ["header_bytes", "messages"].map(|key| tier[key].as_u64().unwrap());
        assert!((72 * messages..=75 * messages).contains(&headers), "{words}: {tier}");
    }
}

#[test]
fn tiers_as_processes_answer_as_one_process_does_whatever_they_talk_over() {
    let place = tempfile::tempdir().unwrap();
    // Digits are cut into views of 4×3 pixels: 16 signs of each device.
    for (model, transports) in [("ddnn", ["tcp", "uds"]), ("ddnn-edge", ["shm", "inproc"])] {
        let store = place.path().join(model);
        result(&format!(
            "train --quiet --data digits --model {model} --optimizer adam --lr 0.002 --epochs 3 --batch 32 \
             --checkpoint-every 100 --store {}",
            store.display()
        ));
        let run = format!("last --store {}", store.display());
        let mut shares = Vec::new();
        for (threshold, transport) in [("0.4", transports[0]), ("0.7", transports[1])] {
            let words = format!("{run} --exits {threshold} --transport {transport}");
            let report = answered(&words);
            holds(&words, &report, 40.0, 2.0);
            assert_eq!(report["distributed"]["processes"], transport != "inproc", "{words}");
            shares.push(report["exits"][0]["left_share"].as_f64().unwrap());
        }
        assert!(shares[0] < shares[1] && shares[1] > 0.0 && shares[0] < 1.0, "{model}: {shares:?}");
    }
}

#[test]
fn thresholds_lost_devices_and_emulated_links() {
    let usual = "--model ddnn --data digits --transport inproc";
    // Computed as a whole, as training evaluates it, the network is as often right as its last tier is.
    let whole = answered("--model ddnn --data digits --batch 64 --seconds 0.01")["accuracy"].clone();
    for (threshold, exit) in [("0", 1), ("1", 0)] {
        let words = format!("{usual} --exits {threshold}");
        let report = answered(&words);
        holds(&words, &report, 40.0, 2.0);
        assert_eq!(report["exits"][exit]["left_share"], 1.0, "{words}");
        assert_eq!(report["exits"][1]["accuracy"], whole, "{words}");
        assert!(report["exits"][1 - exit]["accuracy_of_left"].is_null(), "{words}");
    }
    let words = format!("{usual} --exits 0.9 --lost 2,4 --network 100mbit,100us");
    let report = answered(&words);
    holds(&words, &report, 40.0, 2.0);
    let table = paceline(&format!("infer {usual} --exits 0.9"));
    for word in ["local", "cloud", "without device", "by the formula", "untrained"] {
        assert!(table.stdout.contains(word), "{word}: {}", table.stdout);
    }
}

#[test]
fn batch_and_threads_act_and_change_no_answer() {
    let usual = "--model ddnn --data digits --transport inproc --exits 0.95";
    let told = answered(usual);
    let other = answered(&format!("{usual} --batch 16 --threads 2"));
    holds(usual, &other, 40.0, 2.0);
    let [usual_batch, batch] = [&told, &other].map(|report| report["distributed"]["batch"].as_u64().unwrap());
    assert_eq!((usual_batch, batch), (64, 16));
    let threads = [&told, &other].map(|report| report["distributed"]["threads"].as_u64().unwrap());
    assert_eq!(threads, [1, 2], "as the ranks tell");
    let samples = told["test_samples"].as_u64().unwrap();
    for (report, batch) in [(&told, 64), (&other, 16)] {
        // A device sends a message of scores for each batch, and one of features for those that have open samples.
        let messages = report["distributed"]["tiers"][0]["messages"].as_u64().unwrap();
        let batches = samples.div_ceil(batch);
        assert!((batches..=2 * batches).contains(&messages), "{batch}: {messages}");
    }
    assert_eq!(told["exits"], other["exits"]);
    assert_eq!(told["without_device"], other["without_device"]);
}

#[test]
fn what_cannot_be_answered_is_refused_in_words() {
    for (words, code, reason) in [
        ("infer --exits 0.5", 3, "model mlp has no early exits"),
        ("infer --model ddnn --exits 1.5", 2, "between 0 and 1"),
        ("infer --model ddnn --exits 0.5 --lost 6", 2, "ddnn has devices 0 to 5"),
        ("infer --model ddnn --lost 1", 2, "--exits"),
        (
            "infer --model ddnn --exits 0.5 --batch 8,16",
            2,
            "--batch 8,16 with --exits: the test split is answered once",
        ),
        ("infer --model ddnn --exits 0.5 --threads 1,2", 2, "--threads 1,2 with --exits"),
        (
            "infer --model ddnn --data views --exits 0.5 --batch 4096",
            2,
            "--batch 4096 with --exits: a message holds",
        ),
        ("infer last --model ddnn --exits 0.5", 2, "--model beside the run last"),
        ("train --model ddnn --stages 2", 3, "early exits"),
    ] {
        let ran = paceline(words);
        assert_eq!((ran.code, ran.stdout.as_str()), (code, ""), "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains(reason), "{words}: {}", ran.stderr);
    }
}
