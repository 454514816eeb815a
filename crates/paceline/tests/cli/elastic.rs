//! Real runs whose members change: whoever is killed, the run ends with the parameters that it would have had.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::time::Instant;

use serde_json::Value;

use crate::aftermath::Scene;
use crate::serve::Served;
use crate::support::{ENDLESS, PATIENCE, Ran, Running, gone, paceline, result, signal};

/// A short run of four workers.
const RUN: &str = "--quiet --workers 4 --steps 40 --batch 8 --eval-every 10 --bucket 32KiB --seed 5";

/// Every exact way to average, over every transport, with several optimisers.
const CELLS: [&str; 9] = [
    "--strategy ring-allreduce --transport tcp --optimizer adam --lr 0.001",
    "--strategy ring-reduce --transport uds",
    "--strategy halving-doubling --transport shm --momentum 0.9",
    "--strategy tree --transport grpc",
    "--strategy hierarchical --transport shm",
    "--strategy direct --transport tcp --compression fp16",
    "--model lenet",
    "--strategy ps --servers 2 --transport tcp",
    "--strategy ps --servers 2 --backup 1 --transport shm --optimizer adam --lr 0.001",
];

/// Runs `train` with ranks that are killed after steps (`RANK:STEP`); what must hold afterwards holds.
pub(crate) fn killed(scene: &Scene, at: &str, words: &str, state: &str) -> (Ran, Vec<Value>) {
    let ran = scene.run(&format!("train --json {words}"), &[("PACELINE_TEST_DIE", at.to_owned())]);
    let told = scene.after(&ran, state);
    (ran, told)
}

fn same(changed: &Value, calm: &Value, what: &str) {
    for figure in ["params_sha256", "final_loss", "final_accuracy", "samples", "steps"] {
        assert_eq!(changed[figure], calm[figure], "{what}: {figure}");
    }
}

/// What a run of these words comes to when nothing happens to it.
fn calm(words: &str) -> Value {
    result(&format!("train --no-record {RUN} {}", words.replace("--backup 1", "")))
}

#[test]
fn a_killed_worker_changes_no_bit_along_any_exact_path_and_with_servers() {
    let kills = [(0, 7), (3, 1), (2, 39), (1, 20), (2, 10), (3, 13), (1, 30), (0, 12), (3, 25)];
    for (words, (worker, step)) in CELLS.into_iter().zip(kills) {
        let scene = Scene::new();
        let (ran, told) =
            killed(&scene, &format!("{worker}:{step}"), &format!("{RUN} {words} --elastic 2..4"), "ok");
        assert_eq!(ran.code, 0, "{words}: {}", ran.stderr);
        let changed = told.last().unwrap();
        same(changed, &calm(words), words);
        let changes = changed["membership"].as_array().unwrap();
        assert_eq!(changes.len(), 1, "{words}: {changes:?}");
        assert_eq!(
            (&changes[0]["lost"], &changes[0]["workers"]),
            (&vec![worker].into(), &3.into()),
            "{words}"
        );
    }
}

/// Numbers that look random, from a seed.
pub(crate) struct Draws(u64);

