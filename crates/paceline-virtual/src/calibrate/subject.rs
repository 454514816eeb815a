//! A network whose passes are timed: what it computes on, and how long each layer takes.

use std::sync::Arc;
use std::time::Instant;

use paceline_data::{Dataset, Reader, SampleVariation};
use paceline_nn::optim::{OPTIMISERS, Settings, Step};
use paceline_nn::{Compute, Graph, Network, Pass as Batch, Targets};
use paceline_random::{Purpose, Stream};

use crate::calibration::{Layer, MedianEstimate};
use crate::error::VirtualError;
use crate::pass::{CLASSES, PassKey, PassTime};

/// Quantiles that are kept of a pass's times.
const POINTS: usize = 21;
const SEED: u64 = 1;

/// Where samples come from.
pub(super) enum Samples<'a> {
    /// Bytes that were drawn: samples of any shape.
    Drawn(Arc<[u8]>),
    /// A dataset, read as in training.
    Of(&'a Dataset, Reader),
}

impl<'a> Samples<'a> {
    pub fn of(dataset: &'a Dataset) -> Self {
        Self::Of(dataset, Reader::default())
    }

    /// The samples of a step.
    fn ids(&self, step: u64, batch: usize, sample: usize) -> Vec<u32> {
        let order = Stream::new(SEED, Purpose::Bench).fork(step);
        let count = match self {
            Self::Drawn(bytes) => bytes.len() / sample,
            Self::Of(dataset, _) => dataset.train.len(),
        };
        (0..batch as u64).map(|i| order.below(i, count as u64) as u32).collect()
    }
}

/// A network with everything that a pass needs.
pub(super) struct Subject<'a> {
    network: Network<f32>,
    params: Vec<f32>,
    state: Vec<f32>,
    grads: Vec<f32>,
    samples: Samples<'a>,
    batch: usize,
    classes: Vec<u16>,
    step: u64,
    /// What updates between them remember.
    velocity: Vec<f32>,
}

/// The seconds of one pass.
pub(super) struct Lap {
    pub data: f64,
    forward: Vec<f64>,
    backward: Vec<f64>,
}

impl<'a> Subject<'a> {
    pub fn new(graph: Arc<Graph>, batch: usize, threads: usize, samples: Samples<'a>) -> Self {
        let (mut params, mut state) = (vec![0.0; graph.param_count()], vec![0.0; graph.state_count()]);
        graph.init(SEED, &mut params, &mut state);
        Self {
            grads: vec![0.0; params.len()],
            velocity: vec![0.0; params.len()],
            samples,
            batch,
            classes: (0..batch).map(|i| (i % CLASSES) as u16).collect(),
            network: Network::new(graph, batch, Arc::new(Compute::new(threads, false))),
            params,
            state,
            step: 0,
        }
    }

    /// A pass, after an update as between any two steps: it leaves other things in the caches.
    pub fn run(&mut self) -> Result<Lap, VirtualError> {
        let Self { params, grads, step, velocity, .. } = self;
        let settings = Settings::default();
        let update = Step { params, grads, memory: velocity, lr: 1e-6, step: *step + 1 };
        OPTIMISERS[0].apply(&Compute::new(1, false), &settings, update);
        self.again()
    }

    /// A pass after another one, as a step's later micro-batches are.
    pub fn again(&mut self) -> Result<Lap, VirtualError> {
        let Self { network, params, state, grads, samples, batch, classes, step, .. } = self;
        let graph = Arc::clone(network.graph());
        let sample = graph.input().size();
        let (ids, next) = (samples.ids(*step, *batch, sample), samples.ids(*step + 1, *batch, sample));
        let look = |step| SampleVariation::Training { seed: SEED, step };
        let now = *step;
        *step += 1;
        let mut clock = Instant::now();
        let mut lap = || std::mem::replace(&mut clock, Instant::now()).elapsed().as_secs_f64();
        match samples {
            Samples::Drawn(bytes) => {
                for (i, &id) in ids.iter().enumerate() {
                    let first = sample * id as usize;
                    network.input_bytes(0, i, &bytes[first..first + sample], &[1.0 / 128.0], &[-1.0]);
                }
            }
            Samples::Of(dataset, reader) => {
                classes.clear();
                // What is decoded is decoded while the pass before computes.
                reader.ahead(&dataset.train, look(now), &ids);
                reader.ahead(&dataset.train, look(now + 1), &next);
                let take = &mut |place: usize, sample: paceline_data::Sample<'_>| {
                    paceline_train::model::load(network, 0, classes, dataset, place, sample);
                };
                reader
                    .read(&dataset.train, look(now), &ids, take)
                    .map_err(paceline_train::TrainError::from)?;
            }
        }
        let data = lap();
        let pass = Batch::training(SEED, now, &ids);
        let mut forward = Vec::with_capacity(graph.nodes().len());
        network.forward_watched(&pass, params, state, &mut |_| forward.push(lap()));
        network.loss(0, Targets::Classes(classes), 1.0 / *batch as f64);
        if let Some(last) = forward.last_mut() {
            *last += lap();
        }
        let mut backward = vec![0.0; graph.nodes().len()];
        network.backward_watched(&pass, params, grads, &mut |_, _| {}, &mut |i| backward[i] = lap());
        Ok(Lap { data, forward, backward })
    }
}

