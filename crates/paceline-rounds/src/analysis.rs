//! What iterations do to the workers' models: mixing matrices, contraction, how much each worker counts.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use paceline_protocol::GradientScale;
use serde::Serialize;

use crate::compile::State;
use crate::file::StrategyFileError;
use crate::matrix::SquareMatrix;
use crate::program::Compiled;
use crate::values::Detail;

/// Chunks whose matrices are followed, and steps.
const MOST_CHUNKS: usize = 8;
const MOST_STEPS: u64 = 256;
const FEWEST_STEPS: u64 = 32;
/// Operations after which no further steps are followed.
const BUDGET: usize = 300_000;

/// How much of what workers disagree about is left.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Contraction {
    /// Of the variance between workers, after one iteration, in the worst case; the mean over steps and chunks.
    pub variance_left: Option<f64>,
    /// Of the distance from each other, per iteration in the long run.
    pub per_iteration: f64,
    /// The same over a period.
    pub per_period: Option<f64>,
}

/// What iterations do to the workers' models (or, where gradients are averaged, what their gradients become).
#[derive(Clone, Debug, Serialize)]
pub struct MixingReport {
    /// The first iterations' matrices, of the first chunk: row i is what worker i has afterwards.
    pub iterations: Vec<SquareMatrix>,
    /// Iterations after which everything is as before; none if that is never so, or not within those followed.
    pub period: Option<u64>,
    /// The product over a period, of the first chunk.
    pub over_period: Option<SquareMatrix>,
    /// Iterations that were followed.
    pub followed: u64,
    /// Smallest and largest sum of a row: 1 if sizes are kept.
    pub row_sums: [f64; 2],
    /// Smallest and largest sum of a column: 1 if the mean of all workers is kept in each iteration.
    pub column_sums: [f64; 2],
    /// How much of what workers disagree about is left.
    pub contraction: Contraction,
    /// How much each worker's model at a period's start counts in the end; none where workers never agree.
    pub stationary: Option<Vec<f64>>,
    /// How much each worker's updates count in the long run, mean over steps and chunks.
    pub influence: Option<Vec<f64>>,
    /// The largest of these times the number of workers: 1 if all count the same.
    pub bias: Option<f64>,
    /// Noise of what all agree on, relative to the mean of all gradients: 1 is best, p is one worker alone.
    pub noise: Option<f64>,
    /// Whether something of an earlier iteration is used: then matrices are those from the run's start to each iteration's
    /// end.
    pub carried: bool,
}

const EPSILON: f64 = 1e-12;

/// The matrices of the chunks that are followed, after a step.
fn matrices(compiled: &Compiled, state: &State) -> Vec<SquareMatrix> {
    let workers = compiled.world.workers;
    let parts = if compiled.scale == GradientScale::Part { workers as f64 } else { 1.0 };
    let chunks: Vec<(usize, usize)> = state
        .values
        .iter()
        .enumerate()
        .flat_map(|(i, values)| (0..values.chunks()).map(move |chunk| (i, chunk)))
        .collect();
    let followed = chunks.len().min(MOST_CHUNKS);
    let of = |n: usize| {
        let (i, chunk) = chunks[n * chunks.len() / followed];
        let values = &state.values[i];
        match compiled.weights {
            true => SquareMatrix::from_rows(workers, (0..workers).map(|rank| values.model(chunk, rank))),
            false => {
                let rows = (0..workers).map(|rank| values.applied(chunk, rank).1);
                SquareMatrix::from_rows(workers, rows).scaled(1.0 / parts)
            }
        }
    };
    (0..followed).map(of).collect()
}

fn fingerprint(matrices: &[SquareMatrix]) -> u64 {
    let mut hash = DefaultHasher::new();
    for value in matrices.iter().flat_map(SquareMatrix::rows).flatten() {
        ((value / EPSILON / 1000.0).round() as i64).hash(&mut hash);
    }
    hash.finish()
}

