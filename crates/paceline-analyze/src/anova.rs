//! Which factors and pairs of factors matter: analysis of variance of k factors, and their effects with intervals.
//!
//! Sums of squares are of type II: a term is tested beyond every term that does not contain it.

use std::collections::{BTreeMap, HashMap};

use paceline_statistics::mean;
use serde::Serialize;

use crate::design::{Coding, ModelMatrix, Term, minus, modelled};
use crate::distributions::{f_tail, holm, t_quantile, t_two_sided};
use crate::linear::Fit;
use crate::table::{Run, RunRole, StudyTable};

/// A number and the interval that it lies in with a confidence of 95%.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The number.
    pub value: f64,
    /// The interval's lower end; absent where nothing tells the noise.
    pub low: Option<f64>,
    /// The interval's upper end.
    pub high: Option<f64>,
}

impl Estimate {
    /// A number whose error has a standard deviation and degrees of freedom; `outside` is left on both sides together.
    pub fn new(value: f64, error: Option<(f64, f64)>, outside: f64) -> Self {
        let half = error.map(|(deviation, df)| deviation * t_quantile(outside, df));
        Self { value, low: half.map(|h| value - h), high: half.map(|h| value + h) }
    }

    /// Whether the interval says on which side of zero it is.
    pub fn signed(&self) -> bool {
        matches!((self.low, self.high), (Some(low), Some(high)) if low > 0.0 || high < 0.0)
    }

    /// Whether a number is in the interval; none without one.
    pub fn covers(&self, number: f64) -> Option<bool> {
        Some((self.low?..=self.high?).contains(&number))
    }

    /// The other way round.
    pub fn negated(&self) -> Self {
        Self { value: -self.value, low: self.high.map(|v| -v), high: self.low.map(|v| -v) }
    }
}

/// One line of the analysis of variance.
#[derive(Clone, Debug, Serialize)]
pub struct VarianceSource {
    /// The factor, or two with `:` between.
    pub term: String,
    /// Degrees of freedom; 0 where the term cannot be told from others.
    pub df: usize,
    /// Sum of squares beyond terms that do not contain it.
    pub sum_sq: f64,
    /// Fisher's F; absent without degrees of freedom.
    pub f: Option<f64>,
    /// Chance of such an F if it had no effect.
    pub p: Option<f64>,
    /// The same, corrected over all terms (Holm).
    pub p_holm: Option<f64>,
    /// Share of the whole variation.
    pub eta_sq: f64,
    /// Share of the variation that other terms leave.
    pub partial_eta_sq: f64,
    /// The same without what noise alone would give.
    pub partial_omega_sq: Option<f64>,
}

/// What a factor does.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct FactorEffect {
    pub factor: String,
    pub levels: Vec<LevelEffect>,
    /// Between two levels, on the response's scale; intervals hold for all pairs of this factor together.
    pub steps: Vec<LevelContrast>,
}

/// What a level does.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct LevelEffect {
    pub level: String,
    pub n: usize,
    /// Difference from the mean of all levels, on the response's scale, averaged over the levels of other factors;
    /// absent where the runs do not determine it.
    pub effect: Option<Estimate>,
    pub mean: Option<Estimate>,
}

/// From one level to another.
#[derive(Clone, Debug, Serialize)]
pub struct LevelContrast {
    /// The level before.
    pub from: usize,
    /// The level after.
    pub to: usize,
    /// The change, for all pairs of the factor together with a confidence of 95%.
    pub change: Estimate,
    /// Chance of such a change by noise alone, corrected for the factor's pairs.
    pub p: Option<f64>,
    /// Pairs of runs that differ in this factor alone.
    pub pairs: usize,
}

/// What two factors do together beyond what each does alone.
#[derive(Clone, Debug, Serialize)]
pub struct Interaction {
    pub term: String,
    /// By the first factor's level, then the second's (of slopes of more than 64 levels, their ends); absent where the runs do not determine it.
    pub cells: Vec<Vec<Option<Estimate>>>,
}

