//! `cargo xtask accept`: what needs time or a quiet machine. Every raw run is kept in `bench/accept/`;
//! speed is the ratio of medians of at least five runs that alternate with the peer's.

mod accuracy;
mod averaging;
mod chaos;
mod compression;
mod compute;
mod coverage;
mod datasets;
mod drift;
mod exchange;
mod explain;
mod footprint;
mod network;
mod overhead;
mod pages;
mod prediction;
mod report;
mod samplers;
mod simulate;
mod stragglers;
mod studies;

use std::fs;

pub use paceline_statistics::median;
use std::process::Command;

use chaos::{ATTACK, CHAOS, Campaign};
use serde_json::{Value, json};

use crate::process::{self, Outcome, cargo, root};

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

struct Measurement {
    name: &'static str,
    about: &'static str,
    run: fn() -> Outcome<Report>,
}

const MEASUREMENTS: &[Measurement] = &[
    Measurement {
        name: "compute",
        about: "training speed beside PyTorch, one thread",
        run: compute::beside_torch,
    },
    Measurement { name: "threads", about: "two threads beside one", run: compute::two_threads },
    Measurement { name: "accuracy", about: "accuracies within a number of epochs", run: accuracy::measure },
    Measurement {
        name: "allreduce",
        about: "all-reduce beside gloo, OpenMPI and the floor",
        run: exchange::allreduce,
    },
    Measurement {
        name: "shared-memory",
        about: "all-reduce through shared memory beside OpenMPI's",
        run: exchange::shared_memory,
    },
    Measurement {
        name: "emulated-links",
        about: "bandwidth, latency and cost of emulated links",
        run: network::honest,
    },
    Measurement {
        name: "kernel-links",
        about: "emulated links beside the kernel's shaping, between network namespaces (root)",
        run: network::beside_the_kernel,
    },
    Measurement { name: "distributed", about: "training with processes beside DDP", run: exchange::training },
    Measurement {
        name: "averaging",
        about: "every averaging technique on digits, alike data and split by label",
        run: averaging::measure,
    },
    Measurement {
        name: "stragglers",
        about: "consistency models with a worker that is 3 times slower",
        run: stragglers::measure,
    },
    Measurement {
        name: "compression",
        about: "codecs on MNIST: bytes and accuracy",
        run: compression::measure,
    },
    Measurement {
        name: "simulator",
        about: "virtual time: messages per second, a thousand workers, memory",
        run: simulate::speed,
    },
    Measurement {
        name: "time-to-accuracy",
        about: "time to accuracy in virtual time beside real runs, with a straggler",
        run: simulate::learn,
    },
    Measurement {
        name: "prediction",
        about: "predictions of a study beside its runs",
        run: prediction::errors,
    },
    Measurement {
        name: "prior",
        about: "real runs that bayes needs with the simulator as prior, and without",
        run: prediction::prior,
    },
    Measurement {
        name: "samplers",
        about: "bayes beside Optuna's TPE and GP on tables",
        run: samplers::measure,
    },
    Measurement {
        name: "studies",
        about: "a study that is killed 20 times, and resumed",
        run: studies::killed,
    },
    Measurement {
        name: "drift",
        about: "a busy core through half of a study: controls and corrected ranking",
        run: drift::measure,
    },
    Measurement {
        name: "datasets",
        about: "what is learnt on images, series and text",
        run: datasets::learning,
    },
    Measurement {
        name: "streaming",
        about: "training on images from disk beside images in memory",
        run: datasets::streaming,
    },
    Measurement {
        name: "coverage",
        about: "intervals and findings of synthetic studies whose effects are known",
        run: coverage::measure,
    },
    Measurement {
        name: "explain",
        about: "causes planted in real and simulated runs, and none: what explain says",
        run: explain::measure,
    },
    Measurement { name: "report", about: "the report of a study of 300 runs", run: report::measure },
    Measurement {
        name: "chaos",
        about: "random faults under way, by seed: chaos [--seed N] [--rounds N]",
        run: || chaos::measure(&CHAOS, chaos::SEED, CHAOS.rounds),
    },
    Measurement {
        name: "attack",
        about: "signals, damaged and special files, hostile peers, bad links, by seed: attack [--seed N] [--rounds N]",
        run: || chaos::measure(&ATTACK, chaos::SEED, ATTACK.rounds),
    },
    Measurement { name: "pages", about: "how long pages of 5,000 runs take", run: pages::measure },
    Measurement { name: "overhead", about: "what recording costs", run: overhead::measure },
    Measurement { name: "footprint", about: "memory and startup of a run", run: footprint::measure },
];

