//! Consistency models beside bsp when one worker is three times slower: always the same one, and another
//! one in each step.

use paceline_statistics::median;
use serde_json::json;

use super::{Line, Report, Setup, number};
use crate::process::{Outcome, last_json};

const RUNS: usize = 5;

/// Consistency models and their flags.
const MODELS: &[(&str, &str)] = &[
    ("bsp", "--sync bsp"),
    ("asp", "--sync asp"),
    ("ssp(3)", "--sync ssp --staleness 3"),
    ("essp(3)", "--sync essp --staleness 3"),
    ("dssp(3,15)", "--sync dssp"),
    ("adaptive", "--sync adaptive"),
    ("switch(0.25)", "--sync switch"),
    ("switch(1), greedy", "--sync switch --switch-at 1 --straggler-policy greedy"),
];

/// Models whose throughput is asked for.
const ASKED: &[&str] = &["asp", "ssp(3)", "dssp(3,15)", "adaptive"];

/// Throughput relative to bsp, and the staleness observed.
pub fn measure(setup: &Setup) -> Outcome<Report> {
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    for (kind, straggler) in
        [("the same worker", "rank=1,factor=3"), ("another one in each step", "moving,factor=3")]
    {
        let mut rates = vec![Vec::new(); MODELS.len()];
        let mut stale = vec![(0.0, 0.0); MODELS.len()];
        for round in 0..RUNS {
            for (i, (name, words)) in MODELS.iter().enumerate() {
                let mut command = setup.train("fashion-mnist", "mlp");
                command
                    .args(["--workers", "4", "--servers", "1", "--strategy", "ps", "--lr", "0.005"])
                    .args(["--steps", "60", "--batch", "512", "--eval-every", "1000000"])
                    .args(["--straggler", straggler])
                    .args(words.split(' '));
                let result = last_json(&mut command)?;
                rates[i].push(number(&result, "/samples_per_s")?);
                stale[i] = (number(&result, "/staleness/mean")?, number(&result, "/staleness/max")?);
                report.runs.push(json!({"round": round, "slow": kind, "model": name, "result": result}));
            }
        }
        let bsp = median(&rates[0]);
        println!("     slow: {kind}. Samples/s, times bsp, staleness (mean, max)");
        for (i, (name, _)) in MODELS.iter().enumerate() {
            let (rate, (mean, max)) = (median(&rates[i]), stale[i]);
            println!("     {name:<18} {rate:>8.0} {:>6.2} {mean:>6.2} {max:>4.0}", rate / bsp);
            if ASKED.contains(name) {
                // Behind a worker that is always slow, a bounded lead ends at that worker's pace: over a long
                // run no bounded model can reach this there.
                let wanted = 1.5;
                let claim = format!("mlp, slow: {kind}, {name}: throughput, times bsp");
                report.lines.push(Line { claim, reached: rate / bsp, wanted, at_most: false });
            }
        }
    }
    Ok(report)
}
