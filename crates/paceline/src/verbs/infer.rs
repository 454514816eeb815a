//! `paceline infer`: how long a trained network takes to answer, and how often it is right.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_data::{DATASETS, Folders};
use paceline_nn::Compute;
use paceline_nn::models::MODELS;
use paceline_plan::Plan;
use paceline_record::Machine;
use paceline_resolve::{PlanSettings, TypedPlan, resolve};
use paceline_statistics::percentile;
use paceline_train::{Replica, model};
use serde::Serialize;

use super::data::Place;
use super::weights;
use crate::failure::Failure;
use crate::flags::names;
use crate::flags::registries;
use crate::output::{self, Show};

/// Part of the time asked for that is run before anything is counted.
const WARM_UP: f64 = 0.1;

/// Flags of `paceline infer`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Dataset
    #[arg(long, default_value = "digits", value_parser = names(DATASETS.iter().map(|d| (d.name, d.about))))]
    data: String,
    #[command(flatten)]
    place: Place,
    /// Network
    #[arg(long, default_value = "mlp", value_parser = names(MODELS.iter().map(|m| (m.name, m.about))))]
    model: String,
    /// Network from a file: a list of layers in TOML, e.g. examples/models/lenet.toml
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    model_file: Option<PathBuf>,
    /// Its weights: a PyTorch state_dict saved as safetensors, e.g. from `paceline export-weights` [default: untrained]
    #[arg(long, value_name = "FILE")]
    init: Option<PathBuf>,
    /// Samples that are answered together, one measurement for each number
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,8,64",
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch: Vec<u32>,
    /// Threads, one measurement for each number
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1",
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Vec<u32>,
    /// Seconds of each measurement
    #[arg(long, value_name = "S", default_value = "2", value_parser = seconds)]
    seconds: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|s| (0.01..=3600.0).contains(s));
    number.ok_or_else(|| "between 0.01 and 3600 seconds".into())
}

#[derive(Serialize)]
struct Row {
    batch: usize,
    threads: usize,
    /// Batches that were measured.
    batches: usize,
    p50_ms: f64,
    p95_ms: f64,
    p99_ms: f64,
    samples_per_s: f64,
}

#[derive(Serialize)]
struct Report {
    model: String,
    data: String,
    /// Whether weights were given; without any the network is as untrained as it starts.
    weights: Option<String>,
    parameters: usize,
    test_samples: usize,
    accuracy: f64,
    loss: f64,
    kernels: String,
    machine: Machine,
    rows: Vec<Row>,
}

impl Row {
    fn new(batch: usize, threads: usize, mut latencies: Vec<Duration>) -> Self {
        latencies.sort_unstable();
        let total: Duration = latencies.iter().sum();
        let [p50_ms, p95_ms, p99_ms] =
            [50, 95, 99].map(|p| percentile(&latencies, p).unwrap_or_default().as_secs_f64() * 1e3);
        let batches = latencies.len();
        let samples_per_s = (batches * batch) as f64 / total.as_secs_f64();
        Self { batch, threads, batches, p50_ms, p95_ms, p99_ms, samples_per_s }
    }
}

/// Answers to be timed.
pub struct InferRequest {
    /// The network, its samples and its weights are what a run of this plan would begin with.
    pub plan: Plan,
    pub folders: Folders,
    pub batches: Vec<usize>,
    pub threads: Vec<usize>,
    pub seconds: f64,
}

/// `paceline infer`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    let mut settings = PlanSettings::default();
    settings.put("data", &args.data);
    match &args.model_file {
        Some(file) => settings.put("model-file", file),
        None => settings.put("model", &args.model),
    }
    args.init.iter().for_each(|file| settings.put("init", file));
    let numbers = |numbers: &[u32]| numbers.iter().map(|n| *n as usize).collect();
    let (batches, threads) = (numbers(&args.batch), numbers(&args.threads));
    let (plan, folders) = (resolve(&settings)?, args.place.folders());
    measure(InferRequest { plan, folders, batches, threads, seconds: args.seconds }, show)
}

