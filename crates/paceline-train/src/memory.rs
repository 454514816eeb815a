//! The memory behind a participant's regions.

use std::io;
use std::sync::LazyLock;

use paceline_memory::{Allocator, TensorStorage};
use paceline_nn::accel::{Level, accumulate};
use paceline_protocol::{Accumulate, Action, Buf, Buffers, MsgId, Region};
use paceline_wire::{Body, Source, Span};

use crate::crossings::Crossings;
use crate::update::Update;

/// Numbers of the buffers in the wire's spans.
const PARAM: u32 = 0;
const GRAD: u32 = 1;
const SCRATCH: u32 = 2;
/// The gradients of a rank's further positions, from 1: behind every scratch buffer.
const HOSTED: u32 = 1 << 20;
/// What the crossings of a rank's stage carry, and the gradients that come back.
const VALUES: u32 = 1 << 21;
const SLOPES: u32 = 1 << 22;
/// Blocks of the optimiser's memory.
const OPTIMISER: u32 = 1 << 23;

/// A region as the wire's span. (Received bodies are never sent on.)
pub fn span(region: Region) -> Span {
    let buffer = match region.buf {
        Buf::Param => PARAM,
        Buf::Grad => GRAD,
        Buf::HostedGrad(n) => HOSTED + u32::from(n),
        Buf::Scratch(n) => SCRATCH + u32::from(n),
        Buf::Optimiser(n) => OPTIMISER + u32::from(n),
        Buf::Value(n) => VALUES + u32::from(n),
        Buf::Slope(n) => SLOPES + u32::from(n),
        Buf::Msg(_) => panic!("a received body is not sent on"),
    };
    Span { buffer, offset: region.offset, len: region.len }
}

/// A span as a region.
pub fn region(span: Span) -> Region {
    let buf = match span.buffer {
        PARAM => Buf::Param,
        GRAD => Buf::Grad,
        OPTIMISER.. => Buf::Optimiser((span.buffer - OPTIMISER) as u16),
        SLOPES.. => Buf::Slope((span.buffer - SLOPES) as u16),
        VALUES.. => Buf::Value((span.buffer - VALUES) as u16),
        HOSTED.. => Buf::HostedGrad((span.buffer - HOSTED) as u16),
        n => Buf::Scratch((n - SCRATCH) as u16),
    };
    Region { buf, offset: span.offset, len: span.len }
}

/// Elements from which on a buffer (16 MiB) does not stay in the caches that cores have for themselves until it is used.
const STREAMED: usize = 4 << 20;

/// Received bodies, by their number.
#[derive(Clone, Copy)]
pub struct Bodies<'a>(pub &'a [Option<Body>]);

impl<'a> Bodies<'a> {
    fn body(self, msg: MsgId) -> &'a Body {
        self.0[msg.0 as usize].as_ref().expect("a body that was not released")
    }

    /// The elements of a body that was not released.
    pub fn get(self, msg: MsgId) -> &'a [f32] {
        self.body(msg)
    }

    /// `dst += ` elements of a body, from `at` on: straight out of its sender's memory if it is lent.
    pub fn add_to(self, msg: MsgId, at: usize, dst: &mut [f32]) {
        self.body(msg).add_to(at, dst, add);
    }

    /// `dst = ` elements of a body, from `at` on; `dst` is a part of `whole` elements, all of which change.
    pub fn copy_to(self, msg: MsgId, at: usize, dst: &mut [f32], whole: usize) {
        if whole >= STREAMED { self.body(msg).stream_to(at, dst) } else { self.body(msg).copy_to(at, dst) }
    }

    /// Sums or copies a whole body into its place.
    fn take(self, msg: MsgId, action: &Action, dst: &mut [f32]) {
        assert_eq!(self.body(msg).len(), dst.len(), "a body of the region's length");
        let whole = dst.len();
        if let Action::Reduce { .. } = action {
            self.add_to(msg, 0, dst)
        } else {
            self.copy_to(msg, 0, dst, whole)
        }
    }
}

