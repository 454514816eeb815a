//! Where and with what runs were made, by the store that recorded them: `machine.json`.

use std::fs;
use std::path::Path;

use paceline_plan::Sheet;
use paceline_statistics::distinct;
use rusqlite::{Connection, OpenFlags};
use serde_json::{Value, json};

use crate::process::{self, Outcome};

/// The machine that made the runs of a sheet, as a document. Runs of other programs are not recorded: theirs is the
/// machine of the others in the store, or this one.
pub fn document(store: &Path, runs: &Path) -> Outcome<String> {
    let recorded = recorded(&store.join("paceline.db"))?;
    let sheet = Sheet::read(runs).map_err(|e| format!("{}: {e}", runs.display()))?;
    let column =
        sheet.columns.iter().position(|name| name == "run").ok_or("runs without the column `run`")?;
    let own = |run: &str| sheet.rows.iter().any(|row| row.fields[column] == run);
    let own = distinct(recorded.iter().filter(|(run, _)| own(run)).map(|(_, machine)| machine.clone()));
    let machine = match &own[..] {
        [machine] => machine.clone(),
        [] => recorded.first().map_or_else(here, |(_, machine)| {
            let mut machine = machine.clone();
            machine["lanes"] = 1.into();
            machine
        }),
        several => return Err(format!("{} was made on several machines: {several:?}", runs.display())),
    };
    Ok(serde_json::to_string_pretty(&machine).expect("plain data") + "\n")
}

/// The runs of a store, each with its machine.
fn recorded(path: &Path) -> Outcome<Vec<(String, Value)>> {
    if !path.is_file() {
        return Ok(Vec::new());
    }
    let bad = |e: rusqlite::Error| format!("{}: {e}", path.display());
    let database = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(bad)?;
    let query = "SELECT r.run, h.cpu, h.cores, h.usable_cores, h.kernel, r.version, r.git_commit \
                 FROM runs r JOIN hosts h ON h.run = r.id ORDER BY r.id";
    let machine = |row: &rusqlite::Row<'_>| {
        let text = |i: usize| row.get::<_, Option<String>>(i).map(Option::unwrap_or_default);
        let (cores, usable) = (row.get::<_, i64>(2)?, row.get::<_, i64>(3)?);
        // Runs side by side have their part of the cores each.
        let machine = json!({"cpu": text(1)?, "cores": cores, "kernel": text(4)?, "lanes": cores / usable.max(1),
            "version": text(5)?, "commit": text(6)?});
        Ok((text(0)?, machine))
    };
    let mut statement = database.prepare(query).map_err(bad)?;
    statement.query_map([], machine).and_then(Iterator::collect).map_err(bad)
}

/// This machine, and the commit that is checked out.
fn here() -> Value {
    let mut machine = process::machine();
    machine["kernel"] = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().into();
    machine["lanes"] = 1.into();
    machine["commit"] = process::commit().into();
    machine
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_that_of_the_runs_not_of_who_takes_them_in() {
        let folder = std::env::temp_dir().join(format!("paceline-machine-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let database = Connection::open(folder.join("paceline.db")).unwrap();
        database
            .execute_batch(
                "CREATE TABLE runs (id, run, version, git_commit); CREATE TABLE hosts (run, cpu, cores, usable_cores, kernel);
                 INSERT INTO runs VALUES (1, 'r1', '0.1', 'abc'), (2, 'r2', '0.1', 'abc'), (3, 'r3', '0.1', 'abc');
                 INSERT INTO hosts VALUES (1, 'fast', 16, 5, '6.1'), (2, 'fast', 16, 5, '6.1'), (3, 'other', 2, 2, '6.1')",
            )
            .unwrap();
        let of = |runs: &str| {
            fs::write(folder.join("runs.csv"), runs).unwrap();
            document(&folder, &folder.join("runs.csv"))
        };
        let machine: Value = serde_json::from_str(&of("number,run\r\n0,r1\r\n1,r2\r\n").unwrap()).unwrap();
        assert_eq!((machine["cpu"].as_str(), machine["lanes"].as_i64()), (Some("fast"), Some(3)));
        let machine: Value = serde_json::from_str(&of("number,run\r\n0,\r\n").unwrap()).unwrap();
        assert_eq!((machine["cpu"].as_str(), machine["lanes"].as_i64()), (Some("fast"), Some(1)));
        assert!(of("number,run\r\n0,r1\r\n1,r3\r\n").unwrap_err().contains("several machines"));
        fs::remove_dir_all(&folder).unwrap();
    }
}
