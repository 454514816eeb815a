//! Networks from text: the examples run, and what is wrong is said with its line.

use std::path::Path;
use std::sync::Arc;

use paceline_nn::description::build;
use paceline_nn::layers::{Init, LayerKind, Op};
use paceline_nn::models::Model;
use paceline_nn::{Compute, Graph, Network, Pass, Shape, Targets};
use paceline_registry::Registry;

/// The examples, with samples and classes that each is for.
const EXAMPLES: &[(&str, Shape, usize)] = &[
    ("gru", Shape::new(8, 8, 1), 10),
    ("lenet", Shape::new(28, 28, 1), 10),
    ("mlp", Shape::new(8, 8, 1), 10),
    ("resnet8", Shape::new(16, 16, 3), 10),
    ("transformer", Shape::new(1, 12, 1), 17),
];

fn example(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../examples/models/{name}.toml"));
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The loss before and after some steps of plain gradient descent on one batch.
fn learn(graph: Graph) -> (f64, f64) {
    const SAMPLES: usize = 4;
    let graph = Arc::new(graph);
    let (mut params, mut state) = (vec![0f32; graph.param_count()], vec![0f32; graph.state_count()]);
    graph.init(1, &mut params, &mut state);
    let mut net = Network::<f32>::new(Arc::clone(&graph), SAMPLES, Arc::new(Compute::new(1, false)));
    for (i, x) in net.input(0, SAMPLES).iter_mut().enumerate() {
        *x = match graph.vocabulary() {
            Some(tokens) => (i * 7 % tokens) as f32,
            None => (i * 29 % 101) as f32 / 50.0 - 1.0,
        };
    }
    let classes: Vec<u16> = (0..SAMPLES * graph.output().w).map(|i| (i % 5) as u16).collect();
    let mut grads = vec![f32::NAN; params.len()];
    let ids = [0, 1, 2, 3];
    let losses: Vec<f64> = (0..4)
        .map(|step| {
            let pass = Pass::training(1, step, &ids);
            net.forward(&pass, &params, &mut state);
            let loss = net.loss(0, Targets::Classes(&classes), 1.0 / SAMPLES as f64).mean_loss();
            net.backward(&pass, &params, &mut grads, &mut |_, _| {});
            params.iter_mut().zip(&grads).for_each(|(p, g)| *p -= 0.05 * g);
            loss
        })
        .collect();
    (losses[0], losses[3])
}

#[test]
fn every_example_is_known_here_and_learns() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/models");
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert_eq!(names, EXAMPLES.iter().map(|(name, ..)| *name).collect::<Vec<_>>());
    for &(name, input, classes) in EXAMPLES {
        let graph = build(&example(name), input, classes).unwrap_or_else(|e| panic!("{name}: {e}"));
        let (before, after) = learn(graph);
        assert!(after < before, "{name}: the loss went from {before} to {after}");
    }
}

#[test]
fn a_description_of_a_registered_model_is_that_model() {
    for name in ["mlp", "lenet"] {
        let input = Shape::new(28, 28, 1);
        let described = build(&example(name), input, 10).unwrap();
        let registered = Registry::<Model>::default().find(name).unwrap().build(input, 10).unwrap();
        assert_eq!(described.params(), registered.params());
        for (a, b) in described.nodes().iter().zip(registered.nodes()) {
            assert_eq!((&a.name, &a.op, a.relu, &a.inputs), (&b.name, &b.op, b.relu, &b.inputs));
        }
    }
}

#[test]
fn a_deviation_changes_how_weights_start() {
    let text = "[[layer]]\nkind = \"dense\"\nname = \"a\"\noutputs = \"classes\"\ndeviation = 0.5\n";
    let graph = build(text, Shape::vector(3), 4).unwrap();
    let starts: Vec<Init> = graph.params().iter().map(|t| t.init).collect();
    assert_eq!(starts, [Init::Normal(0.5), Init::Constant(0.0)]);
}

/// Layers in short: `kind key=value ...` each, on a line of its own.
fn layers(lines: &[&str]) -> String {
    lines
        .iter()
        .map(|line| {
            let (kind, settings) = line.split_once(' ').unwrap_or((line, ""));
            let settings = settings.replace(' ', ", ");
            let comma = if settings.is_empty() { "" } else { ", " };
            format!("    {{ kind = \"{kind}\"{comma}{settings} }},\n")
        })
        .fold("layer = [\n".to_owned(), |text, line| text + &line)
        + "]\n"
}

