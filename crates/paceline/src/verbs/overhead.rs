//! `paceline bench overhead`: what recording costs.

use paceline_resolve::PlanSettings;
use paceline_study::{OverheadPair, OverheadRequest};

use crate::failure::Failure;
use crate::flags::registries;
use crate::output::{self, Show};

/// Flags of `paceline bench overhead`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Pairs of runs, one recorded and one not
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pairs: u32,
    /// Steps of each run
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    steps: u32,
    /// Workers
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: u32,
    /// Dataset
    #[arg(long, default_value = "synthetic")]
    data: String,
    /// Network
    #[arg(long, default_value = "mlp")]
    model: String,
}

/// `paceline bench overhead`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    let Args { pairs, steps, workers, data, model } = args;
    let (data, model) = (data.clone(), model.clone());
    let settings = PlanSettings::new(&registries().settings);
    let request = OverheadRequest { model, data, workers: *workers, steps: *steps, pairs: *pairs, settings };
    let measured = request.measure(&|i, pair: &OverheadPair| {
        if !show.quiet {
            let (loss, cpu) = (100.0 * pair.loss_fraction, 100.0 * pair.cpu_fraction);
            output::note(&format!("pair {:>3}: throughput {loss:>7.2}%, CPU time {cpu:>7.2}%", i + 1));
        }
    })?;
    show.print(&measured, || measured.text())
}
