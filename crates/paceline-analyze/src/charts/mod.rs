//! The charts of a study: one function each, in the order in which they are shown. A chart that has nothing to show is
//! left out.

mod across;
mod effects;
pub mod learning;
pub(crate) mod levels;
pub mod run;
mod runs;

use crate::analysis::{Analysis, AnalysisRequest};
use crate::figure::{AxisScale, ChartAxis, Dot, Figure, Panel};
use crate::report::plural_of;
use crate::table::{Run, StudyTable};

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

    /// Runs with what they measured.
    fn measured(&self) -> Vec<(&Run, f64)> {
        let scale = &self.table.responses[0];
        self.table.measured(0).into_iter().map(|(run, value)| (run, scale.unscaled(value))).collect()
    }

    /// Runs of a table with what they measured on the scale of the analysis, each workload's own mean moved to that of
    /// all: what is left compares configurations.
    fn levelled<'b>(&self, table: &'b StudyTable) -> Vec<(&'b Run, f64)> {
        let runs = table.measured(0);
        let given = table.several_workloads().zip(self.analysis.anova.as_ref());
        let Some((workload, anova)) = given else { return runs };
        let effects = anova.workload_effects(table.factors[workload].levels.len());
        runs.iter().map(|(run, value)| (*run, value - effects[run.levels[workload]])).collect()
    }

    /// What stands at an axis of levelled values.
    fn levelled_response(&self) -> String {
        match self.table.several_workloads() {
            Some(_) => format!("{}, as on the mean workload", self.response()),
            None => self.response(),
        }
    }

    /// What a caption says about levelled values.
    fn levelled_words(&self) -> String {
        let factor = self.table.several_workloads().map(|workload| &self.table.factors[workload].name);
        factor.map_or_else(String::new, |name| {
            format!(" The own mean of each {name} is taken out first: what is left compares configurations.")
        })
    }

    /// An axis of the response on the scale of the analysis.
    fn response_axis(&self, title: &str) -> ChartAxis {
        if self.table.responses[0].log {
            ChartAxis { title: format!("{title} (log)"), scale: AxisScale::Log }
        } else {
            ChartAxis::linear(title)
        }
    }

    /// A chart, if it has panels.
    fn figure(&self, id: &str, title: &str, reading: &str, panels: Vec<Panel>) -> Option<Figure> {
        let n = plural_of(self.analysis.runs.0, "run");
        let figure = Figure { id: id.into(), title: title.into(), reading: reading.into(), n, panels };
        (!figure.panels.is_empty()).then_some(figure)
    }

    /// Factors of configurations that varied, the most important first.
    fn configured(&self) -> Vec<usize> {
        self.by_importance().into_iter().filter(|f| Some(*f) != self.table.several_workloads()).collect()
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
    use crate::figure::ChartMark;
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

    fn drawn<'a>(table: &'a StudyTable, analysis: &'a Analysis, ask: AnalysisRequest) -> ChartInput<'a> {
        ChartInput { table, analysis, ask }
    }

    fn points(figure: &Figure, panel: usize) -> Vec<Dot> {
        let of = |mark: &ChartMark| match mark {
            ChartMark::Points { points, .. } => points.clone(),
            _ => Vec::new(),
        };
        figure.panels[panel].marks.iter().flat_map(of).collect()
    }

    #[test]
    fn the_workloads_own_level_is_taken_out_of_effects_and_the_caption_says_so() {
        let table = table();
        let ask = AnalysisRequest { workload: Some(2), workers: Some(0), seed: 1 };
        let of = |table: &StudyTable| charts(&drawn(table, &Analysis::new(table, ask), ask));
        // Given, not chosen; as an axis that is chosen, it is a factor like others.
        let given = StudyTable { workload: Some(2), ..table.clone() };
        let (with, without) = (of(&given), of(&table));
        let find = |all: &[Figure], id: &str| all.iter().find(|f| f.id == id).unwrap().clone();
        for id in ["main-effects", "interactions", "slice", "contour", "parallel"] {
            assert!(find(&with, id).reading.contains("own mean of each model is taken out"), "{id}");
            assert!(!find(&without, id).reading.contains("taken out"), "{id}");
        }
        // One model takes three times as long as another: that spread is gone, the one of workers stays.
        let spread = |all: &[Figure]| {
            let slice = find(all, "slice");
            let at = slice.panels.iter().position(|p| p.title == "workers").unwrap();
            let first: Vec<f64> = points(&slice, at).iter().filter(|p| p.x == 0.0).map(|p| p.y).collect();
            first.iter().fold(0.0, |a: f64, b| a.max(*b)) / first.iter().fold(f64::INFINITY, |a, b| a.min(*b))
        };
        assert!(spread(&without) > 2.5 && spread(&with) < 1.3, "{} {}", spread(&without), spread(&with));
        assert!(find(&with, "main-effects").panels.iter().all(|p| p.title != "model"));
    }

    #[test]
    fn interactions_have_the_scale_of_their_caption() {
        for (response, log) in [("log(time_s)", true), ("time_s", false)] {
            let mut table = table();
            table.responses[0] = Response::parse(response).unwrap();
            let analysis = Analysis::new(&table, AnalysisRequest::default());
            let all = charts(&drawn(&table, &analysis, AnalysisRequest::default()));
            let figure = all.iter().find(|f| f.id == "interactions").unwrap();
            assert!(figure.panels.iter().all(|p| (p.y.scale == AxisScale::Log) == log));
            let spans: Vec<_> = figure.panels.iter().map(|panel| panel.span.unwrap()).collect();
            assert!(spans.len() > 1 && spans.iter().all(|span| *span == spans[0]), "one scale: {spans:?}");
            let drawn = figure.plotly();
            assert_eq!(drawn["layout"]["yaxis"]["range"], drawn["layout"]["yaxis2"]["range"]);
            assert!(
                figure.reading.contains(if log { "logarithmic" } else { "linear" }),
                "{}",
                figure.reading
            );
        }
    }

    /// Two levels of each factor: what runs measure is a function of the signs.
    fn factorial(names: &[&str], signs: &[Vec<f64>], value: impl Fn(&[f64]) -> f64) -> Figure {
        let run = |(i, signs): (usize, &Vec<f64>)| RawRun {
            id: i.to_string(),
            levels: signs.iter().map(|sign| if *sign > 0.0 { "high".into() } else { "low".into() }).collect(),
            values: vec![Some(value(signs) + (i * 7919 % 13) as f64 / 100.0)],
            order: i as f64,
            ..RawRun::default()
        };
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let runs = signs.iter().enumerate().map(run).collect();
        let table = StudyTable::new("t", &names, vec![Response::parse("time_s").unwrap()], runs);
        let analysis = Analysis::new(&table, AnalysisRequest::default());
        let all = charts(&drawn(&table, &analysis, AnalysisRequest::default()));
        all.into_iter().find(|figure| figure.id == "half-normal").unwrap()
    }

    fn notes(figure: &Figure) -> Vec<&str> {
        figure.panels[0].notes.iter().map(|note| note.label.as_str()).collect()
    }

    #[test]
    fn effects_beyond_noise_are_labelled_with_their_terms_the_greatest_first() {
        let sign = |i: usize, bit: usize| if i >> bit & 1 == 1 { 1.0 } else { -1.0 };
        let signs: Vec<Vec<f64>> = (0..32).map(|i| (0..4).map(|bit| sign(i, bit)).collect()).collect();
        let figure = factorial(&["a", "b", "c", "d"], &signs, |s| 10.0 + 3.0 * s[0] + 2.0 * s[0] * s[2]);
        assert_eq!(notes(&figure), ["a", "a × c"]);
        let svg = figure.svg();
        assert!(svg.contains(">a × c</text>") && svg.matches("class=\"leader\"").count() == 2, "{svg}");
        let drawn = figure.plotly()["layout"]["annotations"].to_string();
        assert!(drawn.contains("a × c"), "{drawn}");
    }

    #[test]
    fn where_nothing_is_left_for_noise_the_small_effects_tell_it() {
        // Seven factors in eight runs.
        let signs = (0..8usize).map(|i| {
            let [a, b, c] = [0, 1, 2].map(|bit| if i >> bit & 1 == 1 { 1.0 } else { -1.0 });
            vec![a, b, c, a * b, a * c, b * c, a * b * c]
        });
        let names = ["a", "b", "c", "d", "e", "f", "g"];
        let figure = factorial(&names, &signs.collect::<Vec<_>>(), |s| 100.0 + 30.0 * s[1]);
        assert_eq!(notes(&figure), ["b"]);
        assert!(figure.reading.contains("the small effects tell the noise"), "{}", figure.reading);
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
