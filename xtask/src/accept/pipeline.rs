//! A network in two stages on two cores: beside one worker that passes the same micro-batches, beside what even stages could
//! reach at best, and beside torch's Schedule1F1B over gloo.

use paceline_statistics::median;
use serde_json::{Value, json};

use super::peers::Peers;
use super::{Line, Report, Setup, number};
use crate::process::{Outcome, last_json};

/// The peer's loop.
pub const LOOP: &str = "bench/peers/torch_pipeline.py";

/// Rounds that medians are made from.
const RUNS: usize = 5;
const STAGES: f64 = 2.0;
const MICRO_BATCHES: f64 = 8.0;
const BATCH: usize = 128;
/// Where both sides cut: the block whose cut the counted costs balance best.
const CUT: &str = "layer2.1";
/// The part of what is possible that is asked for.
const WANTED: f64 = 0.93;

/// The speed of two stages, as parts of what one worker does.
struct Speed {
    /// Of twice one worker.
    efficiency: f64,
    /// Of what stages of these lengths could reach without waiting for messages.
    of_possible: f64,
}

/// Two stages beside one worker, ours and torch's.
pub fn measure(setup: &Setup) -> Outcome<Report> {
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    let peers = Peers::new(setup)?;
    let (mut possible, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..RUNS {
        for pipeline in ["1f1b", "gpipe"] {
            let speed = own(setup, round, pipeline, &mut report.runs)?;
            println!(
                "     {pipeline}: {:.1}% of twice one worker, {:.1}% of what is possible",
                100.0 * speed.efficiency,
                100.0 * speed.of_possible
            );
            if pipeline == "1f1b" {
                possible.push(speed.of_possible);
            }
        }
        let torch = peer(&peers, round, &mut report.runs)?;
        println!(
            "     torch's Schedule1F1B over gloo: {:.1}% of twice one process, {:.1}% of what is possible",
            100.0 * torch.efficiency,
            100.0 * torch.of_possible
        );
        theirs.push(torch.of_possible);
    }
    let claim = format!(
        "resnet20, {STAGES} stages, {MICRO_BATCHES} micro-batches of {BATCH}: part of balance × m/(m+s−1) × s × one worker"
    );
    report.lines.push(Line::new(&claim, median(&possible), WANTED, false));
    let wanted = (median(&theirs) + 0.1).min(0.95);
    // Of twice one worker nobody can have more than m ÷ (m + s − 1): both are parts of what their own stages allow.
    let claim = "the same, beside that part of torch's Schedule1F1B over gloo + 10 points (at most 95%)";
    report.lines.push(Line::new(claim, median(&possible), wanted, false));
    Ok(report)
}

/// Our stages along a pipeline beside one worker, one after the other.
fn own(setup: &Setup, round: usize, pipeline: &str, runs: &mut Vec<Value>) -> Outcome<Speed> {
    let mut run = |stages: &str| {
        let mut command = setup.train("synthetic-colour", "resnet20");
        command
            .args(["--no-record", "--steps", "24", "--eval-every", "1000000", "--pin"])
            .args(["--eval-samples", "64", "--batch", &BATCH.to_string(), "--micro-batches", "8"])
            .args(stages.split_whitespace());
        let result = last_json(&mut command)?;
        runs.push(json!({"round": round, "side": "paceline", "words": stages, "result": result}));
        Ok::<_, String>(result)
    };
    let alone = number(&run("")?, "/samples_per_s")?;
    let staged = run(&format!("--stages 2 --pipeline {pipeline} --cuts {CUT} --transport shm"))?;
    let rate = number(&staged, "/samples_per_s")?;
    let stage = |rank: usize| number(&staged, &format!("/ranks/{rank}/compute_s"));
    Ok(Speed::new(rate, alone, stage(0)?, stage(1)?))
}

impl Speed {
    /// Of a rate beside that of one worker, by the seconds that each stage computes.
    fn new(rate: f64, alone: f64, first: f64, second: f64) -> Self {
        let balance = (first + second) / 2.0 / first.max(second);
        let filled = MICRO_BATCHES / (MICRO_BATCHES + STAGES - 1.0);
        let efficiency = rate / (STAGES * alone);
        Self { efficiency, of_possible: efficiency / (balance * filled) }
    }
}

/// Torch's two stages beside one process.
fn peer(peers: &Peers<'_>, round: usize, runs: &mut Vec<Value>) -> Outcome<Speed> {
    let mut run = |stages: &str| {
        let mut command = peers.own_script(LOOP);
        command.args(["--stages", stages, "--batch", &BATCH.to_string(), "--cut", CUT, "--steps", "12"]);
        let result = last_json(&mut command)?;
        runs.push(json!({"round": round, "side": "torch", "result": result}));
        Ok::<_, String>(result)
    };
    let (alone, staged) = (run("1")?, run("2")?);
    let stage = |i: usize| number(&alone, &format!("/stage_s/{i}"));
    let [one, two] = [&alone, &staged].map(|result| number(result, "/samples_per_s"));
    Ok(Speed::new(two?, one?, stage(0)?, stage(1)?))
}
