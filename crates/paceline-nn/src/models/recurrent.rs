//! Recurrent networks.

use super::sequence::{answer, begin};
use super::{Model, Output};
use crate::graph::{Graph, ShapeError};
use crate::layers::{Gru, Lstm, Op};
use crate::shape::Shape;

pub(super) const GRU: Model = Model {
    name: "gru",
    about: "gated recurrent unit of width 128, dense; reads an image row by row",
    native_input: Shape::new(1, 29, 12),
    output: Output::PerPosition,
    build: |input, classes| build(Gru { width: WIDTH }, input, classes),
};

pub(super) const LSTM: Model = Model {
    name: "lstm",
    about: "long short-term memory of width 128, dense; reads an image row by row",
    native_input: Shape::new(1, 29, 12),
    output: Output::PerPosition,
    build: |input, classes| build(Lstm { width: WIDTH }, input, classes),
};

/// Of the hidden state and of a token's vector.
const WIDTH: usize = 128;

fn build(layer: impl Into<Op>, input: Shape, classes: usize) -> Result<Graph, ShapeError> {
    let mut g = begin(input, classes, WIDTH)?;
    g.then("rnn", layer)?;
    answer(&mut g, "fc", classes)?;
    Ok(g)
}
