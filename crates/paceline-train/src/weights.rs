//! Weights in safetensors files with PyTorch's names and layouts: where training starts, which layers stay as they
//! are, and what a run hands on.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;

use paceline_data::Dataset;
use paceline_nn::layers::Op;
use paceline_nn::{Graph, GraphPart, Node, Tensor};
use paceline_plan::{Plan, Weights};
use paceline_record::Checkpoint;
use safetensors::tensor::{Dtype, Metadata, TensorInfo, TensorView};

use paceline_resolve::TypedPlan;

use crate::error::TrainError;
use crate::{model, native, recut};

/// Longest header that is read, in bytes: that of a thousand layers is far below.
const LONGEST_HEADER: u64 = 16 << 20;
/// What PyTorch counts and nothing here needs.
const COUNTED: &str = ".num_batches_tracked";
/// What PyTorch's wrappers for several devices put before every name.
const WRAPPED: &str = "module.";

/// One of our tensors as PyTorch has it.
struct Slot {
    name: String,
    shape: Vec<usize>,
    /// Another shape with the same order: a convolution of one step is a linear layer too.
    linear: bool,
    /// Its elements in our buffer, which is that of the state or of the parameters.
    range: Range<usize>,
    state: bool,
    /// Our sizes, outermost first, each with the distance of its neighbours in PyTorch's order.
    walk: Vec<(usize, usize)>,
}

impl Slot {
    fn new(node: &Node, tensor: &Tensor, state: bool) -> Self {
        let ours = &tensor.shape;
        let recurrent = matches!(node.op, Op::Gru(_) | Op::Lstm(_));
        let table = matches!(node.op, Op::Embedding(_) | Op::Positions(_));
        // PyTorch has the outputs outermost, then the inputs, then what a kernel or an image spans.
        let (shape, walk) = match ours[..] {
            [inputs, outputs] if matches!(node.op, Op::Dense(_)) => {
                let image = node.input;
                let pixels = image.h * image.w;
                let walk = vec![(image.h, image.w), (image.w, 1), (image.c, pixels), (outputs, inputs)];
                (vec![outputs, inputs], walk)
            }
            [inputs, outputs] if !table => (vec![outputs, inputs], vec![(inputs, 1), (outputs, inputs)]),
            [steps, inputs, outputs] => {
                (vec![outputs, inputs, steps], vec![(steps, 1), (inputs, steps), (outputs, inputs * steps)])
            }
            [h, w, inputs, outputs] => {
                let walk = vec![(h, w), (w, 1), (inputs, h * w), (outputs, inputs * h * w)];
                (vec![outputs, inputs, h, w], walk)
            }
            _ => (ours.clone(), vec![(tensor.range.len(), 1)]),
        };
        Self {
            name: if recurrent { format!("{}_l0", tensor.name) } else { tensor.name.clone() },
            linear: matches!(node.op, Op::Conv1d(_)) && shape.last() == Some(&1),
            shape,
            range: tensor.range.clone(),
            state,
            walk,
        }
    }

    /// The place of each of our elements in PyTorch's order.
    fn places(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.range.len()).map(move |mut i| {
            let mut place = 0;
            for &(size, distance) in self.walk.iter().rev() {
                place += i % size * distance;
                i /= size;
            }
            place
        })
    }

    fn takes(&self, shape: &[usize]) -> bool {
        shape == self.shape || self.linear && shape == &self.shape[..self.shape.len() - 1]
    }
}

fn slots(graph: &Graph) -> Vec<Slot> {
    let mut slots = Vec::new();
    for node in graph.nodes() {
        slots.extend(graph.params()[node.params.clone()].iter().map(|t| Slot::new(node, t, false)));
        slots.extend(graph.state()[node.state.clone()].iter().map(|t| Slot::new(node, t, true)));
    }
    slots
}

/// What a file and a network do not have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WeightsMismatch {
    /// Tensors of the network that the file does not have.
    pub missing: Vec<String>,
    /// Tensors of the file that the network does not have.
    pub unused: Vec<String>,
    /// Tensors of both whose shapes differ: the name, the file's shape, the network's.
    pub reshaped: Vec<(String, Vec<usize>, Vec<usize>)>,
}

