//! A network cut into stages: how much of what its cuts allow is reached, and PyTorch's pipeline beside it.
//!
//! What s stages allow: balance (mean ÷ longest stage) × m ÷ (m + s − 1) × s times one worker that computes the same
//! micro-batches. Efficiency is the part of it that is reached, for either side by its own balance and its own worker.

use paceline_statistics::median;
use serde_json::{Value, json};

use super::peers::Peers;
use super::{Line, Report, Setup, number};
use crate::process::{Outcome, last_json};

/// Runs that each median is made from.
const RUNS: usize = 5;

/// Cuts between residual blocks: our layer, and the number of PyTorch's block.
const CUTS: &[(usize, &str, &str)] = &[
    (2, "layer2.1.conv1", "5"),
    (4, "layer1.2.conv1,layer2.1.conv1,layer3.0.conv1", "3,5,7"),
    (
        8,
        "layer1.0.conv1,layer1.1.conv1,layer1.2.conv1,layer2.0.conv1,layer2.1.conv1,layer2.2.conv1,layer3.1.conv1",
        "1,2,3,4,5,6,8",
    ),
];

/// Samples of a micro-batch.
const MICRO: usize = 8;

/// Two stages on two cores.
pub fn two_stages(setup: &Setup) -> Outcome<Report> {
    measure(setup, &[(2, 8, 0.93)])
}

/// Four and eight stages on sixteen cores.
pub fn many_stages(setup: &Setup) -> Outcome<Report> {
    measure(setup, &[(4, 16, 0.88), (8, 32, 0.88)])
}

/// Rates of one side: all stages, one worker, and the balance of its stages.
#[derive(Default)]
struct Side {
    staged: Vec<f64>,
    alone: Vec<f64>,
    balance: Vec<f64>,
}

impl Side {
    fn efficiency(&self, stages: usize, micro_batches: usize) -> f64 {
        let filled = micro_batches as f64 / (micro_batches + stages - 1) as f64;
        let allowed = median(&self.balance) * filled * stages as f64 * median(&self.alone);
        median(&self.staged) / allowed
    }
}

fn measure(setup: &Setup, cells: &[(usize, usize, f64)]) -> Outcome<Report> {
    let peers = Peers::new(setup)?;
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    for &(stages, micro_batches, wanted) in cells {
        let (mut ours, mut theirs) = (Side::default(), [Side::default(), Side::default()]);
        let (_, cuts, blocks) = CUTS.iter().find(|cut| cut.0 == stages).ok_or("no cuts")?;
        for round in 0..RUNS {
            let run = |words: &[&str]| {
                let mut command = setup.train("cifar-10", "resnet20");
                let batch = (MICRO * micro_batches).to_string();
                command.args(["--no-record", "--steps", "20", "--eval-every", "1000000", "--batch", &batch]);
                command.args(["--micro-batches", &micro_batches.to_string()]).args(words);
                last_json(&mut command)
            };
            let staged = run(&["--stages", &stages.to_string(), "--cuts", cuts, "--pipeline", "1f1b"])?;
            let alone = run(&["--workers", "1"])?;
            ours.staged.push(number(&staged, "/samples_per_s")?);
            ours.alone.push(number(&alone, "/samples_per_s")?);
            let ranks = staged.pointer("/ranks").and_then(Value::as_array).into_iter().flatten();
            ours.balance.push(balance(ranks.map(|rank| number(rank, "/compute_s"))));
            report.runs.push(json!({"round": round, "side": "paceline", "staged": staged, "alone": alone}));
            for (layout, side) in [None, Some("--channels-last")].into_iter().zip(&mut theirs) {
                let run = |more: Option<&str>| {
                    let mut command = peers.own_script("bench/peers/torch_pipeline.py");
                    let batch = (MICRO * micro_batches).to_string();
                    command.args(["--stages", &stages.to_string(), "--cuts", blocks, "--batch", &batch]);
                    command.args(["--micro-batches", &micro_batches.to_string()]).args(layout).args(more);
                    last_json(&mut command)
                };
                let (staged, alone) = (run(None)?, run(Some("--alone"))?);
                side.staged.push(number(&staged, "/samples_per_s")?);
                side.alone.push(number(&alone, "/samples_per_s")?);
                let seconds = alone.pointer("/stage_s").and_then(Value::as_array).into_iter().flatten();
                side.balance.push(balance(seconds.map(|seconds| number(seconds, ""))));
                let words = json!({"round": round, "side": "pytorch", "layout": layout, "staged": staged, "alone": alone});
                report.runs.push(words);
            }
        }
        let own = ours.efficiency(stages, micro_batches);
        // The layout in which it is faster.
        let fastest = theirs.iter().max_by(|a, b| median(&a.staged).total_cmp(&median(&b.staged)));
        let peer = fastest.map_or(0.0, |side| side.efficiency(stages, micro_batches));
        println!(
            "     {stages} stages, {micro_batches} micro-batches: {:.0} samples/s, {:.1}% of what cuts allow \
             (balance {:.1}%); PyTorch {:.0} samples/s, {:.1}%",
            median(&ours.staged),
            100.0 * own,
            100.0 * median(&ours.balance),
            fastest.map_or(0.0, |side| median(&side.staged)),
            100.0 * peer,
        );
        let what = format!("resnet20, {stages} stages, {micro_batches} micro-batches");
        let claim = format!("{what}: part of balance × m/(m+s−1) × s × one worker");
        report.lines.push(Line { claim, reached: own, wanted, at_most: false });
        let claim =
            format!("{what}: the same beside PyTorch's Schedule1F1B ({:.1}%) + 10 points", 100.0 * peer);
        report.lines.push(Line { claim, reached: own, wanted: (peer + 0.1).min(0.95), at_most: false });
    }
    Ok(report)
}

/// Mean ÷ longest.
fn balance(seconds: impl Iterator<Item = Outcome<f64>>) -> f64 {
    let seconds: Vec<f64> = seconds.flatten().collect();
    let longest = seconds.iter().copied().fold(0.0, f64::max);
    seconds.iter().sum::<f64>() / (seconds.len().max(1) as f64 * longest)
}
