//! How a run fails: what crosses processes, and decides exit codes and what a study makes of a run.

use serde::{Deserialize, Serialize};

/// A class of failures, with one exit code each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureKind {
    /// None of the others.
    Other,
    /// The loss is no longer a number.
    Diverged,
    /// The command line says too little or too much.
    Usage,
    /// The plan, the study or a file that describes something cannot be used.
    Plan,
    /// A process or a machine was lost.
    Lost,
    /// A file, the store or a dataset could not be read or written.
    Storage,
    /// Somebody did not prove the key, or broke the protocol.
    Protocol,
    /// A stop was requested.
    Interrupted,
}

impl FailureKind {
    /// The exit code.
    pub fn code(self) -> u8 {
        match self {
            Self::Other | Self::Diverged => 1,
            Self::Usage => 2,
            Self::Plan => 3,
            Self::Lost => 4,
            Self::Storage => 5,
            Self::Protocol => 6,
            Self::Interrupted => 130,
        }
    }
}