/// The analysis of variance of a response.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct Anova {
    pub n: usize,
    pub sources: Vec<VarianceSource>,
    pub residual_df: usize,
    pub residual_sum_sq: f64,
    /// Sum of squares around the mean; of several workloads, around each one's.
    pub total_sum_sq: f64,
    /// Share of the variation that the model accounts for.
    pub r_sq: f64,
    pub effects: Vec<FactorEffect>,
    pub interactions: Vec<Interaction>,
    pub cannot_tell: Vec<String>,
    #[serde(skip)]
    pub design: ModelMatrix,
    #[serde(skip)]
    pub fit: Fit,
}

impl Anova {
    /// Of a response of a table; none with fewer than two runs or without a factor that varied.
    pub fn new(table: &StudyTable, response: usize) -> Option<Self> {
        let measured = table.measured(response);
        let design = ModelMatrix::new(table, response);
        if measured.len() < 2 || design.terms.is_empty() {
            return None;
        }
        let modelled = modelled(table, response);
        let values: Vec<f64> = modelled.iter().map(|(_, value)| *value).collect();
        let fit = Fit::new(&design.columns, &values);
        let total = around_workloads(table, &measured);
        let left = modelled.iter().zip(&fit.residuals).filter(|((run, _), _)| run.role == RunRole::Point);
        let left: f64 = left.map(|(_, residual)| residual.powi(2)).sum();
        let mut anova = Self {
            n: measured.len(),
            sources: design.terms.iter().map(|term| source(&design, &fit, term, &values, total)).collect(),
            residual_df: fit.df,
            residual_sum_sq: fit.rss,
            total_sum_sq: total,
            r_sq: if total > 0.0 { 1.0 - left / total } else { 0.0 },
            effects: Vec::new(),
            interactions: Vec::new(),
            cannot_tell: Vec::new(),
            design,
            fit,
        };
        let chances: Vec<f64> = anova.sources.iter().map(|s| s.p.unwrap_or(f64::NAN)).collect();
        for (source, p) in anova.sources.iter_mut().zip(holm(&chances)) {
            source.p_holm = (!p.is_nan()).then_some(p);
        }
        let (single, pairs): (Vec<&Term>, Vec<&Term>) =
            anova.design.terms.iter().partition(|term| term.factors.len() == 1);
        let effects = single.into_iter().map(|term| anova.effect(table, &measured, term)).collect();
        let interactions = pairs.into_iter().map(|term| anova.interaction(table, term)).collect();
        (anova.effects, anova.interactions) = (effects, interactions);
        anova.cannot_tell = anova.gaps(table);
        Some(anova)
    }

    /// By how much each workload differs from the mean of all, on the response's scale; zero where the runs do not
    /// determine it.
    pub fn workload_effects(&self, levels: usize) -> Vec<f64> {
        let Some(own) = &self.design.workload else { return vec![0.0; levels] };
        let effect = |level: usize| {
            let mut place = vec![0; self.design.codings.len()];
            place[own.factors[0]] = level;
            self.fit.combination(&self.design.weights(own, &place)).map_or(0.0, |(value, _)| value)
        };
        (0..levels).map(effect).collect()
    }

    /// Deviation of the residuals with its degrees of freedom.
    pub fn noise(&self) -> Option<(f64, f64)> {
        self.fit.variance().map(|variance| (variance.sqrt(), self.fit.df as f64))
    }

    /// The drift from the first run to the last, and its error in units of the noise; none where the runs do not tell.
    pub fn drift(&self) -> Option<(f64, f64)> {
        let mut weights = vec![0.0; self.design.columns.len()];
        weights[self.design.drift?] = 1.0;
        self.fit.combination(&weights)
    }

    /// A combination of the model's coefficients; none where the runs do not determine it.
    pub fn estimate(&self, weights: &[f64], outside: f64) -> Option<Estimate> {
        let (value, scale) = self.fit.combination(weights)?;
        Some(Estimate::new(value, self.noise().map(|(s, df)| (s * scale, df)), outside))
    }

