//! How soon samplers find the best row of a table.

use std::ops::Range;

use paceline_random::{Purpose, Stream};
use paceline_registry::Registry;
use paceline_statistics::{mean, sorted};
use serde::Serialize;

use crate::samplers::SamplerKind;
use crate::table::{Exploration, ExplorationError};

/// One sampler over all seeds.
#[derive(Serialize)]
pub struct RegretCurve {
    sampler: String,
    /// Mean evaluations until the regret is at most 5%; one more than the budget where it never is.
    evaluations_to_5_percent: BootstrapMean,
    mean_regret: Vec<f64>,
    regret_at_15: Option<BootstrapMean>,
    regret_at_30: Option<BootstrapMean>,
    /// Median and greatest seconds of the suggestion after the most observations.
    last_suggestion_s: [f64; 2],
    /// Regret after each evaluation, by seed.
    regrets: Vec<Vec<f64>>,
}

/// A mean with its 95% interval, by bootstrap over seeds.
#[derive(Clone, Copy, Serialize)]
struct BootstrapMean {
    mean: f64,
    low: f64,
    high: f64,
}

impl BootstrapMean {
    fn of(values: &[f64]) -> Self {
        const DRAWS: u64 = 2000;
        let n = values.len() as u64;
        let mean = |of: &mut dyn Iterator<Item = f64>| of.sum::<f64>() / n as f64;
        let stream = Stream::new(1, Purpose::Bench);
        let draw = |d| mean(&mut (0..n).map(|i| values[stream.fork(d).below(i, n) as usize]));
        let means = sorted(&(0..DRAWS).map(draw).collect::<Vec<_>>());
        let at = |share: f64| means[((DRAWS - 1) as f64 * share).round() as usize];
        Self { mean: mean(&mut values.iter().copied()), low: at(0.025), high: at(0.975) }
    }
}

impl RegretCurve {
    /// Explores the table once per seed.
    pub fn measure(
        exploration: &Exploration,
        samplers: &Registry<SamplerKind>,
        sampler: &str,
        budget: usize,
        seeds: Range<u64>,
    ) -> Result<Self, ExplorationError> {
        let (mut regrets, mut last): (Vec<Vec<f64>>, Vec<f64>) = (Vec::new(), Vec::new());
        for seed in seeds {
            let explored = exploration.run(samplers, sampler, seed)?;
            let mut regret = exploration.regrets(&explored.rows).ok_or(ExplorationError::NoRegret)?;
            // A design that ends before the budget stays where it is.
            let end = regret.last().copied().unwrap_or(f64::NAN);
            regret.resize(regret.len().max(budget.min(exploration.table().rows.len())), end);
            regrets.push(regret);
            last.extend(explored.suggest_s.last());
        }
        let reached = |r: &Vec<f64>| r.iter().position(|v| *v <= 0.05).map_or(budget + 1, |i| i + 1) as f64;
        let steps = regrets.iter().map(Vec::len).min().unwrap_or(0);
        let column = |i: usize| -> Vec<f64> { regrets.iter().map(|r| r[i]).collect() };
        let at = |n: usize| (n <= steps).then(|| BootstrapMean::of(&column(n - 1)));
        let last = sorted(&last);
        Ok(Self {
            sampler: sampler.into(),
            evaluations_to_5_percent: BootstrapMean::of(&regrets.iter().map(reached).collect::<Vec<_>>()),
            mean_regret: (0..steps).map(|i| mean(&column(i))).collect(),
            regret_at_15: at(15),
            regret_at_30: at(30),
            last_suggestion_s: [last[last.len() / 2], last[last.len() - 1]],
            regrets,
        })
    }
}

/// Curves for people.
pub fn text(curves: &[RegretCurve], repeats: u64) -> String {
    let longest = curves.first().map_or(0, |curve| curve.mean_regret.len());
    let mut marks = vec![1, 5, 10, 15, 20, 30, 40, 60, 100, 200];
    marks.retain(|n| *n <= longest);
    let mut text = format!(
        "mean regret of {repeats} seeds: the best feasible value found so far, above the best in the table, as a fraction \
         of that;\nuntil one is found, the worst feasible value counts\n\n{:<16}",
        "evaluations"
    );
    marks.iter().for_each(|n| text += &format!("{n:>8}"));
    text += "   until 5% (95% interval)   last suggestion\n";
    for curve in curves {
        text += &format!("{:<16}", curve.sampler);
        marks.iter().for_each(|n| text += &format!("{:>8.3}", curve.mean_regret[n - 1]));
        let BootstrapMean { mean, low, high } = curve.evaluations_to_5_percent;
        let interval = format!("{mean:.1} ({low:.1} to {high:.1})");
        text += &format!("   {interval:>23}   {:>9.2} ms\n", 1e3 * curve.last_suggestion_s[0]);
    }
    text
}
