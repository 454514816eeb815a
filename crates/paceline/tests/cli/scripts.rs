//! Scripts in plain Python as workers: what a user types, what comes of it, and how it fails.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use paceline_testing::{Need, skip};
use serde_json::Value;

use crate::machines::Listening;
use crate::support::{Ran, Running, gone, run, signal};

/// Three times the longest time in which a script's failure is told.
const TOLD: Duration = Duration::from_secs(18);

fn script() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/cli/scripts/plain.py")
}

/// Whether there is a Python for the package; skipped otherwise.
pub fn has_python() -> bool {
    let new = "import sys; sys.exit(sys.version_info < (3, 9))";
    let found = Command::new("python3").args(["-c", new]).status().is_ok_and(|status| status.success());
    if !found {
        skip(Need::System, "python3, 3.9 or later");
    }
    found
}

/// Trains the script with flags and the script's own arguments.
fn train(flags: &str, args: &str) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    command.arg("train").arg("--script").arg(script()).args(flags.split_whitespace());
    run(command.arg("--").args(args.split_whitespace()))
}

fn trained(flags: &str, args: &str) -> Value {
    let ran = train(flags, args);
    assert_eq!(ran.code, 0, "{flags} -- {args}: {}", ran.stderr);
    ran.result()
}

/// Its gradients may come of several losses, or of a vector: then there is no number to tell.
#[test]
fn a_script_that_says_nothing_of_its_loss_ends_as_any() {
    if !has_python() {
        return;
    }
    let with = trained("--workers 2", "--steps 5");
    let without = trained("--workers 2", "--steps 5 --no-loss");
    assert_eq!(without["params_sha256"], with["params_sha256"]);
    // What it says of a step is the step.
    assert_eq!((&without["train_loss"], with["train_loss"].as_f64()), (&Value::Null, Some(4.0)));
}

#[test]
fn a_script_trains_over_every_transport_and_its_figures_are_the_runs() {
    if !has_python() {
        return;
    }
    let mut hashes = Vec::new();
    let more = "--straggler rank=1,factor=1.5 --trace";
    for flags in [
        "--workers 3 --transport tcp",
        "--workers 3 --transport uds --bucket 64",
        "--workers 3 --transport shm",
        "--workers 3 --transport grpc",
        "--workers 3 --transport inproc",
        "--workers 3 --network 1gbit,100us",
        "--workers 3 --strategy ps --servers 2",
        "--workers 3 --strategy tree --transport uds",
    ] {
        let result = trained(&format!("{flags} {more}"), "--steps 12");
        assert_eq!((&result["steps"], &result["samples"]), (&12.into(), &(12 * 3 * 4).into()), "{flags}");
        assert_eq!(
            (&result["final_accuracy"], &result["final_loss"]),
            (&0.75.into(), &0.5.into()),
            "{flags}"
        );
        assert_eq!(result["reported"], serde_json::json!({"perplexity": 3.5}), "{flags}");
        let ranks = result["ranks"].as_array().unwrap();
        let own: Vec<&Value> =
            ranks.iter().filter(|r| r["role"] == "worker").map(|r| &r["params_sha256"]).collect();
        assert!(own.iter().all(|hash| **hash == result["params_sha256"]), "{flags}: replicas are identical");
        hashes.push((result["params_sha256"].clone(), flags));
    }
    // Sums of three numbers depend on their order, which the ring and the server do not share.
    assert!(hashes[1..6].iter().all(|(hash, _)| *hash == hashes[0].0), "{hashes:?}");
}

#[test]
fn parts_of_the_mean_gradient_are_told_of_when_they_are_there() {
    if !has_python() {
        return;
    }
    for flags in [
        "--workers 1 --staging always --bucket 64",
        "--workers 3 --transport shm --bucket 256",
        "--workers 3 --transport tcp --strategy ring-allreduce --bucket 64",
        "--workers 4 --transport shm --strategy halving-doubling",
        "--workers 3 --transport uds --strategy ring-reduce",
        "--workers 2 --transport shm --compression fp16",
        "--workers 2 --strategy ps --servers 1",
    ] {
        // The script itself looks whether what it was told of changes afterwards.
        let own = trained(flags, "--steps 12 --arrivals");
        let plain = trained(flags, "--steps 12");
        assert_eq!((&own["params_sha256"], &own["steps"]), (&plain["params_sha256"], &12.into()), "{flags}");
    }
}

#[test]
fn a_worker_alone_hands_its_gradients_over_where_it_is_told_to() {
    if !has_python() {
        return;
    }
    let [alone, staged] =
        ["", "--staging always"].map(|flags| trained(&format!("--workers 1 {flags}"), "--steps 12"));
    // The script computes with what comes back, which is its own gradient.
    assert_eq!((&staged["final_loss"], &staged["steps"]), (&alone["final_loss"], &12.into()));
    assert_eq!(staged["strategy"], "single");
}

