//! A run's folder in the store: `runs/<id>/` with `plan.json`, `events.ndjson` and, once the run has ended
//! well, `result.json`. A run without a result did not end well.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use paceline_plan::Plan;

use crate::event::{Event, Marked, Origin, RunResult};

/// A record that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct RecordError {
    /// The file or folder.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// The folder of a run under way.
#[derive(Debug)]
pub struct RunDirectory {
    path: PathBuf,
    origin: Origin,
    events: BufWriter<File>,
    /// The first event that could not be written; the run goes on without a record.
    failed: Option<RecordError>,
}

impl RunDirectory {
    /// Makes the folder and writes the plan.
    pub fn create(store: &Path, run: &str, plan: &Plan) -> Result<Self, RecordError> {
        let path = store.join("runs").join(run);
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| RecordError { path, source }
        };
        fs::create_dir_all(&path).map_err(at(&path))?;
        let plan_file = path.join("plan.json");
        let text = serde_json::to_string_pretty(plan).expect("a plan is plain data");
        fs::write(&plan_file, text + "\n").map_err(at(&plan_file))?;
        let events = path.join("events.ndjson");
        let events = BufWriter::new(File::create(&events).map_err(at(&events))?);
        Ok(Self { path, origin: Origin::Measured, events, failed: None })
    }

    /// Marks everything that follows as simulated.
    pub fn simulated(self) -> Self {
        Self { origin: Origin::Simulated, ..self }
    }

    /// Opens the folder of a run that goes on: its events are added to.
    pub fn reopen(store: &Path, run: &str) -> Result<Self, RecordError> {
        let path = store.join("runs").join(run);
        let events = path.join("events.ndjson");
        let failed = |source| RecordError { path: events.clone(), source };
        let file = File::options().append(true).create(true).open(&events).map_err(failed)?;
        Ok(Self { path, origin: Origin::Measured, events: BufWriter::new(file), failed: None })
    }

    /// A run by its id, the beginning of it, or `last`: its id, its plan, and its result if it has ended well.
    pub fn find(store: &Path, name: &str) -> Result<(String, Plan, Option<serde_json::Value>), RecordError> {
        let runs = store.join("runs");
        let wrong = |problem: String| RecordError { path: runs.clone(), source: io::Error::other(problem) };
        let mut ids = Vec::new();
        for entry in fs::read_dir(&runs).map_err(|source| RecordError { path: runs.clone(), source })? {
            let entry = entry.map_err(|source| RecordError { path: runs.clone(), source })?;
            let id = entry.file_name().to_string_lossy().into_owned();
            if entry.path().join("plan.json").is_file() && (name == "last" || id.starts_with(name)) {
                let made = entry.metadata().and_then(|m| m.created().or_else(|_| m.modified())).ok();
                ids.push((made, id));
            }
        }
        ids.sort();
        if let Some(exact) = ids.iter().position(|(_, id)| id == name) {
            ids = vec![ids.swap_remove(exact)];
        }
        if ids.len() > 1 && name != "last" {
            let all: Vec<_> = ids.into_iter().map(|(_, id)| id).collect();
            return Err(wrong(format!("{name} may be any of {}", all.join(", "))));
        }
        let (_, id) = ids.pop().ok_or_else(|| wrong(format!("there is no run {name}")))?;
        let read = |file: &str| {
            let path = runs.join(&id).join(file);
            fs::read_to_string(&path).map_err(|source| RecordError { path, source })
        };
        let plan = serde_json::from_str(&read("plan.json")?)
            .map_err(|e| wrong(format!("{id}/plan.json: {e}; was it made by another version?")))?;
        let result = read("result.json").ok().and_then(|text| serde_json::from_str(&text).ok());
        Ok((id, plan, result))
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds an event. What everybody waits for is written through at once.
    pub fn event(&mut self, event: &Event<'_>) {
        if self.failed.is_some() {
            return;
        }
        let line = serde_json::to_string(&self.marked(event)).expect("an event is plain data") + "\n";
        let mut written = self.events.write_all(line.as_bytes());
        if !matches!(event, Event::Progress { .. }) {
            written = written.and_then(|()| self.events.flush());
        }
        if let Err(source) = written {
            self.failed = Some(RecordError { path: self.path.join("events.ndjson"), source });
        }
    }

    fn marked<'a, T: serde::Serialize>(&self, what: &'a T) -> Marked<'a, T> {
        Marked { what, origin: self.origin }
    }

    /// Writes the result: under another name first, so that a result is whole or not there.
    pub fn finish(mut self, result: &RunResult) -> Result<(), RecordError> {
        self.event(&Event::Result(result.clone()));
        let text = serde_json::to_string_pretty(&self.marked(result)).expect("a result is plain data");
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        let (path, draft) = (self.path.join("result.json"), self.path.join("result.json.tmp"));
        let write = || {
            let mut file = File::create(&draft)?;
            file.write_all((text + "\n").as_bytes())?;
            file.sync_all()?;
            fs::rename(&draft, &path)
        };
        write().map_err(|source| RecordError { path: path.clone(), source })
    }
}
