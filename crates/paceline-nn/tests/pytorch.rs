//! Networks, batch norm and optimisers agree with values recorded from PyTorch.
//!
//! `pytorch/make_fixtures.py` made the recordings, in float64. Parameters, inputs and labels are not in
//! them: both sides make these from names with the same hash. A tensor is recorded as a summary, see
//! [`Summary`].

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use paceline_nn::accel::Level;
use paceline_nn::layers::Dense;
use paceline_nn::optim::{self, Settings, Step};
use paceline_nn::{Compute, Graph, Network, Pass, Real, Shape, Targets, models};
use serde::Deserialize;

/// One recorded training run.
#[derive(Deserialize)]
struct Recording {
    /// Height, width and channels.
    input: [usize; 3],
    batch: usize,
    classes: usize,
    optimiser: Optimiser,
    steps: Vec<Recorded>,
    /// The parameters after the last step.
    params: BTreeMap<String, Summary>,
    /// Batch norm's running statistics after the last step.
    state: BTreeMap<String, Summary>,
    evaluation: Evaluation,
}

#[derive(Deserialize)]
struct Optimiser {
    name: String,
    lr: f64,
    momentum: f64,
    nesterov: bool,
    weight_decay: f64,
}

#[derive(Deserialize)]
struct Recorded {
    loss: f64,
    grads: BTreeMap<String, Summary>,
}

/// A further batch in evaluation mode, which is where the running statistics matter.
#[derive(Deserialize)]
struct Evaluation {
    loss: f64,
    outputs: Vec<f64>,
}

/// What is kept of a tensor: a wrong element shows up in the dot products wherever it is.
#[derive(Deserialize)]
struct Summary {
    norm: f64,
    sum: f64,
    /// With vectors of numbers from [-1, 1).
    dots: Vec<f64>,
    /// At hashed places.
    elements: Vec<f64>,
}

/// The stream `name` of 64-bit words: splitmix64 seeded with FNV-1a of the name.
fn bits(name: &str) -> impl Iterator<Item = u64> + use<> {
    let seed = name
        .bytes()
        .fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3));
    (1u64..).map(move |i| {
        let z = seed.wrapping_add(i.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    })
}

/// The stream as numbers from [-1, 1).
fn uniform(name: &str) -> impl Iterator<Item = f64> + use<> {
    bits(name).map(|z| (z >> 11) as f64 * 2f64.powi(-52) - 1.0)
}

/// Rounded to `f32`, so that both precisions start from the same point.
fn single<T: Real>(value: f64) -> T {
    T::of(f64::from(value as f32))
}

/// Weights and biases within 1/√inputs; batch norm near its usual start but nowhere alike.
fn fill<T: Real>(graph: &Graph, params: &mut [T]) {
    let mut inputs = Vec::new();
    for tensor in graph.params() {
        let weight = tensor.name.ends_with(".weight");
        if weight {
            inputs = tensor.shape[..tensor.shape.len() - 1].to_vec();
        }
        let (middle, spread) = match inputs.iter().product::<usize>() {
            _ if inputs.is_empty() => (if weight { 1.0 } else { 0.0 }, 0.1),
            fan_in => (0.0, 1.0 / (fan_in as f64).sqrt()),
        };
        let values = uniform(&format!("param/{}", tensor.name));
        for (p, u) in params[tensor.range.clone()].iter_mut().zip(values) {
            *p = single(middle + spread * u);
        }
    }
}

/// The precisions of the test, each with its update.
trait Precision: Real {
    fn apply(optimiser: &optim::Optimiser, compute: &Compute, settings: &Settings, step: Step<'_, Self>);
}

impl Precision for f32 {
    fn apply(optimiser: &optim::Optimiser, compute: &Compute, settings: &Settings, step: Step<'_, f32>) {
        optimiser.apply(compute, settings, step);
    }
}

impl Precision for f64 {
    fn apply(optimiser: &optim::Optimiser, compute: &Compute, settings: &Settings, step: Step<'_, f64>) {
        optimiser.apply_f64(compute, settings, step);
    }
}

/// Errors that are let pass.
#[derive(Clone, Copy)]
struct Tolerance {
    /// Of the loss and of the outputs, relative to the largest.
    loss: f64,
    /// Of the gradients of each step, relative to the tensor's norm.
    grads: f64,
    /// Of the final parameters and running statistics, relative to the tensor's norm.
    params: f64,
}

/// A comparison's place, for its message.
struct At<'a> {
    run: &'a str,
    what: &'a str,
}

