//! The one writer of one run. Events are taken at once; a thread writes them, a transaction at a time, so that
//! nobody who watches over a run waits for a disk.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use paceline_plan::Plan;
use rusqlite::{Connection, ToSql, Transaction, TransactionBehavior, params};

use super::{RecordError, Store, at};
use crate::event::{Event, RunResult, SCHEMA};
use crate::machine::Machine;
use crate::metric::{self, About};
use crate::process::{self, monotonic_ns, realtime_ns};
use crate::row::{Batch, Values};

/// Time between two transactions.
const COMMIT: Duration = Duration::from_millis(200);
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

/// The record of a run under way. A record that is dropped without an end says that the run failed.
pub struct Record {
    path: PathBuf,
    began_ns: u64,
    to: Option<Sender<Job>>,
    /// Rows that wait for the disk.
    queued: Arc<AtomicUsize>,
    dropped: u64,
    /// Rows that each rank had no room for.
    dropped_by_rank: HashMap<usize, u64>,
    writer: Option<JoinHandle<Result<(), RecordError>>>,
}

/// What the writer is given to do.
enum Job {
    Event { at_ns: u64, kind: &'static str, text: String },
    Start { parameters: usize, steps: u64, kernels: String },
    Progress { step: u64, samples: u64, train_s: f64, train_loss: f64 },
    Evaluation { at_ns: u64, step: u64, samples: u64, train_s: f64, loss: f64, accuracy: f64 },
    Waits { rank: usize, seconds: Vec<f64> },
    Batch { rank: usize, batch: Box<Batch> },
    End(Box<End>),
}

/// How a run ended.
struct End {
    state: &'static str,
    result: Option<RunResult>,
    error: Option<String>,
    exit_code: u8,
    dropped: u64,
}

impl Record {
    /// Begins the record of a run; what it is about is stored when this returns.
    pub fn create(folder: &Path, run: &str, plan: &Plan, build: Build) -> Result<Self, RecordError> {
        let store = Store::create(folder)?;
        let (path, machine, began_ns) = (store.path.clone(), Machine::own(), monotonic_ns());
        let id = begin(&store.connection, run, plan, build, &machine).map_err(at(&path))?;
        let (to, jobs) = channel();
        let queued = Arc::new(AtomicUsize::new(0));
        let writer = Writer {
            connection: store.connection,
            run: id,
            began_ns,
            machine,
            roles: plan.workers,
            hosts: HashMap::new(),
            events: 0,
            sql: Sql::new(),
            queued: Arc::clone(&queued),
        };
        let failed = |source| RecordError::Folder { path: path.clone(), source };
        let named = path.clone();
        let writer = std::thread::Builder::new()
            .name("store".into())
            .spawn(move || writer.work(&jobs).map_err(at(&named)))
            .map_err(failed)?;
        let dropped_by_rank = HashMap::new();
        Ok(Self { path, began_ns, to: Some(to), queued, dropped: 0, dropped_by_rank, writer: Some(writer) })
    }

