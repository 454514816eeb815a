//! `paceline resize` and `paceline drain`: other members for a run under way.

use std::io::ErrorKind;

use paceline_launch::requests::{MemberAnswer, MemberRequest, ask};
use paceline_record::FailureKind;
use paceline_record::store::run_folder;
use serde_json::json;

use super::store::Where;
use crate::failure::Failure;
use crate::output::Show;

/// Flags of `paceline resize`.
#[derive(clap::Args, Debug)]
#[command(after_long_help = RESIZE)]
pub struct ResizeArgs {
    /// A run under way: its id or its name, the beginning of either, or `last`
    #[arg(value_name = "RUN")]
    run: String,
    /// Workers that it is to go on with, within its --elastic MIN..MAX
    #[arg(value_name = "N")]
    workers: usize,
    #[command(flatten)]
    store: Where,
}

/// Flags of `paceline drain`.
#[derive(clap::Args, Debug)]
#[command(after_long_help = DRAIN)]
pub struct DrainArgs {
    /// A run under way: its id or its name, the beginning of either, or `last`
    #[arg(value_name = "RUN")]
    run: String,
    /// The rank: workers from 0, then servers, then spares and workers that joined later
    #[arg(value_name = "RANK")]
    rank: usize,
    #[command(flatten)]
    store: Where,
}

const RESIZE: &str = "\
Workers that are too many hand their shares over and end; those that are missing are started, and join as soon as they have
loaded. The result does not change (docs/elastic.md).

Examples:
  paceline resize last 2
  paceline resize night-run 4";

const DRAIN: &str = "\
The rank hands its shares over to the others, and its process ends. The result does not change (docs/elastic.md).

Example:
  paceline drain last 3";

/// `paceline resize`.
pub fn resize(args: &ResizeArgs, show: Show) -> Result<(), Failure> {
    request(&args.store, &args.run, MemberRequest::Resize(args.workers), show)
}

/// `paceline drain`.
pub fn drain(args: &DrainArgs, show: Show) -> Result<(), Failure> {
    request(&args.store, &args.run, MemberRequest::Drain(args.rank), show)
}

fn request(store: &Where, name: &str, request: MemberRequest, show: Show) -> Result<(), Failure> {
    let run = store.open()?.find(name)?;
    let id = &run.run;
    let refused = |message: String, hint: &str| Err(Failure::new(FailureKind::Plan, message, hint));
    if run.state != "running" {
        let hint = "`paceline status` lists the runs that are under way";
        return refused(format!("{id} is over: {}", run.state), hint);
    }
    if run.plan.as_ref().is_some_and(|plan| plan.elastic.is_none()) {
        let hint = "start it with --elastic MIN..MAX: then its members can change";
        return refused(format!("{id} is not elastic: its members are those that it began with"), hint);
    }
    match ask(&run_folder(&store.folder(), id), request) {
        Ok(MemberAnswer::Accepted(words)) => {
            let document = json!({"type": "result", "run": id, "request": request, "answer": words});
            show.print(&document, || format!("{id}: {words}\n"))
        }
        Ok(MemberAnswer::Refused(problem)) => {
            let hint = "`paceline show RUN` tells its plan; nothing was changed";
            refused(format!("{id} refuses: {problem}"), hint)
        }
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
            let hint = "has its launcher just begun, or was it killed, or does it run on another machine?";
            refused(format!("nobody takes requests for {id} here"), hint)
        }
        Err(error) => {
            refused(format!("{id} gave no answer: {error}"), "is the run yours, and its machine this one?")
        }
    }
}
