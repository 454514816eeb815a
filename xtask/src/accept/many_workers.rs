//! The exchange between two to fourteen workers, on a machine that has a core for each of them: beside gloo, and beside
//! the same workers without any exchange.

use std::process::Command;

use paceline_statistics::{median, quantile, sorted};
use serde_json::{Value, json};

use super::exchange::time_of;
use super::peers::Peers;
use super::torch::Sides;
use super::{Line, Report, Setup, number};
use crate::process::{Outcome, last_json};

/// Rounds, in each of which every side has a run, unless `--rounds` says something else.
const ROUNDS: u64 = 5;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const SIZES: [usize; 5] = [4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB];

/// All-reduces over shared memory and over TCP beside gloo's, of so many workers.
pub fn exchange(setup: &Setup, workers: &str) -> Outcome<Report> {
    let peers = Peers::new(setup)?;
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    let mut times: Vec<(&str, [Vec<f64>; SIZES.len()])> = Vec::new();
    for round in 0..setup.rounds.unwrap_or(ROUNDS) {
        let ours = |transport: &str| {
            let mut command = peers.paceline();
            command.args(["bench", "allreduce", "--json", "--seconds", "0.4", "--transport", transport]);
            command.args(["--workers", workers]);
            command
        };
        let mut gloo = peers.script("gloo_allreduce.py");
        gloo.args(["--workers", workers, "--budget", "0.4"]);
        for (side, mut command) in [("shm", ours("shm")), ("tcp", ours("tcp")), ("gloo", gloo)] {
            let result = last_json(&mut command)?;
            let times = of(&mut times, side);
            for (i, size) in SIZES.iter().enumerate() {
                times[i].push(time_of(&result, *size)?);
            }
            report.runs.push(json!({"round": round, "side": side, "workers": workers, "result": result}));
        }
    }
    for (i, size) in SIZES.into_iter().enumerate() {
        let mut middle = |side: &'static str| median(&of(&mut times, side)[i]);
        let [shm, tcp, gloo] = ["shm", "tcp", "gloo"].map(&mut middle);
        let what = |transport: &str| {
            format!("all-reduce of {} KiB, {workers} workers, {transport}: times gloo's speed", size / KIB)
        };
        if size >= MIB {
            report.lines.push(Line::new(&what("shm"), gloo / shm, 2.0, false));
        }
        report.lines.push(Line::new(&what("tcp"), gloo / tcp, 1.0, false));
    }
    Ok(report)
}

/// What a side has, made if there is nothing yet.
fn of<'a, T: Default>(all: &'a mut Vec<(&'static str, T)>, side: &'static str) -> &'a mut T {
    let at = all.iter().position(|(name, _)| *name == side).unwrap_or_else(|| {
        all.push((side, T::default()));
        all.len() - 1
    });
    &mut all[at].1
}

/// A network, its steps with so many workers, and the part of the speed without any exchange that is asked for.
struct Case {
    model: &'static str,
    steps: u32,
    wanted: f64,
}

const CASES: [Case; 2] =
    [Case { model: "lenet", steps: 12, wanted: 0.75 }, Case { model: "mlp", steps: 600, wanted: 0.5 }];

/// Images as large as those that DDP has.
const DATA: &str = "synthetic";

/// Who is slower than `auto`, or as fast: every path that a user could name. All of them have a run in the first round, the
/// fastest [`RIVALS`] of it in all others.
const PATHS: [&str; 4] = ["ring-allreduce", "halving-doubling", "tree", "direct"];

const RIVALS: usize = 2;

/// The side without any exchange, and the one that users get.
const APART: &str = "apart";
const AUTO: &str = "auto";

