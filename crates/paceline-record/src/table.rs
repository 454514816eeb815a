//! The registry of the store's tables: what the database is made from, what exports write, and what
//! `docs/record.md` shows.

use crate::metric::Metrics;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    Integer,
    Real,
    Text,
}

impl Type {
    pub fn sql(self) -> &'static str {
        match self {
            Self::Integer => "INTEGER",
            Self::Real => "REAL",
            Self::Text => "TEXT",
        }
    }
}

/// A column.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its name.
    pub name: &'static str,
    /// What it holds.
    pub kind: Type,
    /// Its unit; empty where there is none.
    pub unit: &'static str,
    /// What it says.
    pub about: &'static str,
}

/// A table.
#[derive(Clone, Debug)]
pub struct Table {
    /// Its name.
    pub name: &'static str,
    /// What a row is.
    pub about: &'static str,
    /// Columns that together name a row.
    pub key: &'static [&'static str],
    /// All columns.
    pub columns: Vec<Column>,
}

const fn column(name: &'static str, kind: Type, unit: &'static str, about: &'static str) -> Column {
    Column { name, kind, unit, about }
}

use Type::{Integer, Real, Text};

const RUN: Column = column("run", Integer, "", "the run (`runs.id`)");
const RANK: Column = column("rank", Integer, "", "the rank");
const HOST: Column = column("host", Text, "", "the machine's name");
const TIME: Column = column("t_ns", Integer, "ns", "when, from the start of the run");

const ATTEMPT: Column = column("attempt", Integer, "", "which start of the run it belongs to, from 1");

const RUNS: &[Column] = &[
    column("id", Integer, "", "number of the run in this store"),
    column("run", Text, "", "the run's id"),
    column("schema", Integer, "", "version of the event schema"),
    column("origin", Text, "", "`measured`, or `simulated` in virtual time"),
    column(
        "state",
        Text,
        "",
        "`running`, `ok`, `failed`, `interrupted` (saved), or `lost` (its process died without a word)",
    ),
    column("started_s", Real, "s", "when it began, since 1970"),
    column("seen_s", Real, "s", "when it last wrote, since 1970"),
    column("ended_s", Real, "s", "when it ended, since 1970"),
    column("attempts", Integer, "", "how often it was started: resumed and restarted runs more than once"),
    column("host", Text, "", "the machine of its launcher"),
    column("boot_id", Text, "", "that machine's life since it was started"),
    column("pid", Integer, "", "process of its launcher"),
    column("pid_started", Integer, "ticks", "when that process began, since the machine did"),
    column("strategy", Text, "", "averaging path; `single` for one worker"),
    column("sync", Text, "", "consistency model"),
    column("transport", Text, "", "what ranks talk over"),
    column("data", Text, "", "dataset; none where a script has its own"),
    column("model", Text, "", "network"),
    column("workers", Integer, "", "number of workers"),
    column("servers", Integer, "", "number of servers"),
    column("batch", Integer, "samples", "samples per worker and step; none where a script decides that"),
    column("seed", Integer, "", "seed of everything random"),
    column("parameters", Integer, "", "length of the parameter buffer"),
    column("steps", Integer, "steps", "steps of the whole run; none where it ends when a script does"),
    column("steps_done", Integer, "steps", "steps done so far"),
    column("samples_done", Integer, "samples", "samples done so far"),
    column("train_s", Real, "s", "the training clock so far"),
    column("train_loss", Real, "", "mean loss of the last step"),
    column("accuracy", Real, "", "fraction of the test split that the last evaluation got right"),
    column("plan", Text, "JSON", "the plan"),
    column("plan_sha256", Text, "", "SHA-256 of the plan"),
    column("result", Text, "JSON", "the result line"),
    column("exit_code", Integer, "", "what the program returned"),
    column("error", Text, "", "why it failed"),
    column("dropped_rows", Integer, "rows", "rows that there was no room for: they are missing here"),
    column("launcher_cpu_s", Real, "s", "CPU time of the launcher's processes"),
    column("kernels", Text, "", "instruction set of the kernels"),
    column("version", Text, "", "version of the program"),
    column("git_commit", Text, "", "commit that the program was built from"),
    column("rustc", Text, "", "compiler that it was built with"),
    column("name", Text, "", "what people call it; not part of the plan"),
    column("tags", Text, "JSON", "its tags, a list of words"),
    column("note", Text, "", "what somebody noted about it"),
    column("study", Text, "", "the study that it belongs to"),
    column("workload", Text, "", "which of its study's workloads it is, by name"),
    column("command", Text, "", "the command line that gives the same plan again"),
    column("archived", Integer, "", "1: lists leave it out"),
    column("edited_s", Real, "s", "when its name, tags, note or archiving was last changed, since 1970"),
];

