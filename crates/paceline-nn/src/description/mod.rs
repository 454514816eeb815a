//! A network as text: a list of layers in TOML.
//!
//! ```toml
//! [[layer]]
//! kind = "conv2d"         # what `paceline model show` calls it
//! name = "stem"           # for references; else the kind and the layer's number
//! channels = 16
//! kernel = 3
//! pad = 1
//! relu = true             # a ReLU behind it
//!
//! [[layer]]
//! kind = "conv2d"
//! channels = 16
//! kernel = 3
//! pad = 1
//!
//! [[layer]]
//! kind = "add"
//! from = ["conv2d2", "stem"]   # what it reads; else the layer before it. "input" is the sample itself.
//!
//! [[layer]]
//! kind = "dense"
//! outputs = "classes"     # the dataset's number of classes
//! ```
//!
//! Each layer's file says which settings it takes. `exit = W` makes a layer an early exit whose loss counts W. `deviation = D` on a layer with weights lets them start
//! normal with that standard deviation, and its biases at 0.

mod fields;

pub(crate) use fields::{Fields, Problem};

use std::collections::BTreeMap;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::graph::{Graph, ValueId};
use crate::layers::{Init, Op};
use crate::shape::Shape;

/// Most layers of a description.
const LAYERS: usize = 10_000;

/// Most parameters of a network (8 GiB of them).
const PARAMETERS: usize = 1 << 31;

/// Why a text describes no network.
#[derive(Debug, thiserror::Error, PartialEq)]
#[error("line {line}: {problem}")]
pub struct DescriptionError {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong, and where possible what would be right.
    pub problem: String,
}

/// The network that `text` describes, for inputs of a given shape and a number of classes.
pub fn build(text: &str, input: Shape, classes: usize) -> Result<Graph, DescriptionError> {
    describe(text, input, classes).map_err(|problem| DescriptionError {
        line: 1 + text[..problem.at.min(text.len())].matches('\n').count(),
        problem: problem.what,
    })
}

fn describe(text: &str, input: Shape, classes: usize) -> Result<Graph, Problem> {
    let document = DeTable::parse(text).map_err(|error| {
        Problem::new(error.span().map_or(0, |span| span.start), error.message().to_owned())
    })?;
    let mut list = None;
    for (key, value) in document.get_ref().iter() {
        match (key.get_ref().as_ref(), value.get_ref()) {
            ("layer", DeValue::Array(layers)) => list = Some(layers),
            ("layer", _) => {
                return Err(Problem::new(value.span().start, "layers are written as [[layer]]"));
            }
            (other, _) => {
                let what = format!("`{other}` is not known here; a network is a list of [[layer]]");
                return Err(Problem::new(key.span().start, what));
            }
        }
    }
    let layers: Vec<&Spanned<DeValue<'_>>> = list.into_iter().flatten().collect();
    if layers.is_empty() || layers.len() > LAYERS {
        return Err(Problem::new(
            0,
            format!("a network has between 1 and {LAYERS} layers, written as [[layer]]"),
        ));
    }
    let mut net = Builder { graph: Graph::new(input), values: BTreeMap::new(), places: Vec::new() };
    net.values.insert("input".into(), ValueId(0));
    for (number, layer) in (1..).zip(layers) {
        let place = layer.span().start;
        let DeValue::Table(table) = layer.get_ref() else {
            return Err(Problem::new(place, "a layer is a table, written as [[layer]]"));
        };
        net.layer(number, Fields::new(table, place, classes))?;
    }
    net.finish(classes)
}

struct Builder {
    graph: Graph,
    /// What each name stands for: the layer's output, behind its ReLU.
    values: BTreeMap<String, ValueId>,
    /// Where in the text each of the graph's layers was written.
    places: Vec<usize>,
}

