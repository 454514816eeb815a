//! A whole project in one command: four workloads, two datasets and two architectures, 96 runs and their report.

use std::fs;
use std::time::Instant;

use serde_json::json;

use super::{Line, Report, Setup};
use crate::process::{Outcome, last_json};

/// What the first page must have, by the headings of its parts.
const FIRST_PAGE: [&str; 4] = ["Best", "What mattered", "Does it carry over?", "What these runs do not tell"];

/// `paceline init --workloads`, then `paceline explore`.
pub fn measure(setup: &Setup) -> Outcome<Report> {
    let folder = setup.work("project");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let program = || {
        let mut program = setup.program();
        program.current_dir(&folder).env_remove("PACELINE_STORE");
        program
    };
    let written = program().args(["init", "project.toml", "--workloads", "--quiet"]).status();
    written.map_err(|error| error.to_string())?;
    let begun = Instant::now();
    let result =
        last_json(program().args(["explore", "project.toml", "--report=report", "--json", "--quiet"]))?;
    let seconds = begun.elapsed().as_secs_f64();
    let report = folder.join("report/report.md");
    let text = fs::read_to_string(&report).map_err(|error| format!("{}: {error}", report.display()))?;
    // The first page is what stands before the first chart.
    let first = text.split("![").next().unwrap_or_default();
    let told = FIRST_PAGE.iter().filter(|part| first.contains(*part)).count();
    let words = first.split_whitespace().count();
    let points = result["history"].as_array().map_or(0, Vec::len);
    println!("     {seconds:.0} s; the first page, {words} words:\n{first}");
    Ok(Report {
        lines: vec![
            Line::new("a project of four workloads, s", seconds, 900.0, true),
            Line::new("its configurations, each three times", points as f64, 32.0, false),
            Line::new("its runs that failed", result["failed"].as_f64().unwrap_or(f64::NAN), 0.0, true),
            Line::new("parts of the report's first page, of four", told as f64, 4.0, false),
            Line::new("words of the report's first page", words as f64, 700.0, true),
        ],
        runs: vec![json!({"seconds": seconds, "result": result, "first_page": first})],
    })
}