const RANKS: &[Column] = &[
    RUN,
    RANK,
    column("role", Text, "", "`worker` or `server`"),
    HOST,
    column("pid", Integer, "", "its process"),
    column("params_sha256", Text, "", "SHA-256 of its parameters at the end"),
    column("compute_s", Real, "s", "data, forward and backward"),
    column("send_s", Real, "s", "sending, receiving and summing"),
    column("wait_s", Real, "s", "waiting for others"),
    column("apply_s", Real, "s", "updating parameters"),
    column("sent_bytes", Integer, "bytes", "bytes sent"),
    column("received_bytes", Integer, "bytes", "bytes received"),
    column("cpu_s", Real, "s", "CPU time of its process"),
    column("rss_peak_bytes", Integer, "bytes", "peak resident memory"),
    column("dropped_rows", Integer, "rows", "rows of this rank that there was no room for"),
];

const HOSTS: &[Column] = &[
    RUN,
    HOST,
    column("boot_id", Text, "", "the machine's life since it was started"),
    column("cpu", Text, "", "the CPU's name"),
    column("cores", Integer, "cores", "logical cores of the machine"),
    column("usable_cores", Integer, "cores", "cores that a rank may use"),
    column("kernel", Text, "", "name and release of the kernel"),
    column("memory_bytes", Integer, "bytes", "memory of the machine"),
    column("clock_shift_ns", Integer, "ns", "what was added to its clock to get the launcher's"),
];

const STEPS: &[Column] = &[
    RUN,
    RANK,
    column(
        "step",
        Integer,
        "steps",
        "the worker's steps so far, this one included; a server's updates so far",
    ),
    TIME,
    ATTEMPT,
    column("data_ns", Integer, "ns", "gathering and normalising the batch"),
    column("forward_ns", Integer, "ns", "forward pass and loss"),
    column("backward_ns", Integer, "ns", "backward pass, without what was exchanged meanwhile"),
    column("overlap_ns", Integer, "ns", "the part of `send_ns` that happened during backward"),
    column("send_ns", Integer, "ns", "sending, receiving and summing"),
    column("wait_ns", Integer, "ns", "waiting with nothing to do"),
    column("wait_for", Integer, "", "the rank that was waited for the longest"),
    column("apply_ns", Integer, "ns", "updating parameters"),
    column("samples", Integer, "samples", "samples of this rank's share"),
    column("loss", Real, "", "mean loss over them"),
    column("staleness", Integer, "versions", "largest staleness of these updates (servers)"),
    column("codec_ns", Integer, "ns", "encoding and decoding messages: a part of `send_ns` and `wait_ns`"),
    column(
        "core_wait_ns",
        Integer,
        "ns",
        "time of the pass in which the thread that trains was ready to run and had no core",
    ),
    column(
        "wait_up_ns",
        Integer,
        "ns",
        "waiting for values of earlier stages, where the network is cut: a part of `wait_ns`",
    ),
    column("wait_down_ns", Integer, "ns", "waiting for gradients of later stages: a part of `wait_ns`"),
    column(
        "live_slots",
        Integer,
        "micro-batches",
        "most micro-batches of a stage that were between their forward and their backward pass at once",
    ),
    column("activation_bytes", Integer, "bytes", "what those took"),
];

const EVALUATIONS: &[Column] = &[
    RUN,
    column("step", Integer, "steps", "steps done"),
    TIME,
    column("samples", Integer, "samples", "samples done"),
    column("train_s", Real, "s", "the training clock"),
    column("loss", Real, "", "mean loss over the test split"),
    column("accuracy", Real, "", "fraction of the test split that was right"),
];

const WAITS: &[Column] = &[
    RUN,
    RANK,
    column("wait_for", Integer, "", "the rank that was waited for"),
    column("wait_s", Real, "s", "how long, over the whole run"),
];

const TRACE: &[Column] = &[
    RUN,
    RANK,
    TIME,
    ATTEMPT,
    column("kind", Text, "", "`send`, `receive`, `wait`, or a stage's pass: `forward`, `backward`"),
    column("peer", Integer, "", "the other side, or who was waited for; -1: nobody in particular"),
    column(
        "n",
        Integer,
        "",
        "which message of this link and direction, from 0: the n-th sent is the n-th received",
    ),
    column("step", Integer, "steps", "the message's step"),
    column("bucket", Integer, "", "the message's bucket, or the pass's micro-batch"),
    column("phase", Integer, "", "the message's phase, or the pass's slot"),
    column("bytes", Integer, "bytes", "bytes of its body"),
    column("duration_ns", Integer, "ns", "how long the wait or the pass was"),
];