    /// The change from one level of a factor to another while a second one stays at a level.
    pub fn change_at(
        &self,
        factor: usize,
        (from, to): (usize, usize),
        other: usize,
        level: usize,
        outside: f64,
    ) -> Option<Estimate> {
        let pair = [factor.min(other), factor.max(other)];
        let (own, pair) = (self.design.term(&[factor])?, self.design.term(&pair)?);
        let mut levels = vec![0; self.design.codings.len()];
        levels[other] = level;
        let mut at = |own_level: usize| {
            levels[factor] = own_level;
            let (alone, both) = (self.design.weights(own, &levels), self.design.weights(pair, &levels));
            alone.iter().zip(both).map(|(a, b)| a + b).collect::<Vec<f64>>()
        };
        let (to, from) = (at(to), at(from));
        self.estimate(&minus(&to, &from), outside)
    }

    fn effect(&self, table: &StudyTable, measured: &[(&Run, f64)], term: &Term) -> FactorEffect {
        let at = term.factors[0];
        let factor = &table.factors[at];
        let count = factor.acting();
        let weights = |level: usize| {
            let mut levels = vec![0; table.factors.len()];
            levels[at] = level;
            self.design.weights(term, &levels)
        };
        let mut runs = vec![0; factor.levels.len()];
        measured.iter().for_each(|(run, _)| runs[run.levels[at]] += 1);
        let levels = (0..count)
            .map(|level| {
                let own = weights(level);
                let mut mean = own.clone();
                mean[0] = 1.0;
                if factor.acting() < factor.levels.len() {
                    mean = self.where_it_acts(measured, at, level, factor.acting());
                }
                LevelEffect {
                    level: factor.levels[level].text.clone(),
                    n: runs[level],
                    effect: self.estimate(&own, 0.05),
                    mean: self.estimate(&mean, 0.05),
                }
            })
            .collect();
        // A slope has one step: from its least to its greatest level.
        let ends: Vec<(usize, usize)> = match self.design.codings[at] {
            Some(Coding::Slope { .. }) => vec![(0, count - 1)],
            _ => (0..count).flat_map(|from| (from + 1..count).map(move |to| (from, to))).collect(),
        };
        let outside = 0.05 / ends.len() as f64;
        let step = |(from, to): &(usize, usize)| {
            let weights = minus(&weights(*to), &weights(*from));
            let change = self.estimate(&weights, outside)?;
            let (value, scale) = self.fit.combination(&weights)?;
            let p = self
                .noise()
                .map(|(s, df)| (t_two_sided(value / (s * scale), df) * ends.len() as f64).min(1.0));
            Some(LevelContrast { from: *from, to: *to, change, p, pairs: pairs(measured, at, *from, *to) })
        };
        FactorEffect { factor: factor.name.clone(), levels, steps: ends.iter().filter_map(step).collect() }
    }

