//! This program beside an earlier one: whether a change of the core has cost speed.

use std::process::Command;

use paceline_statistics::median;
use serde_json::{Value, json};

use super::{Line, Report, Setup, number};
use crate::process::{Outcome, last_json, with_data};

/// Pairs of runs, each in the other order than the one before.
const PAIRS: usize = 21;
/// Ratios on each side that are left out: what is between holds the median with 97%.
const LEFT_OUT: usize = 5;

/// What is measured, its command, and the figure: more is better, or (`time`) less.
const SIDES: &[(&str, &str, &str, bool)] = &[
    ("compute, mlp", "bench compute --json --seconds 1 --model mlp --batch 64", "/samples_per_s", false),
    ("compute, lenet", "bench compute --json --seconds 1 --model lenet --batch 64", "/samples_per_s", false),
    (
        "compute, resnet20",
        "bench compute --json --seconds 1 --model resnet20 --batch 32",
        "/samples_per_s",
        false,
    ),
    (
        "compute, transformer",
        "bench compute --json --seconds 1 --model transformer --batch 16",
        "/samples_per_s",
        false,
    ),
    ("all-reduce, tcp", "bench allreduce --json --seconds 1 --workers 2 --transport tcp", ALLREDUCE, true),
    (
        "all-reduce, shared memory",
        "bench allreduce --json --seconds 1 --workers 2 --transport shm",
        ALLREDUCE,
        true,
    ),
    (
        "training, mlp, 2 workers",
        "train --quiet --lr 0.01 --eval-every 1000000 --model mlp --workers 2 --steps 2000",
        "/samples_per_s",
        false,
    ),
    (
        "training, lenet, 2 workers",
        "train --quiet --lr 0.01 --eval-every 1000000 --model lenet --workers 2 --steps 400",
        "/samples_per_s",
        false,
    ),
    (
        "training, mlp, shared memory",
        "train --quiet --lr 0.01 --eval-every 1000000 --model mlp --workers 2 --transport shm --steps 2000",
        "/samples_per_s",
        false,
    ),
    (
        "training, mlp, 2 workers + 1 server",
        "train --quiet --lr 0.01 --eval-every 1000000 --model mlp --workers 2 --servers 1 --strategy ps --steps 2000",
        "/samples_per_s",
        false,
    ),
];

/// The microseconds of a megabyte, among the rows of an all-reduce.
const ALLREDUCE: &str = "1048576";

/// Pairs of runs of both programs: the ratio's median must not be below 1 by more than its noise.
pub fn measure(setup: &Setup) -> Outcome<Report> {
    let Some(before) = &setup.before else {
        return Err("before needs --before PROGRAM, an earlier one".into());
    };
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    for &(what, words, path, time) in SIDES {
        let mut ratios = Vec::new();
        for pair in 0..PAIRS {
            let mut rates = [0.0; 2];
            for side in [pair % 2, (pair + 1) % 2] {
                let mut command = if side == 0 { Command::new(before) } else { setup.program() };
                command.args(words.split(' '));
                with_data(&mut command);
                let result = last_json(&mut command)?;
                rates[side] = figure(&result, path, time)?;
                let name = ["before", "now"][side];
                report.runs.push(json!({"what": what, "pair": pair, "side": name, "rate": rates[side]}));
            }
            ratios.push(rates[1] / rates[0]);
        }
        ratios.sort_by(f64::total_cmp);
        let (low, high) = (ratios[LEFT_OUT], ratios[PAIRS - 1 - LEFT_OUT]);
        println!("     {what}: {:.3} times as fast ({low:.3} to {high:.3})", median(&ratios));
        report.runs.push(json!({"what": what, "ratio": median(&ratios), "interval": [low, high]}));
        let claim = format!("{what}: times as fast as before, upper end of the 97% interval");
        report.lines.push(Line { claim, reached: high, wanted: 1.0, at_most: false });
    }
    Ok(report)
}

/// A rate: more is better.
fn figure(result: &Value, path: &str, time: bool) -> Outcome<f64> {
    if !time {
        return number(result, path);
    }
    let rows = result.get("results").or_else(|| result.get("rows")).and_then(Value::as_array);
    let row = rows.into_iter().flatten().find(|row| row["bytes"].as_u64() == path.parse().ok());
    let row = row.ok_or_else(|| format!("no row of {path} bytes in {result}"))?;
    Ok(1.0 / number(row, "/median_us").or_else(|_| Ok::<_, String>(number(row, "/seconds_median")? * 1e6))?)
}
