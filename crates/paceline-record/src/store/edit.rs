//! Changes to runs that were recorded: names, tags and notes; archiving and deleting.

use std::path::{Component, Path, PathBuf};

use rusqlite::{Connection, TransactionBehavior, params};

use super::{RecordError, RunRow, Store, at, run_folder};
use crate::process::realtime_ns;
use crate::table::tables;

/// A change of a run's labels. What is absent stays; an empty text takes the name or the note away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunEdit {
    /// Another name.
    pub name: Option<String>,
    /// Another note.
    pub note: Option<String>,
    /// Tags that it gets.
    pub tags: Vec<String>,
    /// Tags that it loses.
    pub untag: Vec<String>,
    /// Whether lists leave it out.
    pub archived: Option<bool>,
}

/// What deleting a run takes away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct RunRemains {
    /// Rows of all tables.
    pub rows: u64,
    /// Files of its checkpoints.
    pub files: u64,
    /// Bytes of these files.
    pub file_bytes: u64,
}

impl Store {
    /// Changes what people call a run; the run as it is then. A run under way can be edited too.
    pub fn edit(&mut self, run: &RunRow, edit: &RunEdit) -> Result<RunRow, RecordError> {
        let failed = at(&self.path);
        // One transaction: of two who tag a run at once, both do.
        let change =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(&failed)?;
        let mut row = super::read::by_id(&change, run.id).map_err(&failed)?.ok_or_else(|| missing(run))?;
        let given = |old: Option<String>, new: &Option<String>| match new {
            Some(text) => Some(text.clone()).filter(|text| !text.is_empty()),
            None => old,
        };
        let labels = &mut row.labels;
        labels.name = given(labels.name.take(), &edit.name);
        labels.note = given(labels.note.take(), &edit.note);
        labels.add_tags(&edit.tags);
        labels.tags.retain(|tag| !edit.untag.contains(tag));
        row.archived = edit.archived.unwrap_or(row.archived);
        let now = realtime_ns() as f64 * 1e-9;
        let update = "UPDATE runs SET name = ?, tags = ?, note = ?, archived = ?, edited_s = ? WHERE id = ?";
        let labels = &row.labels;
        let values = params![labels.name, labels.tags_json(), labels.note, row.archived, now, run.id];
        change.execute(update, values).map_err(&failed)?;
        change.commit().map_err(&failed)?;
        Ok(row)
    }

    /// What deleting a run would take away.
    pub fn remains(&self, run: &RunRow) -> Result<RunRemains, RecordError> {
        let (files, file_bytes) = self.files_of(run).map_or((0, 0), |folder| files(&folder));
        let mut rows = 0;
        for sql in self.of_run("SELECT count(*) FROM") {
            let count = self.connection.query_row(&sql, [run.id], |row| row.get::<_, i64>(0));
            rows += count.map_err(at(&self.path))? as u64;
        }
        Ok(RunRemains { rows, files, file_bytes })
    }

    /// Deletes a run: its rows in every table, and its checkpoints. One that is under way is refused.
    pub fn delete(&mut self, run: &RunRow) -> Result<(), RecordError> {
        let failed = at(&self.path);
        let (folder, statements) = (self.files_of(run), self.of_run("DELETE FROM"));
        let change =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(&failed)?;
        let row = super::read::by_id(&change, run.id).map_err(&failed)?.ok_or_else(|| missing(run))?;
        if row.state == "running" {
            return Err(RecordError::Running { run: row.run, pid: row.pid, host: row.host });
        }
        let delete =
            |c: &Connection| statements.iter().try_for_each(|sql| c.execute(sql, [run.id]).map(drop));
        delete(&change).map_err(&failed)?;
        // Files go before the rows are gone for good: what fails in between can be done again.
        if let Some(folder) = folder {
            std::fs::remove_dir_all(&folder).map_err(|source| RecordError::File { path: folder, source })?;
        }
        change.commit().map_err(&failed)
    }

    /// The folder of its files; none where its id is no name of one, as in a store that somebody has written to.
    fn files_of(&self, run: &RunRow) -> Option<PathBuf> {
        let mut parts = Path::new(&run.run).components();
        let plain = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
        Some(run_folder(self.path.parent()?, &run.run)).filter(|folder| plain && folder.exists())
    }

    /// A statement per table, of the rows of one run.
    fn of_run(&self, what: &str) -> Vec<String> {
        let key = |name: &str| if name == "runs" { "id" } else { "run" };
        let statement = |name: &str| format!("{what} {name} WHERE {} = ?", key(name));
        tables(&self.metrics).iter().map(|table| statement(table.name)).collect()
    }
}

fn missing(run: &RunRow) -> RecordError {
    RecordError::Which { problem: format!("run {} is deleted already", run.run) }
}

