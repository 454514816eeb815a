//! Runs that an engine starts as one job: `mpirun`, `torchrun`'s variables, and a file of hosts over ssh. `slurm.rs` has
//! Slurm.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use paceline_record::Store;
use paceline_testing::process::in_path;
use paceline_testing::{Need, skip};
use serde_json::Value;

use crate::machines::{PROGRAM, Process, all_gone, error};
use crate::scripts::has_python;
use crate::support::{ENDLESS, PATIENCE, gone, paceline, result, run, signal};

/// Three processes on one machine, whoever runs the tests.
pub(crate) const MPIRUN: &[&str] = &["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "3"];

/// A run that is soon over; the way is the same on one machine and on several.
const SHORT: &str = "--steps 6 --batch 24 --bucket 64KiB --strategy ring-allreduce";

/// From a loss to the end of everybody: 6 s, and threefold where a busy machine is no fault.
const LIMIT: Duration = Duration::from_secs(18);

fn has_mpirun() -> bool {
    let found = in_path("mpirun");
    if !found {
        skip(Need::DebianPackage, "openmpi-bin");
    }
    found
}

/// The processes of a job as whoever sets torchrun's variables starts them.
struct Tasks {
    tasks: Vec<Process>,
    store: tempfile::TempDir,
}

impl Tasks {
    /// Starts so many; `words` may differ by task.
    fn start(count: usize, words: impl Fn(usize) -> String) -> Self {
        let store = tempfile::tempdir().unwrap();
        let folder = store.path().display().to_string();
        let (world, port) = (count.to_string(), (20_000 + std::process::id() % 10_000).to_string());
        let start = |rank: usize| {
            let rank_text = rank.to_string();
            let environment = [
                ("RANK", rank_text.as_str()),
                ("WORLD_SIZE", &world),
                ("LOCAL_WORLD_SIZE", &world),
                ("MASTER_ADDR", "127.0.0.1"),
                ("MASTER_PORT", &port),
            ];
            Process::start(&[], &format!("train --json --store {folder} {}", words(rank)), &environment)
        };
        Self { tasks: (0..count).map(start).collect(), store }
    }

    fn pids(&self) -> Vec<u32> {
        self.tasks.iter().flat_map(|task| task.children().into_iter().chain([task.id()])).collect()
    }

    /// Nothing is left in the store that leads to a run.
    fn no_meeting_is_left(&self) {
        let files = fs::read_dir(self.store.path()).unwrap().map(|file| file.unwrap().file_name());
        let left: Vec<_> = files.filter(|name| name.to_string_lossy().contains("meeting")).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

fn same_bits(together: &Value, workers: usize) {
    let alone = result(&format!("train --quiet --workers {workers} {SHORT}"));
    for field in ["params_sha256", "steps", "samples", "final_accuracy"] {
        assert_eq!(alone[field], together[field], "{field}");
    }
    assert_eq!(together["ranks"].as_array().unwrap().len(), workers);
}

#[test]
fn three_processes_of_mpirun_are_three_hosts_and_give_the_bits_of_one_machine() {
    if !has_mpirun() {
        return;
    }
    let store = tempfile::tempdir().unwrap();
    let folder = store.path().display().to_string();
    // mpirun makes the output a terminal, where a result is a text for people.
    let together = Process::start(MPIRUN, &format!("train --json --store {folder} {SHORT}"), &[]).result();
    same_bits(&together, 3);
    assert_eq!(fs::read_dir(store.path()).unwrap().count(), 1, "the database alone is left");
}

#[test]
fn processes_of_torchruns_variables_are_hosts_and_only_the_leader_prints_a_result() {
    let mut tasks = Tasks::start(3, |_| SHORT.into());
    let others: Vec<_> = tasks.tasks.drain(1..).collect();
    let leader = tasks.tasks.pop().unwrap();
    same_bits(&leader.result(), 3);
    for other in others {
        let (code, out, text) = other.end();
        assert_eq!((code, out.as_str()), (0, ""), "{text}");
    }
    tasks.no_meeting_is_left();
    let words = "--steps 6 --batch 24 --workers 4 --servers 2 --strategy ps".to_owned();
    let mut tasks = Tasks::start(2, |_| words.clone());
    let together = tasks.tasks.remove(0).result();
    let alone = result(&format!("train --quiet {words}"));
    assert_eq!(alone["params_sha256"], together["params_sha256"], "more ranks than hosts");
}

#[test]
fn scripts_are_trained_by_the_processes_of_an_engine_too() {
    if !has_python() {
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/scripts/plain.py");
    let mut tasks = Tasks::start(2, |_| format!("--script {script} -- --steps 12"));
    let together = tasks.tasks.remove(0).result();
    assert_eq!((&together["steps"], &together["final_accuracy"]), (&12.into(), &0.75.into()));
    assert_eq!(together["ranks"].as_array().unwrap().len(), 2);
}

#[test]
fn a_job_that_was_interrupted_is_resumed_as_a_job() {
    let store = tempfile::tempdir().unwrap();
    let folder = store.path().display().to_string();
    let start = |verb: &str, rank: &str| {
        let environment = [
            ("RANK", rank),
            ("WORLD_SIZE", "2"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", "7700"),
        ];
        Process::start(&[], &format!("{verb} --store {folder} --json"), &environment)
    };
    // Slowed down, so that it is under way for seconds on any machine.
    let work = "--steps 1500 --eval-every 1000000000 --batch 8";
    let slow = format!("train {work} --straggler rank=1,factor=200");
    let (leader, other) = (start(&slow, "0"), start(&slow, "1"));
    leader.trains_on();
    // The engine asks one of its tasks to end, e.g. at the end of its time.
    assert!(signal("TERM", other.id()));
    let (code, out, text) = leader.end();
    assert_eq!(code, 130, "{text}");
    assert!(text.contains("task 1 of 2 (torchrun) was asked to end"), "{text}");
    assert!(error(&text).contains("saved in"), "{text}");
    assert!(out.contains(r#""state":"ending""#), "{out}");
    assert_eq!(other.end().0, 130);
    let (leader, other) = (start("resume last", "0"), start("resume last", "1"));
    let resumed = leader.result();
    assert_eq!(other.end().0, 0);
    let alone = result(&format!("train --quiet {work} --workers 2"));
    assert_eq!(alone["params_sha256"], resumed["params_sha256"]);
}

#[test]
fn nothing_is_left_when_any_part_is_killed_and_the_cause_is_named() {
    for victim in ["leader", "task", "rank"] {
        let mut tasks = Tasks::start(3, |_| ENDLESS.into());
        tasks.tasks[0].trains_on();
        let pids = tasks.pids();
        assert_eq!(pids.len(), 6, "three tasks with a rank each");
        let killed = match victim {
            "leader" => tasks.tasks[0].id(),
            "task" => tasks.tasks[1].id(),
            _ => tasks.tasks[2].children()[0],
        };
        let begun = Instant::now();
        assert!(signal("KILL", killed));
        let ends: Vec<_> = tasks.tasks.drain(..).map(Process::end).collect();
        all_gone(&pids);
        assert!(begun.elapsed() < LIMIT, "{victim}: {:?}", begun.elapsed());
        for (task, (code, _, text)) in ends.iter().enumerate() {
            let named = match (victim, task) {
                ("leader", 0) | ("task", 1) => continue,
                ("leader", _) => "the launcher ",
                ("task", _) => "with worker 1 was lost",
                _ => "worker 2",
            };
            assert_eq!(*code, 4, "{victim}, task {task}: {text}");
            assert!(error(text).contains(named), "{victim}, task {task}: {text}");
        }
        if victim != "leader" {
            tasks.no_meeting_is_left();
        }
    }
}

#[test]
fn nothing_is_left_when_mpirun_or_one_of_its_processes_is_killed() {
    if !has_mpirun() {
        return;
    }
    for victim in ["mpirun", "leader", "task"] {
        let store = tempfile::tempdir().unwrap();
        let folder = store.path().display();
        let engine = Process::start(MPIRUN, &format!("train --json --store {folder} {ENDLESS}"), &[]);
        engine.trains_on();
        let tasks = engine.children();
        assert_eq!(tasks.len(), 3, "mpirun starts them itself on its own machine");
        let mut pids = tasks.clone();
        pids.extend(tasks.iter().flat_map(|&pid| children(pid)));
        assert_eq!(pids.len(), 6, "three tasks with a rank each");
        let killed = match victim {
            "mpirun" => engine.id(),
            "leader" => *tasks.iter().min().unwrap(),
            _ => *tasks.iter().max().unwrap(),
        };
        let begun = Instant::now();
        assert!(signal("KILL", killed));
        let (_, _, text) = engine.end();
        all_gone(&pids);
        assert!(begun.elapsed() < LIMIT, "{victim}: {:?}", begun.elapsed());
        if victim == "mpirun" {
            // Nobody reads what its processes say any more; the record tells it.
            let store = Store::open(store.path()).unwrap();
            let run = store.find("last").unwrap();
            assert_eq!(run.state, "interrupted");
            let query = "SELECT count(*) FROM events WHERE run = ? AND event LIKE '%mpi is gone: process %'";
            assert!(store.numbers(query, &run).unwrap()[0][0] >= 1.0);
        } else {
            // mpirun tells of the process that it reaps first; the others say whom they lost.
            let told = ["signal 9", "was lost"].iter().any(|words| text.contains(words));
            assert!(told, "{victim}: {text}");
        }
    }
}

/// The children of a process, of all its threads.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).map(|tasks| tasks.flatten().collect::<Vec<_>>());
    let texts = tasks.unwrap_or_default().into_iter().map(|task| task.path().join("children"));
    let text: String = texts.filter_map(|path| fs::read_to_string(path).ok()).collect();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

#[test]
fn a_wrong_or_missing_key_is_refused() {
    let keys = tempfile::tempdir().unwrap();
    let key = |name: &str| format!("--key-file {}", keys.path().join(name).display());
    for (name, problem) in [("wrong", "cannot prove themselves"), ("none", "No such file")] {
        if name == "wrong" {
            // A listener makes it, and nobody comes.
            let words = "--hosts 2 --workers 2 --listen 127.0.0.1:0 --join-timeout 0.1";
            assert_eq!(paceline(&format!("train {words} {}", key(name))).code, 4);
        }
        let words = |rank: usize| {
            let name = if rank == 0 { "right" } else { name };
            let timeout = if rank == 1 && name == "none" { 3 } else { 300 };
            format!("{SHORT} --join-timeout {timeout} {}", key(name))
        };
        let mut tasks = Tasks::start(2, words);
        let (code, _, text) = tasks.tasks.pop().unwrap().end();
        assert_eq!(code, 6, "{name}: {text}");
        assert!(error(&text).contains(problem), "{name}: {text}");
        let leader = tasks.tasks.pop().unwrap();
        leader.says("waiting for 1 of 2 hosts");
        assert!(signal("INT", leader.id()));
        let (code, _, text) = leader.end();
        assert_eq!(code, 130, "{name}: {text}");
        tasks.no_meeting_is_left();
    }
}

#[test]
fn a_plain_run_waits_for_nobody_whatever_it_inherits() {
    let single = [("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "10.9.9.9"), ("MASTER_PORT", "1")];
    let batch = [("SLURM_JOB_ID", "7"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "3"), ("SLURM_NNODES", "3")];
    for environment in [&single[..], &batch] {
        let alone = Process::start(&[], "train --quiet --steps 2", environment).result();
        assert_eq!(alone["steps"], 2, "{environment:?}");
    }
    let several = [("RANK", "1"), ("WORLD_SIZE", "3"), ("MASTER_ADDR", "10.9.9.9"), ("MASTER_PORT", "1")];
    let alone = Process::start(&[], "train --quiet --steps 2 --engine none", &several).result();
    assert_eq!(alone["steps"], 2);
    for (words, code, reason) in [
        ("train --engine slurm", 2, "SLURM_STEP_NUM_TASKS is not set"),
        ("train --engine mpi", 2, "PMI_SIZE is not set"),
        ("train --engine pbs", 2, "possible values"),
        ("train --hosts-file /nonexistent", 3, "--hosts-file /nonexistent"),
        ("train --hosts-file x --listen 127.0.0.1:0", 2, "cannot be used with"),
        ("simulate --engine mpi", 3, "virtual time has no other machines"),
    ] {
        let ran = paceline(words);
        assert_eq!(ran.code, code, "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains(reason), "{words}: {}", ran.stderr);
    }
    let contradiction = Tasks::start(2, |_| "--hosts 3 --workers 3 --join-timeout 1".into());
    let mut tasks = contradiction.tasks.into_iter();
    let (code, _, text) = tasks.next().unwrap().end();
    assert_eq!(code, 3, "{text}");
    assert!(error(&text).contains("2 processes were started"), "{text}");
}

#[test]
fn scripts_see_nothing_of_the_engine() {
    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (script, seen) = (folder.path().join("script.py"), folder.path().join("seen"));
    fs::write(&script, "import os, sys\nopen(sys.argv[1], 'w').write('\\n'.join(os.environ))\n").unwrap();
    let ran = run(std::process::Command::new(PROGRAM)
        .args(["train", "--workers", "1", "--script"])
        .args([&script, Path::new("--"), &seen])
        .envs([("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "x"), ("MASTER_PORT", "1")])
        .envs([("SLURM_JOB_ID", "7"), ("OMPI_UNIVERSE_SIZE", "3"), ("PMIX_RANK", "0")])
        .env("CUDA_VISIBLE_DEVICES", "3"));
    let names = fs::read_to_string(&seen).unwrap_or_else(|e| panic!("{e}: {}", ran.stderr));
    let names: Vec<&str> = names.lines().collect();
    assert!(names.contains(&"CUDA_VISIBLE_DEVICES") && names.contains(&"PATH"), "{names:?}");
    let left = [
        "RANK",
        "WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "SLURM_JOB_ID",
        "OMPI_UNIVERSE_SIZE",
        "PMIX_RANK",
    ];
    assert!(!left.iter().any(|name| names.contains(name)), "{names:?}");
}

/// A folder with an `ssh` that runs the command here, or fails; it writes down what it was told.
pub(crate) fn fake_ssh(body: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("ssh");
    let text = format!("#!/bin/sh\necho \"$@\" >> {}/told\n{body}\n", folder.path().display());
    fs::write(&program, text).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

#[test]
fn hosts_of_a_file_are_started_over_ssh_and_the_key_is_no_argument() {
    // The last word is the command.
    let ssh = fake_ssh("for last; do :; done\nexec sh -c \"$last\"");
    let path = format!("{}:{}", ssh.path().display(), std::env::var("PATH").unwrap());
    let hosts = ssh.path().join("hosts");
    fs::write(&hosts, "127.0.0.1\nnode-b # the second\nuser@node-c\n").unwrap();
    let words = |words: &str| format!("train --quiet --hosts-file {} {words}", hosts.display());
    let leader = Process::start(&[], &words(SHORT), &[("PATH", &path)]);
    same_bits(&leader.result(), 3);
    let told = fs::read_to_string(ssh.path().join("told")).unwrap();
    assert!(
        told.contains("node-b") && told.contains("user@node-c") && told.contains("--key-stdin"),
        "{told}"
    );
    let long = told.split(|c: char| !c.is_ascii_hexdigit()).map(str::len).max().unwrap();
    assert!(long < 32, "no key is in an argument: {told}");

    let ssh = fake_ssh("echo no route >&2; exit 255");
    let path = format!("{}:{}", ssh.path().display(), std::env::var("PATH").unwrap());
    let (code, _, text) = Process::start(&[], &words(SHORT), &[("PATH", &path)]).end();
    assert_eq!(code, 4, "{text}");
    let said = error(&text);
    // Both fail; the first one that is noticed is named.
    let named = |host: &str| said.contains(&format!("{host} could not be started over ssh: exit status 255"));
    assert!(named("node-b") || named("user@node-c"), "{text}");
}

#[test]
fn hosts_of_a_file_end_with_their_leader() {
    let ssh = fake_ssh("for last; do :; done\nexec sh -c \"exec $last\"");
    let path = format!("{}:{}", ssh.path().display(), std::env::var("PATH").unwrap());
    let hosts = ssh.path().join("hosts");
    fs::write(&hosts, "127.0.0.1\nb\nc\n").unwrap();
    let words = format!("train --json --hosts-file {} {ENDLESS}", hosts.display());
    let leader = Process::start(&[], &words, &[("PATH", &path)]);
    leader.trains_on();
    let mut pids = leader.children();
    assert_eq!(pids.len(), 3, "a rank and two hosts");
    pids.extend(pids.clone().into_iter().flat_map(children));
    assert!(signal("KILL", leader.id()));
    leader.end();
    let begun = Instant::now();
    while !pids.iter().all(|&pid| gone(pid)) {
        assert!(begun.elapsed() < PATIENCE, "processes are left behind");
        std::thread::sleep(Duration::from_millis(10));
    }
}
