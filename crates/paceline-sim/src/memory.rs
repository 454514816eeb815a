//! What stands behind regions.

use std::collections::HashMap;

use paceline_protocol::{Action, Buf, Buffers, GradientScale, MsgId, Rank, Region, Time, Work, WorkUnit};

/// A step that a worker begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepStart {
    /// This worker's step.
    pub step: u64,
    /// The work.
    pub unit: WorkUnit,
    /// Which of the rank's positions computes it.
    pub slot: usize,
    /// How its gradient is weighted.
    pub scale: GradientScale,
}

/// The participants' buffers, as far as somebody looks at them.
pub trait RankMemory {
    /// A message's body on its way.
    type Body;
    /// Puts the gradient of a unit into the gradient buffer of a worker's position; false if the worker has run out of
    /// work.
    fn gradient(&mut self, rank: Rank, begin: StepStart) -> bool;
    /// A worker of a run with stages begins a unit, whose passes follow one by one; false if it has run out of work.
    fn begin(&mut self, _rank: Rank, _begin: StepStart) -> bool {
        true
    }
    /// Passes a micro-batch of the unit that has begun through a worker's stage: what comes out of it is there at once.
    fn pass(&mut self, _rank: Rank, _work: Work, _slot: usize) {}
    /// Reads a body when its transfer ends: a region that changes before that arrives changed.
    fn read(&mut self, rank: Rank, region: Region) -> Self::Body;
    /// Keeps a received body.
    fn hold(&mut self, rank: Rank, msg: MsgId, body: Self::Body);
    /// Drops a received body.
    fn release(&mut self, rank: Rank, msg: MsgId);
    /// Does a computation.
    fn compute(&mut self, rank: Rank, action: &Action);
    /// Whether a worker that has finished a step waits before it begins the next one: asked then, and again after
    /// each event.
    fn waits(&self, _rank: Rank) -> bool {
        false
    }
    /// Whether the run is to stop where its servers decide.
    fn stops(&self) -> bool {
        false
    }
    /// A worker has finished so many steps.
    fn step_over(&mut self, _rank: Rank, _steps: u64, _at: Time) {}
    /// A server has applied so many updates.
    fn updated(&mut self, _rank: Rank, _updates: usize, _at: Time) {}
    /// A member takes part in a generation of a run whose members may change: how many positions it hosts, and its
    /// scratch lengths. What it holds of the generation before is dropped; parameters stay.
    fn seat(&mut self, _member: usize, _positions: usize, _scratch: Vec<usize>) {}
    /// A member has come with nothing, or come back.
    fn forget(&mut self, _member: usize) {}
    /// Whether nobody wants to know how it goes on.
    fn enough(&self) -> bool {
        false
    }
}

/// Sizes only.
#[derive(Clone, Copy, Debug, Default)]
pub struct SizesOnly;

impl RankMemory for SizesOnly {
    type Body = ();
    fn gradient(&mut self, _: Rank, _: StepStart) -> bool {
        true
    }
    fn read(&mut self, _: Rank, _: Region) {}
    fn hold(&mut self, _: Rank, _: MsgId, (): ()) {}
    fn release(&mut self, _: Rank, _: MsgId) {}
    fn compute(&mut self, _: Rank, _: &Action) {}
}

/// Real numbers, with plain gradient descent at rate 1 on a gradient that the caller computes.
pub struct NumericMemory<G> {
    ranks: Vec<Own>,
    gradient: G,
    /// Momentum of updates.
    momentum: f32,
    /// The worker that leaves, and the step that it does not compute.
    leaves: Option<(Rank, u64)>,
}

#[derive(Clone, Debug, Default)]
struct Own {
    param: Vec<f32>,
    grads: Vec<Vec<f32>>,
    scratch: Vec<Vec<f32>>,
    velocity: Vec<f32>,
    work: Vec<u32>,
    held: HashMap<MsgId, Vec<f32>>,
}

impl Own {
    fn buffers(&mut self) -> (Buffers<'_, Vec<f32>>, &HashMap<MsgId, Vec<f32>>) {
        let Self { param, grads, scratch, work, held, .. } = self;
        let accumulate = |dst: &mut [f32], src: &[f32]| {
            assert_eq!(dst.len(), src.len(), "a message of the region's length");
            dst.iter_mut().zip(src).for_each(|(d, s)| *d += s);
        };
        (Buffers { param, grads, scratch, work, accumulate }, held)
    }
}

