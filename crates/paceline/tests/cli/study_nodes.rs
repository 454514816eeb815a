//! Studies over several nodes: processes that an engine or ssh has started, which make whole runs for the one that leads.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use paceline_record::Store;
use paceline_testing::process::in_path;
use paceline_testing::{Need, skip};
use serde_json::Value;

use crate::engines::{MPIRUN, fake_ssh};
use crate::machines::{PROGRAM, Process, all_gone, error};
use crate::scripts::has_python;
use crate::studies::Place;
use crate::support::{joined, result, run, signal};

/// From a loss to the end of everybody: 6 s, and threefold where a busy machine is no fault.
const LIMIT: Duration = Duration::from_secs(18);
/// No single wait for a study under way is longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// A study over nodes, with its folder.
struct Cluster {
    place: Place,
    /// Where nodes put what their runs leave.
    temporary: tempfile::TempDir,
    size: usize,
    tasks: Vec<Process>,
}

impl Cluster {
    fn new(study: &str, size: usize) -> Self {
        let (place, temporary) = (Place::new(study), tempfile::tempdir().unwrap());
        Self { place, temporary, size, tasks: Vec::new() }
    }

    /// Starts `explore`, or another verb with its words, as so many tasks.
    fn start(study: &str, size: usize, words: &str) -> Self {
        let mut cluster = Self::new(study, size);
        cluster.tasks = (0..size).map(|rank| cluster.task(rank, words)).collect();
        cluster
    }

    fn words(&self, words: &str) -> String {
        let folder = self.place.path().display();
        let words = words.replace("STUDY", &format!("{folder}/s.toml"));
        format!("{words} --store {folder}/store")
    }

    fn task(&self, rank: usize, words: &str) -> Process {
        let (rank, size) = (rank.to_string(), self.size.to_string());
        let environment = [
            ("RANK", rank.as_str()),
            ("WORLD_SIZE", &size),
            ("LOCAL_WORLD_SIZE", &size),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", "7700"),
            ("TMPDIR", self.temporary.path().to_str().unwrap()),
        ];
        Process::start(&[], &self.words(words), &environment)
    }

    /// Every task ends with these codes; what the leader said.
    fn ends(&mut self, codes: &[i32]) -> String {
        let ends: Vec<_> = self.tasks.drain(..).map(Process::end).collect();
        let texts: Vec<&str> = ends.iter().map(|(_, _, text)| text.as_str()).collect();
        assert_eq!(ends.iter().map(|(code, ..)| *code).collect::<Vec<_>>(), codes, "{texts:#?}");
        assert!(ends[1..].iter().all(|(_, out, _)| out.is_empty()), "only the leader prints");
        texts[0].to_owned()
    }

