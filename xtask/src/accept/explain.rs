//! `paceline explain` on runs with a planted cause, and on runs without one: real and simulated ones in turn, of
//! different models, strategies and sizes of the plant. It sees what was recorded, never what was planted.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{Line, Report, Setup};
use crate::process::{Outcome, last_json};

/// Runs of each cause.
const RUNS: usize = 20;
/// Of which so many have to be named.
const NAMED: f64 = 19.0;
/// Runs without a plant that may be blamed on one.
const BLAMED: f64 = 1.0;

/// What may be said of a run in which nothing was planted: a server with much to do, or exchanging that takes long on
/// shared cores, is what there is to say.
const UNBLAMED: [&str; 3] = ["compute", "exchange", "server"];

/// A dataset, a model, steps of a short real run, and its gradient in MB.
type Net = (&'static str, &'static str, usize, f64);

const MLP: Net = ("synthetic", "mlp", 60, 0.94);
const LENET: Net = ("synthetic", "lenet", 14, 6.65);
const CONV: Net = ("synthetic", "conv1d", 40, 0.34);
const GRU: Net = ("synthetic", "gru", 30, 0.25);
const LSTM: Net = ("letters", "lstm", 12, 0.55);
const DIGITS: Net = ("digits", "mlp", 60, 0.2);
const COLOUR: Net = ("synthetic-colour", "resnet20", 8, 1.09);

/// Paths whose workers go on together.
const PATHS: [&str; 4] = ["ring-allreduce", "tree", "halving-doubling", "ps"];

/// A run that is to be explained.
struct Case {
    net: Net,
    simulated: bool,
    workers: usize,
    strategy: &'static str,
    servers: usize,
    batch: usize,
    steps: usize,
    /// What is planted, as flags.
    plant: Vec<String>,
    /// Hosts of a simulated run, as a cluster's file.
    cluster: Option<String>,
}

impl Case {
    /// Number `i` of a cause: sizes go round with different periods, so that they meet in all combinations.
    fn new(i: usize, nets: &[Net]) -> Self {
        let simulated = i % 2 == 1;
        let net = nets[i / 2 % nets.len()];
        let workers: usize =
            if simulated { [4, 2, 8, 3, 16, 6][i / 2 % 6] } else { [2, 3, 4, 2, 4][i / 2 % 5] };
        let mut strategy = PATHS[(i / 2 + i / 8) % PATHS.len()];
        if strategy == "halving-doubling" && !workers.is_power_of_two() {
            strategy = "ring-allreduce";
        }
        let servers = if strategy == "ps" { 1 + i / 4 % 2 } else { 0 };
        let steps = if simulated { net.2.min(24) } else { net.2 };
        let batch = [16, 32, 8][i / 2 % 3];
        Self { net, simulated, workers, strategy, servers, batch, steps, plant: Vec::new(), cluster: None }
    }

    fn with(mut self, flag: &str, value: impl ToString) -> Self {
        self.plant.extend([flag.to_owned(), value.to_string()]);
        self
    }

    fn run(&self, setup: &Setup, i: usize, store: &Path) -> Outcome<(Value, Value)> {
        let verb = if self.simulated { "simulate" } else { "train" };
        let mut command = setup.paceline(verb, self.net.0, self.net.1);
        command.args(["--workers", &self.workers.to_string(), "--batch", &self.batch.to_string()]);
        command.args(["--steps", &self.steps.to_string(), "--seed", &(i + 1).to_string()]);
        command.args(["--strategy", self.strategy, "--lr", "0.01", "--eval-every", "1000000"]);
        if self.servers > 0 {
            command.args(["--servers", &self.servers.to_string()]);
        }
        if self.simulated {
            command.args(["--jitter", "on"]);
        }
        // Two of the ten real runs are judged without single messages.
        if self.simulated || i % 8 != 6 {
            command.arg("--trace=100000");
        }
        if let Some(cluster) = &self.cluster {
            let file = store.join(format!("cluster-{i}.toml"));
            fs::create_dir_all(store)
                .and_then(|()| fs::write(&file, cluster))
                .map_err(|error| format!("{}: {error}", file.display()))?;
            command.arg("--cluster").arg(file);
        }
        let result = last_json(command.args(&self.plant).arg("--store").arg(store))?;
        let run = result["run"].as_str().unwrap_or_default().to_owned();
        let mut explain = setup.program();
        let said = last_json(explain.args(["explain", "--json", &run, "--store"]).arg(store))?;
        Ok((result, said))
    }
}

type Plant = fn(usize) -> Case;

