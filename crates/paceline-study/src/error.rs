//! How a study fails.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use paceline_launch::start_hint;
use paceline_plan::{PlanError, StudyError};
use paceline_record::store::FILE;
use paceline_record::{FailureKind, JournalError, RecordError};
use paceline_resolve::SettingError;
use paceline_virtual::VirtualError;

use crate::state::names;

/// A study that cannot be read, made or gone on with.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum StudyFailure {
    #[error("{}: {source}", .path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{} is there already", .path.display())]
    FileExists { path: PathBuf },
    #[error("{} is damaged: {why}", .path.display())]
    Damaged { path: PathBuf, why: String },
    #[error("the study {name} is in the store already")]
    Exists { name: String, finished: bool, same: bool },
    #[error("there is no study {name} in {}", .store.display())]
    Missing { store: PathBuf, name: String },
    #[error("{missing} of {named} runs of the study are not recorded in {}: it was deleted or replaced", .store.join(FILE).display())]
    Unrecorded { missing: usize, named: usize, store: PathBuf },
    #[error("the study cannot be run here: {cause}")]
    Unprepared { command: String, cause: String },
    #[error("the warm-up run failed, so the others would: {cause}")]
    FirstRun { name: String, cause: String },
    #[error("run {id} of the study could not be started: {source}")]
    NotStarted { id: u64, source: io::Error },
    #[error("a run to be measured failed after {seconds:.1} s: {status}")]
    NotMeasured { seconds: f64, status: ExitStatus },
    #[error("interrupted")]
    Interrupted { name: String },
    #[error("--parallel {parallel}: there are {cores} cores, and each run needs one")]
    Parallel { parallel: usize, cores: usize },
    #[error("--parallel {parallel}: there are {nodes} nodes, and each run needs one of its own")]
    ParallelNodes { parallel: usize, nodes: usize },
    #[error("run {id} needs {needed} nodes, and {present} of {size} are left: the others were lost")]
    NodesLost { name: String, id: u64, needed: usize, present: usize, size: usize },
    /// A run has a setting that it cannot have.
    #[error(transparent)]
    Setting(#[from] SettingError),
    #[error("this plan cannot be run: {0}")]
    Plan(#[from] PlanError),
    /// The study file is wrong.
    #[error(transparent)]
    Study(#[from] StudyError),
    /// A point cannot be predicted.
    #[error(transparent)]
    Virtual(#[from] VirtualError),
    /// The journal cannot be read or written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The store cannot be read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Something else cannot be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl StudyFailure {
    pub(crate) fn damaged(path: &Path, why: &str) -> Self {
        Self::Damaged { path: path.into(), why: why.into() }
    }

    /// Which kind of failure it is.
    pub fn kind(&self) -> FailureKind {
        match self {
            Self::File { .. } | Self::Damaged { .. } | Self::Unrecorded { .. } => FailureKind::Storage,
            Self::Journal(_) | Self::Record(_) => FailureKind::Storage,
            Self::FileExists { .. } => FailureKind::Storage,
            Self::Exists { .. } | Self::Setting(_) | Self::Plan(_) | Self::Study(_) => FailureKind::Plan,
            Self::Missing { .. } | Self::Parallel { .. } | Self::ParallelNodes { .. } => FailureKind::Usage,
            Self::NodesLost { .. } => FailureKind::Lost,
            Self::Interrupted { .. } => FailureKind::Interrupted,
            Self::FirstRun { .. } | Self::NotStarted { .. } | Self::NotMeasured { .. } => FailureKind::Other,
            Self::Virtual(_) | Self::Io(_) | Self::Unprepared { .. } => FailureKind::Other,
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::File { .. } => "is the name right? `paceline init` writes a new study file".into(),
            Self::FileExists { .. } => {
                "nothing was written: choose another name, or remove what is there first".into()
            }
            Self::Damaged { .. } => "the study cannot be resumed; its runs are still in the store".into(),
            Self::Exists { name, same: true, finished: false } => {
                format!("`paceline resume {name}` goes on with it")
            }
            Self::Exists { name, same: true, finished: true } => format!(
                "it is finished: `paceline resume {name} --add-budget RUNS` adds to it, `paceline status {name}` shows it"
            ),
            Self::Exists { .. } => "give this one another `name`, or choose another --store".into(),
            Self::Missing { store, .. } => match names(store).as_slice() {
                [] => "there is none at all; --store DIR or PACELINE_STORE choose another store".into(),
                there => format!("there are: {}", there.join(", ")),
            },
            Self::Unrecorded { .. } => "the figures of all runs are in the study's journal".into(),
            Self::Unprepared { command, .. } => {
                format!("nothing was run; `prepare` in [command] of the study file is: {command}")
            }
            Self::FirstRun { name, .. } => {
                format!("mend the study file, or go on regardless with `paceline resume {name}`")
            }
            Self::NotStarted { source, .. } => start_hint(source),
            Self::Interrupted { name } => {
                format!("everything so far is recorded; `paceline resume {name}` goes on")
            }
            Self::Parallel { .. } => "--help lists every flag".into(),
            Self::ParallelNodes { nodes, .. } => {
                format!(
                    "--parallel {nodes} takes all of them; start more processes, or add hosts to the file, for more"
                )
            }
            Self::NodesLost { name, .. } => {
                format!(
                    "everything so far is recorded; `paceline resume {name}` goes on, on as many nodes as it gets"
                )
            }
            _ => String::new(),
        }
    }
}
