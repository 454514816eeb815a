//! `paceline runs`: what is in the store, and what people call it.

use std::io::IsTerminal;

use paceline_analyze::{ListedRun, RunSelection};
use paceline_plan::Condition;
use paceline_record::store::{RunEdit, RunRemains, RunRow, run_name, run_note, run_tag};
use paceline_record::{FailureKind, Store};
use paceline_study::name_studies;
use serde::Serialize;

use super::store::Where;
use crate::failure::Failure;
use crate::flags::registries;
use crate::output::Show;

/// Flags of `paceline runs`.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true, after_long_help = HELP)]
pub struct Args {
    #[command(subcommand)]
    change: Option<Change>,
    #[command(flatten)]
    filters: Filters,
    #[command(flatten)]
    store: Where,
}

const HELP: &str = "\
Examples:
  paceline runs --model lenet --sort final_accuracy --limit 5
  paceline runs --where 'workers >= 2 and final_accuracy > 0.9'
  paceline runs edit last --name baseline --tag paper
  paceline runs delete r19d3 --dry-run";

/// Which runs are listed. Of several values any fits; tags must all be there.
#[derive(clap::Args, Debug, Default)]
struct Filters {
    /// Runs of this study
    #[arg(long = "study", value_name = "STUDY")]
    studies: Vec<String>,
    /// Runs of this workload of a study
    #[arg(long = "workload", value_name = "NAME")]
    workloads: Vec<String>,
    /// Runs with this tag; with several, with all of them
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// Runs of this network
    #[arg(long = "model", value_name = "MODEL")]
    models: Vec<String>,
    /// Runs on this dataset
    #[arg(long, value_name = "DATA")]
    data: Vec<String>,
    /// Runs that average this way
    #[arg(long = "strategy", value_name = "STRATEGY")]
    strategies: Vec<String>,
    /// Runs in this state
    #[arg(long = "state", value_name = "STATE", value_parser = ["running", "ok", "failed", "interrupted", "lost", "simulated"])]
    states: Vec<String>,
    /// Runs of which a condition on settings, figures and labels holds, e.g. "workers >= 2"
    #[arg(long = "where", value_name = "CONDITION", value_parser = |s: &str| Condition::parse(s))]
    conditions: Vec<Condition>,
    /// Order by a figure (the best first), a setting or a label [default: by their start, the latest last]
    #[arg(long, value_name = "NAME")]
    sort: Option<String>,
    /// Order the other way round
    #[arg(long)]
    reverse: bool,
    /// At most so many: the first, or without --sort the latest
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Archived runs instead of the others
    #[arg(long)]
    archived: bool,
}

impl Filters {
    fn selection(&self) -> RunSelection {
        RunSelection {
            studies: self.studies.clone(),
            workloads: self.workloads.clone(),
            tags: self.tags.clone(),
            models: self.models.clone(),
            data: self.data.clone(),
            strategies: self.strategies.clone(),
            states: self.states.clone(),
            conditions: self.conditions.clone(),
            archived: self.archived,
            sort: self.sort.clone(),
            reverse: self.reverse,
            limit: self.limit.map(|n| usize::try_from(n).unwrap_or(usize::MAX)),
        }
    }
}

#[derive(clap::Subcommand, Debug)]
enum Change {
    /// Change the name, the tags or the note of runs
    Edit(EditArgs),
    /// Leave runs out of lists; they are kept, and can still be named
    Archive(ArchiveArgs),
    /// Delete runs with their checkpoints
    Delete(DeleteArgs),
}

/// The runs that are changed.
#[derive(clap::Args, Debug)]
struct Named {
    /// A run: its id or its name, the beginning of either, or `last`
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<String>,
    #[command(flatten)]
    store: Where,
}

#[derive(clap::Args, Debug)]
struct EditArgs {
    #[command(flatten)]
    named: Named,
    /// Another name; empty for none
    #[arg(long, value_name = "NAME", value_parser = |s: &str| if s.is_empty() { Ok(String::new()) } else { run_name(s) })]
    name: Option<String>,
    /// Another note; empty for none
    #[arg(long, value_name = "TEXT", value_parser = run_note)]
    note: Option<String>,
    /// A tag to add; may be given several times
    #[arg(long = "tag", value_name = "TAG", value_parser = run_tag)]
    tags: Vec<String>,
    /// A tag to take away; may be given several times
    #[arg(long, value_name = "TAG")]
    untag: Vec<String>,
}

#[derive(clap::Args, Debug)]
struct ArchiveArgs {
    #[command(flatten)]
    named: Named,
    /// Show them in lists again
    #[arg(long)]
    undo: bool,
}

