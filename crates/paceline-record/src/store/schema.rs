//! How the database is made, and brought up to date.

use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, TransactionBehavior};

use super::{BUSY, RecordError, Store, at};
use crate::metric::Metrics;
use crate::table::{Column, Table, VIEWS, tables};

/// Changes that are more than another column, by the version that they lead to. Columns that the registry has
/// and a table has not are added without being named here.
const MIGRATIONS: &[fn(&Connection, &Metrics) -> rusqlite::Result<()>] = &[first];

/// Version 1: every table.
fn first(connection: &Connection, metrics: &Metrics) -> rusqlite::Result<()> {
    for table in tables(metrics) {
        connection.execute_batch(&create(&table))?;
    }
    connection.execute_batch("CREATE UNIQUE INDEX run_ids ON runs(run);")
}

fn create(table: &Table) -> String {
    let columns: Vec<String> = table.columns.iter().map(define).collect();
    let (name, key) = (table.name, table.key.join(", "));
    // Rows lie in the order of their keys: a run's rows beside each other, and no second index. Only `runs` is
    // numbered by the database.
    let tail = if name == "runs" { "" } else { "WITHOUT ROWID" };
    format!("CREATE TABLE {name} ({}, PRIMARY KEY ({key})) {tail};", columns.join(", "))
}

fn define(column: &Column) -> String {
    format!("{} {}", column.name, column.kind.sql())
}

impl Store {
    /// Sets the connection up and brings the tables up to date.
    pub(super) fn prepare(&mut self) -> Result<(), RecordError> {
        let failed = at(&self.path);
        self.connection.busy_timeout(BUSY).map_err(&failed)?;
        self.write_ahead()?;
        // A commit reaches the disk when the log is folded in; a killed process loses nothing that it committed.
        self.connection.pragma_update(None, "synchronous", "NORMAL").map_err(&failed)?;
        let known = MIGRATIONS.len() as i64;
        let found = version(&self.connection).map_err(&failed)?;
        if found > known {
            return Err(RecordError::Newer { path: self.path.clone(), found, known });
        }
        if found < known || !missing(&self.connection, &self.metrics).map_err(&failed)?.is_empty() {
            self.migrate(known).map_err(&failed)?;
        }
        Ok(())
    }

    /// Readers and the writer do not wait for each other. Several processes that make this change at once are
    /// told that the database is busy, whatever the timeout is.
    fn write_ahead(&self) -> Result<(), RecordError> {
        let begun = Instant::now();
        loop {
            let busy = match self.connection.pragma_update(None, "journal_mode", "WAL") {
                Ok(()) => return Ok(()),
                Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => error,
                Err(error) => return Err(at(&self.path)(error)),
            };
            if begun.elapsed() > BUSY {
                return Err(at(&self.path)(busy));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn migrate(&mut self, known: i64) -> rusqlite::Result<()> {
        // Immediate: of several processes one does it, and the others then find it done.
        let change = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for migrate in &MIGRATIONS[version(&change)?.clamp(0, known) as usize..] {
            migrate(&change, &self.metrics)?;
        }
        change.pragma_update(None, "user_version", known)?;
        for statement in missing(&change, &self.metrics)? {
            change.execute_batch(&statement)?;
        }
        for (name, _, query) in VIEWS {
            change.execute_batch(&format!("DROP VIEW IF EXISTS {name}; CREATE VIEW {name} AS {query};"))?;
        }
        change.commit()
    }
}

fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// The columns of a table; `database` is `main`, or what an attached one is called.
pub(super) fn columns(connection: &Connection, database: &str, table: &str) -> rusqlite::Result<Vec<String>> {
    let mut query = connection.prepare("SELECT name FROM pragma_table_info(?, ?)")?;
    query.query_map([table, database], |row| row.get(0))?.collect()
}

/// Statements that make the tables and columns that the registry has and the database has not.
fn missing(connection: &Connection, metrics: &Metrics) -> rusqlite::Result<Vec<String>> {
    let mut statements = Vec::new();
    for table in tables(metrics) {
        let there = columns(connection, "main", table.name)?;
        if there.is_empty() {
            statements.push(create(&table));
            continue;
        }
        let new = table.columns.iter().filter(|c| !there.iter().any(|name| name == c.name));
        statements.extend(new.map(|c| format!("ALTER TABLE {} ADD COLUMN {};", table.name, define(c))));
    }
    Ok(statements)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_of_before_gets_the_columns_that_are_new() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::create(folder.path()).unwrap();
        store
            .connection
            .execute_batch("ALTER TABLE samples DROP COLUMN minor_faults; DROP VIEW cpu;")
            .unwrap();
        store.connection.execute_batch("INSERT INTO samples (run, rank, t_ns) VALUES (1, 0, 5);").unwrap();
        drop(store);
        let store = Store::create(folder.path()).unwrap();
        let kept: (i64, Option<f64>) = store
            .connection
            .query_row("SELECT t_ns, minor_faults FROM samples", [], |row| Ok((row.get(0)?, row.get(1)?)))
            .unwrap();
        assert_eq!(kept, (5, None));
        assert_eq!(columns(&store.connection, "main", "cpu").unwrap().len(), 5);
    }

    #[test]
    fn a_store_of_a_later_program_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::create(folder.path()).unwrap();
        store.connection.pragma_update(None, "user_version", 99).unwrap();
        drop(store);
        let Err(error) = Store::create(folder.path()) else { panic!("it was opened") };
        assert!(error.to_string().contains("later version"), "{error}");
    }

    #[test]
    fn many_who_make_the_same_store_at_once_find_one() {
        let folder = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            let makers: Vec<_> =
                (0..16).map(|_| scope.spawn(|| Store::create(folder.path()).map(drop))).collect();
            makers.into_iter().for_each(|maker| maker.join().unwrap().unwrap());
        });
    }
}
