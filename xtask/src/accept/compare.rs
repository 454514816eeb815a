//! `paceline compare`: a copy is never said to differ, a full comparison ends in time, and another seed says the same.

use std::fs;
use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};

use super::{Line, Report, Setup};
use crate::process::{Outcome, last_json, root};

/// The strategy whose copy is compared, by its built-in name, and the file of the copy.
const ORIGINAL: &str = "ring-allreduce";
const COPY: &str = "examples/strategies/ring-allreduce.toml";

/// The rule of the full comparison.
const RULE: &str = "examples/strategies/gossip.toml";

/// Comparisons of the copy where nothing else is said, and minutes of each.
const COPIES: u64 = 20;
const COPY_MINUTES: f64 = 2.0;

/// Minutes of a full comparison.
const FULL_MINUTES: f64 = 20.0;

/// All lines; `--rounds N` makes N comparisons of the copy, `--seed S` begins at another seed.
pub fn measure(setup: &Setup) -> Outcome<Report> {
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    let (work, seed) = (setup.work("compare"), setup.seed.unwrap_or(1));
    let _ = fs::remove_dir_all(&work);
    let copy = copied(&work)?;
    let (mut differ, mut longest) = (0, 0.0f64);
    let copies = setup.rounds.unwrap_or(COPIES);
    for i in 0..copies {
        let (findings, minutes) = compare(setup, &work, &copy, COPY_MINUTES, seed + i)?;
        let wrong = real(&findings, Some(ORIGINAL));
        println!("     copy, seed {}: {} said to differ, {minutes:.2} min", seed + i, wrong.len());
        differ += usize::from(!wrong.is_empty());
        longest = longest.max(minutes / COPY_MINUTES);
        report.runs.push(kept("copy", seed + i, minutes, &findings));
    }
    let claim = format!("copy of {ORIGINAL}: comparisons of {copies} that say it differs");
    report.lines.push(Line::new(&claim, differ as f64, 0.0, true));
    report.lines.push(Line::new("copy: longest comparison, of its budget", longest, 1.1, true));
    let rule = root().join(RULE).display().to_string();
    let mut full = Vec::new();
    for seed in [seed, seed + 1] {
        let (findings, minutes) = compare(setup, &work, &rule, FULL_MINUTES, seed)?;
        println!(
            "     full, seed {seed}: {} real differences, {minutes:.1} min",
            real(&findings, None).len()
        );
        report.lines.push(Line::new(
            &format!("full comparison, seed {seed}: minutes"),
            minutes,
            FULL_MINUTES,
            true,
        ));
        report.runs.push(kept("full", seed, minutes, &findings));
        full.push(findings);
    }
    let (agree, all) = agreement(&full[0], &full[1]);
    report.lines.push(Line::new("full comparison: real differences", all as f64, 1.0, false));
    let claim = "with another seed, real differences of the same sign";
    report.lines.push(Line::new(claim, agree as f64 / all.max(1) as f64, 0.95, false));
    Ok(report)
}

/// The strategy file under another name.
fn copied(work: &Path) -> Outcome<String> {
    let failed = |error: std::io::Error| format!("{}: {error}", work.display());
    fs::create_dir_all(work).map_err(failed)?;
    let text = fs::read_to_string(root().join(COPY)).map_err(failed)?;
    let named = text.replace("name = \"ring all-reduce\"", "name = \"a rule of mine\"");
    if named == text {
        return Err(format!("{COPY} has another name than expected"));
    }
    let path = work.join("mine.toml");
    fs::write(&path, named).map_err(failed)?;
    Ok(path.display().to_string())
}

/// The findings of a comparison, and its minutes.
fn compare(setup: &Setup, work: &Path, mine: &str, minutes: f64, seed: u64) -> Outcome<(Value, f64)> {
    let mut command = setup.program();
    command
        .args(["compare", mine, "--json", "--quiet"])
        .args(["--budget", &minutes.to_string(), "--seed", &seed.to_string()])
        .arg("--store")
        .arg(work.join("store"));
    let begun = Instant::now();
    let findings = last_json(&mut command)?;
    Ok((findings, begun.elapsed().as_secs_f64() / 60.0))
}

/// Where a difference is: its cell, rival and figure.
fn place(difference: &Value) -> [&Value; 3] {
    [&difference["cell"], &difference["rival"], &difference["figure"]]
}

/// Differences that are said to be real; of one rival, or of all.
fn real<'f>(findings: &'f Value, rival: Option<&str>) -> Vec<&'f Value> {
    let named = |difference: &&Value| {
        let label = difference["rival"].as_u64().map(|i| &findings["contenders"][i as usize]);
        rival.is_none_or(|rival| label.is_some_and(|label| label == rival))
    };
    let said = |difference: &&Value| matches!(difference["verdict"].as_str(), Some("better" | "worse"));
    findings["differences"].as_array().into_iter().flatten().filter(said).filter(named).collect()
}

/// Whether the first strategy is ahead.
fn ahead(difference: &Value) -> Option<bool> {
    let estimate = difference["estimate"].as_f64()?;
    Some(if difference["figure"] == "accuracy" { estimate > 0.0 } else { estimate < 1.0 })
}

/// Real differences of either comparison that have the same sign in the other one, and how many there are. One that the
/// other has no figure for disagrees.
fn agreement(first: &Value, second: &Value) -> (usize, usize) {
    let (mut agree, mut all) = (0, 0);
    for (one, other) in [(first, second), (second, first)] {
        for difference in real(one, None) {
            let others = other["differences"].as_array().into_iter().flatten();
            let there = others.filter(|d| place(d) == place(difference)).find_map(ahead);
            all += 1;
            agree += usize::from(there.is_some() && there == ahead(difference));
        }
    }
    (agree, all)
}

/// What is kept of a comparison.
fn kept(what: &str, seed: u64, minutes: f64, findings: &Value) -> Value {
    json!({"what": what, "seed": seed, "minutes": minutes, "findings": findings})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(rows: &[(u64, &str, f64, &str)]) -> Value {
        let one = |(rival, figure, estimate, verdict): &(u64, &str, f64, &str)| json!({"cell": 1, "rival": rival, "figure": figure, "estimate": estimate, "verdict": verdict});
        let rows: Vec<Value> = rows.iter().map(one).collect();
        json!({"contenders": ["mine", "ring-allreduce", "ps"], "differences": rows})
    }

    #[test]
    fn signs_are_compared_both_ways_and_what_is_missing_disagrees() {
        let one = findings(&[
            (1, "accuracy", 0.1, "better"),
            (1, "time", 0.5, "better"),
            (2, "time", 2.0, "worse"),
        ]);
        let other = findings(&[(1, "accuracy", 0.01, "unclear"), (1, "time", 1.5, "worse")]);
        assert_eq!(agreement(&one, &other), (1, 4));
        assert_eq!(real(&one, Some("ps")).len(), 1);
        assert_eq!(real(&other, Some("ps")).len(), 0);
    }
}
