//! Real gradients in the simulated order, with the simulated staleness.
//!
//! Ranks have parameters, gradients, statistics and optimisers of their own. They compute one after the other, so
//! they share one network and its activations. Where it is cut into stages, each rank has its own ([`stages`]).

mod stages;

use std::sync::Arc;

use paceline_data::{Dataset, Order, order};
use paceline_launch::gather::Gather;
use paceline_launch::whole_model;
use paceline_memory::{Allocator, TensorStorage};
use paceline_nn::{Compute, Graph, Outcome, Pass};
use paceline_pipeline::StagePlan;
use paceline_protocol::{Action, Buf, MsgId, Rank, Region, ReplicaAgreement, Setup, Time, Work};
use paceline_record::Event;
use paceline_resolve::TypedPlan;
use paceline_sim::{RankMemory, StepStart};
use paceline_train::memory::{Bodies, Memory as _, Scratch, WholeMemory, span};
use paceline_train::native::{self, mean};
use paceline_train::{Begin, Clock, Crossings, PartRanges, Replica, TrainError, Update, model, weights};
use paceline_wire::{Body, Source};

use stages::{StageBuffers, StageLearner};

/// Progress events of a run, roughly.
const PROGRESS: u64 = 100;

pub struct LearningRank {
    pub params: TensorStorage,
    /// Batch norm's statistics, of each position.
    pub state: Vec<f32>,
    /// Sums of its last step.
    pub last: Outcome,
    pub samples: u64,
    grads: Vec<TensorStorage>,
    crossings: Crossings,
    scratch: Scratch,
    update: Update,
    bodies: Vec<Option<Body>>,
}

impl LearningRank {
    fn whole(&mut self) -> (WholeMemory<'_>, Bodies<'_>) {
        let Self { params, grads, crossings, scratch, update, bodies, .. } = self;
        (WholeMemory { params, grads, crossings, scratch, update }, Bodies(bodies))
    }
}

/// A model at an evaluation, of which parts may be missing.
struct Incomplete {
    step: u64,
    at: Time,
    parts: Vec<Option<Vec<f32>>>,
}

/// What is to be learned.
pub struct LearningTask<'a> {
    pub plan: TypedPlan<'a>,
    pub dataset: &'a Dataset,
    /// What the strategy is told.
    pub setup: &'a Setup,
    /// How far the workers' models agree.
    pub agreement: ReplicaAgreement,
    /// Whether workers make every step together.
    pub together: bool,
    pub graph: Arc<Graph>,
    /// Where the network is cut, if it is.
    pub stages: Option<&'a StagePlan>,
}

/// The ranks' memory, and what is known of the model.
pub struct Learning<'a, 'r> {
    plan: TypedPlan<'a>,
    dataset: &'a Dataset,
    setup: &'a Setup,
    agreement: ReplicaAgreement,
    /// The network that all use in turn, and the numbers of its state.
    replica: Replica,
    state: usize,
    /// Each worker's stage, and where stages lie in the model, if it is cut into some.
    stages: Vec<StageLearner>,
    parts: Vec<PartRanges>,
    order: Order,
    pub ranks: Vec<LearningRank>,
    snapshots: Vec<Incomplete>,
    /// Snapshots that each server has given.
    rounds: Vec<u64>,
    pub gather: Gather<'a>,
    report: &'r mut dyn FnMut(Event<'_>),
    /// Why nothing more is to be learned.
    pub failed: Option<TrainError>,
    /// Whether a target ends the run, whether workers then wait at evaluations for what comes of them, and whether it
    /// was reached.
    ends_at_target: bool,
    together: bool,
    reached: bool,
    /// Whether members change, and the steps behind which the model was evaluated last: members are then numbered, and
    /// the first who is there shows the model that all have.
    pub changing: bool,
    shown: u64,
    /// Members that take part in the present generation, and in the one before: their models are evaluated together where
    /// they differ.
    present: Vec<usize>,
    before: Vec<usize>,
    fresh: Fresh,
}

/// What a member begins with that joins.
struct Fresh {
    compute: Arc<Compute>,
    frozen: Vec<std::ops::Range<usize>>,
    params: Vec<f32>,
}

