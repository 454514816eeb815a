//! Residual networks for small images (He et al. 2015), 6n + 2 layers deep.

use super::{Model, Output};
use crate::graph::{Graph, ShapeError, ValueId};
use crate::layers::{Add, BatchNorm, Conv2d, Dense, GlobalAveragePool};
use crate::shape::Shape;

pub(super) const RESNET20: Model = Model {
    name: "resnet20",
    about: "residual network, 20 layers, batch norm (272,474 parameters on 32×32×3)",
    native_input: Shape::new(32, 32, 3),
    output: Output::PerSample,
    build: |input, classes| build(3, input, classes),
};

pub(super) const RESNET32: Model = Model {
    name: "resnet32",
    about: "residual network, 32 layers, batch norm (466,906 parameters on 32×32×3)",
    native_input: Shape::new(32, 32, 3),
    output: Output::PerSample,
    build: |input, classes| build(5, input, classes),
};

fn build(blocks: usize, input: Shape, classes: usize) -> Result<Graph, ShapeError> {
    let mut g = Graph::new(input);
    g.then("conv1", Conv2d::square(16, 3, 1, 1, false))?;
    g.then("bn1", BatchNorm::default())?;
    let mut x = g.relu();
    for (stage, channels) in (1..).zip([16, 32, 64]) {
        for i in 0..blocks {
            let stride = if stage > 1 && i == 0 { 2 } else { 1 };
            x = block(&mut g, &format!("layer{stage}.{i}"), x, channels, stride)?;
        }
    }
    g.then("pool", GlobalAveragePool)?;
    g.then("fc", Dense { outputs: classes })?;
    Ok(g)
}

/// Two 3×3 convolutions beside a shortcut; the shortcut is a 1×1 convolution where the shape changes.
fn block(
    g: &mut Graph,
    name: &str,
    x: ValueId,
    channels: usize,
    stride: usize,
) -> Result<ValueId, ShapeError> {
    let mut skip = x;
    if stride != 1 || g.shape(x).c != channels {
        g.push(&format!("{name}.downsample.0"), Conv2d::square(channels, 1, stride, 0, false), &[x])?;
        skip = g.then(&format!("{name}.downsample.1"), BatchNorm::default())?;
    }
    g.push(&format!("{name}.conv1"), Conv2d::square(channels, 3, stride, 1, false), &[x])?;
    g.then(&format!("{name}.bn1"), BatchNorm::default())?;
    g.relu();
    g.then(&format!("{name}.conv2"), Conv2d::square(channels, 3, 1, 1, false))?;
    let y = g.then(&format!("{name}.bn2"), BatchNorm::default())?;
    g.push(&format!("{name}.add"), Add, &[y, skip])?;
    Ok(g.relu())
}