/// The body that an action sums or copies, and where to.
fn taken(action: &Action) -> Option<(Region, MsgId)> {
    match *action {
        Action::Reduce { dst, src: Region { buf: Buf::Msg(msg), .. } }
        | Action::Copy { dst, src: Region { buf: Buf::Msg(msg), .. } } => Some((dst, msg)),
        _ => None,
    }
}

/// Does a participant's computations, or says that now is not the time.
pub trait Memory: Source {
    /// Does a computation or an update; false if that cannot be done yet.
    fn compute(&mut self, action: &Action, bodies: Bodies<'_>) -> bool;

    /// Takes the learning rate of the worker whose message comes next, as a multiple of the first one.
    fn set_rate(&mut self, _rate: f64) {}
}

/// `dst += src`.
pub fn add(dst: &mut [f32], src: &[f32]) {
    static LEVEL: LazyLock<Level> = LazyLock::new(Level::detect);
    assert_eq!(dst.len(), src.len(), "a body of the region's length");
    accumulate(*LEVEL, src, dst);
}

/// What a rank has besides parameters and gradients.
#[derive(Default)]
pub struct Scratch {
    /// What the strategy asked for.
    pub buffers: Vec<TensorStorage>,
    /// Room for codecs to work in.
    work: Vec<u32>,
    /// Room for gradients that are not in one piece yet.
    piece: Vec<f32>,
    /// The optimiser's memory, block by block, while it is handed to another rank.
    pub optimiser: Vec<Vec<f32>>,
}

impl Scratch {
    /// Buffers of these lengths.
    pub fn new(lens: Vec<usize>, allocator: Allocator) -> io::Result<Self> {
        let buffers = lens.into_iter().map(|len| allocator.zeros(len)).collect::<io::Result<_>>()?;
        Ok(Self { buffers, ..Self::default() })
    }
}

/// The gradients that a source has finished so far, announced in any order: slices of the flat buffer.
pub struct FinishedGradients<'g> {
    /// In falling order.
    slices: Vec<(usize, &'g mut [f32])>,
    /// Everything at or behind this element is finished.
    watermark: usize,
}

impl<'g> FinishedGradients<'g> {
    /// Nothing of a buffer of this length.
    pub fn of(len: usize) -> Self {
        Self { slices: Vec::new(), watermark: len }
    }

    /// Takes over a finished slice; the first element behind which nothing is missing, if that has changed.
    pub fn push(&mut self, offset: usize, slice: &'g mut [f32]) -> Option<usize> {
        let at = self.slices.partition_point(|(other, _)| *other > offset);
        self.slices.insert(at, (offset, slice));
        let before = self.watermark;
        // Native networks finish from the end to the start: then only the new slice is looked at.
        for (offset, slice) in &self.slices[at..] {
            if offset + slice.len() != self.watermark {
                break;
            }
            self.watermark = *offset;
        }
        (self.watermark < before).then_some(self.watermark)
    }

    /// The parts of a range, in rising order, with their offset in the range.
    fn parts(&self, region: Region) -> impl Iterator<Item = (usize, std::ops::Range<usize>, usize)> + '_ {
        // Slices that end behind the range's start form a prefix; walk it backwards to rise.
        let end = self.slices.partition_point(|(offset, slice)| offset + slice.len() > region.offset);
        (0..end).rev().map_while(move |i| {
            let (offset, slice) = &self.slices[i];
            let from = region.offset.max(*offset);
            let to = (region.offset + region.len).min(offset + slice.len());
            (from < to).then(|| (i, from - offset..to - offset, from - region.offset))
        })
    }

    /// Elements up to the end of what is finished.
    fn len(&self) -> usize {
        self.slices.first().map_or(0, |(at, slice)| at + slice.len())
    }

    /// Lets `f` change the parts of a region, with their offset in it.
    fn change(&mut self, dst: Region, mut f: impl FnMut(usize, &mut [f32])) {
        let parts: Vec<_> = self.parts(dst).collect();
        parts.into_iter().for_each(|(i, range, at)| f(at, &mut self.slices[i].1[range]));
    }

