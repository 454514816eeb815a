//! Predictions beside real runs, and how many real runs they save.

use std::fs;
use std::path::{Path, PathBuf};

use paceline_statistics::median;
use serde_json::{Value, json};

use super::{Line, Report, Setup, number};
use crate::process::{self, Outcome, last_json, root};

/// Seeds that samplers are compared over.
const SEEDS: usize = 50;

/// Studies, the one that predictions are held against first.
const STUDIES: &[&str] = &["mlp", "lenet"];

/// Studies of models, inputs, batches or numbers of workers that `calibrate` does not measure by itself.
const ADDED: &[&str] = &["lenet", "gru", "network"];

/// Where calibrations, runs and predictions are kept.
pub(super) fn folder(setup: &Setup) -> Outcome<PathBuf> {
    let folder = setup.kept("prediction");
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    Ok(folder)
}

/// What things cost here, measured anew.
fn calibrate(setup: &Setup, report: &mut Report) -> Outcome<PathBuf> {
    let file = folder(setup)?.join("calibration.toml");
    let calibrated = last_json(setup.program().args(["calibrate", "--quiet", "--out"]).arg(&file))?;
    let reached = number(&calibrated, "/seconds")?;
    report.lines.push(Line { claim: "calibrate: s".into(), reached, wanted: 120.0, at_most: true });
    Ok(file)
}

/// The file of a study.
pub(super) fn file(name: &str) -> PathBuf {
    root().join(format!("bench/prediction/{name}.toml"))
}

/// The store that a study's runs are made in.
fn store(setup: &Setup) -> PathBuf {
    setup.work("prediction")
}

/// Makes a study's runs, and keeps them.
pub(super) fn runs(setup: &Setup, name: &str) -> Outcome<()> {
    // A study's folder has the name that its file says.
    let of_file = if name.starts_with("stages-") { name.to_owned() } else { format!("prediction-{name}") };
    let study = store(setup).join("studies").join(of_file);
    if study.is_dir() {
        fs::remove_dir_all(&study).map_err(|e| format!("{}: {e}", study.display()))?;
    }
    let mut explore = setup.program();
    process::run(explore.arg("explore").arg(file(name)).arg("--quiet").arg("--store").arg(store(setup)))?;
    let (from, to) = (study.join("journal.ndjson"), folder(setup)?.join(format!("{name}.runs.ndjson")));
    fs::copy(&from, &to).map_err(|e| format!("{} to {}: {e}", from.display(), to.display()))?;
    Ok(())
}

/// Predicts a study's runs beside what they took; the predictions' document.
pub(super) fn predictions(setup: &Setup, name: &str, calibration: &Path) -> Outcome<Value> {
    let mut predict = setup.program();
    predict.arg("predict").arg(file(name)).args(["--json", "--quiet", "--against", "--time-only"]);
    last_json(predict.arg("--calibration").arg(calibration).arg("--store").arg(store(setup)))
}

/// Makes a study's runs, predicts them, and keeps both; the predictions' document.
fn study(setup: &Setup, name: &str, calibration: &Path) -> Outcome<Value> {
    runs(setup, name)?;
    let document = predictions(setup, name, calibration)?;
    keep(setup, name, &document)?;
    Ok(document)
}

pub(super) fn keep(setup: &Setup, name: &str, document: &Value) -> Outcome<()> {
    let text = serde_json::to_string_pretty(document).expect("plain data") + "\n";
    let path = folder(setup)?.join(format!("{name}.predictions.json"));
    fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))
}

/// How right predictions of a figure were.
pub(super) fn compared(document: &Value, metric: &str) -> Outcome<Value> {
    let all = document["compared"].as_array().into_iter().flatten();
    let mut found = all.filter(|compared| compared["metric"] == metric).map(|c| c["comparison"].clone());
    found.next_back().ok_or_else(|| format!("{metric} was not compared"))
}

/// A study of what the calibration lacks: measured with `calibrate --study`, then predicted.
fn added(setup: &Setup, name: &str, calibration: &Path, report: &mut Report) -> Outcome<()> {
    // The machine's own calibration stays as it was measured.
    let own = setup.work(&format!("calibration-{name}.toml"));
    fs::copy(calibration, &own).map_err(|e| format!("{}: {e}", own.display()))?;
    let mut calibrate = setup.program();
    calibrate.args(["calibrate", "--quiet", "--study"]).arg(file(name)).arg("--out").arg(&own);
    let measured = last_json(&mut calibrate)?;
    let passes = measured["added"].as_array().map_or(0, Vec::len);
    if passes == 0 {
        return Err(format!("the calibration has all of {name} already: it says nothing of what it lacks"));
    }
    // Those of a study that was predicted without it are there.
    if !STUDIES.contains(&name) {
        runs(setup, name)?;
    }
    let without = compared(&predictions(setup, name, calibration)?, "step_s")?;
    let document = predictions(setup, name, &own)?;
    keep(setup, name, &document)?;
    let steps = compared(&document, "step_s")?;
    println!(
        "     {name}: {passes} passes measured in {:.0} s; mean error {:.1}% without them; run to run {:.1}%",
        number(&measured, "/seconds")?,
        100.0 * number(&without, "/mean_error")?,
        100.0 * number(&steps, "/noise_floor")?
    );
    let mut line = |claim: &str, reached: f64, wanted: f64, at_most: bool| {
        let claim = format!("{name}, after calibrate --study: {claim}");
        report.lines.push(Line { claim, reached, wanted, at_most });
    };
    line("s per pass that was measured", number(&measured, "/seconds")? / passes as f64, 10.0, true);
    line("step time: mean error", number(&steps, "/mean_error")?, 0.08, true);
    line("step time: p90 of the errors", number(&steps, "/p90_error")?, 0.2, true);
    line("step time: rank correlation", number(&steps, "/rank_correlation")?, 0.95, false);
    line("step time: fraction inside the intervals", number(&steps, "/covered")?, 0.9, false);
    report
        .runs
        .push(json!({"study": name, "comparison": steps, "without": without, "added": measured["added"]}));
    Ok(())
}

