//! Batch normalisation over samples and pixels.

use super::{Backward, Forward, Init, Layer, Place, Spec, TensorSpec, sample};
use crate::accel::elementwise;
use crate::compute::Buffer;
use crate::description::{Fields, Problem};
use crate::real::Real;
use crate::shape::Shape;

/// Normalises each channel by the batch's mean and variance while training, and by running
/// averages of them in evaluation (PyTorch's conventions: the running variance is the unbiased one).
#[derive(Clone, Debug, PartialEq)]
pub struct BatchNorm {
    /// Added to the variance.
    pub epsilon: f64,
    /// Weight of the newest batch in the running averages.
    pub momentum: f64,
}

impl Default for BatchNorm {
    fn default() -> Self {
        Self { epsilon: 1e-5, momentum: 0.1 }
    }
}

impl Spec for BatchNorm {
    fn output(&self, inputs: &[Shape]) -> Result<Shape, String> {
        if !(self.epsilon.is_finite() && self.epsilon > 0.0 && (0.0..=1.0).contains(&self.momentum)) {
            return Err("epsilon must be above 0, momentum between 0 and 1".into());
        }
        Ok(inputs[0])
    }
    fn params(&self, input: Shape) -> Vec<TensorSpec> {
        vec![
            TensorSpec { name: "weight", shape: vec![input.c], init: Init::Constant(1.0) },
            TensorSpec { name: "bias", shape: vec![input.c], init: Init::Constant(0.0) },
        ]
    }
    fn state(&self, input: Shape) -> Vec<TensorSpec> {
        vec![
            TensorSpec { name: "running_mean", shape: vec![input.c], init: Init::Constant(0.0) },
            TensorSpec { name: "running_var", shape: vec![input.c], init: Init::Constant(1.0) },
        ]
    }
    fn fuses_relu(&self) -> bool {
        true
    }
    fn in_place(&self) -> bool {
        true
    }
}

impl BatchNorm {
    pub(super) fn read(fields: &mut Fields<'_>) -> Result<Self, Problem> {
        let usual = Self::default();
        Ok(Self {
            epsilon: fields.real("epsilon")?.map_or(usual.epsilon, |(value, _)| value),
            momentum: fields.real("momentum")?.map_or(usual.momentum, |(value, _)| value),
        })
    }

    pub(super) fn layer<T: Real>(&self, at: Place<'_>) -> Box<dyn Layer<T>> {
        let c = at.input.c;
        Box::new(Exec {
            spec: self.clone(),
            shape: at.input,
            relu: at.relu,
            statistics: (0..at.slots)
                .map(|_| Statistics { mean: Buffer::new(c), inverse: vec![0.0; c] })
                .collect(),
            factors: [Buffer::new(c), Buffer::new(c), Buffer::new(c)],
            scratch: at.capacity * 2 * c,
        })
    }
}

struct Exec<T> {
    spec: BatchNorm,
    shape: Shape,
    relu: bool,
    /// Those that forward found, per slot.
    statistics: Vec<Statistics<T>>,
    /// Per-channel factors of the pass under way.
    factors: [Buffer<T>; 3],
    /// For two sums per channel and sample, added up in sample order: the same for any number of threads.
    scratch: usize,
}

struct Statistics<T> {
    mean: Buffer<T>,
    /// 1 / the standard deviation.
    inverse: Vec<f64>,
}

/// The two sums of channel `k` of `c` over the samples.
fn totals<T: Real>(sums: &[T], c: usize, k: usize) -> (f64, f64) {
    sums.chunks_exact(2 * c).fold((0.0, 0.0), |(a, b), s| (a + s[k].to_f64(), b + s[c + k].to_f64()))
}

