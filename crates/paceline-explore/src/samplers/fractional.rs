//! Two-level designs: every axis at its first and its last level only, in few runs that still tell the axes' effects
//! apart.

use paceline_plan::Point;
use paceline_random::{Purpose, Stream};

use super::{Sampler, SamplerError, SamplerKind, pick};
use crate::design::{Design, Resolution};
use crate::problem::{Observation, Problem, Suggestion};

pub const FRACTIONAL: SamplerKind = SamplerKind {
    name: "fractional",
    about: "a two-level design of the axes' first and last levels; :III, :IV, :V or :plackett-burman",
    variants: &["III", "IV", "V", "plackett-burman"],
    adaptive: false,
    shortens: false,
    finite: true,
    make: |problem, variant| Ok(Box::new(Fractional::new(problem, variant)?)),
};

struct Fractional {
    points: Vec<Point>,
    notes: Vec<String>,
}

impl Fractional {
    fn new(problem: &Problem, variant: &str) -> Result<Self, SamplerError> {
        let space = &problem.space;
        let axes = space.axes().len();
        let resolution = match variant {
            "III" => Some(Resolution::III),
            "IV" => Some(Resolution::IV),
            "V" => Some(Resolution::V),
            _ => None,
        };
        let fits = |design: &Design| problem.budget.is_none_or(|budget| design.rows.len() <= budget);
        let design = match (variant, resolution) {
            ("plackett-burman", _) => Design::plackett_burman(axes),
            (_, Some(resolution)) => Design::fractional(axes, resolution),
            // The best that the budget allows.
            _ => [Resolution::V, Resolution::IV, Resolution::III]
                .into_iter()
                .filter_map(|resolution| Design::fractional(axes, resolution))
                .find(fits)
                .or_else(|| Design::plackett_burman(axes)),
        };
        let Some(design) = design else {
            return Err(SamplerError(format!("there is no such design of {axes} axes with up to 4096 runs")));
        };
        if !fits(&design) {
            let (runs, budget) = (design.rows.len(), problem.budget.unwrap_or(0));
            let name = &design.name;
            return Err(SamplerError(format!(
                "{name} of {axes} axes has {runs} runs, the budget {budget}: a part of a design says nothing"
            )));
        }
        let mut notes = vec![design.describe(space.axes().iter().map(|a| a.name.as_str()))];
        let many: Vec<_> =
            space.axes().iter().filter(|a| a.levels.len() > 2).map(|a| a.name.as_str()).collect();
        if !many.is_empty() {
            notes.push(format!("first and last levels only of {}", many.join(", ")));
        }
        let mut points: Vec<Point> = Vec::new();
        let (mut forbidden, mut again) = (0, 0);
        for row in &design.rows {
            let level = |high: bool, levels: usize| Some(if high { levels as u32 - 1 } else { 0 });
            let levels = row.iter().zip(space.axes()).map(|(high, axis)| level(*high, axis.levels.len()));
            let mut point = Point(levels.collect());
            space.settle(&mut point);
            if !space.allows(&point) {
                forbidden += 1;
            } else if points.contains(&point) {
                again += 1;
            } else {
                points.push(point);
            }
        }
        if forbidden + again > 0 {
            notes.push(format!(
                "{forbidden} of {} rows are forbidden by constraints and {again} coincide with others, because axes are \
                 not there: effects are not told apart cleanly",
                design.rows.len()
            ));
        }
        let order = Stream::new(problem.seed, Purpose::Explore);
        Ok(Self { points: pick::shuffled(&points, order).cloned().collect(), notes })
    }
}

impl Sampler for Fractional {
    fn next(&mut self, history: &[Observation]) -> Option<Suggestion> {
        let used = pick::used(history);
        self.points.iter().find(|point| !used.contains(point)).cloned().map(Suggestion::whole)
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}
