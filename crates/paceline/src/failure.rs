//! How the program fails: what happened, a hint, and an exit code.
//!
//! 0 ok, 1 failure, 2 usage (clap), 3 invalid plan, 4 a peer was lost, 5 storage, 6 authentication or
//! protocol, 130 interrupted (state saved).

use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;
use std::sync::OnceLock;

use paceline_compare::CompareFailure;
use paceline_data::DataError;
use paceline_explore::ExplorationError;
use paceline_launch::{LaunchError, RunEnd};
use paceline_nn::ShapeError;
use paceline_plan::{PlanError, StudyError, TableError};
use paceline_record::export::ExportError;
use paceline_record::store::{run_folder, write_hint};
use paceline_record::{Checkpoints, Event, FailureKind, JournalError, RecordError};
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
        Self::new(FailureKind::Usage, message, "--help lists every flag")
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

    /// The same of a run that has lost somebody, with how it goes on from what it has saved.
    pub fn goes_on(self, run: &str, store: &Path, plan: &str) -> Self {
        if self.kind != FailureKind::Lost || self.hint.contains("paceline resume") {
            return self;
        }
        let Some(step) = Checkpoints::of(&run_folder(store, run)).latest_step(plan) else { return self };
        let way_on = format!("`paceline resume {run}` goes on from its last checkpoint, after step {step}");
        Self { hint: format!("{}; {way_on}", self.hint), ..self }
    }

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

    /// The failure as other processes of a job are told it.
    pub fn run_end(&self) -> RunEnd {
        let (message, hint) = (self.message.clone(), self.hint.clone());
        RunEnd { failure: Some(self.kind), message, hint, result: None }
    }

    /// Which kind of failure it is, what happened, and what to do.
    pub fn new(kind: FailureKind, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: hint.into() }
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
        Self::new(FailureKind::Storage, message, "was it made by another version?")
    }

    /// A file that could not be written.
    pub fn file(path: &Path, error: &std::io::Error) -> Self {
        if error.kind() == ErrorKind::AlreadyExists {
            return StudyFailure::FileExists { path: path.into() }.into();
        }
        let message = format!("{}: {error}", path.display());
        let too_large = error.kind() == ErrorKind::FileTooLarge;
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
        Self::new(FailureKind::Plan, format!("model file {file}, {error}"), hint)
    }

    /// Writes the error to standard error.
    pub fn report(self) -> ExitCode {
        crate::output::error(&self.message, &self.hint);
        ExitCode::from(self.code())
    }
}

/// Errors whose kind, message and hint are known from themselves.
macro_rules! failure_from {
    ($($error:ty => |$e:ident| ($kind:expr, $message:expr, $hint:expr);)*) => {$(
        impl From<$error> for Failure {
            fn from($e: $error) -> Self {
                Self::new($kind, $message, $hint)
            }
        }
    )*};
}

failure_from! {
    PlanError => |e| (FailureKind::Plan, format!("this plan cannot be run: {e}"), plan_hint());
    StudyError => |e| (FailureKind::Plan, e.to_string(),
        "`paceline init` writes a commented study file; `paceline check FILE` tells every mistake");
    CompareFailure => |e| (e.kind(), e.to_string(), e.hint());
    DataError => |e| (FailureKind::Storage, e.to_string(), e.hint());
    TrainError => |e| (e.kind(), e.to_string(), e.hint());
    JournalError => |e| (FailureKind::Storage, format!("the study's journal: {e}"), journal_hint(&e));
    RecordError => |e| (FailureKind::Storage, format!("the store of runs: {e}"), e.hint());
    ShapeError => |e| (FailureKind::Plan, e.to_string(), "choose a larger --input");
    std::io::Error => |e| (FailureKind::Other, format!("standard output: {e}"),
        if e.kind() == ErrorKind::FileTooLarge { write_hint(&e) } else { String::new() });
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
            error => Self::new(error.kind(), error.to_string(), error.hint()),
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
        Self::new(kind, error.to_string(), hint)
    }
}

impl From<LaunchError> for Failure {
    fn from(error: LaunchError) -> Self {
        match error {
            LaunchError::Plan(error) => error.into(),
            error => Self::new(error.kind(), error.to_string(), error.hint()),
        }
    }
}

impl From<VirtualError> for Failure {
    fn from(error: VirtualError) -> Self {
        let (kind, hint) = match error {
            VirtualError::Plan(error) => return error.into(),
            VirtualError::Train(error) => return error.into(),
            VirtualError::Launch(error) => return error.into(),
            VirtualError::File { .. } => {
                (FailureKind::Storage, "is the path right, and the file yours to read or write?")
            }
            VirtualError::OtherMachine { .. } => {
                (FailureKind::Storage, "name another file: this machine is measured into it first")
            }
            VirtualError::Script { .. } => {
                (FailureKind::Other, "nothing of it was written; does `paceline train --script FILE` work?")
            }
            VirtualError::Members { ref hint, .. } => {
                return Self::new(FailureKind::Lost, error.to_string(), hint.clone());
            }
            VirtualError::Stuck { .. } => {
                (FailureKind::Other, "this is a fault of the strategy; please report it")
            }
        };
        Self::new(kind, error.to_string(), hint)
    }
}

/// The verb that was called.
pub static VERB: OnceLock<String> = OnceLock::new();

fn plan_hint() -> String {
    let verb = VERB.get().map_or("", String::as_str);
    let flags = match verb {
        "" | "check" | "plan" | "explore" | "predict" | "status" | "analyze" | "report" => {
            "a study's [workload] and [axes] hold flags of `paceline train`, whose --help lists them".into()
        }
        verb => format!("`paceline {verb} --help` lists every flag"),
    };
    format!("nothing was started; {flags}")
}

fn journal_hint(error: &JournalError) -> String {
    let hint = match error.source.kind() {
        ErrorKind::WouldBlock => "wait for it, or interrupt it first",
        ErrorKind::InvalidData => "the study cannot be resumed; its runs are still in the store",
        ErrorKind::NotFound => {
            "the study cannot be resumed; do not delete a store while `paceline status` shows it under way"
        }
        _ => return write_hint(&error.source),
    };
    hint.into()
}

impl From<ExportError> for Failure {
    fn from(error: ExportError) -> Self {
        match error {
            ExportError::Store(error) => error.into(),
            ExportError::Document(error) => error.into(),
            error => Self::new(FailureKind::Storage, error.to_string(), "--out PATH chooses another place"),
        }
    }
}