impl<T: Real> Layer<T> for Exec<T> {
    fn forward(&mut self, io: Forward<'_, T>) {
        let (c, size, n) = (self.shape.c, self.shape.size(), io.pass.samples);
        let level = io.compute.level;
        let count = (n * size / c) as f64;
        let (running_mean, running_var) = io.state.split_at_mut(c);
        let (sums, statistics) = (&mut io.scratch[..n * 2 * c], &mut self.statistics[io.pass.slot]);
        if io.pass.training {
            io.compute.pool.split(sums, 2 * c, 2 * size, |first, sums| {
                for (i, sums) in sums.chunks_exact_mut(2 * c).enumerate() {
                    let (sum, square) = sums.split_at_mut(c);
                    elementwise::moments(level, sample(io.x, first + i, size), sum, square);
                }
            });
        }
        for k in 0..c {
            let (mean, variance) = if io.pass.training {
                let (sum, square) = totals(sums, c, k);
                let mean = sum / count;
                let variance = (square / count - mean * mean).max(0.0);
                let unbiased = variance * count / (count - 1.0).max(1.0);
                let blend = |old: T, new: f64| {
                    T::of((1.0 - self.spec.momentum) * old.to_f64() + self.spec.momentum * new)
                };
                running_mean[k] = blend(running_mean[k], mean);
                running_var[k] = blend(running_var[k], unbiased);
                (mean, variance)
            } else {
                (running_mean[k].to_f64(), running_var[k].to_f64())
            };
            let inverse = 1.0 / (variance + self.spec.epsilon).sqrt();
            statistics.mean[k] = T::of(mean);
            statistics.inverse[k] = inverse;
            let scale = io.params[k].to_f64() * inverse;
            self.factors[0][k] = T::of(scale);
            self.factors[1][k] = T::of(io.params[c + k].to_f64() - mean * scale);
        }
        let [scale, shift, _] = &self.factors;
        io.compute.pool.split(io.y, size, size, |first, y| {
            let x = &io.x[first * size..first * size + y.len()];
            elementwise::scale_shift(level, x, scale, shift, y, self.relu);
        });
    }

    fn backward(&mut self, io: Backward<'_, T>) {
        let (c, size, n) = (self.shape.c, self.shape.size(), io.pass.samples);
        let (level, pool) = (io.compute.level, &io.compute.pool);
        let (Statistics { mean, inverse }, relu) = (&self.statistics[io.pass.slot], self.relu);
        let sums = &mut io.scratch[..n * 2 * c];
        pool.split2(io.dy, size, sums, 2 * c, 2 * size, |first, dy, sums| {
            for (i, (dy, sums)) in dy.chunks_exact_mut(size).zip(sums.chunks_exact_mut(2 * c)).enumerate() {
                let y = if relu { sample(io.y, first + i, size) } else { &[] };
                let (sum, dot) = sums.split_at_mut(c);
                elementwise::norm_backward_sums(level, sample(io.x, first + i, size), y, dy, mean, sum, dot);
            }
        });
        let count = (n * size / c) as f64;
        for k in 0..c {
            let (sum, dot) = totals(sums, c, k);
            let inverse = inverse[k];
            for (at, own) in [(k, dot * inverse), (c + k, sum)] {
                io.grads[at] = if io.pass.adds() { io.grads[at] + T::of(own) } else { T::of(own) };
            }
            // dx = a·(dy − sum/count − (x − mean)·inverse²·dot/count), as factors of dy, x and 1.
            let a = io.params[k].to_f64() * inverse;
            let b = -a * inverse * inverse * dot / count;
            self.factors[0][k] = T::of(a);
            self.factors[1][k] = T::of(b);
            self.factors[2][k] = T::of(-a * sum / count - b * mean[k].to_f64());
        }
        let [a, b, d] = &self.factors;
        pool.split(io.dy, size, size, |first, dy| {
            elementwise::norm_backward(level, &io.x[first * size..first * size + dy.len()], dy, a, b, d);
        });
    }

    fn scratch(&self) -> usize {
        self.scratch
    }
}
