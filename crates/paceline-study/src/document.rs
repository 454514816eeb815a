//! What a run of `paceline train`, or the timing of its network's answers, is told by its study: one JSON document on
//! standard input.

use std::io;
use std::path::PathBuf;

use paceline_plan::Plan;
use paceline_record::{Recording, RunLabels};
use paceline_resolve::PlanSettings;
use serde::{Deserialize, Serialize};

/// The hidden word that makes this program a run of a study.
const TRIAL: &str = "trial";

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
    /// The study that it belongs to, and its workload.
    #[serde(default)]
    pub labels: RunLabels,
}

impl TrialDocument {
    /// A document for a child whose output programs read.
    pub fn new(task: TrialTask, plan: Plan, settings: &PlanSettings) -> Self {
        Self {
            task,
            plan,
            folders: settings.data_folders().0,
            json: true,
            quiet: true,
            labels: RunLabels::default(),
        }
    }

    /// The same, of a study.
    pub fn labelled(self, labels: RunLabels) -> Self {
        Self { labels, ..self }
    }

    /// This program as the child that reads it: its words.
    pub fn words() -> io::Result<[String; 2]> {
        Ok([std::env::current_exe()?.to_string_lossy().into_owned(), TRIAL.into()])
    }

    /// The document as the child reads it.
    pub fn text(&self) -> io::Result<String> {
        Ok(serde_json::to_string(self)?)
    }
}

/// What is done with the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub enum TrialTask {
    Train {
        store: PathBuf,
        /// What is recorded, if anything is.
        recording: Option<Recording>,
    },
    /// Time the answers of its network.
    Infer {
        /// Samples that are answered together.
        batch: usize,
        threads: usize,
        seconds: f64,
    },
}
