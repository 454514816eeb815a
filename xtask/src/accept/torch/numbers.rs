//! What two, three and four workers compute: bit for bit DDP's parameters, and close to those of one worker with the
//! whole batch.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::Sides;
use crate::accept::{Line, Report, Setup};
use crate::process::{Outcome, last_json};

/// Samples of each worker's step, and steps.
const BATCH: u32 = 64;
const STEPS: u32 = 50;

/// Optimizers, and how far parameters may be from those of one worker. Max pooling chooses: `lenet` on made-up
/// images goes other ways after rounding differently, under DDP as well, so `mlp` is compared.
const CLOSE: &[(&str, f64)] = &[("momentum", 1e-5), ("adam", 1e-3)];

/// Compares the parameters after [`STEPS`] steps.
pub fn measure(setup: &Setup) -> Outcome<Report> {
    let sides = Sides::new(setup)?;
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    let folder = setup.work("torch-numbers");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for model in ["mlp", "lenet"] {
        let words = format!("--model {model} --optimizer sgd");
        let ours = trained(&sides, &folder, 2, &words, &mut report)?;
        let command = sides.plain("ddp", &format!("--workers 2 --threads 1 {words} {}", length(BATCH)));
        let theirs = kept(command, &folder, "ddp", 2, &mut report.runs)?;
        let differing = ours.iter().zip(&theirs[0]).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        let claim = format!("{model}, SGD, 2 workers: parameters that differ from DDP's in a bit");
        report.lines.push(Line::new(&claim, differing as f64, 0.0, true));
    }
    for &(optimizer, close) in CLOSE {
        for workers in [2, 3, 4] {
            let words = format!("--model mlp --optimizer {optimizer}");
            let ours = trained(&sides, &folder, workers, &words, &mut report)?;
            let command = sides.plain("bare", &format!("--threads 1 {words} {}", length(BATCH * workers)));
            let one = kept(command, &folder, "bare", 1, &mut report.runs)?;
            let claim = format!("mlp, {optimizer}, {workers} workers: difference to one worker, millionths");
            report.lines.push(Line::new(&claim, 1e6 * distance(&ours, &one[0]), 1e6 * close, true));
        }
    }
    Ok(report)
}

fn length(batch: u32) -> String {
    format!("--warmup 0 --steps {STEPS} --batch {batch}")
}

/// The parameters of workers, whose replicas are compared.
fn trained(
    sides: &Sides,
    folder: &Path,
    workers: u32,
    words: &str,
    report: &mut Report,
) -> Outcome<Vec<f32>> {
    let command =
        sides.attached(&format!("--workers {workers} --threads 1"), &format!("{words} {}", length(BATCH)));
    let mut replicas = kept(command, folder, "paceline", workers, &mut report.runs)?;
    let differing = replicas[1..].iter().filter(|replica| **replica != replicas[0]).count();
    let claim = format!(
        "{}, {workers} workers: replicas that differ",
        words.replace("--model ", "").replace(" --optimizer", ",")
    );
    report.lines.push(Line::new(&claim, differing as f64, 0.0, true));
    Ok(replicas.swap_remove(0))
}

/// Runs a side; the final parameters of each of its workers.
fn kept(
    mut command: Command,
    folder: &Path,
    side: &str,
    workers: u32,
    runs: &mut Vec<Value>,
) -> Outcome<Vec<Vec<f32>>> {
    let file = folder.join(side);
    let result = last_json(command.arg("--keep").arg(&file))?;
    runs.push(json!({"side": side, "workers": workers, "result": result}));
    (0..workers).map(|rank| parameters(&folder.join(format!("{side}.{rank}")))).collect()
}

/// Parameters that a side has left in a file; the file is gone then.
pub(super) fn parameters(path: &Path) -> Outcome<Vec<f32>> {
    let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    // What an earlier run has left must not be read in place of what this one did not write.
    fs::remove_file(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}

/// How far `a` is from `b`, relative to the length of `b`.
pub(super) fn distance(a: &[f32], b: &[f32]) -> f64 {
    let length = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let apart = length(&mut a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    if a.len() == b.len() { apart / length(&mut b.iter().map(|b| f64::from(*b))) } else { f64::INFINITY }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_relative_and_other_lengths_are_never_close() {
        assert_eq!(distance(&[3.0, 4.0], &[3.0, 4.0]), 0.0);
        assert_eq!(distance(&[3.0, 5.0], &[3.0, 4.0]), 0.2);
        assert!(distance(&[], &[1.0]).is_infinite() && distance(&[f32::NAN], &[1.0]).is_nan());
    }
}
