//! Engines in Python: three processes on a local Ray cluster and on a local Spark cluster give the parameters of one
//! machine, bit for bit (`examples/engines/`). And a study over nodes: none of its runs is lost with a node, and it is
//! sooner over than on one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Line, Report, Setup, peers};
use crate::process::{Outcome, last_json, root};

/// A run that is soon over; the way is the same on one machine and on several.
const FLAGS: &[&str] =
    &["--steps", "40", "--batch", "24", "--bucket", "64KiB", "--strategy", "ring-allreduce", "--quiet"];

/// Trains on each, and alone.
pub fn measure(setup: &Setup) -> Outcome<Report> {
    let folder = setup.work("engines");
    let _ = fs::remove_dir_all(&folder);
    let mut command = setup.program();
    let alone = last_json(command.args(["train", "--no-record", "--workers", "3"]).args(FLAGS))?;
    let mut report = Report { lines: Vec::new(), runs: vec![json!({"engine": "none", "result": alone})] };
    for (engine, script) in
        [("Ray, three raylets", "on_ray.py"), ("Spark, local-cluster[3,1,1024]", "on_spark.py")]
    {
        let mut command = Command::new(peers::python(setup));
        command.arg(root().join("examples/engines").join(script)).arg(&setup.binary).arg(folder.join(script));
        command.args(FLAGS).env("PYTHONPATH", root().join("python")).env("PYTHONDONTWRITEBYTECODE", "1");
        let result = last_json(&mut command)?;
        let same = ["params_sha256", "steps", "samples"].iter().all(|field| result[field] == alone[field]);
        let hosts = result["ranks"].as_array().map_or(0, Vec::len);
        let claim = format!("{engine}: runs on 3 hosts with the bits of one machine");
        report.lines.push(Line::new(&claim, f64::from(same && hosts == 3), 1.0, false));
        report.runs.push(json!({"engine": engine, "result": result}));
    }
    Ok(report)
}

/// A warm-up, a baseline and 58 points, each a run of about half a second.
const STUDY: &str = r#"
name = "nodes"
sampler = "random"
[budget]
runs = 58
[workload]
steps = 1500
batch = 32
[axes]
lr = { from = 0.01, to = 0.2, count = 40, scale = "log" }
momentum = [0.0, 0.5, 0.9]
[[objectives]]
metric = "final_accuracy"
goal = "maximize"
[control]
every = 0
"#;
const RUNS: usize = 60;
/// Nodes, the leader's among them.
const NODES: usize = 3;
/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(600);

/// A study over local nodes under way. Dropping it ends what is left.
struct Nodes<'a> {
    setup: &'a Setup,
    folder: PathBuf,
    tasks: Vec<Child>,
}

impl<'a> Nodes<'a> {
    /// Starts the study on so many nodes, in a folder of its own.
    fn start(setup: &'a Setup, name: &str, count: usize) -> Outcome<Self> {
        let folder = setup.work(name);
        let _ = fs::remove_dir_all(&folder);
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        fs::create_dir_all(&folder)
            .and_then(|()| fs::write(folder.join("study.toml"), STUDY))
            .map_err(failed)?;
        let mut nodes = Self { setup, folder, tasks: Vec::new() };
        for rank in 0..count {
            let task = nodes.task(rank, count)?;
            nodes.tasks.push(task);
        }
        Ok(nodes)
    }

