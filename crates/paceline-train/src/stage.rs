//! One stage of a network that is cut into stages: its passes, and the source of a rank's gradients whose pipeline says
//! what to pass next. A stage has memory for its own layers, parameters and slots, and for nothing else.

use std::ops::Range;
use std::sync::Arc;

use paceline_data::{Dataset, Order, Reader, Sample, SampleVariation};
use paceline_nn::{Compute, Graph, GraphPart, Network, Outcome, PartEdge, Pass, Targets, ValueId};
use paceline_pipeline::StagePlan;
use paceline_protocol::{Rank, Setup, WorkKind};
use paceline_resolve::TypedPlan;

use crate::clock::{Clock, Phase};
use crate::crossings::Crossings;
use crate::engine::{Begin, StagePass};
use crate::error::TrainError;
use crate::model::{self, SampleBatch};
use crate::native::{batch, evaluates_after, restored, sample_order};
use crate::segment::StagePlace;
use crate::source::{GradientSink, GradientSource, Layout};
use crate::weights;

/// The network of a stage, with the memory of its crossings where they are, not in the network: those are what its part
/// receives, then what it sends.
struct StageNetwork {
    network: Network<f32>,
    /// The values that go over its cuts, and the crossing whose memory passes work in: where they come from, if they do.
    values: Vec<(ValueId, usize)>,
    /// Those whose gradients do, too.
    slopes: Vec<(ValueId, usize)>,
    handed_on: Vec<HandedOn>,
}

/// A value that is received and sent: its gradient comes back to where it was sent, and goes to where it came from.
struct HandedOn {
    received: usize,
    sent: usize,
    edge: PartEdge,
}

impl StageNetwork {
    fn new(graph: Arc<Graph>, part: GraphPart, capacity: usize, slots: usize, compute: Arc<Compute>) -> Self {
        let received = part.receives.len();
        let from = |edge: &PartEdge| part.receives.iter().position(|other| other.value == edge.value);
        let made = part.sends.iter().zip(received..).filter(|(edge, _)| from(edge).is_none());
        let crossings = || part.receives.iter().zip(0..).chain(made.clone());
        let handed_on = |(edge, sent): (&PartEdge, usize)| {
            from(edge).map(|received| HandedOn { received, sent, edge: *edge })
        };
        let value = |(edge, n): (&PartEdge, usize)| (edge.value, n);
        Self {
            values: crossings().map(value).collect(),
            slopes: crossings().filter(|(edge, _)| edge.gradient).map(value).collect(),
            handed_on: part.sends.iter().zip(received..).filter_map(handed_on).collect(),
            network: Network::with_outer_memory(graph, part, capacity, slots, compute),
        }
    }

    /// Puts a slot's values into the network, and takes them out again.
    fn swap_values(&mut self, slot: usize, crossings: &mut Crossings) {
        for &(value, n) in &self.values {
            self.network.swap_value(slot, value, crossings.value(n, slot));
        }
    }

    /// The same with their gradients.
    fn swap_slopes(&mut self, slot: usize, crossings: &mut Crossings) {
        for &(value, n) in &self.slopes {
            self.network.swap_gradient(value, crossings.slope(n, slot));
        }
    }

    /// Leaves what this stage received and a later one reads as well.
    fn hand_on_values(&self, pass: &Pass<'_>, crossings: &mut Crossings) {
        for HandedOn { received, sent, edge } in &self.handed_on {
            crossings.hand_on_value([*received, *sent], pass.slot, pass.samples * edge.size);
        }
    }

    /// Takes gradients that a later stage handed back to where this stage adds its own to them.
    fn hand_on_slopes(&self, pass: &Pass<'_>, crossings: &mut Crossings) {
        for HandedOn { received, sent, edge } in self.handed_on.iter().filter(|own| own.edge.gradient) {
            crossings.hand_on_slope([*sent, *received], pass.slot, pass.samples * edge.size);
        }
    }
}

/// What a stage's passes need of whoever has them made.
pub trait PassSink<'g> {
    /// What goes to other stages and comes from them.
    fn crossings(&mut self) -> &mut Crossings;

    /// The samples of a micro-batch are in the network.
    fn loaded(&mut self) {}

    /// A layer is done, and the next one not yet begun.
    fn between_layers(&mut self) {}

    /// Takes a part of the gradient buffer that is final, as [`Announce`] does.
    fn finished(&mut self, offset: usize, slice: &'g mut [f32]);
}

/// A stage's passes: from what it receives, or from samples, to what it hands over, and back.
pub struct StagePasses {
    network: StageNetwork,
    part: GraphPart,
    /// Whether it is the last stage, which knows the loss.
    last: bool,
    reader: Reader,
    classes: Vec<u16>,
}

