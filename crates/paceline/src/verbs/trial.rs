//! The hidden word `trial`: one run of a study, which its document on standard input describes.

use paceline_data::Folders;
use paceline_record::FailureKind;
use paceline_record::process::{self, Started};
use paceline_study::{TrialDocument, TrialTask};
use paceline_train::InferRequest;

use super::infer;
use super::listen::Listening;
use crate::failure::Failure;
use crate::output::Show;
use crate::request::RunRequest;

/// Does what the document says.
pub fn run(started: Started) -> Result<(), Failure> {
    let document = serde_json::from_reader(std::io::stdin().lock()).map_err(|error| {
        let hint = "it is started by `paceline explore` and `paceline resume`";
        Failure::new(FailureKind::Usage, format!("the document of this run cannot be read: {error}"), hint)
    })?;
    let TrialDocument { task, plan, folders, json, quiet, labels } = document;
    let (folders, show) = (Folders(folders), Show { json, quiet, verbose: false });
    match task {
        TrialTask::Train { store, recording } => {
            let run = process::new_run_id();
            let request = RunRequest { plan, folders, store, run, resumes: false, recording, labels };
            request.execute(&Listening::default(), show, started)
        }
        TrialTask::Infer { batch, threads, seconds } => {
            let (batches, threads) = (vec![batch], vec![threads]);
            infer::measure(InferRequest { plan, folders, batches, threads, seconds }, show)
        }
    }
}
