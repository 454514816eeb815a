//! `paceline report`: what a study found, as a page, as Markdown, and each chart as SVG and CSV.

use std::fs;
use std::path::{Path, PathBuf};

use paceline_analyze::Analysis;
use paceline_analyze::charts::{Drawn, charts};
use paceline_analyze::report::Report;
use serde_json::json;

use super::analyze::Asked;
use crate::failure::Failure;
use crate::output::{self, Show};

/// Flags of `paceline report`.
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    #[command(flatten)]
    asked: Asked,
    /// Folder to write to: report.html, report.md, and charts/
    #[arg(long, value_name = "DIR", default_value = "report")]
    out: PathBuf,
}

const HELP: &str = "\
report.html is one file that loads nothing from elsewhere; charts/ has each chart as SVG and its
numbers as CSV, which report.md shows.

Examples:
  paceline report --table runs.csv --factor workers --factor sync --response 'log(step_s)'
  paceline report --table runs.csv --factor model --factor workers --response step_s \\
      --workload model --workers workers --out monday";

/// `paceline report`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    let table = args.asked.table()?;
    let ask = args.asked.ask(&table)?;
    let analysis = Analysis::new(&table, ask);
    let figures = charts(&Drawn { table: &table, analysis: &analysis, ask });
    let (used, all) = analysis.runs;
    let report = Report {
        title: table.name.clone(),
        about: format!("{} in {used} of {all} runs", analysis.response.words()),
        analysis: &analysis,
        figures,
        version: env!("CARGO_PKG_VERSION"),
    };
    let files = write(&report, &args.out)?;
    if show.json {
        return Ok(output::json(
            &json!({"type": "result", "report": args.out.join("report.html"), "files": files}),
        )?);
    }
    Ok(output::text(&format!("{}\n", args.out.join("report.html").display()))?)
}

/// Writes a report into a folder; the files.
fn write(report: &Report<'_>, folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let charts = folder.join("charts");
    fs::create_dir_all(&charts).map_err(|error| Failure::file(&charts, &error))?;
    let mut files = Vec::new();
    let mut put = |path: PathBuf, text: &str| {
        fs::write(&path, text).map_err(|error| Failure::file(&path, &error))?;
        files.push(path);
        Ok::<(), Failure>(())
    };
    put(folder.join("report.html"), &report.html())?;
    put(folder.join("report.md"), &report.markdown("charts"))?;
    for figure in &report.figures {
        put(charts.join(format!("{}.svg", figure.id)), &figure.svg())?;
        put(charts.join(format!("{}.csv", figure.id)), &figure.csv())?;
    }
    Ok(files)
}
