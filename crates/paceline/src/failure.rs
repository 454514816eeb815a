//! How the program fails: what happened, a hint, and an exit code.
//!
//! 0 ok, 1 failure, 2 usage (clap), 3 invalid plan, 4 a peer was lost, 5 storage, 6 authentication or
//! protocol, 130 interrupted (state saved).

use std::path::Path;
use std::process::ExitCode;

use paceline_data::DataError;
use paceline_explore::table::ExplorationError;
use paceline_launch::LaunchError;
use paceline_plan::sheet::TableError;
use paceline_plan::{PlanError, StudyError};
use paceline_record::export::ExportError;
use paceline_record::store::write_hint;
use paceline_record::{Event, FailureKind, JournalError, RecordError};
use paceline_study::StudyFailure;
use paceline_train::TrainError;
use paceline_virtual::VirtualError;

/// An error on its way to the user.
#[derive(Debug)]
pub struct Failure {
    kind: FailureKind,
    message: String,
    hint: String,
}

impl Failure {
    /// A command line that says too little or too much.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::Usage, message: message.into(), hint: "--help lists every flag".into() }
    }

    /// A flag of studies, for what is none.
    pub fn for_studies(flag: &str, store: &Path, name: &str) -> Self {
        let missing = Self::from(StudyFailure::Missing { store: store.into(), name: name.into() });
        Self { message: format!("{flag} is for studies, and {}", missing.message), ..missing }
    }

    /// What is neither a run nor a study.
    pub fn neither(self, store: &Path) -> Self {
        match paceline_study::names(store).as_slice() {
            [] => self,
            names => {
                Self { hint: format!("there are the studies {}; {}", names.join(", "), self.hint), ..self }
            }
        }
    }

    /// What happened.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The exit code that it calls for.
    pub fn code(&self) -> u8 {
        self.kind.code()
    }

    /// The failure as an event of its run.
    pub fn event(&self) -> Event<'_> {
        Event::Failed { kind: self.kind, code: self.code(), message: &self.message, hint: &self.hint }
    }

    /// Which kind of failure it is, what happened, and what to do.
    pub fn new(kind: FailureKind, message: String, hint: String) -> Self {
        Self { kind, message, hint }
    }

    /// A measurement that cannot be made as it was asked for.
    pub fn measurement(error: LaunchError, verb: &str) -> Self {
        match error {
            LaunchError::Plan(error) => {
                let hint = format!("nothing was measured; `paceline bench {verb} --help` lists every flag");
                Self { kind: FailureKind::Plan, message: format!("this cannot be measured: {error}"), hint }
            }
            error => error.into(),
        }
    }

    /// A run whose plan this program cannot read.
    pub fn plan(run: &str) -> Self {
        let message = format!("the plan of run {run} cannot be read");
        Self { kind: FailureKind::Storage, message, hint: "was it made by another version?".into() }
    }

    /// A file that could not be written.
    pub fn file(path: &Path, error: &std::io::Error) -> Self {
        let message = format!("{}: {error}", path.display());
        let too_large = error.kind() == std::io::ErrorKind::FileTooLarge;
        let hint =
            if too_large { write_hint(error) } else { "is the folder there, and yours to write to?".into() };
        Self { kind: FailureKind::Storage, message, hint }
    }

    /// A run that ended well, and whose record was not kept.
    pub fn not_recorded(error: &RecordError) -> Self {
        let message = format!("the run ended well, but it is not recorded: {error}");
        Self { kind: FailureKind::Storage, message, hint: error.hint() }
    }

    /// A model file that describes no network.
    pub fn description(file: &str, error: &paceline_nn::description::DescriptionError) -> Self {
        let hint = "docs/models.md shows the form, examples/models/ has examples; --data or --input say for \
                    which samples";
        Self { kind: FailureKind::Plan, message: format!("model file {file}, {error}"), hint: hint.into() }
    }

    /// Writes the error to standard error.
    pub fn report(self) -> ExitCode {
        crate::output::error(&self.message, &self.hint);
        ExitCode::from(self.code())
    }
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Self {
        let hint = "nothing was started; `paceline train --help` lists every flag".into();
        Self { kind: FailureKind::Plan, message: format!("this plan cannot be run: {error}"), hint }
    }
}

