//! Where gradients of values lie during the backward pass.

use crate::graph::{Graph, ValueId};
use crate::part::GraphPart;

/// What happens to a layer's output gradient in the backward pass.
#[derive(Debug)]
pub struct Flow {
    /// The buffer that holds it.
    pub from: usize,
    /// For each input; none where neither the layer nor anything before it is trained.
    pub to: Vec<Hop>,
}

/// How an input's gradient comes about.
#[derive(Debug)]
pub enum Hop {
    /// Nothing before this input is trained.
    Unneeded,
    /// The layer writes it (or adds to it).
    Written { to: usize, add: bool },
    /// It is the output's gradient, changed in place: the same buffer.
    Same,
    /// It is the output's gradient, but the buffer is taken by another input already.
    Copied(usize),
    /// It is the output's gradient, added to what came from elsewhere.
    Added(usize),
}

/// Which buffer holds each value's gradient, found by walking the backward pass once.
pub struct GradientPlan {
    /// Numbers per sample of each buffer.
    pub sizes: Vec<usize>,
    free: Vec<usize>,
    /// One for each layer of the part.
    pub flows: Vec<Flow>,
    /// The buffers that gradients come into before the pass, by value: the losses', and those of later parts.
    pub incoming: Vec<Option<usize>>,
    /// The buffers that hold gradients after the pass, by value: those that earlier parts wait for are among them.
    pub outgoing: Vec<Option<usize>>,
}

impl GradientPlan {
    pub fn new(graph: &Graph, part: &GraphPart) -> Self {
        let (trained, layers) = (graph.trained(), graph.nodes().len());
        let mut plan = Self {
            sizes: Vec::new(),
            free: Vec::new(),
            flows: Vec::new(),
            incoming: vec![None; layers + 1],
            outgoing: Vec::new(),
        };
        if part.nodes.end == layers {
            plan.incoming[layers] = Some(plan.take(graph.output().size()));
        }
        // Later readers have added up their part of these gradients: what follows is added to it.
        for edge in part.sends.iter().filter(|edge| edge.gradient) {
            plan.incoming[edge.value.0] = Some(plan.take(edge.size));
        }
        // The loss of an early exit, which layers behind it add to.
        for exit in graph.exits() {
            let own = exit.value.0 > 0 && part.nodes.contains(&(exit.value.0 - 1));
            if own && plan.incoming[exit.value.0].is_none() {
                plan.incoming[exit.value.0] = Some(plan.take(graph.shape(exit.value).size()));
            }
        }
        let mut held = plan.incoming.clone();
        for i in part.nodes.clone().rev() {
            let node = &graph.nodes()[i];
            if !trained[i + 1] && i + 1 < layers {
                plan.flows.push(Flow { from: 0, to: Vec::new() });
                continue;
            }
            let from = held[i + 1].expect("every layer's output is read by another, or is the last");
            let mut passed_on = false;
            let mut hop = |plan: &mut Self, value: usize| {
                if !trained[value] {
                    return Hop::Unneeded;
                }
                let size = graph.shape(ValueId(value)).size();
                match (node.op.spec().in_place(), held[value]) {
                    (true, Some(to)) => Hop::Added(to),
                    (true, None) if !passed_on => {
                        passed_on = true;
                        held[value] = Some(from);
                        Hop::Same
                    }
                    (true, None) => Hop::Copied(*held[value].insert(plan.take(size))),
                    (false, Some(to)) => Hop::Written { to, add: true },
                    (false, None) => Hop::Written { to: *held[value].insert(plan.take(size)), add: false },
                }
            };
            let to = node.inputs.iter().map(|v| hop(&mut plan, v.0)).collect();
            if !passed_on {
                plan.free.push(from);
            }
            plan.flows.push(Flow { from, to });
        }
        plan.flows.reverse();
        plan.outgoing = held;
        plan
    }

    /// A free buffer of at least `size` numbers per sample.
    fn take(&mut self, size: usize) -> usize {
        let buffer = self.free.pop().unwrap_or_else(|| {
            self.sizes.push(0);
            self.sizes.len() - 1
        });
        self.sizes[buffer] = self.sizes[buffer].max(size);
        buffer
    }
}