    /// Weights of the mean at a level of a factor that cannot act everywhere: over the runs in which it does.
    fn where_it_acts(&self, measured: &[(&Run, f64)], at: usize, level: usize, acting: usize) -> Vec<f64> {
        let own: Vec<&Run> =
            measured.iter().map(|(run, _)| *run).filter(|run| run.levels[at] < acting).collect();
        let mut sum = vec![0.0; self.design.columns.len()];
        for run in &own {
            let mut levels = run.levels.clone();
            levels[at] = level;
            let row = self.design.configuration(&levels);
            sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += value / own.len() as f64);
        }
        sum
    }

    fn interaction(&self, table: &StudyTable, term: &Term) -> Interaction {
        let [f, g] = [term.factors[0], term.factors[1]];
        let cell = |i: usize, j: usize| {
            let mut levels = vec![0; table.factors.len()];
            (levels[f], levels[g]) = (i, j);
            self.estimate(&self.design.weights(term, &levels), 0.05)
        };
        let (own, other) = (self.design.told_levels(f), self.design.told_levels(g));
        let row = |i: usize| other.iter().map(|j| cell(i, *j)).collect();
        Interaction { term: term.name.clone(), cells: own.into_iter().map(row).collect() }
    }

    fn gaps(&self, table: &StudyTable) -> Vec<String> {
        // What a factor does where it cannot act is no question.
        let nested = |f: &usize| table.factors[*f].acting() < table.factors[*f].levels.len();
        let (mut confounded, mut partial): (Vec<&str>, Vec<&str>) = Default::default();
        let asked =
            |(_, term): &(&VarianceSource, &Term)| term.factors.len() < 2 || !term.factors.iter().any(nested);
        for (source, term) in self.sources.iter().zip(&self.design.terms).filter(asked) {
            if source.df == 0 {
                confounded.push(&source.term);
            } else if term.columns.clone().any(|column| self.fit.left_out(column)) {
                partial.push(&source.term);
            }
        }
        let mut gaps = Vec::new();
        if !confounded.is_empty() {
            let names = confounded.join(", ");
            gaps.push(format!("{names} from other factors (the levels of these follow from theirs)"));
        }
        if !partial.is_empty() {
            gaps.push(format!("{} at combinations of levels that were not run", partial.join(", ")));
        }
        if self.design.without_pairs {
            gaps.push("how factors act together (too few runs: that counts as noise here)".into());
        }
        if self.residual_df == 0 {
            gaps.push("effects from noise (no run is left for that: there are no intervals)".into());
        }
        gaps
    }
}

/// Sum of squares around the mean, or around those of the workloads.
fn around_workloads(table: &StudyTable, measured: &[(&Run, f64)]) -> f64 {
    let mut groups: BTreeMap<Option<usize>, Vec<f64>> = BTreeMap::new();
    for (run, value) in measured {
        groups.entry(table.workload_of(run)).or_default().push(*value);
    }
    let around = |own: &Vec<f64>| {
        let mean = mean(own);
        own.iter().map(|v| (v - mean).powi(2)).sum::<f64>()
    };
    groups.values().map(around).sum()
}

/// A term beyond those that do not contain it.
fn source(design: &ModelMatrix, full: &Fit, term: &Term, values: &[f64], total: f64) -> VarianceSource {
    let contains = |other: &Term| term.factors.iter().all(|f| other.factors.contains(f));
    let mut columns: Vec<Vec<f64>> = design.columns[..design.nuisance].to_vec();
    for other in design.terms.iter().filter(|other| !contains(other)) {
        columns.extend_from_slice(&design.columns[other.columns.clone()]);
    }
    let from = columns.len();
    columns.extend_from_slice(&design.columns[term.columns.clone()]);
    let (sum_sq, df) = Fit::new(&columns, values).gain(from);
    let (f, p) = match full.variance() {
        Some(variance) if df > 0 && variance > 0.0 => {
            let f = sum_sq / df as f64 / variance;
            (Some(f), Some(f_tail(f, df as f64, full.df as f64)))
        }
        _ => (None, None),
    };
    let omega = f.map(|f| {
        let beyond = df as f64 * (f - 1.0);
        (beyond / (beyond + values.len() as f64)).max(0.0)
    });
    VarianceSource {
        term: term.name.clone(),
        df,
        sum_sq,
        f,
        p,
        p_holm: None,
        eta_sq: if total > 0.0 { sum_sq / total } else { 0.0 },
        partial_eta_sq: if sum_sq + full.rss > 0.0 { sum_sq / (sum_sq + full.rss) } else { 0.0 },
        partial_omega_sq: omega,
    }
}

/// Pairs of runs that differ in one factor alone, each run in one pair at most.
fn pairs(measured: &[(&Run, f64)], factor: usize, from: usize, to: usize) -> usize {
    let mut counts: HashMap<Vec<usize>, [usize; 2]> = HashMap::new();
    for (run, _) in measured {
        let Some(side) = [from, to].iter().position(|level| *level == run.levels[factor]) else { continue };
        let mut rest = run.levels.clone();
        rest[factor] = 0;
        counts.entry(rest).or_default()[side] += 1;
    }
    counts.values().map(|[a, b]| (*a).min(*b)).sum()
}
