//! Several runs, or whole studies, beside each other: the settings that differ, the figures, and the loss against steps,
//! samples and time.

use paceline_record::figures::Figures;
use paceline_record::store::RunRow;
use paceline_record::{RecordError, Store};
use paceline_statistics::{distinct, median};
use serde::Serialize;

use crate::sheet::aligned;
use crate::table::{NONE, all_settings, number, short, varied};

/// Values that a cell lists before it only counts them.
const LISTED: usize = 4;

/// Points of a curve that are told, and characters of its drawing.
const POINTS: usize = 5;
const DRAWN: usize = 24;

/// A run, or the runs of a study.
#[derive(Clone, Debug)]
pub struct ComparedItem {
    /// What it is called.
    pub label: String,
    /// Its runs, at least one.
    pub runs: Vec<RunRow>,
}

/// Runs and studies beside each other. Lists of values are in the order of `items`.
#[derive(Clone, Debug, Serialize)]
pub struct ComparedRuns {
    /// What is compared.
    pub items: Vec<ItemHead>,
    /// Settings that are not the same in all runs.
    pub settings: Vec<ComparedSetting>,
    /// Figures that at least one run has.
    pub figures: Vec<ComparedFigure>,
    /// Loss over the test split, as evaluations measured it.
    pub curves: Vec<LossCurve>,
}

/// What is compared.
#[derive(Clone, Debug, Serialize)]
pub struct ItemHead {
    /// What it is called.
    pub label: String,
    /// Ids of its runs.
    pub runs: Vec<String>,
    /// What its first run is, in words.
    pub what: String,
    /// States of its runs.
    pub states: Vec<String>,
}

/// A setting that differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedSetting {
    /// Its name: the flag without its dashes.
    pub name: String,
    /// The values of each item.
    pub values: Vec<Vec<String>>,
}

/// A figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedFigure {
    /// Its name.
    pub name: &'static str,
    /// Its unit; empty for a plain number.
    pub unit: &'static str,
    /// Least, median and greatest of each item; none where no run of it has the figure.
    pub values: Vec<Option<[f64; 3]>>,
}

/// The test loss of one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LossCurve {
    /// Which item it belongs to.
    pub item: usize,
    /// The run's id.
    pub run: String,
    /// Steps done, samples done, training clock in seconds, loss and accuracy of each evaluation.
    pub evaluations: Vec<[f64; 5]>,
}

/// What a loss is told against: a title, its unit, and its place in an evaluation.
const AGAINST: [(&str, &str, usize); 3] = [("steps", "", 0), ("samples", "", 1), ("training clock", " s", 2)];
const LOSS: usize = 3;

impl ComparedRuns {
    /// Compares items; what evaluations measured is read from the store.
    pub fn new(store: &Store, items: &[ComparedItem], figures: &Figures) -> Result<Self, RecordError> {
        let mut curves = Vec::new();
        for (item, run) in
            items.iter().enumerate().flat_map(|(i, item)| item.runs.iter().map(move |r| (i, r)))
        {
            let sql =
                "SELECT step, samples, train_s, loss, accuracy FROM evaluations WHERE run = ? ORDER BY step";
            let rows = store.numbers(sql, run)?;
            let evaluations = rows.iter().filter_map(|row| row.as_slice().try_into().ok()).collect();
            curves.push(LossCurve { item, run: run.run.clone(), evaluations });
        }
        let head = |item: &ComparedItem| ItemHead {
            label: item.label.clone(),
            runs: item.runs.iter().map(|run| run.run.clone()).collect(),
            what: item.runs[0].what(),
            states: distinct(item.runs.iter().map(|run| run.state.clone())),
        };
        Ok(Self {
            items: items.iter().map(head).collect(),
            settings: settings(items),
            figures: compared_figures(items, figures),
            curves,
        })
    }

