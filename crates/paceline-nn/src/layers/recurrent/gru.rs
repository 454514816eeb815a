//! Gated recurrent unit.

use super::{Cell, Exec, Step};
use crate::accel::{Product, TileStart, elementwise, gates};
use crate::description::{Fields, Problem};
use crate::layers::{Layer, Place};
use crate::real::Real;

/// A gated recurrent unit over a sequence, PyTorch's form; the output is every step's hidden state.
#[derive(Clone, Debug, PartialEq)]
pub struct Gru {
    /// Width of the hidden state.
    pub width: usize,
}

impl Gru {
    pub(in crate::layers) fn read(fields: &mut Fields<'_>) -> Result<Self, Problem> {
        Ok(Self { width: fields.needed("width")? })
    }

    pub(in crate::layers) fn layer<T: Real>(&self, at: Place<'_>) -> Box<dyn Layer<T>> {
        Exec::boxed(self, &at)
    }
}

/// Reset gate, update gate, candidate. Kept are these, and the hidden state's part of the candidate.
impl Cell for Gru {
    const GATES: usize = 3;
    const KEPT: usize = 4;
    const HIDDEN: &'static [[usize; 3]] = &[[0, 0, 2], [3, 2, 1]];

    fn width(&self) -> usize {
        self.width
    }

    fn forward<T: Real>(at: &Step<'_, T>, kept: &mut [T], y: &mut [T], w_hh: &[T], b_hh: &[T]) {
        let &Step { level, step, steps: t, h, nothing } = at;
        let (each, wide, samples) = (Self::KEPT * h, Self::GATES * h, y.len() / (t * h));
        // The state before the first step is zero: a sum of no terms.
        let (before, terms) = if step == 0 { (&*y, 0) } else { (&y[(step - 1) * h..], h) };
        let before = (before, t * h, 1);
        let (both, candidate) = ([samples, 2 * h, terms], [samples, h, terms]);
        let to = (&mut kept[step * each..], t * each);
        T::product(level, Product::matrices(both, before, (w_hh, wide), to, TileStart::Output));
        let (weight, bias) = (&w_hh[2 * h..], TileStart::Bias(&b_hh[2 * h..]));
        let to = (&mut kept[step * each + 3 * h..], t * each);
        T::product(level, Product::matrices(candidate, before, (weight, wide), to, bias));
        for (kept, y) in kept.chunks_exact_mut(t * each).zip(y.chunks_exact_mut(t * h)) {
            let (before, y) = y[..(step + 1) * h].split_at_mut(step * h);
            let before = if step == 0 { nothing } else { &before[(step - 1) * h..] };
            gates::gru(level, &mut kept[step * each..(step + 1) * each], b_hh, before, y);
        }
    }

    fn backward<T: Real>(at: &Step<'_, T>, kept: &mut [T], y: &[T], dy: &mut [T]) {
        let &Step { level, step, steps: t, h, nothing } = at;
        let each = Self::KEPT * h;
        let samples = dy.chunks_exact_mut(t * h).zip(kept.chunks_exact_mut(t * each));
        for ((dy, kept), y) in samples.zip(y.chunks_exact(t * h)) {
            let (others, d) = dy[..(step + 1) * h].split_at_mut(step * h);
            let kept = &mut kept[step * each..(step + 1) * each];
            match step.checked_sub(1).map(|before| before * h) {
                None => gates::gru_backward(level, kept, nothing, d),
                Some(before) => {
                    gates::gru_backward(level, kept, &y[before..before + h], d);
                    elementwise::accumulate(level, d, &mut others[before..]);
                }
            }
        }
    }
}
