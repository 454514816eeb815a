//! `cargo xtask accept`: what needs time or a quiet machine. Every raw run is kept in `bench/accept/`;
//! speed is the ratio of medians of at least five runs that alternate with the peer's.
//!
//! A measurement lists what it needs ([`need`]). Where that is missing, it is not measured, which is no failure. With
//! `--binary` and `--python`, this program measures on machines without cargo, pip, apt and the repository ([`setup`]).

mod accuracy;
mod averaging;
mod before;
mod build;
mod chaos;
mod compare;
mod compression;
mod compute;
mod coverage;
mod datasets;
mod drift;
mod ecosystem;
mod elastic_peers;
mod engines;
mod exchange;
mod exits;
mod explain;
mod first_run;
mod footprint;
mod many_workers;
mod need;
mod network;
mod options;
mod overhead;
mod pages;
mod peers;
mod pipeline;
mod prediction;
mod project;
mod report;
mod samplers;
mod setup;
mod simulate;
mod staged;
mod stragglers;
mod studies;
mod survive;
mod survive_predicted;
mod systems;
#[cfg(test)]
mod tests;
mod torch;

use std::fs;
use std::path::Path;

use chaos::{ATTACK, CHAOS};
use need::Need::{
    self, Before, Cargo, Cores, Cuda, Dataset, File, Header, Namespaces, Or, Paceline, Program, Python, Root,
    Script, Tables,
};
use options::Options;
use serde_json::{Value, json};
pub use setup::Setup;

use crate::process::{self, Outcome, cargo};

/// One line of the contract, measured.
pub struct Line {
    /// What must hold.
    pub claim: String,
    /// The figure reached.
    pub reached: f64,
    /// The figure that is asked for.
    pub wanted: f64,
    /// Whether smaller is better.
    pub at_most: bool,
}

impl Line {
    /// A line of these words.
    pub fn new(claim: &str, reached: f64, wanted: f64, at_most: bool) -> Self {
        Self { claim: claim.into(), reached, wanted, at_most }
    }

    fn holds(&self) -> bool {
        if self.at_most { self.reached <= self.wanted } else { self.reached >= self.wanted }
    }
}

/// A measurement: its lines, and every raw run.
pub struct Report {
    /// The lines.
    pub lines: Vec<Line>,
    /// The runs, in the order in which they were made.
    pub runs: Vec<Value>,
}

/// Something to measure.
pub struct Measurement {
    name: &'static str,
    about: &'static str,
    /// Checked before it runs, in this order.
    needs: &'static [Need],
    /// Flags that it alone has.
    flags: &'static [&'static str],
    run: fn(&Setup) -> Outcome<Report>,
}

