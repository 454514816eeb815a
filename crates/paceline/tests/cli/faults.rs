//! Ranks that stand still or panic, disks that are full, and what is told before somebody kills the launcher.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use paceline_launch::{RankCommand, RankProcesses};
use paceline_record::Store;
use paceline_testing::{Need, has_programs, skip};
use paceline_train::Segment;
use serde_json::Value;

use crate::machines::all_gone;
use crate::support::{ENDLESS, Ran, Running, gone, paceline, run, signal};

/// Stops a rank until it is under suspicion; the times of the run's clock between which it stood still.
fn stop_until_suspected(running: &Running, rank: usize) {
    let pid = running.ranks()[rank];
    assert!(signal("STOP", pid));
    let told = running.next("liveness");
    assert_eq!((&told["rank"], &told["state"]), (&rank.into(), &"suspect".into()));
    assert!(signal("CONT", pid));
    let told = running.next("liveness");
    assert_eq!((&told["rank"], &told["state"]), (&rank.into(), &"back".into()));
}

#[test]
fn a_worker_that_stands_still_is_suspected_and_goes_on() {
    for (sync, goes_on) in [("bsp", false), ("asp", true), ("ssp --staleness 3", false)] {
        let store = tempfile::tempdir().unwrap();
        let words = format!("{ENDLESS} --workers 2 --servers 1 --strategy ps --lr 0.001 --sync {sync}");
        let running = Running::start(&format!("{words} --store {}", store.path().display()));
        stop_until_suspected(&running, 1);
        assert!(signal("INT", running.id()));
        let (code, text) = running.end();
        assert_eq!(code, 130, "{sync}: {text}");
        // While worker 1 was silent, the other one waited, or did not: nearly two seconds of its steps tell.
        let store = Store::open(store.path()).unwrap();
        let run = store.find("last").unwrap();
        let told = store
            .numbers("SELECT t_ns FROM events WHERE run = ? AND type = 'liveness' ORDER BY n", &run)
            .unwrap();
        let (to, from) = (told[0][0] - 0.2e9, told[0][0] - 1.6e9);
        let between =
            format!("SELECT count(*) FROM steps WHERE run = ? AND rank = 0 AND t_ns BETWEEN {from} AND {to}");
        let steps = store.numbers(&between, &run).unwrap()[0][0];
        assert_eq!(steps > 4.0, goes_on, "{sync}: {steps} steps while worker 1 stood still");
    }
}

#[test]
fn a_rank_that_is_stopped_before_its_first_word_is_missed_like_any_other() {
    let begun = Instant::now();
    let program = &mut Command::new(env!("CARGO_BIN_EXE_paceline"));
    let ran = run(program.args(["train", "--workers", "2"]).env("PACELINE_TEST_STOP", "1:0"));
    assert_eq!(ran.code, 4, "{}", ran.stderr);
    for word in ["worker 1", "nothing was heard of it for 5 s", "before the first step", "hint:"] {
        assert!(ran.stderr.contains(word), "{word}: {}", ran.stderr);
    }
    assert!(begun.elapsed() < Duration::from_secs(18), "{:?}", begun.elapsed());
}

