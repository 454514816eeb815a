//! Consecutive layers of a graph that are computed apart from the others: a stage of a pipeline.
//!
//! A value that several parts use travels from reader to reader, and its gradient back the same way. So each sum of
//! gradients starts where the whole graph's does, and the bits stay.

use std::ops::Range;

use crate::gradient_plan::GradientPlan;
use crate::graph::{Graph, PassMemory, ValueId};
use crate::real::Real;

/// A part of a graph: some of its layers, and the values that go in and out.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphPart {
    /// Its layers among [`Graph::nodes`].
    pub nodes: Range<usize>,
    /// Its elements of the parameter and of the gradient buffer.
    pub params: Range<usize>,
    /// Its elements of the state buffer.
    pub state: Range<usize>,
    /// Values that earlier parts hand over, ascending.
    pub receives: Vec<PartEdge>,
    /// Values that later parts are handed, ascending.
    pub sends: Vec<PartEdge>,
}

/// A value on its way from one part to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartEdge {
    /// The value.
    pub value: ValueId,
    /// Numbers of a sample.
    pub size: usize,
    /// The part at the other end.
    pub part: usize,
    /// Whether its gradient travels back: something before it is trained.
    pub gradient: bool,
}

impl GraphPart {
    /// Memory of a training pass through this part in `f32`, besides what goes over its cuts.
    pub fn pass_memory(&self, graph: &Graph) -> PassMemory {
        let own = self.values().filter(|value| !self.crosses(*value));
        let values: usize = own.map(|value| graph.shape(value).size()).sum();
        let saved: usize = graph.nodes()[self.nodes.clone()].iter().map(|node| node.saved(f32::FAST)).sum();
        PassMemory { slot: values + saved, shared: GradientPlan::new(graph, self).shared() }
    }

    /// Numbers of a sample that are handed on to later parts.
    pub fn sent(&self) -> usize {
        self.sends.iter().map(|edge| edge.size).sum()
    }

    /// Numbers of a sample's gradients that are handed back to earlier parts.
    pub fn returned(&self) -> usize {
        self.receives.iter().filter(|edge| edge.gradient).map(|edge| edge.size).sum()
    }

    /// Whether a value goes over one of its cuts.
    pub(crate) fn crosses(&self, value: ValueId) -> bool {
        self.receives.iter().chain(&self.sends).any(|edge| edge.value == value)
    }

    /// The values that it holds: those it is handed, the network's input in the first part, and its layers' outputs.
    pub(crate) fn values(&self) -> impl Iterator<Item = ValueId> {
        let first = if self.nodes.start == 0 { 0 } else { self.nodes.start + 1 };
        self.receives.iter().map(|edge| edge.value).chain((first..=self.nodes.end).map(ValueId))
    }
}

impl Graph {
    /// The graph as a single part.
    pub fn whole(&self) -> GraphPart {
        self.parts(&[]).remove(0)
    }

    /// The graph cut before these layers.
    ///
    /// # Panics
    /// If a part would have no layer, or layers do not ascend.
    pub fn parts(&self, cuts: &[usize]) -> Vec<GraphPart> {
        let count = self.nodes().len();
        let bounds: Vec<usize> = [0].iter().chain(cuts).chain([&count]).copied().collect();
        let range = |pair: &[usize]| {
            assert!(pair[0] < pair[1] || cuts.is_empty(), "each part of {count} layers has one: {cuts:?}");
            pair[0]..pair[1]
        };
        let mut parts: Vec<GraphPart> = bounds
            .windows(2)
            .map(|pair| GraphPart {
                nodes: range(pair),
                params: elements(self.params(), self.nodes()[pair[0]..pair[1]].iter().map(|n| &n.params)),
                state: elements(self.state(), self.nodes()[pair[0]..pair[1]].iter().map(|n| &n.state)),
                receives: Vec::new(),
                sends: Vec::new(),
            })
            .collect();
        let part_of = |node: usize| cuts.partition_point(|&cut| cut <= node);
        for (value, gradient) in self.trained().into_iter().enumerate() {
            // Whoever holds the value: its maker, then its readers.
            let mut holders = vec![part_of(value.saturating_sub(1))];
            let reads = |node: &&crate::graph::Node| node.inputs.contains(&ValueId(value));
            for reader in self.nodes().iter().enumerate().filter(|(_, node)| reads(node)) {
                holders.push(part_of(reader.0));
            }
            holders.dedup();
            let size = self.shape(ValueId(value)).size();
            let edge = |part| PartEdge { value: ValueId(value), size, part, gradient };
            for pair in holders.windows(2) {
                parts[pair[0]].sends.push(edge(pair[1]));
                parts[pair[1]].receives.push(edge(pair[0]));
            }
        }
        parts
    }
}

