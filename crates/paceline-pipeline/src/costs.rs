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
