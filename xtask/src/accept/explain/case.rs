//! A run that is to be explained, and the same after a change.

use std::fs;
use std::path::Path;

use paceline_statistics::median;
use serde_json::Value;

use super::super::Setup;
use crate::process::{Outcome, last_json};

/// A dataset, a model, steps of a short real run, and its gradient in MB.
pub type Net = (&'static str, &'static str, usize, f64);

pub const MLP: Net = ("synthetic", "mlp", 60, 0.94);
pub const LENET: Net = ("synthetic", "lenet", 14, 6.65);
pub const CONV: Net = ("synthetic", "conv1d", 40, 0.34);
pub const GRU: Net = ("synthetic", "gru", 30, 0.25);
pub const LSTM: Net = ("letters", "lstm", 12, 0.55);
pub const DIGITS: Net = ("digits", "mlp", 60, 0.2);
pub const COLOUR: Net = ("synthetic-colour", "resnet20", 8, 1.09);

/// Paths whose workers go on together.
const PATHS: [&str; 4] = ["ring-allreduce", "tree", "halving-doubling", "ps"];

/// Alike hosts of a simulated run.
#[derive(Clone)]
pub struct Hosts {
    pub name: &'static str,
    pub count: usize,
    pub cores: usize,
    pub speed: f64,
}

impl Hosts {
    fn text(&self) -> String {
        let Self { name, count, cores, speed } = self;
        format!(
            "[[host]]\nname = \"{name}\"\ncount = {count}\ncores = {cores}\nspeed = {speed}\n\
             bandwidth = \"25gbit\"\nlatency = \"20us\"\n\n"
        )
    }
}

/// What was recorded of a run, and what was said of it.
pub struct Explained {
    pub result: Value,
    pub said: Value,
}

/// A run that is to be explained.
#[derive(Clone)]
pub struct Case {
    pub net: Net,
    pub simulated: bool,
    pub workers: usize,
    pub strategy: &'static str,
    pub servers: usize,
    pub batch: usize,
    pub steps: usize,
    pub seed: usize,
    pub traced: bool,
    /// What is planted, as flags and values.
    pub plant: Vec<[String; 2]>,
    /// Hosts of a simulated run.
    pub cluster: Vec<Hosts>,
}

impl Case {
    /// Number `i` of a cause: sizes go round with different periods, so that they meet in all combinations.
    pub fn new(i: usize, nets: &[Net]) -> Self {
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
        Self {
            net,
            simulated,
            workers,
            strategy,
            servers,
            batch,
            steps,
            seed: i + 1,
            // Two of the ten real runs are judged without single messages.
            traced: simulated || i % 8 != 6,
            plant: Vec::new(),
            cluster: Vec::new(),
        }
    }

    pub fn with(mut self, flag: &str, value: impl ToString) -> Self {
        self.plant.push([flag.to_owned(), value.to_string()]);
        self
    }

    pub fn words(&self) -> String {
        let origin = if self.simulated { "simulated" } else { "real" };
        let plant: Vec<String> = self.plant.iter().map(|pair| pair.join(" ")).collect();
        let hosts: Vec<String> = self
            .cluster
            .iter()
            .map(|h| format!("{} {} with {} cores at {}", h.count, h.name, h.cores, h.speed))
            .collect();
        format!(
            "{origin} {}/{} {} workers, {} servers, batch {}, {} {}",
            self.net.1,
            self.strategy,
            self.workers,
            self.servers,
            self.batch,
            plant.join(" "),
            hosts.join(", ")
        )
    }

    pub fn run(&self, setup: &Setup, store: &Path) -> Outcome<Explained> {
        let verb = if self.simulated { "simulate" } else { "train" };
        let mut command = setup.paceline(verb, self.net.0, self.net.1);
        command.args(["--workers", &self.workers.to_string(), "--batch", &self.batch.to_string()]);
        command.args(["--steps", &self.steps.to_string(), "--seed", &self.seed.to_string()]);
        command.args(["--lr", "0.01", "--eval-every", "1000000"]);
        if self.workers > 1 {
            command.args(["--strategy", self.strategy]);
        }
        if self.servers > 0 {
            command.args(["--servers", &self.servers.to_string()]);
        }
        if self.simulated {
            command.args(["--jitter", "on"]);
        }
        if self.traced {
            command.arg("--trace=100000");
        }
        if !self.cluster.is_empty() {
            let file = store.join("cluster.toml");
            let text: String = self.cluster.iter().map(Hosts::text).collect();
            fs::create_dir_all(store)
                .and_then(|()| fs::write(&file, text))
                .map_err(|error| format!("{}: {error}", file.display()))?;
            command.arg("--cluster").arg(file);
        }
        let result = last_json(command.args(self.plant.iter().flatten()).arg("--store").arg(store))?;
        let run = result["run"].as_str().unwrap_or_default().to_owned();
        let mut explain = setup.program();
        let said = last_json(explain.args(["explain", "--json", &run, "--store"]).arg(store))?;
        Ok(Explained { result, said })
    }