impl Fresh {
    fn update(&self, plan: &TypedPlan<'_>, samples: usize) -> Update {
        let mut update = Update::new(plan, samples, Arc::clone(&self.compute));
        update.freeze(&self.frozen, &self.params);
        update
    }
}

impl<'a, 'r> Learning<'a, 'r> {
    /// Ranks at the plan's initial parameters; `scratch` gives each rank's scratch lengths.
    pub fn new(
        LearningTask { plan, dataset, setup, agreement, together, graph, stages }: LearningTask<'a>,
        scratch: Vec<Vec<usize>>,
        gather: Gather<'a>,
        report: &'r mut dyn FnMut(Event<'_>),
    ) -> Result<Self, TrainError> {
        let compute = Arc::new(Compute::new(plan.threads, plan.pin));
        let parts = stages.map_or_else(|| vec![graph.whole()], |stages| stages.parts.clone());
        let frozen = parts.iter().map(|part| weights::frozen_part(&plan, &graph, part));
        let frozen = frozen.collect::<Result<Vec<_>, _>>()?;
        let (params, state) = model::start(&plan, &graph)?;
        let numbers = params.len();
        let own = |(rank, lens): (usize, Vec<usize>)| {
            let mut update = Update::new(&plan, dataset.train.len(), Arc::clone(&compute));
            let (stage, worker) = (setup.stage_of(rank), rank < setup.workers);
            let (params, state) = (&params[parts[stage].params.clone()], &state[parts[stage].state.clone()]);
            update.freeze(&frozen[stage], params);
            let crossings = setup
                .stages
                .as_ref()
                .filter(|_| worker)
                .map(|setup| Crossings::new(setup, &setup.stages[stage], Allocator::Private));
            let zeros = || Allocator::Private.zeros(params.len());
            let positions = setup.positions(rank).len();
            let mut own = LearningRank {
                params: zeros()?,
                state: state.repeat(positions),
                last: Outcome::default(),
                samples: 0,
                grads: (0..positions).map(|_| zeros()).collect::<Result<_, _>>()?,
                crossings: crossings.transpose()?.unwrap_or_default(),
                scratch: Scratch::new(lens, Allocator::Private)?,
                update,
                bodies: Vec::new(),
            };
            own.params.copy_from_slice(params);
            Ok(own)
        };
        let ranks = scratch.into_iter().enumerate().map(own).collect::<Result<_, _>>();
        let ranks = ranks.map_err(|source| TrainError::Memory { numbers, source })?;
        let learner = |stages: &StagePlan| {
            let stage = |rank: usize| {
                StageLearner::new(&graph, stages, setup.stage_of(rank), dataset.positions, &compute)
            };
            (0..setup.workers).map(stage).collect()
        };
        let stages = stages.map_or_else(Vec::new, learner);
        let frozen = frozen.into_iter().next().unwrap_or_default();
        let fresh = Fresh { compute: Arc::clone(&compute), frozen, params };
        let replica = Replica::new(&plan, graph, compute);
        let ends_at_target = plan.stop_at_target;
        Ok(Self {
            order: native::sample_order(&plan, dataset),
            state: state.len(),
            plan,
            dataset,
            setup,
            agreement,
            ranks,
            replica,
            stages,
            parts: parts.iter().map(PartRanges::of).collect(),
            snapshots: Vec::new(),
            rounds: vec![0; setup.servers],
            gather,
            report,
            failed: None,
            ends_at_target,
            together,
            reached: false,
            changing: false,
            shown: setup.from,
            present: Vec::new(),
            before: Vec::new(),
            fresh,
        })
    }

    /// Evaluates a model on samples of the test split: share by share where workers do, so that sums are theirs.
    fn evaluate(&mut self, params: &[f32], mut state: Vec<f32>, samples: &[u32]) -> Outcome {
        let shares = match self.agreement {
            ReplicaAgreement::Apart => 1,
            _ if state.is_empty() => self.setup.replicas(),
            _ => 1,
        };
        let mut total = Outcome::default();
        for share in 0..shares {
            let part = &samples[order::share(samples.len(), share, shares)];
            match self.replica.evaluate(self.dataset, part, params, &mut state) {
                Ok(outcome) => total += outcome,
                Err(error) => self.failed = self.failed.take().or(Some(error)),
            }
        }
        total
    }

    /// Evaluates a model on the whole test split.
    pub fn evaluate_whole(&mut self, params: &[f32], state: Vec<f32>) -> Outcome {
        self.evaluate(params, state, &model::all_samples(self.dataset.test.len()))
    }

    /// Evaluates a model on what evaluations take, and tells of it.
    pub fn tell(&mut self, step: u64, at: Time, params: &[f32], state: Vec<f32>) {
        let samples = model::evaluation_samples(&self.plan, self.dataset.test.len());
        let outcome = self.evaluate(params, state, &samples);
        self.gather.evaluation(step, at as f64 * 1e-9, outcome, self.report);
        self.reached = self.gather.reached();
    }

    /// The mean of the workers' parameters and statistics, or the servers' parameters.
    pub fn model(&self) -> (Vec<f32>, Vec<f32>) {
        let workers = &self.ranks[..self.setup.workers];
        if !self.stages.is_empty() {
            let shown: Vec<Vec<f32>> = (0..self.setup.workers).map(|rank| self.shown(rank)).collect();
            return whole_model(&self.parts, &shown);
        }
        let of = |f: fn(&LearningRank) -> &[f32], len: usize| {
            let all: Vec<f32> = workers.iter().flat_map(f).copied().collect();
            mean(&all, len)
        };
        let state = of(|own| &own.state, self.state);
        if self.setup.servers == 0 {
            return (of(|own| &own.params, self.setup.params), state);
        }
        let shards = self.setup.shards();
        let shard = |k: usize| &self.ranks[self.setup.server(k)].params[shards[k].clone()];
        ((0..self.setup.servers).flat_map(shard).copied().collect(), state)
    }

    /// What a worker shows of the model at an evaluation: everybody's parameters are the first replica's; statistics are
    /// averaged.
    fn shown(&self, rank: Rank) -> Vec<f32> {
        let own = &self.ranks[rank];
        let params = if rank < self.setup.stage_count() { &own.params[..] } else { &[] };
        [params, &own.state].concat()
    }

    /// A part of a model at an evaluation; the last one sets it off.
    fn part(&mut self, step: u64, at: Time, index: usize, of: usize, part: Vec<f32>) {
        let place = self.snapshots.iter().position(|s| s.step == step).unwrap_or_else(|| {
            self.snapshots.push(Incomplete { step, at, parts: vec![None; of] });
            self.snapshots.len() - 1
        });
        let snapshot = &mut self.snapshots[place];
        snapshot.at = snapshot.at.max(at);
        snapshot.parts[index] = Some(part);
        if snapshot.parts.iter().any(Option::is_none) {
            return;
        }
        let Incomplete { step, at, parts } = self.snapshots.swap_remove(place);
        if !self.stages.is_empty() {
            let (params, state) = whole_model(&self.parts, &parts.into_iter().flatten().collect::<Vec<_>>());
            return self.tell(step, at, &params, state);
        }
        let mut all: Vec<f32> = parts.into_iter().flatten().flatten().collect();
        let params = self.setup.params;
        let state = if self.agreement != ReplicaAgreement::Apart {
            // Everybody's parameters are the first worker's; statistics are averaged.
            mean(&all.split_off(params), self.state)
        } else {
            if self.setup.servers == 0 {
                all = mean(&all, params + self.state);
            }
            all.split_off(params)
        };
        self.tell(step, at, &all, state);
    }

    /// Blocks of what the optimiser remembers.
    pub fn blocks(&self) -> usize {
        self.ranks[0].update.blocks()
    }

    /// The model of a run whose members change: what all workers have, or the mean where they differ. Statistics are
    /// those of a worker's first position.
    pub fn model_of_members(&self, members: &[usize]) -> (Vec<f32>, Vec<f32>) {
        let counting = if self.agreement == ReplicaAgreement::Apart { members.len() } else { 1 };
        let numbers = members.iter().take(counting).flat_map(|member| self.own_model(*member));
        let mut all = mean(&numbers.collect::<Vec<_>>(), self.setup.params + self.state);
        let state = all.split_off(self.setup.params.min(all.len()));
        (all, state)
    }

    /// A worker's parameters, and the statistics of its first position.
    fn own_model(&self, member: usize) -> Vec<f32> {
        let own = &self.ranks[member];
        [&own.params[..], &own.state[..self.state]].concat()
    }

    /// The servers' parameters, each shard's from a member, and the mean statistics of workers.
    pub fn model_of_servers(&self, holders: &[usize], workers: &[usize]) -> (Vec<f32>, Vec<f32>) {
        let shards = self.setup.shards().into_iter().zip(holders);
        let params = shards.flat_map(|(range, member)| self.ranks[*member].params[range].to_vec()).collect();
        let states = workers.iter().flat_map(|member| &self.ranks[*member].state[..self.state]);
        (params, mean(&states.copied().collect::<Vec<_>>(), self.state))
    }

    /// A member is the first to have finished a step of a run whose members change.
    fn show(&mut self, member: usize, steps: u64, at: Time) {
        self.shown = steps;
        if steps.is_multiple_of((self.setup.end() / PROGRESS).max(1)) {
            let samples = self.order.samples_before(steps);
            let train_loss = self.ranks[member].last.mean_loss();
            (self.report)(Event::Progress { step: steps, samples, train_s: at as f64 * 1e-9, train_loss });
        }
        let every = self.plan.eval_every;
        let due = every.map_or(self.order.ends_epoch(steps - 1), |every| steps.is_multiple_of(every));
        // Where workers take units one by one, the model is the servers', and evaluated at the end.
        let common = self.together && self.agreement != ReplicaAgreement::Apart;
        if common && (due || steps == self.setup.end()) {
            let (params, state) = self.model_of_members(&[member]);
            self.tell(steps, at, &params, state);
        }
    }

    /// A member whose weights are its own has finished a step: the last one of those who take part sets the evaluation off.
    fn show_own(&mut self, member: usize, steps: u64, at: Time) {
        let every = self.plan.eval_every;
        let due = every.map_or(self.order.ends_epoch(steps - 1), |every| steps.is_multiple_of(every));
        if !due && steps != self.setup.end() {
            return;
        }
        let place = self.snapshots.iter().position(|s| s.step == steps).unwrap_or_else(|| {
            self.snapshots.push(Incomplete { step: steps, at, parts: vec![None; self.ranks.len()] });
            self.snapshots.len() - 1
        });
        self.snapshots[place].at = at;
        self.snapshots[place].parts[member] = Some(self.own_model(member));
        self.complete_own();
    }

    /// A member takes part in a generation: one that joins has nothing to show of earlier steps.
    fn takes_part(&mut self, member: usize) {
        if self.present.contains(&member) {
            self.before = std::mem::take(&mut self.present);
        }
        if !self.before.is_empty() && !self.before.contains(&member) {
            self.shows_nothing(member);
        }
        self.present.push(member);
    }

    fn shows_nothing(&mut self, member: usize) {
        self.snapshots.iter_mut().for_each(|snapshot| snapshot.parts[member] = Some(Vec::new()));
    }

    /// The run is over for these members: evaluates what others can show no more.
    pub fn ended(&mut self, members: &[usize]) {
        self.present = members.to_vec();
        if self.agreement == ReplicaAgreement::Apart {
            self.complete_own();
        }
    }

    /// Evaluates what all have shown who take part.
    fn complete_own(&mut self) {
        let present = self.present.clone();
        let complete = |s: &Incomplete| present.iter().all(|member| s.parts[*member].is_some());
        while let Some(place) = self.snapshots.iter().position(complete) {
            let Incomplete { step, at, mut parts } = self.snapshots.swap_remove(place);
            let all: Vec<f32> = present.iter().filter_map(|member| parts[*member].take()).flatten().collect();
            let mut all = mean(&all, self.setup.params + self.state);
            let state = all.split_off(self.setup.params);
            self.tell(step, at, &all, state);
        }
    }

    /// Units of work between two looks at the servers' model; none where workers evaluate by themselves, or where
    /// the model has state that servers do not see.
    fn look_every(&self) -> Option<u64> {
        if self.agreement != ReplicaAgreement::Apart || self.state > 0 {
            return None;
        }
        let per_epoch = self.dataset.train.len().div_ceil(self.plan.global_batch()) as u64;
        Some(self.plan.eval_every.unwrap_or(per_epoch) * self.plan.shares() as u64)
    }
}

