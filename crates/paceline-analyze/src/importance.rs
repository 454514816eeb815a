//! What mattered: how much of the variation between runs each factor is responsible for, with intervals, in shares
//! that add up.
//!
//! The variation is that over all levels, each counting alike, plus the noise of one run. What a factor contributes is
//! the variance of its effects in the analysis of variance, less what noise alone would give; intervals come from
//! effects and noise that are drawn again (a parametric bootstrap).

use paceline_random::{Purpose, Stream};
use serde::Serialize;

use crate::anova::Anova;
use crate::design::Coding;
use crate::linear::dot;
use crate::noise::{Noise, NoiseSource};
use crate::table::StudyTable;

/// Seed of the draws where nobody asks for another one.
pub const SEED: u64 = 1;
const DRAWS: u64 = 400;

/// What something is responsible for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Share {
    /// The factor, or two with `:` between.
    pub term: String,
    /// Share of the variation, 0 to 1.
    pub share: f64,
    /// The interval that it lies in with a confidence of 95%.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

/// Shares of a response: factors, factors acting together, and noise are the whole.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Importance {
    /// Each alone, the greatest first.
    pub factors: Vec<Share>,
    /// Factors acting differently from workload to workload, the greatest first; none without several workloads.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub by_workload: Vec<Share>,
    /// Acting together, whichever they are; none where runs are too few to tell that from noise.
    pub together: Option<Share>,
    /// Pairs, the greatest first: parts of `together`.
    pub pairs: Vec<Share>,
    /// What differs between runs of one configuration.
    pub noise: Share,
    /// Runs.
    pub n: usize,
}

/// What a term is.
#[derive(Clone, Copy, PartialEq)]
enum ShareKind {
    Factor,
    /// A factor that acts differently from workload to workload.
    ByWorkload,
    Pair,
}

/// A term's variance as a function of its coefficients.
struct VarianceForm {
    name: String,
    kind: ShareKind,
    columns: std::ops::Range<usize>,
    /// Row by row.
    matrix: Vec<Vec<f64>>,
    /// What noise of deviation 1 gives.
    by_noise: f64,
}

impl VarianceForm {
    fn of(&self, coefficients: &[f64]) -> f64 {
        let own = &coefficients[self.columns.clone()];
        self.matrix.iter().zip(own).map(|(row, value)| value * dot(row, own)).sum()
    }
}

/// The mean over levels of the products of a coding's entries.
fn moments(coding: &Coding, levels: usize) -> Vec<Vec<f64>> {
    let mut rows: Vec<Vec<f64>> = (0..levels).map(|level| coding.entries(level)).collect();
    let width = coding.width();
    // A slope need not have its middle at zero.
    for j in 0..width {
        let mean = rows.iter().map(|row| row[j]).sum::<f64>() / levels as f64;
        rows.iter_mut().for_each(|row| row[j] -= mean);
    }
    let at = |i: usize, j: usize| rows.iter().map(|row| row[i] * row[j]).sum::<f64>() / levels as f64;
    (0..width).map(|i| (0..width).map(|j| at(i, j)).collect()).collect()
}

fn product(a: &[Vec<f64>], b: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let row = |x: &[f64], y: &[f64]| x.iter().flat_map(|p| y.iter().map(move |q| p * q)).collect();
    a.iter().flat_map(|x| b.iter().map(move |y| row(x, y))).collect()
}

fn forms(table: &StudyTable, anova: &Anova, response: usize) -> Vec<VarianceForm> {
    let measured = table.measured(response);
    let terms = anova.design.terms.iter().zip(&anova.sources).filter(|(_, source)| source.df > 0);
    let form = |(term, _): (&crate::design::Term, _)| {
        let acts = |f: &usize, run: &crate::table::Run| run.levels[*f] < table.factors[*f].acting();
        let acting = measured.iter().filter(|(run, _)| term.factors.iter().all(|f| acts(f, run))).count();
        // Where a factor cannot act, nothing varies by it.
        let part = acting as f64 / measured.len() as f64;
        let own = term
            .factors
            .iter()
            .filter_map(|f| Some(moments(anova.design.codings[*f].as_ref()?, table.factors[*f].acting())));
        let mut matrix = own.reduce(|a, b| product(&a, &b)).unwrap_or_default();
        matrix.iter_mut().flatten().for_each(|value| *value *= part);
        let mut form = VarianceForm {
            name: term.name.clone(),
            kind: match term.factors.len() {
                1 => ShareKind::Factor,
                _ if term.factors.iter().any(|f| table.several_workloads() == Some(*f)) => {
                    ShareKind::ByWorkload
                }
                _ => ShareKind::Pair,
            },
            columns: term.columns.clone(),
            matrix,
            by_noise: 0.0,
        };
        form.by_noise = anova.fit.unit_errors().iter().map(|error| form.of(error)).sum();
        form
    };
    terms.map(form).collect()
}

