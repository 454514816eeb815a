//! A study in the store: `studies/<name>/journal.ndjson`. Whatever happens to the process, the journal says which
//! runs were begun and how they ended; a run that was begun and did not end is made again under the same number.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use paceline_analyze::table::WORKLOAD;
use paceline_explore::schedule::{End, PlannedRun, StudyRun, observations};
use paceline_explore::{Observation, Prior};
use paceline_launch::Exit;
use paceline_launch::trial::Ended;
use paceline_plan::{Point, Study, Value};
use paceline_record::Journal;
use serde::{Deserialize, Serialize};

use crate::error::StudyFailure;
use crate::registries::AllRegistries;
use crate::workload;

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "entry", rename_all = "kebab-case")]
enum Entry {
    /// The study, whole: the file may change or go.
    Study {
        file: String,
        name: String,
        text: String,
        version: String,
        at_ms: u64,
    },
    /// A run begins, or begins again.
    Begin {
        job: PlannedRun,
        at_ms: u64,
    },
    End {
        id: u64,
        end: End,
        wall_s: f64,
        run: Option<String>,
        /// Older journals do not have it.
        #[serde(default)]
        exit: Option<Exit>,
        /// The node that made it, of a study over several.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<String>,
        at_ms: u64,
    },
    /// The node that was making a run is gone: the run is no worse for it, and begins again.
    NodeLost {
        id: u64,
        node: String,
        cause: String,
        at_ms: u64,
    },
    Budget {
        runs: u64,
        minutes: f64,
    },
    /// A run that failed is to be made again.
    Retry {
        id: u64,
    },
    /// What is expected of points before any is run: levels and the first objective.
    Prior {
        figures: Vec<(Vec<Option<u32>>, f64)>,
    },
    /// The study's minutes are over before its runs are.
    TimeOver {
        at_ms: u64,
    },
    /// Nothing is left to do.
    Finish {
        at_ms: u64,
    },
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// What is known about a study.
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct StudyHistory {
    pub study: Study,
    /// The study of each workload alone.
    parts: Vec<Study>,
    pub registries: AllRegistries,
    /// Its runs, in the order in which they began.
    pub made: Vec<StudyRun>,
    /// Ids of their records, by number.
    pub runs: Vec<Option<String>>,
    /// How their processes ended, by number; unknown in journals of older versions.
    pub exits: Vec<Option<Exit>>,
    /// Wall seconds of all runs that have ended.
    pub wall_s: f64,
    pub added: u64,
    pub added_minutes: f64,
    /// What is expected of points before any is run.
    pub prior: Option<Prior>,
    /// The version of the program that began it.
    pub version: String,
    /// From its beginning to the last thing that happened, in seconds since 1970.
    pub period_s: Option<(f64, f64)>,
    /// Whether nothing was left to do.
    pub finished: bool,
    /// Whether its minutes were over before its runs were.
    pub time_over: bool,
    /// How often a node was lost with a run under way, which then began again.
    pub nodes_lost: u64,
}

impl StudyHistory {
    pub(crate) fn new(study: Study, registries: AllRegistries) -> Self {
        Self {
            parts: crate::parts(&study, &registries),
            study,
            registries,
            made: Vec::new(),
            runs: Vec::new(),
            exits: Vec::new(),
            wall_s: 0.0,
            added: 0,
            added_minutes: 0.0,
            prior: None,
            version: env!("CARGO_PKG_VERSION").into(),
            period_s: None,
            finished: false,
            time_over: false,
            nodes_lost: 0,
        }
    }

    fn from(
        entries: Vec<serde_json::Value>,
        path: &Path,
        registries: &AllRegistries,
    ) -> Result<Self, StudyFailure> {
        let damaged = |why: &str| StudyFailure::damaged(path, why);
        let mut known: Option<Self> = None;
        for entry in entries {
            let at_s = entry["at_ms"].as_f64().map(|ms| 1e-3 * ms);
            let entry: Entry = serde_json::from_value(entry).map_err(|e| damaged(&e.to_string()))?;
            if let Entry::Study { file, name, text, version, .. } = &entry {
                let study = crate::parse(file, name, text, registries)?;
                known = Some(Self { version: version.clone(), ..Self::new(study, registries.clone()) });
            }
            let begun = known.as_mut().ok_or_else(|| damaged("it does not begin with a study"))?;
            begun.period_s =
                at_s.map(|at| (begun.period_s.map_or(at, |(first, _)| first), at)).or(begun.period_s);
            begun.take(entry).map_err(damaged)?;
        }
        known.ok_or_else(|| damaged("it is empty"))
    }

