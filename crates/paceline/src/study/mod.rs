//! Studies of real runs: a study file becomes a schedule, each run is a child process, and every step is in the
//! journal before anybody acts on it.
//!
//! - [`workload`]: what one run is: how it is started, its checks, its figures; [`document`]: what it is told
//! - [`state`]: the study in the store
//! - [`drive`]: making the runs
//! - [`report`]: what came of them; [`table`]: the same as the input of an analysis; [`group`]: as the live page shows it
//! - [`export`]: for other tools
//! - [`predict`]: what they would take, in virtual time; [`prior`]: samplers that begin with that

pub mod document;
pub mod drive;
pub mod export;
pub mod group;
pub mod predict;
pub mod prior;
pub mod report;
pub mod state;
pub mod table;
pub mod workload;

use std::collections::HashSet;
use std::path::Path;

use paceline_explore::schedule::{ScheduleRules, StudySchedule};
use paceline_explore::{Prior, Problem};
use paceline_plan::{Study, StudyError};
use paceline_record::figures::Figures;
use paceline_record::store::FILE;
use paceline_record::{RecordError, Store};

use crate::failure::Failure;
use paceline_record::FailureKind;

/// Reads a study file and checks all that can be checked without running anything.
pub fn read(path: &Path) -> Result<Study, Failure> {
    let text = paceline_files::open_or_pipe(path)
        .and_then(std::io::read_to_string)
        .map_err(|error| Failure::study_file(path, &error))?;
    let stem = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    let figures = Figures::default();
    let study = workload::renamed(Study::read(&path.display().to_string(), &stem, &text)?, &figures);
    workload::check(&study, &figures)?;
    schedule(&study, 0)?;
    Ok(study)
}

/// Whether the store still has every run that the study's journal names.
pub fn check_records(known: &state::StudyHistory, store: &Path) -> Result<(), Failure> {
    let named: Vec<&String> = known.runs.iter().flatten().collect();
    let there: HashSet<String> = match Store::open(store).and_then(|store| store.runs()) {
        Ok(runs) => runs.into_iter().map(|run| run.run).collect(),
        Err(RecordError::Empty { .. }) => HashSet::new(),
        Err(error) => return Err(error.into()),
    };
    let missing = named.iter().filter(|run| !there.contains(**run)).count();
    if missing == 0 {
        return Ok(());
    }
    let message = format!(
        "{missing} of {} runs of the study are not recorded in {}: it was deleted or replaced",
        named.len(),
        store.join(FILE).display()
    );
    Err(Failure::new(
        FailureKind::Storage,
        message,
        "the figures of all runs are in the study's journal".into(),
    ))
}

/// What samplers are asked.
pub fn problem(study: &Study) -> Problem {
    Problem {
        space: study.space.clone(),
        objectives: study.objectives.clone(),
        limits: study.outcomes.iter().map(|(_, condition)| condition.clone()).collect(),
        seed: study.seed,
        budget: None,
        duplicates: false,
        prior: None,
        joins: Figures::default().joins(),
    }
}

/// The study's schedule, with runs added to its budget.
pub fn schedule(study: &Study, added: u64) -> Result<StudySchedule, StudyError> {
    schedule_expecting(study, added, None)
}

/// The same, with what is expected of points before any is run.
pub fn schedule_expecting(
    study: &Study,
    added: u64,
    prior: Option<Prior>,
) -> Result<StudySchedule, StudyError> {
    let rules = ScheduleRules {
        sampler: study.sampler.clone(),
        runs: study.runs.map(|runs| runs + added),
        repeats: study.repeats,
        max_repeats: study.max_repeats,
        control_every: study.control_every,
        baseline: workload::needs_baseline(study),
    };
    let problem = Problem { prior, ..problem(study) };
    StudySchedule::new(&problem, rules).map_err(|error| study.source.error("sampler", error.0))
}
