//! Gradients of a network of this process, on a dataset.

use std::ops::Range;
use std::sync::Arc;

use paceline_data::{Dataset, Order, order};
use paceline_nn::{Compute, Graph, Outcome, Pass};
use paceline_plan::Plan;
use paceline_protocol::{GradientScale, Rank, Setup, WorkUnit};
use paceline_resolve::TypedPlan;

use crate::clock::Clock;
use crate::engine::Begin;
use crate::error::TrainError;
use crate::model::{self, Replica, SampleBatch};
use crate::source::{GradientSink, GradientSource, Layout};
use crate::weights;

/// The order of a plan's samples.
pub fn sample_order(plan: &TypedPlan<'_>, dataset: &Dataset) -> Order {
    let total = plan.total_samples(dataset.train.len());
    Order::sharded(
        plan.seed,
        dataset.train.labels(),
        plan.shares(),
        plan.global_batch(),
        total,
        plan.sharding,
    )
}

/// The samples of a unit of work, and what the gradient of their summed loss is scaled by.
pub fn batch<'a>(
    plan: &Plan,
    setup: &Setup,
    order: &'a mut Order,
    rank: Rank,
    begin: &Begin,
) -> SampleBatch<'a> {
    let (at, share) = place(plan, setup, order, rank, begin);
    let global = order.batch_len(at);
    let ids = order.batch(at, share, plan.shares());
    let scale = match begin.scale {
        GradientScale::Part => 1.0 / global as f64,
        GradientScale::Own => 1.0 / ids.len().max(1) as f64,
        GradientScale::Even => plan.replicas() as f64 / global as f64,
    };
    let pass = Pass::training(plan.seed, begin.unit.step, ids);
    SampleBatch { pass, scale, micro_batches: plan.micro_batches }
}

/// The step and the share of it that a worker takes samples from.
fn place(plan: &Plan, setup: &Setup, order: &Order, rank: Rank, begin: &Begin) -> (u64, usize) {
    // A worker that holds data of its own takes it in its own order, whatever unit it was handed; where workers may be lost,
    // data go with the unit.
    let own_share = plan.shard != "iid" && !setup.sync.always_together(setup.end()) && plan.elastic.is_none();
    match own_share {
        true => (begin.step % order.steps(), rank),
        false => (begin.unit.step, begin.unit.share),
    }
}

/// A network of this process as the source of a worker's gradients.
pub struct NativeSource<'a> {
    plan: &'a TypedPlan<'a>,
    setup: Setup,
    dataset: &'a Dataset,
    rank: Rank,
    graph: Arc<Graph>,
    layout: Layout,
    order: Order,
    replica: Replica,
    /// The samples that evaluations during the run take, of all workers together.
    evaluated: Vec<u32>,
    /// The state of each position, one behind the other.
    state: Vec<f32>,
}

impl<'a> NativeSource<'a> {
    /// The source of a worker.
    pub fn new(
        plan: &'a TypedPlan<'a>,
        setup: &Setup,
        dataset: &'a Dataset,
        graph: Arc<Graph>,
        compute: Arc<Compute>,
        rank: Rank,
    ) -> Self {
        Self {
            plan,
            setup: setup.clone(),
            dataset,
            rank,
            layout: Layout::of(&graph),
            order: sample_order(plan, dataset),
            evaluated: model::evaluation_samples(plan, dataset.test.len()),
            replica: Replica::new(plan, Arc::clone(&graph), compute),
            state: vec![0.0; graph.state_count() * setup.positions(rank).len()],
            graph,
        }
    }

    /// Has images that this unit and the next one need decoded beside the computation.
    fn read_ahead(&mut self, begin: &Begin) {
        let Self { plan, setup, dataset, rank, order, replica, .. } = self;
        let mut ahead = |begin: &Begin| {
            let (at, share) = place(plan, setup, order, *rank, begin);
            replica.ahead(dataset, plan.seed, begin.unit.step, order.batch(at, share, plan.shares()));
        };
        ahead(begin);
        // Where workers do not go on together, who does what next is not known yet.
        if setup.sync.always_together(setup.end()) && begin.step + 1 < setup.end() {
            let own = setup.positions(*rank);
            let hosted = !setup.one_position_each();
            let next = own.iter().position(|share| *share == begin.unit.share).map_or(0, |at| at + 1);
            let (step, share) = match own.get(next) {
                Some(next) if hosted => (begin.step, *next),
                _ if hosted => (begin.step + 1, own[0]),
                _ => (begin.step + 1, begin.unit.share),
            };
            let unit = WorkUnit { step: begin.unit.step + (step - begin.step), share };
            ahead(&Begin { step, unit, ..*begin });
        }
    }
}

