//! Runs that did not reach what was to be measured: how often that happens, what it takes up to the time that runs
//! were given, and what they have in common. They are censored, not gone: their time is at least what they were given.

use serde::Serialize;

use crate::table::{Factor, Run, StudyTable};

/// What is known about misses of a response.
#[derive(Clone, Debug, Serialize)]
pub struct Misses {
    /// Runs of points.
    pub runs: usize,
    /// Of these, those that reached it.
    pub reached: usize,
    /// The chance to reach it, with its interval (Wilson's).
    pub chance: (f64, f64, f64),
    /// The mean up to the time that runs were given at most, and that time (the area under Kaplan and Meier's curve).
    pub restricted_mean: (f64, f64),
    /// What those that missed it have in common; none where nothing tells them from the others.
    pub pattern: Option<MissPattern>,
    /// Ids of those that missed it.
    pub missed: Vec<String>,
}

/// What runs that missed have in common.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MissPattern {
    /// In words, e.g. `batch 64 and two or more workers`.
    pub words: String,
    /// Runs like that.
    pub like: usize,
    /// Of these, those that reached it all the same.
    pub reached: usize,
}

/// One part of a pattern: levels of a factor, one after another.
struct Condition {
    factor: usize,
    from: usize,
    to: usize,
}

impl Condition {
    fn holds(&self, run: &Run) -> bool {
        (self.from..=self.to).contains(&run.levels[self.factor])
    }

    fn words(&self, factor: &Factor) -> String {
        let (low, high) = (&factor.levels[self.from].text, &factor.levels[self.to].text);
        let (first, last) = (self.from == 0, self.to + 1 == factor.acting());
        match (self.from == self.to, first, last) {
            (true, ..) => format!("{} {low}", factor.name),
            (_, false, true) if factor.acting_numbers().is_some() => format!("{} {low} or more", factor.name),
            (_, true, false) if factor.acting_numbers().is_some() => {
                format!("{} {high} or less", factor.name)
            }
            _ if factor.acting_numbers().is_some() => format!("{} {low} to {high}", factor.name),
            _ => {
                let names: Vec<&str> =
                    factor.levels[self.from..=self.to].iter().map(|l| l.text.as_str()).collect();
                format!("{} {}", factor.name, names.join(" or "))
            }
        }
    }
}

/// Ranges of numbers, and single words, that some factor can be told by: not all of its levels.
fn conditions(table: &StudyTable) -> Vec<Condition> {
    let mut all = Vec::new();
    for (f, factor) in table.factors.iter().enumerate() {
        let levels = factor.acting();
        let numbers = factor.acting_numbers().is_some();
        for from in 0..levels {
            // Of many numbers, ranges that begin or end at an end.
            let ends = if numbers { from..levels } else { from..(from + 1).min(levels) };
            for to in ends.filter(|to| *to == from || from == 0 || to + 1 == levels) {
                if to - from + 1 < factor.levels.len() {
                    all.push(Condition { factor: f, from, to });
                }
            }
        }
    }
    all
}

/// The simplest pattern that all misses share and the fewest others have.
fn pattern(table: &StudyTable, missed: &[&Run], reached: &[&Run]) -> Option<MissPattern> {
    let shared: Vec<Condition> =
        conditions(table).into_iter().filter(|c| missed.iter().all(|run| c.holds(run))).collect();
    let others = |of: &[&Condition]| reached.iter().filter(|run| of.iter().all(|c| c.holds(run))).count();
    let singles = shared.iter().map(|c| vec![c]);
    let pairs = shared
        .iter()
        .enumerate()
        .flat_map(|(i, a)| shared[i + 1..].iter().filter(|b| b.factor != a.factor).map(move |b| vec![a, b]));
    // One condition is told rather than two that are no better; of equals, the first.
    let best =
        singles.chain(pairs).map(|of| (others(&of), of.len(), of)).min_by_key(|(n, len, _)| (*n, *len))?;
    let (also, _, of) = best;
    let like = missed.len() + also;
    // Most of what the pattern holds for must have missed, and less often elsewhere.
    let telling = missed.len() * 2 > like && like < missed.len() + reached.len();
    let words = of.iter().map(|c| c.words(&table.factors[c.factor])).collect::<Vec<_>>().join(" and ");
    telling.then_some(MissPattern { words, like, reached: also })
}