impl RankMemory for Learning<'_, '_> {
    type Body = Body;

    fn gradient(&mut self, rank: Rank, StepStart { step, unit, slot, scale }: StepStart) -> bool {
        if self.ends_at_target && self.together && self.reached {
            return false;
        }
        let Self { replica, ranks, order, plan, setup, dataset, .. } = self;
        let own = &mut ranks[rank];
        let samples = order.samples_before(unit.step);
        let batch = native::batch(plan, setup, order, rank, &Begin { step, unit, scale });
        let LearningRank { params, state, grads, update, .. } = own;
        let state = &mut state[slot * self.state..(slot + 1) * self.state];
        let (grads, clock) = (&mut grads[slot][..], &mut Clock::default());
        let announce = &mut |offset, part: &mut [f32]| update.quiet(offset, part);
        let computed = replica.gradient(dataset, &batch, params, state, grads, announce, clock);
        own.samples += batch.pass.samples as u64;
        match computed {
            // A step's loss is that of all its positions.
            Ok(outcome) if slot > 0 => own.last += outcome,
            Ok(outcome) => own.last = outcome,
            Err(error) => self.failed = self.failed.take().or(Some(error)),
        }
        let loss = own.last.loss;
        if !loss.is_finite() && self.failed.is_none() {
            self.failed = Some(TrainError::Diverged { step: step + 1, samples, loss });
        }
        true
    }

