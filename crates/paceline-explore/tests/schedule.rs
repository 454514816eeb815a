//! Which runs a study makes and in which order, and what samplers are told of them.

use std::collections::BTreeMap;

use paceline_explore::schedule::{
    End, Next, PlannedRun, Role, ScheduleRules, StudyRun, WorkloadSchedule, observations,
};
use paceline_explore::{Problem, SAMPLERS, TrialOutcome};
use paceline_plan::{Axis, Goal, Objective, Space, Value};
use paceline_registry::Registry;

fn problem() -> Problem {
    let axis = |name: &str| Axis::new(name, (0..3).map(|n| Value::Number(f64::from(n))).collect());
    Problem {
        space: Space::new(vec![axis("a"), axis("b")], vec![]).unwrap(),
        objectives: vec![Objective { metric: "time".into(), goal: Goal::Minimize }],
        limits: Vec::new(),
        seed: 1,
        budget: None,
        duplicates: false,
        prior: None,
        joins: BTreeMap::new(),
        clock: Some("given".into()),
    }
}

fn rules(sampler: &str, runs: Option<u64>) -> ScheduleRules {
    let sampler = sampler.into();
    ScheduleRules { sampler, runs, repeats: 2, max_repeats: 2, control_every: 4, baseline: true }
}

fn ended(job: &PlannedRun) -> End {
    let value = 1.0 + job.levels.iter().flatten().sum::<u32>() as f64 + 0.001 * job.repeat as f64;
    End::Ok { metrics: [("time".to_owned(), value)].into() }
}

/// Runs everything one after the other.
fn all(rules: &ScheduleRules, mut made: Vec<StudyRun>) -> Vec<StudyRun> {
    let mut schedule = WorkloadSchedule::new(&problem(), rules.clone(), &Registry::default()).unwrap();
    loop {
        match schedule.next(&made) {
            Next::Run(job) => made.push(StudyRun { end: Some(ended(&job)), job }),
            Next::Finished => return made,
            Next::Wait => panic!("nothing is under way"),
        }
    }
}

fn roles(made: &[StudyRun], role: Role) -> usize {
    made.iter().filter(|m| m.job.role == role).count()
}

#[test]
fn a_grid_is_run_in_rounds_between_controls_with_a_baseline() {
    let made = all(&rules("grid", None), Vec::new());
    assert_eq!(made[0].job.role, Role::WarmUp);
    assert_eq!(made[1].job.role, Role::Control);
    assert_eq!(made.last().unwrap().job.role, Role::Control);
    assert_eq!((roles(&made, Role::Point), roles(&made, Role::Baseline)), (18, 2));
    let points: Vec<&StudyRun> = made.iter().filter(|m| m.job.role == Role::Point).collect();
    assert!(points[..9].iter().all(|m| m.job.repeat == 0) && points[9..].iter().all(|m| m.job.repeat == 1));
    assert_ne!(
        points[..9].iter().map(|m| &m.job.levels).collect::<Vec<_>>(),
        points[9..].iter().map(|m| &m.job.levels).collect::<Vec<_>>(),
        "each round has its own order"
    );
    for window in made.windows(7) {
        assert!(window.iter().any(|m| m.job.role == Role::Control), "controls come regularly");
    }
}

#[test]
fn every_sampler_ends_with_the_planned_runs_and_resumes_at_any_point() {
    for kind in SAMPLERS {
        let rules = rules(kind.name, Some(16));
        let made = all(&rules, Vec::new());
        let points = roles(&made, Role::Point);
        assert!((8..=16).contains(&points), "{}: {points}", kind.name);
        for cut in 0..made.len() {
            assert_eq!(all(&rules, made[..cut].to_vec()), made, "{} cut at {cut}", kind.name);
        }
        let ids: Vec<u64> = made.iter().map(|m| m.job.id).collect();
        assert_eq!(ids, (0..made.len() as u64).collect::<Vec<_>>());
    }
}

#[test]
fn repeats_of_a_learning_sampler_are_spread_out() {
    let made = all(&rules("bayes", Some(16)), Vec::new());
    let points: Vec<&StudyRun> = made.iter().filter(|m| m.job.role == Role::Point).collect();
    assert_eq!(points.len(), 16);
    for (i, one) in points.iter().enumerate().filter(|(i, m)| m.job.repeat == 1 && *i < 12) {
        let first = points.iter().position(|m| m.job.levels == one.job.levels).unwrap();
        assert!(i - first > 3, "{first} {i}");
    }
}

