//! Studies of real runs: a study file becomes a schedule, each run is a child process, and every step is in the
//! journal before anybody acts on it.
//!
//! # Layout
//! - `acting`: where axes can act
//! - `workload`: what one run is: how it is started, its checks; `document`: what it is told; `reader`: its figures
//! - `state`: the study in the store
//! - `prepare`: what comes before the first run; `drive`: making the runs; `lanes`: where
//! - `outline`: what would be run
//! - `report`: what came of them; `table`: the same as the input of an analysis, `traits`: what its workloads are;
//!   `group`: as the live page shows it
//! - `script_file`: a study file to start from, for a script; `peers`: one of other systems beside ours, with their programs
//! - `members`: which study a recorded run belongs to
//! - `method`: how they were made, for the report
//! - `export`: for other tools
//! - `registries`: whatever runs and studies can name
//! - `overhead`: what recording costs, by pairs of runs
//! - `calibrate`: the passes of their points, measured for that
//! - `predict`: what they would take, in virtual time; `recorded_scripts`: what is known of scripts; `prior`: samplers that begin with that
//!
//! # Deliberately absent
//! Command lines, terminals, training: a run is the program that calls this library, started again.

#![forbid(unsafe_code)]

mod acting;
mod calibrate;
mod document;
mod drive;
mod error;
mod export;
mod group;
mod lanes;
mod members;
mod method;
mod outline;
mod overhead;
mod peers;
mod predict;
mod prepare;
mod prior;
mod reader;
mod recorded_scripts;
mod registries;
mod report;
mod script_file;
mod state;
mod table;
#[cfg(test)]
mod tests;
mod traits;
mod workload;

pub use calibrate::{CalibrationRequest, CalibrationSummary, complete_calibration};
pub use document::{TrialDocument, TrialMeeting, TrialTask};
pub use drive::{StudyEvent, StudyObserver, drive, node_words};
pub use error::StudyFailure;
pub use export::{StudySheet, ranks, run_folders, runs};
pub use group::StudyStore;
pub use lanes::Places;
pub use members::name_studies;
pub use method::{described, method};
pub use outline::{StudyOutline, probe};
pub use overhead::{OverheadPair, OverheadRequest, RecordingOverhead};
pub use paceline_analyze::chart::duration;
pub use peers::{Peer, PeerStudy, peer_study};
pub use predict::{
    MetricComparison, PointPrediction, all_points, compare, document as prediction_document, measured_points,
    predictions, words as prediction_words,
};
pub use prepare::prepare;
pub use prior::{calibration, calibration_file};
pub use recorded_scripts::script_costs;
pub use registries::{AllRegistries, Registrable};
pub use report::Findings;
pub use script_file::{ScriptStudy, script_study};
pub use state::{StudyHistory, StudyState, journal, names};
pub use table::table;
pub use workload::{check, needs_folder, notes};

use std::collections::HashSet;
use std::path::Path;

use paceline_explore::schedule::{ScheduleRules, WorkloadSchedule};
use paceline_explore::{Prior, Problem, StudySchedule};
use paceline_plan::study::PointsFile;
use paceline_plan::{Study, StudyError};
use paceline_record::figures::{FigureKind, Figures};
use paceline_record::{RecordError, Store};

/// Reads a study file and checks all that can be checked without running anything.
pub fn read(path: &Path, registries: &AllRegistries) -> Result<Study, StudyFailure> {
    let (study, mistakes) = read_with_mistakes(path, registries)?;
    match (study, mistakes.into_iter().next()) {
        (Some(study), None) => Ok(study),
        (_, first) => Err(first.expect("what is no study has a mistake").into()),
    }
}

/// Reads a study file as far as it can be, and finds every mistake that can be found without running anything, from
/// its first line to its last.
pub fn read_with_mistakes(
    path: &Path,
    registries: &AllRegistries,
) -> Result<(Option<Study>, Vec<StudyError>), StudyFailure> {
    let text = paceline_files::open_or_pipe(path)
        .and_then(std::io::read_to_string)
        .map_err(|source| StudyFailure::File { path: path.into(), source })?;
    let stem = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    let (study, mut mistakes) = Study::read_with_mistakes(&path.display().to_string(), &stem, &text);
    let study = study.map(|study| prepared(study, registries));
    if let Some(study) = &study {
        mistakes.extend(workload::mistakes(study, registries));
        if mistakes.is_empty() {
            mistakes.extend(schedule(study, registries, 0).err());
        }
    }
    mistakes.sort_by_key(|mistake| mistake.line);
    Ok((study, mistakes))
}

