//! What a plan will take, with how sure that is.

use paceline_data::Dataset;
use paceline_nn::Graph;
use paceline_plan::Plan;
use paceline_record::figures::{COST, FigureKind, Figures, PredictionBasis};
use paceline_record::process::Started;
use paceline_record::{HostsUsed, RunResult};
use paceline_resolve::TypedPlan;
use serde::Serialize;

use crate::calibration::{Calibration, MedianEstimate};
use crate::error::VirtualError;
use crate::pass::{PassCoverage, PassKey, count};
use crate::price::Terms;
use crate::run::{self, Scenario};

/// What the model leaves out, where everything was measured: fractions of the time, faster and slower. Nine in ten of
/// the runs in `bench/prediction` lie within.
const WITHIN: f64 = 0.15;
/// The same, where something was not.
const BEYOND: f64 = 0.4;
/// What round numbers may be off by.
const GUESSED: f64 = 2.0;

/// A run's prediction. Intervals hold what the calibration's confidence intervals give, widened by what the model
/// leaves out.
#[derive(Clone, Debug, Serialize)]
pub struct Prediction {
    /// Seconds of a step.
    pub step_s: MedianEstimate,
    /// Seconds of the training clock.
    pub train_s: MedianEstimate,
    /// Seconds from the process's start to its result, evaluations left out.
    pub total_s: MedianEstimate,
    /// Samples per second of the training clock.
    pub samples_per_s: MedianEstimate,
    /// Seconds until the target accuracy, if there is one and it is reached.
    pub time_to_accuracy_s: Option<MedianEstimate>,
    /// Accuracy at the end, where gradients were computed.
    pub final_accuracy: Option<f64>,
    /// Bytes that all ranks send, headers included.
    pub sent_bytes: u64,
    /// What the cluster's hosts cost, if all have a price.
    pub cost: Option<MedianEstimate>,
    /// The unit of the cost, where the cluster's file says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
    /// The cluster's hosts that are used.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<HostsUsed>,
    /// Why intervals are wide: what lies outside of what was measured.
    pub beyond: Vec<String>,
    /// The run in virtual time that figures are read from.
    #[serde(skip)]
    result: RunResult,
    #[serde(skip)]
    learned: bool,
    #[serde(skip)]
    bounds: PaceBounds,
}

/// Factors of a run's times where it is as fast as it may be, and as slow.
type PaceBounds = (f64, f64);

fn around(value: f64, kind: FigureKind, (fast, slow): PaceBounds) -> MedianEstimate {
    let (low, high) = match kind {
        FigureKind::Clock | FigureKind::Time => (value * fast, value * slow),
        FigureKind::Rate => (value / slow, value / fast),
        FigureKind::Amount => (value, value),
    };
    MedianEstimate { median: value, low, high }
}

/// Predicts a plan. With `learn`, a plan that has a target accuracy is trained in virtual time.
pub fn predict(
    plan: &Plan,
    dataset: &Dataset,
    terms: &Terms<'_>,
    learn: bool,
) -> Result<Prediction, VirtualError> {
    let learn = learn && plan.target_accuracy.is_some();
    let run = |terms: Terms<'_>, learn: bool| -> Result<RunResult, VirtualError> {
        let started = Started::now();
        let scenario =
            Scenario { plan, dataset, terms, learn, changes: None, trace: 0, run: "prediction", started };
        run::run(&scenario, &mut |_| {})
    };
    let middle = run(*terms, learn)?;
    let train = middle.seconds.train;
    let beyond = reservations(plan, dataset, terms)?;
    let bounds = match terms.calibration {
        None => (1.0 / GUESSED, GUESSED),
        Some(calibration) => {
            let at = |slow: bool| {
                let bound = calibration.bound(slow);
                run(Terms { calibration: Some(&bound), ..*terms }, false).map(|r| r.seconds.train)
            };
            let model = if beyond.is_empty() { WITHIN } else { BEYOND };
            // Virtual time with jitter is a draw: bounds hold the middle whatever was drawn.
            ((at(false)? / train).min(1.0) / (1.0 + model), (at(true)? / train).max(1.0) * (1.0 + model))
        }
    };
    let time = |value: f64| around(value, FigureKind::Time, bounds);
    let steps = middle.steps.max(1) as f64;
    let startup = middle.seconds.startup;
    let total = time(train);
    let details = middle.simulated.as_deref();
    Ok(Prediction {
        step_s: time(train / steps),
        train_s: total,
        total_s: MedianEstimate {
            median: startup + total.median,
            low: startup + total.low,
            high: startup + total.high,
        },
        samples_per_s: around(middle.samples_per_s, FigureKind::Rate, bounds),
        time_to_accuracy_s: middle.time_to_accuracy_s.filter(|_| learn).map(time),
        final_accuracy: learn.then_some(middle.final_accuracy),
        sent_bytes: middle.ranks.iter().map(|rank| rank.sent_bytes).sum(),
        cost: details.and_then(|details| details.cost).map(time),
        currency: details.and_then(|details| details.currency.clone()),
        hosts: details.map_or_else(Vec::new, |details| details.hosts.clone()),
        beyond,
        result: middle,
        learned: learn,
        bounds,
    })
}

