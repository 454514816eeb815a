//! Networks that read a sequence step by step.
//!
//! What a sample is to them: `1 × t × 1` are t tokens (their vocabulary is the number of classes),
//! `1 × t × c` is a series of t steps, and an image is read as the sequence of its rows. Of tokens the
//! recurrent networks and the transformer tell the next one at every position, of anything else the class,
//! from the last step.

use super::{Model, Output};
use crate::graph::{Graph, ShapeError, Value};
use crate::layers::{
    Activation, Add, Attention, Conv1d, Dense, Embedding, Function, GlobalAveragePool, Gru, Init, LastStep,
    LayerNorm, Lstm, Op, Positions, Rows,
};
use crate::shape::Shape;

pub(super) const CONV1D: Model = Model {
    name: "conv1d",
    about: "three convolutions along a sequence (64, 128, 128 channels), mean, dense; reads an image row by row",
    native_input: Shape::new(1, 64, 12),
    output: Output::PerSample,
    build: conv1d,
};

pub(super) const GRU: Model = Model {
    name: "gru",
    about: "gated recurrent unit of width 128, dense; reads an image row by row",
    native_input: Shape::new(1, 29, 12),
    output: Output::PerPosition,
    build: |input, classes| recurrent(Gru { width: WIDTH }, input, classes),
};

pub(super) const LSTM: Model = Model {
    name: "lstm",
    about: "long short-term memory of width 128, dense; reads an image row by row",
    native_input: Shape::new(1, 29, 12),
    output: Output::PerPosition,
    build: |input, classes| recurrent(Lstm { width: WIDTH }, input, classes),
};

pub(super) const TRANSFORMER: Model = Model {
    name: "transformer",
    about: "causal transformer, 4 blocks of width 128 with 4 heads; reads an image row by row",
    native_input: Shape::new(1, 64, 1),
    output: Output::PerPosition,
    build: transformer,
};

/// Of hidden states and embeddings.
const WIDTH: usize = 128;
const BLOCKS: usize = 4;
const HEADS: usize = 4;

/// Whether samples of this shape are tokens.
fn tokens(input: Shape) -> bool {
    input.h == 1 && input.w > 1 && input.c == 1
}

/// A network that begins with the steps of a sequence, tokens as vectors.
fn begin(input: Shape, classes: usize) -> Result<Graph, ShapeError> {
    let mut g = Graph::new(input);
    if tokens(input) {
        g.then("embedding", Embedding { vocabulary: classes, width: WIDTH })?;
    } else if input.h > 1 {
        g.then("rows", Rows)?;
    }
    Ok(g)
}

/// The answer: at every position of tokens, else from the last step.
fn answer(g: &mut Graph, name: &str, classes: usize) -> Result<Value, ShapeError> {
    if tokens(g.input()) {
        return g.then(name, Conv1d::each_step(classes));
    }
    g.then("last", LastStep)?;
    g.then(name, Dense { outputs: classes })
}

fn conv1d(input: Shape, classes: usize) -> Result<Graph, ShapeError> {
    let mut g = begin(input, classes)?;
    for (name, channels, kernel, stride) in [("conv1", 64, 5, 1), ("conv2", 128, 3, 2), ("conv3", 128, 3, 2)]
    {
        g.then(name, Conv1d { channels, kernel, stride, pad: kernel / 2, groups: 1, bias: true })?;
        g.relu();
    }
    g.then("pool", GlobalAveragePool)?;
    g.then("fc", Dense { outputs: classes })?;
    Ok(g)
}

fn recurrent(layer: impl Into<Op>, input: Shape, classes: usize) -> Result<Graph, ShapeError> {
    let mut g = begin(input, classes)?;
    g.then("rnn", layer)?;
    answer(&mut g, "fc", classes)?;
    Ok(g)
}

/// GPT-2's arrangement: each block adds attention and a perceptron to the stream, behind layer norms, and
/// what is added starts small.
fn transformer(input: Shape, classes: usize) -> Result<Graph, ShapeError> {
    let mut g = begin(input, classes)?;
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
    Ok(g)
}
