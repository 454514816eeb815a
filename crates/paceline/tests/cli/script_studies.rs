//! Studies of scripts, and what is shown of their records.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::scripts::has_python;
use crate::support::{Ran, joined, run};

/// A script whose last report and pace follow its arguments.
pub const SCRIPT: &str = r#"
import argparse
from array import array
import paceline.attach as attach
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.25)
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--half", action="store_true")
args = parser.parse_args()
run = attach.attach([("weight", [200]), ("bias", [10])], framework="plain Python")
for n in range(2):
    run.parameter(n)[:] = array("f", [1.0] * len(run.parameter(n)))
run.start()
own = [array("f", run.parameter(n)) for n in range(2)]
for step in range(args.steps):
    if run.gives == "gradients":
        for n in (1, 0):
            run.gradient(n)[:] = array("f", [value * run.scale for value in own[n]])
            run.ticket([n])
        if run.used is not None:
            run.gradients[run.used : run.used + 2] = array("f", [1.0, 1.0])
    else:
        for n in range(2):
            moved = array("f", [(1 - args.lr) * value for value in own[n]])
            if run.gives == "updates":
                run.gradient(n)[:] = array("f", [(p - q) * run.scale for p, q in zip(moved, run.parameter(n))])
            elif run.gives == "parameters":
                run.parameter(n)[:] = moved
            else:
                own[n] = moved
    times = {"data_ns": 10_000, "forward_ns": 50_000, "backward_ns": 100_000, "staging_ns": 5_000, "update_ns": 5_000}
    if run.done(samples=4, loss=1.0, times_us=[90, 20], **times).over:
        break
    for n in range(2):
        if run.takes == "parameters":
            own[n] = array("f", run.parameter(n))
        elif run.takes != "nothing":
            mean = run.gradient(n) if run.takes == "gradients" else run.parameter(n)
            own[n] = array("f", [value - args.lr * g for value, g in zip(own[n], mean)])
    run.taken()
for n in range(2):
    run.parameter(n)[:] = own[n]
run.report(perplexity=args.lr * (0.5 if args.half else 1.0))
"#;

struct Lab {
    folder: tempfile::TempDir,
}

impl Lab {
    /// A folder with the script and a study of it.
    fn new(study: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("code")).unwrap();
        std::fs::write(folder.path().join("code/train.py"), SCRIPT).unwrap();
        std::fs::write(folder.path().join("study.toml"), study).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs the program elsewhere: files lie beside the study.
    fn run(&self, words: &[&str]) -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
        command.args(words).current_dir(Path::new("/"));
        command.env("PACELINE_PYTHON", "python3");
        let with_store = !["check", "init"].contains(&words[0]);
        if with_store {
            command.arg("--store").arg(self.path("store"));
        }
        run(&mut command)
    }

    fn ok(&self, words: &[&str]) -> Ran {
        let ran = self.run(words);
        assert_eq!(ran.code, 0, "{words:?}: {}{}", ran.stdout, ran.stderr);
        ran
    }

    fn study(&self) -> String {
        self.path("study.toml").display().to_string()
    }
}

const STUDY: &str = r#"
sampler = "grid"
[workload]
script = "code/train.py"
args = "--steps 12"
transport = "uds"
[axes]
workers = [1, 2]
strategy = ["ring-allreduce", "ps"]
servers = [1]
args.lr = [0.25, 0.5]
args.half = [true, false]
[[objectives]]
metric = "reported.perplexity"
goal = "minimize"
[control]
every = 0
"#;

