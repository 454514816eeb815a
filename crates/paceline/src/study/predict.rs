//! Predictions of a study's points in virtual time.

use std::collections::BTreeMap;

use paceline_explore::schedule::{End, Role};
use paceline_plan::{Goal, Point, Study, Value, Workload};
use paceline_virtual::compare::{self, Pair, PredictionQuality};
use paceline_virtual::predict::{Prediction, predict};
use paceline_virtual::price::Terms;

use super::report::configuration;
use super::state::StudyHistory;
use super::workload::{self, Datasets};
use crate::failure::Failure;

/// Points beyond which a space is not predicted whole.
const MOST: usize = 20_000;
/// Points between two words on how far it is.
const OFTEN: usize = 25;

/// A point and what it will take.
pub struct Predicted {
    /// The point.
    pub point: Point,
    /// Its levels, by name.
    pub levels: BTreeMap<String, Value>,
    /// The prediction.
    pub prediction: Prediction,
}

/// A figure, predicted and measured.
pub struct Compared {
    /// Which one.
    pub metric: String,
    /// How right predictions were.
    pub comparison: PredictionQuality,
    /// Every point.
    pub pairs: Vec<Pair>,
}

/// Every point of a study's space.
pub fn all_points(study: &Study) -> Result<Vec<Point>, Failure> {
    let refuse = |key: &str, problem: &str| Failure::from(study.source.error(key, problem));
    if !matches!(study.workload, Workload::Train(_)) {
        return Err(refuse("command", "only runs of paceline train can be predicted"));
    }
    let points = study.space.points(MOST).filter(|points| points.len() <= MOST);
    points.ok_or_else(|| refuse("axes", "more than 20000 points: use fewer levels, or constraints"))
}

/// The points of a study that were measured.
pub fn measured_points(study: &Study, known: &StudyHistory) -> Result<Vec<Point>, Failure> {
    let mut points: Vec<Point> = Vec::new();
    for made in known.made.iter().filter(|made| made.job.role == Role::Point) {
        let point = Point(made.job.levels.clone());
        if !points.contains(&point) {
            points.push(point);
        }
    }
    if known.study.space.axes().len() != study.space.axes().len()
        || known
            .study
            .space
            .axes()
            .iter()
            .zip(study.space.axes())
            .any(|(a, b)| (&a.name, &a.levels) != (&b.name, &b.levels))
    {
        let problem = format!("the study {} in the store has other axes", known.study.name);
        return Err(study.source.error("axes", problem).into());
    }
    Ok(points)
}

/// Predicts points; `tell` hears how many are done now and then.
pub fn predictions(
    study: &Study,
    points: &[Point],
    terms: &Terms<'_>,
    learn: bool,
    tell: &dyn Fn(usize),
) -> Result<Vec<Predicted>, Failure> {
    let mut datasets = Datasets::new();
    let mut all = Vec::with_capacity(points.len());
    for (i, point) in points.iter().enumerate() {
        if i > 0 && i.is_multiple_of(OFTEN) {
            tell(i);
        }
        let levels = study.space.named(point);
        let (plan, dataset) = workload::planned(study, &levels, &mut datasets).map_err(|problem| {
            study.source.error("axes", format!("{}: {problem}", configuration(&levels)))
        })?;
        let prediction = predict(&plan, dataset, terms, learn)?;
        all.push(Predicted { point: point.clone(), levels, prediction });
    }
    Ok(all)
}

/// Predictions beside a study's runs: the time of a step, then every objective that is predicted.
pub fn compare(study: &Study, known: &StudyHistory, predicted: &[Predicted]) -> Vec<Compared> {
    let mut metrics = vec![("step_s".to_owned(), true)];
    metrics.extend(study.objectives.iter().map(|o| (o.metric.clone(), o.goal == Goal::Minimize)));
    let compared = |(metric, less): (String, bool)| {
        let pairs: Vec<Pair> = predicted.iter().filter_map(|one| pair(&metric, known, one)).collect();
        let comparison = compare::compare(&pairs, less)?;
        Some(Compared { metric, comparison, pairs })
    };
    metrics.into_iter().filter_map(compared).collect()
}

fn pair(metric: &str, known: &StudyHistory, one: &Predicted) -> Option<Pair> {
    let estimate = one.prediction.figure(&known.figures, metric)?;
    let runs = known.made.iter().filter(|made| {
        made.job.role == Role::Point && made.job.share >= 1.0 && made.job.levels == one.point.0
    });
    let figure = |metrics: &BTreeMap<String, f64>| match (metrics.get(metric), metric) {
        // Older journals do not have it.
        (None, "step_s") => Some(metrics.get("seconds.train")? / metrics.get("steps")?),
        (value, _) => value.copied(),
    };
    let measured: Vec<f64> = runs
        .filter_map(|made| match &made.end {
            Some(End::Ok { metrics }) => figure(metrics),
            _ => None,
        })
        .filter(|value| *value > 0.0)
        .collect();
    if measured.is_empty() {
        return None;
    }
    let between = [estimate.low, estimate.high];
    Some(Pair { what: configuration(&one.levels), predicted: estimate.median, between, measured })
}
