//! How a comparison fails.

use std::io;
use std::path::PathBuf;

use paceline_data::DataError;
use paceline_launch::{LaunchError, start_hint};
use paceline_plan::PlanError;
use paceline_record::store::write_hint;
use paceline_record::{FailureKind, JournalError};
use paceline_train::TrainError;
use paceline_virtual::VirtualError;

/// A comparison that cannot be made or gone on with.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum CompareFailure {
    /// A contender, or a run of it, cannot be.
    #[error("this comparison cannot be made: {0}")]
    Plan(#[from] PlanError),
    /// The dataset cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The model and the dataset do not fit.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// A run in virtual time failed.
    #[error(transparent)]
    Virtual(#[from] VirtualError),
    /// A plan cannot be launched.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error("{} is damaged: {why}", .path.display())]
    Damaged { path: PathBuf, why: String },
    #[error("a real run could not be started: {source}")]
    NotStarted { source: io::Error },
    #[error("interrupted")]
    Interrupted,
    /// The journal cannot be read or written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Something else cannot be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl CompareFailure {
    /// Which kind of failure it is.
    pub fn kind(&self) -> FailureKind {
        match self {
            Self::Plan(_) => FailureKind::Plan,
            Self::Train(error) => error.kind(),
            Self::Launch(error) => error.kind(),
            Self::Data(_) | Self::Damaged { .. } | Self::Journal(_) => FailureKind::Storage,
            Self::Interrupted => FailureKind::Interrupted,
            Self::Virtual(VirtualError::Plan(_)) => FailureKind::Plan,
            Self::Virtual(VirtualError::File { .. }) => FailureKind::Storage,
            Self::Virtual(_) | Self::NotStarted { .. } | Self::Io(_) => FailureKind::Other,
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::Plan(_) => {
                "nothing was started; docs/own-strategy.md says what a strategy file can say, `paceline \
                              strategy check FILE` what it does, `paceline compare --help` lists every flag"
                    .into()
            }
            Self::Data(error) => error.hint(),
            Self::Train(error) => error.hint(),
            Self::Launch(error) => error.hint(),
            Self::Damaged { .. } => "the comparison cannot go on; --seed makes another one".into(),
            Self::NotStarted { source } => start_hint(source),
            Self::Journal(JournalError { source, .. }) if source.kind() == io::ErrorKind::WouldBlock => {
                "wait for it, or interrupt it first".into()
            }
            Self::Journal(JournalError { source, .. }) => write_hint(source),
            Self::Virtual(VirtualError::Plan(_)) => "nothing was started".into(),
            Self::Virtual(VirtualError::File { .. }) => {
                "is the path right, and the file yours to read?".into()
            }
            Self::Interrupted => "every run so far is kept; the same command goes on".into(),
            _ => String::new(),
        }
    }
}
