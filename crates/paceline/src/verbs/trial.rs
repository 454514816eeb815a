//! The hidden word `trial`: one run of a study, which its document on standard input describes.

use std::time::Duration;

use paceline_data::Folders;
use paceline_launch::Interrupt;
use paceline_launch::agent::{self, Join};
use paceline_record::FailureKind;
use paceline_record::process::{self, Started};
use paceline_study::{TrialDocument, TrialMeeting, TrialTask};
use paceline_train::InferRequest;

use super::infer;
use super::listen::Listening;
use crate::failure::Failure;
use crate::output::Show;
use crate::request::RunRequest;

/// How long a host tries to reach the run that it belongs to, which waits for it already.
const PATIENCE: Duration = Duration::from_secs(30);

/// Does what the document says.
pub fn run(started: Started) -> Result<(), Failure> {
    let document = serde_json::from_reader(std::io::stdin().lock()).map_err(|error| {
        let hint = "it is started by `paceline explore` and `paceline resume`";
        Failure::new(FailureKind::Usage, format!("the document of this run cannot be read: {error}"), hint)
    })?;
    let TrialDocument { task, plan, folders, json, quiet, labels, node } = document;
    let (folders, show) = (Folders(folders), Show { json, quiet, verbose: false });
    match task {
        TrialTask::Train { store, recording, meeting } => {
            let run = process::new_run_id();
            // Processes of two machines may have one number.
            let run = node.map_or(run.clone(), |node| format!("{run}-{node}"));
            let request = RunRequest { plan, folders, store, run, resumes: false, recording, labels };
            request.execute(&Listening::of_study(meeting), show, started)
        }
        TrialTask::Join { meeting: TrialMeeting { address, key }, host, hosts } => {
            let (program, interrupt) = ((std::env::current_exe()?, "rank"), Interrupt::on_signals()?);
            let (host, hosts, patience) = (Some(host), Some(hosts), PATIENCE);
            let join = Join { folders, host, hosts, program, patience, interrupt, task: None };
            agent::join(&[address], &key.into(), &join, &mut |_| {})?;
            Ok(())
        }
        TrialTask::Infer { batch, threads, seconds } => {
            let (batches, threads) = (vec![batch], vec![threads]);
            infer::measure(InferRequest { plan, folders, batches, threads, seconds, weights: None }, show)
        }
    }
}
