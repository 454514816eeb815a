//! The optimiser and the learning rate of a plan, applied to any range of the flat buffers.

use std::collections::HashMap;
use std::ops;
use std::sync::Arc;

use paceline_attach::{Gives, ScriptOptimizer, Takes};
use paceline_data::Order;
use paceline_nn::optim::{Optimiser, Settings, Step};
use paceline_nn::{Compute, Progress, Schedule};
use paceline_plan::Plan;
use paceline_registry::Registry;
use paceline_resolve::TypedPlan;
use paceline_wire::Body;

use crate::memory::add;

/// Elements of a lent body that are copied and applied at once.
const PIECE: usize = 4096;

/// Applies gradients as a plan says.
pub struct Update {
    rule: Rule,
    /// What the optimiser remembers of each range, by the range's start.
    ranges: HashMap<usize, Range>,
    /// What was remembered of all parameters by somebody who had other ranges, until there are own ones.
    inherited: Option<Range>,
    /// Parameters that stay as they are: where they start, and what they are.
    frozen: Vec<(usize, Vec<f32>)>,
    /// What another one's optimiser remembered, block by block, laid out like the parameters.
    taken_over: Vec<Vec<f32>>,
    /// Updates of ranges that were handed over, by the range's start, where they are not one per step.
    counted: HashMap<usize, u64>,
}

/// What is made of a gradient.
enum Rule {
    /// The optimiser moves the parameters.
    Optimise(Box<PlanOptimiser>),
    /// A script's optimiser on a server moves the parameters.
    Script(Box<GroupOptimiser>),
    /// A script makes its own update: the gradient is settled where it lies.
    Settled,
    /// The sum is what workers want back: it takes the place of the parameters.
    Replace,
    /// It is a worker's own update: the parameters move by it.
    Add,
}

/// The optimiser of a plan.
struct PlanOptimiser {
    optimiser: &'static Optimiser,
    settings: Settings,
    rate: Rate,
    compute: Arc<Compute>,
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

fn settings(plan: &Plan) -> Settings {
    let (momentum, nesterov, weight_decay) = (plan.momentum, plan.nesterov, plan.weight_decay);
    Settings { momentum, nesterov, weight_decay, ..Settings::default() }
}

/// How many numbers per parameter the optimiser of a plan's workers remembers: none where servers update.
pub(crate) fn remembered_by_workers(plan: &TypedPlan<'_>) -> usize {
    if plan.servers > 0 { 0 } else { (plan.optimiser.memory)(&settings(plan)) }
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
        Self::by(Rule::Optimise(Box::new(PlanOptimiser {
            optimiser: plan.optimiser,
            settings: settings(plan),
            rate,
            compute,
        })))
    }

    /// Leaves updates to the scripts of the workers: gradients are settled where they lie.
    pub fn by_scripts() -> Self {
        Self::by(Rule::Settled)
    }

    /// What a server does for workers whose scripts give and take this.
    pub fn for_scripts(gives: Gives, takes: Takes, optimiser: Option<GroupOptimiser>) -> Self {
        Self::by(match (gives, takes, optimiser) {
            (_, Takes::GradientsFromParameters, _) => Rule::Replace,
            (Gives::Updates, ..) => Rule::Add,
            (_, _, Some(optimiser)) => Rule::Script(Box::new(optimiser)),
            _ => Rule::Settled,
        })
    }

    fn by(rule: Rule) -> Self {
        let (ranges, counted) = (HashMap::new(), HashMap::new());
        Self { rule, ranges, inherited: None, frozen: Vec::new(), taken_over: Vec::new(), counted }
    }

