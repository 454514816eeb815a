//! How speed grows with workers: speed-up, efficiency, and the laws of Amdahl and Gunther (the universal scalability
//! law) fitted to them.
//!
//! Noise of speeds is relative, so laws are fitted to logarithms.

use std::collections::BTreeMap;

use paceline_plan::Goal;
use paceline_statistics::{distinct, mean};
use serde::Serialize;

use crate::anova::Estimate;
use crate::linear::Fit;
use crate::table::{RunRole, StudyTable};

/// Mean speed of one number of workers.
#[derive(Clone, Debug, Serialize)]
pub struct Rung {
    /// Workers.
    pub workers: f64,
    /// Runs.
    pub n: usize,
    /// Speed relative to the least number of workers.
    pub speed_up: f64,
    /// Speed-up per worker, relative to the least number of workers.
    pub efficiency: f64,
}

/// A law fitted to speeds.
#[derive(Clone, Debug, Serialize)]
pub struct Law {
    /// Speed of one worker, in 1 / unit of the response (or its unit, if more is better).
    pub one: f64,
    /// Contention: the part of the work that workers queue for; Amdahl's serial fraction.
    pub contention: Estimate,
    /// Coherence: what every pair of workers costs; 0 for Amdahl.
    pub coherence: Estimate,
    /// Typical relative error.
    pub error: f64,
    /// Number of workers with the greatest speed, where there is one.
    pub peak: Option<f64>,
}

impl Law {
    /// Speed with a number of workers.
    pub fn speed(&self, workers: f64) -> f64 {
        self.one * workers / denominator(workers, self.contention.value, self.coherence.value)
    }
}

/// One configuration at several numbers of workers.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    /// All but the workers.
    pub configuration: String,
    /// By workers.
    pub rungs: Vec<Rung>,
    /// Amdahl's law; needs two numbers of workers and three runs.
    pub amdahl: Option<Law>,
    /// The universal scalability law; needs three numbers of workers and four runs.
    pub usl: Option<Law>,
}

/// Fits a law to workers and speeds.
pub fn fit(points: &[(f64, f64)], coherence: bool) -> Option<Law> {
    let counts = distinct(points.iter().map(|(p, _)| *p));
    let free = if coherence { 3 } else { 2 };
    if counts.len() < free || points.len() <= free || points.iter().any(|(p, x)| *p < 1.0 || *x <= 0.0) {
        return None;
    }
    let logs: Vec<f64> = points.iter().map(|(p, x)| (x / p).ln()).collect();
    let cost = |[one, s, k]: [f64; 3]| -> f64 {
        points.iter().zip(&logs).map(|((p, _), y)| (y - one + denominator(*p, s, k).ln()).powi(2)).sum()
    };
    let mut best: Option<([f64; 3], f64, Vec<bool>)> = None;
    for (s, k) in [(0.05, 0.0), (0.3, 0.0), (0.02, 0.005), (0.3, 0.05), (0.8, 0.01)] {
        let start = [
            logs.iter().zip(points).map(|(y, (p, _))| y + denominator(*p, s, k).ln()).sum::<f64>()
                / logs.len() as f64,
            s,
            if coherence { k } else { 0.0 },
        ];
        let (found, at_bound) = descend(points, &logs, start, coherence, &cost);
        let reached = cost(found);
        if best.as_ref().is_none_or(|(_, least, _)| reached < *least) {
            best = Some((found, reached, at_bound));
        }
    }
    let ([one, s, k], rss, at_bound) = best?;
    let jacobian = jacobian(points, s, k);
    // Errors of those that are free: a value that is held at zero has no slope there.
    let open: Vec<usize> = (0..free).filter(|i| !at_bound[*i]).collect();
    let columns: Vec<Vec<f64>> = open.iter().map(|i| jacobian[*i].clone()).collect();
    let linear = Fit::new(&columns, &logs);
    let deviation = (rss / linear.df.max(1) as f64).sqrt();
    let estimate = |which: usize, value: f64| {
        let error = open.iter().position(|i| *i == which).and_then(|at| {
            let mut weights = vec![0.0; open.len()];
            weights[at] = 1.0;
            linear.combination(&weights).map(|(_, scale)| (deviation * scale, linear.df as f64))
        });
        Estimate::new(value, error.filter(|(_, df)| *df > 0.0), 0.05)
    };
    let peak = (k > 0.0 && s < 1.0).then(|| ((1.0 - s) / k).sqrt());
    Some(Law {
        one: one.exp(),
        contention: estimate(1, s),
        coherence: estimate(2, k),
        error: (rss / points.len() as f64).sqrt(),
        peak,
    })
}

