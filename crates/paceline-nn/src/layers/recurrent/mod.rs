//! Recurrent layers: what the two kinds share.
//!
//! Each thread takes some samples through all steps. What backward needs of a step (the values of its
//! gates) is kept side by side for each sample and step, and overwritten by the gates' gradients, from
//! which all weight gradients are single products over samples and steps.

mod gru;
mod lstm;

pub use gru::Gru;
pub use lstm::Lstm;

use std::marker::PhantomData;

use super::sequence::steps;
use super::{Backward, Forward, Init, Layer, Place, Spec, TensorSpec};
use crate::accel::{Level, Product, TileStart, elementwise};
use crate::compute::Buffer;
use crate::real::Real;
use crate::shape::Shape;

/// A kind of recurrent layer: what happens in a step.
trait Cell: Send + Sync + 'static {
    /// Gates, each of the hidden state's width.
    const GATES: usize;
    /// Numbers kept of a sample and step, as a multiple of the hidden state's width. The gates come first.
    const KEPT: usize;
    /// Where the hidden weight's columns find their gradient: place in what is kept, place among the gates, and
    /// width, as multiples of the hidden state's width.
    const HIDDEN: &'static [[usize; 3]];

    /// Width of the hidden state.
    fn width(&self) -> usize;

    /// Turns the input's part of the gates, in `kept`, into the gates' values, and writes the step's output.
    fn forward<T: Real>(at: &Step<'_, T>, kept: &mut [T], y: &mut [T], w_hh: &[T], b_hh: &[T]);

    /// Turns the gates' values, in `kept`, into their gradients. What goes to the state before by other ways than
    /// the hidden weight is added to its gradient.
    fn backward<T: Real>(at: &Step<'_, T>, kept: &mut [T], y: &[T], dy: &mut [T]);
}

/// A step that some samples are taken through; buffers hold all steps of these samples.
struct Step<'a, T> {
    level: Level,
    step: usize,
    steps: usize,
    /// Width of the hidden state.
    h: usize,
    /// A state of zeros: that before the first step.
    nothing: &'a [T],
}

impl<C: Cell> Spec for C {
    fn output(&self, inputs: &[Shape]) -> Result<Shape, String> {
        let (t, _) = steps(inputs[0])?;
        if self.width() == 0 {
            return Err("the width must be at least 1".into());
        }
        Ok(Shape::new(1, t, self.width()))
    }
    /// PyTorch's tensors, turned: inputs × gates, hidden × gates, and two biases.
    fn params(&self, input: Shape) -> Vec<TensorSpec> {
        let (width, wide) = (self.width(), C::GATES * self.width());
        let init = Init::Uniform(1.0 / (width as f64).sqrt());
        let tensor = |name, shape| TensorSpec { name, shape, init };
        vec![
            tensor("weight_ih", vec![input.c, wide]),
            tensor("weight_hh", vec![width, wide]),
            tensor("bias_ih", vec![wide]),
            tensor("bias_hh", vec![wide]),
        ]
    }
    fn multiply_adds(&self, input: Shape, _: Shape) -> u64 {
        (input.w * (input.c + self.width()) * C::GATES * self.width()) as u64
    }
    fn saved(&self, input: Shape, _: Shape, _: bool) -> usize {
        input.w * C::KEPT * self.width()
    }
    fn describe(&self) -> String {
        format!("width {}", self.width())
    }
}

struct Exec<T, C> {
    t: usize,
    /// Numbers of a step's input.
    inputs: usize,
    /// Width of the hidden state.
    h: usize,
    /// `weight_ih` and `weight_hh`, turned; the first only where the input's gradient is asked for.
    turned: [Buffer<T>; 2],
    nothing: Buffer<T>,
    cell: PhantomData<C>,
}

impl<T: Real, C: Cell> Exec<T, C> {
    fn boxed(cell: &C, at: &Place<'_>) -> Box<dyn Layer<T>> {
        let (h, inputs) = (cell.width(), at.input.c);
        let turned = if at.input_gradient { C::GATES * h * inputs } else { 0 };
        Box::new(Self {
            t: at.input.w,
            inputs,
            h,
            turned: [Buffer::new(turned), Buffer::new(C::GATES * h * h)],
            nothing: Buffer::new(h),
            cell: PhantomData,
        })
    }

    fn step(&self, level: Level, step: usize) -> Step<'_, T> {
        Step { level, step, steps: self.t, h: self.h, nothing: &self.nothing }
    }
}

