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
    let slow = paceline(&format!("{train} --straggler rank=1,factor=6 {place}"));
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

#[test]
fn runs_that_are_not_there_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let place = format!("--store {}", folder.path().display());
    let done = paceline(&format!("train --quiet --steps 20 {place}"));
    assert_eq!(done.code, 0, "{}", done.stderr);
    let ran = paceline(&format!("explain nobody {place}"));
    assert!(ran.code != 0 && ran.stderr.contains("nobody"), "{}", ran.stderr);
}