/// What a program's iterations do, over at most `shown` iterations in full.
pub fn analyse(compiled: &Compiled, carried: bool, shown: usize) -> Result<MixingReport, StrategyFileError> {
    let workers = compiled.world.workers;
    let mut state = compiled.start(Detail::Weights);
    let (mut all, mut prints, mut ops) = (Vec::<Vec<SquareMatrix>>::new(), Vec::new(), 0);
    let most = if compiled.steady && !carried { 1 } else { MOST_STEPS };
    for step in 0..most {
        if ops > BUDGET && step >= FEWEST_STEPS {
            break;
        }
        let iteration = compiled.compile(step, &mut state, !carried)?;
        ops += workers * workers * iteration.of(0).count().max(1);
        let now = matrices(compiled, &state);
        prints.push(fingerprint(&now));
        all.push(now);
    }
    let period = period(&prints, compiled.steady && !carried);
    let sums = |of: fn(&SquareMatrix) -> Vec<f64>| {
        let sums = || all.iter().flatten().flat_map(of);
        [sums().fold(f64::INFINITY, f64::min), sums().fold(f64::NEG_INFINITY, f64::max)]
    };
    let mut report = MixingReport {
        iterations: all.iter().take(shown).map(|chunks| chunks[0].clone()).collect(),
        period: period.filter(|_| !carried),
        over_period: None,
        followed: all.len() as u64,
        row_sums: sums(SquareMatrix::row_sums),
        column_sums: sums(SquareMatrix::column_sums),
        contraction: Contraction { variance_left: None, per_iteration: 0.0, per_period: None },
        stationary: None,
        influence: None,
        bias: None,
        noise: None,
        carried,
    };
    if carried {
        report.contraction.per_iteration = decay(&all);
        report.stationary = agreed(&all);
        return Ok(report);
    }
    // Over whole periods: each of their iterations counts the same.
    let counted = report.period.map_or(all.len(), |period| period as usize);
    report.contraction.variance_left = Some(variance_left(&all[..counted]));
    match report.period {
        Some(period) => {
            let chunks = all[0].len();
            let products: Vec<SquareMatrix> = (0..chunks).map(|c| product(&all, period, c)).collect();
            let radius = products.iter().map(|p| p.centred().spectral_radius()).fold(0.0, f64::max);
            // Rounding leaves a little where nothing is left.
            let radius = if radius < 1e-9 { 0.0 } else { radius };
            report.contraction.per_period = Some(radius);
            report.contraction.per_iteration = radius.powf(1.0 / period as f64);
            report.stationary = products[0].stationary();
            report.over_period = Some(products[0].clone());
        }
        None => report.contraction.per_iteration = lyapunov(&all),
    }
    count(&mut report, &all);
    Ok(report)
}

/// The first period that the whole sequence has, repeated at least once.
fn period(prints: &[u64], steady: bool) -> Option<u64> {
    if steady {
        return Some(1);
    }
    let fits = |period: usize| prints.iter().zip(&prints[period..]).all(|(a, b)| a == b);
    (1..=prints.len() / 2).find(|period| fits(*period)).map(|period| period as u64)
}

/// The product of a period's iterations, the last one leftmost.
fn product(all: &[Vec<SquareMatrix>], period: u64, chunk: usize) -> SquareMatrix {
    let first = all[0][chunk].clone();
    all[1..period as usize].iter().fold(first, |product, step| step[chunk].times(&product))
}

/// The largest eigenvalue of the mean of Wᵀ(I − J)W: both are symmetric, and nothing of the common part is in it.
fn variance_left(all: &[Vec<SquareMatrix>]) -> f64 {
    let first = &all[0][0];
    let mut sum = SquareMatrix::identity(first.row_sums().len()).scaled(0.0);
    let count = (all.len() * all[0].len()) as f64;
    for matrix in all.iter().flatten() {
        let centred = matrix.centred();
        sum.add(&centred.transposed().times(&centred), 1.0 / count);
    }
    let radius = sum.spectral_radius();
    if radius < 1e-18 { 0.0 } else { radius }
}

