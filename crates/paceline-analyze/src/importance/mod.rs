//! How much of a response's variation each factor and each pair is responsible for: functional ANOVA on a forest of
//! regression trees (after Hutter, Hoos and Leyton-Brown, 2014), over the whole grid of levels, each level counting
//! alike, also those combinations that were not run.

mod tree;

use paceline_random::{Purpose, Stream};
use serde::Serialize;

use crate::table::{Run, StudyTable};
use tree::{Leaf, RegressionTree, TreeRules};

/// Seed of the forest where nobody asks for another one.
pub const SEED: u64 = 1;
/// Least runs that importances are told of.
pub const LEAST_RUNS: usize = 8;
const TREES: u64 = 64;
/// Levels that a tree tells apart; further ones share the last place.
const MOST_LEVELS: usize = 64;

/// What a factor or a pair is responsible for.
#[derive(Clone, Debug, Serialize)]
pub struct Share {
    /// The factor, or two with `:` between.
    pub term: String,
    /// Share of the variation, 0 to 1: the mean over trees.
    pub share: f64,
    /// Standard deviation over trees.
    pub deviation: f64,
}

/// Shares of a response.
#[derive(Clone, Debug, Serialize)]
pub struct Importance {
    /// Greatest first.
    pub shares: Vec<Share>,
    /// What more than two factors do together.
    pub rest: f64,
    /// How well trees foretell runs that they have not seen: share of the variation, below 0 if not at all.
    pub foretold: f64,
    /// Runs.
    pub n: usize,
}

/// Leaves of a tree together with the grid that they divide.
struct Divided<'a> {
    leaves: &'a [Leaf],
    levels: &'a [usize],
}

impl Divided<'_> {
    /// The part of each factor's levels that lie in a leaf.
    fn parts(&self, leaf: &Leaf) -> Vec<f64> {
        let part = |(levels, inside): (&usize, &u64)| f64::from(inside.count_ones()) / *levels as f64;
        self.levels.iter().zip(&leaf.boxes).map(part).collect()
    }

    fn mean(&self) -> f64 {
        self.leaves.iter().map(|leaf| leaf.value * self.parts(leaf).iter().product::<f64>()).sum()
    }

    fn variance(&self, mean: f64) -> f64 {
        let squares =
            self.leaves.iter().map(|l| (l.value - mean).powi(2) * self.parts(l).iter().product::<f64>());
        squares.sum()
    }

    /// Means by level of some factors, over all levels of the others.
    fn marginal(&self, factors: &[usize]) -> Vec<f64> {
        let sizes: Vec<usize> = factors.iter().map(|f| self.levels[*f]).collect();
        let mut means = vec![0.0; sizes.iter().product()];
        for leaf in self.leaves {
            let parts = self.parts(leaf);
            let others: f64 =
                (0..parts.len()).filter(|f| !factors.contains(f)).map(|f| parts[f]).product::<f64>()
                    * leaf.value;
            for (at, mean) in means.iter_mut().enumerate() {
                let mut rest = at;
                let inside = factors.iter().zip(&sizes).rev().all(|(f, size)| {
                    let level = rest % size;
                    rest /= size;
                    leaf.boxes[*f] >> level & 1 == 1
                });
                if inside {
                    *mean += others;
                }
            }
        }
        means
    }
}

/// Variance of each factor and pair in the function that leaves describe, and of the whole.
fn decompose(leaves: &[Leaf], levels: &[usize], pairs: &[(usize, usize)]) -> (Vec<f64>, Vec<f64>, f64) {
    let grid = Divided { leaves, levels };
    let mean = grid.mean();
    let whole = grid.variance(mean);
    let marginals: Vec<Vec<f64>> = (0..levels.len()).map(|f| grid.marginal(&[f])).collect();
    let alone = |m: &Vec<f64>| m.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / m.len() as f64;
    let together = |(f, g): &(usize, usize)| {
        let means = grid.marginal(&[*f, *g]);
        let beyond = means.iter().enumerate().map(|(at, value)| {
            let (i, j) = (at / levels[*g], at % levels[*g]);
            (value - marginals[*f][i] - marginals[*g][j] + mean).powi(2)
        });
        beyond.sum::<f64>() / means.len() as f64
    };
    (marginals.iter().map(alone).collect(), pairs.iter().map(together).collect(), whole)
}

