//! A program of somebody else (`examples/own-strategy`): Paceline with a strategy, a network and a figure more.

/// Its strategy, with the test that calls the conformance suite.
#[path = "../../../../examples/own-strategy/src/pairwise.rs"]
mod pairwise;

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::{Ran, paceline, run};

/// Runs the example, which is built beside the tests, in a folder.
fn own(folder: &Path, words: &str) -> Ran {
    let program = Path::new(env!("CARGO_BIN_EXE_paceline")).with_file_name("examples").join("own-strategy");
    assert!(program.is_file(), "{}: cargo build -p paceline --examples makes it", program.display());
    run(Command::new(program).args(words.split_whitespace()).current_dir(folder))
}

/// What it says of what must work, with a store of its own.
fn said(folder: &Path, words: &str) -> String {
    let ran = own(folder, &format!("{words} --store store"));
    assert_eq!(ran.code, 0, "{words}: {}", ran.stderr);
    ran.stdout
}

fn hash(words: &str) -> Value {
    let ran = own(Path::new("."), &format!("train --no-record --quiet --model narrow --steps 20 {words}"));
    assert_eq!(ran.code, 0, "{words}: {}", ran.stderr);
    ran.result()["params_sha256"].clone()
}

#[test]
fn threads_and_processes_train_with_it_as_exactly_as_with_any_other() {
    let ring = hash("--strategy ring-allreduce --workers 2 --transport inproc");
    assert!(ring.is_string());
    for transport in ["inproc", "tcp"] {
        assert_eq!(ring, hash(&format!("--strategy pairwise --workers 2 --transport {transport}")));
        let three = format!("--workers 3 --transport {transport}");
        let codec = hash(&format!("--strategy pairwise --compression topk,ratio=0.1 {three}"));
        let plain = hash(&format!("--strategy pairwise {three}"));
        assert!(plain.is_string() && codec.is_string() && codec != plain);
    }
    let here = Path::new(".");
    for transport in ["inproc", "tcp"] {
        let words = "bench allreduce --strategy pairwise --workers 3 --sizes 4KiB --seconds 0.05 --transport";
        let ran = own(here, &format!("{words} {transport}"));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
    }
}

#[test]
fn help_lists_and_suggestions_have_its_names_and_the_plain_program_has_not() {
    let here = Path::new(".");
    let help = own(here, "train --help").stdout;
    for text in [
        "Usage: own-strategy train",
        "each chunk to its owner and back, round by round",
        "a hidden layer of 32",
    ] {
        assert!(help.contains(text), "{text}: {help}");
    }
    for (words, name) in [("train --strategy pairwis", "'pairwise'"), ("train --model narow", "'narrow'")] {
        let refused = own(here, words);
        assert_eq!(refused.code, 2, "{words}");
        assert!(
            refused.stderr.contains(&format!("tip: a similar value exists: {name}")),
            "{}",
            refused.stderr
        );
    }
    assert!(own(here, "model list").stdout.contains("narrow"));
    assert!(own(here, "model show narrow --json").stdout.contains("25450"));
    let unknown = paceline("train --strategy pairwise");
    assert_eq!(unknown.code, 2);
    assert!(!unknown.stderr.contains("round by round"), "{}", unknown.stderr);
}

#[test]
fn virtual_time_and_studies_know_its_names() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let simulated = said(at, "simulate --strategy pairwise --workers 8 --steps 5 --quiet");
    let simulated: Value = serde_json::from_str(&simulated).unwrap();
    assert_eq!(simulated["samples"], 5 * 8 * 64, "{simulated}");
    let study = "sampler = \"grid\"\n[workload]\nmodel = \"narrow\"\nsteps = 20\nworkers = 2\n\
                 [axes]\nstrategy = [\"pairwise\", \"tree\"]\n[[objectives]]\nmetric = \"sent_bytes_per_sample\"\n\
                 goal = \"minimize\"\n[control]\nevery = 0\n";
    std::fs::write(at.join("both.toml"), study).unwrap();
    let checked = own(at, "check both.toml");
    assert_eq!(checked.code, 0, "{}", checked.stderr);
    assert!(checked.stdout.contains("2 points"), "{}", checked.stdout);
    let predicted = said(at, "predict both.toml --time-only --quiet");
    assert!(predicted.contains("pairwise"), "{predicted}");
    let explored = said(at, "explore both.toml --quiet");
    assert!(explored.contains("sent_bytes_per_sample"), "{explored}");
    assert!(said(at, "status both").contains("sent_bytes_per_sample"));
    assert!(said(at, "analyze both").contains("sent_bytes_per_sample"));
    assert!(said(at, "export both --format json").contains("\"sent_bytes_per_sample\":"));
    let runs = said(at, "runs");
    assert!(runs.contains("narrow on digits") && runs.contains(" pairwise "), "{runs}");
    assert!(said(at, "explain last").contains("predicted by simulation"), "what-ifs look names up");
}