/// Variances of terms, of what acts together beyond them, and of noise.
struct Variances {
    terms: Vec<f64>,
    beyond: f64,
    noise: f64,
}

impl Variances {
    /// Shares of each term, of all that acts together, and of noise.
    fn shares(&self, forms: &[VarianceForm]) -> Vec<f64> {
        let whole = (self.terms.iter().sum::<f64>() + self.beyond + self.noise).max(1e-300);
        let pairs = self.terms.iter().zip(forms).filter(|(_, form)| form.kind == ShareKind::Pair);
        let together = pairs.map(|(v, _)| v).sum::<f64>() + self.beyond;
        self.terms.iter().chain([&together, &self.noise]).map(|v| v / whole).collect()
    }
}

/// A draw of a variance with degrees of freedom (Wilson and Hilferty's approximation).
pub fn drawn_variance(variance: f64, df: f64, normal: f64) -> f64 {
    let part = 2.0 / (9.0 * df);
    variance * (1.0 - part + normal * part.sqrt()).max(0.0).powi(3)
}

impl Importance {
    /// Of a response; none where nothing tells the noise, or nothing varies.
    pub fn new(
        table: &StudyTable,
        response: usize,
        anova: Option<&Anova>,
        noise: Option<&Noise>,
        seed: u64,
    ) -> Option<Self> {
        let (anova, noise) = (anova?, noise?);
        let (residual, df) = anova.noise()?;
        let forms = forms(table, anova, response);
        let residual = residual * residual;
        // Of repeats it is known what noise alone is: residuals beyond that are factors acting together.
        let single = if noise.source == NoiseSource::Repeats { noise.deviation.powi(2) } else { residual };
        let found = |coefficients: &[f64], residual: f64, single: f64, times: f64| Variances {
            terms: forms
                .iter()
                .map(|f| (f.of(coefficients) - times * residual * f.by_noise).max(0.0))
                .collect(),
            beyond: (residual - single).max(0.0),
            noise: single,
        };
        let shares = found(&anova.fit.coefficients, residual, single, 1.0).shares(&forms);
        let stream = Stream::new(seed, Purpose::Analysis);
        let mut draws: Vec<Vec<f64>> = vec![Vec::new(); shares.len()];
        for draw in 0..DRAWS {
            let normals = stream.fork(draw);
            let drawn = drawn_variance(residual, df, normals.normal(0));
            let of_noise = match noise.source {
                NoiseSource::Repeats => drawn_variance(single, noise.df, normals.normal(1)),
                NoiseSource::Residuals => drawn,
            };
            let coefficients = anova.fit.redrawn(|i| drawn.sqrt() * normals.normal(2 + i as u64));
            // Once for the noise of the effects, once for that of the draw.
            let again = found(&coefficients, drawn, of_noise, 2.0).shares(&forms);
            draws.iter_mut().zip(again).for_each(|(all, share)| all.push(share));
        }
        let share = |i: usize, term: &str| {
            let sorted = paceline_statistics::sorted(&draws[i]);
            let [low, high] = [0.025, 0.975].map(|q| paceline_statistics::quantile(&sorted, q));
            let share = shares[i];
            Share { term: term.into(), share, low: low.min(share), high: high.max(share) }
        };
        let terms = |kind: ShareKind| {
            let own = forms.iter().enumerate().filter(|(_, form)| form.kind == kind);
            let mut shares: Vec<Share> = own.map(|(i, form)| share(i, &form.name)).collect();
            shares.sort_by(|a, b| b.share.total_cmp(&a.share));
            shares
        };
        let (factors, pairs, count) = (terms(ShareKind::Factor), terms(ShareKind::Pair), forms.len());
        let together = share(count, "together");
        let known = !pairs.is_empty() || noise.source == NoiseSource::Repeats;
        (!factors.is_empty()).then(|| Self {
            factors,
            by_workload: terms(ShareKind::ByWorkload),
            pairs,
            together: known.then_some(together),
            noise: share(count + 1, "noise"),
            n: anova.n,
        })
    }

