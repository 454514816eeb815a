//! Networks with early exits: what each tier answers, and where samples leave.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use paceline_data::{Dataset, Folders, Reader, Sample, SampleVariation};
use paceline_nn::{Compute, Graph, GraphPart, Network, Pass, Tiers, ValueId, normalised_entropy};
use paceline_plan::Plan;
use paceline_resolve::{Registries, TypedPlan};

use crate::error::TrainError;
use crate::model;
use crate::weights;

/// A network with early exits, its weights and its samples.
pub struct ExitModel {
    /// The network as data.
    pub graph: Arc<Graph>,
    /// Who computes what.
    pub tiers: Tiers,
    /// The samples.
    pub dataset: Dataset,
    params: Vec<f32>,
    state: Vec<f32>,
}

/// What a tier answers of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExitAnswer {
    /// The most likely class, the first of equals.
    pub class: u16,
    /// How uncertain that is: the normalised entropy, from 0 to 1.
    pub entropy: f64,
}

impl ExitAnswer {
    /// The answer of a tier's scores.
    pub fn of(scores: &[f32]) -> Self {
        let larger = |best: usize, k: usize| if scores[k] > scores[best] { k } else { best };
        let class = (1..scores.len()).fold(0, larger) as u16;
        Self { class, entropy: normalised_entropy(scores) }
    }

    /// Whether a sample with this answer leaves at this threshold.
    pub fn leaves(&self, threshold: f64) -> bool {
        self.entropy <= threshold
    }
}

/// The answers of every tier above the devices to every sample: by tier, then by sample.
#[derive(Clone, Debug, PartialEq)]
pub struct ExitAnswers(pub Vec<Vec<ExitAnswer>>);

impl ExitAnswers {
    /// Where sample `i` leaves, and with which answer: at the first tier that is certain enough, or at the last.
    pub fn leaving(&self, i: usize, threshold: f64) -> (usize, ExitAnswer) {
        let early = self.0.iter().position(|answers| answers[i].leaves(threshold));
        let tier = early.unwrap_or(self.0.len() - 1);
        (tier, self.0[tier][i])
    }
}

/// Some layers with their weights: what one tier computes.
pub struct TierNetwork {
    network: Network<f32>,
    params: Vec<f32>,
    state: Vec<f32>,
}

impl TierNetwork {
    /// The place of a value that the tier is handed.
    pub fn input(&mut self, value: ValueId, samples: usize) -> &mut [f32] {
        self.network.value_mut(0, value, samples)
    }

    /// Runs the layers on as many samples as were handed over.
    pub fn run(&mut self, samples: usize) {
        self.network.forward(&Pass::evaluation(samples), &self.params, &mut self.state);
    }

    /// A value that the tier has made.
    pub fn value(&self, value: ValueId, samples: usize) -> &[f32] {
        self.network.value(0, value, samples)
    }
}

/// Cuts samples into the devices' views.
pub struct ViewCutter {
    network: TierNetwork,
    reader: Reader,
    labels: Vec<u16>,
}

impl ViewCutter {
    /// Reads samples of the test split, in order; their labels.
    pub fn read(&mut self, model: &ExitModel, samples: Range<usize>) -> Result<&[u16], TrainError> {
        let ids: Vec<u32> = samples.map(|i| i as u32).collect();
        self.labels.clear();
        let Self { network: TierNetwork { network, .. }, reader, labels } = self;
        let take =
            &mut |at: usize, sample: Sample<'_>| model::load(network, 0, labels, &model.dataset, at, sample);
        reader.read(&model.dataset.test, SampleVariation::Plain, &ids, take)?;
        self.network.run(ids.len());
        Ok(&self.labels)
    }

    /// What a device sees of the samples that were read.
    pub fn view(&self, model: &ExitModel, device: usize, samples: usize) -> &[f32] {
        self.network.value(model.view(device), samples)
    }
}

impl ExitModel {
    /// The network that a run of this plan would begin with, if it has exits.
    pub fn load(plan: &Plan, folders: &[PathBuf], registries: &Registries) -> Result<Self, TrainError> {
        let typed = TypedPlan::new(plan, registries)?;
        let dataset = typed.dataset()?.load(&Folders(folders.to_vec()), &model::settings(plan))?;
        weights::check(&typed, &dataset)?;
        let graph = Arc::new(model::graph(&typed, &dataset)?);
        let refused = |problem| TrainError::Exits { model: plan.model.clone(), problem };
        let tiers = graph.tiers().map_err(refused)?;
        let (params, state) = model::start(plan, &graph)?;
        Ok(Self { graph, tiers, dataset, params, state })
    }

