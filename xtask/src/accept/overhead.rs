//! What recording costs.

use super::{Line, Report, Setup, number};
use crate::process::{Outcome, last_json};

/// Recorded and unrecorded runs in turn. Many short pairs tell more than few long ones: this machine's pace changes
/// from second to second.
pub fn measure(setup: &Setup) -> Outcome<Report> {
    let mut command = setup.program();
    let result = last_json(command.args(["bench", "overhead", "--json"]))?;
    let line = |claim: &str, path: &str| {
        Ok(Line { claim: claim.into(), reached: number(&result, path)?, wanted: 0.02, at_most: true })
    };
    let lines = [
        line("recording, mlp with 2 workers: throughput lost, upper 95% bound", "/loss_fraction_upper95"),
        line("recording, mlp with 2 workers: CPU time added, upper 95% bound", "/cpu_fraction_upper95"),
    ];
    Ok(Report { lines: lines.into_iter().collect::<Outcome<_>>()?, runs: vec![result] })
}
