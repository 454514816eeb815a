//! A network as data: layers, how they are connected, and where each tensor lies in the flat buffers.

use std::ops::Range;

use paceline_random::{Purpose, Stream};

use crate::layers::{Init, Op};
use crate::part::GraphPart;
use crate::real::Real;
use crate::shape::Shape;

/// A value inside a network: the input, or a layer's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ValueId(pub(crate) usize);

impl ValueId {
    /// Its place: 0 is the network's input, i the output of layer i − 1.
    pub fn index(self) -> usize {
        self.0
    }
}

/// A named tensor inside one of the flat buffers.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Layer and tensor, e.g. `conv1.weight`.
    pub name: String,
    /// Sizes, outermost first.
    pub shape: Vec<usize>,
    /// Its elements in the buffer.
    pub range: Range<usize>,
    /// How it starts.
    pub init: Init,
}

/// One layer in its place.
#[derive(Clone, Debug)]
pub struct Node {
    /// Unique name.
    pub name: String,
    /// The layer.
    pub op: Op,
    /// What it reads.
    pub inputs: Vec<ValueId>,
    /// Whether a ReLU is folded into it.
    pub relu: bool,
    /// Shape of the first input.
    pub input: Shape,
    /// Shape of the output.
    pub output: Shape,
    /// Its tensors among [`Graph::params`].
    pub params: Range<usize>,
    /// Its tensors among [`Graph::state`].
    pub state: Range<usize>,
}

impl Node {
    /// Numbers that forward keeps of each sample for backward, besides input and output.
    pub(crate) fn saved(&self, fast: bool) -> usize {
        self.op.spec().saved(self.input, self.output, fast)
    }
}

/// An output before the last one: an answer that can do without the layers behind it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EarlyExit {
    /// The value that answers, of the output's shape.
    pub value: ValueId,
    /// What its loss counts in the sum that training minimises; the last output's counts 1.
    pub weight: f64,
}

/// What a training pass needs for each sample, in numbers: without parameters, gradients, scratch and what
/// goes over cuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassMemory {
    /// What forward leaves for backward (activations, and what layers keep besides), for each slot.
    pub slot: usize,
    /// Gradients of values, which all slots share.
    pub shared: usize,
}

impl PassMemory {
    /// Bytes for passes of up to `samples` samples, `slots` of them under way at once.
    pub fn bytes(&self, samples: usize, slots: usize) -> usize {
        size_of::<f32>() * samples * (slots * self.slot + self.shared)
    }
}

/// A layer that cannot stand where it was put.
#[derive(Debug, thiserror::Error, PartialEq)]
#[error("layer `{layer}` ({kind}) on an input of {input}: {problem}")]
pub struct ShapeError {
    /// The layer's name.
    pub layer: String,
    /// The layer's kind.
    pub kind: &'static str,
    /// Shape of the input.
    pub input: Shape,
    /// What does not fit.
    pub problem: String,
}

/// A network as data.
#[derive(Clone, Debug)]
pub struct Graph {
    input: Shape,
    nodes: Vec<Node>,
    params: Vec<Tensor>,
    state: Vec<Tensor>,
    exits: Vec<EarlyExit>,
}

impl Graph {
    /// A network without layers.
    pub fn new(input: Shape) -> Self {
        Self { input, nodes: Vec::new(), params: Vec::new(), state: Vec::new(), exits: Vec::new() }
    }

