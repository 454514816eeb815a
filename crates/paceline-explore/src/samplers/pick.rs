//! Points out of numbers: what the samplers share.

use std::collections::HashSet;

use paceline_plan::{ENUMERABLE, Point, Space};
use paceline_random::Stream;

use crate::problem::Observation;

pub fn used(history: &[Observation]) -> HashSet<&Point> {
    history.iter().map(|o| &o.point).collect()
}

/// The point whose levels lie at these places between 0 and 1; every level takes an equal share.
pub fn at(space: &Space, unit: impl Fn(usize) -> f64) -> Point {
    let level = |(i, axis): (usize, &paceline_plan::Axis)| {
        let levels = axis.levels.len();
        Some(((unit(i) * levels as f64) as usize).min(levels - 1) as u32)
    };
    let mut point = Point(space.axes().iter().enumerate().map(level).collect());
    space.settle(&mut point);
    point
}

/// Every point, where there are few enough to look at each.
pub fn all(space: &Space) -> Option<Vec<Point>> {
    space.points(ENUMERABLE)
}

/// Things in random order.
pub fn shuffled<T>(things: &[T], stream: Stream) -> impl Iterator<Item = &T> {
    stream.permutation(things.len()).into_iter().map(|i| &things[i as usize])
}

/// Random points of a space that is too large to look at each; fewer than `count` where constraints leave hardly any.
pub fn draw(space: &Space, stream: Stream, count: usize) -> Vec<Point> {
    let mut found = Vec::with_capacity(count);
    for i in 0..(count as u64).saturating_mul(200) {
        let draw = stream.fork(i);
        let point = at(space, |axis| draw.unit(axis as u64));
        if space.allows(&point) {
            found.push(point);
            if found.len() == count {
                break;
            }
        }
    }
    found
}

/// The nearest point that satisfies `wanted`, by the sum of distances per axis; the first of equals.
pub fn nearest<'a>(
    space: &Space,
    to: &Point,
    among: &'a [Point],
    wanted: impl Fn(&Point) -> bool,
) -> Option<&'a Point> {
    let distance = |point: &Point| space.distances(to, point).map(|d| d * d).sum::<f64>();
    let open = among.iter().filter(|point| wanted(point)).map(|point| (distance(point), point));
    open.min_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, point)| point)
}