    fn take(&mut self, entry: Entry) -> Result<(), &'static str> {
        match entry {
            Entry::Study { .. } => {}
            Entry::Begin { job, .. } if self.of(&job).workload_name() != job.workload.as_deref() => {
                return Err("a run begins of a workload that the study does not have");
            }
            Entry::Begin { job, .. } => match self.made.get(job.id as usize) {
                None if job.id as usize == self.made.len() => {
                    self.made.push(StudyRun { job, end: None });
                    self.runs.push(None);
                    self.exits.push(None);
                    (self.finished, self.time_over) = (false, false);
                }
                Some(made) if made.job == job && made.end.is_none() => {}
                _ => return Err("a run begins that cannot"),
            },
            Entry::End { id, end, wall_s, run, exit, .. } => match self.made.get_mut(id as usize) {
                Some(made) if made.end.is_none() => {
                    made.end = Some(workload::renamed_end(&self.study, end, &self.registries.figures));
                    self.runs[id as usize] = run;
                    self.exits[id as usize] = exit;
                    self.wall_s += wall_s;
                }
                _ => return Err("a run ends that is not under way"),
            },
            Entry::NodeLost { id, .. } => match self.made.get(id as usize) {
                Some(made) if made.end.is_none() => self.nodes_lost += 1,
                _ => return Err("a node is lost with a run that is not under way"),
            },
            Entry::Budget { runs, minutes } => {
                self.added += runs;
                self.added_minutes += minutes;
                (self.finished, self.time_over) = (false, false);
            }
            Entry::Retry { id } => match self.made.get_mut(id as usize) {
                Some(made) => {
                    made.end = None;
                    self.finished = false;
                }
                None => return Err("a run is to be made again that never was"),
            },
            Entry::Prior { figures } => {
                let point = |(levels, figure)| (Point(levels), figure);
                self.prior = Some(Prior(figures.into_iter().map(point).collect()));
            }
            Entry::TimeOver { .. } => self.time_over = true,
            Entry::Finish { .. } => self.finished = true,
        }
        Ok(())
    }

    /// The study of the workload that a run is of.
    pub fn of(&self, job: &PlannedRun) -> &Study {
        let own = self.parts.iter().find(|part| part.workload_name() == job.workload.as_deref());
        own.unwrap_or(&self.study)
    }

    /// The levels of a run by name, its workload among them.
    pub fn levels(&self, job: &PlannedRun) -> BTreeMap<String, Value> {
        let own = job.workload.iter().map(|name| (WORKLOAD.to_owned(), Value::Text(name.clone())));
        workload::levels(self.of(job), job).into_iter().chain(own).collect()
    }

    /// What tells runs apart: their workload, where there are several, and the axes.
    pub fn factors(&self) -> Vec<String> {
        let several = self.parts.len() > 1;
        let axes = self.study.space.axes().iter().map(|axis| axis.name.clone());
        several.then(|| WORKLOAD.to_owned()).into_iter().chain(axes).collect()
    }

    /// Each workload alone with its runs.
    pub fn by_workload(&self) -> Vec<(&Study, Vec<StudyRun>)> {
        let own = |part: &Study| {
            let runs = self.made.iter().filter(|run| run.job.workload.as_deref() == part.workload_name());
            runs.cloned().collect()
        };
        self.parts.iter().map(|part| (part, own(part))).collect()
    }

    /// Different configurations that were begun, with the share of the work, of all workloads.
    pub fn observations(&self) -> Vec<Observation> {
        let of = |(part, made): (&Study, Vec<StudyRun>)| {
            observations(&crate::problem(part, &self.registries.figures), &made)
        };
        self.by_workload().into_iter().flat_map(of).collect()
    }

    /// Runs that have ended.
    pub fn ended(&self) -> u64 {
        self.made.iter().filter(|m| m.end.is_some()).count() as u64
    }

    /// Mean wall seconds of the runs that have ended.
    pub fn seconds_each(&self) -> f64 {
        self.wall_s / self.ended().max(1) as f64
    }

    /// Whether it is finished, running, out of time or interrupted; `busy`: a process is at work on it.
    pub fn phase(&self, busy: bool) -> &'static str {
        match (self.finished, busy) {
            (true, _) => "finished",
            (false, true) => "running",
            (false, false) if self.time_over => "out of time",
            (false, false) => "interrupted",
        }
    }

    /// How many runs there will be in all, as far as that can be said.
    pub fn expected(&self) -> u64 {
        let begun = self.made.len() as u64;
        let planned = crate::schedule(&self.study, &self.registries, self.added);
        // A finished study has all the runs that it will have.
        if self.finished { begun } else { planned.map_or(begun, |schedule| schedule.expected().max(begun)) }
    }

    /// Numbers of the runs that failed.
    pub fn failed(&self) -> Vec<u64> {
        let failed = |m: &&StudyRun| matches!(m.end, Some(End::Failed { .. } | End::Diverged { .. }));
        self.made.iter().filter(failed).map(|m| m.job.id).collect()
    }
}

/// A study that this process works on.
pub struct StudyState {
    /// What is known.
    pub known: StudyHistory,
    journal: Journal,
    folder: PathBuf,
}

