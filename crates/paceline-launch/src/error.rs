//! How a run fails.

use paceline_plan::PlanError;
use paceline_train::TrainError;

/// A run that did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The plan cannot be run.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A process died.
    #[error("{role} {rank} (process {pid}) was lost {when}: {cause}")]
    Lost {
        /// `worker` or `server`.
        role: &'static str,
        /// The rank.
        rank: usize,
        /// Its process.
        pid: u32,
        /// The last step it had told of.
        when: String,
        /// How it died.
        cause: String,
    },
    /// A rank gave up by itself.
    #[error("{role} {rank}: {message}")]
    Failed {
        /// `worker` or `server`.
        role: &'static str,
        /// The rank.
        rank: usize,
        /// What it said.
        message: String,
        /// Its hint.
        hint: String,
        /// The exit code that the failure calls for.
        code: u8,
    },
    /// A process could not be started or talked to.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A rank did not come up in time.
    #[error("{role} {rank} did not {what} within {seconds} s")]
    Late {
        /// `worker` or `server`.
        role: &'static str,
        /// The rank.
        rank: usize,
        /// What it should have done.
        what: &'static str,
        /// The deadline.
        seconds: u64,
    },
    /// Training failed in this process.
    #[error(transparent)]
    Train(#[from] TrainError),
}
