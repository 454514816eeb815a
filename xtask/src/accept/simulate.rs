//! Virtual time: how fast it is made, and whether it learns in the time that real runs learn in.

use paceline_statistics::median;
use serde_json::json;

use super::{Line, Report, Setup, number};
use crate::process::{Outcome, last_json};

/// Runs that each median is made from.
const RUNS: usize = 5;

/// A simulation: its data and flags, what its process may take, and in how many runs that is looked at.
struct SpeedCase {
    what: &'static str,
    data: &'static str,
    words: &'static str,
    seconds: f64,
    memory_mb: Option<f64>,
    runs: usize,
}

/// A thousand workers, with one bucket and with the default ones; 64 whose compute times vary widely; as many as no
/// machine has, each on its own host and sixteen on each.
const SPEED: &[SpeedCase] = &[
    SpeedCase {
        what: "ring-allreduce, 1,000 workers × 1,000 steps, 6.65 MB, jitter",
        data: "synthetic",
        words: "--strategy ring-allreduce --workers 1000 --batch 10 --steps 1000 --bucket 8MiB --jitter on",
        seconds: 10.0,
        memory_mb: Some(1000.0),
        runs: RUNS,
    },
    SpeedCase {
        what: "ring-allreduce, 64 workers × 1,000 steps, lognormal compute",
        data: "synthetic",
        words: "--strategy ring-allreduce --workers 64 --batch 50 --steps 1000 --bucket 8MiB \
                --straggler lognormal,sigma=0.5",
        seconds: 10.0,
        memory_mb: Some(1000.0),
        runs: RUNS,
    },
    SpeedCase {
        what: "default flags, 1,000 workers × 1,000 steps, 10gbit",
        data: "synthetic",
        words: "--workers 1000 --batch 10 --steps 1000 --network 10gbit",
        seconds: 40.0,
        memory_mb: Some(1000.0),
        runs: 3,
    },
    SpeedCase {
        what: "one bucket, 1,000 workers × 1,000 steps, 10gbit",
        data: "synthetic",
        words: "--workers 1000 --batch 10 --steps 1000 --network 10gbit --bucket 8MiB",
        seconds: 10.0,
        memory_mb: Some(1000.0),
        runs: 3,
    },
    SpeedCase {
        what: "ring-allreduce, 16,384 workers × 10 steps, 10gbit",
        data: "synthetic",
        words: "--strategy ring-allreduce --workers 16384 --steps 10 --network 10gbit",
        seconds: 30.0,
        memory_mb: None,
        runs: 3,
    },
    SpeedCase {
        what: "hierarchical, 65,536 workers on 4,096 hosts × 10 steps, 10gbit",
        data: "synthetic",
        words: "--strategy hierarchical --workers 65536 --hosts 4096 --steps 10 --network 10gbit",
        seconds: 30.0,
        memory_mb: Some(1000.0),
        runs: 3,
    },
];

/// Workers of runs that are simulated both ways, as schedules and event by event.
const BOTH: &[&str] = &[
    "--workers 2 --batch 50 --steps 40",
    "--workers 7 --batch 50 --steps 40 --jitter on",
    "--workers 16 --batch 50 --steps 40 --hosts 4",
    "--workers 33 --batch 20 --steps 20",
    "--workers 64 --batch 20 --steps 20",
    "--workers 64 --batch 20 --steps 20 --bucket 8MiB --jitter on",
    "--workers 64 --batch 20 --steps 10 --strategy hierarchical --hosts 8",
    "--workers 60 --batch 20 --steps 10 --strategy hierarchical --hosts 7 --bucket 8MiB",
    "--workers 16 --batch 20 --steps 20 --strategy direct --hosts 1",
];

/// Seconds, memory and messages per second; whether a seed decides everything, and both ways agree.
pub fn speed(setup: &Setup) -> Outcome<Report> {
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    for case in SPEED {
        let (mut seconds, mut memory, mut rates, mut hashes) = (vec![], vec![], vec![], vec![]);
        for round in 0..case.runs {
            let result = simulated(setup, case.data, case.words)?;
            seconds.push(number(&result, "/simulation/real_total_s")?);
            memory.push(number(&result, "/simulation/rss_peak_bytes")? / 1e6);
            rates.push(
                number(&result, "/simulation/messages")? / number(&result, "/simulation/real_s")? / 1e6,
            );
            hashes.push(result["trace_sha256"].clone());
            report.runs.push(json!({"round": round, "what": case.what, "result": result}));
        }
        let mut line = |claim: &str, reached: f64, wanted: f64, at_most: bool| {
            report.lines.push(Line { claim: format!("{}: {claim}", case.what), reached, wanted, at_most });
        };
        line("s", median(&seconds), case.seconds, true);
        if let Some(most) = case.memory_mb {
            line("peak memory in MB", median(&memory), most, true);
        }
        line("million messages per second", median(&rates), 1.0, false);
        let same = hashes.iter().all(|hash| *hash == hashes[0]);
        line("same seed, same hash", f64::from(u8::from(same)), 1.0, false);
    }
    let mut alike = 0;
    for words in BOTH {
        let words = format!("{words} --network 10gbit");
        let as_schedule = simulated(setup, "synthetic", &words)?;
        // Who wants to see single messages has all of them driven.
        let driven = simulated(setup, "synthetic", &format!("{words} --trace 1"))?;
        alike += usize::from(as_schedule["trace_sha256"] == driven["trace_sha256"]);
        report.runs.push(json!({"what": words, "result": as_schedule, "event by event": driven}));
    }
    let claim = "runs of up to 64 workers whose finish times are those of single events".into();
    report.lines.push(Line { claim, reached: alike as f64, wanted: BOTH.len() as f64, at_most: false });
    Ok(report)
}

/// The result of a simulated run, without its ranks: a thousand accounts say nothing that the rest does not.
fn simulated(setup: &Setup, data: &str, words: &str) -> Outcome<serde_json::Value> {
    let mut result = last_json(setup.paceline("simulate", data, "lenet").args(words.split_whitespace()))?;
    result["ranks"] = json!("left out");
    Ok(result)
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
