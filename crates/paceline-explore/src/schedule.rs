//! The order of a study's runs, as a function of the study and of the runs so far.
//!
//! First a warm-up that does not count; then controls at regular distance, a baseline of one worker where the control
//! is none, and points. Points that are known beforehand are run in random order, one repeat of all before the next;
//! a sampler that learns is asked for points, and a point's repeats come after a few others. At last, points whose
//! repeats differ much are run again.

use std::collections::BTreeMap;

use paceline_plan::{Objective, Point};
use paceline_random::{Purpose, Stream};
use paceline_registry::Registry;
use serde::{Deserialize, Serialize};

use crate::problem::{Observation, Problem, TrialOutcome};
use crate::samplers::{self, Sampler, SamplerError, SamplerKind};

/// What a run is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// To wake the machine; its figures do not count.
    WarmUp,
    /// The same configuration again and again, so that drift shows.
    Control,
    /// One worker alone.
    Baseline,
    /// A point of the space.
    Point,
}

/// A run to be made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlannedRun {
    /// Its number in the study, from 0.
    pub id: u64,
    /// What it is for.
    pub role: Role,
    /// Levels by axis index; empty unless it is a point.
    pub levels: Vec<Option<u32>>,
    /// How much of the full work.
    pub share: f64,
    /// Which repeat, from 0.
    pub repeat: u64,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum End {
    /// With these figures.
    Ok {
        /// By name.
        metrics: BTreeMap<String, f64>,
    },
    /// Without.
    Failed {
        /// Why.
        cause: String,
    },
    /// The loss was no longer a number.
    Diverged {
        /// What the run said.
        cause: String,
    },
    /// It was ended early because it could no longer win.
    Beaten {
        /// What was known by then; the objective is a lower bound.
        metrics: BTreeMap<String, f64>,
    },
}

/// A run and how it ended; `None` while it has not.
#[derive(Clone, Debug, PartialEq)]
pub struct StudyRun {
    /// The run.
    pub job: PlannedRun,
    /// Its end.
    pub end: Option<End>,
}

impl StudyRun {
    /// Its figures, where it has them.
    pub fn metrics(&self) -> Option<&BTreeMap<String, f64>> {
        match &self.end {
            Some(End::Ok { metrics } | End::Beaten { metrics }) => Some(metrics),
            _ => None,
        }
    }

    fn point(&self) -> Option<Point> {
        (self.job.role == Role::Point).then(|| Point(self.job.levels.clone()))
    }
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// Begin this run.
    Run(PlannedRun),
    /// Wait for a run to end.
    Wait,
    /// Nothing is left.
    Finished,
}

/// What a schedule follows.
#[derive(Clone, Debug)]
pub struct ScheduleRules {
    /// The sampler.
    pub sampler: String,
    /// Runs of points, repeats included; `None` for as many as the sampler has.
    pub runs: Option<u64>,
    /// Repeats of each point.
    pub repeats: u64,
    /// Repeats of noisy points, at most.
    pub max_repeats: u64,
    /// Runs between two controls; 0 for none.
    pub control_every: u64,
    /// Whether one worker alone has to be run apart from the control.
    pub baseline: bool,
}

/// Runs of other points between two repeats of one.
const APART: usize = 3;
/// Relative deviation between repeats that calls for more.
const NOISY: f64 = 0.05;

/// A study's schedule.
pub struct StudySchedule {
    rules: ScheduleRules,
    problem: Problem,
    sampler: Box<dyn Sampler>,
    /// Every point, for samplers that do not learn.
    known: Option<Vec<Point>>,
}

impl StudySchedule {
    /// The schedule of a problem.
    pub fn new(
        problem: &Problem,
        rules: ScheduleRules,
        samplers: &Registry<SamplerKind>,
    ) -> Result<Self, SamplerError> {
        let (kind, _) = samplers::find(samplers, &rules.sampler)?;
        let points = rules.runs.map(|runs| runs.div_ceil(rules.repeats) as usize);
        if points.is_none() && !kind.finite {
            let name = kind.name;
            return Err(SamplerError(format!("{name} never ends by itself: set `runs` in [budget]")));
        }
        let problem = Problem { budget: points, ..problem.clone() };
        let mut sampler = samplers::make(samplers, &rules.sampler, &problem)?;
        let known = (!kind.adaptive).then(|| {
            let mut history: Vec<Observation> = Vec::new();
            while points.is_none_or(|points| history.len() < points) {
                let Some(next) = sampler.next(&history) else { break };
                let (point, share) = (next.point, next.share);
                history.push(Observation { point, share, outcome: TrialOutcome::Pending });
            }
            history.into_iter().map(|o| o.point).collect()
        });
        Ok(Self { rules, problem, sampler, known })
    }

