//! What ranks say, whatever the distribution: correlations, and tests of factors.

use std::collections::BTreeMap;

use paceline_statistics::mean;
use serde::Serialize;

use crate::distributions::{chi_squared_tail, holm, normal_quantile, normal_two_sided, t_two_sided};
use crate::table::{Factor, StudyTable};

/// Ranks from 1; equal values share their mean rank.
pub fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    let mut at = 0;
    while at < order.len() {
        let same = order[at..].iter().take_while(|i| values[**i] == values[order[at]]).count();
        order[at..at + same].iter().for_each(|i| ranks[*i] = at as f64 + (same + 1) as f64 / 2.0);
        at += same;
    }
    ranks
}

/// Sizes of groups of equal values.
pub(crate) fn ties(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.chunk_by(|a, b| a == b).map(|group| group.len() as f64).collect()
}

/// A correlation of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Correlation {
    /// From −1 to 1.
    pub value: f64,
    /// Chance of one further from zero if there were none.
    pub p: f64,
}

fn pearson(a: &[f64], b: &[f64]) -> f64 {
    let (ma, mb) = (mean(a), mean(b));
    let sum = |x: &[f64], mx: f64, y: &[f64], my: f64| -> f64 {
        x.iter().zip(y).map(|(x, y)| (x - mx) * (y - my)).sum()
    };
    sum(a, ma, b, mb) / (sum(a, ma, a, ma) * sum(b, mb, b, mb)).sqrt()
}

/// Spearman's correlation; none with fewer than three pairs or without variation.
pub fn spearman(a: &[f64], b: &[f64]) -> Option<Correlation> {
    if a.len() < 3 {
        return None;
    }
    let value = pearson(&ranks(a), &ranks(b)).clamp(-1.0, 1.0);
    let df = (a.len() - 2) as f64;
    let p =
        if value.abs() == 1.0 { 0.0 } else { t_two_sided(value * (df / (1.0 - value * value)).sqrt(), df) };
    (!value.is_nan()).then_some(Correlation { value, p })
}

/// The interval of Spearman's correlation (Fisher's transform; Bonett and Wright's deviation). Of the same order, it
/// begins where it would if two neighbours were exchanged, and ends at 1; of the opposite order likewise.
pub fn spearman_interval(value: f64, n: usize) -> Option<(f64, f64)> {
    if n < 4 {
        return None;
    }
    let count = n as f64;
    let most = 1.0 - 12.0 / (count * (count * count - 1.0));
    let near = value.clamp(-most, most);
    let half = normal_quantile(0.975) * ((1.0 + near * near / 2.0) / (count - 3.0)).sqrt();
    let (low, high) = ((near.atanh() - half).tanh(), (near.atanh() + half).tanh());
    Some((if value <= -1.0 { -1.0 } else { low }, if value >= 1.0 { 1.0 } else { high }))
}

/// Kendall's τ_b, its chance by the normal approximation; none without variation.
pub fn kendall(a: &[f64], b: &[f64]) -> Option<Correlation> {
    let n = a.len() as f64;
    let mut score = 0.0;
    let sign = |x: f64, y: f64| x.partial_cmp(&y).map_or(0.0, |order| f64::from(order as i8));
    for i in 0..a.len() {
        for j in 0..i {
            score += sign(a[i], a[j]) * sign(b[i], b[j]);
        }
    }
    let (ta, tb) = (ties(a), ties(b));
    let sum = |ties: &[f64], of: fn(f64) -> f64| ties.iter().map(|t| of(*t)).sum::<f64>();
    let (pairs, pa, pb) =
        (n * (n - 1.0) / 2.0, sum(&ta, |t| t * (t - 1.0) / 2.0), sum(&tb, |t| t * (t - 1.0) / 2.0));
    let value = score / ((pairs - pa) * (pairs - pb)).sqrt();
    let full = |t: f64| t * (t - 1.0) * (2.0 * t + 5.0);
    let thirds = |t: f64| t * (t - 1.0) * (t - 2.0);
    let mut variance = (n * (n - 1.0) * (2.0 * n + 5.0) - sum(&ta, full) - sum(&tb, full)) / 18.0
        + 2.0 * pa * pb / (n * (n - 1.0));
    if a.len() > 2 {
        variance += sum(&ta, thirds) * sum(&tb, thirds) / (9.0 * n * (n - 1.0) * (n - 2.0));
    }
    let p = normal_two_sided(score / variance.sqrt());
    (!value.is_nan() && variance > 0.0).then_some(Correlation { value, p })
}

/// The test that suits a factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RankTest {
    /// Two levels, in pairs of runs that are alike otherwise: Wilcoxon's signed ranks.
    Wilcoxon,
    /// Several levels, in groups of runs that are alike otherwise: Friedman.
    Friedman,
    /// Runs that have no counterpart: Kruskal and Wallis.
    KruskalWallis,
}

/// A test of one factor.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct RankTestResult {
    pub factor: String,
    pub test: RankTest,
    /// Pairs, groups, or runs.
    pub n: usize,
    pub statistic: f64,
    /// Its chance if levels did not differ.
    pub p: f64,
    /// The same, corrected over all factors (Holm).
    pub p_holm: f64,
}