    /// Shows `f` the parts of a region, with their offset in it.
    fn read(&self, src: Region, mut f: impl FnMut(usize, &[f32])) {
        self.parts(src).for_each(|(i, range, at)| f(at, &self.slices[i].1[range]));
    }
}

/// A worker's memory while a position's backward runs: only its finished gradients, those of its other positions, and
/// scratch can be touched.
pub struct BackwardMemory<'a, 'g> {
    /// The gradients.
    pub grads: &'a mut FinishedGradients<'g>,
    /// Those of the positions before and behind it.
    pub others: [&'a mut [TensorStorage]; 2],
    /// What goes to other stages and comes from them.
    pub crossings: &'a mut Crossings,
    /// The rest.
    pub scratch: &'a mut Scratch,
}

impl BackwardMemory<'_, '_> {
    /// The gradients of another position; none if the buffer is the present one's, or holds no gradients.
    fn other(&mut self, buf: Buf) -> Option<&mut TensorStorage> {
        let (slot, [before, behind]) = (slot(buf)?, &mut self.others);
        match slot.checked_sub(before.len()) {
            None => before.get_mut(slot),
            Some(0) => None,
            Some(n) => behind.get_mut(n - 1),
        }
    }
}

/// Which of a rank's positions has this buffer for its gradients.
fn slot(buf: Buf) -> Option<usize> {
    match buf {
        Buf::Grad => Some(0),
        Buf::HostedGrad(n) => Some(usize::from(n)),
        Buf::Param | Buf::Scratch(_) | Buf::Optimiser(_) | Buf::Value(_) | Buf::Slope(_) | Buf::Msg(_) => {
            None
        }
    }
}

impl Source for BackwardMemory<'_, '_> {
    fn slices<'a>(&'a self, span: Span, f: &mut dyn FnMut(&'a [f32])) {
        let region = region(span);
        let [before, behind] = &self.others;
        match (region.buf, slot(region.buf)) {
            (Buf::Scratch(n), _) => f(&self.scratch.buffers[usize::from(n)][region.range()]),
            (Buf::Value(_) | Buf::Slope(_), _) => {
                f(self.crossings.get(region).unwrap_or_default());
            }
            (_, Some(slot)) if slot < before.len() => f(&before[slot][region.range()]),
            (_, Some(slot)) if slot > before.len() => f(&behind[slot - before.len() - 1][region.range()]),
            _ => {
                for (i, range, _) in self.grads.parts(region) {
                    f(&self.grads.slices[i].1[range]);
                }
            }
        }
    }
}

impl Memory for BackwardMemory<'_, '_> {
    fn compute(&mut self, action: &Action, bodies: Bodies<'_>) -> bool {
        // Gradients of other positions take what comes from other ranks; what lies in two buffers of this one waits.
        if action.regions().into_iter().flatten().any(|region| self.other(region.buf).is_some()) {
            let Some((dst, msg)) = taken(action) else { return false };
            let Some(whole) = self.other(dst.buf) else { return false };
            bodies.take(msg, action, &mut whole[dst.range()]);
            return true;
        }
        if let Some((dst, msg)) = taken(action)
            && let Some(own) = self.crossings.get_mut(dst)
        {
            bodies.take(msg, action, own);
            return true;
        }
        let own =
            if self.others[0].is_empty() { Buf::Grad } else { Buf::HostedGrad(self.others[0].len() as u16) };
        let Self { grads, scratch: Scratch { buffers, work, piece, .. }, .. } = self;
        match *action {
            Action::Reduce { dst, src: Region { buf: Buf::Msg(msg), .. } } if dst.buf == own => {
                grads.change(dst, |at, part| bodies.add_to(msg, at, part));
            }
            Action::Copy { dst, src: Region { buf: Buf::Msg(msg), .. } } if dst.buf == own => {
                let whole = grads.len();
                grads.change(dst, |at, part| bodies.copy_to(msg, at, part, whole));
            }
            Action::Reduce { dst: Region { buf: Buf::Scratch(n), offset, .. }, src } if src.buf == own => {
                let dst = &mut buffers[usize::from(n)][offset..];
                grads.read(src, |at, part| add(&mut dst[at..at + part.len()], part));
            }
            Action::Copy { dst: Region { buf: Buf::Scratch(n), offset, len }, src } => {
                let Buf::Msg(msg) = src.buf else { return false };
                bodies.take(msg, action, &mut buffers[usize::from(n)][offset..offset + len]);
            }
            Action::Reduce { dst: Region { buf: Buf::Scratch(n), offset, len }, src } => {
                let Buf::Msg(msg) = src.buf else { return false };
                bodies.take(msg, action, &mut buffers[usize::from(n)][offset..offset + len]);
            }
            Action::Encode { coder, dst, src, feedback: false } if src.buf == own => {
                let Buf::Scratch(n) = dst.buf else { return false };
                piece.resize(src.len, 0.0);
                grads.read(src, |at, part| piece[at..at + part.len()].copy_from_slice(part));
                coder.encode(piece, &mut buffers[usize::from(n)][dst.range()], work);
            }
            Action::Decode { coder, dst, src, into } if dst.buf == own => {
                let code = match src.buf {
                    Buf::Msg(msg) => bodies.get(msg),
                    Buf::Scratch(n) => &buffers[usize::from(n)][src.range()],
                    _ => return false,
                };
                piece.resize(dst.len, 0.0);
                coder.decode(code, piece, Accumulate::Set);
                match into {
                    Accumulate::Set => {
                        grads.change(dst, |at, part| part.copy_from_slice(&piece[at..at + part.len()]));
                    }
                    Accumulate::Add => grads.change(dst, |at, part| add(part, &piece[at..at + part.len()])),
                    Accumulate::Subtract => return false,
                }
            }
            Action::Encode {
                dst: Region { buf: Buf::Scratch(_), .. },
                src: Region { buf: Buf::Scratch(_), .. },
                ..
            } => {
                // Neither parameters nor gradients are looked at.
                let (param, grads) = (&mut TensorStorage::default(), &mut []);
                let mut all = Buffers { param, grads, scratch: buffers, work, accumulate: add };
                all.compute(action, &|msg| bodies.get(msg));
            }
            _ => return false,
        }
        true
    }
}

/// A rank's memory in one piece: a worker's after backward, or a server's.
pub struct WholeMemory<'a> {
    /// Parameters. (A server has the whole flat buffer; only its shard's part is used.)
    pub params: &'a mut TensorStorage,
    /// Gradients of each position, or sums of them, laid out like the parameters.
    pub grads: &'a mut [TensorStorage],
    /// What goes to other stages and comes from them.
    pub crossings: &'a mut Crossings,
    /// The rest.
    pub scratch: &'a mut Scratch,
    /// The optimiser.
    pub update: &'a mut Update,
}

