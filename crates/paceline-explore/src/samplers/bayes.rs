//! Bayesian optimisation: a space-filling start, then the point of which most is expected, by Gaussian processes of
//! the objective, of each limit, and of whether runs succeed at all.

use std::collections::HashSet;

use paceline_plan::{Point, Space};
use paceline_random::{Purpose, Stream};

use super::{Sampler, SamplerKind, pick};
use crate::bayes::gaussian::{Features, Gaussian};
use crate::bayes::normal;
use crate::problem::{Observation, Problem, Suggestion, TrialOutcome};

pub const BAYES: SamplerKind = SamplerKind {
    name: "bayes",
    about: "Bayesian optimisation: Gaussian processes over mixed and conditional axes, with limits",
    variants: &[],
    adaptive: true,
    shortens: false,
    finite: false,
    make: |problem, _| {
        let stream = Stream::new(problem.seed, Purpose::Explore);
        Ok(Box::new(Bayes { problem: problem.clone(), stream, all: pick::all(&problem.space) }))
    },
};

struct Bayes {
    problem: Problem,
    stream: Stream,
    all: Option<Vec<Point>>,
}

/// Points that the start has at least, and per axis.
const START: (usize, usize) = (2, 1);
/// Points that each further one of the start is chosen from.
const START_CHOICE: usize = 64;
/// Work of one prediction, in multiplications: bounds how many points are looked at.
const WORK: usize = 12_000_000;
/// Points that are looked at, at least and at most.
const LOOKS: (usize, usize) = (256, 4096);

impl Bayes {
    fn start(&self) -> usize {
        START.0 + START.1 * self.problem.space.axes().len()
    }

    /// Points that may be suggested: all that are left where they are few, else some at random and the neighbours of
    /// the best so far.
    fn open(&self, used: &HashSet<&Point>, best: &[&Point], observed: usize, draw: Stream) -> Vec<Point> {
        let space = &self.problem.space;
        let most = (WORK / (observed * observed).max(1)).clamp(LOOKS.0, LOOKS.1);
        let fresh = |point: &Point| self.problem.duplicates || !used.contains(point);
        let mut open = match &self.all {
            Some(all) => {
                let left: Vec<&Point> = all.iter().filter(|p| fresh(p)).collect();
                if left.len() <= most {
                    return left.into_iter().cloned().collect();
                }
                pick::shuffled(&left, draw).take(most / 2).map(|point| (*point).clone()).collect::<Vec<_>>()
            }
            None => pick::draw(space, draw, most / 2).into_iter().filter(|p| fresh(p)).collect(),
        };
        let near = best.iter().flat_map(|point| neighbours(space, self.all.as_deref(), point));
        open.extend(near.filter(|p| fresh(p)).take(most / 2));
        let mut seen = HashSet::new();
        open.retain(|point| seen.insert(point.clone()));
        open
    }

    /// The point of which most is expected, where somebody expects anything.
    fn promising(&self, used: &HashSet<&Point>) -> Option<Point> {
        let fresh = |point: &&Point| self.problem.duplicates || !used.contains(*point);
        let all = self.all.iter().flatten().filter(fresh);
        let scored = all.filter_map(|point| Some((self.problem.expected(point)?, point)));
        let best = scored.reduce(|best, other| if other.0 < best.0 { other } else { best });
        best.map(|(_, point)| point.clone())
    }

