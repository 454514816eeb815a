//! Long short-term memory.

use super::{Cell, Exec, Step};
use crate::accel::{Product, TileStart, gates};
use crate::description::{Fields, Problem};
use crate::layers::{Layer, Place};
use crate::real::Real;

/// A long short-term memory over a sequence, PyTorch's form; the output is every step's hidden state.
#[derive(Clone, Debug, PartialEq)]
pub struct Lstm {
    /// Width of the hidden state.
    pub width: usize,
}

impl Lstm {
    pub(in crate::layers) fn read(fields: &mut Fields<'_>) -> Result<Self, Problem> {
        Ok(Self { width: fields.needed("width")? })
    }

    pub(in crate::layers) fn layer<T: Real>(&self, at: Place<'_>) -> Box<dyn Layer<T>> {
        Exec::boxed(self, &at)
    }
}

/// Input gate, forget gate, candidate, output gate. Kept are these, the cell, and its hyperbolic tangent.
impl Cell for Lstm {
    const GATES: usize = 4;
    const KEPT: usize = 6;
    const HIDDEN: &'static [[usize; 3]] = &[[0, 0, 4]];

    fn width(&self) -> usize {
        self.width
    }

    fn forward<T: Real>(at: &Step<'_, T>, kept: &mut [T], y: &mut [T], w_hh: &[T], b_hh: &[T]) {
        let &Step { level, step, steps: t, h, nothing } = at;
        let (each, wide, samples) = (Self::KEPT * h, Self::GATES * h, y.len() / (t * h));
        if step > 0 {
            let (before, to) = ((&y[(step - 1) * h..], t * h, 1), (&mut kept[step * each..], t * each));
            let size = [samples, wide, h];
            T::product(level, Product::matrices(size, before, (w_hh, wide), to, TileStart::Output));
        }
        for (kept, y) in kept.chunks_exact_mut(t * each).zip(y.chunks_exact_mut(t * h)) {
            let (others, own) = kept[..(step + 1) * each].split_at_mut(step * each);
            let before = step.checked_sub(1).map_or(nothing, |b| &others[b * each + 4 * h..][..h]);
            gates::lstm(level, own, b_hh, before, &mut y[step * h..(step + 1) * h]);
        }
    }

    fn backward<T: Real>(at: &Step<'_, T>, kept: &mut [T], _: &[T], dy: &mut [T]) {
        let &Step { level, step, steps: t, h, nothing } = at;
        let (each, cell) = (Self::KEPT * h, 4 * h..5 * h);
        for (kept, dy) in kept.chunks_exact_mut(t * each).zip(dy.chunks_exact(t * h)) {
            let (others, own) = kept[..(step + 1) * each].split_at_mut(step * each);
            if step == t - 1 {
                own[cell.clone()].fill(T::ZERO);
            }
            let dy = &dy[step * h..(step + 1) * h];
            match step.checked_sub(1) {
                None => gates::lstm_backward(level, own, nothing, dy),
                Some(before) => {
                    let before = &mut others[before * each..][cell.clone()];
                    gates::lstm_backward(level, own, before, dy);
                    before.copy_from_slice(&own[cell.clone()]);
                }
            }
        }
    }
}
