//! Runs whose processes are killed: they end with the parameters of an undisturbed run, after a short pause; what it
//! costs to be able to; and what a kill costs others.
//!
//! Parts can be measured alone (`--only`), kills in pieces (`--seed`, `--rounds`): what is kept of the rest stays.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use paceline_random::{Purpose, Stream};
use paceline_statistics::{median, quantile, sorted};
use serde_json::{Value, json};

use super::{Line, Report, Setup, elastic_peers, number};
use crate::process::{self, Outcome, last_json};

/// What can be measured alone.
pub const PARTS: &[&str] = &["ps", "ring", "elasticity", "backups", "backups-28x28", "bytes", "peers"];

/// The name of the measurement, and of its raw runs.
const NAME: &str = "survive";

/// Runs with one kill each, for each way to average.
const KILLS: u64 = 200;
/// Pairs of undisturbed runs, with and without what is priced; how many are left out on each side for an interval that
/// holds the median in 96% of cases.
const PAIRS: usize = 15;
const LEFT_OUT: usize = 3;
/// Steps of a run that is killed, and of one that is priced.
const STEPS: u64 = 400;
/// Steps whose messages are counted.
const COUNTED_STEPS: u64 = 20;

/// A way to average whose ranks are killed.
pub struct Way {
    pub part: &'static str,
    name: &'static str,
    averages: &'static str,
    survives: &'static str,
    /// How many of its ranks may be killed.
    ranks: u64,
}

const PS: &str = "--strategy ps --servers 2";
const RING: &str = "--strategy ring-allreduce";
const BACKUP: &str = "--elastic 1..2 --backup 1";

/// What makes undisturbed runs of lenet with two workers survive.
struct Price {
    part: &'static str,
    averages: &'static str,
    survives: &'static str,
    /// Data, batch and steps.
    trains: &'static str,
    /// What lines call it.
    name: &'static str,
    /// The most that training may take, in times of what it takes without.
    wanted: f64,
}

/// On digits (8×8) a step takes 1 ms, on 28×28 images as MNIST's about 30 ms.
const PRICES: [Price; 3] = [
    Price {
        part: "elasticity",
        averages: RING,
        survives: "--elastic 1..2",
        trains: "--data digits --batch 32 --steps 1500",
        name: "elasticity",
        wanted: 1.03,
    },
    Price {
        part: "backups",
        averages: PS,
        survives: BACKUP,
        trains: "--data digits --batch 32 --steps 1500",
        name: "backups",
        wanted: 1.05,
    },
    Price {
        part: "backups-28x28",
        averages: PS,
        survives: BACKUP,
        trains: "--data synthetic --batch 64 --steps 60",
        name: "backups on 28×28 images, batch 64",
        wanted: 1.05,
    },
];

pub const WAYS: [Way; 2] = [
    Way { part: "ps", name: "ps/bsp", averages: PS, survives: "--elastic 2..4 --backup 1", ranks: 6 },
    Way { part: "ring", name: "ring-allreduce", averages: RING, survives: "--elastic 2..4", ranks: 4 },
];

/// Kills a rank of each of many runs, measures the price of undisturbed ones, and what kills cost others.
pub fn measure(setup: &Setup) -> Outcome<Report> {
    let wanted = |part: &str| setup.only.as_deref().is_none_or(|only| only == part);
    let mut runs = earlier(setup);
    for way in WAYS.iter().filter(|way| wanted(way.part)) {
        let first = setup.seed.unwrap_or(1);
        let seeds = first..first + setup.rounds.unwrap_or(KILLS);
        let now = |run: &Value| run["seed"].as_u64().is_some_and(|seed| seeds.contains(&seed));
        runs.retain(|run| run["part"] != way.part || setup.seed.is_some() && !now(run));
        kills(setup, way, seeds, &mut runs)?;
    }
    for of in PRICES.iter().filter(|price| wanted(price.part)) {
        runs.retain(|run| run["part"] != of.part);
        price(setup, of, &mut runs)?;
    }
    if wanted("bytes") {
        runs.retain(|run| run["part"] != "bytes");
        runs.push(bytes(setup)?);
    }
    if wanted("peers") {
        let kept = runs.len();
        let before: Vec<Value> = runs.iter().filter(|run| run["part"] == "peers").cloned().collect();
        runs.retain(|run| run["part"] != "peers");
        if let Err(why) = elastic_peers::measure(setup, &mut runs) {
            println!("-    beside torchrun and torchft: not measured here: {why}");
            runs.retain(|run| run["part"] != "peers");
            runs.extend(before);
            debug_assert_eq!(runs.len(), kept);
        }
    }
    runs.sort_by_key(|run| PARTS.iter().position(|part| run["part"] == *part));
    Ok(Report { lines: lines(&runs)?, runs })
}