    fn begin(&mut self, rank: Rank, StepStart { step, unit, scale, .. }: StepStart) -> bool {
        self.ranks[rank].last = Outcome::default();
        self.stages[rank].begun = Some(Begin { step, unit, scale });
        !(self.ends_at_target && self.together && self.reached)
    }

    fn pass(&mut self, rank: Rank, work: Work, slot: usize) {
        let Self { stages, ranks, order, plan, setup, dataset, .. } = self;
        let Some(begin) = stages[rank].begun else { return };
        let samples = order.samples_before(begin.unit.step);
        let batch = native::batch(plan, setup, order, rank / setup.stage_count(), &begin);
        let pass = Pass { slot, ..batch.pass.micro_batch(work.micro, batch.micro_batches) };
        let LearningRank { params, state, grads, crossings, update, .. } = &mut ranks[rank];
        let buffers = StageBuffers { params, state, grads: &mut grads[0], crossings, update };
        match stages[rank].pass(dataset, work.kind, &pass, batch.scale, buffers) {
            Ok(outcome) => {
                let own = &mut ranks[rank];
                own.last += outcome;
                own.samples += outcome.samples as u64;
                let loss = own.last.loss;
                if !loss.is_finite() && self.failed.is_none() {
                    self.failed = Some(TrainError::Diverged { step: begin.step + 1, samples, loss });
                }
            }
            Err(error) => self.failed = self.failed.take().or(Some(error)),
        }
    }

