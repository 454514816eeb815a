//! The record of a run under way, as its launcher sees it. Events are taken at once; a thread writes them, a
//! transaction at a time, so that the launcher does not wait for a disk.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use paceline_plan::Plan;
use rusqlite::{Connection, OpenFlags, OptionalExtension, params};

use super::labels::RunLabels;
use super::write::{End, Job, Writer};
use super::{BUSY, RecordError, Store, at};
use crate::event::{Event, EventLine, RunOrigin, RunResult, SCHEMA};
use crate::metric::Metrics;
use crate::process::{monotonic_ns, realtime_ns};
use crate::row::Batch;
use crate::site::RunEnvironment;

/// Most rows that may wait for the disk; further ones are dropped and counted.
const QUEUE: usize = 400_000;

/// How the program was built.
#[derive(Clone, Copy, Debug)]
pub struct Build {
    /// Its version.
    pub version: &'static str,
    /// The commit.
    pub commit: &'static str,
    /// The compiler.
    pub rustc: &'static str,
}

/// A run that begins.
#[derive(Clone, Copy, Debug)]
pub struct NewRun<'a> {
    /// Its id.
    pub id: &'a str,
    /// Its plan.
    pub plan: &'a Plan,
    /// What people call it, and where it belongs.
    pub labels: &'a RunLabels,
    /// Whether it is measured, or made in virtual time.
    pub origin: RunOrigin,
}

/// Is told each event, as a line of JSON, once it is stored.
pub type EventSink = Box<dyn FnMut(&str) + Send>;

/// The record of a run under way. A record that is dropped without an end says that the run failed.
pub struct Record {
    path: PathBuf,
    run: String,
    /// Space that the run's end can still be written to when the disk is full.
    reserve: Option<File>,
    origin: RunOrigin,
    /// The zero of the run's clock, in nanoseconds of `CLOCK_MONOTONIC`: of a run that goes on it may lie before
    /// the machine's start.
    began_ns: i64,
    /// Whether somebody is told of what is stored.
    tells: bool,
    to: Option<Sender<Job>>,
    /// Rows that wait for the disk.
    queued: Arc<AtomicUsize>,
    dropped: u64,
    /// Rows that each rank had no room for, since the run was last started.
    dropped_by_rank: HashMap<usize, u64>,
    writer: Option<JoinHandle<Result<(), RecordError>>>,
    /// Why nothing is written any more.
    failed: Option<RecordError>,
}

struct Beginning {
    id: i64,
    began_ns: i64,
    /// Which start of the run this is, from 1.
    attempt: i64,
    /// Events that are there already.
    events: i64,
    dropped: u64,
}

impl Record {
    /// Begins the record of a run; what it is about is stored when this returns.
    pub fn create(
        folder: &Path,
        new: &NewRun<'_>,
        build: Build,
        metrics: &Metrics,
        told: Option<EventSink>,
    ) -> Result<Self, RecordError> {
        let store = Store::create_with(folder, metrics)?;
        store.check_quickly()?;
        let site = RunEnvironment::own();
        let beginning = begin(&store.connection, new, build, &site).map_err(at(&store.path))?;
        Self::start(store, new.id, site, new.plan, beginning, told, new.origin)
    }

    /// Goes on with the record of a run that did not end well and is not under way.
    pub fn reopen(
        folder: &Path,
        run: &str,
        (plan, command): (&Plan, Option<&str>),
        build: Build,
        metrics: &Metrics,
        told: Option<EventSink>,
    ) -> Result<Self, RecordError> {
        let store = Store::open_with(folder, metrics)?;
        store.check_quickly()?;
        let site = RunEnvironment::own();
        let Some(beginning) =
            go_on(&store.connection, run, (plan, command), build, &site).map_err(at(&store.path))?
        else {
            let there = store.find(run)?;
            let problem = match there.state.as_str() {
                "running" => format!("run {run} is under way: process {} on {}", there.pid, there.host),
                _ if there.origin == "simulated" => {
                    format!("run {run} was made in virtual time: simulate it again")
                }
                state => format!("run {run} cannot go on, it is {state}"),
            };
            return Err(RecordError::Which { problem });
        };
        Self::start(store, run, site, plan, beginning, told, RunOrigin::Measured)
    }

