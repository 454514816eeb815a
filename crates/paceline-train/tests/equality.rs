//! Exact strategies are provably the same algorithm: p workers equal one worker with the p-fold batch; and
//! what a strategy does over real transports is what it does in virtual time.
//!
//! The distance is ‖θ − θref‖ / ‖θref − θ0‖, where θref comes from a run in f64. What a right run may
//! differ by is set by the f32 single worker's own distance; mutants must lie far outside.

mod ranks;

use std::sync::Arc;

use paceline_data::{Dataset, Order, order};
use paceline_nn::optim::{self, Settings, Step};
use paceline_nn::{Compute, Graph, Network, Pass, Targets};
use paceline_plan::{Hosts, PathRule, Plan, TrainingLength};
use paceline_protocol::{
    AUTO, Action, Actions, Averages, Coder, Input, Participant, Protocols, ReplicaAgreement, STRATEGIES,
    Strategy, Time, find,
};
use paceline_record::RankState;
use paceline_train::{Layout, Segment, model, worker};
use paceline_wire::TRANSPORTS;

use ranks::{Ran, Way, choose, digits, plan, typed, virtual_traces};

/// Every rank of a plan as a thread of this process.
fn distributed(plan: &Plan, dataset: &Dataset, strategy: &'static Strategy, over: &str) -> Ran {
    let layout = Layout::of(&model::graph(&typed(plan), dataset).unwrap());
    let setup = worker::setup(&typed(plan), &layout, dataset.train.len());
    let whole = [Segment { from: 0, to: setup.end(), generation: 0 }];
    pausing(plan, dataset, strategy, over, &whole, Vec::new()).expect("it does not stop")
}

/// The same in stretches, beginning with what the ranks had when the run stopped. If it does not end with the last
/// stretch, what the ranks had then.
fn pausing(
    plan: &Plan,
    dataset: &Dataset,
    strategy: &'static Strategy,
    over: &str,
    stretches: &[Segment],
    restored: Vec<RankState>,
) -> Result<Ran, Vec<RankState>> {
    let way = Way { stretches: stretches.to_vec(), restored, ..Way::default() };
    ranks::run(plan, dataset, strategy, over, way, &mut Vec::new())
}

/// How the shares of a global batch are put together.
#[derive(Clone, Copy, PartialEq)]
enum Mean {
    /// Weighted by samples: the truth.
    OfSamples,
    /// The mutant: every worker counts the same, however few samples it has.
    OfMeans,
}

/// One worker with the p-fold batch, in f32 or f64.
macro_rules! alone {
    ($name:ident, $t:ty, $apply:ident) => {
        fn $name(plan: &Plan, dataset: &Dataset, mean: Mean) -> (Vec<f64>, Vec<f64>) {
            let graph: Arc<Graph> = Arc::new(model::graph(&typed(plan), dataset).unwrap());
            let compute = Arc::new(Compute::new(1, false));
            let (global, total) = (plan.batch * plan.workers, plan.total_samples(dataset.train.len()));
            let mut order = Order::new(plan.seed, dataset.train.len(), global, total);
            let mut net = Network::<$t>::new(Arc::clone(&graph), global, Arc::clone(&compute));
            let n = graph.param_count();
            let (mut params, mut grads, mut memory) = (vec![0.0; n], vec![0.0; n], vec![0.0; n]);
            // Both precisions start from the same numbers.
            let mut begin = vec![0f32; n];
            graph.init(plan.seed, &mut begin, &mut []);
            params.iter_mut().zip(&begin).for_each(|(p, b)| *p = <$t>::from(*b));
            let scale: Vec<$t> = dataset.normalisation.scale.iter().map(|&v| <$t>::from(v)).collect();
            let shift: Vec<$t> = dataset.normalisation.shift.iter().map(|&v| <$t>::from(v)).collect();
            for step in 0..order.steps() {
                let len = order.batch_len(step);
                let mut sum = vec![0.0; n];
                let shares = if mean == Mean::OfMeans { plan.workers } else { 1 };
                for share in 0..shares {
                    let ids = order.batch(step, share, shares).to_vec();
                    let mut classes = Vec::new();
                    for (i, &id) in ids.iter().enumerate() {
                        net.input_bytes(0, i, dataset.train.image(id as usize).unwrap(), &scale, &shift);
                        classes.push(dataset.train.label(id as usize));
                    }
                    let pass = Pass::training(plan.seed, step, &ids);
                    net.forward(&pass, &params, &mut []);
                    let each = if mean == Mean::OfMeans { (ids.len() * shares) as f64 } else { len as f64 };
                    net.loss(0, Targets::Classes(&classes), 1.0 / each);
                    net.backward(&pass, &params, &mut grads, &mut |_, _| {});
                    sum.iter_mut().zip(&grads).for_each(|(s, g)| *s += g);
                }
                let settings = Settings { momentum: plan.momentum, ..Settings::default() };
                let step = Step {
                    params: &mut params,
                    grads: &sum,
                    memory: &mut memory,
                    lr: plan.lr,
                    step: step + 1,
                };
                optim::OPTIMISERS[0].$apply(&compute, &settings, step);
            }
            let begin = begin.iter().map(|&p| f64::from(p)).collect();
            (params.into_iter().map(f64::from).collect(), begin)
        }
    };
}
alone!(alone_f32, f32, apply);
alone!(alone_f64, f64, apply_f64);

