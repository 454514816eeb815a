//! Training speed of one worker: whole steps, from the batch's bytes to the updated parameters.

use std::sync::Arc;
use std::time::Instant;

use paceline_nn::accel::{Level, peak_gflops};
use paceline_nn::optim::{OPTIMISERS, Settings, Step};
use paceline_nn::{Compute, Graph, Network, Pass, ShapeError, Targets, models};
use paceline_random::{Purpose, Stream};
use serde::Serialize;

/// Ten, or for a model of tokens as many as a text has characters.
fn classes(model: &models::Model) -> usize {
    if model.output == models::Output::PerPosition && model.native_input.c == 1 { 65 } else { 10 }
}

/// Bytes of made-up samples, about.
const SAMPLES: usize = 32 << 20;

/// Rounds that a measurement is the median of.
const ROUNDS: usize = 5;

/// How fast one worker trains.
#[derive(Serialize)]
pub struct ComputeSpeed {
    model: &'static str,
    batch: usize,
    threads: usize,
    samples_per_s: f64,
    /// Nominal: FLOPs of the model per second, whatever the algorithm saves.
    gflops: f64,
    peak_gflops: f64,
    fraction_of_peak: f64,
}

impl ComputeSpeed {
    /// For people.
    pub fn text(&self) -> String {
        let Self { model, batch, threads, samples_per_s, gflops, peak_gflops, fraction_of_peak } = self;
        let plural = if *threads == 1 { "thread" } else { "threads" };
        format!(
            "{model} at batch {batch}, {threads} {plural}: {samples_per_s:.0} samples/s, {gflops:.1} GFLOP/s = {:.0}% of the \
             {peak_gflops:.1} GFLOP/s peak\n\
             (FLOPs are the model's nominal ones: an algorithm that multiplies less can pass 100%)\n",
            100.0 * fraction_of_peak,
        )
    }
}

/// Trains for about `seconds` on samples of the model's own shape.
pub fn measure(
    model: &models::Model,
    batch: usize,
    threads: usize,
    pin: bool,
    seconds: f64,
) -> Result<ComputeSpeed, ShapeError> {
    let graph = Arc::new(model.build(model.native_input, classes(model))?);
    let mut steps = TrainingSteps::new(&graph, batch, threads, pin);
    let level = Level::detect();
    let mut peak = peak_gflops(level, 3);
    let (warm, mut done) = (Instant::now(), 0);
    while done < 3 || (warm.elapsed().as_secs_f64() < seconds / 6.0 && done < 10_000) {
        steps.step();
        done += 1;
    }
    let each = warm.elapsed().as_secs_f64() / done as f64;
    let per_round = (seconds / ROUNDS as f64 / each).ceil().max(1.0) as usize;
    let rate = |_| {
        let start = Instant::now();
        (0..per_round).for_each(|_| steps.step());
        (per_round * batch) as f64 / start.elapsed().as_secs_f64()
    };
    let mut rates: Vec<f64> = (0..ROUNDS).map(rate).collect();
    peak = peak.max(peak_gflops(level, 3)) * threads as f64;
    rates.sort_by(f64::total_cmp);
    let samples_per_s = rates[ROUNDS / 2];
    let gflops = samples_per_s * graph.training_flops() as f64 / 1e9;
    let (model, fraction_of_peak) = (model.name, gflops / peak);
    Ok(ComputeSpeed { model, batch, threads, samples_per_s, gflops, peak_gflops: peak, fraction_of_peak })
}

/// Whole training steps on made-up samples.
struct TrainingSteps {
    network: Network<f32>,
    params: Vec<f32>,
    grads: Vec<f32>,
    state: Vec<f32>,
    memory: Vec<f32>,
    samples: Vec<Vec<u8>>,
    classes: Vec<u16>,
    ids: Vec<u32>,
    step: u64,
}

impl TrainingSteps {
    fn new(graph: &Arc<Graph>, batch: usize, threads: usize, pin: bool) -> Self {
        let compute = Arc::new(Compute::new(threads, pin));
        let (mut params, mut state) = (vec![0.0; graph.param_count()], vec![0.0; graph.state_count()]);
        graph.init(1, &mut params, &mut state);
        let noise = Stream::new(1, Purpose::Bench);
        let size = graph.input().size();
        Self {
            network: Network::new(Arc::clone(graph), batch, compute),
            grads: vec![0.0; params.len()],
            memory: vec![0.0; params.len()],
            params,
            state,
            samples: (0..(SAMPLES / size).clamp(16, 2048) as u64)
                .map(|i| (0..size as u64).map(|j| noise.fork(i).at(j) as u8).collect())
                .collect(),
            classes: vec![0; batch * graph.output().w],
            ids: (0..batch as u32).collect(),
            step: 0,
        }
    }

    fn step(&mut self) {
        let n = self.ids.len();
        for i in 0..n {
            let id = (self.step as usize * n + i) * 7919 % self.samples.len();
            match self.network.graph().vocabulary() {
                None => self.network.input_bytes(0, i, &self.samples[id], &[1.0 / 127.5], &[-1.0]),
                Some(tokens) => {
                    let size = self.samples[id].len();
                    let input = &mut self.network.input(0, n)[i * size..(i + 1) * size];
                    for (token, &byte) in input.iter_mut().zip(&self.samples[id]) {
                        *token = (usize::from(byte) % tokens) as f32;
                    }
                }
            }
            let positions = self.classes.len() / n;
            self.classes[i * positions..(i + 1) * positions].fill((id % 10) as u16);
        }
        let pass = Pass::training(1, self.step, &self.ids);
        self.network.forward(&pass, &self.params, &mut self.state);
        self.network.loss(0, Targets::Classes(&self.classes), 1.0 / n as f64);
        self.network.backward(&pass, &self.params, &mut self.grads, &mut |_, _| {});
        let Self { network, params, grads, memory, .. } = self;
        let update = Step { params, grads, memory, lr: 0.01, step: self.step + 1 };
        OPTIMISERS[0].apply(network.compute(), &Settings::default(), update);
        self.step += 1;
    }
}
