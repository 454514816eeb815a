//! Successive halving over samples: many points with little training, the best third of them with three times as
//! much, and so on to the whole.

use paceline_plan::Point;
use paceline_random::{Purpose, Stream};

use super::{Sampler, SamplerKind, pick};
use crate::problem::{Observation, Problem, Suggestion, TrialOutcome};

pub const HALVING: SamplerKind = SamplerKind {
    name: "halving",
    about: "many short runs, the best third three times as long, up to the whole (successive halving)",
    variants: &[],
    adaptive: true,
    shortens: true,
    finite: true,
    make: |problem, _| Ok(Box::new(Halving::new(problem))),
};

/// The share that goes on, and by how much longer it runs.
const FACTOR: usize = 3;
/// Rungs: shares 1/9, 1/3 and 1 of the work.
const RUNGS: usize = 3;
/// Points of the first rung where there is no budget.
const FIRST: usize = 27;

struct Halving {
    problem: Problem,
    first: Vec<Point>,
}

impl Halving {
    fn new(problem: &Problem) -> Self {
        // Rungs of n, n/3 and n/9 points make 13/9 n runs.
        let runs = problem.budget.unwrap_or(FIRST * 13 / 9);
        let count = (1..).take_while(|n| sizes(*n).iter().sum::<usize>() <= runs).last().unwrap_or(1);
        let stream = Stream::new(problem.seed, Purpose::Explore);
        let first = match pick::all(&problem.space) {
            Some(all) => pick::shuffled(&all, stream).take(count).cloned().collect(),
            None => {
                let mut points = pick::draw(&problem.space, stream, 2 * count);
                let mut seen = std::collections::HashSet::new();
                points.retain(|point| seen.insert(point.clone()));
                points.truncate(count);
                points
            }
        };
        Self { problem: problem.clone(), first }
    }

    fn share(rung: usize) -> f64 {
        1.0 / FACTOR.pow((RUNGS - 1 - rung) as u32) as f64
    }

    /// Points by what they achieved, the best first; those without figures and those that break a limit come last.
    fn ranked(&self, rung: &[&Observation]) -> Vec<Point> {
        let mut order: Vec<usize> = (0..rung.len()).collect();
        // With several objectives, the sum of ranks.
        let losses: Vec<Option<Vec<f64>>> = rung.iter().map(|o| self.problem.losses(o)).collect();
        let rank = |i: usize| -> f64 {
            let Some(own) = &losses[i] else { return f64::INFINITY };
            let better = |other: &Vec<f64>| own.iter().zip(other).filter(|(a, b)| b < a).count();
            losses.iter().flatten().map(better).sum::<usize>() as f64
        };
        let broken = |i: usize| !self.problem.feasible(rung[i]);
        order.sort_by(|&a, &b| {
            (broken(a), rank(a)).partial_cmp(&(broken(b), rank(b))).expect("ranks are numbers")
        });
        order.into_iter().map(|i| rung[i].point.clone()).collect()
    }
}

fn sizes(first: usize) -> [usize; RUNGS] {
    let mut sizes = [first; RUNGS];
    for rung in 1..RUNGS {
        sizes[rung] = sizes[rung - 1].div_ceil(FACTOR);
    }
    sizes
}

impl Sampler for Halving {
    fn next(&mut self, history: &[Observation]) -> Option<Suggestion> {
        let mut points = self.first.clone();
        for (rung, size) in sizes(self.first.len()).into_iter().enumerate() {
            let share = Self::share(rung);
            points.truncate(size);
            let here = |o: &&Observation| (o.share - share).abs() < 1e-9 && points.contains(&o.point);
            let made: Vec<&Observation> = history.iter().filter(here).collect();
            let missing = points.iter().find(|point| made.iter().all(|o| o.point != **point));
            if let Some(point) = missing {
                return Some(Suggestion { point: point.clone(), share });
            }
            // The next rung is chosen when all of this one have ended.
            if made.iter().any(|o| o.outcome == TrialOutcome::Pending) {
                return None;
            }
            points = self.ranked(&made);
        }
        None
    }

    fn notes(&self) -> Vec<String> {
        let sizes = sizes(self.first.len());
        let rung =
            |(i, n): (usize, &usize)| format!("{n} runs with {:.0}% of the work", 100.0 * Self::share(i));
        vec![sizes.iter().enumerate().map(rung).collect::<Vec<_>>().join(", then ")]
    }
}
