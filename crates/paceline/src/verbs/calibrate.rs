//! `paceline calibrate`: what things cost on this machine, for `simulate` and `predict`.

use std::path::PathBuf;

use paceline_study::CalibrationRequest;
use paceline_virtual::calibrate;

use crate::failure::Failure;
use crate::flags::registries;
use crate::output::{self, Show};

/// Flags of `paceline calibrate`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// File to write; with --study, what is there stays, and what the study lacks is added
    #[arg(long, value_name = "FILE", default_value = "calibration.toml")]
    out: PathBuf,
    /// Measure the models, inputs, batches and threads of a study that the file lacks, in seconds each
    #[arg(long, value_name = "STUDY.toml")]
    study: Option<PathBuf>,
    /// List what would be measured for the study
    #[arg(long, requires = "study")]
    dry_run: bool,
    /// A few seconds instead of a minute: one model, wider intervals
    #[arg(long)]
    quick: bool,
}

/// `paceline calibrate`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    let Args { out, study, dry_run, quick } = args;
    let request = CalibrationRequest { out, study: study.as_deref(), dry_run: *dry_run, quick: *quick };
    let program = super::bench::program()?;
    let machine = |say: &mut dyn FnMut(&str)| calibrate::measure(&program, *quick, say);
    let summary = request.execute(registries(), &machine, &|line| show.note(line))?;
    if show.to_people() {
        return Ok(());
    }
    Ok(output::json(&summary)?)
}