impl<T: Real, C: Cell> Layer<T> for Exec<T, C> {
    fn forward(&mut self, io: Forward<'_, T>) {
        let (level, t, h, inputs) = (io.compute.level, self.t, self.h, self.inputs);
        let (each, wide) = (C::KEPT * h, C::GATES * h);
        let (w_ih, rest) = io.params.split_at(inputs * wide);
        let (w_hh, rest) = rest.split_at(h * wide);
        let (b_ih, b_hh) = rest.split_at(wide);
        let cost = t * wide * (inputs + h);
        io.compute.pool.split2(io.y, t * h, io.saved, t * each, cost, |first, y, kept| {
            // The input's part of all gates and steps.
            let (size, x) = ([kept.len() / each, wide, inputs], (&io.x[first * t * inputs..], inputs, 1));
            T::product(
                level,
                Product::matrices(size, x, (w_ih, wide), (&mut *kept, each), TileStart::Bias(b_ih)),
            );
            for step in 0..t {
                C::forward(&self.step(level, step), kept, y, w_hh, b_hh);
            }
        });
    }

    fn backward(&mut self, io: Backward<'_, T>) {
        let (level, pool) = (io.compute.level, &io.compute.pool);
        let (t, h, inputs) = (self.t, self.h, self.inputs);
        let (each, wide) = (C::KEPT * h, C::GATES * h);
        let (w_ih, w_hh) = io.params[..(inputs + h) * wide].split_at(inputs * wide);
        elementwise::transpose(level, w_hh, h, wide, 0, &mut self.turned[1]);
        if !self.turned[0].is_empty() {
            elementwise::transpose(level, w_ih, inputs, wide, 0, &mut self.turned[0]);
        }
        let (this, [turned_ih, turned_hh]) = (&*self, &self.turned);
        pool.split2(io.dy, t * h, io.saved, t * each, t * wide * h, |first, dy, kept| {
            let (samples, y) = (dy.len() / (t * h), &io.y[first * t * h..]);
            for step in (0..t).rev() {
                C::backward(&this.step(level, step), kept, y, dy);
                if step == 0 {
                    break;
                }
                for &[from, to, width] in C::HIDDEN {
                    let (size, a) = ([samples, h, width * h], (&kept[step * each + from * h..], t * each, 1));
                    let (b, c) = ((&turned_hh[to * h * h..], h), (&mut dy[(step - 1) * h..], t * h));
                    T::product(level, Product::matrices(size, a, b, c, TileStart::Output));
                }
            }
        });
        let kept = &*io.saved;
        let (d_ih, rest) = io.grads.split_at_mut(inputs * wide);
        let (d_hh, rest) = rest.split_at_mut(h * wide);
        let (db_ih, db_hh) = rest.split_at_mut(wide);
        let (rows, start) = (io.pass.samples * t, io.pass.start());
        pool.split(d_ih, wide, rows * wide, |first, d| {
            let (size, x) = ([d.len() / wide, wide, rows], (&io.x[first..], 1, inputs));
            T::product(level, Product::matrices(size, x, (kept, each), (d, wide), start));
        });
        pool.split(d_hh, wide, rows * wide, |first, d| {
            for &[from, to, width] in C::HIDDEN {
                // Step s meets the state after step s − 1; before the first it was zero.
                let (size, y) = ([d.len() / wide, width * h, t - 1], (&io.y[first..], 1, h));
                let kept = &kept[(each + from * h).min(kept.len())..];
                let task = Product::matrices(size, y, (kept, each), (&mut d[to * h..], wide), start);
                let (outer, a_outer, b_outer) = (io.pass.samples, t * h, t * each);
                T::product(level, Product { outer, a_outer, b_outer, ..task });
            }
        });
        // The biases' gradients are among the column sums of all that is kept.
        let sums = &mut io.scratch[..each];
        if io.pass.adds() {
            sums[..wide].copy_from_slice(db_ih);
            for &[from, to, width] in C::HIDDEN {
                sums[from * h..][..width * h].copy_from_slice(&db_hh[to * h..][..width * h]);
            }
        }
        elementwise::column_sums(level, kept, sums, io.pass.adds());
        db_ih.copy_from_slice(&sums[..wide]);
        for &[from, to, width] in C::HIDDEN {
            db_hh[to * h..][..width * h].copy_from_slice(&sums[from * h..][..width * h]);
        }
        let Some(dx) = io.dx else { return };
        let start = dx.start();
        pool.split(dx.values, inputs, inputs * wide, |first, dx| {
            let (size, a) = ([dx.len() / inputs, inputs, wide], (&kept[first * each..], each, 1));
            T::product(level, Product::matrices(size, a, (&turned_ih[..], inputs), (dx, inputs), start));
        });
    }

    fn scratch(&self) -> usize {
        C::KEPT * self.h
    }
}