    /// Sets the present learning rate of the worker whose gradient comes next, as a multiple of the first one.
    pub fn set_rate(&mut self, rate: f64) {
        if let Rule::Script(optimiser) = &mut self.rule {
            optimiser.rate = rate;
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

    /// Blocks of what the optimiser remembers, each as long as the parameters.
    pub fn blocks(&self) -> usize {
        match &self.rule {
            Rule::Optimise(own) => (own.optimiser.memory)(&own.settings),
            _ => 0,
        }
    }

    /// What the optimiser remembers of a range of the flat buffer, in one of its blocks: zeros before the first update.
    pub fn block(&self, block: usize, range: ops::Range<usize>) -> Vec<f32> {
        let inherited = |i: usize| {
            let known = &self.inherited.as_ref()?.memory;
            known.get(block * (known.len() / self.blocks().max(1)) + i)
        };
        let given = |i: usize| {
            let known = self.taken_over.get(block).and_then(|known| known.get(i));
            known.or_else(|| inherited(i)).copied().unwrap_or(0.0)
        };
        let mut values: Vec<f32> = range.clone().map(given).collect();
        for (start, known) in &self.ranges {
            let len = known.memory.len() / self.blocks().max(1);
            let memory = &known.memory[block * len..];
            for i in range.start.max(*start)..range.end.min(start + len) {
                values[i - range.start] = memory[i - start];
            }
        }
        values
    }

    /// Takes over what another one's optimiser remembers, in one of its blocks, of the parameters from `offset` on.
    pub fn take_over(&mut self, block: usize, offset: usize, values: &[f32]) {
        let end = offset + values.len();
        self.ranges.retain(|start, _| !(offset..end).contains(start));
        self.taken_over.resize(self.taken_over.len().max(block + 1), Vec::new());
        let blocks = self.blocks().max(1);
        let inherited = self.inherited.as_ref().map_or(&[][..], |own| &own.memory);
        let inherited = &inherited[block * (inherited.len() / blocks)..];
        let known = &mut self.taken_over[block];
        // What lies before it, and was not taken over, is still what was inherited.
        let before = known.len().min(end)..end;
        known.extend(before.map(|i| inherited.get(i).copied().unwrap_or(0.0)));
        known[offset..end].copy_from_slice(values);
    }

    /// Notes how many updates were made to the range that starts here, if it is taken over.
    pub(crate) fn counted(&mut self, start: usize, updates: u64) {
        self.counted.insert(start, updates);
    }

    /// What was inherited, if nothing was made of it yet: its updates, its numbers.
    pub(crate) fn inherited(&self) -> Option<(u64, &[f32])> {
        let inherited = self.inherited.as_ref().filter(|_| self.ranges.is_empty())?;
        Some((inherited.updates, &inherited.memory))
    }

    /// Takes up what was remembered of all parameters, one block of the flat buffer's length after the other.
    pub(crate) fn inherit(&mut self, updates: u64, memory: &[f32]) {
        self.inherited = Some(Range { memory: memory.to_vec(), updates });
    }

    /// Updates the parameters that start at `offset` of the flat buffer, at the rate of global step `step`;
    /// `whole` if the gradient is that of a whole global batch.
    pub fn apply(&mut self, offset: usize, params: &mut [f32], grads: &[f32], step: u64, whole: bool) {
        if params.is_empty() {
            return;
        }
        match &self.rule {
            Rule::Settled => return,
            Rule::Replace => params.copy_from_slice(grads),
            Rule::Add => add(params, grads),
            Rule::Optimise(own) => {
                let lr = own.lr(step, whole);
                let known = (&self.taken_over[..], self.inherited.as_ref());
                let updates = self.counted.get(&offset).copied().unwrap_or(step);
                let elements = offset..offset + params.len();
                let range = Range::among(&mut self.ranges, known, own.blocks(), elements, updates);
                range.apply(own.optimiser, &own.settings, &own.compute, lr, params, grads);
            }
            Rule::Script(own) => {
                let end = offset + params.len();
                for group in
                    own.groups.iter().filter(|group| group.range.start < end && group.range.end > offset)
                {
                    let (from, to) = (group.range.start.max(offset), group.range.end.min(end));
                    let (part, lr) = (from - offset..to - offset, group.lr * own.rate);
                    let range = self.ranges.entry(from).or_default();
                    let (params, grads) = (&mut params[part.clone()], &grads[part]);
                    range.apply(own.optimiser, &group.settings, &own.compute, lr, params, grads);
                }
            }
        }
        self.hold(offset, params);
    }

    /// The same with a received body; `piece` takes numbers that its sender has lent.
    pub fn apply_body(
        &mut self,
        offset: usize,
        params: &mut [f32],
        (body, piece): (&Body, &mut Vec<f32>),
        step: u64,
        whole: bool,
    ) {
        match &self.rule {
            // What an optimiser remembers in several blocks is not in one piece for a piece of the parameters.
            Rule::Optimise(own) if body.is_lent() && own.blocks() <= 1 && params.len() == body.len() => {
                let known = (&self.taken_over[..], self.inherited.as_ref());
                let updates = self.counted.get(&offset).copied().unwrap_or(step);
                let elements = offset..offset + params.len();
                let range = Range::among(&mut self.ranges, known, own.blocks(), elements, updates);
                range.apply_lent(own, own.lr(step, whole), params, body, piece);
                self.hold(offset, params);
            }
            _ => self.apply(offset, params, body.read(piece), step, whole),
        }
    }
}

impl PlanOptimiser {
    /// Blocks of its memory.
    fn blocks(&self) -> usize {
        (self.optimiser.memory)(&self.settings)
    }

    fn lr(&self, step: u64, whole: bool) -> f64 {
        self.rate.at(step) * if whole { self.rate.whole } else { 1.0 }
    }
}

impl Range {
    /// That of these elements; before its first update here, with what somebody else remembers of it: who handed everything
    /// over, after so many updates, or whom it was inherited from.
    fn among<'r>(
        ranges: &'r mut HashMap<usize, Self>,
        (taken_over, inherited): (&[Vec<f32>], Option<&Self>),
        blocks: usize,
        elements: ops::Range<usize>,
        updates: u64,
    ) -> &'r mut Self {
        let (offset, len) = (elements.start, elements.len());
        ranges.entry(offset).or_insert_with(|| {
            let taken_over = Self::taken_over(taken_over, blocks, offset, len, updates);
            taken_over.or_else(|| Some(inherited?.part(offset, len, blocks))).unwrap_or_default()
        })
    }

