//! Charts of effects.

use super::{ChartInput, dot};
use crate::anova::Estimate;
use crate::distributions::normal_quantile;
use crate::figure::{Bar, ChartAxis, ChartMark, Dot, Figure, Panel};
use crate::importance::Share;
use crate::table::number;

const MOST_PAIRS: usize = 6;

fn unscaled(drawn: &ChartInput<'_>, x: f64, estimate: &Estimate, label: String) -> Dot {
    let back = |v: f64| drawn.table.responses[0].unscaled(v);
    let range = estimate.low.zip(estimate.high).map(|(low, high)| (back(low), back(high)));
    Dot { x, y: back(estimate.value), range, label }
}

/// Means as measured and of how many runs, by level of `g`, then of `f`; none where nothing was run.
fn means(drawn: &ChartInput<'_>, f: usize, g: usize) -> Vec<Vec<Option<(f64, u32)>>> {
    let [columns, rows] = [f, g].map(|factor| drawn.table.factors[factor].levels.len());
    let mut sums = vec![vec![(0.0, 0u32); columns]; rows];
    for (run, value) in drawn.analysis.steady.measured(0) {
        let (sum, n) = &mut sums[run.levels[g]][run.levels[f]];
        (*sum, *n) = (*sum + value, *n + 1);
    }
    let mean =
        |(sum, n): (f64, u32)| (n > 0).then(|| (drawn.table.responses[0].unscaled(sum / f64::from(n)), n));
    sums.into_iter().map(|row| row.into_iter().map(mean).collect()).collect()
}

/// Mean by level of each factor.
pub fn main_effects(drawn: &ChartInput<'_>) -> Option<Figure> {
    let anova = drawn.analysis.anova.as_ref()?;
    let mut panels = Vec::new();
    for f in drawn.by_importance().into_iter().take(9) {
        let factor = &drawn.table.factors[f];
        let effect = anova.effects.iter().find(|e| e.factor == factor.name)?;
        let points = effect.levels.iter().enumerate().filter_map(|(i, level)| {
            let label = format!("{} (n = {})", factor.at(i), level.n);
            Some(unscaled(drawn, i as f64, level.mean.as_ref()?, label))
        });
        let marks = vec![ChartMark::line("", points.collect())];
        let panel = Panel::new(factor.axis(), ChartAxis::linear(&drawn.response()), marks);
        panels.push(panel.titled(&factor.name));
    }
    let reading = "The mean at each level over all levels of the other factors, with 95% intervals: steep lines matter, \
                   flat ones do not.";
    drawn.figure("main-effects", "Main effects", reading, panels)
}

/// Means by two factors, for the pairs that act together most.
pub fn interactions(drawn: &ChartInput<'_>) -> Option<Figure> {
    let anova = drawn.analysis.anova.as_ref()?;
    let terms = anova.sources.iter().zip(&anova.design.terms);
    let mut pairs: Vec<_> = terms.filter(|(s, t)| t.factors.len() == 2 && s.df > 0).collect();
    pairs.sort_by(|a, b| b.0.partial_eta_sq.total_cmp(&a.0.partial_eta_sq));
    let mut panels = Vec::new();
    for (source, term) in pairs.into_iter().take(MOST_PAIRS) {
        let [f, g] = [term.factors[0], term.factors[1]];
        // The factor of fewer levels is the one with a line per level.
        let (across, lines) = if drawn.table.factors[f].levels.len() >= drawn.table.factors[g].levels.len() {
            (f, g)
        } else {
            (g, f)
        };
        let (x, series) = (&drawn.table.factors[across], &drawn.table.factors[lines]);
        let means = means(drawn, across, lines);
        let line = |j: usize| {
            let points = (0..x.levels.len()).filter_map(|i| {
                let (y, n) = means[j][i]?;
                Some(Dot::new(i as f64, y, format!("{}, {} (n = {n})", x.at(i), series.at(j))))
            });
            ChartMark::line(&series.at(j), points.collect())
        };
        let p = source.p_holm.map_or_else(String::new, |p| format!(", p = {}", number(p)));
        let marks = (0..series.levels.len()).map(line).collect();
        let panel = Panel::new(x.axis(), ChartAxis::linear(&drawn.response()), marks);
        panels.push(panel.titled(format!("{} × {}{p}", x.name, series.name)));
    }
    let reading = "Means of the runs at each pair of levels, for the pairs that act together most: parallel lines mean \
                   that two factors act independently (on the scale of the analysis).";
    drawn.figure("interactions", "Interactions", reading, panels)
}

