//! Runs that lose ranks at given moments, beside their prediction in virtual time.

use std::fs;
use std::path::Path;
use std::process::Command;

use paceline_random::{Purpose, Stream};
use paceline_statistics::{mean, median};
use serde_json::json;

use super::{Line, Report, Setup, number};
use crate::process::{self, Outcome, last_json};

/// Runs of each part.
const RUNS: u64 = 20;
/// Images of MNIST's size, on which a step is mostly computing, and digits (8×8), on which it is mostly exchanging: with as many
/// workers as there are cores, four at most. `crowded` has four of them on images wherever it is measured.
pub const PARTS: &[&str] = &["images", "digits", "crowded"];
/// Workers where there are cores enough.
const WORKERS: u64 = 4;

/// What lenet is trained on, and for how many steps.
struct Trains {
    name: &'static str,
    data: &'static str,
    steps: &'static str,
}

const IMAGES: Trains = Trains { name: "28×28 images", data: "synthetic", steps: "60" };
const DIGITS: Trains = Trains { name: "digits", data: "digits", steps: "300" };
/// What the files of revocations say of regrouping: medians of `accept survive`, in seconds.
const NOTICED: f64 = 0.001;
const REGROUP: f64 = 0.005;

/// What the file says of a worker that comes back.
const BACK: &str = "back-after-s = 0.3\n";

/// Ways to average, and how many servers they have.
const WAYS: [(&str, u64); 2] =
    [("--strategy ps --servers 2 --backup 1", 2), ("--strategy ring-allreduce", 0)];

/// The words of each way for so many workers, half of whom are enough, and how many of its ranks may be lost.
fn ways(workers: u64) -> [(String, u64); 2] {
    let members = format!("--workers {workers} --elastic {}..{workers}", workers / 2);
    WAYS.map(|(words, servers)| (format!("{words} {members}"), workers + servers))
}

/// Predicts runs and makes them.
pub fn measure(setup: &Setup, part: &str) -> Outcome<Report> {
    let trains = if part == "digits" { &DIGITS } else { &IMAGES };
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let workers = if part == "crowded" { WORKERS } else { cores.clamp(2, WORKERS) };
    let ways = ways(workers);
    let folder = setup.work("survive-predicted");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let calibration = folder.join("calibration.toml");
    process::run(setup.program().args(["calibrate", "--quiet", "--out"]).arg(&calibration))?;
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    let calm = |verb: &str, words: &str| -> Outcome<f64> {
        number(&last_json(&mut command(setup, verb, trains, words, &calibration))?, "/seconds/train")
    };
    let calm: Vec<[f64; 2]> = ways
        .iter()
        .map(|(words, _)| Ok::<_, String>([calm("simulate", words)?, calm("train", words)?]))
        .collect::<Outcome<_>>()?;
    report.runs.extend(ways.iter().zip(&calm).map(|((words, _), [predicted, took])| {
        json!({"words": words, "revoke": [], "predicted_s": predicted, "took_s": took})
    }));
    let (mut errors, mut pauses) = (Vec::new(), [Vec::new(), Vec::new()]);
    let first = setup.seed.unwrap_or(1);
    for seed in first..first + setup.rounds.unwrap_or(RUNS) {
        let (words, ranks) = &ways[seed as usize % ways.len()];
        let ranks = *ranks;
        let draw = Stream::new(seed, Purpose::Virtual);
        // One loss, or two of different ranks apart from each other: a copy has to be made anew in between.
        let one = draw.below(0, ranks);
        let other = (one + 1 + draw.below(1, ranks - 1)) % ranks;
        let at = |n: u64, from: f64| {
            (from + 0.25 * draw.below(n, 1000) as f64 / 1000.0) * calm[seed as usize % WAYS.len()][1]
        };
        let mut lost = vec![(at(2, 0.1), one)];
        // Of two servers only one can be lost, and of two workers.
        if draw.below(3, 2) == 1 && other < workers && (workers > 2 || one >= workers) {
            lost.push((at(4, 0.5), other));
        }
        let file = folder.join(format!("revoke-{seed}.toml"));
        // Some workers come back.
        let back = |rank: u64| if draw.below(5 + rank, 2) == 1 && rank < workers { BACK } else { "" };
        let entry =
            |(at, rank): &(f64, u64)| format!("[[revoke]]\nat-s = {at}\nrank = {rank}\n{}", back(*rank));
        let entries = lost.iter().map(entry);
        let text =
            format!("noticed-after-s = {NOTICED}\nregroup-s = {REGROUP}\n") + &entries.collect::<String>();
        fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
        let predicted =
            last_json(command(setup, "simulate", trains, words, &calibration).arg("--revoke").arg(&file))?;
        let real =
            last_json(command(setup, "train", trains, words, &calibration).arg("--revoke").arg(&file))?;
        let (predicted_s, took_s) = (number(&predicted, "/seconds/train")?, number(&real, "/seconds/train")?);
        errors.push((predicted_s / took_s - 1.0).abs());
        for (pauses, result) in pauses.iter_mut().zip([&predicted, &real]) {
            let changes = result["membership"].as_array().into_iter().flatten();
            pauses.extend(changes.filter_map(|change| change["pause_s"].as_f64()));
        }
        println!("     {words}, {} lost: predicted {predicted_s:.3} s, took {took_s:.3} s", lost.len());
        report.runs.push(json!({"seed": seed, "words": words, "revoke": lost, "predicted_s": predicted_s,
            "took_s": took_s, "predicted_membership": predicted["membership"], "membership": real["membership"]}));
    }
    let claim = format!(
        "{}, {workers} workers: {} runs that lose ranks: error of the predicted total time, mean (pauses: predicted {:.3} s, were {:.3} s)",
        trains.name,
        errors.len(),
        median(&pauses[0]),
        median(&pauses[1])
    );
    report.lines.push(Line { claim, reached: mean(&errors), wanted: 0.1, at_most: true });
    Ok(report)
}

/// `train` or `simulate` with what all of these runs have.
fn command(setup: &Setup, verb: &str, trains: &Trains, words: &str, calibration: &Path) -> Command {
    let mut command = setup.program();
    command.args([verb, "--data", trains.data, "--model", "lenet", "--seed", "3", "--batch", "32"]);
    command.args(["--steps", trains.steps, "--eval-every", "1000000"]).args(words.split(' '));
    match verb {
        "simulate" => command.arg("--quiet").arg("--calibration").arg(calibration),
        _ => command.args(["--no-record", "--quiet"]),
    };
    command
}
