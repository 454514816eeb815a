//! The store: one SQLite database, `paceline.db`, of all runs. Any SQLite tool opens it.
//!
//! - `schema`: how the database is made and brought up to date
//! - `record`: [`Record`], the record of a run under way
//! - `write`: the thread that writes it
//! - `read`: what was recorded
//! - `labels`: what people call runs; `edit`: naming, archiving and deleting them
//! - `import`: runs of another store
//! - `space`: whether the disk has room
//!
//! Several processes write at once: every run has its own rows, transactions are short, and whoever finds the
//! database busy waits.

mod edit;
mod import;
mod labels;
mod read;
mod record;
mod schema;
mod space;
mod write;

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};
use rustix::process::{Resource, getrlimit};

use crate::metric::Metrics;

pub use edit::{RunEdit, RunRemains};
pub use labels::{RunLabels, run_name, run_note, run_tag};
pub use read::{RunRow, TableRows, number};
pub use record::{Build, EventSink, NewRun, Record};
pub use rusqlite::types::Value;
pub use space::{OutOfSpace, free_bytes, scarce};

/// Name of the database in the store's folder.
pub const FILE: &str = "paceline.db";

/// The folder of a run's files (its checkpoints), in the store's.
pub fn run_folder(store: &Path, run: &str) -> PathBuf {
    store.join("runs").join(run)
}

/// How long a busy database is waited for.
const BUSY: Duration = Duration::from_secs(30);

/// A record that could not be written or read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum RecordError {
    /// A file or a folder could not be read or written.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    /// The database said no.
    #[error("{}: {source}", path.display())]
    Database { path: PathBuf, source: rusqlite::Error },
    /// A later program has made it.
    #[error("{}: made by a later version of paceline (its tables have version {found}, this one knows {known})", path.display())]
    Newer { path: PathBuf, found: i64, known: i64 },
    /// There is no store.
    #[error("no runs are recorded in {}", path.display())]
    Empty { path: PathBuf },
    /// No run, or several, are called so.
    #[error("{problem}")]
    Which { problem: String },
    /// A run that is under way cannot be deleted.
    #[error("run {run} is under way: process {pid} on {host}")]
    Running { run: String, pid: u32, host: String },
    /// The database's content is not what SQLite wrote.
    #[error("{} is damaged: {problem}", path.display())]
    Damaged { path: PathBuf, problem: String },
    /// The database was deleted, or another file has its name, while a run was recorded.
    #[error("{} was deleted or replaced while the run was under way", path.display())]
    Gone { path: PathBuf },
    /// The thread that writes is gone.
    #[error("{}: the thread that writes the record has died", path.display())]
    Writer { path: PathBuf },
}

impl RecordError {
    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::Which { .. } => "`paceline runs` lists them; `last` is the latest".into(),
            Self::Running { .. } => "interrupt it first, or wait until it has ended".into(),
            Self::Empty { .. } => "--store DIR or PACELINE_STORE choose another folder".into(),
            Self::Damaged { .. } => {
                "move it and its -wal and -shm files away, or choose another --store DIR; the \
                                     checkpoints of its runs are still in runs/ beside it"
                    .into()
            }
            Self::Gone { .. } => {
                "nothing of this run can be read from the store; do not delete a store while \
                                  `paceline status` shows runs under way"
                    .into()
            }
            Self::File { source, .. } if source.kind() == std::io::ErrorKind::InvalidInput => {
                "move it away, or choose another folder with --store DIR or PACELINE_STORE".into()
            }
            Self::File { source, .. } => write_hint(source),
            // SQLite tells of a file that may not grow as of a disk that does not work.
            Self::Database { source, .. }
                if source.sqlite_error_code() == Some(ErrorCode::SystemIoFailure) =>
            {
                size_limit_hint().unwrap_or_else(|| DISK.into())
            }
            Self::Newer { .. } | Self::Database { .. } | Self::Writer { .. } => DISK.into(),
        }
    }
}

const DISK: &str = "is the disk full or the folder not yours? --store DIR or PACELINE_STORE choose another";

/// What to do about a file that could not be written.
pub fn write_hint(error: &std::io::Error) -> String {
    let too_large = error.kind() == std::io::ErrorKind::FileTooLarge;
    size_limit_hint().filter(|_| too_large).unwrap_or_else(|| DISK.into())
}

