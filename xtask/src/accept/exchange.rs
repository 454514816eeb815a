//! All-reduce and distributed training beside the peers, over tcp on loopback.

use std::process::Command;

use paceline_statistics::median;
use serde_json::{Value, json};

use super::peers::Peers;
use super::{Line, Report, Setup, number};
use crate::process::{Outcome, last_json};

/// Runs that each median is made from.
const RUNS: usize = 5;

const KIB: usize = 1 << 10;
const SIZES: [usize; 5] = [4 * KIB, 64 * KIB, KIB * KIB, 16 * KIB * KIB, 64 * KIB * KIB];

/// Median times of each size, in microseconds, over the runs.
type Times = [Vec<f64>; SIZES.len()];

/// All-reduce with two processes: beside gloo, OpenMPI over TCP, and the duplex floor.
pub fn allreduce(setup: &Setup) -> Outcome<Report> {
    let peers = Peers::new(setup)?;
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    let (mut ours, mut floor, mut gloo, mut mpi) = <(Times, Times, Times, Times)>::default();
    for round in 0..RUNS {
        let bench = |words: &[&str]| {
            let mut command = peers.paceline();
            command.arg("bench").args(words).args(["--json", "--seconds", "1"]);
            command
        };
        let mut gloo_command = peers.script("gloo_allreduce.py");
        gloo_command.args(["--workers", "2", "--budget", "1"]);
        let mut mpi_command = peers.script("mpi_allreduce.py");
        mpi_command.args(["--workers", "2", "--btl", "tcp", "--budget", "1"]);
        let sides: [(&str, Command, &mut Times); 4] = [
            ("paceline allreduce", bench(&["allreduce", "--workers", "2", "--transport", "tcp"]), &mut ours),
            ("paceline p2p duplex", bench(&["p2p", "--duplex", "--transport", "tcp"]), &mut floor),
            ("gloo", gloo_command, &mut gloo),
            ("openmpi tcp", mpi_command, &mut mpi),
        ];
        for (side, mut command, times) in sides {
            let result = last_json(&mut command)?;
            for (i, size) in SIZES.iter().enumerate() {
                times[i].push(time_of(&result, *size)?);
            }
            report.runs.push(json!({"round": round, "side": side, "result": result}));
        }
    }
    for (i, size) in SIZES.into_iter().enumerate() {
        let own = median(&ours[i]);
        let mut line = |what: &str, times: &Times, wanted: f64| {
            let claim = format!("all-reduce of {} KiB, 2 processes: {what}", size / KIB);
            let reached = median(&times[i]) / own;
            report.lines.push(Line { claim, reached, wanted, at_most: false });
        };
        line("times faster than gloo", &gloo, if size <= KIB * KIB { 3.0 } else { 1.1 });
        line("times faster than OpenMPI over TCP", &mpi, 1.0);
        if size >= 16 * KIB * KIB {
            line("of the duplex floor", &floor, 0.85);
        }
    }
    Ok(report)
}

/// Paths of an all-reduce that are compared with four processes. OpenMPI chooses one by the size; so may a user.
const PATHS: [&str; 2] = ["ring-allreduce", "halving-doubling"];

/// All-reduce through shared memory with two and four processes, beside OpenMPI's: small messages are not
/// compared, with four processes on two cores only long ones. With four, the better path of each size counts.
pub fn shared_memory(setup: &Setup) -> Outcome<Report> {
    let peers = Peers::new(setup)?;
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    for (workers, least, paths) in [(2, 64 * KIB, &PATHS[..1]), (4, KIB * KIB, &PATHS)] {
        let mut mpi = Times::default();
        let mut ours: Vec<Times> = paths.iter().map(|_| Times::default()).collect();
        for round in 0..RUNS {
            let mut peer = peers.script("mpi_allreduce.py");
            peer.args(["--btl", "shm", "--budget", "1"]);
            let mut sides = vec![("openmpi shm", peer, &mut mpi)];
            for (path, times) in paths.iter().zip(&mut ours) {
                let mut own = peers.paceline();
                own.args(["bench", "allreduce", "--transport", "shm", "--json", "--seconds", "1"]);
                own.args(["--strategy", path]);
                sides.push((path, own, times));
            }
            for (side, mut command, times) in sides {
                let result = last_json(command.args(["--workers", &workers.to_string()]))?;
                for (i, size) in SIZES.iter().enumerate() {
                    times[i].push(time_of(&result, *size)?);
                }
                report.runs.push(json!({"round": round, "side": side, "workers": workers, "result": result}));
            }
        }
        for (i, size) in SIZES.into_iter().enumerate().filter(|(_, size)| *size >= least) {
            let medians = paths.iter().zip(&ours).map(|(path, times)| (*path, median(&times[i])));
            let (path, own) = medians.min_by(|a, b| a.1.total_cmp(&b.1)).expect("a path is measured");
            let what = format!("all-reduce of {} KiB, {workers} processes, shared memory", size / KIB);
            let claim = format!("{what}, {path}: times faster than OpenMPI");
            let reached = median(&mpi[i]) / own;
            report.lines.push(Line { claim, reached, wanted: 1.0, at_most: false });
        }
    }
    Ok(report)
}

