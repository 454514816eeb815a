//! How fast two workers are, and what being attached costs one.

use std::process::Command;

use paceline_statistics::median;
use serde_json::{Value, json};

use super::Sides;
use crate::accept::{Line, Report, Setup, number};
use crate::process::{Outcome, last_json};

/// Runs that each median is made from.
const RUNS: usize = 5;

/// CPU seconds that being attached may add.
const ADDED: f64 = 0.03;

/// A network, the ratio that is asked for, its steps, and the ways to lay it out that both sides try.
struct Case {
    model: &'static str,
    wanted: f64,
    steps: u32,
    layouts: &'static [&'static str],
}

const CASES: &[Case] = &[
    Case { model: "lenet", wanted: 1.05, steps: 60, layouts: &["", "--channels-last"] },
    Case { model: "mlp", wanted: 1.5, steps: 1_500, layouts: &[""] },
];

/// What DDP lets its users choose: threads of each worker (none: PyTorch's own choice) and buckets; and the allocator's
/// settings that Paceline gives to scripts, which nobody else sets for DDP.
const DDP: &[&str] = &[
    "--threads 1",
    "--threads 1 --bucket-view",
    "--threads 1 --keep-memory",
    "--threads 1 --keep-memory --bucket-view",
    "--threads 1 --bucket-mb 1",
    "--threads 1 --bucket-mb 4 --bucket-view",
    "",
];

/// Two workers beside DDP in its best layout; one worker beside the bare script.
pub fn measure(setup: &Setup) -> Outcome<Report> {
    let sides = Sides::new(setup)?;
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    for case in CASES {
        let ratio = beside_ddp(&sides, case, &mut report.runs)?;
        let claim = format!("{}, 2 workers: times DDP over gloo in its best layout", case.model);
        report.lines.push(Line::new(&claim, ratio, case.wanted, false));
    }
    for case in CASES {
        for (side, added) in alone(&sides, case, &mut report.runs)? {
            let claim = format!("{}, {side}: CPU seconds added to the bare script's", case.model);
            report.lines.push(Line::new(&claim, added, ADDED, true));
        }
    }
    Ok(report)
}

/// The best layout of each side is found with one run each; then they alternate.
fn beside_ddp(sides: &Sides, case: &Case, runs: &mut Vec<Value>) -> Outcome<f64> {
    let Case { model, steps, .. } = case;
    let common = format!("--model {model} --steps {steps}");
    let mut run = |side: &str, layout: &str, round: Option<usize>| {
        let words = format!("{common} {layout}");
        let mut command = match side {
            "ddp" => sides.plain("ddp", &format!("--workers 2 {words}")),
            _ => sides.attached("--workers 2", &words),
        };
        let result = match last_json(&mut command) {
            // DDP's processes abort now and then when they end; that is kept, and the run made once more.
            Err(error) if side == "ddp" => {
                runs.push(json!({"round": round, "side": side, "layout": words, "failed": error}));
                last_json(&mut command)?
            }
            result => result?,
        };
        let path = if side == "ddp" { "/samples_per_s" } else { "/reported/loop_samples_per_s" };
        let rate = number(&result, path)?;
        runs.push(json!({"round": round, "side": side, "layout": words, "result": result}));
        Outcome::Ok(rate)
    };
    let of_ddp: Vec<String> =
        case.layouts.iter().flat_map(|l| DDP.iter().map(move |o| format!("{o} {l}"))).collect();
    let of_ours: Vec<String> = case.layouts.iter().map(|layout| (*layout).to_owned()).collect();
    let mut best = |side: &str, layouts: Vec<String>| {
        let mut tried = Vec::new();
        for layout in layouts {
            tried.push((run(side, &layout, None)?, layout));
        }
        let best = tried.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
        Outcome::Ok(best.map(|(_, layout)| layout).unwrap_or_default())
    };
    let layouts = [("paceline", best("paceline", of_ours)?), ("ddp", best("ddp", of_ddp)?)];
    let mut rates = [Vec::new(), Vec::new()];
    for round in 0..RUNS {
        for ((side, layout), rates) in layouts.iter().zip(&mut rates) {
            rates.push(run(side, layout, Some(round))?);
        }
    }
    let [ours, theirs] = rates.map(|rates| median(&rates));
    let layout = layouts[1].1.trim();
    println!("     {model}: {ours:.0} beside {theirs:.0} samples/s ({layout})");
    Ok(ours / theirs)
}

/// The part that a script's CPU seconds grow by: started alone with `attach` in it, and as the one worker.
fn alone(sides: &Sides, case: &Case, runs: &mut Vec<Value>) -> Outcome<[(&'static str, f64); 2]> {
    let words = format!("--model {} --steps {}", case.model, 5 * case.steps / 2);
    let mut seconds = [Vec::new(), Vec::new(), Vec::new()];
    for round in 0..RUNS {
        let commands = [
            ("bare", sides.plain("bare", &format!("{words} --threads 1"))),
            ("attach alone", sides.plain("paceline", &format!("{words} --threads 1"))),
            ("one worker", sides.attached("--workers 1 --threads 1", &words)),
        ];
        for ((side, mut command), seconds) in commands.into_iter().zip(&mut seconds) {
            let (result, cpu_s) = with_cpu_seconds(&mut command)?;
            seconds.push(cpu_s);
            runs.push(
                json!({"round": round, "side": side, "cpu_s": cpu_s, "layout": words, "result": result}),
            );
        }
    }
    let [bare, inert, worker] = seconds.map(|seconds| median(&seconds));
    println!("     {}: {bare:.2} s bare, {inert:.2} s with attach, {worker:.2} s as one worker", case.model);
    Ok([("attach in it, started alone", inert / bare - 1.0), ("one worker", worker / bare - 1.0)])
}

/// A command's last line, and the CPU seconds of all processes that it started and waited for.
fn with_cpu_seconds(command: &mut Command) -> Outcome<(Value, f64)> {
    let before = of_children()?;
    let result = last_json(command)?;
    Ok((result, of_children()? - before))
}

/// CPU seconds of children that have ended, and of theirs.
fn of_children() -> Outcome<f64> {
    // In hundredths of a second (the kernel's USER_HZ), behind the program's name, which may contain anything.
    let stat =
        std::fs::read_to_string("/proc/self/stat").map_err(|error| format!("/proc/self/stat: {error}"))?;
    let fields: Vec<f64> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1)
        .filter_map(|field| field.parse().ok())
        .collect();
    match fields.get(12..14) {
        Some([user, system]) => Ok((user + system) / 100.0),
        _ => Err(format!("/proc/self/stat: {stat}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_of_children_are_counted_when_they_have_ended() {
        let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done; echo '{\"i\": 1}'";
        let (result, seconds) = with_cpu_seconds(Command::new("sh").args(["-c", busy])).unwrap();
        assert_eq!(result["i"], 1);
        assert!(seconds > 0.0, "{seconds}");
    }
}