fn distance(a: &[f64], reference: &[f64], begin: &[f64]) -> f64 {
    let norm = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| (x - y).powi(2)).sum::<f64>().sqrt();
    norm(a, reference) / norm(reference, begin)
}

fn wide(params: &[f32]) -> Vec<f64> {
    params.iter().map(|&p| f64::from(p)).collect()
}

/// A distance that rounding explains: some times the f32 single worker's own, and never less than 10⁻⁶.
fn tolerance(single: f64) -> f64 {
    5.0 * single.max(1e-6)
}

/// Servers of each strategy that are tried.
fn shards(strategy: &Strategy) -> std::ops::RangeInclusive<usize> {
    if strategy.servers { 1..=3 } else { 0..=0 }
}

/// What runs of a plan are measured against.
struct Reference {
    end: Vec<f64>,
    begin: Vec<f64>,
    single: Vec<f64>,
    allowed: f64,
}

impl Reference {
    fn new(plan: &Plan, dataset: &Dataset) -> Self {
        let (end, begin) = alone_f64(plan, dataset, Mean::OfSamples);
        let (single, _) = alone_f32(plan, dataset, Mean::OfSamples);
        let allowed = tolerance(distance(&single, &end, &begin));
        Self { end, begin, single, allowed }
    }
}

/// Seeds of the runs. A unit whose input is within rounding of zero may switch a ReLU or a pooling window
/// and carry a run visibly away; that does not happen with every seed, a wrong sum does.
const SEEDS: [u64; 3] = [5, 6, 7];

/// Plans whose strategies are exact: every path, with gradients and with weights, and what is an exact
/// average with the right parameters.
fn exact_plans(base: &Plan, weights: bool) -> Vec<Plan> {
    let mut plans = Vec::new();
    for strategy in STRATEGIES.iter().filter(|s| s.path.is_some() || s.servers) {
        for servers in shards(strategy) {
            plans.push(choose(Plan { servers, ..base.clone() }, strategy.name, "bsp", &[]));
        }
    }
    // Hosts with several workers, even and uneven; and buckets that take different paths: the last one is a short one.
    for strategy in [AUTO, "hierarchical"] {
        let last = base.workers - 1;
        let uneven = (0..=last).map(|rank| usize::from(rank == last)).collect();
        for hosts in [Hosts::Count(2.min(base.workers)), Hosts::Each(uneven)].into_iter().take(last) {
            plans.push(choose(Plan { hosts: Some(hosts), ..base.clone() }, strategy, "bsp", &[]));
        }
    }
    let rule = |below_bytes, path: &str| PathRule { below_bytes, path: path.into() };
    let paths = vec![rule(Some(base.bucket), "tree"), rule(None, "direct")];
    plans.push(Plan { paths, ..choose(base.clone(), AUTO, "bsp", &[]) });
    if weights {
        plans.iter_mut().for_each(|plan| plan.averages = "weights".into());
        plans.push(choose(base.clone(), "local", "bsp", &[("local-steps", "1")]));
        for variant in ["naive", "push-sum", "chunked"] {
            plans.push(choose(base.clone(), "stepwise", "bsp", &[("variant", variant), ("sync-every", "1")]));
        }
    }
    plans
}

