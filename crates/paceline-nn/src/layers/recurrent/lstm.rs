//! Long short-term memory.

use super::Sizes;
use crate::accel::{Product, Start, elementwise, gates};
use crate::compute::Buffer;
use crate::description::{Fields, Problem};
use crate::layers::{Backward, Forward, Layer, Place, Spec, TensorSpec};
use crate::real::Real;
use crate::shape::Shape;

/// A long short-term memory over a sequence, PyTorch's form; the output is every step's hidden state.
#[derive(Clone, Debug, PartialEq)]
pub struct Lstm {
    /// Width of the hidden state.
    pub width: usize,
}

/// Input gate, forget gate, candidate, output gate.
const GATES: usize = 4;

impl Spec for Lstm {
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

impl Lstm {
    pub(in crate::layers) fn read(fields: &mut Fields<'_>) -> Result<Self, Problem> {
        Ok(Self { width: fields.needed("width")? })
    }

    pub(in crate::layers) fn layer<T: Real>(&self, at: Place<'_>) -> Box<dyn Layer<T>> {
        let sizes = Sizes::new(&at, self.width, GATES, 6);
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
    /// For each sample and step the gates and the candidate, the cell, and its hyperbolic tangent.
    kept: Buffer<T>,
    /// The cell before the first step.
    nothing: Buffer<T>,
    /// Column sums of what is kept.
    sums: Buffer<T>,
}

impl<T: Real> Layer<T> for Exec<T> {
    fn forward(&mut self, io: Forward<'_, T>) {
        let s = &self.sizes;
        let (level, t, h, each, wide) = (io.compute.level, s.t, s.h, s.kept, GATES * s.h);
        let [w_ih, w_hh, b_ih, b_hh] = s.tensors(io.params);
        let kept = &mut self.kept[..io.pass.samples * t * each];
        let nothing = &self.nothing[..];
        let cost = t * wide * (s.inputs + h);
        io.compute.pool.split2(io.y, t * h, kept, t * each, cost, |first, y, kept| {
            let samples = y.len() / (t * h);
            let x = &io.x[first * t * s.inputs..(first + samples) * t * s.inputs];
            s.input_sums(io.compute, x, w_ih, b_ih, kept);
            for step in 0..t {
                if step > 0 {
                    let (before, to) =
                        ((&y[(step - 1) * h..], t * h, 1), (&mut kept[step * each..], t * each));
                    let size = [samples, wide, h];
                    T::product(level, Product::matrices(size, before, (w_hh, wide), to, Start::Output));
                }
                for (kept, y) in kept.chunks_exact_mut(t * each).zip(y.chunks_exact_mut(t * h)) {
                    let (others, own) = kept[..(step + 1) * each].split_at_mut(step * each);
                    let before = step.checked_sub(1).map_or(nothing, |b| &others[b * each + 4 * h..][..h]);
                    gates::lstm(level, own, b_hh, before, &mut y[step * h..(step + 1) * h]);
                }
            }
        });
    }

    fn backward(&mut self, io: Backward<'_, T>) {
        self.sizes.turn(io.compute, io.params);
        let s = &self.sizes;
        let (level, t, h, each, wide) = (io.compute.level, s.t, s.h, s.kept, GATES * s.h);
        let kept = &mut self.kept[..io.pass.samples * t * each];
        let (nothing, cost) = (&self.nothing[..], t * wide * h);
        let cell = 4 * h..5 * h;
        io.compute.pool.split2(io.dy, t * h, kept, t * each, cost, |_, dy, kept| {
            let samples = dy.len() / (t * h);
            for step in (0..t).rev() {
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
                if step > 0 {
                    let (a, b) = ((&kept[step * each..], t * each, 1), (&s.turned[1][..], h));
                    let (to, size) = ((&mut dy[(step - 1) * h..], t * h), [samples, h, wide]);
                    T::product(level, Product::matrices(size, a, b, to, Start::Output));
                }
            }
        });
        let kept = &*kept;
        let (d_ih, rest) = io.grads.split_at_mut(s.inputs * wide);
        let (d_hh, rest) = rest.split_at_mut(h * wide);
        let (db_ih, db_hh) = rest.split_at_mut(wide);
        s.weight_gradients(io.compute, (io.x, io.y, kept), d_ih, d_hh, &[(0, 0, wide)]);
        elementwise::column_sums(level, kept, &mut self.sums);
        db_ih.copy_from_slice(&self.sums[..wide]);
        db_hh.copy_from_slice(&self.sums[..wide]);
        if let Some(dx) = io.dx {
            self.sizes.input_gradient(io.compute, kept, dx);
        }
    }
}
