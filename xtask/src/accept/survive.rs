//! Runs whose processes are killed: they end with the parameters of an undisturbed run, after a short pause; and what it
//! costs to be able to.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use paceline_random::{Purpose, Stream};
use paceline_statistics::{median, quantile, sorted};
use serde_json::{Value, json};

use super::{Line, Report, Setup, number};
use crate::process::{self, Outcome, last_json};

/// Runs with one kill each, for each way to average.
const KILLS: u64 = 200;
/// Pairs of undisturbed runs, with and without what is priced.
const PAIRS: usize = 11;
/// Steps of a run.
const STEPS: u64 = 400;

/// Ways to average: their flags, what makes them survive, and how many of their ranks may be killed.
const WAYS: [(&str, &str, &str, u64); 2] = [
    ("ps/bsp", "--strategy ps --servers 2", "--elastic 2..4 --backup 1", 6),
    ("ring-allreduce", "--strategy ring-allreduce", "--elastic 2..4", 4),
];

/// Kills a rank of each of many runs, and measures the price of undisturbed ones.
pub fn measure(setup: &Setup) -> Outcome<Report> {
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    let kills = setup.rounds.unwrap_or(KILLS);
    for (name, averages, survives, ranks) in WAYS {
        let undisturbed = last_json(train(setup, "lenet", averages).args(["--workers", "4"]))?;
        let (mut same, mut pauses) = (0, Vec::new());
        for round in 0..kills {
            let draw = Stream::new(setup.seed.unwrap_or(1) + round, Purpose::Virtual);
            let (rank, step) = (draw.below(0, ranks) as usize, 1 + draw.below(1, STEPS * 3 / 4));
            let mut command = train(setup, "lenet", averages);
            command.args(["--json", "--workers", "4"]).args(survives.split(' '));
            let (result, killed) = run_and_kill(&mut command, rank, step)?;
            let figures = ["params_sha256", "steps", "samples", "final_loss"];
            let equal = figures.iter().all(|figure| result[*figure] == undisturbed[*figure]);
            same += u64::from(equal);
            let changes = result["membership"].as_array().cloned().unwrap_or_default();
            pauses.extend(changes.iter().filter_map(|change| change["pause_s"].as_f64()));
            report.runs.push(json!({"way": name, "round": round, "rank": rank, "step": step, "killed": killed,
                "equal": equal, "membership": changes, "type": result["type"], "message": result["message"]}));
        }
        let claim =
            format!("{name}, one SIGKILL each: runs that end with the same parameters, steps and samples");
        report.lines.push(Line { claim, reached: same as f64, wanted: kills as f64, at_most: false });
        for (what, reached, wanted) in
            [("median", median(&pauses), 0.3), ("95th percentile", quantile(&sorted(&pauses), 0.95), 1.0)]
        {
            let claim = format!("{name}: pause after a kill, {what} of {}, in seconds", pauses.len());
            report.lines.push(Line { claim, reached, wanted, at_most: true });
        }
    }
    price(setup, &mut report, "elasticity", ("--strategy ring-allreduce", "--elastic 1..2"), 1.03)?;
    let backups = ("--strategy ps --servers 2", "--elastic 1..2 --backup 1");
    price(setup, &mut report, "backups", backups, 1.05)?;
    Ok(report)
}

/// `train` with what all of these runs have.
fn train(setup: &Setup, model: &str, averages: &str) -> Command {
    let mut command = setup.program();
    command.args(["train", "--no-record", "--data", "digits", "--model", model, "--seed", "3"]);
    command.args(["--batch", "32", "--steps", &STEPS.to_string(), "--eval-every", "1000000"]);
    command.args(averages.split(' '));
    command
}

/// Runs a command, and kills one of its ranks once a step is told of: its last event, and whether the rank was there.
fn run_and_kill(command: &mut Command, rank: usize, step: u64) -> Outcome<(Value, bool)> {
    let failed = |error: std::io::Error| format!("paceline could not be run: {error}");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().map_err(failed)?;
    let id = child.id();
    let (mut killed, mut last) = (None, Value::Null);
    let out = BufReader::new(child.stdout.take().ok_or("no standard output")?);
    for line in out.lines().map_while(Result::ok) {
        let event: Value = serde_json::from_str(&line).map_err(|error| format!("{error}: {line}"))?;
        if killed.is_none() && event["type"] == "progress" && event["step"].as_u64() >= Some(step) {
            // Ranks are started in their order, by the launcher's first thread.
            let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
            let pid = children.split_whitespace().nth(rank).map(str::to_owned);
            killed =
                Some(pid.is_some_and(|pid| process::run(Command::new("kill").args(["-9", &pid])).is_ok()));
        }
        last = event;
    }
    child.wait().map_err(failed)?;
    Ok((last, killed.unwrap_or(false)))
}

/// How much longer undisturbed runs of two workers take with what makes them survive, in pairs.
fn price(
    setup: &Setup,
    report: &mut Report,
    what: &str,
    (averages, survives): (&str, &str),
    wanted: f64,
) -> Outcome<()> {
    let mut ratios = Vec::new();
    for pair in 0..PAIRS {
        let seconds = |survives: &str| -> Outcome<f64> {
            let mut command = train(setup, "lenet", averages);
            command.args(["--workers", "2"]).args(survives.split_whitespace());
            number(&last_json(&mut command)?, "/seconds/train")
        };
        // In turn, so that a drift of the machine is in neither.
        let (plain, elastic) = match pair % 2 {
            0 => (seconds("")?, seconds(survives)?),
            _ => {
                let elastic = seconds(survives)?;
                (seconds("")?, elastic)
            }
        };
        ratios.push(elastic / plain);
        report.runs.push(json!({"price": what, "pair": pair, "plain_s": plain, "elastic_s": elastic}));
    }
    let claim =
        format!("lenet, 2 workers: training time with {what}, times without, median of {PAIRS} pairs");
    report.lines.push(Line { claim, reached: median(&ratios), wanted, at_most: true });
    Ok(())
}
