//! Scripts as people write them (`examples/pytorch/`): few lines changed, each explored in a study of its own with
//! PyTorch's DDP beside, reported and explained.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::{Line, Report, Setup, number, peers};
use crate::process::{Outcome, last_json, root};

/// A script, and arguments that keep a run short.
const SCRIPTS: &[(&str, &str)] = &[
    ("mnist", "--epochs 1"),
    ("images", "--epochs 1"),
    ("gpt", "--steps 60"),
    ("trainer", "--epochs 1"),
    ("lightning_mnist", "--epochs 1"),
];

/// What a script may change to become a worker.
const LINES: f64 = 6.0;

/// The strategy, consistency model and codec of each point.
const AXES: &str = r#"
[axes]
strategy = ["ring-allreduce", "local", "ps", "ddp-gloo"]
servers = { values = [1], when = 'strategy = "ps"' }
sync = { values = ["bsp", "asp"], when = 'strategy = "ps"' }
compression = { values = [false, "fp16"], when = 'strategy = "ring-allreduce" or strategy = "ps"' }

[[objectives]]
metric = "samples_per_s"
goal = "maximize"

[budget]
runs = 8
"#;

/// The points of [`AXES`].
const POINTS: f64 = 8.0;

/// Explores each script.
pub fn measure(setup: &Setup) -> Outcome<Report> {
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    let folder = setup.work("ecosystem");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for (name, arguments) in SCRIPTS {
        let script = root().join(format!("examples/pytorch/{name}.py"));
        let text = fs::read_to_string(&script).map_err(|error| format!("{}: {error}", script.display()))?;
        let claim = format!("{name}: lines changed to make it a worker");
        report.lines.push(Line::new(&claim, changed(&text) as f64, LINES, true));
        explore(setup, &folder, name, &study(setup, name, &script, arguments), &mut report)?;
    }
    Ok(report)
}

/// Lines that the script has because it is a worker: each says so at its end.
fn changed(script: &str) -> usize {
    script.lines().filter(|line| line.ends_with("# paceline")).count()
}

fn study(setup: &Setup, name: &str, script: &Path, arguments: &str) -> String {
    let text = |text: &str| toml::Value::from(text).to_string();
    let python = peers::python(setup);
    format!(
        "name = {}\nsampler = \"grid\"\n\n[workload]\nscript = {}\npython = {}\nargs = {}\nworkers = 2\n{AXES}",
        text(name),
        text(&script.to_string_lossy()),
        text(&python.to_string_lossy()),
        text(arguments),
    )
}

/// Runs a study; counts what came of it, and which of its runs can be explained.
fn explore(setup: &Setup, folder: &Path, name: &str, study: &str, report: &mut Report) -> Outcome {
    let file = format!("{name}.toml");
    fs::write(folder.join(&file), study).map_err(|error| format!("{file}: {error}"))?;
    let program = |words: &[&str]| {
        let mut program: Command = setup.program();
        program.current_dir(folder).env("PACELINE_STORE", "store").args(words);
        program
    };
    let pages = format!("{name}-report");
    let result =
        last_json(&mut program(&["explore", &file, &format!("--report={pages}"), "--json", "--quiet"]))?;
    let page = fs::read_to_string(folder.join(&pages).join("report.md")).unwrap_or_default();
    // What stands before the first chart.
    let findings: Vec<&str> =
        page.split("![").next().unwrap_or_default().lines().filter(|l| l.starts_with("- ")).collect();
    let points = result["history"].as_array().map_or(0, Vec::len);
    let listed = last_json(&mut program(&["runs", "--study", name, "--json"]))?;
    let runs = listed.as_array().cloned().unwrap_or_default();
    let mut verdicts = Vec::new();
    for run in &runs {
        let id = run["run"].as_str().unwrap_or_default();
        let said = last_json(&mut program(&["explain", id, "--json"]))?;
        let kept = ["strategy", "state", "workers", "servers", "samples_per_s", "accuracy", "error"];
        let kept: Vec<_> = kept.iter().map(|name| (*name, &run[name])).collect();
        verdicts.push(json!({"run": BTreeMap::from_iter(kept), "verdict": said["verdict"]}));
    }
    let told =
        |verdict: &&Value| verdict["verdict"]["sentence"].as_str().is_some_and(|said| !said.is_empty());
    let explained = verdicts.iter().filter(told).count();
    let mut line = |what: &str, reached: f64, wanted: f64, at_most: bool| {
        report.lines.push(Line::new(&format!("{name}: {what}"), reached, wanted, at_most));
    };
    line("points of its study that were run", points as f64, POINTS, false);
    line("runs that failed", number(&result, "/failed")?, 0.0, true);
    let beside = runs.iter().filter(|run| run["strategy"] == "ddp-gloo" && run["state"] == "ok").count();
    line("runs under DDP over gloo beside", beside as f64, 1.0, false);
    line("findings in its report", findings.len() as f64, 1.0, false);
    line("runs that are not explained", (runs.len() - explained) as f64, 0.0, true);
    report.runs.push(json!({"script": name, "result": result, "runs": verdicts, "findings": findings}));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_is_there_and_changes_few_lines() {
        for (name, _) in SCRIPTS {
            let script = root().join(format!("examples/pytorch/{name}.py"));
            let text = fs::read_to_string(&script).unwrap_or_else(|e| panic!("{}: {e}", script.display()));
            let changed = changed(&text);
            assert!((1..=LINES as usize).contains(&changed), "{name}: {changed}");
        }
    }
}