/// The causes by the names that `explain` gives them, and how they are planted.
const PLANTED: [(&str, Plant); 5] = [
    ("straggler", |i| {
        let mut case = Case::new(i, &[MLP, CONV, LENET, GRU, LSTM]);
        case.batch = if case.net.1 == "mlp" { 128 } else { 16 };
        let (rank, factor) = (i % case.workers, [2.0, 3.0, 2.5, 5.0, 4.0][i / 2 % 5]);
        let case = if case.strategy == "ps" && i % 3 == 0 { case.with("--sync", "ssp") } else { case };
        case.with("--straggler", format!("rank={rank},factor={factor}"))
    }),
    ("server", |i| {
        // Real ones: many workers with little to compute; simulated ones: a server on a slow machine.
        let mut case = Case::new(i, &[LENET, MLP]);
        (case.strategy, case.servers) = ("ps", 1);
        if case.simulated {
            let slow = [0.02, 0.01, 0.005][i / 2 % 3];
            let fast = case.workers;
            case.cluster = Some(format!(
                "[[host]]\nname = \"fast\"\ncount = {fast}\ncores = 8\nbandwidth = \"25gbit\"\nlatency = \"20us\"\n\n\
                 [[host]]\nname = \"slow\"\ncores = 8\nspeed = {slow}\nbandwidth = \"25gbit\"\nlatency = \"20us\"\n"
            ));
            return case.with("--placement", "dedicated");
        }
        (case.workers, case.batch) = ([4, 6, 5][i / 2 % 3], [1, 2, 4][i / 2 % 3]);
        case.with("--optimizer", ["sgd", "adam"][i / 4 % 2])
    }),
    ("bandwidth", |i| {
        let mut case = Case::new(i, &[MLP, LENET, CONV, LSTM, GRU]);
        // What makes the bytes of a step take 60 to 200 ms.
        let mbit = (case.net.3 * 8.0 / [0.06, 0.1, 0.2][i / 2 % 3]).round();
        case.steps = 10;
        case.with("--network", format!("{mbit}mbit,{}us", [20, 100, 50][i % 3]))
    }),
    ("latency", |i| {
        let mut case = Case::new(i, &[MLP, GRU, DIGITS, CONV, LSTM]);
        case.steps = 14;
        case.batch = 8;
        case.with(
            "--network",
            format!("{},{}ms", ["10gbit", "25gbit"][i / 2 % 2], [10, 20, 40, 8][i / 2 % 4]),
        )
    }),
    ("small-messages", |i| {
        let mut case = Case::new(i, &[MLP, LENET, GRU, CONV]);
        let bytes = case.net.3 * 1e6 / [1500.0, 800.0, 2500.0][i / 2 % 3];
        (case.batch, case.steps) = (8, case.steps.min(20));
        case.with("--bucket", bytes.round())
    }),
];

/// Runs in which nothing is planted.
fn healthy(i: usize) -> Case {
    let mut case = Case::new(i, &[MLP, COLOUR, CONV, LENET, GRU, LSTM]);
    case.batch = [64, 32, 16][i / 2 % 3];
    if case.simulated && i % 4 == 1 { case.with("--network", "25gbit,20us") } else { case }
}

fn folder(setup: &Setup, name: &str) -> Outcome<PathBuf> {
    let store = setup.work("explain").join(name);
    if store.is_dir() {
        fs::remove_dir_all(&store).map_err(|error| format!("{}: {error}", store.display()))?;
    }
    Ok(store)
}

/// Plants every cause, and nothing; `PACELINE_ACCEPT_CAUSE` chooses one (or `healthy`).
pub fn measure(setup: &Setup) -> Outcome<Report> {
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    let only = std::env::var("PACELINE_ACCEPT_CAUSE").ok();
    let wanted = |cause: &str| only.as_deref().is_none_or(|only| only == cause);
    for (cause, plant) in PLANTED.into_iter().filter(|(cause, _)| wanted(cause)) {
        let said = causes(setup, cause, plant, &mut report)?;
        let named = said.get(cause).copied().unwrap_or(0);
        let claim = format!("{cause} planted: named, of {RUNS}");
        report.lines.push(Line { claim, reached: named as f64, wanted: NAMED, at_most: false });
    }
    if wanted("healthy") {
        let said = causes(setup, "healthy", healthy, &mut report)?;
        let blamed: usize = said
            .iter()
            .filter(|(cause, _)| !UNBLAMED.contains(&cause.as_str()))
            .map(|(_, count)| count)
            .sum();
        let claim = format!("nothing planted: blamed on a straggler, links or messages, of {RUNS}");
        report.lines.push(Line { claim, reached: blamed as f64, wanted: BLAMED, at_most: true });
    }
    Ok(report)
}

/// Makes and explains the runs of a cause; how often each cause was named.
fn causes(
    setup: &Setup,
    planted: &str,
    plant: Plant,
    report: &mut Report,
) -> Outcome<BTreeMap<String, usize>> {
    let store = folder(setup, planted)?;
    let mut all = BTreeMap::new();
    for i in 0..RUNS {
        let case = plant(i);
        let (result, said) = case.run(setup, i, &store)?;
        let verdict = &said["verdict"];
        let cause = verdict["cause"].as_str().unwrap_or("none").to_owned();
        let origin = if case.simulated { "simulated" } else { "real" };
        let what = format!(
            "{origin} {}/{} {} workers, {} servers, batch {}, {}",
            case.net.1,
            case.strategy,
            case.workers,
            case.servers,
            case.batch,
            case.plant.join(" ")
        );
        if cause != planted && !(planted == "healthy" && UNBLAMED.contains(&cause.as_str())) {
            println!("     {planted}: {cause} ({}) for {what}", verdict["share"]);
        }
        *all.entry(cause).or_insert(0) += 1;
        let (step, rate) = (&said["step_s"], &result["samples_per_s"]);
        report.runs.push(json!({
            "planted": planted, "run": what, "cluster": case.cluster, "step_s": step, "samples_per_s": rate,
            "verdict": verdict, "path": said["path"], "wires": said["wires"], "alone": said["alone"],
        }));
    }
    println!("     {planted}: {all:?}");
    Ok(all)
}
