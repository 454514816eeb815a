//! Memory and startup of a lenet run on MNIST.

use paceline_statistics::median;
use serde_json::json;

use super::{Line, Report, Setup, number};
use crate::process::{Outcome, last_json};

/// Runs that each median is made from.
const RUNS: usize = 5;

/// Peak memory and time to the first step, loading included.
pub fn measure(setup: &Setup) -> Outcome<Report> {
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    let (mut memory, mut startup) = (Vec::new(), Vec::new());
    for round in 0..RUNS {
        let result = last_json(setup.train("mnist", "lenet").args(["--steps", "50"]))?;
        memory.push(number(&result, "/ranks/0/rss_peak_bytes")? / 1e6);
        startup.push(number(&result, "/seconds/startup")?);
        report.runs.push(json!({"round": round, "result": result}));
    }
    let line = |claim: &str, values: &[f64], wanted| Line {
        claim: claim.into(),
        reached: median(values),
        wanted,
        at_most: true,
    };
    report.lines.push(line("mnist/lenet: peak memory in MB", &memory, 150.0));
    report.lines.push(line("mnist/lenet: startup in s", &startup, 0.6));
    Ok(report)
}