    /// The database.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes an event; never waits for the disk.
    pub fn event(&mut self, event: &Event<'_>) {
        let at_ns = monotonic_ns().saturating_sub(self.began_ns);
        let job = match *event {
            Event::Progress { step, samples, train_s, train_loss } => {
                return self.push(Job::Progress { step, samples, train_s, train_loss });
            }
            Event::Batch { rank, batch } => return self.batch(rank, batch),
            // The end stores it.
            Event::Result(_) => return,
            Event::Start { parameters, steps, ref kernels, .. } => {
                Some(Job::Start { parameters, steps, kernels: kernels.clone() })
            }
            Event::Evaluation { step, samples, train_s, loss, accuracy } => {
                Some(Job::Evaluation { at_ns, step, samples, train_s, loss, accuracy })
            }
            Event::Phases { rank, ref wait_for_s, .. } => {
                Some(Job::Waits { rank, seconds: wait_for_s.clone() })
            }
            Event::Refused { .. } => None,
        };
        let text = serde_json::to_string(event).expect("an event is plain data");
        self.push(Job::Event { at_ns, kind: event.kind(), text });
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

    fn push(&self, job: Job) {
        if let Some(to) = &self.to {
            // A writer that has failed is asked why at the end.
            let _ = to.send(job);
        }
    }

    /// Rows that there was no room for, in the ranks and here.
    pub fn dropped(&self) -> u64 {
        self.dropped + self.dropped_by_rank.values().sum::<u64>()
    }

    /// The run has ended well: when this returns, everything is stored.
    pub fn finish(mut self, result: &RunResult) -> Result<(), RecordError> {
        let text = serde_json::to_string(&Event::Result(result.clone())).expect("a result is plain data");
        let at_ns = monotonic_ns().saturating_sub(self.began_ns);
        self.push(Job::Event { at_ns, kind: "result", text });
        self.end("ok", Some(result.clone()), None, 0)
    }

    /// The run has failed.
    pub fn fail(mut self, error: &str, exit_code: u8) -> Result<(), RecordError> {
        self.end("failed", None, Some(error.to_owned()), exit_code)
    }

    fn end(
        &mut self,
        state: &'static str,
        result: Option<RunResult>,
        error: Option<String>,
        exit_code: u8,
    ) -> Result<(), RecordError> {
        let end = End { state, result, error, exit_code, dropped: self.dropped() };
        self.push(Job::End(Box::new(end)));
        self.to = None;
        let Some(writer) = self.writer.take() else { return Ok(()) };
        writer.join().unwrap_or_else(|_| Err(RecordError::Writer { path: self.path.clone() }))
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if self.writer.is_some() {
            // Whoever drops a record has an error of its own to tell.
            let _ = self.end("failed", None, Some("the run was given up".into()), 1);
        }
    }
}

/// The row of a run that begins; its number.
fn begin(
    connection: &Connection,
    run: &str,
    plan: &Plan,
    build: Build,
    m: &Machine,
) -> rusqlite::Result<i64> {
    let now = realtime_ns() as f64 * 1e-9;
    let text = serde_json::to_string(plan).expect("a plan is plain data");
    connection.execute(
        "INSERT INTO runs (run, schema, origin, state, started_s, seen_s, host, boot_id, pid, pid_started, \
         strategy, sync, transport, data, model, workers, servers, batch, seed, plan, plan_sha256, dropped_rows, \
         steps_done, version, git_commit, rustc) \
         VALUES (?, ?, 'measured', 'running', ?3, ?3, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, ?, ?, ?)",
        params![
            run,
            SCHEMA,
            now,
            m.host,
            m.boot_id,
            m.pid,
            m.pid_started as i64,
            plan.strategy,
            plan.sync,
            plan.transport,
            plan.data,
            plan.model,
            plan.workers as i64,
            plan.servers as i64,
            plan.batch as i64,
            plan.seed as i64,
            text,
            plan.hash(),
            build.version,
            build.commit,
            build.rustc,
        ],
    )?;
    Ok(connection.last_insert_rowid())
}

/// Statements over the columns that the registry of metrics has.
struct Sql {
    samples: String,
    links: String,
    hosts: String,
    interfaces: String,
}

impl Sql {
    fn new() -> Self {
        let tables: HashMap<&str, Vec<About>> = metric::tables().into_iter().collect();
        let insert = |table: &str, key: &str| {
            let names: Vec<&str> = tables[table].iter().map(|m| m.name).collect();
            let marks = vec!["?"; key.split(',').count() + names.len()].join(", ");
            // Two samples of one moment would be the same one.
            format!("INSERT OR REPLACE INTO {table} ({key}, {}) VALUES ({marks})", names.join(", "))
        };
        Self {
            samples: insert("samples", "run, rank, t_ns"),
            links: insert("links", "run, rank, peer, t_ns"),
            hosts: insert("host_samples", "run, host, t_ns"),
            interfaces: insert("interfaces", "run, host, interface, t_ns"),
        }
    }
}

/// The thread that writes.
struct Writer {
    connection: Connection,
    run: i64,
    began_ns: u64,
    machine: Machine,
    /// Ranks below this are workers.
    roles: usize,
    /// The machine of each rank, and what to add to its clock.
    hosts: HashMap<usize, (String, i64)>,
    events: i64,
    sql: Sql,
    queued: Arc<AtomicUsize>,
}

impl Writer {
    fn work(mut self, jobs: &Receiver<Job>) -> rusqlite::Result<()> {
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
            while !matches!(list.last(), None | Some(Job::End(_))) {
                match jobs.recv_timeout(COMMIT.saturating_sub(begun.elapsed())) {
                    Ok(job) => list.push(job),
                    Err(_) => break,
                }
            }
            over = matches!(list.last(), Some(Job::End(_)));
            if over {
                // The end of a run reaches the disk before it is told.
                self.connection.pragma_update(None, "synchronous", "FULL")?;
            }
            self.write(list)?;
        }
        Ok(())
    }