#[test]
fn a_study_of_a_script_has_its_arguments_as_axes_and_what_it_reports_as_figures() {
    if !has_python() {
        return;
    }
    let lab = Lab::new(STUDY);
    let checked = lab.ok(&["check", &lab.study()]);
    assert!(checked.stdout.contains("5 axes, 12 points; ok"), "{}", checked.stdout);
    assert!(checked.stderr.contains("run.report(perplexity=…)"), "{}", checked.stderr);
    lab.ok(&["plan", &lab.study(), "--no-probe"]);
    lab.ok(&["explore", &lab.study(), "--quiet"]);
    let text = joined(&lab.ok(&["status", "study"]).stdout);
    assert!(text.contains("study: finished"), "{text}");
    assert!(text.contains("args.lr 0.25") && text.contains("args.half true"), "{text}");
    let analysis = lab.ok(&["analyze", "study"]).stdout;
    assert!(analysis.contains("args.lr"), "{analysis}");
    let runs: Value = serde_json::from_str(lab.ok(&["runs", "--json"]).stdout.trim()).unwrap();
    let runs = runs.as_array().or_else(|| runs["runs"].as_array()).unwrap().clone();
    assert!(runs.iter().all(|run| run["data"].is_null() && run["steps"].is_null()), "{runs:?}");
    lab.ok(&["report", "study", "--out", lab.path("report").to_str().unwrap()]);
    let page = std::fs::read_to_string(lab.path("report/report.html")).unwrap();
    assert!(page.contains("train.py") && page.contains("args.lr"), "the report names what varied");
    for nonsense in ["train.py on script", "18446744073709551615", "weight-decay", "batch 1<"] {
        assert!(!page.contains(nonsense), "{nonsense}");
    }
}

#[test]
fn what_cannot_be_in_a_study_of_a_script_is_refused_with_what_would_be_right() {
    for (from, to, said) in [
        ("args.lr = [0.25, 0.5]", "lr = [0.25, 0.5]", "the axis is args.lr"),
        ("reported.perplexity", "perplexity", "reported.perplexity"),
        ("reported.perplexity", "infer.p50_ms", "is not measured"),
        ("sampler = \"grid\"", "sampler = \"halving\"", "write steps = 300"),
        (
            "sampler = \"grid\"",
            "sampler = \"bayes\"\nprior = \"simulator\"",
            "knows nothing of a script before it has run",
        ),
        (
            "script = \"code/train.py\"\nargs = \"--steps 12\"",
            "model = \"mlp\"",
            "is an argument of a script",
        ),
        ("code/train.py", "code/other.py", "other.py"),
        ("\"ps\"]", "\"ps\", \"ddp-gloo\"]\nsync = [\"bsp\"]", ""),
        ("transport = \"uds\"", "network = \"1gbit,1ms\"\ntransport = \"uds\"", ""),
    ] {
        let lab = Lab::new(&STUDY.replace(from, to));
        let ran = lab.run(&["check", &lab.study()]);
        match said {
            "" => assert_eq!(ran.code, 0, "{to}: {}", ran.stderr),
            said => assert!(ran.code != 0 && joined(&ran.stderr).contains(said), "{to}: {}", ran.stderr),
        }
    }
    let lab = Lab::new(&STUDY.replace("\"ps\"]", "\"ddp-gloo\"]\nnetwork = [\"1gbit,1ms\"]"));
    let ran = lab.ok(&["plan", &lab.study(), "--no-probe"]);
    let gloo: Vec<&str> = ran.stdout.lines().filter(|line| line.contains("ddp-gloo")).collect();
    assert!(!gloo.is_empty() && gloo.iter().all(|line| !line.contains("network")), "{}", ran.stdout);
    // A condition that it would not meet is not left out silently.
    let fixed =
        STUDY.replace("\"ps\"]", "\"ddp-gloo\"]").replace("transport = \"uds\"", "network = \"1gbit,1ms\"");
    let lab = Lab::new(&fixed);
    let ran = lab.run(&["check", &lab.study()]);
    assert!(ran.code != 0 && joined(&ran.stderr).contains("--network"), "{}", ran.stderr);
}

#[test]
fn a_script_that_does_not_report_what_is_wanted_ends_its_study_at_once() {
    if !has_python() {
        return;
    }
    let lab = Lab::new(&STUDY.replace("reported.perplexity", "final_accuracy"));
    let ran = lab.run(&["explore", &lab.study()]);
    assert_ne!(ran.code, 0);
    assert!(joined(&ran.stderr).contains("call run.report(accuracy=…)"), "{}", ran.stderr);
}

#[test]
fn a_study_file_is_written_for_a_script() {
    let lab = Lab::new("");
    let (file, script) = (lab.path("new.toml").display().to_string(), lab.path("code/train.py"));
    lab.ok(&["init", &file, "--script", script.to_str().unwrap(), "--", "--lr", "0.1"]);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("script = \"code/train.py\"") && text.contains("args = \"--lr 0.1\""), "{text}");
    assert!(text.contains("# args.lr = [0.01, 0.1]"), "{text}");
    let checked = lab.ok(&["check", &file]);
    assert!(checked.stdout.contains("6 points; ok"), "{}", checked.stdout);
    let missing = lab.run(&["init", "x.toml", "--script", "/nowhere/train.py"]);
    assert!(missing.code != 0 && missing.stderr.contains("/nowhere/train.py"), "{}", missing.stderr);
}

