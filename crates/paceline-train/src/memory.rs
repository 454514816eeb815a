//! The memory behind a participant's regions.

use std::sync::LazyLock;

use paceline_nn::accel::{Level, accumulate};
use paceline_protocol::{Accumulate, Action, Buf, Buffers, MsgId, Region};
use paceline_wire::{Body, Source, Span};

use crate::update::Update;

/// Numbers of the buffers in the wire's spans.
const PARAM: u32 = 0;
const GRAD: u32 = 1;
const SCRATCH: u32 = 2;

/// A region as the wire's span. (Received bodies are never sent on.)
pub fn span(region: Region) -> Span {
    let buffer = match region.buf {
        Buf::Param => PARAM,
        Buf::Grad => GRAD,
        Buf::Scratch(n) => SCRATCH + u32::from(n),
        Buf::Msg(_) => panic!("a received body is not sent on"),
    };
    Span { buffer, offset: region.offset, len: region.len }
}

/// A span as a region.
pub fn region(span: Span) -> Region {
    let buf = match span.buffer {
        PARAM => Buf::Param,
        GRAD => Buf::Grad,
        n => Buf::Scratch((n - SCRATCH) as u16),
    };
    Region { buf, offset: span.offset, len: span.len }
}

/// Received bodies, by their number.
#[derive(Clone, Copy)]
pub struct Bodies<'a>(pub &'a [Option<Body>]);

impl<'a> Bodies<'a> {
    /// A body that was not released.
    pub fn get(self, msg: MsgId) -> &'a [f32] {
        self.0[msg.0 as usize].as_ref().expect("a body that was not released")
    }
}

/// Does a participant's computations, or says that now is not the time.
pub trait Memory: Source {
    /// Does a computation or an update; false if that cannot be done yet.
    fn compute(&mut self, action: &Action, bodies: Bodies<'_>) -> bool;
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
    pub buffers: Vec<Vec<f32>>,
    /// Room for codecs to work in.
    work: Vec<u32>,
    /// Room for gradients that are not in one piece yet.
    piece: Vec<f32>,
}

impl Scratch {
    /// Buffers of these lengths.
    pub fn new(lens: Vec<usize>) -> Self {
        Self { buffers: lens.into_iter().map(|len| vec![0.0; len]).collect(), ..Self::default() }
    }
}

/// The gradients that backward has finished so far: slices from the end of the flat buffer towards its
/// start.
#[derive(Default)]
pub struct Finished<'g> {
    slices: Vec<(usize, &'g mut [f32])>,
}

impl<'g> Finished<'g> {
    /// Takes over a finished slice; slices come in falling order.
    pub fn push(&mut self, offset: usize, slice: &'g mut [f32]) {
        self.slices.push((offset, slice));
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

    /// Lets `f` change the parts of a region, each beside its part of `src`.
    fn change(&mut self, dst: Region, src: &[f32], f: impl Fn(&mut [f32], &[f32])) {
        let parts: Vec<_> = self.parts(dst).collect();
        for (i, range, at) in parts {
            let len = range.len();
            f(&mut self.slices[i].1[range], &src[at..at + len]);
        }
    }

    /// Shows `f` the parts of a region, with their offset in it.
    fn read(&self, src: Region, mut f: impl FnMut(usize, &[f32])) {
        self.parts(src).for_each(|(i, range, at)| f(at, &self.slices[i].1[range]));
    }
}

/// A worker's memory while backward runs: only finished gradients and scratch can be touched.
pub struct DuringBackward<'a, 'g> {
    /// The gradients.
    pub grads: &'a mut Finished<'g>,
    /// The rest.
    pub scratch: &'a mut Scratch,
}

impl Source for DuringBackward<'_, '_> {
    fn slices<'a>(&'a self, span: Span, f: &mut dyn FnMut(&'a [f32])) {
        match region(span) {
            Region { buf: Buf::Scratch(n), offset, len } => {
                f(&self.scratch.buffers[usize::from(n)][offset..offset + len]);
            }
            region => {
                for (i, range, _) in self.grads.parts(region) {
                    f(&self.grads.slices[i].1[range]);
                }
            }
        }
    }
}

impl Memory for DuringBackward<'_, '_> {
    fn compute(&mut self, action: &Action, bodies: Bodies<'_>) -> bool {
        let Self { grads, scratch: Scratch { buffers, work, piece } } = self;
        match *action {
            Action::Reduce {
                dst: dst @ Region { buf: Buf::Grad, .. },
                src: Region { buf: Buf::Msg(msg), .. },
            } => {
                grads.change(dst, bodies.get(msg), add);
            }
            Action::Copy {
                dst: dst @ Region { buf: Buf::Grad, .. },
                src: Region { buf: Buf::Msg(msg), .. },
            } => {
                grads.change(dst, bodies.get(msg), <[f32]>::copy_from_slice);
            }
            Action::Reduce { dst: Region { buf: Buf::Scratch(n), offset, .. }, src }
                if src.buf == Buf::Grad =>
            {
                let dst = &mut buffers[usize::from(n)][offset..];
                grads.read(src, |at, part| add(&mut dst[at..at + part.len()], part));
            }
            Action::Copy { dst: Region { buf: Buf::Scratch(n), offset, len }, src } => {
                let Buf::Msg(msg) = src.buf else { return false };
                buffers[usize::from(n)][offset..offset + len].copy_from_slice(bodies.get(msg));
            }
            Action::Reduce { dst: Region { buf: Buf::Scratch(n), offset, len }, src } => {
                let Buf::Msg(msg) = src.buf else { return false };
                add(&mut buffers[usize::from(n)][offset..offset + len], bodies.get(msg));
            }
            Action::Encode { coder, dst, src, feedback: false } if src.buf == Buf::Grad => {
                let Buf::Scratch(n) = dst.buf else { return false };
                piece.resize(src.len, 0.0);
                grads.read(src, |at, part| piece[at..at + part.len()].copy_from_slice(part));
                coder.encode(piece, &mut buffers[usize::from(n)][dst.range()], work);
            }
            Action::Decode { coder, dst, src, into } if dst.buf == Buf::Grad => {
                let code = match src.buf {
                    Buf::Msg(msg) => bodies.get(msg),
                    Buf::Scratch(n) => &buffers[usize::from(n)][src.range()],
                    _ => return false,
                };
                piece.resize(dst.len, 0.0);
                coder.decode(code, piece, Accumulate::Set);
                match into {
                    Accumulate::Set => grads.change(dst, piece, <[f32]>::copy_from_slice),
                    Accumulate::Add => grads.change(dst, piece, add),
                    Accumulate::Subtract => return false,
                }
            }
            Action::Encode {
                dst: Region { buf: Buf::Scratch(_), .. },
                src: Region { buf: Buf::Scratch(_), .. },
                ..
            } => {
                // Neither parameters nor gradients are looked at.
                let (param, grad) = (&mut Vec::new(), &mut Vec::new());
                let mut all = Buffers { param, grad, scratch: buffers, work, accumulate: add };
                all.compute(action, &|msg| bodies.get(msg));
            }
            _ => return false,
        }
        true
    }
}

/// A rank's memory in one piece: a worker's after backward, or a server's.
pub struct Whole<'a> {
    /// Parameters. (A server has the whole flat buffer; only its shard's part is used.)
    pub params: &'a mut Vec<f32>,
    /// Gradients, or sums of them, laid out like the parameters.
    pub grads: &'a mut Vec<f32>,
    /// The rest.
    pub scratch: &'a mut Scratch,
    /// The optimiser.
    pub update: &'a mut Update,
}

impl Whole<'_> {
    fn get(&self, region: Region) -> &[f32] {
        let buffer = match region.buf {
            Buf::Param => &*self.params,
            Buf::Grad => &*self.grads,
            Buf::Scratch(n) => &self.scratch.buffers[usize::from(n)],
            Buf::Msg(_) => unreachable!("bodies are handed over as bodies"),
        };
        &buffer[region.range()]
    }
}

