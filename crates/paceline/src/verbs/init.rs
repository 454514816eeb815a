//! `paceline init`: a commented study file to start from.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

use paceline_study::StudyFailure;

use crate::failure::Failure;
use crate::output::{self, Show};

/// Flags of `paceline init`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The file to write; an existing one is never overwritten
    #[arg(value_name = "STUDY.toml", default_value = "study.toml")]
    file: PathBuf,
    /// A study of another program instead of `paceline train`
    #[arg(long)]
    command: bool,
    /// A study of several workloads: does the best configuration of one carry over to another?
    #[arg(long, conflicts_with = "command")]
    workloads: bool,
}

/// `paceline init`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    let text = match args {
        Args { command: true, .. } => COMMAND,
        Args { workloads: true, .. } => WORKLOADS,
        _ => TRAIN,
    };
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&args.file)
        .and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|source| StudyFailure::File { path: args.file.clone(), source })?;
    if !show.quiet {
        let file = args.file.display();
        output::note(&format!(
            "wrote {file}; next: `paceline check {file}`, `paceline plan {file}`, `paceline explore {file}`"
        ));
    }
    Ok(())
}

/// A study of `paceline train`.
pub const TRAIN: &str = include_str!("init/train.toml");
/// A study of several workloads.
pub const WORKLOADS: &str = include_str!("init/workloads.toml");
/// A study of another program.
pub const COMMAND: &str = include_str!("init/command.toml");
