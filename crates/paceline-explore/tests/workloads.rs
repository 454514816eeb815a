//! Several workloads in one study: at the same points or each at its own, and what the one sampler is told.

use std::collections::{BTreeMap, BTreeSet};

use paceline_explore::schedule::{End, Next, PlannedRun, Role, ScheduleRules, StudyRun, WorkloadSchedule};
use paceline_explore::{Problem, StudySchedule};
use paceline_plan::{Axis, Condition, Goal, Objective, Space, Value};
use paceline_registry::Registry;

const NAMES: [&str; 3] = ["small", "large", "odd"];

fn problem(seed: u64) -> Problem {
    let axis = |name: &str| Axis::new(name, (0..4).map(|n| Value::Number(f64::from(n))).collect());
    Problem {
        space: Space::new(vec![axis("a"), axis("b")], vec![]).unwrap(),
        objectives: vec![Objective { metric: "time".into(), goal: Goal::Minimize }],
        limits: vec![Condition::parse("accuracy >= 0.5").unwrap()],
        seed,
        budget: None,
        duplicates: false,
        prior: None,
        joins: BTreeMap::new(),
        clock: Some("given".into()),
    }
}

fn one(sampler: &str, runs: Option<u64>, seed: u64) -> WorkloadSchedule {
    let sampler = sampler.into();
    let rules = ScheduleRules { sampler, runs, repeats: 2, max_repeats: 2, control_every: 4, baseline: true };
    WorkloadSchedule::new(&problem(seed), rules, &Registry::default()).unwrap()
}

fn schedule(paired: bool, sampler: &str, runs: Option<u64>) -> StudySchedule {
    let names = NAMES.map(String::from);
    match paired {
        true => StudySchedule::paired(names.into(), one(sampler, runs, 1)),
        false => {
            StudySchedule::own((1..).zip(names).map(|(i, name)| (name, one(sampler, runs, i))).collect())
        }
    }
}

/// `large` takes a thousand times as long as `small`; both are best at a = 3, b = 0, and `odd` at a = 0, b = 3.
fn ended(job: &PlannedRun) -> End {
    let level = |i: usize| job.levels.get(i).copied().flatten().map_or(0.0, f64::from);
    let (a, b) = (level(0), level(1));
    let time = match job.workload.as_deref() {
        Some("small") => 1e-3 * (1.0 + 3.0 - a + b),
        Some("large") => 1.0 + 3.0 - a + b,
        _ => 1.0 + 0.1 * (a + 3.0 - b),
    };
    End::Ok { metrics: [("time".to_owned(), time), ("accuracy".to_owned(), 1.0)].into() }
}

/// Runs everything, `lanes` side by side; the first to begin ends first.
fn all(schedule: &mut StudySchedule, mut made: Vec<StudyRun>, lanes: usize) -> Vec<StudyRun> {
    loop {
        let open = made.iter().filter(|run| run.end.is_none()).count();
        match schedule.next(&made) {
            Next::Run(job) if open < lanes => made.push(StudyRun { job, end: None }),
            Next::Finished if open == 0 => return made,
            Next::Finished => panic!("finished before the last run has ended"),
            _ => {
                let first = made.iter_mut().find(|run| run.end.is_none()).expect("something is under way");
                first.end = Some(ended(&first.job));
            }
        }
    }
}

fn points(made: &[StudyRun], workload: &str) -> Vec<(Vec<Option<u32>>, u64)> {
    let own = made.iter().filter(|run| run.job.workload.as_deref() == Some(workload));
    let mut points: Vec<_> = own
        .filter(|run| run.job.role == Role::Point)
        .map(|run| (run.job.levels.clone(), run.job.repeat))
        .collect();
    points.sort();
    points
}

