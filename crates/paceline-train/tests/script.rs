//! A script in plain Python drives every strategy through the attach protocol: its ranks do what they do for a source of this
//! process, action by action, and come to the same numbers.

mod ranks;

use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use paceline_attach::{Attached, Gives, PROTOCOL, ScriptTensor, Takes};
use paceline_memory::{Allocator, TensorStorage};
use paceline_nn::{Compute, Outcome};
use paceline_plan::{Plan, Script, TrainingLength};
use paceline_protocol::{CODECS, Coder, GradientScale, Options, Protocols, STRATEGIES, Strategy, Trace};
use paceline_registry::Registry;
use paceline_testing::{Need, skip};
use paceline_train::{
    AfterStep, Begin, Clock, GradientSink, GradientSource, GroupOptimiser, Layout, ScriptRequest,
    ScriptSource, Segment, SegmentControl, StepGate, TrainError, Update, script_exchange, script_layout,
    server, worker,
};
use paceline_wire::{Transport, inproc};
use ranks::typed;

const STEPS: u64 = 5;
const SHAPES: [&[usize]; 5] = [&[3, 4], &[4], &[50, 20], &[7], &[1]];

fn scripts() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/scripts")
}

fn packages() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../python")
}

/// Whether there is a Python that the package runs on; skipped otherwise.
fn has_python() -> bool {
    let new = "import sys; sys.exit(sys.version_info < (3, 9))";
    let found = Command::new("python3").args(["-c", new]).status().is_ok_and(|status| status.success());
    if !found {
        skip(Need::System, "python3, 3.9 or later");
    }
    found
}

/// A plan of the script `numbers.py`.
fn plan(strategy: &Strategy, sync: &str, averages: &str, apply: &str, workers: usize) -> Plan {
    let file = scripts().join("numbers.py");
    let (_, sha256) = paceline_files::open(&file).and_then(paceline_files::sha256).unwrap();
    let script = Script {
        file: file.display().to_string(),
        sha256,
        args: vec![STEPS.to_string()],
        python: "python3".into(),
        apply: apply.into(),
        delegated: None,
        gpus: Vec::new(),
        without_mps: false,
        staged: false,
        auto: false,
    };
    let mut options = Options::default();
    Protocols::default().resolve(strategy, sync, &mut options).unwrap();
    Plan {
        script: Some(script),
        sync: sync.into(),
        averages: averages.into(),
        options: options.0,
        bucket: 512,
        work: TrainingLength::Steps(STEPS),
        ..ranks::plan("numbers.py", strategy.name, workers, if strategy.servers { 2 } else { 0 })
    }
}

/// What the script does, in this process.
struct Numbers {
    rank: usize,
    workers: usize,
    layout: Layout,
    flags: usize,
    exchange: (Gives, Takes),
    scale: f64,
    views: Option<[TensorStorage; 2]>,
    own: Vec<Vec<f32>>,
    left: u64,
}

impl Numbers {
    fn new(plan: &Plan, rank: usize) -> Self {
        let plan = &typed(plan);
        let attached = attached();
        let layout = script_layout(plan, &attached);
        let flags = layout.tensors.len() - SHAPES.len();
        let own = |number: usize| {
            let size = SHAPES[number].iter().product::<usize>();
            (0..size).map(|i| ((number + i % 13) as f64 / 16.0) as f32).collect()
        };
        Self {
            rank,
            workers: plan.workers,
            layout,
            flags,
            exchange: script_exchange(plan),
            scale: 1.0,
            views: None,
            own: (0..SHAPES.len()).map(own).collect(),
            left: STEPS,
        }
    }

    fn known(&self, step: u64, number: usize) -> Vec<f64> {
        let base = self.rank as u64 * 7 + step * 3 + number as u64 * 5;
        (0..self.own[number].len() as u64).map(|i| (base + i % 11) as f64 / 64.0 - 0.5).collect()
    }

    fn moved(&self, number: usize, by: &[f64]) -> Vec<f32> {
        self.own[number].iter().zip(by).map(|(p, g)| (f64::from(*p) - 0.125 * g) as f32).collect()
    }

    fn range(&self, number: usize) -> std::ops::Range<usize> {
        self.layout.tensors[self.flags + number].range.clone()
    }

    fn start_params(&self) -> Vec<f32> {
        let mut params = vec![0.0; self.layout.params];
        for number in 0..SHAPES.len() {
            params[self.range(number)].copy_from_slice(&self.own[number]);
        }
        params
    }
}

