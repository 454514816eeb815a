//! What holds for every registered sampler, on spaces of every kind.

use std::collections::{BTreeMap, HashSet};

use paceline_explore::samplers::{self, SamplerKind};
use paceline_explore::{Joins, Observation, Prior, Problem, SAMPLERS, Suggestion, TrialOutcome};
use paceline_plan::{Axis, Condition, Goal, Objective, Point, Space, Value};
use paceline_registry::Registry;

fn numbers(name: &str, levels: impl IntoIterator<Item = u32>) -> Axis {
    Axis::new(name, levels.into_iter().map(|l| Value::Number(f64::from(l))).collect())
}

fn words(name: &str, levels: &[&str]) -> Axis {
    Axis::new(name, levels.iter().map(|l| Value::Text((*l).into())).collect())
}

fn when(text: &str, axis: Axis) -> Axis {
    Axis { when: Some(Condition::parse(text).unwrap()), ..axis }
}

/// Numbers, names, a conditional axis and a constraint.
fn mixed() -> Space {
    let axes = vec![
        numbers("workers", [1, 2, 4, 8]),
        numbers("servers", [1, 2, 4]),
        words("sync", &["bsp", "asp", "ssp"]),
        when("sync = 'ssp'", numbers("staleness", [1, 3, 9])),
        words("transport", &["tcp", "uds", "shm"]),
    ];
    Space::new(axes, vec![Condition::parse("servers <= workers").unwrap()]).unwrap()
}

/// Too large to look at every point.
fn large() -> Space {
    let axes = (0..8).map(|i| numbers(&format!("a{i}"), 0..10)).collect();
    Space::new(axes, vec![Condition::parse("a0 + a1 <= 12").unwrap()]).unwrap()
}

/// A list of points.
fn listed() -> Space {
    let whole = mixed();
    let points: Vec<Point> = whole.points(10_000).unwrap().into_iter().step_by(3).collect();
    let axes = whole.axes().iter().cloned().map(|axis| Axis { when: None, ..axis }).collect();
    // Without conditions an axis can still be absent from a listed point.
    Space::listed(axes, points).unwrap()
}

fn problem(space: Space, seed: u64, budget: usize) -> Problem {
    let objective = |metric: &str| Objective { metric: metric.into(), goal: Goal::Minimize };
    Problem {
        space,
        objectives: vec![objective("time"), objective("bytes")],
        limits: vec![Condition::parse("accuracy >= 0.5").unwrap()],
        seed,
        budget: Some(budget),
        duplicates: false,
        prior: None,
        joins: Joins::new(),
        clock: None,
    }
}

/// Made-up figures; some points fail.
fn run(suggestion: &Suggestion) -> Observation {
    let at = |i: usize| suggestion.point.0.get(i).copied().flatten().map_or(1.5, f64::from);
    let metrics: BTreeMap<String, f64> = [
        ("time".to_owned(), (1.0 + (at(0) - 2.0).powi(2) + at(1)) / suggestion.share),
        ("bytes".to_owned(), 3.0 + at(0) - at(2)),
        ("accuracy".to_owned(), 0.4 + 0.1 * at(2)),
    ]
    .into();
    let failed = at(0) == 3.0 && at(1) == 0.0;
    let outcome = if failed { TrialOutcome::Failed } else { TrialOutcome::Measured(metrics) };
    Observation { point: suggestion.point.clone(), share: suggestion.share, outcome }
}

fn explore(
    kind: &SamplerKind,
    problem: &Problem,
    mut history: Vec<Observation>,
    count: usize,
) -> Option<Vec<Observation>> {
    let mut sampler = samplers::make(&Registry::default(), kind.name, problem).ok()?;
    while history.len() < count {
        let Some(suggestion) = sampler.next(&history) else { break };
        history.push(run(&suggestion));
    }
    Some(history)
}

const BUDGET: usize = 26;

fn each(check: impl Fn(&SamplerKind, &str, &dyn Fn(u64) -> Problem)) {
    for kind in SAMPLERS {
        for (name, space) in [("mixed", mixed as fn() -> Space), ("large", large), ("listed", listed)] {
            check(kind, name, &|seed| problem(space(), seed, BUDGET));
        }
    }
}