    fn start(
        store: Store,
        run: &str,
        site: RunEnvironment,
        plan: &Plan,
        beginning: Beginning,
        told: Option<EventSink>,
        origin: RunOrigin,
    ) -> Result<Self, RecordError> {
        let Beginning { id, began_ns, attempt, events, dropped } = beginning;
        let Store { connection, path, metrics } = store;
        let (to, jobs) = channel();
        let queued = Arc::new(AtomicUsize::new(0));
        let tells = told.is_some();
        let writer = Writer {
            file: file_id(&path)?,
            connection,
            run: id,
            // Rows of virtual time are on a clock that begins with the run.
            began_ns: if origin == RunOrigin::Simulated { 0 } else { began_ns },
            attempt,
            site,
            workers: plan.workers,
            servers: plan.servers,
            hosts: HashMap::new(),
            told_steps: HashSet::new(),
            events,
            sql: super::write::Sql::new(&metrics),
            queued: Arc::clone(&queued),
            told,
        };
        let failed = |source| RecordError::File { path: path.clone(), source };
        let named = path.clone();
        let writer = std::thread::Builder::new()
            .name("store".into())
            .spawn(move || writer.work(&jobs, &named))
            .map_err(failed)?;
        Ok(Self {
            reserve: reserve(&path, run),
            run: run.to_owned(),
            path,
            origin,
            began_ns,
            tells,
            to: Some(to),
            queued,
            dropped,
            dropped_by_rank: HashMap::new(),
            writer: Some(writer),
            failed: None,
        })
    }

