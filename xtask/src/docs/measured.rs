//! Tables out of the raw runs in `bench/accept/`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use paceline_bench::Channels;
use paceline_protocol::STRATEGIES;
use paceline_statistics::mean;
use paceline_statistics::median;
use serde_json::Value;

use super::markdown::Page;
use crate::accept::number;
use crate::process::Outcome;

/// What was measured, as far as it was.
#[derive(Default)]
pub struct Measured {
    averaging: Option<Value>,
    stragglers: Option<Value>,
    compression: Option<Value>,
    /// Other systems beside ours.
    pub peers: Option<Value>,
    /// Channels, out of a folder of their own.
    pub channels: Option<Channels>,
}

impl Measured {
    pub fn read(folder: &Path) -> Outcome<Self> {
        let read = |name: &str| {
            let path = folder.join(format!("{name}.json"));
            if !path.exists() {
                return Ok(None);
            }
            let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            serde_json::from_str(&text).map(Some).map_err(|error| format!("{}: {error}", path.display()))
        };
        Ok(Self {
            averaging: read("averaging")?,
            stragglers: read("stragglers")?,
            compression: read("compression")?,
            peers: read("peers")?,
            channels: None,
        })
    }

    /// Accuracy, period and bytes of a strategy (of all without one), alike data and split by label.
    pub fn averaging(&self, page: &mut Page, strategy: Option<&str>) -> Outcome {
        let wanted = |run: &&Value| strategy.is_none_or(|name| family(text(run, "strategy")) == Some(name));
        let runs: Vec<_> = runs(self.averaging.as_ref()).filter(wanted).collect();
        let Some(document) = self.averaging.as_ref().filter(|_| !runs.is_empty()) else {
            page.text(&nothing("averaging"));
            return Ok(());
        };
        page.text(&format!(
            "digits, mlp, {} workers; all workers see alike data (iid), or each sees a few labels only (by-label). \
             {} Accuracy is that of the evaluated model on the test split; the lowest replica is the least \
             accurate single worker's model, where they differ (– where they do not, and where nothing was \
             measured).",
            workers(runs[0]),
            source("averaging", document, &groups(&runs, &["strategy", "shard"])),
        ));
        let head = [
            "technique",
            "accuracy, iid",
            "accuracy, by-label",
            "lowest replica, iid",
            "lowest replica, by-label",
            "time per step, iid",
            "time per step, by-label",
            "sent per worker and step, iid",
            "sent per worker and step, by-label",
        ];
        let mut rows = Vec::new();
        for (name, of_name) in groups(&runs, &["strategy"]) {
            let diverged = of_name.iter().filter(|run| run.get("result").is_none()).count();
            let note = format!(" (diverged in {diverged} of {} runs)", of_name.len());
            let mut columns = vec![vec![if diverged > 0 { name + &note } else { name }]];
            columns.extend(vec![Vec::new(); 4]);
            for shard in ["iid", "by-label"] {
                let alike: Vec<_> = of_name
                    .iter()
                    .copied()
                    .filter(|run| run["shard"] == shard && run.get("result").is_some())
                    .collect();
                for (column, cell) in columns[1..].iter_mut().zip(costs(&alike)?) {
                    column.push(cell);
                }
            }
            rows.push(columns.concat());
        }
        page.table(&head, &rows);
        Ok(())
    }

