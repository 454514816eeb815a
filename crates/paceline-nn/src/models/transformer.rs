//! A small causal transformer.

use super::sequence::{answer, begin, tokens};
use super::{Model, Output};
use crate::graph::{Graph, ShapeError};
use crate::layers::{Activation, Add, Attention, Conv1d, Function, Init, LayerNorm, Positions};
use crate::shape::Shape;

pub(super) const MODEL: Model = Model {
    name: "transformer",
    about: "causal transformer, 4 blocks of width 128 with 4 heads; reads an image row by row",
    native_input: Shape::new(1, 64, 1),
    output: Output::PerPosition,
    build,
};

const WIDTH: usize = 128;
const BLOCKS: usize = 4;
const HEADS: usize = 4;

/// GPT-2's arrangement: each block adds attention and a perceptron to the stream, behind layer norms, and
/// what is added starts small.
fn build(input: Shape, classes: usize) -> Result<Graph, ShapeError> {
    let mut g = begin(input, classes, WIDTH)?;
    if !tokens(input) {
        g.then("projection", Conv1d::each_step(WIDTH))?;
    }
    let mut x = g.then("positions", Positions)?;
    for block in 0..BLOCKS {
        let name = |part: &str| format!("blocks.{block}.{part}");
        g.then(&name("norm1"), LayerNorm::default())?;
        g.then(&name("qkv"), Conv1d::each_step(3 * WIDTH))?;
        g.then(&name("attention"), Attention { heads: HEADS, causal: true })?;
        let y = g.then(&name("out"), Conv1d::each_step(WIDTH))?;
        x = g.push(&name("add1"), Add, &[x, y])?;
        g.then(&name("norm2"), LayerNorm::default())?;
        g.then(&name("fc1"), Conv1d::each_step(4 * WIDTH))?;
        g.then(&name("gelu"), Activation { function: Function::Gelu })?;
        let y = g.then(&name("fc2"), Conv1d::each_step(WIDTH))?;
        x = g.push(&name("add2"), Add, &[x, y])?;
        let (plain, last) = (0.02, 0.02 / (2.0 * BLOCKS as f64).sqrt());
        for (part, deviation) in [("qkv", plain), ("out", last), ("fc1", plain), ("fc2", last)] {
            g.start(&name(&format!("{part}.weight")), Init::Normal(deviation));
            g.start(&name(&format!("{part}.bias")), Init::Constant(0.0));
        }
    }
    g.then("norm", LayerNorm::default())?;
    answer(&mut g, "head", classes)?;
    g.start("head.weight", Init::Normal(0.02));
    g.start("head.bias", Init::Constant(0.0));
    Ok(g)
}
