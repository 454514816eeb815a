//! Every averaging technique on digits with 4 workers: alike data, and data split by label.

use paceline_statistics::median;
use serde_json::{Value, json};

use super::{Line, Report, Setup, number};
use crate::process::{Outcome, last_json};

/// Strategies with the flags that they are run with: everything else is the same for all.
const STRATEGIES: &[(&str, &str)] = &[
    ("ring-allreduce", "--strategy ring-allreduce"),
    ("ring-reduce", "--strategy ring-reduce"),
    ("tree", "--strategy tree"),
    ("halving-doubling", "--strategy halving-doubling"),
    ("ps bsp", "--strategy ps --servers 2"),
    ("ps asp", "--strategy ps --servers 2 --sync asp"),
    ("ps ssp(3)", "--strategy ps --servers 2 --sync ssp --staleness 3"),
    ("ps essp(3)", "--strategy ps --servers 2 --sync essp --staleness 3"),
    ("ps dssp(3,15)", "--strategy ps --servers 2 --sync dssp"),
    ("ps adaptive", "--strategy ps --servers 2 --sync adaptive"),
    ("ps switch(0.25)", "--strategy ps --servers 2 --sync switch"),
    ("gossip", "--strategy gossip"),
    ("gossip, 1 neighbour", "--strategy gossip --neighbours 1"),
    ("local(8)", "--strategy local"),
    ("local(8), outer", "--strategy local --outer nesterov"),
    ("stepwise naive", "--strategy stepwise --variant naive"),
    ("stepwise rotate", "--strategy stepwise --variant rotate"),
    ("stepwise random-start", "--strategy stepwise --variant random-start"),
    ("stepwise push-sum", "--strategy stepwise --variant push-sum"),
    ("stepwise periodic", "--strategy stepwise --variant periodic"),
    ("stepwise chunked", "--strategy stepwise --variant chunked"),
];

/// Those that are compared on data split by label.
const BY_LABEL: &[&str] = &["stepwise", "gossip", "local", "ring-allreduce"];

const SEEDS: std::ops::RangeInclusive<u64> = 1..=5;

/// Accuracy, period and bytes of every strategy.
pub fn measure(setup: &Setup) -> Outcome<Report> {
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    for (shard, wanted) in [("iid", Some(0.93)), ("by-label", None)] {
        println!("     {shard}: accuracy (replicas), ms per step, MB sent per worker and step");
        for (name, words) in STRATEGIES {
            if wanted.is_none() && !BY_LABEL.iter().any(|family| name.starts_with(family)) {
                continue;
            }
            let (results, diverged) = runs(setup, name, words, shard, &mut report)?;
            let of = |path: &str| results.iter().map(|r| number(r, path)).collect::<Outcome<Vec<f64>>>();
            // A run that diverges has learned nothing.
            let accuracy = median(&[of("/final_accuracy")?, vec![0.0; diverged]].concat());
            if results.is_empty() {
                println!("     {name:<24} diverged in every run");
                continue;
            }
            let steps = median(&of("/steps")?);
            let period = median(&of("/seconds/train")?) / steps;
            let sent = results.iter().map(|r| sent_bytes(r) / 4.0 / steps).collect::<Vec<_>>();
            let replicas = of("/replicas/min_accuracy").ok().map(|min| median(&min));
            let replicas = replicas.map_or_else(String::new, |min| format!(" (from {min:.3})"));
            let diverged = if diverged > 0 { format!(", {diverged} diverged") } else { String::new() };
            println!(
                "     {name:<24} {accuracy:.3}{replicas:<14} {:>7.3} {:>7.3}{diverged}",
                period * 1e3,
                median(&sent) / 1e6
            );
            if let Some(wanted) = wanted {
                let claim = format!("digits, 4 workers, {shard}, {name}: accuracy");
                report.lines.push(Line { claim, reached: accuracy, wanted, at_most: false });
            }
        }
    }
    Ok(report)
}

/// The results of all seeds, and how many runs diverged.
fn runs(
    setup: &Setup,
    name: &str,
    words: &str,
    shard: &str,
    report: &mut Report,
) -> Outcome<(Vec<Value>, usize)> {
    let (mut results, mut diverged) = (Vec::new(), 0);
    for seed in SEEDS {
        let mut command = setup.train("digits", "mlp");
        command
            .args(["--workers", "4", "--batch", "16", "--epochs", "12", "--lr", "0.02", "--shard", shard])
            .args(["--seed", &seed.to_string()])
            .args(words.split(' '));
        match last_json(&mut command) {
            Ok(result) => {
                report.runs.push(json!({"strategy": name, "shard": shard, "seed": seed, "result": result}));
                results.push(result);
            }
            Err(error) if error.contains("diverged") => {
                report.runs.push(json!({"strategy": name, "shard": shard, "seed": seed, "diverged": true}));
                diverged += 1;
            }
            Err(error) => return Err(error),
        }
    }
    Ok((results, diverged))
}

/// Bytes that the workers sent in a run.
pub fn sent_bytes(result: &Value) -> f64 {
    let ranks = result["ranks"].as_array().into_iter().flatten();
    ranks.filter(|r| r["role"] == "worker").filter_map(|r| r["sent_bytes"].as_f64()).sum()
}
