//! What must hold after any run whose members were lost, left or joined, whatever was broken: U1 to U6 of the contract.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use paceline_record::store::{RunRow, Value as Cell};
use paceline_record::{Checkpoints, Store};
use serde_json::Value;

use crate::support::{Ran, gone};

/// Tells the processes of a scene from others.
const MARK: &str = "PACELINE_TEST_SCENE";

/// One run with a store and a folder of temporary files of its own.
pub struct Scene {
    pub store: tempfile::TempDir,
    temporary: tempfile::TempDir,
}

impl Scene {
    pub fn new() -> Self {
        let folder = || tempfile::tempdir().unwrap();
        Self { store: folder(), temporary: folder() }
    }

    /// The program with these words.
    pub fn command(&self, words: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
        command.args(words.split_whitespace()).arg("--store").arg(self.store.path());
        command.env(MARK, self.store.path()).env("TMPDIR", self.temporary.path());
        command
    }

    /// The variables by which a process belongs to this scene.
    pub fn environment(&self) -> [(&'static str, &str); 3] {
        let [store, temporary] = [&self.store, &self.temporary].map(|folder| folder.path().to_str().unwrap());
        [("PACELINE_STORE", store), (MARK, store), ("TMPDIR", temporary)]
    }

    /// Runs it to its end.
    pub fn run(&self, words: &str, faults: &[(&str, String)]) -> Ran {
        let out = self.command(words).envs(faults.iter().cloned()).output().expect("the program starts");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        Ran { code: out.status.code().unwrap_or(-1), stdout: text(out.stdout), stderr: text(out.stderr) }
    }

    /// A file of this scene, beside its store.
    pub fn file(&self, name: &str, content: &str) -> String {
        let path = self.store.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Processes of this scene that live.
    pub fn processes(&self) -> Vec<u32> {
        let mark = format!("{MARK}={}", self.store.path().display());
        let marked = |pid: &u32| {
            let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environ.split(|&b| b == 0).any(|v| v == mark.as_bytes()) && !gone(*pid)
        };
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        all.filter_map(|e| e.file_name().to_str()?.parse().ok()).filter(marked).collect()
    }

    /// U1 to U6, once the program has ended; `state` is what the store must say of the run. What it told, by line.
    pub fn after(&self, ran: &Ran, state: &str) -> Vec<Value> {
        let since = Instant::now();
        while !self.processes().is_empty() {
            assert!(since.elapsed() < 3 * Duration::from_secs(5), "U1: {:?} are left", self.processes());
            std::thread::sleep(Duration::from_millis(10));
        }
        let store = Store::open(self.store.path()).unwrap();
        store.check().unwrap_or_else(|e| panic!("U6: {e}"));
        let runs = store.runs().unwrap();
        let [row] = &runs[..] else { panic!("one run is one row: {}", runs.len()) };
        truthful(row, state);
        let told: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        stored_once(&store, row, &told);
        if state != "ok" {
            // U4 in general; what else the error names is the test's to know.
            for word in ["error:", "hint:"] {
                assert!(ran.stderr.contains(word), "U4: no {word:?} in {}", ran.stderr);
            }
        }
        self.nothing_left();
        let plan = row.plan.as_ref().expect("its plan can be read");
        let folder = self.store.path().join("runs").join(&row.run);
        let (_, damaged) = Checkpoints::of(&folder).latest(&plan.checkpoint_hash()).unwrap();
        assert!(damaged.is_empty(), "U6: {damaged:?}");
        told
    }

    /// U5: in the store there are its database, checkpoints and what the test has put there; nothing anywhere else.
    fn nothing_left(&self) {
        let unexpected = |path: &PathBuf| {
            let text = path.strip_prefix(self.store.path()).unwrap().display().to_string();
            let own = text.starts_with("paceline.db") || text.ends_with(".toml") && !text.contains('/');
            !own && !text.contains("/checkpoints/step-")
        };
        let left: Vec<_> = files(self.store.path()).into_iter().filter(unexpected).collect();
        assert!(left.is_empty(), "U5: {left:?}");
        let left = files(self.temporary.path());
        assert!(left.is_empty(), "U5: {left:?}");
        let segments = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        let ours = segments.filter(|entry| entry.file_name().to_string_lossy().contains("paceline-"));
        let left: Vec<_> = ours.map(|entry| entry.path()).collect();
        assert!(left.is_empty(), "U5: {left:?}");
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // Only a test that failed has left any.
        for pid in self.processes() {
            crate::support::signal("KILL", pid);
        }
    }
}

/// U3: a state at which the run stays, that of what happened.
fn truthful(row: &RunRow, state: &str) {
    assert_eq!(row.state, state, "U3: {:?}", row.error);
    assert_eq!(row.state == "ok", row.result.is_some(), "U3");
    if row.state == "ok" {
        // A script ends when it has no more work.
        assert_eq!(row.steps_done, row.steps.unwrap_or(row.steps_done), "U3: never ok with steps missing");
    }
}

/// U2: what was told is stored, once; nobody's step is there twice, and none is missing that nobody took along.
fn stored_once(store: &Store, row: &RunRow, told: &[Value]) {
    let mut stored: BTreeMap<String, i64> = BTreeMap::new();
    let events = store.rows("events", row).unwrap();
    let at = events.column("event");
    for row in &events.rows {
        let Cell::Text(text) = &row[at] else { panic!("an event is text") };
        let event: Value = serde_json::from_str(text).unwrap();
        *stored.entry(event.to_string()).or_default() += 1;
    }
    for event in told.iter().filter(|event| event["type"] != "progress") {
        *stored.entry(event.to_string()).or_default() -= 1;
    }
    let wrong: Vec<_> = stored.iter().filter(|(_, left)| **left != 0).collect();
    assert!(wrong.is_empty(), "U2: told and stored differ: {wrong:?}");
    let steps = store.rows("steps", row).unwrap();
    // Rows of servers count updates.
    let plan = row.plan.as_ref().expect("its plan can be read");
    let numbers =
        |name: &str| steps.numbers(name).into_iter().map(|number| number.unwrap_or_default() as u64);
    let rows = numbers("rank").zip(numbers("step"));
    let mut own: Vec<_> = rows.filter(|(rank, _)| plan.is_worker(*rank as usize)).collect();
    own.sort_unstable();
    let all = own.len();
    own.dedup();
    assert_eq!(own.len(), all, "U2: a step of a rank is there twice");
    if row.state == "ok" && row.dropped_rows == 0 {
        let mut steps: Vec<u64> = own.iter().map(|(_, step)| *step).collect();
        steps.sort_unstable();
        steps.dedup();
        let end = row.steps.unwrap_or(row.steps_done);
        if plan.sync != "bsp" && plan.elastic.is_some() {
            // Workers count their own steps: a row for each unit of work that its worker was answered.
            let units = end * plan.shares() as u64;
            return assert!(all as u64 <= units, "U2: {all} rows of {units} units");
        }
        assert!(steps.iter().copied().eq(1..=end), "U2: steps are missing: {steps:?} of {end}");
    }
}

/// Files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}
