//! A replica of the model: flat buffers, network, optimiser.

use std::sync::Arc;

use paceline_data::{Dataset, Split};
use paceline_nn::optim::{self, Optimiser, Settings, Step};
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
    network: Network<f32>,
    /// The flat parameter buffer.
    pub params: Vec<f32>,
    /// The flat gradient buffer.
    pub grads: Vec<f32>,
    /// Batch norm's running statistics.
    pub state: Vec<f32>,
    memory: Vec<f32>,
    optimiser: &'static Optimiser,
    settings: Settings,
    classes: Vec<u8>,
    seed: u64,
}

impl Replica {
    /// A replica with the plan's initial parameters.
    pub fn new(plan: &Plan, graph: Arc<Graph>, compute: Arc<Compute>) -> Self {
        let capacity = plan.batch.max(EVALUATION_BATCH);
        let mut params = vec![0.0; graph.param_count()];
        let mut state = vec![0.0; graph.state_count()];
        graph.init(plan.seed, &mut params, &mut state);
        let optimiser = optim::find(&plan.optimizer).expect("the plan's names come from the registries");
        let settings =
            Settings { momentum: plan.momentum, nesterov: plan.nesterov, weight_decay: plan.weight_decay };
        Self {
            grads: vec![0.0; params.len()],
            memory: vec![0.0; (optimiser.memory)(&settings) * params.len()],
            network: Network::new(graph, capacity, compute),
            params,
            state,
            optimiser,
            settings,
            classes: Vec::with_capacity(capacity),
            seed: plan.seed,
        }
    }

    /// The network's threads and instruction set.
    pub fn compute(&self) -> &Arc<Compute> {
        self.network.compute()
    }

    /// Loads samples and their classes into the network.
    fn load(&mut self, dataset: &Dataset, split: &Split, ids: impl Iterator<Item = usize>) {
        self.classes.clear();
        let normalisation = &dataset.normalisation;
        for (i, id) in ids.enumerate() {
            self.network.input_bytes(i, split.sample(id), &normalisation.scale, &normalisation.shift);
            self.classes.push(split.label(id));
        }
    }

    /// Computes the gradient of a batch's part in a global batch of `global` samples, and returns the
    /// batch's outcome.
    pub fn gradient(
        &mut self,
        dataset: &Dataset,
        ids: &[u32],
        global: usize,
        step: u64,
        clock: &mut Clock,
    ) -> Outcome {
        self.load(dataset, &dataset.train, ids.iter().map(|&id| id as usize));
        clock.lap(Phase::Data);
        let pass = Pass { samples: ids.len(), training: true, seed: self.seed, step, ids };
        self.network.forward(&pass, &self.params, &mut self.state);
        let outcome = self.network.loss(Targets::Classes(&self.classes), 1.0 / global as f64);
        clock.lap(Phase::Forward);
        self.network.backward(&pass, &self.params, &mut self.grads, &mut |_, _| {});
        clock.lap(Phase::Backward);
        outcome
    }

    /// Applies the gradient with learning rate `lr`; `step` counts from 1.
    pub fn apply(&mut self, lr: f64, step: u64) {
        let Self { network, params, grads, memory, .. } = self;
        let update = Step { params, grads, memory, lr, step };
        self.optimiser.apply(network.compute(), &self.settings, update);
    }

    /// Loss and accuracy on the whole test split.
    pub fn evaluate(&mut self, dataset: &Dataset) -> Outcome {
        let mut total = Outcome::default();
        let (n, batch) = (dataset.test.len(), self.network.capacity());
        for first in (0..n).step_by(batch) {
            let ids = first..n.min(first + batch);
            let pass = Pass::evaluation(ids.len());
            self.load(dataset, &dataset.test, ids);
            self.network.forward(&pass, &self.params, &mut self.state);
            total += self.network.evaluate(Targets::Classes(&self.classes));
        }
        total
    }

    /// SHA-256 of the parameters (little-endian), in hexadecimal.
    pub fn params_sha256(&self) -> String {
        let mut hash = Sha256::new();
        let mut bytes = Vec::with_capacity(4096);
        for part in self.params.chunks(1024) {
            bytes.clear();
            part.iter().for_each(|p| bytes.extend_from_slice(&p.to_le_bytes()));
            hash.update(&bytes);
        }
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