#[test]
fn one_worker_alone_and_other_ways_of_averaging_take_a_script_as_it_is() {
    if !has_python() {
        return;
    }
    for flags in [
        "",
        "--workers 2 --strategy local --local-steps 2",
        "--workers 2 --strategy gossip",
        "--workers 2 --strategy stepwise",
        "--workers 2 --averages weights",
        "--workers 2 --strategy ps --servers 1 --sync ssp --staleness 2",
        "--workers 2 --strategy ps --servers 1 --sync asp --compression int8",
        "--workers 2 --strategy ps --servers 1 --sync switch --steps 12",
        "--workers 2 --compression fp16",
    ] {
        let result = trained(flags, "--steps 12");
        assert_eq!(result["final_accuracy"], 0.75, "{flags}");
        // Where units of work are handed out, one worker may make a step of another's.
        let steps = result["steps"].as_u64().unwrap();
        assert!(
            if flags.contains("switch") { (8..=12).contains(&steps) } else { steps == 12 },
            "{flags}: {steps}"
        );
    }
}

#[test]
fn a_script_that_does_not_keep_to_the_protocol_is_named_and_nothing_is_left() {
    if !has_python() {
        return;
    }
    for (bad, code, told) in [
        ("raise", 1, "its script failed after step 3: ValueError: a test asked for it"),
        ("end-slowly", 1, "its script failed after step 3: ValueError: a test asked for it"),
        ("close-slowly", 1, "its script failed after step 3: ValueError: a test asked for it"),
        ("exit", 1, "its script failed after step 3: the script ended itself: sys.exit(3)"),
        ("vanish", 1, "its script ended after step 3 (exit status 0)"),
        ("kill", 4, "its script ended after step 3 (signal 9 (SIGKILL))"),
        ("stop", 4, "its script was stopped in the backward pass of step 4 for 5 s"),
        ("hang", 4, "its script made no progress in the exchange of step 4 for 5 s"),
        ("torn", 6, "TICKET of 3 bytes; it has 4 for each tensor"),
        ("cut", 1, "its script ended after step 3 (exit status 0)"),
        ("nonsense", 6, "a frame of kind 99, which no script sends"),
        ("twice", 6, "TICKET for a tensor that was announced before"),
        ("lost-child", 1, "was killed"),
        ("version", 6, "the script speaks version 7 of the attach protocol"),
        ("other-model", 3, "its script has another model than rank 0's: tensor 2 is no more, there t2 [5]"),
        ("late", 1, "its script had done its work, and then ended with exit status 5"),
        ("never", 1, "its script ended before it had attached (exit status 0)"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let pids = folder.path().join("pids");
        let begun = Instant::now();
        let steps = if bad == "late" { 5 } else { 2000 };
        let args = format!("--steps {steps} --misbehave {bad} --pids {}", pids.display());
        let ran = train("--workers 2", &args);
        assert!(begun.elapsed() < TOLD, "{bad}: {:?}", begun.elapsed());
        assert_eq!(ran.code, code, "{bad}: {}", ran.stderr);
        for word in ["worker 1", told, "hint:"] {
            assert!(ran.stderr.contains(word), "{bad}: {word:?} is missing: {}", ran.stderr);
        }
        all_gone(&pids, 2, bad);
    }
}

/// Sees that all processes that a file names are gone, and that there are so many.
fn all_gone(pids: &Path, count: usize, what: &str) {
    let known = std::fs::read_to_string(pids).unwrap_or_default();
    let known: Vec<u32> = known.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(known.len(), count, "{what}");
    let begun = Instant::now();
    while known.iter().any(|&pid| !gone(pid)) {
        assert!(begun.elapsed() < Duration::from_secs(5), "{what}: of {known:?} some are left");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Starts a run of two scripts, each with a child that was forked, and does something to it.
fn with_children(
    misbehave: &str,
    act: impl Fn(&Running, &[u32]),
) -> (i32, String, PathBuf, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let pids = folder.path().join("pids");
    let flags = format!("--workers 2 --script {}", script().display());
    let args = format!("--steps 100000 --misbehave {misbehave} --who 9 --pids {}", pids.display());
    let running = Running::start(&format!("{flags} -- {args}"));
    let known = std::fs::read_to_string(&pids).unwrap();
    let known: Vec<u32> = known.lines().map(|line| line.parse().unwrap()).collect();
    act(&running, &known);
    let (code, text) = running.end();
    (code, text, pids, folder)
}

#[test]
fn killing_a_rank_a_script_or_the_launcher_leaves_no_process_behind() {
    if !has_python() {
        return;
    }
    for fork in ["fork", "fork-late"] {
        let begun = Instant::now();
        let (code, text, pids, _folder) = with_children(fork, |running, _| {
            assert!(signal("KILL", running.ranks()[1]));
        });
        assert!(code == 4 && text.contains("worker 1") && text.contains("SIGKILL"), "{fork}: {code} {text}");
        all_gone(&pids, 4, fork);
        assert!(begun.elapsed() < TOLD, "{fork}: {:?}", begun.elapsed());
    }
    let (code, text, pids, _folder) = with_children("fork", |running, _| {
        let rank = running.ranks()[0];
        let children = std::fs::read_to_string(format!("/proc/{rank}/task/{rank}/children")).unwrap();
        assert!(signal("KILL", children.split_whitespace().next().unwrap().parse().unwrap()));
    });
    assert!(code == 4 && text.contains("worker 0") && text.contains("SIGKILL"), "{code} {text}");
    all_gone(&pids, 4, "a script was killed");
    let (_, _, pids, _folder) = with_children("fork", |running, _| {
        assert!(signal("KILL", running.id()));
    });
    all_gone(&pids, 4, "the launcher was killed");
}

#[test]
fn scripts_keep_the_memory_that_they_free_unless_the_user_chose_an_allocator() {
    if !has_python() {
        return;
    }
    for (chosen, told) in [(None, "17179869184"), (Some(("MALLOC_TOP_PAD_", "0")), "None")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
        command.args(["train", "--no-record", "--script"]).arg(script()).envs(chosen);
        let ran = run(command.args(["--", "--steps", "2", "--environment", "MALLOC_TRIM_THRESHOLD_"]));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        let told = format!("MALLOC_TRIM_THRESHOLD_ is {told}");
        assert!(ran.stderr.contains(&told), "{told}: {}", ran.stderr);
    }
}

#[test]
fn a_script_that_has_no_more_work_ends_the_run_for_all() {
    if !has_python() {
        return;
    }
    let ran = train("--workers 3", "--steps 50 --misbehave leave --at 7");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(ran.result()["steps"], 7);
    let steps = trained("--workers 2 --steps 9", "--steps 50");
    assert_eq!(steps["steps"], 9);
    let alone = trained("--steps 9", "--steps 50 --sleep 0.001");
    assert_eq!(alone["steps"], 9);
}

#[test]
fn a_target_that_is_reported_ends_the_run() {
    if !has_python() {
        return;
    }
    for flags in ["--workers 2", "--workers 2 --strategy ps --servers 1 --sync asp"] {
        let flags = format!("{flags} --target-accuracy 0.5 --stop-at-target");
        let result = trained(&flags, "--steps 100000 --sleep 0.002 --report-every 5");
        let steps = result["steps"].as_u64().unwrap();
        assert!((5..5000).contains(&steps) && result["time_to_accuracy_s"].is_number(), "{flags}: {result}");
    }
}

#[test]
fn what_a_script_keeps_goes_through_checkpoints() {
    if !has_python() {
        return;
    }
    for flags in ["--workers 2", "--workers 2 --strategy ps --servers 1", "--workers 2 --strategy gossip", ""]
    {
        let store = tempfile::tempdir().unwrap();
        let base = format!("{flags} --script {} --store {}", script().display(), store.path().display());
        let expected = trained(flags, "--steps 300");
        // What is kept is checked by the script itself: it must be where it was.
        let running = Running::start(&format!("{base} --checkpoint-every 10 -- --steps 300 --sleep 0.005"));
        running.next("checkpoint");
        assert!(signal("KILL", running.id()));
        drop(running);
        let resumed = run(Command::new(env!("CARGO_BIN_EXE_paceline")).args([
            "resume",
            "last",
            "--store",
            &store.path().display().to_string(),
        ]));
        assert_eq!(resumed.code, 0, "{flags}: {}", resumed.stderr);
        let result = resumed.result();
        for figure in ["steps", "params_sha256", "final_accuracy"] {
            assert_eq!(result[figure], expected[figure], "{flags}: {figure}");
        }
    }
}

#[test]
fn ctrl_c_saves_a_script_and_it_goes_on() {
    if !has_python() {
        return;
    }
    let store = tempfile::tempdir().unwrap();
    let base = format!("--workers 2 --script {} --store {}", script().display(), store.path().display());
    let expected = trained("--workers 2", "--steps 400");
    let running = Running::start(&format!("{base} -- --steps 400 --sleep 0.005"));
    assert!(signal("INT", running.id()));
    let (code, text) = running.end();
    assert_eq!(code, 130, "{text}");
    let resume = &mut Command::new(env!("CARGO_BIN_EXE_paceline"));
    let resumed = run(resume.args(["resume", "last", "--store"]).arg(store.path()));
    assert_eq!(resumed.code, 0, "{}", resumed.stderr);
    assert_eq!(resumed.result()["params_sha256"], expected["params_sha256"]);
}

#[test]
fn what_a_script_decides_is_refused_as_a_flag_and_errors_say_what_to_do() {
    if !has_python() {
        return;
    }
    for (flags, words) in [
        ("--batch 64", &["--batch 64", "the script decides that", "-- --batch 64"][..]),
        ("--model lenet", &["--model lenet", "the script decides that"]),
        ("--micro-batches 2", &["--micro-batches 2", "the script decides that"]),
        ("--shares 4 --workers 2", &["--shares 4"]),
        ("--apply server", &["--apply server", "needs servers"]),
        ("--python no-such-python", &["no-such-python cannot be started", "--python PROGRAM"]),
        ("--workers 2 --strategy ddp-gloo --staging always", &["--staging always", "ddp-gloo"]),
        ("--workers 2 --strategy ddp-gloo --compression fp16", &["--compression fp16", "ddp-gloo"]),
        ("--workers 2 --strategy ps --servers 1 --sync switch", &["--sync switch", "--steps"]),
        ("--workers 2 --strategy ps --servers 1 --apply server", &["optimiser", "leave --apply out"]),
    ] {
        let ran = train(flags, "--steps 3");
        assert_eq!(ran.code, 3, "{flags}: {}", ran.stderr);
        words.iter().for_each(|word| assert!(ran.stderr.contains(word), "{flags}: {word:?}: {}", ran.stderr));
    }
    let missing =
        run(Command::new(env!("CARGO_BIN_EXE_paceline")).args(["train", "--script", "no-such-file.py"]));
    assert!(missing.code == 3 && missing.stderr.contains("--script no-such-file.py"), "{}", missing.stderr);
    let native = run(Command::new(env!("CARGO_BIN_EXE_paceline")).args(["train", "--", "--lr", "1"]));
    assert!(native.code == 2 && native.stderr.contains("--script"), "{}", native.stderr);
    let apart = run(Command::new(env!("CARGO_BIN_EXE_paceline")).args([
        "train",
        "--strategy",
        "ddp-gloo",
        "--workers",
        "2",
    ]));
    assert!(apart.code == 3 && apart.stderr.contains("--script FILE"), "{}", apart.stderr);
}

#[test]
fn the_command_line_of_a_script_run_gives_its_plan_again() {
    if !has_python() {
        return;
    }
    let dry = |flags: &str, args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
        command
            .args(["train", "--dry-run", "--json", "--script"])
            .arg(script())
            .args(flags.split_whitespace());
        let ran = run(command.arg("--").args(args));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        ran.result()
    };
    let plan = dry("--workers 2", &["--steps", "3", "--name", "it's a test"]);
    let line = plan["labels"]["command"].as_str().unwrap().to_owned();
    assert!(line.ends_with(r"-- --steps 3 --name 'it'\''s a test'"), "{line}");
    let again = line.replacen(
        "paceline train",
        &format!("{} train --dry-run --json", env!("CARGO_BIN_EXE_paceline")),
        1,
    );
    let ran = run(Command::new("sh").args(["-c", &again]));
    assert_eq!(ran.result()["plan_sha256"], plan["plan_sha256"], "{}", ran.stderr);
}

#[test]
fn scripts_of_another_machine_come_to_the_same_parameters() {
    if !has_python() {
        return;
    }
    for flags in ["--workers 2", "--workers 2 --strategy ps --servers 1"] {
        let alone = trained(flags, "--steps 12");
        let words = format!("--hosts 2 {flags} --script {} -- --steps 12", script().display());
        let listening = Listening::start(&[], "127.0.0.1:0", &words);
        let joiner = listening.join(&[], "");
        let together = listening.launcher.result();
        for field in ["params_sha256", "steps", "samples", "final_accuracy", "reported"] {
            assert_eq!(alone[field], together[field], "{flags}: {field}");
        }
        let (code, _, text) = joiner.end();
        assert!(code == 0 && text.contains("ended well: accuracy 75.00%"), "{flags}: {text}");
    }
}

/// The package's own tests. Those with PyTorch run where it can be imported (`PACELINE_PYTHON`), and count as skipped
/// elsewhere.
#[test]
fn the_tests_of_the_python_package_pass() {
    if !has_python() {
        return;
    }
    let python = std::env::var("PACELINE_PYTHON").unwrap_or_else(|_| "python3".into());
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../python");
    let has_torch =
        Command::new(&python).args(["-c", "import torch"]).output().is_ok_and(|out| out.status.success());
    let mut tests = Command::new(&python);
    tests.args(["-B", "-m", "unittest", "-q"]).current_dir(folder);
    if !has_torch {
        skip(Need::PythonPackages, "torch (PACELINE_PYTHON names a Python that has it)");
        tests.arg("tests.test_attach");
    }
    let out = tests.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}
