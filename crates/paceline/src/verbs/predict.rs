//! `paceline predict`: what the runs of a study will take before they are made, and how right that was after.

use std::path::PathBuf;

use paceline_analyze::sheet::{WIDTH, wrapped};
use paceline_plan::printable_lines;
use paceline_study::{
    StudyState, all_points, calibration, calibration_file, compare, complete_calibration, measured_points,
    prediction_document, prediction_words, predictions,
};

use super::explore::StudyProgress;
use super::simulate::{Hardware, tell};
use super::store::Where;
use crate::failure::Failure;
use crate::flags::registries;
use crate::output::{self, Show};

/// Flags of `paceline predict`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The study file
    #[arg(value_name = "STUDY.toml")]
    study: PathBuf,
    #[command(flatten)]
    hardware: Hardware,
    /// Compare with the runs of a study in the store [default: the one that the file names]
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    against: Option<String>,
    /// Measure what the calibration lacks of this study first, and add it to the file
    #[arg(long)]
    calibrate: bool,
    /// Time alone: no gradients are computed, and nothing is said of accuracy
    #[arg(long)]
    time_only: bool,
    #[command(flatten)]
    store: Where,
}

/// `paceline predict`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    let study = paceline_study::read(&args.study, registries())?;
    let mut known = args.hardware.read()?.or(calibration(&study)?);
    let file = args.hardware.calibration.clone().or_else(|| calibration_file(&study));
    let measured = args.against.as_deref().map(|name| {
        let name = if name.is_empty() { &study.name } else { name };
        StudyState::peek(&args.store.folder(), name, registries())
    });
    let measured = measured.transpose()?;
    tell(&known, show);
    let points = match &measured {
        Some(measured) => measured_points(&study, measured)?,
        None => all_points(&study)?,
    };
    let (known_costs, note) = (&mut known.calibration, &|line: &str| show.note(line));
    complete_calibration(&study, registries(), &points, known_costs, file, args.calibrate, note)?;
    let watch = StudyProgress::new(show);
    let (learn, store) = (!args.time_only, args.store.folder());
    let terms = known.terms(registries().runs());
    let predicted = predictions(&study, registries(), &points, &terms, learn, Some(&store), &mut |event| {
        watch.take(event)
    })?;
    let compared = measured.map(|measured| compare(&study, &measured, &predicted));
    if show.json {
        let document = prediction_document(&study.name, &predicted, compared.as_deref());
        return Ok(output::json(&document)?);
    }
    let words = prediction_words(&predicted, compared.as_deref().unwrap_or_default());
    Ok(output::text(&wrapped(&printable_lines(&words), WIDTH, 4))?)
}