#[test]
fn noisy_points_are_run_again_the_best_first() {
    let rules = ScheduleRules { max_repeats: 4, ..rules("grid", None) };
    let mut schedule = WorkloadSchedule::new(&problem(), rules, &Registry::default()).unwrap();
    let mut made: Vec<StudyRun> = Vec::new();
    while let Next::Run(job) = schedule.next(&made) {
        let noisy = job.levels == [Some(0), Some(1)];
        let value = 5.0 + f64::from(u8::from(noisy)) * job.repeat as f64;
        let end = Some(End::Ok { metrics: [("time".to_owned(), value)].into() });
        made.push(StudyRun { job, end });
    }
    let times = |levels: &[Option<u32>]| made.iter().filter(|m| m.job.levels == levels).count();
    assert_eq!((times(&[Some(0), Some(1)]), times(&[Some(0), Some(0)])), (4, 2));
}

#[test]
fn failures_are_told_to_the_sampler_and_half_measured_points_are_not_failures() {
    let job = |id, repeat| PlannedRun {
        id,
        role: Role::Point,
        workload: None,
        levels: vec![Some(0), Some(0)],
        share: 1.0,
        repeat,
    };
    let failed = StudyRun { job: job(0, 0), end: Some(End::Failed { cause: "x".into() }) };
    let open = StudyRun { job: job(1, 1), end: None };
    let outcome = |made: &[StudyRun]| observations(&problem(), made)[0].outcome.clone();
    assert_eq!(outcome(std::slice::from_ref(&failed)), TrialOutcome::Failed);
    assert_eq!(outcome(&[failed.clone(), open]), TrialOutcome::Pending);
    let good = StudyRun { end: Some(ended(&job(1, 1))), job: job(1, 1) };
    assert!(matches!(outcome(&[failed, good]), TrialOutcome::Measured(_)));
}

#[test]
fn endless_samplers_need_a_budget() {
    let error = WorkloadSchedule::new(&problem(), rules("bayes", None), &Registry::default())
        .map(|_| ())
        .unwrap_err();
    assert!(error.0.contains("set `runs`"), "{error}");
}

#[test]
fn a_run_that_misses_its_target_is_a_lower_bound_and_never_the_best() {
    let job = |id, level| PlannedRun {
        workload: None,
        id,
        role: Role::Point,
        levels: vec![Some(level), Some(0)],
        share: 1.0,
        repeat: 0,
    };
    let run = |id, level, metrics: &[(&str, f64)]| {
        let metrics = metrics.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        StudyRun { job: job(id, level), end: Some(End::Ok { metrics }) }
    };
    let made = [run(0, 0, &[("time", 3.0), ("given", 9.0)]), run(1, 1, &[("given", 2.0)])];
    let told = observations(&problem(), &made);
    assert!(matches!(&told[1].outcome, TrialOutcome::AtLeast(metrics) if metrics["time"] == 2.0));
    assert_eq!(problem().losses(&told[1]), Some(vec![2.0]));
    assert_eq!(problem().best(&told), [0], "it took at least 2, and nobody knows how long");
    // One repeat that reached it and one that did not: the mean is a bound as well.
    let both = [run(0, 0, &[("time", 3.0)]), run(1, 0, &[("given", 9.0)])];
    let told = observations(&problem(), &both);
    assert!(matches!(&told[0].outcome, TrialOutcome::AtLeast(metrics) if metrics["time"] == 6.0));
}

#[test]
fn a_study_that_runs_out_of_time_closes_with_a_control() {
    let schedule = WorkloadSchedule::new(&problem(), rules("grid", None), &Registry::default()).unwrap();
    let whole = all(&rules("grid", None), Vec::new());
    let open = whole.iter().rposition(|m| m.job.role == Role::Point).unwrap() + 1;
    let control = schedule.closing(&whole[..open]).unwrap();
    assert_eq!((control.role, control.id), (Role::Control, open as u64));
    assert_eq!(schedule.closing(&whole), None, "the last one is a control already");
}
