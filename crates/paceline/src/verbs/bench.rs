//! `paceline bench`: measurements of this machine.

mod channels;
mod ps;
mod sweep;

use clap::Subcommand;
use paceline_bench::{Bench as Exchange, BenchProgram, ExchangeBreakdown, Row};
use paceline_bench::{compute, measuring_seconds, message_length, table};
use paceline_protocol::AUTO;
use paceline_resolve::{AUTO_TRANSPORT, auto_transport};
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
    #[arg(long, default_value = AUTO, value_parser = collectives())]
    strategy: String,
    /// Where its time goes, beside what this machine copies and adds with as many processes at once
    #[arg(long)]
    explain: bool,
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
    #[arg(long, default_value = AUTO_TRANSPORT, value_parser = transports())]
    transport: String,
    /// Bytes of each connection's buffer, e.g. 256KiB (tcp and uds: the kernel's; shm: the ring; grpc: the window)
    #[arg(long, value_parser = paceline_resolve::byte_count)]
    buffer: Option<usize>,
    /// Emulate the network between them: BANDWIDTH,LATENCY, e.g. 1gbit,200us
    #[arg(long, value_parser = |s: &str| s.parse::<paceline_plan::NetworkLimits>())]
    network: Option<paceline_plan::NetworkLimits>,
    /// Lengths in bytes, multiples of 4
    #[arg(long, value_delimiter = ',', default_value = "4KiB,64KiB,1MiB,16MiB,64MiB", value_parser = message_length)]
    sizes: Vec<usize>,
    /// Seconds per length, roughly
    #[arg(long, default_value_t = 2.0, value_parser = measuring_seconds)]
    seconds: f64,
}

fn transports() -> clap::builder::PossibleValuesParser {
    let all = registries().runs().transports.described();
    names(all.chain([(AUTO_TRANSPORT, "shm: all ranks are on this machine")]))
}

fn collectives() -> clap::builder::PossibleValuesParser {
    let all = registries().runs().protocols.strategies.iter();
    names(all.filter(|s| s.path.is_some()).map(|s| (s.name, s.about)))
}

pub fn program() -> std::io::Result<BenchProgram<'static>> {
    Ok(BenchProgram { program: std::env::current_exe()?, word: "rank", registries: registries().runs() })
}

#[derive(Serialize)]
struct Exchanged<'a> {
    results: &'a [Row],
}

impl ChannelAxes {
    /// The measurement of a strategy, or of `p2p`.
    fn bench(&self, what: &str, workers: usize, duplex: bool) -> Exchange {
        let Self { mut transport, buffer, network, sizes, seconds } = self.clone();
        if transport == AUTO_TRANSPORT {
            transport = auto_transport(false).into();
        }
        let what = what.into();
        Exchange { what, transport, buffer, network, workers, duplex, sizes, seconds, ..Exchange::default() }
    }
}

/// `paceline bench allreduce` and `paceline bench p2p`.
fn exchange(bench: &Exchange, explain: bool, show: Show) -> Result<(), Failure> {
    if explain {
        let found = ExchangeBreakdown::measure(bench, &program()?)?;
        return show.print(&found, || found.text());
    }
    let results = bench.run(&program()?)?;
    show.print(&Exchanged { results: &results }, || table(&results))
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
    #[arg(long, default_value_t = 3.0, value_parser = measuring_seconds)]
    seconds: f64,
}

/// `paceline bench`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    let args = match &args.what {
        What::Compute(args) => args,
        What::Allreduce(args) => {
            let bench = args.over.bench(&args.strategy, args.workers as usize, false);
            return exchange(&bench, args.explain, show);
        }
        What::Samplers(args) => return super::explore::table::bench(args, show),
        What::Overhead(args) => return super::overhead::run(args, show),
        What::P2p(args) => return exchange(&args.over.bench("p2p", 2, args.duplex), false, show),
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
