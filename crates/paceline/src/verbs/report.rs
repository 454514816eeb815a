//! `paceline report`: what a study found or why runs are slow, as a page, as Markdown, and each chart as SVG and CSV.

use std::path::PathBuf;

use paceline_analyze::RecordedRun;
use paceline_analyze::charts::{self, ChartInput};
use paceline_analyze::report::{Method, Report, plural_of};
use paceline_analyze::table::NONE;
use paceline_analyze::{AnalysisRequest, StudyTable};
use paceline_record::store::RunRow;
use paceline_study::StudyState;
use serde_json::json;

use super::analyze::AnalysisQuery;
use super::store::Where;
use crate::failure::Failure;
use crate::flags::registries;
use crate::output::Show;
use paceline_virtual::whatif::explained;

/// Flags of `paceline report`.
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Names or files of studies, or single recorded runs: beginnings of their ids, their names, or `last` [default: all
    /// recorded runs together]
    #[arg(value_name = "STUDY|RUN", conflicts_with = "table")]
    what: Vec<String>,
    #[command(flatten)]
    asked: AnalysisQuery,
    #[command(flatten)]
    store: Where,
    /// Folder to write to: report.html, report.md, and charts/
    #[arg(long, value_name = "DIR", default_value = "report")]
    out: PathBuf,
}

const HELP: &str = "\
report.html is one file that loads nothing from elsewhere; charts/ has each chart as SVG and its
numbers as CSV, which report.md shows. Both say the same: findings first, then charts, the method
(data, model, settings, axes, sampler, seeds, repeats, machine, version, and the command that
makes it again), and tables. Of many runs it tells what `paceline analyze` does; of single ones,
where their time went. A browser prints report.html, or saves it as PDF, with charts for paper.

Examples:
  paceline report
  paceline report my-study
  paceline report digits-study mnist-study
  paceline report --table runs.csv --factor workers --factor sync --response 'log(step_s)'
  paceline report --table runs.csv --factor model --factor workers --response step_s \\
      --workload model --workers workers --out monday
  paceline report last";

/// `paceline report`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    let find = |name: &String| paceline_study::find(&args.store.folder(), name, registries());
    let found = args.what.iter().map(find).collect::<Result<Vec<_>, _>>()?;
    let studies: Vec<String> = found.iter().flatten().cloned().collect();
    if let (Some(run), [_, ..]) = (found.iter().position(Option::is_none), &studies[..]) {
        let problem = "is no study: a report is of studies, or of runs";
        return Err(Failure::ask("STUDY", &args.what[run], problem));
    }
    let report = if args.what.is_empty() || !studies.is_empty() {
        of_table(&args.asked, &args.store, &studies, show)?
    } else {
        of_runs(args)?
    };
    let files = report.write(&args.out).map_err(|(path, error)| Failure::file(&path, &error))?;
    let page = args.out.join("report.html");
    show.print(&json!({"type": "result", "report": page, "files": files}), || format!("{}\n", page.display()))
}

/// The report of a study.
pub fn of_study(store: &Where, name: &str, show: Show) -> Result<Report<'static>, Failure> {
    of_table(&AnalysisQuery::of_study(), store, &[name.into()], show)
}

fn of_table(
    asked: &AnalysisQuery,
    store: &Where,
    studies: &[String],
    show: Show,
) -> Result<Report<'static>, Failure> {
    let (table, ask, analysis) = asked.analysis(store, studies, show)?;
    let of_study = |name: &String| -> Result<(String, Method), Failure> {
        let known = StudyState::peek(&store.folder(), name, registries())?;
        Ok((name.clone(), paceline_study::method(&known, &store.folder())?))
    };
    let mut methods = studies.iter().map(of_study).collect::<Result<Vec<_>, _>>()?;
    let method = match methods.len() {
        0 if asked.of_file() => of_file(&table),
        0 => recorded(store, &table, ask)?,
        1 => methods.remove(0).1,
        _ => Method::together(methods),
    };
    let figures = charts::charts(&ChartInput { table: &table, analysis: &analysis, ask });
    let (used, all) = analysis.runs;
    Ok(Report {
        title: table.name.clone(),
        about: format!("{} in {used} of {all} runs", analysis.response.words()),
        notes: analysis.notes.clone(),
        figures,
        method,
        sheets: analysis.sheets(),
        findings: analysis.findings,
        explanations: Vec::new(),
        version: env!("CARGO_PKG_VERSION"),
    })
}

