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
    /// The values whose gradients go over a cut of the part. The first buffers are theirs, and nobody else's.
    pub crossing: Vec<ValueId>,
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
        let edges = part.receives.iter().chain(&part.sends).filter(|edge| edge.gradient);
        let mut crossing: Vec<ValueId> = edges.map(|edge| edge.value).collect();
        crossing.sort_unstable_by_key(|value| value.0);
        crossing.dedup();
        let mut plan = Self {
            sizes: crossing.iter().map(|value| graph.shape(*value).size()).collect(),
            crossing,
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
            plan.incoming[edge.value.0] = plan.of_crossing(edge.value.0);
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
                let in_place = node.op.spec().in_place();
                if let Some(to) = held[value] {
                    return if in_place { Hop::Added(to) } else { Hop::Written { to, add: true } };
                }
                // Another buffer than its own would have to be copied for the earlier part.
                if in_place && !passed_on && plan.of_crossing(value).is_none_or(|own| own == from) {
                    passed_on = true;
                    held[value] = Some(from);
                    return Hop::Same;
                }
                let to = plan.place(graph, part, &held, &trained, value);
                held[value] = Some(to);
                if in_place { Hop::Copied(to) } else { Hop::Written { to, add: false } }
            };
            let to = node.inputs.iter().map(|v| hop(&mut plan, v.0)).collect();
            if !passed_on && from >= plan.crossing.len() {
                plan.free.push(from);
            }
            plan.flows.push(Flow { from, to });
        }
        plan.flows.reverse();
        plan.outgoing = held;
        plan
    }

    /// Numbers per sample of the buffers that values share.
    pub fn shared(&self) -> usize {
        self.sizes[self.crossing.len()..].iter().sum()
    }

    /// The buffer of a value whose gradient goes over a cut.
    fn of_crossing(&self, value: usize) -> Option<usize> {
        self.crossing.iter().position(|crossing| crossing.0 == value)
    }

    /// A buffer for a value's gradient, of which there is nothing yet. Where layers that change gradients in place lead from
    /// a value that goes over a cut to this one, it is that one's.
    fn place(
        &mut self,
        graph: &Graph,
        part: &GraphPart,
        held: &[Option<usize>],
        trained: &[bool],
        value: usize,
    ) -> usize {
        let mut at = value;
        loop {
            if let Some(own) = self.of_crossing(at) {
                return own;
            }
            let maker = at.checked_sub(1).filter(|maker| part.nodes.contains(maker));
            let input = maker.map(|maker| &graph.nodes()[maker]).filter(|node| node.op.spec().in_place());
            let Some((maker, input)) = maker.zip(input.map(|node| node.inputs[0])) else { break };
            // The gradients of later readers come before this one's.
            let mut later = graph.nodes()[maker + 1..part.nodes.end].iter();
            if !trained[input.0] || held[input.0].is_some() || later.any(|node| node.inputs.contains(&input))
            {
                break;
            }
            at = input.0;
        }
        self.take(graph.shape(ValueId(value)).size())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::{Activation, Add, Dense, Function};
    use crate::shape::Shape;

    /// What happens to the gradient of each input of each layer of a part, with the buffers' numbers.
    fn hops(plan: &GradientPlan) -> Vec<Vec<String>> {
        plan.flows.iter().map(|flow| flow.to.iter().map(|hop| format!("{hop:?}")).collect()).collect()
    }

    /// `a`, then `t`, `b` and `u`, of which `t` and `u` change gradients in place, and what `skip` says added at the end.
    fn graph(skip: usize) -> Graph {
        let tanh = Activation { function: Function::Tanh };
        let mut g = Graph::new(Shape::vector(4));
        let mut values = vec![g.then("a", Dense { outputs: 4 }).unwrap()];
        values.push(g.then("t", tanh.clone()).unwrap());
        values.push(g.then("b", Dense { outputs: 4 }).unwrap());
        values.push(g.then("u", tanh).unwrap());
        g.push("add", Add, &[values[3], values[skip]]).unwrap();
        g.then("answer", Dense { outputs: 2 }).unwrap();
        g
    }

    #[test]
    fn what_goes_back_over_a_cut_is_made_where_it_is_handed_over() {
        // a | t b u add answer: `t` gets its output's gradient where that of `a` belongs.
        let graph = graph(2);
        let plan = GradientPlan::new(&graph, &graph.parts(&[1])[1]);
        assert_eq!((plan.crossing.len(), plan.outgoing[1]), (1, Some(0)));
        let made = hops(&plan);
        assert_eq!(made[0], ["Same"], "{made:?}");
        assert_eq!(made[1], ["Written { to: 0, add: false }"], "{made:?}");
        // The part before changes what came back in place.
        let plan = GradientPlan::new(&graph, &graph.parts(&[2])[0]);
        assert_eq!((plan.incoming[2], hops(&plan)[1].as_slice()), (Some(0), &["Same".to_owned()][..]));
    }

    #[test]
    fn what_another_layer_adds_to_is_copied_to_where_it_is_handed_over() {
        // a t | b u add answer: the skipping value's gradient comes first, that of `b` is added to it.
        let graph = graph(1);
        let plan = GradientPlan::new(&graph, &graph.parts(&[2])[1]);
        let made = hops(&plan);
        assert_eq!((plan.outgoing[2], plan.crossing.len()), (Some(0), 1));
        assert_eq!(made[2], ["Same", "Copied(0)"], "{made:?}");
        assert_eq!(made[0], ["Written { to: 0, add: true }"], "{made:?}");
        // `a` goes over the cut, and is read twice: where the first reader is no place for the other's output.
        let graph = self::graph(0);
        let plan = GradientPlan::new(&graph, &graph.parts(&[1])[1]);
        let made = hops(&plan);
        assert_eq!((plan.outgoing[1], made[3][1].as_str()), (Some(0), "Copied(0)"), "{made:?}");
        assert_eq!(made[0], ["Added(0)"], "{made:?}");
    }

    #[test]
    fn a_whole_graph_has_no_buffers_of_crossings() {
        let graph = graph(0);
        let plan = GradientPlan::new(&graph, &graph.whole());
        assert!(plan.crossing.is_empty());
        assert_eq!(plan.shared(), plan.sizes.iter().sum());
    }
}