#[test]
fn a_record_of_a_script_shows_what_is_its_own() {
    if !has_python() {
        return;
    }
    let lab = Lab::new("");
    let script = lab.path("code/train.py").display().to_string();
    let train = |flags: &[&str], args: &[&str]| {
        let words = [&["train", "--script", &script], flags, &["--store", "x"]].concat();
        let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
        command.args(&words[..words.len() - 2]).arg("--store").arg(lab.path("store"));
        let ran = run(command.arg("--").args(args));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        ran.result()["run"].as_str().unwrap().to_owned()
    };
    train(&[], &["--steps", "30"]);
    let two = train(&["--workers", "2", "--trace"], &["--steps", "30"]);
    let shown = lab.ok(&["show", &two]).stdout;
    for part in [
        "train.py, auto: direct (bsp), 2 workers\n",
        "ok: 30 steps in",
        "script: plain Python, 2 tensors of 210 numbers",
        "Reported by the script",
        "perplexity 0.2500",
        "Copying gradients (staging)",
        "Gradients that were ready last (2 of 2 tensors)",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let late = shown.find("weight ").zip(shown.find("bias "));
    assert!(late.is_some_and(|(weight, bias)| weight < bias), "the latest comes first: {shown}");
    for nonsense in ["on script", "batch", "NaN", "18446744073709551615"] {
        assert!(!shown.contains(nonsense), "{nonsense}: {shown}");
    }
    let listed = lab.ok(&["runs"]).stdout;
    assert!(listed.contains("train.py, auto 2") && !listed.contains("/1844"), "{listed}");
    let compared = lab.ok(&["show", &two, "last"]).stdout;
    assert!(!compared.contains("weight-decay"), "{compared}");
    let document: Value = lab.ok(&["show", &two, "--json"]).result();
    assert_eq!(document["script"]["tensors"][0][0], "weight");
    assert_eq!(document["steps"], Value::Null);
    let explained = lab.ok(&["explain", &two]).stdout;
    assert!(
        explained.contains("Gradients that were ready last") && !explained.contains("--batch"),
        "{explained}"
    );

    // What it takes elsewhere is predicted from what was recorded.
    let study = STUDY.replace("args = \"--steps 12\"", "args = \"--steps 30\"").replace(
        "args.lr = [0.25, 0.5]\nargs.half = [true, false]",
        "network = [\"1gbit,1ms\", \"1gbit,20ms\"]",
    );
    std::fs::write(lab.path("study.toml"), study).unwrap();
    let predicted: Value = lab.ok(&["predict", &lab.study(), "--json"]).result();
    let points = predicted["points"].as_array().unwrap();
    assert_eq!(points.len(), 5, "{predicted}");
    let step = |strategy: &str, network: &str| {
        let at =
            |point: &&Value| point["levels"]["strategy"] == strategy && point["levels"]["network"] == network;
        points.iter().find(at).unwrap()["prediction"]["step_s"][0].as_f64().unwrap()
    };
    let (near, far) = (step("ring-allreduce", "1gbit,1ms"), step("ring-allreduce", "1gbit,20ms"));
    // Two hops each way: 38 ms more of latency, whatever the machine does.
    assert!((far - near - 0.038).abs() < 0.004, "{near} {far}");
    let other = lab.run(&["predict", &lab.study()]);
    assert!(joined(&other.stderr).contains("predicted from the recorded run"), "{}", other.stderr);
    let unknown =
        std::fs::read_to_string(lab.path("study.toml")).unwrap().replace("--steps 30", "--steps 31");
    std::fs::write(lab.path("study.toml"), unknown).unwrap();
    let refused = lab.run(&["predict", &lab.study()]);
    let said = joined(&refused.stderr);
    assert!(refused.code != 0 && said.contains("or record a run of it"), "{said}");
    let refused = lab.run(&["simulate", "--script", &script]);
    let said = joined(&refused.stderr);
    assert!(refused.code != 0 && said.contains("`paceline calibrate --script"), "{said}");
}