/// What to do about the limit of this process's file sizes, if there is one.
fn size_limit_hint() -> Option<String> {
    let bytes = getrlimit(Resource::Fsize).current?;
    Some(format!(
        "files of this process may have at most {bytes} bytes: raise the file size limit with `ulimit -f unlimited`"
    ))
}

/// An open store.
pub struct Store {
    connection: Connection,
    path: PathBuf,
    /// What its tables of samples hold.
    pub(crate) metrics: Metrics,
}

impl Store {
    /// Opens the store in a folder, making it if it is not there.
    pub fn create(folder: &Path) -> Result<Self, RecordError> {
        Self::create_with(folder, &Metrics::default())
    }

    /// The same, with a place for these metrics.
    pub fn create_with(folder: &Path, metrics: &Metrics) -> Result<Self, RecordError> {
        let failed = |source| RecordError::File { path: folder.to_owned(), source };
        std::fs::create_dir_all(folder).map_err(failed)?;
        Self::open_file(folder.join(FILE), metrics)
    }

    /// Opens a store that is there, and notes which of its runs have died without a word.
    pub fn open(folder: &Path) -> Result<Self, RecordError> {
        Self::open_with(folder, &Metrics::default())
    }

    /// The same, with a place for these metrics.
    pub fn open_with(folder: &Path, metrics: &Metrics) -> Result<Self, RecordError> {
        let path = folder.join(FILE);
        if !path.exists() {
            return Err(RecordError::Empty { path: folder.to_owned() });
        }
        let mut store = Self::open_file(path, metrics)?;
        store.note_the_lost()?;
        Ok(store)
    }

    fn open_file(path: PathBuf, metrics: &Metrics) -> Result<Self, RecordError> {
        if let Ok(found) = std::fs::metadata(&path)
            && let Err(source) = paceline_files::check(&found)
        {
            return Err(RecordError::File { path, source });
        }
        let connection = Connection::open(&path).map_err(at(&path))?;
        let mut store = Self { connection, path, metrics: metrics.clone() };
        store.prepare()?;
        Ok(store)
    }

    /// The database.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the database is damaged, in bounded time: a small one is checked whole, of a large one the table of
    /// runs, which every verb reads.
    fn check_quickly(&self) -> Result<(), RecordError> {
        let small = std::fs::metadata(&self.path).is_ok_and(|file| file.len() <= SMALL);
        let check = if small { "PRAGMA quick_check(1)" } else { "PRAGMA quick_check('runs')" };
        let said = self.connection.query_row(check, [], |row| row.get::<_, String>(0));
        match said.map_err(at(&self.path))? {
            said if said == "ok" => Ok(()),
            problem => {
                Err(RecordError::Damaged { path: self.path.clone(), problem: problem.replace('\n', " ") })
            }
        }
    }
}

/// Largest database that is checked whole before and after a run: a few hundredths of a second.
const SMALL: u64 = 16 << 20;

