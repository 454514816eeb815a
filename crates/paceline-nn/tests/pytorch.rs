//! Networks, batch norm and optimisers agree with values recorded from PyTorch.
//!
//! `pytorch/make_fixtures.py` made the recordings, in float64. Parameters, inputs and labels are not in
//! them: both sides make these from names with the same hash. Nor are whole tensors, see [`Summary`].

use std::any::type_name;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use paceline_nn::accel::Level;
use paceline_nn::layers::{Activation, BatchNorm, Concat, Conv2d, Dense, Function, Maximum, Mean, ViewPart};
use paceline_nn::models::Model;
use paceline_nn::optim::{self, Settings, Step};
use paceline_nn::{Compute, Graph, Network, Pass, Real, Shape, ShapeError, Targets, Tensor};
use paceline_registry::Registry;
use serde::Deserialize;

/// One recorded training run.
#[derive(Deserialize)]
struct Recording {
    /// Height, width and channels.
    input: [usize; 3],
    /// Of each batch.
    samples: usize,
    classes: usize,
    optimiser: Optimiser,
    steps: Vec<Recorded>,
    /// The parameters after the last step; none were recorded of a large network.
    params: Tensors,
    /// Batch norm's running statistics after the last step.
    state: Tensors,
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
    /// Which of the hashed batches it was.
    batch: usize,
    loss: f64,
    grads: Tensors,
}

/// A further batch in evaluation mode, where the running statistics matter.
#[derive(Deserialize)]
struct Evaluation {
    batch: usize,
    loss: f64,
    outputs: Vec<f64>,
}

type Tensors = BTreeMap<String, Summary>;

