//! Strategies from files: what a user types, what comes of it, and how it is refused.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::scripts::has_python;
use crate::support::{Ran, Running, joined, paceline, result, run, signal};

fn example(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/strategies");
    folder.join(format!("{name}.toml")).canonicalize().unwrap().display().to_string()
}

/// Models are exchanged while the gradient is computed.
const EARLY: &str = r#"
name = "early"
registers = ["own", "theirs"]

[[round]]
do = [
    { copy = "own", of = "x" },
    { send = "own", to = "(rank + 1) mod workers", into = "theirs", keep = 0 },
    { update = "x" },
    { set = "x", of = "theirs", keep = 0.5, add = 0.5 },
]
"#;

fn in_folder(folder: &Path, words: &str) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    run(command.args(words.split_whitespace()).current_dir(folder))
}

#[test]
fn a_file_trains_in_processes_threads_and_virtual_time_as_its_counterpart_does() {
    let more = "--workers 3 --steps 12 --quiet --no-record";
    for (file, counterpart) in [
        ("ring-allreduce", "ring-allreduce"),
        ("gossip", "gossip"),
        ("stepwise-push-sum", "stepwise --variant push-sum"),
    ] {
        let hash = |words: String| result(&words)["params_sha256"].clone();
        let want = hash(format!("train --strategy {counterpart} {more} --transport inproc"));
        let file = example(file);
        assert_eq!(want, hash(format!("train --strategy-file {file} {more} --transport tcp")), "{file}");
        assert_eq!(want, hash(format!("train --strategy {file} {more} --transport shm")), "{file}");
        let learnt = hash(format!("simulate --learn --strategy-file {file} {more}"));
        assert_eq!(want, learnt, "{file} in virtual time");
    }
}

#[test]
fn the_plan_holds_the_file_so_that_a_run_goes_on_without_it() {
    let folder = tempfile::tempdir().unwrap();
    let (store, file) = (folder.path().join("store"), folder.path().join("mine.toml"));
    std::fs::copy(example("stepwise-push-sum"), &file).unwrap();
    let base = format!("--workers 2 --epochs 20 --batch 8 --strategy-file {}", file.display());
    let whole = result(&format!("train --quiet --no-record {base}"));
    let running = Running::start(&format!("{base} --store {}", store.display()));
    assert!(signal("INT", running.id()));
    let (code, text) = running.end();
    // A run that was over already tells its result once more.
    assert!([0, 130].contains(&code), "{text}");
    std::fs::remove_file(&file).unwrap();
    let gone_on = result(&format!("resume last --quiet --store {}", store.display()));
    assert_eq!(gone_on["params_sha256"], whole["params_sha256"]);
    assert_eq!(gone_on["strategy"], "mine.toml");
}

#[test]
fn scripts_are_averaged_as_a_file_says() {
    if !has_python() {
        return;
    }
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/cli/scripts/plain.py");
    let hash = |strategy: &str| {
        let words =
            format!("train --script {} --workers 3 {strategy} --quiet -- --steps 12", script.display());
        result(&words)["params_sha256"].clone()
    };
    for (file, counterpart) in [("ring-allreduce", "ring-allreduce"), ("gossip", "gossip")] {
        let want = hash(&format!("--strategy {counterpart}"));
        assert!(want.is_string());
        assert_eq!(hash(&format!("--strategy-file {}", example(file))), want, "{file}");
    }
    // A script updates by itself: a model that is averaged before its update is not at hand.
    let folder = tempfile::tempdir().unwrap();
    let early = folder.path().join("early.toml");
    std::fs::write(&early, EARLY).unwrap();
    let refused = paceline(&format!(
        "train --script {} --workers 3 --strategy-file {} -- --steps 2",
        script.display(),
        early.display()
    ));
    let said = joined(&refused.stderr);
    assert!(refused.code == 3 && said.contains("begin with { update = \"x\" }"), "{said}");
    let hash = |words: &str| {
        let words =
            format!("{words} --workers 3 --steps 9 --quiet --no-record --strategy-file {}", early.display());
        result(&words)["params_sha256"].clone()
    };
    let learnt = hash("simulate --learn");
    for transport in ["inproc", "shm", "tcp", "uds", "grpc"] {
        assert_eq!(hash(&format!("train --transport {transport}")), learnt, "{transport}");
    }
}

