//! `paceline report`: what a study found or why runs are slow, as a page, as Markdown, and each chart as SVG and CSV.

use std::path::PathBuf;

use paceline_analyze::RecordedRun;
use paceline_analyze::charts::{self, ChartInput};
use paceline_analyze::report::Report;
use serde_json::json;

use super::analyze::AnalysisQuery;
use super::explain::explained;
use super::store::Where;
use crate::failure::Failure;
use crate::flags::registries;
use crate::output::Show;

/// Flags of `paceline report`.
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// A study's name or file, or single recorded runs: beginnings of their ids, or `last` [default: all recorded runs
    /// together]
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
numbers as CSV, which report.md shows. Of many runs it tells what `paceline analyze` does; of
single ones, where their time went.

Examples:
  paceline report
  paceline report my-study
  paceline report --table runs.csv --factor workers --factor sync --response 'log(step_s)'
  paceline report --table runs.csv --factor model --factor workers --response step_s \\
      --workload model --workers workers --out monday
  paceline report last";

/// `paceline report`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    let study = match &args.what[..] {
        [name] => paceline_study::find(&args.store.folder(), name, registries())?,
        _ => None,
    };
    let report = if args.what.is_empty() || study.is_some() {
        of_table(&args.asked, &args.store, study.as_deref(), show)?
    } else {
        of_runs(args)?
    };
    let files = report.write(&args.out).map_err(|(path, error)| Failure::file(&path, &error))?;
    let page = args.out.join("report.html");
    show.print(&json!({"type": "result", "report": page, "files": files}), || format!("{}\n", page.display()))
}

/// The report of a study.
pub fn of_study(store: &Where, name: &str, show: Show) -> Result<Report<'static>, Failure> {
    of_table(&AnalysisQuery::of_study(), store, Some(name), show)
}

fn of_table(
    asked: &AnalysisQuery,
    store: &Where,
    study: Option<&str>,
    show: Show,
) -> Result<Report<'static>, Failure> {
    let (table, ask, analysis) = asked.analysis(store, study, show)?;
    let figures = charts::charts(&ChartInput { table: &table, analysis: &analysis, ask });
    let (used, all) = analysis.runs;
    Ok(Report {
        title: table.name.clone(),
        about: format!("{} in {used} of {all} runs", analysis.response.words()),
        notes: analysis.notes.clone(),
        figures,
        sheets: analysis.sheets(),
        findings: analysis.findings,
        explanations: Vec::new(),
        version: env!("CARGO_PKG_VERSION"),
    })
}

fn of_runs(args: &Args) -> Result<Report<'static>, Failure> {
    let store = args.store.open()?;
    let runs = args.what.iter().map(|name| store.find(name)).collect::<Result<Vec<_>, _>>()?;
    let (mut explanations, mut notes) = (Vec::new(), Vec::new());
    let mut figures: Vec<_> = charts::run::accuracy(&store, &runs)?.into_iter().collect();
    for (i, run) in runs.iter().enumerate() {
        match explained(&RecordedRun::read(&store, run)?, run.plan.as_ref()) {
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
    let names: Vec<&str> = runs.iter().map(|r| r.run.as_str()).collect();
    Ok(Report {
        title: names.join(", "),
        about: format!("{} recorded {}", runs.len(), if runs.len() == 1 { "run" } else { "runs" }),
        notes,
        findings: Vec::new(),
        explanations,
        figures,
        sheets: Vec::new(),
        version: env!("CARGO_PKG_VERSION"),
    })
}
