//! The optimiser and the learning rate of a plan, applied to any range of the flat buffers.

use std::collections::HashMap;
use std::ops;
use std::sync::Arc;

use paceline_data::Order;
use paceline_nn::optim::{Optimiser, Settings, Step};
use paceline_nn::{Compute, Progress, Schedule};
use paceline_resolve::TypedPlan;

/// Applies gradients as a plan says.
pub struct Update {
    optimiser: &'static Optimiser,
    settings: Settings,
    rate: Rate,
    compute: Arc<Compute>,
    /// What the optimiser remembers of each range, by the range's start.
    ranges: HashMap<usize, Range>,
    /// Parameters that stay as they are: where they start, and what they are.
    frozen: Vec<(usize, Vec<f32>)>,
}

#[derive(Default)]
struct Range {
    memory: Vec<f32>,
    updates: u64,
}

/// The learning rate at each global step.
struct Rate {
    base: f64,
    /// What the updates of whole global batches are multiplied by.
    whole: f64,
    schedule: Schedule,
    warmup: f64,
    /// Where each step stands in the run.
    order: Order,
    total: u64,
}

impl Update {
    /// The optimiser of a plan, for a training split of `samples`.
    pub fn new(plan: &TypedPlan<'_>, samples: usize, compute: Arc<Compute>) -> Self {
        let total = plan.total_samples(samples);
        let rate = Rate {
            base: plan.lr,
            whole: plan.scaling.factor(plan.shares()),
            schedule: plan.schedule,
            warmup: plan.warmup,
            order: Order::new(plan.seed, samples, plan.global_batch(), total),
            total,
        };
        Self {
            optimiser: plan.optimiser,
            settings: Settings {
                momentum: plan.momentum,
                nesterov: plan.nesterov,
                weight_decay: plan.weight_decay,
            },
            rate,
            compute,
            ranges: HashMap::new(),
            frozen: Vec::new(),
        }
    }

    /// Keeps ranges of the flat buffer as they are in `params` now.
    pub fn freeze(&mut self, ranges: &[ops::Range<usize>], params: &[f32]) {
        self.frozen = ranges.iter().map(|range| (range.start, params[range.clone()].to_vec())).collect();
    }

    /// Puts frozen parameters back, among those that start at `offset` of the flat buffer: no average, codec or
    /// decay may move them.
    pub fn hold(&self, offset: usize, params: &mut [f32]) {
        self.still(offset, params, |part, frozen| part.copy_from_slice(frozen));
    }

    /// Makes gradients of frozen parameters 0, among those that start at `offset` of the flat buffer: no codec should
    /// spend anything on them.
    pub fn quiet(&self, offset: usize, grads: &mut [f32]) {
        self.still(offset, grads, |part, _| part.fill(0.0));
    }

    fn still(&self, offset: usize, numbers: &mut [f32], f: impl Fn(&mut [f32], &[f32])) {
        for (start, frozen) in &self.frozen {
            let from = offset.max(*start);
            let to = (offset + numbers.len()).min(start + frozen.len());
            if from < to {
                f(&mut numbers[from - offset..to - offset], &frozen[from - start..to - start]);
            }
        }
    }

    /// What the optimiser remembers of each range: its start, its updates, its numbers.
    pub(crate) fn remembered(&self) -> impl Iterator<Item = (usize, u64, &[f32])> {
        let mut starts: Vec<_> = self.ranges.keys().copied().collect();
        starts.sort_unstable();
        starts.into_iter().map(|start| (start, self.ranges[&start].updates, &self.ranges[&start].memory[..]))
    }

    /// Takes up what another one remembered of a range.
    pub(crate) fn remember(&mut self, start: usize, updates: u64, memory: &[f32]) {
        self.ranges.insert(start, Range { memory: memory.to_vec(), updates });
    }

    /// Updates the parameters that start at `offset` of the flat buffer, at the rate of global step `step`;
    /// `whole` if the gradient is that of a whole global batch.
    pub fn apply(&mut self, offset: usize, params: &mut [f32], grads: &[f32], step: u64, whole: bool) {
        if params.is_empty() {
            return;
        }
        let lr = self.rate.at(step) * if whole { self.rate.whole } else { 1.0 };
        let range = self.ranges.entry(offset).or_default();
        range.memory.resize((self.optimiser.memory)(&self.settings) * params.len(), 0.0);
        range.updates += 1;
        let update = Step { params: &mut *params, grads, memory: &mut range.memory, lr, step: range.updates };
        self.optimiser.apply(&self.compute, &self.settings, update);
        self.hold(offset, params);
    }
}

impl Rate {
    fn at(&self, step: u64) -> f64 {
        let fraction = self.order.samples_before(step) as f64 / self.total as f64;
        let progress = Progress { fraction, epochs: self.order.epochs_before(step) };
        self.base * self.schedule.factor(progress, self.warmup)
    }
}
