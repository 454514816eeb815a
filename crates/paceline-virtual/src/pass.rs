//! Passes of networks: which one it is, what it takes, and how far a calibration knows it.

use std::fmt;

use paceline_nn::Graph;
use paceline_plan::Plan;
use serde::{Deserialize, Serialize};

use crate::calibration::{Calibration, CoreSharing, Layer, MedianEstimate, StartPattern};

/// Classes of the networks that `calibrate` measures without a study, and of files that do not say.
pub(crate) const CLASSES: usize = 10;

/// Which pass it is: everything that its time depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PassKey {
    /// The model's name, or that of the file that describes the network.
    pub model: String,
    /// SHA-256 of the description, where the network comes from a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// Height, width and channels of a sample.
    pub input: [usize; 3],
    /// Classes that it tells apart.
    pub classes: usize,
    /// Samples of the pass.
    pub batch: usize,
    /// Threads that compute it.
    pub threads: usize,
}

impl fmt::Display for PassKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, input: [h, w, c], batch, threads, .. } = self;
        let threads = count(*threads, "thread");
        write!(f, "{model} on {h}×{w}×{c}, a batch of {batch}, {threads}")
    }
}

/// A number of things: `1 thread`, `2 threads`.
pub(crate) fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

impl PassKey {
    /// The pass of a plan, whose batch may be cut into several.
    pub fn new(plan: &Plan, graph: &Graph) -> Self {
        let batch = plan.batch.div_ceil(plan.micro_batches);
        Self::of(&plan.model, plan.model_file.as_deref(), graph, batch, plan.threads)
    }

    /// The pass of a network that is registered by this name, or described by this text.
    pub fn of(model: &str, text: Option<&str>, graph: &Graph, batch: usize, threads: usize) -> Self {
        let shape = graph.input();
        let hash = |text: &str| paceline_files::sha256(text.as_bytes()).expect("memory can be read").1;
        Self {
            model: model.to_owned(),
            network: text.map(hash),
            input: [shape.h, shape.w, shape.c],
            classes: graph.output().c,
            batch,
            threads,
        }
    }

    /// Whether both are passes of the same network with the same threads, of whatever batch. A network from a file is
    /// what its description says, whatever the file is called.
    fn same_network(&self, other: &Self) -> bool {
        let name = self.network.is_some() || self.model == other.model;
        name && (&self.network, self.input, self.classes, self.threads)
            == (&other.network, other.input, other.classes, other.threads)
    }
}

/// A pass as the file has it.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct PassRow {
    model: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    network: Option<String>,
    input: [usize; 3],
    #[serde(default = "usual_classes")]
    classes: usize,
    batch: usize,
    threads: usize,
    repetitions: usize,
    seconds: MedianEstimate,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data_s: Option<MedianEstimate>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    again_s: Option<MedianEstimate>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    first_s: Option<f64>,
    quantiles: Vec<f64>,
    layer: Vec<Layer>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    sharing: Vec<CoreSharing>,
}

fn usual_classes() -> usize {
    CLASSES
}

/// A pass, measured.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(from = "PassRow", into = "PassRow")]
pub struct PassTime {
    /// Which one.
    pub key: PassKey,
    pub repetitions: usize,
    /// Seconds of forward, loss and backward.
    pub seconds: MedianEstimate,
    /// Seconds until the samples were the network's input, where they were those of a study's dataset.
    pub data_s: Option<MedianEstimate>,
    /// Seconds of a pass that follows another one without an update in between, where a study has micro-batches.
    pub again_s: Option<MedianEstimate>,
    /// Seconds of a network's very first pass, which finds its memory and its code cold.
    pub first_s: Option<f64>,
    /// Seconds relative to the median, at equally spaced probabilities from 0 to 1.
    pub quantiles: Vec<f64>,
    /// The layers, in the order of the forward pass.
    pub layer: Vec<Layer>,
    /// How much slower it is on several workers at once; empty: as the machine's other computations.
    pub sharing: Vec<CoreSharing>,
}

