//! What is known of runs in stages before they are made: their step times, their ranks' buffers, and the best cut.

use paceline_statistics::{mean, median};
use serde_json::{Value, json};

use super::prediction::{compared, folder, keep, predictions, runs};
use super::{Line, Report, Setup, number};
use crate::process::{Outcome, last_json};

/// Networks whose steps in stages are predicted: `bench/prediction/stages-NAME.toml`.
const PREDICTED: [&str; 5] = ["lenet", "resnet20", "mlp", "gru", "transformer"];

/// Step times of runs in stages, predicted with a calibration of the same session, beside the runs.
pub fn predicted(setup: &Setup) -> Outcome<Report> {
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    let calibration = folder(setup)?.join("stages-calibration.toml");
    last_json(setup.program().args(["calibrate", "--quiet", "--out"]).arg(&calibration))?;
    let mut errors = Vec::new();
    for model in PREDICTED {
        let name = format!("stages-{model}");
        let mut calibrate = setup.program();
        calibrate.args(["calibrate", "--quiet", "--study"]).arg(super::prediction::file(&name));
        let measured = last_json(calibrate.arg("--out").arg(&calibration))?;
        runs(setup, &name)?;
        let document = predictions(setup, &name, &calibration)?;
        keep(setup, &name, &document)?;
        let steps = compared(&document, "step_s")?;
        let own = errors_of(&document)?;
        println!(
            "     {name}: {} points, off by {:.1}% on average; run to run {:.1}%",
            own.len(),
            100.0 * mean(&own),
            100.0 * number(&steps, "/noise_floor")?
        );
        errors.extend(own);
        report.runs.push(json!({"study": name, "comparison": steps, "added": measured["added"]}));
    }
    report.lines.push(Line::new("points in one and in two stages", errors.len() as f64, 24.0, false));
    report.lines.push(Line::new("step time: mean error", mean(&errors), 0.08, true));
    Ok(report)
}