/// Wilson's interval of a chance.
fn chance(hits: usize, n: usize) -> (f64, f64, f64) {
    let (n, p, z) = (n as f64, hits as f64 / n as f64, 1.959_964);
    let (middle, whole) = (p + z * z / (2.0 * n), 1.0 + z * z / n);
    let half = z * (p * (1.0 - p) / n + z * z / (4.0 * n * n)).sqrt();
    (p, ((middle - half) / whole).max(0.0), ((middle + half) / whole).min(1.0))
}

/// The area under the part that has not reached it yet, up to the last time, and that time.
fn restricted_mean(mut times: Vec<(f64, bool)>) -> (f64, f64) {
    // What is reached at a moment counts before what is given up then.
    times.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
    let (mut left, mut last, mut area) = (1.0, 0.0, 0.0);
    let n = times.len();
    for (i, (time, reached)) in times.iter().enumerate() {
        area += left * (time - last);
        last = *time;
        if *reached {
            left *= 1.0 - 1.0 / (n - i) as f64;
        }
    }
    (area, last)
}

impl Misses {
    /// Of a response; none where every run reached it.
    pub fn new(table: &StudyTable, response: usize) -> Option<Self> {
        let (reached, missed) = (table.measured(response), table.missed(response));
        if missed.is_empty() {
            return None;
        }
        let scale = &table.responses[response];
        let times = |of: &[(&Run, f64)], hit: bool| -> Vec<(f64, bool)> {
            of.iter().map(|(_, value)| (scale.unscaled(*value), hit)).collect()
        };
        let all = [times(&reached, true), times(&missed, false)].concat();
        let [lost, found] = [&missed, &reached].map(|of| of.iter().map(|(run, _)| *run).collect::<Vec<_>>());
        Some(Self {
            runs: all.len(),
            reached: reached.len(),
            chance: chance(reached.len(), all.len()),
            restricted_mean: restricted_mean(all),
            pattern: pattern(table, &lost, &found),
            missed: lost.iter().map(|run| run.id.clone()).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{RawRun, Response};

    fn study(misses: impl Fn(u32, u32) -> bool) -> StudyTable {
        let run = |i: u32| {
            let (workers, batch) = (1 + i % 4, 16 << (i / 4 % 3));
            let missed = misses(workers, batch);
            RawRun {
                id: format!("r{i}"),
                levels: vec![workers.to_string(), batch.to_string()],
                values: vec![(!missed).then_some(f64::from(i % 5 + 1))],
                bounds: vec![missed.then_some(8.0)],
                ..RawRun::default()
            }
        };
        let names = ["workers", "batch"].map(String::from);
        StudyTable::new("t", &names, vec![Response::parse("time_s").unwrap()], (0..24).map(run).collect())
    }

    #[test]
    fn what_misses_have_in_common_is_found() {
        let told = |misses: fn(u32, u32) -> bool| Misses::new(&study(misses), 0);
        let both = told(|workers, batch| batch == 64 && workers >= 2).unwrap();
        assert_eq!(both.pattern.as_ref().unwrap().words, "workers 2 or more and batch 64");
        assert_eq!((both.pattern.unwrap().reached, both.runs, both.reached), (0, 24, 18));
        let one = told(|_, batch| batch < 64).unwrap();
        assert_eq!(one.pattern.unwrap().words, "batch 32 or less");
        assert!(told(|_, _| false).is_none());
        // Here and there: nothing tells them from the others.
        assert_eq!(told(|workers, batch| (workers + batch / 16) % 4 == 0).unwrap().pattern, None);
    }

    #[test]
    fn the_restricted_mean_is_the_area_under_the_curve() {
        // By hand: 1 until 1, 2/3 until 2, 1/3 until the end at 5.
        let (mean, up_to) = restricted_mean(vec![(1.0, true), (2.0, true), (5.0, false)]);
        assert!((mean - (1.0 + 2.0 / 3.0 + 1.0)).abs() < 1e-12 && up_to == 5.0);
        // One that was given up early weighs on those that were still to come.
        let (mean, _) = restricted_mean(vec![(1.0, false), (2.0, true), (4.0, true)]);
        assert!((mean - 3.0).abs() < 1e-12);
        let (p, low, high) = chance(8, 10);
        assert!(p == 0.8 && (low - 0.490).abs() < 1e-3 && (high - 0.943).abs() < 1e-3, "{low} {high}");
    }
}