    /// The same without a flag.
    fn without(mut self, flag: &str) -> Self {
        self.plant.retain(|[known, _]| known != flag);
        self
    }

    fn value(&self, flag: &str) -> Option<&str> {
        self.plant.iter().find(|[known, _]| known == flag).map(|[_, value]| value.as_str())
    }

    /// The same on other links: times as much bandwidth, and as little latency.
    fn network(self, bandwidth: f64, latency: f64) -> Option<Self> {
        let scaled = |text: &str, by: f64| {
            let at = text.find(|c: char| c.is_ascii_alphabetic())?;
            Some(format!("{}{}", text[..at].parse::<f64>().ok()? * by, &text[at..]))
        };
        let (bits, seconds) = self.value("--network")?.split_once(',')?;
        let network = format!("{},{}", scaled(bits, bandwidth)?, scaled(seconds, 1.0 / latency)?);
        Some(self.without("--network").with("--network", network))
    }

    /// The case after a change that can be made here.
    pub fn after(&self, change: &str, cores: usize) -> Option<Self> {
        let mut new = self.clone();
        let alike = |mut case: Self| {
            case.cluster.iter_mut().for_each(|hosts| hosts.speed = 1.0);
            Some(case).filter(|case| !case.cluster.is_empty())
        };
        let to = |mut case: Self, strategy: &'static str, servers: usize| {
            (case.strategy, case.servers) = (strategy, servers);
            if servers == 0 { case.without("--sync").without("--placement") } else { case }
        };
        match change {
            "no-straggler" if self.value("--straggler").is_some() => Some(new.without("--straggler")),
            "no-straggler" | "faster-servers" | "no-slow-server" => alike(new),
            "bandwidth" => new.network(10.0, 1.0),
            "latency" => new.network(1.0, 10.0),
            "half" => Some(new.without("--compression").with("--compression", "fp16")),
            "no-codec" => Some(new.without("--compression")),
            "bucket" => Some(new.without("--bucket").with("--bucket", "4MiB")),
            "local" => {
                // Whole rounds, so that as many exchanges are counted as there are on average.
                new.steps = self.steps.max(64).next_multiple_of(8);
                Some(to(new, "local", 0))
            }
            "ring" => Some(to(new, "ring-allreduce", 0)),
            "fewer-hops" => {
                Some(to(new, if self.workers.is_power_of_two() { "halving-doubling" } else { "tree" }, 0))
            }
            "let-go" => Some(to(new, "ps", self.servers.max(1)).without("--sync").with("--sync", "asp")),
            "more-servers" if self.cluster.is_empty() => {
                new.servers *= 2;
                Some(new)
            }
            "larger-batch" => {
                new.batch *= 2;
                Some(new)
            }
            "fewer-workers" if !self.simulated => {
                (new.batch, new.workers) = (self.batch * self.workers / cores, cores);
                Some(new)
            }
            "own-cores" if self.simulated => {
                new.cluster.iter_mut().for_each(|hosts| hosts.cores = 64);
                Some(new)
            }
            "more-workers" if self.simulated && self.cluster.is_empty() => {
                (new.workers, new.batch) = (2 * self.workers, self.batch / 2);
                Some(new)
            }
            _ => None,
        }
    }

    /// How long the work of a step takes after a change, relative to now: the median of some runs, made in turn.
    pub fn ratio(&self, after: &Self, setup: &Setup, store: &Path) -> Outcome<f64> {
        let times = if self.simulated { 1 } else { TRIALS };
        let mut rates = [Vec::new(), Vec::new()];
        for _ in 0..times {
            for (case, rates) in [self, after].into_iter().zip(&mut rates) {
                rates.push(case.run(setup, store)?.said["samples_per_s"].as_f64().unwrap_or(f64::NAN));
            }
        }
        let [now, then] = rates.map(|rates| median(&rates));
        Ok(now / then)
    }
}

/// Runs of each side where an advice is tried in real runs.
const TRIALS: usize = 5;
