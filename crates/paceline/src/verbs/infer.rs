//! `paceline infer`: how long a trained network takes to answer, and how often it is right.

use std::path::PathBuf;

use paceline_resolve::resolve;
use paceline_train::InferRequest;

use crate::failure::Failure;
use crate::flags::{NetworkFlags, registries};
use crate::output::Show;

/// Flags of `paceline infer`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    network: NetworkFlags,
    /// Its weights: a PyTorch state_dict saved as safetensors, e.g. from `paceline export-weights` [default: untrained]
    #[arg(long, value_name = "FILE")]
    init: Option<PathBuf>,
    /// Samples that are answered together, one measurement for each number
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,8,64",
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch: Vec<u32>,
    /// Threads, one measurement for each number
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1",
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Vec<u32>,
    /// Seconds of each measurement
    #[arg(long, value_name = "S", default_value = "2", value_parser = seconds)]
    seconds: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|s| (0.01..=3600.0).contains(s));
    number.ok_or_else(|| "between 0.01 and 3600 seconds".into())
}

/// `paceline infer`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    let mut settings = args.network.0.clone();
    args.init.iter().for_each(|file| settings.put("init", file));
    let numbers = |numbers: &[u32]| numbers.iter().map(|n| *n as usize).collect();
    let (batches, threads) = (numbers(&args.batch), numbers(&args.threads));
    let (plan, folders) = (resolve(&settings)?, settings.data_folders());
    measure(InferRequest { plan, folders, batches, threads, seconds: args.seconds }, show)
}

/// Times the answers and prints what came out.
pub fn measure(request: InferRequest, show: Show) -> Result<(), Failure> {
    let measured = request.measure(registries().runs(), &|line| show.note(line))?;
    show.print(&measured, || measured.text())
}
