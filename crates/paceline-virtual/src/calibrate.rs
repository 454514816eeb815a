//! Measures a machine: passes, computations on elements, transports, shared cores, startup.

mod sharing;
mod transports;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_bench::BenchProgram;
use paceline_data::{DatasetKind, SampleForm};
use paceline_launch::LaunchError;
use paceline_nn::optim::{OPTIMISERS, Optimiser, Settings, Step};
use paceline_nn::{Compute, Graph, Network, Pass as Batch, Shape, Targets};
use paceline_protocol::{
    Accumulate, Action, Buf, Buffers, CODECS, Coder, Family, Matrix, MsgId, Region, Transposed,
};
use paceline_random::{Purpose, Stream};
use paceline_registry::Registry;
use paceline_resolve::Registries;

use crate::calibration::{Calibration, ElementCost, LARGE, Layer, MedianEstimate, PassTime, SMALL};
use crate::error::VirtualError;
use sharing::sharing;
use transports::Transports;

/// Classes of the networks that are measured.
const CLASSES: usize = 10;
/// Operations of a sample beyond which a model is measured on inputs of its own size only.
const HEAVY: u64 = 30_000_000;
/// Bytes of a dataset that samples are taken from: more than a core's own cache holds.
const DATASET: usize = 32 << 20;
const POINTS: usize = 21;

#[derive(Clone, Copy)]
struct Effort {
    /// Of each pass and each computation.
    each: Duration,
    /// Repetitions at least, the first ones not counted.
    least: usize,
    batches: &'static [usize],
    models: &'static [&'static str],
    /// Rounds of each transport, and runs that start.
    rounds: usize,
    /// Time between two rounds, as long as there is something else to measure.
    apart: Duration,
    /// Seconds of messages of one length, roughly.
    exchange_s: f64,
}

const FULL: Effort = Effort {
    each: Duration::from_millis(450),
    least: 7,
    batches: &[16, 64, 256],
    models: &["softmax", "mlp", "lenet", "resnet20", "resnet32"],
    rounds: 9,
    apart: Duration::from_secs(8),
    exchange_s: 0.015,
};

const QUICK: Effort = Effort {
    each: Duration::from_millis(60),
    least: 5,
    batches: &[16, 64],
    models: &["mlp"],
    rounds: 3,
    apart: Duration::from_secs(1),
    exchange_s: 0.003,
};

/// Measures this machine and whatever a program knows, telling `say` what comes next.
pub fn measure(
    by: &BenchProgram<'_>,
    quick: bool,
    say: &mut dyn FnMut(&str),
) -> Result<Calibration, VirtualError> {
    let effort = if quick { QUICK } else { FULL };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    say("passes of the models, and transports in between");
    let mut transports = Transports::new(effort, by);
    let draws = Stream::new(1, Purpose::Bench);
    let dataset: Arc<[u8]> = (0..DATASET as u64).map(|i| draws.at(i) as u8).collect();
    let (pass, data, rates) = passes(&effort, cores, by.registries, &dataset, &mut || transports.between())?;
    say("computations on elements");
    let work = work(&effort, &by.registries.optimisers);
    say("processes that share the cores");
    let sharing = sharing(&effort, cores, &by.registries.models, &dataset);
    say("the rest of the transports");
    let transport = transports.finish()?;
    say("the start of a run");
    let startup_s = startup(&effort, &by.program)?;
    let [data_ns_per_byte, flops_per_s] = [&data, &rates].map(|values| MedianEstimate::of(values));
    let defaults = Calibration::defaults();
    Ok(Calibration {
        cpu: cpu(),
        cores,
        startup_s,
        data_ns_per_byte,
        flops_per_s,
        sharing,
        work,
        transport,
        pass,
        ..defaults
    })
}

fn cpu() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name"));
    name.unwrap_or("unknown").trim_start_matches([' ', '\t', ':']).to_owned()
}

