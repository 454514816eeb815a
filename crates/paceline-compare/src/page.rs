//! The page of a comparison: HTML, Markdown and comma-separated values, from its journal alone.

use std::path::{Path, PathBuf};
use std::{fs, io};

use paceline_analyze::figure::{ChartAxis, ChartMark, Dot, Figure, Panel};
use paceline_analyze::report::{PageSection, ResultPage};

use crate::cell::{CellClock, ComparedCell};
use crate::choice::Choices;
use crate::execute::RunFigures;
use crate::findings::ComparisonFindings;
use crate::journal::ComparisonHistory;
use crate::judge::{JudgedDifference, JudgedFigure, LEAST_PAIRS, LEVEL};
use crate::search::RATES;
use crate::tables;

/// The page of a comparison.
pub fn page(known: &ComparisonHistory) -> ResultPage {
    let (findings, document) = (ComparisonFindings::new(known), &known.document);
    let section =
        |title: &str, items: &[String]| PageSection { items: items.to_vec(), ..PageSection::new(title) };
    let mut sections = vec![PageSection {
        paragraphs: findings.in_short(),
        items: findings.notes.clone(),
        sheets: if findings.differences.is_empty() { Vec::new() } else { vec![tables::overview(&findings)] },
        ..PageSection::new("In short")
    }];
    sections.push(section("Where it wins", &findings.wins));
    sections.push(section("Where it loses", &findings.losses));
    sections.push(section("No difference that matters", &findings.same));
    sections.push(section("Not enough runs to tell", &findings.unclear));
    let mut figures =
        vec![differences(&findings, JudgedFigure::Accuracy), differences(&findings, JudgedFigure::Time)];
    figures.extend(known.choices().map(|choices| curves(known, &choices)));
    figures.retain(|figure| !figure.is_empty());
    sections.push(PageSection { figures, ..PageSection::new("Charts") });
    sections.push(PageSection { sheets: tables::standings(&findings), ..PageSection::new("Figures") });
    sections.push(PageSection { paragraphs: method(known), ..PageSection::new("How it was made") });
    let mine = &document.mine().label;
    let rivals: Vec<&str> = findings.contenders[1..].iter().map(String::as_str).collect();
    sections.retain(|section| !section.is_empty());
    ResultPage {
        title: format!("{mine}, compared"),
        about: format!(
            "{mine} against {}: {} on {}, seed {}, {:.0} of {} minutes.",
            rivals.join(", "),
            document.model,
            document.data,
            document.seed,
            known.spent_s / 60.0,
            document.minutes
        ),
        sections,
        version: known.version.clone(),
    }
}

/// Writes the page and its tables into a folder; the files, or the one that could not be written.
pub fn write(known: &ComparisonHistory, folder: &Path) -> Result<Vec<PathBuf>, (PathBuf, io::Error)> {
    let mut files = page(known).write(folder, "compare")?;
    let findings = ComparisonFindings::new(known);
    let sheets =
        [("differences.csv", tables::differences_csv(&findings)), ("runs.csv", tables::runs_csv(known))];
    for (name, text) in sheets {
        let path = folder.join(name);
        fs::write(&path, text).map_err(|error| (path.clone(), error))?;
        files.push(path);
    }
    Ok(files)
}

/// Differences with their intervals: a panel for each rival, a place for each cell.
fn differences(findings: &ComparisonFindings, figure: JudgedFigure) -> Figure {
    let accuracy = figure == JudgedFigure::Accuracy;
    let mut cells: Vec<ComparedCell> = findings.differences.iter().map(|d| d.cell).collect();
    cells.dedup();
    let value = |value: f64| if accuracy { 100.0 * value } else { value };
    let dot = |d: &JudgedDifference| {
        let place = cells.iter().position(|cell| *cell == d.cell)?;
        let mut dot = Dot::new(place as f64, value(d.estimate?), d.cell.words());
        dot.range = d.interval.map(|(low, high)| (value(low), value(high)));
        Some(dot)
    };
    let axis = if accuracy { "difference of accuracy, points" } else { "time to target, mine / theirs" };
    let panel = |(rival, label): (usize, &String)| {
        let of = |real: bool| {
            let all = findings.differences.iter().filter(|d| d.rival == rival && d.figure == figure);
            all.filter(|d| (d.cell.clock == CellClock::Real) == real).filter_map(dot).collect::<Vec<_>>()
        };
        let even = if accuracy { 0.0 } else { 1.0 };
        let line = (0..cells.len()).map(|i| Dot::new(i as f64, even, String::new())).collect();
        let marks = vec![
            ChartMark::curve("no difference", line),
            ChartMark::dots("virtual time", of(false)),
            ChartMark::dots("real runs", of(true)),
        ];
        let names = ChartAxis::names("", cells.iter().map(|cell| cell.short()));
        Panel::new(names, ChartAxis::linear(axis), marks).titled(format!("against {label}"))
    };
    let panels = if findings.differences.is_empty() {
        Vec::new()
    } else {
        Panel::on_one_scale(findings.contenders.iter().enumerate().skip(1).map(panel).collect())
    };
    let n = findings.differences.iter().filter(|d| d.figure == figure).map(|d| d.n).sum::<usize>();
    Figure {
        id: if accuracy { "accuracy-differences" } else { "time-ratios" }.into(),
        title: if accuracy { "Accuracy after the same samples" } else { "Time to the target" }.into(),
        reading: match accuracy {
            true => "Above zero, the first strategy is more accurate; bars are 95% intervals of paired differences.",
            false => "Below one, the first strategy is faster; bars are 95% intervals of paired ratios.",
        }
        .into(),
        n: format!("{n} pairs of runs"),
        panels,
    }
}

