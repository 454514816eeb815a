//! A study's runs as the input of an analysis: its axes are the factors, its objectives the responses.

use paceline_analyze::StudyTable;
use paceline_analyze::table::{RawRun, Response};
use paceline_explore::schedule::{End, Role};

use crate::state::StudyHistory;
use crate::workload;

/// The objectives, as what is explained.
pub fn responses(known: &StudyHistory) -> Vec<Response> {
    let ended = |metric: &str| {
        let figure = |end: &Option<End>| match end {
            Some(End::Ok { metrics }) => metrics.get(metric).copied(),
            _ => None,
        };
        known.made.iter().filter_map(|made| figure(&made.end)).collect::<Vec<f64>>()
    };
    let objectives = known.study.objectives.iter();
    objectives
        .map(|objective| {
            // Times and rates differ by factors.
            let log = known.registries.figures.follows_pace(&objective.metric)
                && ended(&objective.metric).iter().all(|v| *v > 0.0);
            let (name, goal) = (objective.metric.clone(), objective.goal);
            Response { name, goal, ..Response::figure(&known.registries.figures, &objective.metric, log) }
        })
        .collect()
}

/// Runs of points are analysed, controls tell noise and drift; warm-ups, the baseline, shortened runs and those that
/// were ended early are left out.
pub fn table(known: &StudyHistory) -> StudyTable {
    let study = &known.study;
    let factors: Vec<String> = study.space.axes().iter().map(|axis| axis.name.clone()).collect();
    let responses = responses(known);
    let mut left_out = 0;
    let mut raw = Vec::new();
    for (made, run) in known.made.iter().zip(&known.runs) {
        let job = &made.job;
        let control = job.role == Role::Control;
        let Some(End::Ok { metrics }) = &made.end else {
            left_out += usize::from(job.role == Role::Point);
            continue;
        };
        if !(control || job.role == Role::Point) || job.share < 1.0 {
            continue;
        }
        let levels = workload::levels(study, job);
        // An axis that is not there for a point has a level of its own.
        let level = |name: &String| levels.get(name).map_or_else(|| "–".to_owned(), ToString::to_string);
        raw.push(RawRun {
            id: run.clone().unwrap_or_else(|| format!("#{}", job.id)),
            levels: factors.iter().map(level).collect(),
            values: responses.iter().map(|r| metrics.get(&r.name).copied()).collect(),
            order: job.id as f64,
            block: None,
            control,
        });
    }
    let mut table = StudyTable::new(&study.name, &factors, responses, raw);
    if left_out > 0 {
        table.notes.push(format!("{left_out} runs failed, diverged, or were ended early: they are left out"));
    }
    table
}