    /// The same in words: a letter for each item, and tables that fit a terminal.
    pub fn text(&self) -> String {
        let letters: Vec<String> = (0..self.items.len()).map(letter).collect();
        let told = |(item, letter): (&ItemHead, &String)| {
            let runs =
                if item.runs.len() == 1 { String::new() } else { format!(", {} runs", item.runs.len()) };
            let what = format!("{}{runs}", item.what);
            vec![letter.clone(), item.label.clone(), item.states.join(", "), what]
        };
        let rows: Vec<Vec<String>> = self.items.iter().zip(&letters).map(told).collect();
        let mut text = aligned(&["", "run", "state", "what"], 4, &rows);
        let columns = |first: &str| [vec![first.to_owned()], letters.clone()].concat();
        let mut section = |title: &str, first: &str, rows: Vec<Vec<String>>| {
            if !rows.is_empty() {
                text += &format!("\n{title}:\n{}", aligned(&columns(first), 1, &rows));
            }
        };
        let setting = |setting: &ComparedSetting| {
            let values = setting.values.iter().map(|values| match values.len() {
                n if n > LISTED => format!("{n} values"),
                _ => values.iter().map(|value| short(value)).collect::<Vec<_>>().join(", "),
            });
            [setting.name.clone()].into_iter().chain(values).collect()
        };
        section("Settings that differ", "setting", self.settings.iter().map(setting).collect());
        let figure = |figure: &ComparedFigure| {
            let values = figure.values.iter().map(|values| match values {
                None => "-".to_owned(),
                Some([least, _, most]) if least == most => number(*least),
                Some([least, middle, most]) => {
                    format!("{} ({} to {})", number(*middle), number(*least), number(*most))
                }
            });
            let name = match figure.unit {
                "" => figure.name.to_owned(),
                unit => format!("{} ({unit})", figure.name),
            };
            [name].into_iter().chain(values).collect()
        };
        let several = self.items.iter().any(|item| item.runs.len() > 1);
        let title = if several { "Figures: median (least to greatest)" } else { "Figures" };
        section(title, "figure", self.figures.iter().map(figure).collect());
        for (name, unit, place) in AGAINST {
            let row = |(at, losses): (f64, Vec<Option<f64>>)| {
                let cells =
                    losses.into_iter().map(|loss| loss.map_or_else(|| "-".into(), |l| format!("{l:.4}")));
                [format!("{}{unit}", number(at))].into_iter().chain(cells).collect()
            };
            let rows = self.at_common_points(place).into_iter().map(row).collect();
            section(&format!("Test loss against {name}"), name, rows);
        }
        let drawings = self.drawings();
        if !drawings.is_empty() {
            text += "\nTest loss from the first evaluation to the last, all on one scale:\n";
        }
        for (item, drawing, first, last) in drawings {
            text += &format!("{:<4}{drawing}  {first:.4} to {last:.4}\n", letters[item]);
        }
        text
    }

    /// Each item's loss at points that all items have reached: of several runs, the median.
    fn at_common_points(&self, place: usize) -> Vec<(f64, Vec<Option<f64>>)> {
        // An item reaches from where its first run begins to where its last one ends.
        let reach = |item: usize| {
            let own = self.curves.iter().filter(|curve| curve.item == item);
            own.filter_map(|curve| curve.range(place)).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
        };
        let ends: Vec<(f64, f64)> = (0..self.items.len()).filter_map(reach).collect();
        let first = ends.iter().map(|(first, _)| *first).fold(f64::NEG_INFINITY, f64::max);
        let last = ends.iter().map(|(_, last)| *last).fold(f64::INFINITY, f64::min);
        if !(first < last && last.is_finite()) {
            return Vec::new();
        }
        let point = |i: usize| first + (last - first) * i as f64 / (POINTS - 1) as f64;
        let at = |x: f64| {
            let of = |item: usize| {
                let own = self.curves.iter().filter(|curve| curve.item == item);
                let losses: Vec<f64> = own.filter_map(|curve| curve.at(place, x)).collect();
                (!losses.is_empty()).then(|| median(&losses))
            };
            (x, (0..self.items.len()).map(of).collect())
        };
        (0..POINTS).map(|i| at(point(i))).collect()
    }

    /// The curve of each item's first run with one, drawn in blocks, with its first and last loss.
    fn drawings(&self) -> Vec<(usize, String, f64, f64)> {
        let first = |item| self.curves.iter().find(|c| c.item == item && c.range(0).is_some());
        let curves: Vec<&LossCurve> = (0..self.items.len()).filter_map(first).collect();
        let losses = curves.iter().flat_map(|curve| curve.evaluations.iter().map(|e| e[LOSS]));
        let (low, high) =
            losses.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), loss| (l.min(loss), h.max(loss)));
        let block = |loss: f64| {
            let share = if high > low { (loss - low) / (high - low) } else { 0.0 };
            ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'][(share * 7.0).round().clamp(0.0, 7.0) as usize]
        };
        let drawn = |curve: &&LossCurve| {
            let (from, to) = curve.range(0)?;
            let at = |i: usize| curve.at(0, from + (to - from) * i as f64 / (DRAWN - 1) as f64);
            let drawing = (0..DRAWN).filter_map(at).map(block).collect();
            let (first, last) = (curve.evaluations.first()?, curve.evaluations.last()?);
            Some((curve.item, drawing, first[LOSS], last[LOSS]))
        };
        curves.iter().filter_map(drawn).collect()
    }
}

impl LossCurve {
    /// Where it begins and ends, if it has two points at least.
    fn range(&self, place: usize) -> Option<(f64, f64)> {
        let (first, last) = (self.evaluations.first()?[place], self.evaluations.last()?[place]);
        (first < last).then_some((first, last))
    }

    /// The loss at a point, on a line between the evaluations around it.
    fn at(&self, place: usize, x: f64) -> Option<f64> {
        let finite = |e: &&[f64; 5]| e[place].is_finite() && e[LOSS].is_finite();
        let points: Vec<[f64; 2]> =
            self.evaluations.iter().filter(finite).map(|e| [e[place], e[LOSS]]).collect();
        if let Some(exact) = points.iter().find(|point| point[0] == x) {
            return Some(exact[1]);
        }
        let pair = points.windows(2).find(|pair| pair[0][0] < x && x < pair[1][0])?;
        let share = (x - pair[0][0]) / (pair[1][0] - pair[0][0]);
        Some(pair[0][1] + share * (pair[1][1] - pair[0][1]))
    }
}

