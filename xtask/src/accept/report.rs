//! How long the report of a large study takes.

use std::fs;
use std::time::Instant;

use paceline_statistics::median;
use serde_json::json;

use super::{Line, Report, Setup};
use crate::process::{self, Outcome, last_json};

/// Runs of the study, repeats included.
const RUNS: usize = 300;
/// How often the report is made.
const REPORTS: usize = 5;

/// A program with known effects, of five axes: 150 points, each twice.
const STUDY: &str = r#"
name = "large"
sampler = "lhs"
repeats = 2
[command]
run = ["sh", "-c", """
printf '{"step_s": %d, "accuracy": 0.9%d}' $((100 * $1 / $2 + 40 * $3 + $4 % 7)) $(($5 + $3))
""", "sh", "{size}", "{workers}", "{servers}", "{seed}", "{depth}", "{kind}"]
metrics = "json"
[budget]
runs = 300
[axes]
size = [1, 2, 4, 8]
workers = [1, 2, 4, 8, 16]
servers = [1, 2, 3]
depth = [1, 2, 3, 4]
kind = ["a", "b", "c"]
[[objectives]]
metric = "step_s"
goal = "minimize"
[[objectives]]
metric = "accuracy"
goal = "maximize"
"#;

/// A study of 300 runs of a small program, reported.
pub fn measure(setup: &Setup) -> Outcome<Report> {
    let folder = setup.work("report");
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    if folder.is_dir() {
        fs::remove_dir_all(&folder).map_err(failed)?;
    }
    fs::create_dir_all(&folder).map_err(failed)?;
    let file = folder.join("large.toml");
    fs::write(&file, STUDY).map_err(failed)?;
    let store = folder.join("store");
    process::run(setup.program().args(["explore", "--quiet"]).arg(&file).arg("--store").arg(&store))?;
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    let (mut seconds, mut files) = (Vec::new(), 0);
    for round in 0..REPORTS {
        let mut command = setup.program();
        command
            .args(["report", "large", "--json", "--store"])
            .arg(&store)
            .arg("--out")
            .arg(folder.join("out"));
        let begun = Instant::now();
        let written = last_json(&mut command)?;
        seconds.push(begun.elapsed().as_secs_f64());
        files = written["files"].as_array().map_or(0, Vec::len);
        report.runs.push(json!({"round": round, "seconds": seconds[round], "files": files}));
    }
    let history = folder.join("out/charts/history.csv");
    let text = fs::read_to_string(&history).map_err(|e| format!("{}: {e}", history.display()))?;
    let rows = text.lines().filter(|line| line.starts_with(",run,")).count();
    let mut line = |claim: &str, reached: f64, wanted: f64, at_most: bool| {
        report.lines.push(Line { claim: claim.into(), reached, wanted, at_most });
    };
    line("runs in the report's history", rows as f64, RUNS as f64, false);
    line("report of a 300-run study: s", median(&seconds), 5.0, true);
    line("its files", files as f64, 20.0, false);
    Ok(report)
}