/// Effects that stand out of what noise alone would give.
pub fn half_normal(drawn: &ChartInput<'_>) -> Option<Figure> {
    let anova = drawn.analysis.anova.as_ref()?;
    let mut sizes: Vec<(f64, &str)> = Vec::new();
    for (column, along) in anova.fit.directions() {
        let term = anova.design.terms.iter().find(|t| t.columns.contains(&column));
        sizes.extend(term.map(|term| (along.abs(), term.name.as_str())));
    }
    sizes.sort_by(|a, b| a.0.total_cmp(&b.0));
    let n = sizes.len() as f64;
    let place = |i: usize| normal_quantile(0.5 + 0.5 * (i as f64 + 0.5) / n);
    let points: Vec<Dot> =
        sizes.iter().enumerate().map(|(i, (size, name))| Dot::new(place(i), *size, *name)).collect();
    let far = points.last()?.x;
    let mut marks = vec![ChartMark::dots("effect", points)];
    if let Some((noise, _)) = anova.noise() {
        marks.push(ChartMark::curve("noise alone", vec![dot(0.0, 0.0), dot(far, far * noise)]));
    }
    let response = drawn.analysis.response.words();
    let y = ChartAxis::linear(&format!("size of the effect (orthogonal contrast of {response})"));
    let panel = Panel::new(ChartAxis::linear("half-normal quantile"), y, marks);
    let reading = "Each dot is one degree of freedom of a factor or pair: those that rise above the line are more than \
                   noise.";
    drawn.figure("half-normal", "Half-normal plot of effects", reading, vec![panel])
}

pub fn importance(drawn: &ChartInput<'_>) -> Option<Figure> {
    let importance = drawn.analysis.importance.as_ref()?;
    let mut shown = importance.percents();
    shown.reverse();
    let bar = |(i, (share, percent)): (usize, &(&Share, u32))| Bar {
        at: i as f64,
        from: 0.0,
        to: 100.0 * share.share,
        range: Some((100.0 * share.low, 100.0 * share.high)),
        label: format!("{}: {percent}%", share.term),
    };
    let bars = shown.iter().enumerate().map(bar).collect();
    let panel = Panel::new(
        ChartAxis::linear("share of the variation, %"),
        ChartAxis::names("factor", shown.iter().map(|(share, _)| share.term.clone())),
        vec![ChartMark::Bars { name: String::new(), lying: true, bars }],
    );
    let reading = "How much of the variation each factor alone, factors acting together, and noise are responsible for: \
                   100% in all, with 95% intervals.";
    drawn.figure("importance", "What mattered", reading, vec![panel])
}

/// The two factors that matter most, together.
pub fn contour(drawn: &ChartInput<'_>) -> Option<Figure> {
    let order = drawn.by_importance();
    let [f, g, ..] = order[..] else { return None };
    let (x, y) = (&drawn.table.factors[f], &drawn.table.factors[g]);
    let value = |row: Vec<Option<(f64, u32)>>| row.into_iter().map(|cell| Some(cell?.0)).collect();
    let cells = means(drawn, f, g).into_iter().map(value).collect();
    let panel = Panel::new(x.axis(), y.axis(), vec![ChartMark::Heat { value: drawn.response(), cells }]);
    let reading = "The mean of all runs at each pair of levels of the two factors that matter most; empty places were \
                   not run.";
    let title = format!("{} by {} and {}", drawn.analysis.response.name, x.name, y.name);
    drawn.figure("contour", &title, reading, vec![panel])
}
