//! A run in a few figures: where the time of each rank went, its links, its evaluations, its resources.

use serde::Serialize;

use super::Exported;
use super::node::{self, NodeSummary};
use crate::event::MembershipChange;
use crate::script_record::{GpuUse, ScriptRecord, ScriptReport, ScriptStaging};
use crate::store::{RecordError, RunLabels, Value, number};

/// A run in a few figures.
#[derive(Clone, Debug, Serialize)]
pub struct RunSummary {
    /// The run's id.
    pub run: String,
    /// `running`, `ok`, `failed`, `interrupted` or `lost`.
    pub state: String,
    /// `measured` or `simulated`.
    pub origin: String,
    /// Why it failed.
    pub error: Option<String>,
    /// When it began, in seconds since 1970.
    pub started_s: f64,
    /// How long it took, or has taken so far.
    pub seconds: f64,
    /// How often it was started: resumed and restarted runs more than once.
    pub attempts: u64,
    /// What was run, in words.
    pub what: String,
    /// Steps of the whole run.
    pub steps: Option<u64>,
    /// Steps done.
    pub steps_done: u64,
    /// Samples per second of the training clock.
    pub samples_per_s: Option<f64>,
    /// Rows that are missing from the record.
    pub dropped_rows: u64,
    /// What people call it, where it belongs, and its command line.
    #[serde(flatten)]
    pub labels: RunLabels,
    /// Whether lists leave it out.
    pub archived: bool,
    /// SHA-256 of its plan.
    pub plan_sha256: Option<String>,
    /// Version, commit and compiler of the program.
    pub build: [String; 3],
    /// Machines.
    pub hosts: Vec<String>,
    /// Ranks.
    pub ranks: Vec<RankSummary>,
    /// What each machine used.
    pub nodes: Vec<NodeSummary>,
    /// Links that bytes went over.
    pub links: Vec<LinkSummary>,
    /// Evaluations.
    pub evaluations: Vec<EvaluationSummary>,
    /// Changes of its members.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub membership: Vec<MembershipChange>,
    /// Its scripts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub script: Option<ScriptRecord>,
}

/// A rank.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RankSummary {
    /// Its number.
    pub rank: u64,
    /// `worker` or `server`.
    pub role: String,
    /// Rows: steps of a worker, updates (or several at once) of a server.
    pub steps: u64,
    /// Where their time went, in seconds.
    pub data_s: f64,
    /// Forward pass and loss.
    pub forward_s: f64,
    /// Backward pass.
    pub backward_s: f64,
    /// Sending, receiving and summing.
    pub send_s: f64,
    /// Waiting.
    pub wait_s: f64,
    /// The rank that it waited for the longest.
    pub wait_for: Option<u64>,
    /// Updating parameters.
    pub apply_s: f64,
    /// Greatest staleness of an update.
    pub staleness: Option<u64>,
    /// CPU use between its first and last sample, in percent of one core.
    pub cpu_percent: Option<f64>,
    /// Peak resident memory.
    pub memory_bytes: Option<u64>,
    /// Read from and written to disks.
    pub disk_bytes: Option<u64>,
    /// Context switches.
    pub switches: Option<u64>,
    /// Rows that there was no room for.
    pub dropped_rows: u64,
}

/// A link.
#[derive(Clone, Debug, Serialize)]
pub struct LinkSummary {
    /// Who sends.
    pub from: u64,
    /// To whom.
    pub to: u64,
    /// Bytes.
    pub bytes: u64,
    /// Messages.
    pub messages: u64,
    /// The kernel's mean round trip, where it measures one.
    pub round_trip_s: Option<f64>,
    /// Segments sent again.
    pub retransmits: Option<u64>,
}

/// An evaluation.
#[derive(Clone, Debug, Serialize)]
pub struct EvaluationSummary {
    /// Steps done.
    pub step: u64,
    /// Training clock.
    pub train_s: f64,
    /// Mean loss.
    pub loss: f64,
    /// Accuracy.
    pub accuracy: f64,
}

