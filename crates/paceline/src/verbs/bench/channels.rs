//! `paceline bench channels`: which transport is how fast.

use std::path::PathBuf;

use paceline_bench::channels::Sweep;

use super::sweep::{Common, Follow, distinct, draw, left_out, models, prepare};
use crate::failure::Failure;
use crate::output::Show;

/// Flags of `paceline bench channels`.
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Mean sizes of messages in bytes, multiples of 4
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "BYTES,…",
        default_value = "64,4KiB,64KiB,1MiB,16MiB",
        value_parser = paceline_bench::message_length
    )]
    sizes: Vec<usize>,
    /// Pairs of processes that exchange messages at the same time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=128))]
    pairs: u32,
    /// The model whose tensors are the skewed sizes
    #[arg(long, default_value = "lenet", value_parser = models())]
    model: String,
    /// Also draw latency and bandwidth by size (first buffer, first payload)
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

const HELP: &str = "\
What is measured, in each repeat with new processes (threads over inproc):
  latency    half of the time until a message has come back: median, 5th and 95th percentile
  bandwidth  bytes per second one way, until the receiver says that the last message has come
  CPU        seconds of sender and receiver per 10⁹ bytes sent one way; a rank that waits is
             busy for up to 0.3 ms before it sleeps, and that counts
Messages over 512 KiB travel in parts of 512 KiB, as in training. ± is half of the distance
between the least and the greatest repeat, in percent of the median. Points are measured in a
random order, another one in each repeat.

Examples:
  paceline bench channels
  paceline bench channels --transport tcp,shm --sizes 64,1MiB --plot channels.svg
  paceline bench channels --transport tcp --buffers default,64KiB,1MiB --payload uniform,random,skewed
  paceline bench channels --pairs 4 --model resnet20 --payload skewed --json > channels.json";

/// `paceline bench channels`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    let Args { common, sizes, pairs, model, plot } = args;
    let sweep = Sweep { rules: common.rules(model), sizes: distinct(sizes), pairs: *pairs as usize };
    prepare(plot.as_deref())?;
    let follow = Follow::new(show);
    let measured = sweep.run(&super::program()?, &mut |progress| follow.progress(progress));
    follow.finish();
    let measured = measured.map_err(|error| Failure::measurement(error, "channels"))?;
    left_out(show, &measured.left_out);
    draw(plot.as_deref(), &|| measured.chart(sweep.rules.over.buffers[0], sweep.rules.payloads[0].name))?;
    show.print(&measured, || measured.text())
}
