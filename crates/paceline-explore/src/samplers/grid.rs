//! Every point once, in random order: whatever the budget cuts off, no axis is favoured.

use paceline_plan::Point;
use paceline_random::{Purpose, Stream};

use super::{Sampler, SamplerError, SamplerKind, pick};
use crate::problem::{Observation, Suggestion};

pub const GRID: SamplerKind = SamplerKind {
    name: "grid",
    about: "every combination that the constraints allow, in random order",
    variants: &[],
    adaptive: false,
    shortens: false,
    finite: true,
    make: |problem, _| {
        let Some(points) = pick::all(&problem.space) else {
            let many = problem.space.combinations();
            let problem = format!("a grid of {many} combinations is too large; try lhs, sobol or bayes");
            return Err(SamplerError(problem));
        };
        let order = Stream::new(problem.seed, Purpose::Explore);
        Ok(Box::new(FixedOrder { points: pick::shuffled(&points, order).cloned().collect() }))
    },
};

/// Points in an order that is known beforehand.
pub struct FixedOrder {
    pub points: Vec<Point>,
}

impl Sampler for FixedOrder {
    fn next(&mut self, history: &[Observation]) -> Option<Suggestion> {
        // Nearly always the history is the list so far: comparing is much faster than a set of thousands of points.
        let so_far = history.iter().zip(&self.points).all(|(made, point)| made.point == *point);
        if let Some(next) = self.points.get(history.len()).filter(|_| so_far)
            && history.iter().all(|made| made.point != *next)
        {
            return Some(Suggestion::whole(next.clone()));
        }
        let used = pick::used(history);
        self.points.iter().find(|point| !used.contains(point)).cloned().map(Suggestion::whole)
    }
}