    fn read(&mut self, rank: Rank, region: Region) -> Body {
        if let Buf::Optimiser(block) = region.buf {
            return self.ranks[rank].update.block(usize::from(block), region.range()).into();
        }
        let (whole, _) = self.ranks[rank].whole();
        let mut body = Vec::with_capacity(region.len);
        whole.slices(span(region), &mut |slice| body.extend_from_slice(slice));
        body.into()
    }

    fn hold(&mut self, rank: Rank, MsgId(msg): MsgId, body: Body) {
        let bodies = &mut self.ranks[rank].bodies;
        if bodies.len() <= msg as usize {
            bodies.resize_with(msg as usize + 1, || None);
        }
        bodies[msg as usize] = Some(body);
    }

    fn release(&mut self, rank: Rank, MsgId(msg): MsgId) {
        self.ranks[rank].bodies[msg as usize] = None;
    }

    fn seat(&mut self, member: usize, positions: usize, scratch: Vec<usize>) {
        let (own, numbers) = (&mut self.ranks[member], self.setup.params);
        let seated = (|| {
            while own.grads.len() < positions {
                own.grads.push(Allocator::Private.zeros(numbers)?);
            }
            own.scratch = Scratch::new(scratch, Allocator::Private)?;
            Ok(())
        })();
        if let Err(source) = seated {
            self.failed = self.failed.take().or(Some(TrainError::Memory { numbers, source }));
        }
        // A position that it had not before has the statistics of the first one.
        let first = own.state[..self.state].to_vec();
        while own.state.len() < positions * self.state {
            own.state.extend_from_slice(&first);
        }
        own.bodies.clear();
        self.takes_part(member);
    }

