//! How long a network takes to answer, and how often it is right.

use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_data::Folders;
use paceline_nn::Compute;
use paceline_plan::Plan;
use paceline_record::Machine;
use paceline_resolve::{Registries, TypedPlan};
use paceline_statistics::percentile;
use serde::Serialize;

use crate::error::TrainError;
use crate::model::{self, Replica};
use crate::weights;

/// Part of the time asked for that is run before anything is counted.
const WARM_UP: f64 = 0.1;

/// Answers to be timed.
pub struct InferRequest {
    /// The network, its samples and its weights are what a run of this plan would begin with.
    pub plan: Plan,
    /// Where datasets are looked for.
    pub folders: Folders,
    /// Samples that are answered together, one measurement for each number; without any, 1, 8 and 64.
    pub batches: Vec<usize>,
    /// Threads, one measurement for each number; without any, one.
    pub threads: Vec<usize>,
    /// Seconds of each measurement.
    pub seconds: f64,
    /// What the weights are called, where their file's name says nothing.
    pub weights: Option<String>,
}

#[derive(Serialize)]
struct Latency {
    batch: usize,
    threads: usize,
    batches: usize,
    p50_ms: f64,
    p95_ms: f64,
    p99_ms: f64,
    samples_per_s: f64,
}

#[derive(Serialize)]
pub struct InferenceReport {
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
    rows: Vec<Latency>,
}

impl Latency {
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

impl InferRequest {
    /// Times the answers; `tell` gets a line before each measurement.
    pub fn measure(
        self,
        registries: &Registries,
        tell: &dyn Fn(&str),
    ) -> Result<InferenceReport, TrainError> {
        let Self { mut plan, folders, batches, threads, seconds, weights } = self;
        let or = |given: Vec<usize>, usual: &[usize]| if given.is_empty() { usual.to_vec() } else { given };
        let (batches, threads) = (or(batches, &[1, 8, 64]), or(threads, &[1]));
        let typed = TypedPlan::new(&plan, registries)?;
        let dataset = typed.dataset()?.load(&folders, &model::settings(&plan))?;
        weights::check(&typed, &dataset)?.iter().for_each(|note| tell(note));
        let graph = Arc::new(model::graph(&typed, &dataset)?);
        let parameters = graph.param_count();
        let all = model::all_samples(dataset.test.len());
        plan.batch = batches.first().copied().unwrap_or(plan.batch);
        // An answer is one pass.
        plan.micro_batches = 1;
        let compute = Arc::new(Compute::new(threads.first().copied().unwrap_or(1), false));
        let (params, mut state) = model::start(&plan, &graph)?;
        let mut replica = Replica::new(&plan, Arc::clone(&graph), compute);
        let outcome = replica.evaluate(&dataset, &all, &params, &mut state)?;
        let (mut rows, mut kernels) = (Vec::new(), String::new());
        for &threads in &threads {
            let compute = Arc::new(Compute::new(threads, false));
            kernels = compute.level.to_string();
            for &batch in &batches {
                plan.batch = batch;
                let mut replica = Replica::new(&plan, Arc::clone(&graph), Arc::clone(&compute));
                tell(&format!("batch {batch}, threads {threads}: {seconds} s"));
                let mut samples = all.iter().copied().cycle();
                let mut answer = || {
                    let ids: Vec<u32> = samples.by_ref().take(batch).collect();
                    replica.answer(&dataset, &ids, &params, &mut state)
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
                rows.push(Latency::new(batch, threads, latencies));
            }
        }
        Ok(InferenceReport {
            weights: weights.or(plan.init.map(|init| init.file)),
            model: plan.model,
            data: plan.data,
            parameters,
            test_samples: all.len(),
            accuracy: outcome.accuracy(),
            loss: outcome.mean_loss(),
            kernels,
            machine: Machine::here(),
            rows,
        })
    }
}

impl InferenceReport {
    pub fn text(&self) -> String {
        let Self { model, data, weights, parameters, accuracy, loss, test_samples, .. } = self;
        let from = weights.as_deref().unwrap_or("untrained: give --init FILE");
        let mut text = format!("{model} on {data}, {parameters} parameters ({from})\n");
        text +=
            &format!("accuracy {:.2} %, loss {loss:.4} on {test_samples} test samples\n\n", 100.0 * accuracy);
        text += &format!(
            "{:>6} {:>8} {:>10} {:>10} {:>10} {:>14} {:>8}\n",
            "batch", "threads", "p50 (ms)", "p95 (ms)", "p99 (ms)", "samples/s", "batches"
        );
        for row in &self.rows {
            text += &format!(
                "{:>6} {:>8} {:>10.3} {:>10.3} {:>10.3} {:>14.1} {:>8}\n",
                row.batch, row.threads, row.p50_ms, row.p95_ms, row.p99_ms, row.samples_per_s, row.batches
            );
        }
        text += &format!("\nlatency of the forward pass of a batch in memory; kernels: {}\n", self.kernels);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_latencies_that_occurred() {
        let row = Latency::new(2, 1, (1..=100).rev().map(Duration::from_millis).collect());
        assert_eq!((row.p50_ms, row.p95_ms, row.p99_ms), (50.0, 95.0, 99.0));
        assert!((row.samples_per_s - 200.0 / 5.05).abs() < 1e-9);
        assert_eq!(Latency::new(1, 1, vec![Duration::from_millis(3)]).p99_ms, 3.0);
    }
}
