//! What a plan costs: the calibration's times, on the cluster's hosts.

mod stages;

pub use stages::staged_costs;

use std::sync::Arc;

use paceline_data::{Folders, Order, order};
use paceline_nn::Graph;
use paceline_plan::{NetworkLimits, Plan};
use paceline_protocol::{Coder, Setup};
use paceline_random::{Purpose, Stream};
use paceline_resolve::{Registries, TypedPlan};
use paceline_sim::{Costs, HEADER, Host, PassPart, StepFactor, WorkCost};
use paceline_statistics::quantile;
use paceline_train::TrainError;
use paceline_train::worker::Slowness;

use crate::calibration::{Calibration, CoreSharing, StartPattern, TransportCost};
use crate::cluster::{Cluster, HostGroup};
use crate::cuts::calibrated_cuts;
use crate::error::VirtualError;
use crate::pass::{PassKey, PassTime};
use crate::paths::calibrated_paths;

/// Bytes that an interface takes before they can leave, where the plan does not say.
pub(crate) const BUFFER: usize = 1 << 20;
/// Deviation of the logarithm of compute times that nobody measured, where they vary.
const DEVIATION: f64 = 0.1;
const POINTS: usize = 21;

/// Seconds of a scheduler's turn: as long as a pass is not longer, processes that share a core compute one after the
/// other.
const TURN: f64 = 3e-3;
/// Passes of so many turns are long.
const TURNS: f64 = 4.0;

/// What a run is priced with.
#[derive(Clone, Copy)]
pub struct Terms<'a> {
    /// What a plan's names are looked up in.
    pub registries: &'a Registries,
    /// A machine's costs; none: the defaults.
    pub calibration: Option<&'a Calibration>,
    /// The hosts; none: this one, with the plan's emulated links.
    pub cluster: Option<&'a Cluster>,
    /// Whether compute times vary; none: if they were measured.
    pub jitter: Option<bool>,
}

/// What a cluster's and a calibration's file say, read.
pub struct HardwareModel {
    /// The hosts.
    pub cluster: Option<Cluster>,
    /// A machine's costs.
    pub calibration: Option<Calibration>,
    /// Whether compute times vary.
    pub jitter: Option<bool>,
}

impl HardwareModel {
    /// This machine, as it was measured.
    pub fn calibrated(calibration: Calibration) -> Self {
        Self { cluster: None, calibration: Some(calibration), jitter: None }
    }

    /// The same, with this calibration where there is none.
    pub fn or(self, calibration: Option<Calibration>) -> Self {
        Self { calibration: self.calibration.or(calibration), ..self }
    }

    /// Has the calibration decide what a plan leaves open: along which paths gradients are averaged, where the network is cut.
    pub fn decide(
        &self,
        plan: &mut Plan,
        registries: &Registries,
        folders: &Folders,
    ) -> Result<(), VirtualError> {
        let Some(calibration) = self.calibration.as_ref().filter(|_| self.cluster.is_none()) else {
            return Ok(());
        };
        plan.paths = calibrated_paths(plan, &self.terms(registries));
        if plan.stages > 1 && plan.cuts.is_empty() {
            let typed = TypedPlan::new(plan, registries)?;
            let dataset = typed
                .dataset()?
                .load(folders, &paceline_train::model::settings(plan))
                .map_err(TrainError::from)?;
            plan.cuts = calibrated_cuts(&typed, &dataset, calibration)?;
        }
        Ok(())
    }

    /// What runs are priced with.
    pub fn terms<'a>(&'a self, registries: &'a Registries) -> Terms<'a> {
        let Self { cluster, calibration, jitter } = self;
        Terms { registries, calibration: calibration.as_ref(), cluster: cluster.as_ref(), jitter: *jitter }
    }
}

/// A pass of a worker: its time on the calibrated machine, and where that goes.
#[derive(Clone, Debug)]
pub struct PassTiming {
    pub seconds: f64,
    /// The fraction that loads the batch, and the one of the forward pass.
    pub data: f64,
    pub forward: f64,
    /// How much longer a run's first step is, relative to this time: its memory is cold.
    pub first: f64,
    /// When gradients are final.
    pub parts: Vec<PassPart>,
    /// Times relative to the median.
    pub quantiles: Vec<f64>,
    /// How much slower it is on several workers at once; empty: as other computations.
    pub sharing: Vec<CoreSharing>,
}

