//! The charts of a study: one function each, in the order in which they are shown. A chart that has nothing to show is
//! left out.

mod across;
mod effects;
pub mod learning;
pub mod run;
mod runs;

use crate::analysis::{Analysis, AnalysisRequest};
use crate::figure::{Dot, Figure, Panel};
use crate::table::StudyTable;

/// What charts are drawn from.
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct ChartInput<'a> {
    pub table: &'a StudyTable,
    pub analysis: &'a Analysis,
    pub ask: AnalysisRequest,
}

type Draw = fn(&ChartInput<'_>) -> Option<Figure>;

const CHARTS: &[Draw] = &[
    runs::history,
    runs::pareto,
    effects::main_effects,
    effects::interactions,
    effects::half_normal,
    effects::importance,
    runs::parallel,
    runs::slice,
    effects::contour,
    runs::distribution,
    across::rank_stability,
    across::transfer,
    across::scaling,
];

/// All charts that have something to show.
pub fn charts(drawn: &ChartInput<'_>) -> Vec<Figure> {
    CHARTS.iter().filter_map(|draw| draw(drawn)).filter(|figure| !figure.is_empty()).collect()
}

impl ChartInput<'_> {
    fn response(&self) -> String {
        self.table.responses[0].named()
    }

    fn measured(&self) -> Vec<(&crate::table::Run, f64)> {
        let scale = &self.table.responses[0];
        self.table.measured(0).into_iter().map(|(run, value)| (run, scale.unscaled(value))).collect()
    }

    /// A chart, if it has panels.
    fn figure(&self, id: &str, title: &str, reading: &str, panels: Vec<Panel>) -> Option<Figure> {
        let n = format!("{} runs", self.analysis.runs.0);
        let figure = Figure { id: id.into(), title: title.into(), reading: reading.into(), n, panels };
        (!figure.panels.is_empty()).then_some(figure)
    }

    /// Factors that varied, the most important first.
    fn by_importance(&self) -> Vec<usize> {
        let share = |name: &str| {
            let importance = self.analysis.importance.as_ref();
            importance.and_then(|i| i.of(name)).map_or(0.0, |s| s.share)
        };
        let factors = &self.table.factors;
        let mut order: Vec<usize> = (0..factors.len()).filter(|f| factors[*f].levels.len() > 1).collect();
        order.sort_by(|a, b| share(&factors[*b].name).total_cmp(&share(&factors[*a].name)));
        order
    }
}

fn dot(x: f64, y: f64) -> Dot {
    Dot { x, y, ..Dot::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{RawRun, Response, RunRole};
    use paceline_plan::Goal;

    fn table() -> StudyTable {
        let mut runs = Vec::new();
        for i in 0..72u32 {
            let (workers, sync, model) =
                (1 << (i % 4), ["asp", "bsp"][(i / 4 % 2) as usize], ["a", "b", "c"][(i / 8 % 3) as usize]);
            let time =
                10.0 / f64::from(workers) * f64::from(1 + i / 8 % 3) * (1.0 + f64::from(i * 37 % 11) / 100.0);
            runs.push(RawRun {
                id: format!("r{i}"),
                levels: vec![workers.to_string(), sync.into(), model.into()],
                values: vec![Some(time), Some(0.9 + f64::from(i % 5) / 100.0)],
                order: f64::from(i),
                role: if i == 71 { RunRole::Control } else { RunRole::Point },
                ..RawRun::default()
            });
        }
        let responses = vec![
            Response::parse("log(time_s)").unwrap(),
            Response::parse("accuracy").unwrap().wanted(Goal::Maximize),
        ];
        StudyTable::new("t", &["workers", "sync", "model"].map(String::from), responses, runs)
    }

    #[test]
    fn every_chart_has_title_units_n_and_how_to_read_it_and_can_be_drawn() {
        let table = table();
        let ask = AnalysisRequest { workload: Some(2), workers: Some(0), seed: 1 };
        let analysis = Analysis::new(&table, ask);
        let all = charts(&ChartInput { table: &table, analysis: &analysis, ask });
        assert_eq!(all.len(), CHARTS.len(), "{:?}", all.iter().map(|f| &f.id).collect::<Vec<_>>());
        for figure in &all {
            let id = &figure.id;
            assert!(!figure.title.is_empty() && figure.reading.ends_with('.'), "{id}");
            assert!(figure.n.starts_with(|c: char| c.is_ascii_digit()), "{id}: {}", figure.n);
            assert!(figure.panels.iter().all(|p| !p.x.title.is_empty() && !p.y.title.is_empty()), "{id}");
            let svg = figure.svg();
            assert!(svg.starts_with("<svg") && !svg.contains("NaN") && !svg.contains("inf"), "{id}: {svg}");
            assert!(figure.csv().lines().count() > 1, "{id}");
            assert!(!figure.plotly()["data"].as_array().unwrap().is_empty(), "{id}");
        }
        let mut ids: Vec<_> = all.iter().map(|f| &f.id).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), all.len());
    }

    #[test]
    fn one_run_draws_what_it_can() {
        let mut table = table();
        table.runs.truncate(1);
        let analysis = Analysis::new(&table, AnalysisRequest::default());
        let all = charts(&ChartInput { table: &table, analysis: &analysis, ask: AnalysisRequest::default() });
        assert!(all.iter().all(|f| !f.svg().contains("NaN")));
    }
}
