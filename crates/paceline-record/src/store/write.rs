//! The thread that writes a run's record, a transaction at a time.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use rusqlite::{Connection, ToSql, params};

use super::record::{EventSink, file_id};
use super::{RecordError, at};
use crate::event::RunResult;
use crate::metric::Metrics;
use crate::process::{self, realtime_ns};
use crate::row::{Batch, Values};
use crate::site::RunEnvironment;

const COMMIT: Duration = Duration::from_millis(200);

/// What the writer is given to do. `Sync` is answered when everything before it is stored.
pub(super) enum Job {
    Event { at_ns: i64, text: String, reported: bool },
    Start { parameters: usize, steps: u64, kernels: String },
    Progress { step: u64, samples: u64, train_s: f64, train_loss: f64, text: Option<String> },
    Evaluation { at_ns: i64, step: u64, samples: u64, train_s: f64, loss: f64, accuracy: f64 },
    Waits { rank: usize, seconds: Vec<f64> },
    Batch { rank: usize, batch: Box<Batch> },
    Sync(Sender<()>),
    Saved { step: u64 },
    Restarted { step: u64 },
    End(Box<End>),
}

pub(super) struct End {
    pub state: &'static str,
    pub result: Option<RunResult>,
    pub error: Option<String>,
    pub exit_code: u8,
    pub dropped: u64,
}

/// Statements over the columns that the registry of metrics has.
pub(super) struct Sql {
    samples: String,
    links: String,
    hosts: String,
    interfaces: String,
    gpus: String,
}

impl Sql {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let tables = HashMap::from(metrics.tables());
        let insert = |table: &str, key: &str| {
            let names: Vec<&str> = tables[table].iter().map(|m| m.name).collect();
            let marks = vec!["?"; key.split(',').count() + names.len()].join(", ");
            // Two samples of one moment would be the same one.
            format!("INSERT OR REPLACE INTO {table} ({key}, {}) VALUES ({marks})", names.join(", "))
        };
        Self {
            samples: insert("samples", "run, rank, t_ns, attempt"),
            links: insert("links", "run, rank, peer, t_ns, attempt"),
            hosts: insert("host_samples", "run, host, t_ns"),
            interfaces: insert("interfaces", "run, host, interface, t_ns"),
            gpus: insert("gpus", "run, host, gpu, t_ns"),
        }
    }
}

pub(super) struct Writer {
    /// Device and inode of the database when it was opened.
    pub file: (u64, u64),
    pub connection: Connection,
    pub run: i64,
    pub began_ns: i64,
    /// Which start of the run this is, from 1.
    pub attempt: i64,
    pub site: RunEnvironment,
    /// Ranks below this are workers; so are those behind the servers (spares).
    pub workers: usize,
    pub servers: usize,
    /// The machine of each rank, and what to add to its clock.
    pub hosts: HashMap<usize, (String, i64)>,
    /// Ranks that have told of steps since the run was last started.
    pub told_steps: HashSet<usize>,
    pub events: i64,
    pub sql: Sql,
    pub queued: Arc<AtomicUsize>,
    /// Who hears of events once they are stored.
    pub told: Option<EventSink>,
}