impl WeightsMismatch {
    /// Whether everything fits.
    pub fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.unused.is_empty() && self.reshaped.is_empty()
    }
}

impl fmt::Display for WeightsMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<String> = Vec::new();
        let shown = self.reshaped.iter().map(|(name, theirs, ours)| {
            format!("{name} is {theirs:?} in the file and {ours:?} in the network (PyTorch's order)")
        });
        parts.extend(few(&shown.collect::<Vec<_>>(), "; "));
        parts.extend(few(&self.missing, ", ").map(|names| format!("the file does not have {names}")));
        parts.extend(few(&self.unused, ", ").map(|names| format!("the network does not have {names}")));
        f.write_str(&parts.join("; "))
    }
}

/// The first few of many.
fn few(names: &[String], between: &str) -> Option<String> {
    const FEW: usize = 8;
    let first = names.get(..FEW.min(names.len())).filter(|first| !first.is_empty())?.join(between);
    Some(if names.len() > FEW { format!("{first} and {} more", names.len() - FEW) } else { first })
}

/// Fills parameters and state with what the plan's training starts from; what was left out of the plan's weights.
pub fn start(
    plan: &Plan,
    graph: &Graph,
    params: &mut [f32],
    state: &mut [f32],
) -> Result<WeightsMismatch, TrainError> {
    start_part(plan, graph, &graph.whole(), params, state)
}

/// Like [`start`] for the parameters and the state of a part.
pub fn start_part(
    plan: &Plan,
    graph: &Graph,
    part: &GraphPart,
    params: &mut [f32],
    state: &mut [f32],
) -> Result<WeightsMismatch, TrainError> {
    graph.init_part(part, plan.seed, params, state);
    match &plan.init {
        Some(weights) => load_part(weights, graph, part, params, state),
        None => Ok(WeightsMismatch::default()),
    }
}

/// Parameters and state of a run's model, out of what its ranks left at a checkpoint.
pub fn of_checkpoint(
    plan: &Plan,
    graph: &Graph,
    checkpoint: &Checkpoint,
) -> Result<(Vec<f32>, Vec<f32>), TrainError> {
    // A run that was cut anew, and has saved nothing since, has the parts of the stages before.
    let stages = recut::stages_of(&checkpoint.parts)?;
    let workers = plan.replicas() * stages;
    let (workers, servers) = checkpoint.parts.split_at(workers.min(checkpoint.parts.len()));
    let mean = |name: &str, len: usize| {
        let all: Vec<f32> = workers.iter().flat_map(|part| part.numbers(name)).copied().collect();
        native::mean(&all, len)
    };
    let params: Vec<f32> = match servers {
        [] => mean("params", graph.param_count()),
        // Server `i` has stage `i mod stages`.
        shards => (0..stages)
            .flat_map(|stage| shards.iter().skip(stage).step_by(stages))
            .flat_map(|part| part.numbers("params"))
            .copied()
            .collect(),
    };
    let state = mean("state", graph.state_count());
    let (found, wanted) = ((params.len(), state.len()), (graph.param_count(), graph.state_count()));
    if found != wanted {
        let problem = format!(
            "it has {} parameters and {} numbers of state, the network {} and {}; is the dataset still the one of the run?",
            found.0, found.1, wanted.0, wanted.1
        );
        return Err(TrainError::Restore { problem });
    }
    Ok((params, state))
}

/// Whether a run can start from its weights and freeze its layers; what is left out of a partial load, in words.
pub fn check(plan: &TypedPlan<'_>, dataset: &Dataset) -> Result<Option<String>, TrainError> {
    if plan.init.is_none() && plan.frozen.is_empty() {
        return Ok(None);
    }
    let graph = model::graph(plan, dataset)?;
    frozen(plan, &graph)?;
    let Some(init) = &plan.init else { return Ok(None) };
    let (mut params, mut state) = (vec![0.0; graph.param_count()], vec![0.0; graph.state_count()]);
    let left = start(plan, &graph, &mut params, &mut state)?;
    Ok((!left.is_empty()).then(|| format!("left out of {}: {left}", init.file)))
}

