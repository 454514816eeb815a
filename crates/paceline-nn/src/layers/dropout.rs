//! Dropout.

use paceline_random::{Purpose, Stream};

use super::{Backward, Forward, Layer, Pass, Place, Spec};
use crate::description::{Fields, Problem};
use crate::real::Real;
use crate::shape::Shape;

/// While training, zeroes each element with probability `rate` and scales the others by
/// `1 / (1 − rate)`. A mask is a function of (seed, step, sample), so it does not depend on which
/// worker has the sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Dropout {
    /// Probability of a zero.
    pub rate: f64,
}

impl Spec for Dropout {
    fn output(&self, inputs: &[Shape]) -> Result<Shape, String> {
        if !(0.0..1.0).contains(&self.rate) {
            return Err(format!("the rate must be at least 0 and below 1, not {}", self.rate));
        }
        Ok(inputs[0])
    }
    fn in_place(&self) -> bool {
        true
    }
    fn describe(&self) -> String {
        format!("rate {}", self.rate)
    }
}

impl Dropout {
    pub(super) fn read(fields: &mut Fields<'_>) -> Result<Self, Problem> {
        let place = fields.place();
        let rate = fields.real("rate")?.ok_or_else(|| Problem::new(place, "needs `rate`"))?;
        Ok(Self { rate: rate.0 })
    }

    pub(super) fn layer<T: Real>(&self, at: Place<'_>) -> Box<dyn Layer<T>> {
        Box::new(Exec { rate: self.rate, size: at.input.size() })
    }
}

struct Exec {
    rate: f64,
    size: usize,
}

impl Exec {
    /// Multiplies sample `i` by its mask.
    fn mask<T: Real>(&self, pass: &Pass<'_>, i: usize, values: &mut [T]) {
        let mask = Stream::new(pass.seed, Purpose::Dropout).fork(pass.step).fork(u64::from(pass.ids[i]));
        let kept = T::of(1.0 / (1.0 - self.rate));
        for (j, v) in values.iter_mut().enumerate() {
            *v = if mask.unit(j as u64) < self.rate { T::ZERO } else { *v * kept };
        }
    }
}

impl<T: Real> Layer<T> for Exec {
    fn forward(&mut self, io: Forward<'_, T>) {
        io.y.copy_from_slice(io.x);
        if io.pass.training {
            io.compute.pool.split(io.y, self.size, 8 * self.size, |first, y| {
                for (i, y) in y.chunks_exact_mut(self.size).enumerate() {
                    self.mask(io.pass, first + i, y);
                }
            });
        }
    }

    fn backward(&mut self, io: Backward<'_, T>) {
        io.compute.pool.split(io.dy, self.size, 8 * self.size, |first, dy| {
            for (i, dy) in dy.chunks_exact_mut(self.size).enumerate() {
                self.mask(io.pass, first + i, dy);
            }
        });
    }
}
