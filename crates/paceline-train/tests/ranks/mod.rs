//! Shared by the tests that run all ranks of a plan as threads of this process.

#![allow(dead_code, reason = "each test uses its part")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use paceline_data::{Dataset, Folders};
use paceline_nn::{Compute, Outcome};
use paceline_pipeline::StageMemory;
use paceline_plan::{Placement, Plan, TrainingLength};
use paceline_protocol::{Membership, Options, Protocols, Setup, Strategy, Trace, find};
use paceline_record::RankState;
use paceline_resolve::{Registries, TypedPlan, paths};
use paceline_sim::{Costs, SizesOnly, StageCost};
use paceline_train::worker::WorkerEvent;
use paceline_train::{
    Begin, Clock, GradientSink, GradientSource, Layout, NativeSource, Pause, Segment, SegmentControl,
    StageSource, StepGate, TrainError, Update, model, server, weights, worker,
};
use paceline_wire::{Door, Identity, Key, StreamOptions as Wire, Transport, inproc};

/// A small plan on the digits.
pub fn plan(model: &str, strategy: &str, workers: usize, servers: usize) -> Plan {
    with_paths(Plan {
        script: None,
        data: "digits".into(),
        image_size: None,
        window: None,
        decoders: None,
        model: model.into(),
        model_file: None,
        init: None,
        frozen: Vec::new(),
        workers,
        stages: 1,
        pipeline: None,
        cuts: Vec::new(),
        elastic: None,
        revoke: None,
        saved_as: None,
        shares: None,
        micro_batches: 1,
        servers,
        strategy: strategy.into(),
        paths: Vec::new(),
        strategy_file: None,
        sync: "bsp".into(),
        options: BTreeMap::new(),
        averages: "gradients".into(),
        compression: None,
        shard: "iid".into(),
        transport: "inproc".into(),
        buffer: None,
        bucket: 50_000,
        network: None,
        hosts: None,
        placement: Placement::default(),
        straggler: None,
        stop_after_step: None,
        batch: 48,
        optimizer: "sgd".into(),
        lr: 0.05,
        lr_scaling: "none".into(),
        schedule: "constant".into(),
        warmup: 0.0,
        momentum: 0.9,
        nesterov: false,
        weight_decay: 0.0,
        work: TrainingLength::Epochs(1.0),
        checkpoint_every: None,
        keep: 2,
        restarts: 0,
        target_accuracy: None,
        stop_at_target: false,
        eval_every: Some(1_000_000),
        eval_samples: None,
        seed: 5,
        threads: 1,
        pin: false,
    })
}

/// The plan with the paths that its buckets take, where it leaves the choice.
pub fn with_paths(plan: Plan) -> Plan {
    Plan { paths: paths(&plan, &Registries::default().transports), ..plan }
}

/// A plan with its names looked up.
pub fn typed(plan: &Plan) -> TypedPlan<'_> {
    TypedPlan::new(plan, &Registries::default()).unwrap()
}

/// The built-in digits.
pub fn digits() -> Dataset {
    Registries::default()
        .datasets
        .find("digits")
        .unwrap()
        .load(&Folders::default(), &paceline_data::DatasetSettings::default())
        .unwrap()
}

/// What came of a run.
pub struct Ran {
    /// Every worker's parameters.
    pub params: Vec<Vec<f32>>,
    /// The state of every worker's positions.
    pub states: Vec<Vec<f32>>,
    pub traces: Vec<Trace>,
    pub staleness: Vec<Vec<u64>>,
    /// Steps that each worker has done, and whom it has seen leave.
    pub ends: Vec<(u64, Option<usize>)>,
    /// The buffers that each worker of a stage had.
    pub memory: Vec<Option<StageMemory>>,
    /// How long everybody took to end after a worker had run out of work.
    pub ended_in: Option<Duration>,
}

/// A plan with a strategy's parameters, resolved.
pub fn choose(plan: Plan, strategy: &str, sync: &str, options: &[(&str, &str)]) -> Plan {
    let found = find(strategy).unwrap();
    let mut options = Options::of(options);
    Protocols::default().resolve(found, sync, &mut options).unwrap();
    let averages = found.averages[0].name().into();
    with_paths(Plan { strategy: strategy.into(), sync: sync.into(), options: options.0, averages, ..plan })
}

