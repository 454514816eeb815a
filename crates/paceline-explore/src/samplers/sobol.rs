//! A Sobol sequence, scrambled by the seed: evenly spread whenever one stops.

use std::collections::HashSet;

use paceline_plan::Point;
use paceline_random::{Purpose, Stream};

use super::{Sampler, SamplerError, SamplerKind, pick};
use crate::problem::{Observation, Problem, Suggestion};

pub const SOBOL: SamplerKind = SamplerKind {
    name: "sobol",
    about: "a scrambled Sobol sequence: evenly spread whenever one stops",
    variants: &[],
    adaptive: false,
    shortens: false,
    finite: false,
    make: |problem, _| {
        let axes = problem.space.axes().len();
        if axes > sobol_burley::NUM_DIMENSIONS as usize {
            return Err(SamplerError(format!("sobol has 256 dimensions at most, not {axes}; try lhs")));
        }
        let seed = Stream::new(problem.seed, Purpose::Explore).at(0) as u32;
        Ok(Box::new(Sobol { problem: problem.clone(), seed, all: pick::all(&problem.space) }))
    },
};

struct Sobol {
    problem: Problem,
    seed: u32,
    all: Option<Vec<Point>>,
}

/// Numbers of the sequence that are looked at for one point.
const PATIENCE: u32 = 1 << 14;

impl Sobol {
    fn at(&self, index: u32) -> Point {
        pick::at(&self.problem.space, |axis| f64::from(sobol_burley::sample(index, axis as u32, self.seed)))
    }
}

impl Sampler for Sobol {
    fn next(&mut self, history: &[Observation]) -> Option<Suggestion> {
        let used: HashSet<&Point> = pick::used(history);
        if self.problem.duplicates {
            let allowed =
                (0..u32::from(u16::MAX)).map(|i| self.at(i)).filter(|p| self.problem.space.allows(p));
            return allowed.skip(history.len()).map(Suggestion::whole).next();
        }
        let space = &self.problem.space;
        // A list holds few of the combinations: each number of the sequence stands for the row nearest to it.
        if let Some(listed) = space.list() {
            let wanted = self.at(history.len() as u32);
            return pick::nearest(space, &wanted, listed, |p| !used.contains(p))
                .cloned()
                .map(Suggestion::whole);
        }
        let fresh = (0..PATIENCE).map(|i| self.at(i)).find(|p| !used.contains(p) && space.allows(p));
        let left = || self.all.as_ref()?.iter().find(|p| !used.contains(p)).cloned();
        fresh.or_else(left).map(Suggestion::whole)
    }
}
