//! Embedding: a learned vector for each token of a vocabulary.

use super::{Backward, Forward, Init, Layer, Place, Spec, TensorSpec};
use crate::accel::elementwise;
use crate::description::{Fields, Problem};
use crate::real::Real;
use crate::shape::Shape;

/// Turns each token of a sequence, a number from 0 to `vocabulary − 1`, into its vector. Tokens have no
/// gradient, so this layer reads the network's input.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    /// Number of different tokens.
    pub vocabulary: usize,
    /// Numbers per token.
    pub width: usize,
}

impl Spec for Embedding {
    fn output(&self, inputs: &[Shape]) -> Result<Shape, String> {
        if self.vocabulary == 0 || self.width == 0 {
            return Err("vocabulary and width must be at least 1".into());
        }
        match inputs[0] {
            Shape { h: 1, w, c: 1 } => Ok(Shape::new(1, w, self.width)),
            _ => Err("needs a sequence of tokens, 1 × steps × 1".into()),
        }
    }
    fn params(&self, _: Shape) -> Vec<TensorSpec> {
        let shape = vec![self.vocabulary, self.width];
        vec![TensorSpec { name: "weight", shape, init: Init::Normal(0.02) }]
    }
    fn vocabulary(&self) -> Option<usize> {
        Some(self.vocabulary)
    }
    fn describe(&self) -> String {
        format!("{} tokens, width {}", self.vocabulary, self.width)
    }
}

impl Embedding {
    pub(super) fn read(fields: &mut Fields<'_>) -> Result<Self, Problem> {
        let vocabulary = fields.size("vocabulary")?.unwrap_or(fields.classes());
        Ok(Self { vocabulary, width: fields.needed("width")? })
    }

    pub(super) fn layer<T: Real>(&self, _: Place<'_>) -> Box<dyn Layer<T>> {
        Box::new(Exec { vocabulary: self.vocabulary, width: self.width })
    }
}

struct Exec {
    vocabulary: usize,
    width: usize,
}

impl Exec {
    fn row<T: Real>(&self, token: T) -> usize {
        let id = token.to_f64();
        assert!(
            id >= 0.0 && id < self.vocabulary as f64,
            "token {id} is outside a vocabulary of {}",
            self.vocabulary
        );
        id as usize
    }
}

impl<T: Real> Layer<T> for Exec {
    fn forward(&mut self, io: Forward<'_, T>) {
        let d = self.width;
        io.compute.pool.split(io.y, d, d, |first, y| {
            for (y, &token) in y.chunks_exact_mut(d).zip(&io.x[first..]) {
                let row = self.row(token);
                y.copy_from_slice(&io.params[row * d..(row + 1) * d]);
            }
        });
    }

    /// Each thread owns some tokens' rows and adds to them in the order of the batch.
    fn backward(&mut self, io: Backward<'_, T>) {
        let (d, level) = (self.width, io.compute.level);
        let (tokens, dy) = (io.x, &*io.dy);
        let cost = dy.len() / self.vocabulary + d;
        io.compute.pool.split(io.grads, d, cost, |first, rows| {
            if !io.pass.adds() {
                rows.fill(T::ZERO);
            }
            let count = rows.len() / d;
            for (&token, dy) in tokens.iter().zip(dy.chunks_exact(d)) {
                let row = self.row(token);
                if (first..first + count).contains(&row) {
                    let at = (row - first) * d;
                    elementwise::accumulate(level, dy, &mut rows[at..at + d]);
                }
            }
        });
    }
}