/// Connects the ranks of a run over a transport between processes.
fn sockets(setup: &Setup, strategy: &Strategy, over: &str) -> Vec<Box<dyn Transport>> {
    let bind = Registries::default().transports.find(over).unwrap().bind.unwrap();
    let doors: Vec<_> = (0..setup.world()).map(|_| bind().unwrap()).collect();
    let addresses: Vec<_> = doors.iter().map(|door| door.address()).collect();
    let addresses = &addresses;
    std::thread::scope(|scope| {
        let connect = |(rank, door): (usize, Box<dyn Door>)| {
            let links = strategy.links_of(setup, rank);
            let identity = Identity {
                run: "equality".into(),
                rank,
                workers: setup.workers,
                world: setup.world(),
                model_hash: [7; 32],
                key: Key::from([9; 32]),
            };
            scope.spawn(move || {
                let peers: Vec<_> = links.iter().map(|&peer| (peer, addresses[peer].clone())).collect();
                let options = Wire { max_body: worker::MESSAGE, ..Wire::default() };
                door.connect(identity, &peers, options, Duration::from_secs(60)).unwrap()
            })
        };
        let all: Vec<_> = doors.into_iter().enumerate().map(connect).collect();
        all.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// A way through a run: stretches, what the ranks begin with, and a step to be stopped at.
#[derive(Default)]
pub struct Way {
    /// The stretches.
    pub stretches: Vec<Segment>,
    /// What the ranks had when the run stopped.
    pub restored: Vec<RankState>,
    /// Where the gate stops it.
    pub stop: Option<u64>,
    /// The worker that runs out of work after this many units.
    pub leaves: Option<(usize, u64)>,
    /// Whether members may change, and servers have backups.
    pub members: bool,
}

/// A network whose data may run out.
struct RunsOut<'a> {
    native: NativeSource<'a>,
    units: Option<(usize, u64)>,
    left_at: &'a Mutex<Option<Instant>>,
}

impl GradientSource for RunsOut<'_> {
    fn layout(&self) -> &Layout {
        self.native.layout()
    }

    fn start(&mut self, params: &mut [f32]) -> Result<(), TrainError> {
        self.native.start(params)
    }

    fn gradient<'g>(
        &mut self,
        begin: &Begin,
        slot: usize,
        params: &[f32],
        grads: &'g mut [f32],
        sink: &mut dyn GradientSink<'g>,
        clock: &mut Clock,
    ) -> Result<Option<Outcome>, TrainError> {
        match &mut self.units {
            Some((_, 0)) => {
                *self.left_at.lock().unwrap() = Some(Instant::now());
                return Ok(None);
            }
            Some((_, left)) => *left -= 1,
            None => {}
        }
        self.native.gradient(begin, slot, params, grads, sink, clock)
    }

    fn evaluate(&mut self, params: &[f32], only: bool) -> Result<Outcome, TrainError> {
        self.native.evaluate(params, only)
    }

    fn evaluates_after(&self, step: u64) -> bool {
        self.native.evaluates_after(step)
    }

    fn samples_before(&self, step: u64) -> u64 {
        self.native.samples_before(step)
    }

    fn state(&self) -> &[f32] {
        self.native.state()
    }

    fn restore(&mut self, state: &[f32]) -> Result<(), TrainError> {
        self.native.restore(state)
    }
}

/// What each rank of a plan does in virtual time, where passes and messages take their time.
pub fn virtual_traces(plan: &Plan, dataset: &Dataset, strategy: &Strategy) -> Vec<Trace> {
    let plan = &typed(plan);
    let graph = model::graph(plan, dataset).unwrap();
    let stages = plan.stage_plan(&graph).unwrap();
    let setup = worker::staged_setup(plan, &Layout::of(&graph), stages.as_ref(), dataset.train.len());
    strategy.check(&setup).unwrap();
    let participants = (0..setup.world()).map(|rank| strategy.participant(&setup, rank)).collect();
    let pass = StageCost { forward: 300_000, backward: 700_000, parts: Vec::new() };
    let passes = stages.map_or_else(Vec::new, |_| vec![pass; plan.workers]);
    let costs = Costs { stages: passes, ..Costs::constant(plan.workers, 1_000_000, 10_000, 1.0) };
    paceline_sim::simulate(&setup, participants, &costs, &mut SizesOnly, None, &[]).traces
}

/// Each worker's losses, by step.
pub type Losses = Vec<BTreeMap<u64, f64>>;