    /// Waits until the journal has so many entries of a kind.
    fn journal(&self, kind: &str, count: usize) -> Vec<Value> {
        let begun = Instant::now();
        loop {
            let mut entries = self.place.entries();
            entries.retain(|entry| entry["entry"] == kind);
            if entries.len() >= count {
                return entries;
            }
            let said: Vec<String> = self.tasks.iter().map(Process::stderr).collect();
            assert!(begun.elapsed() < PATIENCE, "{} of {count} {kind}: {said:#?}", entries.len());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Each run has ended once, and well; nothing is left behind by anybody.
    fn is_whole(&self, runs: usize) {
        let ends = self.journal("end", runs);
        let mut ids: Vec<u64> = ends.iter().map(|end| end["id"].as_u64().unwrap()).collect();
        ids.sort_unstable();
        assert_eq!(ids, (0..runs as u64).collect::<Vec<_>>());
        assert!(ends.iter().all(|end| end["end"]["state"] == "ok"), "{ends:#?}");
        self.nothing_is_left();
    }

    fn nothing_is_left(&self) {
        let names = |folder: &Path| -> Vec<String> {
            let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name());
            files.map(|name| name.to_string_lossy().into_owned()).collect()
        };
        assert_eq!(names(self.temporary.path()), [""; 0]);
        let store = self.place.path().join("store");
        let left: Vec<_> = names(&store).into_iter().filter(|name| name.contains("meeting")).collect();
        assert!(left.is_empty(), "{left:?}");
        assert!(!store.join("studies/s/incoming").exists());
    }

    /// Every process of the tasks, and of theirs.
    fn processes(&self) -> Vec<u32> {
        let mut all: Vec<u32> = self.tasks.iter().map(Process::id).collect();
        let mut at = 0;
        while at < all.len() {
            all.extend(crate::engines::children(all[at]));
            at += 1;
        }
        all
    }
}

/// Real runs of one and of two workers; the way is the same on one machine and on several.
pub(crate) const TRAIN: &str = r#"
sampler = "grid"
repeats = 2
[workload]
steps = 6
bucket = "64KiB"
[axes]
workers = [1, 2]
lr = [0.01, 0.05]
[[objectives]]
metric = "final_accuracy"
goal = "maximize"
[control]
every = 0
"#;

/// A warm-up, two repeats of four points, and two of one worker alone.
pub(crate) const RUNS: usize = 11;

/// A run of a store: the hash of its plan, of its parameters, and how many rows there are of what does not depend on
/// time.
type Fact = (String, String, Vec<usize>);

/// All runs of a study's store, in an order that does not depend on time.
fn facts(store: &Path) -> Vec<Fact> {
    let store = Store::open(store).unwrap();
    store.check().unwrap();
    let fact = |row: &paceline_record::store::RunRow| {
        let rows = ["ranks", "hosts", "steps", "evaluations"]
            .map(|table| store.rows(table, row).unwrap().rows.len());
        assert_eq!((row.state.as_str(), row.labels.study.as_deref()), ("ok", Some("s")), "{}", row.run);
        assert!(!store.rows("events", row).unwrap().rows.is_empty());
        let hash = row.plan.as_ref().unwrap().hash();
        (hash, row.result.as_ref().unwrap().params_sha256.clone(), rows.to_vec())
    };
    let mut facts: Vec<Fact> = store.runs().unwrap().iter().map(fact).collect();
    facts.sort();
    facts
}

/// The runs of the same study on one machine.
fn alone(study: &str) -> Vec<Fact> {
    let place = Place::new(study);
    let ran = place.run(&["explore", "s.toml"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    facts(&place.path().join("store"))
}

#[test]
fn a_study_over_three_nodes_has_the_points_parameters_and_records_of_one_node() {
    let alone = alone(TRAIN);
    let mut cluster = Cluster::start(TRAIN, 3, "explore STUDY --parallel 3 --json");
    let said = cluster.ends(&[0, 0, 0]);
    cluster.is_whole(RUNS);
    assert_eq!(facts(&cluster.place.path().join("store")), alone);
    assert!(said.contains("node 2 (") && said.contains("has come"), "{said}");
    let ends = cluster.journal("end", RUNS);
    for node in ["node 0 (", "node 1 (", "node 2 ("] {
        let made = ends.iter().filter(|end| end["node"].as_str().unwrap().starts_with(node)).count();
        assert!(made > 0, "{node}: {ends:#?}");
    }
    // Each worker's figures are there, of runs on every node.
    let store = Store::open(&cluster.place.path().join("store")).unwrap();
    for row in store.runs().unwrap() {
        let workers = row.plan.as_ref().unwrap().workers;
        let ranks = store.rows("ranks", &row).unwrap();
        let there = |name: &str| ranks.numbers(name).iter().flatten().filter(|value| **value > 0.0).count();
        assert_eq!((there("compute_s"), there("rss_peak_bytes")), (workers, workers), "{}", row.run);
    }
    let shown = cluster.place.run(&["show", "last"]);
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    assert!(cluster.place.run(&["status", "s"]).stdout.contains("finished"));
}

/// Runs that wait until a file is there. Each writes down whether it sees what numbers an engine's processes.
fn waiting(folder: &Path, points: usize) -> String {
    let (go, seen) = (folder.join("go"), folder.join("seen"));
    let levels: Vec<String> = (1..=points).map(|level| level.to_string()).collect();
    format!(
        r#"
sampler = "grid"
[command]
run = ["sh", "-c", "echo \"rank ${{RANK:-none}} cores {{cores}}\" >> {}; while ! test -e {}; do sleep 0.05; done; echo 'value: {{a}}'"]
metrics = {{ value = 'value: ([0-9.]+)' }}
[axes]
a = [{}]
[[objectives]]
metric = "value"
goal = "minimize"
[control]
every = 0
"#,
        seen.display(),
        go.display(),
        levels.join(", ")
    )
}

#[test]
fn a_lost_node_costs_nothing_but_time_and_may_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let study = waiting(folder.path(), 6);
    let words = "explore STUDY --parallel 3";
    let mut cluster = Cluster::start(&study, 3, words);
    // One is killed in the middle of a run, with everything that it has started.
    let first = cluster.journal("begin", 3);
    let of_node = crate::engines::children(cluster.tasks[1].id());
    assert!(signal("KILL", cluster.tasks[1].id()));
    let lost = &cluster.journal("node-lost", 1)[0];
    assert!(lost["node"].as_str().unwrap().starts_with("node 1 ("), "{lost}");
    assert!(!lost["cause"].as_str().unwrap().is_empty(), "{lost}");
    assert!(first.iter().any(|begin| begin["job"]["id"] == lost["id"]), "{lost}");
    all_gone(&of_node);
    // It is started again, and gets the run that was lost.
    cluster.tasks[1] = cluster.task(1, words);
    cluster.journal("begin", 4);
    // Another one is asked to end.
    assert!(signal("TERM", cluster.tasks[2].id()));
    let lost = cluster.journal("node-lost", 2);
    let asked = lost[1]["cause"].as_str().unwrap();
    assert!(asked.contains("node 2 ends before its study does: a signal asked it to"), "{lost:#?}");
    fs::write(folder.path().join("go"), "").unwrap();
    let said = cluster.ends(&[0, 0, 130]);
    cluster.is_whole(7);
    for words in ["is made again: node 1 (", "is made again: node 2 (", "node 1 ("] {
        assert!(joined(&said).contains(words), "{words}: {said}");
    }
    let status = cluster.place.result(&["status", "s"]);
    assert_eq!((&status["nodes_lost"], &status["failed"]), (&2.into(), &0.into()), "{status}");
    // No run sees the variables of the engine: a `paceline train` would wait for others.
    let seen = fs::read_to_string(folder.path().join("seen")).unwrap();
    assert!(seen.lines().count() >= 7 && seen.lines().all(|line| line.starts_with("rank none ")), "{seen}");
    let samples = cluster.place.path().join("store/studies/s/trees");
    assert_eq!(fs::read_dir(samples).unwrap().count(), 7, "samples of each run's process tree");
}

#[test]
fn nothing_is_left_when_the_leader_is_killed_and_the_study_is_resumed_on_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let study = waiting(folder.path(), 4);
    let mut cluster = Cluster::start(&study, 3, "explore STUDY --parallel 3");
    cluster.journal("begin", 3);
    let begun = Instant::now();
    while fs::read_to_string(folder.path().join("seen")).unwrap_or_default().lines().count() < 3 {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(10));
    }
    let pids = cluster.processes();
    assert!(pids.len() >= 9, "three tasks, each with a keeper and its program: {pids:?}");
    let begun = Instant::now();
    assert!(signal("KILL", cluster.tasks[0].id()));
    let ends: Vec<_> = cluster.tasks.drain(..).map(Process::end).collect();
    all_gone(&pids);
    assert!(begun.elapsed() < LIMIT, "{:?}", begun.elapsed());
    for (code, _, text) in &ends[1..] {
        assert_eq!(*code, 4, "{text}");
        assert!(error(text).contains("a node of its study"), "{text}");
    }
    assert_eq!(fs::read_dir(cluster.temporary.path()).unwrap().count(), 0);
    fs::write(folder.path().join("go"), "").unwrap();
    cluster.tasks = (0..3).map(|rank| cluster.task(rank, "resume s")).collect();
    cluster.ends(&[0, 0, 0]);
    cluster.is_whole(5);
    // A finished study has nothing for nodes to do; nobody waits.
    cluster.tasks = (0..3).map(|rank| cluster.task(rank, "resume s")).collect();
    let said = cluster.ends(&[0, 0, 0]);
    assert!(said.contains("the study is finished"), "{said}");
    cluster.nothing_is_left();
}

