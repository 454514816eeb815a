//! Weights written by PyTorch give PyTorch's answers, ours come back as they were, and bad files are refused.
//!
//! `pytorch/make_logits.py` made the recordings: names, shapes and answers. The weights themselves are hashed from
//! their names on both sides, in PyTorch's order: nothing here knows how Paceline lays them out.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use paceline_nn::{Compute, Graph, Network, Pass, Shape, models};
use paceline_plan::Weights;
use paceline_resolve::Registries;
use paceline_testing::{Need, skip};
use paceline_train::TrainError;
use paceline_train::weights::{self, WeightsMismatch};
use safetensors::tensor::{Dtype, TensorView};
use serde::Deserialize;

const MODELS: [&str; 3] = ["lenet", "resnet20", "resnet50"];

#[derive(Deserialize)]
struct Recording {
    input: [usize; 3],
    samples: usize,
    classes: usize,
    logits: Vec<f64>,
    tensors: Vec<(String, Vec<usize>)>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pytorch")
}

fn recording(model: &str) -> Recording {
    let text = std::fs::read_to_string(folder().join(format!("{model}.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Numbers from [-1, 1): splitmix64 seeded with FNV-1a of the name.
fn uniform(name: &str) -> impl Iterator<Item = f64> + use<> {
    let seed = name
        .bytes()
        .fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3));
    (1u64..).map(move |i| {
        let z = seed.wrapping_add(i.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 * 2f64.powi(-52) - 1.0
    })
}

/// A tensor's numbers in PyTorch's order; the script has the same formula.
fn values(name: &str, shape: &[usize]) -> Vec<u8> {
    let (middle, spread) = match name.rsplit('.').next() {
        _ if shape.len() > 1 => (0.0, (3.0 / shape[1..].iter().product::<usize>() as f64).sqrt()),
        Some("running_var") => (1.0, 0.5),
        Some("weight") => (0.5, 0.25),
        _ => (0.0, 0.1),
    };
    let noise = uniform(&format!("weights/{name}")).take(shape.iter().product());
    noise.flat_map(|u| ((middle + spread * u) as f32).to_le_bytes()).collect()
}

/// A file of tensors.
fn write(path: &Path, tensors: &[(String, Vec<usize>, Dtype, Vec<u8>)]) {
    let view = |(name, shape, dtype, bytes)| (name, TensorView::new(dtype, shape, bytes).unwrap());
    let views = tensors.iter().map(|(n, s, d, b)| view((n.clone(), s.clone(), *d, &b[..])));
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

fn hashed(recording: &Recording) -> Vec<(String, Vec<usize>, Dtype, Vec<u8>)> {
    let tensor =
        |(name, shape): &(String, Vec<usize>)| (name.clone(), shape.clone(), Dtype::F32, values(name, shape));
    recording.tensors.iter().map(tensor).collect()
}

fn graph(model: &str) -> Arc<Graph> {
    let Recording { input: [h, w, c], classes, .. } = recording(model);
    Arc::new(Registries::default().models.find(model).unwrap().build(Shape::new(h, w, c), classes).unwrap())
}

type Loaded = (WeightsMismatch, Vec<f32>, Vec<f32>);

/// Loads a file into a network that started from a seed.
fn load(path: &Path, graph: &Graph, partial: bool) -> Result<Loaded, TrainError> {
    let (mut params, mut state) = (vec![0.0; graph.param_count()], vec![0.0; graph.state_count()]);
    graph.init(7, &mut params, &mut state);
    let sha256 = paceline_files::sha256(paceline_files::open(path).unwrap()).unwrap().1;
    let weights = Weights { file: path.to_str().unwrap().into(), sha256, partial };
    let left = weights::load(&weights, graph, &mut params, &mut state)?;
    Ok((left, params, state))
}

fn logits(model: &str, params: &[f32], state: &mut [f32]) -> Vec<f64> {
    let Recording { samples, .. } = recording(model);
    let mut network = Network::<f32>::new(graph(model), samples, Arc::new(Compute::new(1, false)));
    network.input(0, samples).iter_mut().zip(uniform("input/0")).for_each(|(x, u)| *x = u as f32);
    network.forward(&Pass::evaluation(samples), params, state);
    network.output(0, samples).iter().map(|&v| f64::from(v)).collect()
}

fn assert_near(what: &str, got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        // Written so that a NaN fails.
        assert!((got - want).abs() <= 1e-4, "{what}: logit {i} is {got}, PyTorch's {want}");
    }
}

#[test]
fn pytorch_weights_give_pytorch_logits_and_come_back_as_they_were() {
    let place = tempfile::tempdir().unwrap();
    for model in MODELS {
        let recording = recording(model);
        let file = place.path().join("weights.safetensors");
        write(&file, &hashed(&recording));
        let (left, params, mut state) = load(&file, &graph(model), false).unwrap();
        assert_eq!(left, WeightsMismatch::default(), "{model}");
        assert_near(model, &logits(model, &params, &mut state), &recording.logits);

        let ours = place.path().join("ours.safetensors");
        weights::save(&ours, &graph(model), &params, &state).unwrap();
        let bytes = std::fs::read(&ours).unwrap();
        let saved = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(saved.len(), recording.tensors.len(), "{model}");
        for (name, shape, _, bytes) in hashed(&recording) {
            let tensor = saved.tensor(&name).unwrap();
            assert_eq!((tensor.shape(), tensor.data()), (&shape[..], &bytes[..]), "{model} {name}");
        }
    }
}

#[test]
fn every_model_comes_back_from_its_own_file() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("weights.safetensors");
    for model in models::MODELS {
        let graph = model.build(model.native_input, 10).unwrap();
        let (mut params, mut state) = (vec![0.0; graph.param_count()], vec![0.0; graph.state_count()]);
        params.iter_mut().zip(uniform("params")).for_each(|(p, u)| *p = u as f32);
        state.iter_mut().zip(uniform("state")).for_each(|(s, u)| *s = u as f32);
        weights::save(&file, &graph, &params, &state).unwrap();
        let (left, again, statistics) = load(&file, &graph, false).unwrap();
        assert!(left.is_empty(), "{}: {left}", model.name);
        assert!(again == params && statistics == state, "{}", model.name);
    }
}

#[test]
fn what_does_not_fit_is_named_with_both_shapes_or_left_out_if_asked() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("weights.safetensors");
    let recording = recording("lenet");
    let mut tensors = hashed(&recording);
    let other = tensors.iter_mut().find(|t| t.0 == "fc2.weight").unwrap();
    (other.1, other.3) = (vec![1000, 512], vec![0; 4 * 1000 * 512]);
    tensors.retain(|t| t.0 != "conv2.bias");
    tensors.push(("head.bias".into(), vec![3], Dtype::F32, vec![0; 12]));
    // What PyTorch counts and what its wrappers add is no difference.
    tensors.push(("bn.num_batches_tracked".into(), vec![], Dtype::I64, vec![0; 8]));
    tensors.iter_mut().for_each(|t| t.0 = format!("module.{}", t.0));
    write(&file, &tensors);
    let graph = graph("lenet");
    let error = load(&file, &graph, false).unwrap_err().to_string();
    for part in ["fc2.weight is [1000, 512]", "[10, 512]", "does not have conv2.bias", "head.bias"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let (left, params, _) = load(&file, &graph, true).unwrap();
    assert_eq!(
        (&left.missing[..], &left.unused[..]),
        (&["conv2.bias".into()][..], &["head.bias".into()][..])
    );
    assert_eq!(left.reshaped, [("fc2.weight".into(), vec![1000, 512], vec![10, 512])]);
    let mut seed = vec![0.0; params.len()];
    graph.init(7, &mut seed, &mut []);
    for tensor in graph.params() {
        let same = params[tensor.range.clone()] == seed[tensor.range.clone()];
        assert_eq!(same, ["conv2.bias", "fc2.weight"].contains(&&tensor.name[..]), "{}", tensor.name);
    }
}

#[test]
fn hostile_files_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("weights.safetensors");
    let tensors = hashed(&recording("lenet"));
    write(&file, &tensors);
    let good = std::fs::read(&file).unwrap();
    let mut doubled = tensors.clone();
    (doubled[0].2, doubled[0].3) = (Dtype::F64, [&tensors[0].3[..], &tensors[0].3].concat());
    write(&file, &doubled);
    let double = std::fs::read(&file).unwrap();
    let mut endless = tensors;
    endless[0].3[..4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    write(&file, &endless);
    let infinite = std::fs::read(&file).unwrap();
    let with_header = |length: u64, text: &str| [&length.to_le_bytes()[..], text.as_bytes()].concat();
    let claim =
        r#"{"conv1.weight":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}"#;
    let cases = [
        (vec![], "0 bytes"),
        (good[..5].to_vec(), "5 bytes"),
        (good[..100].to_vec(), "not the whole"),
        (good[..good.len() - 1].to_vec(), "is it the whole file?"),
        ([&good[..], b"more"].concat(), "is it the whole file?"),
        (with_header(u64::MAX, "{}"), "a header of 18446744073709551615 bytes"),
        (with_header(2, "[]"), "its header"),
        (with_header(claim.len() as u64, claim), "calls for 4398046511"),
        (with_header(2, "{}"), "nothing in it belongs"),
        (double, "conv1.weight is F64, only F32 is read"),
        (infinite, "conv1.weight has a inf in it"),
    ];
    for (bytes, problem) in cases {
        std::fs::write(&file, &bytes).unwrap();
        let error = load(&file, &graph("lenet"), true).unwrap_err();
        assert!(error.to_string().contains(problem), "{problem}: {error}");
        assert!(error.to_string().contains("weights.safetensors"), "{error}");
        assert!(!error.hint().is_empty());
    }
    std::fs::write(&file, &good).unwrap();
    let path = file.to_str().unwrap();
    let changed = Weights { file: path.into(), sha256: "0".repeat(64), partial: false };
    let graph = graph("lenet");
    let error = weights::load(&changed, &graph, &mut vec![0.0; graph.param_count()], &mut []).unwrap_err();
    assert!(error.to_string().contains("not what the plan says"), "{error}");
}

/// With PyTorch itself; `PACELINE_PYTHON` names the Python that has it.
#[test]
fn files_are_exchanged_with_pytorch_itself() {
    let python = std::env::var("PACELINE_PYTHON").unwrap_or_else(|_| "python3".into());
    let script = folder().join("exchange.py");
    let has = Command::new(&python).args(["-c", "import torch, numpy, safetensors.torch"]).output();
    if !has.is_ok_and(|out| out.status.success()) {
        let packages = "torch, numpy and safetensors (PACELINE_PYTHON names a Python that has them)";
        return skip(Need::PythonPackages, packages);
    }
    let place = tempfile::tempdir().unwrap();
    let ask = |verb: &str| -> BTreeMap<String, Vec<f64>> {
        let out = Command::new(&python).arg("-B").arg(&script).arg(verb).arg(place.path()).output().unwrap();
        assert!(out.status.success(), "{verb}: {}", String::from_utf8_lossy(&out.stderr));
        serde_json::from_slice(&out.stdout).unwrap()
    };
    ask("write");
    for model in MODELS {
        let file = place.path().join(format!("{model}.safetensors"));
        let (left, params, mut state) = load(&file, &graph(model), false).unwrap();
        assert!(left.is_empty(), "{model}: {left}");
        assert_near(model, &logits(model, &params, &mut state), &recording(model).logits);
        let ours = place.path().join(format!("{model}-ours.safetensors"));
        weights::save(&ours, &graph(model), &params, &state).unwrap();
    }
    let answers = ask("read");
    for model in MODELS {
        assert_near(model, &answers[model], &recording(model).logits);
    }
}
