//! A replica of the model: a network, and the samples it reads.

use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_data::{Dataset, DatasetSettings, Reader, Sample, SampleVariation};
use paceline_nn::{Compute, Graph, GraphPart, Network, Outcome, Pass, Shape, Targets, description};
use paceline_pipeline::StageMemory;
use paceline_plan::{Plan, PlanError};
use paceline_random::{Purpose, Stream};
use paceline_resolve::{TypedPlan, unknown};
use sha2::{Digest, Sha256};

use crate::clock::{Clock, Phase};
use crate::error::TrainError;
use crate::source::Announce;
use crate::update::remembered_by_workers;
use crate::weights;

/// Fewest samples of an evaluation's batch: small training batches should not make it slow.
const EVALUATION_BATCH: usize = 64;
/// Most numbers that a larger batch for evaluation may add: 256 MiB.
const EVALUATION_NUMBERS: usize = 64 << 20;
/// Most threads that decode images where the plan leaves it open.
const DECODERS: usize = 8;

/// What a plan asks of its dataset.
pub fn settings(plan: &Plan) -> DatasetSettings {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // One per worker, and more where cores are left over.
    let spare = (cores / (plan.workers + plan.servers)).saturating_sub(plan.threads).clamp(1, DECODERS);
    let decoders = Some(plan.decoders.unwrap_or(spare));
    DatasetSettings { image_size: plan.image_size, window: plan.window, decoders }
}

/// The samples of a test split of `test` that evaluations during a run take: the first ones of an order that only the
/// seed decides, or all of them.
pub fn evaluation_samples(plan: &Plan, test: usize) -> Vec<u32> {
    let Some(count) = plan.eval_samples else { return all_samples(test) };
    let mut samples = Stream::new(plan.seed, Purpose::Evaluation).permutation(test);
    samples.truncate(count);
    samples
}

/// All samples of a test split of `test`, in its own order.
pub fn all_samples(test: usize) -> Vec<u32> {
    (0..test as u32).collect()
}

/// What a rank of each stage of a plan's network will need; none where it is not cut.
pub fn stage_memory(plan: &TypedPlan<'_>, graph: &Graph) -> Result<Option<Vec<StageMemory>>, PlanError> {
    let stages = plan.stage_plan(graph)?;
    Ok(stages.map(|stages| stages.memory(graph, remembered_by_workers(plan))))
}

/// The network of a plan, as data, if it answers what the dataset asks.
pub fn graph(plan: &TypedPlan<'_>, dataset: &Dataset) -> Result<Graph, TrainError> {
    let graph = build(plan, dataset)?;
    let output = graph.output();
    if output.h * output.w != dataset.positions {
        return Err(TrainError::Positions {
            model: plan.document.model.clone(),
            data: plan.data.clone(),
            answers: output.h * output.w,
            asked: dataset.positions,
        });
    }
    Ok(graph)
}

/// The parameters and the state that training starts from.
pub fn start(plan: &Plan, graph: &Graph) -> Result<(Vec<f32>, Vec<f32>), TrainError> {
    start_part(plan, graph, &graph.whole())
}

/// Those of a part.
pub fn start_part(plan: &Plan, graph: &Graph, part: &GraphPart) -> Result<(Vec<f32>, Vec<f32>), TrainError> {
    let (mut params, mut state) = (vec![0.0; part.params.len()], vec![0.0; part.state.len()]);
    weights::start_part(plan, graph, part, &mut params, &mut state)?;
    Ok((params, state))
}

/// The network from the registry or from the plan's own file.
fn build(plan: &TypedPlan<'_>, dataset: &Dataset) -> Result<Graph, TrainError> {
    of_shape(plan, dataset.shape, dataset.classes)
}