    /// What is expected of points, in the scale of the targets: a process then learns by how much that is wrong.
    fn expected<'p>(&self, losses: &[Vec<f64>], points: impl IntoIterator<Item = &'p Point>) -> Vec<f64> {
        let one = |point: &Point| match self.problem.expected(point) {
            Some(loss) if losses.iter().all(|l| l[0] > 0.0) && loss > 0.0 => loss.ln(),
            Some(loss) if losses.iter().all(|l| l[0] < 0.0) && loss < 0.0 => -(-loss).ln(),
            _ => 0.0,
        };
        let usable = self.problem.objectives.len() == 1 && self.problem.prior.is_some();
        points.into_iter().map(|point| if usable { one(point) } else { 0.0 }).collect()
    }

    /// A point far from those before, out of a few random ones.
    fn spread(&self, used: &HashSet<&Point>, history: &[Observation]) -> Option<Point> {
        let draw = self.stream.fork(history.len() as u64);
        let fresh = |point: &Point| self.problem.duplicates || !used.contains(point);
        let choice: Vec<Point> = match &self.all {
            Some(all) => {
                let left: Vec<&Point> = all.iter().filter(|p| fresh(p)).collect();
                pick::shuffled(&left, draw).take(START_CHOICE).map(|point| (*point).clone()).collect()
            }
            None => pick::draw(&self.problem.space, draw, START_CHOICE),
        };
        let space = &self.problem.space;
        let gap = |point: &Point| {
            let to = |o: &Observation| space.distances(point, &o.point).map(|d| d * d).sum::<f64>();
            history.iter().map(to).fold(f64::INFINITY, f64::min)
        };
        let scored = choice.into_iter().filter(|p| fresh(p)).map(|p| (gap(&p), p));
        scored.reduce(|best, other| if other.0 > best.0 { other } else { best }).map(|(_, point)| point)
    }

    /// What was not reached is a lower bound: its target becomes what is expected beyond that, given the others.
    fn beyond_bounds(&self, measured: &[MeasuredPoint<'_>], missed: &[bool], targets: &mut [f64]) {
        let places = |which: bool| {
            let of = measured.iter().zip(missed).filter(move |(_, missed)| **missed == which);
            Features::new(&self.problem.space, of.map(|((o, ..), _)| &o.point))
        };
        let reached: Vec<f64> =
            targets.iter().zip(missed).filter(|(_, missed)| !**missed).map(|(target, _)| *target).collect();
        if reached.len() < 2 || reached.len() == targets.len() {
            return;
        }
        let others = Gaussian::fit(&places(false), &reached);
        let bounds = targets.iter_mut().zip(missed).filter(|(_, missed)| **missed).map(|(target, _)| target);
        for (bound, (mean, sigma)) in bounds.zip(others.predict(&places(true))) {
            *bound = normal::mean_above(mean, sigma, *bound);
        }
    }

    /// One figure per observation, less being better: logarithms where all are positive; of several objectives, a
    /// weighted worst one, with weights that change from step to step (after ParEGO).
    fn targets(&self, losses: &[Vec<f64>], weights: Stream) -> Vec<f64> {
        let objectives = self.problem.objectives.len();
        let column = |k: usize| -> Vec<f64> {
            let values: Vec<f64> = losses.iter().map(|l| l[k]).collect();
            if values.iter().all(|v| *v > 0.0) {
                values.iter().map(|v| v.ln()).collect()
            } else if values.iter().all(|v| *v < 0.0) {
                values.iter().map(|v| -(-v).ln()).collect()
            } else {
                values
            }
        };
        if objectives == 1 {
            return column(0);
        }
        let columns: Vec<Vec<f64>> = (0..objectives).map(|k| to_unit(column(k))).collect();
        let draws: Vec<f64> = (0..objectives as u64).map(|k| -(1.0 - weights.unit(k)).ln()).collect();
        let total: f64 = draws.iter().sum();
        let one = |i: usize| {
            let parts = || columns.iter().zip(&draws).map(|(column, w)| column[i] * w / total);
            parts().fold(f64::NEG_INFINITY, f64::max) + 0.05 * parts().sum::<f64>()
        };
        (0..losses.len()).map(one).collect()
    }
}

/// An observation with its losses and its margins.
type MeasuredPoint<'o> = (&'o Observation, Vec<f64>, Vec<f64>);

fn to_unit(values: Vec<f64>) -> Vec<f64> {
    let (low, high) =
        values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(*v), b.max(*v)));
    values.into_iter().map(|v| if high > low { (v - low) / (high - low) } else { 0.0 }).collect()
}

/// Points that differ in one axis; in a list, the nearest ones.
fn neighbours(space: &Space, all: Option<&[Point]>, point: &Point) -> Vec<Point> {
    if let (Some(_), Some(all)) = (space.list(), all) {
        let mut near: Vec<(f64, &Point)> =
            all.iter().map(|p| (space.distances(point, p).map(|d| d * d).sum(), p)).collect();
        near.sort_by(|a, b| a.0.total_cmp(&b.0));
        return near.into_iter().skip(1).take(32).map(|(_, p)| p.clone()).collect();
    }
    let mut near = Vec::new();
    for (axis, levels) in space.axes().iter().map(|a| a.levels.len() as u32).enumerate() {
        for level in 0..levels {
            let mut moved = point.clone();
            // An axis that this one brings with it begins at its first level.
            for (other, place) in moved.0.iter_mut().enumerate() {
                *place = if other == axis { Some(level) } else { Some(place.unwrap_or(0)) };
            }
            space.settle(&mut moved);
            if moved != *point && space.allows(&moved) {
                near.push(moved);
            }
        }
    }
    near
}