fn attached() -> Attached {
    let tensor = |(number, shape): (usize, &&[usize])| ScriptTensor {
        name: format!("t{number}"),
        shape: shape.to_vec(),
    };
    let tensors: Vec<_> = SHAPES.iter().enumerate().map(tensor).collect();
    let group = serde_json::json!({"tensors": [0, 1, 2, 3, 4], "lr": 0.125});
    let optimizer = serde_json::json!({"kind": "sgd", "groups": [group]});
    let optimizer = Some(serde_json::from_value(optimizer).unwrap());
    Attached {
        protocol: PROTOCOL,
        package: String::new(),
        framework: String::new(),
        tensors,
        optimizer,
        arrivals: false,
    }
}

impl GradientSource for Numbers {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn buffers(&mut self, _: usize, _: Allocator) -> io::Result<(TensorStorage, Vec<TensorStorage>)> {
        let numbers = self.layout.params;
        let [params, grads] = [(); 2].map(|()| Allocator::Shared.zeros(numbers).unwrap());
        let again = |storage: &TensorStorage| {
            TensorStorage::open(storage.descriptor().unwrap().try_clone_to_owned().unwrap(), numbers).unwrap()
        };
        self.views = Some([again(&params), again(&grads)]);
        Ok((params, vec![grads]))
    }

    fn start(&mut self, params: &mut [f32]) -> Result<(), TrainError> {
        params.copy_from_slice(&self.start_params());
        Ok(())
    }

    fn gradient<'g>(
        &mut self,
        begin: &Begin,
        _: usize,
        params: &[f32],
        grads: &'g mut [f32],
        sink: &mut dyn GradientSink<'g>,
        _: &mut Clock,
    ) -> Result<Option<Outcome>, TrainError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        self.scale = if begin.scale == GradientScale::Part { 1.0 / self.workers as f64 } else { 1.0 };
        if self.flags > 0 {
            grads[..SHAPES.len()].fill(1.0);
        }
        let mut own_params = Vec::new();
        for number in 0..SHAPES.len() {
            let (range, gradient) = (self.range(number), self.known(begin.step, number));
            let local = self.moved(number, &gradient);
            let narrow =
                |numbers: Vec<f64>| numbers.into_iter().map(|x| (x * self.scale) as f32).collect::<Vec<_>>();
            match self.exchange.0 {
                Gives::Gradients => grads[range].copy_from_slice(&narrow(gradient)),
                Gives::Updates => {
                    let old = &params[range.clone()];
                    let delta = local.iter().zip(old).map(|(p, q)| f64::from(*p) - f64::from(*q)).collect();
                    grads[range].copy_from_slice(&narrow(delta));
                }
                Gives::Parameters => own_params.push((range, local)),
                Gives::Nothing => self.own[number] = local,
            }
        }
        for (range, local) in own_params {
            self.views.as_mut().unwrap()[0][range].copy_from_slice(&local);
        }
        sink.finished(0, grads);
        Ok(Some(Outcome { samples: 2, loss: 1.0, ..Outcome::default() }))
    }

    fn settled(&mut self, _: u64, _: AfterStep, _: &[f32]) -> Result<(), TrainError> {
        for number in 0..SHAPES.len() {
            let [params, grads] = self.views.as_ref().unwrap();
            let (params, grads) = (&params[self.range(number)], &grads[self.range(number)]);
            let wide = |numbers: &[f32]| numbers.iter().copied().map(f64::from).collect::<Vec<_>>();
            self.own[number] = match self.exchange.1 {
                Takes::Nothing => continue,
                Takes::Parameters => params.to_vec(),
                Takes::Gradients => self.moved(number, &wide(grads)),
                Takes::GradientsFromParameters => self.moved(number, &wide(params)),
            };
        }
        Ok(())
    }

    fn finish(&mut self, _: &mut Clock) -> Result<Option<Vec<f32>>, TrainError> {
        Ok(Some(self.own.concat()))
    }

    fn evaluates(&self) -> bool {
        false
    }

    fn evaluate(&mut self, _: &[f32], _: bool) -> Result<Outcome, TrainError> {
        unreachable!("the source does not evaluate")
    }

    fn evaluates_after(&self, _: u64) -> bool {
        false
    }

    fn samples_before(&self, _: u64) -> u64 {
        0
    }

    fn state(&self) -> &[f32] {
        &[]
    }

    fn restore(&mut self, _: &[f32]) -> Result<(), TrainError> {
        Ok(())
    }
}