#[test]
fn mistakes_are_named_with_line_layer_and_reason() {
    let end = "dense outputs=\"classes\"";
    let input = Shape::new(8, 8, 3);
    for (text, line, reasons) in [
        ("", 1, &["between 1 and 10000 layers"] as &[_]),
        ("layers = 3", 1, &["`layers` is not known", "[[layer]]"]),
        ("layer = 3", 1, &["[[layer]]"]),
        ("\n\n[[layer", 3, &[]),
        ("[[layer]]\noutputs = 3\n", 1, &["needs a kind", "dense, conv2d"]),
        (&layers(&["dens outputs=3"]), 2, &["no layer `dens`", "dense"]),
        (&layers(&["dense", end]), 2, &["layer `dense1`: needs `outputs`"]),
        (&layers(&["dense outputs=\"many\""]), 2, &["layer `dense1`", "0 to 65536, or \"classes\""]),
        (&layers(&["dense outputs=-4"]), 2, &["layer `dense1`", "whole number"]),
        (&layers(&["dense outputs=100000000000"]), 2, &["0 to 65536"]),
        (&layers(&["dense outputs=3 units=4", end]), 2, &["no setting `units`", "outputs"]),
        (&layers(&["conv2d channels=4 kernel=9", end]), 2, &["`conv2d1` (conv2d)", "8×8×3", "kernel of 9"]),
        (&layers(&["conv2d channels=4 kernel=60000 pad=60000", end]), 2, &["at most 1024"]),
        (&layers(&["conv2d channels=4 groups=2", end]), 2, &["3 channels in and 4 out", "2 groups"]),
        (&layers(&["dropout rate=0", "gru width=4", end]), 3, &["`gru2` (gru)", "8×8×3", "`rows`"]),
        (&layers(&["conv2d channels=4", "add from=[\"conv2d1\",\"input\"]", end]), 3, &["6×6×4", "8×8×3"]),
        (&layers(&["add from=[\"later\",\"input\"]", end]), 2, &["called `later`; known: input"]),
        (&layers(&["add", end]), 2, &["takes 2 inputs, not 1"]),
        (&layers(&["dense outputs=3 from=7", end]), 2, &["`from` must be a text"]),
        (&layers(&["dense outputs=3 name=\"x\"", "dense outputs=3 name=\"x\"", end]), 3, &["exists already"]),
        (&layers(&["dense outputs=3 name=\"input\"", end]), 2, &["cannot be called `input`"]),
        (&layers(&["dense outputs=3", "dense outputs=4 from=\"input\"", end]), 2, &["reads its output"]),
        (&layers(&["dense outputs=3"]), 2, &["output is 3, but 10 classes", "\"classes\""]),
        (&layers(&["conv2d channels=10 kernel=1"]), 2, &["output is 8×8×10"]),
        (&layers(&["rows", "conv1d channels=\"classes\""]), 3, &["1×8×10", "last-step"]),
        (&layers(&["activation function=\"swish\"", end]), 2, &["`swish`, not one of relu, gelu"]),
        (&layers(&["dense outputs=3 relu=1", end]), 2, &["`relu` must be true or false"]),
        (&layers(&["max-pool size=2 deviation=0.1", end]), 2, &["no weights"]),
        (&layers(&["embedding width=4", end]), 2, &["sequence of tokens"]),
        (&layers(&["global-average-pool"]), 2, &["output is 3"]),
    ] {
        let error = build(text, input, 10).expect_err(text);
        assert_eq!(error.line, line, "{text}{error}");
        for reason in reasons {
            assert!(error.to_string().contains(reason), "{text}{error}");
        }
    }
    let tokens = layers(&["embedding vocabulary=9 width=4", "conv1d channels=\"classes\""]);
    assert!(build(&tokens, Shape::new(1, 5, 1), 10).unwrap_err().problem.contains("10 different tokens"));
    assert!(build(&tokens, Shape::new(1, 5, 1), 9).is_ok());
    let second = layers(&["dropout rate=0", "embedding width=4", "conv1d channels=\"classes\""]);
    let error = build(&second, Shape::new(1, 5, 1), 9).unwrap_err();
    assert!(error.problem.contains("only read the network's input"), "{error}");
}

#[test]
fn the_registered_settings_are_those_that_are_read() {
    for LayerKind { name: kind, settings, .. } in Op::KINDS {
        // Needed settings first: the refusal of a wrong one then lists all.
        let needed = match *kind {
            "dense" => "outputs = 1\n",
            "conv1d" | "conv2d" => "channels = 1\n",
            "max-pool" | "average-pool" => "size = 1\n",
            "activation" => "function = \"relu\"\n",
            "dropout" => "rate = 0\n",
            "embedding" | "gru" | "lstm" => "width = 1\n",
            "attention" => "heads = 1\n",
            "view" => "top = 0\nleft = 0\nheight = 1\nwidth = 1\n",
            _ => "",
        };
        let text = format!("[[layer]]\nkind = \"{kind}\"\n{needed}nonsense = 1\n");
        let error = build(&text, Shape::new(1, 4, 1), 3).unwrap_err().problem;
        let common = "kind, name, from, relu, deviation, exit";
        let separator = if settings.is_empty() { "" } else { ", " };
        assert!(error.ends_with(&format!("it takes {common}{separator}{settings}")), "{kind}: {error}");
    }
}
