//! What was recorded.

use std::collections::HashSet;

use paceline_plan::Plan;
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Params, Row, params};

use super::labels::RunLabels;
use super::{RecordError, Store, at};
use crate::event::{MembershipChange, RunResult};
use crate::figures::RunFigure;
use crate::process::realtime_ns;
use crate::site::alive;
use crate::table::{Table, tables};

/// A run, as its row says.
#[derive(Clone, Debug)]
pub struct RunRow {
    /// Its number in the store.
    pub id: i64,
    /// Its id.
    pub run: String,
    /// `running`, `ok`, `failed`, `interrupted` or `lost`.
    pub state: String,
    /// `measured` or `simulated`.
    pub origin: String,
    /// When it began, in seconds since 1970.
    pub started_s: f64,
    /// When it last wrote, in seconds since 1970.
    pub seen_s: f64,
    /// When it ended.
    pub ended_s: Option<f64>,
    /// How often it was started.
    pub attempts: u64,
    /// The machine of its launcher.
    pub host: String,
    /// Its launcher's process.
    pub pid: u32,
    /// Its plan.
    pub plan: Option<Plan>,
    /// Steps of the whole run.
    pub steps: Option<u64>,
    /// Steps done.
    pub steps_done: u64,
    /// Samples done.
    pub samples_done: Option<u64>,
    /// Training clock.
    pub train_s: Option<f64>,
    /// Mean loss of the last step.
    pub train_loss: Option<f64>,
    /// Accuracy of the last evaluation.
    pub accuracy: Option<f64>,
    /// Its result.
    pub result: Option<RunResult>,
    /// Why it failed.
    pub error: Option<String>,
    /// Rows that are missing.
    pub dropped_rows: u64,
    /// CPU time of the launcher.
    pub launcher_cpu_s: Option<f64>,
    /// Version, commit and compiler of the program.
    pub build: [String; 3],
    /// What people call it, and where it belongs.
    pub labels: RunLabels,
    /// Whether lists leave it out.
    pub archived: bool,
}

impl RunRow {
    /// Samples per second of the training clock so far.
    pub fn samples_per_s(&self) -> Option<f64> {
        self.samples_done.zip(self.train_s).filter(|(_, s)| *s > 0.0).map(|(n, s)| n as f64 / s)
    }

    /// What was run, in words; empty where its plan cannot be read.
    pub fn what(&self) -> String {
        let Some(plan) = &self.plan else { return String::new() };
        let counted = |n, one| if n == 1 { format!("{n} {one}") } else { format!("{n} {one}s") };
        let servers = match plan.servers {
            0 => String::new(),
            servers => format!(" and {}", counted(servers, "server")),
        };
        let (path, workers) =
            (format!("{} ({})", plan.averaging(), plan.sync), counted(plan.workers, "worker"));
        // How many samples a script takes is its own affair.
        let batch = if plan.script.is_some() { String::new() } else { format!(", batch {}", plan.batch) };
        format!("{}, {path}, {workers}{servers}{batch}", plan.subject())
    }

    /// A figure of its result, or what is known of it so far.
    pub fn figure(&self, figure: &RunFigure) -> Option<f64> {
        match (&self.result, figure.name) {
            (Some(result), _) => figure.read?(result),
            (None, "samples_per_s") => self.samples_per_s(),
            (None, "final_accuracy") => self.accuracy,
            (None, "train_loss") => self.train_loss,
            (None, "seconds.train") => self.train_s,
            (None, "steps") => Some(self.steps_done as f64),
            _ => None,
        }
    }
}

const COLUMNS: &str = "id, run, state, started_s, seen_s, ended_s, plan, steps, steps_done, samples_done, train_s, \
                       train_loss, accuracy, result, error, dropped_rows, launcher_cpu_s, version, git_commit, rustc, \
                       attempts, host, pid, origin, name, tags, note, study, workload, command, archived";

fn run_row(row: &Row<'_>) -> rusqlite::Result<RunRow> {
    let count = |i: usize| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(i)?.map(|n| n as u64));
    let text = |i: usize| row.get::<_, Option<String>>(i);
    let json = |i: usize| Ok::<_, rusqlite::Error>(text(i)?.unwrap_or_default());
    Ok(RunRow {
        id: row.get(0)?,
        run: row.get(1)?,
        state: row.get(2)?,
        started_s: row.get(3)?,
        seen_s: row.get(4)?,
        ended_s: row.get(5)?,
        // A plan or result of another version of the program may not be readable by this one.
        plan: serde_json::from_str(&json(6)?).ok(),
        steps: count(7)?,
        steps_done: count(8)?.unwrap_or(0),
        samples_done: count(9)?,
        train_s: row.get(10)?,
        train_loss: row.get(11)?,
        accuracy: row.get(12)?,
        result: serde_json::from_str(&json(13)?).ok(),
        error: text(14)?,
        dropped_rows: count(15)?.unwrap_or(0),
        launcher_cpu_s: row.get(16)?,
        build: [json(17)?, json(18)?, json(19)?],
        attempts: count(20)?.unwrap_or(1),
        host: json(21)?,
        pid: row.get::<_, Option<u32>>(22)?.unwrap_or(0),
        origin: json(23)?,
        labels: RunLabels {
            name: text(24)?,
            tags: serde_json::from_str(&json(25)?).unwrap_or_default(),
            note: text(26)?,
            study: text(27)?,
            workload: text(28)?,
            command: text(29)?,
        },
        archived: row.get::<_, Option<bool>>(30)?.unwrap_or(false),
    })
}

