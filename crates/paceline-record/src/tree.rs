//! A process and everybody below it: what a program that is not ours takes, read from the kernel beside it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::metric::field;

/// What one process of the tree has taken so far.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reading {
    pub pid: u32,
    /// Its name, as the kernel shortens it.
    pub name: String,
    /// CPU time of all its threads, in seconds.
    pub cpu_s: f64,
    pub resident_bytes: u64,
    /// Read from storage.
    pub read_bytes: u64,
    /// Written to storage.
    pub written_bytes: u64,
}

/// A tree over its whole life, as far as it was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TreeSummary {
    /// Most memory of all processes together at a moment.
    pub rss_peak_bytes: u64,
    /// Most processes at a moment.
    pub processes: u64,
    /// Read from storage by all processes.
    pub read_bytes: u64,
    /// Written to storage by all processes.
    pub written_bytes: u64,
}

/// Watches everybody below a process.
pub struct ProcessTree {
    root: u32,
    started: Instant,
    /// Samples, one line of JSON each.
    lines: Option<BufWriter<File>>,
    /// Bytes read and written by each process when it was last seen; numbers come again, start times do not.
    io: BTreeMap<(u32, u64), (u64, u64)>,
    summary: TreeSummary,
}

impl ProcessTree {
    /// Of everybody below `root`; samples are written to `record`, if there is one.
    pub fn new(root: u32, record: Option<&Path>) -> io::Result<Self> {
        let create = |path: &Path| {
            path.parent().map(fs::create_dir_all).transpose()?;
            File::create(path).map(BufWriter::new)
        };
        let lines = record.map(create).transpose()?;
        Ok(Self {
            root,
            started: Instant::now(),
            lines,
            io: BTreeMap::new(),
            summary: TreeSummary::default(),
        })
    }

    /// Takes a sample; whether anybody was there.
    pub fn sample(&mut self) -> io::Result<bool> {
        let mut readings = Vec::new();
        for pid in below(self.root) {
            // A process that ends in between is not there any more.
            let Some((reading, born)) = read(pid) else { continue };
            self.io.insert((pid, born), (reading.read_bytes, reading.written_bytes));
            readings.push(reading);
        }
        if readings.is_empty() {
            return Ok(false);
        }
        let resident = readings.iter().map(|r| r.resident_bytes).sum();
        self.summary.rss_peak_bytes = self.summary.rss_peak_bytes.max(resident);
        self.summary.processes = self.summary.processes.max(readings.len() as u64);
        if let Some(lines) = &mut self.lines {
            let line =
                serde_json::json!({"t_s": self.started.elapsed().as_secs_f64(), "processes": readings});
            writeln!(lines, "{line}").and_then(|()| lines.flush())?;
        }
        Ok(true)
    }

    /// What was seen.
    pub fn summary(&self) -> TreeSummary {
        let sum = |of: fn(&(u64, u64)) -> u64| self.io.values().map(of).sum();
        TreeSummary { read_bytes: sum(|io| io.0), written_bytes: sum(|io| io.1), ..self.summary }
    }
}

fn below(root: u32) -> Vec<u32> {
    let children = |pid: u32| -> Vec<u32> {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let of_task =
            |task: fs::DirEntry| fs::read_to_string(task.path().join("children")).unwrap_or_default();
        let texts: Vec<String> = tasks.map(of_task).collect();
        texts.iter().flat_map(|text| text.split_whitespace()).filter_map(|pid| pid.parse().ok()).collect()
    };
    let mut all = children(root);
    let mut at = 0;
    while at < all.len() {
        all.extend(children(all[at]));
        at += 1;
    }
    all
}

/// What a process has taken, and when it was born in the kernel's ticks.
pub(crate) fn read(pid: u32) -> Option<(Reading, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may hold anything.
    let (head, tail) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = tail.split(' ').collect();
    let number = |i: usize| fields.get(i)?.trim().parse::<u64>().ok();
    let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    // USER_HZ is 100 on every Linux; pages are what the kernel says.
    let reading = Reading {
        pid,
        name: head.split_once('(')?.1.into(),
        cpu_s: (number(11)? + number(12)?) as f64 / 100.0,
        resident_bytes: number(21)? * rustix::param::page_size() as u64,
        read_bytes: field(&io, "read_bytes").unwrap_or(0),
        written_bytes: field(&io, "write_bytes").unwrap_or(0),
    };
    Some((reading, number(19)?))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_tree_is_everybody_below_and_its_samples_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("trees/0.ndjson");
        let mut tree = ProcessTree::new(std::process::id(), Some(&file)).unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 100 & echo ready; wait"]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut [0; 6]).unwrap();
        assert!(tree.sample().unwrap());
        let summary = tree.summary();
        // Other tests of this process may have children too.
        assert!(summary.processes >= 2 && summary.rss_peak_bytes > 100_000, "{summary:?}");
        let text = fs::read_to_string(&file).unwrap();
        let line: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        let names: Vec<&str> =
            line["processes"].as_array().unwrap().iter().filter_map(|p| p["name"].as_str()).collect();
        // The second one may not have become a `sleep` yet.
        assert!(names.contains(&"sh") && names.len() >= 2, "{names:?}");
        for pid in below(shell.id()) {
            let _ = Command::new("kill").arg(pid.to_string()).status();
        }
        shell.wait().unwrap();
    }
}