fn denominator(p: f64, s: f64, k: f64) -> f64 {
    1.0 + s * (p - 1.0) + k * p * (p - 1.0)
}

/// Derivatives of the logarithm of speed per worker.
fn jacobian(points: &[(f64, f64)], s: f64, k: f64) -> [Vec<f64>; 3] {
    let of = |f: &dyn Fn(f64, f64) -> f64| points.iter().map(|(p, _)| f(*p, denominator(*p, s, k))).collect();
    [of(&|_, _| 1.0), of(&|p, d| -(p - 1.0) / d), of(&|p, d| -p * (p - 1.0) / d)]
}

/// Levenberg and Marquardt's descent within the bounds: contention 0 to 1, coherence from 0 on.
fn descend(
    points: &[(f64, f64)],
    logs: &[f64],
    mut at: [f64; 3],
    coherence: bool,
    cost: &dyn Fn([f64; 3]) -> f64,
) -> ([f64; 3], Vec<bool>) {
    let free = if coherence { 3 } else { 2 };
    let (mut now, mut damping) = (cost(at), 1e-3);
    let bounds = [(f64::NEG_INFINITY, f64::INFINITY), (0.0, 1.0), (0.0, f64::INFINITY)];
    for _ in 0..500 {
        let slopes = jacobian(points, at[1], at[2]);
        let left = |((p, _), y): (&(f64, f64), &f64)| y - at[0] + denominator(*p, at[1], at[2]).ln();
        let rest: Vec<f64> = points.iter().zip(logs).map(left).collect();
        // A value at a bound that wants to go further stays out of this step.
        let push = |i: usize| slopes[i].iter().zip(&rest).map(|(s, r)| s * r).sum::<f64>();
        let stuck =
            |i: usize| (at[i] <= bounds[i].0 && push(i) <= 0.0) || (at[i] >= bounds[i].1 && push(i) >= 0.0);
        let open: Vec<usize> = (0..free).filter(|i| !stuck(*i)).collect();
        let mut columns: Vec<Vec<f64>> = open.iter().map(|i| slopes[*i].clone()).collect();
        let norms: Vec<f64> = columns.iter().map(|c| c.iter().map(|v| v * v).sum::<f64>()).collect();
        for (j, column) in columns.iter_mut().enumerate() {
            column.extend((0..open.len()).map(|i| if i == j { (damping * norms[j]).sqrt() } else { 0.0 }));
        }
        let mut right = rest.clone();
        right.resize(rest.len() + open.len(), 0.0);
        let step = Fit::new(&columns, &right).coefficients;
        let mut next = at;
        for (i, change) in open.iter().zip(&step) {
            next[*i] = (next[*i] + change).clamp(bounds[*i].0, bounds[*i].1);
        }
        let reached = cost(next);
        if reached <= now {
            let moved: f64 = next.iter().zip(at).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            (at, now, damping) = (next, reached, (damping * 0.2).max(1e-14));
            if moved < 1e-13 {
                break;
            }
        } else {
            damping *= 6.0;
            if damping > 1e12 {
                break;
            }
        }
    }
    let held = (0..3).map(|i| i >= free || at[i] <= bounds[i].0 || at[i] >= bounds[i].1).collect();
    (at, held)
}