#[test]
fn every_point_is_part_of_the_space() {
    each(|kind, name, problem| {
        let problem = problem(1);
        let Some(history) = explore(kind, &problem, Vec::new(), BUDGET) else {
            assert_eq!((kind.name, name), ("grid", "large"), "only a grid can be too large");
            return;
        };
        // A list holds few rows of a design.
        let least = if kind.name == "fractional" { 1 } else { BUDGET / 2 };
        assert!(history.len() >= least, "{} on {name}: {}", kind.name, history.len());
        for seen in &history {
            assert!(problem.space.allows(&seen.point), "{} on {name}: {:?}", kind.name, seen.point);
            assert!(seen.share > 0.0 && (seen.share == 1.0 || kind.shortens));
            let mut settled = seen.point.clone();
            problem.space.settle(&mut settled);
            assert_eq!(settled, seen.point, "{} on {name}: an axis that is not there", kind.name);
        }
    });
}

#[test]
fn the_same_seed_gives_the_same_points_and_another_seed_others() {
    each(|kind, name, problem| {
        let Some(first) = explore(kind, &problem(1), Vec::new(), BUDGET) else { return };
        assert_eq!(first, explore(kind, &problem(1), Vec::new(), BUDGET).unwrap(), "{} on {name}", kind.name);
        assert_ne!(first, explore(kind, &problem(2), Vec::new(), BUDGET).unwrap(), "{} on {name}", kind.name);
    });
}

#[test]
fn no_point_is_suggested_twice() {
    each(|kind, name, problem| {
        let Some(history) = explore(kind, &problem(3), Vec::new(), BUDGET) else { return };
        let distinct: HashSet<(Point, u64)> =
            history.iter().map(|o| (o.point.clone(), (o.share * 1e6) as u64)).collect();
        assert_eq!(distinct.len(), history.len(), "{} on {name}", kind.name);
    });
}

#[test]
fn a_history_is_continued_as_if_nothing_had_been() {
    each(|kind, name, problem| {
        let Some(whole) = explore(kind, &problem(5), Vec::new(), BUDGET) else { return };
        for cut in [1, 5, whole.len() / 2, whole.len() - 1].into_iter().filter(|cut| *cut < whole.len()) {
            let resumed = explore(kind, &problem(5), whole[..cut].to_vec(), BUDGET).unwrap();
            assert_eq!(resumed, whole, "{} on {name}, cut at {cut}", kind.name);
        }
    });
}

#[test]
fn points_that_are_being_run_are_not_suggested_again() {
    each(|kind, name, problem| {
        let problem = problem(7);
        let Some(mut history) = explore(kind, &problem, Vec::new(), BUDGET / 2) else { return };
        let mut sampler = samplers::make(&Registry::default(), kind.name, &problem).unwrap();
        for _ in 0..3 {
            let Some(next) = sampler.next(&history) else { break };
            assert!(
                history.iter().all(|o| (&o.point, o.share) != (&next.point, next.share)),
                "{} on {name}",
                kind.name
            );
            let (point, share) = (next.point, next.share);
            history.push(Observation { point, share, outcome: TrialOutcome::Pending });
        }
    });
}

#[test]
fn a_finite_space_is_used_up_and_then_there_is_nothing_left() {
    for kind in SAMPLERS.iter().filter(|k| !k.shortens && k.name != "fractional") {
        let space = || Space::new(vec![numbers("a", 0..3), words("b", &["x", "y"])], vec![]).unwrap();
        let history = explore(kind, &problem(space(), 1, 100), Vec::new(), 100).unwrap();
        assert_eq!(history.len(), 6, "{}", kind.name);
    }
}

#[test]
fn duplicates_come_where_they_are_asked_for() {
    let space = || Space::new(vec![numbers("a", 0..2)], vec![]).unwrap();
    let problem = Problem { duplicates: true, ..problem(space(), 1, 20) };
    for name in ["random", "sobol", "bayes"] {
        let kind = SAMPLERS.iter().find(|k| k.name == name).unwrap();
        assert_eq!(explore(kind, &problem, Vec::new(), 20).unwrap().len(), 20, "{name}");
    }
}

