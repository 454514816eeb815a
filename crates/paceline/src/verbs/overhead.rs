//! `paceline bench overhead`: what recording costs. Runs with and without a record alternate; each pair is
//! compared by throughput and by the CPU time of all its processes.

use std::process::{Command, Stdio};

use paceline_record::process::{children_cpu_seconds, monotonic_ns};
use serde::Serialize;
use serde_json::Value;

use crate::failure::Failure;
use crate::output::{self, Show};
use paceline_record::FailureKind;

/// Flags of `paceline bench overhead`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Pairs of runs, one recorded and one not
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pairs: u32,
    /// Steps of each run
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
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
    /// The middle of the pairs' losses of throughput (Hodges and Lehmann's).
    loss_fraction: f64,
    /// Its upper 95% bound (one-sided, Wilcoxon's).
    loss_fraction_upper95: f64,
    /// The middle of the CPU time added.
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
    let of = |value: fn(&Pair) -> f64| middle_and_bound(&pairs.iter().map(value).collect::<Vec<_>>());
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
        return Err(Failure::new(FailureKind::Other, message, String::new()));
    };
    Ok(Once { samples_per_s, cpu_s, dropped_rows: result["dropped_rows"].as_u64().unwrap_or(0) })
}

/// The middle of the values, and the upper bound that holds with 95%. The middle is the median of the means of all
/// pairs of values, the bound belongs to Wilcoxon's signed ranks: a run that somebody else on the machine disturbs
/// moves them little.
fn middle_and_bound(values: &[f64]) -> (f64, f64) {
    let n = values.len();
    let mut means: Vec<f64> =
        (0..n).flat_map(|i| (0..=i).map(move |j| (values[i] + values[j]) / 2.0)).collect();
    means.sort_by(f64::total_cmp);
    let (all, half) = (means.len(), means.len() / 2);
    let middle = if all % 2 == 1 { means[half] } else { (means[half - 1] + means[half]) / 2.0 };
    let count = n as f64;
    let (mean, variance) = (count * (count + 1.0) / 4.0, count * (count + 1.0) * (2.0 * count + 1.0) / 24.0);
    // Below about five values there is no such bound: the greatest stands for it.
    let beyond = (mean - 1.644_854 * variance.sqrt() - 0.5).floor().max(0.0) as usize;
    (middle, means[all - 1 - beyond.min(all - 1)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_random::{Purpose, Stream};

    #[test]
    fn the_bound_holds_as_often_as_it_says_and_one_disturbed_run_moves_it_little() {
        let stream = Stream::new(1, Purpose::Bench);
        let draw = |trial| (0..24).map(|i| stream.fork(trial).normal(i)).collect::<Vec<f64>>();
        let trials = 2000;
        let held = (0..trials).filter(|trial| middle_and_bound(&draw(*trial)).1 >= 0.0).count();
        let share = held as f64 / trials as f64;
        assert!((0.935..0.965).contains(&share), "{share}");
        let mut values = draw(0);
        let (middle, bound) = middle_and_bound(&values);
        values[7] += 100.0;
        let moved = middle_and_bound(&values);
        assert!((moved.0 - middle).abs() < 0.2 && (moved.1 - bound).abs() < 0.2, "{moved:?}");
        assert_eq!(middle_and_bound(&[1.0, 3.0]), (2.0, 3.0));
    }
}
