//! Runs of scripts that others join: everybody ends with the parameters, and with the memory, that come of the workers that
//! took part in each step, to the last bit.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::aftermath::Scene;
use crate::elastic_scripts::{SIZES, gradient, script};
use crate::machines::Process;
use crate::scripts::has_python;
use crate::support::{PATIENCE, Ran, paceline, signal};

/// Paths and servers, over several transports.
const CELLS: [&str; 5] = [
    "--strategy ring-allreduce --transport tcp --bucket 64",
    "--strategy tree --transport shm",
    "--strategy halving-doubling --transport uds --bucket 64",
    "--strategy ps --servers 2 --transport tcp",
    "--strategy ps --servers 2 --backup 1 --transport shm --bucket 64",
];

/// A run whose scripts go on until they are told to end.
struct Run {
    scene: Scene,
    out: tempfile::TempDir,
    launcher: Process,
    workers: u64,
}

impl Run {
    fn start(workers: u64, flags: &str, args: &str) -> Self {
        let (scene, out) = (Scene::new(), tempfile::tempdir().unwrap());
        let words = format!("train --json --workers {workers} {flags} {}", Self::script(&out, args));
        let launcher = Process::start(&[], &words, &scene.environment());
        Self { scene, out, launcher, workers }
    }

    /// The script and its arguments: it ends with the file `until`, and `late` says what becomes of those that come later.
    fn script(out: &tempfile::TempDir, args: &str) -> String {
        let folder = out.path().display();
        let files = format!("--out {folder} --until {folder}/until --late {folder}/late");
        format!("--script {} -- --steps 100000 --sleep 0.002 {files} {args}", script())
    }

    fn write(&self, name: &str, text: &str) {
        // It appears whole.
        let path = self.out.path().join(name);
        std::fs::write(path.with_extension("new"), text).unwrap();
        std::fs::rename(path.with_extension("new"), path).unwrap();
    }

