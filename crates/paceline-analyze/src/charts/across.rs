//! Charts across workloads and numbers of workers.

use super::{ChartInput, dot};
use crate::figure::{ChartAxis, ChartMark, Dot, Figure, Panel};
use crate::scaling::{Rung, Series};

const MOST_SERIES: usize = 7;

fn workloads(drawn: &ChartInput<'_>) -> Option<Vec<String>> {
    let factor = &drawn.table.factors[drawn.ask.workload?];
    Some(factor.levels.iter().map(|l| l.text.clone()).collect())
}

/// How alike configurations rank on two workloads.
pub fn rank_stability(drawn: &ChartInput<'_>) -> Option<Figure> {
    let (transfer, names) = (drawn.analysis.transfer.as_ref()?, workloads(drawn)?);
    let cell = |a: &String, b: &String| {
        if a == b {
            return Some(1.0);
        }
        let pair =
            transfer.agreements.iter().find(|g| (g.a == *a && g.b == *b) || (g.a == *b && g.b == *a))?;
        pair.spearman.map(|c| c.value)
    };
    let cells = names.iter().map(|a| names.iter().map(|b| cell(a, b)).collect()).collect();
    let axis = || ChartAxis::names(&transfer.workload, names.clone());
    let panel =
        Panel::new(axis(), axis(), vec![ChartMark::Heat { value: "Spearman's correlation".into(), cells }]);
    let reading =
        "1 means that configurations rank alike on both workloads, 0 that one says nothing about the other.";
    let most = transfer.agreements.iter().map(|a| a.n).max()?;
    let figure = drawn.figure("rank-stability", "Rank stability across workloads", reading, vec![panel])?;
    Some(Figure { n: format!("{most} configurations at most"), ..figure })
}

/// What it costs to use one workload's best configuration on another.
pub fn transfer(drawn: &ChartInput<'_>) -> Option<Figure> {
    let (transfer, names) = (drawn.analysis.transfer.as_ref()?, workloads(drawn)?);
    let cell = |from: &String, to: &String| {
        if from == to {
            return Some(0.0);
        }
        transfer.losses.iter().find(|l| l.from == *from && l.to == *to).map(|l| 100.0 * l.loss)
    };
    let cells = names.iter().map(|from| names.iter().map(|to| cell(from, to)).collect()).collect();
    let x = ChartAxis::names(&format!("used on {}", transfer.workload), names.clone());
    let y = ChartAxis::names(&format!("best configuration of {}", transfer.workload), names);
    let panel = Panel::new(x, y, vec![ChartMark::Heat { value: "loss, %".into(), cells }]);
    let reading = "The loss from using the best configuration of a row's workload on a column's, against the best one \
                   there.";
    let most = transfer.losses.iter().map(|l| l.n).max()?;
    let figure = drawn.figure("transfer", "Transfer table", reading, vec![panel])?;
    Some(Figure { n: format!("{most} configurations at most"), ..figure })
}

pub fn scaling(drawn: &ChartInput<'_>) -> Option<Figure> {
    let top = |s: &Series| s.rungs.iter().map(|r| r.speed_up).fold(0.0, f64::max);
    let mut series: Vec<&Series> = drawn.analysis.scaling.iter().collect();
    series.sort_by(|a, b| top(b).total_cmp(&top(a)));
    // The best, the worst, and some between them.
    let all = series.len();
    let shown: Vec<&Series> = if all <= MOST_SERIES {
        series
    } else {
        (0..MOST_SERIES).map(|i| series[i * (all - 1) / (MOST_SERIES - 1)]).collect()
    };
    let first = shown.first()?;
    let name =
        |s: &Series| if s.configuration.is_empty() { "all runs".to_owned() } else { s.configuration.clone() };
    let line = |s: &&Series, figure: fn(&Rung) -> f64| {
        let point = |r: &Rung| Dot::new(r.workers, figure(r), format!("{} (n = {})", name(s), r.n));
        ChartMark::line(&name(s), s.rungs.iter().map(point).collect())
    };
    let mut speed: Vec<ChartMark> = shown.iter().map(|s| line(s, |r| r.speed_up)).collect();
    let (least, most) = (first.rungs[0].workers, first.rungs[first.rungs.len() - 1].workers);
    speed.push(ChartMark::curve("ideal", vec![dot(least, 1.0), dot(most, most / least)]));
    if let Some(law) = first.usl.as_ref().or(first.amdahl.as_ref()) {
        let base = law.speed(least);
        let at = |i: u32| least * (most / least).powf(f64::from(i) / 40.0);
        let points = (0..=40).map(|i| dot(at(i), law.speed(at(i)) / base));
        speed.push(ChartMark::curve("law of the best", points.collect()));
    }
    let efficiency = shown.iter().map(|s| line(s, |r| 100.0 * r.efficiency)).collect();
    let workers = || ChartAxis::fitting("workers", [least, most].into_iter());
    let times = ChartAxis::linear("times as fast as the fewest workers");
    let per_worker = ChartAxis::linear("speed-up per worker, %");
    let panels = vec![
        Panel::new(workers(), times, speed).titled("speed-up"),
        Panel::new(workers(), per_worker, efficiency).titled("efficiency"),
    ];
    let reading = "How much faster more workers are; the law of the best is the universal scalability law (Amdahl's with \
                   few points) fitted to the configuration that gains most.";
    let n = format!("{} runs, {} of {all} configurations shown", drawn.analysis.runs.0, shown.len());
    Some(Figure { n, ..drawn.figure("scaling", "Scaling", reading, panels)? })
}
