//! What a run of `paceline train`, or the timing of its network's answers, is told by its study: one JSON document on
//! standard input.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use paceline_plan::Plan;
use paceline_record::{Recording, RunLabels};
use paceline_resolve::PlanSettings;
use paceline_wire::Key;
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
    /// Which node of a study makes it; none on the machine that leads the study.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<usize>,
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
            node: None,
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

/// Where the hosts of a run meet.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialMeeting {
    /// The address; port 0 for any that is free.
    pub address: SocketAddr,
    /// The key that lets them in.
    pub key: [u8; 32],
}

/// Documents may be shown; the key may not.
impl fmt::Debug for TrialMeeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TrialMeeting({})", self.address)
    }
}

impl TrialDocument {
    /// The same run with a place where its other hosts join it.
    pub(crate) fn led_at(&self, address: IpAddr, key: &Key) -> Self {
        let mut document = self.clone();
        if let TrialTask::Train { meeting, .. } = &mut document.task {
            *meeting = Some(TrialMeeting { address: SocketAddr::new(address, 0), key: *key.as_bytes() });
        }
        document
    }

    /// Another host's part of it, once it is known where they meet.
    pub(crate) fn joined(&self, address: SocketAddr, host: usize, hosts: usize) -> Option<Self> {
        let TrialTask::Train { meeting: Some(meeting), .. } = &self.task else { return None };
        let meeting = TrialMeeting { address, ..meeting.clone() };
        Some(Self { task: TrialTask::Join { meeting, host, hosts }, ..self.clone() })
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
        /// Where its other hosts join it, if it has any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        meeting: Option<TrialMeeting>,
    },
    /// Be a host of a run that another node leads.
    Join {
        meeting: TrialMeeting,
        /// Which host, from 1, of how many.
        host: usize,
        hosts: usize,
    },
    /// Time the answers of its network.
    Infer {
        /// Samples that are answered together.
        batch: usize,
        threads: usize,
        seconds: f64,
    },
}