/// The letters of a column: A to Z, then AA and so on.
fn letter(i: usize) -> String {
    let last = char::from(b'A' + (i % 26) as u8);
    if i < 26 { last.into() } else { format!("{}{last}", letter(i / 26 - 1)) }
}

fn settings(items: &[ComparedItem]) -> Vec<ComparedSetting> {
    let all: Vec<Vec<Vec<(String, String)>>> =
        items.iter().map(|item| item.runs.iter().map(all_settings).collect()).collect();
    let flat: Vec<&[(String, String)]> = all.iter().flatten().map(Vec::as_slice).collect();
    let of = |name: &String| {
        let value = |own: &Vec<(String, String)>| {
            own.iter().find(|(n, _)| n == name).map_or_else(|| NONE.to_owned(), |(_, v)| v.clone())
        };
        let values = all.iter().map(|item| {
            let mut values = distinct(item.iter().map(value));
            values.sort_by(|a, b| match (a.parse::<f64>(), b.parse::<f64>()) {
                (Ok(a), Ok(b)) => a.total_cmp(&b),
                _ => a.cmp(b),
            });
            values
        });
        ComparedSetting { name: name.clone(), values: values.collect() }
    };
    varied(&flat).iter().map(of).collect()
}

fn compared_figures(items: &[ComparedItem], figures: &Figures) -> Vec<ComparedFigure> {
    let mut all = Vec::new();
    for figure in figures.of_runs() {
        let of = |item: &ComparedItem| {
            let own = item.runs.iter().filter_map(|run| run.figure(figure));
            let values: Vec<f64> = own.filter(|value| value.is_finite()).collect();
            let least = values.iter().copied().reduce(f64::min)?;
            let most = values.iter().copied().reduce(f64::max)?;
            Some([least, median(&values), most])
        };
        let values: Vec<Option<[f64; 3]>> = items.iter().map(of).collect();
        // What is nothing in all of them says nothing.
        if values.iter().flatten().flatten().any(|value| *value != 0.0) {
            all.push(ComparedFigure { name: figure.name, unit: figure.unit, values });
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(item: usize, points: &[(f64, f64)]) -> LossCurve {
        let evaluation = |(step, loss): &(f64, f64)| [*step, 64.0 * step, 0.5 * step, *loss, 0.5];
        LossCurve { item, run: format!("r{item}"), evaluations: points.iter().map(evaluation).collect() }
    }

    fn compared(curves: Vec<LossCurve>) -> ComparedRuns {
        let items = curves.iter().map(|curve| curve.item).max().map_or(0, |last| last + 1);
        let head = |i: usize| ItemHead {
            label: format!("run-{i}"),
            runs: vec![format!("r{i}")],
            what: "mlp on digits".into(),
            states: vec!["ok".into()],
        };
        ComparedRuns {
            items: (0..items).map(head).collect(),
            settings: Vec::new(),
            figures: Vec::new(),
            curves,
        }
    }

    #[test]
    fn losses_are_told_where_all_runs_have_been() {
        let both = compared(vec![
            curve(0, &[(10.0, 2.0), (20.0, 1.0), (60.0, 0.5)]),
            curve(1, &[(0.0, 3.0), (40.0, 1.0)]),
        ]);
        let steps = both.at_common_points(0);
        let points: Vec<f64> = steps.iter().map(|(x, _)| *x).collect();
        assert_eq!(points, [10.0, 17.5, 25.0, 32.5, 40.0], "from the later first to the earlier last");
        assert_eq!(steps[0].1, [Some(2.0), Some(2.5)]);
        assert_eq!(steps[4].1, [Some(0.75), Some(1.0)]);
        assert_eq!(both.at_common_points(2)[4].0, 20.0, "half a second a step");
        let apart = compared(vec![curve(0, &[(1.0, 2.0), (2.0, 1.0)]), curve(1, &[(5.0, 3.0), (9.0, 1.0)])]);
        assert_eq!(apart.at_common_points(0), []);
    }

    #[test]
    fn of_several_runs_the_median_counts_and_single_evaluations_draw_nothing() {
        let study = compared(vec![
            curve(0, &[(0.0, 1.0), (8.0, 1.0)]),
            curve(0, &[(0.0, 2.0), (8.0, 2.0)]),
            curve(0, &[(0.0, 9.0), (8.0, 9.0)]),
            curve(1, &[(8.0, 0.5)]),
        ]);
        assert_eq!(study.at_common_points(0)[2].1, [Some(2.0), None]);
        assert_eq!(study.drawings().len(), 1);
        let text = study.text();
        assert!(text.contains("Test loss against training clock:"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn columns_have_letters() {
        assert_eq!([0, 25, 26, 27, 701, 702].map(letter), ["A", "Z", "AA", "AB", "ZZ", "AAA"]);
    }
}