#[test]
fn the_grid_is_exactly_the_constrained_product() {
    let grid = SAMPLERS.iter().find(|k| k.name == "grid").unwrap();
    let history = explore(grid, &problem(mixed(), 1, 10_000), Vec::new(), 10_000).unwrap();
    let mut expected = HashSet::new();
    for workers in [1, 2, 4, 8] {
        for servers in [1, 2, 4].into_iter().filter(|s| *s <= workers) {
            for sync in ["bsp", "asp", "ssp"] {
                for staleness in if sync == "ssp" { vec![1, 3, 9] } else { vec![0] } {
                    for transport in ["tcp", "uds", "shm"] {
                        expected.insert(format!("{workers} {servers} {sync} {staleness} {transport}"));
                    }
                }
            }
        }
    }
    let found: HashSet<String> = history
        .iter()
        .map(|o| {
            let named = mixed().named(&o.point);
            let staleness = named.get("staleness").map_or("0".into(), Value::to_string);
            format!(
                "{} {} {} {staleness} {}",
                named["workers"], named["servers"], named["sync"], named["transport"]
            )
        })
        .collect();
    assert_eq!(history.len(), expected.len());
    assert_eq!(found, expected);
}

/// How often each level of each axis appears.
fn counts(space: &Space, history: &[Observation]) -> Vec<Vec<usize>> {
    let axes = space.axes().iter().enumerate();
    axes.map(|(i, axis)| {
        let level = |l: usize| history.iter().filter(|o| o.point.0[i] == Some(l as u32)).count();
        (0..axis.levels.len()).map(level).collect()
    })
    .collect()
}

#[test]
fn lhs_and_sobol_stratify_every_axis() {
    let space = || Space::new((0..5).map(|i| numbers(&format!("a{i}"), 0..16)).collect(), vec![]).unwrap();
    for name in ["lhs", "sobol"] {
        let kind = SAMPLERS.iter().find(|k| k.name == name).unwrap();
        for seed in 1..5 {
            let history = explore(kind, &problem(space(), seed, 16), Vec::new(), 16).unwrap();
            assert_eq!(counts(&space(), &history), vec![vec![1; 16]; 5], "{name}: each level once");
        }
        let history = explore(kind, &problem(space(), 1, 64), Vec::new(), 64).unwrap();
        assert_eq!(counts(&space(), &history), vec![vec![4; 16]; 5], "{name}: each level four times");
    }
}

#[test]
fn halving_promotes_the_best_third() {
    let kind = SAMPLERS.iter().find(|k| k.name == "halving").unwrap();
    let problem = Problem { limits: Vec::new(), ..problem(mixed(), 1, 39) };
    let history = explore(kind, &problem, Vec::new(), 100).unwrap();
    let of_share = |share: f64| -> Vec<&Observation> {
        history.iter().filter(|o| (o.share - share).abs() < 1e-9).collect()
    };
    let rungs = [of_share(1.0 / 9.0), of_share(1.0 / 3.0), of_share(1.0)];
    assert_eq!(rungs.each_ref().map(Vec::len), [27, 9, 3]);
    for pair in rungs.windows(2) {
        assert!(pair[1].iter().all(|o| pair[0].iter().any(|p| p.point == o.point)));
        assert!(
            pair[1].iter().filter(|o| o.outcome == TrialOutcome::Failed).count() == 0,
            "failures are not promoted"
        );
    }
}

#[test]
fn bayes_finds_the_best_of_a_smooth_function_sooner_than_chance() {
    let space = || {
        let axes = vec![numbers("x", 0..20), numbers("y", 0..20), words("c", &["a", "b", "c"])];
        Space::new(axes, vec![]).unwrap()
    };
    let value = |p: &Point| {
        let at = |i: usize| f64::from(p.0[i].unwrap());
        1.0 + (at(0) - 13.0).powi(2) / 20.0 + (at(1) - 4.0).powi(2) / 20.0 + 2.0 * at(2)
    };
    let evaluate = |s: Suggestion| {
        let metrics = [("time".to_owned(), value(&s.point)), ("bytes".to_owned(), 0.0)].into();
        Observation { point: s.point, share: 1.0, outcome: TrialOutcome::Measured(metrics) }
    };
    let reached = |name: &str, seed: u64| {
        let problem = Problem {
            limits: Vec::new(),
            objectives: vec![Objective { metric: "time".into(), goal: Goal::Minimize }],
            ..problem(space(), seed, 30)
        };
        let mut sampler = samplers::make(&Registry::default(), name, &problem).unwrap();
        let mut history = Vec::new();
        while history.len() < 30 {
            history.push(evaluate(sampler.next(&history).unwrap()));
        }
        history.iter().map(|o| value(&o.point)).fold(f64::INFINITY, f64::min)
    };
    let mean = |name: &str| (1..=5).map(|seed| reached(name, seed)).sum::<f64>() / 5.0;
    let (bayes, random) = (mean("bayes"), mean("random"));
    assert!(bayes < 1.06 && random > bayes + 0.1, "bayes {bayes}, random {random}");
}

