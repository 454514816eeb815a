//! Charts that show every run.

use paceline_plan::Goal;

use super::{ChartInput, dot};
use crate::best::means;
use crate::figure::{ChartAxis, ChartMark, Dot, Figure, Panel};
use crate::table::{Run, RunRole, number, short};

pub fn history(drawn: &ChartInput<'_>) -> Option<Figure> {
    let mut runs = drawn.measured();
    runs.sort_by(|a, b| a.0.order.total_cmp(&b.0.order));
    let scale = &drawn.table.responses[0];
    let mut best: Option<f64> = None;
    let (mut dots, mut so_far) = (Vec::new(), Vec::new());
    for (run, value) in &runs {
        let label = format!("{}: {}", run.id, drawn.table.configuration(&run.levels));
        dots.push(Dot::new(run.order, *value, label));
        best = Some(best.map_or(*value, |b| if scale.better(*value, b) { *value } else { b }));
        so_far.push(dot(run.order, best.unwrap_or(*value)));
    }
    let control = |run: &Run| Some(Dot::new(run.order, run.values[0]?, format!("{}: control", run.id)));
    let controls: Vec<Dot> =
        drawn.table.runs.iter().filter(|run| run.role == RunRole::Control).filter_map(control).collect();
    let mut marks = vec![ChartMark::dots("run", dots), ChartMark::curve("best so far", so_far)];
    if !controls.is_empty() {
        marks.push(ChartMark::line("control", controls));
    }
    let y = ChartAxis::fitting(&drawn.response(), runs.iter().map(|(_, v)| *v));
    let panel = Panel::new(ChartAxis::linear("run, in the order in which they were made"), y, marks);
    let reading =
        "Each dot is a run; the line is the best so far, and controls show whether the machine drifted.";
    drawn.figure("history", "History", reading, vec![panel])
}

/// Two responses, and the configurations that nothing beats.
pub fn pareto(drawn: &ChartInput<'_>) -> Option<Figure> {
    let [first, second, ..] = &drawn.table.responses[..] else { return None };
    let means = means(&drawn.analysis.steady);
    let point =
        |levels: &[usize], values: &[f64]| Dot::new(values[0], values[1], drawn.table.configuration(levels));
    let all: Vec<Dot> = means.iter().map(|(levels, values)| point(levels, values)).collect();
    let mut front: Vec<Dot> = drawn.analysis.front.iter().map(|p| point(&p.levels, &p.values)).collect();
    front.sort_by(|a, b| a.x.total_cmp(&b.x));
    let x = ChartAxis::fitting(&first.named(), all.iter().map(|p| p.x));
    let y = ChartAxis::fitting(&second.named(), all.iter().map(|p| p.y));
    let panel =
        Panel::new(x, y, vec![ChartMark::dots("configuration", all), ChartMark::line("front", front)]);
    let side = |goal: Goal, [less, more]: [&str; 2]| {
        if goal == Goal::Minimize { less.to_owned() } else { more.into() }
    };
    let reading = format!(
        "Better lies to the {} and {}; no configuration beats those on the line in both.",
        side(first.goal, ["left", "right"]),
        side(second.goal, ["below", "above"])
    );
    drawn.figure("pareto", &format!("{} against {}", second.name, first.name), &reading, vec![panel])
}

fn ends(values: &[f64]) -> (f64, f64) {
    values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(*v), high.max(*v)))
}

