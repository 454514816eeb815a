//! Recurrent layers: what the two kinds share.
//!
//! Each thread takes some samples through all steps. What backward needs of a step (the values of its
//! gates) is kept side by side for each sample and step, and overwritten by the gates' gradients, from
//! which all weight gradients are single products over samples and steps.

mod gru;
mod lstm;

pub use gru::Gru;
pub use lstm::Lstm;

use super::sequence::steps;
use super::{Init, Place, TensorSpec};
use crate::accel::{Product, Repeat, Start, elementwise};
use crate::compute::{Buffer, Compute};
use crate::real::Real;
use crate::shape::Shape;

fn output(input: Shape, width: usize) -> Result<Shape, String> {
    let (t, _) = steps(input)?;
    if width == 0 {
        return Err("the width must be at least 1".into());
    }
    Ok(Shape::new(1, t, width))
}

/// PyTorch's tensors, turned: inputs × gates, hidden × gates, and two biases.
fn params(input: Shape, width: usize, gates: usize) -> Vec<TensorSpec> {
    let init = Init::Uniform(1.0 / (width as f64).sqrt());
    let tensor = |name, shape| TensorSpec { name, shape, init };
    vec![
        tensor("weight_ih", vec![input.c, gates * width]),
        tensor("weight_hh", vec![width, gates * width]),
        tensor("bias_ih", vec![gates * width]),
        tensor("bias_hh", vec![gates * width]),
    ]
}

fn multiply_adds(input: Shape, width: usize, gates: usize) -> u64 {
    (input.w * (input.c + width) * gates * width) as u64
}

/// The layer's sizes and turned weights.
struct Sizes<T> {
    t: usize,
    /// Numbers of a step's input.
    inputs: usize,
    /// Width of the hidden state.
    h: usize,
    /// Gates, each of the hidden state's width.
    gates: usize,
    /// Numbers kept of a sample and step.
    kept: usize,
    /// `weight_ih` and `weight_hh`, turned; the first only where the input's gradient is asked for.
    turned: [Buffer<T>; 2],
}

impl<T: Real> Sizes<T> {
    fn new(at: &Place<'_>, h: usize, gates: usize, kept: usize) -> Self {
        let inputs = at.input.c;
        let turned = if at.input_gradient { gates * h * inputs } else { 0 };
        Self {
            t: at.input.w,
            inputs,
            h,
            gates,
            kept: kept * h,
            turned: [Buffer::new(turned), Buffer::new(gates * h * h)],
        }
    }

    fn tensors<'a>(&self, params: &'a [T]) -> [&'a [T]; 4] {
        let wide = self.gates * self.h;
        let (w_ih, rest) = params.split_at(self.inputs * wide);
        let (w_hh, rest) = rest.split_at(self.h * wide);
        let (b_ih, b_hh) = rest.split_at(wide);
        [w_ih, w_hh, b_ih, b_hh]
    }

    /// The input's part of all gates and steps of the samples whose `kept` this is.
    fn input_sums(&self, compute: &Compute, x: &[T], weight: &[T], bias: &[T], kept: &mut [T]) {
        let wide = self.gates * self.h;
        let size = [kept.len() / self.kept, wide, self.inputs];
        let (a, b, start) = ((x, self.inputs, 1), (weight, wide), Start::Bias(bias));
        T::product(compute.level, Product::matrices(size, a, b, (kept, self.kept), start));
    }

    /// Turns the weights for a backward pass.
    fn turn(&mut self, compute: &Compute, params: &[T]) {
        let wide = self.gates * self.h;
        let [w_ih, w_hh, ..] = self.tensors(params);
        elementwise::transpose(compute.level, w_hh, self.h, wide, 0, &mut self.turned[1]);
        if !self.turned[0].is_empty() {
            elementwise::transpose(compute.level, w_ih, self.inputs, wide, 0, &mut self.turned[0]);
        }
    }

    /// Gradients of the two weights. `hidden` lists, as (place in `kept`, place among the gates, width),
    /// where the hidden weight's columns find their gradient.
    fn weight_gradients(
        &self,
        compute: &Compute,
        (x, y, kept): (&[T], &[T], &[T]),
        d_ih: &mut [T],
        d_hh: &mut [T],
        hidden: &[(usize, usize, usize)],
    ) {
        let (level, t, h, wide, each) = (compute.level, self.t, self.h, self.gates * self.h, self.kept);
        let (rows, samples) = (x.len() / self.inputs, x.len() / self.inputs / t);
        compute.pool.split(d_ih, wide, rows * wide, |first, d| {
            let size = [d.len() / wide, wide, rows];
            let (a, b) = ((&x[first..], 1, self.inputs), (kept, each));
            T::product(level, Product::matrices(size, a, b, (d, wide), Start::Zero));
        });
        compute.pool.split(d_hh, wide, rows * wide, |first, d| {
            for &(from, to, cols) in hidden {
                // Step s meets the state after step s − 1; before the first it was zero.
                let task = Product {
                    rows: d.len() / wide,
                    cols,
                    outer: samples,
                    inner: t - 1,
                    a: &y[first..],
                    a_row: 1,
                    a_outer: t * h,
                    a_inner: h,
                    b: &kept[(each + from).min(kept.len())..],
                    b_outer: t * each,
                    b_inner: each,
                    c: &mut d[to..],
                    c_row: wide,
                    start: Start::Zero,
                    relu: false,
                    repeat: Repeat::ONCE,
                };
                T::product(level, task);
            }
        });
    }

    /// The input's gradient from the gates'.
    fn input_gradient(&self, compute: &Compute, kept: &[T], dx: super::InputGradient<'_, T>) {
        let (i, wide, each) = (self.inputs, self.gates * self.h, self.kept);
        let start = if dx.add { Start::Output } else { Start::Zero };
        compute.pool.split(dx.values, i, i * wide, |first, dx| {
            let size = [dx.len() / i, i, wide];
            let (a, b) = ((&kept[first * each..], each, 1), (&self.turned[0][..], i));
            T::product(compute.level, Product::matrices(size, a, b, (dx, i), start));
        });
    }
}
