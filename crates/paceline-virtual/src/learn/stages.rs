//! Real passes through the stages of a network, in the simulated order. Each rank has a network of its own, since several
//! micro-batches are under way in it.

use std::sync::Arc;

use paceline_data::Dataset;
use paceline_nn::{Compute, Graph, Outcome, Pass};
use paceline_pipeline::StagePlan;
use paceline_protocol::WorkKind;
use paceline_train::{Begin, Crossings, PassSink, StagePasses, TrainError, Update};

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
    passes: StagePasses,
    /// The unit that it has begun.
    pub begun: Option<Begin>,
}

/// What passes leave lies where the simulated ranks look for it.
struct BufferSink<'a> {
    crossings: &'a mut Crossings,
    update: &'a mut Update,
}

impl<'g> PassSink<'g> for BufferSink<'_> {
    fn crossings(&mut self) -> &mut Crossings {
        self.crossings
    }

    fn finished(&mut self, offset: usize, slice: &'g mut [f32]) {
        self.update.quiet(offset, slice);
    }
}

impl StageLearner {
    pub fn new(
        graph: &Arc<Graph>,
        stages: &StagePlan,
        stage: usize,
        positions: usize,
        compute: &Arc<Compute>,
    ) -> Self {
        Self { passes: StagePasses::new(graph, stages, stage, positions, Arc::clone(compute)), begun: None }
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
        let StageBuffers { params, state, grads, crossings, update } = buffers;
        let sink = &mut BufferSink { crossings, update };
        if kind == WorkKind::Forward {
            self.passes.forward(dataset, pass, params, state, sink)?;
            return Ok(Outcome::default());
        }
        let (outcome, _) = self.passes.backward(dataset, pass, scale, params, grads, sink);
        Ok(outcome)
    }
}
