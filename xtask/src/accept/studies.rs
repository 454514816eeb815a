//! Studies that are killed and resumed, at length: the test `studies::so_does_a_study_of_distributed_training` with
//! more kills. And the studies that are kept: how often each configuration was run.

use std::fs;

use serde_json::{Value, json};

use super::{Line, Report, Setup, number};
use crate::process::{self, Outcome, cargo, root};
use crate::study::repeats;

/// Kills of one study.
const KILLS: &str = "20";
/// The test that kills.
const TEST: &str = "studies::so_does_a_study_of_distributed_training";

/// One study, 20 kills: each planned run is made exactly once.
pub fn killed(_: &Setup) -> Outcome<Report> {
    let report = root().join("target/accept-studies.json");
    let _ = fs::remove_file(&report);
    let words = ["test", "--workspace", "--profile", "checked", "--test", "cli", "--", "--exact", TEST];
    process::run(cargo(&words).env("PACELINE_KILLS", KILLS).env("PACELINE_KILLS_REPORT", &report))?;
    let text = fs::read_to_string(&report).map_err(|e| format!("{}: {e}", report.display()))?;
    let run: Value = serde_json::from_str(&text).map_err(|e| format!("{}: {e}", report.display()))?;
    let line = |claim: &str, path: &str, wanted: f64| -> Outcome<Line> {
        Ok(Line { claim: claim.into(), reached: number(&run, path)?, wanted, at_most: false })
    };
    let planned = number(&run, "/planned")?;
    Ok(Report {
        lines: vec![
            line("kills of the study, its launchers, workers and servers", "/kills", 20.0)?,
            line("planned runs that ended exactly once", "/ended_once", planned)?,
        ],
        runs: vec![run],
    })
}

/// The studies in `studies/`: repeats of each configuration, and pages that are those of the runs.
pub fn again(_: &Setup) -> Outcome<Report> {
    let kept = repeats::kept()?;
    let (mut lines, mut runs) = (Vec::new(), Vec::new());
    for study in &kept {
        let (name, configurations, made) = (&study.name, study.configurations(), study.runs());
        let claim = format!("{name}: repeats of {configurations} configurations ({made} runs)");
        lines.push(Line::new(&claim, study.least() as f64, repeats::LEAST as f64, false));
        for (part, repeats) in &study.parts {
            runs.push(json!({"study": study.name, "part": part, "repeats": repeats}));
        }
    }
    let agree = kept.iter().filter(|study| study.pages_agree).count();
    lines.push(Line::new("pages that are those of their runs", agree as f64, kept.len() as f64, false));
    Ok(Report { lines, runs })
}
