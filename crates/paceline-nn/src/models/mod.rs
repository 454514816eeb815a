//! The registry of models. To add one: write its file, then add its line to [`MODELS`].

mod lenet;
mod mlp;
mod resnet;
mod softmax;

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
    build: fn(Shape, usize) -> Result<Graph, ShapeError>,
}

impl Model {
    /// The network for inputs of a given shape and a number of classes.
    pub fn build(&self, input: Shape, classes: usize) -> Result<Graph, ShapeError> {
        (self.build)(input, classes)
    }
}

/// Every model.
pub const MODELS: &[Model] = &[softmax::MODEL, mlp::MODEL, lenet::MODEL, resnet::RESNET20, resnet::RESNET32];

/// The model of that name.
pub fn find(name: &str) -> Option<&'static Model> {
    MODELS.iter().find(|m| m.name == name)
}
