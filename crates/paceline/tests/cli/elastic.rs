//! Real runs whose members change: whoever is killed, the run ends with the parameters that it would have had.

use std::process::Command;
use std::time::Instant;

use serde_json::Value;

use crate::serve::Served;
use crate::support::{PATIENCE, Ran, Running, gone, paceline, result, run, signal};

/// A short run of four workers.
const RUN: &str = "--quiet --workers 4 --steps 40 --batch 8 --eval-every 10 --bucket 32KiB --seed 5";

/// Runs `train` with a worker that is killed after a step.
fn killed_after(worker: usize, step: u64, words: &str) -> Ran {
    let program = &mut Command::new(env!("CARGO_BIN_EXE_paceline"));
    let words = format!("train {words}");
    run(program.args(words.split_whitespace()).env("PACELINE_TEST_DIE", format!("{worker}:{step}")))
}

fn same(changed: &Value, calm: &Value, what: &str) {
    for figure in ["params_sha256", "final_loss", "final_accuracy", "samples", "steps"] {
        assert_eq!(changed[figure], calm[figure], "{what}: {figure}");
    }
}

#[test]
fn a_killed_worker_changes_no_bit_along_any_exact_path_and_with_servers() {
    let cells = [
        ("--strategy ring-allreduce --transport tcp --optimizer adam --lr 0.001", 0, 7),
        ("--strategy ring-reduce --transport uds", 3, 1),
        ("--strategy halving-doubling --transport shm --momentum 0.9", 2, 39),
        ("--strategy tree --transport grpc", 1, 20),
        ("--strategy hierarchical --transport shm", 2, 10),
        ("--strategy direct --transport tcp --compression fp16", 3, 13),
        ("--model lenet", 1, 30),
        ("--strategy ps --servers 2 --transport tcp", 0, 12),
        ("--strategy ps --servers 2 --backup 1 --transport shm --optimizer adam --lr 0.001", 3, 25),
    ];
    for (words, worker, step) in cells {
        let calm = result(&format!("train {RUN} {}", words.replace("--backup 1", "")));
        let ran = killed_after(worker, step, &format!("{RUN} {words} --elastic 2..4"));
        assert_eq!(ran.code, 0, "{words}: {}", ran.stderr);
        let changed = ran.result();
        same(&changed, &calm, words);
        let changes = changed["membership"].as_array().unwrap();
        assert_eq!(changes.len(), 1, "{words}: {changes:?}");
        assert_eq!(
            (&changes[0]["lost"], &changes[0]["workers"]),
            (&vec![worker].into(), &3.into()),
            "{words}"
        );
    }
}

#[test]
fn a_spare_takes_the_place_of_a_killed_worker() {
    let words = format!("{RUN} --strategy ring-allreduce --optimizer adam --lr 0.001");
    let ran = killed_after(1, 9, &format!("{words} --elastic 4..4 --spare 1"));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let changed = ran.result();
    same(&changed, &result(&format!("train {words}")), "spare");
    let change = &changed["membership"][0];
    assert_eq!((&change["joined"], &change["workers"]), (&vec![4].into(), &4.into()), "{change}");
}

#[test]
fn a_killed_server_is_replaced_by_its_backup_and_a_drained_worker_leaves() {
    let words = "--workers 3 --strategy ps --servers 2 --steps 400 --batch 32 --model lenet --seed 5";
    let calm = result(&format!("train --quiet {words}"));
    // Processes are started in the order of ranks: workers, then servers.
    for (name, rank, how) in [("KILL", 3, "lost"), ("KILL", 4, "lost"), ("TERM", 1, "left")] {
        let running = Running::start(&format!("{words} --backup 1 --elastic 1..3"));
        running.next("progress");
        let pid = running.ranks()[rank];
        assert!(signal(name, pid));
        let told = running.next("membership");
        assert_eq!(told["change"][how], Value::from(vec![rank]), "{told}");
        let all = running.rest();
        let ended = all.iter().find(|event| event["type"] == "result").unwrap_or_else(|| panic!("{all:?}"));
        same(ended, &calm, how);
        assert!(gone(pid));
    }
}

