//! Multi-layer perceptron.

use super::{Model, Output};
use crate::graph::{Graph, ShapeError};
use crate::layers::Dense;
use crate::shape::Shape;

pub(super) const MODEL: Model = Model {
    name: "mlp",
    about: "perceptron inputs-256-128-classes with ReLU (235,146 parameters on 28×28)",
    native_input: Shape::new(28, 28, 1),
    output: Output::PerSample,
    build,
};

fn build(input: Shape, classes: usize) -> Result<Graph, ShapeError> {
    let mut g = Graph::new(input);
    g.then("fc1", Dense { outputs: 256 })?;
    g.relu();
    g.then("fc2", Dense { outputs: 128 })?;
    g.relu();
    g.then("fc3", Dense { outputs: classes })?;
    Ok(g)
}
