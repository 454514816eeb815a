//! What a run of `paceline train`, or the timing of its network's answers, is told by its study: one JSON document on
//! standard input.

use std::path::PathBuf;

use paceline_plan::Plan;
use paceline_record::Recording;
use serde::{Deserialize, Serialize};

/// The work of one child process of a study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialDocument {
    /// What is to be done.
    pub task: TrialTask,
    /// The run, or the network whose answers are timed.
    pub plan: Plan,
    /// Where datasets are looked for.
    pub folders: Vec<PathBuf>,
    /// Whether events are printed as JSON.
    pub json: bool,
    /// Whether nothing but results and errors is printed.
    pub quiet: bool,
}

/// What is done with the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrialTask {
    /// Train it, and record that.
    Train {
        /// The store.
        store: PathBuf,
        /// What is recorded.
        recording: Recording,
    },
    /// Time the answers of its network.
    Infer {
        /// Samples that are answered together.
        batch: usize,
        /// Threads.
        threads: usize,
        /// Seconds of the measurement.
        seconds: f64,
    },
}