    /// The database.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn now(&self) -> i64 {
        monotonic_ns() as i64 - self.began_ns
    }

    /// Takes an event; never waits for the disk, but for pauses, in which nobody trains.
    pub fn event(&mut self, event: &Event<'_>) {
        let at_ns = self.now();
        let marked = EventLine { what: event, origin: self.origin };
        let text = || serde_json::to_string(&marked).expect("an event is plain data");
        let job = match *event {
            Event::Progress { step, samples, train_s, train_loss } => {
                let text = self.tells.then(text);
                return self.push(Job::Progress { step, samples, train_s, train_loss, text });
            }
            Event::Batch { rank, batch } => return self.batch(rank, batch),
            Event::Paused => return self.sync(),
            // The end stores it.
            Event::Result(_) | Event::Bound { .. } => return,
            Event::Start { parameters, steps, ref kernels, .. } => {
                Some(Job::Start { parameters, steps, kernels: kernels.clone() })
            }
            Event::Evaluation { step, samples, train_s, loss, accuracy } => {
                Some(Job::Evaluation { at_ns, step, samples, train_s, loss, accuracy })
            }
            Event::Phases { rank, ref wait_for_s, .. } => {
                Some(Job::Waits { rank, seconds: wait_for_s.clone() })
            }
            Event::Checkpoint { step } => Some(Job::Saved { step }),
            Event::Restarted { step, .. } => {
                // New processes count from nothing.
                self.dropped += std::mem::take(&mut self.dropped_by_rank).values().sum::<u64>();
                Some(Job::Restarted { step })
            }
            Event::Waiting { .. } | Event::Host { .. } | Event::Liveness { .. } => None,
            Event::Attached { .. }
            | Event::Devices { .. }
            | Event::Script { .. }
            | Event::ScriptWait { .. } => None,
            Event::Reported { .. } | Event::Staging { .. } => None,
            Event::Refused { .. } | Event::Failed { .. } | Event::Membership { .. } => None,
        };
        self.push(Job::Event { at_ns, text: text(), reported: true });
        job.into_iter().for_each(|job| self.push(job));
    }

    fn batch(&mut self, rank: usize, batch: &Batch) {
        self.dropped_by_rank.insert(rank, batch.dropped);
        if self.queued.load(Ordering::Relaxed) + batch.rows() > QUEUE {
            self.dropped += batch.rows() as u64;
            return;
        }
        self.queued.fetch_add(batch.rows(), Ordering::Relaxed);
        self.push(Job::Batch { rank, batch: Box::new(batch.clone()) });
    }

    /// Waits until everything so far is stored: a checkpoint never has steps behind it that the record lacks.
    fn sync(&self) {
        let (done, stored) = channel();
        self.push(Job::Sync(done));
        // A writer that has failed answers by going away.
        let _ = stored.recv();
    }

    fn push(&self, job: Job) {
        if let Some(to) = &self.to {
            // A writer that has failed is asked why, at the latest at the end.
            let _ = to.send(job);
        }
    }

    /// Rows that there was no room for, in the ranks and here.
    pub fn dropped(&self) -> u64 {
        self.dropped + self.dropped_by_rank.values().sum::<u64>()
    }

    /// Why nothing is written any more, told once: the run goes on without a record, and ends with this error.
    pub fn trouble(&mut self) -> Option<&RecordError> {
        if self.failed.is_some() || !self.writer.as_ref().is_some_and(JoinHandle::is_finished) {
            return None;
        }
        self.to = None;
        self.failed = self.join().err();
        self.failed.as_ref()
    }

    fn join(&mut self) -> Result<(), RecordError> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        writer.join().unwrap_or_else(|_| Err(RecordError::Writer { path: self.path.clone() }))
    }

    /// The run has ended well: when this returns, everything is stored where others find it.
    pub fn finish(mut self, result: &RunResult) -> Result<(), RecordError> {
        let marked = EventLine { what: &Event::Result(result.clone()), origin: self.origin };
        let text = serde_json::to_string(&marked).expect("a result is plain data");
        // The caller prints the result's line, after everything else.
        self.push(Job::Event { at_ns: self.now(), text, reported: false });
        self.end("ok", Some(result.clone()), None, 0)?;
        self.verify()
    }

    /// The run has failed, or was interrupted.
    pub fn fail(mut self, error: &str, exit_code: u8) -> Result<(), RecordError> {
        let state = if exit_code == INTERRUPTED { "interrupted" } else { "failed" };
        self.end(state, None, Some(error.to_owned()), exit_code)
    }

    fn end(
        &mut self,
        state: &'static str,
        result: Option<RunResult>,
        error: Option<String>,
        exit_code: u8,
    ) -> Result<(), RecordError> {
        let end = End { state, result, error: error.clone(), exit_code, dropped: self.dropped() };
        self.push(Job::End(Box::new(end)));
        self.to = None;
        let ended = self.failed.take().map_or_else(|| self.join(), Err);
        self.reserve = None;
        if let Err(problem) = &ended {
            let unwritten = || (format!("its record could not be written: {problem}"), STORAGE);
            let (error, exit_code) = error.map_or_else(unwritten, |error| (error, exit_code));
            // The store may take this or not: `problem` is told in either case.
            let _ = self.write_end(state, &error, exit_code);
        }
        ended
    }

    /// Whether a reader finds the run in the store, and that it ended well.
    fn verify(&self) -> Result<(), RecordError> {
        let failed = at(&self.path);
        let store =
            Store { connection: self.reopened()?, path: self.path.clone(), metrics: Metrics::default() };
        let row = "SELECT state FROM runs WHERE run = ?";
        let found: Option<String> = store
            .connection
            .query_row(row, params![self.run], |row| row.get(0))
            .optional()
            .map_err(failed)?;
        match found {
            Some(found) if found == "ok" => store.check_quickly(),
            _ => Err(RecordError::Gone { path: self.path.clone() }),
        }
    }

    /// Writes the end of a run whose writer has failed, and nothing else.
    fn write_end(&self, state: &str, error: &str, exit_code: u8) -> Result<(), RecordError> {
        let state = if state == "ok" { "failed" } else { state };
        let connection = self.reopened()?;
        let row = "UPDATE runs SET state = ?, error = ?, exit_code = ?, ended_s = ?4, seen_s = ?4 \
                   WHERE run = ?5 AND state = 'running'";
        let now = realtime_ns() as f64 * 1e-9;
        connection.execute(row, params![state, error, exit_code, now, self.run]).map_err(at(&self.path))?;
        Ok(())
    }

    /// The database as a reader would open it now.
    fn reopened(&self) -> Result<Connection, RecordError> {
        if !self.path.exists() {
            return Err(RecordError::Gone { path: self.path.clone() });
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags).map_err(at(&self.path))?;
        connection.busy_timeout(BUSY).map_err(at(&self.path))?;
        Ok(connection)
    }
}

/// Bytes that the end of a run takes in the log ahead of the database, at most.
const RESERVE: u64 = 256 << 10;

/// Takes space on the store's disk. The file has no name, so that nothing is left behind.
fn reserve(database: &Path, run: &str) -> Option<File> {
    let path = database.with_file_name(format!(".reserve-{run}"));
    let file = File::create_new(&path).ok()?;
    std::fs::remove_file(&path).ok()?;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, RESERVE).ok()?;
    Some(file)
}

/// Device and inode of the file that has a name now.
pub(super) fn file_id(path: &Path) -> Result<(u64, u64), RecordError> {
    let found = std::fs::metadata(path).map_err(|_| RecordError::Gone { path: path.to_owned() })?;
    Ok((found.dev(), found.ino()))
}