impl From<PassRow> for PassTime {
    fn from(row: PassRow) -> Self {
        let PassRow { model, network, input, classes, batch, threads, .. } = row;
        Self {
            key: PassKey { model, network, input, classes, batch, threads },
            repetitions: row.repetitions,
            seconds: row.seconds,
            data_s: row.data_s,
            again_s: row.again_s,
            first_s: row.first_s,
            quantiles: row.quantiles,
            layer: row.layer,
            sharing: row.sharing,
        }
    }
}

impl From<PassTime> for PassRow {
    fn from(pass: PassTime) -> Self {
        let PassKey { model, network, input, classes, batch, threads } = pass.key;
        let PassTime { repetitions, seconds, data_s, again_s, first_s, quantiles, layer, sharing, .. } = pass;
        Self {
            model,
            network,
            input,
            classes,
            batch,
            threads,
            repetitions,
            seconds,
            data_s,
            again_s,
            first_s,
            quantiles,
            layer,
            sharing,
        }
    }
}

impl PassTime {
    /// How much longer a run's first pass takes than the others, in passes.
    pub(crate) fn first_extra(&self) -> f64 {
        self.first_s.map_or(0.0, |first| (first / self.seconds.median - 1.0).max(0.0))
    }

    /// What a step's micro-batches take on average, relative to a pass after an update: the first one follows it.
    pub(crate) fn of_micro_batches(&self, count: usize) -> f64 {
        let again = self.again_s.map_or(1.0, |again| again.median / self.seconds.median);
        (1.0 + (count as f64 - 1.0) * again) / count as f64
    }
}

/// How far a calibration knows a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassCoverage {
    /// It was measured.
    Measured,
    /// Smaller and larger batches of the same network were.
    Between,
    /// Batches from `least` to `most` samples were, and it has fewer or more.
    Outside {
        /// The smallest one.
        least: usize,
        /// The largest one.
        most: usize,
    },
    /// No pass of this network on such samples with so many threads was.
    Unknown,
}

