//! Real passes through the stages of a network, in the simulated order. Each rank has a network of its own, since several
//! micro-batches are under way in it.

use std::sync::Arc;

use paceline_data::{Dataset, Reader, Sample, SampleVariation};
use paceline_nn::{Compute, Graph, GraphPart, Outcome, Pass, Targets};
use paceline_pipeline::StagePlan;
use paceline_protocol::WorkKind;
use paceline_train::{Begin, Crossings, StageNetwork, TrainError, Update, model};

/// What a pass works on.
pub struct StageBuffers<'a> {
    pub params: &'a [f32],
    pub state: &'a mut [f32],
    pub grads: &'a mut [f32],
    pub crossings: &'a mut Crossings,
    pub update: &'a mut Update,
}

/// A rank's stage.
pub struct StageLearner {
    network: StageNetwork,
    part: GraphPart,
    /// Whether it is the last: it knows the loss.
    last: bool,
    reader: Reader,
    classes: Vec<u16>,
    /// The unit that it has begun.
    pub begun: Option<Begin>,
}

impl StageLearner {
    pub fn new(graph: &Arc<Graph>, stages: &StagePlan, stage: usize, compute: &Arc<Compute>) -> Self {
        let part = stages.parts[stage].clone();
        let (slots, compute) = (stages.program.slots(stage), Arc::clone(compute));
        let last = part.nodes.end == graph.nodes().len();
        let network = StageNetwork::new(Arc::clone(graph), part.clone(), stages.capacity, slots, compute);
        Self { network, part, last, reader: Reader::default(), classes: Vec::new(), begun: None }
    }

    /// Passes a micro-batch, whose loss is scaled, forward or backward; what came of it, where this is the last stage.
    pub fn pass(
        &mut self,
        dataset: &Dataset,
        kind: WorkKind,
        pass: &Pass<'_>,
        scale: f64,
        buffers: StageBuffers<'_>,
    ) -> Result<Outcome, TrainError> {
        let Self { network, part, reader, classes, .. } = self;
        let look = SampleVariation::Training { seed: pass.seed, step: pass.step };
        let StageBuffers { params, state, grads, crossings, update } = buffers;
        classes.clear();
        if kind == WorkKind::Forward {
            if part.nodes.start == 0 {
                let inner = network.network();
                let take = &mut |place: usize, sample: Sample<'_>| {
                    model::load(inner, pass.slot, classes, dataset, place, sample);
                };
                reader.read(&dataset.train, look, pass.ids, take)?;
            } else {
                network.take_values(pass, crossings);
            }
            network.forward(pass, params, state, &mut || {});
            network.leave_values(pass, crossings);
            return Ok(Outcome::default());
        }
        let mut outcome = Outcome::default();
        if self.last {
            Reader::answers(&dataset.train, look, pass.ids, classes);
            outcome = network.network().loss(pass.slot, Targets::Classes(classes), scale);
        }
        if !outcome.loss.is_finite() {
            return Ok(outcome);
        }
        network.take_slopes(pass, crossings);
        if pass.after == 0 {
            network.last_backward(pass, params, grads, &mut |offset, part| update.quiet(offset, part));
        } else {
            network.backward(pass, params, grads, &mut || {});
        }
        network.leave_slopes(pass, crossings);
        Ok(outcome)
    }
}
