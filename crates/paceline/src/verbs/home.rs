//! `paceline` alone: a small study of real runs on the built-in digits.

use paceline_plan::Study;
use paceline_record::process::{self, Started};

use paceline_study::StudyState;

use super::explore::Running;
use crate::failure::Failure;
use crate::flags::registries;
use crate::output::{self, Show};

const STUDY: &str = include_str!("home.toml");

/// Makes the study and shows what it found.
pub fn run(show: Show, started: Started) -> Result<(), Failure> {
    // Each time is a study of its own.
    let name = format!("digits-{}", process::new_run_id());
    let study = Study::read("built-in study", &name, STUDY)?;
    paceline_study::check(&study, registries())?;
    if !show.quiet {
        output::note(&format!(
            "a study of real runs on the built-in digits: {} configurations of {} axes; everything is recorded",
            study.runs.unwrap_or(0),
            study.space.axes().len()
        ));
    }
    let running = Running::default();
    running.go(StudyState::create(&running.store.folder(), study, registries().clone())?, show)?;
    if !show.quiet {
        output::note(&format!("{:.0} s in all", started.seconds()));
        output::note(
            "next: `paceline init` writes a study file; `paceline runs`, `paceline show last`, `paceline train --help`",
        );
    }
    Ok(())
}
