//! What recording costs. Runs with and without a record alternate; each pair is compared by throughput and by the CPU
//! time of all its processes.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use paceline_record::SAMPLE_HZ;
use paceline_record::process::{children_cpu_seconds, monotonic_ns};
use paceline_resolve::{PlanSettings, resolve};
use paceline_statistics::hodges_lehmann;
use serde::Serialize;
use serde_json::Value as Json;

use crate::document::{TrialDocument, TrialTask};
use crate::error::StudyFailure;

#[derive(Clone, Copy, Debug, Serialize)]
struct PairedRun {
    samples_per_s: f64,
    /// CPU time of the launcher and all ranks, from getrusage.
    cpu_s: f64,
    dropped_rows: u64,
}

/// A recorded run and the other one.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct OverheadPair {
    recorded: PairedRun,
    unrecorded: PairedRun,
    /// The part of the throughput that recording takes.
    pub loss_fraction: f64,
    /// The part of the CPU time that recording adds.
    pub cpu_fraction: f64,
}

/// What recording costs runs of some settings.
#[derive(Debug, Serialize)]
pub struct RecordingOverhead {
    #[serde(flatten)]
    of: OverheadRequest,
    sample_hz: f64,
    /// The middle of the pairs' losses of throughput (Hodges and Lehmann's).
    loss_fraction: f64,
    /// Its upper 95% bound (one-sided, Wilcoxon's).
    loss_fraction_upper95: f64,
    /// The middle of the CPU time added.
    cpu_fraction: f64,
    /// Its upper 95% bound.
    cpu_fraction_upper95: f64,
    pairs: Vec<OverheadPair>,
}

/// Runs that are measured.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct OverheadRequest {
    pub model: String,
    pub data: String,
    pub workers: u32,
    pub steps: u32,
    #[serde(skip)]
    pub pairs: u32,
    /// Settings that all of them have.
    #[serde(skip)]
    pub settings: PlanSettings,
}

impl OverheadRequest {
    /// Makes the runs; `tell` gets each pair.
    pub fn measure(self, tell: &dyn Fn(usize, &OverheadPair)) -> Result<RecordingOverhead, StudyFailure> {
        let store = std::env::temp_dir().join(format!("paceline-overhead-{}", std::process::id()));
        let pairs = self.run_pairs(&store, tell);
        // What was recorded has served its purpose.
        let _ = std::fs::remove_dir_all(&store);
        let pairs = pairs?;
        let of =
            |value: fn(&OverheadPair) -> f64| hodges_lehmann(&pairs.iter().map(value).collect::<Vec<_>>());
        let (loss, cpu) = (of(|p| p.loss_fraction), of(|p| p.cpu_fraction));
        Ok(RecordingOverhead {
            of: self,
            sample_hz: SAMPLE_HZ,
            loss_fraction: loss.0,
            loss_fraction_upper95: loss.1,
            cpu_fraction: cpu.0,
            cpu_fraction_upper95: cpu.1,
            pairs,
        })
    }

    fn run_pairs(
        &self,
        store: &Path,
        tell: &dyn Fn(usize, &OverheadPair),
    ) -> Result<Vec<OverheadPair>, StudyFailure> {
        let [recorded, unrecorded] = [true, false].map(|record| self.document(store, record));
        let (recorded, unrecorded) = (recorded?, unrecorded?);
        // A first run of each kind warms caches and makes the store.
        run(&recorded)?;
        run(&unrecorded)?;
        let mut pairs = Vec::new();
        for i in 0..self.pairs as usize {
            // Which of the two comes first alternates, so that a drift of the machine favours neither.
            let first = if i % 2 == 0 { Some(run(&recorded)?) } else { None };
            let unrecorded = run(&unrecorded)?;
            let recorded = first.map_or_else(|| run(&recorded), Ok)?;
            let pair = OverheadPair {
                recorded,
                unrecorded,
                loss_fraction: 1.0 - recorded.samples_per_s / unrecorded.samples_per_s,
                cpu_fraction: recorded.cpu_s / unrecorded.cpu_s - 1.0,
            };
            tell(i, &pair);
            pairs.push(pair);
        }
        Ok(pairs)
    }

    fn document(&self, store: &Path, record: bool) -> Result<String, StudyFailure> {
        let mut settings = self.settings.clone();
        let (steps, workers) = (self.steps.to_string(), self.workers.to_string());
        for (name, value) in [
            ("data", self.data.as_str()),
            ("model", &self.model),
            ("steps", &steps),
            ("workers", &workers),
            ("lr", "0.01"),
            ("eval-every", "1000000"),
        ] {
            settings.set(name, &paceline_plan::Value::Text(value.into()))?;
        }
        let recording = record.then(|| settings.recording()).transpose()?;
        let task = TrialTask::Train { store: store.to_owned(), recording, meeting: None };
        let document = TrialDocument::new(task, resolve(&settings)?, &settings);
        Ok(TrialDocument { json: false, ..document }.text()?)
    }
}

fn run(document: &str) -> Result<PairedRun, StudyFailure> {
    let [program, word] = TrialDocument::words()?;
    let (cpu, begun) = (children_cpu_seconds(), monotonic_ns());
    let mut command = Command::new(program);
    let mut child = command.arg(word).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    // A child that does not read it ends, and says why.
    let _ = child.stdin.take().map(|mut input| input.write_all(document.as_bytes()));
    let out = child.wait_with_output()?;
    let cpu_s = children_cpu_seconds() - cpu;
    let text = String::from_utf8_lossy(&out.stdout);
    let result: Json = serde_json::from_str(text.lines().last().unwrap_or_default()).unwrap_or_default();
    let Some(samples_per_s) = result["samples_per_s"].as_f64().filter(|_| out.status.success()) else {
        let seconds = (monotonic_ns() - begun) as f64 * 1e-9;
        return Err(StudyFailure::NotMeasured { seconds, status: out.status });
    };
    Ok(PairedRun { samples_per_s, cpu_s, dropped_rows: result["dropped_rows"].as_u64().unwrap_or(0) })
}

impl RecordingOverhead {
    /// For people.
    pub fn text(&self) -> String {
        let OverheadRequest { model, data, workers, steps, pairs, .. } = &self.of;
        format!(
            "{model} on {data}, {workers} workers, {pairs} pairs of {steps} steps: recording costs\n\
             throughput {:>7.3}%  (95% sure to be below {:.3}%)\n\
             CPU time   {:>7.3}%  (95% sure to be below {:.3}%)\n",
            100.0 * self.loss_fraction,
            100.0 * self.loss_fraction_upper95,
            100.0 * self.cpu_fraction,
            100.0 * self.cpu_fraction_upper95,
        )
    }
}