/// By how much each point's predicted step time is off, as a part of the median that was measured.
fn errors_of(document: &Value) -> Outcome<Vec<f64>> {
    let mut compared = document["compared"].as_array().into_iter().flatten();
    let steps = compared.rfind(|compared| compared["metric"] == "step_s");
    let points = steps.and_then(|steps| steps["points"].as_array()).into_iter().flatten();
    let error = |point: &Value| {
        let measured: Vec<f64> =
            point["measured"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        if measured.is_empty() {
            return Err(format!("a point without a measurement: {point}"));
        }
        Ok((number(point, "/predicted")? / median(&measured) - 1.0).abs())
    };
    points.map(error).collect()
}

/// Runs whose ranks' buffers are counted: each model, pipeline, transport, and number of workers once at least.
const COUNTED: [&str; 7] = [
    "--model lenet --stages 3 --pipeline gpipe --transport inproc --optimizer adam",
    "--model lenet --stages 2 --pipeline 1f1b --transport tcp --workers 4 --strategy ring-allreduce",
    "--model lenet --stages 2 --transport uds --workers 4 --servers 2 --strategy ps",
    "--model resnet20 --stages 4 --pipeline 1f1b --transport shm --batch 13",
    "--model mlp --stages 2 --pipeline gpipe --transport grpc --momentum 0",
    "--model gru --data series --stages 2 --transport shm --optimizer adam",
    "--model transformer --data letters --stages 3 --pipeline gpipe --transport tcp --batch 8",
];

/// Bytes of ranks' buffers: as `train --dry-run` says them, and as the run's result counts them.
pub fn memory(setup: &Setup) -> Outcome<Report> {
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    let (mut ranks, mut different) = (0, 0);
    for words in COUNTED {
        let train = |last: &str| {
            let mut command = setup.program();
            command.args(["train", "--quiet", "--json", "--micro-batches", "4", "--steps", "3"]);
            last_json(command.args(words.split_whitespace()).arg(last))
        };
        let said: Vec<u64> = train("--dry-run")?["buffer_bytes"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_u64)
            .collect();
        if said.is_empty() {
            return Err(format!("train --dry-run {words} says no bytes of buffers"));
        }
        let result = train("--no-record")?;
        let counted: Vec<Option<u64>> = result["ranks"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|rank| rank["role"] == "worker")
            .map(|rank| rank["buffer_bytes"].as_u64())
            .collect();
        ranks += counted.len();
        let differs = |(rank, counted): &(usize, &Option<u64>)| **counted != Some(said[rank % said.len()]);
        different += counted.iter().enumerate().filter(differs).count();
        report.runs.push(json!({"words": words, "said": said, "counted": counted}));
    }
    let claim =
        format!("of {ranks} ranks, those whose counted buffer bytes are not what was computed before");
    report.lines.push(Line::new(&claim, different as f64, 0.0, true));
    Ok(report)
}

/// A network that is cut everywhere: its data, steps of a run of a second or so, and its batch.
struct Case {
    model: &'static str,
    data: &'static str,
    steps: u32,
    batch: u32,
}

const CASES: [Case; 3] = [
    Case { model: "mlp", data: "synthetic", steps: 500, batch: 128 },
    Case { model: "lenet", data: "synthetic", steps: 40, batch: 64 },
    Case { model: "gru", data: "series", steps: 100, batch: 64 },
];
/// Micro-batches of each run, in two stages.
const MICRO_BATCHES: &str = "8";
/// Rounds in which every cut has a run, and those in which the automatic one and the best one alternate.
const ROUNDS: [u64; 2] = [3, 5];
/// The part of the best one's speed that the automatic cut may miss.
const BEHIND: f64 = 0.05;

/// The automatic cut beside every other one.
pub fn cuts(setup: &Setup) -> Outcome<Report> {
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    let rounds = ROUNDS.map(|rounds| setup.rounds.unwrap_or(rounds).max(1));
    for case in &CASES {
        let mut show = setup.program();
        show.args(["model", "show", case.model, "--data", case.data, "--json", "--stages", "2"]);
        show.args(["--batch", &case.batch.to_string(), "--micro-batches", MICRO_BATCHES]);
        let shown = last_json(&mut show)?;
        let layers = shown["layers"].as_array().into_iter().flatten().skip(1);
        let layers: Vec<&str> = layers.filter_map(|layer| layer["name"].as_str()).collect();
        let automatic = shown.pointer("/pipeline/stage/1/first_layer").and_then(Value::as_str);
        let automatic = automatic.ok_or_else(|| format!("model show says no cut: {shown}"))?;
        let mut rates: Vec<(&str, Vec<f64>)> = layers.iter().map(|layer| (*layer, Vec::new())).collect();
        for _ in 0..rounds[0] {
            for (cut, rates) in &mut rates {
                rates.push(rate(setup, case, cut, &mut report.runs)?);
            }
        }
        for (cut, rates) in &rates {
            println!("     {}, cut before {cut}: {:.0} samples/s", case.model, median(rates));
        }
        let others = rates.iter().filter(|(cut, _)| *cut != automatic);
        let best = others.max_by(|a, b| median(&a.1).total_cmp(&median(&b.1)));
        let (best, _) = best.ok_or_else(|| format!("{} has one cut only", case.model))?;
        // The greatest of several medians is great by chance, too: both run again.
        let (mut own, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..rounds[1] {
            own.push(rate(setup, case, automatic, &mut report.runs)?);
            theirs.push(rate(setup, case, best, &mut report.runs)?);
        }
        let spread = |rates: &[f64]| {
            let away: Vec<f64> = rates.iter().map(|rate| (rate / median(rates) - 1.0).abs()).collect();
            median(&away)
        };
        let noise = spread(&own).max(spread(&theirs));
        let claim = format!(
            "{}: speed of the automatic cut ({automatic}), of the best other one's ({best})",
            case.model
        );
        report.lines.push(Line::new(&claim, median(&own) / median(&theirs), 1.0 - noise.max(BEHIND), false));
    }
    Ok(report)
}

fn rate(setup: &Setup, case: &Case, cut: &str, runs: &mut Vec<Value>) -> Outcome<f64> {
    let mut command = setup.train(case.data, case.model);
    command.args(["--no-record", "--eval-every", "1000000", "--eval-samples", "64", "--pin"]);
    command.args(["--stages", "2", "--transport", "shm", "--micro-batches", MICRO_BATCHES, "--cuts", cut]);
    command.args(["--steps", &case.steps.to_string(), "--batch", &case.batch.to_string()]);
    let result = last_json(&mut command)?;
    let rate = number(&result, "/samples_per_s")?;
    runs.push(json!({"model": case.model, "cut": cut, "samples_per_s": rate}));
    Ok(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_parts_of_the_median_that_was_measured() {
        let document = |points: Value| json!({"compared": [{"metric": "step_s", "points": points}]});
        let errors = errors_of(&document(json!([
            {"predicted": 1.1, "measured": [1.0, 0.9, 5.0]},
            {"predicted": 1.0, "measured": [2.0]},
        ])));
        let errors = errors.unwrap();
        assert!((errors[0] - 0.1).abs() < 1e-9 && (errors[1] - 0.5).abs() < 1e-9, "{errors:?}");
        assert!(errors_of(&document(json!([{"predicted": 1.0, "measured": []}]))).is_err());
    }

    #[test]
    fn every_study_of_predictions_is_there() {
        for model in PREDICTED {
            let text = std::fs::read_to_string(super::super::prediction::file(&format!("stages-{model}")));
            assert!(text.unwrap().contains(&format!("name = \"stages-{model}\"")), "{model}");
        }
    }
}