/// Runs a plan on a way, its losses going to `losses`. If the run does not end there, what the ranks had then.
pub fn run(
    plan: &Plan,
    dataset: &Dataset,
    strategy: &'static Strategy,
    over: &str,
    way: Way,
    losses: &mut Losses,
) -> Result<Ran, Vec<RankState>> {
    let graph = Arc::new(model::graph(&typed(plan), dataset).unwrap());
    let plan = &typed(plan);
    let stages = &plan.stage_plan(&graph).unwrap();
    let mut setup = worker::staged_setup(plan, &Layout::of(&graph), stages.as_ref(), dataset.train.len());
    if way.members {
        setup = Membership::first(&setup, true).setup(&setup, 0, None, 0);
    }
    let transports = match over {
        "inproc" => {
            inproc::mesh(setup.world()).into_iter().map(|t| Box::new(t) as Box<dyn Transport>).collect()
        }
        _ => sockets(&setup, strategy, over),
    };
    let (setup, graph) = (&setup, &graph);
    let Way { stretches, restored, stop, leaves, .. } = way;
    let parts = Mutex::new(vec![None; setup.world()]);
    let left_at = &Mutex::new(None::<Instant>);
    let (kept, stretches) = (&parts, &stretches);
    losses.resize(plan.workers, BTreeMap::new());
    let mut own_losses = losses.iter_mut();
    let ran = std::thread::scope(|scope| {
        let (mut workers, mut servers) = (Vec::new(), Vec::new());
        for (rank, transport) in transports.into_iter().enumerate() {
            let restored = restored.get(rank).cloned();
            let mut left = stretches.iter().copied();
            let segment = left.next().unwrap();
            let mut pause = move |Pause { step, part }: Pause| {
                let next = left.next();
                if let (Some(next), Some(step)) = (next, step) {
                    assert_eq!(next.from, step, "rank {rank}");
                }
                kept.lock().unwrap()[rank] = Some(part);
                Ok(next)
            };
            let gate = Arc::new(StepGate::default());
            stop.into_iter().for_each(|step| gate.stop_at(step));
            if rank < plan.workers {
                let losses = own_losses.next().expect("one for each worker");
                workers.push(scope.spawn(move || {
                    let (graph, samples) = (Arc::clone(graph), dataset.train.len());
                    let compute = Arc::new(Compute::new(plan.threads, plan.pin));
                    let own = Arc::clone(&compute);
                    let mut source: Box<dyn GradientSource> = match stages {
                        Some(stages) => {
                            Box::new(StageSource::new(plan, setup, stages, dataset, graph, own, rank))
                        }
                        None => {
                            let native = NativeSource::new(plan, setup, dataset, graph, own, rank);
                            Box::new(RunsOut {
                                native,
                                units: leaves.filter(|(who, _)| *who == rank),
                                left_at,
                            })
                        }
                    };
                    let job = worker::Job {
                        plan,
                        samples,
                        compute,
                        strategy,
                        setup,
                        rank,
                        observer: None,
                        traced: true,
                    };
                    let control = &mut SegmentControl {
                        restored,
                        segment,
                        gate,
                        pause: &mut pause,
                        verdict: None,
                        members: None,
                    };
                    let done = worker::run(&job, &mut *source, transport, control, &mut |said| {
                        if let WorkerEvent::Step { row, .. } = said {
                            losses.insert(row.step, row.loss);
                        }
                    });
                    done.unwrap_or_else(|e| panic!("worker {rank}: {e}"))
                }));
            } else {
                servers.push(scope.spawn(move || {
                    let samples = dataset.train.len();
                    let stage = setup.stage_of(rank);
                    let part = stages.as_ref().map_or(graph.whole(), |stages| stages.parts[stage].clone());
                    let (start, _) = model::start_part(plan, graph, &part).unwrap();
                    let job = server::Job {
                        plan,
                        start: &start,
                        frozen: &weights::frozen_part(plan, graph, &part).unwrap(),
                        update: &|compute| Update::new(plan, samples, compute),
                        strategy,
                        setup,
                        rank,
                        observer: None,
                        traced: true,
                    };
                    let control = &mut SegmentControl {
                        restored,
                        segment,
                        gate,
                        pause: &mut pause,
                        verdict: None,
                        members: None,
                    };
                    let done = server::run(&job, transport, control, &mut |_| {});
                    done.unwrap_or_else(|e| panic!("server {rank}: {e}"))
                }));
            }
        }
        let workers: Option<Vec<_>> = workers.into_iter().map(|w| w.join().unwrap()).collect();
        let servers: Option<Vec<_>> = servers.into_iter().map(|s| s.join().unwrap()).collect();
        let (workers, servers) = workers.zip(servers)?;
        let traces = workers.iter().map(|w| w.trace.clone().unwrap());
        Some(Ran {
            traces: traces.chain(servers.iter().map(|s| s.trace.clone().unwrap())).collect(),
            staleness: servers.iter().map(|s| s.staleness.clone()).collect(),
            states: workers.iter().map(|w| w.state.clone()).collect(),
            ended_in: left_at.lock().unwrap().map(|at| at.elapsed()),
            ends: workers.iter().map(|w| (w.steps, w.left)).collect(),
            memory: workers.iter().map(|w| w.memory).collect(),
            params: workers.into_iter().map(|w| w.params).collect(),
        })
    });
    ran.ok_or_else(|| parts.into_inner().unwrap().into_iter().map(|part| part.unwrap()).collect())
}
