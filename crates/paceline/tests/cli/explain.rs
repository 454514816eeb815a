//! Recorded runs explained.

use std::fs;
use std::process::Command;

use crate::support::{paceline, run};

#[test]
fn a_straggler_is_found_in_what_was_recorded_and_two_runs_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let place = format!("--store {}", store.display());
    let train = "train --quiet --workers 2 --servers 1 --strategy ps --epochs 4 --trace";
    let slow = paceline(&format!("{train} --straggler rank=1,factor=200 {place}"));
    assert_eq!(slow.code, 0, "{}", slow.stderr);
    let alone = paceline(&format!("train --quiet --epochs 4 {place}"));
    assert_eq!(alone.code, 0, "{}", alone.stderr);
    let (slow, alone) = (slow.result()["run"].clone(), alone.result()["run"].clone());
    let (slow, alone) = (slow.as_str().unwrap(), alone.as_str().unwrap());
    let said = paceline(&format!("explain {slow} --vs {alone} --json {place}"));
    assert_eq!(said.code, 0, "{}", said.stderr);
    let said = said.result();
    assert_eq!(said["verdict"]["cause"], "straggler", "{said}");
    assert_eq!(said["verdict"]["rank"], 1, "{said}");
    assert_eq!(said["vs"]["ranks"].as_array().unwrap().len(), 1, "{said}");
    assert!(said["comparison"]["sentence"].as_str().unwrap().contains("samples/s"), "{said}");
    assert!(
        said["path"]["seconds"].as_f64().unwrap() > 0.0 && said["wires"]["messages"].as_u64().unwrap() > 20
    );
    let text = paceline(&format!("explain {slow} {place}")).stdout;
    for part in ["is a straggler", "What would help", "The chain that sets the pace", "Who waited for whom"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let out = folder.path().join("out");
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    command.args(["report", slow, alone, "--store"]).arg(&store).arg("--out").arg(&out);
    let ran = run(&mut command);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    for chart in ["accuracy", "phases-1", "resources-1", "links-1", "phases-2"] {
        let numbers = fs::read_to_string(out.join(format!("charts/{chart}.csv"))).unwrap_or_default();
        assert!(numbers.lines().count() > 1, "{chart}");
    }
}

/// Runs in virtual time with a cause planted, and without one.
const PLANTED: &[(&str, &str)] = &[
    ("compute", "--model lenet --workers 4 --batch 64 --network 25gbit,20us --steps 20"),
    (
        "straggler",
        "--model lenet --workers 4 --batch 16 --straggler rank=2,factor=3 --network 25gbit,20us --steps 20",
    ),
    (
        "straggler",
        "--model conv1d --workers 3 --servers 1 --strategy ps --batch 32 --straggler rank=0,factor=2.5 --steps 20",
    ),
    ("bandwidth", "--model lenet --workers 4 --batch 16 --network 300mbit,20us --steps 20"),
    ("bandwidth", "--model mlp --workers 3 --batch 16 --network 50mbit,20us --steps 20"),
    (
        "bandwidth",
        "--model mlp --workers 2 --servers 1 --strategy ps --batch 16 --network 50mbit,20us --steps 20",
    ),
    ("latency", "--model mlp --workers 3 --batch 16 --network 25gbit,20ms --steps 20"),
    ("latency", "--model gru --workers 8 --batch 16 --strategy tree --network 25gbit,10ms --steps 20"),
    ("small-messages", "--model mlp --workers 4 --batch 8 --bucket 2KiB --steps 8"),
    ("small-messages", "--model mlp --workers 2 --servers 1 --strategy ps --batch 8 --bucket 1KiB --steps 8"),
];

#[test]
fn causes_planted_in_virtual_time_are_named_and_gains_are_simulated() {
    let folder = tempfile::tempdir().unwrap();
    let place = format!("--store {}", folder.path().display());
    let cluster = folder.path().join("cluster.toml");
    let host = |name: &str, count: usize, speed: f64| {
        format!(
            "[[host]]\nname = \"{name}\"\ncount = {count}\ncores = 4\nspeed = {speed}\n\
             bandwidth = \"25gbit\"\nlatency = \"20us\"\n"
        )
    };
    fs::write(&cluster, host("fast", 4, 1.0) + &host("slow", 1, 0.01)).unwrap();
    let starved = format!(
        "--model mlp --workers 4 --servers 1 --strategy ps --placement dedicated --steps 20 --cluster {}",
        cluster.display()
    );
    let all = PLANTED.iter().map(|(cause, words)| (*cause, (*words).to_owned()));
    for (cause, words) in all.chain([("server", starved)]) {
        let ran = paceline(&format!("simulate --quiet --data synthetic --trace {words} {place}"));
        assert_eq!(ran.code, 0, "{words}: {}", ran.stderr);
        let said = paceline(&format!("explain last --json {place}"));
        assert_eq!(said.code, 0, "{words}: {}", said.stderr);
        let said = said.result();
        assert_eq!(said["verdict"]["cause"], cause, "{words}: {said}");
        assert_eq!(said["origin"], "simulated");
        let first = &said["verdict"]["changes"][0];
        assert_eq!(first["predicted"], true, "{words}: {said}");
        assert!(first["gain"].as_f64().unwrap() > 0.1, "{words}: {said}");
        let alone = said["alone"]["sentence"].as_str().unwrap();
        assert!(alone.contains("predicted by simulation"), "{words}: {alone}");
    }
}

#[test]
fn two_workers_that_are_slower_than_one_are_told_why() {
    let folder = tempfile::tempdir().unwrap();
    let place = format!("--store {}", folder.path().display());
    let words = "simulate --quiet --data synthetic --steps 20 --trace --model mlp";
    let result =
        |words: &str| paceline(&format!("{words} {place}")).result()["run"].as_str().unwrap().to_owned();
    let one = result(&format!("{words} --batch 16"));
    let two = result(&format!("{words} --batch 16 --workers 2 --network 100mbit,1ms"));
    let alone = paceline(&format!("explain {two} {place}")).stdout;
    assert!(alone.contains("2 workers are") && alone.contains("times slower than one would be"), "{alone}");
    let both = paceline(&format!("explain {two} --vs {one} {place}")).stdout;
    for part in ["times slower than", "(1 worker", "the greatest difference is waiting", "Links are thin"] {
        assert!(both.contains(part), "{part}: {both}");
    }
    // What simulation says of one worker is what one worker does.
    let json = |words: &str| paceline(&format!("explain {words} --json {place}")).result();
    let (said, real) = (json(&two), json(&one));
    let (predicted, real) = (&said["alone"]["samples_per_s"], &real["samples_per_s"]);
    let off = predicted.as_f64().unwrap() / real.as_f64().unwrap();
    assert!((0.7..1.4).contains(&off), "{predicted} against {real}");
}

#[test]
fn runs_that_are_not_there_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let place = format!("--store {}", folder.path().display());
    let done = paceline(&format!("train --quiet --steps 20 {place}"));
    assert_eq!(done.code, 0, "{}", done.stderr);
    let ran = paceline(&format!("explain nobody {place}"));
    assert!(ran.code != 0 && ran.stderr.contains("nobody"), "{}", ran.stderr);
}
