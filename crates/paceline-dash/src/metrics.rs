//! Figures for Prometheus, in its text format.

use std::fmt::Write;

use crate::cache::StoreCache;

/// What the server itself counts.
#[derive(Clone, Copy, Debug)]
pub struct ServerCounters {
    pub answered: u64,
    pub refused: u64,
    /// Event streams that are open.
    pub listening: u64,
    /// Findings and charts that were made.
    pub analyses: u64,
}

fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

pub fn text(cache: &StoreCache, served: ServerCounters) -> String {
    let mut text = String::new();
    let mut family = |name: &str, kind: &str, about: &str, samples: Vec<(String, f64)>| {
        let _ = writeln!(text, "# HELP paceline_{name} {about}\n# TYPE paceline_{name} {kind}");
        for (labels, value) in samples {
            let _ = writeln!(text, "paceline_{name}{labels} {value}");
        }
    };
    let one = |value: u64| vec![(String::new(), value as f64)];
    family("http_requests_total", "counter", "Requests answered.", one(served.answered));
    family("http_refused_total", "counter", "Requests refused.", one(served.refused));
    family("http_event_streams", "gauge", "Event streams that are open.", one(served.listening));
    family("analyses_total", "counter", "Findings and charts made.", one(served.analyses));
    let runs = cache.runs();
    family("store_readable", "gauge", "1 if the store can be read.", one(u64::from(runs.is_ok())));
    let runs = runs.unwrap_or_default();
    let states = ["running", "ok", "failed", "interrupted", "lost"].map(|state| {
        let count = runs.iter().filter(|run| run.state == state).count();
        (format!("{{state=\"{state}\"}}"), count as f64)
    });
    family("runs", "gauge", "Runs in the store by state.", states.into());
    // Of those under way only: a store of thousands would have thousands of series.
    let under_way: Vec<_> = runs.iter().filter(|run| run.state == "running").collect();
    type Read = fn(&paceline_record::store::RunRow) -> Option<f64>;
    let figures: [(&str, &str, &str, Read); 5] = [
        ("run_steps_done", "counter", "Steps done by a run that is under way.", |r| {
            Some(r.steps_done as f64)
        }),
        ("run_steps", "gauge", "Steps of the whole run.", |r| r.steps.map(|n| n as f64)),
        ("run_samples_done", "counter", "Samples done.", |r| r.samples_done.map(|n| n as f64)),
        ("run_train_loss", "gauge", "Mean loss of the last step.", |r| r.train_loss),
        ("run_accuracy", "gauge", "Fraction of the test split that was right.", |r| r.accuracy),
    ];
    for (name, kind, about, read) in figures {
        let samples = under_way.iter().filter_map(|run| {
            Some((format!("{{run=\"{}\"}}", label(&run.run)), read(run).filter(|v| v.is_finite())?))
        });
        family(name, kind, about, samples.collect());
    }
    let known = |name: String| Some((cache.study(&name).ok()?, label(&name)));
    let studies: Vec<_> = cache.studies().into_iter().filter_map(known).collect();
    let samples = studies.iter().flat_map(|(study, name)| {
        let count =
            |which: fn(&str) -> bool| study.group.members.iter().filter(|m| which(&m.state)).count() as f64;
        [
            ("expected", study.expected as f64),
            ("running", count(|s| s == "running")),
            ("ok", count(|s| s == "ok")),
            ("failed", count(|s| s == "failed" || s == "diverged")),
        ]
        .map(|(state, value)| (format!("{{study=\"{name}\",state=\"{state}\"}}"), value))
    });
    family("study_runs", "gauge", "Runs of a study: how many it will have, and by state.", samples.collect());
    text
}