const MEASUREMENTS: &[Measurement] = &[
    Measurement {
        name: "compute",
        about: "training speed beside PyTorch, one thread",
        needs: &[
            Paceline,
            Script("torch_ddp.py"),
            File("bench/peers/torch_resnet20.py"),
            File("bench/peers/torch_resnet50.py"),
            Dataset("fashion-mnist"),
            Python("torch, numpy, psutil"),
        ],
        flags: &[],
        run: compute::beside_torch,
    },
    Measurement {
        name: "threads",
        about: "two threads beside one",
        needs: &[Paceline, Cores(2)],
        flags: &[],
        run: compute::two_threads,
    },
    Measurement {
        name: "accuracy",
        about: "accuracies within a number of epochs",
        needs: &[Paceline, Dataset("mnist"), Dataset("fashion-mnist")],
        flags: &[],
        run: accuracy::measure,
    },
    Measurement {
        name: "allreduce",
        about: "all-reduce beside gloo, OpenMPI and the floor",
        needs: &[
            Paceline,
            Cores(2),
            Script("gloo_allreduce.py"),
            Script("mpi_allreduce.py"),
            Program("mpirun"),
            Header("mpicc", "mpi.h"),
            Python("torch, numpy, psutil"),
        ],
        flags: &[],
        run: exchange::allreduce,
    },
    Measurement {
        name: "exchange",
        about: "all-reduce of 2, 4 and 8 workers over shared memory and TCP beside gloo (16 cores): exchange [--rounds N]",
        needs: &[Paceline, Cores(8), Script("gloo_allreduce.py"), Python("torch, numpy, psutil")],
        flags: &["--rounds"],
        run: many_workers::exchange,
    },
    Measurement {
        name: "scaling",
        about: "2 to 14 workers beside the same ones without any exchange, and DDP's own efficiency (16 cores): scaling [--rounds N]",
        needs: &[Paceline, Cores(14), File(torch::LOOP), Python("torch, numpy")],
        flags: &["--rounds"],
        run: many_workers::scaling,
    },
    Measurement {
        name: "shared-memory",
        about: "all-reduce through shared memory beside OpenMPI's",
        needs: &[
            Paceline,
            Cores(2),
            Script("mpi_allreduce.py"),
            Program("mpirun"),
            Header("mpicc", "mpi.h"),
            Python("argparse"),
        ],
        flags: &[],
        run: exchange::shared_memory,
    },
    Measurement {
        name: "emulated-links",
        about: "bandwidth, latency and cost of emulated links",
        needs: &[Paceline, Cores(2)],
        flags: &[],
        run: network::honest,
    },
    Measurement {
        name: "kernel-links",
        about: "emulated links beside the kernel's shaping, between network namespaces (root)",
        needs: &[Paceline, Cores(2), Root, Program("ip"), Program("tc"), Namespaces],
        flags: &[],
        run: network::beside_the_kernel,
    },
    Measurement {
        name: "distributed",
        about: "training with processes beside DDP",
        needs: &[
            Paceline,
            Cores(2),
            Script("torch_ddp.py"),
            Dataset("fashion-mnist"),
            Python("torch, numpy, psutil"),
        ],
        flags: &[],
        run: exchange::training,
    },
    Measurement {
        name: "pipeline",
        about: "resnet20 in 2 stages (from 8 cores on 4, from 16 on 8 too) beside one worker and beside torch's Schedule1F1B over gloo: pipeline [--rounds N] [--stages S]",
        needs: &[
            Paceline,
            Cores(2),
            File(pipeline::LOOP),
            File("bench/peers/torch_resnet20.py"),
            Python("torch, numpy"),
        ],
        flags: &["--rounds", "--stages"],
        run: pipeline::measure,
    },
    Measurement {
        name: "pipeline-predicted",
        about: "step times in one and two stages, predicted with a calibration of the same session, beside the runs",
        needs: &[
            Paceline,
            Cores(2),
            File("bench/prediction/stages-lenet.toml"),
            File("bench/prediction/stages-resnet20.toml"),
            File("bench/prediction/stages-mlp.toml"),
            File("bench/prediction/stages-gru.toml"),
            File("bench/prediction/stages-transformer.toml"),
        ],
        flags: &[],
        run: staged::predicted,
    },
    Measurement {
        name: "pipeline-memory",
        about: "buffer bytes of ranks with stages: as `train --dry-run` says them, and as runs count them",
        needs: &[Paceline],
        flags: &[],
        run: staged::memory,
    },
    Measurement {
        name: "pipeline-cuts",
        about: "the automatic cut into two stages beside every other one: pipeline-cuts [--rounds N]",
        needs: &[Paceline, Cores(2)],
        flags: &["--rounds"],
        run: staged::cuts,
    },
    Measurement {
        name: "torch",
        about: "scripts as workers beside DDP over gloo; CPU seconds of a script that is attached",
        needs: &[Paceline, Cores(2), File(torch::LOOP), Python("torch, numpy")],
        flags: &[],
        run: torch::speed::measure,
    },
    Measurement {
        name: "torch-numbers",
        about: "parameters of scripts as workers: DDP's bit for bit, close to one worker's",
        needs: &[Paceline, File(torch::LOOP), Python("torch, numpy")],
        flags: &[],
        run: torch::numbers::measure,
    },
    Measurement {
        name: "torch-gpu",
        about: "scripts on one GPU: beside DDP over gloo and NCCL, the same parameters, more workers predicted: torch-gpu [--rounds N]",
        needs: &[
            Paceline,
            Cores(2),
            File(torch::gpu::LOOP),
            File("bench/peers/torch_resnet50.py"),
            Python("torch, numpy"),
            Cuda,
        ],
        flags: &["--rounds"],
        run: torch::gpu::measure,
    },
    Measurement {
        name: "torch-learning",
        about: "a script learns MNIST with every strategy and consistency model, or is refused",
        needs: &[Paceline, File(torch::learning::SCRIPT), Dataset("mnist"), Python("torch, numpy")],
        flags: &[],
        run: torch::learning::measure,
    },
    Measurement {
        name: "ecosystem",
        about: "scripts as people write them: lines changed, a study of each beside DDP, explained",
        needs: &[
            Paceline,
            Cores(2),
            File("examples/pytorch/mnist.py"),
            Python("torch, numpy, transformers, accelerate, lightning"),
        ],
        flags: &[],
        run: ecosystem::measure,
    },
    Measurement {
        name: "engines",
        about: "three processes on local clusters of Ray and Spark: the bits of one machine",
        needs: &[
            Paceline,
            Cores(2),
            File("examples/engines/on_ray.py"),
            Program("java"),
            Python("ray, pyspark"),
        ],
        flags: &[],
        run: engines::measure,
    },
    Measurement {
        name: "study-nodes",
        about: "a study of 60 runs over three local nodes, of which one is killed twice",
        needs: &[Paceline, Cores(2)],
        flags: &[],
        run: engines::killed,
    },
    Measurement {
        name: "study-nodes-speed",
        about: "the same study over three local nodes beside one node (16 cores)",
        needs: &[Paceline, Cores(16)],
        flags: &[],
        run: engines::beside_one_node,
    },
    Measurement {
        name: "peers",
        about: "PyTorch's DDP, TensorFlow's parameter server and, if it builds, Horovod in one study with ours: peers [--rounds N]",
        needs: &[Paceline, Cores(2), Python("torch, numpy, tensorflow")],
        flags: &["--rounds"],
        run: systems::measure,
    },
    Measurement {
        name: "averaging",
        about: "every averaging technique on digits, alike data and split by label",
        needs: &[Paceline],
        flags: &[],
        run: averaging::measure,
    },
    Measurement {
        name: "compare",
        about: "`paceline compare`: a copy never differs, a full comparison ends in time, another seed agrees (80 min)",
        needs: &[Paceline, Cores(2)],
        flags: &["--rounds", "--seed"],
        run: compare::measure,
    },
    Measurement {
        name: "stragglers",
        about: "consistency models with a worker that is 3 times slower",
        needs: &[Paceline, Dataset("fashion-mnist")],
        flags: &[],
        run: stragglers::measure,
    },
    Measurement {
        name: "compression",
        about: "codecs on MNIST: bytes and accuracy",
        needs: &[Paceline, Dataset("mnist")],
        flags: &[],
        run: compression::measure,
    },
    Measurement {
        name: "exits",
        about: "early exits: MNIST cut 3×2 for six devices, lost devices, bytes beside raw images",
        needs: &[Paceline, Cores(2), Dataset("mnist")],
        flags: &[],
        run: exits::measure,
    },
    Measurement {
        name: "simulator",
        about: "virtual time: messages per second, a thousand workers, memory",
        needs: &[Paceline],
        flags: &[],
        run: simulate::speed,
    },
    Measurement {
        name: "time-to-accuracy",
        about: "time to accuracy in virtual time beside real runs, with a straggler",
        needs: &[Paceline, Cores(2), Dataset("mnist")],
        flags: &[],
        run: simulate::learn,
    },
    Measurement {
        name: "prediction",
        about: "predictions of a study beside its runs",
        needs: &[
            Paceline,
            Cores(2),
            File("bench/prediction/mlp.toml"),
            File("bench/prediction/lenet.toml"),
            File("bench/prediction/gru.toml"),
            File("bench/prediction/network.toml"),
            File("bench/prediction/layers.toml"),
        ],
        flags: &[],
        run: prediction::errors,
    },
    Measurement {
        name: "prior",
        about: "real runs that bayes needs with the simulator as prior, and without",
        needs: &[Paceline, Cores(2), File("bench/prediction/mlp.toml"), File("bench/prediction/lenet.toml")],
        flags: &[],
        run: prediction::prior,
    },
    Measurement {
        name: "samplers",
        about: "bayes beside Optuna's TPE and GP on tables",
        needs: SAMPLERS,
        flags: &[],
        run: samplers::measure,
    },
    Measurement {
        name: "studies",
        about: "a study that is killed 20 times, and resumed",
        needs: &[Cargo],
        flags: &[],
        run: studies::killed,
    },
    Measurement {
        name: "studies-again",
        about: "repeats of every configuration in studies/, and pages that are those of the runs",
        needs: &[File("studies/README.md")],
        flags: &[],
        run: studies::again,
    },
    Measurement {
        name: "drift",
        about: "a busy core through half of a study: controls and corrected ranking",
        needs: &[Paceline, Cores(2), Program("taskset")],
        flags: &[],
        run: drift::measure,
    },
    Measurement {
        name: "first-run",
        about: "the first command five times: time, winner, noise",
        needs: &[Paceline, Cores(2)],
        flags: &[],
        run: first_run::measure,
    },
    Measurement {
        name: "project",
        about: "four workloads in one study file: time, and what the report's first page says",
        needs: &[Paceline, Cores(2)],
        flags: &[],
        run: project::measure,
    },
    Measurement {
        name: "datasets",
        about: "what is learnt on images, series and text",
        needs: &[Paceline, Dataset("cifar-10"), Dataset("japanese-vowels"), Dataset("tinyshakespeare")],
        flags: &[],
        run: datasets::learning,
    },
    Measurement {
        name: "streaming",
        about: "training on images from disk beside images in memory",
        needs: &[Paceline],
        flags: &[],
        run: datasets::streaming,
    },
    Measurement {
        name: "coverage",
        about: "intervals and findings of synthetic studies whose effects are known",
        needs: &[],
        flags: &[],
        run: coverage::measure,
    },
    Measurement {
        name: "explain",
        about: "causes planted in real and simulated runs, and none: what explain says",
        needs: &[Paceline, Cores(2)],
        flags: &[],
        run: explain::measure,
    },
    Measurement {
        name: "report",
        about: "the report of a study of 300 runs",
        needs: &[Paceline, Program("sh")],
        flags: &[],
        run: report::measure,
    },
    Measurement {
        name: "survive",
        about: "runs whose workers and servers are killed, and what surviving costs, beside torchrun and torchft: survive \
                [--only ps|ring|elasticity|backups|backups-28x28|bytes|peers] [--seed N] [--rounds N]",
        needs: &[Paceline, Cores(2)],
        flags: &["--only", "--seed", "--rounds"],
        run: survive::measure,
    },
    Measurement {
        name: "survive-predicted",
        about: "runs that lose ranks beside their prediction: survive-predicted [--seed N] [--rounds N]",
        needs: &[Paceline, Cores(2)],
        flags: &["--seed", "--rounds"],
        run: survive_predicted::measure,
    },
    Measurement {
        name: "chaos",
        about: "random faults under way, by seed: chaos [--seed N] [--rounds N]",
        needs: &[Cargo],
        flags: &["--seed", "--rounds"],
        run: |setup| chaos::measure(setup, &CHAOS),
    },
    Measurement {
        name: "attack",
        about: "signals, damaged and special files, hostile peers, bad links, by seed: attack [--seed N] [--rounds N]",
        needs: &[Cargo],
        flags: &["--seed", "--rounds"],
        run: |setup| chaos::measure(setup, &ATTACK),
    },
    Measurement {
        name: "pages",
        about: "how long pages of 5,000 runs take",
        needs: &[Paceline],
        flags: &[],
        run: pages::measure,
    },
    Measurement {
        name: "before",
        about: "this program beside an earlier one, in pairs: before --before PROGRAM",
        needs: &[Paceline, Cores(2), Before],
        flags: &["--before"],
        run: before::measure,
    },
    Measurement {
        name: "overhead",
        about: "what recording costs",
        needs: &[Paceline, Cores(2)],
        flags: &[],
        run: overhead::measure,
    },
    Measurement {
        name: "footprint",
        about: "memory and startup of a run",
        needs: &[Paceline, Dataset("mnist")],
        flags: &[],
        run: footprint::measure,
    },
    Measurement {
        name: build::NAME,
        about: "what building and testing a fresh clone takes: build [--only release|test|warm]",
        needs: &[Cargo, Program("git"), Program("strip"), Program("taskset"), Cores(2)],
        flags: &["--only"],
        run: build::measure,
    },
];

