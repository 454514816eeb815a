//! Small networks that together have every kind of layer, and the models of the registry on small inputs.

use std::sync::Arc;

use paceline_nn::layers::{
    Activation, Add, Attention, AveragePool, BatchNorm, Concat, Conv1d, Conv2d, Dense, Dropout, Embedding,
    Function, GlobalAveragePool, Gru, LastStep, LayerNorm, Lstm, MaxPool, Maximum, Mean, Positions, Rows,
    ViewPart,
};
use paceline_nn::models::MODELS;
use paceline_nn::{Graph, Network, Shape, ShapeError, Targets};
use paceline_random::{Purpose, Stream};

const CLASSES: usize = 10;

/// A network and its name in messages.
pub struct Case {
    pub name: String,
    pub graph: Arc<Graph>,
}

impl Case {
    /// Fills a slot's input with the samples `ids`.
    pub fn load(&self, net: &mut Network<f32>, slot: usize, ids: &[u32]) {
        let size = self.graph.input().size();
        for (sample, &id) in net.input(slot, ids.len()).chunks_exact_mut(size).zip(ids) {
            let noise = Stream::new(2, Purpose::Bench).fork(u64::from(id));
            for (i, v) in sample.iter_mut().enumerate() {
                *v = match self.graph.vocabulary() {
                    Some(tokens) => noise.below(i as u64, tokens as u64) as f32,
                    None => noise.uniform(i as u64, -1.0, 1.0) as f32,
                };
            }
        }
    }

    /// What the network should answer of the samples `ids`.
    pub fn classes(&self, ids: &[u32]) -> Vec<u16> {
        let output = self.graph.output();
        let positions = output.h * output.w;
        ids.iter().flat_map(|&id| vec![(id as usize * 7 % CLASSES) as u16; positions]).collect()
    }

    /// The loss of the samples whose classes these are.
    pub fn loss(&self, net: &mut Network<f32>, slot: usize, classes: &[u16], scale: f64) -> f64 {
        net.loss(slot, Targets::Classes(classes), scale).loss
    }
}

fn case(name: &str, input: Shape, build: impl Fn(&mut Graph) -> Result<(), ShapeError>) -> Case {
    let mut graph = Graph::new(input);
    build(&mut graph).unwrap();
    graph.then("answer", Dense { outputs: CLASSES }).unwrap();
    Case { name: name.to_owned(), graph: Arc::new(graph) }
}

/// A network behind a small convolution, so that it also has an input gradient.
fn image(name: &str, build: impl Fn(&mut Graph) -> Result<(), ShapeError>) -> Case {
    case(name, Shape::new(7, 6, 2), |g| {
        g.then("before", Conv2d::square(6, 3, 1, 1, true))?;
        build(g)
    })
}

/// Two devices' views of an image, put together in three ways; with an early exit or without.
fn views(g: &mut Graph, exit: bool) -> Result<(), ShapeError> {
    let x = g.last();
    let mut views = Vec::new();
    for (i, top) in [0, 3].into_iter().enumerate() {
        let view = ViewPart { top, left: i, height: 4, width: 5, blank: 0.3 };
        g.push(&format!("view{i}"), view, &[x])?;
        g.then(&format!("conv{i}"), Conv2d::square(5, 3, 1, 1, true))?;
        views.push(g.then(&format!("sign{i}"), Activation { function: Function::Sign })?);
    }
    let sum = g.push("mean", Mean, &views)?;
    if exit {
        g.then("early", Dense { outputs: CLASSES })?;
        g.exit(0.5);
    }
    let largest = g.push("largest", Maximum, &[views[1], views[0], sum])?;
    g.push("concat", Concat, &[views[0], largest]).map(drop)
}