impl From<StudyError> for Failure {
    fn from(error: StudyError) -> Self {
        let hint = "`paceline init` writes a commented study file; `paceline check FILE` looks at one".into();
        Self { kind: FailureKind::Plan, message: error.to_string(), hint }
    }
}

impl From<StudyFailure> for Failure {
    fn from(error: StudyFailure) -> Self {
        match error {
            StudyFailure::Plan(error) => error.into(),
            StudyFailure::Study(error) => error.into(),
            StudyFailure::Virtual(error) => error.into(),
            StudyFailure::Journal(error) => error.into(),
            StudyFailure::Record(error) => error.into(),
            StudyFailure::Io(error) => error.into(),
            error => Self { kind: error.kind(), message: error.to_string(), hint: error.hint() },
        }
    }
}

impl From<ExplorationError> for Failure {
    fn from(error: ExplorationError) -> Self {
        let (kind, hint) = match error {
            ExplorationError::Table(TableError::File { .. }) => {
                (FailureKind::Storage, "a header and comma-separated rows are expected, also gzipped")
            }
            _ => (FailureKind::Usage, "`paceline explore --help` lists every flag"),
        };
        Self { kind, message: error.to_string(), hint: hint.into() }
    }
}

impl From<DataError> for Failure {
    fn from(error: DataError) -> Self {
        Self { kind: FailureKind::Storage, hint: error.hint(), message: error.to_string() }
    }
}

impl From<TrainError> for Failure {
    fn from(error: TrainError) -> Self {
        Self { kind: error.kind(), hint: error.hint(), message: error.to_string() }
    }
}

impl From<LaunchError> for Failure {
    fn from(error: LaunchError) -> Self {
        match error {
            LaunchError::Plan(error) => error.into(),
            error => Self { kind: error.kind(), message: error.to_string(), hint: error.hint() },
        }
    }
}

impl From<VirtualError> for Failure {
    fn from(error: VirtualError) -> Self {
        let message = error.to_string();
        match error {
            VirtualError::Plan(error) => error.into(),
            VirtualError::Train(error) => error.into(),
            VirtualError::Launch(error) => error.into(),
            VirtualError::File { .. } => Self {
                kind: FailureKind::Storage,
                message,
                hint: "is the path right, and the file yours to read or write?".into(),
            },
            VirtualError::Stuck { .. } => Self {
                kind: FailureKind::Other,
                message,
                hint: "this is a fault of the strategy; please report it".into(),
            },
        }
    }
}

impl From<JournalError> for Failure {
    fn from(error: JournalError) -> Self {
        let hint = match error.source.kind() {
            std::io::ErrorKind::WouldBlock => "wait for it, or interrupt it first".into(),
            std::io::ErrorKind::InvalidData => {
                "the study cannot be resumed; its runs are still in the store".into()
            }
            std::io::ErrorKind::NotFound => {
                "the study cannot be resumed; do not delete a store while `paceline status` shows it under way".into()
            }
            _ => write_hint(&error.source),
        };
        Self { kind: FailureKind::Storage, message: format!("the study's journal: {error}"), hint }
    }
}

impl From<RecordError> for Failure {
    fn from(error: RecordError) -> Self {
        Self {
            kind: FailureKind::Storage,
            hint: error.hint(),
            message: format!("the store of runs: {error}"),
        }
    }
}

impl From<ExportError> for Failure {
    fn from(error: ExportError) -> Self {
        match error {
            ExportError::Store(error) => error.into(),
            ExportError::Document(error) => error.into(),
            error => Self {
                kind: FailureKind::Storage,
                message: error.to_string(),
                hint: "--out PATH chooses another place".into(),
            },
        }
    }
}

impl From<paceline_nn::graph::ShapeError> for Failure {
    fn from(error: paceline_nn::graph::ShapeError) -> Self {
        Self { kind: FailureKind::Plan, message: error.to_string(), hint: "choose a larger --input".into() }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        let too_large = error.kind() == std::io::ErrorKind::FileTooLarge;
        let hint = if too_large { write_hint(&error) } else { String::new() };
        Self { kind: FailureKind::Other, message: format!("standard output: {error}"), hint }
    }
}