/// How the runs of a table were made: the table knows little of it.
fn of_file(table: &StudyTable) -> Method {
    Method { unknown: "the table does not tell".into(), commands: vec![command_line()], ..Method::default() }
        .or_of_table(table)
}

/// How the recorded runs of a table were made.
fn recorded(store: &Where, table: &StudyTable, ask: AnalysisRequest) -> Result<Method, Failure> {
    let store = store.open()?;
    let rows = store.runs()?;
    let workload = |row: &RunRow| {
        let factor = &table.factors[ask.workload?];
        let own = paceline_analyze::table::settings(row).into_iter().find(|(name, _)| *name == factor.name);
        Some(own.map_or_else(|| NONE.to_owned(), |(_, value)| value))
    };
    let named = |row: &'_ RunRow| workload(row).unwrap_or_else(|| "all runs".into());
    let ended: Vec<(String, &RunRow)> = rows
        .iter()
        .filter(|row| row.result.is_some() && row.plan.is_some())
        .map(|row| (named(row), row))
        .collect();
    let mut method = Method::of_records(&store, &ended)?;
    let without = rows.len() - ended.len();
    let without =
        if without > 0 { format!("; {without} without a result are left out") } else { String::new() };
    method.runs = Some(format!("{} with a result{without}", plural_of(ended.len(), "run")));
    method.sampler = Some("none: runs that somebody made one by one, or of several studies".into());
    method.controls = Some("none".into());
    method.commands = vec![command_line()];
    paceline_study::described(&mut method, registries());
    Ok(method.or_of_table(table))
}

fn of_runs(args: &Args) -> Result<Report<'static>, Failure> {
    let store = args.store.open()?;
    let runs = args.what.iter().map(|name| store.find(name)).collect::<Result<Vec<_>, _>>()?;
    let (mut explanations, mut notes) = (Vec::new(), Vec::new());
    let mut figures: Vec<_> = charts::run::accuracy(&store, &runs)?.into_iter().collect();
    for (i, run) in runs.iter().enumerate() {
        match explained(&RecordedRun::read(&store, run)?, registries().runs()) {
            Ok(explanation) => explanations.push(explanation),
            Err(error) => notes.push(error.to_string()),
        }
        for mut figure in charts::run::charts(&store, run)? {
            if runs.len() > 1 {
                figure.id = format!("{}-{}", figure.id, i + 1);
                figure.title = format!("{} of {}", figure.title, run.run);
            }
            figures.push(figure);
        }
    }
    let named: Vec<(String, &RunRow)> = runs.iter().map(|run| (run.run.clone(), run)).collect();
    let mut method = Method::of_records(&store, &named)?;
    method.measured = Some("where the time of each run went; accuracy on the test split".into());
    method.runs = Some(plural_of(runs.len(), "run"));
    [method.sampler, method.controls] = ["none: single runs".to_owned(), "none".into()].map(Some);
    method.repeats = Some("none: each run is looked at alone".into());
    let again =
        |run: &RunRow| run.labels.command.clone().unwrap_or_else(|| format!("paceline show {}", run.run));
    method.commands = runs.iter().map(again).collect();
    method.commands.push(command_line());
    paceline_study::described(&mut method, registries());
    let names: Vec<&str> = names_of(&runs).collect();
    Ok(Report {
        title: names.join(", "),
        about: format!("{} recorded {}", runs.len(), if runs.len() == 1 { "run" } else { "runs" }),
        notes,
        findings: Vec::new(),
        explanations,
        figures,
        method,
        sheets: Vec::new(),
        version: env!("CARGO_PKG_VERSION"),
    })
}

fn names_of(runs: &[RunRow]) -> impl Iterator<Item = &str> {
    runs.iter().map(|run| run.run.as_str())
}

/// The command that this process was started with, as a shell reads it.
fn command_line() -> String {
    let word = |word: std::ffi::OsString| {
        let word = word.to_string_lossy().into_owned();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            word
        } else {
            format!("'{}'", word.replace('\'', "'\\''"))
        }
    };
    let words: Vec<String> = std::env::args_os().skip(1).map(word).collect();
    format!("paceline {}", words.join(" "))
}
