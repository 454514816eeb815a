//! `paceline bench`: measurements of this machine.

mod channels;
mod ps;
mod sweep;

use std::sync::Arc;
use std::time::Instant;

use clap::Subcommand;
use paceline_bench::{Bench as Exchange, Row, Task};
use paceline_nn::accel::{Level, peak_gflops};
use paceline_nn::models::{self, MODELS};
use paceline_nn::optim::{self, Settings, Step};
use paceline_nn::{Compute, Graph, Network, Pass, Targets};
use paceline_protocol::STRATEGIES;
use paceline_random::{Purpose, Stream};
use paceline_wire::TRANSPORTS;
use serde::Serialize;

use crate::failure::Failure;
use crate::flags::names;
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
    #[arg(long, default_value = "tcp", value_parser = names(TRANSPORTS.iter().map(|t| (t.name, t.about))))]
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
    names(STRATEGIES.iter().filter(|s| s.path.is_some()).map(|s| (s.name, s.about)))
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
    let results = bench.run(&std::env::current_exe()?, "rank")?;
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
    #[arg(long, default_value = "lenet", value_parser = names(MODELS.iter().map(|m| (m.name, m.about))))]
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

#[derive(Serialize)]
struct Measured<'a> {
    model: &'a str,
    batch: u32,
    threads: u32,
    samples_per_s: f64,
    /// Nominal: FLOPs of the model (as DESIGN counts them) per second, whatever the algorithm saves.
    gflops: f64,
    /// Of all threads together.
    peak_gflops: f64,
    fraction_of_peak: f64,
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
    let measured = compute(args)?;
    if show.json {
        return Ok(output::json(&measured)?);
    }
    Ok(output::text(&format!(
        "{} at batch {}, {} {}: {:.0} samples/s, {:.1} GFLOP/s = {:.0}% of the {:.1} GFLOP/s peak\n\
         (FLOPs are the model's nominal ones: an algorithm that multiplies less can pass 100%)\n",
        measured.model,
        measured.batch,
        measured.threads,
        if measured.threads == 1 { "thread" } else { "threads" },
        measured.samples_per_s,
        measured.gflops,
        100.0 * measured.fraction_of_peak,
        measured.peak_gflops,
    ))?)
}

/// Ten, or for a model of tokens as many as a text has characters.
fn classes(model: &models::Model) -> usize {
    if model.output == models::Output::PerPosition && model.native_input.c == 1 { 65 } else { 10 }
}

/// Bytes of made-up samples, about.
const SAMPLES: usize = 32 << 20;

/// Rounds that a measurement is the median of.
const ROUNDS: usize = 5;

fn compute(args: &ComputeArgs) -> Result<Measured<'_>, Failure> {
    let model = models::find(&args.model).expect("clap lets registered names pass only");
    let graph = Arc::new(model.build(model.native_input, classes(model))?);
    let mut bench = Bench::new(&graph, args.batch as usize, args.threads as usize, args.pin);
    let level = Level::detect();
    let mut peak = peak_gflops(level, 3);
    let warm = Instant::now();
    let mut steps = 0;
    while steps < 3 || (warm.elapsed().as_secs_f64() < args.seconds / 6.0 && steps < 10_000) {
        bench.step();
        steps += 1;
    }
    let each = warm.elapsed().as_secs_f64() / steps as f64;
    let per_round = (args.seconds / ROUNDS as f64 / each).ceil().max(1.0) as usize;
    let mut rates: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            (0..per_round).for_each(|_| bench.step());
            (per_round * args.batch as usize) as f64 / start.elapsed().as_secs_f64()
        })
        .collect();
    peak = peak.max(peak_gflops(level, 3)) * f64::from(args.threads);
    rates.sort_by(f64::total_cmp);
    let samples_per_s = rates[ROUNDS / 2];
    let gflops = samples_per_s * graph.training_flops() as f64 / 1e9;
    Ok(Measured {
        model: &args.model,
        batch: args.batch,
        threads: args.threads,
        samples_per_s,
        gflops,
        peak_gflops: peak,
        fraction_of_peak: gflops / peak,
    })
}

/// Whole training steps on made-up samples.
struct Bench {
    network: Network<f32>,
    params: Vec<f32>,
    grads: Vec<f32>,
    state: Vec<f32>,
    memory: Vec<f32>,
    samples: Vec<Vec<u8>>,
    classes: Vec<u16>,
    ids: Vec<u32>,
    step: u64,
}

impl Bench {
    fn new(graph: &Arc<Graph>, batch: usize, threads: usize, pin: bool) -> Self {
        let compute = Arc::new(Compute::new(threads, pin));
        let (mut params, mut state) = (vec![0.0; graph.param_count()], vec![0.0; graph.state_count()]);
        graph.init(1, &mut params, &mut state);
        let noise = Stream::new(1, Purpose::Bench);
        let size = graph.input().size();
        Self {
            network: Network::new(Arc::clone(graph), batch, compute),
            grads: vec![0.0; params.len()],
            memory: vec![0.0; params.len()],
            params,
            state,
            samples: (0..(SAMPLES / size).clamp(16, 2048) as u64)
                .map(|i| (0..size as u64).map(|j| noise.fork(i).at(j) as u8).collect())
                .collect(),
            classes: vec![0; batch * graph.output().w],
            ids: (0..batch as u32).collect(),
            step: 0,
        }
    }

    fn step(&mut self) {
        let n = self.ids.len();
        for i in 0..n {
            let id = (self.step as usize * n + i) * 7919 % self.samples.len();
            match self.network.graph().vocabulary() {
                None => self.network.input_bytes(i, &self.samples[id], &[1.0 / 127.5], &[-1.0]),
                Some(tokens) => {
                    let size = self.samples[id].len();
                    let input = &mut self.network.input(n)[i * size..(i + 1) * size];
                    for (token, &byte) in input.iter_mut().zip(&self.samples[id]) {
                        *token = (usize::from(byte) % tokens) as f32;
                    }
                }
            }
            let positions = self.classes.len() / n;
            self.classes[i * positions..(i + 1) * positions].fill((id % 10) as u16);
        }
        let pass = Pass { samples: n, training: true, seed: 1, step: self.step, ids: &self.ids };
        self.network.forward(&pass, &self.params, &mut self.state);
        self.network.loss(Targets::Classes(&self.classes), 1.0 / n as f64);
        self.network.backward(&pass, &self.params, &mut self.grads, &mut |_, _| {});
        let Self { network, params, grads, memory, .. } = self;
        let update = Step { params, grads, memory, lr: 0.01, step: self.step + 1 };
        let sgd = optim::find("sgd").expect("sgd is registered");
        sgd.apply(network.compute(), &Settings::default(), update);
        self.step += 1;
    }
}