    /// What a share is of, in words.
    pub fn label(&self, share: &Share) -> String {
        match share.term.as_str() {
            "together" => "factors acting together".into(),
            "noise" if self.together.is_none() => "noise and factors acting together".into(),
            name if self.by_workload.contains(share) => {
                let (one, other) = name.split_once(':').unwrap_or((name, ""));
                let (axis, workload) = if self.of(one).is_some() { (one, other) } else { (other, one) };
                format!("{axis} by {workload}")
            }
            name => name.into(),
        }
    }

    /// The share of a factor alone.
    pub fn of(&self, factor: &str) -> Option<&Share> {
        self.factors.iter().find(|share| share.term == factor)
    }

    /// Factors, how they act on each workload, all else that acts together, and noise, in percent that add up to 100.
    pub fn percents(&self) -> Vec<(&Share, u32)> {
        let told = self.factors.iter().chain(&self.by_workload).chain(&self.together);
        let all: Vec<&Share> = told.chain([&self.noise]).collect();
        let mut percents: Vec<u32> = all.iter().map(|s| (100.0 * s.share).floor() as u32).collect();
        let mut order: Vec<usize> = (0..all.len()).collect();
        let lost = |i: usize| 100.0 * all[i].share - (100.0 * all[i].share).floor();
        order.sort_by(|a, b| lost(*b).total_cmp(&lost(*a)));
        let missing = 100u32.saturating_sub(percents.iter().sum());
        order.iter().take(missing as usize).for_each(|i| percents[*i] += 1);
        all.into_iter().zip(percents).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{RawRun, Response};

    fn grid(repeats: usize, value: impl Fn(usize, usize, usize, u64) -> f64) -> StudyTable {
        let mut runs = Vec::new();
        for i in 0..60 * repeats {
            let (a, b, c) = (i % 3, i / 3 % 4, i / 12 % 5);
            runs.push(RawRun {
                levels: vec![a.to_string(), format!("w{b}"), c.to_string()],
                values: vec![Some(value(a, b, c, i as u64))],
                ..RawRun::default()
            });
        }
        let names = ["a", "b", "c"].map(String::from);
        StudyTable::new("t", &names, vec![Response::parse("y").unwrap()], runs)
    }

    fn of(table: &StudyTable) -> Importance {
        let anova = Anova::new(table, 0);
        let noise = Noise::new(table, 0, anova.as_ref());
        Importance::new(table, 0, anova.as_ref(), noise.as_ref(), SEED).unwrap()
    }

    #[test]
    fn shares_are_those_of_the_function_itself() {
        // Variances by hand: a: 9 · 2/3, b: 16 · 3/16; the noise is next to nothing.
        let wobble = Stream::new(3, Purpose::Bench);
        let table =
            grid(2, |a, b, _, i| 3.0 * a as f64 + if b == 1 { 4.0 } else { 0.0 } + 1e-3 * wobble.normal(i));
        let found = of(&table);
        let (of_a, of_b) = (6.0 / 9.0, 3.0 / 9.0);
        assert!((found.of("a").unwrap().share - of_a).abs() < 1e-3, "{found:?}");
        assert!((found.of("b").unwrap().share - of_b).abs() < 1e-3, "{found:?}");
        assert!(found.of("c").unwrap().share < 1e-5 && found.noise.share < 1e-5, "{found:?}");
    }

    #[test]
    fn what_acts_together_and_noise_have_their_shares_and_all_add_up() {
        let noise = Stream::new(4, Purpose::Bench);
        // Variances: a · b beyond either alone, and noise of 1.
        let table = grid(3, |a, b, _, i| if a == 1 && b == 2 { 10.0 } else { 0.0 } + noise.normal(i));
        let found = of(&table);
        assert!(found.pairs[0].term == "a:b" && found.pairs[0].share > 0.3, "{found:?}");
        assert!(found.together.as_ref().unwrap().share >= found.pairs[0].share - 1e-12);
        let sum = found.factors.iter().map(|s| s.share).sum::<f64>();
        assert!((sum + found.together.as_ref().unwrap().share + found.noise.share - 1.0).abs() < 1e-12);
        assert_eq!(found.percents().iter().map(|(_, p)| p).sum::<u32>(), 100);
        assert!(found.of("c").unwrap().low == 0.0 && found.noise.low > 0.0, "{found:?}");
        assert_eq!(of(&table), found, "the seed decides");
    }
}