impl StagePasses {
    /// Those of a stage of a plan's network, on samples whose answers have so many positions.
    pub fn new(
        graph: &Arc<Graph>,
        stages: &StagePlan,
        stage: usize,
        positions: usize,
        compute: Arc<Compute>,
    ) -> Self {
        let (part, slots) = (stages.parts[stage].clone(), stages.program.slots(stage));
        let last = part.nodes.end == graph.nodes().len();
        let classes = Vec::with_capacity(stages.capacity * positions);
        let network = StageNetwork::new(Arc::clone(graph), part.clone(), stages.capacity, slots, compute);
        Self { network, part, last, reader: Reader::default(), classes }
    }

    /// Passes a micro-batch forward.
    pub fn forward(
        &mut self,
        dataset: &Dataset,
        pass: &Pass<'_>,
        params: &[f32],
        state: &mut [f32],
        sink: &mut dyn PassSink<'_>,
    ) -> Result<(), TrainError> {
        self.network.swap_values(pass.slot, sink.crossings());
        let loaded = self.load(dataset, pass);
        if loaded.is_ok() {
            if self.part.nodes.start == 0 {
                sink.loaded();
            }
            let network = &mut self.network.network;
            network.forward_watched(pass, params, state, &mut |_| sink.between_layers());
        }
        self.network.swap_values(pass.slot, sink.crossings());
        self.network.hand_on_values(pass, sink.crossings());
        loaded
    }

    /// Fills the network with a micro-batch's samples, where this is the first stage.
    fn load(&mut self, dataset: &Dataset, pass: &Pass<'_>) -> Result<(), TrainError> {
        let Self { network, part, reader, classes, .. } = self;
        if part.nodes.start == 0 {
            classes.clear();
            let take = &mut |place: usize, sample: Sample<'_>| {
                model::load(&mut network.network, pass.slot, classes, dataset, place, sample);
            };
            reader.read(&dataset.train, variation(pass), pass.ids, take)?;
        }
        Ok(())
    }

    /// Passes a micro-batch, whose loss is scaled, backward: what came of it, where this is the last stage, and the
    /// gradients, unless it was its batch's last one. A loss that is no number is told, and nothing else is done.
    pub fn backward<'g>(
        &mut self,
        dataset: &Dataset,
        pass: &Pass<'_>,
        scale: f64,
        params: &[f32],
        grads: &'g mut [f32],
        sink: &mut dyn PassSink<'g>,
    ) -> (Outcome, Option<&'g mut [f32]>) {
        let outcome = self.loss(dataset, pass, scale);
        if !outcome.loss.is_finite() {
            return (outcome, None);
        }
        self.network.hand_on_slopes(pass, sink.crossings());
        self.network.swap_values(pass.slot, sink.crossings());
        self.network.swap_slopes(pass.slot, sink.crossings());
        let network = &mut self.network.network;
        let rest = if pass.after == 0 {
            network.backward(pass, params, grads, &mut |offset, slice| sink.finished(offset, slice));
            None
        } else {
            network.backward_watched(pass, params, grads, &mut |_, _| {}, &mut |_| sink.between_layers());
            Some(grads)
        };
        self.network.swap_values(pass.slot, sink.crossings());
        self.network.swap_slopes(pass.slot, sink.crossings());
        (outcome, rest)
    }

    /// The loss of a micro-batch, where this is the last stage; nothing elsewhere.
    fn loss(&mut self, dataset: &Dataset, pass: &Pass<'_>, scale: f64) -> Outcome {
        let Self { network, classes, .. } = self;
        if !self.last {
            return Outcome::default();
        }
        classes.clear();
        Reader::answers(&dataset.train, variation(pass), pass.ids, classes);
        network.network.loss(pass.slot, Targets::Classes(classes), scale)
    }
}

/// How samples of a training pass look.
fn variation(pass: &Pass<'_>) -> SampleVariation {
    SampleVariation::Training { seed: pass.seed, step: pass.step }
}

/// A rank's engine as passes see it, with the clock.
struct TimedSink<'a, 's> {
    sink: &'a mut (dyn GradientSink<'s> + 'a),
    clock: &'a mut Clock,
}

impl<'s> PassSink<'s> for TimedSink<'_, 's> {
    fn crossings(&mut self) -> &mut Crossings {
        self.sink.crossings()
    }

    fn loaded(&mut self) {
        self.clock.lap(Phase::Data);
    }

    fn between_layers(&mut self) {
        self.sink.between_layers();
    }

    fn finished(&mut self, offset: usize, slice: &'s mut [f32]) {
        self.sink.finished(offset, slice);
    }
}