/// What trees are grown on: runs by the places of their levels, of factors that varied.
struct Observed {
    names: Vec<String>,
    levels: Vec<usize>,
    ordered: Vec<bool>,
    rows: Vec<Vec<usize>>,
    values: Vec<f64>,
    pairs: Vec<(usize, usize)>,
}

impl Observed {
    fn new(table: &StudyTable, response: usize) -> Self {
        let varied: Vec<usize> =
            (0..table.factors.len()).filter(|f| table.factors[*f].levels.len() > 1).collect();
        let factors = || varied.iter().map(|f| &table.factors[*f]);
        let row = |run: &Run| varied.iter().map(|f| run.levels[*f].min(MOST_LEVELS - 1)).collect();
        let (rows, values) =
            table.measured(response).into_iter().map(|(run, value)| (row(run), value)).unzip();
        let count = varied.len();
        let pairs: Vec<_> = (0..count).flat_map(|f| (f + 1..count).map(move |g| (f, g))).collect();
        let mut names: Vec<String> = factors().map(|factor| factor.name.clone()).collect();
        names.extend(pairs.iter().map(|(f, g)| format!("{}:{}", names[*f], names[*g])).collect::<Vec<_>>());
        let levels = factors().map(|factor| factor.levels.len().min(MOST_LEVELS)).collect();
        let ordered = factors().map(|factor| factor.numbers().is_some()).collect();
        Self { names, levels, ordered, rows, values, pairs }
    }
}

impl Importance {
    /// The share of a factor alone.
    pub fn of(&self, factor: &str) -> Option<f64> {
        self.shares.iter().find(|share| share.term == factor).map(|share| share.share)
    }

    /// Of a response; none with fewer than [`LEAST_RUNS`] runs or without variation.
    pub fn new(table: &StudyTable, response: usize, seed: u64) -> Option<Self> {
        let Observed { names, levels, ordered, rows, values, pairs } = &Observed::new(table, response);
        let n = values.len();
        if n < LEAST_RUNS || levels.is_empty() {
            return None;
        }
        let mean = values.iter().sum::<f64>() / n as f64;
        let total: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
        if total <= 0.0 {
            return None;
        }
        let stream = Stream::new(seed, Purpose::Analysis);
        let mut shares = vec![Vec::new(); names.len()];
        let mut unseen = vec![(0.0, 0u32); n];
        for t in 0..TREES {
            let draws = stream.fork(t);
            let drawn: Vec<usize> = (0..n as u64).map(|i| draws.below(i, n as u64) as usize).collect();
            let rules = TreeRules {
                levels,
                ordered,
                least: if n < 40 { 1 } else { 2 },
                // Five of six factors are looked at for a split, so that trees differ.
                looked_at: (levels.len() * 5).div_ceil(6).max(1),
                draws: draws.fork(1),
            };
            let tree = RegressionTree::grow(&rules, rows, values, &drawn);
            let mut seen = vec![false; n];
            drawn.iter().for_each(|i| seen[*i] = true);
            for i in (0..n).filter(|i| !seen[*i]) {
                unseen[i].0 += tree.predict(&rows[i]);
                unseen[i].1 += 1;
            }
            let (alone, together, whole) = decompose(&tree.leaves(levels), levels, pairs);
            if whole > 0.0 {
                let all = alone.into_iter().chain(together);
                shares.iter_mut().zip(all).for_each(|(share, variance)| share.push(variance / whole));
            }
        }
        let mut shares: Vec<Share> = names
            .iter()
            .zip(shares)
            .map(|(term, of)| {
                let count = of.len().max(1) as f64;
                let share = of.iter().sum::<f64>() / count;
                let deviation = (of.iter().map(|s| (s - share).powi(2)).sum::<f64>() / count).sqrt();
                Share { term: term.clone(), share, deviation }
            })
            .collect();
        let rest = (1.0 - shares.iter().map(|s| s.share).sum::<f64>()).max(0.0);
        shares.sort_by(|a, b| b.share.total_cmp(&a.share));
        let (mut missed, mut around) = (0.0, 0.0);
        for ((sum, count), value) in unseen.iter().zip(values).filter(|((_, count), _)| *count > 0) {
            missed += (value - sum / f64::from(*count)).powi(2);
            around += (value - mean).powi(2);
        }
        Some(Self { shares, rest, foretold: if around > 0.0 { 1.0 - missed / around } else { 0.0 }, n })
    }
}