/// Number and bytes of the files below a folder.
fn files(folder: &Path) -> (u64, u64) {
    let mut sum = (0, 0);
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let (files, bytes) = match entry.metadata() {
            Ok(found) if found.is_dir() => files(&entry.path()),
            Ok(found) => (1, found.len()),
            Err(_) => continue,
        };
        sum = (sum.0 + files, sum.1 + bytes);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::super::tests::{begun, begun_as};
    use super::*;
    use crate::export::tests::recorded;
    use crate::store::RunLabels;

    #[test]
    fn labels_are_given_at_the_start_and_edited_later() {
        let folder = tempfile::tempdir().unwrap();
        let labels = RunLabels {
            name: Some("first".into()),
            tags: vec!["a".into(), "b".into()],
            note: Some("a \"note\"".into()),
            study: Some("s".into()),
            workload: Some("mnist".into()),
            command: Some("paceline train --seed 1".into()),
        };
        let record = begun_as(folder.path(), "r1", &labels);
        let mut store = Store::open(folder.path()).unwrap();
        let run = store.find("first").unwrap();
        assert_eq!((&run.labels, run.archived), (&labels, false));
        // Also while the run is under way: whoever records it does not undo that.
        let edit = RunEdit {
            name: Some("second".into()),
            note: Some(String::new()),
            tags: vec!["c".into()],
            untag: vec!["a".into()],
            archived: Some(true),
        };
        let edited = store.edit(&run, &edit).unwrap();
        record.fail("enough", 1).unwrap();
        let read = store.find("second").unwrap();
        assert_eq!(edited.labels, read.labels);
        let expected = RunLabels {
            name: Some("second".into()),
            tags: vec!["b".into(), "c".into()],
            note: None,
            ..labels.clone()
        };
        assert_eq!((read.labels, read.archived), (expected, true));
        assert_eq!(
            store.edit(&run, &RunEdit::default()).unwrap().labels,
            edited.labels,
            "nothing is nothing"
        );
    }

    #[test]
    fn a_name_means_one_run_or_says_which_there_are() {
        let folder = tempfile::tempdir().unwrap();
        let names = [("ra1", "base"), ("ra2", "base"), ("rb1", "other"), ("rb2", "other-2"), ("rb3", "ra1")];
        for (run, name) in names {
            let labels = RunLabels { name: Some(name.into()), ..RunLabels::default() };
            begun_as(folder.path(), run, &labels).fail("", 1).unwrap();
        }
        let store = Store::open(folder.path()).unwrap();
        let found = |name: &str| store.find(name).map(|run| run.run).map_err(|error| error.to_string());
        assert_eq!(found("other").as_deref(), Ok("rb1"), "a whole name wins");
        assert_eq!(found("other-").as_deref(), Ok("rb2"));
        assert_eq!(found("ra1").as_deref(), Ok("ra1"), "an id wins over a name");
        assert_eq!(found("base").unwrap_err(), "base could be ra1 (base), ra2 (base)");
        assert!(
            found("r").unwrap_err().contains("ra1 (base), ra2 (base), rb1 (other), rb2 (other-2), rb3 (ra1)")
        );
        assert!(found("nobody").unwrap_err().starts_with("no run is called nobody"));
    }

    #[test]
    fn archived_runs_are_no_longer_the_last() {
        let folder = tempfile::tempdir().unwrap();
        for run in ["r1", "r2"] {
            begun(folder.path(), run).fail("", 1).unwrap();
        }
        let mut store = Store::open(folder.path()).unwrap();
        let last = store.find("last").unwrap();
        store.edit(&last, &RunEdit { archived: Some(true), ..RunEdit::default() }).unwrap();
        assert_eq!((last.run.as_str(), store.find("last").unwrap().run.as_str()), ("r2", "r1"));
    }

    #[test]
    fn a_deleted_run_leaves_neither_rows_nor_files_and_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let (mut store, gone) = recorded(folder.path());
        begun(folder.path(), "r2").fail("", 1).unwrap();
        for run in ["r1", "r2"] {
            std::fs::create_dir_all(run_folder(folder.path(), run).join("step-1")).unwrap();
            std::fs::write(run_folder(folder.path(), run).join("step-1/rank0"), [0; 10]).unwrap();
        }
        let remains = store.remains(&gone).unwrap();
        assert!(remains.rows > 10, "{remains:?}");
        assert_eq!((remains.files, remains.file_bytes), (1, 10));
        store.delete(&gone).unwrap();
        assert_eq!(store.remains(&gone).unwrap(), RunRemains::default());
        assert!(!run_folder(folder.path(), "r1").exists() && run_folder(folder.path(), "r2").exists());
        assert_eq!(store.runs().unwrap().len(), 1);
        assert!(store.delete(&gone).unwrap_err().to_string().contains("deleted already"));
        assert_eq!(store.ids().unwrap().len(), 1);
    }

    #[test]
    fn a_run_under_way_is_not_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let record = begun(folder.path(), "r1");
        let mut store = Store::open(folder.path()).unwrap();
        let run = store.find("r1").unwrap();
        assert!(matches!(store.delete(&run), Err(RecordError::Running { .. })));
        record.fail("enough", 1).unwrap();
        // What was read before decides nothing: by now it has ended.
        store.delete(&run).unwrap();
    }
}
