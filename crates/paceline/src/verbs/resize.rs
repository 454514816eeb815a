//! `paceline resize` and `paceline drain`: other members for a run under way.

use paceline_launch::requests::{MemberRequest, ask_run};
use serde_json::json;

use super::store::Where;
use crate::failure::Failure;
use crate::output::Show;

/// Flags of `paceline resize`.
#[derive(clap::Args, Debug)]
pub struct ResizeArgs {
    #[command(flatten)]
    run: Named,
    /// Workers that it is to go on with, within its --elastic MIN..MAX: those that are too many hand their shares over and
    /// end, those that are missing are started
    #[arg(value_name = "N")]
    workers: usize,
}

/// Flags of `paceline drain`.
#[derive(clap::Args, Debug)]
pub struct DrainArgs {
    #[command(flatten)]
    run: Named,
    /// The rank: workers from 0, then servers, then spares and workers that joined later
    #[arg(value_name = "RANK")]
    rank: usize,
}

/// The run.
#[derive(clap::Args, Debug)]
struct Named {
    /// A run under way: its id or its name, the beginning of either, or `last`
    #[arg(value_name = "RUN")]
    run: String,
    #[command(flatten)]
    store: Where,
}

/// `paceline resize`.
pub fn resize(ResizeArgs { run, workers }: &ResizeArgs, show: Show) -> Result<(), Failure> {
    run.ask(MemberRequest::Resize(*workers), show)
}

/// `paceline drain`.
pub fn drain(DrainArgs { run, rank }: &DrainArgs, show: Show) -> Result<(), Failure> {
    run.ask(MemberRequest::Drain(*rank), show)
}

impl Named {
    fn ask(&self, request: MemberRequest, show: Show) -> Result<(), Failure> {
        let found = self.store.open()?.find(&self.run)?;
        let answer = ask_run(&self.store.folder(), &found, request)?;
        let run = &found.run;
        let document = json!({"type": "result", "run": run, "request": request, "answer": answer});
        show.print(&document, || format!("{run}: {answer}\n"))
    }
}
