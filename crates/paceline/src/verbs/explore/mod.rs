//! `paceline explore`: a study of real runs, or of a table of runs made by others.

pub mod table;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::ArgGroup;
use paceline_analyze::sheet::{WIDTH, wrapped};
use paceline_launch::Interrupt;
use paceline_launch::engine::watch_parent;
use paceline_plan::{Study, printable_lines};
use paceline_resolve::data_folders;
use paceline_study::{
    Findings, Places, StudyEvent, StudyState, check_records, drive, needs_folder, node_words,
};

use super::listen::Listening;
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
    #[command(flatten, next_help_heading = "Over several machines")]
    listening: Listening,
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
    /// Runs side by side: each on its part of the cores; under an engine or with --hosts-file, each on nodes of its own
    /// [default: 1, or the number of nodes]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub parallel: Option<u32>,
    /// Write a report when the study is over [default folder: beside its journal]
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub report: Option<PathBuf>,
    #[command(flatten)]
    pub store: Where,
}

impl Running {
    /// One after the other, with a report beside the journal.
    pub fn reported() -> Self {
        Self { parallel: None, report: Some(PathBuf::new()), store: Where::default() }
    }
}

/// What has made ready for a study's runs.
pub struct Ready {
    places: Places,
    interrupt: Arc<Interrupt>,
}

impl Running {
    /// Listens for requests to stop, and waits for the nodes of a study, if it has any.
    pub fn prepare(&self, study: &Study, listening: &Listening, show: Show) -> Result<Ready, Failure> {
        let nodes = listening.nodes(self.parallel)?;
        let interrupt = Interrupt::on_signals()?;
        interrupt.arm();
        if let Some(task) = listening.task() {
            watch_parent(task, Arc::clone(&interrupt), |line| output::note(&line));
        }
        nodes.iter().for_each(|size| show.note(&format!("waiting for {} of {size} nodes", size - 1)));
        let tell = &mut |change| show.note(&node_words(&change));
        let needed = needs_folder(study, registries());
        let places = listening.places(self.parallel, needed, &interrupt, tell)?;
        Ok(Ready { places, interrupt })
    }

    /// Makes the runs that are left, and tells what came of them.
    pub fn go(&self, mut state: StudyState, ready: Ready, show: Show) -> Result<(), Failure> {
        let (store, watch) = (self.store.folder(), StudyProgress::new(show));
        show.detail(|| format!("the study's journal is in {}", state.folder().display()));
        let Ready { places, interrupt } = ready;
        let done = drive(&mut state, &store, places, &interrupt, &mut |event| watch.take(event));
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
        (None, Some(table)) => {
            args.listening.refuse("a table has no runs that other machines could make")?;
            table::explore(table, &args.sampler, &args.asked, show)
        }
        (None, None) => Err(Failure::usage("a study file or --table FILE is needed")),
    }
}

fn explore(path: &Path, args: &Args, show: Show) -> Result<(), Failure> {
    let store = args.running.store.folder();
    let listening = args.listening.with_job(&store)?;
    listening.nodes(args.running.parallel)?;
    if listening.take_part(data_folders(None), show)? {
        return Ok(());
    }
    let study = listening.or_dismiss(paceline_study::read(path, registries()).map_err(Failure::from))?;
    if !show.quiet {
        paceline_study::schedule(&study, registries(), 0)?.notes().iter().for_each(|note| output::note(note));
    }
    listening.or_dismiss(paceline_study::prepare(&study).map_err(Failure::from))?;
    let ready = args.running.prepare(&study, &listening, show)?;
    match StudyState::create(&store, study, registries().clone()) {
        Ok(state) => args.running.go(state, ready, show),
        Err(failure) => {
            ready.places.end(&failure);
            Err(failure.into())
        }
    }
}
