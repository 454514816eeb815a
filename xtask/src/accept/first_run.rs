//! The first command, five times: within 90 s, the same winner, not one worker alone, and the controls' spread below
//! the effect.

use std::collections::BTreeSet;
use std::fs;
use std::time::Instant;

use serde_json::{Value, json};

use super::{Line, Report, Setup};
use crate::process::{Outcome, last_json};

const RUNS: usize = 5;

/// The best configuration and those that cannot be told from it.
fn winners(result: &Value) -> BTreeSet<String> {
    let others = result["as_good"].as_array().into_iter().flatten();
    others.chain([&result["best"]["levels"]]).map(ToString::to_string).collect()
}

/// Five runs in folders of their own.
pub fn measure(setup: &Setup) -> Outcome<Report> {
    let (mut seconds, mut results) = (Vec::new(), Vec::new());
    for i in 0..RUNS {
        let folder = setup.work("first-run").join(i.to_string());
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let begun = Instant::now();
        let result =
            last_json(setup.program().arg("--json").current_dir(&folder).env_remove("PACELINE_STORE"))?;
        seconds.push(begun.elapsed().as_secs_f64());
        let controls = &result["noise"]["controls"];
        println!(
            "     run {}: {:.0} s, best {} (or {}), controls vary by {:.1}%",
            i + 1,
            seconds[i],
            result["best"]["levels"],
            result["as_good"],
            100.0 * controls["variation"].as_f64().unwrap_or(f64::NAN)
        );
        results.push(result);
    }
    let common = results.iter().map(winners).reduce(|a, b| &a & &b).unwrap_or_default();
    let alone = |result: &&Value| winners(result).iter().any(|levels| levels.contains("\"workers\":1"));
    let figure = |result: &Value, side: &str| result[side]["value"].as_f64().unwrap_or(f64::NAN);
    let gain = |result: &Value| figure(result, "several_workers") / figure(result, "one_worker") - 1.0;
    let spread = |result: &Value| result["noise"]["controls"]["variation"].as_f64().unwrap_or(f64::NAN);
    let least = results.iter().map(|r| gain(r) / spread(r)).fold(f64::INFINITY, f64::min);
    Ok(Report {
        lines: vec![
            Line::new(
                "the longest of five first commands, s",
                seconds.iter().copied().fold(0.0, f64::max),
                90.0,
                true,
            ),
            Line::new("configurations that all five call best, or as good", common.len() as f64, 1.0, false),
            Line::new(
                "first commands in which one worker may be the best",
                results.iter().filter(alone).count() as f64,
                0.0,
                true,
            ),
            Line::new("gain of several workers over the controls' spread, least of five", least, 1.0, false),
        ],
        runs: results
            .iter()
            .zip(&seconds)
            .map(|(result, s)| json!({"seconds": s, "result": result}))
            .collect(),
    })
}