    /// Appends a layer that reads `inputs`.
    pub fn push(&mut self, name: &str, op: impl Into<Op>, inputs: &[ValueId]) -> Result<ValueId, ShapeError> {
        let op = op.into();
        let shapes: Vec<Shape> = inputs.iter().map(|&v| self.shape(v)).collect();
        let refuse = |problem: String| ShapeError {
            layer: name.to_owned(),
            kind: op.kind(),
            input: shapes.first().copied().unwrap_or(self.input),
            problem,
        };
        let (wanted, more) = (op.spec().arity(), op.spec().takes_more());
        if inputs.len() < wanted || inputs.len() > wanted && !more {
            let at_least = if more { "at least " } else { "" };
            return Err(refuse(format!("takes {at_least}{wanted} inputs, not {}", inputs.len())));
        }
        if (1..inputs.len()).any(|k| inputs[..k].contains(&inputs[k])) {
            return Err(refuse("its inputs must be different values".into()));
        }
        if op.spec().vocabulary().is_some() && inputs[0] != ValueId(0) {
            return Err(refuse("tokens have no gradient: it can only read the network's input".into()));
        }
        if self.nodes.iter().any(|n| n.name == name) {
            return Err(refuse("a layer of this name exists already".into()));
        }
        let output = op.spec().output(&shapes).map_err(refuse)?;
        let params = append(&mut self.params, name, op.spec().params(shapes[0]));
        let state = append(&mut self.state, name, op.spec().state(shapes[0]));
        self.nodes.push(Node {
            name: name.to_owned(),
            op,
            inputs: inputs.to_vec(),
            relu: false,
            input: shapes[0],
            output,
            params,
            state,
        });
        Ok(self.last())
    }

    /// Appends a layer that reads the last one's output.
    pub fn then(&mut self, name: &str, op: impl Into<Op>) -> Result<ValueId, ShapeError> {
        self.push(name, op, &[self.last()])
    }

    /// A ReLU on the last value, folded into the layer that makes it where that is possible.
    pub fn relu(&mut self) -> ValueId {
        let last = self.last();
        let reused = self.nodes.iter().any(|n| n.inputs.contains(&last));
        match self.nodes.last_mut() {
            Some(node) if !reused && !node.relu && node.op.spec().fuses_relu() => {
                node.relu = true;
                last
            }
            _ => {
                let name = format!("relu{}", self.nodes.len());
                let op = crate::layers::Activation { function: crate::layers::Function::Relu };
                self.then(&name, op).expect("an activation fits every shape")
            }
        }
    }

    /// Lets the last value answer, too: an early exit whose loss counts `weight` in what training minimises.
    pub fn exit(&mut self, weight: f64) {
        self.exits.push(EarlyExit { value: self.last(), weight });
    }

    /// The outputs before the last one, in the order of the layers.
    pub fn exits(&self) -> &[EarlyExit] {
        &self.exits
    }

    /// Changes how the trained tensor of this name starts.
    ///
    /// # Panics
    /// If there is no such tensor.
    pub fn start(&mut self, tensor: &str, init: Init) {
        let found = self.params.iter_mut().find(|t| t.name == tensor);
        found.unwrap_or_else(|| panic!("no tensor {tensor}")).init = init;
    }

    /// The last layer's output, or the input where there is none.
    pub fn last(&self) -> ValueId {
        ValueId(self.nodes.len())
    }

    /// The network's input.
    pub fn input(&self) -> Shape {
        self.input
    }

    /// The network's output.
    pub fn output(&self) -> Shape {
        self.shape(self.last())
    }

    /// How many different tokens the network reads, where its samples are tokens.
    pub fn vocabulary(&self) -> Option<usize> {
        self.nodes.iter().find_map(|node| node.op.spec().vocabulary())
    }

    /// Shape of a value.
    pub fn shape(&self, value: ValueId) -> Shape {
        if value.0 == 0 { self.input } else { self.nodes[value.0 - 1].output }
    }

    /// Memory of a training pass in `f32`.
    pub fn pass_memory(&self) -> PassMemory {
        self.whole().pass_memory(self)
    }

    /// The layers, in the order of the forward pass.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The trained tensors, in the order of the parameter and gradient buffers.
    pub fn params(&self) -> &[Tensor] {
        &self.params
    }

    /// The tensors of the state buffer (batch norm's running statistics).
    pub fn state(&self) -> &[Tensor] {
        &self.state
    }

    /// Length of the parameter and of the gradient buffer.
    pub fn param_count(&self) -> usize {
        self.params.last().map_or(0, |t| t.range.end)
    }