/// Optuna takes an hour: the runs that are kept are used.
const SAMPLERS: &[Need] = &[
    Paceline,
    Tables,
    File("bench/samplers/lynceus_rnn.json"),
    File("bench/samplers/trimtuner_rnn.json"),
    Or(&File("bench/samplers/lynceus_rnn.optuna.ndjson"), &Python("optuna, scipy, torch")),
    Or(&File("bench/samplers/trimtuner_rnn.optuna.ndjson"), &Python("optuna, scipy, torch")),
];

/// Runs the named measurements (all without a name) and fails if a line does not hold.
pub fn run(words: &[&str]) -> Outcome {
    let options = Options::parse(words, MEASUREMENTS)?;
    if options.list {
        MEASUREMENTS.iter().for_each(|m| println!("{}", listed(m)));
        return Ok(());
    }
    let setup = Setup::new(&options)?;
    let chosen = |m: &&Measurement| options.names.is_empty() || options.names.contains(&m.name);
    let chosen: Vec<&Measurement> = MEASUREMENTS.iter().filter(chosen).collect();
    if setup.installs && chosen.iter().any(|m| m.needs.contains(&Paceline)) {
        process::run(&mut cargo(&["build", "--release"]))?;
    }
    missed(measure(&chosen, &setup)?)
}