#[test]
fn an_interrupted_study_ends_its_nodes_and_is_resumed_on_one_machine() {
    let folder = tempfile::tempdir().unwrap();
    let study = waiting(folder.path(), 3);
    let mut cluster = Cluster::start(&study, 2, "explore STUDY");
    // Without --parallel every node has a run.
    cluster.journal("begin", 2);
    let pids = cluster.processes();
    assert!(signal("INT", cluster.tasks[0].id()));
    let said = cluster.ends(&[130, 130]);
    all_gone(&pids);
    assert!(said.contains("`paceline resume s` goes on"), "{said}");
    cluster.nothing_is_left();
    fs::write(folder.path().join("go"), "").unwrap();
    let ran = cluster.place.run(&["resume", "s"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    cluster.is_whole(4);
}

#[test]
fn what_cannot_be_is_refused_by_every_process_at_once() {
    let mut cluster = Cluster::start(TRAIN, 2, "explore STUDY --parallel 3");
    let said = cluster.ends(&[2, 2]);
    assert!(
        error(&said).contains("--parallel 3: there are 2 nodes, and each run needs one of its own"),
        "{said}"
    );
    assert!(joined(&said).contains("--parallel 2 takes all of them"), "{said}");
    // A study that cannot be read is told to those who would wait for it.
    let mut cluster = Cluster::start("sampler = 7", 2, "explore STUDY");
    let said = cluster.ends(&[3, 3]);
    assert!(error(&said).contains("s.toml"), "{said}");
    cluster.nothing_is_left();
    for words in ["--listen 127.0.0.1:0", "--key-file key", "--join-timeout 5"] {
        let ran =
            cluster.place.run(&[&["explore", "s.toml"], &words.split(' ').collect::<Vec<_>>()[..]].concat());
        assert_eq!(ran.code, 2, "{words}: {}", ran.stderr);
        assert!(joined(&ran.stderr).contains("give --engine or --hosts-file too"), "{}", ran.stderr);
    }
    let ran = cluster.place.run(&["explore", "--table", "t.csv", "--hosts-file", "hosts"]);
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    assert!(ran.stderr.contains("a table has no runs that other machines could make"), "{}", ran.stderr);
    // Whoever does not come is waited for as long as was said.
    let cluster = Cluster::new(TRAIN, 2);
    let (code, _, said) = cluster.task(0, "explore STUDY --join-timeout 0.5").end();
    assert_eq!(code, 4, "{said}");
    assert!(error(&said).contains("1 of 2 hosts came"), "{said}");
    assert!(cluster.place.entries().is_empty(), "the study has not begun");
    cluster.nothing_is_left();
}

#[test]
fn a_run_of_several_hosts_takes_as_many_nodes() {
    let study = r#"
sampler = "grid"
[workload]
steps = 6
batch = 24
bucket = "64KiB"
strategy = "ring-allreduce"
workers = 4
hosts = 2
[axes]
lr = [0.02, 0.03]
[[objectives]]
metric = "final_accuracy"
goal = "maximize"
[control]
every = 0
"#;
    let mut cluster = Cluster::start(study, 3, "explore STUDY");
    cluster.ends(&[0, 0, 0]);
    // A warm-up, a baseline of one worker, and two points.
    cluster.is_whole(4);
    let flags = "--steps 6 --batch 24 --bucket 64KiB --strategy ring-allreduce --workers 4";
    let store = Store::open(&cluster.place.path().join("store")).unwrap();
    for lr in [0.02, 0.03] {
        let alone = result(&format!("train --quiet {flags} --lr {lr}"));
        let rows = store.runs().unwrap();
        let run = rows.iter().find(|row| {
            let plan = row.plan.as_ref().unwrap();
            plan.workers == 4 && (plan.lr - lr).abs() < 1e-6
        });
        let run = run.unwrap_or_else(|| panic!("no run of {lr}"));
        assert_eq!(alone["params_sha256"], run.result.as_ref().unwrap().params_sha256.as_str(), "{lr}");
        assert_eq!(store.rows("ranks", run).unwrap().rows.len(), 4);
    }
    let mut cluster = Cluster::start(&study.replace("hosts = 2", "hosts = 4"), 3, "explore STUDY");
    let said = cluster.ends(&[1, 1, 1]);
    assert!(joined(&said).contains("the study has 3 nodes, and each is a host"), "{said}");
}

#[test]
fn a_host_of_a_run_that_is_lost_costs_nothing_but_time() {
    let study = r#"
sampler = "grid"
[workload]
steps = 1200
batch = 8
straggler = "rank=1,factor=200"
eval-every = 1000000000
workers = 2
hosts = 2
[axes]
lr = [0.02]
[[objectives]]
metric = "final_accuracy"
goal = "maximize"
[control]
every = 0
"#;
    let mut cluster = Cluster::start(study, 3, "explore STUDY --parallel 1");
    // The warm-up is on nodes 0 and 1.
    cluster.journal("begin", 1);
    let begun = Instant::now();
    while crate::engines::children(cluster.tasks[1].id()).is_empty() {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(signal("KILL", cluster.tasks[1].id()));
    let lost = &cluster.journal("node-lost", 1)[0];
    assert_eq!(
        (&lost["id"], lost["node"].as_str().unwrap().starts_with("node 1 (")),
        (&0.into(), true),
        "{lost}"
    );
    cluster.journal("begin", 2);
    assert!(signal("INT", cluster.tasks[0].id()));
    cluster.ends(&[130, -1, 130]);
    assert!(cluster.place.entries().iter().all(|entry| entry["entry"] != "end"), "no run has failed");
}

#[test]
fn processes_of_mpirun_and_hosts_of_a_file_are_nodes() {
    let alone = alone(TRAIN);
    let ssh = fake_ssh("for last; do :; done\nexec sh -c \"$last\"");
    let path = format!("{}:{}", ssh.path().display(), std::env::var("PATH").unwrap());
    let hosts = ssh.path().join("hosts");
    fs::write(&hosts, "127.0.0.1\nnode-b\nuser@node-c\n").unwrap();
    let cluster = Cluster::new(TRAIN, 3);
    let words = cluster.words(&format!("explore STUDY --parallel 3 --hosts-file {}", hosts.display()));
    let temporary = cluster.temporary.path().to_str().unwrap();
    let (code, _, text) = Process::start(&[], &words, &[("PATH", &path), ("TMPDIR", temporary)]).end();
    assert_eq!(code, 0, "{text}");
    cluster.is_whole(RUNS);
    assert_eq!(facts(&cluster.place.path().join("store")), alone);
    let told = fs::read_to_string(ssh.path().join("told")).unwrap();
    let long = told.split(|c: char| !c.is_ascii_hexdigit()).map(str::len).max().unwrap();
    assert!(long < 32, "no key is in an argument: {told}");
    if !in_path("mpirun") {
        skip(Need::DebianPackage, "openmpi-bin");
        return;
    }
    let cluster = Cluster::new(TRAIN, 3);
    let (code, _, text) = Process::start(MPIRUN, &cluster.words("explore STUDY --parallel 3"), &[]).end();
    assert_eq!(code, 0, "{text}");
    cluster.is_whole(RUNS);
    assert_eq!(facts(&cluster.place.path().join("store")), alone);
}

#[test]
fn scripts_are_trained_on_nodes_too() {
    if !has_python() {
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/scripts/plain.py");
    let study = format!(
        r#"
sampler = "grid"
[workload]
script = "{script}"
[axes]
args.steps = [4, 5, 6]
workers = [2]
[[objectives]]
metric = "final_accuracy"
goal = "maximize"
[control]
every = 0
"#
    );
    let mut cluster = Cluster::start(&study, 2, "explore STUDY");
    cluster.ends(&[0, 0]);
    let runs = cluster.journal("end", 4).len();
    cluster.is_whole(runs);
    let store = Store::open(&cluster.place.path().join("store")).unwrap();
    let mut steps: Vec<u64> = store.runs().unwrap().iter().map(|row| row.steps_done).collect();
    steps.sort_unstable();
    assert!([4, 5, 6].iter().all(|wanted| steps.contains(wanted)), "{steps:?}");
    // What a run of the store is called works for it, wherever it was made.
    let ran = run(std::process::Command::new(PROGRAM)
        .args(["explain", "last", "--store"])
        .arg(cluster.place.path().join("store")));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
}