/// The exit code of a run that was asked to save and stop.
const INTERRUPTED: u8 = 130;
/// The exit code of a run whose record could not be kept.
const STORAGE: u8 = 5;

impl Drop for Record {
    fn drop(&mut self) {
        if self.writer.is_some() {
            // The caller that drops a record has an error of its own to report.
            let _ = self.end("failed", None, Some("the run was given up".into()), 1);
        }
    }
}

/// Writes the row of a run that begins.
fn begin(
    connection: &Connection,
    new: &NewRun<'_>,
    build: Build,
    site: &RunEnvironment,
) -> rusqlite::Result<Beginning> {
    let NewRun { id: run, plan, labels, origin } = *new;
    let now = realtime_ns() as f64 * 1e-9;
    let text = serde_json::to_string(plan).expect("a plan is plain data");
    connection.execute(
        "INSERT INTO runs (run, schema, origin, state, started_s, seen_s, attempts, host, boot_id, pid, \
         pid_started, strategy, sync, transport, data, model, workers, servers, batch, seed, plan, plan_sha256, \
         dropped_rows, steps_done, version, git_commit, rustc, name, tags, note, study, workload, command) \
         VALUES (?, ?, ?, 'running', ?4, ?4, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, ?, ?, ?, \
         ?, ?, ?, ?, ?, ?)",
        params![
            run,
            SCHEMA,
            origin.name(),
            now,
            site.host,
            site.boot_id,
            site.pid,
            site.pid_started as i64,
            plan.strategy,
            plan.sync,
            plan.transport,
            plan.script.is_none().then_some(&plan.data),
            plan.model,
            plan.workers as i64,
            plan.servers as i64,
            plan.script.is_none().then_some(plan.batch as i64),
            plan.seed as i64,
            text,
            plan.hash(),
            build.version,
            build.commit,
            build.rustc,
            labels.name,
            labels.tags_json(),
            labels.note,
            labels.study,
            labels.workload,
            labels.command,
        ],
    )?;
    let (id, began_ns) = (connection.last_insert_rowid(), monotonic_ns() as i64);
    Ok(Beginning { id, began_ns, attempt: 1, events: 0, dropped: 0 })
}

/// Makes the row of a run one of a run under way again; none if it is under way, or has ended well.
fn go_on(
    connection: &Connection,
    run: &str,
    (plan, command): (&Plan, Option<&str>),
    build: Build,
    site: &RunEnvironment,
) -> rusqlite::Result<Option<Beginning>> {
    let now = realtime_ns() as f64 * 1e-9;
    let text = serde_json::to_string(plan).expect("a plan is plain data");
    // One statement: of two that want to go on with the same run, one does.
    let found = connection
        .query_row(
            "UPDATE runs SET state = 'running', seen_s = ?1, ended_s = NULL, error = NULL, exit_code = NULL, \
             attempts = coalesce(attempts, 1) + 1, host = ?2, boot_id = ?3, pid = ?4, pid_started = ?5, \
             version = ?6, git_commit = ?7, rustc = ?8, workers = ?9, transport = ?10, plan = ?11, plan_sha256 = ?12, \
             command = coalesce(?13, command) WHERE run = ?14 AND state NOT IN ('running', 'ok') AND origin = 'measured' RETURNING id, started_s, attempts, dropped_rows",
            params![
                now,
                site.host,
                site.boot_id,
                site.pid,
                site.pid_started as i64,
                build.version,
                build.commit,
                build.rustc,
                plan.workers as i64,
                plan.transport,
                text,
                plan.hash(),
                command,
                run
            ],
            |row| Ok((row.get(0)?, row.get::<_, f64>(1)?, row.get(2)?, row.get::<_, Option<i64>>(3)?)),
        )
        .optional()?;
    let Some((id, started_s, attempt, dropped)) = found else { return Ok(None) };
    let events = connection.query_row(
        "SELECT coalesce(max(n) + 1, 0) FROM events WHERE run = ?",
        params![id],
        |row| row.get(0),
    )?;
    // The run's clock goes on from its first start, by the calendar.
    let began_ns = monotonic_ns() as i64 - ((now - started_s).max(0.0) * 1e9) as i64;
    Ok(Some(Beginning { id, began_ns, attempt, events, dropped: dropped.unwrap_or(0) as u64 }))
}
