//! A machine that slows down half way through a study: the controls show it, and the corrected ranking is that of a
//! quiet machine.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use paceline_analyze::ranks::spearman;
use serde_json::{Value, json};

use super::{Line, Report, Setup};
use crate::process::Outcome;

/// Every run keeps two cores busy, so a busy loop on one of them slows each.
const STUDY: &str = r#"
sampler = "grid"
repeats = 2
[workload]
workers = 2
epochs = 4
[axes]
model = ["mlp", "lenet"]
batch = [4, 16, 64]
strategy = ["ring-allreduce", "ps"]
servers = { values = [1], when = 'strategy = "ps"' }
[[objectives]]
metric = "seconds.train"
goal = "minimize"
[budget]
give-up = 0
[control]
every = 3
"#;
/// The figure that is ranked.
const METRIC: &str = "seconds.train";

/// Ends its process when it goes out of scope.
struct Busy(Child);

impl Busy {
    fn on_core(core: usize) -> Outcome<Self> {
        let mut command = Command::new("taskset");
        command.args(["-c", &core.to_string(), "sh", "-c", "while :; do :; done"]);
        command.spawn().map(Self).map_err(|error| format!("taskset: {error}"))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Makes the study; from the run `busy_from` on, a core is kept busy.
fn explore(setup: &Setup, name: &str, busy_from: Option<u64>) -> Outcome<Value> {
    let folder = setup.work("drift").join(name);
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).and_then(|()| fs::write(folder.join("drift.toml"), STUDY)).map_err(failed)?;
    let mut command = setup.program();
    command.args(["explore", "drift.toml", "--json", "--quiet", "--store", "store"]).current_dir(&folder);
    let mut study = command.stdout(Stdio::piped()).spawn().map_err(failed)?;
    let (mut last, mut busy, mut ended) = (Value::Null, None, 0);
    for line in BufReader::new(study.stdout.take().ok_or("no output")?).lines() {
        last = serde_json::from_str(&line.map_err(failed)?).map_err(|error| error.to_string())?;
        ended += u64::from(last["type"] == "run");
        if busy.is_none() && busy_from.is_some_and(|from| ended >= from) {
            busy = Some(Busy::on_core(0)?);
        }
    }
    drop(busy);
    match study.wait() {
        Ok(status) if status.success() => Ok(last),
        other => Err(format!("the study {name} failed: {other:?}")),
    }
}

/// A figure of every point, by its levels.
fn figures(result: &Value, which: &str) -> BTreeMap<String, f64> {
    let points = result["history"].as_array().into_iter().flatten();
    points.filter_map(|p| Some((p["levels"].to_string(), p[which][METRIC].as_f64()?))).collect()
}

/// Spearman's correlation of two figures over the points that have both.
fn agreement(a: &BTreeMap<String, f64>, b: &BTreeMap<String, f64>) -> f64 {
    let both = a.iter().filter_map(|(k, v)| Some((*v, *b.get(k)?)));
    let (a, b): (Vec<f64>, Vec<f64>) = both.unzip();
    spearman(&a, &b).map_or(0.0, |correlation| correlation.value)
}

/// Quiet, quiet again (the agreement that noise allows), and with a busy loop through the second half.
pub fn measure(setup: &Setup) -> Outcome<Report> {
    let quiet = explore(setup, "quiet", None)?;
    let again = explore(setup, "again", None)?;
    let half = quiet["runs"].as_u64().unwrap_or(0) / 2;
    let disturbed = explore(setup, "disturbed", Some(half))?;
    let truth = figures(&quiet, "measured");
    let by = |result: &Value, which: &str| agreement(&truth, &figures(result, which));
    let (floor, raw, corrected) =
        (by(&again, "measured"), by(&disturbed, "measured"), by(&disturbed, "metrics"));
    println!(
        "     agreement with the quiet study: quiet again {floor:.3}, disturbed {raw:.3}, corrected {corrected:.3}"
    );
    let change = |result: &Value| result["noise"]["drift"]["change"]["value"].as_f64().unwrap_or(0.0);
    let told = disturbed["noise"]["drift"]["drifted"] == true;
    // By how much the corrected choice is slower than the best, on the quiet machine.
    let chosen = disturbed["best"]["levels"].to_string();
    let best = truth.values().copied().fold(f64::INFINITY, f64::min);
    let lost = truth.get(&chosen).map_or(f64::INFINITY, |value| value / best - 1.0);
    Ok(Report {
        lines: vec![
            Line::new(
                "a busy core is told as drift (last over first)",
                f64::from(u8::from(told)) * change(&disturbed).exp(),
                1.10,
                false,
            ),
            Line::new("corrected ranking agrees with the quiet one (Spearman)", corrected, 0.9, false),
            Line::new("correction helps (Spearman, corrected less measured)", corrected - raw, 0.0, false),
            Line::new("the corrected choice is slower than the best by (share)", lost, 0.05, true),
        ],
        runs: vec![json!({"study": STUDY, "quiet": quiet, "again": again, "disturbed": disturbed,
                   "agreement": {"quiet again": floor, "disturbed": raw, "corrected": corrected}})],
    })
}
