//! A graph, or a part of it, with memory for its activations: forward, loss, backward. No pass allocates.
//!
//! Parameters, gradients and state are the caller's memory, handed in for each pass.

use std::ops::Range;
use std::sync::Arc;

use crate::compute::{Buffer, Compute, OuterMemory, ValueMemory};
use crate::gradient_plan::{GradientPlan, Hop};
use crate::graph::{Graph, ValueId};
use crate::layers::{Backward, Forward, InputGradient, Layer, Pass, Place};
use crate::loss::{Outcome, Targets};
use crate::part::GraphPart;
use crate::real::Real;
use crate::shape::Shape;

/// A network that can be run on up to a given number of samples at once. One of a part of a graph has the part's
/// parameters, gradients and state; values go in and out beside the passes.
pub struct Network<T: Real> {
    graph: Arc<Graph>,
    part: GraphPart,
    compute: Arc<Compute>,
    capacity: usize,
    layers: Vec<Box<dyn Layer<T>>>,
    slots: Vec<Slot<T>>,
    /// Numbers that each layer keeps of a sample in a slot.
    saved: Vec<usize>,
    plan: GradientPlan,
    /// Memory for the values' gradients: of those that go over a cut, then what the others share that are not alive at once.
    gradients: Vec<ValueMemory<T>>,
    scratch: Buffer<T>,
}

/// What a forward pass leaves for the backward pass.
struct Slot<T> {
    /// The values: the input, then each layer's output; empty where the part has not got it.
    values: Vec<ValueMemory<T>>,
    /// What each layer keeps besides.
    saved: Vec<Buffer<T>>,
}

impl<T: Real> Network<T> {
    /// Memory and kernels for passes of up to `capacity` samples, one at a time.
    pub fn new(graph: Arc<Graph>, capacity: usize, compute: Arc<Compute>) -> Self {
        Self::with_slots(graph, capacity, 1, compute)
    }

    /// Memory and kernels for passes of up to `capacity` samples, `slots` of them under way at once.
    pub fn with_slots(graph: Arc<Graph>, capacity: usize, slots: usize, compute: Arc<Compute>) -> Self {
        let part = graph.whole();
        Self::of_part(graph, part, capacity, slots, compute)
    }

    /// Memory and kernels for passes through a part of a graph.
    pub fn of_part(
        graph: Arc<Graph>,
        part: GraphPart,
        capacity: usize,
        slots: usize,
        compute: Arc<Compute>,
    ) -> Self {
        Self::of_cut(graph, part, capacity, slots, compute, |_, size| ValueMemory::new(size))
    }

    /// The same without memory for what goes over the part's cuts: passes work where the caller has it, who exchanges it
    /// before and after each pass ([`Network::swap_value`], [`Network::swap_gradient`]).
    pub fn with_outer_memory(
        graph: Arc<Graph>,
        part: GraphPart,
        capacity: usize,
        slots: usize,
        compute: Arc<Compute>,
    ) -> Self {
        let memory = |crosses, size| if crosses { ValueMemory::outer() } else { ValueMemory::new(size) };
        Self::of_cut(graph, part, capacity, slots, compute, memory)
    }

    /// `memory` makes that of a value or of its gradient, by whether it goes over a cut, and its length.
    fn of_cut(
        graph: Arc<Graph>,
        part: GraphPart,
        capacity: usize,
        slots: usize,
        compute: Arc<Compute>,
        memory: impl Fn(bool, usize) -> ValueMemory<T>,
    ) -> Self {
        let (trained, nodes) = (graph.trained(), &graph.nodes()[part.nodes.clone()]);
        let layers: Vec<_> = nodes
            .iter()
            .map(|node| {
                let inputs: Vec<Shape> = node.inputs.iter().map(|&value| graph.shape(value)).collect();
                let place = Place {
                    input: node.input,
                    inputs: &inputs,
                    output: node.output,
                    capacity,
                    slots,
                    relu: node.relu,
                    input_gradient: trained[node.inputs[0].0],
                    compute: &compute,
                };
                (T::kernels().layer)(&node.op, place)
            })
            .collect();
        let saved: Vec<usize> = nodes.iter().map(|node| node.saved(T::FAST)).collect();
        let mut sizes = vec![0; graph.nodes().len() + 1];
        part.values().for_each(|value| sizes[value.0] = graph.shape(value).size());
        let slot = |_| Slot {
            values: (0..)
                .zip(&sizes)
                .map(|(value, size)| memory(part.crosses(ValueId(value)), capacity * size))
                .collect(),
            saved: saved.iter().map(|each| Buffer::new(capacity * each)).collect(),
        };
        let plan = GradientPlan::new(&graph, &part);
        Self {
            slots: (0..slots).map(slot).collect(),
            saved,
            gradients: (0..)
                .zip(&plan.sizes)
                .map(|(buffer, size)| memory(buffer < plan.crossing.len(), capacity * size))
                .collect(),
            scratch: Buffer::new(layers.iter().map(|l| l.scratch()).max().unwrap_or(0)),
            graph,
            part,
            compute,
            capacity,
            layers,
            plan,
        }
    }

