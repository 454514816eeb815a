//! Studies of other systems beside ours (`init --peer`), and what studies of other programs can say for that.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use paceline_testing::{Need, skip};
use serde_json::Value;

use crate::scripts::has_python;
use crate::studies::Place;
use crate::support::{Ran, joined, paceline, run};

const PEERS: [&str; 3] = ["torch-ddp", "horovod", "tf-ps"];

/// Runs the program in a folder, with a Python.
fn within(folder: &Path, python: &str, words: &[&str]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    run(command.args(words).current_dir(folder).env("PACELINE_PYTHON", python))
}

#[test]
fn the_help_of_init_lists_every_peer() {
    let help = paceline("init --help").stdout;
    for peer in PEERS {
        assert!(help.contains(&format!("- {peer}:")), "{peer}: {help}");
    }
    let unknown = paceline("init --peer mxnet");
    assert_eq!(unknown.code, 2);
    assert!(PEERS.iter().all(|peer| unknown.stderr.contains(peer)), "{}", unknown.stderr);
}

#[test]
fn a_study_of_each_peer_can_be_checked_and_planned_and_no_file_is_overwritten() {
    for peers in PEERS.into_iter().chain(["torch-ddp,tf-ps,horovod,torch-ddp"]) {
        let folder = tempfile::tempdir().unwrap();
        let ok = |words: &[&str]| {
            let ran = within(folder.path(), "python3", words);
            assert_eq!(ran.code, 0, "{peers}, {words:?}: {}", ran.stderr);
            ran.stdout
        };
        ok(&["init", "--peer", peers, "beside.toml"]);
        let points = if peers.contains(',') { 6 } else { 3 };
        let checked = ok(&["check", "beside.toml"]);
        assert!(checked.contains(&format!("{points} points; ok")), "{checked}");
        let planned = ok(&["plan", "beside.toml", "--no-probe", "--json"]);
        let planned: Value = serde_json::from_str(planned.trim()).unwrap();
        let of_points: Vec<&Value> =
            planned["plan"].as_array().unwrap().iter().filter(|run| run["role"] == "point").collect();
        assert_eq!(of_points.len(), 5 * points, "{planned}");
        // Each system once before any twice.
        let first: BTreeSet<String> =
            of_points[..points].iter().map(|run| run["levels"].to_string()).collect();
        assert_eq!(first.len(), points, "{planned}");

        let before = fs::read_to_string(folder.path().join("beside-peers/run.py")).unwrap();
        fs::remove_file(folder.path().join("beside.toml")).unwrap();
        fs::write(folder.path().join("beside-peers/run.py"), "mine").unwrap();
        let again = within(folder.path(), "python3", &["init", "--peer", peers, "beside.toml"]);
        assert_ne!(again.code, 0);
        assert!(again.stderr.contains("beside-peers/run.py"), "{}", again.stderr);
        assert!(!folder.path().join("beside.toml").exists(), "nothing is written if one file cannot be");
        assert_eq!(fs::read_to_string(folder.path().join("beside-peers/run.py")).unwrap(), "mine");
        assert!(before.contains("PEERS = {"), "{before}");
    }
}

#[test]
fn a_missing_package_is_named_with_what_installs_it_before_anything_is_run() {
    if !has_python() {
        return;
    }
    for (peer, module, package) in [
        ("torch-ddp", "torch", "torch"),
        ("horovod", "horovod", "horovod"),
        ("tf-ps", "tensorflow", "tensorflow-cpu"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        // In front of any that is installed.
        fs::create_dir(folder.path().join("broken")).unwrap();
        fs::write(folder.path().join(format!("broken/{module}.py")), "raise ImportError('planted')\n")
            .unwrap();
        fs::write(folder.path().join("broken/numpy.py"), "").unwrap();
        assert_eq!(within(folder.path(), "python3", &["init", "--peer", peer]).code, 0);
        for verb in ["explore", "plan"] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
            command.args([verb, "study.toml", "--store", "store"]).current_dir(folder.path());
            let ran = run(command.env("PYTHONPATH", folder.path().join("broken")));
            assert_eq!(ran.code, 1, "{}", ran.stderr);
            let said = joined(&ran.stderr);
            let needed = format!("{peer} needs the Python package {package}");
            assert!(said.contains(&needed) && said.contains("planted"), "{said}");
            assert!(said.contains(&format!("-m pip install {package}")), "{said}");
            assert!(said.contains("nothing was run"), "{said}");
        }
        assert!(!folder.path().join("store/studies").exists(), "no study was begun");
    }
}

#[test]
fn a_python_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(within(folder.path(), "/nowhere/python", &["init", "--peer", "torch-ddp"]).code, 0);
    let ran = within(folder.path(), "", &["explore", "study.toml", "--store", "store"]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(joined(&ran.stderr).contains("/nowhere/python: No such file"), "{}", ran.stderr);
}