    /// Throughput and staleness of each consistency model, for each kind of slowness.
    pub fn stragglers(&self, page: &mut Page) -> Outcome {
        let runs: Vec<_> = runs(self.stragglers.as_ref()).collect();
        let Some(document) = self.stragglers.as_ref().filter(|_| !runs.is_empty()) else {
            page.text(&nothing("stragglers"));
            return Ok(());
        };
        page.text(&format!(
            "`ps`, fashion-mnist, mlp, {} workers of which one is three times slower. {} Staleness is the \
             number of updates between the parameters that an update was computed from and those that it was \
             applied to; the greatest is that of all runs.",
            workers(runs[0]),
            source("stragglers", document, &groups(&runs, &["slow", "model"])),
        ));
        for (kind, of_kind) in groups(&runs, &["slow"]) {
            page.text(&format!("**Slow: {kind}**"));
            let models = groups(&of_kind, &["model"]);
            let rate = |runs: &[&Value]| middle(runs, "/result/samples_per_s");
            let bsp =
                models.iter().find(|(name, _)| name == "bsp").map(|(_, runs)| rate(runs)).transpose()?;
            let mut rows = Vec::new();
            for (name, runs) in &models {
                let times = bsp.map(|bsp| rate(runs).map(|rate| rate / bsp)).transpose()?;
                let greatest = all(runs, "/result/staleness/max")?.into_iter().fold(0.0, f64::max);
                rows.push(vec![
                    name.clone(),
                    format!("{:.0} samples/s", rate(runs)?),
                    cell(times, |times| format!("{times:.2}×")),
                    format!("{:.2}", middle(runs, "/result/staleness/mean")?),
                    format!("{greatest:.0}"),
                ]);
            }
            page.table(
                &[
                    "model",
                    "throughput",
                    "times bsp",
                    "mean staleness (updates)",
                    "greatest staleness (updates)",
                ],
                &rows,
            );
        }
        Ok(())
    }

    /// Accuracy and bytes of each codec.
    pub fn compression(&self, page: &mut Page) -> Outcome {
        let runs: Vec<_> = runs(self.compression.as_ref()).collect();
        let Some(document) = self.compression.as_ref().filter(|_| !runs.is_empty()) else {
            page.text(&nothing("compression"));
            return Ok(());
        };
        let codecs = groups(&runs, &["codec"]);
        page.text(&format!(
            "`ring-allreduce`, MNIST, lenet, {} workers, 2 epochs. {}",
            workers(runs[0]),
            source("compression", document, &codecs),
        ));
        let plain = codecs.iter().find(|(name, _)| name == "none").map(|(_, runs)| sent(runs)).transpose()?;
        let mut rows = Vec::new();
        for (name, runs) in &codecs {
            let sent = sent(runs)?;
            rows.push(vec![
                name.clone(),
                format!("{:.2}%", 100.0 * middle(runs, "/result/final_accuracy")?),
                format!("{sent:.3} MB"),
                cell(plain, |plain| format!("{:.2} times fewer", plain / sent)),
            ]);
        }
        page.table(&["codec", "accuracy", "sent per worker and step", "bytes"], &rows);
        Ok(())
    }
}

/// The sentence for what has no runs.
pub fn nothing(name: &str) -> String {
    format!(
        "Nothing has been measured yet. `cargo xtask accept {name}`, then `cargo xtask docs`, puts it here."
    )
}

/// How many runs there are of each, on which machine, and where.
fn source(name: &str, document: &Value, groups: &[(String, Vec<&Value>)]) -> String {
    let counts: BTreeSet<usize> = groups.iter().map(|(_, runs)| runs.len()).collect();
    let (least, most) = (counts.first().unwrap_or(&0), counts.last().unwrap_or(&0));
    let count = match (least, most) {
        (1, 1) => "One run each".to_owned(),
        (least, most) if least == most => format!("Medians of {least} runs each"),
        _ => format!("Medians of {least} to {most} runs each"),
    };
    let machine = &document["machine"];
    let cpu = machine["cpu"].as_str().unwrap_or("an unknown processor");
    let cores = machine["cores"].as_u64().map_or_else(String::new, |n| format!(", {n} cores"));
    format!("{count} on one machine ({cpu}{cores}); every run is in `bench/accept/{name}.json`.")
}

fn runs(document: Option<&Value>) -> impl Iterator<Item = &Value> {
    document.and_then(|document| document["runs"].as_array()).into_iter().flatten()
}

fn text<'a>(run: &'a Value, field: &str) -> &'a str {
    run[field].as_str().unwrap_or_default()
}

/// Runs that agree in these fields, by what these say, in the order of their appearance.
fn groups<'a>(runs: &[&'a Value], fields: &[&str]) -> Vec<(String, Vec<&'a Value>)> {
    let key = |run: &Value| fields.iter().map(|field| text(run, field).to_owned()).collect::<Vec<_>>();
    let mut groups: Vec<(Vec<String>, Vec<&Value>)> = Vec::new();
    for run in runs {
        match groups.iter_mut().find(|(known, _)| *known == key(run)) {
            Some((_, members)) => members.push(run),
            None => groups.push((key(run), vec![run])),
        }
    }
    groups.into_iter().map(|(key, members)| (key.join(", "), members)).collect()
}

