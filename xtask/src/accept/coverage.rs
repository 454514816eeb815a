//! Synthetic studies with known effects, interactions and noise: how often intervals of 95% contain the truth, and how
//! often something is found that is not there.

use paceline_analyze::anova::Estimate;
use paceline_analyze::design::Coding;
use paceline_analyze::findings::Kind;
use paceline_analyze::table::{RawRun, Response, StudyTable};
use paceline_analyze::{Analysis, Ask};
use paceline_random::{Purpose, Stream};
use serde_json::json;

use super::{Line, Report};
use crate::process::Outcome;

const STUDIES: u64 = 1000;

/// A study whose truth is known.
struct Known {
    table: StudyTable,
    /// By factor and level; sums to zero, or is a slope.
    alone: Vec<Vec<f64>>,
    /// By pair of factors and their levels; sums to zero over each.
    together: Vec<((usize, usize), Vec<Vec<f64>>)>,
}

/// Numbers that sum to zero, or zeros.
fn centred(mut values: Vec<f64>) -> Vec<f64> {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    values.iter_mut().for_each(|v| *v -= mean);
    values
}

/// The kinds of study that take turns: levels of factors (many numbers make a slope), the part of the grid that is run,
/// repeats, blocks.
const KINDS: [(&str, &[usize], f64, usize, usize); 4] = [
    ("full grid", &[3, 2, 2, 4], 1.0, 2, 1),
    ("seven tenths of a grid", &[3, 2, 4], 0.7, 3, 1),
    ("two levels in three blocks", &[2, 2, 2, 2], 1.0, 3, 3),
    ("a slope", &[12, 3, 2], 0.8, 1, 1),
];

fn study(seed: u64) -> Known {
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
            control: false,
        });
    }
    let names: Vec<String> = (0..sizes.len()).map(|f| format!("f{f}")).collect();
    let responses = vec![Response::parse("log(time_s)").expect("a response")];
    Known { table: StudyTable::new("synthetic", &names, responses, runs), alone, together }
}

/// Intervals that were looked at, and those that contain the truth.
#[derive(Default)]
struct Covered {
    all: u64,
    hit: u64,
}

impl Covered {
    fn look(&mut self, estimate: Option<Estimate>, truth: f64) {
        if let Some(covers) = estimate.and_then(|e| e.covers(truth)) {
            self.all += 1;
            self.hit += u64::from(covers);
        }
    }

    fn share(&self) -> f64 {
        self.hit as f64 / self.all as f64
    }
}

/// Coverage and false findings over a thousand studies.
pub fn measure() -> Outcome<Report> {
    let (mut alone, mut together, mut jointly) = (Covered::default(), Covered::default(), Covered::default());
    let mut kinds: Vec<Covered> = KINDS.iter().map(|_| Covered::default()).collect();
    let (mut told, mut wrong, mut misled, mut there, mut seen) = (0u64, 0u64, 0u64, 0u64, 0u64);
    let mut runs = Vec::new();
    for seed in 0..STUDIES {
        let known = study(seed);
        let analysis = Analysis::new(&known.table, Ask::default());
        let anova = analysis.anova.as_ref().ok_or("a study without an analysis of variance")?;
        let kind = &mut kinds[(seed % KINDS.len() as u64) as usize];
        for (f, effect) in anova.effects.iter().enumerate() {
            for (level, truth) in effect.levels.iter().zip(&known.alone[f]) {
                alone.look(level.effect, *truth);
                kind.look(level.effect, *truth);
            }
            let truth =
                |step: &paceline_analyze::anova::Step| known.alone[f][step.to] - known.alone[f][step.from];
            let all = effect.steps.iter().all(|s| s.change.covers(truth(s)).unwrap_or(true));
            if !effect.steps.is_empty() {
                jointly.all += 1;
                jointly.hit += u64::from(all);
            }
        }
        for (interaction, (_, rows)) in anova.interactions.iter().zip(&known.together) {
            for (cells, truths) in interaction.cells.iter().zip(rows) {
                for (cell, truth) in cells.iter().zip(truths) {
                    // The middle of a slope is known exactly to be zero.
                    if cell.is_none_or(|c| c.low != c.high) {
                        together.look(*cell, *truth);
                        kind.look(*cell, *truth);
                    }
                }
            }
        }
        let is_there = |names: &[String]| {
            let at: Vec<usize> = names.iter().filter_map(|n| known.table.factor(n)).collect();
            match at[..] {
                [f] => known.alone[f].iter().any(|v| *v != 0.0),
                [f, g] => {
                    let pair = known.together.iter().find(|(pair, _)| *pair == (f.min(g), f.max(g)));
                    pair.is_some_and(|(_, rows)| rows.iter().flatten().any(|v| *v != 0.0))
                }
                _ => false,
            }
        };
        let claims: Vec<_> =
            analysis.findings.iter().filter(|f| matches!(f.kind, Kind::Effect | Kind::Together)).collect();
        let false_ones = claims.iter().filter(|f| !is_there(&f.factors)).count() as u64;
        let real = anova.design.terms.iter().filter(|t| {
            let names: Vec<String> = t.factors.iter().map(|f| known.table.factors[*f].name.clone()).collect();
            is_there(&names)
        });
        there += real.count() as u64;
        seen += claims.len() as u64 - false_ones;
        told += claims.len() as u64;
        wrong += false_ones;
        misled += u64::from(false_ones > 0);
        let slope = anova.design.codings.iter().flatten().any(|c| matches!(c, Coding::Slope { .. }));
        runs.push(json!({
            "seed": seed, "runs": anova.n, "residual_df": anova.residual_df, "slope": slope,
            "claims": claims.len(), "false": false_ones,
        }));
    }
    let between = |claim: &str, share: f64| {
        let line =
            |claim: String, wanted: f64, at_most: bool| Line { claim, reached: share, wanted, at_most };
        [line(format!("{claim}, at least"), 0.93, false), line(format!("{claim}, at most"), 0.97, true)]
    };
    let mut lines: Vec<Line> = Vec::new();
    lines.extend(between("95% intervals of main effects contain the truth", alone.share()));
    lines.extend(between("95% intervals of interactions contain the truth", together.share()));
    for ((name, ..), covered) in KINDS.iter().zip(&kinds) {
        lines.extend(between(&format!("{name}: intervals contain the truth"), covered.share()));
    }
    lines.push(Line {
        claim: "all changes of a factor together contain the truth".into(),
        reached: jointly.share(),
        wanted: 0.95,
        at_most: false,
    });
    lines.push(Line {
        claim: "studies that tell of an effect that is not there".into(),
        reached: misled as f64 / STUDIES as f64,
        wanted: 0.05,
        at_most: true,
    });
    lines.push(Line {
        claim: "false findings among all findings".into(),
        reached: wrong as f64 / told.max(1) as f64,
        wanted: 0.05,
        at_most: true,
    });
    lines.push(Line {
        claim: "effects that are there and are told (the rest is small beside the noise)".into(),
        reached: seen as f64 / there.max(1) as f64,
        wanted: 0.5,
        at_most: false,
    });
    Ok(Report { lines, runs })
}