#[derive(clap::Args, Debug)]
struct DeleteArgs {
    #[command(flatten)]
    named: Named,
    /// Tell what would be deleted, and delete nothing
    #[arg(long)]
    dry_run: bool,
    /// Delete also where nobody watches (no terminal), and runs that a study would miss
    #[arg(long)]
    yes: bool,
}

impl Named {
    /// The store, and every run once.
    fn find(&self) -> Result<(Store, Vec<RunRow>), Failure> {
        let store = self.store.open()?;
        let mut found: Vec<RunRow> = Vec::new();
        for text in &self.runs {
            let run = store.find(text)?;
            if found.iter().all(|known| known.id != run.id) {
                found.push(run);
            }
        }
        name_studies(&self.store.folder(), &mut found, registries());
        Ok((store, found))
    }

    /// Makes the same change to every run, and lists them.
    fn edit(&self, edit: &RunEdit, show: Show) -> Result<(), Failure> {
        let (mut store, found) = self.find()?;
        let edited = found.iter().map(|run| store.edit(run, edit)).collect::<Result<Vec<_>, _>>()?;
        let rows: Vec<ListedRun<'_>> = edited.iter().map(ListedRun::new).collect();
        show.print(&rows, || ListedRun::table(&rows, None))
    }
}

/// `paceline runs`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    match &args.change {
        None => list(args, show),
        Some(Change::Edit(edit)) => {
            let EditArgs { named, name, note, tags, untag } = edit;
            let (name, note, tags, untag) = (name.clone(), note.clone(), tags.clone(), untag.clone());
            let change = RunEdit { name, note, tags, untag, archived: None };
            if change == RunEdit::default() {
                return Err(Failure::usage(
                    "nothing is to be changed: give --name, --note, --tag or --untag",
                ));
            }
            named.edit(&change, show)
        }
        Some(Change::Archive(args)) => {
            args.named.edit(&RunEdit { archived: Some(!args.undo), ..RunEdit::default() }, show)
        }
        Some(Change::Delete(args)) => delete(args, show),
    }
}

fn list(args: &Args, show: Show) -> Result<(), Failure> {
    let (mut runs, figures) = (args.store.open()?.runs()?, &registries().figures);
    let selection = args.filters.selection();
    name_studies(&args.store.folder(), &mut runs, registries());
    let chosen = selection.choose(&runs, figures).map_err(|unknown| Failure::usage(unknown.to_string()))?;
    let figure = selection.sort.as_deref().and_then(|name| figures.find(name));
    let rows: Vec<ListedRun<'_>> = chosen.runs.iter().map(|run| ListedRun::with(run, figure)).collect();
    if rows.is_empty() {
        let hidden = runs.iter().filter(|run| run.archived).count();
        let archived = format!("no runs; {hidden} are archived: --archived lists them");
        show.note(match (runs.len(), hidden) {
            (0, _) => "no runs",
            (all, hidden) if all == hidden && !args.filters.archived => &archived,
            _ => "no run fits",
        });
    }
    if show.json || !rows.is_empty() {
        show.print(&rows, || ListedRun::table(&rows, figure))?;
    }
    if chosen.more > 0 {
        show.note(&format!("… and {} more", chosen.more));
    }
    Ok(())
}

/// What was deleted, as programs see it.
#[derive(Serialize)]
struct DeletedRun<'a> {
    run: &'a str,
    deleted: bool,
    #[serde(flatten)]
    remains: RunRemains,
}

fn delete(args: &DeleteArgs, show: Show) -> Result<(), Failure> {
    let (mut store, found) = args.named.find()?;
    let refused = |message: String, hint: &str| Err(Failure::new(FailureKind::Usage, message, hint));
    if !args.dry_run && !args.yes {
        if let Some((run, study)) = found.iter().find_map(|run| Some((&run.run, run.labels.study.as_ref()?)))
        {
            let message =
                format!("run {run} belongs to the study {study}, which could not be resumed without it");
            return refused(message, "--yes deletes it all the same; `paceline runs archive` hides it");
        }
        if !std::io::stdin().is_terminal() {
            let message = format!("{} runs would be deleted for good", found.len());
            return refused(message, "--yes deletes them; --dry-run tells what would go");
        }
    }
    let mut rows = Vec::new();
    for run in &found {
        let remains = store.remains(run)?;
        if !args.dry_run {
            store.delete(run)?;
        }
        rows.push(DeletedRun { run: &run.run, deleted: !args.dry_run, remains });
    }
    let would = if args.dry_run { "would delete" } else { "deleted" };
    let line = |row: &DeletedRun<'_>| {
        let RunRemains { rows, files, file_bytes } = row.remains;
        let megabytes = file_bytes as f64 / 1e6;
        format!("{would} {}: {rows} rows, {files} checkpoint files of {megabytes:.1} MB\n", row.run)
    };
    show.print(&rows, || rows.iter().map(line).collect())
}