/// Reads the text of a study file: figures under the names that they have now, axes only there where they can act.
pub fn parse(file: &str, stem: &str, text: &str, registries: &AllRegistries) -> Result<Study, StudyError> {
    Ok(prepared(Study::read(file, stem, text)?, registries))
}

fn prepared(study: Study, registries: &AllRegistries) -> Study {
    acting::collapsed(workload::renamed(study, &registries.figures), registries)
}

/// The study of each workload alone.
pub(crate) fn parts(study: &Study, registries: &AllRegistries) -> Vec<Study> {
    match study.workloads.is_empty() {
        true => vec![study.clone()],
        false => study.parts().into_iter().map(|part| acting::collapsed(part, registries)).collect(),
    }
}

/// The name of the study that `text` stands for: a study file's, or one that is in the store.
pub fn find(store: &Path, text: &str, registries: &AllRegistries) -> Result<Option<String>, StudyFailure> {
    let path = Path::new(text);
    if path.extension().is_some_and(|e| e == "toml") && path.is_file() {
        return Ok(Some(read(path, registries)?.name));
    }
    Ok(names(store).into_iter().find(|name| name == text))
}

/// The same; it is an error if there is none.
pub fn find_or_fail(store: &Path, text: &str, registries: &AllRegistries) -> Result<String, StudyFailure> {
    find(store, text, registries)?
        .ok_or_else(|| StudyFailure::Missing { store: store.into(), name: text.into() })
}

/// Whether the store still has every run that the study's journal names.
pub fn check_records(known: &StudyHistory, store: &Path) -> Result<(), StudyFailure> {
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
    Err(StudyFailure::Unrecorded { missing, named: named.len(), store: store.into() })
}

pub(crate) fn problem(study: &Study, figures: &Figures) -> Problem {
    Problem {
        space: study.space.clone(),
        objectives: study.objectives.clone(),
        limits: study.outcomes.iter().map(|(_, condition)| condition.clone()).collect(),
        seed: study.seed,
        budget: None,
        duplicates: false,
        prior: None,
        joins: figures.joins(),
        clock: clock(study, figures).map(str::to_owned),
    }
}

/// The figure that says how long a run was given, where the first objective is a time that it may not reach.
pub(crate) fn clock(study: &Study, figures: &Figures) -> Option<&'static str> {
    let train = matches!(study.workload, paceline_plan::Workload::Train(_));
    let objective = study.objectives.first().filter(|o| train && o.goal == paceline_plan::Goal::Minimize)?;
    (figures.kind(&objective.metric) == FigureKind::Clock).then_some("seconds.train")
}

/// The study's schedule, with runs added to its budget.
pub fn schedule(study: &Study, registries: &AllRegistries, added: u64) -> Result<StudySchedule, StudyError> {
    schedule_expecting(study, registries, added, None)
}

/// The same, with what is expected of points before any is run.
pub(crate) fn schedule_expecting(
    study: &Study,
    registries: &AllRegistries,
    added: u64,
    prior: Option<Prior>,
) -> Result<StudySchedule, StudyError> {
    let parts = parts(study, registries);
    // A study's runs are those of all workloads.
    let share = |runs: u64, i: u64| (runs + parts.len() as u64 - 1 - i) / parts.len() as u64;
    let rules = |i: usize, baseline: bool| ScheduleRules {
        sampler: study.sampler.clone(),
        runs: study.runs.map(|runs| share(runs + added, i as u64)),
        repeats: study.repeats,
        max_repeats: study.max_repeats,
        control_every: study.control_every,
        baseline,
    };
    let schedule = |problem: Problem, rules: ScheduleRules| {
        WorkloadSchedule::new(&problem, rules, &registries.samplers)
            .map_err(|error| study.source.error("sampler", error.0))
    };
    let baseline = parts.iter().any(workload::needs_baseline);
    let whole = Problem { prior, ..problem(study, &registries.figures) };
    let names = || study.workloads.iter().map(|one| one.name.clone());
    match study.points {
        _ if study.workloads.is_empty() => Ok(StudySchedule::one(schedule(whole, rules(0, baseline))?)),
        PointsFile::Paired => {
            Ok(StudySchedule::paired(names().collect(), schedule(whole, rules(0, baseline))?))
        }
        PointsFile::Own => {
            let own = |(i, part): (usize, &Study)| {
                // Samplers that do not learn take other points too.
                let seed = study.seed.wrapping_add(i as u64);
                let problem = Problem { seed, ..problem(part, &registries.figures) };
                schedule(problem, rules(i, workload::needs_baseline(part)))
            };
            let all: Result<Vec<_>, StudyError> = parts.iter().enumerate().map(own).collect();
            Ok(StudySchedule::own(names().zip(all?).collect()))
        }
    }
}