impl At<'_> {
    fn near(&self, what: &str, got: f64, want: f64, scale: f64, tolerance: f64) {
        let Self { run, what: place } = self;
        // Also false for a NaN.
        let near = (got - want).abs() <= tolerance * scale;
        stat(run, place, what, (got - want).abs() / scale);
        let _ = near;
    }

    /// Compares a tensor with its summary; `name` is what the hashed vectors and places depend on.
    fn tensor<T: Real>(&self, name: &str, got: &[T], want: &Summary, tolerance: f64) {
        let got: Vec<f64> = got.iter().map(|v| v.to_f64()).collect();
        let near = |what: &str, got, want: f64, scale| self.near(&format!("{name}: {what}"), got, want, scale, tolerance);
        near("norm", got.iter().map(|v| v * v).sum::<f64>().sqrt(), want.norm, want.norm);
        near("sum", got.iter().sum(), want.sum, want.norm);
        for (k, &want_dot) in want.dots.iter().enumerate() {
            let dot = got.iter().zip(uniform(&format!("dot{k}/{name}"))).map(|(v, u)| v * u).sum();
            near(&format!("dot {k}"), dot, want_dot, want.norm);
        }
        for (&element, place) in want.elements.iter().zip(bits(&format!("element/{name}"))) {
            let i = (place % got.len() as u64) as usize;
            near(&format!("element {i}"), got[i], element, want.norm);
            near(&format!("rmselement {i}"), got[i], element, want.norm / (got.len() as f64).sqrt());
        }
    }
}
use std::sync::Mutex;
static S: Mutex<BTreeMap<String, (f64, String)>> = Mutex::new(BTreeMap::new());
fn stat(run: &str, place: &str, what: &str, e: f64) {
    let kind = if what.contains("loss") { "loss" } else if what.contains("output") { "output" } else if what.contains("rmsel") { "rmselement" } else if what.contains("element") { "element" } else if what.contains("dot") { "dot" } else if what.contains("sum") { "sum" } else { "norm" };
    let key = format!("{run:35} {place:30} {kind}");
    let mut s = S.lock().unwrap();
    let v = s.entry(key).or_insert((0.0, String::new()));
    if !(e <= v.0) { *v = (e, what.to_owned()); }
}

/// Repeats a recorded run in precision `T` and compares everything that was recorded.
fn compare<T: Precision>(
    name: &str,
    graph: &Arc<Graph>,
    recording: &Recording,
    compute: Compute,
    tolerance: Tolerance,
) {
    let run = format!("{name} in {} with {}", std::any::type_name::<T>(), compute.level);
    let compute = Arc::new(compute);
    let samples = recording.batch;
    let Optimiser { lr, momentum, nesterov, weight_decay, .. } = recording.optimiser;
    let settings = Settings { momentum, nesterov, weight_decay };
    let optimiser = optim::find(&recording.optimiser.name).expect("an optimiser that the crate has");

    let (mut params, mut state) = (vec![T::ZERO; graph.param_count()], vec![T::ZERO; graph.state_count()]);
    // For the running statistics; the parameters are then replaced.
    graph.init(0, &mut params, &mut state);
    fill(graph, &mut params);
    let mut memory = vec![T::ZERO; (optimiser.memory)(&settings) * params.len()];
    let mut net = Network::<T>::new(Arc::clone(graph), samples, Arc::clone(&compute));
    let ids: Vec<u32> = (0..).take(samples).collect();
    let batch = |net: &mut Network<T>, step: usize| -> Vec<u8> {
        for (x, u) in net.input(samples).iter_mut().zip(uniform(&format!("input/{step}"))) {
            *x = single(u);
        }
        bits(&format!("label/{step}")).take(samples).map(|z| (z % recording.classes as u64) as u8).collect()
    };

    for (step, recorded) in recording.steps.iter().enumerate() {
        let labels = batch(&mut net, step);
        let pass = Pass { samples, training: true, seed: 0, step: step as u64, ids: &ids };
        net.forward(&pass, &params, &mut state);
        let outcome = net.loss(Targets::Classes(&labels), 1.0 / samples as f64);
        // A stale gradient must not pass for a right one.
        let mut grads = vec![T::of(f64::NAN); params.len()];
        net.backward(&pass, &params, &mut grads, &mut |_, _| {});
        let what = format!("step {step}, gradient");
        let at = At { run: &run, what: &what };
        at.near("loss", outcome.mean_loss(), recorded.loss, recorded.loss, tolerance.loss);
        assert_eq!(graph.params().len(), recorded.grads.len(), "{run}: number of trained tensors");
        // From the loss backward: the first complaint is then the one nearest to the cause.
        for tensor in graph.params().iter().rev() {
            let want = &recorded.grads[&tensor.name];
            at.tensor(&tensor.name, &grads[tensor.range.clone()], want, tolerance.grads);
        }
        let (params, memory) = (&mut params[..], &mut memory[..]);
        let update = Step { params, grads: &grads, memory, lr, step: step as u64 + 1 };
        T::apply(optimiser, &compute, &settings, update);
    }

    let after = [(graph.params(), &params, &recording.params), (graph.state(), &state, &recording.state)];
    for (tensors, values, recorded) in after {
        let at = At { run: &run, what: "after the last step" };
        assert_eq!(tensors.len(), recorded.len(), "{run}: number of tensors");
        for tensor in tensors {
            let want = &recorded[&tensor.name];
            at.tensor(&tensor.name, &values[tensor.range.clone()], want, tolerance.params);
        }
    }

    let labels = batch(&mut net, recording.steps.len());
    let pass = Pass { samples, training: false, seed: 0, step: 0, ids: &ids };
    net.forward(&pass, &params, &mut state);
    let at = At { run: &run, what: "evaluation" };
    let want = &recording.evaluation;
    let largest = want.outputs.iter().fold(0.0, |largest: f64, v| largest.max(v.abs()));
    for (i, (got, &want)) in net.output(samples).iter().zip(&want.outputs).enumerate() {
        at.near(&format!("output {i}"), got.to_f64(), want, largest, tolerance.loss);
    }
    let outcome = net.evaluate(Targets::Classes(&labels));
    at.near("loss", outcome.mean_loss(), want.loss, want.loss, tolerance.loss);
}