#[test]
fn a_change_is_kept_in_the_record_and_told_everywhere_in_the_same_words() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let words =
        format!("{RUN} --strategy ring-allreduce --elastic 4..4 --spare 2 --store {}", store.display());
    let ran = killed_after(1, 17, &words);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let change = ran.result()["membership"][0].clone();
    let pause = change["pause_s"].as_f64().unwrap();
    let told = format!(
        "at {:.3} s: lost rank 1, joined by rank 4; the work went to rank 4; 4 workers went on after {pause:.3} s",
        change["at_s"].as_f64().unwrap()
    );
    let asked = |words: &str| {
        let ran = paceline(&format!("{words} --store {}", store.display()));
        assert_eq!(ran.code, 0, "{words}: {}", ran.stderr);
        ran.stdout
    };
    for words in ["show", "explain", "export last --format markdown"] {
        assert!(asked(words).contains(&told), "{words}: {told}: {}", asked(words));
    }
    let json = |words: &str| serde_json::from_str::<Value>(&asked(words)).unwrap();
    assert_eq!(json("show --json")["membership"][0], change);
    let explained = json("explain --json");
    let sentence = explained["membership"][0].as_str().unwrap();
    assert!(sentence.starts_with(&told) && sentence.contains("since then"), "{sentence}");
    assert_eq!(explained["figures"]["change_1_pause_s"], change["pause_s"], "{explained}");
    // A spare is a worker, whether it was needed or not; who made no steps is not spoken of.
    let ranks = explained["ranks"].as_array().unwrap();
    assert!(ranks.iter().all(|rank| rank["role"] == "worker" && rank["rank"] != 5), "{ranks:?}");
    assert!(asked("export last --format json").contains("membership"));
    // Parts of the page are made while it is shown.
    let served = Served::start(folder.path(), &["--listen", "127.0.0.1:0"]);
    let run = ran.result()["run"].as_str().unwrap().to_owned();
    let begun = Instant::now();
    let shown = |path: &str, part: &str| served.get(path, "").contains(part);
    while !(shown(&format!("/run/{run}"), &told) && shown(&format!("/run/{run}/charts"), "Who took part")) {
        assert!(begun.elapsed() < PATIENCE, "{}", served.get(&format!("/run/{run}"), ""));
    }
}

#[test]
fn a_run_that_loses_too_many_says_whom_and_where_it_goes_on() {
    let store = tempfile::tempdir().unwrap();
    let words = format!("{RUN} --strategy ring-allreduce --store {}", store.path().display());
    let ran = killed_after(2, 25, &format!("{words} --elastic 4..4 --checkpoint-every 10"));
    assert_eq!(ran.code, 4, "{}", ran.stderr);
    for word in
        ["3 workers are left, and the run needs at least 4", "worker 2", "after step 20", "paceline resume"]
    {
        assert!(ran.stderr.contains(word), "{word}: {}", ran.stderr);
    }
    let resumed = paceline(&format!("resume last --quiet --store {}", store.path().display()));
    assert_eq!(resumed.code, 0, "{}", resumed.stderr);
    same(&resumed.result(), &result(&format!("train {RUN} --strategy ring-allreduce")), "resumed");
}

#[test]
fn what_cannot_be_elastic_is_refused_with_the_reason() {
    for (words, reason) in [
        ("--workers 4 --elastic 5..6", "the run begins with 4 workers"),
        ("--workers 4 --elastic 2..8", "give --shares 8"),
        ("--workers 4 --elastic many", "e.g. 2..4"),
        ("--workers 2 --elastic 1..2 --transport inproc", "each is a process"),
        ("--workers 1 --elastic 1..1", "each is a process"),
        ("--workers 2 --elastic 1..2 --strategy gossip", "weights of its own"),
        ("--workers 2 --elastic 1..2 --strategy ps --servers 1 --sync asp", "--sync bsp only"),
        ("--workers 2 --elastic 1..2 --compression topk,ratio=0.1", "what a worker has not sent yet"),
        ("--workers 2 --backup 1 --strategy ps --servers 1", "another server"),
        ("--workers 2 --elastic 1..2 --target-accuracy 0.5 --stop-at-target", "does not stop at a target"),
    ] {
        let ran = paceline(&format!("train --steps 5 {words}"));
        let code = if reason.starts_with("e.g.") { 2 } else { 3 };
        assert_eq!(ran.code, code, "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains(reason), "{words}: {}", ran.stderr);
    }
}