/// How contenders learn in virtual time: accuracy against the training clock, means over seeds.
fn curves(known: &ComparisonHistory, choices: &Choices) -> Figure {
    let document = &known.document;
    let mut runs = 0;
    let mut panels = Vec::new();
    for cell in document.cells() {
        let mut marks = Vec::new();
        for (contender, entry) in document.contenders.iter().enumerate() {
            let seeds = (0..document.most_seeds).map(|round| document.round_seed(round));
            let all: Vec<&RunFigures> =
                seeds.filter_map(|seed| known.figures(&choices.key(cell, contender, seed))).collect();
            runs += all.len();
            let points = all.iter().map(|run| run.curve.len()).min().unwrap_or(0);
            let mean = |of: &dyn Fn(&RunFigures) -> f64| {
                all.iter().map(|run| of(run)).sum::<f64>() / all.len() as f64
            };
            let point = |i: usize| {
                Dot::new(
                    mean(&|run| run.curve[i].seconds),
                    100.0 * mean(&|run| run.curve[i].accuracy),
                    String::new(),
                )
            };
            marks.push(ChartMark::curve(&entry.label, (0..points).map(point).collect()));
        }
        let x = ChartAxis::linear(if cell.clock == CellClock::Real { "seconds" } else { "virtual seconds" });
        panels.push(Panel::new(x, ChartAxis::linear("accuracy, %"), marks).titled(cell.short()));
    }
    Figure {
        id: "curves".into(),
        title: "How they learn".into(),
        reading: "Accuracy on the test split against the training clock, means over the comparison's seeds."
            .into(),
        n: format!("{runs} runs"),
        panels,
    }
}

fn method(known: &ComparisonHistory) -> Vec<String> {
    let document = &known.document;
    let extent = known.extent;
    let steps = extent.map_or(document.steps, |extent| extent.steps);
    let search_seeds = extent.map_or(0, |extent| extent.search_seeds);
    let workers = [
        (document.few, "in real runs of this machine"),
        (document.many, "in virtual time with real gradients"),
    ];
    let workers: Vec<String> =
        workers.iter().filter(|(n, _)| *n > 0).map(|(n, how)| format!("{n} workers {how}")).collect();
    let files: Vec<&str> = document
        .contenders
        .iter()
        .flat_map(|c| &c.variants)
        .filter_map(|v| v.settings.get("strategy-file").map(String::as_str))
        .filter_map(|path| Path::new(path).file_name()?.to_str())
        .collect();
    let files =
        if files.is_empty() { String::new() } else { format!(" Strategy files: {}.", files.join(", ")) };
    let calibration = match &document.calibration {
        Some(file) => format!("the calibration {file}"),
        None => "round numbers (docs/simulate.md lists them)".into(),
    };
    let (margin_virtual, margin_real) = [CellClock::Virtual, CellClock::Real]
        .map(|clock| JudgedFigure::Time.margin(clock).exp_m1() * 100.0)
        .into();
    vec![
        format!(
            "Cells: {}, each with alike data and data split by label, without a link and behind {}. Every run trains \
             {} on {} ({} training and {} test samples) for {steps} steps of {} samples per worker, and is evaluated on \
             the whole test split about 20 times.{files}",
            workers.join(" and "),
            document.network,
            document.model,
            document.data,
            document.train_samples,
            document.test_samples,
            document.batch
        ),
        format!(
            "Learning rates: {RATES} for every strategy and every variant, powers of two around 0.05, the nearest to the \
             best so far first, each on the same {search_seeds} seeds; the best has the highest accuracy over the later \
             half of the run. The search is made in virtual time and without a link: workers that go on together learn \
             the same numbers whatever the link and the clock are. Of several variants the one is taken that reaches the \
             target soonest in the cell, on the search's seeds. The target is 2 points below what {} reaches in the \
             search. No seed of the search is one of the comparison.",
            document.contenders.get(1).map_or("", |c| c.label.as_str())
        ),
        format!(
            "Differences are of pairs of runs with one seed: the same initial values, order of samples and split. \
             Accuracy is judged by its difference, time to the target by its ratio (t intervals of the logarithm); a run \
             that does not reach the target counts with the time that it took at least, which speaks for the other side \
             only. A difference is said to be real if it is larger than what matters: 0.5 points of accuracy, {margin_virtual:.0}% of a time in virtual time, \
             {margin_real:.0}% of a real one (t test against that margin, corrected by Holm over all cells, rivals and \
             figures, together at most {:.0}% wrong). It is said not to matter if its 95% interval lies within these \
             margins. Below {LEAST_PAIRS} pairs nothing is judged. Intervals are not corrected.",
            100.0 * LEVEL
        ),
        format!(
            "Real runs are made one at a time, all contenders once per round in an order that the seed shuffles; their \
             unit is the run. Times in virtual time come from {calibration}. Rates are tuned on the test split itself, \
             for all alike: accuracies are a little too good, differences are not."
        ),
        format!("Made by: {}", document.command),
    ]
}
