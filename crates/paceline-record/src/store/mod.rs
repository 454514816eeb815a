//! The store: one SQLite database, `paceline.db`, of all runs. Any SQLite tool opens it.
//!
//! - `schema`: how the database is made and brought up to date
//! - `write`: [`Record`], the one writer of one run
//! - `read`: what was recorded
//!
//! Several processes write at once: every run has its own rows, transactions are short, and whoever finds the
//! database busy waits.

mod read;
mod schema;
mod write;

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;

pub use read::{Rows, RunRow, number};
pub use rusqlite::types::Value;
pub use write::{Build, Record};

/// Name of the database in the store's folder.
pub const FILE: &str = "paceline.db";

/// How long a busy database is waited for.
const BUSY: Duration = Duration::from_secs(30);

/// A record that could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The folder could not be made.
    #[error("{}: {source}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The database said no.
    #[error("{}: {source}", path.display())]
    Database {
        /// The database.
        path: PathBuf,
        /// Why.
        source: rusqlite::Error,
    },
    /// A later program has made it.
    #[error("{}: made by a later version of paceline (its tables have version {found}, this one knows {known})", path.display())]
    Newer {
        /// The database.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// The version of this program.
        known: i64,
    },
    /// There is no store.
    #[error("no runs are recorded in {}", path.display())]
    Empty {
        /// The store's folder.
        path: PathBuf,
    },
    /// No run, or several, are called so.
    #[error("{problem}")]
    Which {
        /// What is wrong, and what there is.
        problem: String,
    },
    /// The thread that writes is gone.
    #[error("{}: the thread that writes the record has died", path.display())]
    Writer {
        /// The database.
        path: PathBuf,
    },
}

/// An open store.
pub struct Store {
    connection: Connection,
    path: PathBuf,
}

impl Store {
    /// Opens the store in a folder, making it if it is not there.
    pub fn create(folder: &Path) -> Result<Self, RecordError> {
        let failed = |source| RecordError::Folder { path: folder.to_owned(), source };
        std::fs::create_dir_all(folder).map_err(failed)?;
        Self::open_file(folder.join(FILE))
    }

    /// Opens a store that is there, and notes which of its runs have died without a word.
    pub fn open(folder: &Path) -> Result<Self, RecordError> {
        let path = folder.join(FILE);
        if !path.is_file() {
            return Err(RecordError::Empty { path: folder.to_owned() });
        }
        let mut store = Self::open_file(path)?;
        store.note_the_lost()?;
        Ok(store)
    }

    fn open_file(path: PathBuf) -> Result<Self, RecordError> {
        let connection = Connection::open(&path).map_err(at(&path))?;
        let mut store = Self { connection, path };
        store.prepare()?;
        Ok(store)
    }

    /// The database.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Says of which database an error is.
fn at(path: &Path) -> impl Fn(rusqlite::Error) -> RecordError + use<> {
    let path = path.to_owned();
    move |source| RecordError::Database { path: path.clone(), source }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use paceline_plan::{Placement, Plan, Work};

    use super::*;
    use crate::event::Event;
    use crate::row::{Batch, StepRow};

    const BUILD: Build = Build { version: "1.0", commit: "abc", rustc: "rustc" };

    pub(crate) fn plan() -> Plan {
        Plan {
            data: "digits".into(),
            model: "mlp".into(),
            workers: 2,
            servers: 0,
            strategy: "ring-allreduce".into(),
            sync: "bsp".into(),
            options: BTreeMap::new(),
            averages: "gradients".into(),
            compression: None,
            shard: "iid".into(),
            transport: "tcp".into(),
            buffer: None,
            network: None,
            hosts: None,
            placement: Placement::default(),
            bucket: 4 << 20,
            straggler: None,
            stop_after_step: None,
            batch: 64,
            optimizer: "sgd".into(),
            lr: 0.05,
            lr_scaling: "none".into(),
            schedule: "constant".into(),
            warmup: 0.0,
            momentum: 0.9,
            nesterov: false,
            weight_decay: 0.0,
            work: Work::Steps(10),
            target_accuracy: None,
            stop_at_target: false,
            eval_every: None,
            seed: 1,
            threads: 1,
            pin: false,
        }
    }

    fn batch(first: u64, steps: u64) -> Batch {
        let row = |step| StepRow { step, loss: 0.5, ..StepRow::default() };
        Batch { steps: (first..first + steps).map(row).collect(), ..Batch::default() }
    }

    #[test]
    fn runs_that_record_at_once_each_keep_every_row() {
        let folder = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for run in 0..20 {
                let folder = folder.path();
                scope.spawn(move || {
                    let mut record = Record::create(folder, &format!("r{run:02}"), &plan(), BUILD).unwrap();
                    for i in 0..10 {
                        record.event(&Event::Batch { rank: 0, batch: &batch(1 + 50 * i, 50) });
                        record.event(&Event::Refused { rank: 0, cause: "knock" });
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
            Record::create(folder.path(), run, &plan(), BUILD).unwrap().fail("", 1).unwrap();
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
        let record = Record::create(folder.path(), "r1", &plan(), BUILD).unwrap();
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
    fn a_store_that_cannot_be_written_is_told_when_the_run_ends() {
        let folder = tempfile::tempdir().unwrap();
        let mut record = Record::create(folder.path(), "r1", &plan(), BUILD).unwrap();
        let store = Store::open(folder.path()).unwrap();
        store.connection.execute_batch("DROP TABLE steps").unwrap();
        record.event(&Event::Batch { rank: 0, batch: &batch(1, 5) });
        let error = record.fail("enough", 1).unwrap_err();
        assert!(error.to_string().contains("paceline.db"), "{error}");
    }
}
