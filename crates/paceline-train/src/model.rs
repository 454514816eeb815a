//! A replica of the model: flat buffers, network, optimiser.

use std::ops::Range;
use std::sync::Arc;

use paceline_data::{Dataset, Split};
use paceline_nn::{Compute, Graph, Network, Outcome, Pass, Shape, Targets, models};
use paceline_plan::Plan;
use sha2::{Digest, Sha256};

use crate::clock::{Clock, Phase};
use crate::error::TrainError;

/// Fewest samples of an evaluation's batch: small training batches should not make it slow.
const EVALUATION_BATCH: usize = 64;

/// The network of a plan, as data.
pub fn graph(plan: &Plan, dataset: &Dataset) -> Result<Graph, TrainError> {
    let model = models::find(&plan.model).expect("the plan's names come from the registries");
    let [h, w, c] = dataset.shape;
    let refused = |source| TrainError::Shape {
        model: plan.model.clone(),
        data: plan.data.clone(),
        source: Box::new(source),
    };
    model.build(Shape::new(h, w, c), dataset.classes).map_err(refused)
}

/// One worker's copy of the model.
pub struct Replica {
    pub(crate) network: Network<f32>,
    /// The flat parameter buffer.
    pub params: Vec<f32>,
    /// The flat gradient buffer.
    pub grads: Vec<f32>,
    /// Batch norm's running statistics.
    pub state: Vec<f32>,
    pub(crate) classes: Vec<u8>,
}

impl Replica {
    /// A replica with the plan's initial parameters.
    pub fn new(plan: &Plan, graph: Arc<Graph>, compute: Arc<Compute>) -> Self {
        let capacity = plan.batch.max(EVALUATION_BATCH);
        let mut params = vec![0.0; graph.param_count()];
        let mut state = vec![0.0; graph.state_count()];
        graph.init(plan.seed, &mut params, &mut state);
        Self {
            grads: vec![0.0; params.len()],
            network: Network::new(graph, capacity, compute),
            params,
            state,
            classes: Vec::with_capacity(capacity),
        }
    }

    /// The network's threads and instruction set.
    pub fn compute(&self) -> &Arc<Compute> {
        self.network.compute()
    }

    /// Loads samples and their classes into the network.
    pub(crate) fn load(&mut self, dataset: &Dataset, split: &Split, ids: impl Iterator<Item = usize>) {
        self.classes.clear();
        let normalisation = &dataset.normalisation;
        for (i, id) in ids.enumerate() {
            self.network.input_bytes(i, split.sample(id), &normalisation.scale, &normalisation.shift);
            self.classes.push(split.label(id));
        }
    }

    /// Loads a batch and runs it forward; the loss's gradient is scaled by `scale`.
    pub fn forward(&mut self, dataset: &Dataset, pass: &Pass<'_>, scale: f64, clock: &mut Clock) -> Outcome {
        self.load(dataset, &dataset.train, pass.ids.iter().map(|&id| id as usize));
        clock.lap(Phase::Data);
        self.network.forward(pass, &self.params, &mut self.state);
        let outcome = self.network.loss(Targets::Classes(&self.classes), scale);
        clock.lap(Phase::Forward);
        outcome
    }

    /// Runs the loaded batch backward; the gradient is complete at the end.
    pub fn backward(&mut self, pass: &Pass<'_>) {
        self.network.backward(pass, &self.params, &mut self.grads, &mut |_, _| {});
    }

    /// Loss and accuracy on a part of the test split.
    pub fn evaluate(&mut self, dataset: &Dataset, part: Range<usize>) -> Outcome {
        let mut total = Outcome::default();
        let batch = self.network.capacity();
        for first in part.clone().step_by(batch) {
            let ids = first..part.end.min(first + batch);
            let pass = Pass::evaluation(ids.len());
            self.load(dataset, &dataset.test, ids);
            self.network.forward(&pass, &self.params, &mut self.state);
            total += self.network.evaluate(Targets::Classes(&self.classes));
        }
        total
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