fn check_equality(model: &str, epochs: f64, workers: impl Iterator<Item = usize>, weights: bool) {
    let dataset = digits();
    for p in workers {
        let mut references: Vec<Reference> = Vec::new();
        let base = Plan { work: TrainingLength::Epochs(epochs), ..plan(model, "single", p, 0) };
        for plan in exact_plans(&base, weights) {
            let strategy = find(&plan.strategy).unwrap();
            let (name, servers) = (strategy.name, plan.servers);
            let (layout, averages) = (plan.layout(), &plan.averages);
            let what =
                format!("{model}, {name} of {averages} with {p} workers and {servers} servers, {layout:?}");
            let mut errors = Vec::new();
            for (i, seed) in SEEDS.into_iter().enumerate() {
                if references.len() <= i {
                    references.push(Reference::new(&Plan { seed, ..base.clone() }, &dataset));
                }
                let Reference { end, begin, single, allowed } = &references[i];
                let ran = distributed(&Plan { seed, ..plan.clone() }, &dataset, strategy, "inproc");
                for replica in &ran.params {
                    assert_eq!(replica, &ran.params[0], "{what}: replicas are bit-identical");
                }
                if p == 1 {
                    let same = &wide(&ran.params[0]) == single;
                    assert!(same, "{what}: one worker is plain SGD, bit for bit");
                }
                errors.push((distance(&wide(&ran.params[0]), end, begin), *allowed));
                if errors[i].0 <= errors[i].1 {
                    break;
                }
            }
            let (error, allowed) = errors[errors.len() - 1];
            assert!(error <= allowed, "{what}: (distance, allowed) by seed: {errors:?}");
        }
    }
}

#[test]
fn mlp_with_up_to_8_workers_equals_one_worker_with_the_whole_batch() {
    check_equality("mlp", 1.0, 1..=8, false);
}

#[test]
fn mlp_with_averaged_weights_equals_one_worker_with_the_whole_batch() {
    check_equality("mlp", 1.0, [1, 2, 3, 5, 8].into_iter(), true);
}

#[test]
fn lenet_with_up_to_8_workers_equals_one_worker_with_the_whole_batch() {
    // A fraction of an epoch whose last step is a small one: the f64 reference is slow.
    check_equality("lenet", 0.3, 1..=8, false);
}

#[test]
fn lenet_with_averaged_weights_equals_one_worker_with_the_whole_batch() {
    check_equality("lenet", 0.3, [2, 3].into_iter(), true);
}

/// A participant that forgets to add what comes for the first bucket.
struct DropsABucket(Box<dyn Participant>, Actions);

impl Participant for DropsABucket {
    fn on(&mut self, now: Time, input: Input, out: &mut Actions) {
        self.0.on(now, input, &mut self.1);
        for action in self.1.drain() {
            match action {
                Action::Reduce { dst, .. } if dst.offset < 100 => {}
                other => out.push(other),
            }
        }
    }
}

#[test]
fn mutants_are_caught_by_the_tolerance() {
    static DROPS: Strategy = Strategy {
        make: |setup, rank| {
            Box::new(DropsABucket((find("ring-allreduce").unwrap().make)(setup, rank), Actions::default()))
        },
        links: |setup, rank| (find("ring-allreduce").unwrap().links)(setup, rank),
        name: "drops-a-bucket",
        agreement: |_| ReplicaAgreement::Exact,
        check: |_| Ok(()),
        check_members: |_| Ok(()),
        presets: |_| {},
        about: "",
        detail: "",
        cost: "",
        good: "",
        bad: "",
        loss: "",
        servers: false,
        gated: false,
        averages: &[Averages::Gradients],
        parameters: &[],
        path: None,
        delegated: None,
    };
    let dataset = digits();
    let plan = plan("mlp", "ring-allreduce", 3, 0);
    let Reference { end: reference, begin, allowed, .. } = Reference::new(&plan, &dataset);
    let ran = distributed(&plan, &dataset, &DROPS, "inproc");
    let dropped = distance(&wide(&ran.params[0]), &reference, &begin);
    assert!(dropped > 10.0 * allowed, "a dropped bucket: {dropped:e}, allowed {allowed:e}");
    let tail = order::share(dataset.train.len() % (plan.batch * 3), 0, 3).len();
    assert_ne!(
        tail * 3,
        dataset.train.len() % (plan.batch * 3),
        "the tail must be uneven for this mutant to differ"
    );
    let (means, _) = alone_f32(&plan, &dataset, Mean::OfMeans);
    let means = distance(&means, &reference, &begin);
    assert!(means > 2.0 * allowed, "a mean of means: {means:e}, allowed {allowed:e}");
}