    fn write(&mut self, jobs: Vec<Job>) -> rusqlite::Result<()> {
        let Self { connection, run, began_ns, machine, roles, hosts, events, sql, queued } = self;
        let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut open =
            Open { change: &change, run: *run, began_ns: *began_ns, machine, roles: *roles, hosts, sql };
        change
            .prepare_cached("UPDATE runs SET seen_s = ? WHERE id = ?")?
            .execute(params![realtime_ns() as f64 * 1e-9, *run])?;
        for job in jobs {
            match job {
                Job::Event { at_ns, kind, text } => {
                    change
                        .prepare_cached(
                            "INSERT INTO events (run, n, t_ns, type, event) VALUES (?, ?, ?, ?, ?)",
                        )?
                        .execute(params![*run, *events, at_ns as i64, kind, text])?;
                    *events += 1;
                }
                Job::Batch { rank, batch } => {
                    queued.fetch_sub(batch.rows(), Ordering::Relaxed);
                    open.batch(rank, &batch)?;
                }
                Job::Waits { rank, seconds } => open.waits(rank, &seconds)?,
                Job::End(end) => open.end(&end)?,
                other => open.news(&other)?,
            }
        }
        change.commit()
    }
}

/// A transaction under way.
struct Open<'a> {
    change: &'a Transaction<'a>,
    run: i64,
    began_ns: u64,
    machine: &'a Machine,
    roles: usize,
    hosts: &'a mut HashMap<usize, (String, i64)>,
    sql: &'a Sql,
}

