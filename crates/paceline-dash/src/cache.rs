//! What is in the store now. Only what may have changed is read again, and each thing once for all who look.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use paceline_record::figures::Figures;
use paceline_record::store::{FILE, RunRow};
use paceline_record::{RecordError, Store};

use crate::group::{Group, RunSettings, Studies, StudyOverview, settings};

/// Runs that wrote so long before the latest are looked at again: several write at once.
const OVERLAP_S: f64 = 30.0;

/// Between two looks for runs that have died.
const NOTE: Duration = Duration::from_secs(2);

/// All runs, the latest last.
pub type Runs = Arc<Vec<Arc<RunRow>>>;

pub struct StoreCache {
    folder: PathBuf,
    studies: Box<dyn Studies>,
    /// What runs are compared by.
    pub figures: Figures,
    kept: Mutex<CacheState>,
    reading: Mutex<()>,
}

#[derive(Default)]
struct CacheState {
    /// The open database, and which file it was.
    store: Option<(Store, u64)>,
    version: Option<i64>,
    /// When it was last looked for runs that have died.
    noted: Option<Instant>,
    changes: u64,
    runs: BTreeMap<i64, Arc<RunRow>>,
    listed: Runs,
    /// By run: they never change, and a plan takes long to read.
    settings: HashMap<i64, RunSettings>,
    /// All runs as a group, and of which change.
    group: Option<(u64, Arc<Group>)>,
    studies: HashMap<String, (u64, Result<Arc<StudyOverview>, String>)>,
}

impl CacheState {
    /// Opens the database if it is not open, or if it is another one by now.
    fn open(&mut self, folder: &Path) -> Result<(), RecordError> {
        let file = folder.join(FILE).metadata().map(|m| m.ino()).unwrap_or(0);
        if self.store.as_ref().is_none_or(|(_, opened)| *opened != file) {
            let changes = self.changes + 1;
            *self = Self { changes, studies: std::mem::take(&mut self.studies), ..Self::default() };
            self.store = Some((Store::open(folder)?, file));
        }
        Ok(())
    }

    /// Whether anything has changed since the last look; then what has is read.
    fn look(&mut self, folder: &Path) -> Result<(), RecordError> {
        self.open(folder)?;
        let running: Vec<i64> =
            self.runs.values().filter(|run| run.state == "running").map(|run| run.id).collect();
        let Some((store, _)) = &mut self.store else { return Ok(()) };
        let due = !running.is_empty() && self.noted.is_none_or(|last| last.elapsed() > NOTE);
        let lost = if due { store.note_the_lost()? } else { 0 };
        if due {
            self.noted = Some(Instant::now());
        }
        let version = store.version()?;
        if self.version == Some(version) && lost == 0 {
            return Ok(());
        }
        let latest = self.runs.values().map(|run| run.seen_s).fold(f64::NEG_INFINITY, f64::max);
        let fresh = if self.version.is_some() {
            store.runs_since(latest - OVERLAP_S, &running)?
        } else {
            store.runs()?
        };
        self.version = Some(version);
        self.changes += 1;
        // Runs may have been deleted, and their numbers given to others.
        let there = store.ids()?;
        self.runs.retain(|id, _| there.contains(id));
        for run in fresh {
            let other = self.runs.get(&run.id).is_none_or(|known| known.run != run.run);
            other.then(|| self.settings.remove(&run.id));
            self.runs.insert(run.id, Arc::new(run));
        }
        self.listed = Arc::new(self.runs.values().cloned().collect());
        Ok(())
    }
}

impl StoreCache {
    /// Of a folder that may become a store yet.
    pub fn new(folder: PathBuf, studies: Box<dyn Studies>, figures: Figures) -> Self {
        Self { folder, studies, figures, kept: Mutex::default(), reading: Mutex::default() }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn kept(&self) -> MutexGuard<'_, CacheState> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All runs; none where there is no store yet.
    pub fn runs(&self) -> Result<Runs, RecordError> {
        let mut kept = self.kept();
        match kept.look(&self.folder) {
            Ok(()) => Ok(Arc::clone(&kept.listed)),
            Err(RecordError::Empty { .. }) => Ok(Runs::default()),
            Err(error) => Err(error),
        }
    }

    pub fn group(&self) -> Result<Arc<Group>, RecordError> {
        let runs = self.runs()?;
        let mut kept = self.kept();
        let changes = kept.changes;
        if let Some((of, group)) = &kept.group
            && *of == changes
        {
            return Ok(Arc::clone(group));
        }
        let known = &mut kept.settings;
        let own = |run: &Arc<RunRow>| {
            (Arc::clone(run), Arc::clone(known.entry(run.id).or_insert_with(|| settings(run))))
        };
        let rows: Vec<(Arc<RunRow>, RunSettings)> = runs.iter().map(own).collect();
        let group = Arc::new(Group::recorded(&rows, &self.figures));
        kept.group = Some((changes, Arc::clone(&group)));
        Ok(group)
    }

    pub fn studies(&self) -> Vec<String> {
        self.studies.names()
    }

    /// A study; otherwise why there is none.
    pub fn study(&self, name: &str) -> Result<Arc<StudyOverview>, String> {
        if !self.studies.names().iter().any(|known| known == name) {
            return Err(format!("there is no study {name} in this store"));
        }
        let stamp = self.studies.stamp(name);
        // Whoever comes while it is read waits for it, instead of reading it too.
        let _reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, study)) = self.kept().studies.get(name)
            && *of == stamp
        {
            return study.clone();
        }
        let study = self.studies.read(name).map(Arc::new);
        self.kept().studies.insert(name.to_owned(), (stamp, study.clone()));
        study
    }

    /// Reads everything once, so that pages find it.
    pub fn warm(&self) {
        // What cannot be read is told by the page that needs it.
        let _ = self.group();
        self.studies().iter().for_each(|name| drop(self.study(name)));
    }

    /// A number that is another one once anything has changed.
    pub fn stamp(&self) -> u64 {
        // A store that cannot be read now may be readable the next time; pages say why.
        let runs = self.kept().look(&self.folder).is_ok();
        let stamped = |name: String| (self.studies.stamp(&name), name);
        let studies: Vec<(u64, String)> = self.studies.names().into_iter().map(stamped).collect();
        crate::group::stamp(&(runs, self.kept().changes, studies))
    }

    /// The store, opened for reading what a run left.
    pub fn open(&self) -> Result<Store, RecordError> {
        Store::open(&self.folder)
    }
}