/// Shares of one tree that sees every run once and is grown until each leaf is one configuration: on a full grid this
/// is the plain decomposition of the means, which tests compare with others' programs.
pub fn interpolated(table: &StudyTable, response: usize) -> Vec<(String, f64)> {
    let Observed { names, levels, ordered, rows, values, pairs } = &Observed::new(table, response);
    let draws = Stream::new(0, Purpose::Analysis);
    let rules = TreeRules { levels, ordered, least: 1, looked_at: levels.len(), draws };
    let all: Vec<usize> = (0..rows.len()).collect();
    let tree = RegressionTree::grow(&rules, rows, values, &all);
    let (alone, together, whole) = decompose(&tree.leaves(levels), levels, pairs);
    names.iter().cloned().zip(alone.into_iter().chain(together).map(|v| v / whole)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{RawRun, Response};

    fn grid(value: impl Fn(usize, usize, usize) -> f64) -> StudyTable {
        let mut runs = Vec::new();
        for (a, b, c) in (0..60).map(|i| (i % 3, i / 3 % 4, i / 12)) {
            runs.push(RawRun {
                levels: vec![a.to_string(), format!("w{b}"), c.to_string()],
                values: vec![Some(value(a, b, c))],
                ..RawRun::default()
            });
        }
        let names = ["a", "b", "c"].map(String::from);
        StudyTable::new("t", &names, vec![Response::parse("y").unwrap()], runs)
    }

    #[test]
    fn shares_are_those_of_the_function_itself() {
        // Variances by hand: a: 2/3·9, b alone: none, a·[b = 1] beyond a: see below.
        let table = grid(|a, b, _| 3.0 * a as f64 + if b == 1 { 4.0 } else { 0.0 });
        let found = interpolated(&table, 0);
        let (of_a, of_b) = (9.0 * 2.0 / 3.0, 16.0 * 3.0 / 16.0);
        let share = |name: &str| found.iter().find(|(n, _)| n == name).unwrap().1;
        assert!((share("a") - of_a / (of_a + of_b)).abs() < 1e-12, "{found:?}");
        assert!((share("b") - of_b / (of_a + of_b)).abs() < 1e-12);
        assert!(share("c").abs() < 1e-12 && share("a:b").abs() < 1e-12);
    }

    #[test]
    fn a_forest_tells_what_matters_from_what_does_not() {
        let table = grid(|a, b, c| if a == 1 && b == 2 { 10.0 } else { 0.01 * c as f64 });
        let importance = Importance::new(&table, 0, 1).unwrap();
        assert!(importance.shares[..3].iter().any(|s| s.term == "a:b"), "{importance:?}");
        let of = |name: &str| importance.of(name).unwrap();
        assert!(of("c") < 0.02 && of("a:b") > 0.2, "{importance:?}");
        assert!(importance.foretold > 0.5, "{importance:?}");
        let again = Importance::new(&table, 0, 1).unwrap();
        assert_eq!(again.shares[0].share, importance.shares[0].share, "the seed decides");
    }
}