impl Draws {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

#[test]
fn workers_and_servers_that_are_killed_at_moments_drawn_from_seeds_change_no_bit() {
    for seed in 1..=8u64 {
        let mut draws = Draws::new(seed);
        let cell = CELLS[draws.below(CELLS.len() as u64) as usize];
        // Every server is the backup of the other one, too.
        let ranks = if cell.contains("--backup") { 6 } else { 4 };
        let first = draws.below(ranks);
        let mut kills = vec![(first, 1 + draws.below(39))];
        // Two workers within one step, or a worker and a server.
        let second = draws.below(4);
        if second != first {
            let step = if draws.below(2) == 0 { kills[0].1 } else { 1 + draws.below(39) };
            kills.push((second, step));
        }
        let at: Vec<String> = kills.iter().map(|(rank, step)| format!("{rank}:{step}")).collect();
        let what = format!("seed {seed}: {cell}, killed {}", at.join(","));
        let scene = Scene::new();
        let (ran, told) = killed(&scene, &at.join(","), &format!("{RUN} {cell} --elastic 2..4"), "ok");
        assert_eq!(ran.code, 0, "{what}: {}", ran.stderr);
        same(told.last().unwrap(), &calm(cell), &what);
        let changes = told.last().unwrap()["membership"].as_array().unwrap();
        let lost: usize = changes.iter().map(|change| change["lost"].as_array().unwrap().len()).sum();
        assert_eq!(lost, kills.len(), "{what}: {changes:?}");
    }
}

/// One entry of a file of revocations.
pub(crate) fn revoke(at_s: f64, rank: usize, more: &str) -> String {
    format!("[[revoke]]\nat-s = {at_s}\nrank = {rank}\n{more}\n")
}

#[test]
fn members_that_are_taken_away_come_back_and_the_run_is_that_of_virtual_time_and_of_one_left_alone() {
    // Links of 4 ms make steps so long that whoever comes back finds the run under way.
    let ring = "--strategy ring-allreduce --steps 250 --optimizer adam --lr 0.001";
    let servers = "--strategy ps --servers 2 --backup 1 --steps 250 --momentum 0.9";
    let back = "back-after-s = 0.3";
    // 4 -> 2 -> 4 workers.
    let workers = revoke(0.4, 3, "back-after-s = 1.2") + &revoke(0.6, 1, &format!("notice-s = 0.4\n{back}"));
    // A server, which comes back as a backup alone and is then lost again.
    let both = workers.clone() + &revoke(0.8, 5, back) + &revoke(2.2, 5, back);
    for (words, file, away) in [(ring, workers, 2), (servers, both, 4)] {
        let scene = Scene::new();
        let file = scene.file("revoke.toml", &file);
        let words = format!("--quiet --workers 4 --batch 8 --bucket 64KiB --network 1gbit,4ms {words}");
        let elastic = format!("{words} --elastic 2..4 --revoke {file}");
        let ran = scene.run(&format!("train --json {elastic}"), &[]);
        let told = scene.after(&ran, "ok");
        assert_eq!(ran.code, 0, "{words}: {}", ran.stderr);
        let changed = told.last().unwrap();
        same(changed, &result(&format!("train --no-record {}", words.replace("--backup 1", ""))), &words);
        let virtual_run = result(&format!("simulate --no-record --learn {elastic}"));
        same(changed, &virtual_run, &format!("{words}, in virtual time"));
        let members = |result: &Value, kinds: &[&str]| -> Vec<u64> {
            let changes = result["membership"].as_array().unwrap().iter();
            let mut all: Vec<u64> = changes
                .flat_map(|change| kinds.iter().filter_map(|what| change[*what].as_array().cloned()))
                .flatten()
                .filter_map(|member| member.as_u64())
                .collect();
            all.sort_unstable();
            all
        };
        // Whether who has been told leaves before it is killed, a busy machine decides.
        for kinds in [&["lost", "left"][..], &["joined"]] {
            assert_eq!(
                members(changed, kinds),
                members(&virtual_run, kinds),
                "{words}: {kinds:?}: {changed}"
            );
        }
        assert_eq!(members(changed, &["lost", "left"]).len(), away, "{words}: {changed}");
        let counts = |result: &Value| -> Vec<u64> {
            let changes = result["membership"].as_array().unwrap();
            changes.iter().map(|change| change["workers"].as_u64().unwrap()).collect()
        };
        assert!(counts(changed).contains(&2) && counts(changed).last() == Some(&4), "{words}: {changed}");
    }
}

#[test]
fn too_few_workers_wait_for_those_that_come_back() {
    let words = "--quiet --workers 2 --batch 8 --network 1gbit,4ms --steps 120";
    let scene = Scene::new();
    let file = scene.file("revoke.toml", &revoke(0.3, 1, "back-after-s = 0.2"));
    let ran = scene.run(&format!("train --json {words} --elastic 2..2 --revoke {file}"), &[]);
    let told = scene.after(&ran, "ok");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let changed = told.last().unwrap();
    same(changed, &result(&format!("train --no-record {words}")), "waited");
    let change = &changed["membership"][0];
    let members = Value::from(vec![1]);
    assert_eq!((&change["lost"], &change["joined"]), (&members, &members), "{change}");
}

/// A worker that is alone waits for nobody: it must look up between its steps, or whoever comes back waits until the end.
#[test]
fn a_worker_that_is_left_alone_goes_on_with_those_that_come_back() {
    // Each step rests for a hundred times as long as its pass takes.
    let words = "--quiet --workers 2 --batch 8 --straggler rank=0,factor=100 --steps 500";
    let scene = Scene::new();
    let file = scene.file("revoke.toml", &revoke(0.2, 1, "back-after-s = 0.1"));
    let ran = scene.run(&format!("train --json {words} --elastic 1..2 --revoke {file}"), &[]);
    let told = scene.after(&ran, "ok");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let changed = told.last().unwrap();
    same(changed, &result(&format!("train --no-record {words}")), "left alone");
    let joined = &changed["membership"][1];
    assert_eq!(joined["joined"], Value::from(vec![1]), "{changed}");
    assert!(joined["step"].as_u64().unwrap() < 500, "{changed}");
}

#[test]
fn a_file_of_revocations_that_cannot_be_is_refused_with_the_reason() {
    let scene = Scene::new();
    for (name, content, reason) in [
        ("rank.toml", revoke(1.0, 9, ""), "there is no rank 9"),
        ("time.toml", revoke(-1.0, 0, ""), "times are seconds, at least 0"),
        ("word.toml", revoke(1.0, 0, "after = 3"), "unknown field"),
    ] {
        let file = scene.file(name, &content);
        for verb in ["train", "simulate"] {
            let ran = paceline(&format!("{verb} --no-record --workers 2 --steps 5 --revoke {file}"));
            assert_eq!(ran.code, 3, "{verb} {name}: {}", ran.stderr);
            assert!(ran.stderr.contains(reason) && ran.stderr.contains("--revoke"), "{verb}: {}", ran.stderr);
        }
    }
    let ran = paceline("train --workers 2 --steps 5 --revoke nowhere.toml");
    assert!(ran.code == 3 && ran.stderr.contains("nowhere.toml"), "{}", ran.stderr);
}

#[test]
fn a_spare_takes_the_place_of_a_killed_worker() {
    let words = format!("{RUN} --strategy ring-allreduce --optimizer adam --lr 0.001");
    // At an evaluation, too: the spare shows its part of the model.
    for step in [9, 10, 40] {
        let scene = Scene::new();
        let (ran, told) =
            killed(&scene, &format!("1:{step}"), &format!("{words} --elastic 4..4 --spare 1"), "ok");
        assert_eq!(ran.code, 0, "{step}: {}", ran.stderr);
        let changed = told.last().unwrap();
        same(changed, &result(&format!("train --no-record {words}")), "spare");
        let change = &changed["membership"][0];
        assert_eq!((&change["joined"], &change["workers"]), (&vec![4].into(), &4.into()), "{change}");
    }
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
    let scene = Scene::new();
    let store = scene.store.path();
    // Just before an evaluation, which whoever joins has to make.
    let words = format!("{RUN} --strategy ring-allreduce --elastic 4..4 --spare 2");
    let (ran, _) = killed(&scene, "1:20", &words, "ok");
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
    let home = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(store, home.path().join("store")).unwrap();
    let served = Served::start(home.path(), &["--listen", "127.0.0.1:0"]);
    let run = ran.result()["run"].as_str().unwrap().to_owned();
    let begun = Instant::now();
    let shown = |path: &str, part: &str| served.get(path, "").contains(part);
    while !(shown(&format!("/run/{run}"), &told) && shown(&format!("/run/{run}/charts"), "Who took part")) {
        assert!(begun.elapsed() < PATIENCE, "{}", served.get(&format!("/run/{run}"), ""));
    }
}

#[test]
fn a_run_that_loses_too_many_says_whom_and_where_it_goes_on() {
    let ring = format!("{RUN} --strategy ring-allreduce");
    let servers = format!("{RUN} --strategy ps --servers 2");
    for (words, more, at, named) in [
        (
            &ring,
            "--elastic 4..4",
            "2:25",
            &["after step", "3 workers are left, and the run needs at least 4", "worker 2 (", "SIGKILL"][..],
        ),
        // A server together with its own backup.
        (
            &servers,
            "--backup 1 --elastic 2..4",
            "4:25,5:25",
            &["server shard", "nobody has a copy", "server 4 (", "server 5 (", "SIGKILL"],
        ),
    ] {
        let scene = Scene::new();
        let (ran, _) = killed(&scene, at, &format!("{words} {more} --checkpoint-every 10"), "failed");
        assert_eq!(ran.code, 4, "{}", ran.stderr);
        for word in [named, &["after step 20", "paceline resume"]].concat() {
            assert!(ran.stderr.contains(word), "{word}: {}", ran.stderr);
        }
        let resumed = scene.run("resume last --quiet", &[]);
        assert_eq!(resumed.code, 0, "{}", resumed.stderr);
        same(&resumed.result(), &result(&format!("train --no-record {words}")), "resumed");
    }
}

/// A line of a run under way, by its type; those before it are kept.
fn until(lines: &mut dyn Iterator<Item = String>, kind: &str, told: &mut String) -> Value {
    for line in lines {
        *told += &line;
        *told += "\n";
        let event: Value = serde_json::from_str(&line).unwrap();
        if event["type"] == kind {
            return event;
        }
    }
    panic!("no {kind} was told: {told}");
}

#[test]
fn a_run_under_way_is_resized_and_drained_by_name_and_ends_as_one_left_alone() {
    let scene = Scene::new();
    let words = "--workers 4 --batch 8 --bucket 32KiB --network 1gbit,4ms --steps 400 --seed 5 --strategy ring-allreduce";
    let train = format!("train --json {words} --elastic 2..4 --name shrinking");
    let mut launcher = scene
        .command(&train)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let out = BufReader::new(launcher.stdout.take().unwrap());
    let (lines, told) = (&mut out.lines().map_while(Result::ok), &mut String::new());
    until(lines, "progress", told);
    let ask = |words: &str| scene.run(words, &[]);
    for (words, reason) in [
        ("resize shrinking 1", "it has 2 to 4 workers"),
        ("resize shrinking 5", "--elastic 2..4"),
        ("drain shrinking 9", "there is no rank 9"),
    ] {
        let ran = ask(words);
        assert_eq!(ran.code, 3, "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains(&reason.replace("it has", "the run has")), "{words}: {}", ran.stderr);
    }
    let ran = ask("drain shrinking 1");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let change = until(lines, "membership", told);
    assert_eq!(change["change"]["left"], Value::from(vec![1]), "{change}");
    let ran = ask("resize last 2 --json");
    assert_eq!((ran.code, &ran.result()["request"]["resize"]), (0, &2.into()), "{}", ran.stderr);
    let change = until(lines, "membership", told);
    assert_eq!((&change["change"]["left"], &change["change"]["workers"]), (&vec![3].into(), &2.into()));
    for (words, reason) in [
        ("drain shrinking 3", "does not take part at present"),
        ("drain shrinking 0", "1 workers would be left, and the run needs at least 2"),
    ] {
        let ran = ask(words);
        assert!(ran.code == 3 && ran.stderr.contains(reason), "{words}: {}", ran.stderr);
    }
    // The processes of workers that left end by themselves, a moment later.
    let begun = Instant::now();
    let grown = loop {
        let ran = ask("resize shrinking 4");
        if ran.code == 0 || begun.elapsed() > PATIENCE {
            break ran;
        }
    };
    assert_eq!(grown.code, 0, "{}", grown.stderr);
    let mut workers = 2;
    while workers < 4 {
        workers = until(lines, "membership", told)["change"]["workers"].as_u64().unwrap();
    }
    lines.for_each(|line| *told += &(line + "\n"));
    let mut stderr = String::new();
    launcher.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    let code = launcher.wait().unwrap().code().unwrap_or(-1);
    let ran = Ran { code, stdout: std::mem::take(told), stderr };
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let all = scene.after(&ran, "ok");
    same(all.last().unwrap(), &result(&format!("train --quiet --no-record {words}")), "resized");
    let over = ask("resize shrinking 3");
    assert!(over.code == 3 && over.stderr.contains("is over: ok"), "{}", over.stderr);
}

#[test]
fn requests_for_runs_that_are_not_elastic_are_refused() {
    let scene = Scene::new();
    let train = format!("train --json {ENDLESS} --workers 2");
    let mut launcher = scene.command(&train).stdout(Stdio::piped()).spawn().expect("the program starts");
    let out = BufReader::new(launcher.stdout.take().unwrap());
    until(&mut out.lines().map_while(Result::ok), "progress", &mut String::new());
    let ran = scene.run("resize last 1", &[]);
    assert!(ran.code == 3 && ran.stderr.contains("is not elastic"), "{}", ran.stderr);
    launcher.kill().unwrap();
    launcher.wait().unwrap();
}

#[test]
fn a_rank_that_dies_before_it_listens_is_started_again_once() {
    let scene = Scene::new();
    let (ran, _) = killed(&scene, "1:0", &format!("{RUN} --elastic 2..4"), "failed");
    assert_eq!(ran.code, 4, "{}", ran.stderr);
    for word in ["worker 1", "SIGKILL", "before the first step"] {
        assert!(ran.stderr.contains(word), "{word}: {}", ran.stderr);
    }
}

#[test]
fn what_cannot_be_elastic_is_refused_with_the_reason() {
    for (words, reason) in [
        ("--workers 4 --elastic 5..6", "the run begins with 4 workers"),
        ("--workers 4 --elastic 0..4", "give at least 1..4"),
        ("--workers 4 --elastic 6..2", "give 2..6"),
        ("--workers 4 --elastic 2..8", "give --shares 8"),
        ("--workers 4 --elastic many", "e.g. 2..4"),
        ("--workers 2 --elastic 1..2 --transport inproc", "each is a process"),
        ("--workers 1 --elastic 1..1", "each is a process"),
        (
            "--workers 2 --elastic 1..2 --strategy stepwise --variant push-sum",
            "a loss would take a part of the sum away",
        ),
        ("--workers 2 --elastic 1..2 --strategy local --outer nesterov", "--outer none"),
        ("--workers 2 --elastic 1..2 --strategy ps --servers 1 --sync switch", "all steps are of one kind"),
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
