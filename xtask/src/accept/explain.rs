//! `paceline explain` on runs with a planted cause, and on runs without one: real and simulated ones in turn, of
//! different models, strategies and sizes of the plant. It sees what was recorded, never what was planted. The first
//! advice is followed where that can be done here, and compared with what was predicted of it.

mod case;
mod plants;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use case::{Case, Explained};
use paceline_data::example;
use plants::{HEALTHY, PLANTED, Plant};
use serde_json::{Value, json};

use super::{Line, Report, Setup};
use crate::process::Outcome;

/// Runs of each cause.
const RUNS: usize = 20;
/// Of which so many have to be named.
const NAMED: f64 = 18.0;
/// Runs without a plant that may be blamed on one.
const BLAMED: f64 = 1.0;
/// By how much a predicted step may differ from the one that was made then,
const CLOSE: f64 = 0.1;
/// and in which part of the advice that was followed it differs by less.
const PREDICTED: f64 = 0.8;
/// In which part the predicted gain is one.
const SIGN: f64 = 0.95;
/// Images for decoders, and their side in pixels.
const IMAGES: [usize; 2] = [96, 640];

fn folder(setup: &Setup, name: &str) -> Outcome<PathBuf> {
    let store = setup.work("explain").join(name);
    if store.is_dir() {
        fs::remove_dir_all(&store).map_err(|error| format!("{}: {error}", store.display()))?;
    }
    Ok(store)
}

/// Plants every cause, and nothing; `PACELINE_ACCEPT_CAUSE` chooses some, separated by commas (`healthy` is one).
pub fn measure(setup: &Setup) -> Outcome<Report> {
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    let only = std::env::var("PACELINE_ACCEPT_CAUSE").ok();
    let wanted =
        |plant: &&Plant| only.as_ref().is_none_or(|only| only.split(',').any(|name| name == plant.name));
    let images = folder(setup, "images")?;
    example::images(&images, IMAGES[0], 12, 3, IMAGES[1]).map_err(|error| format!("images: {error}"))?;
    let mut trials = Vec::new();
    for plant in PLANTED.iter().chain([&HEALTHY]).filter(wanted) {
        let named = explained(setup, plant, &images, &mut report, &mut trials)?;
        report.lines.push(match plant.name {
            "healthy" => Line {
                claim: format!("nothing planted: blamed on something, of {RUNS}"),
                reached: (RUNS - named) as f64,
                wanted: BLAMED,
                at_most: true,
            },
            name => Line {
                claim: format!("{name} planted: named, of {RUNS}"),
                reached: named as f64,
                wanted: NAMED,
                at_most: false,
            },
        });
    }
    if !trials.is_empty() {
        let part = |of: &dyn Fn(&Trial) -> bool| {
            trials.iter().filter(|trial| of(trial)).count() as f64 / trials.len() as f64
        };
        let count = trials.len();
        report.lines.push(Line {
            claim: format!("first advice followed ({count} times): predicted step within 10%, part of them"),
            reached: part(&|trial| (trial.predicted / trial.made - 1.0).abs() <= CLOSE),
            wanted: PREDICTED,
            at_most: false,
        });
        report.lines.push(Line {
            claim: format!("first advice followed ({count} times): a gain, as predicted, part of them"),
            reached: part(&|trial| trial.made < 1.0),
            wanted: SIGN,
            at_most: false,
        });
    }
    Ok(report)
}

/// An advice that was followed: how long a step takes then, relative to now.
struct Trial {
    predicted: f64,
    made: f64,
}

/// Makes and explains the runs of a cause; how often it was named.
fn explained(
    setup: &Setup,
    plant: &Plant,
    images: &std::path::Path,
    report: &mut Report,
    trials: &mut Vec<Trial>,
) -> Outcome<usize> {
    let store = folder(setup, plant.name)?;
    let (mut all, mut named) = (BTreeMap::<String, usize>::new(), 0);
    for i in 0..RUNS {
        let case = (plant.case)(i, images);
        let Explained { result, said } = case.run(setup, &store)?;
        let verdict = &said["verdict"];
        let right = (plant.named)(verdict, &case);
        named += usize::from(right);
        if !right {
            println!("     {}: {} for {}", plant.name, verdict["sentence"], case.words());
        }
        *all.entry(verdict["cause"].as_str().unwrap_or("none").to_owned()).or_default() += 1;
        let trial = followed(setup, &case, verdict, &said, &store)?;
        if let Some((change, Trial { predicted, made })) = &trial {
            let off = (predicted / made - 1.0).abs() > CLOSE || *made >= 1.0;
            if off {
                println!(
                    "     {}: {change}: predicted {predicted:.3}, made {made:.3} for {}",
                    plant.name,
                    case.words()
                );
            }
        }
        report.runs.push(json!({
            "planted": plant.name, "named": right, "run": case.words(), "step_s": said["step_s"],
            "samples_per_s": result["samples_per_s"], "verdict": verdict, "path": said["path"],
            "wires": said["wires"], "alone": said["alone"], "figures": said["figures"],
            "followed": trial.as_ref().map(|(change, trial)| json!({
                "change": change, "predicted": trial.predicted, "made": trial.made,
            })),
        }));
        trials.extend(trial.map(|(_, trial)| trial));
    }
    println!("     {}: {named} named; {all:?}", plant.name);
    Ok(named)
}

/// Follows the first advice, where its gain was predicted and it can be followed here.
fn followed(
    setup: &Setup,
    case: &Case,
    verdict: &Value,
    said: &Value,
    store: &std::path::Path,
) -> Outcome<Option<(String, Trial)>> {
    let first = &verdict["changes"][0];
    let (Some(change), Some(then), Some(now)) =
        (first["if"].as_str(), first["step_s"].as_f64(), said["step_s"].as_f64())
    else {
        return Ok(None);
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let Some(after) = case.after(change, cores) else { return Ok(None) };
    let made = case.ratio(&after, setup, store)?;
    Ok(Some((change.to_owned(), Trial { predicted: then / now, made })))
}