#[test]
fn files_are_levels_of_a_studys_strategy() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(example("gossip"), folder.path().join("mine.toml")).unwrap();
    let study = "name = \"files\"\nsampler = \"grid\"\n[workload]\nworkers = 2\nsteps = 3\n[axes]\nstrategy = [\"gossip\", \"mine.toml\"]\n\
                 [[objectives]]\nmetric = \"samples_per_s\"\ngoal = \"maximize\"\n";
    std::fs::write(folder.path().join("study.toml"), study).unwrap();
    let checked = in_folder(folder.path(), "check study.toml");
    assert_eq!(checked.code, 0, "{}", checked.stderr);
    let explored = in_folder(folder.path(), "explore study.toml --store store --quiet");
    assert_eq!(explored.code, 0, "{}", explored.stderr);
    let listed = in_folder(folder.path(), "runs --json --store store");
    let runs: Vec<Value> = serde_json::from_str(&listed.stdout).unwrap();
    // The study also runs one worker and the default, to compare with.
    for name in ["gossip", "mine.toml"] {
        let of_name = runs.iter().filter(|run| run["strategy"] == name && run["state"] == "ok").count();
        assert!(of_name > 0, "{name}: {}", listed.stdout);
    }
}

#[test]
fn new_check_and_show_go_together() {
    let folder = tempfile::tempdir().unwrap();
    let said = |words: &str| {
        let ran = in_folder(folder.path(), words);
        assert_eq!(ran.code, 0, "{words}: {}", ran.stderr);
        ran.stdout
    };
    said("strategy new mine.toml");
    assert_ne!(in_folder(folder.path(), "strategy new mine.toml").code, 0, "it is not overwritten");
    let table = joined(&said("strategy check mine.toml --workers 2..5"));
    assert!(
        table.contains("Every run ends") && table.contains("4 apart 1 0.111 0.333 1.000 1.000 2.00 2.0"),
        "{table}"
    );
    let one = said("strategy check mine.toml --workers 4");
    assert!(
        one.contains("all workers count the same") && one.contains(" 0.3333  0.3333  0.0000  0.3333"),
        "{one}"
    );
    let reports: Vec<Value> =
        serde_json::from_str(&said("strategy check mine.toml --workers 3,4 --json")).unwrap();
    assert_eq!((reports.len(), &reports[1]["mixing"]["period"]), (2, &Value::from(1)));
    assert_eq!(reports[1]["virtual_time"]["named_it"].as_array().unwrap().len(), 3);
    let rounds = said("strategy show mine.toml --workers 3 --svg rounds.svg");
    assert!(rounds.contains("update x with g") && rounds.contains("x += message of 2"), "{rounds}");
    let svg = std::fs::read_to_string(folder.path().join("rounds.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.matches("marker-end").count() == 6, "{svg}");
}

#[test]
fn what_cannot_work_is_refused_before_anything_starts() {
    let broken = Path::new(env!("CARGO_MANIFEST_DIR")).join("../paceline-rounds/tests/broken");
    let broken = |name: &str| broken.join(format!("{name}.toml")).display().to_string();
    for (name, line, reason) in [
        ("sends-to-nobody", 11, "nobody has that number"),
        ("deadlock-of-all", 11, "a deadlock"),
        ("rows-sum-to-two", 11, "does not sum to one"),
        ("a-thousand-million-rounds", 9, "at most 100000 statements"),
        ("never-until", 9, "would never end"),
    ] {
        let file = broken(name);
        let trained = paceline(&format!("train --strategy-file {file} --workers 3 --no-record"));
        let said = joined(&trained.stderr);
        assert_eq!(trained.code, 3, "{name}: {said}");
        assert!(said.contains(&format!("line {line}")) && said.contains(reason), "{name}: {said}");
        let checked = paceline(&format!("strategy check {file} --workers 3"));
        let said = joined(&checked.stderr);
        assert_eq!(checked.code, 3, "{name}: {said}");
        assert!(said.contains(&format!("{name}.toml:{line}:")) && said.contains(reason), "{name}: {said}");
    }
    let gossip = example("gossip");
    for (more, reason) in [
        ("--sync asp", "valid: bsp"),
        ("--shares 6", "one share per worker"),
        ("--averages gradients", "the strategy file averages weights"),
        ("--compression int8", "valid: fp16"),
        ("--servers 1", "has no servers"),
        ("--neighbours 1", "belongs to --strategy gossip"),
    ] {
        let ran = paceline(&format!("train --strategy-file {gossip} --workers 3 --no-record {more}"));
        let said = joined(&ran.stderr);
        assert!(ran.code == 3 && said.contains(reason), "{more}: {} {said}", ran.code);
    }
}
