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