pub fn timing(plan: &Plan, graph: &Graph, calibration: &Calibration) -> PassTiming {
    let key = PassKey::new(plan, graph);
    let known = |threads: usize| {
        let mut known = calibration.passes(&PassKey { threads, ..key.clone() });
        known.retain(|pass| pass.layer.len() == graph.nodes().len());
        known.sort_by_key(|pass| pass.key.batch);
        known
    };
    let mut passes = known(plan.threads);
    let mut scale = 1.0;
    if passes.is_empty() {
        // As far as the threads of other passes went.
        passes = known(1);
        scale = 1.0 / plan.threads as f64;
    }
    // A batch of several micro-batches is as many passes.
    let (micro, passes_of_batch) = (key.batch, plan.micro_batches as f64);
    let data_s = nearest(&passes, micro)
        .and_then(|near| Some(near.data_s?.median / near.key.batch as f64))
        .unwrap_or(calibration.data_ns_per_byte.median * 1e-9 * graph.input().size() as f64)
        * plan.batch as f64;
    let sharing = nearest(&passes, micro).map_or_else(Vec::new, |near| near.sharing.clone());
    let first_extra = nearest(&passes, micro).map_or(0.0, PassTime::first_extra);
    let (pass_s, layers, quantiles) = match nearest(&passes, micro) {
        Some(near) => {
            let layers: Vec<_> = near.layer.iter().map(|l| (l.forward_s, l.backward_s)).collect();
            let micro_s = between(&passes, micro) * near.of_micro_batches(plan.micro_batches);
            let of_batch = plan.batch as f64 / (micro as f64 * passes_of_batch);
            (scale * micro_s * passes_of_batch * of_batch, layers, near.quantiles.clone())
        }
        None => {
            let rate = calibration.flops_per_s.median * plan.threads as f64;
            let flops = graph.layer_flops();
            let layers: Vec<_> = flops.iter().map(|(f, b)| (*f as f64 + 1.0, *b as f64 + 1.0)).collect();
            let total = (graph.training_flops() * plan.batch as u64) as f64 / rate;
            (total, layers, Vec::new())
        }
    };
    let whole: f64 = layers.iter().map(|(f, b)| f + b).sum();
    let forward = layers.iter().map(|(f, _)| f).sum::<f64>() / whole * pass_s;
    let seconds = data_s + pass_s;
    let mut parts = vec![PassPart { end: (data_s + forward) / seconds, announces: None }];
    let mut at = data_s + forward;
    for (node, (_, backward)) in graph.nodes().iter().zip(&layers).rev() {
        at += backward / whole * pass_s;
        for tensor in graph.params()[node.params.clone()].iter().rev() {
            parts.push(PassPart { end: (at / seconds).min(1.0), announces: Some(tensor.range.start) });
        }
    }
    // Gradients are final in the last micro-batch.
    parts.iter_mut().for_each(|part| part.end = (passes_of_batch - 1.0 + part.end) / passes_of_batch);
    // What is below the first layer that has parameters ends with it.
    if let Some(last) = parts.last_mut() {
        last.end = 1.0;
    }
    let first = first_extra * pass_s / passes_of_batch / seconds;
    PassTiming {
        seconds,
        data: data_s / seconds,
        forward: forward / seconds,
        first,
        parts,
        quantiles,
        sharing,
    }
}

impl Calibration {
    /// Seconds of forward and of backward in each of a network's layers; nothing if no pass of it with so many threads was
    /// measured.
    pub fn layer_seconds(&self, key: &PassKey, layers: usize) -> Option<Vec<(f64, f64)>> {
        let mut passes = self.passes(key);
        passes.retain(|pass| pass.layer.len() == layers);
        passes.sort_by_key(|pass| pass.key.batch);
        let near = nearest(&passes, key.batch)?;
        let measured: f64 = near.layer.iter().map(|layer| layer.forward_s + layer.backward_s).sum();
        let scale = between(&passes, key.batch) / measured;
        Some(near.layer.iter().map(|layer| (scale * layer.forward_s, scale * layer.backward_s)).collect())
    }
}