    /// What was taken over of the range after so many updates.
    fn taken_over(
        known: &[Vec<f32>],
        blocks: usize,
        offset: usize,
        len: usize,
        updates: u64,
    ) -> Option<Self> {
        if known.len() < blocks.max(1) || known.iter().any(|block| block.len() < offset + len) {
            return None;
        }
        let memory = known[..blocks].iter().flat_map(|block| &block[offset..offset + len]).copied();
        Some(Self { memory: memory.collect(), updates })
    }

    /// What is remembered of a part of the range, in so many blocks.
    fn part(&self, offset: usize, len: usize, blocks: usize) -> Self {
        let whole = self.memory.len() / blocks.max(1);
        let block = |n: usize| &self.memory[n * whole + offset..n * whole + offset + len];
        Self { memory: (0..blocks).flat_map(block).copied().collect(), updates: self.updates }
    }

    /// One update of the range from a body that its sender has lent: piece by piece, so that each stays in cache.
    fn apply_lent(
        &mut self,
        own: &PlanOptimiser,
        lr: f64,
        params: &mut [f32],
        body: &Body,
        piece: &mut Vec<f32>,
    ) {
        self.memory.resize(own.blocks() * params.len(), 0.0);
        self.updates += 1;
        piece.resize(piece.len().max(PIECE), 0.0);
        let (mut at, mut memory) = (0, &mut self.memory[..]);
        for params in params.chunks_mut(PIECE) {
            let grads = &mut piece[..params.len()];
            body.copy_to(at, grads);
            at += params.len();
            let (own_memory, rest) = memory.split_at_mut(params.len().min(memory.len()));
            memory = rest;
            let update = Step { params, grads, memory: own_memory, lr, step: self.updates };
            own.optimiser.apply(&own.compute, &own.settings, update);
        }
    }

    /// One update of the range.
    fn apply(
        &mut self,
        optimiser: &Optimiser,
        settings: &Settings,
        compute: &Compute,
        lr: f64,
        params: &mut [f32],
        grads: &[f32],
    ) {
        self.memory.resize((optimiser.memory)(settings) * params.len(), 0.0);
        self.updates += 1;
        let update = Step { params, grads, memory: &mut self.memory, lr, step: self.updates };
        optimiser.apply(compute, settings, update);
    }
}

/// A script's optimiser: each of its tensors has settings and a rate of its own.
pub struct GroupOptimiser {
    optimiser: &'static Optimiser,
    groups: Vec<TensorGroup>,
    compute: Arc<Compute>,
    /// What the rate is now, as a multiple of what it was at first.
    rate: f64,
}

struct TensorGroup {
    range: ops::Range<usize>,
    settings: Settings,
    lr: f64,
}

impl GroupOptimiser {
    /// The optimiser that a script has described, for tensors of these ranges.
    pub fn new(
        described: &ScriptOptimizer,
        optimisers: &Registry<Optimiser>,
        ranges: &[ops::Range<usize>],
        compute: Arc<Compute>,
    ) -> Result<Self, String> {
        let optimiser =
            optimisers.find(&described.kind).ok_or_else(|| format!("no server knows {}", described.kind))?;
        let mut groups = Vec::new();
        for group in &described.groups {
            let settings = Settings {
                momentum: group.momentum,
                nesterov: group.nesterov,
                weight_decay: group.weight_decay,
                betas: group.betas,
                eps: group.eps,
            };
            for &tensor in &group.tensors {
                let range = ranges.get(tensor).ok_or_else(|| format!("there is no tensor {tensor}"))?.clone();
                groups.push(TensorGroup { range, settings, lr: group.lr });
            }
        }
        Ok(Self { optimiser, groups, compute, rate: 1.0 })
    }
}

impl Rate {
    fn at(&self, step: u64) -> f64 {
        let fraction = self.order.samples_before(step) as f64 / self.total as f64;
        let progress = Progress { fraction, epochs: self.order.epochs_before(step) };
        self.base * self.schedule.factor(progress, self.warmup)
    }
}
