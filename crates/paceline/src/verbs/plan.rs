//! `paceline plan`: what a study would run, and how long it will take.

use std::path::PathBuf;

use paceline_analyze::sheet::{WIDTH, wrapped};
use paceline_plan::printable_lines;
use paceline_study::{StudyOutline, probe};

use super::store::Where;
use crate::failure::Failure;
use crate::flags::registries;
use crate::output::Show;

/// Flags of `paceline plan`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The study file
    #[arg(value_name = "STUDY.toml")]
    study: PathBuf,
    /// Do not run the control once to see how long a run takes
    #[arg(long)]
    no_probe: bool,
    #[command(flatten)]
    store: Where,
}

/// `paceline plan`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    let study = paceline_study::read(&args.study, registries())?;
    let mut seconds = None;
    if !args.no_probe {
        show.note("running the control once, to see how long a run takes (--no-probe leaves that out)");
        seconds = Some(probe(&study, registries(), &args.store.folder())?);
    }
    let outline = StudyOutline::new(&study, registries(), seconds)?;
    show.print(&outline.json(), || wrapped(&printable_lines(&outline.text()), WIDTH, 2))
}
