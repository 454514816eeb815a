//! A study's runs as the input of an analysis: its axes are the factors, its objectives the responses.

use std::collections::HashSet;

use paceline_analyze::StudyTable;
use paceline_analyze::table::{ABSENT, RawRun, RepeatCost, Response, RunRole};
use paceline_explore::schedule::{End, Role, StudyRun, joined, observations};
use paceline_explore::{Observation, TrialOutcome};
use paceline_plan::Point;

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

/// What a run is for, in an analysis: warm-ups and shortened runs are for nothing.
fn role(made: &StudyRun) -> Option<RunRole> {
    match made.job.role {
        _ if made.job.share < 1.0 => None,
        Role::WarmUp => None,
        Role::Control => Some(RunRole::Control),
        Role::Baseline => Some(RunRole::Baseline),
        Role::Point => Some(RunRole::Point),
    }
}

/// Numbers of the runs whose configuration breaks a condition on what runs measure.
fn forbidden(known: &StudyHistory) -> HashSet<u64> {
    let mut all = HashSet::new();
    for (study, made) in known.by_workload() {
        let problem = crate::problem(study, &known.registries.figures);
        let breaks =
            |o: &Observation| problem.margins(o).is_some_and(|margins| margins.iter().any(|m| *m < 0.0));
        let points: HashSet<Point> = observations(&problem, &made)
            .into_iter()
            .filter(|o| o.share >= 1.0 && breaks(o))
            .map(|o| o.point)
            .collect();
        // One worker alone must meet the conditions too.
        let alone_breaks = |role: Role| {
            let own: Vec<&StudyRun> = made.iter().filter(|m| m.job.role == role).collect();
            let metrics = joined(&problem, &own);
            let point = Point(vec![None; study.space.axes().len()]);
            breaks(&Observation { point, share: 1.0, outcome: TrialOutcome::Measured(metrics) })
        };
        let broken = [Role::Control, Role::Baseline].map(|role| (role, alone_breaks(role)));
        let is = |run: &&StudyRun| match run.point(&study.space) {
            Some(point) => points.contains(&point),
            None => broken.iter().any(|(of, broken)| *of == run.job.role && *broken),
        };
        all.extend(made.iter().filter(is).map(|run| run.job.id));
    }
    all
}

/// The study's runs as an analysis takes them, by number; none for those that tell it nothing: warm-ups, shortened
/// runs, and those that failed.
pub fn runs(known: &StudyHistory, responses: &[Response]) -> Vec<Option<RawRun>> {
    let (factors, clock) = (known.factors(), crate::clock(&known.study, &known.registries.figures));
    let forbidden = forbidden(known);
    let one = |(made, run): (&StudyRun, &Option<String>)| {
        let (job, role) = (&made.job, role(made)?);
        let (Some(End::Ok { metrics }) | Some(End::Beaten { metrics })) = &made.end else { return None };
        let whole = matches!(made.end, Some(End::Ok { .. }));
        let levels = known.levels(job);
        let level = |name: &String| levels.get(name).map_or_else(|| ABSENT.to_owned(), ToString::to_string);
        let first = responses.first().map(|r| &r.name);
        let bound = |r: &Response| made.bound(&r.name, clock).filter(|_| first == Some(&r.name));
        Some(RawRun {
            id: run.clone().unwrap_or_else(|| format!("#{}", job.id)),
            levels: factors.iter().map(level).collect(),
            values: responses.iter().map(|r| metrics.get(&r.name).copied().filter(|_| whole)).collect(),
            bounds: responses.iter().map(bound).collect(),
            order: job.id as f64,
            block: None,
            role,
            forbidden: forbidden.contains(&job.id),
        })
    };
    known.made.iter().zip(&known.runs).map(one).collect()
}

/// Runs of points are analysed, controls and the baseline tell noise and drift; warm-ups, shortened runs and those that
/// failed are left out.
pub fn table(known: &StudyHistory) -> StudyTable {
    let study = &known.study;
    let factors = known.factors();
    let responses = responses(known);
    let raw = runs(known, &responses).into_iter().flatten().collect();
    let failed = |made: &&StudyRun| {
        let bad = matches!(made.end, Some(End::Failed { .. } | End::Refused { .. } | End::Diverged { .. }));
        bad && made.job.role == Role::Point
    };
    let left_out = known.made.iter().filter(failed).count();
    let mut table = StudyTable::new(&study.name, &factors, responses, raw);
    (table.timed, table.alone, table.repeats) = (true, alone(known), repeats(known));
    if left_out > 0 {
        table.notes.push(format!("{left_out} runs failed, diverged or were refused: they are left out"));
    }
    table
}

/// What runs had one worker alone, apart from points whose levels say so.
pub fn alone(known: &StudyHistory) -> Vec<RunRole> {
    let of = |made: &StudyRun| {
        let by_level = known.study.space.axes().iter().any(|axis| axis.name == "workers");
        let role = role(made).filter(|role| *role != RunRole::Point || !by_level)?;
        (workload::workers(known.of(&made.job), &made.job)? <= 1.0).then_some(role)
    };
    paceline_analyze::distinct(known.made.iter().filter_map(of))
}

/// How often points are run, and what one more run of each takes.
pub fn repeats(known: &StudyHistory) -> Option<RepeatCost> {
    let points = known.observations();
    let points = points.iter().filter(|o| o.share >= 1.0).count();
    let seconds = known.seconds_each() * points as f64;
    (points > 0).then_some(RepeatCost { repeats: known.study.repeats, seconds })
}
