//! Layer normalisation over the channels of each position.

use super::{Backward, Forward, Init, Layer, Place, Spec, TensorSpec, sample};
use crate::accel::{elementwise, rows};
use crate::description::{Fields, Problem};
use crate::real::Real;
use crate::shape::Shape;

/// Normalises each position (each step of a sequence, each pixel) by the mean and variance of its own
/// channels.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerNorm {
    /// Added to the variance.
    pub epsilon: f64,
}

impl Default for LayerNorm {
    fn default() -> Self {
        Self { epsilon: 1e-5 }
    }
}

impl Spec for LayerNorm {
    fn output(&self, inputs: &[Shape]) -> Result<Shape, String> {
        if !(self.epsilon.is_finite() && self.epsilon > 0.0) {
            return Err(format!("epsilon must be above 0, not {}", self.epsilon));
        }
        Ok(inputs[0])
    }
    fn in_place(&self) -> bool {
        true
    }
    fn saved(&self, input: Shape, _: Shape, _: bool) -> usize {
        2 * input.h * input.w
    }
    fn params(&self, input: Shape) -> Vec<TensorSpec> {
        vec![
            TensorSpec { name: "weight", shape: vec![input.c], init: Init::Constant(1.0) },
            TensorSpec { name: "bias", shape: vec![input.c], init: Init::Constant(0.0) },
        ]
    }
}

impl LayerNorm {
    pub(super) fn read(fields: &mut Fields<'_>) -> Result<Self, Problem> {
        let usual = Self::default();
        Ok(Self { epsilon: fields.real("epsilon")?.map_or(usual.epsilon, |(value, _)| value) })
    }

    pub(super) fn layer<T: Real>(&self, at: Place<'_>) -> Box<dyn Layer<T>> {
        let Shape { h, w, c } = at.input;
        Box::new(Exec { epsilon: T::of(self.epsilon), c, positions: h * w, scratch: at.capacity * 2 * c })
    }
}

struct Exec<T> {
    epsilon: T,
    c: usize,
    positions: usize,
    scratch: usize,
}

impl<T: Real> Layer<T> for Exec<T> {
    /// Saves each position's mean and 1 / standard deviation.
    fn forward(&mut self, io: Forward<'_, T>) {
        let (c, epsilon) = (self.c, self.epsilon);
        let (weight, bias) = io.params.split_at(c);
        io.compute.pool.split2(io.y, c, io.saved, 2, 4 * c, |first, y, stats| {
            let x = &io.x[first * c..first * c + y.len()];
            rows::layer_norm(io.compute.level, x, weight, bias, epsilon, y, stats);
        });
    }

    /// The gradient of weight and bias is summed per sample, then in sample order.
    fn backward(&mut self, io: Backward<'_, T>) {
        let (c, size, positions) = (self.c, self.positions * self.c, self.positions);
        let (level, stats, weight) = (io.compute.level, &*io.saved, &io.params[..c]);
        let sums = &mut io.scratch[..io.pass.samples * 2 * c];
        io.compute.pool.split2(io.dy, size, sums, 2 * c, 4 * size, |first, dy, sums| {
            sums.fill(T::ZERO);
            for (i, (dy, sums)) in dy.chunks_exact_mut(size).zip(sums.chunks_exact_mut(2 * c)).enumerate() {
                let (x, stats) = (sample(io.x, first + i, size), sample(stats, first + i, 2 * positions));
                let (d_weight, d_bias) = sums.split_at_mut(c);
                rows::layer_norm_backward(level, x, stats, weight, dy, d_weight, d_bias);
            }
        });
        elementwise::column_sums(level, sums, io.grads, io.pass.adds());
    }

    fn scratch(&self) -> usize {
        self.scratch
    }
}
