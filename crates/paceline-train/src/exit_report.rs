//! How often a network with early exits is right, how many samples leave where, and what a lost device costs.

use std::sync::Arc;

use paceline_nn::Compute;
use paceline_plan::Plan;
use serde::Serialize;

use crate::error::TrainError;
use crate::exits::{ExitAnswers, ExitModel};

/// Answers of a network with early exits, in this process.
pub struct ExitRequest<'a> {
    /// The network, its samples and its weights are what a run of this plan would begin with.
    pub plan: &'a Plan,
    /// The same, loaded.
    pub model: &'a ExitModel,
    /// A sample leaves at the first exit whose normalised entropy is at most this.
    pub threshold: f64,
    /// Samples that are answered at once.
    pub batch: usize,
    /// Threads.
    pub threads: usize,
}

/// One exit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExitFigures {
    /// The tier that answers.
    pub tier: String,
    /// Part of all samples that it answers rightly.
    pub accuracy: f64,
    /// Samples that leave there.
    pub left: usize,
    /// Part of all samples that leave there.
    pub left_share: f64,
    /// Part of those that leave there with the right answer.
    pub accuracy_of_left: Option<f64>,
}

/// The answers while the view of a device is blank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LostDevice {
    /// The device.
    pub device: usize,
    /// Part of the samples that leave with the right answer.
    pub accuracy: f64,
    /// Part of all samples that the last tier answers rightly.
    pub last_accuracy: f64,
    /// Points of accuracy below that with all devices.
    pub cost_points: f64,
}

/// What a device hands on for a sample, in bytes of bodies.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExitBytes {
    /// Scores: of every sample.
    pub scores: f64,
    /// Features: of a sample that did not leave at the first exit.
    pub features: f64,
    /// Both together for a sample on average: scores + (1 − part that left) · features.
    pub mean: f64,
    /// The device's view as it is in the dataset, a byte for each pixel and colour.
    pub raw_view: f64,
}

/// What came out.
#[derive(Clone, Debug, Serialize)]
pub struct ExitsReport {
    /// The model.
    pub model: String,
    /// The dataset.
    pub data: String,
    /// The file of the weights; none where the network is untrained.
    pub weights: Option<String>,
    /// Samples of the test split, all of which are answered.
    pub test_samples: usize,
    /// The threshold.
    pub threshold: f64,
    /// Part of the samples that leave with the right answer.
    pub accuracy: f64,
    /// The exits, from the lowest to the highest.
    pub exits: Vec<ExitFigures>,
    /// The same while one device is lost.
    pub without_device: Vec<LostDevice>,
    /// Bytes of each device and sample.
    pub bytes_per_sample: ExitBytes,
}

impl ExitRequest<'_> {
    /// What every tier answers while the views of these devices are blank.
    pub fn without(&self, lost: &[usize]) -> Result<ExitAnswers, TrainError> {
        self.model.answers(lost, self.batch, &Arc::new(Compute::new(self.threads, false)))
    }

    /// Answers every sample of the test split: with all devices, and without each of them; `tell` gets a line before
    /// that.
    pub fn evaluate(&self, tell: &dyn Fn(&str)) -> Result<(ExitsReport, ExitAnswers), TrainError> {
        let Self { plan, model, threshold, batch, threads } = self;
        let compute = Arc::new(Compute::new(*threads, false));
        let samples = model.dataset.test.len();
        tell(&format!("{samples} samples, with all devices and without each of {}", model.tiers.devices));
        let answers = model.answers(&[], *batch, &compute)?;
        let report = |answers: &ExitAnswers| figures(answers, model, *threshold);
        let (accuracy, exits) = report(&answers);
        let lost = |device: usize| {
            let (without, exits) = report(&model.answers(&[device], *batch, &compute)?);
            let last_accuracy = exits.last().map_or(0.0, |exit| exit.accuracy);
            let cost_points = 100.0 * (accuracy - without);
            Ok(LostDevice { device, accuracy: without, last_accuracy, cost_points })
        };
        let without_device = (0..model.tiers.devices).map(lost).collect::<Result<_, TrainError>>()?;
        let report = ExitsReport {
            model: plan.model.clone(),
            data: plan.data.clone(),
            weights: plan.init.as_ref().map(|init| init.file.clone()),
            test_samples: samples,
            threshold: *threshold,
            accuracy,
            bytes_per_sample: bytes(model, exits[0].left_share),
            exits,
            without_device,
        };
        Ok((report, answers))
    }
}