/// A heading, column names, and cells.
pub type Section = (String, Vec<&'static str>, Vec<Vec<String>>);

impl RunSummary {
    /// Sums a run up.
    pub fn of(exported: &Exported<'_>) -> Result<Self, RecordError> {
        let run = exported.run;
        let hosts = exported.table("hosts")?;
        let text = |row: &[Value], name: &str| match &row[hosts.column(name)] {
            Value::Text(text) => text.clone(),
            value => number(value).unwrap_or(0.0).to_string(),
        };
        let host = |row: &Vec<Value>| {
            format!(
                "{}: {}, {} cores, {}",
                text(row, "host"),
                text(row, "cpu"),
                text(row, "cores"),
                text(row, "kernel")
            )
        };
        Ok(Self {
            run: run.run.clone(),
            state: run.state.clone(),
            origin: run.origin.clone(),
            error: run.error.clone(),
            started_s: run.started_s,
            seconds: run.age_s(),
            attempts: run.attempts,
            what: run.what(),
            steps: run.steps,
            steps_done: run.steps_done,
            samples_per_s: run.samples_per_s(),
            dropped_rows: run.dropped_rows,
            labels: run.labels.clone(),
            archived: run.archived,
            plan_sha256: run.plan.as_ref().map(paceline_plan::Plan::hash),
            build: run.build.clone(),
            hosts: hosts.rows.iter().map(host).collect(),
            ranks: ranks(exported)?,
            nodes: node::nodes(exported)?,
            links: links(exported)?,
            evaluations: evaluations(exported)?,
            membership: exported.store.membership(run)?,
            script: ScriptRecord::read(exported.store, run)?,
        })
    }

    /// The tables that a summary shows.
    pub fn sections(&self) -> Vec<Section> {
        let ms = |seconds: f64, steps: u64| format!("{:.3}", 1e3 * seconds / steps.max(1) as f64);
        let some = |n: Option<u64>| n.map_or_else(|| "-".into(), |n| n.to_string());
        let time = |r: &RankSummary| {
            let mut row = vec![format!("{} {}", r.role, r.rank), r.steps.to_string()];
            let phases = [r.data_s, r.forward_s, r.backward_s, r.send_s, r.wait_s, r.apply_s];
            let observed = self.script.as_ref().is_none_or(|script| script.observed);
            let shown = |(i, s): (usize, f64)| {
                if observed || ![3, 4].contains(&i) { ms(s, r.steps) } else { "-".into() }
            };
            row.extend(phases.into_iter().enumerate().map(shown));
            row.extend([some(r.wait_for), some(r.staleness)]);
            row
        };
        let resources = |r: &RankSummary| {
            let mb =
                |bytes: Option<u64>| bytes.map_or_else(|| "-".into(), |b| format!("{:.1}", b as f64 / 1e6));
            let cpu = r.cpu_percent.map_or_else(|| "-".into(), |c| format!("{c:.0}"));
            let dropped = r.dropped_rows.to_string();
            vec![
                format!("{} {}", r.role, r.rank),
                cpu,
                mb(r.memory_bytes),
                mb(r.disk_bytes),
                some(r.switches),
                dropped,
            ]
        };
        let link = |l: &LinkSummary| {
            let trip = l.round_trip_s.map_or_else(|| "-".into(), |s| format!("{:.0}", 1e6 * s));
            let mb = format!("{:.3}", l.bytes as f64 / 1e6);
            vec![format!("{} → {}", l.from, l.to), mb, l.messages.to_string(), trip, some(l.retransmits)]
        };
        let evaluation = |e: &EvaluationSummary| {
            let known = |value: f64, text: String| if value.is_nan() { "-".to_owned() } else { text };
            let accuracy = known(e.accuracy, format!("{:.2}", 100.0 * e.accuracy));
            let loss = known(e.loss, format!("{:.4}", e.loss));
            vec![e.step.to_string(), format!("{:.2}", e.train_s), loss, accuracy]
        };
        let all = vec![
            (
                "Where the time went, per step in ms".into(),
                vec![
                    "rank",
                    "steps",
                    "data",
                    "forward",
                    "backward",
                    "send",
                    "wait",
                    "apply",
                    "waits for",
                    "staleness",
                ],
                self.ranks.iter().map(time).collect::<Vec<_>>(),
            ),
            (
                "Resources".into(),
                vec!["rank", "CPU %", "memory MB", "disk MB", "switches", "dropped rows"],
                self.ranks.iter().map(resources).collect(),
            ),
            (
                "Links".into(),
                vec!["link", "MB", "messages", "round trip µs", "retransmits"],
                self.links.iter().map(link).collect(),
            ),
            (
                "Evaluations".into(),
                vec!["step", "training s", "test loss", "accuracy %"],
                // A script's reports say the same, and more.
                self.evaluations.iter().filter(|_| self.script.is_none()).map(evaluation).collect(),
            ),
        ];
        let of_nodes = node::section(&self.nodes);
        let of_script = self.script.iter().flat_map(|script| self.of_script(script));
        all.into_iter().chain(of_nodes).chain(of_script).filter(|(_, _, rows)| !rows.is_empty()).collect()
    }

    /// The tables of a script: what it reported, and when its gradients were ready.
    fn of_script(&self, script: &ScriptRecord) -> Vec<Section> {
        let ms = |seconds: f64| format!("{:.3}", 1e3 * seconds);
        let report = |report: &ScriptReport| {
            vec![report.step.to_string(), format!("{:.2}", report.train_s), report.words()]
        };
        let staging = |own: &ScriptStaging| {
            let rank = self.ranks.iter().find(|r| r.rank == own.rank as u64);
            let (steps, backward) = rank.map_or((0, 0.0), |r| (r.steps, r.backward_s));
            let share =
                if backward > 0.0 { format!("{:.0}", 100.0 * own.staging_s / backward) } else { "-".into() };
            vec![format!("worker {}", own.rank), ms(own.staging_s / steps.max(1) as f64), share]
        };
        let late = |(name, len, ready): (&str, usize, f64)| vec![name.to_owned(), len.to_string(), ms(ready)];
        let (late_tensors, all) = (script.late(), script.tensors.len());
        let gpu = |one: &&GpuUse| {
            let some = |value: Option<f64>, scale: f64, digits: usize| {
                value.map_or_else(|| "-".into(), |value| format!("{:.digits$}", value / scale))
            };
            let workers: Vec<String> = one.workers.iter().map(ToString::to_string).collect();
            vec![
                if one.machine == 0 {
                    one.gpu.clone()
                } else {
                    format!("{} beside rank {}", one.gpu, one.machine)
                },
                one.name.clone().unwrap_or_else(|| "-".into()),
                if workers.is_empty() { "-".into() } else { workers.join(", ") },
                some(one.utilisation_percent, 1.0, 0),
                some(one.memory_used_bytes, 1e9, 1),
                some(one.memory_bytes, 1e9, 1),
                some(one.power_w, 1.0, 0),
            ]
        };
        vec![
            (
                "GPUs".into(),
                vec!["GPU", "model", "workers", "utilisation %", "memory GB", "of GB", "power W"],
                script.own_gpus().iter().map(gpu).collect(),
            ),
            (
                "Reported by the script".into(),
                vec!["step", "training s", "figures"],
                script.reported.iter().map(report).collect(),
            ),
            (
                "Copying gradients (staging)".into(),
                vec!["rank", "ms per step", "% of backward"],
                script
                    .staging
                    .iter()
                    .filter(|own| script.observed && own.staging_s > 0.0)
                    .map(staging)
                    .collect(),
            ),
            (
                format!("Gradients that were ready last ({} of {all} tensors)", late_tensors.len()),
                vec!["tensor", "numbers", "ms after backward began"],
                late_tensors.into_iter().map(late).collect(),
            ),
        ]
    }

    /// The command line that gives the same plan again, in lines that a shell joins.
    pub fn command(&self) -> Option<String> {
        Some(in_shell_lines(self.labels.command.as_deref()?, COMMAND_WIDTH))
    }

    /// What there is to say before the tables.
    pub fn lines(&self) -> Vec<String> {
        let steps = match self.steps {
            Some(steps) => format!("{} of {steps} steps", self.steps_done),
            // A script's end is not known before.
            None if self.script.is_some() => format!("{} steps", self.steps_done),
            None => format!("{} of ? steps", self.steps_done),
        };
        let rate = self.samples_per_s.map_or_else(String::new, |rate| format!(", {rate:.0} samples/s"));
        let virtually = if self.origin == "simulated" { " in virtual time" } else { "" };
        let mut lines = vec![
            self.what.clone(),
            format!("{}{virtually}: {steps} in {:.1} s{rate}", self.state, self.seconds),
        ];
        let labels = &self.labels;
        lines.extend(labels.name.iter().map(|name| format!("name: {name}")));
        if !labels.tags.is_empty() {
            lines.push(format!("tags: {}", labels.tags.join(", ")));
        }
        lines.extend(labels.study.iter().map(|study| match &labels.workload {
            Some(workload) => format!("of the study {study}, workload {workload}"),
            None => format!("of the study {study}"),
        }));
        lines.extend(labels.note.iter().map(|note| format!("note: {}", note.replace('\n', "\n  "))));
        lines.extend(self.archived.then(|| "archived: lists leave it out".to_owned()));
        if self.attempts > 1 {
            lines.push(format!("started {} times", self.attempts));
        }
        lines.extend(self.membership.iter().map(MembershipChange::words));
        lines.extend(self.error.iter().map(|error| format!("error: {error}")));
        lines.extend(self.script.iter().flat_map(ScriptRecord::lines));
        lines.extend(self.hosts.clone());
        lines.push(format!("paceline {} ({}, {})", self.build[0], self.build[1], self.build[2]));
        if self.dropped_rows > 0 {
            lines.push(format!("{} rows are missing: there was no room for them", self.dropped_rows));
        }
        lines
    }
}

/// Columns of a line of a command.
const COMMAND_WIDTH: usize = 76;

/// A command line in lines that a shell joins: broken before flags, never within quotes.
fn in_shell_lines(command: &str, width: usize) -> String {
    let (mut lines, mut line, mut quoted) = (Vec::new(), String::new(), false);
    for piece in command.split(" --") {
        let more = if lines.is_empty() && line.is_empty() { piece.to_owned() } else { format!("--{piece}") };
        let fits = line.is_empty() || line.chars().count() + more.chars().count() < width;
        if fits || quoted {
            line += if line.is_empty() { "" } else { " " };
            line += &more;
        } else {
            lines.push(std::mem::replace(&mut line, format!("  {more}")));
        }
        let mut chars = piece.chars();
        while let Some(c) = chars.next() {
            match c {
                '\'' => quoted = !quoted,
                '\\' if !quoted => drop(chars.next()),
                _ => {}
            }
        }
    }
    lines.push(line);
    lines.join(" \\\n")
}

/// Sums are the database's: a run may have more rows than memory has room for.
fn ranks(exported: &Exported<'_>) -> Result<Vec<RankSummary>, RecordError> {
    let Exported { store, run } = *exported;
    let rows = exported.table("ranks")?;
    let steps = store.numbers(
        "SELECT rank, count(*), 1e-9 * sum(data_ns), 1e-9 * sum(forward_ns), 1e-9 * sum(backward_ns), \
         1e-9 * sum(send_ns), 1e-9 * sum(wait_ns), 1e-9 * sum(apply_ns), max(staleness) \
         FROM steps WHERE run = ? GROUP BY rank",
        run,
    )?;
    let waits = store.numbers(
        "SELECT rank, wait_for, sum(wait_ns) AS ns FROM steps WHERE run = ? AND wait_for IS NOT NULL \
         GROUP BY rank, wait_for ORDER BY ns DESC",
        run,
    )?;
    let samples = store.numbers(
        // Counters are a process's: each start of the run has its own.
        "SELECT rank, 100e9 * sum(cpu_s) / nullif(sum(ns), 0), max(resident), sum(disk), sum(switches) FROM ( \
         SELECT rank, max(cpu_user_s) + max(cpu_system_s) - min(cpu_user_s) - min(cpu_system_s) AS cpu_s, \
         max(t_ns) - min(t_ns) AS ns, max(resident_peak_bytes) AS resident, \
         max(disk_read_bytes + disk_write_bytes) AS disk, \
         max(voluntary_switches + involuntary_switches) AS switches \
         FROM samples WHERE run = ? GROUP BY rank, attempt) GROUP BY rank",
        run,
    )?;
    let one = |row: &Vec<Value>| {
        let rank = number(&row[rows.column("rank")]).unwrap_or(0.0);
        let of = |all: &[Vec<f64>], column: usize| {
            all.iter().find(|r| r[0] == rank).map(|r| r[column]).filter(|value| !value.is_nan())
        };
        let seconds = |column: usize| of(&steps, column).unwrap_or(0.0);
        let count = |all: &[Vec<f64>], column: usize| of(all, column).map(|n| n as u64);
        RankSummary {
            rank: rank as u64,
            role: match &row[rows.column("role")] {
                Value::Text(role) => role.clone(),
                _ => "rank".into(),
            },
            steps: count(&steps, 1).unwrap_or(0),
            data_s: seconds(2),
            forward_s: seconds(3),
            backward_s: seconds(4),
            send_s: seconds(5),
            wait_s: seconds(6),
            wait_for: count(&waits, 1),
            apply_s: seconds(7),
            staleness: count(&steps, 8),
            cpu_percent: of(&samples, 1),
            memory_bytes: count(&samples, 2),
            disk_bytes: count(&samples, 3),
            switches: count(&samples, 4),
            dropped_rows: number(&row[rows.column("dropped_rows")]).unwrap_or(0.0) as u64,
        }
    };
    Ok(rows.rows.iter().map(one).collect())
}

fn links(exported: &Exported<'_>) -> Result<Vec<LinkSummary>, RecordError> {
    let rows = exported.store.numbers(
        "SELECT rank, peer, sum(bytes), sum(messages), avg(round_trip), sum(again) FROM ( \
         SELECT rank, peer, max(sent_bytes) AS bytes, max(sent_messages) AS messages, \
         avg(round_trip_s) AS round_trip, max(retransmits) AS again \
         FROM links WHERE run = ? GROUP BY rank, peer, attempt) GROUP BY rank, peer",
        exported.run,
    )?;
    let one = |row: &Vec<f64>| LinkSummary {
        from: row[0] as u64,
        to: row[1] as u64,
        bytes: row[2] as u64,
        messages: row[3] as u64,
        round_trip_s: Some(row[4]).filter(|s| !s.is_nan()),
        retransmits: Some(row[5]).filter(|n| !n.is_nan()).map(|n| n as u64),
    };
    Ok(rows.iter().map(one).collect())
}

fn evaluations(exported: &Exported<'_>) -> Result<Vec<EvaluationSummary>, RecordError> {
    let rows = exported.store.numbers(
        "SELECT step, train_s, loss, accuracy FROM evaluations WHERE run = ? ORDER BY step",
        exported.run,
    )?;
    let one = |row: &Vec<f64>| EvaluationSummary {
        step: row[0] as u64,
        train_s: row[1],
        loss: row[2],
        accuracy: row[3],
    };
    Ok(rows.iter().map(one).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_command_goes_on_in_the_next_line_and_a_shell_joins_it() {
        let command = "paceline train --data-dir '/a b/it'\\''s --here --and there' --batch 32 --seed 1";
        assert_eq!(in_shell_lines(command, 200), command);
        let broken = in_shell_lines(command, 30);
        let lines: Vec<&str> = broken.split(" \\\n").collect();
        let quoted = "  --data-dir '/a b/it'\\''s --here --and there'";
        assert_eq!(lines, ["paceline train", quoted, "  --batch 32 --seed 1"]);
    }
}
