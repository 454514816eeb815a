//! `paceline explore`: a study of real runs, or of a table of runs made by others.

pub mod table;

use std::path::{Path, PathBuf};

use clap::ArgGroup;
use paceline_analyze::sheet::{WIDTH, wrapped};
use paceline_plan::printable_lines;
use paceline_study::{Findings, StudyEvent, StudyState, check_records, drive};

use super::store::Where;
use crate::failure::Failure;
use crate::flags::registries;
use crate::output::{self, Bar, Show};

/// Flags of `paceline explore`.
#[derive(clap::Args, Debug)]
#[command(group = ArgGroup::new("workload").required(true))]
pub struct Args {
    /// The study file
    #[arg(value_name = "STUDY.toml", group = "workload")]
    study: Option<PathBuf>,
    #[command(flatten)]
    running: Running,
    /// A table as the workload: comma-separated values with a header, also gzipped
    #[arg(long, value_name = "FILE", group = "workload", help_heading = "Instead of a study, a table")]
    table: Option<PathBuf>,
    #[arg(long, default_value = "bayes", help = table::samplers(), help_heading = "Instead of a study, a table")]
    sampler: String,
    #[command(flatten, next_help_heading = "Instead of a study, a table")]
    asked: table::TableQuery,
}

/// How runs are made.
#[derive(clap::Args, Clone, Debug)]
pub struct Running {
    /// Runs side by side, each on its part of the cores
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub parallel: u32,
    /// Write a report when the study is over [default folder: beside its journal]
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub report: Option<PathBuf>,
    #[command(flatten)]
    pub store: Where,
}

impl Running {
    /// One after the other, with a report beside the journal.
    pub fn reported() -> Self {
        Self { parallel: 1, report: Some(PathBuf::new()), store: Where::default() }
    }
}

impl Running {
    /// Makes the runs that are left, and tells what came of them.
    pub fn go(&self, mut state: StudyState, show: Show) -> Result<(), Failure> {
        let (store, watch) = (self.store.folder(), StudyProgress::new(show));
        show.detail(|| format!("the study's journal is in {}", state.folder().display()));
        let done = drive(&mut state, &store, self.parallel as usize, &mut |event| watch.take(event));
        watch.bar.clear();
        done?;
        tell(&state, show)?;
        check_records(&state.known, &store)?;
        let Some(out) = &self.report else { return Ok(()) };
        let out = if out.as_os_str().is_empty() { &state.folder().join("report") } else { out };
        let report = super::report::of_study(&self.store, &state.known.study.name, show)?;
        report.write(out).map_err(|(path, error)| Failure::file(&path, &error))?;
        if !show.quiet {
            output::note(&format!("the report with all charts: {}", out.join("report.html").display()));
        }
        Ok(())
    }
}

/// The live line of a study, and a line for each run.
pub struct StudyProgress {
    bar: Bar,
    show: Show,
}

impl StudyProgress {
    pub fn new(show: Show) -> Self {
        Self { bar: Bar::new(show, "{bar:20.cyan} {pos}/{len} runs  {msg}"), show }
    }

    pub fn take(&self, event: StudyEvent<'_>) -> std::io::Result<()> {
        match event {
            StudyEvent::Note(line) => self.bar.note(line),
            StudyEvent::RunEnd { line, document } => {
                if self.show.json {
                    output::json(&document)?;
                }
                self.show.detail(|| document.to_string());
                self.bar.note(&wrapped(&printable_lines(&line), WIDTH, 2));
            }
            StudyEvent::Progress { done, expected, message } => {
                self.bar.length(expected.max(done));
                self.bar.position(done);
                self.bar.message(&message);
            }
        }
        Ok(())
    }
}

/// What came of a study.
pub fn tell(state: &StudyState, show: Show) -> Result<(), Failure> {
    let findings = Findings::new(&state.known);
    show.print(&findings.json(state.folder()), || findings.text(state.folder()))
}

/// `paceline explore`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    match (&args.study, &args.table) {
        (Some(path), _) => explore(path, args, show),
        (None, Some(table)) => table::explore(table, &args.sampler, &args.asked, show),
        (None, None) => Err(Failure::usage("a study file or --table FILE is needed")),
    }
}

fn explore(path: &Path, args: &Args, show: Show) -> Result<(), Failure> {
    let study = paceline_study::read(path, registries())?;
    if !show.quiet {
        paceline_study::schedule(&study, registries(), 0)?.notes().iter().for_each(|note| output::note(note));
    }
    paceline_study::prepare(&study)?;
    args.running.go(StudyState::create(&args.running.store.folder(), study, registries().clone())?, show)
}