    fn task(&self, rank: usize, count: usize) -> Outcome<Child> {
        let (rank, count) = (rank.to_string(), count.to_string());
        let mut command = self.setup.program();
        command.args(["explore", "study.toml", "--store", "store", "--quiet", "--json"]);
        command.current_dir(&self.folder).stdout(Stdio::null()).stderr(Stdio::inherit());
        command.env_remove("PACELINE_KEY_FILE").envs([
            ("RANK", &rank),
            ("WORLD_SIZE", &count),
            ("LOCAL_WORLD_SIZE", &count),
        ]);
        command.envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "7700")]);
        command.spawn().map_err(|error| format!("{}: {error}", self.setup.binary.display()))
    }

    /// The journal's entries of a kind.
    fn entries(&self, kind: &str) -> Vec<Value> {
        entries(&self.folder.join("store/studies/nodes/journal.ndjson"), kind)
    }

    /// Waits until something holds.
    fn until(&mut self, what: &str, mut holds: impl FnMut(&Self) -> bool) -> Outcome {
        let begun = Instant::now();
        while !holds(self) {
            if begun.elapsed() > PATIENCE {
                return Err(format!("waited {} s in vain for {what}", PATIENCE.as_secs()));
            }
            if let Ok(Some(status)) = self.tasks[0].try_wait()
                && !status.success()
            {
                return Err(format!("the study ended with {status} before {what}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Waits for the end of the study and of its nodes.
    fn end(&mut self) -> Outcome {
        for (rank, task) in self.tasks.iter_mut().enumerate() {
            let status = task.wait().map_err(|error| format!("task {rank}: {error}"))?;
            if !status.success() {
                return Err(format!("task {rank} ended with {status}"));
            }
        }
        Ok(())
    }
}

impl Drop for Nodes<'_> {
    fn drop(&mut self) {
        for task in &mut self.tasks {
            // An error means that it has ended already.
            let _ = task.kill();
            let _ = task.wait();
        }
    }
}

fn entries(journal: &Path, kind: &str) -> Vec<Value> {
    let text = fs::read_to_string(journal).unwrap_or_default();
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let entry = |line: &str| serde_json::from_str::<Value>(line).ok().map(|line| line["entry"].clone());
    whole.filter_map(entry).filter(|entry| entry["entry"] == kind).collect()
}

/// A node is killed in the middle of a run, started again, and killed in the middle of another.
pub fn killed(setup: &Setup) -> Outcome<Report> {
    let mut nodes = Nodes::start(setup, "study-nodes", NODES)?;
    for kill in 1..=2 {
        // A third of the runs lies before each kill.
        let ended = kill * RUNS / 3;
        nodes.until("runs", |nodes| nodes.entries("end").len() >= ended)?;
        while nodes.entries("node-lost").len() < kill {
            // Between two runs it has nothing to lose: it is killed again.
            nodes.tasks[1].kill().map_err(|error| format!("kill: {error}"))?;
            let _ = nodes.tasks[1].wait();
            std::thread::sleep(Duration::from_secs(1));
            nodes.tasks[1] = nodes.task(1, NODES)?;
            let begun = nodes.entries("begin").len();
            nodes.until("a run", |nodes| nodes.entries("begin").len() >= (begun + NODES).min(RUNS))?;
        }
    }
    nodes.end()?;
    let (ends, lost) = (nodes.entries("end"), nodes.entries("node-lost"));
    let once = (0..RUNS as u64).filter(|id| {
        let own = ends.iter().filter(|end| end["id"] == *id && end["end"]["state"] == "ok");
        own.count() == 1
    });
    let lines = vec![
        Line::new("kills of a node in the middle of a run", lost.len() as f64, 2.0, false),
        Line::new(
            "a study of 60 runs over three local nodes: runs that ended once, and well",
            once.count() as f64,
            RUNS as f64,
            false,
        ),
        Line::new(
            "runs that failed",
            ends.iter().filter(|end| end["end"]["state"] != "ok").count() as f64,
            0.0,
            true,
        ),
    ];
    Ok(Report { lines, runs: ends.into_iter().chain(lost).collect() })
}

/// The same study undisturbed, on three nodes and on one.
pub fn beside_one_node(setup: &Setup) -> Outcome<Report> {
    let (mut seconds, mut runs) = (Vec::new(), Vec::new());
    for count in [1, NODES] {
        let begun = Instant::now();
        let mut nodes = Nodes::start(setup, "study-nodes-speed", count)?;
        nodes.end()?;
        seconds.push(begun.elapsed().as_secs_f64());
        runs.push(json!({"nodes": count, "seconds": seconds.last(), "ended": nodes.entries("end").len()}));
    }
    let claim = "a study of 60 runs over three local nodes: its time by that on one node";
    Ok(Report { lines: vec![Line::new(claim, seconds[1] / seconds[0], 0.45, true)], runs })
}