#[test]
fn bayes_takes_misses_as_lower_bounds() {
    let space = Space::new(vec![numbers("x", 0..20), numbers("y", 0..20)], vec![]).unwrap();
    let at = |p: &Point, i: usize| f64::from(p.0[i].unwrap());
    let value = |p: &Point| 2.0 + (at(p, 0) - 5.0).powi(2) / 20.0 + (at(p, 1) - 4.0).powi(2) / 20.0;
    // Half of the space misses its target, and was given less time than the best takes.
    let missed = |p: &Point| at(p, 0) >= 10.0;
    let problem = Problem {
        limits: Vec::new(),
        objectives: vec![Objective { metric: "time".into(), goal: Goal::Minimize }],
        ..problem(space, 1, 30)
    };
    let mut sampler = samplers::make(&Registry::default(), "bayes", &problem).unwrap();
    let mut history: Vec<Observation> = Vec::new();
    while history.len() < 30 {
        let point = sampler.next(&history).unwrap().point;
        let metrics = |time: f64| [("time".to_owned(), time)].into();
        let outcome = if missed(&point) {
            TrialOutcome::AtLeast(metrics(1.0))
        } else {
            TrialOutcome::Measured(metrics(value(&point)))
        };
        history.push(Observation { point, share: 1.0, outcome });
    }
    let wasted = history.iter().filter(|o| missed(&o.point)).count();
    let best = problem.best(&history);
    assert!(wasted < 15 && value(&history[best[0]].point) < 2.06, "{wasted} {:?}", history[best[0]]);
}

#[test]
fn bayes_begins_with_what_is_expected_to_be_best_and_learns_where_that_is_wrong() {
    let axes = vec![numbers("x", 0..20), numbers("y", 0..20), words("c", &["a", "b", "c"])];
    let space = Space::new(axes, vec![]).unwrap();
    let value = |p: &Point| {
        let at = |i: usize| f64::from(p.0[i].unwrap());
        1.0 + (at(0) - 13.0).powi(2) / 20.0 + (at(1) - 4.0).powi(2) / 20.0 + 2.0 * at(2)
    };
    let with = |expected: &dyn Fn(&Point) -> f64, goal: Goal| {
        let points = space.points(10_000).unwrap();
        let sign = if goal == Goal::Minimize { 1.0 } else { -1.0 };
        let prior = points.into_iter().map(|p| (p.clone(), sign * expected(&p))).collect();
        let problem = Problem {
            limits: Vec::new(),
            objectives: vec![Objective { metric: "time".into(), goal }],
            prior: Some(Prior(prior)),
            ..problem(space.clone(), 1, 30)
        };
        let mut sampler = samplers::make(&Registry::default(), "bayes", &problem).unwrap();
        let mut history: Vec<Observation> = Vec::new();
        while history.len() < 30 {
            let point = sampler.next(&history).unwrap().point;
            let metrics = [("time".to_owned(), sign * value(&point))].into();
            history.push(Observation { point, share: 1.0, outcome: TrialOutcome::Measured(metrics) });
        }
        let best =
            |count: usize| history[..count].iter().map(|o| value(&o.point)).fold(f64::INFINITY, f64::min);
        [best(1), best(8), best(30)]
    };
    for goal in [Goal::Minimize, Goal::Maximize] {
        // The right order, all figures wrong: the first run is the best.
        assert_eq!(with(&|p| 3.0 * value(p), goal)[0], 1.0);
        // One name is thought to be twice as good as it is.
        let misled = |p: &Point| value(p) / if p.0[2] == Some(1) { 4.0 } else { 1.0 };
        let [first, soon, _] = with(&misled, goal);
        assert!(first > 2.5 && soon < 1.2, "{first} {soon}");
    }
    // A prior that says the contrary costs many runs, but does not keep the sampler at the worst.
    let [first, _, last] = with(&|p| 100.0 / value(p), Goal::Minimize);
    assert!(first > 10.0 && last < first / 4.0, "{first} {last}");
}
