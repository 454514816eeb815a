//! The residual network of 50 layers for large images (He et al. 2015), with the stride on the 3×3
//! convolution.

use super::{Model, Output};
use crate::graph::{Graph, ShapeError, ValueId};
use crate::layers::{Add, BatchNorm, Conv2d, Dense, GlobalAveragePool, MaxPool};
use crate::shape::Shape;

pub(super) const MODEL: Model = Model {
    name: "resnet50",
    about: "residual network, 50 layers, for 224×224×3 (25,557,032 parameters with 1000 classes)",
    native_input: Shape::new(224, 224, 3),
    output: Output::PerSample,
    build,
};

fn build(input: Shape, classes: usize) -> Result<Graph, ShapeError> {
    let mut g = Graph::new(input);
    g.then("conv1", Conv2d::square(64, 7, 2, 3, false))?;
    g.then("bn1", BatchNorm::default())?;
    g.relu();
    let mut x = g.then("maxpool", MaxPool { size: 3, stride: 2, pad: 1 })?;
    for (stage, (channels, blocks)) in (1..).zip([(64, 3), (128, 4), (256, 6), (512, 3)]) {
        for i in 0..blocks {
            let stride = if stage > 1 && i == 0 { 2 } else { 1 };
            x = bottleneck(&mut g, &format!("layer{stage}.{i}"), x, channels, stride)?;
        }
    }
    g.then("pool", GlobalAveragePool)?;
    g.then("fc", Dense { outputs: classes })?;
    Ok(g)
}

/// 1×1, 3×3 and 1×1 convolutions beside a shortcut; the last has four times the channels.
fn bottleneck(
    g: &mut Graph,
    name: &str,
    x: ValueId,
    channels: usize,
    stride: usize,
) -> Result<ValueId, ShapeError> {
    let mut skip = x;
    if stride != 1 || g.shape(x).c != 4 * channels {
        g.push(&format!("{name}.downsample.0"), Conv2d::square(4 * channels, 1, stride, 0, false), &[x])?;
        skip = g.then(&format!("{name}.downsample.1"), BatchNorm::default())?;
    }
    g.push(&format!("{name}.conv1"), Conv2d::square(channels, 1, 1, 0, false), &[x])?;
    g.then(&format!("{name}.bn1"), BatchNorm::default())?;
    g.relu();
    g.then(&format!("{name}.conv2"), Conv2d::square(channels, 3, stride, 1, false))?;
    g.then(&format!("{name}.bn2"), BatchNorm::default())?;
    g.relu();
    g.then(&format!("{name}.conv3"), Conv2d::square(4 * channels, 1, 1, 0, false))?;
    let y = g.then(&format!("{name}.bn3"), BatchNorm::default())?;
    g.push(&format!("{name}.add"), Add, &[y, skip])?;
    Ok(g.relu())
}