/// Runs measurements whose needs are met; how many lines do not hold.
fn measure(measurements: &[&Measurement], setup: &Setup) -> Outcome<usize> {
    let mut misses = 0;
    for measurement in measurements {
        println!("== {}: {}", measurement.name, measurement.about);
        match measurement.needs.iter().find_map(|need| need.missing(setup)) {
            Some(why) => unmeasured(measurement.name, setup, &why).iter().for_each(|line| println!("{line}")),
            None => misses += judge(measurement.name, setup, &(measurement.run)(setup)?)?,
        }
    }
    Ok(misses)
}

/// The lines of a measurement that cannot be made here, by the raw runs that are kept of it.
fn unmeasured(name: &str, setup: &Setup, why: &str) -> Vec<String> {
    let kept = fs::read_to_string(setup.out.join(format!("{name}.json"))).unwrap_or_default();
    let kept: Value = serde_json::from_str(&kept).unwrap_or_default();
    let claims = kept["lines"].as_array().into_iter().flatten().filter_map(|line| line["claim"].as_str());
    let mut claims: Vec<&str> = claims.collect();
    if claims.is_empty() {
        claims.push(name);
    }
    claims.iter().map(|claim| format!("-    {claim:<62} not measured here: {why}")).collect()
}

/// A measurement's line of `--list`.
fn listed(measurement: &Measurement) -> String {
    let needs: Vec<String> = measurement.needs.iter().map(Need::to_string).collect();
    let needs = if needs.is_empty() { "nothing".into() } else { needs.join(", ") };
    format!("{:<16} {}\n{:<16} needs {needs}", measurement.name, measurement.about, "")
}