#[test]
fn actions_over_every_transport_are_the_same_as_in_virtual_time() {
    let dataset = digits();
    for strategy in STRATEGIES {
        let codecs = [None, Some("fp16"), Some("2bit"), Some("powersgd")];
        for coder in codecs.into_iter().filter(|c| c.is_none_or(|c| strategy.codecs().contains(&c))) {
            for (p, servers, over) in [
                (2, 1, "tcp"),
                (4, 3, "tcp"),
                (4, 3, "shm"),
                (3, 2, "tcp"),
                (3, 2, "uds"),
                (3, 2, "shm"),
                (3, 2, "grpc"),
                (3, 2, "inproc"),
            ] {
                let servers = if strategy.servers { servers } else { 0 };
                let base = Plan { work: TrainingLength::Steps(3), ..plan("mlp", strategy.name, p, servers) };
                let compression = coder.map(|c| c.parse::<Coder>().unwrap().to_string());
                // Four workers sit on two hosts.
                let hosts = (p == 4).then_some(Hosts::Count(2));
                let plan = choose(Plan { compression, hosts, ..base }, strategy.name, "bsp", &[]);
                let ran = distributed(&plan, &dataset, strategy, over);
                let same = ran.traces == virtual_traces(&plan, &dataset, strategy);
                assert!(same, "{} {coder:?} with {p} workers over {over}", strategy.name);
            }
        }
    }
}

#[test]
fn a_codec_that_loses_nothing_changes_nothing_and_one_that_loses_little_little() {
    // The codes take the same ways whatever they lose.
    let dataset = digits();
    let base = Plan { work: TrainingLength::Epochs(0.5), ..plan("mlp", "single", 3, 0) };
    let Reference { end, begin, allowed, .. } = Reference::new(&base, &dataset);
    for strategy in STRATEGIES.iter().filter(|s| s.path.is_some() || s.servers) {
        let servers = if strategy.servers { 2 } else { 0 };
        let exact = choose(Plan { servers, ..base.clone() }, strategy.name, "bsp", &[]);
        for (coder, most) in [("topk,ratio=1", allowed), ("fp16", 2e-2), ("int8", 2e-2)] {
            let coder: Coder = coder.parse().unwrap();
            let plan = Plan { compression: Some(coder.to_string()), ..exact.clone() };
            for over in TRANSPORTS.iter().map(|transport| transport.name) {
                let ran = distributed(&plan, &dataset, strategy, over);
                assert!(
                    ran.params.iter().all(|p| *p == ran.params[0]),
                    "{} {coder}: replicas",
                    strategy.name
                );
                let off = distance(&wide(&ran.params[0]), &end, &begin);
                assert!(off <= most, "{} {coder} over {over}: {off:e}, allowed {most:e}", strategy.name);
            }
        }
    }
}

#[test]
fn identities_hold_over_tcp() {
    let dataset = digits();
    let run = |p, servers, strategy, sync, options: &[(&str, &str)], averages: Option<&str>| {
        let base = Plan { work: TrainingLength::Epochs(0.5), ..plan("mlp", strategy, p, servers) };
        let mut plan = choose(base, strategy, sync, options);
        plan.averages = averages.map_or(plan.averages, Into::into);
        distributed(&plan, &dataset, find(strategy).unwrap(), "tcp")
    };
    let weights = Some("weights");
    for p in [2, 3] {
        let bsp = run(p, 2, "ps", "bsp", &[], None);
        let switch = run(p, 2, "ps", "switch", &[("switch-at", "1")], None);
        assert!(bsp.params == switch.params && bsp.staleness == switch.staleness, "switch(1) is bsp");
        let ring = run(p, 0, "ring-allreduce", "bsp", &[], weights);
        let local = run(p, 0, "local", "bsp", &[("local-steps", "1")], None);
        assert!(ring.params == local.params, "local(1) is ring-allreduce");
        for variant in ["naive", "random-start", "push-sum", "chunked"] {
            let together = run(p, 0, "stepwise", "bsp", &[("variant", variant), ("sync-every", "1")], None);
            let zero = vec![0.0; ring.params[0].len()];
            let off = distance(&wide(&together.params[0]), &wide(&ring.params[0]), &zero);
            assert!(off < 1e-6, "stepwise {variant} with sync-every 1 is ring-allreduce of weights: {off:e}");
        }
        // Asynchronous runs depend on timing; what they do not depend on is how much they may be apart.
        let bounded = |ran: &Ran, s: u64| {
            let most = (p as u64 - 1) * (2 * s + 1);
            ran.staleness.iter().flatten().all(|&stale| stale <= most)
        };
        for s in [0, 2] {
            let (one, both) = (s.to_string(), format!("{s},{s}"));
            assert!(bounded(&run(p, 2, "ps", "ssp", &[("staleness", &one)], None), s), "ssp({s})");
            assert!(
                bounded(&run(p, 2, "ps", "dssp", &[("staleness-bounds", &both)], None), s),
                "dssp({s},{s})"
            );
        }
        let asp = run(p, 2, "ps", "switch", &[("switch-at", "0")], None);
        let pushes = bsp.staleness[0].len();
        assert!(asp.staleness.iter().all(|s| s.len() == pushes), "switch(0) pushes as often as asp");
    }
    // One worker is plain SGD, whatever the strategy.
    let plain = {
        let alone = Plan { work: TrainingLength::Epochs(0.5), ..plan("mlp", "single", 1, 0) };
        alone_f32(&alone, &dataset, Mean::OfSamples).0
    };
    for strategy in STRATEGIES {
        for sync in Protocols::default().syncs(strategy) {
            let ran = run(1, usize::from(strategy.servers), strategy.name, sync, &[], None);
            assert!(wide(&ran.params[0]) == plain, "one worker with {} {sync}", strategy.name);
        }
    }
}