/// Runs the named measurements (all without a name) and fails if a line does not hold.
pub fn run(names: &[&str]) -> Outcome {
    if names == ["--list"] {
        MEASUREMENTS.iter().for_each(|m| println!("{:<12} {}", m.name, m.about));
        return Ok(());
    }
    if let Some((campaign, flags)) = campaign(names) {
        let (seed, rounds) = chaos::flags(campaign, flags)?;
        return judge(campaign.name, &chaos::measure(campaign, seed, rounds)?).and_then(missed);
    }
    if let Some(unknown) = names.iter().find(|name| MEASUREMENTS.iter().all(|m| m.name != **name)) {
        let known: Vec<_> = MEASUREMENTS.iter().map(|m| m.name).collect();
        return Err(format!("no measurement `{unknown}`; possible: {}", known.join(", ")));
    }
    process::run(&mut cargo(&["build", "--release"]))?;
    let mut misses = 0;
    for measurement in MEASUREMENTS.iter().filter(|m| names.is_empty() || names.contains(&m.name)) {
        println!("== {}: {}", measurement.name, measurement.about);
        misses += judge(measurement.name, &(measurement.run)()?)?;
    }
    missed(misses)
}

/// A campaign alone, which has flags of its own.
fn campaign<'a, 'b>(names: &'a [&'b str]) -> Option<(&'static Campaign, &'a [&'b str])> {
    let (first, flags) = names.split_first()?;
    let alone = flags.first().is_none_or(|flag| flag.starts_with("--"));
    let campaign = [&CHAOS, &ATTACK].into_iter().find(|campaign| campaign.name == *first)?;
    alone.then_some((campaign, flags))
}

fn missed(lines: usize) -> Outcome {
    if lines == 0 { Ok(()) } else { Err(format!("{lines} lines were not reached")) }
}

/// Shows and keeps what was measured; how many lines do not hold.
fn judge(name: &str, report: &Report) -> Outcome<usize> {
    for line in &report.lines {
        let (mark, sign) = (if line.holds() { "ok  " } else { "MISS" }, if line.at_most { "≤" } else { "≥" });
        println!("{mark} {:<62} {:>9.3} {sign} {}", line.claim, line.reached, line.wanted);
    }
    save(name, report)?;
    Ok(report.lines.iter().filter(|line| !line.holds()).count())
}

fn save(name: &str, report: &Report) -> Outcome {
    let lines: Vec<Value> = report
        .lines
        .iter()
        .map(|l| json!({"claim": l.claim, "reached": l.reached, "wanted": l.wanted, "at_most": l.at_most, "holds": l.holds()}))
        .collect();
    let folder = root().join("bench/accept");
    let path = folder.join(format!("{name}.json"));
    let document = json!({"machine": process::machine(), "lines": lines, "runs": report.runs});
    let text = serde_json::to_string_pretty(&document).expect("plain data") + "\n";
    fs::create_dir_all(&folder)
        .and_then(|()| fs::write(&path, text))
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// A number out of a JSON document.
pub fn number(value: &Value, path: &str) -> Outcome<f64> {
    value.pointer(path).and_then(Value::as_f64).ok_or_else(|| format!("no number at {path} in {value}"))
}

/// `paceline train`, with the datasets that lie beside the checkout.
pub fn train(data: &str, model: &str) -> Command {
    paceline("train", data, model)
}

/// A verb with the flags of `train`, with the same datasets.
pub fn paceline(verb: &str, data: &str, model: &str) -> Command {
    let mut command = Command::new(process::program());
    command.args([verb, "--quiet", "--data", data, "--model", model]);
    process::with_data(&mut command);
    command
}
