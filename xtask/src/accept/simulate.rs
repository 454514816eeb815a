//! Virtual time: how fast it is made, and whether it learns in the time that real runs learn in.

use paceline_statistics::median;
use serde_json::json;

use super::{Line, Report, Setup, number};
use crate::process::{Outcome, last_json};

/// Runs that each median is made from.
const RUNS: usize = 5;

/// A thousand workers; 64 whose compute times vary widely; messages per second.
const SPEED: &[(&str, &str)] = &[
    (
        "ring-allreduce, 1,000 workers × 1,000 steps, 6.65 MB, jitter",
        "--workers 1000 --batch 10 --steps 1000 --bucket 8MiB --jitter on",
    ),
    (
        "ring-allreduce, 64 workers × 1,000 steps, lognormal compute",
        "--workers 64 --batch 50 --steps 1000 --bucket 8MiB --straggler lognormal,sigma=0.5",
    ),
];

/// Seconds, memory and messages per second; whether a seed decides everything.
pub fn speed(setup: &Setup) -> Outcome<Report> {
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    for (what, words) in SPEED {
        let (mut seconds, mut memory, mut rates, mut hashes) = (vec![], vec![], vec![], vec![]);
        for round in 0..RUNS {
            let mut result =
                last_json(setup.paceline("simulate", "synthetic", "lenet").args(words.split(' ')))?;
            seconds.push(number(&result, "/simulation/real_total_s")?);
            memory.push(number(&result, "/simulation/rss_peak_bytes")? / 1e6);
            rates.push(
                number(&result, "/simulation/messages")? / number(&result, "/simulation/real_s")? / 1e6,
            );
            hashes.push(result["trace_sha256"].clone());
            // A thousand ranks' accounts five times over say nothing that the rest does not.
            result["ranks"] = json!("left out");
            report.runs.push(json!({"round": round, "what": what, "result": result}));
        }
        let mut line = |claim: &str, reached: f64, wanted: f64, at_most: bool| {
            report.lines.push(Line { claim: format!("{what}: {claim}"), reached, wanted, at_most });
        };
        line("s", median(&seconds), 10.0, true);
        line("peak memory in MB", median(&memory), 1000.0, true);
        line("million messages per second", median(&rates), 1.0, false);
        let same = hashes.iter().all(|hash| *hash == hashes[0]);
        line("same seed, same hash", f64::from(u8::from(same)), 1.0, false);
    }
    Ok(report)
}

/// Consistency models and their flags.
const MODELS: &[(&str, &str)] =
    &[("bsp", "--sync bsp"), ("ssp(3)", "--sync ssp --staleness 3"), ("asp", "--sync asp")];

/// Time to 97% on MNIST/mlp with a worker that is three times slower: virtual beside real.
pub fn learn(setup: &Setup) -> Outcome<Report> {
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    let calibration = setup.work("calibration.toml");
    let mut command = setup.program();
    let calibrated = last_json(command.args(["calibrate", "--quiet", "--out"]).arg(&calibration))?;
    let text =
        std::fs::read_to_string(&calibration).map_err(|e| format!("{}: {e}", calibration.display()))?;
    let seconds = number(&calibrated, "/seconds")?;
    report.runs.push(json!({"calibration": text, "seconds": seconds}));
    report.lines.push(Line { claim: "calibrate: s".into(), reached: seconds, wanted: 120.0, at_most: true });
    let words = "--workers 2 --servers 1 --strategy ps --batch 64 --epochs 3 --lr 0.02 --eval-every 50 \
                 --target-accuracy 0.97 --straggler rank=1,factor=3";
    for (name, sync) in MODELS {
        let flags: Vec<&str> = words.split_whitespace().chain(sync.split(' ')).collect();
        let mut real = Vec::new();
        for round in 0..RUNS {
            let result = last_json(
                setup.train("mnist", "mlp").args(&flags).args(["--seed", &(round + 1).to_string()]),
            )?;
            real.push(number(&result, "/time_to_accuracy_s")?);
            report.runs.push(json!({"round": round, "model": name, "result": result}));
        }
        let mut virtually = Vec::new();
        for round in 0..RUNS {
            let mut command = setup.paceline("simulate", "mnist", "mlp");
            command.args(["--learn", "--calibration"]).arg(&calibration);
            command.args(&flags).args(["--seed", &(round + 1).to_string()]);
            let result = last_json(&mut command)?;
            virtually.push(number(&result, "/time_to_accuracy_s")?);
            report.runs.push(json!({"round": round, "model": name, "simulated": result}));
        }
        let (real, virtually) = (median(&real), median(&virtually));
        println!("     {name:<8} real {real:.3} s, virtual {virtually:.3} s");
        let claim = format!("mnist/mlp, straggler ×3, {name}: time to 97%, virtual off by");
        let reached = (virtually / real - 1.0).abs();
        report.lines.push(Line { claim, reached, wanted: 0.15, at_most: true });
    }
    Ok(report)
}