#[test]
fn paired_workloads_are_run_at_the_same_points_and_take_turns() {
    for (sampler, runs) in [("grid", None), ("random", Some(12)), ("bayes", Some(16))] {
        for lanes in [1, 2, 5] {
            let mut schedule = schedule(true, sampler, runs);
            let made = all(&mut schedule, Vec::new(), lanes);
            assert_eq!(schedule.expected(), made.len() as u64, "{sampler}");
            let of: Vec<_> = NAMES.iter().map(|name| points(&made, name)).collect();
            assert!(of.iter().all(|points| *points == of[0] && points.len() >= 12), "{sampler}: {of:?}");
            let distinct: BTreeSet<_> = of[0].iter().collect();
            assert_eq!(distinct.len(), of[0].len(), "{sampler}: each point and repeat once");
            assert!((0..).zip(&made).all(|(id, run)| run.job.id == id));
            let mut first: BTreeMap<Option<&str>, usize> = BTreeMap::new();
            for group in made.chunks(3).filter(|_| lanes == 1) {
                let names: BTreeSet<_> = group.iter().map(|run| &run.job.workload).collect();
                assert_eq!(names.len(), 3, "{sampler}: the same run of each, one after the other");
                *first.entry(group[0].job.workload.as_deref()).or_default() += 1;
            }
            let spread = first.values().max().zip(first.values().min());
            assert!(
                spread.is_none_or(|(most, least)| most - least <= 1),
                "each is first as often: {first:?}"
            );
        }
    }
}

#[test]
fn workloads_with_points_of_their_own_share_the_time_and_not_the_points() {
    let made = all(&mut schedule(false, "random", Some(12)), Vec::new(), 1);
    let of: Vec<_> = NAMES.iter().map(|name| points(&made, name)).collect();
    assert!(of.iter().all(|points| points.len() == 12));
    assert!(of[0] != of[1] && of[1] != of[2], "{of:?}");
    // At no time has one had two runs more than another.
    let mut counts: BTreeMap<Option<&str>, i64> = NAMES.map(|name| (Some(name), 0)).into();
    for run in &made {
        *counts.get_mut(&run.job.workload.as_deref()).unwrap() += 1;
        let (most, least) = (counts.values().max().unwrap(), counts.values().min().unwrap());
        assert!(most - least <= 1, "{counts:?}");
    }
}

#[test]
fn a_study_goes_on_from_any_of_its_runs_as_if_nothing_had_been() {
    for paired in [true, false] {
        for (sampler, runs) in [("grid", None), ("bayes", Some(8))] {
            let whole = all(&mut schedule(paired, sampler, runs), Vec::new(), 1);
            for cut in [1, 2, 5, 13, whole.len() - 1] {
                let again = all(&mut schedule(paired, sampler, runs), whole[..cut].to_vec(), 1);
                assert_eq!(again, whole, "{sampler} after {cut} runs, paired {paired}");
            }
        }
    }
}

#[test]
fn the_one_sampler_looks_for_what_is_good_for_all_whatever_their_scale() {
    let made = all(&mut schedule(true, "bayes", Some(24)), Vec::new(), 1);
    // Two workloads want a = 3 and b = 0, clearly; the third, hardly at all, the opposite.
    let best = made.iter().filter(|run| run.job.levels == [Some(3), Some(0)]).count();
    assert_eq!(best, 6, "found, and run twice for each");
}

#[test]
fn when_time_is_over_each_workload_has_its_last_control() {
    let mut schedule = schedule(true, "grid", None);
    let mut made = Vec::new();
    while made.len() < 16 {
        let Next::Run(job) = schedule.next(&made) else { panic!("there is more to do") };
        made.push(StudyRun { end: Some(ended(&job)), job });
    }
    let mut closed = Vec::new();
    while let Some(job) = schedule.closing(&made) {
        assert_eq!(job.role, Role::Control);
        closed.push(job.workload.clone().unwrap());
        made.push(StudyRun { end: Some(ended(&job)), job });
        assert!(closed.len() <= 3, "{closed:?}");
    }
    closed.sort();
    assert_eq!(closed, ["large", "odd", "small"]);
}