fn nearest<'a>(passes: &[&'a PassTime], batch: usize) -> Option<&'a PassTime> {
    passes.iter().min_by_key(|pass| pass.key.batch.abs_diff(batch)).copied()
}

/// Seconds at a batch: on the line between its neighbours, or through the two that are nearest.
fn between(passes: &[&PassTime], batch: usize) -> f64 {
    let at = |pass: &PassTime| (pass.key.batch as f64, pass.seconds.median);
    let [(x0, y0), (x1, y1)] = match passes {
        [only] => return at(only).1 * batch as f64 / at(only).0,
        _ => {
            let above = passes.partition_point(|pass| pass.key.batch < batch).clamp(1, passes.len() - 1);
            [at(passes[above - 1]), at(passes[above])]
        }
    };
    // A pass over fewer samples than any that was measured still takes its share at least.
    (y0 + (y1 - y0) * (batch as f64 - x0) / (x1 - x0)).max(y0.min(y1) * batch as f64 / x1)
}

/// The costs of a plan that is laid out on its hosts.
pub fn costs(
    placed: &TypedPlan<'_>,
    graph: &Graph,
    setup: &Setup,
    order: Order,
    terms: &Terms<'_>,
) -> (Costs, PassTiming) {
    let timing = timing(placed, graph, terms.calibration.unwrap_or(&Calibration::defaults()));
    let (batch, shares) = (placed.batch as f64, setup.shares());
    let (begins, first) = (setup.from, timing.first);
    let size = move |position, step: u64| {
        let cold = if step == begins { first } else { 0.0 };
        let step = step % order.steps().max(1);
        order::share(order.batch_len(step), position, shares).len() as f64 / batch + cold
    };
    let size = Some(StepFactor(Arc::new(size)));
    (costs_of(placed, [graph.param_count(); 2], setup, &timing, size, terms), timing)
}

/// The same, of `params` parameters a rank, `sent` numbers of which or of activations lie next to each other when they are
/// sent, with passes that take what `timing` says.
pub(crate) fn costs_of(
    placed: &TypedPlan<'_>,
    [params, sent]: [usize; 2],
    setup: &Setup,
    timing: &PassTiming,
    size: Option<StepFactor>,
    terms: &Terms<'_>,
) -> Costs {
    let defaults = Calibration::defaults();
    let calibration = terms.calibration.unwrap_or(&defaults);
    let shared = calibration.with_sharing(&timing.sharing, placed.threads);
    let layout = placed.layout();
    // Stages begin their passes as micro-batches come.
    let together = setup.stages.is_none() && setup.sync.always_together(setup.end());
    let pattern = beginning(together, timing.seconds);
    let hosts = hosts(placed, &layout, [calibration, &shared], terms, pattern);
    let own = |rank: usize| hosts.get(machine(terms, &layout, rank)).map_or(1.0, |host| host.speed);
    let compute = |rank: usize| (timing.seconds * 1e9 / own(rank)) as u64;
    let kind = placed.transport;
    let measured = calibration.transport.iter().find(|t| t.name == kind.name);
    let transport = measured.cloned().unwrap_or_else(|| TransportCost::unmeasured(kind));
    let at_once = cores_in_use(placed, &layout, calibration, terms);
    let work = work(placed, setup.coder, calibration, params, at_once);
    // Emulated links keep what is under way.
    let lends = kind.lends && placed.strategy.lends(setup) && placed.network.is_none();
    let (transport, byte) = match TransportCost::lent(kind, calibration).filter(|_| lends) {
        // What was measured includes taking a body in, which is work of its own here: both ends share the rest.
        Some(lent) => (lent.clone(), (lent.ns_per_byte(sent) - work.copy / 8.0).max(0.0)),
        None => (transport.clone(), transport.ns_per_byte(sent)),
    };
    let jitter = match (terms.jitter, &terms.calibration) {
        (Some(false), _) | (None, None) => Vec::new(),
        _ if timing.quantiles.len() > 1 => timing.quantiles.clone(),
        _ => lognormal(),
    };
    let slowness =
        Slowness { straggler: placed.straggler, rank: 0, workers: placed.workers, seed: placed.seed };
    let slowness = move |rank, step| Slowness { rank, ..slowness }.factor(step);
    let network = link(placed);
    Costs {
        compute: (0..setup.workers).map(compute).collect(),
        parts: timing.parts.clone(),
        stages: Vec::new(),
        size,
        slowness: placed.straggler.map(|_| StepFactor(Arc::new(slowness))),
        jitter,
        spread: 0.0,
        seed: placed.seed,
        latency: network.latency_ns,
        per_byte: per_byte(network),
        buffer: placed.buffer.unwrap_or(BUFFER),
        local_latency: (transport.latency_s.median * 1e9) as u64,
        header: HEADER,
        message: (transport.message_s.median * 1e9) as u64,
        byte,
        work,
        machines: (0..setup.world()).map(|rank| machine(terms, &layout, rank)).collect(),
        layout,
        hosts,
    }
}