impl Lap {
    pub fn seconds(&self) -> f64 {
        self.forward.iter().chain(&self.backward).sum()
    }
}

/// Seconds of passes, as their median.
pub(super) fn median_of(laps: &[Lap]) -> MedianEstimate {
    MedianEstimate::of(&laps.iter().map(Lap::seconds).collect::<Vec<_>>())
}

/// A pass out of the times of its repetitions.
pub(super) fn summed_up(key: PassKey, graph: &Graph, laps: &[Lap]) -> PassTime {
    let whole: Vec<f64> = laps.iter().map(Lap::seconds).collect();
    let seconds = MedianEstimate::of(&whole);
    let median = |f: &dyn Fn(&Lap) -> f64| MedianEstimate::of(&laps.iter().map(f).collect::<Vec<_>>()).median;
    let layer = graph.nodes().iter().enumerate().map(|(i, node)| Layer {
        name: node.name.clone(),
        forward_s: median(&|lap| lap.forward[i]),
        backward_s: median(&|lap| lap.backward[i]),
    });
    PassTime {
        key,
        repetitions: laps.len(),
        seconds,
        data_s: None,
        again_s: None,
        first_s: None,
        sharing: Vec::new(),
        quantiles: quantiles(&whole, seconds.median),
        layer: layer.collect(),
    }
}

/// Values relative to their median, at equally spaced probabilities; each is the mean of those that are nearest to it, so
/// that one value far off counts no more than it should.
fn quantiles(values: &[f64], median: f64) -> Vec<f64> {
    let sorted = paceline_statistics::sorted(values);
    let points = POINTS.min(sorted.len());
    let steps = (points - 1).max(1) as f64;
    let place = |way: f64| (way.clamp(0.0, 1.0) * sorted.len() as f64).round() as usize;
    let around = |i: usize| {
        let (from, to) = (place((i as f64 - 0.5) / steps), place((i as f64 + 0.5) / steps));
        let from = from.min(sorted.len() - 1);
        paceline_statistics::mean(&sorted[from..to.max(from + 1)])
    };
    // Three digits are more than a repetition would give again.
    (0..points).map(|i| (1e3 * around(i) / median).round() / 1e3).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_value_far_off_does_not_change_what_a_pass_takes_in_the_mean() {
        let mut values: Vec<f64> = (0..1000).map(|i| 1.0 + f64::from(i % 100) / 1000.0).collect();
        values[3] = 50.0;
        let found = quantiles(&values, 1.05);
        assert_eq!(found.len(), POINTS);
        assert!(found.is_sorted() && found[POINTS - 1] < 4.0, "{found:?}");
        let drawn: f64 =
            (0..10_000).map(|i| paceline_statistics::quantile(&found, f64::from(i) / 10_000.0)).sum();
        let (drawn, true_mean) = (drawn / 10_000.0, paceline_statistics::mean(&values) / 1.05);
        assert!((drawn / true_mean - 1.0).abs() < 0.01, "{drawn} {true_mean}");
    }

    #[test]
    fn few_values_are_their_own_quantiles() {
        assert_eq!(quantiles(&[3.0, 1.0, 2.0], 2.0), [0.5, 1.0, 1.5]);
        assert_eq!(quantiles(&[2.0], 2.0), [1.0]);
    }
}
