//! `paceline status`: the runs that are under way, and how far studies are.

use std::path::Path;

use paceline_analyze::ListedRun;
use paceline_analyze::sheet::aligned;
use paceline_explore::schedule::{End, Role, StudyRun};
use paceline_record::RecordError;
use paceline_study::{Findings, StudyState, duration, find_or_fail, journal, names};
use serde::Serialize;
use serde_json::json;

use super::store::Where;
use crate::failure::Failure;
use crate::flags::registries;
use crate::output::{self, Show};

/// Flags of `paceline status`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A study's name or file; everything if left out
    #[arg(value_name = "STUDY")]
    what: Option<String>,
    #[command(flatten)]
    store: Where,
}

/// A study, as programs see it.
#[derive(Serialize)]
struct Progress {
    study: String,
    state: &'static str,
    runs: usize,
    /// In all, as far as that is known.
    expected: u64,
    ended: usize,
    points: usize,
    failed: usize,
    finished: bool,
}

/// `paceline status`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    let store = args.store.folder();
    if let Some(text) = &args.what {
        let name = find_or_fail(&store, text, registries())?;
        return one(&store, &name, show);
    }
    let studies = names(&store).iter().map(|name| progress(&store, name)).collect::<Result<Vec<_>, _>>()?;
    let mut runs = match args.store.open().and_then(|store| store.runs()) {
        // Studies of other programs leave no runs.
        Err(RecordError::Empty { .. }) if !studies.is_empty() => Vec::new(),
        runs => runs?,
    };
    runs.retain(|run| run.state == "running");
    let runs: Vec<ListedRun<'_>> = runs.iter().map(ListedRun::new).collect();
    if show.json {
        return Ok(output::json(&json!({"type": "result", "runs": runs, "studies": studies}))?);
    }
    let mut text = String::new();
    if !studies.is_empty() {
        let cells = |s: &Progress| {
            vec![
                s.study.clone(),
                s.state.into(),
                s.points.to_string(),
                format!("{}/{}", s.ended, s.expected),
                s.failed.to_string(),
            ]
        };
        let cells: Vec<_> = studies.iter().map(cells).collect();
        text += &aligned(&["study", "state", "points", "runs ended", "failed"], 1, &cells);
    }
    if runs.is_empty() {
        output::note("no run is under way");
    } else {
        text += if text.is_empty() { "" } else { "\n" };
        text += &ListedRun::table(&runs, None);
    }
    Ok(output::text(&text)?)
}

fn progress(store: &Path, name: &str) -> Result<Progress, Failure> {
    let (known, busy) = (StudyState::peek(store, name, registries())?, StudyState::busy(store, name));
    let count = |which: &dyn Fn(&StudyRun) -> bool| known.made.iter().filter(|m| which(m)).count();
    Ok(Progress {
        study: name.into(),
        state: known.phase(busy),
        runs: known.made.len(),
        expected: known.expected(),
        ended: count(&|m| m.end.is_some()),
        points: count(&|m| m.job.role == Role::Point),
        failed: count(&|m| matches!(m.end, Some(End::Failed { .. } | End::Diverged { .. }))),
        finished: known.finished,
    })
}

/// How far one study is, and what it has found so far.
fn one(store: &Path, name: &str, show: Show) -> Result<(), Failure> {
    let known = StudyState::peek(store, name, registries())?;
    let path = journal(store, name);
    let findings = Findings::new(&known);
    let folder = path.parent().unwrap_or(store);
    if show.json {
        return Ok(output::json(&findings.json(folder))?);
    }
    let (ended, expected) = (known.ended(), known.expected());
    let left = expected.saturating_sub(ended);
    let mut state = known.phase(StudyState::busy(store, name)).to_owned();
    if !known.finished {
        let seconds = duration(known.seconds_each() * left as f64);
        state += &format!("; {ended} of about {expected} runs done, {left} left, {seconds}");
    }
    Ok(output::text(&format!("{name}: {state}\n{}", findings.text(folder)))?)
}