impl WholeMemory<'_> {
    fn get(&self, region: Region) -> &[f32] {
        let buffer = match region.buf {
            Buf::Param => &*self.params,
            Buf::Grad => &self.grads[0],
            Buf::HostedGrad(n) => &self.grads[usize::from(n)],
            Buf::Scratch(n) => &self.scratch.buffers[usize::from(n)],
            Buf::Optimiser(n) => return &self.scratch.optimiser[usize::from(n)][region.range()],
            Buf::Value(_) | Buf::Slope(_) => return self.crossings.get(region).expect("a crossing's region"),
            Buf::Msg(_) => unreachable!("bodies are handed over as bodies"),
        };
        &buffer[region.range()]
    }
}

impl Source for WholeMemory<'_> {
    fn slices<'a>(&'a self, span: Span, f: &mut dyn FnMut(&'a [f32])) {
        f(self.get(region(span)));
    }
}

impl Memory for WholeMemory<'_> {
    fn set_rate(&mut self, rate: f64) {
        self.update.set_rate(rate);
    }

    fn compute(&mut self, action: &Action, bodies: Bodies<'_>) -> bool {
        let Self { params: param, grads, crossings, scratch, update } = self;
        let Scratch { buffers: scratch, work, piece, .. } = &mut **scratch;
        if let Action::Apply { params, grad: from, step, whole } = *action {
            let (offset, changed) = (params.offset, &mut param[params.range()]);
            if let Buf::Msg(msg) = from.buf {
                update.apply_body(offset, changed, (bodies.body(msg), piece), step, whole);
            } else {
                let grad = &grads[slot(from.buf).expect("gradients")][from.range()];
                update.apply(offset, changed, grad, step, whole);
            }
            return true;
        }
        if let Action::Copy { dst: Region { buf: Buf::Optimiser(n), offset, .. }, src } = *action
            && let Buf::Msg(msg) = src.buf
        {
            update.take_over(usize::from(n), offset, bodies.get(msg));
            return true;
        }
        if let Some((dst, msg)) = taken(action) {
            let whole = match dst.buf {
                Buf::Param => &mut **param,
                Buf::Scratch(n) => &mut scratch[usize::from(n)],
                Buf::Value(_) | Buf::Slope(_) => {
                    bodies.take(msg, action, crossings.get_mut(dst).expect("a crossing's region"));
                    return true;
                }
                buf => &mut grads[slot(buf).expect("a buffer of this rank")],
            };
            bodies.take(msg, action, &mut whole[dst.range()]);
        } else {
            let mut all = Buffers { param: &mut **param, grads, scratch, work, accumulate: add };
            all.compute(action, &|msg| bodies.get(msg));
        }
        // Averages of equal numbers are not always equal to them, codes even less.
        if let Some(dst) = written(action).filter(|dst| dst.buf == Buf::Param) {
            update.hold(dst.offset, &mut param[dst.range()]);
        }
        true
    }
}

