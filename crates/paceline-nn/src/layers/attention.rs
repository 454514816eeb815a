//! Multi-head attention.

use super::sequence::steps;
use super::{Backward, Forward, Layer, Place, Spec, sample};
use crate::accel::{Level, Product, TileStart, elementwise, rows};
use crate::description::{Fields, Problem};
use crate::real::Real;
use crate::shape::Shape;

/// Scaled dot-product attention between the steps of a sequence. The input holds queries, keys and values
/// side by side (three times the output's width), as one dense layer per step before it makes them.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Heads that attend on their own; each has an equal part of the width.
    pub heads: usize,
    /// Whether a step sees only itself and the steps before it.
    pub causal: bool,
}

impl Spec for Attention {
    fn output(&self, inputs: &[Shape]) -> Result<Shape, String> {
        let (t, c) = steps(inputs[0])?;
        if self.heads == 0 || c % (3 * self.heads) != 0 {
            return Err(format!(
                "{c} numbers per step cannot be cut into queries, keys and values of {} heads",
                self.heads
            ));
        }
        Ok(Shape::new(1, t, c / 3))
    }
    fn multiply_adds(&self, input: Shape, output: Shape) -> u64 {
        let t = input.w;
        let pairs = if self.causal { t * (t + 1) / 2 } else { t * t };
        (2 * pairs * output.c) as u64
    }
    /// The probabilities of each head, then room for one head's keys, turned.
    fn saved(&self, input: Shape, output: Shape, _: bool) -> usize {
        self.heads * input.w * input.w + output.c / self.heads * input.w
    }
    fn describe(&self) -> String {
        format!("{} heads{}", self.heads, if self.causal { ", causal" } else { "" })
    }
}

impl Attention {
    pub(super) fn read(fields: &mut Fields<'_>) -> Result<Self, Problem> {
        Ok(Self { heads: fields.needed("heads")?, causal: fields.flag("causal")?.unwrap_or(true) })
    }

    pub(super) fn layer<T: Real>(&self, at: Place<'_>) -> Box<dyn Layer<T>> {
        let (t, width) = (at.input.w, at.output.c);
        let head = width / self.heads;
        Box::new(Exec {
            t,
            width,
            head,
            heads: self.heads,
            causal: self.causal,
            scale: T::of(1.0 / (head as f64).sqrt()),
            scratch: (t * t + head * t) * at.compute.pool.threads(),
        })
    }
}

/// Queries (or keys) that are worked on together: what lies behind a causal block is left out.
const BLOCK: usize = 28;

struct Exec<T> {
    t: usize,
    width: usize,
    head: usize,
    heads: usize,
    causal: bool,
    scale: T,
    scratch: usize,
}

impl<T: Real> Exec<T> {
    /// The blocks of steps, each with the end of what its queries see and the first query that sees it.
    fn blocks(&self) -> impl Iterator<Item = (usize, usize, usize, usize)> {
        let (t, causal) = (self.t, self.causal);
        (0..t).step_by(BLOCK).map(move |start| {
            let end = t.min(start + BLOCK);
            (start, end - start, if causal { end } else { t }, if causal { start } else { 0 })
        })
    }

    fn forward_sample(&self, level: Level, x: &[T], y: &mut [T], saved: &mut [T]) {
        let (t, d, width, row) = (self.t, self.head, self.width, 3 * self.width);
        let (probabilities, keys) = saved.split_at_mut(self.heads * t * t);
        for (h, p) in probabilities.chunks_exact_mut(t * t).enumerate() {
            let at = h * d;
            elementwise::transpose(level, x, t, row, width + at, keys);
            for (start, count, seen, _) in self.blocks() {
                let p = &mut p[start * t..(start + count) * t];
                let queries = (&x[start * row + at..], row, 1);
                let size = [count, seen, d];
                T::product(level, Product::matrices(size, queries, (&*keys, t), (p, t), TileStart::Zero));
                let (first, step) = if self.causal { (start + 1, 1) } else { (t, 0) };
                rows::softmax(level, p, t, seen, first, step, self.scale);
                let (values, y) = (&x[2 * width + at..], &mut y[start * width + at..]);
                let size = [count, d, seen];
                T::product(
                    level,
                    Product::matrices(size, (&*p, t, 1), (values, row), (y, width), TileStart::Zero),
                );
            }
        }
    }