/// The strategy that a technique such as `ps ssp(3)` belongs to: the longest name that it begins with.
fn family(technique: &str) -> Option<&'static str> {
    let names = STRATEGIES.iter().map(|s| s.name);
    names.filter(|name| technique.starts_with(name)).max_by_key(|name| name.len())
}

fn all(runs: &[&Value], path: &str) -> Outcome<Vec<f64>> {
    runs.iter().map(|run| number(run, path)).collect()
}

fn middle(runs: &[&Value], path: &str) -> Outcome<f64> {
    all(runs, path).map(|values| median(&values))
}

fn of_workers(run: &Value) -> impl Iterator<Item = &Value> {
    run["result"]["ranks"].as_array().into_iter().flatten().filter(|rank| rank["role"] == "worker")
}

fn workers(run: &Value) -> usize {
    of_workers(run).count()
}

/// MB sent per worker and step.
fn sent(runs: &[&Value]) -> Outcome<f64> {
    let of_run = |run: &&Value| {
        let bytes: Vec<f64> =
            of_workers(run).map(|rank| number(rank, "/sent_bytes")).collect::<Outcome<_>>()?;
        Ok(mean(&bytes) / number(run, "/result/steps")? / 1e6)
    };
    runs.iter().map(of_run).collect::<Outcome<Vec<f64>>>().map(|values| median(&values))
}

/// Accuracy, lowest replica, time per step and bytes per step.
fn costs(runs: &[&Value]) -> Outcome<[String; 4]> {
    if runs.is_empty() {
        return Ok([0; 4].map(|_| cell(None, |_| unreachable!())));
    }
    let percent = |fraction: f64| format!("{:.1}%", 100.0 * fraction);
    let period = |run: &&Value| Ok(number(run, "/result/seconds/train")? / number(run, "/result/steps")?);
    let periods = runs.iter().map(period).collect::<Outcome<Vec<f64>>>()?;
    Ok([
        percent(middle(runs, "/result/final_accuracy")?),
        cell(middle(runs, "/result/replicas/min_accuracy").ok(), percent),
        format!("{:.2} ms", 1e3 * median(&periods)),
        format!("{:.3} MB", sent(runs)?),
    ])
}

