//! What stands behind regions.

use std::collections::HashMap;

use paceline_protocol::{Buf, MsgId, Rank, Region, Unit};

/// The participants' buffers, as far as somebody looks at them.
pub trait Memory {
    /// A message's body on its way.
    type Body;
    /// Puts the gradient of a unit into a worker's gradient buffer.
    fn gradient(&mut self, rank: Rank, unit: Unit);
    /// Reads a body when its transfer ends: a region that changes before that arrives changed.
    fn read(&mut self, rank: Rank, region: Region) -> Self::Body;
    /// Keeps a received body.
    fn hold(&mut self, rank: Rank, msg: MsgId, body: Self::Body);
    /// Drops a received body.
    fn release(&mut self, rank: Rank, msg: MsgId);
    /// `dst += src`, or `dst = src`.
    fn combine(&mut self, rank: Rank, dst: Region, src: Region, add: bool);
    /// Updates parameters.
    fn apply(&mut self, rank: Rank, params: Region, grad: Region, step: u64);
}

/// Sizes only.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nothing;

impl Memory for Nothing {
    type Body = ();
    fn gradient(&mut self, _: Rank, _: Unit) {}
    fn read(&mut self, _: Rank, _: Region) {}
    fn hold(&mut self, _: Rank, _: MsgId, (): ()) {}
    fn release(&mut self, _: Rank, _: MsgId) {}
    fn combine(&mut self, _: Rank, _: Region, _: Region, _: bool) {}
    fn apply(&mut self, _: Rank, _: Region, _: Region, _: u64) {}
}

/// Real numbers, with plain gradient descent at rate 1 on a gradient that the caller computes.
pub struct Numbers<G> {
    ranks: Vec<Buffers>,
    gradient: G,
}

#[derive(Clone, Debug, Default)]
struct Buffers {
    param: Vec<f32>,
    grad: Vec<f32>,
    scratch: Vec<Vec<f32>>,
    held: HashMap<MsgId, Vec<f32>>,
}

impl<G: FnMut(Rank, Unit, &[f32], &mut [f32])> Numbers<G> {
    /// Buffers that all start from `params`; `scratch` gives each rank's scratch lengths.
    pub fn new(params: &[f32], scratch: Vec<Vec<usize>>, gradient: G) -> Self {
        let ranks = scratch.into_iter().map(|lens| Buffers {
            param: params.to_vec(),
            grad: vec![0.0; params.len()],
            scratch: lens.into_iter().map(|len| vec![0.0; len]).collect(),
            held: HashMap::new(),
        });
        Self { ranks: ranks.collect(), gradient }
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

impl Buffers {
    fn get(&self, region: Region) -> &[f32] {
        let buffer = match region.buf {
            Buf::Param => &self.param,
            Buf::Grad => &self.grad,
            Buf::Scratch(n) => &self.scratch[usize::from(n)],
            Buf::Msg(msg) => &self.held[&msg],
        };
        &buffer[region.range()]
    }

    fn get_mut(&mut self, region: Region) -> &mut [f32] {
        let buffer = match region.buf {
            Buf::Param => &mut self.param,
            Buf::Grad => &mut self.grad,
            Buf::Scratch(n) => &mut self.scratch[usize::from(n)],
            Buf::Msg(_) => panic!("a received body is read only"),
        };
        &mut buffer[region.range()]
    }
}

impl<G: FnMut(Rank, Unit, &[f32], &mut [f32])> Memory for Numbers<G> {
    type Body = Vec<f32>;

    fn gradient(&mut self, rank: Rank, unit: Unit) {
        let Buffers { param, grad, .. } = &mut self.ranks[rank];
        (self.gradient)(rank, unit, param, grad);
    }
    fn read(&mut self, rank: Rank, region: Region) -> Vec<f32> {
        self.ranks[rank].get(region).to_vec()
    }
    fn hold(&mut self, rank: Rank, msg: MsgId, body: Vec<f32>) {
        assert!(self.ranks[rank].held.insert(msg, body).is_none(), "a new number for each body");
    }
    fn release(&mut self, rank: Rank, msg: MsgId) {
        assert!(self.ranks[rank].held.remove(&msg).is_some(), "released twice");
    }
    fn combine(&mut self, rank: Rank, dst: Region, src: Region, add: bool) {
        let src = self.ranks[rank].get(src).to_vec();
        let dst = self.ranks[rank].get_mut(dst);
        assert_eq!(dst.len(), src.len(), "a message of the region's length");
        dst.iter_mut().zip(src).for_each(|(d, s)| *d = if add { *d + s } else { s });
    }
    fn apply(&mut self, rank: Rank, params: Region, grad: Region, _step: u64) {
        let grad = self.ranks[rank].get(grad).to_vec();
        self.ranks[rank].get_mut(params).iter_mut().zip(grad).for_each(|(p, g)| *p -= g);
    }
}