/// Two steps of each system: every figure of ours is one of the peer's.
#[test]
fn torch_ddp_in_its_own_program_gives_the_figures_of_ours() {
    let python = std::env::var("PACELINE_PYTHON").unwrap_or_else(|_| "python3".into());
    let tried = Command::new(&python).args(["-c", "import torch, numpy"]).output();
    if !tried.is_ok_and(|out| out.status.success()) {
        skip(Need::PythonPackages, "torch and numpy (PACELINE_PYTHON names a Python that has them)");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(within(folder.path(), &python, &["init", "--peer", "torch-ddp"]).code, 0);
    let file = folder.path().join("study.toml");
    let short = [
        ("\"--steps\", \"100\"", "\"--steps\", \"2\""),
        ("repeats = 5", "repeats = 1"),
        ("constraints = [\"final_accuracy >= 0.5\"]", ""),
        ("every = 8", "every = 0"),
        ("[\"lenet\"]", "[\"mlp\"]"),
    ];
    let text = fs::read_to_string(&file).unwrap();
    let text = short.iter().fold(text, |text, (from, to)| {
        assert!(text.contains(from), "{from}: {text}");
        text.replace(from, to)
    });
    fs::write(&file, text).unwrap();
    let ran =
        within(folder.path(), &python, &["explore", "study.toml", "--json", "--quiet", "--store", "store"]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    let runs = ran.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let points: Vec<Value> = runs.filter(|run| run["type"] == "run" && run["role"] == "point").collect();
    assert_eq!(points.len(), 3, "{points:?}");
    let names = |run: &Value| -> BTreeSet<String> {
        run["end"]["metrics"].as_object().unwrap_or_else(|| panic!("{run}")).keys().cloned().collect()
    };
    let of = |system: &str| points.iter().find(|run| run["levels"]["system"] == system).unwrap();
    assert_eq!(names(of("torch-ddp")), names(of("paceline-auto")));
    for name in ["samples_per_s", "step_s", "seconds.startup", "seconds.train", "final_accuracy", "cpu_s"] {
        assert!(names(of("torch-ddp")).contains(name), "{name}");
    }
    for run in &points {
        let figure = |name: &str| run["end"]["metrics"][name].as_f64().unwrap();
        assert_eq!((figure("steps"), figure("samples")), (2.0, 2.0 * 2.0 * 64.0), "{run}");
        assert!((0.0..=1.0).contains(&figure("final_accuracy")), "{run}");
        // A peer's first step is start-up.
        let counted = if run["levels"]["system"] == "torch-ddp" { 1.0 } else { 2.0 };
        let samples = figure("samples_per_s") * figure("seconds.train");
        assert!((samples / (counted * 128.0) - 1.0).abs() < 1e-6, "{run}");
        assert!((figure("step_s") * counted / figure("seconds.train") - 1.0).abs() < 1e-6, "{run}");
    }
}

/// A study of a program that finds its files by the study's folder.
const COMMAND: &str = r#"
sampler = "grid"
[command]
prepare = ["sh", "{folder}/prepare.sh", "{paceline}"]
run = ["sh", "-c", "test -x '{paceline}' && cat '{folder}/figures-{a}'"]
[axes]
a = [1, 2]
[[objectives]]
metric = "value"
goal = "minimize"
[control]
every = 0
"#;

#[test]
fn what_is_prepared_before_the_first_run_is_there_and_its_failure_is_the_studys() {
    let place = Place::new(COMMAND);
    let script = place.path().join("prepare.sh");
    fs::write(&script, "echo begun\necho first >&2\necho 'error: no paper in the tray' >&2\nexit 3\n")
        .unwrap();
    let ran = place.run(&["explore", "s.toml"]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    let said = joined(&ran.stderr);
    assert!(said.contains("cannot be run here: no paper in the tray"), "{said}");
    assert!(said.contains("nothing was run") && said.contains("{folder}/prepare.sh"), "{said}");
    assert!(!place.path().join("store/studies").exists());

    let figures = "cd \"$(dirname \"$0\")\" && \"$1\" --version >&2 || exit 1\n\
                   echo run >> prepared\n\
                   for a in 1 2; do echo \"{\\\"value\\\": $a}\" > figures-$a; done\n";
    fs::write(&script, figures).unwrap();
    let result = place.result(&["explore", "s.toml"]);
    assert_eq!((&result["points"], &result["failed"]), (&2.into(), &0.into()), "{result}");
    assert_eq!(fs::read_to_string(place.path().join("prepared")).unwrap(), "run\n", "once, not for each run");
}

#[test]
fn what_is_prepared_knows_no_level_of_an_axis() {
    let place = Place::new(&COMMAND.replace("prepare.sh\"", "prepare-{a}.sh\""));
    let ran = run(&mut place.command(&["check", "s.toml"]));
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    assert!(ran.stderr.contains("command.prepare: {a} cannot be filled in"), "{}", ran.stderr);
}