/// The host whose cores a rank uses: emulated ones are all on this machine, which is written down as the first.
fn machine(terms: &Terms<'_>, layout: &[usize], rank: usize) -> usize {
    if terms.cluster.is_some() { layout[rank] } else { 0 }
}

fn per_byte(link: NetworkLimits) -> f64 {
    8e9 / link.bits_per_s as f64
}

fn beginning(together: bool, pass_s: f64) -> StartPattern {
    if !together {
        return StartPattern::Apart;
    }
    StartPattern::Together { short: 1.0 - ((pass_s / TURN).ln() / TURNS.ln()).clamp(0.0, 1.0) }
}

fn hosts(
    placed: &Plan,
    layout: &[usize],
    // The machine, and the machine as this pass finds it.
    measured: [&Calibration; 2],
    terms: &Terms<'_>,
    beginning: StartPattern,
) -> Vec<Host> {
    let threads = placed.threads as f64;
    let ranks = ranks_of_machines(placed, layout, terms);
    let workers = ranks_of_machines(placed, &layout[..placed.workers.min(layout.len())], terms);
    let slowdown = |host: usize, cores: usize| {
        measured.map(|measured| {
            // A pass was measured with its threads alone on the machine.
            let alone = measured.slowdown(threads, cores, beginning);
            let of = |n: usize, beginning| measured.slowdown(n as f64 * threads, cores, beginning);
            // Workers begin together; servers come in between, whenever there is something for them to do.
            let together = |n: usize| n.min(workers[host].max(1));
            let besides = |n: usize| of(n, StartPattern::Apart) / of(together(n), StartPattern::Apart);
            let slower = |n: usize| (of(together(n), beginning) * besides(n) / alone).max(1.0);
            (1..=ranks[host]).map(slower).collect()
        })
    };
    let host = |speed: f64, [slowdown, pass_slowdown]: [Vec<f64>; 2], link: NetworkLimits| Host {
        speed,
        slowdown,
        pass_slowdown,
        latency: link.latency_ns,
        per_byte: per_byte(link),
    };
    if let Some(cluster) = terms.cluster {
        let kinds = cluster.hosts().into_iter().enumerate().take(placed.host_count());
        let link = |kind: &HostGroup| kind.link().expect("links were checked when the cluster was read");
        return kinds.map(|(i, kind)| host(kind.speed, slowdown(i, kind.cores), link(kind))).collect();
    }
    // Nobody knows the cores of a machine that was not measured: there are enough.
    let own = |i: usize| terms.calibration.filter(|_| i == 0).map(|measured| slowdown(0, measured.cores));
    (0..placed.host_count()).map(|i| host(1.0, own(i).unwrap_or_default(), link(placed))).collect()
}

/// How many ranks use the cores of each host.
fn ranks_of_machines(placed: &Plan, layout: &[usize], terms: &Terms<'_>) -> Vec<usize> {
    let mut ranks = vec![0; placed.host_count()];
    (0..layout.len()).for_each(|rank| ranks[machine(terms, layout, rank)] += 1);
    ranks
}

