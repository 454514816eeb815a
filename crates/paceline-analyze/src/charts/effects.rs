//! Charts of effects.

use super::levels::{LevelGroups, spread_out};
use super::{ChartInput, dot};
use crate::anova::{Anova, Estimate};
use crate::distributions::{normal_quantile, t_quantile};
use crate::figure::{Bar, ChartAxis, ChartMark, Dot, Figure, Panel};
use crate::importance::Share;
use crate::table::number;
use paceline_statistics::median;

const MOST_PAIRS: usize = 6;
/// Lines of a panel; of more levels, some between the first and the last are shown.
const MOST_LINES: usize = 6;

fn unscaled(drawn: &ChartInput<'_>, x: f64, estimate: &Estimate, label: String) -> Dot {
    let back = |v: f64| drawn.table.responses[0].unscaled(v);
    let range = estimate.low.zip(estimate.high).map(|(low, high)| (back(low), back(high)));
    Dot { x, y: back(estimate.value), range, label }
}

/// Means, each workload's own level taken out, and of how many runs, by level of `g`, then of `f`; none where nothing
/// was run.
fn means(
    drawn: &ChartInput<'_>,
    (f, x): (usize, &LevelGroups),
    (g, y): (usize, &LevelGroups),
) -> Vec<Vec<Option<(f64, u32)>>> {
    let mut sums = vec![vec![(0.0, 0u32); x.names.len()]; y.names.len()];
    for (run, value) in drawn.levelled(&drawn.analysis.steady) {
        let (sum, n) = &mut sums[y.of[run.levels[g]]][x.of[run.levels[f]]];
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
    for f in drawn.configured().into_iter().take(9) {
        let factor = &drawn.table.factors[f];
        let effect = anova.effects.iter().find(|e| e.factor == factor.name)?;
        let shown = spread_out(factor.levels.len());
        let points = shown.iter().enumerate().filter_map(|(at, i)| {
            let level = effect.levels.get(*i)?;
            let label = format!("{} (n = {})", factor.at(*i), level.n);
            Some(unscaled(drawn, at as f64, level.mean.as_ref()?, label))
        });
        let marks = vec![ChartMark::line("", points.collect())];
        let x = ChartAxis::names(&factor.name, shown.iter().map(|i| factor.levels[*i].text.clone()));
        let panel = Panel::new(x, drawn.response_axis(&drawn.response()), marks);
        panels.push(panel.titled(&factor.name));
    }
    let reading = format!(
        "The mean at each level over all levels of the other factors, with 95% intervals: steep lines matter, flat ones \
         do not.{}",
        drawn.levelled_words()
    );
    drawn.figure("main-effects", "Main effects", &reading, Panel::on_one_scale(panels))
}

/// Means by two factors, for the pairs that act together most.
pub fn interactions(drawn: &ChartInput<'_>) -> Option<Figure> {
    let anova = drawn.analysis.anova.as_ref()?;
    let terms = anova.sources.iter().zip(&anova.design.terms);
    let mut pairs: Vec<_> = terms.filter(|(s, t)| t.factors.len() == 2 && s.df > 0).collect();
    pairs.sort_by(|a, b| b.0.partial_eta_sq.total_cmp(&a.0.partial_eta_sq));
    let (mut panels, mut some) = (Vec::new(), false);
    for (source, term) in pairs.into_iter().take(MOST_PAIRS) {
        let [f, g] =
            [term.factors[0], term.factors[1]].map(|f| (f, LevelGroups::new(&drawn.table.factors[f])));
        // The factor of fewer levels is the one with a line per level.
        let (across, lines) = if f.1.names.len() >= g.1.names.len() { (f, g) } else { (g, f) };
        let (x, series) = (&across.1, &lines.1);
        let means = means(drawn, (across.0, x), (lines.0, series));
        let line = |j: usize| {
            let points = (0..x.names.len()).filter_map(|i| {
                let (y, n) = means[j][i]?;
                Some(Dot::new(i as f64, y, format!("{}, {} (n = {n})", x.at(i), series.at(j))))
            });
            ChartMark::line(&series.at(j), points.collect())
        };
        let all = series.names.len();
        let shown = all.min(MOST_LINES);
        some |= shown < all;
        let marks = (0..shown).map(|i| line(i * (all - 1) / (shown - 1).max(1))).collect();
        let p = source.p_holm.map_or_else(String::new, |p| match p {
            p if p < 1e-4 => ", p < 0.0001".into(),
            p => format!(", p = {}", number(p)),
        });
        let panel = Panel::new(x.axis(), drawn.response_axis(&drawn.levelled_response()), marks);
        let [x, series] = [across.0, lines.0].map(|f| &drawn.table.factors[f].name);
        panels.push(panel.titled(format!("{x} × {series}{p}")));
    }
    let scale = if drawn.table.responses[0].log { "logarithmic" } else { "linear" };
    let some =
        if some { format!(" Of factors of many levels, {MOST_LINES} are drawn.") } else { String::new() };
    let reading = format!(
        "Means of the runs at each pair of levels, for the pairs that act together most: parallel lines mean that two \
         factors act independently, on the {scale} scale of the analysis and of this chart.{some}{}",
        drawn.levelled_words()
    );
    drawn.figure("interactions", "Interactions", &reading, Panel::on_one_scale(panels))
}

/// The size that noise alone gives an effect, and beyond which one of so many is more than that (5% for all together).
/// Where no run is repeated, the small effects tell: they are taken for noise (Lenth's method).
fn noise_of_effects(anova: &Anova, sizes: &[f64]) -> Option<(f64, f64)> {
    let (noise, df) = anova.noise().or_else(|| {
        let rough = 1.5 * median(sizes);
        let small: Vec<f64> = sizes.iter().copied().filter(|size| *size < 2.5 * rough).collect();
        (sizes.len() >= 3).then(|| (1.5 * median(&small), sizes.len() as f64 / 3.0))
    })?;
    Some((noise, noise * t_quantile(0.05 / sizes.len() as f64, df)))
}

/// Effects that stand out of what noise alone would give.
pub fn half_normal(drawn: &ChartInput<'_>) -> Option<Figure> {
    let anova = drawn.analysis.anova.as_ref()?;
    let mut sizes: Vec<(f64, String)> = Vec::new();
    for (column, along) in anova.fit.directions() {
        let term = anova.design.terms.iter().find(|t| t.columns.contains(&column));
        sizes.extend(term.map(|term| (along.abs(), term.name.replace(':', " × "))));
    }
    sizes.sort_by(|a, b| a.0.total_cmp(&b.0));
    let n = sizes.len() as f64;
    let place = |i: usize| normal_quantile(0.5 + 0.5 * (i as f64 + 0.5) / n);
    let points: Vec<Dot> =
        sizes.iter().enumerate().map(|(i, (size, name))| Dot::new(place(i), *size, name)).collect();
    let far = points.last()?.x;
    let noise = noise_of_effects(anova, &sizes.iter().map(|(size, _)| *size).collect::<Vec<_>>());
    let beyond = noise.map_or(f64::INFINITY, |(_, beyond)| beyond);
    let noted: Vec<Dot> = points.iter().rev().filter(|point| point.y > beyond).cloned().collect();
    let mut marks = vec![ChartMark::dots("effect", points)];
    if let Some((noise, _)) = noise {
        marks.push(ChartMark::curve("noise alone", vec![dot(0.0, 0.0), dot(far, far * noise)]));
    }
    let y = ChartAxis::linear(&format!("size of the effect on {}", drawn.analysis.response.words()));
    let panel = Panel::new(ChartAxis::linear("half-normal quantile"), y, marks).noted(noted);
    let estimate =
        if anova.noise().is_some() { "" } else { " (no run is repeated: the small effects tell the noise)" };
    let reading = format!(
        "Each dot is one degree of freedom of a factor or pair, as an orthogonal contrast: those that rise above the line \
         are more than noise{estimate}. Labelled are those that noise alone would hardly give (5% for all together).{}",
        drawn.levelled_words()
    );
    drawn.figure("half-normal", "Half-normal plot of effects", &reading, vec![panel])
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
        label: format!("{}: {percent}%", importance.label(share)),
    };
    let bars = shown.iter().enumerate().map(bar).collect();
    let panel = Panel::new(
        ChartAxis::linear("share of the variation, %"),
        ChartAxis::names("factor", shown.iter().map(|(share, _)| importance.label(share))),
        vec![ChartMark::Bars { name: String::new(), lying: true, bars }],
    );
    let reading = "How much of the variation each factor alone, factors acting together, and noise are responsible for: \
                   100% in all, with 95% intervals.";
    drawn.figure("importance", "What mattered", reading, vec![panel])
}

/// The two factors that matter most, together.
pub fn contour(drawn: &ChartInput<'_>) -> Option<Figure> {
    let order = drawn.configured();
    let [f, g, ..] = order[..] else { return None };
    let [x, y] = [f, g].map(|factor| LevelGroups::new(&drawn.table.factors[factor]));
    let value = |row: Vec<Option<(f64, u32)>>| row.into_iter().map(|cell| Some(cell?.0)).collect();
    let cells = means(drawn, (f, &x), (g, &y)).into_iter().map(value).collect();
    let marks = vec![ChartMark::Heat { value: drawn.levelled_response(), cells }];
    let panel = Panel::new(x.axis(), y.axis(), marks);
    let reading = format!(
        "The mean of all runs at each pair of levels of the two factors that matter most; empty places were not run.{}",
        drawn.levelled_words()
    );
    let names = [f, g].map(|factor| &drawn.table.factors[factor].name);
    let title = format!("{} by {} and {}", drawn.analysis.response.name, names[0], names[1]);
    drawn.figure("contour", &title, &reading, vec![panel])
}