impl Open<'_> {
    fn execute(&self, sql: &str, values: impl rusqlite::Params) -> rusqlite::Result<()> {
        self.change.prepare_cached(sql)?.execute(values).map(drop)
    }

    /// What changes the row of the run.
    fn news(&self, job: &Job) -> rusqlite::Result<()> {
        match job {
            Job::Start { parameters, steps, kernels } => self.execute(
                "UPDATE runs SET parameters = ?, steps = ?, kernels = ? WHERE id = ?",
                params![*parameters as i64, *steps as i64, kernels, self.run],
            ),
            Job::Progress { step, samples, train_s, train_loss } => self.execute(
                "UPDATE runs SET steps_done = ?, samples_done = ?, train_s = ?, train_loss = ? WHERE id = ?",
                params![*step as i64, *samples as i64, train_s, train_loss, self.run],
            ),
            Job::Evaluation { at_ns, step, samples, train_s, loss, accuracy } => {
                self.execute(
                    "INSERT OR REPLACE INTO evaluations (run, step, t_ns, samples, train_s, loss, accuracy) \
                     VALUES (?, ?, ?, ?, ?, ?, ?)",
                    params![self.run, *step as i64, *at_ns as i64, *samples as i64, train_s, loss, accuracy],
                )?;
                self.execute("UPDATE runs SET accuracy = ? WHERE id = ?", params![accuracy, self.run])
            }
            _ => Ok(()),
        }
    }

    fn batch(&mut self, rank: usize, batch: &Batch) -> rusqlite::Result<()> {
        if let Some(machine) = &batch.machine {
            self.seat(rank, machine)?;
        }
        let (host, shift) = match self.hosts.get(&rank) {
            Some((host, shift)) => (host.clone(), *shift),
            None => (self.machine.host.clone(), 0),
        };
        let at = |ns: u64| ns as i64 + shift - self.began_ns as i64;
        if batch.dropped > 0 {
            self.execute(
                "UPDATE ranks SET dropped_rows = ? WHERE run = ? AND rank = ?",
                params![batch.dropped as i64, self.run, rank as i64],
            )?;
        }
        for s in &batch.steps {
            self.execute(
                "INSERT OR REPLACE INTO steps (run, rank, step, t_ns, data_ns, forward_ns, backward_ns, overlap_ns, \
                 send_ns, wait_ns, wait_for, apply_ns, samples, loss, staleness) \
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                params![
                    self.run,
                    rank as i64,
                    s.step as i64,
                    at(s.begin_ns),
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
                ],
            )?;
        }
        for sample in &batch.samples {
            let t = at(sample.at_ns);
            if !sample.process.is_empty() {
                self.values(&self.sql.samples, &[&self.run, &(rank as i64), &t], &sample.process)?;
            }
            for (peer, at_ns, link) in &sample.links {
                let key: [&dyn ToSql; 4] = [&self.run, &(rank as i64), &(*peer as i64), &at(*at_ns)];
                self.values(&self.sql.links, &key, link)?;
            }
            if !sample.host.is_empty() {
                self.values(&self.sql.hosts, &[&self.run, &host, &t], &sample.host)?;
            }
            for (name, interface) in &sample.interfaces {
                self.values(&self.sql.interfaces, &[&self.run, &host, name, &t], interface)?;
            }
        }
        for row in &batch.trace {
            self.execute(
                "INSERT OR REPLACE INTO trace (run, rank, t_ns, kind, peer, n, step, bucket, phase, bytes, \
                 duration_ns) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                params![
                    self.run,
                    rank as i64,
                    at(row.at_ns),
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
        let mut statement = self.change.prepare_cached(sql)?;
        let all = key.iter().copied().chain(values.iter().map(|value| value as &dyn ToSql));
        for (i, value) in all.take(statement.parameter_count()).enumerate() {
            statement.raw_bind_parameter(i + 1, value)?;
        }
        statement.raw_execute().map(drop)
    }

    /// A rank has told where it runs.
    fn seat(&mut self, rank: usize, machine: &Machine) -> rusqlite::Result<()> {
        // Processes of one machine share a clock; those of others are compared by the calendar.
        let same = machine.boot_id == self.machine.boot_id;
        let shift = if same { 0 } else { machine.clock_ns - self.machine.clock_ns };
        self.hosts.insert(rank, (machine.host.clone(), shift));
        let role = if rank < self.roles { "worker" } else { "server" };
        self.execute(
            "INSERT OR REPLACE INTO ranks (run, rank, role, host, pid, dropped_rows) VALUES (?, ?, ?, ?, ?, 0)",
            params![self.run, rank as i64, role, machine.host, machine.pid],
        )?;
        self.execute(
            "INSERT OR REPLACE INTO hosts (run, host, boot_id, cpu, cores, kernel, memory_bytes, clock_shift_ns) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            params![
                self.run,
                machine.host,
                machine.boot_id,
                machine.cpu,
                machine.cores as i64,
                machine.kernel,
                machine.memory_bytes as i64,
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
             dropped_rows = ?, launcher_cpu_s = ? WHERE id = ?",
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