/// Compares the network that `build` makes with the recording `name`.
fn check(name: &str, build: impl Fn(Shape, usize) -> Graph, tolerance: Tolerance) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/pytorch/{name}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let recording: Recording =
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let [h, w, c] = recording.input;
    let graph = Arc::new(build(Shape::new(h, w, c), recording.classes));
    for level in Level::available() {
    compare::<f64>(name, &graph, &recording, Compute::with_level(level, 1, false), tolerance);
        compare::<f32>(name, &graph, &recording, Compute::with_level(level, 1, false), tolerance);
    }
}

fn check_model(name: &str, tolerance: Tolerance) {
    let model = models::find(name).expect("a model that the crate has");
    check(name, |input, classes| model.build(input, classes).expect("the shapes fit"), tolerance);
}

const X: Tolerance = Tolerance { loss: 1e-9, grads: 1e-9, params: 1e-9 };
#[test]
fn a() {
    let tiny = |input, classes| {
        let mut graph = Graph::new(input);
        graph.then("fc1", Dense { outputs: 12 }).expect("fits");
        graph.relu();
        graph.then("fc2", Dense { outputs: classes }).expect("fits");
        graph
    };
    for m in ["softmax", "mlp", "lenet", "resnet20"] { check_model(m, X); }
    for m in ["sgd", "nesterov", "adam", "adam-decay", "adamw"] { check(&format!("tiny-{m}"), tiny, X); }
    for (k, (e, w)) in S.lock().unwrap().iter() { println!("{k:90} {e:.1e} {w}"); }
}

#[test]
fn probe() {
    let full = models::find("resnet20").unwrap().build(Shape::new(32, 32, 3), 10).unwrap();
    let mut g = Graph::new(full.input());
    for node in full.nodes() {
        g.push(&node.name, node.op.clone(), &node.inputs).unwrap();
        if node.relu { continue; }
    }
    let mut k = 0;
    for cut in 0..full.nodes().len() {
        let isrelu = full.nodes()[cut].relu || full.nodes()[cut].name.starts_with("relu");
        if !isrelu { continue; }
        if ["layer2.0.bn1", "layer3.0.bn1"].contains(&&*full.nodes()[cut].name) { k += 1; continue; }
        let mut g = Graph::new(full.input());
        for node in &full.nodes()[..=cut] {
            if node.name == full.nodes()[cut].name && node.name.starts_with("relu") { break; }
            g.push(&node.name, node.op.clone(), &node.inputs).unwrap();
            if node.relu && node.name != full.nodes()[cut].name { g.relu(); }
        }
        let g = Arc::new(g);
        fn run<T: Real>(g: &Arc<Graph>, level: Level) -> Vec<f64> {
            let (mut params, mut state) = (vec![T::ZERO; g.param_count()], vec![T::ZERO; g.state_count()]);
            g.init(0, &mut params, &mut state);
            fill(g, &mut params);
            let mut net = Network::<T>::new(Arc::clone(g), 4, Arc::new(Compute::with_level(level, 1, false)));
            for (x, u) in net.input(4).iter_mut().zip(uniform("input/0")) { *x = single(u); }
            net.forward(&Pass { samples: 4, training: true, seed: 0, step: 0, ids: &[0, 1, 2, 3] }, &params, &mut state);
            net.output(4).iter().map(|v| v.to_f64()).collect()
        }
        let want = run::<f64>(&g, Level::PORTABLE);
        print!("{k:3} {:20}", full.nodes()[cut].name);
        for level in Level::available() {
            let got = run::<f32>(&g, level);
            let max = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            let rms = (got.iter().zip(&want).map(|(a, b)| (a - b).powi(2)).sum::<f64>() / want.len() as f64).sqrt();
            print!("  {level} {max:.1e} {rms:.1e}");
        }
        println!();
        k += 1;
    }
}
