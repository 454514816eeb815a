//! Runs that were recorded in another store, e.g. on a node of a study.

use std::path::Path;

use rusqlite::{Connection, TransactionBehavior, params};

use super::schema::columns;
use super::{FILE, RecordError, Store, at, run_folder};
use crate::table::tables;

/// What the other store is called while it is read.
const OTHER: &str = "other";

impl Store {
    /// Folds the log of changes into the database, so that its file alone holds everything.
    pub fn fold(self) -> Result<(), RecordError> {
        let fold = self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        fold.map_err(at(&self.path))
    }

    /// Takes over every run of the store in a folder, with the files of its checkpoints; their ids. All of their rows come
    /// or none: a run that is here already is an error.
    pub fn import(&mut self, folder: &Path) -> Result<Vec<String>, RecordError> {
        let (failed, path) = (at(&self.path), folder.join(FILE));
        let name = path.to_string_lossy().into_owned();
        self.connection.execute(&format!("ATTACH DATABASE ? AS {OTHER}"), [name]).map_err(&failed)?;
        let names: Vec<&'static str> = tables(&self.metrics).iter().map(|table| table.name).collect();
        let taken = take_over(&mut self.connection, &names).map_err(at(&path));
        self.connection.execute_batch(&format!("DETACH DATABASE {OTHER}")).map_err(&failed)?;
        let taken = taken?;
        let here = self.path.parent().unwrap_or(Path::new("."));
        for run in &taken {
            let (from, to) = (run_folder(folder, run), run_folder(here, run));
            if from.is_dir() {
                let moved =
                    std::fs::create_dir_all(here.join("runs")).and_then(|()| std::fs::rename(&from, &to));
                moved.map_err(|source| RecordError::File { path: to, source })?;
            }
        }
        Ok(taken)
    }
}

fn take_over(connection: &mut Connection, tables: &[&'static str]) -> rusqlite::Result<Vec<String>> {
    let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut runs: Vec<(i64, String)> = Vec::new();
    {
        let mut query = change.prepare(&format!("SELECT id, run FROM {OTHER}.runs ORDER BY id"))?;
        let found = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        found.into_iter().try_for_each(|one| one.map(|one| runs.push(one)))?;
    }
    // Columns that both have: a program of one's own may have more metrics.
    let shared = |table: &str, key: &str| -> rusqlite::Result<String> {
        let (here, there) = (columns(&change, "main", table)?, columns(&change, OTHER, table)?);
        let both: Vec<String> = here.into_iter().filter(|name| name != key && there.contains(name)).collect();
        Ok(both.join(", "))
    };
    for (id, _) in &runs {
        let all = shared("runs", "id")?;
        change.execute(
            &format!("INSERT INTO main.runs ({all}) SELECT {all} FROM {OTHER}.runs WHERE id = ?"),
            [id],
        )?;
        let new = change.last_insert_rowid();
        for table in tables.iter().filter(|table| **table != "runs") {
            let all = shared(table, "run")?;
            if all.is_empty() {
                // A table that the other store was made without.
                continue;
            }
            let copy = format!(
                "INSERT INTO main.{table} (run, {all}) SELECT ?, {all} FROM {OTHER}.{table} WHERE run = ?"
            );
            change.execute(&copy, params![new, id])?;
        }
    }
    change.commit()?;
    Ok(runs.into_iter().map(|(_, run)| run).collect())
}

#[cfg(test)]
mod tests {
    use super::super::tests::begun;
    use super::*;
    use crate::export::tests::recorded;

    #[test]
    fn a_run_of_another_store_has_all_its_rows_and_files_and_comes_once() {
        let (there, here) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (other, run) = recorded(there.path());
        let before: Vec<usize> = tables(&other.metrics)[1..]
            .iter()
            .map(|t| other.rows(t.name, &run).unwrap().rows.len())
            .collect();
        assert!(before.iter().sum::<usize>() > 10, "{before:?}");
        let saved = run_folder(there.path(), &run.run).join("checkpoints");
        std::fs::create_dir_all(&saved).unwrap();
        std::fs::write(saved.join("manifest"), "x").unwrap();
        other.fold().unwrap();
        // The numbers of runs differ between stores.
        begun(here.path(), "r0").fail("", 1).unwrap();
        let mut store = Store::open(here.path()).unwrap();
        assert_eq!(store.import(there.path()).unwrap(), [run.run.as_str()]);
        let taken = store.find(&run.run).unwrap();
        assert_ne!(taken.id, run.id);
        assert_eq!((&taken.state, &taken.labels), (&run.state, &run.labels));
        let after: Vec<usize> = tables(&store.metrics)[1..]
            .iter()
            .map(|t| store.rows(t.name, &taken).unwrap().rows.len())
            .collect();
        assert_eq!(after, before);
        assert!(run_folder(here.path(), &run.run).join("checkpoints/manifest").is_file());
        store.check().unwrap();
        // A second time is refused, and changes nothing.
        assert!(store.import(there.path()).is_err());
        assert_eq!(store.runs().unwrap().len(), 2);
        let none = tempfile::tempdir().unwrap();
        std::fs::write(none.path().join(FILE), "no database").unwrap();
        assert!(store.import(none.path()).is_err());
        assert_eq!(store.find(&run.run).unwrap().id, taken.id);
    }
}