impl Calibration {
    /// Passes of the same network with the same threads: of as many classes if there are any, or else of any number,
    /// which changes the last layer alone.
    pub(crate) fn passes<'a>(&'a self, key: &PassKey) -> Vec<&'a PassTime> {
        let of = |key: &PassKey| -> Vec<&PassTime> {
            self.pass.iter().filter(|pass| key.same_network(&pass.key)).collect()
        };
        let same = of(key);
        if !same.is_empty() || key.network.is_some() {
            return same;
        }
        of(&PassKey { classes: CLASSES, ..key.clone() })
    }

    /// How far a pass is known.
    pub fn coverage(&self, key: &PassKey) -> PassCoverage {
        let alike = self.passes(key);
        if alike.iter().any(|pass| pass.key.batch == key.batch && pass.key.classes == key.classes) {
            return PassCoverage::Measured;
        }
        let batches = || alike.iter().map(|pass| pass.key.batch);
        match (batches().min(), batches().max()) {
            (Some(least), Some(most)) if (least..=most).contains(&key.batch) => PassCoverage::Between,
            (Some(least), Some(most)) => PassCoverage::Outside { least, most },
            _ => PassCoverage::Unknown,
        }
    }

    /// Whether a pass was measured, though on fewer workers at once than `workers`.
    pub fn shares_less(&self, key: &PassKey, workers: usize) -> bool {
        let most = |pass: &PassTime| pass.sharing.iter().map(|sharing| sharing.processes).max().unwrap_or(1);
        self.pass.iter().find(|pass| pass.key == *key).is_some_and(|pass| most(pass) < workers)
    }

    /// Whether a pass was measured, though only after updates: none of a step's later micro-batches.
    pub fn lacks_later_ones(&self, key: &PassKey) -> bool {
        self.pass.iter().find(|pass| pass.key == *key).is_some_and(|pass| pass.again_s.is_none())
    }

    /// The same machine, on which several workers are in each other's way as a pass with `threads` threads was measured
    /// to be. Beyond what was measured of it, they are so in the proportion of other computations.
    pub(crate) fn with_sharing(&self, own: &[CoreSharing], threads: usize) -> Self {
        let Some(last) = own.last() else { return self.clone() };
        let computing = |sharing: &CoreSharing| sharing.processes * threads;
        let most = computing(last);
        let alone = self.slowdown(threads as f64, self.cores, StartPattern::Apart);
        let scaled = |sharing: &CoreSharing, processes: usize, by: [f64; 2]| CoreSharing {
            processes,
            slowdown: sharing.slowdown.times(by[0]),
            in_step: sharing.in_step.map(|estimate| estimate.times(by[1])),
            in_step_long: sharing.in_step_long.map(|estimate| estimate.times(by[1])),
        };
        // What is slower with its own threads alone on the machine is slower by that on several workers, too.
        let mut all: Vec<CoreSharing> =
            own.iter().map(|sharing| scaled(sharing, computing(sharing), [alone; 2])).collect();
        let [apart, together] = [StartPattern::Apart, StartPattern::Together { short: 0.0 }]
            .map(|pattern| self.slowdown(most as f64, self.cores, pattern));
        let in_step = last.in_step.unwrap_or(last.slowdown).median;
        let beyond = [alone * last.slowdown.median / apart, alone * in_step / together];
        let others = self.sharing.iter().filter(|sharing| sharing.processes > most);
        all.extend(others.map(|sharing| scaled(sharing, sharing.processes, beyond)));
        Self { sharing: all, ..self.clone() }
    }

    /// Adds a pass, in place of an earlier measurement of it.
    pub fn add(&mut self, pass: PassTime) {
        self.pass.retain(|known| known.key != pass.key);
        self.pass.push(pass);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(model: &str, network: Option<&str>, classes: usize, batch: usize, threads: usize) -> PassKey {
        let (model, network) = (model.into(), network.map(str::to_owned));
        PassKey { model, network, input: [1, 32, 3], classes, batch, threads }
    }

    fn measured(keys: &[PassKey]) -> Calibration {
        let pass = |key: &PassKey| PassTime {
            key: key.clone(),
            repetitions: 1,
            seconds: MedianEstimate::round(1.0),
            data_s: None,
            again_s: None,
            first_s: None,
            quantiles: Vec::new(),
            layer: Vec::new(),
            sharing: Vec::new(),
        };
        Calibration { pass: keys.iter().map(pass).collect(), ..Calibration::defaults() }
    }

    #[test]
    fn a_pass_is_known_by_its_network_input_classes_batch_and_threads() {
        let known = measured(&[key("gru", None, 10, 16, 1), key("gru", None, 10, 64, 1)]);
        for (wanted, coverage) in [
            (key("gru", None, 10, 16, 1), PassCoverage::Measured),
            (key("gru", None, 10, 17, 1), PassCoverage::Between),
            (key("gru", None, 10, 8, 1), PassCoverage::Outside { least: 16, most: 64 }),
            (key("gru", None, 10, 65, 1), PassCoverage::Outside { least: 16, most: 64 }),
            // Classes change the last layer alone: near, but not measured.
            (key("gru", None, 6, 16, 1), PassCoverage::Between),
            (key("gru", None, 10, 16, 2), PassCoverage::Unknown),
            (key("lstm", None, 10, 16, 1), PassCoverage::Unknown),
            (key("gru", Some("a"), 10, 16, 1), PassCoverage::Unknown),
            (PassKey { input: [1, 64, 3], ..key("gru", None, 10, 16, 1) }, PassCoverage::Unknown),
        ] {
            assert_eq!(known.coverage(&wanted), coverage, "{wanted:?}");
        }
    }

    #[test]
    fn a_network_from_a_file_is_what_is_in_it() {
        let known = measured(&[key("a.toml", Some("a"), 6, 16, 1)]);
        assert_eq!(known.coverage(&key("moved.toml", Some("a"), 6, 16, 1)), PassCoverage::Measured);
        assert_eq!(known.coverage(&key("a.toml", Some("b"), 6, 16, 1)), PassCoverage::Unknown);
        assert_eq!(known.coverage(&key("a.toml", None, 6, 16, 1)), PassCoverage::Unknown);
        assert_eq!(known.coverage(&key("a.toml", Some("a"), 7, 16, 1)), PassCoverage::Unknown);
    }

    #[test]
    fn passes_with_as_many_classes_are_preferred() {
        let known = measured(&[key("gru", None, 10, 16, 1), key("gru", None, 6, 64, 1)]);
        let batches = |classes| -> Vec<usize> {
            known.passes(&key("gru", None, classes, 1, 1)).iter().map(|pass| pass.key.batch).collect()
        };
        assert_eq!([batches(6), batches(10), batches(7)], [[64], [16], [16]]);
    }

    #[test]
    fn a_pass_that_is_measured_again_takes_the_place_of_the_old_one() {
        let mut known = measured(&[key("gru", None, 6, 16, 1)]);
        let again = PassTime { repetitions: 2, ..known.pass[0].clone() };
        known.add(again);
        assert_eq!(known.pass.iter().map(|pass| pass.repetitions).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn a_runs_first_pass_is_longer_by_what_was_measured_and_never_shorter() {
        let pass = measured(&[key("gru", None, 10, 16, 1)]).pass[0].clone();
        for (first_s, extra) in [(None, 0.0), (Some(2.5), 1.5), (Some(0.9), 0.0)] {
            assert_eq!(PassTime { first_s, ..pass.clone() }.first_extra(), extra);
        }
    }

    #[test]
    fn files_of_before_say_no_classes_and_mean_ten() {
        let text = "model = \"mlp\"\ninput = [8, 8, 1]\nbatch = 16\nthreads = 1\nrepetitions = 7\n\
                    seconds = [1.0, 1.0, 1.0]\nquantiles = []\nlayer = []\n";
        let pass: PassTime = toml::from_str(text).unwrap();
        assert_eq!((pass.key.classes, pass.key.network, pass.data_s), (10, None, None));
    }

    #[test]
    fn workers_are_in_each_others_way_as_the_pass_was_measured_to_be() {
        let sharing = |processes, slowdown: f64, in_step: f64| CoreSharing {
            processes,
            slowdown: MedianEstimate::round(slowdown),
            in_step: Some(MedianEstimate::round(in_step)),
            in_step_long: Some(MedianEstimate::round(in_step)),
        };
        let general =
            [sharing(1, 1.0, 1.0), sharing(2, 1.0, 1.0), sharing(3, 1.5, 2.0), sharing(4, 2.0, 2.0)];
        let machine = Calibration { cores: 2, sharing: general.into(), ..Calibration::defaults() };
        let together = StartPattern::Together { short: 0.3 };
        let own =
            machine.with_sharing(&[sharing(1, 1.0, 1.0), sharing(2, 1.2, 1.3), sharing(3, 1.8, 2.2)], 1);
        for (workers, apart, in_step) in [(1.0, 1.0, 1.0), (2.0, 1.2, 1.3), (3.0, 1.8, 2.2), (4.0, 2.4, 2.2)]
        {
            let near =
                |found: f64, want: f64| assert!((found - want).abs() < 1e-9, "{workers}: {found} {want}");
            near(own.slowdown(workers, 2, StartPattern::Apart), apart);
            near(own.slowdown(workers, 2, together), in_step);
        }
        // Two workers of two threads each are four computing threads.
        let threaded = machine.with_sharing(&[sharing(1, 1.0, 1.0), sharing(2, 1.7, 1.9)], 2);
        assert!((threaded.slowdown(4.0, 2, StartPattern::Apart) - 1.7).abs() < 1e-9);
        assert_eq!(machine.with_sharing(&[], 1), machine, "what was not measured is as everything else");
    }

    #[test]
    fn a_pass_of_a_study_is_measured_again_for_more_workers() {
        let mut known = measured(&[key("gru", None, 10, 16, 1)]);
        let wanted = key("gru", None, 10, 16, 1);
        assert!(known.shares_less(&wanted, 2) && !known.shares_less(&wanted, 1));
        known.pass[0].sharing = [1, 4]
            .map(|processes| CoreSharing {
                processes,
                slowdown: MedianEstimate::round(1.0),
                in_step: None,
                in_step_long: None,
            })
            .into();
        assert!(!known.shares_less(&wanted, 4) && known.shares_less(&wanted, 5));
    }
}