/// How fast distances shrink along the steps that were followed.
fn lyapunov(all: &[Vec<SquareMatrix>]) -> f64 {
    let rate = |chunk: usize| {
        let side = all[0][chunk].row_sums().len();
        let mut distance = SquareMatrix::identity(side).centred();
        let (mut log, mut counted) = (0.0, 0);
        for (step, matrices) in all.iter().enumerate() {
            distance = matrices[chunk].times(&distance).centred();
            let norm = distance.norm();
            if norm < 1e-290 {
                return 0.0;
            }
            distance = distance.scaled(1.0 / norm);
            if step >= all.len() / 4 {
                log += norm.ln();
                counted += 1;
            }
        }
        (log / f64::from(counted)).exp()
    };
    (0..all[0].len()).map(rate).fold(0.0, f64::max)
}

/// The same where each matrix is the product of all before: from the largest distance of an early stretch to that of a
/// late one, since a rule may close distances now and then and open them in between.
fn decay(all: &[Vec<SquareMatrix>]) -> f64 {
    let norms: Vec<f64> = all.iter().map(|chunks| chunks[0].centred().norm()).collect();
    // Behind what rounding leaves there is nothing to be read.
    let last = norms.iter().rposition(|norm| *norm > 1e-12).unwrap_or(0);
    let (begin, middle) = (last / 4, last / 2);
    let apart = last - middle;
    let largest = |stretch: &[f64]| stretch.iter().copied().fold(0.0, f64::max);
    let (early, late) = (largest(&norms[begin..=middle]), largest(&norms[begin + apart..=last]));
    if apart == 0 || early == 0.0 { 0.0 } else { (late / early).powf(1.0 / apart as f64) }
}

fn agreed(all: &[Vec<SquareMatrix>]) -> Option<Vec<f64>> {
    let last = &all.last()?[0];
    (last.centred().norm() < 1e-6).then(|| last.rows().next().map(<[f64]>::to_vec)).flatten()
}

/// How much each worker's updates count: backwards from the end, where all count alike, through the iterations.
fn count(report: &mut MixingReport, all: &[Vec<SquareMatrix>]) {
    let side = all[0][0].row_sums().len();
    if report.contraction.per_iteration >= 1.0 - 1e-9 {
        return;
    }
    let (mut influence, mut noise, mut counted) = (vec![0.0; side], 0.0, 0.0);
    for chunk in 0..all[0].len() {
        // So many rounds that where they began does not matter; whole periods, where there are some.
        let period = report.period.map_or(all.len(), |period| period as usize);
        let settle = (40.0 / -report.contraction.per_iteration.max(1e-9).ln()).ceil() as usize;
        let settle = if report.period.is_some() { settle.div_ceil(period) * period } else { all.len() / 4 };
        let mut weights = vec![1.0 / side as f64; side];
        for back in 0..settle + if report.period.is_some() { period } else { all.len() - settle } {
            let steps = if report.period.is_some() { period } else { all.len() };
            let matrix = &all[steps - 1 - back % steps][chunk];
            let mut before = vec![0.0; side];
            for (weight, row) in weights.iter().zip(matrix.rows()) {
                before.iter_mut().zip(row).for_each(|(sum, value)| *sum += weight * value);
            }
            weights = before;
            if back >= settle {
                influence.iter_mut().zip(&weights).for_each(|(sum, weight)| *sum += weight);
                noise += side as f64 * weights.iter().map(|weight| weight * weight).sum::<f64>();
                counted += 1.0;
            }
        }
    }
    influence.iter_mut().for_each(|sum| *sum /= counted);
    report.bias = Some(side as f64 * influence.iter().fold(0.0, |most: f64, weight| most.max(*weight)));
    report.noise = Some(noise / counted);
    report.influence = Some(influence);
}