fn cell(value: Option<f64>, show: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| "–".into(), show)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(accuracy: f64, lowest: Option<f64>) -> Value {
        let rank = |role: &str, bytes: u64| json!({"role": role, "sent_bytes": bytes});
        json!({
            "final_accuracy": accuracy,
            "replicas": lowest.map(|lowest| json!({"min_accuracy": lowest, "max_accuracy": 1.0})),
            "steps": 10,
            "seconds": {"train": accuracy / 10.0},
            "samples_per_s": 1000.0 * accuracy,
            "staleness": {"mean": accuracy, "p95": 1.0, "max": 10.0 * accuracy},
            "ranks": [rank("worker", 200_000), rank("worker", 400_000), rank("server", 9_000_000)],
        })
    }

    fn document(runs: Vec<Value>) -> Option<Value> {
        Some(json!({"machine": {"cpu": "Abacus", "cores": 2}, "lines": [], "runs": runs}))
    }

    fn page(write: impl Fn(&mut Page) -> Outcome) -> String {
        let mut page = Page::new("");
        write(&mut page).unwrap();
        page.done()
    }

    #[test]
    fn a_technique_belongs_to_the_longest_name_that_it_begins_with() {
        for (technique, strategy) in [
            ("ps ssp(3)", Some("ps")),
            ("local(8), outer", Some("local")),
            ("stepwise naive", Some("stepwise")),
            ("ring-reduce", Some("ring-reduce")),
            ("gossip, 1 neighbour", Some("gossip")),
            ("telepathy", None),
        ] {
            assert_eq!(family(technique), strategy);
        }
    }

    #[test]
    fn runs_are_grouped_in_the_order_of_their_appearance() {
        let runs = [json!({"a": "y", "b": "1"}), json!({"a": "x", "b": "1"}), json!({"a": "y", "b": "2"})];
        let runs: Vec<&Value> = runs.iter().collect();
        let sizes = |fields: &[&str]| {
            groups(&runs, fields).into_iter().map(|(key, runs)| (key, runs.len())).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&["a"]), [("y".into(), 2), ("x".into(), 1)]);
        assert_eq!(sizes(&["a", "b"]), [("y, 1".into(), 1), ("x, 1".into(), 1), ("y, 2".into(), 1)]);
    }

    #[test]
    fn averaging_shows_medians_of_both_kinds_of_data_side_by_side() {
        let of = |strategy: &str, shard: &str, result| json!({"strategy": strategy, "shard": shard, "result": result});
        let iid = [0.9, 0.7, 0.8].map(|accuracy| of("gossip", "iid", run(accuracy, Some(accuracy - 0.1))));
        let mut runs = iid.to_vec();
        runs.push(of("gossip", "by-label", run(0.5, Some(0.25))));
        runs.push(of("ps asp", "iid", run(0.6, None)));
        let measured = Measured { averaging: document(runs), ..Measured::default() };
        let gossip = "| gossip | 80.0% | 50.0% | 70.0% | 25.0% | 8.00 ms | 5.00 ms | 0.030 MB | 0.030 MB |\n";
        let ps = "| ps asp | 60.0% | – | – | – | 6.00 ms | – | 0.030 MB | – |\n";
        let whole = page(|page| measured.averaging(page, None));
        assert!(whole.contains(&format!("{gossip}{ps}")), "{whole}");
        assert!(whole.contains("2 workers"), "{whole}");
        let whole = whole.replace('\n', " ");
        assert!(whole.contains("Medians of 1 to 3 runs each on one machine (Abacus, 2 cores)"), "{whole}");
        let one = page(|page| measured.averaging(page, Some("ps")));
        assert!(one.contains(ps) && !one.contains("gossip"), "{one}");
        let none = page(|page| measured.averaging(page, Some("tree")));
        assert!(none.contains("Nothing has been measured yet"), "{none}");
    }

    #[test]
    fn stragglers_are_compared_with_bsp_within_their_kind() {
        let of = |slow: &str, model: &str, result| json!({"slow": slow, "model": model, "result": result});
        let runs = vec![
            of("one", "bsp", run(0.2, None)),
            of("one", "asp", run(0.6, None)),
            of("one", "asp", run(0.4, None)),
            of("another", "bsp", run(0.1, None)),
        ];
        let measured = Measured { stragglers: document(runs), ..Measured::default() };
        let whole = page(|page| measured.stragglers(page));
        assert!(whole.contains("| asp | 500 samples/s | 2.50× | 0.50 | 6 |"), "{whole}");
        assert!(whole.contains("**Slow: another**"), "{whole}");
        assert!(whole.contains("| bsp | 100 samples/s | 1.00× | 0.10 | 1 |"), "{whole}");
    }

    #[test]
    fn codecs_are_compared_with_none() {
        let mut short = run(0.5, None);
        short["ranks"] = json!([{"role": "worker", "sent_bytes": 100_000}]);
        let runs = vec![
            json!({"codec": "none", "result": run(0.9, None)}),
            json!({"codec": "fp16", "result": short}),
        ];
        let measured = Measured { compression: document(runs), ..Measured::default() };
        let whole = page(|page| measured.compression(page));
        assert!(whole.contains("One run each"), "{whole}");
        assert!(whole.contains("| fp16 | 50.00% | 0.010 MB | 3.00 times fewer |"), "{whole}");
    }

    #[test]
    fn a_run_without_a_figure_is_an_error_that_says_which() {
        let runs = vec![json!({"strategy": "tree", "shard": "iid", "result": {"steps": 1}})];
        let measured = Measured { averaging: document(runs), ..Measured::default() };
        let problem = measured.averaging(&mut Page::new(""), None).unwrap_err();
        assert!(problem.contains("/result/"), "{problem}");
    }
}
