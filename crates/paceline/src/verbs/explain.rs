//! `paceline explain`: why a run took as long as it did, and what would help.

use paceline_analyze::{ExplainError, Explanation, RecordedRun, RunComparison};
use paceline_record::Store;
use paceline_virtual::whatif::explained;
use serde_json::json;

use super::store::Where;
use crate::failure::Failure;
use crate::flags::registries;
use crate::output::{self, Show};
use paceline_record::FailureKind;

/// Flags of `paceline explain`.
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// A run: its id or its name, the beginning of either, or `last`
    #[arg(default_value = "last")]
    run: String,
    /// A second run: why is the first slower or faster?
    #[arg(long, value_name = "RUN")]
    vs: Option<String>,
    #[command(flatten)]
    store: Where,
}

const HELP: &str = "\
It judges from what was recorded, never from what the plan says was injected. Runs made with
--trace tell most: from single messages follow the chain that sets the pace, and whether links
are thin, slow, or carry too many small messages. Gains are predicted: the run's plan in virtual
time, with costs from its own events, as it was and with each change.

Examples:
  paceline train --workers 2 --trace && paceline explain
  paceline explain r3f --vs r1a --json";

impl From<ExplainError> for Failure {
    fn from(error: ExplainError) -> Self {
        Self::new(FailureKind::Other, error.to_string(), "`paceline runs` lists the recorded runs")
    }
}

fn explanation(store: &Store, name: &str) -> Result<Explanation, Failure> {
    let run = store.find(name)?;
    Ok(explained(&RecordedRun::read(store, &run)?, registries().runs())?)
}

/// `paceline explain`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    let store = args.store.open()?;
    let mut first = explanation(&store, &args.run)?;
    let mut second = args.vs.as_ref().map(|name| explanation(&store, name)).transpose()?;
    if let Some(second) = &mut second {
        first.measured_beside(second);
        second.measured_beside(&first);
    }
    let beside = second.as_ref().map(|second| RunComparison::new(&first, second));
    if show.json {
        let (mut document, mut figures) = (json!(first), first.figures());
        document["type"] = "result".into();
        if let (Some(second), Some(beside)) = (&second, &beside) {
            document["vs"] = json!(second);
            document["vs"]["figures"] = json!(second.figures());
            document["comparison"] = json!(beside);
            figures.extend(beside.figures().clone());
        }
        document["figures"] = json!(figures);
        document["sentences"] = json!(first.sentences());
        return Ok(output::json(&document)?);
    }
    let mut text = String::new();
    if let Some(beside) = &beside {
        text += &format!("{}\n\n", beside.sentence);
    }
    text += &first.text();
    if let Some(second) = &second {
        text += &format!("\n{}", second.text());
    }
    Ok(output::text(&text)?)
}