    /// Length of the state buffer.
    pub fn state_count(&self) -> usize {
        self.state.last().map_or(0, |t| t.range.end)
    }

    /// The elements of a node's trained tensors in the flat buffer.
    pub(crate) fn param_range(&self, node: &Node) -> Range<usize> {
        span(&self.params[node.params.clone()])
    }

    /// The elements of a node's state tensors in the flat buffer.
    pub(crate) fn state_range(&self, node: &Node) -> Range<usize> {
        span(&self.state[node.state.clone()])
    }

    /// Whether each value's gradient is needed: some layer before it is trained.
    pub(crate) fn trained(&self) -> Vec<bool> {
        let mut trained = vec![false; self.nodes.len() + 1];
        for (i, node) in self.nodes.iter().enumerate() {
            trained[i + 1] = !node.params.is_empty() || node.inputs.iter().any(|v| trained[v.0]);
        }
        trained
    }

    /// Floating-point operations of one sample's forward pass: 2 × multiply-adds.
    pub fn forward_flops(&self) -> u64 {
        self.layer_flops().iter().map(|(forward, _)| forward).sum()
    }

    /// Floating-point operations of one sample's forward and backward pass through each layer.
    pub fn layer_flops(&self) -> Vec<(u64, u64)> {
        let trained = self.trained();
        let passes = |n: &Node| if trained[n.inputs[0].0] { 2 } else { 1 };
        let one = |n: &Node| 2 * n.op.spec().multiply_adds(n.input, n.output);
        self.nodes.iter().map(|n| (one(n), passes(n) * one(n))).collect()
    }

    /// Floating-point operations of one sample's forward and backward pass: 2 × multiply-adds, without
    /// the input gradient of layers that have nothing to train before them.
    pub fn training_flops(&self) -> u64 {
        self.layer_flops().iter().map(|(forward, backward)| forward + backward).sum()
    }

    /// Fills `params` and `state` with the values that training starts from: a function of the seed and
    /// of each tensor's place alone.
    pub fn init<T: Real>(&self, seed: u64, params: &mut [T], state: &mut [T]) {
        self.init_part(&self.whole(), seed, params, state);
    }

    /// Like [`Graph::init`] for the parameters and the state of a part.
    pub fn init_part<T: Real>(&self, part: &GraphPart, seed: u64, params: &mut [T], state: &mut [T]) {
        let stream = Stream::new(seed, Purpose::Init);
        // Numbers of their own: a normal one is made from two uniform ones.
        let normals = stream.fork(1);
        for (buffer, tensors, own) in
            [(params, &self.params, &part.params), (state, &self.state, &part.state)]
        {
            let inside = |t: &&Tensor| own.start <= t.range.start && t.range.end <= own.end;
            for tensor in tensors.iter().filter(inside) {
                let (places, first) = (tensor.range.clone(), own.start);
                match tensor.init {
                    Init::Constant(value) => {
                        buffer[places.start - first..places.end - first].fill(T::of(value));
                    }
                    Init::Normal(deviation) => {
                        places.for_each(|i| buffer[i - first] = T::of(deviation * normals.normal(i as u64)));
                    }
                    Init::Uniform(bound) => {
                        places
                            .for_each(|i| buffer[i - first] = T::of(stream.uniform(i as u64, -bound, bound)));
                    }
                }
            }
        }
    }
}

fn append(table: &mut Vec<Tensor>, layer: &str, specs: Vec<crate::layers::TensorSpec>) -> Range<usize> {
    let first = table.len();
    for spec in specs {
        let start = table.last().map_or(0, |t| t.range.end);
        let end = start + spec.shape.iter().product::<usize>();
        let name = format!("{layer}.{}", spec.name);
        table.push(Tensor { name, shape: spec.shape, range: start..end, init: spec.init });
    }
    first..table.len()
}

fn span(tensors: &[Tensor]) -> Range<usize> {
    match (tensors.first(), tensors.last()) {
        (Some(first), Some(last)) => first.range.start..last.range.end,
        _ => 0..0,
    }
}