/// What is kept of a tensor. A wrong element shows up in the dot products, wherever it is.
#[derive(Deserialize)]
struct Summary {
    norm: f64,
    sum: f64,
    /// With hashed vectors.
    dots: [f64; 4],
    /// At hashed places.
    elements: [f64; 16],
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

/// The parameters that the recordings start from; the script says why these.
fn fill<T: Real>(graph: &Graph, params: &mut [T]) {
    // All sizes of the layer's last weight but the last: none for batch norm and layer norm.
    let mut inputs: &[usize] = &[];
    for tensor in graph.params() {
        let weight = tensor.name.rsplit('.').next().is_some_and(|kind| kind.starts_with("weight"));
        if weight {
            inputs = &tensor.shape[..tensor.shape.len() - 1];
        }
        let fan_in = inputs.iter().product::<usize>() as f64;
        let hashed = uniform(&format!("param/{}", tensor.name));
        for (i, (p, u)) in params[tensor.range.clone()].iter_mut().zip(hashed).enumerate() {
            let (middle, spread) = match (inputs, weight) {
                ([], true) => (0.25, 0.025),
                ([], false) => (if i % 2 == 0 { 0.5 } else { -0.5 }, 0.025),
                _ => (0.0, 1.0 / fan_in.sqrt()),
            };
            *p = single(middle + spread * u);
        }
    }
}

/// Fills the input with the hashed batch of this number; returns its labels.
fn load<T: Real>(net: &mut Network<T>, recording: &Recording, batch: usize) -> Vec<u16> {
    let (name, tokens) = (format!("input/{batch}"), net.graph().vocabulary());
    let input = net.input(0, recording.samples).iter_mut();
    match tokens {
        None => input.zip(uniform(&name)).for_each(|(x, u)| *x = single(u)),
        Some(tokens) => input.zip(bits(&name)).for_each(|(x, z)| *x = T::of((z % tokens as u64) as f64)),
    }
    let (classes, answers) = (recording.classes as u64, recording.samples * net.graph().output().w);
    bits(&format!("label/{batch}")).take(answers).map(|z| (z % classes) as u16).collect()
}

/// The largest error that is let pass, relative to the tensor's norm or to the loss.
#[derive(Clone, Copy)]
struct Tolerance {
    loss: f64,
    grads: f64,
    /// Parameters after the last step, running statistics, outputs in evaluation.
    after: f64,
}

/// The precisions of the test.
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

fn near(what: &str, got: f64, want: f64, scale: f64, tolerance: f64) {
    let error = (got - want).abs() / scale;
    // Written so that a NaN fails.
    assert!(error <= tolerance, "{what} is {got:e}, PyTorch's {want:e}: off by {error:.1e} of {scale:.3e}");
}

/// Compares each tensor of a flat buffer with its summary, from the last to the first: in a gradient the
/// first complaint is then the nearest to its cause.
fn all_near<T: Real>(what: &str, tensors: &[Tensor], got: &[T], want: &Tensors, tolerance: f64) {
    let names: BTreeSet<&String> = tensors.iter().map(|t| &t.name).collect();
    assert_eq!(names, want.keys().collect(), "{what} our tensors, PyTorch's tensors");
    for Tensor { name, range, .. } in tensors.iter().rev() {
        let want = &want[name];
        let got: Vec<f64> = got[range.clone()].iter().map(|v| v.to_f64()).collect();
        let near = |of: &str, got: f64, value: f64, factor: f64| {
            near(&format!("{what} {name}: {of}"), got, value, factor * want.norm, tolerance);
        };
        near("norm", got.iter().map(|v| v * v).sum::<f64>().sqrt(), want.norm, 1.0);
        // Where all elements are off the same way, their sum is off by this factor more.
        near("sum", got.iter().sum(), want.sum, (got.len() as f64).sqrt());
        for (k, &dot) in want.dots.iter().enumerate() {
            let hashed = uniform(&format!("dot{k}/{name}"));
            near(&format!("dot {k}"), got.iter().zip(hashed).map(|(v, u)| v * u).sum(), dot, 1.0);
        }
        for (&element, place) in want.elements.iter().zip(bits(&format!("element/{name}"))) {
            let i = (place % got.len() as u64) as usize;
            near(&format!("element {i}"), got[i], element, 1.0);
        }
    }
}

/// Repeats a recorded run in precision `T` and compares everything that was recorded.
fn compare<T: Precision>(
    name: &str,
    graph: &Arc<Graph>,
    recording: &Recording,
    level: Level,
    tolerance: Tolerance,
) {
    let run = format!("{name} in {} ({level})", type_name::<T>());
    let samples = recording.samples;
    let Optimiser { name: ref optimiser, lr, momentum, nesterov, weight_decay } = recording.optimiser;
    let known = Registry::<optim::Optimiser>::default().find(optimiser);
    let optimiser = known.unwrap_or_else(|| panic!("{run}: no optimiser {optimiser}"));
    let settings = Settings { momentum, nesterov, weight_decay, ..Settings::default() };

    let compute = Arc::new(Compute::with_level(level, 1, false));
    let mut net = Network::<T>::new(Arc::clone(graph), samples, Arc::clone(&compute));
    let (mut params, mut state) = (vec![T::ZERO; graph.param_count()], vec![T::ZERO; graph.state_count()]);
    // For the running statistics, which must start as PyTorch's do; the parameters are made anew.
    graph.init(0, &mut params, &mut state);
    fill(graph, &mut params);
    let mut memory = vec![T::ZERO; (optimiser.memory)(&settings) * params.len()];
    let ids: Vec<u32> = (0..).take(samples).collect();

    for (step, recorded) in (1u64..).zip(&recording.steps) {
        let what = format!("{run}, step {step}:");
        let labels = load(&mut net, recording, recorded.batch);
        let pass = Pass::training(0, step, &ids);
        net.forward(&pass, &params, &mut state);
        let loss = net.loss(0, Targets::Classes(&labels), 1.0 / recording.samples as f64).mean_loss();
        near(&format!("{what} loss"), loss, recorded.loss, recorded.loss, tolerance.loss);
        // A stale gradient must not pass for a right one.
        let mut grads = vec![T::of(f64::NAN); params.len()];
        net.backward(&pass, &params, &mut grads, &mut |_, _| {});
        all_near(&format!("{what} gradient of"), graph.params(), &grads, &recorded.grads, tolerance.grads);
        let (params, memory) = (&mut params[..], &mut memory[..]);
        T::apply(optimiser, &compute, &settings, Step { params, grads: &grads, memory, lr, step });
    }

    let what = format!("{run}, after the last step:");
    if !recording.params.is_empty() {
        all_near(&what, graph.params(), &params, &recording.params, tolerance.after);
    }
    all_near(&what, graph.state(), &state, &recording.state, tolerance.after);

    let what = format!("{run}, evaluation:");
    let want = &recording.evaluation;
    let labels = load(&mut net, recording, want.batch);
    net.forward(&Pass::evaluation(samples), &params, &mut state);
    assert_eq!(net.output(0, samples).len(), want.outputs.len(), "{what} our outputs, PyTorch's outputs");
    let norm = want.outputs.iter().map(|v| v * v).sum::<f64>().sqrt();
    for (i, (got, &want)) in net.output(0, samples).iter().zip(&want.outputs).enumerate() {
        near(&format!("{what} output {i}"), got.to_f64(), want, norm, tolerance.after);
    }
    let loss = net.evaluate(0, Targets::Classes(&labels)).mean_loss();
    near(&format!("{what} loss"), loss, want.loss, want.loss, tolerance.loss);
}

/// Compares the network that `build` makes with the recording `name`, on every instruction set.
fn check(name: &str, build: impl Fn(Shape, usize) -> Result<Graph, ShapeError>, single: Tolerance) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/pytorch/{name}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let recording: Recording =
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert!(!recording.steps.is_empty(), "{name}: steps recorded");
    let [h, w, c] = recording.input;
    let graph = build(Shape::new(h, w, c), recording.classes).expect("a network for the recorded shape");
    let graph = Arc::new(graph);
    for level in Level::available() {
        compare::<f64>(name, &graph, &recording, level, DOUBLE);
        compare::<f32>(name, &graph, &recording, level, single);
    }
}