#[test]
fn a_worker_that_stays_still_is_given_up_and_cannot_come_back() {
    let running = Running::start(&format!("{ENDLESS} --workers 2"));
    let ranks = running.ranks();
    assert!(signal("STOP", ranks[1]));
    let (code, text) = running.end();
    assert_eq!(code, 4, "{text}");
    for word in ["suspect rank 1", "worker 1", "nothing was heard of it for 5 s", "step", "hint:"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert!(ranks.iter().all(|&pid| gone(pid)), "a stopped process is ended too");
}

/// Runs the program with a rank that does something after a step.
fn with_fault(name: &str, at: &str, words: &str) -> Ran {
    run(Command::new(env!("CARGO_BIN_EXE_paceline")).args(words.split_whitespace()).env(name, at))
}

#[test]
fn panics_kills_and_divergence_are_told_apart() {
    let train = "train --epochs 2 --workers 2";
    let panicked = with_fault("PACELINE_TEST_PANIC", "1:3", train);
    assert_eq!(panicked.code, 4, "{}", panicked.stderr);
    assert!(
        panicked.stderr.contains("worker 1") && panicked.stderr.contains("it panicked"),
        "{}",
        panicked.stderr
    );
    assert!(panicked.stderr.contains("a test asked rank 1 to panic"), "its own words: {}", panicked.stderr);
    let killed = with_fault("PACELINE_TEST_DIE", "0:3", train);
    assert_eq!(killed.code, 4, "{}", killed.stderr);
    assert!(killed.stderr.contains("worker 0") && killed.stderr.contains("SIGKILL"), "{}", killed.stderr);
    let diverged = paceline(&format!("{train} --lr 1e6"));
    assert_eq!(diverged.code, 1, "{}", diverged.stderr);
    assert!(diverged.stderr.contains("diverged"), "{}", diverged.stderr);
    // Programs are told the kind of failure, and search no text.
    for (workers, kind, code) in [(1, "diverged", 1), (2, "diverged", 1), (2, "lost", 4)] {
        let lr = if kind == "diverged" { 1e6 } else { 0.01 };
        let program = &mut Command::new(env!("CARGO_BIN_EXE_paceline"));
        let words = format!("train --json --quiet --workers {workers} --lr {lr}");
        program.args(words.split_whitespace());
        if kind == "lost" {
            program.env("PACELINE_TEST_DIE", "1:3");
        }
        let ran = run(program);
        let last = ran.result();
        assert_eq!(
            (ran.code, &last["type"], &last["kind"]),
            (code, &"failed".into(), &kind.into()),
            "{last}"
        );
        assert_eq!(last["code"], code, "{last}");
        assert!(ran.stderr.contains(last["message"].as_str().unwrap()), "{last}");
    }
}

#[test]
fn what_was_told_before_a_kill_is_in_the_store() {
    for words in ["--workers 1", "--workers 2"] {
        let store = tempfile::tempdir().unwrap();
        let running = Running::start(&format!(
            "--epochs 10000 --eval-every 5 --checkpoint-every 10 {words} --store {}",
            store.path().display()
        ));
        let mut told = vec![running.next("checkpoint")];
        // What is printed until the kill, and what was on its way to us then.
        let until = Instant::now() + Duration::from_millis(300);
        while Instant::now() < until {
            told.push(running.next("evaluation"));
        }
        assert!(signal("KILL", running.id()));
        told.extend(running.rest().into_iter().filter(|event| event["type"] != "progress"));
        // Its files are closed a moment before it has ended.
        all_gone(&[running.id()]);
        let store = Store::open(store.path()).unwrap();
        store.check().unwrap();
        let run = store.find("last").unwrap();
        assert_eq!(run.state, "lost", "{words}");
        let rows = store.rows("events", &run).unwrap();
        let at = rows.column("event");
        let stored: Vec<Value> = rows
            .rows
            .iter()
            .map(|row| match &row[at] {
                paceline_record::store::Value::Text(text) => serde_json::from_str(text).unwrap(),
                other => panic!("an event is text, not {other:?}"),
            })
            .collect();
        for event in told {
            assert_eq!(stored.iter().filter(|e| **e == event).count(), 1, "{words}: {event}");
        }
    }
}

/// Runs a script with a small disk of its own at `$1`; none, and a counted skip, where nobody may make one.
fn on_a_small_disk(size: &str, script: &str) -> Option<Ran> {
    let place = tempfile::tempdir().unwrap();
    let mount = format!("mount -t tmpfs -o size={size} none \"$1\"");
    let shell = |flags: &[&str], script: &str| {
        run(Command::new("unshare")
            .args(flags)
            .args(["--mount", "sh", "-euc", script, "sh"])
            .arg(place.path())
            .env("PACELINE", env!("CARGO_BIN_EXE_paceline")))
    };
    if !has_programs(&["unshare", "mount"]) {
        return None;
    }
    // Root may mount; others may where they can be root of a namespace of their own.
    let allowed = [&[][..], &["--map-root-user"]].into_iter().find(|flags| shell(flags, &mount).code == 0);
    if allowed.is_none() {
        skip(Need::Root, "a small disk (unshare --mount, mount -t tmpfs)");
    }
    allowed.map(|flags| shell(flags, &format!("{mount}\n{script}")))
}

#[test]
fn a_run_that_the_disk_has_no_room_for_is_refused_before_it_starts() {
    let train = "\"$PACELINE\" train --steps 5 --workers 2 --checkpoint-every 2 --store \"$1/store\"";
    let Some(ran) = on_a_small_disk("4m", train) else { return };
    assert_eq!((ran.code, ran.stdout.as_str()), (5, ""), "{}", ran.stderr);
    for word in ["MB of free space", "need about", "--store", "--no-record"] {
        assert!(ran.stderr.contains(word), "{word}: {}", ran.stderr);
    }
    let ran = on_a_small_disk("4m", "cd \"$1\"; \"$PACELINE\" train --quiet --steps 5 --no-record").unwrap();
    assert_eq!(ran.code, 0, "{}", ran.stderr);
}

#[test]
fn a_disk_that_fills_up_ends_the_run_with_its_last_checkpoint_intact() {
    let train = "train --epochs 30 --batch 8 --workers 2 --checkpoint-every 50";
    let script = format!(
        "
        \"$PACELINE\" {train} --json --store \"$1/store\" > \"$1/out\" 2> \"$1/err\" &
        until [ \"$(grep -c '\"checkpoint\"' \"$1/out\")\" -ge 2 ]; do sleep 0.02; done
        dd if=/dev/zero of=\"$1/ballast\" bs=16k 2> /dev/null || true
        code=0; wait $! || code=$?
        cat \"$1/err\" >&2
        rm \"$1/ballast\"
        \"$PACELINE\" runs --json --store \"$1/store\"
        \"$PACELINE\" resume last --quiet --store \"$1/store\"
        echo \"{{\\\"code\\\": $code}}\"
        "
    );
    let Some(ran) = on_a_small_disk("24m", &script) else { return };
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    let lines: Vec<Value> = ran.stdout.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let [runs, resumed, code] = &lines[..] else { panic!("{}", ran.stdout) };
    assert_eq!(code["code"], 5, "{}", ran.stderr);
    assert!(ran.stderr.to_lowercase().contains("full"), "{}", ran.stderr);
    assert_eq!(runs[0]["state"], "failed", "{runs}");
    let error = runs[0]["error"].as_str().unwrap();
    assert!(error.contains("full") || error.contains("No space left"), "{runs}");
    // The same disk without a ballast would have had the same end.
    let alone = paceline(&format!("{train} --quiet")).result();
    for key in ["steps", "samples", "train_loss", "params_sha256"] {
        assert_eq!(resumed[key], alone[key], "{key}");
    }
}

#[test]
fn a_run_whose_record_filled_the_disk_is_recorded_as_failed_and_tells_its_result() {
    let script = "
        \"$PACELINE\" train --epochs 20 --batch 8 --workers 2 --json --store \"$1/store\" \
            > \"$1.out\" 2> \"$1.err\" &
        until grep -q '\"progress\"' \"$1.out\"; do sleep 0.02; done
        dd if=/dev/zero of=\"$1/ballast\" bs=16k 2> /dev/null || true
        code=0; wait $! || code=$?
        cat \"$1.err\" >&2
        rm \"$1/ballast\"
        tail -n 1 \"$1.out\"
        \"$PACELINE\" runs --json --store \"$1/store\"
        echo \"{\\\"code\\\": $code}\"
        rm \"$1.out\" \"$1.err\"
        ";
    let Some(ran) = on_a_small_disk("24m", script) else { return };
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    let lines: Vec<Value> = ran.stdout.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let [result, runs, code] = &lines[..] else { panic!("{}", ran.stdout) };
    assert_eq!((&code["code"], &result["type"]), (&5.into(), &"result".into()), "{}", ran.stderr);
    assert!(ran.stderr.contains("is not recorded") && ran.stderr.contains("full"), "{}", ran.stderr);
    assert_eq!(runs[0]["state"], "failed", "{runs}");
    assert!(runs[0]["error"].as_str().unwrap().contains("full"), "{runs}");
}

#[test]
fn a_rank_that_cannot_be_started_is_named_with_the_limit() {
    // Enough for the launcher, too few for eight processes with three files each. (What `train` needs is looked at
    // before.)
    let script = "ulimit -n 24; exec \"$0\" bench allreduce --workers 8";
    let ran = run(Command::new("sh").args(["-c", script, env!("CARGO_BIN_EXE_paceline")]));
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("error: worker "), "{}", ran.stderr);
    assert!(ran.stderr.contains(" could not be started: Too many open files"), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("may have 24 files open") && ran.stderr.contains("ulimit -n"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_process_that_ends_before_it_reads_its_order_is_named_with_how_it_ended() {
    let refused = |program: &str| {
        // More than a pipe holds, so that it cannot be written to a process that never reads it.
        let addresses = vec!["x".repeat(1 << 20)];
        let segment = Segment { from: 0, to: 0, generation: 0 };
        let order = RankCommand::Peers {
            addresses,
            interfaces: None,
            segment,
            restored: None,
            generation: None,
            script: None,
            stands_for: None,
        };
        RankProcesses::start_ranks(Path::new(program), "rank", [(1, order)])
            .err()
            .expect("it cannot be started so")
    };
    let error = refused("/bin/false");
    let expected =
        "worker 1 could not be started: its process ended before it read its order (exit status 1)";
    assert_eq!(error.to_string(), expected);
    assert!(error.hint().contains("ulimit -a"), "{}", error.hint());
    let text = refused("/nowhere/paceline").to_string();
    assert!(text.starts_with("worker 1 could not be started: No such file"), "{text}");
}
