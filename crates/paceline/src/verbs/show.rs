//! `paceline show`: where a run's time went, its links, evaluations and resources; or several runs and studies beside
//! each other.

use std::collections::HashSet;

use paceline_analyze::sheet::aligned;
use paceline_analyze::{ComparedItem, ComparedRuns};
use paceline_explore::schedule::Role;
use paceline_record::Store;
use paceline_record::export::{Exported, RunSummary};
use paceline_record::store::RunRow;
use paceline_study::{StudyState, name_studies};

use super::store::Where;
use crate::failure::Failure;
use crate::flags::registries;
use crate::output::{self, Show};

/// Flags of `paceline show`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A run: its id or its name, the beginning of either, or `last`. Several, or studies, are compared: the settings
    /// that differ, figures, and the loss against steps, samples and time
    #[arg(value_name = "RUN|STUDY", default_value = "last")]
    what: Vec<String>,
    #[command(flatten)]
    store: Where,
}

/// `paceline show`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    let store = args.store.open()?;
    let items = args.what.iter().map(|text| item(args, &store, text)).collect::<Result<Vec<_>, _>>()?;
    if let [(ComparedItem { runs, .. }, false)] = items.as_slice() {
        return one(&store, &runs[0], show);
    }
    let items: Vec<ComparedItem> = items.into_iter().map(|(item, _)| item).collect();
    let compared = ComparedRuns::new(&store, &items, &registries().figures)?;
    show.print(&compared, || compared.text())
}

/// The recorded runs of a study's points, or one run; and whether it is a study.
fn item(args: &Args, store: &Store, text: &str) -> Result<(ComparedItem, bool), Failure> {
    let folder = args.store.folder();
    if let Some(study) = paceline_study::find(&folder, text, registries())? {
        let known = StudyState::peek(&folder, &study, registries())?;
        let mut runs = store.runs()?;
        let all = known.made.iter().zip(&known.runs);
        let points: HashSet<&String> = all
            .filter(|(made, _)| made.job.role == Role::Point)
            .filter_map(|(_, run)| run.as_ref())
            .collect();
        runs.retain(|run| points.contains(&run.run));
        if runs.is_empty() {
            return Err(Failure::usage(format!("{study}: no run of its points is recorded")));
        }
        return Ok((ComparedItem { label: study, runs }, true));
    }
    let found = store.find(text).map_err(|error| Failure::from(error).neither(&folder))?;
    let mut runs = vec![found];
    name_studies(&folder, &mut runs, registries());
    let label = runs[0].labels.name.clone().unwrap_or_else(|| runs[0].run.clone());
    Ok((ComparedItem { label, runs }, false))
}

fn one(store: &Store, run: &RunRow, show: Show) -> Result<(), Failure> {
    let summary = RunSummary::of(&Exported { store, run })?;
    if show.json {
        return Ok(output::json(&summary)?);
    }
    let mut text = format!("run {}\n", summary.run);
    summary.lines().iter().for_each(|line| text += &format!("{line}\n"));
    if let Some(command) = summary.command() {
        text += &format!("\nThe same again:\n{command}\n");
    }
    for (title, head, rows) in summary.sections() {
        text += &format!("\n{title}\n{}", aligned(&head, 1, &rows));
    }
    Ok(output::text(&text)?)
}
