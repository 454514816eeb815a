//! `paceline bench ps`: what parameter servers can take.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use paceline_bench::ps::{Sweep, syncs};

use super::sweep::{Common, Follow, distinct, draw, left_out, models, prepare};
use crate::failure::Failure;
use crate::flags::{names, registries};
use crate::output::Show;

/// Flags of `paceline bench ps`.
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Numbers of workers
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "N,…",
        default_value = "1,2,4",
        value_parser = clap::value_parser!(u32).range(1..=256)
    )]
    workers: Vec<u32>,
    /// Numbers of servers
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "N,…",
        default_value = "1,2",
        value_parser = clap::value_parser!(u32).range(1..=256)
    )]
    servers: Vec<u32>,
    /// Bytes of the model, multiples of 4 [default: the size of --model]
    #[arg(long, value_delimiter = ',', value_name = "BYTES,…", value_parser = paceline_bench::message_length)]
    sizes: Vec<usize>,
    /// The model: its size, if --sizes names none, and its tensors, which are the skewed sizes
    #[arg(long, default_value = "lenet", value_parser = models())]
    model: String,
    /// When a worker may go on, separated by commas (parameters at their defaults)
    #[arg(long, value_delimiter = ',', value_name = "NAME,…", default_value = "bsp,asp", value_parser = models_of_consistency())]
    sync: Vec<String>,
    /// Also draw bytes served and rounds by workers (first size, buffer, payload and consistency model)
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

const HELP: &str = "\
Workers that compute nothing push gradients and pull parameters as fast as they can, through
the strategy and the engine of training; servers sum and update as in training (SGD with
momentum). In each repeat, with new processes (threads over inproc):
  round       from a worker's first push to its last pull: median, 5th and 95th percentile
  ops/s       pushes and pulls of whole models that all servers serve per second
  messages/s  the same in messages: one per bucket, more where a bucket is over 512 KiB or lies
              on several servers
  served      bytes per second in and out of all servers
  CPU         cores that one server keeps busy, and CPU seconds of all per 10⁹ bytes; a rank
              that waits is busy for up to 0.3 ms before it sleeps, and that counts
  busy        part of a server's time that it did not wait
The payload is how a model is cut into buckets, as many as --model has tensors: all of one
size (uniform), of sizes drawn log-uniformly over a range of 1 to 64 (random), or one per
tensor (skewed). ± is half of the distance between the least and the greatest repeat, in
percent of the median. Points are measured in a random order, another one in each repeat.

Examples:
  paceline bench ps
  paceline bench ps --workers 1,2,4,8 --servers 1 --transport tcp,shm --model mlp
  paceline bench ps --sizes 1MiB,64MiB --sync bsp --payload uniform,skewed --json";

fn models_of_consistency() -> PossibleValuesParser {
    let protocols = &registries().runs().protocols;
    let syncs = syncs(protocols);
    names(protocols.consistencies.described().filter(|(name, _)| syncs.contains(name)))
}

/// `paceline bench ps`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    let Args { common, workers, servers, sizes, model, sync, plot } = args;
    let numbers = |values: &[u32]| distinct(values).into_iter().map(|n| n as usize).collect();
    let sweep = Sweep {
        rules: common.rules(model),
        workers: numbers(workers),
        servers: numbers(servers),
        sizes: distinct(sizes),
        syncs: distinct(sync),
    };
    prepare(plot.as_deref())?;
    let follow = Follow::new(show);
    let measured = sweep.run(&super::program()?, &mut |progress| follow.progress(progress));
    follow.finish();
    let measured = measured.map_err(|error| Failure::measurement(error, "ps"))?;
    left_out(show, &measured.left_out);
    draw(plot.as_deref(), &|| measured.chart(&measured.points[0]))?;
    show.print(&measured, || measured.text())
}