    /// The layers that it has.
    pub fn part(&self) -> &GraphPart {
        &self.part
    }

    /// The network as data.
    pub fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }

    /// Threads and instruction set.
    pub fn compute(&self) -> &Arc<Compute> {
        &self.compute
    }

    /// Most samples of a pass.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes of its slots and of the values' gradients.
    pub fn pass_bytes(&self) -> usize {
        let values = self.slots.iter().flat_map(|slot| &slot.values).chain(&self.gradients);
        let saved = self.slots.iter().flat_map(|slot| &slot.saved);
        let bytes = values.map(|memory| size_of_val(&memory[..]));
        bytes.chain(saved.map(|memory| size_of_val(&memory[..]))).sum()
    }

    /// The input of the first `samples` samples of a slot, to be filled before [`Network::forward`].
    pub fn input(&mut self, slot: usize, samples: usize) -> &mut [T] {
        let size = self.graph.input().size();
        &mut self.slots[slot].values[0][..samples * size]
    }

    /// Fills sample `i` of a slot's input with `bytes · scale + shift`, one pair per channel or one for all.
    pub fn input_bytes(&mut self, slot: usize, i: usize, bytes: &[u8], scale: &[T], shift: &[T]) {
        let size = self.graph.input().size();
        assert_eq!(bytes.len(), size, "a sample of the network's input shape");
        let input = &mut self.slots[slot].values[0][i * size..(i + 1) * size];
        (T::kernels().normalise)(self.compute.level, bytes, scale, shift, input);
    }

    /// The last layer's output for the first `samples` samples of a slot.
    pub fn output(&self, slot: usize, samples: usize) -> &[T] {
        let (values, size) = (&self.slots[slot].values, self.graph.output().size());
        &values[values.len() - 1][..samples * size]
    }

    /// A value of the first `samples` samples of a slot: one that the part made or was handed.
    pub fn value(&self, slot: usize, value: ValueId, samples: usize) -> &[T] {
        &self.slots[slot].values[value.0][..samples * self.graph.shape(value).size()]
    }

    /// The place of a value that an earlier part hands over, to be filled before [`Network::forward`].
    pub fn value_mut(&mut self, slot: usize, value: ValueId, samples: usize) -> &mut [T] {
        &mut self.slots[slot].values[value.0][..samples * self.graph.shape(value).size()]
    }

    /// Exchanges the memory of a value that goes over a cut with the caller's: before each of a slot's passes, and after it.
    ///
    /// # Panics
    /// If the network has memory of its own for it.
    pub fn swap_value(&mut self, slot: usize, value: ValueId, memory: &mut OuterMemory<T>) {
        self.slots[slot].values[value.0].swap(memory);
    }

    /// The same with its gradient's memory, around a backward pass. What a later part hands back is added to.
    ///
    /// # Panics
    /// If the network has memory of its own for it, or the value has no gradient.
    pub fn swap_gradient(&mut self, value: ValueId, memory: &mut OuterMemory<T>) {
        let buffer = self.plan.crossing.iter().position(|crossing| *crossing == value);
        self.gradients[buffer.expect("a value whose gradient goes over a cut")].swap(memory);
    }

    /// The place of a gradient that a later part hands back, to be filled right before [`Network::backward`]: slots
    /// share it.
    ///
    /// # Panics
    /// If no later part has it.
    pub fn incoming_gradient(&mut self, value: ValueId, samples: usize) -> &mut [T] {
        let buffer = self.plan.incoming[value.0].expect("the gradient of a value that a later part reads");
        &mut self.gradients[buffer][..samples * self.graph.shape(value).size()]
    }

    /// The gradient of a value that an earlier part handed over, until the next [`Network::backward`] or
    /// [`Network::loss`].
    ///
    /// # Panics
    /// If the value has none.
    pub fn outgoing_gradient(&self, value: ValueId, samples: usize) -> &[T] {
        let buffer = self.plan.outgoing[value.0].expect("a value whose gradient an earlier part needs");
        &self.gradients[buffer][..samples * self.graph.shape(value).size()]
    }

    /// Runs the layers forward on the input. Training updates `state`.
    pub fn forward(&mut self, pass: &Pass<'_>, params: &[T], state: &mut [T]) {
        self.forward_watched(pass, params, state, &mut |_| {});
    }

    /// Like [`Network::forward`], telling `done` of each layer that is.
    pub fn forward_watched(
        &mut self,
        pass: &Pass<'_>,
        params: &[T],
        state: &mut [T],
        done: &mut dyn FnMut(usize),
    ) {
        assert!(pass.samples <= self.capacity, "a pass within the network's capacity");
        assert_eq!(params.len(), self.part.params.len(), "the parameter buffer's length");
        assert_eq!(state.len(), self.part.state.len(), "the state buffer's length");
        if pass.samples == 0 {
            return;
        }
        let Slot { values, saved } = &mut self.slots[pass.slot];
        let first = self.part.nodes.start;
        let nodes = self.graph.nodes()[self.part.nodes.clone()].iter();
        for (k, (node, layer)) in nodes.zip(&mut self.layers).enumerate() {
            let i = first + k;
            let (before, after) = values.split_at_mut(i + 1);
            let read = |k: usize| {
                node.inputs
                    .get(k)
                    .map_or(&[][..], |v| &before[v.0][..pass.samples * self.graph.shape(*v).size()])
            };
            layer.forward(Forward {
                compute: &self.compute,
                pass,
                x: read(0),
                x2: read(1),
                inputs: &read,
                y: &mut after[0][..pass.samples * node.output.size()],
                params: &params[within(self.graph.param_range(node), &self.part.params)],
                state: &mut state[within(self.graph.state_range(node), &self.part.state)],
                saved: &mut saved[k][..pass.samples * self.saved[k]],
                scratch: &mut self.scratch,
            });
            done(i);
        }
    }

    /// The loss of a slot's forward pass, summed over the samples, and how many predictions (one per pixel of the
    /// output) were right. Leaves `scale` × the loss's gradient for the slot's [`Network::backward`], which must come
    /// next: with `scale = 1 / samples of the global batch`, the gradients of workers and of micro-batches add up to
    /// the mean. Only the last part of a graph has an output.
    ///
    /// Early exits add their loss, weighted; predictions are the last output's.
    ///
    /// # Panics
    /// If the graph has early exits and this is only a part of it.
    pub fn loss(&mut self, slot: usize, targets: Targets<'_, T>, scale: f64) -> Outcome {
        let whole = self.part.nodes.len() == self.graph.nodes().len();
        assert!(whole || self.graph.exits().is_empty(), "early exits need the whole graph");
        let values = &self.slots[slot].values;
        let buffer = self.plan.incoming[values.len() - 1].expect("the last part of a graph");
        let gradient = &mut self.gradients[buffer];
        let (output, shape) = (&values[values.len() - 1], self.graph.output());
        let kernel = T::kernels().loss_with_gradient;
        let mut outcome = kernel(output, shape, targets, T::of(scale), gradient);
        for exit in self.graph.exits() {
            let buffer = self.plan.incoming[exit.value.0].expect("an exit has a gradient");
            let (output, gradient) = (&values[exit.value.0], &mut self.gradients[buffer]);
            let early = kernel(output, shape, targets, T::of(scale * exit.weight), gradient);
            outcome.loss += exit.weight * early.loss;
        }
        outcome
    }

    /// Like [`Network::loss`] without a gradient.
    pub fn evaluate(&self, slot: usize, targets: Targets<'_, T>) -> Outcome {
        let mut outcome = (T::kernels().loss)(self.output(slot, self.capacity), self.graph.output(), targets);
        for exit in self.graph.exits() {
            outcome.loss += exit.weight * self.evaluate_value(slot, exit.value, targets).loss;
        }
        outcome
    }

    /// The loss of a value of the output's shape, taken as the answer.
    pub fn evaluate_value(&self, slot: usize, value: ValueId, targets: Targets<'_, T>) -> Outcome {
        (T::kernels().loss)(self.value(slot, value, self.capacity), self.graph.output(), targets)
    }

    /// Runs the layers backward from the loss. `grads` is written from its end to its start: overwritten by a batch's
    /// first pass, added to by those that follow ([`Pass::before`]), which must come in the order of their samples.
    /// Without batch norm, whose statistics are those of a pass, the gradient is bit for bit that of a single pass.
    ///
    /// In the batch's last pass ([`Pass::after`]), `ready(offset in grads, slice)` is called with each tensor's gradient as
    /// soon as it is final, and may keep the slice: nothing of it will be touched again. An empty pass does nothing,
    /// unless it is the whole batch.
    pub fn backward<'g>(
        &mut self,
        pass: &Pass<'_>,
        params: &[T],
        grads: &'g mut [T],
        ready: &mut dyn FnMut(usize, &'g mut [T]),
    ) {
        self.backward_watched(pass, params, grads, ready, &mut |_| {});
    }

    /// Like [`Network::backward`], telling `done` of each layer that is.
    pub fn backward_watched<'g>(
        &mut self,
        pass: &Pass<'_>,
        params: &[T],
        grads: &'g mut [T],
        ready: &mut dyn FnMut(usize, &'g mut [T]),
        done: &mut dyn FnMut(usize),
    ) {
        assert_eq!(grads.len(), self.part.params.len(), "the gradient buffer's length");
        if pass.samples == 0 && pass.before + pass.after > 0 {
            return;
        }
        let mut rest = grads;
        let graph = Arc::clone(&self.graph);
        for i in self.part.nodes.clone().rev() {
            let node = &graph.nodes()[i];
            let range = within(graph.param_range(node), &self.part.params);
            let at = if range.is_empty() { rest.len() } else { range.start };
            let (before, own) = rest.split_at_mut(at);
            rest = before;
            if pass.samples == 0 {
                own.fill(T::ZERO);
            } else {
                self.node_backward(i, pass, params, own);
            }
            let mut own = own;
            let last = pass.after == 0;
            for tensor in graph.params()[node.params.clone()].iter().rev().filter(|_| last) {
                let offset = tensor.range.start - self.part.params.start;
                let (before, last) = own.split_at_mut(offset - range.start);
                own = before;
                ready(offset, last);
            }
            done(i);
        }
    }

    fn node_backward(&mut self, i: usize, pass: &Pass<'_>, params: &[T], own: &mut [T]) {
        let k = i - self.part.nodes.start;
        let (node, flow, n) = (&self.graph.nodes()[i], &self.plan.flows[k], pass.samples);
        let Slot { values, saved } = &mut self.slots[pass.slot];
        let y_size = n * node.output.size();
        for (which, (hop, input)) in flow.to.iter().zip(&node.inputs).enumerate() {
            let x_size = n * self.graph.shape(*input).size();
            let (dy, dx) = match *hop {
                Hop::Written { to, add } => {
                    let [dy, dx] = self.gradients.get_disjoint_mut([flow.from, to]).expect("two buffers");
                    (dy, Some(InputGradient { values: &mut dx[..x_size], add }))
                }
                // The layer's own gradients, and the output's changed in place, are there once.
                _ if which == 0 => (&mut self.gradients[flow.from], None),
                _ => continue,
            };
            self.layers[k].backward(Backward {
                compute: &self.compute,
                pass,
                which,
                x: &values[input.0][..x_size],
                y: &values[i + 1][..y_size],
                dy: &mut dy[..y_size],
                params: &params[within(self.graph.param_range(node), &self.part.params)],
                grads: &mut *own,
                dx,
                saved: &mut saved[k][..n * self.saved[k]],
                scratch: &mut self.scratch,
            });
        }
        let (compute, gradients) = (&self.compute, &mut self.gradients);
        for hop in &flow.to {
            let (Hop::Copied(to) | Hop::Added(to)) = *hop else { continue };
            let [from, to] = gradients.get_disjoint_mut([flow.from, to]).expect("two buffers");
            let from = &from[..y_size];
            compute.each(&mut to[..y_size], |first, to| {
                let from = &from[first..first + to.len()];
                match hop {
                    Hop::Added(_) => (T::kernels().accumulate)(compute.level, from, to),
                    _ => to.copy_from_slice(from),
                }
            });
        }
    }
}

/// A layer's range of a whole buffer as one of its part's.
fn within(range: Range<usize>, part: &Range<usize>) -> Range<usize> {
    if range.is_empty() { 0..0 } else { range.start - part.start..range.end - part.start }
}
