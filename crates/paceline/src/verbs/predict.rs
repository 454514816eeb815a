//! `paceline predict`: what the runs of a study will take before they are made, and how right that was after.

use std::path::PathBuf;

use paceline_virtual::calibration::MedianEstimate;
use paceline_virtual::compare::PredictionQuality;
use serde_json::{Value as Json, json};

use super::simulate::Hardware;
use super::store::Where;
use crate::failure::Failure;
use crate::output::{self, Show};
use crate::study::predict::{self, Compared, Predicted};
use crate::study::report::{configuration, number};
use crate::study::state::State;
use crate::study::{self, prior};

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
    /// Time alone: no gradients are computed, and nothing is said of accuracy
    #[arg(long)]
    time_only: bool,
    #[command(flatten)]
    store: Where,
}

/// `paceline predict`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    let study = study::read(&args.study)?;
    let known = args.hardware.read()?.or(prior::calibration(&study)?);
    let measured = match args.against.as_deref() {
        None => None,
        Some("") => Some(State::peek(&args.store.folder(), &study.name)?),
        Some(name) => Some(State::peek(&args.store.folder(), name)?),
    };
    known.tell(show);
    let points = match &measured {
        Some(measured) => predict::measured_points(&study, measured)?,
        None => predict::all_points(&study)?,
    };
    let tell = |done: usize| {
        if !show.quiet {
            output::note(&format!("{done} of {} points predicted", points.len()));
        }
    };
    let predicted = predict::predictions(&study, &points, &known.terms(), !args.time_only, &tell)?;
    let compared = measured.map(|measured| predict::compare(&study, &measured, &predicted));
    if show.json {
        return Ok(output::json(&document(&study.name, &predicted, compared.as_deref()))?);
    }
    let mut text = table(&predicted);
    for compared in compared.iter().flatten() {
        text += &summary(compared);
    }
    Ok(output::text(&text)?)
}

fn document(name: &str, predicted: &[Predicted], compared: Option<&[Compared]>) -> Json {
    let point = |one: &Predicted| json!({"levels": one.levels, "prediction": one.prediction});
    let compared = compared.map(|all| {
        let one = |c: &Compared| json!({"metric": c.metric, "comparison": c.comparison, "points": c.pairs});
        all.iter().map(one).collect::<Vec<_>>()
    });
    json!({
        "type": "predictions",
        "origin": "simulated",
        "study": name,
        "points": predicted.iter().map(point).collect::<Vec<_>>(),
        "compared": compared,
    })
}

/// A number with its interval.
fn around(estimate: MedianEstimate, scale: f64) -> String {
    let [middle, low, high] =
        [estimate.median, estimate.low, estimate.high].map(|value| number(scale * value));
    format!("{middle} ({low} to {high})")
}

/// A line per point, the fastest training first.
fn table(predicted: &[Predicted]) -> String {
    let mut order: Vec<&Predicted> = predicted.iter().collect();
    order.sort_by(|a, b| a.prediction.train_s.median.total_cmp(&b.prediction.train_s.median));
    let mut text = String::new();
    for Predicted { levels, prediction, .. } in order {
        text += &format!("{}\n", configuration(levels));
        text += &format!(
            "  step {} ms, training {} s, {} MB sent",
            around(prediction.step_s, 1e3),
            around(prediction.train_s, 1.0),
            number(prediction.sent_bytes as f64 / 1e6)
        );
        if let Some(seconds) = prediction.time_to_accuracy_s {
            text += &format!(", target after {} s", around(seconds, 1.0));
        }
        if let Some(cost) = prediction.cost {
            text += &format!(", cost {}", around(cost, 1.0));
        }
        text.push('\n');
        for what in &prediction.beyond {
            text += &format!("  outside of what was measured: {what}\n");
        }
    }
    text
}

/// How right predictions were, in words.
fn summary(Compared { metric, comparison, .. }: &Compared) -> String {
    let percent = |fraction: f64| format!("{:.1}%", 100.0 * fraction);
    let PredictionQuality { points, mean_error, p90_error, rank_correlation, regret, noise_floor, covered } =
        comparison;
    let noise = noise_floor.map_or("unknown without repeats".into(), percent);
    let rank = rank_correlation.map_or("unknown".into(), |value| format!("{value:.3}"));
    format!(
        "\n{metric}, {points} points: off by {} in the mean, one in ten by more than {}; run to run: {noise}\n\
         rank correlation {rank}; choosing by prediction costs {}; {} lie in their intervals\n",
        percent(*mean_error),
        percent(*p90_error),
        percent(*regret),
        percent(*covered),
    )
}
