//! `paceline check`: a study file, looked at without running anything.

use std::path::PathBuf;

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
    let study = paceline_study::read(path, registries())?;
    let points = study.space.points(paceline_plan::ENUMERABLE).map(|points| points.len());
    if show.json {
        return Ok(output::json(&json!({
            "type": "result", "study": study.name, "axes": study.space.axes().len(), "points": points,
        }))?);
    }
    let many = points
        .map_or(format!("{} combinations before constraints", study.space.combinations()), |n| {
            format!("{n} points")
        });
    Ok(output::text(&format!("{}: {} axes, {many}; ok\n", path.display(), study.space.axes().len()))?)
}
