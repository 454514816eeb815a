//! A comparison in the store: `comparisons/<name>/journal.ndjson`. What is done next, and the page, follow from it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use paceline_record::Journal;
use serde::{Deserialize, Serialize};

use crate::budget::Extent;
use crate::cell::ComparedCell;
use crate::error::CompareFailure;
use crate::execute::RunFigures;
use crate::request::ComparisonDocument;

/// What tells a run from all others of its comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct RunKey {
    pub cell: ComparedCell,
    pub contender: usize,
    pub variant: usize,
    /// Place of the learning rate on the ladder.
    pub rate: i32,
    pub seed: u64,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub enum ComparedEnd {
    Ok { figures: RunFigures },
    Diverged,
    Failed { cause: String },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "entry", rename_all = "kebab-case")]
enum Entry {
    Comparison {
        document: Box<ComparisonDocument>,
        version: String,
    },
    /// A process begins to work on it, or goes on.
    Session,
    /// How much is done follows from how long the first runs took.
    Extent {
        extent: Extent,
    },
    Run {
        key: RunKey,
        end: ComparedEnd,
        wall_s: f64,
        /// The command line that makes it again, and the id of its record where it has one.
        command: Option<String>,
        run: Option<String>,
    },
    /// Nothing is left to do.
    Finish,
}

#[derive(Serialize, Deserialize)]
struct Timed {
    at_ms: u64,
    #[serde(flatten)]
    entry: Entry,
}

/// A run that has ended.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub(crate) struct EndedRun {
    pub end: ComparedEnd,
    pub wall_s: f64,
    pub command: Option<String>,
    pub run: Option<String>,
}

/// What is known of a comparison.
#[derive(Clone, Debug)]
pub struct ComparisonHistory {
    /// What is compared, and where.
    pub document: ComparisonDocument,
    /// The version of the program that began it.
    pub version: String,
    pub(crate) extent: Option<Extent>,
    pub(crate) runs: BTreeMap<RunKey, EndedRun>,
    /// Whether nothing is left to do.
    pub finished: bool,
    /// Seconds that processes have worked on it.
    pub spent_s: f64,
    last_ms: u64,
}

impl ComparisonHistory {
    fn new(document: ComparisonDocument, version: String) -> Self {
        Self {
            document,
            version,
            extent: None,
            runs: BTreeMap::new(),
            finished: false,
            spent_s: 0.0,
            last_ms: 0,
        }
    }

    fn take(&mut self, Timed { at_ms, entry }: Timed) {
        // Between two sessions nobody works on it.
        if !matches!(entry, Entry::Comparison { .. } | Entry::Session) {
            self.spent_s += 1e-3 * at_ms.saturating_sub(self.last_ms) as f64;
        }
        self.last_ms = at_ms;
        match entry {
            Entry::Comparison { .. } | Entry::Session => {}
            Entry::Extent { extent } => self.extent = Some(extent),
            Entry::Run { key, end, wall_s, command, run } => {
                self.runs.insert(key, EndedRun { end, wall_s, command, run });
            }
            Entry::Finish => self.finished = true,
        }
    }

    fn from(entries: Vec<serde_json::Value>, path: &Path) -> Result<Option<Self>, CompareFailure> {
        let damaged = |why: String| CompareFailure::Damaged { path: path.into(), why };
        let mut known: Option<Self> = None;
        for entry in entries {
            let timed: Timed = serde_json::from_value(entry).map_err(|error| damaged(error.to_string()))?;
            if let Entry::Comparison { document, version } = &timed.entry {
                known = Some(Self::new((**document).clone(), version.clone()));
            }
            known.as_mut().ok_or_else(|| damaged("it does not begin with a comparison".into()))?.take(timed);
        }
        Ok(known)
    }

    /// Reads a comparison that somebody may be working on.
    pub fn read(folder: &Path) -> Result<Self, CompareFailure> {
        let path = journal(folder);
        let known = Self::from(Journal::peek(&path)?, &path)?;
        known.ok_or_else(|| CompareFailure::Damaged { path, why: "it is empty".into() })
    }

    /// How a run ended, if it has.
    pub fn end(&self, key: &RunKey) -> Option<&ComparedEnd> {
        self.runs.get(key).map(|run| &run.end)
    }

    /// Runs that failed, with why.
    pub(crate) fn failed(&self) -> impl Iterator<Item = (&RunKey, &str)> {
        self.runs.iter().filter_map(|(key, run)| match &run.end {
            ComparedEnd::Failed { cause } => Some((key, cause.as_str())),
            _ => None,
        })
    }
}

fn journal(folder: &Path) -> PathBuf {
    folder.join("journal.ndjson")
}

/// A comparison that this process works on.
pub struct ComparisonState {
    /// What is known.
    pub known: ComparisonHistory,
    journal: Journal,
}

impl ComparisonState {
    /// Begins a comparison, or goes on with it.
    pub fn open(folder: &Path, document: &ComparisonDocument) -> Result<Self, CompareFailure> {
        let path = journal(folder);
        let (journal, entries) = Journal::open(&path)?;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        match ComparisonHistory::from(entries, &path)? {
            Some(known) => Ok(Self { known, journal }),
            None => {
                let known = ComparisonHistory::new(document.clone(), version.clone());
                let mut state = Self { known, journal };
                state.write(Entry::Comparison { document: Box::new(document.clone()), version })?;
                Ok(state)
            }
        }
    }

    fn write(&mut self, entry: Entry) -> Result<(), CompareFailure> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        // A clock that was set back does not give time back.
        let timed = Timed { at_ms: now.max(self.known.last_ms), entry };
        self.journal.append(&timed)?;
        self.known.take(timed);
        Ok(())
    }

    pub(crate) fn session(&mut self) -> Result<(), CompareFailure> {
        self.write(Entry::Session)
    }

    pub(crate) fn extent(&mut self, extent: Extent) -> Result<(), CompareFailure> {
        self.write(Entry::Extent { extent })
    }

    pub(crate) fn run(&mut self, key: RunKey, ended: EndedRun) -> Result<(), CompareFailure> {
        let EndedRun { end, wall_s, command, run } = ended;
        self.write(Entry::Run { key, end, wall_s, command, run })
    }

    pub(crate) fn finish(&mut self) -> Result<(), CompareFailure> {
        self.write(Entry::Finish)
    }
}