impl Writer {
    pub(super) fn work(mut self, jobs: &Receiver<Job>, path: &Path) -> Result<(), RecordError> {
        let failed = at(path);
        let mut over = false;
        while !over {
            // The first job of a transaction is waited for; what comes within the time of a commit joins it.
            let first = match jobs.recv_timeout(5 * COMMIT) {
                Ok(job) => Some(job),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            let mut list: Vec<Job> = first.into_iter().collect();
            let begun = Instant::now();
            while !matches!(list.last(), None | Some(Job::End(_) | Job::Sync(_))) {
                match jobs.recv_timeout(COMMIT.saturating_sub(begun.elapsed())) {
                    Ok(job) => list.push(job),
                    Err(_) => break,
                }
            }
            over = matches!(list.last(), Some(Job::End(_)));
            if over {
                // The end of a run reaches the disk before it is told.
                self.connection.pragma_update(None, "synchronous", "FULL").map_err(&failed)?;
            }
            self.write(&list).map_err(&failed)?;
            if file_id(path)? != self.file {
                // SQLite goes on writing to a file that nobody can open any more.
                return Err(RecordError::Gone { path: path.to_owned() });
            }
            for job in list {
                match (job, &mut self.told) {
                    // What is stored is reported.
                    (Job::Event { text, reported: true, .. }, Some(told)) => told(&text),
                    (Job::Progress { text: Some(text), .. }, Some(told)) => told(&text),
                    // The thread that asked may be gone.
                    (Job::Sync(done), _) => drop(done.send(())),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, jobs: &[Job]) -> rusqlite::Result<()> {
        // An error ends the connection, and that rolls back what was not committed.
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        let now = realtime_ns() as f64 * 1e-9;
        self.execute("UPDATE runs SET seen_s = ? WHERE id = ?", params![now, self.run])?;
        jobs.iter().try_for_each(|job| self.write_job(job))?;
        self.connection.execute_batch("COMMIT")
    }

    fn execute(&self, sql: &str, values: impl rusqlite::Params) -> rusqlite::Result<()> {
        self.connection.prepare_cached(sql)?.execute(values).map(drop)
    }

    fn write_job(&mut self, job: &Job) -> rusqlite::Result<()> {
        match job {
            Job::Event { at_ns, text, .. } => {
                self.events += 1;
                self.execute(
                    "INSERT INTO events (run, n, t_ns, type, event) VALUES (?1, ?2, ?3, ?4 ->> 'type', ?4)",
                    params![self.run, self.events - 1, *at_ns, text],
                )
            }
            Job::Batch { rank, batch } => {
                self.queued.fetch_sub(batch.rows(), Ordering::Relaxed);
                self.batch(*rank, batch)
            }
            Job::Waits { rank, seconds } => self.waits(*rank, seconds),
            Job::End(end) => self.end(end),
            Job::Sync(_) => Ok(()),
            Job::Start { parameters, steps, kernels } => self.execute(
                "UPDATE runs SET parameters = ?, steps = ?, kernels = ? WHERE id = ?",
                params![
                    *parameters as i64,
                    Some(*steps as i64).filter(|_| *steps != u64::MAX),
                    kernels,
                    self.run
                ],
            ),
            Job::Progress { step, samples, train_s, train_loss, .. } => self.execute(
                "UPDATE runs SET steps_done = ?, samples_done = ?, train_s = ?, train_loss = ? WHERE id = ?",
                params![*step as i64, *samples as i64, train_s, train_loss, self.run],
            ),
            Job::Evaluation { at_ns, step, samples, train_s, loss, accuracy } => {
                self.execute(
                    "INSERT OR REPLACE INTO evaluations (run, step, t_ns, samples, train_s, loss, accuracy) \
                     VALUES (?, ?, ?, ?, ?, ?, ?)",
                    params![self.run, *step as i64, *at_ns, *samples as i64, train_s, loss, accuracy],
                )?;
                self.execute("UPDATE runs SET accuracy = ? WHERE id = ?", params![accuracy, self.run])
            }
            Job::Saved { step } => {
                self.execute("UPDATE runs SET steps_done = ? WHERE id = ?", params![*step as i64, self.run])
            }
            Job::Restarted { step } => {
                self.attempt += 1;
                self.told_steps.clear();
                self.execute(
                    "UPDATE runs SET attempts = ?, steps_done = ? WHERE id = ?",
                    params![self.attempt, *step as i64, self.run],
                )
            }
        }
    }

    fn batch(&mut self, rank: usize, batch: &Batch) -> rusqlite::Result<()> {
        if let Some(site) = &batch.site {
            self.context(rank, site)?;
        }
        let (host, shift) = match self.hosts.get(&rank) {
            Some((host, shift)) => (host.clone(), *shift),
            None => (self.site.host.clone(), 0),
        };
        let began_ns = self.began_ns;
        let at = |ns: u64| ns as i64 + shift - began_ns;
        if batch.dropped > 0 {
            self.execute(
                "UPDATE ranks SET dropped_rows = ? WHERE run = ? AND rank = ?",
                params![batch.dropped as i64, self.run, rank as i64],
            )?;
        }
        if let Some(first) = batch.steps.first().filter(|_| self.told_steps.insert(rank)) {
            // What was done after the checkpoint that the run goes on from is done again, perhaps by others.
            self.execute(
                "DELETE FROM steps WHERE run = ? AND rank = ? AND step >= ? AND attempt < ?",
                params![self.run, rank as i64, first.step as i64, self.attempt],
            )?;
        }
        for s in &batch.steps {
            self.execute(
                "INSERT OR REPLACE INTO steps (run, rank, step, t_ns, attempt, data_ns, forward_ns, backward_ns, overlap_ns, \
                 send_ns, wait_ns, wait_for, apply_ns, samples, loss, staleness, codec_ns, core_wait_ns, \
                 wait_up_ns, wait_down_ns, live_slots, activation_bytes) \
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                params![
                    self.run,
                    rank as i64,
                    s.step as i64,
                    at(s.begin_ns),
                    self.attempt,
                    s.data_ns as i64,
                    s.forward_ns as i64,
                    s.backward_ns as i64,
                    s.overlap_ns as i64,
                    s.send_ns as i64,
                    s.wait_ns as i64,
                    s.wait_for.map(|r| r as i64),
                    s.apply_ns as i64,
                    s.samples as i64,
                    s.loss,
                    s.staleness.map(|n| n as i64),
                    s.codec_ns as i64,
                    s.core_wait_ns.map(|ns| ns as i64),
                    s.stage.map(|stage| stage.wait_up_ns as i64),
                    s.stage.map(|stage| stage.wait_down_ns as i64),
                    s.stage.map(|stage| stage.live_slots as i64),
                    s.stage.map(|stage| stage.activation_bytes as i64),
                ],
            )?;
        }
        for sample in &batch.samples {
            let t = at(sample.at_ns);
            if !sample.process.is_empty() {
                self.values(
                    &self.sql.samples,
                    &[&self.run, &(rank as i64), &t, &self.attempt],
                    &sample.process,
                )?;
            }
            for (peer, at_ns, link) in &sample.links {
                let key: [&dyn ToSql; 5] =
                    [&self.run, &(rank as i64), &(*peer as i64), &at(*at_ns), &self.attempt];
                self.values(&self.sql.links, &key, link)?;
            }
            if !sample.host.is_empty() {
                self.values(&self.sql.hosts, &[&self.run, &host, &t], &sample.host)?;
            }
            for (name, interface) in &sample.interfaces {
                self.values(&self.sql.interfaces, &[&self.run, &host, name, &t], interface)?;
            }
            for (gpu, reading) in &sample.gpus {
                self.values(&self.sql.gpus, &[&self.run, &host, gpu, &t], reading)?;
            }
        }
        for row in &batch.trace {
            self.execute(
                "INSERT OR REPLACE INTO trace (run, rank, t_ns, attempt, kind, peer, n, step, bucket, phase, \
                 bytes, duration_ns) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                params![
                    self.run,
                    rank as i64,
                    at(row.at_ns),
                    self.attempt,
                    row.kind.name(),
                    row.peer as i64,
                    row.n as i64,
                    row.step as i64,
                    row.bucket as i64,
                    row.phase as i64,
                    row.bytes as i64,
                    row.duration_ns as i64,
                ],
            )?;
        }
        Ok(())
    }

    /// A row of metrics. A rank of a longer or shorter registry is cut to this one's.
    fn values(&self, sql: &str, key: &[&dyn ToSql], values: &Values) -> rusqlite::Result<()> {
        let mut statement = self.connection.prepare_cached(sql)?;
        let all = key.iter().copied().chain(values.iter().map(|value| value as &dyn ToSql));
        for (i, value) in all.take(statement.parameter_count()).enumerate() {
            statement.raw_bind_parameter(i + 1, value)?;
        }
        statement.raw_execute().map(drop)
    }

    /// A rank has told where it runs.
    fn context(&mut self, rank: usize, site: &RunEnvironment) -> rusqlite::Result<()> {
        // Processes of one machine share a clock; those of others are compared by the calendar.
        let same = site.boot_id == self.site.boot_id;
        let shift = if same { 0 } else { site.clock_ns - self.site.clock_ns };
        self.hosts.insert(rank, (site.host.clone(), shift));
        let servers = self.workers..self.workers + self.servers;
        let role = if servers.contains(&rank) { "server" } else { "worker" };
        self.execute(
            "INSERT OR REPLACE INTO ranks (run, rank, role, host, pid, dropped_rows) VALUES (?, ?, ?, ?, ?, 0)",
            params![self.run, rank as i64, role, site.host, site.pid],
        )?;
        self.execute(
            "INSERT OR REPLACE INTO hosts (run, host, boot_id, cpu, cores, usable_cores, kernel, memory_bytes, \
             clock_shift_ns) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            params![
                self.run,
                site.host,
                site.boot_id,
                site.machine.cpu,
                site.machine.cores as i64,
                site.machine.usable_cores as i64,
                site.machine.kernel,
                site.memory_bytes as i64,
                shift
            ],
        )
    }

    fn waits(&self, rank: usize, seconds: &[f64]) -> rusqlite::Result<()> {
        for (peer, seconds) in seconds.iter().enumerate().filter(|(_, s)| **s > 0.0) {
            self.execute(
                "INSERT OR REPLACE INTO waits (run, rank, wait_for, wait_s) VALUES (?, ?, ?, ?)",
                params![self.run, rank as i64, peer as i64, seconds],
            )?;
        }
        Ok(())
    }

    fn end(&self, end: &End) -> rusqlite::Result<()> {
        let End { state, result, error, exit_code, dropped } = end;
        let text =
            result.as_ref().map(|result| serde_json::to_string(result).expect("a result is plain data"));
        let now = realtime_ns() as f64 * 1e-9;
        self.execute(
            "UPDATE runs SET state = ?, ended_s = ?2, seen_s = ?2, result = ?, error = ?, exit_code = ?, \
             dropped_rows = ?, launcher_cpu_s = coalesce(launcher_cpu_s, 0) + ? WHERE id = ?",
            params![state, now, text, error, exit_code, *dropped as i64, process::cpu_seconds(), self.run],
        )?;
        let Some(result) = result else { return Ok(()) };
        self.execute(
            "UPDATE runs SET steps_done = ?, samples_done = ?, train_s = ?, train_loss = ?, accuracy = ? WHERE id = ?",
            params![
                result.steps as i64,
                result.samples as i64,
                result.seconds.train,
                result.train_loss,
                result.final_accuracy,
                self.run
            ],
        )?;
        for r in &result.ranks {
            let key = params![self.run, r.rank as i64, r.role, r.host];
            self.execute("INSERT OR IGNORE INTO ranks (run, rank, role, host) VALUES (?, ?, ?, ?)", key)?;
            self.execute(
                "UPDATE ranks SET params_sha256 = ?, compute_s = ?, send_s = ?, wait_s = ?, apply_s = ?, \
                 sent_bytes = ?, received_bytes = ?, cpu_s = ?, rss_peak_bytes = ?, host = ? WHERE run = ? AND rank = ?",
                params![
                    r.params_sha256,
                    r.compute_s,
                    r.send_s,
                    r.wait_s,
                    r.apply_s,
                    r.sent_bytes as i64,
                    r.received_bytes as i64,
                    r.cpu_s,
                    r.rss_peak_bytes as i64,
                    r.host,
                    self.run,
                    r.rank as i64
                ],
            )?;
        }
        Ok(())
    }
}
