//! Runs as a list: for programs, and as a table that fits a terminal.

use paceline_plan::{Plan, printable};
use paceline_record::RunLabels;
use paceline_record::figures::RunFigure;
use paceline_record::store::RunRow;
use serde::Serialize;

use crate::sheet::{WIDTH, aligned, wrapped};
use crate::table::number;

/// A run, as programs see it.
#[derive(Serialize)]
pub struct ListedRun<'a> {
    run: &'a str,
    state: &'a str,
    origin: &'a str,
    #[serde(flatten)]
    labels: &'a RunLabels,
    archived: bool,
    started_s: f64,
    seconds: f64,
    strategy: &'a str,
    model: &'a str,
    /// None where a script has its own.
    data: Option<&'a str>,
    #[serde(skip)]
    subject: String,
    workers: usize,
    servers: usize,
    steps: Option<u64>,
    steps_done: u64,
    samples_per_s: Option<f64>,
    train_loss: Option<f64>,
    accuracy: Option<f64>,
    error: Option<&'a str>,
    dropped_rows: u64,
    /// The figure that the list is ordered by.
    #[serde(skip)]
    figure: Option<f64>,
}

impl<'a> ListedRun<'a> {
    /// What is listed of a run.
    pub fn new(run: &'a RunRow) -> Self {
        let plan = run.plan.as_ref();
        Self {
            run: &run.run,
            state: &run.state,
            origin: &run.origin,
            labels: &run.labels,
            archived: run.archived,
            started_s: run.started_s,
            seconds: run.age_s(),
            strategy: plan.map_or("?", |p| &p.strategy),
            model: plan.map_or("?", |p| &p.model),
            subject: plan.map_or_else(|| "?".into(), Plan::subject),
            data: plan.filter(|p| p.script.is_none()).map(|p| p.data.as_str()),
            workers: plan.map_or(0, |p| p.workers),
            servers: plan.map_or(0, |p| p.servers),
            steps: run.steps,
            steps_done: run.steps_done,
            samples_per_s: run.samples_per_s(),
            train_loss: run.train_loss,
            accuracy: run.accuracy,
            error: run.error.as_deref(),
            dropped_rows: run.dropped_rows,
            figure: None,
        }
    }

    /// The same, with a figure in a column of its own.
    pub fn with(run: &'a RunRow, figure: Option<&RunFigure>) -> Self {
        Self { figure: figure.and_then(|figure| run.figure(figure)), ..Self::new(run) }
    }

    /// Its name and its tags, as far as a narrow column can show them.
    fn called(&self) -> String {
        let tags = self.labels.tags.iter().map(|tag| format!("#{tag}"));
        let words = self.labels.name.iter().cloned().chain(tags).map(|word| clipped(&word));
        words.collect::<Vec<_>>().join(" ")
    }

    /// The table that a terminal shows: the rest is in `--json` and `paceline show`; why runs failed stands below.
    /// Names and tags, and the figure that orders the list, have columns where there are any.
    pub fn table(rows: &[Self], figure: Option<&RunFigure>) -> String {
        let called = rows.iter().any(|row| !row.called().is_empty());
        let figure = figure.filter(|figure| figure.name != "final_accuracy");
        let cells = |r: &Self| {
            let state = if r.origin == "simulated" && r.state == "ok" { r.origin } else { r.state };
            let servers = if r.servers > 0 { format!("+{}", r.servers) } else { String::new() };
            let mut cells = vec![r.run.to_owned()];
            cells.extend(called.then(|| r.called()));
            // One column of words: where the table is too wide, it goes on in the next line.
            let what = format!("{}, {} {}{servers}", r.subject, r.strategy, r.workers);
            cells.extend([state.into(), what]);
            let done = match r.steps {
                Some(steps) if steps != r.steps_done => format!("{}/{steps}", r.steps_done),
                // A script that has ended was as long as it is.
                None if r.state != "ok" => format!("{}/?", r.steps_done),
                _ => r.steps_done.to_string(),
            };
            cells.extend(figure.is_none().then_some(done));
            cells.push(r.accuracy.map_or_else(|| "-".into(), |accuracy| format!("{:.2}", 100.0 * accuracy)));
            cells.extend(figure.map(|_| r.figure.map_or_else(|| "-".into(), number)));
            cells
        };
        let mut head = vec!["run".to_owned()];
        head.extend(called.then(|| "name #tags".to_owned()));
        head.extend(["state", "what, ranks"].map(str::to_owned));
        head.extend(figure.is_none().then(|| "steps".to_owned()));
        head.push("acc. %".into());
        head.extend(figure.map(|figure| match figure.unit {
            "" => figure.name.to_owned(),
            unit => format!("{} ({unit})", figure.name),
        }));
        let words = 3 + usize::from(called);
        let mut text = aligned(&head, words, &rows.iter().map(cells).collect::<Vec<_>>());
        for (run, error) in rows.iter().filter_map(|row| Some((row.run, row.error?))) {
            text += &wrapped(&format!("{run}: {}\n", printable(error)), WIDTH, 2);
        }
        text
    }
}

/// Characters of a name or a tag that a table shows: a column of words may be as narrow.
const SHOWN: usize = 16;

/// A word, or its beginning: that names a run, too.
fn clipped(word: &str) -> String {
    if word.chars().count() <= SHOWN {
        return word.to_owned();
    }
    word.chars().take(SHOWN - 1).chain(['…']).collect()
}
