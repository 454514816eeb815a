//! `paceline explore`: a study of real runs, or of a table of runs made by others.

pub mod table;

use std::path::PathBuf;

use crate::failure::Failure;
use crate::output::Show;

/// Flags of `paceline explore`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A table as the workload: comma-separated values with a header, also gzipped
    #[arg(long, value_name = "FILE")]
    table: PathBuf,
    /// How points are chosen: grid, fractional, random, lhs, sobol or bayes
    #[arg(long, default_value = "bayes")]
    sampler: String,
    #[command(flatten)]
    asked: table::Asked,
}

/// `paceline explore`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    table::explore(&args.table, &args.sampler, &args.asked, show)
}
