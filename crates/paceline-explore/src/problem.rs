//! What is asked of a sampler, what it has been told, and which observation is the best.

use std::collections::{BTreeMap, HashMap};

use paceline_plan::{Condition, Objective, Point, Space, Value};

/// What is asked.
#[derive(Clone, Debug)]
pub struct Problem {
    /// The points.
    pub space: Space,
    /// What is wanted; with several, a trade-off.
    pub objectives: Vec<Objective>,
    /// Conditions on what runs measure.
    pub limits: Vec<Condition>,
    /// Seed of everything random.
    pub seed: u64,
    /// How many points will be asked for, where that is known.
    pub budget: Option<usize>,
    /// Whether a point may be suggested more than once.
    pub duplicates: bool,
    /// What is expected of points before any was run.
    pub prior: Option<Prior>,
    /// How repeats of a figure are joined, by name; others by their mean.
    pub joins: Joins,
    /// The figure that says how long a run was given, where the first objective is a time that some runs do not reach.
    pub clock: Option<String>,
}

/// How repeats are joined, by figure.
pub type Joins = BTreeMap<&'static str, fn(&[f64]) -> f64>;

/// What is expected of points: the first objective's figure, in its own unit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prior(pub HashMap<Point, f64>);

/// A point to be run.
#[derive(Clone, Debug, PartialEq)]
pub struct Suggestion {
    /// The point.
    pub point: Point,
    /// How much of the full work: 1, or less where a sampler begins with shortened runs.
    pub share: f64,
}

impl Suggestion {
    /// The whole work.
    pub fn whole(point: Point) -> Self {
        Self { point, share: 1.0 }
    }
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub enum TrialOutcome {
    /// It has not yet.
    Pending,
    /// Without figures.
    Failed,
    /// With these figures.
    Measured(BTreeMap<String, f64>),
    /// With these figures, of which the first objective was not reached: that takes at least so long.
    AtLeast(BTreeMap<String, f64>),
}

impl TrialOutcome {
    /// Its figures, bounds among them.
    pub fn metrics(&self) -> Option<&BTreeMap<String, f64>> {
        match self {
            Self::Measured(metrics) | Self::AtLeast(metrics) => Some(metrics),
            Self::Pending | Self::Failed => None,
        }
    }
}

/// A point and what became of it.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct Observation {
    pub point: Point,
    /// How much of the full work was done.
    pub share: f64,
    pub outcome: TrialOutcome,
}

impl Problem {
    /// What the prior expects of a point, less being better; of points that it says nothing about, the worst that it
    /// expects of any.
    pub fn expected(&self, point: &Point) -> Option<f64> {
        let Prior(figures) = self.prior.as_ref()?;
        let loss = |figure: &f64| self.objectives[0].goal.loss(*figure);
        figures.get(point).map(loss).or_else(|| figures.values().map(loss).reduce(f64::max))
    }

    /// The figures of an observation by the objectives, less being better; `None` where one is missing. What was not
    /// reached has a loss of at least that.
    pub fn losses(&self, observation: &Observation) -> Option<Vec<f64>> {
        let metrics = observation.outcome.metrics()?;
        let loss = |o: &Objective| {
            let value = metrics.get(&o.metric).copied().filter(|v| v.is_finite())?;
            Some(o.goal.loss(value))
        };
        self.objectives.iter().map(loss).collect()
    }

    /// By how much each limit holds (at least 0) or not (below 0); `None` where a figure is missing.
    pub fn margins(&self, observation: &Observation) -> Option<Vec<f64>> {
        let metrics = observation.outcome.metrics()?;
        let lookup = |name: &str| {
            let measured = metrics.get(name).map(|v| Value::Number(*v));
            measured.or_else(|| self.space.value(&observation.point, name).cloned())
        };
        self.limits.iter().map(|limit| limit.margin(&lookup)).collect()
    }

    /// Whether every limit holds and every objective was reached and measured.
    pub fn feasible(&self, observation: &Observation) -> bool {
        matches!(observation.outcome, TrialOutcome::Measured(_))
            && self.losses(observation).is_some()
            && self.margins(observation).is_some_and(|margins| margins.iter().all(|m| *m >= 0.0))
    }

    /// The feasible observations of the whole work that no other one beats in every objective; with one objective,
    /// the best (the first of equals).
    pub fn best(&self, history: &[Observation]) -> Vec<usize> {
        let whole = |i: &usize| history[*i].share >= 1.0 && self.feasible(&history[*i]);
        let candidates: Vec<(usize, Vec<f64>)> =
            (0..history.len()).filter(whole).filter_map(|i| Some((i, self.losses(&history[i])?))).collect();
        let beats = |(i, a): &(usize, Vec<f64>), (j, b): &(usize, Vec<f64>)| {
            let no_worse = a.iter().zip(b).all(|(a, b)| a <= b);
            no_worse && (a != b || i < j)
        };
        let unbeaten = candidates.iter().filter(|one| !candidates.iter().any(|other| beats(other, one)));
        unbeaten.map(|(i, _)| *i).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_plan::{Axis, Goal};

    fn problem(objectives: &[(&str, Goal)]) -> Problem {
        let axis = Axis::new("workers", (1..=4).map(|n| Value::Number(f64::from(n))).collect());
        let objective = |(metric, goal): &(&str, Goal)| Objective { metric: (*metric).into(), goal: *goal };
        Problem {
            space: Space::new(vec![axis], vec![]).unwrap(),
            objectives: objectives.iter().map(objective).collect(),
            limits: vec![Condition::parse("accuracy >= 0.9").unwrap()],
            seed: 1,
            budget: None,
            duplicates: false,
            prior: None,
            joins: Joins::new(),
            clock: None,
        }
    }

    fn seen(workers: u32, time: f64, accuracy: f64) -> Observation {
        let metrics = [("time".to_owned(), time), ("accuracy".to_owned(), accuracy)];
        Observation {
            point: Point(vec![Some(workers)]),
            share: 1.0,
            outcome: TrialOutcome::Measured(metrics.into()),
        }
    }

    #[test]
    fn the_best_is_feasible_and_several_objectives_give_a_front() {
        let failed = Observation { outcome: TrialOutcome::Failed, ..seen(3, 0.0, 1.0) };
        let history = [seen(0, 3.0, 0.95), seen(1, 1.0, 0.8), seen(2, 2.0, 0.92), seen(3, 2.0, 0.91), failed];
        assert_eq!(problem(&[("time", Goal::Minimize)]).best(&history), [2]);
        let both = problem(&[("time", Goal::Minimize), ("accuracy", Goal::Maximize)]);
        assert_eq!(both.best(&history), [0, 2]);
        assert!(!both.feasible(&history[1]) && !both.feasible(&history[4]));
        let shortened = Observation { share: 0.3, ..seen(0, 0.1, 0.99) };
        assert_eq!(both.best(&[shortened]), [0usize; 0]);
    }
}
