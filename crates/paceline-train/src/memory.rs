//! The memory behind a participant's regions.

use std::sync::LazyLock;

use paceline_nn::accel::{Level, accumulate};
use paceline_protocol::{Buf, Region};
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

/// Does a participant's computations, or says that now is not the time.
pub trait Memory: Source {
    /// `dst += body` or `dst = body`; false if `dst` cannot be written yet.
    fn take(&mut self, dst: Region, body: &Body, add: bool) -> bool;
    /// `dst = src` inside this memory; false if that cannot be done yet.
    fn copy(&mut self, dst: Region, src: Region) -> bool;
    /// Updates parameters with a gradient of this memory or a received one; false if not yet.
    fn apply(&mut self, params: Region, grad: Gradient<'_>, step: u64) -> bool;
}

/// Where a gradient lies.
#[derive(Clone, Copy)]
pub enum Gradient<'a> {
    /// In the gradient buffer, in the parameters' place.
    Own,
    /// In a received body.
    Received(&'a Body),
}

/// `dst += src` or `dst = src`, for regions of equal length.
pub fn combine(dst: &mut [f32], src: &[f32], add: bool) {
    assert_eq!(dst.len(), src.len(), "a body of the region's length");
    if add {
        static LEVEL: LazyLock<Level> = LazyLock::new(Level::detect);
        accumulate(*LEVEL, src, dst);
    } else {
        dst.copy_from_slice(src);
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

    fn take(&mut self, dst: Region, body: &Body, add: bool) {
        let parts: Vec<_> = self.parts(dst).collect();
        for (i, range, at) in parts {
            let len = range.len();
            combine(&mut self.slices[i].1[range], &body[at..at + len], add);
        }
    }
}

/// A worker's memory while backward runs: only finished gradients can be touched.
pub struct DuringBackward<'a, 'g> {
    /// The gradients.
    pub grads: &'a mut Finished<'g>,
}

impl Source for DuringBackward<'_, '_> {
    fn slices<'a>(&'a self, span: Span, f: &mut dyn FnMut(&'a [f32])) {
        lend(self.grads, span, f);
    }
}

fn lend<'a>(grads: &'a Finished<'_>, span: Span, f: &mut dyn FnMut(&'a [f32])) {
    let region = Region { buf: Buf::Grad, offset: span.offset, len: span.len };
    for (i, range, _) in grads.parts(region) {
        f(&grads.slices[i].1[range]);
    }
}

impl Memory for DuringBackward<'_, '_> {
    fn take(&mut self, dst: Region, body: &Body, add: bool) -> bool {
        if dst.buf == Buf::Grad {
            self.grads.take(dst, body, add);
        }
        dst.buf == Buf::Grad
    }
    fn copy(&mut self, _: Region, _: Region) -> bool {
        false
    }
    fn apply(&mut self, _: Region, _: Gradient<'_>, _: u64) -> bool {
        false
    }
}

/// A worker's memory after backward.
pub struct AfterBackward<'a, 'g> {
    /// The gradients.
    pub grads: &'a mut Finished<'g>,
    /// The parameters.
    pub params: &'a mut [f32],
    /// The optimiser.
    pub update: &'a mut Update,
}

impl Source for AfterBackward<'_, '_> {
    fn slices<'a>(&'a self, span: Span, f: &mut dyn FnMut(&'a [f32])) {
        match span.buffer {
            GRAD => lend(self.grads, span, f),
            _ => f(&self.params[span.offset..span.offset + span.len]),
        }
    }
}

impl Memory for AfterBackward<'_, '_> {
    fn take(&mut self, dst: Region, body: &Body, add: bool) -> bool {
        match dst.buf {
            Buf::Grad => self.grads.take(dst, body, add),
            _ => combine(&mut self.params[dst.range()], body, add),
        }
        true
    }
    fn copy(&mut self, _: Region, _: Region) -> bool {
        unreachable!("workers copy received bodies only")
    }
    fn apply(&mut self, params: Region, grad: Gradient<'_>, step: u64) -> bool {
        let Gradient::Own = grad else { unreachable!("workers apply their own gradients") };
        for (i, range, at) in self.grads.parts(Region { buf: Buf::Grad, ..params }) {
            let start = params.offset + at;
            let grads = &self.grads.slices[i].1[range];
            self.update.apply(start, &mut self.params[start..start + grads.len()], grads, step);
        }
        true
    }
}

/// A server's memory.
pub struct Shard<'a> {
    /// Parameters (the whole flat buffer; only the shard's part is used).
    pub params: &'a mut [f32],
    /// Sums of gradients, laid out like the parameters.
    pub grads: &'a mut [f32],
    /// What the strategy asked for.
    pub scratch: &'a mut [Vec<f32>],
    /// The optimiser.
    pub update: &'a mut Update,
}

impl Shard<'_> {
    fn buffer(&self, buf: Buf) -> &[f32] {
        match buf {
            Buf::Param => self.params,
            Buf::Grad => self.grads,
            Buf::Scratch(n) => &self.scratch[usize::from(n)],
            Buf::Msg(_) => unreachable!("bodies are handed over as bodies"),
        }
    }
}

impl Source for Shard<'_> {
    fn slices<'a>(&'a self, span: Span, f: &mut dyn FnMut(&'a [f32])) {
        let buf = match span.buffer {
            PARAM => Buf::Param,
            GRAD => Buf::Grad,
            n => Buf::Scratch((n - SCRATCH) as u16),
        };
        f(&self.buffer(buf)[span.offset..span.offset + span.len]);
    }
}

impl Memory for Shard<'_> {
    fn take(&mut self, dst: Region, body: &Body, add: bool) -> bool {
        let buffer = match dst.buf {
            Buf::Param => &mut *self.params,
            _ => &mut *self.grads,
        };
        combine(&mut buffer[dst.range()], body, add);
        true
    }
    fn copy(&mut self, dst: Region, src: Region) -> bool {
        let (Buf::Scratch(n), Buf::Param) = (dst.buf, src.buf) else {
            unreachable!("servers copy parameters to scratch")
        };
        self.scratch[usize::from(n)][dst.range()].copy_from_slice(&self.params[src.range()]);
        true
    }
    fn apply(&mut self, params: Region, grad: Gradient<'_>, step: u64) -> bool {
        let grads = match grad {
            Gradient::Own => &self.grads[params.range()],
            Gradient::Received(body) => body,
        };
        self.update.apply(params.offset, &mut self.params[params.range()], grads, step);
        true
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
        for (offset, len) in [(0, 10), (2, 3), (3, 4), (8, 2), (6, 2), (1, 1), (5, 0)] {
            let mut seen = Vec::new();
            let span = Span { buffer: GRAD, offset, len };
            lend(&grads, span, &mut |s| seen.extend_from_slice(s));
            assert_eq!(seen, (offset..offset + len).map(|i| i as f32).collect::<Vec<_>>());
        }
    }
}