fn check_model(name: &str, single: Tolerance) {
    let model = Registry::<Model>::default().find(name).expect("a model of the crate");
    check(name, |input, classes| model.build(input, classes), single);
}

/// Observed: 2e-16, 1e-13 and 8e-14 (the last is the test's own sum over a million squares).
const DOUBLE: Tolerance = Tolerance { loss: 1e-14, grads: 1e-12, after: 1e-12 };

/// Rounding through a few layers. Observed: 1e-7, 2e-6 and 1e-6.
const SINGLE: Tolerance = Tolerance { loss: 2e-6, grads: 2e-5, after: 5e-6 };

/// Rounding through twenty or fifty layers, many of them by Winograd's transform, which costs a digit by
/// itself. Observed: 1e-7, 8e-5 and 1e-6.
const DEEP: Tolerance = Tolerance { grads: 2e-4, ..SINGLE };

#[test]
fn softmax_agrees_with_pytorch() {
    check_model("softmax", SINGLE);
}

#[test]
fn mlp_agrees_with_pytorch() {
    check_model("mlp", SINGLE);
}

#[test]
fn lenet_agrees_with_pytorch() {
    check_model("lenet", SINGLE);
}

#[test]
fn resnet20_with_batch_norm_statistics_agrees_with_pytorch() {
    check_model("resnet20", DEEP);
}

#[test]
fn resnet50_agrees_with_pytorch() {
    check_model("resnet50", DEEP);
}

#[test]
fn conv1d_agrees_with_pytorch() {
    check_model("conv1d", SINGLE);
}

#[test]
fn gru_agrees_with_pytorch() {
    check_model("gru", SINGLE);
}

#[test]
fn lstm_agrees_with_pytorch() {
    check_model("lstm", SINGLE);
}

#[test]
fn transformer_on_tokens_and_on_series_agrees_with_pytorch() {
    check_model("transformer", SINGLE);
    let model = Registry::<Model>::default().find("transformer").expect("a model of the crate");
    check("transformer-series", |input, classes| model.build(input, classes), SINGLE);
}

#[test]
fn grouped_convolutions_agree_with_pytorch() {
    let build = |input, classes| {
        let mut graph = Graph::new(input);
        graph.then("conv1", Conv2d::square(12, 3, 1, 1, true))?;
        graph.relu();
        graph.then("conv2", Conv2d { groups: 4, ..Conv2d::square(8, 3, 2, 1, true) })?;
        graph.relu();
        graph.then("conv3", Conv2d { groups: 8, ..Conv2d::square(8, 3, 1, 1, true) })?;
        graph.relu();
        graph.then("fc", Dense { outputs: classes })?;
        Ok(graph)
    };
    check("grouped", build, SINGLE);
}

#[test]
fn early_exits_of_views_and_signs_agree_with_pytorch() {
    let build = |input, classes| {
        let mut graph = Graph::new(input);
        let (image, mut features, mut scores) = (graph.last(), Vec::new(), Vec::new());
        for i in 0..3 {
            let name = |layer: &str| format!("device{i}.{layer}");
            let view = ViewPart { top: 3 * i, left: 0, height: 3, width: 4, blank: 0.0 };
            graph.push(&name("view"), view, &[image])?;
            graph.then(&name("conv"), Conv2d::square(4, 3, 1, 1, false))?;
            graph.then(&name("bn"), BatchNorm::default())?;
            features.push(graph.then(&name("sign"), Activation { function: Function::Sign })?);
            scores.push(graph.then(&name("fc"), Dense { outputs: classes })?);
        }
        graph.push("largest", Maximum, &scores)?;
        graph.exit(0.3);
        graph.push("mean", Mean, &features)?;
        graph.then("edge", Dense { outputs: classes })?;
        graph.exit(0.5);
        graph.push("all", Concat, &features)?;
        graph.then("cloud", Dense { outputs: classes })?;
        Ok(graph)
    };
    check("exits", build, SINGLE);
}

#[test]
fn optimisers_agree_with_pytorch() {
    for name in ["sgd", "nesterov", "adam", "adam-decay", "adamw"] {
        let build = |input, classes| {
            let mut graph = Graph::new(input);
            graph.then("fc1", Dense { outputs: 12 })?;
            graph.relu();
            graph.then("fc2", Dense { outputs: classes })?;
            Ok(graph)
        };
        check(&format!("tiny-{name}"), build, SINGLE);
    }
}