#[test]
fn asynchronous_runs_do_all_the_work_and_record_true_staleness() {
    let dataset = digits();
    let strategy = find("ps").unwrap();
    for sync in Protocols::default().syncs(strategy).iter().filter(|sync| **sync != "bsp") {
        let plan = choose(plan("mlp", "ps", 4, 2), "ps", sync, &[]);
        let ran = distributed(&plan, &dataset, strategy, "inproc");
        let graph = model::graph(&typed(&plan), &dataset).unwrap();
        let setup = worker::setup(&typed(&plan), &Layout::of(&graph), dataset.train.len());
        let pushes = setup.end() as usize * 4;
        assert!(
            ran.staleness.iter().all(|s| s.len() == pushes),
            "{sync}: every push is recorded on every shard"
        );
        // Each shard's versions count its pushes: over a whole run the reads and writes telescope, so the
        // staleness adds up to at most p − 1 per push, and under ssp(s) no single one exceeds (p − 1)(2s + 1).
        let sum: u64 = ran.staleness[0].iter().sum();
        assert!(sum <= 3 * pushes as u64, "{sync}: {sum} over {pushes} pushes");
        let bound = match *sync {
            "ssp" | "essp" => 3,
            "dssp" | "adaptive" => 15,
            _ => continue,
        };
        assert!(ran.staleness.iter().flatten().all(|&s| s <= 3 * (2 * bound + 1)), "{sync}");
    }
}

#[test]
fn a_run_that_pauses_or_is_started_again_at_any_step_ends_with_the_same_numbers() {
    let dataset = digits();
    let steps = 5;
    for (strategy, options, compression) in [
        ("ring-allreduce", &[][..], None),
        ("ring-allreduce", &[], Some("topk,ratio=0.1")),
        ("ring-reduce", &[], None),
        ("tree", &[], Some("powersgd,rank=2")),
        ("halving-doubling", &[], Some("fp16")),
        ("stepwise", &[], None),
        ("stepwise", &[("variant", "push-sum")], None),
        ("stepwise", &[("variant", "naive")], None),
        ("gossip", &[], None),
        ("local", &[("local-steps", "2"), ("outer", "nesterov")], None),
        ("ps", &[], None),
        ("ps", &[], Some("2bit")),
    ] {
        let servers = if strategy == "ps" { 2 } else { 0 };
        let base =
            Plan { batch: 16, work: TrainingLength::Steps(steps), ..plan("mlp", strategy, 3, servers) };
        let mut plan = choose(base, strategy, "bsp", options);
        plan.compression = compression.map(|c: &str| c.parse::<Coder>().unwrap().to_string());
        let strategy = find(strategy).unwrap();
        let whole = distributed(&plan, &dataset, strategy, "inproc");
        let segment = |from: u64, to: u64, generation: u64| {
            let generation = generation as u32;
            Segment { from, to, generation }
        };
        let what = format!("{} {options:?} {compression:?}", strategy.name);
        // In one process, with a pause after each step.
        let each: Vec<_> = (0..steps).map(|step| segment(step, step + 1, step)).collect();
        let paused = pausing(&plan, &dataset, strategy, "inproc", &each, Vec::new()).ok().unwrap();
        assert!(paused.params == whole.params, "{what}: in stretches");
        // Stopped after some step, and started again.
        for stop in 1..steps {
            let first = [segment(0, stop, 0)];
            let Err(parts) = pausing(&plan, &dataset, strategy, "inproc", &first, Vec::new()) else {
                panic!("{what}: it should have stopped");
            };
            let rest = [segment(stop, steps, 0)];
            let again = pausing(&plan, &dataset, strategy, "inproc", &rest, parts).ok().unwrap();
            assert!(again.params == whole.params, "{what}: started again after step {stop}");
        }
    }
}