impl GradientSource for NativeSource<'_> {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn start(&mut self, params: &mut [f32]) -> Result<(), TrainError> {
        let mut state = vec![0.0; self.layout.state];
        weights::start(self.plan, &self.graph, params, &mut state)?;
        self.state.chunks_mut(state.len().max(1)).for_each(|slot| slot.copy_from_slice(&state));
        Ok(())
    }

    fn frozen(&self) -> Result<Vec<Range<usize>>, TrainError> {
        weights::frozen(self.plan, &self.graph)
    }

    fn gradient<'g>(
        &mut self,
        begin: &Begin,
        slot: usize,
        params: &[f32],
        grads: &'g mut [f32],
        sink: &mut dyn GradientSink<'g>,
        clock: &mut Clock,
    ) -> Result<Option<Outcome>, TrainError> {
        // Micro-batches are read ahead by themselves.
        if self.dataset.train.streamed() && self.plan.micro_batches == 1 {
            self.read_ahead(begin);
        }
        let Self { plan, setup, dataset, rank, order, replica, layout, state, .. } = self;
        let samples = order.samples_before(begin.unit.step);
        let batch = batch(plan, setup, order, *rank, begin);
        let state = &mut state[slot * layout.state..(slot + 1) * layout.state];
        let announce = &mut |offset, slice| sink.finished(offset, slice);
        let outcome = replica.gradient(dataset, &batch, params, state, grads, announce, clock)?;
        if !outcome.loss.is_finite() {
            return Err(TrainError::Diverged { step: begin.step + 1, samples, loss: outcome.loss });
        }
        Ok(Some(outcome))
    }

    fn evaluate(&mut self, params: &[f32], only: bool) -> Result<Outcome, TrainError> {
        let Self { dataset, evaluated, rank, plan, replica, .. } = self;
        let mut state = mean(&self.state, self.layout.state);
        if only {
            return replica.evaluate(dataset, &model::all_samples(dataset.test.len()), params, &mut state);
        }
        let part = order::share(evaluated.len(), *rank, plan.workers);
        replica.evaluate(dataset, &evaluated[part], params, &mut state)
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

    fn restore(&mut self, state: &[f32]) -> Result<(), TrainError> {
        restored(&mut self.state, state)
    }

    /// Positions that stay keep their state; others begin with that of the first one here, or with the network's.
    fn take_place(&mut self, setup: &Setup, rank: Rank) -> Result<(), TrainError> {
        let (before, len) = (self.setup.positions(self.rank), self.layout.state);
        let known: Vec<&[f32]> = self.state.chunks(len.max(1)).collect();
        let mut first = vec![0.0; len];
        match known.first() {
            Some(state) => first.copy_from_slice(state),
            None => {
                let mut params = vec![0.0; self.layout.params];
                weights::start(self.plan, &self.graph, &mut params, &mut first)?;
            }
        }
        let state_of = |position: usize| {
            let at = before.iter().position(|own| *own == position);
            at.and_then(|at| known.get(at)).map_or(&first[..], |state| state)
        };
        let state = setup.positions(rank).into_iter().flat_map(|p| state_of(p).iter().copied()).collect();
        (self.setup, self.rank, self.state) = (setup.clone(), rank, state);
        Ok(())
    }
}

/// Whether a run is evaluated after a step: as often as its plan says, or else after each epoch.
pub(crate) fn evaluates_after(plan: &Plan, order: &Order, step: u64) -> bool {
    plan.eval_every.map_or(order.ends_epoch(step), |every| (step + 1).is_multiple_of(every))
}

/// Takes up a checkpoint's state.
pub(crate) fn restored(own: &mut [f32], state: &[f32]) -> Result<(), TrainError> {
    let (expected, found) = (own.len(), state.len());
    if expected != found {
        let problem = format!("state: {expected} numbers were expected, {found} were found");
        return Err(TrainError::Restore { problem });
    }
    own.copy_from_slice(state);
    Ok(())
}

/// The mean of vectors of length `len` that lie one behind the other.
pub fn mean(vectors: &[f32], len: usize) -> Vec<f32> {
    if vectors.len() == len {
        return vectors.to_vec();
    }
    let count = vectors.len() / len.max(1);
    let weight = 1.0 / count as f64;
    let at = |i: usize| (0..count).map(|k| f64::from(vectors[k * len + i])).sum::<f64>() * weight;
    (0..len).map(|i| at(i) as f32).collect()
}