/// What came of a run: traces of all ranks, parameters and steps of the workers.
struct Ran {
    traces: Vec<Trace>,
    params: Vec<Vec<f32>>,
    steps: Vec<u64>,
}

/// Runs a plan with one source per worker.
fn run(plan: &Plan, source: &(dyn Fn(usize) -> Box<dyn GradientSource> + Sync)) -> Ran {
    let plan = &typed(plan);
    let layout = script_layout(plan, &attached());
    let setup = &worker::setup(plan, &layout, 0);
    let start = &Numbers::new(plan, 0).start_params();
    let (gives, takes) = script_exchange(plan);
    let ranges: Vec<_> = layout.tensors.iter().map(|tensor| tensor.range.clone()).collect();
    let transports: Vec<Box<dyn Transport>> =
        inproc::mesh(setup.world()).into_iter().map(|t| Box::new(t) as Box<dyn Transport>).collect();
    std::thread::scope(|scope| {
        let (mut workers, mut servers) = (Vec::new(), Vec::new());
        for (rank, transport) in transports.into_iter().enumerate() {
            let segment = Segment { from: 0, to: setup.end(), generation: 0 };
            let (ranges, strategy) = (&ranges, plan.strategy);
            let control =
                move |pause: &mut dyn FnMut(paceline_train::Pause) -> Result<Option<Segment>, TrainError>,
                      f: &mut dyn FnMut(&mut SegmentControl<'_>)| {
                    let gate = Arc::new(StepGate::default());
                    f(&mut SegmentControl {
                        restored: None,
                        segment,
                        gate,
                        pause,
                        verdict: None,
                        members: None,
                    });
                };
            if rank < plan.workers {
                workers.push(scope.spawn(move || {
                    let mut source = source(rank);
                    let compute = Arc::new(Compute::new(1, false));
                    let job = worker::Job {
                        plan,
                        samples: 0,
                        compute,
                        strategy,
                        setup,
                        rank,
                        observer: None,
                        traced: true,
                    };
                    let (mut transport, mut done) = (Some(transport), None);
                    control(&mut |_| Ok(Some(Segment { from: setup.end(), ..segment })), &mut |control| {
                        let transport = transport.take().unwrap();
                        let ran = worker::run(&job, &mut *source, transport, control, &mut |_| {});
                        done = ran.unwrap_or_else(|error| panic!("worker {rank}: {error}"));
                    });
                    done.unwrap()
                }));
            } else {
                servers.push(scope.spawn(move || {
                    let update = &|compute| {
                        let described = attached().optimizer.unwrap();
                        let own = (gives == Gives::Gradients && takes == Takes::Parameters).then(|| {
                            GroupOptimiser::new(&described, &Registry::default(), ranges, compute).unwrap()
                        });
                        Update::for_scripts(gives, takes, own)
                    };
                    let job = server::Job {
                        plan,
                        start,
                        frozen: &[],
                        update,
                        strategy,
                        setup,
                        rank,
                        observer: None,
                        traced: true,
                    };
                    let (mut transport, mut done) = (Some(transport), None);
                    control(&mut |_| Ok(Some(Segment { from: setup.end(), ..segment })), &mut |control| {
                        let transport = transport.take().unwrap();
                        let ran = server::run(&job, transport, control, &mut |_| {});
                        done = ran.unwrap_or_else(|error| panic!("server {rank}: {error}"));
                    });
                    done.unwrap()
                }));
            }
        }
        let workers: Vec<_> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        let servers: Vec<_> = servers.into_iter().map(|server| server.join().unwrap()).collect();
        let traces = workers.iter().map(|w| &w.trace).chain(servers.iter().map(|s| &s.trace));
        Ran {
            traces: traces.map(|trace| trace.clone().unwrap()).collect(),
            steps: workers.iter().map(|w| w.steps).collect(),
            params: workers.into_iter().map(|w| w.params).collect(),
        }
    })
}

/// The source that starts the script.
fn script(plan: &Plan) -> impl Fn(usize) -> Box<dyn GradientSource> + Sync + '_ {
    move |rank| {
        let typed = typed(plan);
        let request = ScriptRequest {
            plan: &typed,
            rank,
            times: false,
            packages: Some(packages()),
            delegated: None,
            environment: Vec::new(),
        };
        let listener = Arc::new(|_| {});
        let mut source = ScriptSource::attach(&request, listener, &mut |_| {})
            .unwrap_or_else(|e| panic!("rank {rank}: {e}"));
        // Every script shows the same: what rank 0 shows is what all start from.
        let start = source.own_params().to_vec();
        source.start_from(start);
        Box::new(source)
    }
}