/// The elements of consecutive tensors, those of some layers.
fn elements<'a>(
    tensors: &[crate::graph::Tensor],
    layers: impl Iterator<Item = &'a Range<usize>>,
) -> Range<usize> {
    let (mut all, mut behind) = (None, 0);
    for layer in layers {
        behind = layer.start;
        if let (Some(first), Some(last)) = (tensors[layer.clone()].first(), tensors[layer.clone()].last()) {
            let start = all.map_or(first.range.start, |all: Range<usize>| all.start);
            all = Some(start..last.range.end);
        }
    }
    all.unwrap_or_else(|| {
        let at = behind.checked_sub(1).map_or(0, |before| tensors[before].range.end);
        at..at
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::{Add, Dense};
    use crate::shape::Shape;

    /// `a`, then `b`, `c` and `d` one behind the other, and what `a` gave added behind `b` and behind `d`.
    fn graph() -> Graph {
        let mut g = Graph::new(Shape::vector(3));
        let a = g.then("a", Dense { outputs: 4 }).unwrap();
        let b = g.then("b", Dense { outputs: 4 }).unwrap();
        g.push("ab", Add, &[b, a]).unwrap();
        g.then("c", Dense { outputs: 4 }).unwrap();
        let d = g.then("d", Dense { outputs: 4 }).unwrap();
        g.push("ad", Add, &[d, a]).unwrap();
        g
    }

    fn edges(edges: &[PartEdge]) -> Vec<(usize, usize)> {
        edges.iter().map(|edge| (edge.value.0, edge.part)).collect()
    }

    #[test]
    fn a_value_travels_from_reader_to_reader() {
        // a | b ab | c | d ad
        let parts = graph().parts(&[1, 3, 4]);
        let sends: Vec<_> = parts.iter().map(|part| edges(&part.sends)).collect();
        let receives: Vec<_> = parts.iter().map(|part| edges(&part.receives)).collect();
        assert_eq!(sends, [vec![(1, 1)], vec![(1, 3), (3, 2)], vec![(4, 3)], vec![]]);
        assert_eq!(receives, [vec![], vec![(1, 0)], vec![(3, 1)], vec![(1, 1), (4, 2)]]);
        assert_eq!((parts[1].sent(), parts[3].returned()), (8, 8));
    }

    #[test]
    fn parameters_of_the_parts_are_ranges_one_behind_the_other() {
        let graph = graph();
        for cuts in [&[][..], &[1], &[2, 3], &[1, 2, 3, 4, 5]] {
            let parts = graph.parts(cuts);
            assert_eq!(parts[0].params.start, 0);
            assert_eq!(parts.last().unwrap().params.end, graph.param_count());
            for pair in parts.windows(2) {
                assert_eq!(pair[0].params.end, pair[1].params.start, "{cuts:?}");
            }
        }
        // A layer without parameters has an empty range in its place.
        assert_eq!(graph.parts(&[2, 3])[1].params, 36..36);
    }

    #[test]
    fn a_part_holds_what_it_makes_besides_what_goes_over_cuts() {
        let graph = graph();
        let parts = graph.parts(&[1, 3, 4]);
        let values: Vec<usize> =
            parts.iter().map(|part| part.values().map(|v| graph.shape(v).size()).sum()).collect();
        assert_eq!(values, [3 + 4, 4 + 8, 4 + 4, 8 + 8]);
        let slots: Vec<usize> = parts.iter().map(|part| part.pass_memory(&graph).slot).collect();
        assert_eq!(slots, [3, 4, 0, 8]);
        assert_eq!(graph.whole().pass_memory(&graph), graph.pass_memory());
    }
}
