//! Tables and comma-separated values of a comparison.

use paceline_analyze::chart::ChartUnit;
use paceline_analyze::sheet::TextTable;
use paceline_plan::{Terminator, to_csv};

use crate::cell::CellClock;
use crate::findings::{ComparisonFindings, SeedMean};
use crate::journal::{ComparedEnd, ComparisonHistory};
use crate::judge::{DifferenceVerdict, JudgedFigure};
use crate::search::rate;

/// A mean in a unit, with its interval.
fn with_interval(figure: Option<SeedMean>, show: &dyn Fn(f64) -> String) -> String {
    let Some(SeedMean { mean, interval }) = figure else { return "-".into() };
    let ends = interval.map(|(low, high)| format!(" ({} to {})", show(low), show(high)));
    format!("{}{}", show(mean), ends.unwrap_or_default())
}

fn percent(value: f64) -> String {
    format!("{:.1}", 100.0 * value)
}

fn time(value: f64) -> String {
    ChartUnit::Seconds.show(value.max(0.0))
}

/// Where each contender stands in each cell.
pub(crate) fn standings(findings: &ComparisonFindings) -> Vec<TextTable> {
    let head = [
        "strategy",
        "variant, rate",
        "n",
        "accuracy, %",
        "loss",
        "time to target",
        "reached",
        "a step",
        "sent per worker and step",
    ];
    let mut tables: Vec<TextTable> = Vec::new();
    for standing in &findings.standings {
        let title = format!("{} (target {:.0}%)", standing.cell.words(), 100.0 * standing.target);
        if tables.last().is_none_or(|table| table.title != title) {
            let real =
                if standing.cell.clock == CellClock::Real { "real seconds" } else { "virtual seconds" };
            let note =
                format!("means over seeds with 95% intervals; times in {real}; loss is told, not judged");
            tables.push(TextTable::new(&title, &head, 2, &note));
        }
        let edge = if standing.rate_at_edge { " (edge)" } else { "" };
        let diverged =
            if standing.diverged > 0 { format!(", {} diverged", standing.diverged) } else { String::new() };
        let row = vec![
            findings.contenders[standing.contender].clone(),
            format!("{}, {}{edge}", standing.variant, standing.learning_rate),
            format!("{}{diverged}", standing.n),
            with_interval(standing.accuracy, &percent),
            with_interval(standing.loss, &|loss| format!("{loss:.3}")),
            with_interval(standing.target_s, &time),
            format!("{} of {}", standing.reached, standing.n),
            with_interval(standing.step_s.map(|m| SeedMean { interval: None, ..m }), &time),
            standing.sent_bytes_per_step.map_or_else(|| "-".into(), |bytes| ChartUnit::Bytes.show(bytes)),
        ];
        tables.last_mut().expect("one was pushed").rows.push(row);
    }
    tables
}

/// The verdicts at a glance: cells by rivals.
pub(crate) fn overview(findings: &ComparisonFindings) -> TextTable {
    let mut head = vec!["where".to_owned()];
    for rival in &findings.contenders[1..] {
        head.extend([format!("accuracy against {rival}"), format!("time against {rival}")]);
    }
    let note = "better, worse, same (no difference that matters) or ? (not enough runs to tell), for the first strategy";
    let mut table = TextTable::new("At a glance", &[], findings.contenders.len() * 2 - 1, note);
    table.head = head;
    let mut cells: Vec<_> = findings.differences.iter().map(|d| d.cell).collect();
    cells.dedup();
    for cell in cells {
        let of = findings.differences.iter().filter(|d| d.cell == cell);
        let word = of.map(|d| verdict(d.verdict).to_owned());
        table.rows.push([cell.short()].into_iter().chain(word).collect());
    }
    table
}

fn verdict(verdict: DifferenceVerdict) -> &'static str {
    match verdict {
        DifferenceVerdict::Better => "better",
        DifferenceVerdict::Worse => "worse",
        DifferenceVerdict::Same => "same",
        DifferenceVerdict::Unclear => "?",
    }
}

fn csv(rows: Vec<Vec<String>>) -> String {
    to_csv(Terminator::Any(b'\n'), rows)
}

fn words(head: &[&str]) -> Vec<String> {
    head.iter().map(|word| (*word).to_owned()).collect()
}

/// All differences.
pub(crate) fn differences_csv(findings: &ComparisonFindings) -> String {
    let head = [
        "clock",
        "workers",
        "data",
        "link",
        "rival",
        "figure",
        "n",
        "estimate",
        "low",
        "high",
        "p",
        "p_holm",
        "missed_mine",
        "missed_rival",
        "identical",
        "verdict",
    ];
    let mut rows = vec![words(&head)];
    let number = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
    for d in &findings.differences {
        rows.push(vec![
            clock(d.cell.clock).into(),
            d.cell.workers.to_string(),
            data(d.cell.by_label).into(),
            d.cell.link.to_string(),
            findings.contenders[d.rival].clone(),
            match d.figure {
                JudgedFigure::Accuracy => "accuracy_difference".into(),
                JudgedFigure::Time => "time_ratio".into(),
            },
            d.n.to_string(),
            number(d.estimate),
            number(d.interval.map(|(low, _)| low)),
            number(d.interval.map(|(_, high)| high)),
            number(d.p),
            number(d.p_holm),
            d.missed.0.to_string(),
            d.missed.1.to_string(),
            d.identical.to_string(),
            verdict(d.verdict).replace('?', "unclear"),
        ]);
    }
    csv(rows)
}

/// Every run.
pub(crate) fn runs_csv(known: &ComparisonHistory) -> String {
    let document = &known.document;
    let head = [
        "part",
        "clock",
        "workers",
        "data",
        "link",
        "strategy",
        "variant",
        "learning_rate",
        "seed",
        "end",
        "accuracy",
        "loss",
        "steps",
        "train_s",
        "sent_bytes_per_worker",
        "wall_s",
        "run",
        "command",
    ];
    let mut rows = vec![words(&head)];
    let compared: Vec<u64> = (0..document.most_seeds).map(|round| document.round_seed(round)).collect();
    for (key, run) in &known.runs {
        let contender = &document.contenders[key.contender];
        let (end, figures) = match &run.end {
            ComparedEnd::Ok { figures } => ("ok".to_owned(), Some(figures)),
            ComparedEnd::Diverged => ("diverged".to_owned(), None),
            ComparedEnd::Failed { cause } => (format!("failed: {cause}"), None),
        };
        let number = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
        rows.push(vec![
            if compared.contains(&key.seed) { "comparison" } else { "search" }.into(),
            clock(key.cell.clock).into(),
            key.cell.workers.to_string(),
            data(key.cell.by_label).into(),
            key.cell.link.to_string(),
            contender.label.clone(),
            contender.variants[key.variant].label.clone(),
            rate(key.rate).to_string(),
            key.seed.to_string(),
            end,
            number(figures.map(|f| f.accuracy)),
            number(figures.map(|f| f.loss)),
            figures.map_or_else(String::new, |f| f.steps.to_string()),
            number(figures.map(|f| f.seconds)),
            number(figures.map(|f| f.sent_bytes)),
            format!("{:.3}", run.wall_s),
            run.run.clone().unwrap_or_default(),
            run.command.clone().unwrap_or_default(),
        ]);
    }
    csv(rows)
}

fn clock(clock: CellClock) -> &'static str {
    if clock == CellClock::Real { "real" } else { "virtual" }
}

fn data(by_label: bool) -> &'static str {
    if by_label { "by-label" } else { "iid" }
}
