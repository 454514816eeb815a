//! A graph with memory for its activations: forward, loss, backward. No pass allocates.
//!
//! Parameters, gradients and state are the caller's memory, handed in for each pass.

use std::sync::Arc;

use crate::compute::{Buffer, Compute};
use crate::graph::Graph;
use crate::layers::{Backward, Forward, InputGradient, Layer, Pass, Place};
use crate::loss::{Outcome, Targets};
use crate::real::Real;

/// A network that can be run on batches of up to a given number of samples.
pub struct Network<T: Real> {
    graph: Arc<Graph>,
    compute: Arc<Compute>,
    capacity: usize,
    layers: Vec<Box<dyn Layer<T>>>,
    /// The values: the input, then each layer's output.
    values: Vec<Buffer<T>>,
    /// Memory for the values' gradients, shared between values that are not alive at once.
    gradients: Vec<Buffer<T>>,
    flows: Vec<Flow>,
    /// The buffer that the loss writes the output's gradient to.
    output_gradient: usize,
    scratch: Buffer<T>,
}

/// What happens to a layer's output gradient in the backward pass.
#[derive(Debug)]
struct Flow {
    /// The buffer that holds it.
    from: usize,
    /// For each input; none where neither the layer nor anything before it is trained.
    to: Vec<Hop>,
}

/// How an input's gradient comes about.
#[derive(Debug)]
enum Hop {
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

impl<T: Real> Network<T> {
    /// Memory and kernels for batches of up to `capacity` samples.
    pub fn new(graph: Arc<Graph>, capacity: usize, compute: Arc<Compute>) -> Self {
        let trained = graph.trained();
        let layers: Vec<_> = graph
            .nodes()
            .iter()
            .map(|node| {
                let place = Place {
                    input: node.input,
                    output: node.output,
                    capacity,
                    relu: node.relu,
                    input_gradient: trained[node.inputs[0].0],
                    compute: &compute,
                };
                (T::kernels().layer)(&node.op, place)
            })
            .collect();
        let mut values = vec![Buffer::new(capacity * graph.input().size())];
        values.extend(graph.nodes().iter().map(|n| Buffer::new(capacity * n.output.size())));
        let scratch = Buffer::new(layers.iter().map(|l| l.scratch()).max().unwrap_or(0));
        let plan = GradientPlan::new(&graph, &trained, &layers);
        let gradients = plan.sizes.iter().map(|size| Buffer::new(capacity * size)).collect();
        let output_gradient = plan.output;
        Self {
            graph,
            compute,
            capacity,
            layers,
            values,
            gradients,
            flows: plan.flows,
            output_gradient,
            scratch,
        }
    }

    /// The network as data.
    pub fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }

    /// Threads and instruction set.
    pub fn compute(&self) -> &Arc<Compute> {
        &self.compute
    }

    /// Most samples of a batch.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The input of the first `samples` samples, to be filled before [`Network::forward`].
    pub fn input(&mut self, samples: usize) -> &mut [T] {
        let size = self.graph.input().size();
        &mut self.values[0][..samples * size]
    }

    /// Fills sample `i` of the input with `bytes · scale + shift`, one pair per channel or one for all.
    pub fn input_bytes(&mut self, i: usize, bytes: &[u8], scale: &[T], shift: &[T]) {
        let size = self.graph.input().size();
        assert_eq!(bytes.len(), size, "a sample of the network's input shape");
        let level = self.compute.level;
        (T::kernels().normalise)(level, bytes, scale, shift, &mut self.values[0][i * size..(i + 1) * size]);
    }