/// A network's efficiency of exact averaging with two to fourteen workers, and for lenet DDP's own.
pub fn scaling(setup: &Setup, model: &str) -> Outcome<Report> {
    let sides = Sides::new(setup)?;
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    let rounds = setup.rounds.unwrap_or(ROUNDS);
    let case = CASES.iter().find(|case| case.model == model).ok_or_else(|| format!("no case {model}"))?;
    let mut efficiency = f64::NAN;
    for workers in [2, 4, 8, 14] {
        let rates = rates_of(&sides, case, workers, rounds, &mut report.runs)?;
        let rate = |side: &str| &rates.iter().find(|(name, _)| *name == side).expect("it was run").1;
        let part: Vec<f64> = rate(AUTO).iter().zip(rate(APART)).map(|(own, apart)| own / apart).collect();
        efficiency = median(&part);
        let claim = format!("{model}, {workers} workers: part of the speed without any exchange");
        report.lines.push(Line::new(&claim, efficiency, case.wanted, false));
        // The best fixed path by its median; the interval is that of the rounds' ratios.
        let rivals = rates.iter().filter(|(side, all)| PATHS.contains(side) && all.len() == part.len());
        let best =
            rivals.max_by(|a, b| median(&a.1).total_cmp(&median(&b.1))).map_or(PATHS[0], |best| best.0);
        let ratios: Vec<f64> = rate(AUTO).iter().zip(rate(best)).map(|(own, fixed)| own / fixed).collect();
        let claim = format!("{model}, {workers} workers: auto beside {best}, the upper end of rounds");
        report.lines.push(Line::new(&claim, quantile(&sorted(&ratios), 0.9), 1.0, false));
    }
    if model == "lenet" {
        let ddp = efficiency_of_ddp(&sides, rounds, &mut report.runs)?;
        let claim = format!("lenet, 14 workers: efficiency (DDP's own: {:.0}%)", 100.0 * ddp);
        report.lines.push(Line::new(&claim, efficiency, (ddp + 0.1).min(0.95), false));
    }
    Ok(report)
}

/// Samples per second of every side in each round.
fn rates_of(
    sides: &Sides<'_>,
    case: &Case,
    workers: usize,
    rounds: u64,
    runs: &mut Vec<Value>,
) -> Outcome<Vec<(&'static str, Vec<f64>)>> {
    let train = |words: &[&str]| -> Command {
        let mut command = sides.paceline();
        command.args(["train", "--quiet", "--no-record", "--eval-every", "1000000"]);
        command.args(["--data", DATA, "--model", case.model, "--steps", &case.steps.to_string()]);
        command.args(["--workers", &workers.to_string()]).args(words);
        command
    };
    let mut rates: Vec<(&str, Vec<f64>)> = Vec::new();
    let mut paths = PATHS.to_vec();
    for round in 0..rounds {
        let mut list = vec![
            (AUTO, train(&[])),
            // Weights are averaged once, at no step that there is.
            (APART, train(&["--strategy", "local", "--local-steps", "1000000"])),
        ];
        list.extend(paths.iter().map(|path| (*path, train(&["--strategy", path]))));
        for (side, mut command) in list {
            let result = last_json(&mut command)?;
            of(&mut rates, side).push(number(&result, "/samples_per_s")?);
            let model = case.model;
            runs.push(
                json!({"round": round, "side": side, "model": model, "workers": workers, "result": result}),
            );
        }
        if round == 0 {
            let mut speeds = PATHS.map(|path| (of(&mut rates, path)[0], path));
            speeds.sort_by(|a, b| b.0.total_cmp(&a.0));
            paths = speeds.into_iter().take(RIVALS).map(|(_, path)| path).collect();
        }
    }
    for (side, rates) in &rates {
        println!("     {}, {workers} workers, {side}: {:.0} samples/s", case.model, median(rates));
    }
    Ok(rates)
}

/// DDP's speed with 14 workers as a part of 14 of the same scripts without it.
fn efficiency_of_ddp(sides: &Sides<'_>, rounds: u64, runs: &mut Vec<Value>) -> Outcome<f64> {
    let mut parts = Vec::new();
    for round in 0..rounds {
        let mut rates = [0.0; 2];
        for (side, rate) in ["ddp", APART].into_iter().zip(&mut rates) {
            let words = "--workers 14 --model lenet --steps 15 --threads 1 --bucket-view";
            let result = last_json(&mut sides.plain(side, words))?;
            *rate = number(&result, "/samples_per_s")?;
            runs.push(
                json!({"round": round, "side": side, "peer": "torch", "workers": 14, "result": result}),
            );
        }
        parts.push(rates[0] / rates[1]);
    }
    Ok(median(&parts))
}
