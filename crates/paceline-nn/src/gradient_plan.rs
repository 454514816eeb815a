//! Where gradients of values lie during the backward pass.

use crate::graph::{Graph, ValueId};

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
    pub flows: Vec<Flow>,
    /// The buffer that the loss writes the output's gradient to.
    pub output: usize,
}

impl GradientPlan {
    pub fn new(graph: &Graph) -> Self {
        let trained = graph.trained();
        let mut plan = Self { sizes: Vec::new(), free: Vec::new(), flows: Vec::new(), output: 0 };
        let mut held: Vec<Option<usize>> = vec![None; graph.nodes().len() + 1];
        plan.output = plan.take(graph.output().size());
        held[graph.nodes().len()] = Some(plan.output);
        for (i, node) in graph.nodes().iter().enumerate().rev() {
            if !trained[i + 1] && i + 1 < graph.nodes().len() {
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