/// Rows of one table that belong to one run.
#[derive(Clone, Debug)]
pub struct TableRows {
    /// The table.
    pub table: Table,
    /// Values in the order of its columns.
    pub rows: Vec<Vec<Value>>,
}

impl TableRows {
    /// Where a column is.
    pub fn column(&self, name: &str) -> usize {
        let at = self.table.columns.iter().position(|c| c.name == name);
        at.unwrap_or_else(|| panic!("{} has no column {name}", self.table.name))
    }

    /// A column's numbers; none where there is no value.
    pub fn numbers(&self, name: &str) -> Vec<Option<f64>> {
        let at = self.column(name);
        self.rows.iter().map(|row| number(&row[at])).collect()
    }

    /// A column's words; none where there is no value.
    pub fn texts(&self, name: &str) -> Vec<Option<String>> {
        let at = self.column(name);
        let text = |value: &Value| if let Value::Text(text) = value { Some(text.clone()) } else { None };
        self.rows.iter().map(|row| text(&row[at])).collect()
    }
}

/// A value as a number.
pub fn number(value: &Value) -> Option<f64> {
    match *value {
        Value::Integer(n) => Some(n as f64),
        Value::Real(n) => Some(n),
        _ => None,
    }
}

/// The run of a number, if it is there.
pub(super) fn by_id(connection: &Connection, id: i64) -> rusqlite::Result<Option<RunRow>> {
    let sql = format!("SELECT {COLUMNS} FROM runs WHERE id = ?");
    connection.query_row(&sql, [id], run_row).optional()
}

/// Candidates that an ambiguous name is told with.
const CANDIDATES: usize = 5;

/// Stands for the latest run.
pub(super) const LAST: &str = "last";

/// What a name that fits several runs could mean.
fn candidates(text: &str, found: &[RunRow]) -> RecordError {
    let called = |run: &RunRow| match &run.labels.name {
        Some(name) => format!("{} ({name})", run.run),
        None => run.run.clone(),
    };
    let mut names: Vec<String> = found.iter().take(CANDIDATES).map(called).collect();
    if found.len() > CANDIDATES {
        names.push("…".into());
    }
    RecordError::Which { problem: format!("{text} could be {}", names.join(", ")) }
}