    /// What the sampler says about its points.
    pub fn notes(&self) -> Vec<String> {
        self.sampler.notes()
    }

    /// The points, where they are known beforehand.
    pub fn known(&self) -> Option<&[Point]> {
        self.known.as_deref()
    }

    /// How many runs there will be, all kinds together, as far as can be said.
    pub fn expected(&self) -> u64 {
        let points = self.point_runs();
        let controls = match self.rules.control_every {
            0 => 0,
            every => 2 + points.saturating_sub(1) / every,
        };
        1 + points + controls + if self.rules.baseline { self.rules.repeats } else { 0 }
    }

    fn point_runs(&self) -> u64 {
        let known = self.known.as_ref().map(|known| known.len() as u64 * self.rules.repeats);
        match (known, self.rules.runs) {
            (Some(known), Some(runs)) => known.min(runs),
            (Some(known), None) => known,
            (None, Some(runs)) => runs,
            (None, None) => 0,
        }
    }

    /// What to do after these runs, in the order in which they began.
    pub fn next(&mut self, made: &[StudyRun]) -> Next {
        let id = made.len() as u64;
        let job = |role, levels, share, repeat| PlannedRun { id, role, levels, share, repeat };
        let count = |role: Role| made.iter().filter(|m| m.job.role == role).count() as u64;
        if made.is_empty() {
            return Next::Run(job(Role::WarmUp, Vec::new(), 1.0, 0));
        }
        let (controls, baselines) = (count(Role::Control), count(Role::Baseline));
        let control = || Next::Run(job(Role::Control, Vec::new(), 1.0, controls));
        let since = made.iter().rev().take_while(|m| m.job.role != Role::Control);
        let points_since = since.filter(|m| m.job.role == Role::Point).count() as u64;
        let wanted = self.rules.control_every > 0;
        if wanted && (controls == 0 || points_since >= self.rules.control_every) {
            return control();
        }
        if self.rules.baseline && baselines < self.rules.repeats.min(controls.max(1)) {
            return Next::Run(job(Role::Baseline, Vec::new(), 1.0, baselines));
        }
        match self.next_point(made) {
            Some(Selection::Run(point, share, repeat)) => Next::Run(job(Role::Point, point.0, share, repeat)),
            Some(Selection::Wait) => Next::Wait,
            None if made.iter().any(|m| m.end.is_none()) => Next::Wait,
            None if self.rules.baseline && baselines < self.rules.repeats => {
                Next::Run(job(Role::Baseline, Vec::new(), 1.0, baselines))
            }
            // The last control closes the bracket around the last points.
            None if wanted && points_since > 0 => control(),
            None => Next::Finished,
        }
    }

    fn next_point(&mut self, made: &[StudyRun]) -> Option<Selection> {
        let begun: Vec<(Point, f64)> = made.iter().filter_map(|m| Some((m.point()?, m.job.share))).collect();
        let runs_left = self.rules.runs.is_none_or(|runs| (begun.len() as u64) < runs);
        if let Some(known) = &self.known {
            let order = Stream::new(self.problem.seed, Purpose::Explore).fork(0x0bde);
            for round in (0..self.rules.repeats).filter(|_| runs_left) {
                for i in order.fork(round).permutation(known.len()) {
                    let point = &known[i as usize];
                    let done = begun.iter().filter(|(p, _)| p == point).count() as u64;
                    if done <= round {
                        return Some(Selection::Run(point.clone(), 1.0, done));
                    }
                }
            }
            return self.noisy(made);
        }
        // A learning sampler: first repeats that are due, then new points, then the repeats that are left.
        let mut points: Vec<(&(Point, f64), u64, usize)> = Vec::new();
        for (at, one) in begun.iter().enumerate() {
            match points.iter_mut().find(|(known, ..)| *known == one) {
                Some((_, times, last)) => (*times, *last) = (*times + 1, at),
                None => points.push((one, 1, at)),
            }
        }
        let short = |times: u64| times < self.rules.repeats;
        let due = points.iter().find(|(_, times, last)| short(*times) && begun.len() - last > APART);
        if let Some(((point, share), times, _)) = due.filter(|_| runs_left) {
            return Some(Selection::Run(point.clone(), *share, *times));
        }
        let most = self.rules.runs.map_or(u64::MAX, |runs| runs.div_ceil(self.rules.repeats));
        let history = observations(&self.problem, made);
        let waiting = history.iter().any(|o| o.outcome == TrialOutcome::Pending);
        if runs_left && (points.len() as u64) < most {
            match self.sampler.next(&history) {
                Some(next) => return Some(Selection::Run(next.point, next.share, 0)),
                None if waiting && points.iter().all(|(_, times, _)| !short(*times)) => {
                    return Some(Selection::Wait);
                }
                None => {}
            }
        }
        let left = points.iter().find(|(_, times, _)| short(*times)).filter(|_| runs_left);
        if let Some(((point, share), times, _)) = left {
            return Some(Selection::Run(point.clone(), *share, *times));
        }
        self.noisy(made)
    }

