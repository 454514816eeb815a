//! Softmax regression: the smallest thing that learns.

use super::{Model, Output};
use crate::graph::{Graph, ShapeError};
use crate::layers::Dense;
use crate::shape::Shape;

pub(super) const MODEL: Model = Model {
    name: "softmax",
    about: "softmax regression: one dense layer, convex",
    native_input: Shape::new(28, 28, 1),
    output: Output::PerSample,
    build,
};

fn build(input: Shape, classes: usize) -> Result<Graph, ShapeError> {
    let mut g = Graph::new(input);
    g.then("fc", Dense { outputs: classes })?;
    Ok(g)
}
