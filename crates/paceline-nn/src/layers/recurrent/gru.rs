//! Gated recurrent unit.

use super::Sizes;
use crate::accel::{Product, Start, elementwise, gates};
use crate::compute::Buffer;
use crate::description::{Fields, Problem};
use crate::layers::{Backward, Forward, Layer, Place, Spec, TensorSpec};
use crate::real::Real;
use crate::shape::Shape;

/// A gated recurrent unit over a sequence, PyTorch's form; the output is every step's hidden state.
#[derive(Clone, Debug, PartialEq)]
pub struct Gru {
    /// Width of the hidden state.
    pub width: usize,
}

/// Reset gate, update gate, candidate.
const GATES: usize = 3;

impl Spec for Gru {
    fn output(&self, inputs: &[Shape]) -> Result<Shape, String> {
        super::output(inputs[0], self.width)
    }
    fn params(&self, input: Shape) -> Vec<TensorSpec> {
        super::params(input, self.width, GATES)
    }
    fn multiply_adds(&self, input: Shape, _: Shape) -> u64 {
        super::multiply_adds(input, self.width, GATES)
    }
    fn describe(&self) -> String {
        format!("width {}", self.width)
    }
}

impl Gru {
    pub(in crate::layers) fn read(fields: &mut Fields<'_>) -> Result<Self, Problem> {
        Ok(Self { width: fields.needed("width")? })
    }

    pub(in crate::layers) fn layer<T: Real>(&self, at: Place<'_>) -> Box<dyn Layer<T>> {
        let sizes = Sizes::new(&at, self.width, GATES, 4);
        Box::new(Exec {
            kept: Buffer::new(at.capacity * at.input.w * sizes.kept),
            nothing: Buffer::new(self.width),
            sums: Buffer::new(sizes.kept),
            sizes,
        })
    }
}

struct Exec<T> {
    sizes: Sizes<T>,
    /// For each sample and step the gates, the candidate, and the hidden state's part of it.
    kept: Buffer<T>,
    /// The state before the first step.
    nothing: Buffer<T>,
    /// Column sums of what is kept.
    sums: Buffer<T>,
}

impl<T: Real> Layer<T> for Exec<T> {
    fn forward(&mut self, io: Forward<'_, T>) {
        let s = &self.sizes;
        let (level, t, h, each, wide) = (io.compute.level, s.t, s.h, s.kept, 3 * s.h);
        let [w_ih, w_hh, b_ih, b_hh] = s.tensors(io.params);
        let kept = &mut self.kept[..io.pass.samples * t * each];
        let nothing = &self.nothing[..];
        let cost = t * wide * (s.inputs + h);
        io.compute.pool.split2(io.y, t * h, kept, t * each, cost, |first, y, kept| {
            let samples = y.len() / (t * h);
            let x = &io.x[first * t * s.inputs..(first + samples) * t * s.inputs];
            s.input_sums(io.compute, x, w_ih, b_ih, kept);
            for step in 0..t {
                // The state before the first step is zero: a sum of no terms.
                let (before, terms) = if step == 0 { (&y[..], 0) } else { (&y[(step - 1) * h..], h) };
                let before = (before, t * h, 1);
                let (both, candidate) = ([samples, 2 * h, terms], [samples, h, terms]);
                let to = (&mut kept[step * each..], t * each);
                T::product(level, Product::matrices(both, before, (w_hh, wide), to, Start::Output));
                let (weight, bias) = (&w_hh[2 * h..], Start::Bias(&b_hh[2 * h..]));
                let to = (&mut kept[step * each + 3 * h..], t * each);
                T::product(level, Product::matrices(candidate, before, (weight, wide), to, bias));
                for (kept, y) in kept.chunks_exact_mut(t * each).zip(y.chunks_exact_mut(t * h)) {
                    let (before, y) = y[..(step + 1) * h].split_at_mut(step * h);
                    let before = if step == 0 { nothing } else { &before[(step - 1) * h..] };
                    gates::gru(level, &mut kept[step * each..(step + 1) * each], b_hh, before, y);
                }
            }
        });
    }

    fn backward(&mut self, io: Backward<'_, T>) {
        self.sizes.turn(io.compute, io.params);
        let s = &self.sizes;
        let (level, t, h, each) = (io.compute.level, s.t, s.h, s.kept);
        let kept = &mut self.kept[..io.pass.samples * t * each];
        let (nothing, cost) = (&self.nothing[..], 3 * t * h * h);
        io.compute.pool.split2(io.dy, t * h, kept, t * each, cost, |first, dy, kept| {
            let samples = dy.len() / (t * h);
            for step in (0..t).rev() {
                for i in 0..samples {
                    let y = &io.y[(first + i) * t * h..(first + i + 1) * t * h];
                    let (others, d) = dy[i * t * h..(i * t + step + 1) * h].split_at_mut(step * h);
                    let kept = &mut kept[(i * t + step) * each..(i * t + step + 1) * each];
                    match step.checked_sub(1).map(|before| before * h) {
                        None => gates::gru_backward(level, kept, nothing, d),
                        Some(before) => {
                            gates::gru_backward(level, kept, &y[before..before + h], d);
                            elementwise::accumulate(level, d, &mut others[before..]);
                        }
                    }
                }
                if step > 0 {
                    for (from, weight, terms) in [(0, 0, 2 * h), (3 * h, 2 * h, h)] {
                        let a = (&kept[step * each + from..], t * each, 1);
                        let b = (&s.turned[1][weight * h..], h);
                        let to = (&mut dy[(step - 1) * h..], t * h);
                        let size = [samples, h, terms];
                        T::product(level, Product::matrices(size, a, b, to, Start::Output));
                    }
                }
            }
        });
        let kept = &*kept;
        let wide = 3 * h;
        let (d_ih, rest) = io.grads.split_at_mut(s.inputs * wide);
        let (d_hh, rest) = rest.split_at_mut(h * wide);
        let (db_ih, db_hh) = rest.split_at_mut(wide);
        let columns = [(0, 0, 2 * h), (3 * h, 2 * h, h)];
        s.weight_gradients(io.compute, (io.x, io.y, kept), d_ih, d_hh, &columns);
        elementwise::column_sums(level, kept, &mut self.sums);
        db_ih.copy_from_slice(&self.sums[..wide]);
        db_hh[..2 * h].copy_from_slice(&self.sums[..2 * h]);
        db_hh[2 * h..].copy_from_slice(&self.sums[3 * h..]);
        if let Some(dx) = io.dx {
            self.sizes.input_gradient(io.compute, kept, dx);
        }
    }
}