/// Fills parameters and state from a file; what was left out.
pub fn load(
    weights: &Weights,
    graph: &Graph,
    params: &mut [f32],
    state: &mut [f32],
) -> Result<WeightsMismatch, TrainError> {
    load_part(weights, graph, &graph.whole(), params, state)
}

/// Like [`load`] for the parameters and the state of a part; what the rest of the network lacks is told too.
fn load_part(
    weights: &Weights,
    graph: &Graph,
    part: &GraphPart,
    params: &mut [f32],
    state: &mut [f32],
) -> Result<WeightsMismatch, TrainError> {
    let refused = |problem: String| TrainError::Weights { file: weights.file.clone(), problem };
    let failed = |error: io::Error| refused(error.to_string());
    let mut file = paceline_files::open(&weights.file).map_err(failed)?;
    let (header, tensors) = header(&mut file).map_err(refused)?;
    let found = hash_whole(&mut file).map_err(failed)?;
    if found != weights.sha256 {
        return Err(refused(format!(
            "its content is not what the plan says: SHA-256 {} was expected, {found} was found",
            weights.sha256
        )));
    }
    let slots = slots(graph);
    let mut left = WeightsMismatch::default();
    let mut given: BTreeMap<&str, &TensorInfo> = tensors
        .iter()
        .filter(|(name, _)| !name.ends_with(COUNTED))
        .map(|(name, info)| (name.strip_prefix(WRAPPED).unwrap_or(name), info))
        .collect();
    let mut fitting = Vec::new();
    for slot in &slots {
        match given.remove(&slot.name[..]) {
            None => left.missing.push(slot.name.clone()),
            Some(info) if !slot.takes(&info.shape) => {
                left.reshaped.push((slot.name.clone(), info.shape.clone(), slot.shape.clone()));
            }
            Some(info) if info.dtype != Dtype::F32 => {
                return Err(refused(format!("{} is {:?}, only F32 is read", slot.name, info.dtype)));
            }
            Some(info) => fitting.push((slot, info.data_offsets.0 as u64)),
        }
    }
    left.unused.extend(given.into_keys().map(str::to_owned));
    if !weights.partial && !left.is_empty() {
        return Err(refused(left.to_string()));
    }
    if fitting.is_empty() {
        return Err(refused(format!("nothing in it belongs to this network: {left}")));
    }
    // Only what fits is read: a file can ask for no more memory than the network has.
    let mut bytes = Vec::new();
    let own = |slot: &Slot| if slot.state { &part.state } else { &part.params };
    let inside = |slot: &Slot| own(slot).start <= slot.range.start && slot.range.end <= own(slot).end;
    for (slot, offset) in fitting.into_iter().filter(|(slot, _)| inside(slot)) {
        bytes.resize(4 * slot.range.len(), 0);
        file.seek(SeekFrom::Start(header + offset)).map_err(failed)?;
        file.read_exact(&mut bytes).map_err(failed)?;
        let places = slot.range.start - own(slot).start..slot.range.end - own(slot).start;
        let ours = if slot.state { &mut state[places] } else { &mut params[places] };
        for (value, place) in ours.iter_mut().zip(slot.places()) {
            *value = f32::from_le_bytes(bytes[4 * place..][..4].try_into().expect("four bytes"));
        }
        if let Some(value) = ours.iter().find(|value| !value.is_finite()) {
            return Err(refused(format!("{} has a {value} in it", slot.name)));
        }
    }
    Ok(left)
}

fn hash_whole(file: &mut File) -> io::Result<String> {
    file.seek(SeekFrom::Start(0))?;
    Ok(paceline_files::sha256(file)?.1)
}

