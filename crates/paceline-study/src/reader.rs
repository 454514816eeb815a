//! The figures of a run, from what it prints.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use paceline_plan::study::MetricsFile;
use paceline_plan::{Study, Workload};
use paceline_record::figures::{Figures, INFER};
use paceline_record::{FailureKind, RunResult, TreeSummary};
use regex::Regex;
use serde::Deserialize;
use serde_json::Value as Json;

/// Reads figures from what a run prints, line by line.
#[derive(Default)]
pub(crate) struct FigureReader {
    pub figures: Figures,
    patterns: Option<Vec<(String, Regex)>>,
    metrics: BTreeMap<String, f64>,
    pub run: Option<String>,
    /// The training clock, as far as it was told.
    pub train_s: f64,
    /// Whether the whole result has come.
    pub complete: bool,
    /// How the run failed, if it told.
    pub failure: Option<FailureKind>,
    /// Whether it is the network's answers that are listened to.
    pub answers: bool,
    /// Where its other hosts join it, once it waits for them.
    pub address: Option<SocketAddr>,
    train: bool,
}

impl FigureReader {
    pub fn new(study: &Study, figures: &Figures) -> Self {
        let patterns = match &study.workload {
            Workload::Command { metrics: MetricsFile::Patterns(patterns), .. } => Some(
                patterns.iter().filter_map(|(name, p)| Some((name.clone(), Regex::new(p).ok()?))).collect(),
            ),
            _ => None,
        };
        let train = matches!(study.workload, Workload::Train(_));
        Self { figures: figures.clone(), patterns, train, ..Self::default() }
    }

    pub fn line(&mut self, line: &str) {
        if let Some(patterns) = &self.patterns {
            for (name, pattern) in patterns {
                let found = pattern.captures_iter(line).last().and_then(|c| c.get(1)?.as_str().parse().ok());
                if let Some(value) = found.filter(|v: &f64| v.is_finite()) {
                    self.metrics.insert(name.clone(), value);
                    self.complete = true;
                }
            }
            return;
        }
        let Ok(Json::Object(event)) = serde_json::from_str(line) else { return };
        let event = Json::Object(event);
        if !self.train {
            self.metrics.clear();
            flatten("", &event, &mut self.metrics);
            self.complete = true;
            return;
        }
        if self.answers {
            for figure in self.figures.of_runs() {
                let value = figure.name.strip_prefix(INFER).and_then(|name| event["rows"][0][name].as_f64());
                value.and_then(|value| self.metrics.insert(figure.name.into(), value));
            }
            return;
        }
        self.train_s = event["train_s"].as_f64().unwrap_or(self.train_s);
        match event["type"].as_str() {
            Some("waiting") => self.address = event["address"].as_str().and_then(|text| text.parse().ok()),
            Some("start") => self.run = event["run"].as_str().map(str::to_owned),
            Some("evaluation") => {
                for (from, to) in [("accuracy", "final_accuracy"), ("loss", "final_loss")] {
                    event[from].as_f64().and_then(|v| self.metrics.insert(to.into(), v));
                }
            }
            Some("failed") => self.failure = FailureKind::deserialize(&event["kind"]).ok(),
            Some("result") => {
                flatten("", &event, &mut self.metrics);
                if let Ok(result) = serde_json::from_value::<RunResult>(event) {
                    let read = self.figures.read(&result);
                    self.metrics.extend(read.map(|(name, value)| (name.to_owned(), value)));
                }
                self.complete = true;
            }
            _ => {}
        }
    }

    /// The figures so far, with what the processes took, as seen from outside.
    pub fn metrics(
        &self,
        wall_s: f64,
        cpu_s: Option<f64>,
        tree: Option<TreeSummary>,
    ) -> BTreeMap<String, f64> {
        let mut metrics = self.metrics.clone();
        metrics.insert("wall_s".into(), wall_s);
        if let Some(cpu_s) = cpu_s.filter(|_| !self.train) {
            metrics.insert("cpu_s".into(), cpu_s);
        }
        let TreeSummary { rss_peak_bytes, processes, read_bytes, written_bytes } = tree.unwrap_or_default();
        let sampled = [
            ("rss_peak_bytes", rss_peak_bytes),
            ("processes", processes),
            ("read_bytes", read_bytes),
            ("written_bytes", written_bytes),
        ];
        for (name, value) in sampled.into_iter().filter(|_| tree.is_some()) {
            // What a program says of itself is not overruled.
            metrics.entry(name.into()).or_insert(value as f64);
        }
        metrics
    }
}

/// Numbers of a document, by their path.
fn flatten(prefix: &str, value: &Json, into: &mut BTreeMap<String, f64>) {
    match value {
        Json::Number(number) => {
            number.as_f64().filter(|v| v.is_finite()).and_then(|v| into.insert(prefix.into(), v));
        }
        Json::Object(map) => {
            for (name, value) in map {
                let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
                flatten(&path, value, into);
            }
        }
        _ => {}
    }
}
