//! Predictions of a study's points in virtual time.

use std::collections::BTreeMap;
use std::path::Path;

use paceline_analyze::distinct;
use paceline_analyze::table::WORKLOAD;
use paceline_explore::schedule::{End, Role, StudyRun};
use paceline_plan::{Goal, Point, Study, StudyError, Value, Workload};
use paceline_virtual::compare::{self, PredictedPoint, PredictionQuality};
use paceline_virtual::words::{self, NOT_MODELLED};
use paceline_virtual::{MedianEstimate, Prediction, Terms, predict};
use serde_json::{Value as Json, json};

use crate::drive::{StudyEvent, StudyObserver};
use crate::error::StudyFailure;
use crate::recorded_scripts::RecordedScripts;
use crate::registries::AllRegistries;
use crate::report::configuration;
use crate::state::StudyHistory;
use crate::workload::{self, Datasets};
use paceline_analyze::table::number;

/// Points beyond which a space is not predicted whole.
const MOST: usize = 20_000;
/// Points between two words on how far it is.
const OFTEN: usize = 25;

/// A point and what it will take.
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct PointPrediction {
    pub workload: Option<String>,
    pub point: Point,
    pub levels: BTreeMap<String, Value>,
    pub prediction: Prediction,
}

/// A figure, predicted and measured.
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct MetricComparison {
    pub metric: String,
    pub comparison: PredictionQuality,
    pub pairs: Vec<PredictedPoint>,
}

/// Every point of a study's space.
pub fn all_points(study: &Study) -> Result<Vec<Point>, StudyFailure> {
    let refuse = |key: &str, problem: &str| StudyFailure::from(study.source.error(key, problem));
    if !matches!(study.workload, Workload::Train(_)) {
        return Err(refuse("command", "only runs of paceline train can be predicted"));
    }
    let points = study.space.points(MOST).filter(|points| points.len() <= MOST);
    points.ok_or_else(|| refuse("axes", "more than 20000 points: use fewer levels, or constraints"))
}

/// A point that cannot be run, with its place in the study file.
pub(crate) fn refused(study: &Study, levels: &BTreeMap<String, Value>, problem: &str) -> StudyError {
    study.source.error("axes", format!("{}: {problem}", configuration(levels)))
}

/// The points of a study that were measured.
pub fn measured_points(study: &Study, known: &StudyHistory) -> Result<Vec<Point>, StudyFailure> {
    let [own, other] =
        [study, &known.study].map(|study| study.space.axes().iter().map(|axis| (&axis.name, &axis.levels)));
    if !own.eq(other) {
        let problem = format!("the study {} in the store has other axes", known.study.name);
        return Err(study.source.error("axes", problem).into());
    }
    let points = known.made.iter().filter(|made| made.job.role == Role::Point);
    Ok(distinct(points.map(|made| Point(made.job.levels.clone()))))
}

/// Predicts points, for every workload; the observer learns how many are done now and then.
pub fn predictions(
    study: &Study,
    registries: &AllRegistries,
    points: &[Point],
    terms: &Terms<'_>,
    learn: bool,
    store: Option<&Path>,
    observer: StudyObserver<'_>,
) -> Result<Vec<PointPrediction>, StudyFailure> {
    let (mut datasets, mut scripts) = (Datasets::new(), RecordedScripts::new(store, terms.calibration));
    let parts = crate::parts(study, registries);
    let mut all: Vec<PointPrediction> = Vec::with_capacity(parts.len() * points.len());
    for (study, point) in parts.iter().flat_map(|part| points.iter().map(move |point| (part, point))) {
        if !all.is_empty() && all.len().is_multiple_of(OFTEN) {
            let note = format!("{} of {} points predicted", all.len(), parts.len() * points.len());
            observer(StudyEvent::Note(&note))?;
        }
        let mut point = point.clone();
        study.space.settle(&mut point);
        let workload = study.workload_name().map(str::to_owned);
        let mut levels = study.space.named(&point);
        let prediction = if workload::scripted(study) {
            let plan = workload::planned_script(study, registries, &levels);
            let plan = plan.map_err(|problem| refused(study, &levels, &problem))?;
            match scripts.of(&plan)? {
                Some(script) => script.predict(&plan, terms)?,
                None => continue,
            }
        } else {
            let planned = workload::planned(study, registries, &levels, &mut datasets);
            let (plan, dataset) = planned.map_err(|problem| refused(study, &levels, &problem))?;
            predict(&plan, dataset, terms, learn)?
        };
        levels.extend(workload.clone().map(|name| (WORKLOAD.to_owned(), Value::Text(name))));
        all.push(PointPrediction { workload, point, levels, prediction });
    }
    for note in scripts.notes() {
        observer(StudyEvent::Note(&note))?;
    }
    match scripts.unknown.first() {
        Some(unknown) if all.is_empty() => {
            Err(study.source.error("workload.script", unknown.problem()).into())
        }
        _ => Ok(all),
    }
}