/// The network of a plan, as data, for samples of this shape; whether it answers what the dataset asks is left open.
pub fn of_shape(plan: &TypedPlan<'_>, [h, w, c]: [usize; 3], classes: usize) -> Result<Graph, TrainError> {
    let shape = Shape::new(h, w, c);
    if let Some(text) = &plan.model_file {
        let refused = |source| TrainError::Description {
            file: plan.document.model.clone(),
            data: plan.data.clone(),
            source: Box::new(source),
        };
        return description::build(text, shape, classes).map_err(refused);
    }
    let model = plan.model.ok_or_else(|| unknown("model", &plan.document.model))?;
    let refused = |source| TrainError::Shape {
        model: model.name.into(),
        data: plan.data.clone(),
        source: Box::new(source),
    };
    model.build(shape, classes).map_err(refused)
}

/// The samples of a unit of work, and what the gradient of their summed loss is scaled by.
pub struct SampleBatch<'a> {
    /// The samples.
    pub pass: Pass<'a>,
    /// The factor.
    pub scale: f64,
    /// Passes in which the gradient is computed.
    pub micro_batches: usize,
}

/// A network with its memory and the readers of its samples. Parameters, gradients and state are lent to it.
pub struct Replica {
    network: Network<f32>,
    classes: Vec<u16>,
    training: Reader,
    testing: Reader,
}

impl Replica {
    /// The network of a plan.
    pub fn new(plan: &Plan, graph: Arc<Graph>, compute: Arc<Compute>) -> Self {
        let per_sample: usize = graph.nodes().iter().map(|node| node.output.size()).sum();
        let affordable = EVALUATION_NUMBERS / per_sample.max(1);
        let capacity = match plan.micro_batches {
            1 => plan.batch.max(EVALUATION_BATCH.min(affordable)),
            // Whoever cuts batches up wants no larger passes in evaluations either.
            passes => plan.batch.div_ceil(passes),
        };
        Self {
            network: Network::new(graph, capacity, compute),
            classes: Vec::with_capacity(capacity),
            training: Reader::default(),
            testing: Reader::default(),
        }
    }

    /// Says what a step will train on, in the order of the steps: images on disk are decoded while the steps
    /// before it compute.
    pub fn ahead(&mut self, dataset: &Dataset, seed: u64, step: u64, ids: &[u32]) {
        self.training.ahead(&dataset.train, SampleVariation::Training { seed, step }, ids);
    }

