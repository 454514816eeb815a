//! Networks over several devices with early exits, after "Distributed Deep Neural Networks over the Cloud, the Edge and
//! End Devices" (DDNN): each of six devices sees a sixth of the image and answers by itself; where that is not certain,
//! the signs of its features go to the tiers above.

use super::{Model, Output};
use crate::graph::{Graph, ShapeError, ValueId};
use crate::layers::{Activation, BatchNorm, Concat, Conv2d, Dense, Function, MaxPool, Maximum, ViewPart};
use crate::shape::Shape;

pub(super) const DDNN: Model = Model {
    name: "ddnn",
    about: "early exits: six devices see a sixth of an image each (3×2), their scores, and a cloud",
    native_input: Shape::new(28, 30, 1),
    output: Output::PerSample,
    build: |input, classes| build(input, classes, false),
};

pub(super) const DDNN_EDGE: Model = Model {
    name: "ddnn-edge",
    about: "early exits: six devices see a sixth of an image each (3×2), their scores, an edge and a cloud",
    native_input: Shape::new(28, 30, 1),
    output: Output::PerSample,
    build: |input, classes| build(input, classes, true),
};

/// Views beside and below each other; devices are numbered down the columns.
const COLUMNS: usize = 3;
const ROWS: usize = 2;
/// How often a view is blank while training, so that the others learn to do without it.
const BLANK: f64 = 0.02;
/// Channels inside a device.
const STEM: usize = 8;
/// Channels whose signs a device hands on.
const FILTERS: usize = 8;
/// What the loss of the devices' scores, and of the edge, counts; the cloud's counts 1.
const LOCAL_WEIGHT: f64 = 0.3;
const EDGE_WEIGHT: f64 = 0.5;

fn build(input: Shape, classes: usize, edge: bool) -> Result<Graph, ShapeError> {
    let mut g = Graph::new(input);
    let image = g.last();
    let [height, width] = [input.h.div_ceil(ROWS), input.w.div_ceil(COLUMNS)];
    // Where the image cannot be cut evenly, neighbours share a row or a column.
    let start = |i: usize, of: usize, whole: usize, part: usize| i * (whole - part) / (of - 1);
    let mut views = Vec::new();
    for device in 0..COLUMNS * ROWS {
        let top = start(device % ROWS, ROWS, input.h, height);
        let left = start(device / ROWS, COLUMNS, input.w, width);
        let view = ViewPart { top, left, height, width, blank: BLANK };
        views.push(g.push(&format!("device{device}.view"), view, &[image])?);
    }
    let (mut features, mut scores) = (Vec::new(), Vec::new());
    for (device, view) in views.into_iter().enumerate() {
        let name = |layer: &str| format!("device{device}.{layer}");
        g.push(&name("conv1"), Conv2d::square(STEM, 3, 1, 1, false), &[view])?;
        g.then(&name("bn1"), BatchNorm::default())?;
        g.relu();
        g.then(&name("conv2"), Conv2d::square(FILTERS, 3, 1, 1, false))?;
        features.push(signs(&mut g, &name("pool"), &name("bn2"), &name("sign"))?);
        scores.push(g.then(&name("fc"), Dense { outputs: classes })?);
    }
    g.push("local.scores", Maximum, &scores)?;
    g.exit(LOCAL_WEIGHT);
    if edge {
        g.push("edge.concat", Concat, &features)?;
        g.then("edge.conv", Conv2d::square(32, 3, 1, 1, false))?;
        g.then("edge.bn", BatchNorm::default())?;
        let signs = g.then("edge.sign", Activation { function: Function::Sign })?;
        g.then("edge.fc", Dense { outputs: classes })?;
        g.exit(EDGE_WEIGHT);
        g.push("cloud.conv", Conv2d::square(64, 3, 1, 1, false), &[signs])?;
    } else {
        g.push("cloud.concat", Concat, &features)?;
        g.then("cloud.conv", Conv2d::square(64, 3, 1, 1, false))?;
    }
    g.then("cloud.bn1", BatchNorm::default())?;
    g.relu();
    g.then("cloud.fc1", Dense { outputs: 256 })?;
    g.then("cloud.bn2", BatchNorm::default())?;
    g.relu();
    g.then("cloud.fc2", Dense { outputs: classes })?;
    Ok(g)
}

/// The last value pooled, normalised, and only its signs.
fn signs(g: &mut Graph, pool: &str, norm: &str, sign: &str) -> Result<ValueId, ShapeError> {
    g.then(pool, MaxPool { size: 2, stride: 2, pad: 0 })?;
    g.then(norm, BatchNorm::default())?;
    g.then(sign, Activation { function: Function::Sign })
}