/// The journal of a study.
pub fn journal(store: &Path, name: &str) -> PathBuf {
    store.join("studies").join(name).join("journal.ndjson")
}

fn existing(store: &Path, name: &str) -> Result<PathBuf, StudyFailure> {
    let missing = || StudyFailure::Missing { store: store.into(), name: name.into() };
    Some(journal(store, name)).filter(|path| path.is_file()).ok_or_else(missing)
}

/// The studies of a store, by name.
pub fn names(store: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(store.join("studies")).into_iter().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .filter(|name| journal(store, name).is_file())
        .collect();
    names.sort();
    names
}

impl StudyState {
    /// A new study; one of the same name must not be there.
    pub fn create(store: &Path, study: Study, registries: AllRegistries) -> Result<Self, StudyFailure> {
        let path = journal(store, &study.name);
        let (mut journal, entries) = Journal::open(&path)?;
        if !entries.is_empty() {
            let there = StudyHistory::from(entries, &path, &registries)?;
            let same = there.study.source.text == study.source.text;
            return Err(StudyFailure::Exists { name: study.name, finished: there.finished, same });
        }
        // Files that the study names lie beside it, wherever it is resumed from.
        let file = std::path::absolute(&study.source.file)?;
        journal.append(&Entry::Study {
            file: file.to_string_lossy().into_owned(),
            name: study.name.clone(),
            text: study.source.text.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            at_ms: now_ms(),
        })?;
        let folder = path.parent().unwrap_or(store).to_owned();
        Ok(Self { known: StudyHistory::new(study, registries), journal, folder })
    }

    /// A study that was begun.
    pub fn open(store: &Path, name: &str, registries: &AllRegistries) -> Result<Self, StudyFailure> {
        let path = existing(store, name)?;
        let (journal, entries) = Journal::open(&path)?;
        let known = StudyHistory::from(entries, &path, registries)?;
        let folder = path.parent().unwrap_or(store).to_owned();
        Ok(Self { known, journal, folder })
    }

    /// A look at a study that somebody may be working on.
    pub fn peek(store: &Path, name: &str, registries: &AllRegistries) -> Result<StudyHistory, StudyFailure> {
        let path = existing(store, name)?;
        StudyHistory::from(Journal::peek(&path)?, &path, registries)
    }

    /// Whether somebody is at work on a study.
    pub fn busy(store: &Path, name: &str) -> bool {
        Journal::busy(&journal(store, name))
    }

    /// Where samples of a run's process tree are kept.
    pub fn tree(&self, id: u64) -> PathBuf {
        self.folder.join("trees").join(format!("{id}.ndjson"))
    }

    /// Where nodes' runs leave what they have recorded, until it is in the store.
    pub(crate) fn incoming(&self) -> PathBuf {
        self.folder.join("incoming")
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn write(&mut self, entry: Entry) -> Result<(), StudyFailure> {
        self.journal.append(&entry)?;
        self.known.take(entry).map_err(|why| StudyFailure::damaged(&self.folder, why))
    }

    /// A run begins.
    pub fn begin(&mut self, job: &PlannedRun) -> Result<(), StudyFailure> {
        self.write(Entry::Begin { job: job.clone(), at_ms: now_ms() })
    }

    /// A run has ended.
    pub fn end(
        &mut self,
        id: u64,
        end: End,
        ended: &Ended,
        run: Option<String>,
        node: Option<String>,
    ) -> Result<(), StudyFailure> {
        let (wall_s, exit) = (ended.wall_s, Some(ended.exit));
        self.write(Entry::End { id, end, wall_s, run, exit, node, at_ms: now_ms() })
    }

    /// The node of a run is gone.
    pub fn node_lost(&mut self, id: u64, node: String, cause: String) -> Result<(), StudyFailure> {
        self.write(Entry::NodeLost { id, node, cause, at_ms: now_ms() })
    }

    /// Adds runs and minutes to the budget.
    pub fn add(&mut self, runs: u64, minutes: f64) -> Result<(), StudyFailure> {
        self.write(Entry::Budget { runs, minutes })
    }

    /// Makes a run again.
    pub fn retry(&mut self, id: u64) -> Result<(), StudyFailure> {
        self.write(Entry::Retry { id })
    }

    /// What is expected of points before any is run.
    pub fn expect(&mut self, Prior(figures): Prior) -> Result<(), StudyFailure> {
        let mut figures: Vec<_> =
            figures.into_iter().map(|(Point(levels), figure)| (levels, figure)).collect();
        figures.sort_by(|a, b| a.0.cmp(&b.0));
        self.write(Entry::Prior { figures })
    }

    /// Its minutes are over.
    pub fn time_over(&mut self) -> Result<(), StudyFailure> {
        self.write(Entry::TimeOver { at_ms: now_ms() })
    }

    /// Nothing is left to do.
    pub fn finish(&mut self) -> Result<(), StudyFailure> {
        self.write(Entry::Finish { at_ms: now_ms() })
    }
}