    /// The value that a device sees.
    pub fn view(&self, device: usize) -> ValueId {
        self.tiers.tiers[device].reads[0].value
    }

    /// Memory and weights for some layers and passes of up to `capacity` samples.
    pub fn network(&self, part: &GraphPart, capacity: usize, compute: &Arc<Compute>) -> TierNetwork {
        TierNetwork {
            network: Network::of_part(
                Arc::clone(&self.graph),
                part.clone(),
                capacity,
                1,
                Arc::clone(compute),
            ),
            params: self.params[part.params.clone()].to_vec(),
            state: self.state[part.state.clone()].to_vec(),
        }
    }

    /// Cuts samples into views, up to `capacity` at once.
    pub fn cutter(&self, capacity: usize, compute: &Arc<Compute>) -> ViewCutter {
        let network = self.network(&self.tiers.views, capacity, compute);
        ViewCutter { network, reader: Reader::default(), labels: Vec::new() }
    }

    /// What every tier answers to every sample of the test split, in this process. The views of `lost` devices are blank.
    pub fn answers(
        &self,
        lost: &[usize],
        capacity: usize,
        compute: &Arc<Compute>,
    ) -> Result<ExitAnswers, TrainError> {
        let mut cutter = self.cutter(capacity, compute);
        let tiers = &self.tiers.tiers;
        let mut networks: Vec<TierNetwork> =
            tiers.iter().map(|tier| self.network(&tier.part, capacity, compute)).collect();
        let mut answers = vec![Vec::new(); self.tiers.upper().len()];
        let samples = self.dataset.test.len();
        for first in (0..samples).step_by(capacity) {
            let n = capacity.min(samples - first);
            cutter.read(self, first..first + n)?;
            for (t, tier) in tiers.iter().enumerate() {
                let (before, own) = networks.split_at_mut(t);
                for edge in &tier.reads {
                    let place = own[0].input(edge.value, n);
                    match edge.from {
                        from if from == t && lost.contains(&t) => place.fill(0.0),
                        from if from == t => place.copy_from_slice(cutter.view(self, t, n)),
                        from => place.copy_from_slice(before[from].value(edge.value, n)),
                    }
                }
                own[0].run(n);
                if let Some(upper) = t.checked_sub(self.tiers.devices) {
                    let scores = own[0].value(tier.answer(), n).chunks_exact(self.graph.output().c);
                    answers[upper].extend(scores.map(ExitAnswer::of));
                }
            }
        }
        Ok(ExitAnswers(answers))
    }
}

/// The signs of numbers, a bit each, from the lowest bit of the first word on. The words travel as numbers.
pub fn pack_signs<'a>(numbers: impl Iterator<Item = &'a f32>, words: &mut Vec<f32>) {
    let (mut word, mut bits) = (0u32, 0);
    for number in numbers {
        word |= u32::from(*number > 0.0) << bits;
        bits += 1;
        if bits == u32::BITS {
            words.push(f32::from_bits(word));
            (word, bits) = (0, 0);
        }
    }
    if bits > 0 {
        words.push(f32::from_bits(word));
    }
}

/// The numbers whose signs [`pack_signs`] packed.
pub fn unpack_signs(words: &[f32], numbers: &mut [f32]) {
    for (part, word) in numbers.chunks_mut(u32::BITS as usize).zip(words) {
        for (bit, number) in part.iter_mut().enumerate() {
            *number = if word.to_bits() >> bit & 1 == 1 { 1.0 } else { -1.0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_signs_come_back_as_they_were() {
        for len in [0usize, 1, 31, 32, 33, 280] {
            let numbers: Vec<f32> = (0..len).map(|i| if i * 7 % 3 == 0 { 1.0 } else { -1.0 }).collect();
            let mut words = Vec::new();
            pack_signs(numbers.iter(), &mut words);
            assert_eq!(words.len(), len.div_ceil(32));
            let mut back = vec![0.0; len];
            unpack_signs(&words, &mut back);
            assert_eq!(back, numbers);
        }
    }

    #[test]
    fn a_sample_leaves_at_the_first_tier_that_is_certain_enough_or_at_the_last() {
        let answer = |class, entropy| vec![ExitAnswer { class, entropy }];
        let answers = ExitAnswers(vec![answer(1, 0.5), answer(2, 0.2), answer(3, 0.9)]);
        assert_eq!(answers.leaving(0, 0.5).0, 0);
        assert_eq!(answers.leaving(0, 0.3).0, 1);
        assert_eq!(answers.leaving(0, 0.0), (2, ExitAnswer { class: 3, entropy: 0.9 }));
        // What is no number is never certain.
        assert!(!ExitAnswer { class: 0, entropy: f64::NAN }.leaves(1.0));
    }
}