/// Says of which database an error is.
fn at(path: &Path) -> impl Fn(rusqlite::Error) -> RecordError + use<> {
    let path = path.to_owned();
    move |source| match source.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            RecordError::Damaged { path: path.clone(), problem: source.to_string() }
        }
        _ => RecordError::Database { path: path.clone(), source },
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::{Arc, Mutex};

    use paceline_plan::Plan;

    use super::*;
    use crate::event::{Event, MembershipChange, RunOrigin};
    use crate::row::{Batch, StepRow};

    const BUILD: Build = Build { version: "1.0", commit: "abc", rustc: "rustc" };

    fn plan() -> Plan {
        Plan { workers: 2, strategy: "ring-allreduce".into(), ..Plan::example() }
    }

    /// The record of a run that has just begun.
    pub(crate) fn begun(folder: &Path, run: &str) -> Record {
        begun_as(folder, run, &RunLabels::default())
    }

    /// The same, of a run that people have words for.
    pub(crate) fn begun_as(folder: &Path, id: &str, labels: &RunLabels) -> Record {
        let new = NewRun { id, plan: &plan(), labels, origin: RunOrigin::Measured };
        Record::create(folder, &new, BUILD, &Metrics::default(), None).unwrap()
    }

    fn batch(first: u64, steps: u64) -> Batch {
        let row = |step| StepRow { step, loss: 0.5, ..StepRow::default() };
        Batch { steps: (first..first + steps).map(row).collect(), ..Batch::default() }
    }

    #[test]
    fn changes_of_members_are_kept_and_records_of_before_have_none() {
        let folder = tempfile::tempdir().unwrap();
        let mut record = begun(folder.path(), "changed");
        let change =
            MembershipChange { lost: vec![1], took_over: vec![0], workers: 1, step: 7, ..Default::default() };
        record.event(&Event::Membership { change: &change });
        record.fail("later", 4).unwrap();
        // A program of before did not say who had taken over.
        let record = begun(folder.path(), "older");
        record.fail("at once", 4).unwrap();
        let store = Store::open(folder.path()).unwrap();
        let of = |run: &str| store.membership(&store.find(run).unwrap()).unwrap();
        assert_eq!(of("changed"), std::slice::from_ref(&change));
        assert!(of("older").is_empty());
        let event = r#"{"type":"membership","change":{"at_s":1.0,"lost":[1],"workers":1,"step":7,"steps_anew":0,"pause_s":0.5}}"#;
        let insert = "INSERT INTO events (run, n, t_ns, type, event) VALUES (?1, 99, 0, 'membership', ?2)";
        let id = store.find("older").unwrap().id;
        store.connection.execute(insert, rusqlite::params![id, event]).unwrap();
        let old = MembershipChange { at_s: 1.0, took_over: Vec::new(), pause_s: 0.5, ..change };
        assert_eq!(of("older"), [old]);
    }

    #[test]
    fn runs_that_record_at_once_each_keep_every_row() {
        let folder = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for run in 0..20 {
                let folder = folder.path();
                scope.spawn(move || {
                    let mut record = begun(folder, &format!("r{run:02}"));
                    for i in 0..10 {
                        record.event(&Event::Batch { rank: 0, batch: &batch(1 + 50 * i, 50) });
                        record.event(&Event::Refused { rank: Some(0), cause: "knock" });
                    }
                    assert_eq!(record.dropped(), 0);
                    record.fail("enough", 1).unwrap();
                });
            }
        });
        let store = Store::open(folder.path()).unwrap();
        store.check().unwrap();
        let runs = store.runs().unwrap();
        assert_eq!(runs.len(), 20);
        for run in &runs {
            assert_eq!((run.state.as_str(), run.error.as_deref()), ("failed", Some("enough")));
            assert_eq!(store.rows("steps", run).unwrap().rows.len(), 500, "{}", run.run);
            assert_eq!(store.rows("events", run).unwrap().rows.len(), 10, "{}", run.run);
        }
    }

    #[test]
    fn a_run_is_found_by_a_prefix_that_fits_no_other() {
        let folder = tempfile::tempdir().unwrap();
        for run in ["ra1", "ra2", "rb", "rb1"] {
            begun(folder.path(), run).fail("", 1).unwrap();
        }
        let store = Store::open(folder.path()).unwrap();
        let found = |name: &str| store.find(name).map(|run| run.run).map_err(|error| error.to_string());
        assert_eq!(found("last").as_deref(), Ok("rb1"));
        assert_eq!(found("ra2").as_deref(), Ok("ra2"));
        assert_eq!(found("rb").as_deref(), Ok("rb"), "a whole name wins");
        assert!(found("ra").unwrap_err().contains("ra1, ra2"));
        assert!(found("%").unwrap_err().contains("no run is called %"));
        assert!(matches!(Store::open(&folder.path().join("none")), Err(RecordError::Empty { .. })));
    }

    #[test]
    fn a_run_under_way_says_so_and_one_whose_process_died_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let record = begun(folder.path(), "r1");
        assert_eq!(Store::open(folder.path()).unwrap().find("r1").unwrap().state, "running");
        let store = Store::open(folder.path()).unwrap();
        store.connection.execute_batch("UPDATE runs SET pid_started = pid_started + 1").unwrap();
        let lost = Store::open(folder.path()).unwrap().find("r1").unwrap();
        assert_eq!((lost.state.as_str(), lost.ended_s), ("lost", Some(lost.seen_s)));
        // Whoever is taken for dead and is not has the last word.
        drop(record);
        let ended = Store::open(folder.path()).unwrap().find("r1").unwrap();
        assert_eq!((ended.state.as_str(), ended.error.as_deref()), ("failed", Some("the run was given up")));
    }

    #[test]
    fn a_run_that_goes_on_stays_one_run_and_nobody_else_can_take_it() {
        let folder = tempfile::tempdir().unwrap();
        let again = || Record::reopen(folder.path(), "r1", (&plan(), None), BUILD, &Metrics::default(), None);
        let mut record = begun(folder.path(), "r1");
        assert!(again().err().unwrap().to_string().contains("run r1 is under way: process"));
        record.event(&Event::Batch { rank: 0, batch: &batch(1, 5) });
        record.event(&Event::Paused);
        let store = Store::open(folder.path()).unwrap();
        let rows = store.rows("steps", &store.find("r1").unwrap()).unwrap().rows.len();
        assert_eq!(rows, 5, "a pause waits until everything is stored");
        record.event(&Event::Checkpoint { step: 4 });
        record.fail("interrupted", 130).unwrap();
        assert_eq!(Store::open(folder.path()).unwrap().find("r1").unwrap().state, "interrupted");

        let mut record = again().unwrap();
        record.event(&Event::Batch { rank: 0, batch: &batch(5, 4) });
        record.event(&Event::Restarted { step: 4, cause: "a loss", left: 0 });
        record.event(&Event::Batch { rank: 0, batch: &Batch { dropped: 3, ..batch(6, 1) } });
        record.fail("enough", 1).unwrap();
        let store = Store::open(folder.path()).unwrap();
        let run = store.find("r1").unwrap();
        assert_eq!((run.state.as_str(), run.attempts, run.dropped_rows), ("failed", 3, 3));
        let steps = store.rows("steps", &run).unwrap();
        assert_eq!(steps.numbers("step"), (1..=6).map(|n| Some(f64::from(n))).collect::<Vec<_>>());
        assert_eq!(steps.numbers("attempt"), [1, 1, 1, 1, 2, 3].map(|n| Some(f64::from(n))));
        let events = store.rows("events", &run).unwrap();
        assert_eq!(events.numbers("n"), [Some(0.0), Some(1.0)]);
        let times = events.numbers("t_ns");
        assert!(times[0] < times[1], "one clock over all starts: {times:?}");
    }

    #[test]
    fn events_are_told_once_they_can_be_read_from_the_store() {
        let folder = tempfile::tempdir().unwrap();
        let (path, seen) = (folder.path().to_owned(), Arc::new(Mutex::new(Vec::new())));
        let kept = Arc::clone(&seen);
        let told = Box::new(move |line: &str| {
            let store = Store::open_file(path.join(FILE), &Metrics::default()).unwrap();
            let events = store.rows("events", &store.find("r1").unwrap()).unwrap();
            kept.lock().unwrap().push((line.to_owned(), events.rows.len()));
        });
        let (plan, labels) = (plan(), RunLabels::default());
        let new = NewRun { id: "r1", plan: &plan, labels: &labels, origin: RunOrigin::Measured };
        let mut record = Record::create(folder.path(), &new, BUILD, &Metrics::default(), Some(told)).unwrap();
        for step in 1..=20 {
            record.event(&Event::Checkpoint { step });
            record.event(&Event::Progress { step, samples: step, train_s: 0.0, train_loss: 1.0 });
        }
        record.fail("enough", 1).unwrap();
        let seen = seen.lock().unwrap();
        assert_eq!(seen.len(), 40, "progress is told too, though it is no event of the store");
        let mut told = 0;
        for (line, stored) in seen.iter() {
            told += usize::from(line.contains("checkpoint"));
            assert!(*stored >= told, "{line}: {stored} stored");
        }
    }

    #[test]
    fn a_store_that_cannot_be_written_is_told_when_the_run_ends() {
        let folder = tempfile::tempdir().unwrap();
        let mut record = begun(folder.path(), "r1");
        let store = Store::open(folder.path()).unwrap();
        store.connection.execute_batch("DROP TABLE steps").unwrap();
        record.event(&Event::Batch { rank: 0, batch: &batch(1, 5) });
        // The writer notices with its next transaction; the run is told once, and again at its end.
        let noticed = (0..1000).find_map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            record.trouble().map(ToString::to_string)
        });
        assert!(noticed.unwrap().contains("paceline.db"));
        assert!(record.trouble().is_none());
        record.event(&Event::Paused);
        let error = record.fail("enough", 1).unwrap_err();
        assert!(error.to_string().contains("paceline.db"), "{error}");
    }
}
