//! What must hold after any round.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use paceline_record::store::{RunRow, Value as Cell};
use paceline_record::{Checkpoints, Store};
use serde_json::Value;

use crate::scene::{Running, Scene, files};

/// U4: the error names role, rank, step, cause, and says what to do.
pub fn names(errors: &str, role: &str, rank: usize) {
    for word in [&format!("{role} {rank}"), "step", "hint:"] {
        assert!(errors.contains(word), "U4: no {word:?} in {errors}");
    }
}

fn only(store: &Store) -> RunRow {
    let runs = store.runs().unwrap();
    assert_eq!(runs.len(), 1, "a run that goes on stays one run");
    runs.into_iter().next().expect("it is one")
}

/// U1, U2, U3, U5, U6, when the program has ended.
pub fn after(scene: &Scene, run: &Running, state: &str) {
    let since = Instant::now();
    while !scene.processes().is_empty() {
        assert!(since.elapsed() < Duration::from_secs(5), "U1: {:?} are left", scene.processes());
        std::thread::sleep(Duration::from_millis(10));
    }
    let store = Store::open(scene.store.path()).unwrap();
    store.check().unwrap_or_else(|e| panic!("U6: {e}"));
    let row = only(&store);
    assert_eq!(row.state, state, "U3: {:?}", row.error);
    assert_eq!(row.state == "ok", row.result.is_some(), "U3");
    if row.state == "ok" {
        assert_eq!(Some(row.steps_done), row.steps, "U3: never ok with steps missing");
    }

    // U2: what was told is stored, each as often as it was told.
    let mut stored: BTreeMap<String, i64> = BTreeMap::new();
    let events = store.rows("events", &row).unwrap();
    let at = events.column("event");
    for row in &events.rows {
        let Cell::Text(text) = &row[at] else { panic!("an event is text") };
        let event: Value = serde_json::from_str(text).unwrap();
        *stored.entry(event.to_string()).or_default() += 1;
    }
    for event in run.events() {
        if event["type"] != "progress" {
            let left = stored.entry(event.to_string()).or_default();
            *left -= 1;
            assert!(*left >= 0, "U2: {event} was told and is not stored");
        }
    }
    let steps = store.rows("steps", &row).unwrap();
    for rank in 0..scene.workers {
        let own: Vec<u64> = steps
            .numbers("rank")
            .iter()
            .zip(steps.numbers("step"))
            .filter(|(r, _)| **r == Some(rank as f64))
            .filter_map(|(_, step)| step.map(|s| s as u64))
            .collect();
        let whole = own.iter().copied().eq(1..=own.len() as u64);
        assert!(row.dropped_rows > 0 || whole, "U2: steps of rank {rank} are missing: {own:?}");
    }

    // U5: the store, its log, checkpoints; and what a killed launcher was about to write.
    let unexpected = |path: &std::path::PathBuf| {
        let text = path.strip_prefix(scene.store.path()).unwrap().display().to_string();
        let own = ["paceline.db", "first.", "second."].iter().any(|name| text.starts_with(name));
        let draft = text.contains("/.step-") && state == "lost";
        !own && !text.contains("/checkpoints/step-") && !draft
    };
    let left: Vec<_> = files(scene.store.path()).into_iter().filter(unexpected).collect();
    assert!(left.is_empty(), "U5: {left:?}");

    // U6: every checkpoint that is there is whole.
    let plan = row.plan.expect("its plan can be read");
    let folder = scene.store.path().join("runs").join(&row.run);
    let (_, damaged) = Checkpoints::of(&folder).latest(&plan.hash()).unwrap();
    let touched = damaged.iter().all(|d| d.problem.contains("rank-")) && state == "ok";
    assert!(damaged.is_empty() || touched, "U6: {damaged:?}");
}

/// A run that has ended well has done exactly what the plan says, and the same as one that was left alone.
pub fn finished(scene: &Scene, result: &Value) {
    assert_eq!(result["type"], "result", "{result}");
    assert_eq!(result["samples"].as_u64(), Some(scene.samples()), "samples");
    if !scene.exact {
        return;
    }
    let plain = tempfile::tempdir().unwrap();
    let words = format!("train --quiet {}", scene.words);
    let out = std::process::Command::new(env!("CARGO_BIN_EXE_paceline"))
        .args(words.split_whitespace())
        .arg("--store")
        .arg(plain.path())
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).unwrap();
    let alone: Value = serde_json::from_str(text.lines().last().unwrap_or_default()).unwrap();
    for key in ["steps", "samples", "train_loss", "final_loss", "final_accuracy", "params_sha256"] {
        assert_eq!(result[key], alone[key], "{key} differs from a run that was left alone");
    }
}

/// Goes on with the run; it ends as if nothing had happened, having done exactly the steps that were missing. What it
/// must have said on the way, in words of standard error.
pub fn resumed(scene: &Scene, said: &str) -> String {
    let (run, code) = scene.resume();
    assert_eq!(code, 0, "going on: {}", run.errors());
    assert!(run.errors().contains(said), "going on, {said:?} was not said: {}", run.errors());
    after(scene, &run, "ok");
    finished(scene, run.events().last().expect("a result"));
    let from: u64 = run
        .errors()
        .split("after step ")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .expect("it says where it goes on");
    if scene.exact {
        let store = Store::open(scene.store.path()).unwrap();
        let row = only(&store);
        let again = store
            .numbers("SELECT count(*), min(step) FROM steps WHERE run = ? AND attempt = 2 AND rank = 0", &row)
            .unwrap();
        let left = scene.steps() - from;
        assert!(left > 0, "something is left to do");
        assert_eq!(again[0], [left as f64, from as f64 + 1.0], "exactly the steps that were missing");
    }
    format!("it went on after step {from} and ended exactly")
}