impl Store {
    /// What `read` makes of each row that a query gives.
    fn query<T>(
        &self,
        sql: &str,
        values: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, RecordError> {
        let all =
            |c: &Connection| c.prepare(sql)?.query_map(values, read)?.collect::<rusqlite::Result<Vec<T>>>();
        all(&self.connection).map_err(at(&self.path))
    }

    /// All runs, the latest last.
    pub fn runs(&self) -> Result<Vec<RunRow>, RecordError> {
        self.query(&format!("SELECT {COLUMNS} FROM runs ORDER BY id"), [], run_row)
    }

    /// The numbers of all runs: others are deleted.
    pub fn ids(&self) -> Result<HashSet<i64>, RecordError> {
        Ok(self.query("SELECT id FROM runs", [], |row| row.get(0))?.into_iter().collect())
    }

    /// Runs that have written or were edited since a time (in seconds since 1970), and those of these numbers; the
    /// latest last.
    pub fn runs_since(&self, seen_s: f64, also: &[i64]) -> Result<Vec<RunRow>, RecordError> {
        let also = also.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let sql = format!(
            "SELECT {COLUMNS} FROM runs WHERE seen_s >= ?1 OR edited_s >= ?1 OR id IN ({also}) ORDER BY id"
        );
        self.query(&sql, [seen_s], run_row)
    }

    /// A number that is another one once somebody else has written.
    pub fn version(&self) -> Result<i64, RecordError> {
        let version = self.connection.pragma_query_value(None, "data_version", |row| row.get(0));
        version.map_err(at(&self.path))
    }

    /// The run of this id or name, or the only one whose id or name begins so; `last` is the latest.
    pub fn find(&self, text: &str) -> Result<RunRow, RecordError> {
        let sql = |condition: &str| format!("SELECT {COLUMNS} FROM runs {condition}");
        if text == LAST {
            let sql = sql("ORDER BY coalesce(archived, 0), id DESC LIMIT 1");
            let last = self.connection.query_row(&sql, [], run_row).optional();
            let empty = || RecordError::Empty { path: self.path.clone() };
            return last.map_err(at(&self.path))?.ok_or_else(empty);
        }
        let begins = "substr(run, 1, length(?1)) = ?1 OR substr(name, 1, length(?1)) = ?1";
        let exact_first = "run = ?1 DESC, coalesce(name = ?1, 0) DESC, id";
        let sql = sql(&format!("WHERE {begins} ORDER BY {exact_first} LIMIT {}", CANDIDATES + 1));
        let mut found = self.query(&sql, [text], run_row)?;
        let called = |run: &&RunRow| run.labels.name.as_deref() == Some(text);
        match (found.iter().filter(called).count(), found.len()) {
            (_, 0) => {
                let problem = format!("no run is called {text} in {}", self.path.display());
                Err(RecordError::Which { problem })
            }
            (_, 1) | (1, _) => Ok(found.remove(0)),
            _ if found[0].run == text => Ok(found.remove(0)),
            (0, _) => Err(candidates(text, &found)),
            (same, _) => Err(candidates(text, &found[..same])),
        }
    }

    /// A table's rows of a run, in the order of their keys.
    pub fn rows(&self, table: &str, run: &RunRow) -> Result<TableRows, RecordError> {
        let table = tables(&self.metrics)
            .into_iter()
            .find(|t| t.name == table)
            .expect("only tables of the registry are asked for");
        let names: Vec<&str> = table.columns.iter().map(|c| c.name).collect();
        let key = if table.name == "runs" { "id" } else { "run" };
        let sql = format!(
            "SELECT {} FROM {} WHERE {key} = ? ORDER BY {}",
            names.join(", "),
            table.name,
            table.key.join(", ")
        );
        let width = names.len();
        let rows = self.query(&sql, [run.id], |row| (0..width).map(|i| row.get(i)).collect())?;
        Ok(TableRows { table, rows })
    }

    /// Numbers that a query gives for a run (its only parameter); what is none is left out as NaN.
    pub fn numbers(&self, sql: &str, run: &RunRow) -> Result<Vec<Vec<f64>>, RecordError> {
        self.query(sql, [run.id], |row| {
            (0..row.as_ref().column_count())
                .map(|i| Ok(number(&row.get::<_, Value>(i)?).unwrap_or(f64::NAN)))
                .collect()
        })
    }

    /// The documents of a run's events of these types, in their order.
    pub fn events(&self, run: &RunRow, types: &[&str]) -> Result<Vec<String>, RecordError> {
        let places = vec!["?"; types.len()].join(", ");
        let sql = format!("SELECT event FROM events WHERE run = ? AND type IN ({places}) ORDER BY n");
        let id = run.id.to_string();
        let values = std::iter::once(id.as_str()).chain(types.iter().copied());
        self.query(&sql, rusqlite::params_from_iter(values), |row| row.get(0))
    }

    /// The changes of a run's members, in their order; none in stores of programs that had no such runs.
    pub fn membership(&self, run: &RunRow) -> Result<Vec<MembershipChange>, RecordError> {
        let told = self.events(run, &["membership"])?;
        let change = |text: &String| {
            let event: serde_json::Value = serde_json::from_str(text).ok()?;
            serde_json::from_value(event["change"].clone()).ok()
        };
        let told: Vec<_> = told.iter().filter_map(change).collect();
        // In virtual time they are in the result alone.
        let result = || run.result.as_ref().map_or_else(Vec::new, |result| result.membership.clone());
        Ok(if told.is_empty() { result() } else { told })
    }

    /// Whether the database is whole.
    pub fn check(&self) -> Result<(), RecordError> {
        let said = self.connection.query_row("PRAGMA integrity_check", [], |row| row.get::<_, String>(0));
        match said.map_err(at(&self.path))? {
            said if said == "ok" => Ok(()),
            problem => Err(RecordError::Damaged { path: self.path.clone(), problem }),
        }
    }

    /// Runs whose process has died without a word are lost, from the moment that they last wrote; how many are new.
    pub fn note_the_lost(&mut self) -> Result<usize, RecordError> {
        let (failed, mut noted) = (at(&self.path), 0);
        let looked_at = |r: &Row<'_>| {
            let (host, boot) = (r.get::<_, String>(1)?, r.get::<_, String>(2)?);
            Ok((r.get(0)?, alive(&host, &boot, r.get(3)?, r.get::<_, i64>(4)? as u64)))
        };
        let running = "SELECT id, host, boot_id, pid, pid_started FROM runs WHERE state = 'running'";
        let running: Vec<(i64, _)> = self.query(running, [], looked_at)?;
        for (id, alive) in running {
            if alive == Some(false) {
                // It may have ended between the two looks: then its own word counts.
                noted += self
                    .connection
                    .execute(
                        "UPDATE runs SET state = 'lost', ended_s = seen_s, \
                         error = 'its process died without a word' WHERE id = ? AND state = 'running'",
                        params![id],
                    )
                    .map_err(&failed)?;
            }
        }
        Ok(noted)
    }
}

impl RunRow {
    /// Seconds since it began, or that it took.
    pub fn age_s(&self) -> f64 {
        self.ended_s.unwrap_or_else(|| realtime_ns() as f64 * 1e-9) - self.started_s
    }
}
