//! Runs of scripts whose workers are lost: the survivors have the parameters that come of the workers that took part in
//! each step, to the last bit.

use std::path::PathBuf;
use std::time::Instant;

use serde_json::Value;

use crate::aftermath::Scene;
use crate::scripts::has_python;
use crate::support::{PATIENCE, Ran, Running, gone, paceline, signal};

pub const SIZES: [usize; 3] = [3, 40, 5];
const STEPS: u64 = 12;

/// Paths and servers, over several transports; the run's steps are known before, or end with the scripts' work.
const CELLS: [&str; 6] = [
    "--strategy ring-allreduce --transport tcp --bucket 64",
    "--strategy ring-reduce --transport uds --steps 12",
    "--strategy halving-doubling --transport shm",
    "--strategy tree --transport shm --bucket 64 --steps 12",
    "--strategy ps --servers 2 --transport tcp --steps 12",
    "--strategy ps --servers 2 --backup 1 --transport shm --bucket 64",
];

pub fn script() -> String {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/cli/scripts/members.py").display().to_string()
}

/// The gradient that the script of a worker has for a tensor in a step.
pub fn gradient(rank: usize, step: u64, n: usize) -> f64 {
    12.0 * (((rank + 1) as u64 * (step % 5 + 1)) as f64 + n as f64)
}

/// The parameters of a script whose mean gradient at each step is that of the workers that take part in it.
fn expected(takes_part: impl Fn(usize, u64) -> bool) -> Vec<Vec<f64>> {
    let tensor = |n: usize| {
        let mut value = 100.0 + n as f64;
        for step in 0..STEPS {
            let there: Vec<usize> = (0..4).filter(|rank| takes_part(*rank, step)).collect();
            let sum: f64 = there.iter().map(|rank| gradient(*rank, step, n)).sum();
            value -= sum / there.len() as f64 / 64.0;
        }
        vec![value; SIZES[n]]
    };
    (0..SIZES.len()).map(tensor).collect()
}

/// A run of four scripts, and what they have left.
struct Trained {
    scene: Scene,
    out: tempfile::TempDir,
    ran: Ran,
    told: Vec<Value>,
}

impl Trained {
    /// Runs it to its end; what must hold afterwards holds.
    fn new(flags: &str, args: &str, faults: &[(&str, String)], state: &str) -> Self {
        let (scene, out) = (Scene::new(), tempfile::tempdir().unwrap());
        let mut command = scene.command(&format!("train --json --workers 4 {flags} --script {}", script()));
        let args = format!("-- --steps {STEPS} --out {} {args}", out.path().display());
        let done = command.args(args.split_whitespace()).envs(faults.iter().cloned()).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        let (stdout, stderr) = (text(done.stdout), text(done.stderr));
        let ran = Ran { code: done.status.code().unwrap_or(-1), stdout, stderr };
        assert_eq!(ran.code == 0, state == "ok", "{flags} -- {args}: {}", ran.stderr);
        let told = scene.after(&ran, state);
        Self { scene, out, ran, told }
    }

    fn result(&self) -> &Value {
        self.told.last().unwrap()
    }

    /// Before which step each worker's part ended.
    fn until(&self) -> [u64; 4] {
        let mut until = [u64::MAX; 4];
        for change in self.result()["membership"].as_array().into_iter().flatten() {
            for rank in ["lost", "left"].iter().filter_map(|how| change[*how].as_array()).flatten() {
                if let Some(until) = until.get_mut(rank.as_u64().unwrap() as usize) {
                    *until = change["step"].as_u64().unwrap();
                }
            }
        }
        until
    }

    /// What the script of a rank ended with.
    fn own(&self, rank: usize) -> Vec<Vec<f64>> {
        let text = std::fs::read_to_string(self.out.path().join(rank.to_string()))
            .unwrap_or_else(|e| panic!("rank {rank} left nothing: {e}: {}", self.ran.stderr));
        let left: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(left["step"], STEPS, "rank {rank}");
        serde_json::from_value(left["own"].clone()).unwrap()
    }

