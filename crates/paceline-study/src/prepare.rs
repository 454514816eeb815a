//! What a study of another program does before its first run.

use std::path::Path;
use std::process::{Command, Stdio};

use paceline_plan::study::OF_STUDIES;
use paceline_plan::{Study, Workload};

use crate::error::StudyFailure;

/// Runs what the study wants to be run before its first run; a failure is that of the whole study.
pub fn prepare(study: &Study) -> Result<(), StudyFailure> {
    let Workload::Command { prepare, .. } = &study.workload else { return Ok(()) };
    let words = of_study(study, prepare)?;
    let Some((program, arguments)) = words.split_first() else { return Ok(()) };
    let failed = |cause: String| StudyFailure::Unprepared { command: prepare.join(" "), cause };
    let ended = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let ended = ended.map_err(|error| failed(format!("{program}: {error}")))?;
    if ended.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ended.stderr);
    let last = said.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("nothing was said");
    let last = last.trim_start_matches("error: ");
    Err(failed(if ended.status.code().is_some() {
        last.to_owned()
    } else {
        format!("{last} ({})", ended.status)
    }))
}

/// Words with what is the same in every run of a study filled in.
pub(crate) fn of_study(study: &Study, words: &[String]) -> Result<Vec<String>, StudyFailure> {
    let program = std::env::current_exe()?;
    let folder = Path::new(&study.source.file).parent().unwrap_or(Path::new(""));
    let folder = std::path::absolute(folder.join("."))?;
    let fill = |word: &String| {
        let places = OF_STUDIES.into_iter().zip([&program, &folder]);
        places.fold(word.clone(), |word, (name, path)| {
            word.replace(&format!("{{{name}}}"), &path.to_string_lossy())
        })
    };
    Ok(words.iter().map(fill).collect())
}
