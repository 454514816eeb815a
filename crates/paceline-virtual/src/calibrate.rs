//! Measures a machine: passes, computations on elements, transports, shared cores, startup.

mod rounds;
mod script;
mod sharing;
mod subject;
mod transports;
mod work;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_bench::BenchProgram;
use paceline_data::{Dataset, DatasetKind, SampleForm};
use paceline_launch::LaunchError;
use paceline_nn::Shape;
use paceline_random::{Purpose, Stream};
use paceline_resolve::{Registries, TypedPlan};

use crate::calibration::{Calibration, MedianEstimate};
use crate::error::VirtualError;
use crate::pass::{CLASSES, PassKey, PassTime};
pub use script::ScriptSubject;
use sharing::SharedCores;
use subject::{Samples, Subject, median_of, summed_up};
use transports::Transports;

/// Operations of a sample beyond which a model is measured on inputs of its own size only.
const HEAVY: u64 = 30_000_000;
/// Bytes of a dataset that samples are taken from: more than a core's own cache holds.
const DATASET: usize = 32 << 20;

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
    /// Rounds of ranks that share the cores.
    sharing: usize,
    /// Time between two rounds, as long as there is something else to measure.
    apart: Duration,
    /// Seconds of messages of one length, roughly.
    exchange_s: f64,
}

const FULL: Effort = Effort {
    each: Duration::from_millis(350),
    least: 7,
    batches: &[8, 64, 256],
    models: &["softmax", "mlp", "lenet", "resnet20", "resnet32"],
    rounds: 9,
    sharing: 5,
    apart: Duration::from_secs(8),
    exchange_s: 0.015,
};

const QUICK: Effort = Effort {
    each: Duration::from_millis(60),
    least: 5,
    batches: &[16, 64],
    models: &["mlp"],
    rounds: 3,
    sharing: 1,
    apart: Duration::from_secs(1),
    exchange_s: 0.003,
};

/// The effort for a pass of a plan: seconds, of which the longest part is not lost to a moment in which something else
/// ran.
const OF_PLAN: Effort = Effort { each: Duration::from_millis(1200), ..FULL };

/// Measures the pass of a plan on samples of its dataset, alone and on as many workers at once as `workers` says.
pub fn pass(
    plan: &TypedPlan<'_>,
    dataset: &Dataset,
    workers: &[usize],
    quick: bool,
) -> Result<PassTime, VirtualError> {
    let effort = if quick { &QUICK } else { &OF_PLAN };
    let graph = Arc::new(paceline_train::model::graph(plan, dataset)?);
    let key = PassKey::new(plan, &graph);
    let make = || Subject::new(Arc::clone(&graph), key.batch, key.threads, Samples::of(dataset));
    let mut subject = make();
    let first_s = Some(subject.run()?.seconds());
    let laps = repeat(effort, || subject.run());
    let laps = laps.into_iter().collect::<Result<Vec<_>, _>>()?;
    let data: Vec<f64> = laps.iter().map(|lap| lap.data).collect();
    let sharing = sharing::of_pass(&make, effort.each / 2, key.threads, workers);
    let data_s = Some(MedianEstimate::of(&data));
    let again = || -> Result<MedianEstimate, VirtualError> {
        let laps = repeat(effort, || subject.again()).into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(median_of(&laps))
    };
    let again_s = (plan.micro_batches > 1).then(again).transpose()?;
    Ok(PassTime { data_s, again_s, first_s, sharing, ..summed_up(key.clone(), &graph, &laps) })
}

/// The machine's name and how many cores it has: a calibration is one machine's.
pub fn machine() -> (String, usize) {
    (cpu(), std::thread::available_parallelism().map_or(1, usize::from))
}

/// Measures this machine and whatever a program knows, telling `say` what comes next.
pub fn measure(
    by: &BenchProgram<'_>,
    quick: bool,
    say: &mut dyn FnMut(&str),
) -> Result<Calibration, VirtualError> {
    let effort = if quick { QUICK } else { FULL };
    let (cpu, cores) = machine();
    say("passes of the models; transports and ranks that share the cores in between");
    let mut transports = Transports::new(effort, by);
    let draws = Stream::new(1, Purpose::Bench);
    let dataset: Arc<[u8]> = (0..DATASET as u64).map(|i| draws.at(i) as u8).collect();
    let mut shared = SharedCores::new(&effort, cores, &by.registries.models, &dataset);
    let mut between = || {
        shared.between();
        transports.between()
    };
    let (pass, data, rates) = passes(&effort, cores, by.registries, &dataset, &mut between)?;
    say("computations on elements");
    let work = work::work(&effort, cores, &by.registries.optimisers);
    say("the rest of the ranks that share the cores, and of the transports");
    let sharing = shared.finish();
    let transport = transports.finish()?;
    say("the start of a run");
    let startup_s = startup(&effort, &by.program)?;
    let [data_ns_per_byte, flops_per_s] = [&data, &rates].map(|values| MedianEstimate::of(values));
    let defaults = Calibration::defaults();
    Ok(Calibration {
        cpu,
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
                    let samples = Samples::Drawn(Arc::clone(dataset));
                    let mut subject = Subject::new(Arc::clone(&graph), batch, threads, samples);
                    let first_s = Some(subject.run()?.seconds());
                    let laps = repeat(effort, || subject.run()).into_iter().collect::<Result<Vec<_>, _>>()?;
                    data.extend(laps.iter().map(|lap| 1e9 * lap.data / (batch * shape.size()) as f64));
                    let key = PassKey {
                        model: model.name.into(),
                        network: None,
                        input: [h, w, c],
                        classes: CLASSES,
                        batch,
                        threads,
                    };
                    let pass = PassTime { first_s, ..summed_up(key, &graph, &laps) };
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