    fn backward_sample(
        &self,
        level: Level,
        (x, saved, dy): (&[T], &[T], &[T]),
        dx: &mut [T],
        start: TileStart<'_, T>,
        scratch: &mut [T],
    ) {
        let (t, d, width, row) = (self.t, self.head, self.width, 3 * self.width);
        let (slopes, values) = scratch.split_at_mut(t * t);
        for (h, p) in saved[..self.heads * t * t].chunks_exact(t * t).enumerate() {
            let at = h * d;
            elementwise::transpose(level, x, t, row, 2 * width + at, values);
            for (from, count, seen, _) in self.blocks() {
                let (p, s) = (&p[from * t..(from + count) * t], &mut slopes[from * t..(from + count) * t]);
                let (dy, size) = ((&dy[from * width + at..], width, 1), [count, seen, d]);
                T::product(level, Product::matrices(size, dy, (&*values, t), (&mut *s, t), TileStart::Zero));
                rows::softmax_backward(level, p, s, t, seen, self.scale);
                let (keys, d_queries) = (&x[width + at..], &mut dx[from * row + at..]);
                let size = [count, d, seen];
                T::product(level, Product::matrices(size, (&*s, t, 1), (keys, row), (d_queries, row), start));
            }
            for (from, count, _, query) in self.blocks() {
                let size = [count, d, t - query];
                let (queries, d_keys) = (&x[query * row + at..], &mut dx[from * row + width + at..]);
                let turned = (&slopes[query * t + from..], 1, t);
                T::product(level, Product::matrices(size, turned, (queries, row), (d_keys, row), start));
                let (dy, d_values) = (&dy[query * width + at..], &mut dx[from * row + 2 * width + at..]);
                let turned = (&p[query * t + from..], 1, t);
                T::product(level, Product::matrices(size, turned, (dy, width), (d_values, row), start));
            }
        }
    }
}

impl<T: Real> Layer<T> for Exec<T> {
    fn forward(&mut self, io: Forward<'_, T>) {
        let (level, each) = (io.compute.level, io.saved.len() / io.pass.samples);
        let (x_size, y_size) = (self.t * 3 * self.width, self.t * self.width);
        io.compute.pool.split2(io.y, y_size, io.saved, each, self.t * y_size, |first, y, saved| {
            for (i, (y, saved)) in y.chunks_exact_mut(y_size).zip(saved.chunks_exact_mut(each)).enumerate() {
                self.forward_sample(level, sample(io.x, first + i, x_size), y, saved);
            }
        });
    }

    fn backward(&mut self, io: Backward<'_, T>) {
        let Some(dx) = io.dx else { return };
        let (level, each, start) = (io.compute.level, io.saved.len() / io.pass.samples, dx.start());
        let (saved, dy) = (&*io.saved, &*io.dy);
        let (x_size, y_size) = (self.t * 3 * self.width, self.t * self.width);
        let (piece, cost) = (self.t * self.t + self.head * self.t, 2 * self.t * y_size);
        io.compute.pool.split_scratch(dx.values, x_size, io.scratch, piece, cost, |first, dx, scratch| {
            for (i, dx) in dx.chunks_exact_mut(x_size).enumerate() {
                let i = first + i;
                let of_sample = (sample(io.x, i, x_size), sample(saved, i, each), sample(dy, i, y_size));
                self.backward_sample(level, of_sample, dx, start, scratch);
            }
        });
    }

    fn scratch(&self) -> usize {
        self.scratch
    }
}
