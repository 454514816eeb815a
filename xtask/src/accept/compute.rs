//! Training speed of one worker.

use std::process::Command;

use paceline_statistics::median;
use serde_json::json;

use super::peers::Peers;
use super::{Line, Report, Setup, number};
use crate::process::{Outcome, last_json};

/// Runs that each median is made from.
const RUNS: usize = 5;

/// Our model, PyTorch's name for it, the ratio of the contract, and the batches.
const MODELS: &[(&str, &str, f64, &[u32])] = &[
    ("mlp", "mlp", 1.6, &[32, 64, 128]),
    ("lenet", "cnn", 1.25, &[32, 64, 128]),
    ("resnet20", "resnet20", 1.1, &[32, 64, 128]),
    ("resnet50", "resnet50", 0.9, &[8]),
];

/// `paceline bench compute` beside the better of PyTorch's layouts.
pub fn beside_torch(setup: &Setup) -> Outcome<Report> {
    let peers = Peers::new(setup)?;
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    for &(model, peer, wanted, batches) in MODELS {
        for &batch in batches {
            let (mut ours, mut plain, mut last, mut peak) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            for round in 0..RUNS {
                let own = last_json(bench(&mut peers.paceline(), model, batch, 1))?;
                ours.push(number(&own, "/samples_per_s")?);
                peak.push(number(&own, "/fraction_of_peak")?);
                report.runs.push(json!({"round": round, "side": "paceline", "result": own}));
                for (channels_last, rates) in [(false, &mut plain), (true, &mut last)] {
                    let theirs = last_json(&mut peer_command(&peers, peer, batch, channels_last))?;
                    rates.push(number(&theirs, "/samples_per_s")?);
                    report.runs.push(json!({"round": round, "side": "pytorch", "result": theirs}));
                }
            }
            let best = median(&plain).max(median(&last));
            println!(
                "     {model} {batch}: {:.0} beside {:.0} and {:.0} samples/s (channels_last)",
                median(&ours),
                median(&plain),
                median(&last)
            );
            let claim = format!("{model}, batch {batch}: times PyTorch's better layout");
            report.lines.push(Line { claim, reached: median(&ours) / best, wanted, at_most: false });
            // The goal beyond the contract is reported, not demanded.
            println!("     {model} {batch}: {:.0}% of the FMA peak (nominal FLOPs)", 100.0 * median(&peak));
        }
    }
    Ok(report)
}

fn bench<'a>(command: &'a mut Command, model: &str, batch: u32, threads: u32) -> &'a mut Command {
    command.args(["bench", "compute", "--json", "--seconds", "2", "--model", model]).args([
        "--batch",
        &batch.to_string(),
        "--threads",
        &threads.to_string(),
    ])
}

fn peer_command(peers: &Peers, model: &str, batch: u32, channels_last: bool) -> Command {
    let mut command = if model.starts_with("resnet") {
        peers.own_script(&format!("bench/peers/torch_{model}.py"))
    } else {
        let mut command = peers.script("torch_ddp.py");
        command.args(["--local", "--workers", "1", "--model", model]);
        command
    };
    let samples = match model {
        "mlp" => 60_000,
        "cnn" => 2_560,
        "resnet50" => 40,
        _ => 1_024,
    };
    command.args(["--batch", &batch.to_string(), "--steps", &(samples / batch).to_string()]);
    if channels_last {
        command.arg("--channels-last");
    }
    command
}

/// Two threads beside one on lenet.
pub fn two_threads(setup: &Setup) -> Outcome<Report> {
    let peers = Peers::new(setup)?;
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    let mut rates = [Vec::new(), Vec::new()];
    for round in 0..RUNS {
        for (threads, rates) in [1, 2].into_iter().zip(&mut rates) {
            let result = last_json(bench(&mut peers.paceline(), "lenet", 128, threads))?;
            rates.push(number(&result, "/samples_per_s")?);
            report.runs.push(json!({"round": round, "side": "paceline", "result": result}));
        }
    }
    let reached = median(&rates[1]) / median(&rates[0]);
    let claim = "lenet, batch 128: two threads, times one".into();
    report.lines.push(Line { claim, reached, wanted: 1.7, at_most: false });
    Ok(report)
}
