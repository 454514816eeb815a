//! A Latin hypercube: along every axis, the points are spread evenly over the levels.

use std::collections::HashSet;

use paceline_plan::Point;
use paceline_random::{Purpose, Stream};

use super::grid::FixedOrder;
use super::{SamplerKind, pick};
use crate::problem::Problem;

pub const LHS: SamplerKind = SamplerKind {
    name: "lhs",
    about: "a Latin hypercube as large as the budget: every axis's levels equally often",
    variants: &[],
    adaptive: false,
    shortens: false,
    finite: true,
    make: |problem, _| Ok(Box::new(FixedOrder { points: design(problem) })),
};

/// Points per axis where there is no budget.
const PER_AXIS: usize = 10;
/// Hypercubes that are drawn; the one whose closest points are farthest apart is taken.
const TRIES: u64 = 20;

fn design(problem: &Problem) -> Vec<Point> {
    let (space, all) = (&problem.space, pick::all(&problem.space));
    let count = problem.budget.unwrap_or(PER_AXIS * space.axes().len());
    let count = all.as_ref().map_or(count, |all| count.min(all.len()));
    let stream = Stream::new(problem.seed, Purpose::Explore);
    let cube = |attempt: u64| -> Vec<Point> {
        let stream = stream.fork(attempt);
        let axes = 0..space.axes().len() as u64;
        let strata: Vec<Vec<u32>> = axes.map(|axis| stream.fork(axis).permutation(count)).collect();
        (0..count)
            .map(|i| pick::at(space, |axis| (f64::from(strata[axis][i]) + 0.5) / count as f64))
            .collect()
    };
    // How close points are, the closest pair first; only for designs where all pairs can be looked at.
    let closest = |points: &[Point]| {
        let mut least = f64::INFINITY;
        for (i, a) in points.iter().enumerate().filter(|_| points.len() <= 200) {
            for b in &points[..i] {
                least = least.min(space.distances(a, b).map(|d| d * d).sum());
            }
        }
        least
    };
    let cubes = (0..TRIES).map(cube).map(|points| (closest(&points), points));
    let best = cubes.reduce(|best, other| if other.0 > best.0 { other } else { best });
    let wanted = best.map(|(_, points)| points).unwrap_or_default();
    // What is forbidden or there already is replaced by the nearest point that is neither.
    let mut used: HashSet<Point> = HashSet::new();
    let mut points = Vec::with_capacity(count);
    for (i, point) in wanted.into_iter().enumerate() {
        let fits =
            |p: &Point, used: &HashSet<Point>| (problem.duplicates || !used.contains(p)) && space.allows(p);
        let chosen = if fits(&point, &used) {
            Some(point)
        } else if let Some(all) = &all {
            pick::nearest(space, &point, all, |p| problem.duplicates || !used.contains(p)).cloned()
        } else {
            let draws = pick::draw(space, stream.fork(TRIES + i as u64), 100);
            pick::nearest(space, &point, &draws, |p| problem.duplicates || !used.contains(p)).cloned()
        };
        if let Some(chosen) = chosen {
            used.insert(chosen.clone());
            points.push(chosen);
        }
    }
    points
}