const EVENTS: &[Column] = &[
    RUN,
    column("n", Integer, "", "which event of the run, from 0"),
    TIME,
    column("type", Text, "", "kind of event"),
    column("event", Text, "JSON", "the event, as `--json` prints it"),
];

/// Every table of a store that holds these metrics.
pub fn tables(metrics: &Metrics) -> Vec<Table> {
    let mut all = vec![
        table("runs", "a run", &["id"], RUNS),
        table("ranks", "a process of a run", &["run", "rank"], RANKS),
        table("hosts", "a machine of a run", &["run", "host"], HOSTS),
        table(
            "steps",
            "a step of a worker, or updates of a server; of a step that was done again, how it was done last",
            &["run", "rank", "step"],
            STEPS,
        ),
        table("evaluations", "an evaluation on the test split", &["run", "step"], EVALUATIONS),
        table("waits", "how long one rank waited for another", &["run", "rank", "wait_for"], WAITS),
        table(
            "trace",
            "a message or a wait (with `--trace`)",
            &["run", "rank", "t_ns", "kind", "peer", "n"],
            TRACE,
        ),
        table("events", "what the run told, except progress", &["run", "n"], EVENTS),
    ];
    let interface = column("interface", Text, "", "the interface's name");
    let gpu = column("gpu", Text, "", "the GPU's number");
    let peer = column("peer", Integer, "", "the other rank");
    for (name, metrics) in metrics.tables() {
        let (about, key, first): (_, &'static [&'static str], _) = match name {
            "samples" => {
                ("a rank's process at a moment", &["run", "rank", "t_ns"], vec![RUN, RANK, TIME, ATTEMPT])
            }
            "links" => (
                "a rank's link at a moment",
                &["run", "rank", "peer", "t_ns"],
                vec![RUN, RANK, peer, TIME, ATTEMPT],
            ),
            "host_samples" => ("a machine at a moment", &["run", "host", "t_ns"], vec![RUN, HOST, TIME]),
            "gpus" => (
                "a GPU at a moment (of scripts' runs, where NVML is there)",
                &["run", "host", "gpu", "t_ns"],
                vec![RUN, HOST, gpu, TIME],
            ),
            _ => (
                "a network interface at a moment",
                &["run", "host", "interface", "t_ns"],
                vec![RUN, HOST, interface, TIME],
            ),
        };
        let sampled = metrics.iter().map(|m| column(m.name, Real, m.unit, m.about));
        let columns = first.into_iter().chain(sampled).collect();
        all.push(Table { name, about, key, columns });
    }
    all
}

fn table(name: &'static str, about: &'static str, key: &'static [&'static str], columns: &[Column]) -> Table {
    Table { name, about, key, columns: columns.to_vec() }
}

/// What is derived of the tables, as SQL views: name, what a row is, and the query.
pub const VIEWS: &[(&str, &str, &str)] = &[
    (
        "cpu",
        "CPU use of a rank between two samples, in percent of one core",
        "SELECT run, rank, t_ns, \
         100e9 * (cpu_user_s - lag(cpu_user_s) OVER w) / (t_ns - lag(t_ns) OVER w) AS user_percent, \
         100e9 * (cpu_system_s - lag(cpu_system_s) OVER w) / (t_ns - lag(t_ns) OVER w) AS system_percent \
         FROM samples WINDOW w AS (PARTITION BY run, rank, attempt ORDER BY t_ns)",
    ),
    (
        "throughput",
        "messages of a link between two samples, in bytes per second",
        "SELECT run, rank, peer, t_ns, \
         1e9 * (sent_bytes - lag(sent_bytes) OVER w) / (t_ns - lag(t_ns) OVER w) AS sent_bytes_per_s, \
         1e9 * (received_bytes - lag(received_bytes) OVER w) / (t_ns - lag(t_ns) OVER w) \
         AS received_bytes_per_s \
         FROM links WINDOW w AS (PARTITION BY run, rank, peer, attempt ORDER BY t_ns)",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_columns_and_no_column_is_there_twice() {
        for table in tables(&Metrics::default()) {
            let names: Vec<&str> = table.columns.iter().map(|c| c.name).collect();
            assert!(table.key.iter().all(|key| names.contains(key)), "{}", table.name);
            assert!((1..names.len()).all(|i| !names[..i].contains(&names[i])), "{}", table.name);
        }
    }
}