/// How many of a host's other cores are in use when one rank is at work: 0 for none, 1 for all, where that is the most.
fn cores_in_use(placed: &Plan, layout: &[usize], calibration: &Calibration, terms: &Terms<'_>) -> f64 {
    let kinds = terms.cluster.map(|cluster| cluster.hosts());
    let cores = |host: usize| {
        let kind = kinds.as_ref().and_then(|kinds| kinds.get(host));
        kind.map_or(calibration.cores, |kind| kind.cores)
    };
    let ranks = ranks_of_machines(placed, layout, terms);
    let others = |(host, ranks): (usize, usize)| match cores(host) {
        0 | 1 => 0.0,
        cores => ((ranks * placed.threads).min(cores).max(1) - 1) as f64 / (cores - 1) as f64,
    };
    ranks.into_iter().enumerate().map(others).fold(0.0, f64::max)
}

/// The plan's link between hosts; without limits if it has none.
fn link(plan: &Plan) -> NetworkLimits {
    plan.network.unwrap_or(NetworkLimits { bits_per_s: u64::MAX, latency_ns: 0 })
}

/// Costs of computations on a model with `elements` elements, `at_once` of the other cores being in use (0 to 1).
pub(crate) fn work(
    plan: &Plan,
    coder: Option<Coder>,
    calibration: &Calibration,
    elements: usize,
    at_once: f64,
) -> WorkCost {
    let codec = coder.map_or("", |coder| coder.codec.name);
    let ns = |what: &str| calibration.ns_per_element(what, elements, at_once);
    WorkCost {
        reduce: ns("reduce"),
        copy: ns("copy"),
        mix: ns("mix"),
        encode: ns(&format!("encode {codec}")),
        decode: ns(&format!("decode {codec}")),
        apply: ns(&format!("apply {}", plan.optimizer)),
        product: ns("product"),
    }
}

/// Compute times of a machine that nobody measured, where they vary.
fn lognormal() -> Vec<f64> {
    let draws = Stream::new(0, Purpose::Virtual).fork(3);
    let count = 100 * (POINTS - 1) as u64 + 1;
    let mut all: Vec<f64> = (0..count).map(|i| (DEVIATION * draws.normal(i)).exp()).collect();
    all.sort_by(f64::total_cmp);
    let median = quantile(&all, 0.5);
    all.iter().step_by(100).map(|value| value / median).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibration::MedianEstimate;

    fn pass(batch: usize, seconds: f64) -> PassTime {
        PassTime {
            key: PassKey {
                model: "mlp".into(),
                network: None,
                input: [8, 8, 1],
                classes: 10,
                batch,
                threads: 1,
            },
            repetitions: 1,
            seconds: MedianEstimate::round(seconds),
            data_s: None,
            again_s: None,
            first_s: None,
            quantiles: Vec::new(),
            layer: Vec::new(),
            sharing: Vec::new(),
        }
    }

    #[test]
    fn times_lie_on_lines_between_measured_batches() {
        let (small, middle, large) = (pass(10, 2.0), pass(20, 3.0), pass(40, 7.0));
        let passes = [&small, &middle, &large];
        for (batch, want) in [(10, 2.0), (15, 2.5), (30, 5.0), (40, 7.0), (60, 11.0), (5, 1.5)] {
            assert!((between(&passes, batch) - want).abs() < 1e-12, "{batch}: {}", between(&passes, batch));
        }
        assert_eq!(between(&passes[..1], 30), 6.0);
        assert_eq!(nearest(&passes, 29).unwrap().key.batch, 20);
    }

    #[test]
    fn short_passes_that_begin_together_are_in_each_others_way() {
        for (pass, want) in [(1e-4, 1.0), (3e-3, 1.0), (6e-3, 0.5), (12e-3, 0.0), (1.0, 0.0)] {
            let StartPattern::Together { short } = beginning(true, pass) else { panic!("all begin") };
            assert!((short - want).abs() < 1e-12, "{pass} s: {short}");
        }
        assert_eq!(beginning(false, 1e-4), StartPattern::Apart);
    }

    #[test]
    fn times_that_nobody_measured_vary_around_their_median() {
        let all = lognormal();
        assert_eq!((all.len(), all[POINTS / 2]), (POINTS, 1.0));
        assert!(all.is_sorted() && all[0] > 0.6 && all[POINTS - 1] < 1.6, "{all:?}");
    }
}
