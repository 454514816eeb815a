//! What the simulator expects of a study's points, for samplers that begin with that.

use std::path::Path;

use paceline_explore::Prior;
use paceline_plan::Study;
use paceline_record::figures::{Figures, PredictionBasis};
use paceline_virtual::Calibration;
use paceline_virtual::price::Terms;

use super::predict::{all_points, predictions};
use super::state::State;
use crate::failure::Failure;
use crate::flags::registries;
use crate::output::{self, Show};

/// What is expected of the points, where the study asks for it. It is predicted once and kept in the journal: a study
/// that is resumed expects what it expected before, whatever became of the calibration's file.
pub fn prior(state: &mut State, show: Show) -> Result<Option<Prior>, Failure> {
    let study = &state.known.study;
    if study.prior.is_none() {
        return Ok(None);
    }
    if state.known.prior.is_none() {
        let prior = expected(study, &state.known.figures, show)?;
        state.expect(prior)?;
    }
    Ok(state.known.prior.clone())
}

fn expected(study: &Study, figures: &Figures, show: Show) -> Result<Prior, Failure> {
    let calibration = calibration(study)?;
    if calibration.is_none() && !show.quiet {
        output::note(
            "the prior's times come from round numbers; `paceline calibrate --out FILE` measures this machine, and \
             `calibration = \"FILE\"` in the study uses that",
        );
    }
    let terms =
        Terms { registries: registries(), calibration: calibration.as_ref(), cluster: None, jitter: None };
    let points = all_points(study)?;
    let metric = &study.objectives[0].metric;
    let basis = figures.find(metric).and_then(|figure| figure.predicted);
    let learn = basis == Some(PredictionBasis::Learning);
    let tell = |done: usize| {
        if !show.quiet {
            output::note(&format!("{done} of {} points predicted", points.len()));
        }
    };
    let all = predictions(study, &points, &terms, learn, &tell)?;
    let figure = |one: super::predict::Predicted| {
        let figure = one.prediction.figure(figures, metric)?.median;
        figure.is_finite().then_some((one.point, figure))
    };
    Ok(Prior(all.into_iter().filter_map(figure).collect()))
}

/// The calibration that a study names, looked for beside its file.
pub fn calibration(study: &Study) -> Result<Option<Calibration>, Failure> {
    let beside = Path::new(&study.source.file).parent().unwrap_or(Path::new(""));
    let load = |file: &String| Calibration::load(&beside.join(file));
    Ok(study.calibration.as_ref().map(load).transpose()?)
}
