//! Early exits: six devices that see a sixth of MNIST each, what losing one costs, and bytes instead of raw images.

use serde_json::{Value, json};

use super::{Line, Report, Setup, number};
use crate::process::{self, Outcome, last_json};

/// Thresholds that are tried; MNIST is judged at [`MNIST_T`], the made-up views at [`VIEWS_T`].
const THRESHOLDS: [f64; 7] = [0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5];
const MNIST_T: f64 = 0.01;
const VIEWS_T: f64 = 0.1;
/// Devices that see the middle of a digit, or its top right corner.
const COSTLY: [usize; 3] = [2, 3, 4];

/// Trains `ddnn` on a dataset; one step before the end it is saved.
fn train(setup: &Setup, data: &str, batch: u64, steps: u64) -> Outcome<Value> {
    let work = setup.work("exits");
    // Runs of an earlier call are in the way.
    let _ = std::fs::remove_dir_all(work.join(data));
    let mut command = setup.train(data, "ddnn");
    command.args(["--optimizer", "adam", "--lr", "0.004", "--schedule", "cosine", "--warmup", "0.1"]);
    command.args(["--threads", "2", "--eval-every", "1000000"]);
    command.args(["--batch", &batch.to_string(), "--steps", &steps.to_string()]);
    command.args(["--checkpoint-every", &(steps - 1).to_string(), "--store"]).arg(work.join(data));
    last_json(&mut command)
}

/// Answers of the network that was trained.
fn infer(setup: &Setup, data: &str, threshold: f64, more: &[&str]) -> Outcome<Value> {
    let mut command = setup.program();
    command.args(["infer", "last", "--quiet", "--json", "--exits", &threshold.to_string()]).args(more);
    command.arg("--store").arg(setup.work("exits").join(data));
    process::with_data(&mut command);
    last_json(&mut command)
}

/// Accuracy, the costs of lost devices, and bytes.
pub fn measure(setup: &Setup) -> Outcome<Report> {
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    for (data, batch, steps, judged) in [("mnist-views", 100, 6_000, MNIST_T), ("views", 50, 1_200, VIEWS_T)]
    {
        let result = train(setup, data, batch, steps)?;
        println!("     {data}: trained in {:.0} s", number(&result, "/seconds/train")?);
        report.runs.push(json!({"data": data, "trained": result}));
        for threshold in THRESHOLDS {
            let answered = infer(setup, data, threshold, &[])?;
            println!(
                "     {data}, T {threshold}: accuracy {:.4}, {:.3} left at the first exit",
                number(&answered, "/accuracy")?,
                number(&answered, "/exits/0/left_share")?,
            );
            if threshold == judged {
                same(data, &answered, &mut report)?;
                match data {
                    "views" => fewer_bytes(&answered, &mut report)?,
                    _ => lost_devices(&answered, &mut report)?,
                }
            }
            report.runs.push(json!({"data": data, "answered": answered}));
        }
    }
    let slow = infer(setup, "views", VIEWS_T, &["--network", "10mbit,2ms"])?;
    same("views over emulated links", &slow, &mut report)?;
    report.runs.push(json!({"data": "views", "network": "10mbit,2ms", "answered": slow}));
    Ok(report)
}

/// Over processes the answers are the same, and the bytes those of the formula.
fn same(data: &str, answered: &Value, report: &mut Report) -> Outcome {
    let different = number(answered, "/distributed/different")?;
    let claim = format!("{data}: samples answered differently by processes over tcp");
    report.lines.push(Line { claim, reached: different, wanted: 0.0, at_most: true });
    let off = number(answered, "/distributed/body_bytes")? - number(answered, "/distributed/formula_bytes")?;
    let claim = format!("{data}: bytes of bodies off the formula");
    report.lines.push(Line { claim, reached: off.abs(), wanted: 0.0, at_most: true });
    Ok(())
}

fn lost_devices(answered: &Value, report: &mut Report) -> Outcome {
    let accuracy = 100.0 * number(answered, "/accuracy")?;
    let claim = "MNIST 3×2: accuracy with all devices, %".into();
    report.lines.push(Line { claim, reached: accuracy, wanted: 99.0, at_most: false });
    let (mut costly, mut cheap) = (f64::INFINITY, f64::NEG_INFINITY);
    for device in 0..6 {
        let cost = number(answered, &format!("/without_device/{device}/cost_points"))?;
        println!("     without device {device}: {cost:.2} points");
        match COSTLY.contains(&device) {
            true => costly = costly.min(cost),
            false => cheap = cheap.max(cost),
        }
    }
    let claim = "MNIST 3×2: points that devices 2, 3, 4 cost more than the others, at least".into();
    report.lines.push(Line { claim, reached: costly - cheap, wanted: 0.01, at_most: false });
    let claim = "MNIST 3×2: points that devices 0, 1, 5 cost, at most".into();
    report.lines.push(Line { claim, reached: cheap, wanted: 1.5, at_most: true });
    Ok(())
}

fn fewer_bytes(answered: &Value, report: &mut Report) -> Outcome {
    let raw = 6.0 * number(answered, "/bytes_per_sample/raw_view")? * number(answered, "/test_samples")?;
    let times = raw / number(answered, "/distributed/body_bytes")?;
    let claim = "views: times fewer bytes of bodies than raw images".into();
    report.lines.push(Line { claim, reached: times, wanted: 20.0, at_most: false });
    let last = answered["exits"].as_array().map_or(0, Vec::len) - 1;
    let lost = number(answered, &format!("/exits/{last}/accuracy"))? - number(answered, "/accuracy")?;
    let claim = "views: points lost beside the last exit alone".into();
    report.lines.push(Line { claim, reached: 100.0 * lost, wanted: 1.0, at_most: true });
    Ok(())
}
