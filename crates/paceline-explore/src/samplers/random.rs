//! Points drawn evenly at random.

use paceline_plan::Point;
use paceline_random::{Purpose, Stream};

use super::grid::FixedOrder;
use super::{Sampler, SamplerKind, pick};
use crate::problem::{Observation, Problem, Suggestion};

pub const RANDOM: SamplerKind = SamplerKind {
    name: "random",
    about: "points drawn at random, each as likely as any other",
    variants: &[],
    adaptive: false,
    shortens: false,
    finite: false,
    make: |problem, _| {
        let stream = Stream::new(problem.seed, Purpose::Explore);
        let points = pick::all(&problem.space);
        Ok(match points {
            Some(points) if !problem.duplicates => {
                Box::new(FixedOrder { points: pick::shuffled(&points, stream).cloned().collect() })
            }
            points => Box::new(Random { problem: problem.clone(), stream, points }),
        })
    },
};

struct Random {
    problem: Problem,
    stream: Stream,
    points: Option<Vec<Point>>,
}

impl Sampler for Random {
    fn next(&mut self, history: &[Observation]) -> Option<Suggestion> {
        let n = history.len() as u64;
        if let Some(points) = self.points.as_ref().filter(|points| !points.is_empty()) {
            let chosen = self.stream.below(n, points.len() as u64) as usize;
            return Some(Suggestion::whole(points[chosen].clone()));
        }
        let used = pick::used(history);
        let draws = (0..1000).flat_map(|i| pick::draw(&self.problem.space, self.stream.fork(n).fork(i), 1));
        let mut fresh = draws.filter(|point| self.problem.duplicates || !used.contains(point));
        fresh.next().map(Suggestion::whole)
    }
}