/// Series of a response by the factor that counts workers; those with one number of workers only are left out.
pub fn series(table: &StudyTable, response: usize, workers: usize) -> Vec<Series> {
    let Some(counts) = table.factors[workers].numbers() else { return Vec::new() };
    let scale = &table.responses[response];
    let mut by_rest: BTreeMap<Vec<usize>, Vec<(f64, f64)>> = BTreeMap::new();
    for run in table.runs.iter().filter(|run| run.role == RunRole::Point) {
        let Some(value) = run.values[response].filter(|v| *v > 0.0) else { continue };
        let speed = if scale.goal == Goal::Maximize { value } else { 1.0 / value };
        let mut rest = run.levels.clone();
        rest[workers] = 0;
        by_rest.entry(rest).or_default().push((counts[run.levels[workers]], speed));
    }
    // One worker alone, to which a strategy means nothing, begins the series of every strategy.
    let absent = |(f, level): (usize, &usize)| table.factors[f].levels[*level].absent();
    let mut general = by_rest.clone();
    general.retain(|rest, _| rest.iter().enumerate().any(absent));
    for (rest, points) in by_rest.iter_mut() {
        for (other, more) in general.iter().filter(|(other, _)| *other != rest) {
            let fits = |(f, (own, other)): (usize, (&usize, &usize))| own == other || absent((f, other));
            if rest.iter().zip(other).enumerate().all(fits) {
                points.extend(more);
            }
        }
    }
    let mut found = Vec::new();
    for (rest, points) in by_rest {
        let mut by_count: BTreeMap<u64, (f64, Vec<f64>)> = BTreeMap::new();
        for (p, x) in &points {
            by_count.entry(p.to_bits()).or_insert((*p, Vec::new())).1.push(x.ln());
        }
        if by_count.len() < 2 {
            continue;
        }
        let means: Vec<(f64, usize, f64)> =
            by_count.into_values().map(|(p, logs)| (p, logs.len(), mean(&logs).exp())).collect();
        let (least, _, base) = means[0];
        let rung = |(p, n, speed): &(f64, usize, f64)| Rung {
            workers: *p,
            n: *n,
            speed_up: speed / base,
            efficiency: speed / base * least / p,
        };
        found.push(Series {
            configuration: table.others(&rest, workers),
            rungs: means.iter().map(rung).collect(),
            amdahl: fit(&points, false),
            usl: fit(&points, true),
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(s: f64, k: f64) -> Vec<(f64, f64)> {
        [1.0, 2.0, 4.0, 8.0, 16.0, 32.0].map(|p| (p, 100.0 * p / denominator(p, s, k))).to_vec()
    }

    #[test]
    fn the_laws_that_made_the_speeds_are_found() {
        let usl = fit(&made(0.1, 0.003), true).unwrap();
        assert!(
            (usl.contention.value - 0.1).abs() < 1e-8 && (usl.coherence.value - 0.003).abs() < 1e-9,
            "{usl:?}"
        );
        assert!((usl.one - 100.0).abs() < 1e-6 && (usl.peak.unwrap() - 300f64.sqrt()).abs() < 1e-4);
        let amdahl = fit(&made(0.25, 0.0), false).unwrap();
        assert!((amdahl.contention.value - 0.25).abs() < 1e-8 && amdahl.peak.is_none(), "{amdahl:?}");
        assert!((amdahl.speed(1e9) - 400.0).abs() < 1e-3, "four times at most");
    }

    #[test]
    fn bounds_hold_and_too_few_points_give_no_law() {
        // Faster than linear: contention stays at zero.
        let points: Vec<_> = [1.0, 2.0, 4.0, 8.0, 16.0].map(|p: f64| (p, p.powf(1.1))).to_vec();
        let usl = fit(&points, true).unwrap();
        assert_eq!((usl.contention.value, usl.coherence.value), (0.0, 0.0));
        assert!(usl.contention.low.is_none(), "a value at its bound has no interval");
        assert!(fit(&points[..3], true).is_none() && fit(&points[..2], false).is_none());
    }
}