fn compare(plan: &Plan, what: &str) {
    let scripted = run(plan, &script(plan));
    let native = run(plan, &|rank| Box::new(Numbers::new(plan, rank)));
    assert_eq!(scripted.steps, native.steps, "{what}");
    for (rank, (ours, theirs)) in scripted.traces.iter().zip(&native.traces).enumerate() {
        assert_eq!(ours, theirs, "{what}: actions of rank {rank}");
    }
    for (rank, (ours, theirs)) in scripted.params.iter().zip(&native.params).enumerate() {
        let differ = ours.iter().zip(theirs).position(|(a, b)| a.to_bits() != b.to_bits());
        assert_eq!((differ, ours.len()), (None, theirs.len()), "{what}: parameters of rank {rank}");
    }
}

#[test]
fn a_script_drives_every_deterministic_strategy_as_a_source_of_this_process_does() {
    if !has_python() {
        return;
    }
    for strategy in STRATEGIES {
        for averages in strategy.averages {
            let what = format!("{} of {}", strategy.name, averages.name());
            compare(&plan(strategy, "bsp", averages.name(), "worker", 3), &what);
        }
    }
    let ps = STRATEGIES.iter().find(|strategy| strategy.servers).unwrap();
    compare(&plan(ps, "bsp", "gradients", "server", 3), "ps, servers update");
    let alone = Plan {
        strategy: "single".into(),
        workers: 1,
        ..plan(&STRATEGIES[0], "bsp", "gradients", "worker", 1)
    };
    compare(&alone, "one worker alone");
}

#[test]
fn a_script_drives_every_codec() {
    if !has_python() {
        return;
    }
    let mut tried = 0;
    for strategy in STRATEGIES {
        for coder in CODECS.iter().map(Coder::new) {
            let averages = strategy.averages[0].name();
            let compressed =
                Plan { compression: Some(coder.to_string()), ..plan(strategy, "bsp", averages, "worker", 2) };
            let typed = typed(&compressed);
            let setup = worker::setup(&typed, &script_layout(&typed, &attached()), 0);
            if strategy.check(&setup).is_ok() {
                compare(&compressed, &format!("{} with {coder}", strategy.name));
                tried += 1;
            }
        }
    }
    assert!(tried > CODECS.len(), "{tried} combinations");
}

#[test]
fn a_script_drives_every_consistency_model_and_nothing_is_lost() {
    if !has_python() {
        return;
    }
    let ps = STRATEGIES.iter().find(|strategy| strategy.servers).unwrap();
    for sync in Protocols::default().syncs(ps) {
        for apply in ["worker", "server"] {
            // Where a run switches after a part of it, its length is known; elsewhere the scripts decide.
            let work = match sync {
                "switch" => TrainingLength::Steps(STEPS),
                _ => TrainingLength::UntilScriptEnds,
            };
            let plan = Plan { work, ..plan(ps, sync, "gradients", apply, 3) };
            let ran = run(&plan, &script(&plan));
            let what = format!("{sync}, {apply}");
            if sync != "switch" {
                assert_eq!(ran.steps, [STEPS; 3], "{what}");
            }
            let start = Numbers::new(&plan, 0).own.concat();
            // Each update moves by an eighth of its gradient, wherever it is applied, whole or in parts.
            let sum = |i: usize, number: usize, at: usize| -> f64 {
                let one = |rank: usize, step: u64| Numbers::new(&plan, rank).known(step, number)[at];
                let whole =
                    (0..3).map(|rank| (0..STEPS).map(|step| one(rank, step)).sum::<f64>()).sum::<f64>();
                let together = if sync == "bsp" { 3.0 } else { 1.0 };
                f64::from(start[i]) - 0.125 * whole / together
            };
            if sync == "bsp" || sync == "asp" {
                let newest = ran.params.iter().map(|params| f64::from(params[0])).collect::<Vec<_>>();
                let expected = sum(0, 0, 0);
                assert!(
                    newest.iter().any(|p| (p - expected).abs() < 1e-5),
                    "{what}: {newest:?}, expected {expected}"
                );
            }
        }
    }
}