impl<G: FnMut(Rank, WorkUnit, GradientScale, &[f32], &mut [f32])> NumericMemory<G> {
    /// Buffers that all start from `params`; `scratch` gives each rank's scratch lengths.
    pub fn new(params: &[f32], scratch: Vec<Vec<usize>>, gradient: G) -> Self {
        let own = |lens: Vec<usize>| Own {
            param: params.to_vec(),
            grads: vec![vec![0.0; params.len()]],
            scratch: lens.into_iter().map(|len| vec![0.0; len]).collect(),
            ..Own::default()
        };
        Self { ranks: scratch.into_iter().map(own).collect(), gradient, momentum: 0.0, leaves: None }
    }

    /// With momentum: an optimiser with a block of memory.
    pub fn with_momentum(mut self, momentum: f32) -> Self {
        self.momentum = momentum;
        self.ranks.iter_mut().for_each(|own| own.velocity = vec![0.0; own.param.len()]);
        self
    }

    /// A worker runs out of work before one of its steps.
    pub fn leaving(self, rank: Rank, step: u64) -> Self {
        Self { leaves: Some((rank, step)), ..self }
    }

    /// A rank's parameters.
    pub fn params(&self, rank: Rank) -> &[f32] {
        &self.ranks[rank].param
    }

    /// Bodies that were received and not released.
    pub fn held(&self, rank: Rank) -> usize {
        self.ranks[rank].held.len()
    }
}

impl<G: FnMut(Rank, WorkUnit, GradientScale, &[f32], &mut [f32])> RankMemory for NumericMemory<G> {
    type Body = Vec<f32>;

    fn gradient(&mut self, rank: Rank, StepStart { step, unit, slot, scale }: StepStart) -> bool {
        if self.leaves == Some((rank, step)) {
            return false;
        }
        let Own { param, grads, .. } = &mut self.ranks[rank];
        if grads.len() <= slot {
            grads.resize(slot + 1, vec![0.0; param.len()]);
        }
        (self.gradient)(rank, unit, scale, param, &mut grads[slot]);
        true
    }
    fn read(&mut self, rank: Rank, region: Region) -> Vec<f32> {
        if region.buf == Buf::Optimiser(0) {
            return self.ranks[rank].velocity[region.range()].to_vec();
        }
        self.ranks[rank].buffers().0.get(region).to_vec()
    }
    fn hold(&mut self, rank: Rank, msg: MsgId, body: Vec<f32>) {
        assert!(self.ranks[rank].held.insert(msg, body).is_none(), "a new number for each body");
    }
    fn release(&mut self, rank: Rank, msg: MsgId) {
        assert!(self.ranks[rank].held.remove(&msg).is_some(), "released twice");
    }
    fn seat(&mut self, member: usize, positions: usize, scratch: Vec<usize>) {
        if self.ranks.len() <= member {
            // What a member holds that joins is nothing that could be taken for parameters.
            let (params, momentum) = (self.ranks[0].param.len(), self.momentum > 0.0);
            let velocity = vec![f32::NAN; if momentum { params } else { 0 }];
            self.ranks.resize(member + 1, Own { param: vec![f32::NAN; params], velocity, ..Own::default() });
        }
        let own = &mut self.ranks[member];
        own.grads.resize(positions.max(1), vec![f32::NAN; own.param.len()]);
        own.scratch = scratch.into_iter().map(|len| vec![0.0; len]).collect();
        own.held.clear();
    }
    fn forget(&mut self, member: usize) {
        if let Some(own) = self.ranks.get_mut(member) {
            own.param.fill(f32::NAN);
            own.velocity.fill(f32::NAN);
        }
    }
    fn compute(&mut self, rank: Rank, action: &Action) {
        if let Action::Copy { dst: Region { buf: Buf::Optimiser(_), offset, len }, src } = *action {
            let Own { velocity, held, .. } = &mut self.ranks[rank];
            let Buf::Msg(msg) = src.buf else { unreachable!("an optimiser's memory comes in a message") };
            return velocity[offset..offset + len].copy_from_slice(&held[&msg]);
        }
        let momentum = self.momentum;
        let (mut buffers, held) = self.ranks[rank].buffers();
        let Action::Apply { params, grad, .. } = *action else {
            return buffers.compute(action, &|msg| held[&msg].as_slice());
        };
        let grad = match grad.buf {
            Buf::Msg(msg) => held[&msg].clone(),
            _ => buffers.get(grad).to_vec(),
        };
        if momentum == 0.0 {
            return buffers.param[params.range()].iter_mut().zip(grad).for_each(|(p, g)| *p -= g);
        }
        let Own { param, velocity, .. } = &mut self.ranks[rank];
        let both = param[params.range()].iter_mut().zip(&mut velocity[params.range()]);
        both.zip(grad).for_each(|((p, v), g)| {
            *v = momentum * *v + g;
            *p -= *v;
        });
    }
}
