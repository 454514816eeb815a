//! The convolutional network that the peers are measured with.

use super::{Model, Output};
use crate::graph::{Graph, ShapeError};
use crate::layers::{Conv2d, Dense, MaxPool};
use crate::shape::Shape;

pub(super) const MODEL: Model = Model {
    name: "lenet",
    about: "two 5×5 convolutions (32, 64 channels) with pooling, dense 512 (1,663,370 parameters on 28×28)",
    native_input: Shape::new(28, 28, 1),
    output: Output::PerSample,
    build,
};

/// Each ReLU stands after its pooling: the two commute, and there are four times fewer elements then.
fn build(input: Shape, classes: usize) -> Result<Graph, ShapeError> {
    let halve = MaxPool { size: 2, stride: 2, pad: 0 };
    let mut g = Graph::new(input);
    g.then("conv1", Conv2d::square(32, 5, 1, 2, true))?;
    g.then("pool1", halve.clone())?;
    g.relu();
    g.then("conv2", Conv2d::square(64, 5, 1, 2, true))?;
    g.then("pool2", halve)?;
    g.relu();
    g.then("fc1", Dense { outputs: 512 })?;
    g.relu();
    g.then("fc2", Dense { outputs: classes })?;
    Ok(g)
}
