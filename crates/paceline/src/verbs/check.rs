//! `paceline check`: a study file, looked at without running anything.

use std::path::{Path, PathBuf};

use paceline_plan::StudyError;
use paceline_record::FailureKind;
use serde_json::json;

use crate::failure::Failure;
use crate::flags::registries;
use crate::output::{self, Show};

/// Flags of `paceline check`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The study file
    #[arg(value_name = "STUDY.toml", required_unless_present = "schema")]
    study: Option<PathBuf>,
    /// Print the JSON schema of study files instead
    #[arg(long)]
    schema: bool,
}

/// `paceline check`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    let Some(path) = args.study.as_ref().filter(|_| !args.schema) else {
        return Ok(output::json(&paceline_plan::study::schema())?);
    };
    let (study, mistakes) = paceline_study::read_with_mistakes(path, registries())?;
    let study = match study {
        Some(study) if mistakes.is_empty() => study,
        _ => return Err(refused(path, &mistakes, show)?),
    };
    let notes = paceline_study::notes(&study);
    notes.iter().for_each(|note| show.note(note));
    let points = study.space.points(paceline_plan::ENUMERABLE).map(|points| points.len());
    if show.json {
        return Ok(output::json(&json!({
            "type": "result", "study": study.name, "axes": study.space.axes().len(), "points": points,
            "notes": notes,
        }))?);
    }
    let many = points
        .map_or(format!("{} combinations before constraints", study.space.combinations()), |n| {
            format!("{n} points")
        });
    Ok(output::text(&format!("{}: {} axes, {many}; ok\n", path.display(), study.space.axes().len()))?)
}

/// Tells every mistake; programs get a document.
fn refused(path: &Path, mistakes: &[StudyError], show: Show) -> Result<Failure, Failure> {
    if show.json {
        let one = |m: &StudyError| json!({"line": m.line, "key": m.key, "problem": m.problem});
        let mistakes: Vec<_> = mistakes.iter().map(one).collect();
        output::json(&json!({"type": "mistakes", "file": path.display().to_string(), "mistakes": mistakes}))?;
    }
    let told: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
    let many = if told.len() > 1 { format!("{} mistakes\n", told.len()) } else { String::new() };
    let hint = "`paceline init` writes a commented study file; docs/studies.md says what each key means";
    Ok(Failure::new(FailureKind::Plan, many + &told.join("\n"), hint))
}