    /// Computes the gradient of a batch and announces each part of it as soon as it is final. A loss that is no
    /// number has no gradient: nothing is announced.
    #[allow(clippy::too_many_arguments, reason = "everything that the network works on is lent")]
    pub fn gradient<'g>(
        &mut self,
        dataset: &Dataset,
        batch: &SampleBatch<'_>,
        params: &[f32],
        state: &mut [f32],
        grads: &'g mut [f32],
        announce: Announce<'_, 'g>,
        clock: &mut Clock,
    ) -> Result<Outcome, TrainError> {
        let mut total = Outcome::default();
        for i in 0..batch.micro_batches {
            let pass = batch.pass.micro_batch(i, batch.micro_batches);
            // An empty batch is one pass, and so is one of fewer samples than micro-batches.
            if pass.samples == 0 && pass.after > 0 {
                continue;
            }
            if batch.micro_batches > 1 && dataset.train.streamed() {
                for part in [i, i + 1].into_iter().take_while(|part| *part < batch.micro_batches) {
                    let ids = batch.pass.micro_batch(part, batch.micro_batches).ids;
                    self.ahead(dataset, pass.seed, pass.step, ids);
                }
            }
            total += self.forward(dataset, &pass, batch.scale, params, state, clock)?;
            if !total.loss.is_finite() {
                break;
            }
            if pass.after == 0 {
                self.network.backward(&pass, params, grads, announce);
                break;
            }
            self.network.backward(&pass, params, grads, &mut |_, _| {});
            clock.lap(Phase::Backward);
        }
        Ok(total)
    }

    /// Loads the samples of a pass and runs them forward.
    fn forward(
        &mut self,
        dataset: &Dataset,
        pass: &Pass<'_>,
        scale: f64,
        params: &[f32],
        state: &mut [f32],
        clock: &mut Clock,
    ) -> Result<Outcome, TrainError> {
        let look = SampleVariation::Training { seed: pass.seed, step: pass.step };
        self.classes.clear();
        let Self { network, classes, training, .. } = self;
        let take = &mut |place: usize, sample: Sample<'_>| load(network, 0, classes, dataset, place, sample);
        training.read(&dataset.train, look, pass.ids, take)?;
        clock.lap(Phase::Data);
        self.network.forward(pass, params, state);
        let outcome = self.network.loss(pass.slot, Targets::Classes(&self.classes), scale);
        clock.lap(Phase::Forward);
        Ok(outcome)
    }

    /// Answers samples of the test split, at most the plan's batch of them; how long the forward pass took.
    pub fn answer(
        &mut self,
        dataset: &Dataset,
        ids: &[u32],
        params: &[f32],
        state: &mut [f32],
    ) -> Result<Duration, TrainError> {
        self.classes.clear();
        let Self { network, classes, testing, .. } = self;
        let take = &mut |place: usize, sample: Sample<'_>| load(network, 0, classes, dataset, place, sample);
        testing.read(&dataset.test, SampleVariation::Plain, ids, take)?;
        let begun = Instant::now();
        self.network.forward(&Pass::evaluation(ids.len()), params, state);
        Ok(begun.elapsed())
    }

    /// Loss and accuracy on samples of the test split.
    pub fn evaluate(
        &mut self,
        dataset: &Dataset,
        samples: &[u32],
        params: &[f32],
        state: &mut [f32],
    ) -> Result<Outcome, TrainError> {
        let mut total = Outcome::default();
        let test = &dataset.test;
        let mut batches = samples.chunks(self.network.capacity()).peekable();
        while let Some(ids) = batches.next() {
            let Self { network, classes, testing, .. } = self;
            if test.streamed() {
                // What comes next is decoded while this batch computes.
                let next = batches.peek().copied().unwrap_or_default();
                [ids, next].iter().for_each(|ids| testing.ahead(test, SampleVariation::Plain, ids));
            }
            classes.clear();
            let take =
                &mut |place: usize, sample: Sample<'_>| load(network, 0, classes, dataset, place, sample);
            testing.read(test, SampleVariation::Plain, ids, take)?;
            let pass = Pass::evaluation(ids.len());
            self.network.forward(&pass, params, state);
            total += self.network.evaluate(pass.slot, Targets::Classes(&self.classes));
        }
        Ok(total)
    }
}

/// Puts a sample into its place of the network's input in a slot, and what should be answered behind the others.
pub fn load(
    network: &mut Network<f32>,
    slot: usize,
    classes: &mut Vec<u16>,
    dataset: &Dataset,
    place: usize,
    sample: Sample<'_>,
) {
    let size = network.graph().input().size();
    match sample {
        Sample::Bytes(bytes, class) => {
            let normalisation = &dataset.normalisation;
            network.input_bytes(slot, place, bytes, &normalisation.scale, &normalisation.shift);
            classes.push(class);
        }
        Sample::Numbers(numbers, class) => {
            network.input(slot, place + 1)[place * size..].copy_from_slice(numbers);
            classes.push(class);
        }
        Sample::Tokens(window) => {
            let input = &mut network.input(slot, place + 1)[place * size..];
            input.iter_mut().zip(window).for_each(|(x, &token)| *x = f32::from(token));
            classes.extend_from_slice(&window[1..]);
        }
    }
}

/// SHA-256 of parameters (little-endian), in hexadecimal.
pub fn params_sha256(params: &[f32]) -> String {
    let mut hash = Sha256::new();
    let mut bytes = Vec::with_capacity(4096);
    for part in params.chunks(1024) {
        bytes.clear();
        part.iter().for_each(|p| bytes.extend_from_slice(&p.to_le_bytes()));
        hash.update(&bytes);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
