//! `paceline show RUN`: where a run's time went, its links, evaluations and resources.

use paceline_analyze::sheet::aligned;
use paceline_record::export::{Exported, RunSummary};

use super::store::Where;
use crate::failure::Failure;
use crate::output::{self, Show};

/// Flags of `paceline show`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The beginning of a run's id, or `last`
    #[arg(default_value = "last")]
    run: String,
    #[command(flatten)]
    store: Where,
}

/// `paceline show`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    let store = args.store.open()?;
    let run = store.find(&args.run)?;
    let summary = RunSummary::of(&Exported { store: &store, run: &run })?;
    if show.json {
        return Ok(output::json(&summary)?);
    }
    let mut text = format!("run {}\n", summary.run);
    summary.lines().iter().for_each(|line| text += &format!("{line}\n"));
    for (title, head, rows) in summary.sections() {
        text += &format!("\n{title}\n{}", aligned(&head, 1, &rows));
    }
    Ok(output::text(&text)?)
}
