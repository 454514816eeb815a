//! What a graph is, for tables and documents.

use serde::Serialize;

use crate::graph::Graph;
use crate::shape::Shape;

/// A network layer by layer, and what it takes.
#[derive(Clone, Debug, Serialize)]
pub struct GraphSummary {
    /// Height, width and channels of a sample.
    pub input: [usize; 3],
    /// The layers, in the order of the forward pass.
    pub layers: Vec<LayerSummary>,
    /// The trained tensors.
    pub tensors: Vec<TensorSummary>,
    /// Numbers that are trained.
    pub parameters: usize,
    /// Numbers that are kept but not trained.
    pub state: usize,
    /// Floating-point operations of a sample's forward pass.
    pub forward_flops_per_sample: u64,
    /// Floating-point operations of a sample's forward and backward pass.
    pub training_flops_per_sample: u64,
    /// Bytes of a gradient.
    pub gradient_bytes_per_step: usize,
}

/// A layer.
#[derive(Clone, Debug, Serialize)]
pub struct LayerSummary {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: &'static str,
    /// Its settings in a few words.
    pub settings: String,
    /// Whether a ReLU is folded into it.
    pub relu: bool,
    /// Height, width and channels of its output.
    pub output: [usize; 3],
    /// Its parameters.
    pub parameters: usize,
}

/// A trained tensor.
#[derive(Clone, Debug, Serialize)]
pub struct TensorSummary {
    /// Layer and tensor.
    pub name: String,
    /// Sizes, outermost first.
    pub shape: Vec<usize>,
    /// Its first element in the parameter buffer.
    pub offset: usize,
}

impl Graph {
    /// What the network is and takes.
    pub fn summary(&self) -> GraphSummary {
        let sides = |s: Shape| [s.h, s.w, s.c];
        let layer = |node: &crate::graph::Node| LayerSummary {
            name: node.name.clone(),
            kind: node.op.kind(),
            settings: node.op.describe(),
            relu: node.relu,
            output: sides(node.output),
            parameters: self.params()[node.params.clone()].iter().map(|t| t.range.len()).sum(),
        };
        let tensor = |t: &crate::graph::Tensor| TensorSummary {
            name: t.name.clone(),
            shape: t.shape.clone(),
            offset: t.range.start,
        };
        GraphSummary {
            input: sides(self.input()),
            layers: self.nodes().iter().map(layer).collect(),
            tensors: self.params().iter().map(tensor).collect(),
            parameters: self.param_count(),
            state: self.state_count(),
            forward_flops_per_sample: self.forward_flops(),
            training_flops_per_sample: self.training_flops(),
            gradient_bytes_per_step: self.param_count() * size_of::<f32>(),
        }
    }
}