/// Predictions beside a study's runs: the time of a step, then every objective that is predicted.
pub fn compare(study: &Study, known: &StudyHistory, predicted: &[PointPrediction]) -> Vec<MetricComparison> {
    let mut metrics = vec![("step_s".to_owned(), true)];
    metrics.extend(study.objectives.iter().map(|o| (o.metric.clone(), o.goal == Goal::Minimize)));
    let compared = |(metric, less): (String, bool)| {
        let pairs: Vec<PredictedPoint> =
            predicted.iter().filter_map(|one| pair(&metric, known, one)).collect();
        let comparison = compare::compare(&pairs, less)?;
        Some(MetricComparison { metric, comparison, pairs })
    };
    metrics.into_iter().filter_map(compared).collect()
}

fn pair(metric: &str, known: &StudyHistory, one: &PointPrediction) -> Option<PredictedPoint> {
    let estimate = one.prediction.figure(&known.registries.figures, metric)?;
    let runs = known.made.iter().filter(|made| {
        made.job.share >= 1.0
            && made.job.workload == one.workload
            && made.point(&known.of(&made.job).space).as_ref() == Some(&one.point)
    });
    let figure = |metrics: &BTreeMap<String, f64>| match (metrics.get(metric), metric) {
        // Older journals do not have it.
        (None, "step_s") => Some(metrics.get("seconds.train")? / metrics.get("steps")?),
        (value, _) => value.copied(),
    };
    let ended =
        |made: &StudyRun| if let Some(End::Ok { metrics }) = &made.end { figure(metrics) } else { None };
    let measured: Vec<f64> = runs.filter_map(ended).filter(|value| *value > 0.0).collect();
    if measured.is_empty() {
        return None;
    }
    let between = [estimate.low, estimate.high];
    Some(PredictedPoint { what: configuration(&one.levels), predicted: estimate.median, between, measured })
}

/// Predictions for programs, beside what was measured.
pub fn document(name: &str, predicted: &[PointPrediction], compared: Option<&[MetricComparison]>) -> Json {
    let point = |one: &PointPrediction| json!({"levels": one.levels, "prediction": one.prediction});
    let compared = compared.map(|all| {
        let one =
            |c: &MetricComparison| json!({"metric": c.metric, "comparison": c.comparison, "points": c.pairs});
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

fn around(estimate: MedianEstimate, scale: f64) -> String {
    let [middle, low, high] =
        [estimate.median, estimate.low, estimate.high].map(|value| number(scale * value));
    format!("{middle} ({low} to {high})")
}

/// Predictions for people: what they rest on and what they say in all, then a line per point, the fastest training
/// first; then how right they were.
pub fn words(predicted: &[PointPrediction], compared: &[MetricComparison]) -> String {
    let mut order: Vec<&PointPrediction> = predicted.iter().collect();
    order.sort_by(|a, b| a.prediction.train_s.median.total_cmp(&b.prediction.train_s.median));
    let mut text = outcome(&order);
    for PointPrediction { levels, prediction, .. } in &order {
        text += &format!("\n{}\n", configuration(levels));
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
            let unit = words::unit(prediction.currency.as_deref());
            let hosts = words::hosts(&prediction.hosts);
            text += &format!(", cost {} {unit} for {hosts}", around(cost, 1.0));
        }
        text.push('\n');
        // What holds for every point was said above.
        let own = |what: &&String| !order.iter().all(|other| other.prediction.beyond.contains(what));
        for what in prediction.beyond.iter().filter(own) {
            text += &format!("  not calibrated: {what}\n");
        }
    }
    text + &compared.iter().map(summary).collect::<String>()
}

/// All predictions in a few lines; `order` begins with the fastest training.
fn outcome(order: &[&PointPrediction]) -> String {
    let points = order.len();
    let mut text = format!("{points} {} predicted\n", if points == 1 { "point" } else { "points" });
    for what in distinct(order.iter().flat_map(|one| one.prediction.beyond.clone())) {
        let many = order.iter().filter(|one| one.prediction.beyond.contains(&what)).count();
        let of = if many == points { String::new() } else { format!(" ({many} of {points} points)") };
        text += &format!("not calibrated: {what}{of}\n");
    }
    let best = |what: &str, unit: &str, figure: &dyn Fn(&Prediction) -> Option<MedianEstimate>| {
        let all = order.iter().filter_map(|one| Some((one, figure(&one.prediction)?)));
        let best = all.min_by(|a, b| a.1.median.total_cmp(&b.1.median));
        let told = best
            .map(|(one, at)| format!("{what}: {} {unit}, {}\n", around(at, 1.0), configuration(&one.levels)));
        told.unwrap_or_default()
    };
    let unit = words::unit(order.first().and_then(|one| one.prediction.currency.as_deref()));
    text += &best("fastest training", "s", &|prediction| Some(prediction.train_s));
    text += &best("soonest at the target", "s", &|prediction| prediction.time_to_accuracy_s);
    text += &best("cheapest", unit, &|prediction| prediction.cost);
    text + &format!("not modelled: {NOT_MODELLED}\n")
}

fn summary(MetricComparison { metric, comparison, .. }: &MetricComparison) -> String {
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