/// Times the answers and prints what came out.
pub fn measure(request: InferRequest, show: Show) -> Result<(), Failure> {
    let InferRequest { mut plan, folders, batches, threads, seconds } = request;
    let typed = TypedPlan::new(&plan, registries())?;
    let dataset = typed.dataset.load(&folders, &model::settings(&plan))?;
    weights::check(&typed, &dataset, show)?;
    let graph = Arc::new(model::graph(&typed, &dataset)?);

    let (mut rows, mut outcome, mut kernels) = (Vec::new(), None, String::new());
    for &threads in &threads {
        let compute = Arc::new(Compute::new(threads, false));
        kernels = compute.level.to_string();
        for &batch in &batches {
            plan.batch = batch;
            let mut replica = Replica::new(&plan, Arc::clone(&graph), Arc::clone(&compute))?;
            if outcome.is_none() {
                outcome = Some(replica.evaluate(&dataset, 0..dataset.test.len())?);
            }
            if !show.quiet {
                output::note(&format!("batch {batch}, threads {threads}: {seconds} s"));
            }
            let mut samples = (0..dataset.test.len() as u32).cycle();
            let mut answer = || {
                let ids: Vec<u32> = samples.by_ref().take(plan.batch).collect();
                replica.answer(&dataset, &ids)
            };
            let begun = Instant::now();
            answer()?;
            while begun.elapsed().as_secs_f64() < WARM_UP * seconds {
                answer()?;
            }
            let (begun, mut latencies) = (Instant::now(), Vec::new());
            while latencies.is_empty() || begun.elapsed().as_secs_f64() < seconds {
                latencies.push(answer()?);
            }
            rows.push(Row::new(plan.batch, threads, latencies));
        }
    }
    let outcome = outcome.expect("clap asks for at least one batch and one number of threads");
    let report = Report {
        model: plan.model.clone(),
        data: plan.data.clone(),
        weights: plan.init.as_ref().map(|init| init.file.clone()),
        parameters: graph.param_count(),
        test_samples: dataset.test.len(),
        accuracy: outcome.accuracy(),
        loss: outcome.mean_loss(),
        kernels,
        machine: Machine::here(),
        rows,
    };
    if show.json {
        return Ok(output::json(&report)?);
    }
    Ok(output::text(&table(&report))?)
}

fn table(report: &Report) -> String {
    let Report { model, data, weights, parameters, accuracy, loss, test_samples, .. } = report;
    let from = weights.as_deref().unwrap_or("untrained: give --init FILE");
    let mut text = format!("{model} on {data}, {parameters} parameters ({from})\n");
    text += &format!("accuracy {:.2} %, loss {loss:.4} on {test_samples} test samples\n\n", 100.0 * accuracy);
    text += &format!(
        "{:>6} {:>8} {:>10} {:>10} {:>10} {:>14} {:>8}\n",
        "batch", "threads", "p50 (ms)", "p95 (ms)", "p99 (ms)", "samples/s", "batches"
    );
    for row in &report.rows {
        text += &format!(
            "{:>6} {:>8} {:>10.3} {:>10.3} {:>10.3} {:>14.1} {:>8}\n",
            row.batch, row.threads, row.p50_ms, row.p95_ms, row.p99_ms, row.samples_per_s, row.batches
        );
    }
    text += &format!("\nlatency of the forward pass of a batch in memory; kernels: {}\n", report.kernels);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_latencies_that_occurred() {
        let row = Row::new(2, 1, (1..=100).rev().map(Duration::from_millis).collect());
        assert_eq!((row.p50_ms, row.p95_ms, row.p99_ms), (50.0, 95.0, 99.0));
        assert!((row.samples_per_s - 200.0 / 5.05).abs() < 1e-9);
        assert_eq!(Row::new(1, 1, vec![Duration::from_millis(3)]).p99_ms, 3.0);
    }
}