/// The region that a computation changes.
fn written(action: &Action) -> Option<Region> {
    match *action {
        Action::Reduce { dst, .. }
        | Action::Copy { dst, .. }
        | Action::Mix { dst, .. }
        | Action::Scale { dst, .. }
        | Action::Randomise { dst, .. }
        | Action::Decode { dst, .. } => Some(dst),
        // What the code does not say stays where it was read.
        Action::Encode { src, feedback: true, .. } => Some(src),
        Action::MatMul { dst, .. } | Action::Orthonormalise(dst) => Some(dst.region),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_that_spans_finished_slices_is_lent_in_order() {
        let mut buffer: Vec<f32> = (0..10).map(|i| i as f32).collect();
        let (first, rest) = buffer.split_at_mut(3);
        let (second, third) = rest.split_at_mut(4);
        let mut grads = FinishedGradients::of(10);
        // In another order than a network's.
        assert_eq!(grads.push(3, second), None);
        assert_eq!(grads.push(7, third), Some(3));
        assert_eq!(grads.push(0, first), Some(0));
        let (scratch, crossings) = (&mut Scratch::default(), &mut Crossings::default());
        let memory = BackwardMemory { grads: &mut grads, others: [&mut [], &mut []], crossings, scratch };
        for (offset, len) in [(0, 10), (2, 3), (3, 4), (8, 2), (6, 2), (1, 1), (5, 0)] {
            let mut seen = Vec::new();
            let span = Span { buffer: GRAD, offset, len };
            memory.slices(span, &mut |s| seen.extend_from_slice(s));
            assert_eq!(seen, (offset..offset + len).map(|i| i as f32).collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_touches_parameters_waits_for_the_end_of_backward() {
        let (mut grads, scratch) = (FinishedGradients::of(4), &mut Scratch::default());
        let crossings = &mut Crossings::default();
        let mut memory = BackwardMemory { grads: &mut grads, others: [&mut [], &mut []], crossings, scratch };
        let [params, grad] = [Buf::Param, Buf::Grad].map(|buf| Region { buf, offset: 0, len: 4 });
        for action in [
            Action::Apply { params, grad, step: 0, whole: true },
            Action::Scale { dst: params, by: 2.0 },
            Action::Copy { dst: params, src: Region { buf: Buf::Msg(MsgId(0)), ..grad } },
        ] {
            assert!(!memory.compute(&action, Bodies(&[])), "{action:?}");
        }
    }
}
