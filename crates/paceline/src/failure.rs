//! How the program fails: what happened, a hint, and an exit code.
//!
//! 0 ok, 1 failure, 2 usage (clap), 3 invalid plan, 4 a peer was lost, 5 storage, 6 authentication or
//! protocol, 130 interrupted (state saved).

use std::path::Path;
use std::process::ExitCode;

use paceline_data::DataError;
use paceline_explore::table::TableError;
use paceline_launch::LaunchError;
use paceline_plan::{PlanError, StudyError};
use paceline_record::RecordError;
use paceline_train::TrainError;

/// An error on its way to the user.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
    hint: String,
}

impl Failure {
    /// A command line that says too little or too much.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { code: 2, message: message.into(), hint: "--help lists every flag".into() }
    }

    /// A file that cannot be read or written.
    pub fn file(path: &Path, error: &std::io::Error) -> Self {
        let hint = "is the name right? `paceline init` writes a new study file".into();
        Self { code: 5, message: format!("{}: {error}", path.display()), hint }
    }

    /// A journal that contradicts itself.
    pub fn damaged(path: &Path, why: &str) -> Self {
        let hint = "the study cannot be resumed; its runs are still in the store".into();
        Self { code: 5, message: format!("{} is damaged: {why}", path.display()), hint }
    }

    /// A study of that name is in the store already.
    pub fn exists(name: &str, finished: bool, same: bool) -> Self {
        let hint = match (same, finished) {
            (true, false) => format!("`paceline resume {name}` goes on with it"),
            (true, true) => {
                format!(
                    "it is finished: `paceline resume {name} --add-budget RUNS` adds to it, `paceline status {name}` shows it"
                )
            }
            (false, _) => "give this one another `name`, or choose another --store".into(),
        };
        Self { code: 3, message: format!("the study {name} is in the store already"), hint }
    }

    /// There is no such study.
    pub fn no_study(store: &Path, name: &str) -> Self {
        let names = || std::fs::read_dir(store.join("studies")).ok();
        let mut there: Vec<String> = names()
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
            .collect();
        there.sort();
        let hint = match there.as_slice() {
            [] => "there is none at all; --store DIR or PACELINE_STORE choose another store".into(),
            _ => format!("there are: {}", there.join(", ")),
        };
        Self { code: 2, message: format!("there is no study {name} in {}", store.display()), hint }
    }

    /// The first run of a study did not work.
    pub fn first_run(name: &str, cause: &str) -> Self {
        let hint = format!("mend the study file, or go on regardless with `paceline resume {name}`");
        Self { code: 1, message: format!("the warm-up run failed, so the others would: {cause}"), hint }
    }

    /// A study that was interrupted.
    pub fn interrupted(name: &str) -> Self {
        let hint = format!("everything so far is recorded; `paceline resume {name}` goes on");
        Self { code: 130, message: "interrupted".into(), hint }
    }

    /// Writes the error to standard error.
    pub fn report(self) -> ExitCode {
        crate::output::error(&self.message, &self.hint);
        ExitCode::from(self.code)
    }
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Self {
        let hint = "nothing was started; `paceline train --help` lists every flag".into();
        Self { code: 3, message: format!("this plan cannot be run: {error}"), hint }
    }
}

impl From<StudyError> for Failure {
    fn from(error: StudyError) -> Self {
        let hint = "`paceline init` writes a commented study file; `paceline check FILE` looks at one".into();
        Self { code: 3, message: error.to_string(), hint }
    }
}

impl From<TableError> for Failure {
    fn from(error: TableError) -> Self {
        let (code, hint) = match error {
            TableError::File { .. } => (5, "a header and comma-separated rows are expected, also gzipped"),
            TableError::Ask { .. } | TableError::Sampler(_) => {
                (2, "`paceline explore --help` lists every flag")
            }
        };
        Self { code, message: error.to_string(), hint: hint.into() }
    }
}

impl From<DataError> for Failure {
    fn from(error: DataError) -> Self {
        Self { code: 5, hint: error.hint(), message: error.to_string() }
    }
}

impl From<TrainError> for Failure {
    fn from(error: TrainError) -> Self {
        let code = match error {
            TrainError::Diverged { .. } => 1,
            TrainError::Shape { .. } => 3,
            TrainError::Lost { .. } | TrainError::Silent { .. } => 4,
            TrainError::Wire(_) => 6,
        };
        Self { code, hint: error.hint().into(), message: error.to_string() }
    }
}

impl From<LaunchError> for Failure {
    fn from(error: LaunchError) -> Self {
        let message = error.to_string();
        match error {
            LaunchError::Plan(error) => error.into(),
            LaunchError::Train(error) => error.into(),
            LaunchError::Lost { .. } => {
                let hint =
                    "the other processes were ended; the system's log may say who ended this one".into();
                Self { code: 4, message, hint }
            }
            LaunchError::Failed { hint, code, .. } => Self { code, message, hint },
            LaunchError::Late { .. } => {
                Self { code: 4, message, hint: "is the machine overloaded, or out of memory?".into() }
            }
            LaunchError::System { .. } => Self { code: 1, message, hint: String::new() },
        }
    }
}

impl From<RecordError> for Failure {
    fn from(error: RecordError) -> Self {
        let hint =
            "is the disk full or the folder not yours? --store DIR or PACELINE_STORE choose another".into();
        Self { code: 5, message: format!("the run's record could not be written: {error}"), hint }
    }
}

impl From<paceline_nn::graph::ShapeError> for Failure {
    fn from(error: paceline_nn::graph::ShapeError) -> Self {
        Self { code: 3, message: error.to_string(), hint: "choose a larger --input".into() }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self { code: 1, message: format!("standard output: {error}"), hint: String::new() }
    }
}
