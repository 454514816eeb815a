//! Synthetic studies with known effects, interactions and noise: how often intervals of 95% contain the truth, and how
//! often something is found that is not there.

use paceline_random::{Purpose, Stream};
use paceline_statistics::mean;
use serde::Serialize;

use paceline_analyze::table::{RawRun, Response, StudyTable};
use paceline_analyze::{Analysis, AnalysisRequest, Anova, Estimate, Finding, FindingKind, LevelContrast};

/// A study whose truth is known.
struct SyntheticStudy {
    table: StudyTable,
    /// By factor and level; sums to zero, or is a slope.
    alone: Vec<Vec<f64>>,
    /// By pair of factors and their levels; sums to zero over each.
    together: Vec<(Pair, Vec<Vec<f64>>)>,
}

/// Two factors.
type Pair = (usize, usize);

/// Numbers that sum to zero, or zeros.
fn centred(mut values: Vec<f64>) -> Vec<f64> {
    let mean = mean(&values);
    values.iter_mut().for_each(|v| *v -= mean);
    values
}

/// The kinds of study that take turns: levels of factors (many numbers make a slope), the part of the grid that is run,
/// repeats, blocks.
pub const KINDS: [(&str, &[usize], f64, usize, usize); 4] = [
    ("full grid", &[3, 2, 2, 4], 1.0, 2, 1),
    ("seven tenths of a grid", &[3, 2, 4], 0.7, 3, 1),
    ("two levels in three blocks", &[2, 2, 2, 2], 1.0, 3, 3),
    ("a slope", &[12, 3, 2], 0.8, 1, 1),
];

fn study(seed: u64) -> SyntheticStudy {
    let (_, sizes, part, repeats, blocks) = KINDS[(seed % KINDS.len() as u64) as usize];
    let stream = Stream::new(seed, Purpose::Bench);
    let (effects, sides, noise) = (stream.fork(1), stream.fork(2), stream.fork(3));
    let deviation = 0.05 + 0.25 * stream.unit(0);
    let is_slope = |f: usize| sizes[f] > 8;
    let place = |f: usize, level: usize| 2.0 * level as f64 / (sizes[f] - 1) as f64 - 1.0;
    // Half of the factors and a third of the pairs do something.
    let acts = |key: u64, chance: f64| sides.unit(key) < chance;
    let alone: Vec<Vec<f64>> = (0..sizes.len())
        .map(|f| {
            let draws = effects.fork(f as u64);
            let size = if acts(f as u64, 0.5) { 0.4 } else { 0.0 };
            if is_slope(f) {
                return (0..sizes[f]).map(|l| size * draws.normal(0) * place(f, l)).collect();
            }
            centred((0..sizes[f] as u64).map(|l| size * draws.normal(l)).collect())
        })
        .collect();
    let mut together = Vec::new();
    for f in 0..sizes.len() {
        for g in f + 1..sizes.len() {
            let key = (100 + 10 * f + g) as u64;
            let draws = effects.fork(key);
            let size = if acts(key, 1.0 / 3.0) { 0.3 } else { 0.0 };
            // A slope times numbers that sum to zero; otherwise rows, then columns are centred.
            let mut rows: Vec<Vec<f64>> = if is_slope(f) {
                let each = centred((0..sizes[g] as u64).map(|j| size * draws.normal(j)).collect());
                (0..sizes[f]).map(|i| each.iter().map(|e| e * place(f, i)).collect()).collect()
            } else {
                let at = |i: usize, j: usize| size * draws.normal((i * sizes[g] + j) as u64);
                (0..sizes[f]).map(|i| centred((0..sizes[g]).map(|j| at(i, j)).collect())).collect()
            };
            if !is_slope(f) {
                for j in 0..sizes[g] {
                    let column = centred(rows.iter().map(|row| row[j]).collect());
                    rows.iter_mut().zip(column).for_each(|(row, value)| row[j] = value);
                }
            }
            together.push(((f, g), rows));
        }
    }
    let mut runs = Vec::new();
    let cells: usize = sizes.iter().product();
    for i in 0..cells * repeats {
        let (mut rest, mut levels) = (i % cells, Vec::new());
        for size in sizes {
            levels.push(rest % size);
            rest /= size;
        }
        if stream.unit(1000 + i as u64) >= part {
            continue;
        }
        let block = i / cells % blocks;
        let mut value = 1.0 + 0.5 * block as f64 + deviation * noise.normal(i as u64);
        value += levels.iter().enumerate().map(|(f, l)| alone[f][*l]).sum::<f64>();
        value += together.iter().map(|((f, g), rows)| rows[levels[*f]][levels[*g]]).sum::<f64>();
        runs.push(RawRun {
            id: format!("r{i}"),
            levels: levels.iter().map(|l| format!("{l}")).collect(),
            values: vec![Some(value.exp())],
            order: i as f64,
            block: (blocks > 1).then(|| format!("b{block}")),
            ..RawRun::default()
        });
    }
    let names: Vec<String> = (0..sizes.len()).map(|f| format!("f{f}")).collect();
    let responses = vec![Response::parse("log(time_s)").expect("a response")];
    SyntheticStudy { table: StudyTable::new("synthetic", &names, responses, runs), alone, together }
}

