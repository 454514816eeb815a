//! `paceline bench`: measurements of this machine.

mod channels;
mod ps;
mod sweep;

use clap::Subcommand;
use paceline_bench::{Bench as Exchange, BenchProgram, Row, Task, compute};
use serde::Serialize;

use crate::failure::Failure;
use crate::flags::{names, registries};
use crate::output::{self, Show};

/// Flags of `paceline bench`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Training speed of one worker: whole steps, from the batch's bytes to the updated parameters
    Compute(ComputeArgs),
    /// Time of an all-reduce between workers, the slowest rank's
    Allreduce(ExchangeArgs),
    /// Time of a message between two ranks: the floor of what two ranks can exchange
    P2p(PointArgs),
    /// How soon samplers find the best row of a table: regret curves
    Samplers(super::explore::table::BenchArgs),
    /// Latency, bandwidth and CPU time of every transport, by size, buffer and payload
    Channels(channels::Args),
    /// Throughput of parameter servers, by workers, servers, transport, size, buffer and payload
    Ps(ps::Args),
    /// What recording costs: recorded and unrecorded runs in turn, by throughput and CPU time
    Overhead(super::overhead::Args),
}

#[derive(clap::Args, Debug)]
struct ExchangeArgs {
    /// Number of workers
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=256))]
    workers: u32,
    /// How they average
    #[arg(long, default_value = "ring-allreduce", value_parser = collectives())]
    strategy: String,
    #[command(flatten)]
    over: ChannelAxes,
}

#[derive(clap::Args, Debug)]
struct PointArgs {
    /// Both sides send at once
    #[arg(long)]
    duplex: bool,
    #[command(flatten)]
    over: ChannelAxes,
}

#[derive(clap::Args, Clone, Debug)]
struct ChannelAxes {
    /// What they talk over
    #[arg(long, default_value = "tcp", value_parser = names(registries().runs().transports.described()))]
    transport: String,
    /// Bytes of each connection's buffer, e.g. 256KiB (tcp and uds: the kernel's; shm: the ring; grpc: the window)
    #[arg(long, value_parser = paceline_resolve::byte_count)]
    buffer: Option<usize>,
    /// Emulate the network between them: BANDWIDTH,LATENCY, e.g. 1gbit,200us
    #[arg(long, value_parser = |s: &str| s.parse::<paceline_plan::NetworkLimits>())]
    network: Option<paceline_plan::NetworkLimits>,
    /// Lengths in bytes, multiples of 4
    #[arg(long, value_delimiter = ',', default_value = "4KiB,64KiB,1MiB,16MiB,64MiB", value_parser = length)]
    sizes: Vec<usize>,
    /// Seconds per length, roughly
    #[arg(long, default_value_t = 2.0, value_parser = seconds)]
    seconds: f64,
}

fn length(text: &str) -> Result<usize, String> {
    let bytes = paceline_resolve::byte_count(text)?;
    if bytes % 4 == 0 && bytes <= 1 << 30 {
        Ok(bytes / 4)
    } else {
        Err("a multiple of 4, at most 1GiB".into())
    }
}

fn collectives() -> clap::builder::PossibleValuesParser {
    let all = registries().runs().protocols.strategies.iter();
    names(all.filter(|s| s.path.is_some()).map(|s| (s.name, s.about)))
}

pub fn program() -> std::io::Result<BenchProgram<'static>> {
    Ok(BenchProgram { program: std::env::current_exe()?, word: "rank", registries: registries().runs() })
}

#[derive(Serialize)]
struct Exchanged {
    results: Vec<Row>,
}

/// `paceline bench allreduce` and `paceline bench p2p`.
fn exchange(what: &str, workers: usize, duplex: bool, over: &ChannelAxes, show: Show) -> Result<(), Failure> {
    let ChannelAxes { transport, buffer, network, sizes, seconds } = over.clone();
    let (what, task) = (what.into(), Task::Exchange);
    let bench =
        Exchange { what, task, transport, buffer, network, workers, duplex, touched: 0, sizes, seconds };
    let results = bench.run(&program()?)?;
    if show.json {
        return Ok(output::json(&Exchanged { results })?);
    }
    let mut text =
        format!("{:>12} {:>12} {:>12} {:>12} {:>12}\n", "bytes", "median µs", "p95 µs", "MB/s", "bus MB/s");
    for r in &results {
        text += &format!(
            "{:>12} {:>12.1} {:>12.1} {:>12.0} {:>12.0}\n",
            r.bytes,
            r.seconds_median * 1e6,
            r.seconds_p95 * 1e6,
            r.algbw_bytes_per_s / 1e6,
            r.busbw_bytes_per_s / 1e6
        );
    }
    Ok(output::text(&text)?)
}

#[derive(clap::Args, Debug)]
struct ComputeArgs {
    /// The model, on samples of its own shape
    #[arg(long, default_value = "lenet", value_parser = sweep::models())]
    model: String,
    /// Samples per step
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    batch: u32,
    /// Threads
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// Keep each thread on a core of its own
    #[arg(long)]
    pin: bool,
    /// Seconds of measurement
    #[arg(long, default_value_t = 3.0, value_parser = seconds)]
    seconds: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|s| *s > 0.0 && *s <= 3600.0);
    value.ok_or_else(|| "a number of seconds above 0, at most 3600, is needed".into())
}

/// `paceline bench`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    let args = match &args.what {
        What::Compute(args) => args,
        What::Allreduce(args) => {
            return exchange(&args.strategy, args.workers as usize, false, &args.over, show);
        }
        What::Samplers(args) => return super::explore::table::bench(args, show),
        What::Overhead(args) => return super::overhead::run(args, show),
        What::P2p(args) => return exchange("p2p", 2, args.duplex, &args.over, show),
        What::Channels(args) => return channels::run(args, show),
        What::Ps(args) => return ps::run(args, show),
    };
    let ComputeArgs { model, batch, threads, pin, seconds } = args;
    let model = sweep::model(model);
    let measured = compute::measure(model, *batch as usize, *threads as usize, *pin, *seconds)?;
    if show.json {
        return Ok(output::json(&measured)?);
    }
    Ok(output::text(&measured.text())?)
}
