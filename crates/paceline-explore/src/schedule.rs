//! The order of a workload's runs, as a function of the study and of the runs so far.
//!
//! First a warm-up that does not count; then controls at regular distance, a baseline of one worker where the control
//! is none, and points. Points that are known beforehand are run in random order, one repeat of all before the next;
//! a sampler that learns is asked for points, and a point's repeats come after a few others. At last, points whose
//! repeats differ much are run again.

use std::collections::BTreeMap;

use paceline_plan::{Objective, Point, Space};
use paceline_random::{Purpose, Stream};
use paceline_registry::Registry;
use paceline_statistics::{distinct, mean};
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
    /// Which of several workloads it is of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// Levels by axis index; empty unless it is a point.
    pub levels: Vec<Option<u32>>,
    /// How much of the full work.
    pub share: f64,
    /// Which repeat, from 0.
    pub repeat: u64,
}

impl PlannedRun {
    /// The first run of the control.
    pub fn control(id: u64) -> Self {
        Self { id, role: Role::Control, workload: None, levels: Vec::new(), share: 1.0, repeat: 0 }
    }
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub enum End {
    Ok {
        metrics: BTreeMap<String, f64>,
    },
    Failed {
        cause: String,
    },
    /// There is no such run: its plan cannot be carried out.
    Refused {
        /// Why not.
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

    /// What a figure is at least, of a run that did not get as far. `clock` is the figure that says how long it was
    /// given.
    pub fn bound(&self, metric: &str, clock: Option<&str>) -> Option<f64> {
        match &self.end {
            Some(End::Beaten { metrics }) => metrics.get(metric).copied(),
            Some(End::Ok { metrics }) if !metrics.contains_key(metric) => metrics.get(clock?).copied(),
            _ => None,
        }
    }

    /// The point, without axes that cannot act there (older journals have levels of them).
    pub fn point(&self, space: &Space) -> Option<Point> {
        (self.job.role == Role::Point).then(|| {
            let mut point = Point(self.job.levels.clone());
            space.settle(&mut point);
            point
        })
    }
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub enum Next {
    Run(PlannedRun),
    Wait,
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

/// The schedule of one workload.
pub struct WorkloadSchedule {
    rules: ScheduleRules,
    problem: Problem,
    sampler: Box<dyn Sampler>,
    /// Every point, for samplers that do not learn.
    known: Option<Vec<Point>>,
}

impl WorkloadSchedule {
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

    /// What is asked.
    pub(crate) fn problem(&self) -> &Problem {
        &self.problem
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
        let job =
            |role, levels, share, repeat| PlannedRun { id, role, workload: None, levels, share, repeat };
        let count = |role: Role| made.iter().filter(|m| m.job.role == role).count() as u64;
        if made.is_empty() {
            return Next::Run(job(Role::WarmUp, Vec::new(), 1.0, 0));
        }
        let (controls, baselines) = (count(Role::Control), count(Role::Baseline));
        let control = || Next::Run(job(Role::Control, Vec::new(), 1.0, controls));
        let (points_since, wanted) = (points_since(made), self.rules.control_every > 0);
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

    /// The control that closes the bracket around the last points of a study that ends before its time.
    pub fn closing(&self, made: &[StudyRun]) -> Option<PlannedRun> {
        let repeat = made.iter().filter(|m| m.job.role == Role::Control).count() as u64;
        let id = made.len() as u64;
        let open = self.rules.control_every > 0 && points_since(made) > 0;
        open.then_some(PlannedRun { repeat, ..PlannedRun::control(id) })
    }

    fn next_point(&mut self, made: &[StudyRun]) -> Option<Selection> {
        let space = &self.problem.space;
        let begun: Vec<(Point, f64)> =
            made.iter().filter_map(|m| Some((m.point(space)?, m.job.share))).collect();
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
        let of = |m: &StudyRun| m.point(&self.problem.space);
        for point in distinct(made.iter().filter_map(of)) {
            let runs: Vec<&StudyRun> =
                made.iter().filter(|m| of(m).as_ref() == Some(&point) && m.job.share >= 1.0).collect();
            let values: Vec<f64> =
                runs.iter().filter_map(|m| m.metrics()?.get(&objective.metric).copied()).collect();
            let open = runs.iter().any(|m| m.end.is_none());
            if open || values.len() < 2 || runs.len() as u64 >= self.rules.max_repeats {
                continue;
            }
            let mean = mean(&values);
            let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
            let deviation = (squares / (values.len() as f64 - 1.0)).sqrt();
            if deviation > NOISY * mean.abs() {
                let loss = objective.goal.loss(mean);
                candidates.push((loss, point, runs.len() as u64));
            }
        }
        let best = candidates.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
        best.map(|(_, point, repeat)| Selection::Run(point, 1.0, repeat))
    }
}

/// Points since the last control.
fn points_since(made: &[StudyRun]) -> u64 {
    let since = made.iter().rev().take_while(|m| m.job.role != Role::Control);
    since.filter(|m| m.job.role == Role::Point).count() as u64
}

enum Selection {
    Run(Point, f64, u64),
    Wait,
}

/// The figures of repeats, joined. A run that did not reach the first objective counts with what that takes at least.
pub fn joined(problem: &Problem, repeats: &[&StudyRun]) -> BTreeMap<String, f64> {
    let mut all: BTreeMap<&String, Vec<f64>> = BTreeMap::new();
    for (name, value) in repeats.iter().filter_map(|m| m.metrics()).flatten() {
        all.entry(name).or_default().push(*value);
    }
    if let Some(objective) = problem.objectives.first() {
        let missed =
            repeats.iter().filter(|m| m.metrics().is_some_and(|of| !of.contains_key(&objective.metric)));
        let bounds = missed.filter_map(|m| m.bound(&objective.metric, problem.clock.as_deref()));
        let bounds: Vec<f64> = bounds.collect();
        if !bounds.is_empty() {
            all.entry(&objective.metric).or_default().extend(bounds);
        }
    }
    let join = |(name, values): (&String, Vec<f64>)| {
        let join = problem.joins.get(name.as_str()).copied().unwrap_or(mean);
        (name.clone(), join(&values))
    };
    all.into_iter().map(join).collect()
}

/// What samplers are told: one observation per point and share, its repeats joined. A point all of whose runs
/// ended without an objective has failed.
pub fn observations(problem: &Problem, made: &[StudyRun]) -> Vec<Observation> {
    let mut groups: Vec<(Point, f64, Vec<&StudyRun>)> = Vec::new();
    for one in made {
        let Some(point) = one.point(&problem.space) else { continue };
        match groups.iter_mut().find(|(p, share, _)| *p == point && *share == one.job.share) {
            Some((.., runs)) => runs.push(one),
            None => groups.push((point, one.job.share, vec![one])),
        }
    }
    let missed = |run: &&StudyRun| {
        let first = problem.objectives.first();
        first.is_some_and(|o| run.bound(&o.metric, problem.clock.as_deref()).is_some())
    };
    let observe = |(point, share, runs): (Point, f64, Vec<&StudyRun>)| {
        let metrics = joined(problem, &runs);
        let told = problem.objectives.iter().all(|o| metrics.contains_key(&o.metric));
        let outcome = match told {
            true if runs.iter().any(missed) => TrialOutcome::AtLeast(metrics),
            true => TrialOutcome::Measured(metrics),
            false if runs.iter().any(|m| m.end.is_none()) => TrialOutcome::Pending,
            false => TrialOutcome::Failed,
        };
        Observation { point, share, outcome }
    };
    groups.into_iter().map(observe).collect()
}
