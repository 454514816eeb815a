//! How a run in virtual time fails.

use std::path::{Path, PathBuf};

use paceline_launch::LaunchError;
use paceline_plan::PlanError;
use paceline_train::TrainError;
use serde::de::DeserializeOwned;

/// A run in virtual time, or a calibration, that did not come to its end.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum VirtualError {
    /// The plan cannot be run, nor a cluster's or a calibration's file taken as it is.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    /// What a machine costs cannot be added to what another one does.
    #[error("{} was measured on another machine: {theirs}; this is {own}", path.display())]
    OtherMachine { path: PathBuf, theirs: String, own: String },
    /// A script could not be measured.
    #[error("{file} could not be measured: {problem}")]
    Script { file: String, problem: String },
    /// Training failed.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The run, or a measurement, could not be started or finished.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// Ranks wait for each other for ever: a fault of the strategy.
    #[error("after {steps} steps these ranks wait for ever: {ranks:?}")]
    Stuck { ranks: Vec<usize>, steps: usize },
    /// Members were lost that the run cannot do without.
    #[error("at {at_s:.3} s of virtual time, after {step} steps: {why}")]
    Members { at_s: f64, step: u64, why: String, hint: String },
}

/// Reads a file that a flag names.
pub(crate) fn read<T: DeserializeOwned>(flag: &str, path: &Path) -> Result<T, VirtualError> {
    let text = paceline_files::read_to_string(path)
        .map_err(|source| VirtualError::File { path: path.to_owned(), source })?;
    toml::from_str(&text).map_err(|error| refuse(flag, path, error.to_string().trim_end()).into())
}

/// A file that cannot be taken as it is.
pub(crate) fn refuse(flag: &str, path: &Path, problem: impl Into<String>) -> PlanError {
    PlanError { flag: flag.into(), value: path.display().to_string(), problem: problem.into() }
}