/// Intervals that were looked at, and those that contain the truth.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Covered {
    /// Looked at.
    pub all: u64,
    /// With the truth inside.
    pub hit: u64,
}

impl Covered {
    fn look(&mut self, estimate: Option<Estimate>, truth: f64) {
        // The middle of a slope is known exactly to be zero.
        let open = estimate.filter(|e| e.low != e.high);
        if let Some(covers) = open.and_then(|e| e.covers(truth)) {
            self.all += 1;
            self.hit += u64::from(covers);
        }
    }

    /// The part of them that contain it.
    pub fn share(&self) -> f64 {
        self.hit as f64 / self.all as f64
    }
}

/// What came of one study.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SyntheticOutcome {
    /// Decides the study.
    pub seed: u64,
    /// Its runs.
    pub runs: usize,
    /// Degrees of freedom of its residuals.
    pub residual_df: usize,
    /// Intervals of main effects.
    pub alone: Covered,
    /// Intervals of interactions.
    pub together: Covered,
    /// Factors, and those for which all changes between levels contain the truth at once.
    pub jointly: Covered,
    /// Factors and pairs that do something.
    pub there: usize,
    /// Findings of effects.
    pub claims: usize,
    /// Those of effects that are not there.
    pub wrong: usize,
}

impl SyntheticStudy {
    fn is_there(&self, factors: &[usize]) -> bool {
        match *factors {
            [f] => self.alone[f].iter().any(|v| *v != 0.0),
            [f, g] => {
                let pair = self.together.iter().find(|(pair, _)| *pair == (f.min(g), f.max(g)));
                pair.is_some_and(|(_, rows)| rows.iter().flatten().any(|v| *v != 0.0))
            }
            _ => false,
        }
    }
}

/// Makes a study and analyses it.
pub fn told(seed: u64) -> SyntheticOutcome {
    let known = study(seed);
    let Some(anova) = Anova::new(&known.table, 0) else {
        return SyntheticOutcome { seed, ..SyntheticOutcome::default() };
    };
    let mut told = SyntheticOutcome {
        seed,
        runs: anova.n,
        residual_df: anova.residual_df,
        ..SyntheticOutcome::default()
    };
    for (f, effect) in anova.effects.iter().enumerate() {
        for (level, truth) in effect.levels.iter().zip(&known.alone[f]) {
            told.alone.look(level.effect, *truth);
        }
        let truth = |step: &LevelContrast| known.alone[f][step.to] - known.alone[f][step.from];
        told.jointly.all += 1;
        told.jointly.hit += u64::from(effect.steps.iter().all(|s| s.change.covers(truth(s)).unwrap_or(true)));
    }
    for (interaction, (_, rows)) in anova.interactions.iter().zip(&known.together) {
        for (cell, truth) in interaction.cells.iter().flatten().zip(rows.iter().flatten()) {
            told.together.look(*cell, *truth);
        }
    }
    let found = Analysis::new(&known.table, AnalysisRequest::default()).findings;
    let there = |finding: &Finding| {
        let factors: Vec<usize> = finding.factors.iter().filter_map(|n| known.table.factor(n)).collect();
        known.is_there(&factors)
    };
    let claims: Vec<&Finding> =
        found.iter().filter(|f| matches!(f.kind, FindingKind::Effect | FindingKind::Together)).collect();
    told.claims = claims.len();
    told.wrong = claims.iter().filter(|f| !there(f)).count();
    told.there = anova.design.terms.iter().filter(|t| known.is_there(&t.factors)).count();
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_contain_the_truth_about_as_often_as_they_say() {
        // The accept measurement looks at a thousand studies; here wide bounds hold for a tenth of them.
        let all: Vec<SyntheticOutcome> = (0..100).map(told).collect();
        let sum = |of: fn(&SyntheticOutcome) -> Covered| {
            let add =
                |a: Covered, t: &SyntheticOutcome| Covered { all: a.all + of(t).all, hit: a.hit + of(t).hit };
            all.iter().fold(Covered::default(), add).share()
        };
        for share in [sum(|t| t.alone), sum(|t| t.together)] {
            assert!((0.91..0.985).contains(&share), "{share}");
        }
        assert!(sum(|t| t.jointly) > 0.92);
        let misled = all.iter().filter(|t| t.wrong > 0).count();
        assert!(misled <= 12, "{misled} of 100 studies tell of an effect that is not there");
        let (seen, there) = all.iter().fold((0, 0), |(s, n), t| (s + t.claims - t.wrong, n + t.there));
        assert!(seen * 2 > there, "{seen} of {there}");
    }
}