impl Prediction {
    /// Of a result in virtual time whose passes were measured.
    pub(crate) fn measured(result: RunResult, beyond: Vec<String>, terms: &Terms<'_>) -> Self {
        let model = if beyond.is_empty() && terms.calibration.is_some() { WITHIN } else { BEYOND };
        let bounds = (1.0 / (1.0 + model), 1.0 + model);
        let (train, startup) = (result.seconds.train, result.seconds.startup);
        let train_s = around(train, FigureKind::Time, bounds);
        Self {
            step_s: around(train / result.steps.max(1) as f64, FigureKind::Time, bounds),
            train_s,
            total_s: MedianEstimate {
                median: startup + train_s.median,
                low: startup + train_s.low,
                high: startup + train_s.high,
            },
            samples_per_s: around(result.samples_per_s, FigureKind::Rate, bounds),
            time_to_accuracy_s: None,
            final_accuracy: None,
            sent_bytes: result.ranks.iter().map(|rank| rank.sent_bytes).sum(),
            cost: None,
            currency: None,
            hosts: Vec::new(),
            beyond,
            result,
            learned: false,
            bounds,
        }
    }

    /// A figure by its name; `None` for those that are not predicted.
    pub fn figure(&self, figures: &Figures, name: &str) -> Option<MedianEstimate> {
        let figure = figures.find(name)?;
        match figure.name {
            // Starting does not take longer where steps do.
            "seconds.total" | "wall_s" => return Some(self.total_s),
            COST => return self.cost,
            _ => {}
        }
        if figure.predicted? == PredictionBasis::Learning && !self.learned {
            return None;
        }
        Some(around(figure.read?(&self.result)?, figure.kind, self.bounds))
    }
}

/// Why a plan's times may be further off than the model is: what was not measured.
pub fn reservations(plan: &Plan, dataset: &Dataset, terms: &Terms<'_>) -> Result<Vec<String>, VirtualError> {
    let Some(calibration) = terms.calibration else {
        return Ok(vec!["nothing was measured: times come from round numbers".into()]);
    };
    let typed = TypedPlan::new(plan, terms.registries)?;
    let graph = paceline_train::model::graph(&typed, dataset)?;
    let mut beyond = outside(plan, &graph, calibration);
    if terms.cluster.is_some() {
        beyond.push("the cluster's speeds and links are its file's, not measured".into());
    }
    Ok(beyond)
}

/// What of a plan lies outside of what was measured.
fn outside(plan: &Plan, graph: &Graph, calibration: &Calibration) -> Vec<String> {
    let mut all = Vec::new();
    let key = PassKey::new(plan, graph);
    match calibration.coverage(&key) {
        PassCoverage::Measured | PassCoverage::Between => {}
        PassCoverage::Outside { least, most } => {
            all.push(format!("a batch of {}: {least} to {most} were measured", key.batch));
        }
        PassCoverage::Unknown => {
            let PassKey { model, input: [h, w, c], threads, .. } = key;
            let threads = count(threads, "thread");
            all.push(format!("passes of {model} on {h}×{w}×{c} with {threads} were not measured"));
        }
    }
    let ranks = (plan.workers + plan.servers) * plan.threads;
    let most = calibration.sharing.iter().map(|sharing| sharing.processes).max().unwrap_or(1);
    if ranks > most && ranks > calibration.cores {
        all.push(format!(
            "{ranks} computing threads on {} cores: up to {most} were measured",
            calibration.cores
        ));
    }
    let several = plan.workers + plan.servers > 1;
    if several && calibration.transport.iter().all(|transport| transport.name != plan.transport) {
        all.push(format!("the transport {} was not measured", plan.transport));
    }
    all
}