    /// Sees that all others have what comes of the workers that took part in each step.
    fn others_are_right(&self, killed: &[usize], what: &str) {
        let until = self.until();
        let expected = expected(|rank, step| step < until[rank]);
        for rank in (0..4).filter(|rank| !killed.contains(rank)) {
            assert_eq!(self.own(rank), expected, "{what}: rank {rank}, {}", self.result()["membership"]);
        }
        assert_eq!(self.result()["steps"], STEPS, "{what}");
    }

    /// Sees that these workers were lost, and that the others have what must come of it.
    fn survived(&self, lost: &[usize], what: &str) {
        let (until, result) = (self.until(), self.result());
        let gone: Vec<usize> = (0..4).filter(|rank| until[*rank] < u64::MAX).collect();
        assert_eq!(gone, lost, "{what}: {}", result["membership"]);
        self.others_are_right(lost, what);
        // Servers' shards go to others; nobody computes what a lost script would have.
        let changes = result["membership"].as_array().into_iter().flatten();
        let took_over = changes.filter_map(|change| change["took_over"].as_array()).flatten();
        assert!(
            took_over.into_iter().all(|rank| rank.as_u64() >= Some(4)),
            "{what}: {}",
            result["membership"]
        );
        let ranks = result["ranks"].as_array().unwrap();
        let workers = ranks.iter().filter(|rank| rank["role"] == "worker");
        let hashes: Vec<&Value> = workers.map(|rank| &rank["params_sha256"]).collect();
        assert_eq!(hashes, vec![&result["params_sha256"]; 4 - lost.len()], "{what}");
        let samples: u64 = until.iter().map(|until| 4 * until.min(&STEPS)).sum();
        assert_eq!((&result["steps"], &result["samples"]), (&STEPS.into(), &samples.into()), "{what}");
        assert_eq!(result["final_loss"], (STEPS - 1) as f64, "{what}");
    }
}

#[test]
fn an_elastic_run_that_loses_nobody_is_the_run_that_it_would_be() {
    if !has_python() {
        return;
    }
    for flags in CELLS {
        let elastic = Trained::new(&format!("{flags} --elastic 1..4"), "", &[], "ok");
        elastic.survived(&[], flags);
        let plain = Trained::new(&flags.replace("--backup 1", ""), "", &[], "ok");
        assert_eq!(elastic.result()["params_sha256"], plain.result()["params_sha256"], "{flags}");
    }
}

#[test]
fn a_killed_rank_costs_its_part_of_the_steps_that_follow_and_nothing_else() {
    if !has_python() {
        return;
    }
    let kills = [(0, 1), (3, 6), (2, 11), (1, 4), (2, 1), (0, 7)];
    for (flags, (rank, step)) in CELLS.into_iter().zip(kills) {
        let at = [("PACELINE_TEST_DIE", format!("{rank}:{step}"))];
        let trained = Trained::new(&format!("{flags} --elastic 1..4"), "", &at, "ok");
        trained.survived(&[rank], &format!("{flags}, rank {rank} after step {step}"));
    }
}

#[test]
fn a_script_may_be_killed_wherever_it_is() {
    if !has_python() {
        return;
    }
    let places = ["begin", "tensor1", "exchange", "settled", "taken"];
    for (i, place) in places.into_iter().enumerate() {
        for (cell, rank, step) in [(i % 4, i % 4, 0), (4, 3, 5), (3 - i % 4, (i + 1) % 4, STEPS - 1)] {
            let at = format!("--kill {rank}:{step}:{place}");
            let what = format!("{}: {at}", CELLS[cell]);
            let trained = Trained::new(&format!("{} --elastic 1..4", CELLS[cell]), &at, &[], "ok");
            // Once it has given its last gradient the run may be over before anybody knows.
            match step == STEPS - 1 && !["begin", "tensor1"].contains(&place) {
                true => trained.others_are_right(&[rank], &what),
                false => trained.survived(&[rank], &what),
            }
        }
    }
}