impl Source for Whole<'_> {
    fn slices<'a>(&'a self, span: Span, f: &mut dyn FnMut(&'a [f32])) {
        f(self.get(region(span)));
    }
}

impl Memory for Whole<'_> {
    fn compute(&mut self, action: &Action, bodies: Bodies<'_>) -> bool {
        let Self { params: param, grads: grad, scratch: Scratch { buffers: scratch, work, .. }, update } =
            self;
        if let Action::Apply { params, grad: from, step, whole } = *action {
            let grads = match from.buf {
                Buf::Msg(msg) => bodies.get(msg),
                _ => &grad[from.range()],
            };
            update.apply(params.offset, &mut param[params.range()], grads, step, whole);
            return true;
        }
        let mut all = Buffers { param, grad, scratch, work, accumulate: add };
        all.compute(action, &|msg| bodies.get(msg));
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
        let mut grads = Finished::default();
        grads.push(7, third);
        grads.push(3, second);
        grads.push(0, first);
        let memory = DuringBackward { grads: &mut grads, scratch: &mut Scratch::default() };
        for (offset, len) in [(0, 10), (2, 3), (3, 4), (8, 2), (6, 2), (1, 1), (5, 0)] {
            let mut seen = Vec::new();
            let span = Span { buffer: GRAD, offset, len };
            memory.slices(span, &mut |s| seen.extend_from_slice(s));
            assert_eq!(seen, (offset..offset + len).map(|i| i as f32).collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_touches_parameters_waits_for_the_end_of_backward() {
        let mut grads = Finished::default();
        let mut memory = DuringBackward { grads: &mut grads, scratch: &mut Scratch::default() };
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