/// Every run as a line over all factors.
pub fn parallel(drawn: &ChartInput<'_>) -> Option<Figure> {
    const PARTS: [&str; 5] = ["best fifth", "second fifth", "middle fifth", "fourth fifth", "worst fifth"];
    let (factors, scale) = (drawn.configured(), &drawn.table.responses[0]);
    if factors.is_empty() {
        return None;
    }
    let mut runs = drawn.levelled(drawn.table);
    runs.iter_mut().for_each(|(_, value)| *value = scale.unscaled(*value));
    runs.sort_by(|a, b| {
        let order = a.1.total_cmp(&b.1);
        if scale.goal == Goal::Minimize { order } else { order.reverse() }
    });
    let values: Vec<f64> = runs.iter().map(|(_, v)| *v).collect();
    // Where numbers span more than a factor of ten, steps are even in their logarithms.
    let part = |numbers: &[f64], value: f64| {
        let (low, high) = ends(numbers);
        let log = low > 0.0 && high / low >= 10.0;
        let at = |v: f64| if log { v.ln() } else { v };
        if high > low { (at(value) - at(low)) / (at(high) - at(low)) } else { 0.5 }
    };
    let mut names: Vec<String> = Vec::new();
    for f in &factors {
        let factor = &drawn.table.factors[*f];
        let [first, last] = [0, factor.levels.len() - 1].map(|i| short(&factor.levels[i].text));
        names.push(format!("{} ({first} … {last})", factor.name));
    }
    let (least, greatest) = ends(&values);
    names.push(format!("{} ({} … {})", scale.name, number(least), number(greatest)));
    let mut lines: Vec<Vec<Dot>> = vec![Vec::new(); PARTS.len()];
    for (rank, (run, value)) in runs.iter().enumerate() {
        let line = &mut lines[rank * PARTS.len() / runs.len()];
        for (i, f) in factors.iter().enumerate() {
            let factor = &drawn.table.factors[*f];
            let level = run.levels[*f];
            let y = match factor.numbers() {
                Some(numbers) => part(&numbers, numbers[level]),
                None => level as f64 / (factor.levels.len() - 1) as f64,
            };
            line.push(Dot::new(i as f64, y, format!("{}: {}", run.id, factor.at(level))));
        }
        let label = format!("{}: {}", run.id, scale.show(*value));
        line.push(Dot::new(factors.len() as f64, part(&values, *value), label));
        line.push(dot(factors.len() as f64, f64::NAN));
    }
    // The best on top: drawn last.
    let marks = PARTS.iter().zip(lines).rev().map(|(name, points)| ChartMark::curve(name, points)).collect();
    let x = ChartAxis::names("factor (least … greatest level)", names);
    let panel = Panel::new(x, ChartAxis::linear("from least (0) to greatest (1)"), marks);
    let reading = format!(
        "Each line is a run, from factor to factor to what it measured: follow the best fifth to see which levels they \
         have in common. Where numbers span a factor of 10, steps are even in their logarithms.{}",
        drawn.levelled_words()
    );
    drawn.figure("parallel", "Parallel coordinates", &reading, vec![panel])
}

/// Every run by each factor alone.
pub fn slice(drawn: &ChartInput<'_>) -> Option<Figure> {
    let scale = &drawn.table.responses[0];
    let runs = drawn.levelled(drawn.table);
    let panel = |f: &usize| {
        let factor = &drawn.table.factors[*f];
        let points = runs.iter().map(|(run, value)| {
            let label = format!("{}: {}", run.id, drawn.table.configuration(&run.levels));
            Dot::new(run.levels[*f] as f64, scale.unscaled(*value), label)
        });
        let y = drawn.response_axis(&drawn.levelled_response());
        Panel::new(factor.axis(), y, vec![ChartMark::dots("", points.collect())]).titled(&factor.name)
    };
    let panels: Vec<Panel> = drawn.configured().iter().take(9).map(panel).collect();
    let reading = format!(
        "Each dot is a run: a factor matters where the dots move as a whole from level to level.{}",
        drawn.levelled_words()
    );
    drawn.figure("slice", "Slices", &reading, panels)
}

/// The part of the runs that stay below a value.
pub fn distribution(drawn: &ChartInput<'_>) -> Option<Figure> {
    let runs = drawn.measured();
    let step = |name: &str, mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        let n = values.len() as f64;
        let points =
            values.iter().enumerate().flat_map(|(i, v)| [dot(*v, i as f64 / n), dot(*v, (i + 1) as f64 / n)]);
        ChartMark::curve(name, points.collect())
    };
    let mut marks = vec![step("all runs", runs.iter().map(|(_, v)| *v).collect())];
    // Curves of many levels, each of a run or two, would say nothing.
    let few = |f: &usize| drawn.table.factors[*f].levels.len() <= 6;
    if let Some(f) = drawn.by_importance().into_iter().find(few) {
        let factor = &drawn.table.factors[f];
        for level in 0..factor.levels.len() {
            let own: Vec<f64> = runs.iter().filter(|(r, _)| r.levels[f] == level).map(|(_, v)| *v).collect();
            marks.push(step(&factor.at(level), own));
        }
    }
    let x = ChartAxis::fitting(&drawn.response(), runs.iter().map(|(_, v)| *v));
    let panel = Panel::new(x, ChartAxis::linear("part of the runs that are not above"), marks);
    let reading = "The part of the runs that stay at or below a value, for all and by level of the factor of few levels \
                   that matters most: curves further left have lower values.";
    drawn.figure("distribution", "Empirical distribution (EDF)", reading, vec![panel])
}
