//! Codecs on MNIST/lenet, 2 workers, 2 epochs: bytes on the wire and accuracy beside no codec.

use serde_json::json;

use super::averaging::sent_bytes;
use super::{Line, Report, Setup, number};
use crate::process::{Outcome, last_json};

/// Codecs, and by how much they should cut the bytes; accuracy is asked of those alone.
const CODECS: &[(&str, Option<f64>)] = &[
    ("none", None),
    ("fp16", Some(2.0)),
    ("2bit", Some(16.0)),
    ("int8", None),
    ("topk", None),
    ("sign", None),
    ("powersgd", None),
];

/// Bytes and accuracy of every codec.
pub fn measure(setup: &Setup) -> Outcome<Report> {
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    let (mut plain, mut plain_accuracy) = (0.0, 0.0);
    for (name, factor) in CODECS {
        let mut command = setup.train("mnist", "lenet");
        command.args(["--workers", "2", "--batch", "64", "--epochs", "2"]);
        command.args(["--lr", "0.01", "--eval-every", "1000000"]);
        if *name != "none" {
            command.args(["--compression", name]);
        }
        let result = last_json(&mut command)?;
        let (accuracy, bytes) = (number(&result, "/final_accuracy")?, sent_bytes(&result));
        report.runs.push(json!({"codec": name, "result": result}));
        if *name == "none" {
            (plain, plain_accuracy) = (bytes, accuracy);
        }
        println!(
            "     {name:<10} accuracy {accuracy:.4}, {:.0} MB, {:.2} times fewer bytes",
            bytes / 1e6,
            plain / bytes
        );
        if let Some(factor) = factor {
            let claim = format!("{name}: bytes cut, of its factor {factor}");
            report.lines.push(Line { claim, reached: plain / bytes / factor, wanted: 0.98, at_most: false });
            let claim = format!("{name}: accuracy lost, in points");
            let lost = 100.0 * (plain_accuracy - accuracy);
            report.lines.push(Line { claim, reached: lost, wanted: 1.0, at_most: true });
        }
    }
    Ok(report)
}