    /// A point whose repeats differ much and that may be run again, the best first.
    fn noisy(&self, made: &[StudyRun]) -> Option<Selection> {
        if self.rules.max_repeats <= self.rules.repeats {
            return None;
        }
        let objective: &Objective = self.problem.objectives.first()?;
        let mut candidates: Vec<(f64, Point, u64)> = Vec::new();
        for point in distinct(made) {
            let runs: Vec<&StudyRun> =
                made.iter().filter(|m| m.point().as_ref() == Some(&point) && m.job.share >= 1.0).collect();
            let values: Vec<f64> =
                runs.iter().filter_map(|m| m.metrics()?.get(&objective.metric).copied()).collect();
            let open = runs.iter().any(|m| m.end.is_none());
            if open || values.len() < 2 || runs.len() as u64 >= self.rules.max_repeats {
                continue;
            }
            let n = values.len() as f64;
            let mean = values.iter().sum::<f64>() / n;
            let deviation = (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt();
            if deviation > NOISY * mean.abs() {
                let loss = objective.goal.loss(mean);
                candidates.push((loss, point, runs.len() as u64));
            }
        }
        let best = candidates.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
        best.map(|(_, point, repeat)| Selection::Run(point, 1.0, repeat))
    }
}

enum Selection {
    Run(Point, f64, u64),
    Wait,
}

fn distinct(made: &[StudyRun]) -> Vec<Point> {
    let mut points: Vec<Point> = Vec::new();
    for point in made.iter().filter_map(StudyRun::point) {
        if !points.contains(&point) {
            points.push(point);
        }
    }
    points
}

/// The figures of repeats, joined.
pub fn joined(problem: &Problem, repeats: &[&StudyRun]) -> BTreeMap<String, f64> {
    let mut all: BTreeMap<&String, Vec<f64>> = BTreeMap::new();
    for (name, value) in repeats.iter().filter_map(|m| m.metrics()).flatten() {
        all.entry(name).or_default().push(*value);
    }
    let join = |(name, values): (&String, Vec<f64>)| {
        let join = problem.joins.get(name.as_str()).copied().unwrap_or(paceline_statistics::mean);
        (name.clone(), join(&values))
    };
    all.into_iter().map(join).collect()
}

/// What samplers are told: one observation per point and share, its repeats joined. A point all of whose runs
/// ended without an objective has failed.
pub fn observations(problem: &Problem, made: &[StudyRun]) -> Vec<Observation> {
    let mut groups: Vec<(Point, f64, Vec<&StudyRun>)> = Vec::new();
    for one in made {
        let Some(point) = one.point() else { continue };
        match groups.iter_mut().find(|(p, share, _)| *p == point && *share == one.job.share) {
            Some((.., runs)) => runs.push(one),
            None => groups.push((point, one.job.share, vec![one])),
        }
    }
    let observe = |(point, share, runs): (Point, f64, Vec<&StudyRun>)| {
        let metrics = joined(problem, &runs);
        let told = problem.objectives.iter().all(|o| metrics.contains_key(&o.metric));
        let outcome = match told {
            true => TrialOutcome::Measured(metrics),
            false if runs.iter().any(|m| m.end.is_none()) => TrialOutcome::Pending,
            false => TrialOutcome::Failed,
        };
        Observation { point, share, outcome }
    };
    groups.into_iter().map(observe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_plan::{Axis, Goal, Space, Value};

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
        let mut schedule = StudySchedule::new(&problem(), rules.clone(), &Registry::default()).unwrap();
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
        assert!(
            points[..9].iter().all(|m| m.job.repeat == 0) && points[9..].iter().all(|m| m.job.repeat == 1)
        );
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
        for kind in samplers::SAMPLERS {
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
            assert!(i - first > APART, "{first} {i}");
        }
    }

    #[test]
    fn noisy_points_are_run_again_the_best_first() {
        let rules = ScheduleRules { max_repeats: 4, ..rules("grid", None) };
        let mut schedule = StudySchedule::new(&problem(), rules, &Registry::default()).unwrap();
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
        let error = StudySchedule::new(&problem(), rules("bayes", None), &Registry::default())
            .map(|_| ())
            .unwrap_err();
        assert!(error.0.contains("set `runs`"), "{error}");
    }
}