/// Where a file's numbers begin, and its tensors; what is wrong with it otherwise.
fn header(file: &mut File) -> Result<(u64, HashMap<String, TensorInfo>), String> {
    let failed = |error: io::Error| error.to_string();
    let found = file.metadata().map_err(failed)?.len();
    let mut length = [0; 8];
    if found < 8 {
        return Err(format!("{found} bytes are no safetensors file"));
    }
    file.read_exact(&mut length).map_err(failed)?;
    let length = u64::from_le_bytes(length);
    if length > LONGEST_HEADER || length > found - 8 {
        return Err(format!(
            "no safetensors file, or not the whole of one: a header of {length} bytes in a file of {found} (at \
             most {LONGEST_HEADER} are read)"
        ));
    }
    let mut text = vec![0; length as usize];
    file.read_exact(&mut text).map_err(failed)?;
    let metadata: Metadata =
        serde_json::from_slice(&text).map_err(|e| format!("no safetensors file: its header: {e}"))?;
    let expected = 8 + length + metadata.data_len() as u64;
    if expected != found {
        return Err(format!(
            "its header calls for {expected} bytes, {found} were found: is it the whole file?"
        ));
    }
    let tensors = metadata.tensors().into_iter().map(|(name, info)| (name, info.clone())).collect();
    Ok((8 + length, tensors))
}

/// Writes parameters and state, under another name first, so that the file is whole or not there.
pub fn save(path: &Path, graph: &Graph, params: &[f32], state: &[f32]) -> io::Result<()> {
    let mut tensors = Vec::new();
    for slot in slots(graph) {
        let ours = if slot.state { &state[slot.range.clone()] } else { &params[slot.range.clone()] };
        let mut bytes = vec![0; 4 * ours.len()];
        for (value, place) in ours.iter().zip(slot.places()) {
            bytes[4 * place..][..4].copy_from_slice(&value.to_le_bytes());
        }
        tensors.push((slot.name, slot.shape, bytes));
    }
    let wrong = |error: safetensors::SafeTensorError| io::Error::other(error.to_string());
    let mut views = Vec::new();
    for (name, shape, bytes) in &tensors {
        views.push((name, TensorView::new(Dtype::F32, shape.clone(), bytes).map_err(wrong)?));
    }
    // The framework whose names and layouts these are, as its own tools write it.
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let bytes = safetensors::serialize(views, Some(metadata)).map_err(wrong)?;
    let mut draft = path.as_os_str().to_owned();
    draft.push(".part");
    let write = || {
        let mut file = File::create(&draft)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&draft, path)
    };
    write().inspect_err(|_| drop(fs::remove_file(&draft)))
}

/// The parameters of the plan's frozen layers, in rising order.
pub fn frozen(plan: &Plan, graph: &Graph) -> Result<Vec<Range<usize>>, TrainError> {
    if plan.frozen.is_empty() {
        return Ok(Vec::new());
    }
    let refused = |layer: &str, problem: String| TrainError::Frozen { layer: layer.to_owned(), problem };
    let named = |layer: &str, node: &Node| {
        node.name.strip_prefix(layer).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let trained = || graph.nodes().iter().filter(|node| !node.params.is_empty());
    for layer in &plan.frozen {
        if !trained().any(|node| named(layer, node)) {
            let names: Vec<_> = trained().map(|node| node.name.clone()).collect();
            let names = few(&names, ", ").unwrap_or_default();
            return Err(refused(layer, format!("there is no such layer to train; there are {names}")));
        }
    }
    let still = |node: &&Node| plan.frozen.iter().any(|layer| named(layer, node));
    if trained().all(|node| still(&node)) {
        return Err(refused(&plan.frozen.join(","), "nothing is left to train".into()));
    }
    let tensors = trained().filter(still).flat_map(|node| &graph.params()[node.params.clone()]);
    Ok(tensors.map(|tensor| tensor.range.clone()).collect())
}

/// Those of a part, counted from its first parameter.
pub fn frozen_part(plan: &Plan, graph: &Graph, part: &GraphPart) -> Result<Vec<Range<usize>>, TrainError> {
    let own = &part.params;
    let inside = |range: &Range<usize>| own.start <= range.start && range.end <= own.end;
    let all = frozen(plan, graph)?.into_iter().filter(inside);
    Ok(all.map(|range| range.start - own.start..range.end - own.start).collect())
}
