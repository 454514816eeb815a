//! `paceline bench overhead`: what recording costs. Runs with and without a record alternate; each pair is
//! compared by throughput and by the CPU time of all its processes.

use std::process::{Command, Stdio};

use paceline_record::metric::process::children_cpu_seconds;
use paceline_record::process::monotonic_ns;
use serde::Serialize;
use serde_json::Value;

use crate::failure::Failure;
use crate::output::{self, Show};

/// Flags of `paceline bench overhead`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Pairs of runs, one recorded and one not
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pairs: u32,
    /// Steps of each run
    #[arg(long, default_value_t = 3000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    steps: u32,
    /// Workers
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: u32,
    /// Dataset
    #[arg(long, default_value = "synthetic")]
    data: String,
    /// Network
    #[arg(long, default_value = "mlp")]
    model: String,
}

/// One run of a pair.
#[derive(Clone, Copy, Debug, Serialize)]
struct Once {
    samples_per_s: f64,
    /// CPU time of the launcher and all ranks, from getrusage.
    cpu_s: f64,
    dropped_rows: u64,
}

/// A pair: the recorded run and the other one.
#[derive(Clone, Copy, Debug, Serialize)]
struct Pair {
    recorded: Once,
    unrecorded: Once,
    /// The part of the throughput that recording takes.
    loss_fraction: f64,
    /// The part of the CPU time that recording adds.
    cpu_fraction: f64,
}

/// What came of it.
#[derive(Debug, Serialize)]
struct Measured<'a> {
    model: &'a str,
    data: &'a str,
    workers: u32,
    steps: u32,
    sample_hz: f64,
    /// Mean loss of throughput over the pairs.
    loss_fraction: f64,
    /// Its upper 95% bound (one-sided, Student's t).
    loss_fraction_upper95: f64,
    /// Mean of the CPU time added.
    cpu_fraction: f64,
    /// Its upper 95% bound.
    cpu_fraction_upper95: f64,
    pairs: Vec<Pair>,
}

/// `paceline bench overhead`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    let store = std::env::temp_dir().join(format!("paceline-overhead-{}", std::process::id()));
    let measured = pairs(args, &store, show);
    // What was recorded has served its purpose.
    let _ = std::fs::remove_dir_all(&store);
    let pairs = measured?;
    let of = |value: fn(&Pair) -> f64| mean_and_bound(&pairs.iter().map(value).collect::<Vec<_>>());
    let (loss, cpu) = (of(|p| p.loss_fraction), of(|p| p.cpu_fraction));
    let measured = Measured {
        model: &args.model,
        data: &args.data,
        workers: args.workers,
        steps: args.steps,
        sample_hz: paceline_record::recorder::SAMPLE_HZ,
        loss_fraction: loss.0,
        loss_fraction_upper95: loss.1,
        cpu_fraction: cpu.0,
        cpu_fraction_upper95: cpu.1,
        pairs,
    };
    if show.json {
        return Ok(output::json(&measured)?);
    }
    Ok(output::text(&format!(
        "{} on {}, {} workers, {} pairs of {} steps: recording costs\n\
         throughput {:>7.3}%  (95% sure to be below {:.3}%)\n\
         CPU time   {:>7.3}%  (95% sure to be below {:.3}%)\n",
        args.model,
        args.data,
        args.workers,
        args.pairs,
        args.steps,
        100.0 * measured.loss_fraction,
        100.0 * measured.loss_fraction_upper95,
        100.0 * measured.cpu_fraction,
        100.0 * measured.cpu_fraction_upper95,
    ))?)
}

fn pairs(args: &Args, store: &std::path::Path, show: Show) -> Result<Vec<Pair>, Failure> {
    // A first run of each kind warms caches and makes the store.
    once(args, Some(store))?;
    once(args, None)?;
    let mut pairs = Vec::new();
    for i in 0..args.pairs {
        // Which of the two comes first alternates, so that a drift of the machine favours neither.
        let (recorded, unrecorded) = if i % 2 == 0 {
            let recorded = once(args, Some(store))?;
            (recorded, once(args, None)?)
        } else {
            let unrecorded = once(args, None)?;
            (once(args, Some(store))?, unrecorded)
        };
        let pair = Pair {
            recorded,
            unrecorded,
            loss_fraction: 1.0 - recorded.samples_per_s / unrecorded.samples_per_s,
            cpu_fraction: recorded.cpu_s / unrecorded.cpu_s - 1.0,
        };
        if !show.quiet {
            let (loss, cpu) = (100.0 * pair.loss_fraction, 100.0 * pair.cpu_fraction);
            output::note(&format!("pair {:>3}: throughput {loss:>7.2}%, CPU time {cpu:>7.2}%", i + 1));
        }
        pairs.push(pair);
    }
    Ok(pairs)
}

/// Trains once, with a record or without.
fn once(args: &Args, store: Option<&std::path::Path>) -> Result<Once, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["train", "--quiet", "--data", &args.data, "--model", &args.model, "--lr", "0.01"])
        .args(["--steps", &args.steps.to_string(), "--workers", &args.workers.to_string()])
        .args(["--eval-every", "1000000"])
        .stderr(Stdio::inherit());
    match store {
        Some(store) => command.arg("--store").arg(store),
        None => command.arg("--no-record"),
    };
    let (cpu, begun) = (children_cpu_seconds(), monotonic_ns());
    let out = command.output()?;
    let cpu_s = children_cpu_seconds() - cpu;
    let line = String::from_utf8_lossy(&out.stdout).lines().last().unwrap_or_default().to_owned();
    let result: Value = serde_json::from_str(&line).unwrap_or_default();
    let Some(samples_per_s) = result["samples_per_s"].as_f64().filter(|_| out.status.success()) else {
        let seconds = (monotonic_ns() - begun) as f64 * 1e-9;
        let message = format!("a run to be measured failed after {seconds:.1} s: {}", out.status);
        return Err(Failure::new(1, message, String::new()));
    };
    Ok(Once { samples_per_s, cpu_s, dropped_rows: result["dropped_rows"].as_u64().unwrap_or(0) })
}

/// The mean, and the upper bound that holds with 95%: one-sided, Student's t.
fn mean_and_bound(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0);
    (mean, mean + quantile(n - 1.0) * (variance / n).sqrt())
}

/// The 95% quantile of Student's t: the first terms of its expansion around the normal one, which are right to a
/// percent from 4 degrees of freedom on; exact values below.
fn quantile(degrees: f64) -> f64 {
    const FEW: [f64; 4] = [6.3138, 2.9200, 2.3534, 2.1318];
    if let Some(&exact) = FEW.get(degrees as usize - 1) {
        return exact;
    }
    let z: f64 = 1.644_854;
    let terms = [
        (z.powi(3) + z) / 4.0,
        (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0,
        (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0,
    ];
    terms.iter().enumerate().fold(z, |sum, (i, term)| sum + term / degrees.powi(i as i32 + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quantile_is_students() {
        for (degrees, known) in [(1.0, 6.3138), (5.0, 2.0150), (9.0, 1.8331), (19.0, 1.7291), (99.0, 1.6604)]
        {
            let found: f64 = quantile(degrees);
            assert!((found - known).abs() < 0.002, "{degrees}: {found} instead of {known}");
        }
        let (mean, bound) = mean_and_bound(&[0.0, 0.01, 0.02]);
        assert!((mean - 0.01).abs() < 1e-12 && (bound - (0.01 + 2.92 * 0.01 / 3f64.sqrt())).abs() < 1e-6);
    }
}