/// Networks of a few layers.
pub fn layers() -> Vec<Case> {
    let conv = |channels, kernel, stride, pad| Conv2d::square(channels, kernel, stride, pad, true);
    vec![
        image("dense", |g| {
            g.then("fc", Dense { outputs: 33 })?;
            g.relu();
            Ok(())
        }),
        image("direct", |g| {
            g.then("padded", conv(5, 3, 2, 1))?;
            g.relu();
            g.then("narrow", Conv2d { channels: 7, kernel: [2, 3], ..conv(7, 2, 1, 0) }).map(drop)
        }),
        image("pointwise", |g| {
            g.then("one", conv(19, 1, 1, 0))?;
            g.relu();
            g.then("strided", conv(5, 1, 2, 0)).map(drop)
        }),
        image("winograd", |g| {
            g.then("wider", conv(17, 1, 1, 0))?;
            g.then("three", conv(18, 3, 1, 1))?;
            g.relu();
            g.then("five", conv(16, 5, 1, 2)).map(drop)
        }),
        image("grouped", |g| {
            g.then("two", Conv2d { groups: 2, ..conv(8, 3, 1, 1) })?;
            g.then("wider", conv(32, 1, 1, 0))?;
            g.then("fast", Conv2d { groups: 2, ..conv(32, 3, 1, 1) })?;
            g.then("strided", Conv2d { groups: 2, ..conv(4, 1, 2, 0) }).map(drop)
        }),
        image("pooling", |g| {
            g.then("max", MaxPool { size: 3, stride: 2, pad: 1 })?;
            g.relu();
            g.then("mean", AveragePool { size: 2, stride: 1, pad: 0 })?;
            g.then("conv", conv(5, 2, 1, 0))?;
            g.then("all", GlobalAveragePool).map(drop)
        }),
        image("activations and dropout", |g| {
            for function in [Function::Gelu, Function::Tanh, Function::Sigmoid, Function::Relu] {
                g.then(&format!("{function:?}"), Activation { function })?;
                g.then(&format!("conv after {function:?}"), conv(6, 3, 1, 1))?;
            }
            g.then("drop", Dropout { rate: 0.4 }).map(drop)
        }),
        image("norm of positions", |g| {
            g.then("norm", LayerNorm::default())?;
            g.then("conv", conv(20, 3, 1, 1))?;
            g.then("second", LayerNorm::default()).map(drop)
        }),
        image("batch norm", |g| {
            g.then("norm", BatchNorm::default())?;
            g.relu();
            g.then("conv", conv(5, 3, 1, 1))?;
            g.then("second", BatchNorm::default()).map(drop)
        }),
        image("residual", |g| {
            let x = g.last();
            let a = g.then("a", conv(6, 3, 1, 1))?;
            let sum = g.push("sum", Add, &[a, x])?;
            g.relu();
            let b = g.push("b", Activation { function: Function::Tanh }, &[x])?;
            g.push("sum2", Add, &[b, sum]).map(drop)
        }),
        image("views", |g| views(g, false)),
        image("views and exits", |g| views(g, true)),
        image("gru", |g| {
            g.then("rows", Rows)?;
            g.then("rnn", Gru { width: 18 })?;
            g.then("second", Gru { width: 5 })?;
            g.then("last", LastStep).map(drop)
        }),
        image("lstm", |g| {
            g.then("rows", Rows)?;
            g.then("rnn", Lstm { width: 18 })?;
            g.then("second", Lstm { width: 5 }).map(drop)
        }),
        case("tokens", Shape::new(1, 33, 1), |g| {
            g.then("embedding", Embedding { vocabulary: 9, width: 8 })?;
            let x = g.then("positions", Positions)?;
            g.then("norm", LayerNorm::default())?;
            g.then("qkv", Conv1d::each_step(24))?;
            let y = g.then("attention", Attention { heads: 2, causal: true })?;
            g.push("add", Add, &[x, y])?;
            g.then("conv", Conv1d { kernel: 3, pad: 1, groups: 2, ..Conv1d::each_step(8) })?;
            g.then("around", Conv1d::each_step(24))?;
            g.then("both ways", Attention { heads: 4, causal: false }).map(drop)
        }),
    ]
}

/// The models of the registry, on small inputs.
pub fn models() -> Vec<Case> {
    let small = |name: &str| match name {
        "softmax" | "mlp" => Shape::new(8, 8, 1),
        "lenet" | "ddnn" | "ddnn-edge" => Shape::new(12, 9, 1),
        "conv1d" => Shape::new(1, 19, 5),
        "gru" | "lstm" => Shape::new(1, 9, 3),
        "transformer" => Shape::new(1, 31, 1),
        "resnet50" => Shape::new(32, 32, 3),
        _ => Shape::new(11, 9, 3),
    };
    MODELS
        .iter()
        .map(|model| {
            let graph = model.build(small(model.name), CLASSES).unwrap();
            Case { name: model.name.to_owned(), graph: Arc::new(graph) }
        })
        .collect()
}