/// Wilcoxon's signed ranks of differences, by the normal approximation: the lesser sum and its chance.
pub fn wilcoxon(differences: &[f64]) -> Option<(f64, f64)> {
    let nonzero: Vec<f64> = differences.iter().copied().filter(|d| *d != 0.0).collect();
    let n = nonzero.len() as f64;
    if nonzero.is_empty() {
        return None;
    }
    let sizes: Vec<f64> = nonzero.iter().map(|d| d.abs()).collect();
    let up: f64 = ranks(&sizes).iter().zip(&nonzero).filter(|(_, d)| **d > 0.0).map(|(r, _)| r).sum();
    let down = n * (n + 1.0) / 2.0 - up;
    let tied: f64 = ties(&sizes).iter().map(|t| t * t * t - t).sum();
    let deviation = ((n * (n + 1.0) * (2.0 * n + 1.0) - tied / 2.0) / 24.0).sqrt();
    let least = up.min(down);
    Some((least, normal_two_sided((least - n * (n + 1.0) / 4.0) / deviation)))
}

/// Friedman's test of groups that each have one value per level.
pub fn friedman(groups: &[Vec<f64>]) -> Option<(f64, f64)> {
    let (n, k) = (groups.len() as f64, groups.first()?.len());
    let mut sums = vec![0.0; k];
    let mut tied = 0.0;
    for group in groups {
        sums.iter_mut().zip(ranks(group)).for_each(|(sum, rank)| *sum += rank);
        tied += ties(group).iter().map(|t| t * (t * t - 1.0)).sum::<f64>();
    }
    let k = k as f64;
    let correction = 1.0 - tied / (k * (k * k - 1.0) * n);
    let squares: f64 = sums.iter().map(|s| s * s).sum();
    let statistic = (12.0 / (k * n * (k + 1.0)) * squares - 3.0 * n * (k + 1.0)) / correction;
    (correction > 0.0).then(|| (statistic, chi_squared_tail(statistic, k - 1.0)))
}

/// Kruskal and Wallis's test of groups.
pub fn kruskal(groups: &[Vec<f64>]) -> Option<(f64, f64)> {
    let all: Vec<f64> = groups.iter().flatten().copied().collect();
    let n = all.len() as f64;
    let ranked = ranks(&all);
    let (mut at, mut squares) = (0, 0.0);
    for group in groups {
        let sum: f64 = ranked[at..at + group.len()].iter().sum();
        squares += sum * sum / group.len() as f64;
        at += group.len();
    }
    let correction = 1.0 - ties(&all).iter().map(|t| t * t * t - t).sum::<f64>() / (n * n * n - n);
    let statistic = (12.0 / (n * (n + 1.0)) * squares - 3.0 * (n + 1.0)) / correction;
    (correction > 0.0).then(|| (statistic, chi_squared_tail(statistic, groups.len() as f64 - 1.0)))
}

/// Runs that are alike but for one factor: by what they have in common, a mean per level; whole groups only.
fn alike(table: &StudyTable, response: usize, factor: usize) -> Vec<Vec<f64>> {
    let levels = table.factors[factor].acting();
    // Levels that a group does not have take no room: there may be as many as runs.
    let mut groups: BTreeMap<Vec<usize>, BTreeMap<usize, Vec<f64>>> = BTreeMap::new();
    for (run, value) in table.measured(response).into_iter().filter(|(run, _)| run.levels[factor] < levels) {
        let mut rest = run.levels.clone();
        rest[factor] = 0;
        groups.entry(rest).or_default().entry(run.levels[factor]).or_default().push(value);
    }
    let whole = groups.values().filter(|group| group.len() == levels);
    whole.map(|group| group.values().map(|values| mean(values)).collect()).collect()
}

/// Tests every factor of a response; workloads are given, so they are not tested.
pub fn tests(table: &StudyTable, response: usize) -> Vec<RankTestResult> {
    const LEAST_GROUPS: usize = 6;
    let mut results = Vec::new();
    let tested =
        |(f, factor): &(usize, &Factor)| factor.acting() > 1 && Some(*f) != table.several_workloads();
    for (f, factor) in table.factors.iter().enumerate().filter(tested) {
        let groups = alike(table, response, f);
        let (test, n, found) = if groups.len() >= LEAST_GROUPS && factor.acting() == 2 {
            let differences: Vec<f64> = groups.iter().map(|g| g[1] - g[0]).collect();
            (RankTest::Wilcoxon, groups.len(), wilcoxon(&differences))
        } else if groups.len() >= LEAST_GROUPS {
            (RankTest::Friedman, groups.len(), friedman(&groups))
        } else {
            let mut measured = table.measured(response);
            measured.retain(|(run, _)| run.levels[f] < factor.acting());
            let mut groups = vec![Vec::new(); factor.acting()];
            measured.iter().for_each(|(run, value)| groups[run.levels[f]].push(*value));
            groups.retain(|group| !group.is_empty());
            (RankTest::KruskalWallis, measured.len(), if groups.len() > 1 { kruskal(&groups) } else { None })
        };
        if let Some((statistic, p)) = found {
            results.push(RankTestResult { factor: factor.name.clone(), test, n, statistic, p, p_holm: p });
        }
    }
    let corrected = holm(&results.iter().map(|r| r.p).collect::<Vec<_>>());
    results.iter_mut().zip(corrected).for_each(|(result, p)| result.p_holm = p);
    results
}