impl Sampler for Bayes {
    fn next(&mut self, history: &[Observation]) -> Option<Suggestion> {
        let used = pick::used(history);
        let figures = |o| Some((o, self.problem.losses(o)?, self.problem.margins(o)?));
        let measured: Vec<MeasuredPoint<'_>> = history.iter().filter_map(figures).collect();
        let few = measured.len() < 2;
        if few || (self.problem.prior.is_none() && history.len() < self.start()) {
            // What is expected to be good is as good a start as any.
            let promising = if few { self.promising(&used) } else { None };
            return promising.or_else(|| self.spread(&used, history)).map(Suggestion::whole);
        }
        let space = &self.problem.space;
        let seen = Features::new(space, measured.iter().map(|(o, ..)| &o.point));
        let losses: Vec<Vec<f64>> = measured.iter().map(|(_, losses, _)| losses.clone()).collect();
        let step = self.stream.fork(history.len() as u64);
        let mut targets = self.targets(&losses, step.fork(1));
        let before = self.expected(&losses, measured.iter().map(|(o, ..)| &o.point));
        targets.iter_mut().zip(&before).for_each(|(target, expected)| *target -= expected);
        let missed: Vec<bool> =
            measured.iter().map(|(o, ..)| matches!(o.outcome, TrialOutcome::AtLeast(_))).collect();
        self.beyond_bounds(&measured, &missed, &mut targets);
        let mut objective = Gaussian::fit(&seen, &targets);

        let pending: Vec<&Point> =
            history.iter().filter(|o| o.outcome == TrialOutcome::Pending).map(|o| &o.point).collect();
        if !pending.is_empty() {
            objective = objective.condition_on_pending(&targets, &Features::new(space, pending));
        }
        let within = |(_, _, margins): &MeasuredPoint<'_>| margins.iter().all(|m| *m >= 0.0);
        let fits: Vec<bool> =
            measured.iter().zip(&missed).map(|(one, missed)| within(one) && !missed).collect();
        // What was reached is what the process makes of it: single figures are noisy.
        let learnt = objective.predict(&seen).into_iter().zip(&before);
        let means: Vec<f64> = learnt.map(|((mean, _), expected)| mean + expected).collect();
        let reached = |only: bool| {
            let good = means.iter().zip(&fits).filter(|(_, fits)| **fits || !only);
            good.map(|(mean, _)| *mean).fold(f64::INFINITY, f64::min)
        };
        let goal = Some(reached(true)).filter(|g| g.is_finite());

        let mut order: Vec<usize> = (0..means.len()).collect();
        order.sort_by(|a, b| (!fits[*a], means[*a]).partial_cmp(&(!fits[*b], means[*b])).expect("finite"));
        let best: Vec<&Point> = order.iter().take(8).map(|i| &measured[*i].0.point).collect();
        let open = self.open(&used, &best, measured.len(), step.fork(2));
        let places = Features::new(space, &open);

        let mut scores: Vec<f64> = match goal {
            Some(goal) => {
                let score = |((mean, sigma), expected): ((f64, f64), f64)| {
                    sigma.ln() + normal::ln_expected_improvement((goal - mean - expected) / sigma)
                };
                objective.predict(&places).into_iter().zip(self.expected(&losses, &open)).map(score).collect()
            }
            // Nothing is feasible yet: only that counts.
            None => vec![0.0; open.len()],
        };
        for limit in 0..self.problem.limits.len() {
            let margins: Vec<f64> = measured.iter().map(|(_, _, margins)| margins[limit]).collect();
            if goal.is_some() && margins.iter().all(|m| *m >= 0.0) && margins.len() > 30 {
                continue;
            }
            let process = Gaussian::fit(&seen, &margins);
            for (score, (mean, sigma)) in scores.iter_mut().zip(process.predict(&places)) {
                *score += normal::ln_below(mean / sigma);
            }
        }
        // Where runs fail or miss, and others do not.
        let lost = |o: &Observation| matches!(o.outcome, TrialOutcome::Failed | TrialOutcome::AtLeast(_));
        if history.iter().any(lost) {
            let ended: Vec<&Observation> =
                history.iter().filter(|o| o.outcome != TrialOutcome::Pending).collect();
            let success: Vec<f64> = ended.iter().map(|o| if lost(o) { -1.0 } else { 1.0 }).collect();
            let process = Gaussian::fit(&Features::new(space, ended.iter().map(|o| &o.point)), &success);
            for (score, (mean, sigma)) in scores.iter_mut().zip(process.predict(&places)) {
                *score += normal::ln_below(mean / sigma.max(0.1));
            }
        }
        let best =
            scores.iter().enumerate().reduce(|best, other| if other.1 > best.1 { other } else { best });
        best.map(|(i, _)| Suggestion::whole(open[i].clone()))
    }
}