/// The runs that are kept.
fn earlier(setup: &Setup) -> Vec<Value> {
    let kept = fs::read_to_string(setup.out.join(format!("{NAME}.json"))).unwrap_or_default();
    let kept: Value = serde_json::from_str(&kept).unwrap_or_default();
    let runs = kept["runs"].as_array().cloned().unwrap_or_default();
    runs.into_iter().filter(|run| run["part"].is_string()).collect()
}

fn kills(setup: &Setup, way: &Way, seeds: std::ops::Range<u64>, runs: &mut Vec<Value>) -> Outcome {
    let undisturbed = last_json(train(setup, way.averages, STEPS).args(["--workers", "4"]))?;
    for seed in seeds {
        let mut run = kill(setup, way, seed)?;
        let figures = ["params_sha256", "steps", "samples", "final_loss"];
        let result = run["result"].take();
        run["equal"] = figures.iter().all(|figure| result[*figure] == undisturbed[*figure]).into();
        runs.push(run);
    }
    Ok(())
}

/// A run with one kill, as a seed draws it.
pub fn kill(setup: &Setup, way: &Way, seed: u64) -> Outcome<Value> {
    let draw = Stream::new(seed, Purpose::Virtual);
    let (rank, step) = (draw.below(0, way.ranks) as usize, 1 + draw.below(1, STEPS * 3 / 4));
    let mut command = train(setup, way.averages, STEPS);
    command.args(["--json", "--workers", "4"]).args(way.survives.split(' '));
    let (result, killed, lost_s) = run_and_kill(&mut command, rank, step)?;
    Ok(json!({"part": way.part, "seed": seed, "rank": rank, "step": step, "killed": killed, "lost_s": lost_s,
        "membership": result["membership"], "type": result["type"], "message": result["message"], "result": result}))
}

/// `train` with what all of these runs have; a run whose messages are counted is recorded.
fn train(setup: &Setup, averages: &str, steps: u64) -> Command {
    let mut command = lenet(setup, &format!("--data digits --batch 32 --steps {steps}"), averages);
    if steps != COUNTED_STEPS {
        command.arg("--no-record");
    }
    command
}

fn lenet(setup: &Setup, trains: &str, averages: &str) -> Command {
    let mut command = setup.program();
    command.args(["train", "--model", "lenet", "--seed", "3", "--eval-every", "1000000"]);
    command.args(trains.split(' ')).args(averages.split(' '));
    command
}

/// Runs a command, and kills one of its ranks once a step is told of: its last event, whether the rank was there, and the
/// seconds that this cost: the time until it has made further steps, less as many usual ones.
fn run_and_kill(command: &mut Command, rank: usize, step: u64) -> Outcome<(Value, bool, Option<f64>)> {
    let failed = |error: std::io::Error| format!("paceline could not be run: {error}");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().map_err(failed)?;
    let id = child.id();
    let (mut killed, mut last, mut lost) = (None, Value::Null, None);
    let mut first: Option<(Instant, u64)> = None;
    let out = BufReader::new(child.stdout.take().ok_or("no standard output")?);
    for line in out.lines().map_while(Result::ok) {
        let (now, event): (_, Value) =
            (Instant::now(), serde_json::from_str(&line).map_err(|error| format!("{error}: {line}"))?);
        if let Some(at) = event["step"].as_u64().filter(|_| event["type"] == "progress") {
            let (begun, from) = *first.get_or_insert((now, at));
            match killed {
                None if at >= step => {
                    let usual = now.duration_since(begun).as_secs_f64() / (at - from).max(1) as f64;
                    // Ranks are started in their order, by the launcher's first thread.
                    let children =
                        fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
                    let pid = children.split_whitespace().nth(rank).map(str::to_owned);
                    let gone = |pid: &String| process::run(Command::new("kill").args(["-9", pid])).is_ok();
                    killed = Some((pid.as_ref().is_some_and(gone), now, at, usual));
                }
                Some((true, since, at_kill, usual))
                    if lost.is_none() && at >= at_kill + elastic_peers::WINDOW =>
                {
                    let took = now.duration_since(since).as_secs_f64();
                    lost = (at_kill > from + 20).then_some(took - (at - at_kill) as f64 * usual);
                }
                _ => {}
            }
        }
        last = event;
    }
    child.wait().map_err(failed)?;
    Ok((last, killed.is_some_and(|(there, ..)| there), lost))
}

