//! Every strategy and consistency model learns MNIST with a script, or is refused with a reason.

use std::process::Command;

use paceline_protocol::{CONSISTENCIES, STRATEGIES, Strategy};
use paceline_testing::process::show;
use serde_json::json;

use super::Sides;
use crate::accept::{Line, Report, Setup, number};
use crate::process::{Outcome, last_json, with_data};

/// The script, and its arguments behind the folder of the data.
pub const SCRIPT: &str = "examples/pytorch/mnist.py";
/// (Servers that make every worker's update with momentum go astray at a rate of 0.05, those of native runs too.)
const ARGUMENTS: &str = "--epochs 2 --lr 0.02 --log-interval 1000000";

/// The part of the test images that must be named.
const ACCURACY: f64 = 0.97;

/// Trains with each of them; who updates the parameters matters to servers alone.
pub fn measure(setup: &Setup) -> Outcome<Report> {
    let sides = Sides::new(setup)?;
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    let words = format!("--data {} {ARGUMENTS}", mnist(setup)?);
    let mut silent = 0;
    let pairs = STRATEGIES.iter().flat_map(|s| CONSISTENCIES.iter().map(move |c| (s, c.name)));
    for (Strategy { name: strategy, servers, .. }, sync) in pairs {
        for apply in ["worker", "server"] {
            let servers = if *servers { " --servers 1" } else { "" };
            let flags = format!("--workers 2 --strategy {strategy} --sync {sync} --apply {apply}{servers}");
            let tried = sides.workers(SCRIPT, &format!("{flags} --dry-run"), &words);
            if let Some(reason) = refusal(tried)? {
                silent += usize::from(!reason.contains("error: "));
                report.runs.push(json!({"flags": flags, "refused": reason}));
                continue;
            }
            let result = last_json(&mut sides.workers(SCRIPT, &flags, &words))?;
            let claim = format!("{strategy}, {sync}, applied by the {apply}: accuracy on MNIST");
            report.lines.push(Line::new(&claim, number(&result, "/final_accuracy")?, ACCURACY, false));
            report.runs.push(json!({"flags": flags, "result": result}));
        }
    }
    report.lines.push(Line::new("refused without a reason", silent as f64, 0.0, true));
    Ok(report)
}

/// Where MNIST's files lie.
fn mnist(setup: &Setup) -> Outcome<String> {
    let mut command = setup.program();
    with_data(command.args(["data", "path", "mnist"]));
    let output = command.output().map_err(|error| format!("paceline data path mnist: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// What a plan that cannot be made is refused with.
fn refusal(mut command: Command) -> Outcome<Option<String>> {
    let output = command.output().map_err(|error| format!("paceline: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    match output.status.code() {
        Some(0) => Ok(None),
        Some(2 | 3) => Ok(Some(said)),
        _ => Err(format!("`{}` failed: {}\n{said}", show(&command), output.status)),
    }
}