impl Builder {
    fn layer(&mut self, number: usize, mut fields: Fields<'_>) -> Result<(), Problem> {
        let place = fields.place();
        let (kind, kind_at) = fields
            .text("kind")?
            .ok_or_else(|| Problem::new(place, format!("a layer needs a kind, one of {}", kinds())))?;
        let name = match fields.text("name")? {
            Some((name, at)) if name.is_empty() || name == "input" => {
                return Err(Problem::new(at, format!("a layer cannot be called `{name}`")));
            }
            Some((name, _)) => name,
            None => format!("{kind}{number}"),
        };
        let inputs = self.inputs(&mut fields).map_err(|p| p.of(&name))?;
        let relu = fields.flag("relu")?.unwrap_or(false);
        let deviation = fields.real("deviation")?;
        let exit = fields.real("exit")?;
        let op = Op::read(&kind, &mut fields)
            .ok_or_else(|| Problem::new(kind_at, format!("there is no layer `{kind}`, only {}", kinds())))?;
        let op = op.map_err(|p| p.of(&name))?;
        fields.finish().map_err(|p| p.of(&name))?;
        let (graph, refused) =
            (&mut self.graph, |error: crate::graph::ShapeError| Problem::new(place, error.to_string()));
        let mut value = graph.push(&name, op, &inputs).map_err(refused)?;
        if let Some((deviation, at)) = deviation {
            start(graph, &name, deviation).map_err(|what| Problem::new(at, what).of(&name))?;
        }
        if relu {
            value = graph.relu();
        }
        if let Some((weight, at)) = exit {
            if !(weight > 0.0 && weight.is_finite()) {
                return Err(Problem::new(at, "`exit` is what its loss counts: above 0").of(&name));
            }
            graph.exit(weight);
        }
        self.places.resize(self.graph.nodes().len(), place);
        self.values.insert(name, value);
        Ok(())
    }

    /// The values that `from` names, or the last one.
    fn inputs(&self, fields: &mut Fields<'_>) -> Result<Vec<ValueId>, Problem> {
        let Some(names) = fields.texts("from")? else { return Ok(vec![self.graph.last()]) };
        let value = |(name, at): (String, usize)| {
            let known = || self.values.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            let unknown =
                || Problem::new(at, format!("no layer before it is called `{name}`; known: {}", known()));
            self.values.get(&name).copied().ok_or_else(unknown)
        };
        names.into_iter().map(value).collect()
    }

    fn finish(self, classes: usize) -> Result<Graph, Problem> {
        let Self { graph, places, .. } = self;
        for (i, (node, &place)) in graph.nodes().iter().zip(&places).enumerate() {
            let value = ValueId(i + 1);
            let exit = graph.exits().iter().any(|exit| exit.value == value);
            if exit && (value == graph.last() || node.output != graph.output()) {
                let (own, last) = (node.output, graph.output());
                let what = format!(
                    "an early exit answers as the last layer does ({last}), and is not the last; it answers {own}"
                );
                return Err(Problem::new(place, what).of(&node.name));
            }
            if !exit && value != graph.last() && !graph.nodes().iter().any(|n| n.inputs.contains(&value)) {
                return Err(Problem::new(place, "no other layer reads its output").of(&node.name));
            }
        }
        let (output, last) = (graph.output(), places.last().copied().unwrap_or(0));
        if output.h != 1 || output.c != classes {
            let what = format!(
                "the network's output is {output}, but {classes} classes are asked for: \
                 end with a dense layer whose outputs = \"classes\""
            );
            return Err(Problem::new(last, what));
        }
        if output.w > 1 && graph.vocabulary().is_none() {
            let what = format!(
                "the network's output is {output}, an answer for each step, which only tokens ask for: \
                 a layer `last-step` or `global-average-pool` makes one of them"
            );
            return Err(Problem::new(last, what));
        }
        if graph.vocabulary().is_some_and(|tokens| tokens < classes) {
            let what = format!("the samples have {classes} different tokens: let vocabulary = \"classes\"");
            return Err(Problem::new(places[0], what));
        }
        if graph.param_count() == 0 || graph.param_count() > PARAMETERS {
            let what =
                format!("{} parameters; between 1 and {PARAMETERS} can be trained", graph.param_count());
            return Err(Problem::new(last, what));
        }
        Ok(graph)
    }
}

fn kinds() -> String {
    Op::KINDS.iter().map(|kind| kind.name).collect::<Vec<_>>().join(", ")
}

/// Lets the weights of a layer start normal with this deviation, its biases at 0.
fn start(graph: &mut Graph, layer: &str, deviation: f64) -> Result<(), String> {
    if !(deviation > 0.0 && deviation.is_finite()) {
        return Err("the deviation must be above 0".into());
    }
    let tensors = graph.nodes().last().map_or(0..0, |node| node.params.clone());
    let names: Vec<String> = graph.params()[tensors].iter().map(|t| t.name.clone()).collect();
    let is = |name: &str, kind: &str| name[layer.len() + 1..].starts_with(kind);
    if !names.iter().any(|name| is(name, "weight")) {
        return Err("it has no weights that could start with a deviation".into());
    }
    for name in names {
        let init = if is(&name, "weight") { Init::Normal(deviation) } else { Init::Constant(0.0) };
        graph.start(&name, init);
    }
    Ok(())
}