/// How much longer undisturbed runs of two workers take with what makes them survive, in pairs.
fn price(setup: &Setup, price: &Price, runs: &mut Vec<Value>) -> Outcome {
    let Price { part, averages, survives, trains, .. } = *price;
    for pair in 0..PAIRS {
        let seconds = |survives: &str| -> Outcome<f64> {
            let mut command = lenet(setup, trains, averages);
            command.args(["--no-record", "--workers", "2"]).args(survives.split_whitespace());
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
        runs.push(json!({"part": part, "pair": pair, "plain_s": plain, "elastic_s": elastic}));
    }
    Ok(())
}

/// The bytes of all bodies, with and without backups, as they were sent.
fn bytes(setup: &Setup) -> Outcome<Value> {
    let workers = 2;
    let sent = |name: &str, survives: &str| -> Outcome<f64> {
        let folder = setup.work(NAME).join(name);
        // What an earlier run has left.
        let _ = fs::remove_dir_all(&folder);
        let (store, tables) = (folder.join("store"), folder.join("tables"));
        let mut command = train(setup, PS, COUNTED_STEPS);
        command.args(["--trace", "--workers", &workers.to_string(), "--store"]).arg(&store);
        last_json(command.args(survives.split_whitespace()))?;
        let mut export = setup.program();
        process::run(
            export
                .args(["export", "last", "--format", "csv", "--store"])
                .arg(&store)
                .arg("--out")
                .arg(&tables),
        )?;
        let table =
            fs::read_to_string(tables.join("trace.csv")).map_err(|error| format!("trace.csv: {error}"))?;
        let mut rows = table.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let head = rows.next().ok_or("trace.csv is empty")?;
        let column =
            |name: &str| head.iter().position(|column| *column == name).ok_or(format!("no column {name}"));
        let (kind, bytes) = (column("kind")?, column("bytes")?);
        Ok(rows.filter(|row| row[kind] == "send").filter_map(|row| row[bytes].parse::<f64>().ok()).sum())
    };
    let (plain, backups) = (sent("plain", "")?, sent("backups", BACKUP)?);
    Ok(json!({"part": "bytes", "workers": workers, "plain_bytes": plain, "backup_bytes": backups}))
}

/// The lines of the parts of which there are runs.
fn lines(runs: &[Value]) -> Outcome<Vec<Line>> {
    let of = |part: &str| runs.iter().filter(|run| run["part"] == part).cloned().collect::<Vec<_>>();
    let mut lines = Vec::new();
    for way in &WAYS {
        let (own, name) = (of(way.part), way.name);
        if own.is_empty() {
            continue;
        }
        let same = own.iter().filter(|run| run["equal"] == true).count();
        let claim =
            format!("{name}, one SIGKILL each: runs that end with the same parameters, steps and samples");
        lines.push(Line { claim, reached: same as f64, wanted: own.len() as f64, at_most: false });
        let changes = own.iter().filter_map(|run| run["membership"].as_array()).flatten();
        let pauses: Vec<f64> = changes.filter_map(|change| change["pause_s"].as_f64()).collect();
        for (what, reached, wanted) in
            [("median", median(&pauses), 0.3), ("95th percentile", quantile(&sorted(&pauses), 0.95), 1.0)]
        {
            let claim = format!("{name}: pause after a kill, {what} of {}, in seconds", pauses.len());
            lines.push(Line { claim, reached, wanted, at_most: true });
        }
    }
    for &Price { part, name, wanted, .. } in &PRICES {
        let ratio = |run: &Value| Ok::<_, String>(number(run, "/elastic_s")? / number(run, "/plain_s")?);
        let ratios = sorted(&of(part).iter().map(ratio).collect::<Outcome<Vec<f64>>>()?);
        let (Some(low), Some(high)) = (ratios.get(LEFT_OUT), ratios.iter().rev().nth(LEFT_OUT)) else {
            continue;
        };
        let claim = format!(
            "lenet, 2 workers: training time with {name}, times without, median of {} pairs ({low:.3} to {high:.3})",
            ratios.len()
        );
        lines.push(Line { claim, reached: median(&ratios), wanted, at_most: true });
        if part == "elasticity" {
            let claim = "the same: upper end of the pairs' 96% interval";
            lines.push(Line::new(claim, *high, wanted, true));
        }
    }
    for run in of("bytes") {
        let (plain, backups) = (number(&run, "/plain_bytes")?, number(&run, "/backup_bytes")?);
        let most = 1.0 / (2.0 * number(&run, "/workers")?);
        let claim = "ps/bsp, 2 workers: more bytes of bodies with backups, counted in the trace (1/(2p) is one sum more)";
        lines.push(Line::new(claim, backups / plain - 1.0, most, true));
    }
    lines.extend(elastic_peers::lines(&of("peers")));
    Ok(lines)
}
