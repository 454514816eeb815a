//! What passes of micro-batches take in each stage: the network's layers, as they were measured or counted, over the stages.

use paceline_nn::{Graph, GraphPart, PartEdge};
use paceline_pipeline::StagePlan;
use paceline_plan::Plan;
use paceline_protocol::Setup;
use paceline_resolve::TypedPlan;
use paceline_sim::{Costs, PassPart, StageCost};

use super::{PassTiming, Terms, costs_of, nearest};
use crate::calibration::Calibration;
use crate::pass::PassKey;

/// A micro-batch's passes through each stage; their parts are those of the backward pass. `data` and `forward` are fractions
/// of both.
pub fn stage_timings(
    plan: &Plan,
    graph: &Graph,
    stages: &StagePlan,
    calibration: &Calibration,
) -> Vec<PassTiming> {
    let key = PassKey::new(plan, graph);
    let (samples, count) = (key.batch as f64, graph.nodes().len());
    // As far as the threads of other passes went.
    let threads = if calibration.layer_seconds(&key, count).is_some() { key.threads } else { 1 };
    let known = PassKey { threads, ..key.clone() };
    let scale = threads as f64 / key.threads as f64;
    let measured = calibration.passes(&known);
    let near = nearest(&measured, key.batch);
    let scale = scale * near.map_or(1.0, |near| near.of_micro_batches(plan.micro_batches));
    let layers: Vec<(f64, f64)> = match calibration.layer_seconds(&known, count) {
        Some(layers) => layers.into_iter().map(|(f, b)| (scale * f, scale * b)).collect(),
        None => {
            let rate = calibration.flops_per_s.median * plan.threads as f64;
            let seconds = |flops: u64| samples * (flops as f64 + 1.0) / rate;
            graph.layer_flops().into_iter().map(|(f, b)| (seconds(f), seconds(b))).collect()
        }
    };
    let data_s = near
        .and_then(|near| Some(near.data_s?.median / near.key.batch as f64))
        .unwrap_or(calibration.data_ns_per_byte.median * 1e-9 * graph.input().size() as f64)
        * samples;
    let quantiles = near.map_or_else(Vec::new, |near| near.quantiles.clone());
    let sharing = near.map_or_else(Vec::new, |near| near.sharing.clone());
    let timing = |(i, part): (usize, &GraphPart)| {
        let own = &layers[part.nodes.clone()];
        let (forward, backward): (f64, f64) =
            own.iter().fold((0.0, 0.0), |(f, b), own| (f + own.0, b + own.1));
        // Passes work where crossings lie; what a stage receives and hands on is copied from one to the other.
        let copied = |gradients: bool| {
            let handed_on = |edge: &&PartEdge| part.sends.iter().any(|other| other.value == edge.value);
            let edges = part.receives.iter().filter(|edge| edge.gradient || !gradients).filter(handed_on);
            let numbers = stages.capacity * edges.map(|edge| edge.size).sum::<usize>();
            1e-9 * calibration.ns_per_element("copy", numbers, 0.0) * numbers as f64
        };
        let parts = parts(graph, part, own, backward);
        let (forward, backward) = (forward + copied(false), backward + copied(true));
        let data = if i == 0 { data_s } else { 0.0 };
        let seconds = data + forward + backward;
        PassTiming {
            seconds,
            data: data / seconds,
            forward: forward / seconds,
            first: 0.0,
            parts,
            quantiles: quantiles.clone(),
            sharing: sharing.clone(),
        }
    };
    stages.parts.iter().enumerate().map(timing).collect()
}

/// When the gradients of a part's tensors are final, as fractions of its backward pass.
fn parts(graph: &Graph, part: &GraphPart, layers: &[(f64, f64)], backward: f64) -> Vec<PassPart> {
    let mut at = 0.0;
    let mut parts = Vec::new();
    for (node, (_, own)) in graph.nodes()[part.nodes.clone()].iter().zip(layers).rev() {
        at += own / backward;
        for tensor in graph.params()[node.params.clone()].iter().rev() {
            parts
                .push(PassPart { end: at.min(1.0), announces: Some(tensor.range.start - part.params.start) });
        }
    }
    if let Some(last) = parts.last_mut() {
        last.end = 1.0;
    }
    parts
}

/// The costs of a plan that is cut into stages and laid out on its hosts, and what a micro-batch takes in each stage.
pub fn staged_costs(
    placed: &TypedPlan<'_>,
    graph: &Graph,
    stages: &StagePlan,
    setup: &Setup,
    terms: &Terms<'_>,
) -> (Costs, Vec<PassTiming>) {
    let timings = stage_timings(placed, graph, stages, terms.calibration.unwrap_or(&Calibration::defaults()));
    // Cores are shared for as long as the longest pass takes.
    let longest = timings.iter().max_by(|a, b| a.seconds.total_cmp(&b.seconds)).expect("there is a stage");
    // Values that go from stage to stage lie in a slot's buffers, and are used up before the next ones come.
    let params = stages.parts.iter().map(|part| part.params.len()).max().unwrap_or(0);
    let crossing = stages.parts.iter().flat_map(|part| &part.sends).map(|edge| edge.size).max();
    let sent = stages.capacity * crossing.unwrap_or(0);
    let costs = costs_of(placed, [params, sent], setup, longest, None, terms);
    let cost = |rank: usize| {
        let PassTiming { seconds, data, forward, parts, .. } = &timings[setup.stage_of(rank)];
        let nanoseconds = 1e9 * seconds / costs.host(costs.machine_of(rank)).speed;
        let forward = (data + forward) * nanoseconds;
        StageCost { forward: forward as u64, backward: (nanoseconds - forward) as u64, parts: parts.clone() }
    };
    let stages = (0..setup.workers).map(cost).collect();
    (Costs { stages, ..costs }, timings)
}