    /// Changes so far, once this has happened to this member so many times.
    fn changes(&self, what: &str, member: u64, times: usize) -> Vec<Value> {
        let begun = Instant::now();
        loop {
            let told = self.launcher.stdout();
            let told = told.lines().filter(|line| line.contains(r#""type":"membership""#));
            let changes = told.map(|line| serde_json::from_str::<Value>(line).unwrap()["change"].clone());
            let changes: Vec<Value> = changes.collect();
            if changes.iter().filter(|change| members(&change[what]).contains(&member)).count() >= times {
                return changes;
            }
            assert!(begun.elapsed() < PATIENCE, "{what} {member}: {changes:?}\n{}", self.launcher.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn change(&self, what: &str, member: u64) -> Vec<Value> {
        self.changes(what, member, 1)
    }

    /// Waits until there are so many rank processes.
    fn has_ranks(&self, count: usize) {
        let begun = Instant::now();
        while self.launcher.children().len() != count {
            assert!(begun.elapsed() < PATIENCE, "{:?}", self.launcher.children());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Asks for other members, which must be granted, once those that were told to leave have left.
    fn ask(&self, words: &str) {
        let begun = Instant::now();
        loop {
            let ran = self.scene.run(words, &[]);
            if ran.code == 0 {
                return;
            }
            let early = ran.stderr.contains("try it again in a moment") && begun.elapsed() < PATIENCE;
            assert!(early, "{words}: {}", ran.stderr);
        }
    }

    /// Ends the run once it has come a step further. Whoever is there at the end, by the worker that it stands for, has what
    /// comes of those who took part in each step. The result.
    fn end(self) -> Value {
        self.launcher.trains_on();
        self.write("until", "");
        let (code, stdout, stderr) = self.launcher.end();
        let ran = Ran { code, stdout, stderr };
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        let told = self.scene.after(&ran, "ok");
        let result = told.last().unwrap().clone();
        let (steps, parts) = (result["steps"].as_u64().unwrap(), Parts::of(self.workers, &result));
        let there = parts.at(steps);
        let (own, memory) = parts.expected(steps);
        for number in 0..4 {
            if there.contains(&number) {
                has(&self.out, number, steps, &own, &memory);
            } else {
                assert!(!self.out.path().join(number.to_string()).exists(), "{}", result["membership"]);
            }
        }
        let ranks = result["ranks"].as_array().unwrap();
        let workers: Vec<&Value> = ranks.iter().filter(|rank| rank["role"] == "worker").collect();
        assert_eq!(workers.len(), there.len());
        assert!(workers.iter().all(|rank| rank["params_sha256"] == result["params_sha256"]));
        assert_eq!(
            result["samples"].as_u64().unwrap(),
            4 * parts.steps_of_all(steps),
            "{}",
            result["membership"]
        );
        result
    }
}

/// Sees that the script which stood for a worker at the end has left these parameters and this memory.
fn has(out: &tempfile::TempDir, number: u64, steps: u64, own: &[Vec<f64>], memory: &[f64]) {
    let text = std::fs::read_to_string(out.path().join(number.to_string()));
    let text = text.unwrap_or_else(|e| panic!("worker {number} left nothing: {e}"));
    let left: Value = serde_json::from_str(&text).unwrap();
    let expected = serde_json::json!({"step": steps, "own": own, "memory": memory});
    assert_eq!(left, expected, "worker {number}");
}

/// Members that a change names.
fn members(named: &Value) -> Vec<u64> {
    named.as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
}

/// Which workers of the plan the scripts of a run stood for, from each step on.
struct Parts(BTreeMap<u64, Vec<u64>>);

impl Parts {
    /// One that comes back stands for itself if nobody else does; others for the first that is missing.
    fn of(workers: u64, result: &Value) -> Self {
        let mut numbers: BTreeMap<u64, u64> = (0..workers).map(|member| (member, member)).collect();
        let mut parts = Self(BTreeMap::from([(0, numbers.values().copied().collect())]));
        for change in result["membership"].as_array().into_iter().flatten() {
            let gone = members(&change["lost"]).into_iter().chain(members(&change["left"]));
            gone.for_each(|member| {
                numbers.remove(&member);
            });
            for member in members(&change["joined"]) {
                let taken = |number: &u64| numbers.values().any(|other| other == number);
                let own = Some(member).filter(|member| *member < workers && !taken(member));
                let number = own.or_else(|| (0..).find(|number| !taken(number))).unwrap();
                numbers.insert(member, number);
            }
            parts.0.insert(change["step"].as_u64().unwrap(), numbers.values().copied().collect());
        }
        parts
    }

    /// Those who take part in a step.
    fn at(&self, step: u64) -> &[u64] {
        self.0.range(..=step).next_back().unwrap().1
    }

    /// Parameters and memory after so many steps, each made of the mean over exactly the workers that took part in it.
    fn expected(&self, steps: u64) -> (Vec<Vec<f64>>, Vec<f64>) {
        let tensor = |n: usize| {
            let (mut value, mut memory) = (100.0 + n as f64, 0.0);
            for step in 0..steps {
                let there = self.at(step);
                let sum: f64 = there.iter().map(|number| gradient(*number as usize, step, n)).sum();
                let mean = sum / there.len() as f64;
                (value, memory) = (value - mean / 64.0, memory + mean);
            }
            (vec![value; SIZES[n]], memory)
        };
        (0..SIZES.len()).map(tensor).unzip()
    }

    /// Steps that all workers have made together.
    fn steps_of_all(&self, steps: u64) -> u64 {
        (0..steps).map(|step| self.at(step).len() as u64).sum()
    }
}

#[test]
fn a_spare_takes_the_place_of_a_killed_rank_or_script_and_has_all_that_the_others_have() {
    if !has_python() {
        return;
    }
    let kills = ["1:5:exchange", "0:9:begin", "3:4:tensor1", "2:7:taken", "0:3:settled"];
    for (flags, kill) in CELLS.into_iter().zip(kills) {
        let servers = if flags.contains("--servers") { 2 } else { 0 };
        let run = Run::start(4, &format!("{flags} --elastic 4..4 --spare 1"), &format!("--kill {kill}"));
        let changes = run.change("joined", 4 + servers);
        // Until it is handed what one of the others keeps, these go on: for a step.
        assert_eq!(changes.len(), 2, "{changes:?}");
        assert_eq!((&changes[0]["workers"], &changes[1]["workers"]), (&3.into(), &4.into()));
        let [lost, joined] = [&changes[0], &changes[1]].map(|change| change["step"].as_u64().unwrap());
        assert_eq!(joined, lost + 1);
        run.end();
    }
}

#[test]
fn a_worker_that_is_revoked_and_comes_back_goes_on_with_the_others() {
    if !has_python() {
        return;
    }
    for flags in [CELLS[0], CELLS[4]] {
        let folder = Scene::new();
        let back = "[[revoke]]\nat-s = 0.05\nrank = 1\nback-after-s = 0.05\n[[revoke]]\nat-s = 0.1\nrank = 0\nnotice-s = 2.0\nback-after-s = 0.05\n";
        let file = folder.file("back.toml", back);
        let run = Run::start(4, &format!("{flags} --elastic 2..4 --revoke {file}"), "");
        run.change("joined", 1);
        let changes = run.change("joined", 0);
        assert!(changes.iter().any(|change| members(&change["left"]) == [0]), "{changes:?}");
        let result = run.end();
        assert_eq!(
            result["ranks"].as_array().unwrap().iter().filter(|rank| rank["role"] == "worker").count(),
            4
        );
    }
}

#[test]
fn a_run_is_resized_to_fewer_and_to_more_workers_than_it_began_with() {
    if !has_python() {
        return;
    }
    for (flags, last) in [(CELLS[1], 3), (CELLS[3], 5)] {
        let run = Run::start(2, &format!("{flags} --elastic 2..4"), "");
        run.launcher.trains_on();
        run.ask("resize last 4");
        run.change("joined", last);
        run.launcher.trains_on();
        run.ask("resize last 2");
        run.change("left", last);
        run.launcher.trains_on();
        run.ask("resize last 3");
        run.launcher.prints(r#""workers":3,"#, run.launcher.stdout().lines().count());
        let result = run.end();
        let workers: Vec<u64> =
            result["membership"].as_array().unwrap().iter().map(|c| c["workers"].as_u64().unwrap()).collect();
        assert_eq!((workers.iter().max(), workers.last()), (Some(&4), Some(&3)), "{workers:?}");
    }
}

#[test]
fn who_fails_while_it_starts_or_is_killed_as_soon_as_it_begins_harms_nobody() {
    if !has_python() {
        return;
    }
    for (late, told) in [
        ("fails", "a test asked for it"),
        ("killed", "SIGKILL"),
        ("differs", "another model than rank 0's: tensor 2 is t2 [6], there t2 [5]"),
        ("begins and fails", "a test asked for it"),
        ("begins and is killed", "SIGKILL"),
    ] {
        let run = Run::start(2, &format!("{} --elastic 1..3", CELLS[0]), "");
        run.launcher.trains_on();
        run.write("late", late);
        run.ask("resize last 3");
        run.launcher.says(told);
        let before = usize::from(late.starts_with("begins"));
        run.changes("lost", 2, before);
        run.has_ranks(2);
        // The next one finds everything in order.
        std::fs::remove_file(run.out.path().join("late")).unwrap();
        run.launcher.trains_on();
        run.ask("resize last 3");
        run.changes("joined", 2, before + 1);
        let result = run.end();
        assert_eq!(result["ranks"].as_array().unwrap().len(), 3, "{late}");
    }
}

#[test]
fn nobody_joins_scripts_that_keep_nothing_and_the_run_goes_on() {
    if !has_python() {
        return;
    }
    for (keep, reason) in [
        ("nothing", "its script keeps nothing when it saves itself"),
        ("never", "its script does not save itself when it is told to"),
    ] {
        let run = Run::start(2, &format!("{} --elastic 1..3", CELLS[3]), &format!("--keep {keep}"));
        run.launcher.trains_on();
        run.ask("resize last 3");
        run.launcher.says(&format!("worker 4 cannot join: worker 0: {reason}"));
        run.launcher.trains_on();
        let again = run.scene.run("resize last 3", &[]);
        assert!(again.code == 3 && again.stderr.contains(reason), "{}", again.stderr);
        let result = run.end();
        assert!(result["membership"].as_array().is_none_or(Vec::is_empty), "{}", result["membership"]);
    }
}

#[test]
fn with_too_few_a_run_waits_for_one_that_comes_and_ends_if_that_one_is_lost() {
    if !has_python() {
        return;
    }
    // One comes back, and the others wait for it.
    let folder = Scene::new();
    let file = folder.file("back.toml", "[[revoke]]\nat-s = 0.05\nrank = 1\nback-after-s = 0.2\n");
    let run = Run::start(2, &format!("{} --elastic 2..2 --revoke {file}", CELLS[0]), "");
    let changes = run.change("joined", 1);
    let [lost, joined] = [&changes[0], &changes[1]].map(|change| change["step"].as_u64().unwrap());
    assert_eq!(joined, lost + 1, "one step is made without it, and no other");
    run.end();
    // A spare whose script is killed while it waits is no help any more.
    let run = Run::start(2, &format!("{} --elastic 2..2 --spare 1 --no-record", CELLS[3]), "");
    run.launcher.trains_on();
    // Two workers, two servers, the spare.
    let ranks = run.launcher.children();
    assert_eq!(ranks.len(), 5);
    assert!(signal("KILL", ranks[4]) && signal("KILL", ranks[1]));
    let (code, _, stderr) = run.launcher.end();
    assert!(code == 4 && stderr.contains("1 workers are left, and the run needs at least 2"), "{stderr}");
}

#[test]
fn a_run_that_somebody_has_joined_goes_on_from_its_checkpoint_with_all_workers() {
    if !has_python() {
        return;
    }
    let flags = format!("{} --elastic 2..3 --spare 1 --checkpoint-every 10 --steps 45", CELLS[4]);
    let run = Run::start(3, &flags, "--kill 0:5:begin,1:23:begin,2:24:exchange");
    run.change("joined", 5);
    let (scene, out) = (run.scene, run.out);
    let (code, stdout, stderr) = run.launcher.end();
    assert_eq!(code, 4, "{stderr}");
    let changes = |text: &str| -> Value {
        let told = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let told = told.filter(|told| told["type"] == "membership").map(|told| told["change"].clone());
        serde_json::json!({"membership": told.collect::<Vec<_>>()})
    };
    let before = Parts::of(3, &changes(&stdout));
    // The script's arguments are those of the plan: two are killed once more, and the spare is there again.
    let ran = scene.run("resume last --json", &[]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let since = Parts::of(3, &changes(&ran.stdout));
    let mut parts: BTreeMap<u64, Vec<u64>> =
        before.0.range(..20).map(|(at, all)| (*at, all.clone())).collect();
    parts.insert(20, vec![0, 1, 2]);
    parts.extend(since.0.into_iter().filter(|(at, _)| *at > 20));
    let parts = Parts(parts);
    assert_eq!(parts.at(45).len(), 2, "{:?}", parts.0);
    for number in parts.at(45) {
        let (own, memory) = parts.expected(45);
        has(&out, *number, 45, &own, &memory);
    }
}

#[test]
fn nobody_joins_unchanged_scripts() {
    let file = PathBuf::from(script());
    for words in ["--elastic 2..2 --spare 1", "--elastic 1..3"] {
        let ran = paceline(&format!("train --auto --workers 2 {words} --script {}", file.display()));
        assert_eq!(ran.code, 3, "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains("nobody joins a run of unchanged scripts"), "{words}: {}", ran.stderr);
    }
}
