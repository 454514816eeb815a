//! What a graph's layers cost, counted rather than measured.

use paceline_nn::{Graph, Node};

use crate::timeline::StageTimes;

/// Floating-point operations that take as long as moving a byte: so batch norm and convolutions of resnet20 stand to each
/// other as `bench/prediction/calibration.toml` has measured them.
const OPERATIONS_PER_BYTE: u64 = 8;

/// What a micro-batch's passes through a layer take: nanoseconds that were measured, or counted floating-point operations.
pub type LayerCost = StageTimes;

/// The cost of each layer for `samples` samples: its multiply-adds, and the bytes that it reads and writes.
pub fn counted_costs(graph: &Graph, samples: usize) -> Vec<LayerCost> {
    let cost = |(node, (forward, backward)): (&Node, (u64, u64))| {
        let numbers = node.inputs.len() * node.input.size() + node.output.size();
        let moved = OPERATIONS_PER_BYTE * (size_of::<f32>() * numbers) as u64;
        let samples = samples as u64;
        // Backward reads the same numbers and their gradients.
        LayerCost { forward: samples * (forward + moved), backward: samples * (backward + 2 * moved) }
    };
    graph.nodes().iter().zip(graph.layer_flops()).map(cost).collect()
}

/// Times that a number which goes from stage to stage is moved by each of both, over a socket: into it; when its gradient
/// comes back, out of it, and out of the message to where the pass works. Each move reads and writes it. (Over shared
/// memory it is one move.)
const MOVES: u64 = 2 * 3;

/// What decides where a graph is cut.
#[derive(Clone, Debug)]
pub struct CutCosts {
    /// What each layer costs.
    pub layers: Vec<LayerCost>,
    /// What each stage has to do for a number of a sample that one hands to the other.
    pub number: u64,
}

impl CutCosts {
    /// Both counted, for `samples` samples.
    pub fn counted(graph: &Graph, samples: usize) -> Self {
        let number = samples as u64 * OPERATIONS_PER_BYTE * MOVES * size_of::<f32>() as u64;
        Self { layers: counted_costs(graph, samples), number }
    }

    /// Of layers that were measured for so many samples: numbers cost as much more than was counted as layers do.
    pub fn measured(graph: &Graph, samples: usize, layers: Vec<LayerCost>) -> Self {
        let counted = Self::counted(graph, samples);
        let sum = |layers: &[LayerCost]| layers.iter().map(|cost| cost.both()).sum::<u64>().max(1) as f64;
        let number = (counted.number as f64 * sum(&layers) / sum(&counted.layers)) as u64;
        Self { layers, number }
    }
}
