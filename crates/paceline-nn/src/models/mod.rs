//! The registry of models. To add one: write its file, then add its line to [`MODELS`].

mod conv1d;
mod ddnn;
mod lenet;
mod mlp;
mod recurrent;
mod resnet;
mod resnet50;
mod sequence;
mod softmax;
mod transformer;

use crate::graph::{Graph, ShapeError};
use crate::shape::Shape;

/// A network that users can name.
pub struct Model {
    /// The name on the command line.
    pub name: &'static str,
    /// One line for help texts and tables.
    pub about: &'static str,
    /// The input it was made for, used where no dataset says otherwise.
    pub native_input: Shape,
    /// What it tells about tokens.
    pub output: Output,
    /// Builds it.
    pub build: fn(Shape, usize) -> Result<Graph, ShapeError>,
}

paceline_registry::entries!(Model, MODELS);

/// What a network tells about a sequence of tokens, `1 × t × 1`. Of any other sample it tells the class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// One class.
    PerSample,
    /// The next token at every position: its output is `1 × t × vocabulary`.
    PerPosition,
}

impl Model {
    /// The network for inputs of a given shape and a number of classes.
    pub fn build(&self, input: Shape, classes: usize) -> Result<Graph, ShapeError> {
        (self.build)(input, classes)
    }
}

/// Every model.
pub static MODELS: &[Model] = &[
    softmax::MODEL,
    mlp::MODEL,
    lenet::MODEL,
    resnet::RESNET20,
    resnet::RESNET32,
    resnet50::MODEL,
    conv1d::MODEL,
    recurrent::GRU,
    recurrent::LSTM,
    transformer::MODEL,
    ddnn::DDNN,
    ddnn::DDNN_EDGE,
];