/// A size's median in microseconds, from our form or the peers'.
pub fn time_of(result: &Value, size: usize) -> Outcome<f64> {
    let rows = result.get("results").or_else(|| result.get("rows")).and_then(Value::as_array);
    let row = rows.into_iter().flatten().find(|row| row["bytes"].as_u64() == Some(size as u64));
    let row = row.ok_or_else(|| format!("no row of {size} bytes in {result}"))?;
    number(row, "/median_us").or_else(|_| Ok(number(row, "/seconds_median")? * 1e6))
}

/// Training with several processes: beside DDP over gloo, and against ourselves.
pub fn training(setup: &Setup) -> Outcome<Report> {
    let peers = Peers::new(setup)?;
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    let train = |model: &str, words: &str, steps: u32| {
        let mut command = peers.paceline();
        command
            .args(["train", "--quiet", "--data", "fashion-mnist", "--lr", "0.01", "--eval-every", "1000000"])
            .args(["--model", model, "--steps", &steps.to_string()])
            .args(words.split(' '));
        command
    };
    let ddp = |model: &str, steps: u32, channels_last: bool| {
        let mut command = peers.script("torch_ddp.py");
        command.args(["--workers", "2", "--model", model, "--steps", &steps.to_string()]);
        if channels_last {
            command.arg("--channels-last");
        }
        command
    };
    let mut rates: Vec<(&str, Vec<f64>)> = Vec::new();
    let mut startups = Vec::new();
    for round in 0..RUNS {
        let sides: [(&str, Command); 9] = [
            ("lenet, 2 workers", train("lenet", "--workers 2", 150)),
            ("lenet, 4 workers", train("lenet", "--workers 4", 75)),
            ("lenet, ddp", ddp("cnn", 40, false)),
            ("lenet, ddp channels_last", ddp("cnn", 40, true)),
            ("mlp, 2 workers", train("mlp", "--workers 2", 2_000)),
            ("mlp, ddp", ddp("mlp", 600, false)),
            ("mlp, ddp channels_last", ddp("mlp", 600, true)),
            (
                "mlp, asp, 2 workers + 1 server",
                train("mlp", "--workers 2 --servers 1 --strategy ps --sync asp", 2_000),
            ),
            ("lenet, 4 workers + 2 servers", train("lenet", "--workers 4 --servers 2 --strategy ps", 10)),
        ];
        for (side, mut command) in sides {
            let result = last_json(&mut command)?;
            if side.ends_with("+ 2 servers") {
                startups.push(number(&result, "/seconds/startup")?);
            }
            let rate = number(&result, "/samples_per_s")?;
            match rates.iter_mut().find(|(name, _)| *name == side) {
                Some((_, all)) => all.push(rate),
                None => rates.push((side, vec![rate])),
            }
            report.runs.push(json!({"round": round, "side": side, "result": result}));
        }
    }
    for (side, all) in &rates {
        println!("     {side}: {:.0} samples/s", median(all));
    }
    let rate =
        |side: &str| rates.iter().find(|(name, _)| *name == side).map_or(f64::NAN, |(_, all)| median(all));
    let better =
        |model: &str| rate(&format!("{model}, ddp")).max(rate(&format!("{model}, ddp channels_last")));
    let mut line = |claim: &str, reached: f64, wanted: f64, at_most: bool| {
        report.lines.push(Line { claim: claim.into(), reached, wanted, at_most });
    };
    line(
        "lenet, 2 workers: times DDP's better layout",
        rate("lenet, 2 workers") / better("lenet"),
        1.25,
        false,
    );
    line("mlp, 2 workers: times DDP", rate("mlp, 2 workers") / better("mlp"), 3.0, false);
    line(
        "mlp, ps asp, 2 workers + 1 server: samples/s",
        rate("mlp, asp, 2 workers + 1 server"),
        30_000.0,
        false,
    );
    let four = rate("lenet, 4 workers") / rate("lenet, 2 workers");
    line("lenet: 4 workers on 2 cores, times 2 workers", four, 0.85, false);
    line("startup of 4 workers + 2 servers in s", median(&startups), 1.0, true);
    Ok(report)
}