fn missed(lines: usize) -> Outcome {
    if lines == 0 { Ok(()) } else { Err(format!("{lines} lines were not reached")) }
}

/// Shows and keeps what was measured; how many lines do not hold.
fn judge(name: &str, setup: &Setup, report: &Report) -> Outcome<usize> {
    for line in &report.lines {
        let (mark, sign) = (if line.holds() { "ok  " } else { "MISS" }, if line.at_most { "≤" } else { "≥" });
        println!("{mark} {:<62} {:>9.3} {sign} {}", line.claim, line.reached, line.wanted);
    }
    save(name, &setup.out, report)?;
    Ok(report.lines.iter().filter(|line| !line.holds()).count())
}

fn save(name: &str, folder: &Path, report: &Report) -> Outcome {
    let lines: Vec<Value> = report
        .lines
        .iter()
        .map(|l| json!({"claim": l.claim, "reached": l.reached, "wanted": l.wanted, "at_most": l.at_most, "holds": l.holds()}))
        .collect();
    let path = folder.join(format!("{name}.json"));
    let document = json!({"machine": process::machine(), "lines": lines, "runs": report.runs});
    let text = serde_json::to_string_pretty(&document).expect("plain data") + "\n";
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(&path, text))
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// A number out of a JSON document.
pub fn number(value: &Value, path: &str) -> Outcome<f64> {
    value.pointer(path).and_then(Value::as_f64).ok_or_else(|| format!("no number at {path} in {value}"))
}