/// Errors, order and regret of predictions.
pub fn errors(setup: &Setup) -> Outcome<Report> {
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    let calibration = calibrate(setup, &mut report)?;
    let document = study(setup, STUDIES[0], &calibration)?;
    let (steps, rate) = (compared(&document, "step_s")?, compared(&document, "samples_per_s")?);
    let noise = number(&steps, "/noise_floor")?;
    println!("     run to run, step times differ by {:.1}%", 100.0 * noise);
    let mut line = |claim: &str, reached: f64, wanted: f64, at_most: bool| {
        report.lines.push(Line { claim: claim.into(), reached, wanted, at_most });
    };
    line("points", number(&steps, "/points")?, 40.0, false);
    line("step time: mean error", number(&steps, "/mean_error")?, (1.2 * noise).max(0.1), true);
    line("step time: p90 of the errors", number(&steps, "/p90_error")?, 0.25, true);
    line("step time: rank correlation", number(&steps, "/rank_correlation")?, 0.9, false);
    line("samples per second: regret of the predicted best", number(&rate, "/regret")?, 0.05, true);
    report.runs.push(json!({"comparisons": [steps, rate], "runs": "bench/prediction/mlp.runs.ndjson"}));
    let lenet = compared(&study(setup, "lenet", &calibration)?, "step_s")?;
    line("lenet, step time: mean error", number(&lenet, "/mean_error")?, 0.08, true);
    line("lenet, step time: p90 of the errors", number(&lenet, "/p90_error")?, 0.2, true);
    report.runs.push(json!({"study": "lenet", "comparison": lenet}));
    for name in ADDED {
        added(setup, name, &calibration, &mut report)?;
    }
    Ok(report)
}

/// A study as a table: levels, what was measured, what was predicted.
fn table(folder: &Path, name: &str, document: &Value) -> Outcome<(PathBuf, Vec<String>)> {
    let empty = Vec::new();
    let compared = document["compared"].as_array().into_iter().flatten();
    let mut compared = compared.filter(|c| c["metric"] == "samples_per_s");
    let pairs = compared.next_back().and_then(|c| c["points"].as_array()).unwrap_or(&empty);
    let points = document["points"].as_array().unwrap_or(&empty);
    let mut axes: Vec<String> = Vec::new();
    for levels in points.iter().filter_map(|point| point["levels"].as_object()) {
        for name in levels.keys().filter(|name| !axes.contains(name)).cloned().collect::<Vec<_>>() {
            axes.push(name);
        }
    }
    let cell = |value: &Value| match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => format!("\"{text}\""),
        other => other.to_string(),
    };
    let mut text = axes.join(",") + ",measured,predicted\n";
    let word = |(name, value): (&String, &Value)| format!("{name} {}", cell(value).trim_matches('"'));
    for point in points {
        let levels = point["levels"].as_object().into_iter().flatten();
        let what = levels.map(word).collect::<Vec<_>>().join(", ");
        // Points that were not measured have no pair.
        let Some(pair) = pairs.iter().find(|pair| pair["what"] == what.as_str()) else { continue };
        let predicted = number(pair, "/predicted")?;
        let measured: Vec<f64> =
            pair["measured"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        let levels: Vec<String> = axes.iter().map(|axis| cell(&point["levels"][axis])).collect();
        text += &format!("{},{},{predicted}\n", levels.join(","), median(&measured));
    }
    let path = folder.join(format!("{name}.csv"));
    fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok((path, axes))
}

/// Real runs until one is within 5% of the best, with the simulator as prior and without.
pub fn prior(setup: &Setup) -> Outcome<Report> {
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    let folder = folder(setup)?;
    let calibration = folder.join("calibration.toml");
    if !calibration.is_file() {
        calibrate(setup, &mut report)?;
    }
    for name in STUDIES {
        // What `accept prediction` measured is used; remove the file to measure it again.
        let kept = folder.join(format!("{name}.predictions.json"));
        let document = match fs::read_to_string(&kept) {
            Ok(text) => serde_json::from_str(&text).map_err(|e| format!("{}: {e}", kept.display()))?,
            Err(_) => study(setup, name, &calibration)?,
        };
        let (path, axes) = table(&folder, name, &document)?;
        let bench = |prior: &[&str]| -> Outcome<Value> {
            let mut command = setup.program();
            command.args(["bench", "samplers", "--json", "--samplers", "bayes", "--maximize"]);
            command
                .args(["--objective", "measured", "--budget", "40"])
                .args(["--repeats", &SEEDS.to_string()]);
            for axis in &axes {
                command.args(["--axis", axis]);
            }
            last_json(command.args(prior).arg("--table").arg(&path))
        };
        let (with, without) = (bench(&["--prior", "predicted"])?, bench(&[])?);
        let until = |curves: &Value| number(curves, "/curves/0/evaluations_to_5_percent/mean");
        let (a, b) = (until(&with)?, until(&without)?);
        println!("     {name}: {a:.1} runs with the prior, {b:.1} without");
        let claim = format!(
            "{name}: runs until within 5% of the best, with the simulator as prior, of those without"
        );
        report.lines.push(Line { claim, reached: a / b, wanted: 0.5, at_most: true });
        report.runs.push(json!({"study": name, "with": with["curves"], "without": without["curves"]}));
    }
    Ok(report)
}
