//! What the simulator expects of a study's points, for samplers that begin with that.

use std::path::{Path, PathBuf};

use paceline_explore::Prior;
use paceline_plan::Study;
use paceline_record::figures::PredictionBasis;
use paceline_virtual::{Calibration, Terms};

use crate::calibrate::StudyPasses;
use crate::drive::{StudyEvent, StudyObserver};
use crate::error::StudyFailure;
use crate::predict::{PointPrediction, all_points, predictions};
use crate::registries::AllRegistries;
use crate::state::StudyState;

/// What is expected of the points, where the study asks for it. It is predicted once and kept in the journal: a study
/// that is resumed expects what it expected before, whatever became of the calibration's file.
pub(crate) fn prior(
    state: &mut StudyState,
    observer: StudyObserver<'_>,
) -> Result<Option<Prior>, StudyFailure> {
    let study = &state.known.study;
    if study.prior.is_none() {
        return Ok(None);
    }
    if state.known.prior.is_none() {
        let prior = expected(study, &state.known.registries, observer)?;
        state.expect(prior)?;
    }
    Ok(state.known.prior.clone())
}

fn expected(
    study: &Study,
    registries: &AllRegistries,
    observer: StudyObserver<'_>,
) -> Result<Prior, StudyFailure> {
    let figures = &registries.figures;
    let calibration = calibration(study)?;
    if calibration.is_none() {
        observer(StudyEvent::Note(
            "the prior's times come from round numbers; `paceline calibrate --out FILE` measures this machine, and \
             `calibration = \"FILE\"` in the study uses that",
        ))?;
    }
    let terms = Terms {
        registries: &registries.settings.registries,
        calibration: calibration.as_ref(),
        cluster: None,
        jitter: None,
    };
    let points = all_points(study)?;
    if let (Some(calibration), Some(file)) = (&calibration, calibration_file(study)) {
        let passes = StudyPasses::of_points(study, registries, &points)?;
        passes.offer(calibration, &file).map_or(Ok(()), |line| observer(StudyEvent::Note(&line)))?;
    }
    let metric = &study.objectives[0].metric;
    let basis = figures.find(metric).and_then(|figure| figure.predicted);
    let learn = basis == Some(PredictionBasis::Learning);
    let all = predictions(study, registries, &points, &terms, learn, None, observer)?;
    let figure = |one: PointPrediction| {
        let figure = one.prediction.figure(figures, metric)?.median;
        figure.is_finite().then_some((one.point, figure))
    };
    Ok(Prior(all.into_iter().filter_map(figure).collect()))
}

/// The calibration's file that a study names, looked for beside its own.
pub fn calibration_file(study: &Study) -> Option<PathBuf> {
    let beside = Path::new(&study.source.file).parent().unwrap_or(Path::new(""));
    study.calibration.as_ref().map(|file| beside.join(file))
}

/// The calibration that a study names.
pub fn calibration(study: &Study) -> Result<Option<Calibration>, StudyFailure> {
    Ok(calibration_file(study).map(|file| Calibration::load(&file)).transpose()?)
}