#[test]
fn a_script_that_is_killed_when_its_work_is_done_takes_nothing_from_the_others() {
    if !has_python() {
        return;
    }
    for flags in CELLS {
        // Whether the run is over by then, nobody decides: either way it has made all steps.
        let trained = Trained::new(&format!("{flags} --elastic 1..4"), "--kill 1:12:end", &[], "ok");
        trained.others_are_right(&[1], flags);
    }
}

#[test]
fn several_are_lost_one_after_the_other_and_at_once() {
    if !has_python() {
        return;
    }
    for (cell, scripts, ranks, lost) in [
        (0, "1:3:tensor1,2:3:exchange", "", &[1, 2][..]),
        (1, "0:2:begin", "3:2", &[0, 3]),
        (2, "0:2:begin,1:6:taken,3:9:exchange", "", &[0, 1, 3]),
        (3, "", "1:5,2:6,3:7", &[1, 2, 3]),
        (4, "1:4:exchange,2:4:exchange", "", &[1, 2]),
        (5, "3:5:tensor0", "0:5", &[0, 3]),
        // A worker together with a server.
        (5, "1:5:begin", "4:5", &[1]),
        (5, "", "2:6,5:6", &[2]),
    ] {
        let mut args = String::new();
        if !scripts.is_empty() {
            args = format!("--kill {scripts}");
        }
        let at = [("PACELINE_TEST_DIE", ranks.to_owned())];
        let trained = Trained::new(&format!("{} --elastic 1..4", CELLS[cell]), &args, &at, "ok");
        trained.survived(lost, &format!("{} {args} {ranks}", CELLS[cell]));
    }
}

#[test]
fn with_too_few_scripts_the_run_ends_and_goes_on_from_its_checkpoint_with_all() {
    if !has_python() {
        return;
    }
    for flags in [CELLS[0], CELLS[4]] {
        let flags = format!("{flags} --elastic 3..4 --checkpoint-every 4");
        let kills = "--kill 2:5:exchange,0:9:begin";
        let trained = Trained::new(&flags, kills, &[], "failed");
        assert_eq!(trained.ran.code, 4, "{}", trained.ran.stderr);
        for word in [
            "2 workers are left, and the run needs at least 3",
            "worker 0 (its script ended after step 9 (signal 9 (SIGKILL)))",
            "worker 2 (its script ended in the exchange of step 6 (signal 9 (SIGKILL)))",
            "after step 8",
            "paceline resume",
        ] {
            assert!(trained.ran.stderr.contains(word), "{word}: {}", trained.ran.stderr);
        }
        let change = trained.told.iter().find(|told| told["type"] == "membership").unwrap();
        let lost = change["change"]["step"].as_u64().unwrap();
        // The script's arguments are those of the plan: nobody makes step 5 again, but step 9 would be met once more.
        let resumed = trained.scene.run("resume last --json", &[]);
        assert_eq!(resumed.code, 0, "{}", resumed.stderr);
        let again = |told: &Value| told["change"]["step"].as_u64().filter(|_| told["type"] == "membership");
        let told = resumed.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let second = told.filter_map(|told| again(&told)).next().unwrap();
        let expected = expected(|rank, step| match rank {
            2 => step < lost || step >= 8,
            0 => step < second,
            _ => true,
        });
        for rank in 1..4 {
            assert_eq!(trained.own(rank), expected, "{flags}: rank {rank}");
        }
    }
}

#[test]
fn what_ended_a_run_of_scripts_before_still_ends_it() {
    if !has_python() {
        return;
    }
    let trained = Trained::new("--elastic 1..4", "--fail 2:3", &[], "failed");
    assert_eq!(trained.ran.code, 1, "{}", trained.ran.stderr);
    let told = "worker 2: its script failed after step 3: ValueError: a test asked for it";
    assert!(trained.ran.stderr.contains(told), "{}", trained.ran.stderr);
}