/// Accuracy of the samples where they leave, and of each exit.
fn figures(answers: &ExitAnswers, model: &ExitModel, threshold: f64) -> (f64, Vec<ExitFigures>) {
    let labels = model.dataset.test.labels();
    let share = |count: usize| count as f64 / labels.len() as f64;
    let leaving: Vec<_> = (0..labels.len()).map(|i| answers.leaving(i, threshold)).collect();
    let right = |tier: Option<usize>| {
        let here = |&(&label, (at, answer)): &(&u16, &(usize, crate::ExitAnswer))| {
            tier.is_none_or(|tier| tier == *at) && answer.class == label
        };
        labels.iter().zip(&leaving).filter(here).count()
    };
    let tiers = model.tiers.upper().iter().zip(&answers.0).enumerate();
    let exits = tiers.map(|(t, (tier, all))| {
        let left = leaving.iter().filter(|(at, _)| *at == t).count();
        ExitFigures {
            tier: tier.name.clone(),
            accuracy: share(labels.iter().zip(all).filter(|(label, answer)| answer.class == **label).count()),
            left,
            left_share: share(left),
            accuracy_of_left: (left > 0).then(|| right(Some(t)) as f64 / left as f64),
        }
    });
    (share(right(None)), exits.collect())
}

/// Bytes of a device and sample, the mean of all devices where they differ.
fn bytes(model: &ExitModel, left: f64) -> ExitBytes {
    let devices = model.tiers.devices;
    let of = |upper: std::ops::Range<usize>| {
        let edges = upper.flat_map(|u| (0..devices).flat_map(move |d| model.tiers.from_device(d, u)));
        // Of eight samples, so that bits are whole bytes.
        edges.map(|edge| edge.bytes(8)).sum::<usize>() as f64 / 8.0 / devices as f64
    };
    let (scores, features) = (of(0..1), of(1..model.tiers.upper().len()));
    let pixels: usize = (0..devices).map(|d| model.graph.shape(model.view(d)).size()).sum();
    ExitBytes {
        scores,
        features,
        mean: scores + (1.0 - left) * features,
        raw_view: pixels as f64 / devices as f64,
    }
}

impl ExitsReport {
    /// For people.
    pub fn text(&self) -> String {
        let Self { model, data, weights, test_samples, threshold, accuracy, .. } = self;
        let from = weights.as_deref().unwrap_or("untrained: give --init FILE");
        let percent = |part: f64| format!("{:.2} %", 100.0 * part);
        let mut text = format!("{model} on {data} ({from})\n");
        text += &format!(
            "accuracy {} on {test_samples} test samples; a sample leaves where its normalised entropy is at most {threshold}\n\n",
            percent(*accuracy)
        );
        text +=
            &format!("{:<8} {:>14} {:>10} {:>22}\n", "exit", "of all samples", "left", "right of those left");
        for exit in &self.exits {
            let right = exit.accuracy_of_left.map_or("-".into(), percent);
            text += &format!(
                "{:<8} {:>14} {:>10} {:>22}\n",
                exit.tier,
                percent(exit.accuracy),
                percent(exit.left_share),
                right
            );
        }
        text += &format!(
            "\n{:<14} {:>10} {:>12} {:>14}\n",
            "without device", "accuracy", "cost (points)", "last exit"
        );
        for lost in &self.without_device {
            text += &format!(
                "{:<14} {:>10} {:>12.2} {:>14}\n",
                lost.device,
                percent(lost.accuracy),
                lost.cost_points,
                percent(lost.last_accuracy)
            );
        }
        let ExitBytes { scores, features, mean, raw_view } = &self.bytes_per_sample;
        text += &format!(
            "\nbytes of a device and sample: {scores} of scores, {features} of features where it goes on: {mean:.1} on average; \
             its view is {raw_view:.0} bytes, {:.1} times as many\n",
            raw_view / mean
        );
        text
    }
}