struct Subject {
    network: Network<f32>,
    params: Vec<f32>,
    state: Vec<f32>,
    grads: Vec<f32>,
    dataset: Arc<[u8]>,
    classes: Vec<u16>,
    ids: Vec<u32>,
    step: u64,
    /// What updates between them remember.
    velocity: Vec<f32>,
}

struct Lap {
    data: f64,
    forward: Vec<f64>,
    backward: Vec<f64>,
}

impl Subject {
    fn new(graph: Arc<Graph>, batch: usize, threads: usize, dataset: &Arc<[u8]>) -> Self {
        let (mut params, mut state) = (vec![0.0; graph.param_count()], vec![0.0; graph.state_count()]);
        graph.init(1, &mut params, &mut state);
        Self {
            grads: vec![0.0; params.len()],
            velocity: vec![0.0; params.len()],
            dataset: Arc::clone(dataset),
            classes: (0..batch).map(|i| (i % CLASSES) as u16).collect(),
            ids: (0..batch as u32).collect(),
            network: Network::new(graph, batch, Arc::new(Compute::new(threads, false))),
            params,
            state,
            step: 0,
        }
    }

    /// A pass, after an update as between any two: it leaves other things in the caches.
    fn run(&mut self) -> Lap {
        let Self { network, params, state, grads, dataset, classes, ids, step, velocity } = self;
        let settings = Settings { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
        let update = Step { params, grads, memory: velocity, lr: 1e-6, step: *step + 1 };
        OPTIMISERS[0].apply(&Compute::new(1, false), &settings, update);
        let graph = Arc::clone(network.graph());
        let sample = graph.input().size();
        let order = Stream::new(1, Purpose::Bench).fork(*step);
        *step += 1;
        let mut clock = Instant::now();
        let mut lap = || std::mem::replace(&mut clock, Instant::now()).elapsed().as_secs_f64();
        for i in 0..ids.len() {
            let first = sample * order.below(i as u64, (dataset.len() / sample) as u64) as usize;
            network.input_bytes(0, i, &dataset[first..first + sample], &[1.0 / 128.0], &[-1.0]);
        }
        let data = lap();
        let pass = Batch::training(1, 0, ids);
        let mut forward = Vec::with_capacity(graph.nodes().len());
        network.forward_watched(&pass, params, state, &mut |_| forward.push(lap()));
        network.loss(0, Targets::Classes(classes), 1.0 / ids.len() as f64);
        if let Some(last) = forward.last_mut() {
            *last += lap();
        }
        // Layers without parameters are done when the next gradient below them is final.
        let owner = |offset: usize| {
            let has = |tensor: &paceline_nn::Tensor| tensor.range.start == offset;
            graph.nodes().iter().position(|node| graph.params()[node.params.clone()].iter().any(has))
        };
        let mut backward = vec![0.0; graph.nodes().len()];
        let mut last = 0;
        network.backward(&pass, params, grads, &mut |offset, _| {
            last = owner(offset).unwrap_or(last);
            backward[last] += lap();
        });
        backward[last] += lap();
        Lap { data, forward, backward }
    }
}

/// Repeats something for as long as the effort says; the first repetitions are not counted.
fn repeat<T>(effort: &Effort, mut once: impl FnMut() -> T) -> Vec<T> {
    let (warm_up, start) = (2, Instant::now());
    let mut all = Vec::new();
    while all.len() < warm_up + effort.least || start.elapsed() < effort.each {
        all.push(once());
    }
    all.drain(..warm_up);
    all
}

/// Every model's passes; nanoseconds per byte of input; operations per second of one thread.
type Passes = (Vec<PassTime>, Vec<f64>, Vec<f64>);

/// Times every model, with something else `between` two passes.
fn passes(
    effort: &Effort,
    cores: usize,
    registries: &Registries,
    dataset: &Arc<[u8]>,
    between: &mut dyn FnMut() -> Result<(), VirtualError>,
) -> Result<Passes, VirtualError> {
    let (mut passes, mut data, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    let shape = |source: &DatasetKind| match source.form {
        SampleForm::Fixed { shape, .. } => Some(shape),
        SampleForm::FromFiles(_) => None,
    };
    let mut shapes: Vec<[usize; 3]> = registries.datasets.iter().filter_map(shape).collect();
    shapes.sort_unstable();
    shapes.dedup();
    for model in registries.models.iter().filter(|model| effort.models.contains(&model.name)) {
        let native = model.native_input;
        for &[h, w, c] in &shapes {
            let shape = Shape::new(h, w, c);
            let Ok(graph) = model.build(shape, CLASSES).map(Arc::new) else { continue };
            if graph.training_flops() > HEAVY && (native.h, native.w, native.c) != (h, w, c) {
                continue;
            }
            for &batch in effort.batches {
                let mut threads = vec![1, cores];
                threads.dedup();
                for threads in threads {
                    let mut subject = Subject::new(Arc::clone(&graph), batch, threads, dataset);
                    let laps = repeat(effort, || subject.run());
                    data.extend(laps.iter().map(|lap| 1e9 * lap.data / (batch * shape.size()) as f64));
                    let pass = summed_up(model.name, &graph, batch, threads, &laps);
                    if threads == 1 && graph.training_flops() > 1_000_000 {
                        let flops = (graph.training_flops() * batch as u64) as f64;
                        rates.push(flops / pass.seconds.median);
                    }
                    passes.push(pass);
                    between()?;
                }
            }
        }
    }
    Ok((passes, data, rates))
}

fn summed_up(model: &str, graph: &Graph, batch: usize, threads: usize, laps: &[Lap]) -> PassTime {
    let whole: Vec<f64> = laps.iter().map(|lap| lap.forward.iter().chain(&lap.backward).sum()).collect();
    let seconds = MedianEstimate::of(&whole);
    let median = |f: &dyn Fn(&Lap) -> f64| MedianEstimate::of(&laps.iter().map(f).collect::<Vec<_>>()).median;
    let layer = graph.nodes().iter().enumerate().map(|(i, node)| Layer {
        name: node.name.clone(),
        forward_s: median(&|lap| lap.forward[i]),
        backward_s: median(&|lap| lap.backward[i]),
    });
    let shape = graph.input();
    PassTime {
        model: model.into(),
        input: [shape.h, shape.w, shape.c],
        batch,
        threads,
        repetitions: laps.len(),
        seconds,
        quantiles: quantiles(&whole, seconds.median),
        layer: layer.collect(),
    }
}

/// Values relative to their median, at equally spaced probabilities.
fn quantiles(values: &[f64], median: f64) -> Vec<f64> {
    let sorted = paceline_statistics::sorted(values);
    let points = POINTS.min(sorted.len());
    let at = |i: usize| sorted[i * (sorted.len() - 1) / (points - 1).max(1)];
    // Three digits are more than a repetition would give again.
    (0..points).map(|i| (1e3 * at(i) / median).round() / 1e3).collect()
}

/// Computations on few and on many elements.
fn work(effort: &Effort, optimisers: &Registry<Optimiser>) -> Vec<ElementCost> {
    let each = Effort { each: effort.each / 2, ..*effort };
    let both = work_on(&each, SMALL, optimisers).into_iter().zip(work_on(&each, LARGE, optimisers));
    let both = both.map(|((what, small), (_, large))| ElementCost {
        what,
        ns_per_element: small,
        large_ns_per_element: Some(large),
    });
    both.collect()
}

/// Computations on so many elements: nanoseconds per element.
fn work_on(effort: &Effort, count: usize, optimisers: &Registry<Optimiser>) -> Vec<(String, MedianEstimate)> {
    let numbers = |seed: u64| -> Vec<f32> {
        let draws = Stream::new(seed, Purpose::Bench);
        (0..count as u64).map(|i| draws.uniform(i, -1.0, 1.0) as f32).collect()
    };
    let body = numbers(1);
    let (mut param, mut grad, mut work) = (numbers(2), numbers(3), Vec::new());
    let mut scratch = vec![numbers(4), vec![0.0; 2 * count]];
    let region = |buf| Region { buf, offset: 0, len: count };
    let (dst, src) = (region(Buf::Grad), region(Buf::Msg(MsgId(0))));
    let matrix = |buf, rows: usize, cols: usize| Matrix {
        region: Region { buf, offset: 0, len: rows * cols },
        rows,
        cols,
    };
    let (rows, columns) = (512, 4);
    let mut all = vec![
        ("reduce".to_owned(), Action::Reduce { dst, src }, count),
        ("copy".to_owned(), Action::Copy { dst, src }, count),
        ("mix".to_owned(), Action::Mix { dst, keep: 0.5, src, add: 0.5 }, count),
        (
            "product".to_owned(),
            Action::MatMul {
                dst: matrix(Buf::Scratch(1), rows, columns),
                a: matrix(Buf::Grad, rows, count / rows),
                b: matrix(Buf::Param, count / rows, columns),
                transposed: Transposed::None,
            },
            count * columns,
        ),
    ];
    for codec in CODECS.iter().filter(|codec| codec.family != Family::LowRank) {
        let coder = Coder::new(codec);
        let code = Region { buf: Buf::Scratch(1), offset: 0, len: coder.words(count) };
        let feedback = codec.family == Family::Gathered;
        let encode = Action::Encode { coder, dst: code, src: region(Buf::Scratch(0)), feedback };
        all.push((format!("encode {}", codec.name), encode, count));
        let decode = Action::Decode { coder, dst, src: code, into: Accumulate::Add };
        all.push((format!("decode {}", codec.name), decode, count));
    }
    for (what, action, elements) in all {
        let mut codes = Vec::new();
        let accumulate = paceline_train::memory::add;
        let laps = repeat(effort, || {
            let mut buffers = Buffers {
                param: &mut param,
                grads: std::slice::from_mut(&mut grad),
                scratch: &mut scratch,
                work: &mut codes,
                accumulate,
            };
            let start = Instant::now();
            buffers.compute(&action, &|_| body.as_slice());
            1e9 * start.elapsed().as_secs_f64() / elements as f64
        });
        // Sums must not grow without bounds, nor residuals vanish.
        grad.copy_from_slice(&body);
        scratch[0].copy_from_slice(&body);
        work.push((what, MedianEstimate::of(&laps)));
    }
    let compute = Compute::new(1, false);
    let settings = Settings { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
    for optimiser in optimisers.iter() {
        let mut memory = vec![0.0; (optimiser.memory)(&settings) * count];
        let mut step = 0;
        let laps = repeat(effort, || {
            step += 1;
            let update = Step { params: &mut param, grads: &grad, memory: &mut memory, lr: 1e-6, step };
            let start = Instant::now();
            optimiser.apply(&compute, &settings, update);
            1e9 * start.elapsed().as_secs_f64() / count as f64
        });
        work.push((format!("apply {}", optimiser.name), MedianEstimate::of(&laps)));
    }
    work
}

/// Seconds from a run's start to its first step.
fn startup(effort: &Effort, program: &Path) -> Result<MedianEstimate, VirtualError> {
    let failed = |source| LaunchError::System { what: "starting a run".into(), source };
    let store = std::env::temp_dir().join(format!("paceline-calibrate-{}", std::process::id()));
    let mut all = Vec::new();
    for _ in 0..effort.rounds {
        let start = Instant::now();
        let words = ["train", "--quiet", "--workers", "2", "--steps", "1", "--store"];
        let ran = Command::new(program).args(words).arg(&store).output().map_err(failed)?;
        if ran.status.success() {
            all.push(start.elapsed().as_secs_f64());
        }
    }
    // A store that was never made need not be removed.
    let _ = std::fs::remove_dir_all(&store);
    Ok(if all.is_empty() { Calibration::defaults().startup_s } else { MedianEstimate::of(&all) })
}
