//! Runs whose members change, in virtual time: whoever is taken away, they learn what the others learn.

use std::path::PathBuf;

use crate::support::{paceline, result};

/// A file for a test, with its content.
fn file(name: &str, content: &str) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

/// One entry of a file of revocations.
fn revoke(at_s: f64, rank: usize, more: &str) -> String {
    format!("[[revoke]]\nat-s = {at_s}\nrank = {rank}\n{more}\n")
}

#[test]
fn whoever_is_taken_away_the_model_is_that_of_a_real_run_that_nothing_happens_to() {
    let ring = "--workers 4 --strategy ring-allreduce --optimizer adam --lr 0.001";
    let servers = "--workers 4 --strategy ps --servers 2";
    for (name, words, more, server) in
        [("ring", ring, "--spare 1", 3), ("ps", servers, "--backup 1 --elastic 2..4", 5)]
    {
        let words = format!("--quiet --steps 20 --batch 16 --bucket 64KiB {words}");
        let real = result(&format!("train --transport inproc {words}"));
        let simulate = format!("simulate --learn --transport inproc {words}");
        let calm = result(&simulate);
        let train_s = calm["seconds"]["train"].as_f64().unwrap();
        let entries = [
            revoke(0.3 * train_s, server, &format!("back-after-s = {}", 0.2 * train_s)),
            revoke(0.31 * train_s, 1, ""),
            revoke(0.8 * train_s, 2, &format!("notice-s = {train_s}")),
        ];
        let quick = format!("noticed-after-s = 0.0\nregroup-s = {}\n", 0.1 * train_s);
        let file = file(&format!("revoke-{name}.toml"), &(quick + &entries.concat()));
        let changed = result(&format!("{simulate} {more} --revoke {file}"));
        for figure in ["params_sha256", "final_loss", "final_accuracy", "samples", "steps"] {
            assert_eq!(changed[figure], calm[figure], "{name}: {figure}");
            assert_eq!(changed[figure], real[figure], "{name}: {figure}");
        }
        assert!(changed["seconds"]["train"].as_f64().unwrap() > train_s, "{name}");
        let changes = changed["membership"].as_array().unwrap();
        let told = |what: &str, rank: usize| {
            let ranks = |change: &serde_json::Value| change[what].as_array().cloned().unwrap_or_default();
            changes.iter().any(|change| ranks(change).contains(&rank.into()))
        };
        assert!(told("lost", server) && told("lost", 1) && told("joined", server), "{name}: {changes:?}");
        assert!(told("left", 2), "{name}: {changes:?}");
        assert!(
            changes.iter().all(|change| change["pause_s"].as_f64().unwrap() > 0.0),
            "{name}: {changes:?}"
        );
        let timed = result(&format!("{simulate} {more} --revoke {file}").replace("--learn ", ""));
        assert_eq!(timed["membership"], changed["membership"], "{name}: without numbers, the same times");
    }
}

#[test]
fn what_a_run_cannot_do_without_ends_it_and_says_from_where_a_real_one_goes_on() {
    let both = file("revoke-both.toml", &(revoke(0.001, 2, "") + &revoke(0.001, 3, "")));
    let words =
        "simulate --workers 2 --strategy ps --servers 2 --backup 1 --steps 2000 --checkpoint-every 10";
    let ran = paceline(&format!("{words} --revoke {both}"));
    assert_eq!(ran.code, 4, "{}", ran.stderr);
    assert!(ran.stderr.contains("server shard 0 was lost, and nobody has a copy of it"), "{}", ran.stderr);
    assert!(ran.stderr.contains("its checkpoint of step "), "{}", ran.stderr);
    let few = file("revoke-few.toml", &revoke(0.001, 0, ""));
    let ran = paceline(&format!("simulate --workers 2 --elastic 2..2 --steps 2000 --revoke {few}"));
    assert_eq!(ran.code, 4, "{}", ran.stderr);
    assert!(ran.stderr.contains("1 workers are left, and the run needs at least 2"), "{}", ran.stderr);
}

#[test]
fn members_that_cannot_change_in_virtual_time_are_refused_with_the_reason() {
    for (words, code, flag) in [
        ("simulate --workers 4 --strategy local --outer nesterov --elastic 2..4", 3, "--outer"),
        ("simulate --workers 4 --strategy ps --servers 2 --sync switch --spare 1", 3, "--sync"),
        ("simulate --workers 4 --strategy ps --servers 1 --backup 1", 3, "--backup"),
        ("simulate --workers 4 --compression topk --elastic 1..4", 3, "--compression"),
        ("simulate --workers 4 --elastic 5..8", 3, "--elastic"),
        ("simulate --workers 4 --elastic 1..8", 3, "--shares 8"),
        ("simulate --workers 4 --elastic four", 2, "--elastic"),
    ] {
        let ran = paceline(&format!("{words} --steps 5"));
        assert_eq!(ran.code, code, "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains(flag), "{words}: {}", ran.stderr);
    }
    let unknown = file("revoke-unknown.toml", &revoke(1.0, 9, ""));
    let ran = paceline(&format!("simulate --workers 4 --steps 5 --revoke {unknown}"));
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    assert!(ran.stderr.contains("there is no rank 9"), "{}", ran.stderr);
}