#[test]
fn a_script_that_is_stopped_in_its_backward_pass_is_done_without() {
    if !has_python() {
        return;
    }
    let trained = Trained::new(&format!("{} --elastic 3..4", CELLS[2]), "--stop 1:4", &[], "ok");
    trained.survived(&[1], "stopped");
    assert_eq!(trained.until()[1], 4);
}

/// The processes that a file names.
fn named(file: &std::path::Path) -> Vec<u32> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
fn a_lost_or_drained_worker_takes_its_scripts_processes_along_while_the_others_go_on() {
    if !has_python() {
        return;
    }
    for (name, how) in [("KILL", "lost"), ("TERM", "left")] {
        let folder = tempfile::tempdir().unwrap();
        let pids = folder.path().join("pids");
        let flags = format!("--workers 3 --elastic 2..3 --strategy ring-allreduce --script {}", script());
        let args = format!("--steps 100000 --sleep 0.002 --fork --pids {}", pids.display());
        let running = Running::start(&format!("{flags} -- {args}"));
        let rank = running.ranks()[1];
        let children = std::fs::read_to_string(format!("/proc/{rank}/task/{rank}/children")).unwrap();
        let own: u32 = children.split_whitespace().next().unwrap().parse().unwrap();
        let all = named(&pids);
        assert_eq!(all.len(), 6, "three scripts, with a child each");
        // Where the file names a script, its child stands somewhere behind it: who its parent is tells which.
        let parent = |pid: u32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse::<u32>().ok())
        };
        let child = all.iter().copied().find(|pid| parent(*pid) == Some(own)).expect("its child");
        assert!(signal(name, rank));
        let told = running.next("membership");
        assert_eq!(told["change"][how], Value::from(vec![1]), "{told}");
        assert_eq!(told["change"]["workers"], 2, "{told}");
        let begun = Instant::now();
        while ![rank, own, child].into_iter().all(gone) {
            assert!(begun.elapsed() < PATIENCE, "{name}: {rank}, {own} or {child} is left");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        running.next("progress");
        let others: Vec<u32> = all.iter().copied().filter(|pid| ![own, child].contains(pid)).collect();
        assert!(others.iter().all(|pid| !gone(*pid)), "{name}: the others go on");
        drop(running);
        let begun = Instant::now();
        while !others.iter().all(|pid| gone(*pid)) {
            assert!(begun.elapsed() < PATIENCE, "{name}: of {others:?} some are left");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

#[test]
fn scripts_that_cannot_be_elastic_are_refused_with_the_reason() {
    if !has_python() {
        return;
    }
    for (words, reason) in [
        ("--workers 2 --elastic 1..2 --strategy ddp-gloo", "its workers end together"),
        (
            "--workers 2 --elastic 1..2 --strategy ps --servers 1 --apply server",
            "the servers' optimiser has settings for each tensor",
        ),
        ("--workers 2 --elastic 1..2 --strategy ps --servers 1 --sync asp", "with servers under --sync bsp"),
        ("--workers 2 --elastic 1..2 --strategy gossip", "where gradients are averaged"),
        ("--workers 1 --elastic 1..1", "each is a process"),
        ("--workers 2 --elastic 1..2 --stop-at-target --target-accuracy 0.5", "does not stop at a target"),
    ] {
        let ran = paceline(&format!("train {words} --script {}", script()));
        assert_eq!(ran.code, 3, "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains(reason), "{words}: {}", ran.stderr);
    }
    let ran = paceline(&format!("simulate --workers 2 --elastic 1..2 --script {}", script()));
    assert!(ran.code == 3 && ran.stderr.contains("for the workers that it begins with"), "{}", ran.stderr);
}
