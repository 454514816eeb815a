//! What `bench channels` and `bench ps` have in common.

use std::path::Path;

use clap::builder::PossibleValuesParser;
use paceline_analyze::chart::Chart;
use paceline_bench::payload::{self, PAYLOADS};
use paceline_bench::{ChannelAxes, Progress, SweepRules};
use paceline_nn::models::Model;

use crate::failure::Failure;
use crate::flags::{names, registries};
use crate::output::{self, Bar, Show};

/// Flags of every measurement of many points.
#[derive(clap::Args, Clone, Debug)]
pub struct Common {
    /// What the ranks talk over, separated by commas [default: all there are]
    #[arg(long, value_delimiter = ',', value_name = "NAME,…", value_parser = transports())]
    transport: Vec<String>,
    /// Bytes of each connection's buffer, e.g. default,64KiB,1MiB; `default` leaves them to the transport
    #[arg(long, value_delimiter = ',', value_name = "BYTES,…", default_value = "default", value_parser = buffer)]
    buffers: Vec<Buffer>,
    /// How the sizes of messages are distributed, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "NAME,…", default_value = "uniform", value_parser = payloads())]
    payload: Vec<String>,
    /// Repeats of each point, each with processes of its own
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
    /// Seconds per repeat, roughly; at least one round of sizes is always measured
    #[arg(long, default_value_t = 0.4, value_parser = paceline_bench::measuring_seconds)]
    seconds: f64,
    /// Seed of the order of points and of random sizes
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// A buffer's size as it was asked for.
#[derive(Clone, Copy, Debug)]
struct Buffer(Option<usize>);

fn buffer(text: &str) -> Result<Buffer, String> {
    match text {
        "default" => Ok(Buffer(None)),
        text => paceline_resolve::byte_count(text)
            .map(|bytes| Buffer(Some(bytes)))
            .map_err(|e| format!("`default`, or {e}")),
    }
}

fn transports() -> PossibleValuesParser {
    names(registries().runs().transports.described())
}

fn payloads() -> PossibleValuesParser {
    names(PAYLOADS.iter().map(|payload| (payload.name, payload.about)))
}

pub fn models() -> PossibleValuesParser {
    names(registries().runs().models.described())
}

pub fn model(name: &str) -> &'static Model {
    registries().runs().models.find(name).expect("clap lets registered names pass only")
}

impl Common {
    /// What the sweep is told; `model` gives the skewed sizes.
    pub fn rules(&self, model: &str) -> SweepRules {
        let buffers: Vec<_> = self.buffers.iter().map(|buffer| buffer.0).collect();
        SweepRules {
            over: ChannelAxes { transports: distinct(&self.transport), buffers: distinct(&buffers) },
            payloads: distinct(&self.payload).iter().filter_map(|name| payload::find(name)).collect(),
            model: self::model(model),
            repeats: self.repeats as usize,
            seconds: self.seconds,
            seed: self.seed,
        }
    }
}

/// Values without repetition, in order.
pub fn distinct<T: PartialEq + Clone>(values: &[T]) -> Vec<T> {
    paceline_analyze::distinct(values.iter().cloned())
}

/// A line on a terminal that says how far a measurement has come, and how long the rest will take.
pub struct Follow(Bar);

impl Follow {
    pub fn new(show: Show) -> Self {
        Self(Bar::new(show, "{bar:30} {percent:>3}%  {pos}/{len}  {msg}  {elapsed}, {eta} left"))
    }

    pub fn progress(&self, progress: Progress<'_>) {
        self.0.length(progress.total as u64);
        self.0.position(progress.done as u64);
        self.0.message(progress.next);
    }

    pub fn finish(&self) {
        self.0.clear();
    }
}

/// Says what could not be measured.
pub fn left_out(show: Show, reasons: &[String]) {
    if !show.quiet {
        reasons.iter().for_each(|reason| output::note(&format!("left out: {reason}")));
    }
}

/// Where a drawing is to go: that it cannot be written is better known before than after.
pub fn prepare(plot: Option<&Path>) -> Result<(), Failure> {
    plot.map_or(Ok(()), |path| std::fs::write(path, "").map_err(|error| Failure::file(path, &error)))
}

pub fn draw(plot: Option<&Path>, chart: &dyn Fn() -> Chart) -> Result<(), Failure> {
    let write = |path| std::fs::write(path, chart().svg()).map_err(|error| Failure::file(path, &error));
    plot.map_or(Ok(()), write)
}
