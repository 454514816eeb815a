//! `paceline` alone: a small study of real runs that teaches something: does a second machine help?

use paceline_record::process::{self, Started};

use paceline_study::{Findings, StudyState};

use super::explore::Running;
use super::listen::Listening;
use crate::failure::Failure;
use crate::flags::registries;
use crate::output::{self, Show};

const STUDY: &str = include_str!("home.toml");

/// Makes the study and shows what it found.
pub fn run(show: Show, started: Started) -> Result<(), Failure> {
    // Each time is a study of its own.
    let name = format!("digits-{}", process::new_run_id());
    let study = paceline_study::parse("built-in study", &name, STUDY, registries())?;
    paceline_study::check(&study, registries())?;
    if !show.quiet {
        output::note(
            "Does a second machine help? A small network learns the built-in digits with one worker and with two,\n\
             300 Mbit/s between them (emulated), averaged in different ways, each three times. About a minute:",
        );
    }
    let running = Running::reported();
    let folder = running.store.folder();
    let ready = running.prepare(&study, &Listening::default(), show)?;
    running.go(StudyState::create(&folder, study, registries().clone())?, ready, show)?;
    let known = StudyState::peek(&folder, &name, registries())?;
    if !show.json {
        output::text(&format!("\n{}", Findings::new(&known).chart()))?;
    }
    if !show.quiet {
        output::note(&format!(
            "{:.0} s in all; next: `paceline analyze {name}`, `paceline serve`, `paceline explain last`; `paceline init` writes a study \
             file of your own",
            started.seconds()
        ));
    }
    Ok(())
}
