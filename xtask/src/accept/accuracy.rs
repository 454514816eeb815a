//! Accuracies that must be reached within a number of epochs.

use serde_json::json;

use super::{Line, Report, Setup, number};
use crate::process::{Outcome, last_json};

struct Case {
    data: &'static str,
    batch: u32,
    epochs: f64,
    schedule: &'static str,
    seeds: &'static [u64],
    wanted: f64,
}

const CASES: &[Case] = &[
    Case { data: "mnist", batch: 64, epochs: 3.0, schedule: "cosine", seeds: &[1], wanted: 0.989 },
    Case {
        data: "fashion-mnist",
        batch: 128,
        epochs: 1.3,
        schedule: "constant",
        seeds: &[1, 2, 3],
        wanted: 0.88,
    },
];

/// lenet, lr 0.05, momentum 0.9.
pub fn measure(setup: &Setup) -> Outcome<Report> {
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    for &Case { data, batch, epochs, schedule, seeds, wanted } in CASES {
        for seed in seeds {
            let mut command = setup.train(data, "lenet");
            command
                .args(["--threads", "2", "--lr", "0.05", "--momentum", "0.9", "--seed", &seed.to_string()])
                .args([
                    "--batch",
                    &batch.to_string(),
                    "--epochs",
                    &epochs.to_string(),
                    "--schedule",
                    schedule,
                ]);
            let result = last_json(&mut command)?;
            let reached = number(&result, "/final_accuracy")?;
            let claim =
                format!("{data}/lenet, batch {batch}, {epochs} epochs, {schedule}, seed {seed}: accuracy");
            report.lines.push(Line { claim, reached, wanted, at_most: false });
            report.runs.push(json!({"data": data, "seed": seed, "result": result}));
        }
    }
    Ok(report)
}
