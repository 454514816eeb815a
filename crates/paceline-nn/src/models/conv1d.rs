//! Convolutions along a sequence.

use super::sequence::begin;
use super::{Model, Output};
use crate::graph::{Graph, ShapeError};
use crate::layers::{Conv1d, Dense, GlobalAveragePool};
use crate::shape::Shape;

pub(super) const MODEL: Model = Model {
    name: "conv1d",
    about: "three convolutions along a sequence (64, 128, 128 channels), mean, dense; reads an image row by row",
    native_input: Shape::new(1, 64, 12),
    output: Output::PerSample,
    build,
};

const WIDTH: usize = 64;

fn build(input: Shape, classes: usize) -> Result<Graph, ShapeError> {
    let mut g = begin(input, classes, WIDTH)?;
    for (name, channels, kernel, stride) in [("conv1", 64, 5, 1), ("conv2", 128, 3, 2), ("conv3", 128, 3, 2)]
    {
        g.then(name, Conv1d { channels, kernel, stride, pad: kernel / 2, groups: 1, bias: true })?;
        g.relu();
    }
    g.then("pool", GlobalAveragePool)?;
    g.then("fc", Dense { outputs: classes })?;
    Ok(g)
}