/// A stage of a network of this process as the source of a rank's gradients.
pub struct StageSource<'a> {
    plan: &'a TypedPlan<'a>,
    setup: &'a Setup,
    dataset: &'a Dataset,
    replica: usize,
    graph: Arc<Graph>,
    layout: Layout,
    order: Order,
    passes: StagePasses,
    state: Vec<f32>,
    slot_bytes: usize,
}

impl<'a> StageSource<'a> {
    /// The source of a rank.
    pub fn new(
        plan: &'a TypedPlan<'a>,
        setup: &'a Setup,
        stages: &StagePlan,
        dataset: &'a Dataset,
        graph: Arc<Graph>,
        compute: Arc<Compute>,
        rank: Rank,
    ) -> Self {
        let at = setup.stage_of(rank);
        let part = &stages.parts[at];
        Self {
            plan,
            setup,
            dataset,
            replica: rank / setup.stage_count(),
            layout: Layout::of_part(&graph, part),
            order: sample_order(plan, dataset),
            passes: StagePasses::new(&graph, stages, at, dataset.positions, compute),
            state: vec![0.0; part.state.len()],
            slot_bytes: size_of::<f32>() * stages.capacity * part.pass_memory(&graph).slot,
            graph,
        }
    }
}

impl GradientSource for StageSource<'_> {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn start(&mut self, params: &mut [f32]) -> Result<(), TrainError> {
        weights::start_part(self.plan, &self.graph, &self.passes.part, params, &mut self.state)?;
        Ok(())
    }

    fn frozen(&self) -> Result<Vec<Range<usize>>, TrainError> {
        weights::frozen_part(self.plan, &self.graph, &self.passes.part)
    }

    fn gradient<'g>(
        &mut self,
        begin: &Begin,
        _slot: usize,
        params: &[f32],
        grads: &'g mut [f32],
        sink: &mut dyn GradientSink<'g>,
        clock: &mut Clock,
    ) -> Result<Option<Outcome>, TrainError> {
        let samples = self.order.samples_before(begin.unit.step);
        // Passes borrow the samples' numbers, and the passes' memory is changed meanwhile.
        let unit = batch(self.plan, self.setup, &mut self.order, self.replica, begin);
        let (ids, scale, micro_batches) = (unit.pass.ids.to_vec(), unit.scale, unit.micro_batches);
        let unit = SampleBatch { pass: Pass { ids: &ids, ..unit.pass }, scale, micro_batches };
        let mut total = Outcome::default();
        let mut rest = Some(grads);
        while let Some(grads) = rest.take() {
            let Some(StagePass { op, work, slot }) = sink.next_pass() else { return Ok(None) };
            clock.lap(Phase::Exchange);
            let pass = Pass { slot, ..unit.pass.micro_batch(work.micro, micro_batches) };
            let phase = match work.kind {
                WorkKind::Forward => {
                    let own = &mut TimedSink { sink: &mut *sink, clock };
                    self.passes.forward(self.dataset, &pass, params, &mut self.state, own)?;
                    rest = Some(grads);
                    Phase::Forward
                }
                WorkKind::Backward => {
                    let own = &mut TimedSink { sink: &mut *sink, clock };
                    let outcome;
                    (outcome, rest) = self.passes.backward(self.dataset, &pass, scale, params, grads, own);
                    total += outcome;
                    if !total.loss.is_finite() {
                        let loss = total.loss;
                        return Err(TrainError::Diverged { step: begin.step + 1, samples, loss });
                    }
                    Phase::Backward
                }
            };
            let exchanged = sink.pass_over();
            clock.lap(phase);
            clock.shift(exchanged, phase, Phase::Exchange);
            sink.passed(op);
        }
        clock.lap(Phase::Exchange);
        Ok(Some(total))
    }

    fn evaluate(&mut self, _params: &[f32], _only: bool) -> Result<Outcome, TrainError> {
        // The launcher puts the stages' parameters together and evaluates them.
        Ok(Outcome::default())
    }

    fn evaluates_after(&self, step: u64) -> bool {
        evaluates_after(self.plan, &self.order, step)
    }

    fn samples_before(&self, step: u64) -> u64 {
        self.order.samples_before(step)
    }

    fn state(&self) -> &[f32] {
        &self.state
    }

    fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    fn pass_bytes(&self) -> usize {
        self.passes.network.network.pass_bytes()
    }

    fn place(&self) -> Option<StagePlace> {
        let part = &self.passes.part;
        let (params, state) = (part.params.start, part.state.start);
        Some(StagePlace { stages: self.setup.stage_count(), params, state })
    }

    fn restore(&mut self, state: &[f32]) -> Result<(), TrainError> {
        restored(&mut self.state, state)
    }
}