    fn forget(&mut self, member: usize) {
        self.shows_nothing(member);
        self.ranks[member].params.fill(f32::NAN);
        self.ranks[member].update = self.fresh.update(&self.plan, self.dataset.train.len());
    }

    fn compute(&mut self, rank: Rank, action: &Action) {
        if let Action::Copy { dst: Region { buf: Buf::Optimiser(block), offset, .. }, src } = *action {
            let LearningRank { update, bodies, .. } = &mut self.ranks[rank];
            let Buf::Msg(msg) = src.buf else { unreachable!("an optimiser's memory comes in a message") };
            return update.take_over(usize::from(block), offset, Bodies(bodies).get(msg));
        }
        let (mut whole, bodies) = self.ranks[rank].whole();
        let done = whole.compute(action, bodies);
        debug_assert!(done, "whole memory does everything at once: {action:?}");
    }

    fn step_over(&mut self, rank: Rank, steps: u64, at: Time) {
        let workers = self.setup.workers;
        if self.changing {
            if steps > self.shown {
                self.show(rank, steps, at);
            }
            if self.agreement == ReplicaAgreement::Apart && self.setup.servers == 0 {
                self.show_own(rank, steps, at);
            }
            return;
        }
        // The last stage knows the loss.
        let first = rank + 1 == self.setup.stage_count();
        if first && steps.is_multiple_of((self.setup.end() / PROGRESS).max(1)) {
            let samples = steps * self.plan.global_batch() as u64;
            let train_loss = self.ranks[rank].last.mean_loss();
            (self.report)(Event::Progress { step: steps, samples, train_s: at as f64 * 1e-9, train_loss });
        }
        let every = self.plan.eval_every;
        let due = every.map_or(self.order.ends_epoch(steps - 1), |every| steps.is_multiple_of(every));
        if !due && steps != self.setup.end() {
            return;
        }
        let (own, apart) = (&self.ranks[rank], self.agreement == ReplicaAgreement::Apart);
        if !apart {
            let part = self.shown(rank);
            self.part(steps, at, rank, workers, part);
        } else if self.setup.servers == 0 && steps < self.setup.end() {
            let part = [&own.params[..], &own.state].concat();
            self.part(steps, at, rank, workers, part);
        }
    }

    fn updated(&mut self, rank: Rank, updates: usize, at: Time) {
        let (shard, updates) = (rank - self.setup.workers, updates as u64);
        let shares = self.setup.shares() as u64;
        let (Some(every), all) = (self.look_every(), self.setup.end().saturating_mul(shares)) else {
            return;
        };
        if updates < all && updates / every > self.rounds[shard] {
            self.rounds[shard] += 1;
            let step = self.rounds[shard] * every / shares;
            let part = self.ranks[rank].params[self.setup.shards()[shard].clone()].to_vec();
            self.part(step, at, shard, self.setup.servers, part);
        }
    }

    fn waits(&self, rank: Rank) -> bool {
        // What servers show, they show before workers begin the next step.
        let shown = self.agreement != ReplicaAgreement::Apart || self.setup.servers == 0;
        let waits = self.ends_at_target && self.together && shown;
        waits && self.snapshots.iter().any(|snapshot| snapshot.parts[rank].is_some())
    }

    fn stops(&self) -> bool {
        self.ends_at_target && !self.together && self.reached
    }

    fn enough(&self) -> bool {
        self.failed.is_some()
    }
}