    /// The last layer's output for the first `samples` samples.
    pub fn output(&self, samples: usize) -> &[T] {
        let size = self.graph.output().size();
        &self.values[self.values.len() - 1][..samples * size]
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
        assert!(pass.samples <= self.capacity, "a batch within the network's capacity");
        assert_eq!(params.len(), self.graph.param_count(), "the parameter buffer's length");
        assert_eq!(state.len(), self.graph.state_count(), "the state buffer's length");
        if pass.samples == 0 {
            return;
        }
        for (i, (node, layer)) in self.graph.nodes().iter().zip(&mut self.layers).enumerate() {
            let (before, after) = self.values.split_at_mut(i + 1);
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
                y: &mut after[0][..pass.samples * node.output.size()],
                params: &params[self.graph.param_range(node)],
                state: &mut state[self.graph.state_range(node)],
                scratch: &mut self.scratch,
            });
            done(i);
        }
    }

    /// The loss of the last forward pass, summed over the samples, and how many predictions (one per
    /// pixel of the output) were right. Leaves `scale` × the loss's gradient for [`Network::backward`]: with
    /// `scale = 1 / samples of the global batch`, the workers' gradients add up to the mean.
    pub fn loss(&mut self, targets: Targets<'_, T>, scale: f64) -> Outcome {
        let output = &self.values[self.values.len() - 1];
        let gradient = &mut self.gradients[self.output_gradient];
        (T::kernels().loss_with_gradient)(output, self.graph.output(), targets, T::of(scale), gradient)
    }

    /// Like [`Network::loss`] without a gradient.
    pub fn evaluate(&self, targets: Targets<'_, T>) -> Outcome {
        (T::kernels().loss)(self.output(self.capacity), self.graph.output(), targets)
    }

    /// Runs the layers backward from the loss. `grads` is overwritten from its end to its start;
    /// `ready(offset, slice)` is called with each tensor's gradient as soon as it is final, and may keep
    /// the slice: nothing of it will be touched again.
    pub fn backward<'g>(
        &mut self,
        pass: &Pass<'_>,
        params: &[T],
        grads: &'g mut [T],
        ready: &mut dyn FnMut(usize, &'g mut [T]),
    ) {
        assert_eq!(grads.len(), self.graph.param_count(), "the gradient buffer's length");
        let mut rest = grads;
        let graph = Arc::clone(&self.graph);
        for (i, node) in graph.nodes().iter().enumerate().rev() {
            let range = graph.param_range(node);
            let at = if range.is_empty() { rest.len() } else { range.start };
            let (before, own) = rest.split_at_mut(at);
            rest = before;
            if pass.samples == 0 {
                own.fill(T::ZERO);
            } else {
                self.node_backward(i, pass, params, own);
            }
            let mut own = own;
            for tensor in graph.params()[node.params.clone()].iter().rev() {
                let (before, last) = own.split_at_mut(tensor.range.start - range.start);
                own = before;
                ready(tensor.range.start, last);
            }
        }
    }

    fn node_backward(&mut self, i: usize, pass: &Pass<'_>, params: &[T], own: &mut [T]) {
        let (node, flow, n) = (&self.graph.nodes()[i], &self.flows[i], pass.samples);
        let (x_size, y_size) = (n * node.input.size(), n * node.output.size());
        let (dy, dx) = match flow.to.first() {
            None => return,
            Some(&Hop::Written { to, add }) => {
                let [dy, dx] = self.gradients.get_disjoint_mut([flow.from, to]).expect("two buffers");
                (dy, Some(InputGradient { values: &mut dx[..x_size], add }))
            }
            _ => (&mut self.gradients[flow.from], None),
        };
        self.layers[i].backward(Backward {
            compute: &self.compute,
            pass,
            x: &self.values[node.inputs[0].0][..x_size],
            y: &self.values[i + 1][..y_size],
            dy: &mut dy[..y_size],
            params: &params[self.graph.param_range(node)],
            grads: own,
            dx,
            scratch: &mut self.scratch,
        });
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

/// Which buffer holds each value's gradient, found by walking the backward pass once.
struct GradientPlan {
    /// Numbers per sample of each buffer.
    sizes: Vec<usize>,
    free: Vec<usize>,
    flows: Vec<Flow>,
    output: usize,
}

impl GradientPlan {
    fn new<T: Real>(graph: &Graph, trained: &[bool], layers: &[Box<dyn Layer<T>>]) -> Self {
        let mut plan = Self { sizes: Vec::new(), free: Vec::new(), flows: Vec::new(), output: 0 };
        let mut held: Vec<Option<usize>> = vec![None; graph.nodes().len() + 1];
        plan.output = plan.take(graph.output().size());
        held[graph.nodes().len()] = Some(plan.output);
        for (i, (node, layer)) in graph.nodes().iter().zip(layers).enumerate().rev() {
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
                let size =
                    if value == 0 { graph.input().size() } else { graph.nodes()[value - 1].output.size() };
                match (layer.in_place(), held[value]) {
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
