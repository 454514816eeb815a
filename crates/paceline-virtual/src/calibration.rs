//! What things cost on a machine.

use std::path::Path;

use paceline_statistics::{quantile, sorted};
use paceline_wire::{TransportDefaults, TransportKind};
use serde::{Deserialize, Serialize};

use crate::calibrate::machine;
use crate::error::{VirtualError, read, refuse};
use crate::pass::{PassTime, count};
use crate::script_time::ScriptTime;

/// The form of the file.
const VERSION: u32 = 1;

/// A machine's costs.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Calibration {
    /// The form of this file.
    pub version: u32,
    /// The CPU's name.
    pub cpu: String,
    /// Its cores.
    pub cores: usize,
    /// Seconds from a run's start to its first step.
    pub startup_s: MedianEstimate,
    /// Nanoseconds per byte of a batch's samples until they are the network's input.
    pub data_ns_per_byte: MedianEstimate,
    /// Operations per second and thread of passes that were not measured.
    pub flops_per_s: MedianEstimate,
    /// How much slower each of several computing processes is; the first stands for one.
    pub sharing: Vec<CoreSharing>,
    /// Computations on elements.
    pub work: Vec<ElementCost>,
    /// What ranks talk over.
    pub transport: Vec<TransportCost>,
    /// Forward and backward passes.
    #[serde(default)]
    pub pass: Vec<PassTime>,
    /// Steps of scripts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub script: Vec<ScriptTime>,
}

/// A measured number, and where its median lies with 95% confidence; in the file `[median, low, high]`. What was measured in
/// rounds has their mean, between the lowest and the highest.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq)]
#[serde(from = "(f64, f64, f64)", into = "(f64, f64, f64)")]
pub struct MedianEstimate {
    /// The median, or the mean of rounds.
    pub median: f64,
    /// The least that it may be.
    pub low: f64,
    /// The most.
    pub high: f64,
}

#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct CoreSharing {
    pub processes: usize,
    /// How many times as long each takes, if it goes on without the others.
    pub slowdown: MedianEstimate,
    /// How many times as long it takes until the last is done, if all begin together and take no longer than a
    /// scheduler's turn: some then wait until others are done.
    #[serde(default, rename = "in-step", skip_serializing_if = "Option::is_none")]
    pub in_step: Option<MedianEstimate>,
    /// The same if they take many turns.
    #[serde(default, rename = "in-step-long", skip_serializing_if = "Option::is_none")]
    pub in_step_long: Option<MedianEstimate>,
}

/// How processes that share cores begin what they compute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StartPattern {
    /// Each by itself.
    Apart,
    /// All together, and everybody waits for the last.
    Together {
        /// 1 where a computation takes no longer than a scheduler's turn, 0 where it takes many.
        short: f64,
    },
}

/// Elements of half a megabyte, as of a message: a core's own cache holds them.
pub const SMALL: usize = 128 << 10;
/// Elements of 8 megabytes, as of a model of some size: together with all else that a step touches they are in no
/// cache.
pub const LARGE: usize = 2 << 20;

/// A cost per element or byte of a model with so many elements: between the two that were measured, along their
/// logarithm.
fn at_size(small: MedianEstimate, large: Option<MedianEstimate>, elements: usize) -> f64 {
    let way = (elements.max(1) as f64 / SMALL as f64).ln() / (LARGE as f64 / SMALL as f64).ln();
    small.median + (large.unwrap_or(small).median - small.median) * way.clamp(0.0, 1.0)
}

#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ElementCost {
    /// `reduce`, `copy`, `mix`, `product`, `apply OPTIMISER`, `encode CODEC` or `decode CODEC`.
    pub what: String,
    /// Nanoseconds per element (of a product: per multiplication and addition), of [`SMALL`] elements.
    pub ns_per_element: MedianEstimate,
    /// The same of [`LARGE`] elements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub large_ns_per_element: Option<MedianEstimate>,
    /// The same of [`LARGE`] elements on every core at once: cores share the way to memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crowded_ns_per_element: Option<MedianEstimate>,
}

/// The name in a calibration of a transport whose bodies stay in their sender's memory.
pub fn lent_name(transport: &str) -> String {
    format!("{transport} lent")
}

/// What ranks of one machine talk over.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TransportCost {
    pub name: String,
    /// Seconds that a message is under way.
    pub latency_s: MedianEstimate,
    /// Seconds of a rank's own time for a message, at each end.
    pub message_s: MedianEstimate,
    /// Nanoseconds of a rank's own time per byte, at each end, of [`SMALL`] elements.
    pub ns_per_byte: MedianEstimate,
    /// The same of [`LARGE`] elements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub large_ns_per_byte: Option<MedianEstimate>,
    /// What this was taken from: messages there, and their answers.
    #[serde(default)]
    pub measured: Vec<MessageTime>,
}

/// A message of a length, measured; in the file `[bytes, duplex, median, p95]`.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(from = "(usize, bool, f64, f64)", into = "(usize, bool, f64, f64)")]
pub struct MessageTime {
    pub bytes: usize,
    pub duplex: bool,
    /// Median seconds until the answer was there.
    pub median_s: f64,
    /// 95th percentile.
    pub p95_s: f64,
}

/// A layer's medians; in the file `[name, forward, backward]`.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(from = "(String, f64, f64)", into = "(String, f64, f64)")]
pub struct Layer {
    pub name: String,
    pub forward_s: f64,
    /// Seconds of backward until its gradients were final, since the gradients before.
    pub backward_s: f64,
}

/// A number with four digits: more than a repetition would give again.
pub(crate) fn four_digits(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

/// In the file a struct is the list of its fields, numbers with four digits.
macro_rules! listed {
    ($name:ident as $list:ty: ($($field:ident),*) => $written:expr) => {
        impl From<$list> for $name {
            fn from(($($field),*): $list) -> Self {
                Self { $($field),* }
            }
        }

        impl From<$name> for $list {
            fn from($name { $($field),* }: $name) -> Self {
                $written
            }
        }
    };
}

pub(crate) use listed;

listed!(MedianEstimate as (f64, f64, f64): (median, low, high) =>
    (four_digits(median), four_digits(low), four_digits(high)));
listed!(MessageTime as (usize, bool, f64, f64): (bytes, duplex, median_s, p95_s) =>
    (bytes, duplex, four_digits(median_s), four_digits(p95_s)));
listed!(Layer as (String, f64, f64): (name, forward_s, backward_s) =>
    (name, four_digits(forward_s), four_digits(backward_s)));

impl MedianEstimate {
    /// A number that nobody measured.
    pub fn round(value: f64) -> Self {
        Self { median: value, low: value, high: value }
    }

    /// The median of a sample, with the order statistics that enclose it with 95% confidence.
    pub fn of(values: &[f64]) -> Self {
        let sorted = sorted(values);
        let n = sorted.len();
        let Some(last) = n.checked_sub(1) else { return Self::round(f64::NAN) };
        let median = quantile(&sorted, 0.5);
        // Ranks n/2 ± 1.96·√n/2: the binomial distribution's, approximately.
        let half = 0.98 * (n as f64).sqrt();
        let low = (n as f64 / 2.0 - half).floor().max(0.0) as usize;
        let high = ((n as f64 / 2.0 + half).ceil() as usize).min(last);
        Self { median, low: sorted[low.min(last)], high: sorted[high] }
    }

    /// The mean of rounds that lie apart in time, between the lowest and the highest of them: a run of seconds meets one.
    pub fn of_rounds(values: &[f64]) -> Self {
        let [low, high] = [f64::min as fn(f64, f64) -> f64, f64::max];
        let extreme = |of: fn(f64, f64) -> f64| values.iter().copied().reduce(of).unwrap_or(f64::NAN);
        Self { median: paceline_statistics::mean(values), low: extreme(low), high: extreme(high) }
    }

    /// Whether it is a number above 0.
    pub fn is_positive(self) -> bool {
        self.median.is_finite() && self.median > 0.0
    }

    /// The same estimate of a multiple.
    pub fn times(self, factor: f64) -> Self {
        Self { median: self.median * factor, low: self.low * factor, high: self.high * factor }
    }
}

impl TransportCost {
    /// A transport's costs where it was not measured.
    pub fn unmeasured(kind: &TransportKind) -> Self {
        let (round, TransportDefaults { latency_us, message_us, ns_per_byte }) =
            (MedianEstimate::round, kind.defaults);
        Self {
            name: kind.name.into(),
            latency_s: round(latency_us / 1e6),
            message_s: round(message_us / 1e6),
            ns_per_byte: round(ns_per_byte),
            large_ns_per_byte: None,
            measured: Vec::new(),
        }
    }

    /// What bodies cost that stay in their sender's memory; none if nobody has measured that.
    pub fn lent<'a>(kind: &TransportKind, calibration: &'a Calibration) -> Option<&'a Self> {
        let name = lent_name(kind.name);
        calibration.transport.iter().find(|transport| kind.lends && transport.name == name)
    }

    /// Nanoseconds of a rank's own time per byte of a model with so many elements.
    pub fn ns_per_byte(&self, elements: usize) -> f64 {
        at_size(self.ns_per_byte, self.large_ns_per_byte, elements)
    }
}

impl Calibration {
    /// Reads a calibration.
    pub fn load(path: &Path) -> Result<Self, VirtualError> {
        let found: Self = read("--calibration", path)?;
        let problem = if found.version != VERSION {
            format!("has version {}; this program reads version {VERSION}", found.version)
        } else if found.cores == 0 || !found.flops_per_s.is_positive() {
            "cores and flops-per-s must be positive".into()
        } else if let Some(pass) = found.pass.iter().find(|pass| !pass.seconds.is_positive()) {
            format!("the pass of {} takes no time", pass.key)
        } else if let Some(script) = found.script.iter().find(|script| !script.is_sound()) {
            format!("the steps of {} take no time, or have no samples or parameters", script.file)
        } else {
            return Ok(found);
        };
        let problem = format!("{problem}; `paceline calibrate --out FILE` writes one");
        Err(refuse("--calibration", path, problem).into())
    }

    /// Refuses to add to what another machine costs.
    pub fn check_machine(&self, path: &Path) -> Result<(), VirtualError> {
        let told = |cpu: &str, cores: usize| format!("{cpu} with {}", count(cores, "core"));
        let (cpu, cores) = machine();
        let (theirs, own) = (told(&self.cpu, self.cores), told(&cpu, cores));
        if theirs == own {
            return Ok(());
        }
        Err(VirtualError::OtherMachine { path: path.to_owned(), theirs, own })
    }

    /// Writes the file: whole, or not at all where it is a regular one.
    pub fn save(&self, path: &Path) -> Result<(), VirtualError> {
        let failed = |source| VirtualError::File { path: path.to_owned(), source };
        if path.metadata().is_ok_and(|found| !found.is_file()) {
            return std::fs::write(path, self.text()).map_err(failed);
        }
        let mut fresh = path.as_os_str().to_owned();
        fresh.push(format!(".{}", std::process::id()));
        std::fs::write(&fresh, self.text()).and_then(|()| std::fs::rename(&fresh, path)).map_err(failed)
    }

    /// The file.
    pub fn text(&self) -> String {
        let head = "# What things cost on this machine, measured by `paceline calibrate`.\n\
                    # Numbers are [median, low, high]: the median lies between the two with 95% confidence.\n\
                    # (Of transports and of shared cores it is a mean: of rounds over the whole time, of passes.)\n\
                    # Names end with the unit. Messages: [bytes, both sides at once, median s, 95th percentile s].\n\
                    # Layers: [name, forward s, s of backward until its gradients were final].\n\
                    # Tensors of scripts: [name, numbers, part of the pass until it and those behind it were final].\n\n";
        head.to_owned() + &toml::to_string(self).expect("plain data")
    }

    /// Round numbers for a machine that nobody measured.
    pub fn defaults() -> Self {
        let round = MedianEstimate::round;
        let work = [
            ("reduce", 0.5),
            ("copy", 0.25),
            ("mix", 0.5),
            ("product", 0.25),
            ("apply", 1.0),
            ("encode", 2.0),
            ("decode", 2.0),
        ];
        let cost = |(what, ns): (&str, f64)| ElementCost {
            what: what.into(),
            ns_per_element: round(ns),
            large_ns_per_element: None,
            crowded_ns_per_element: None,
        };
        Self {
            version: VERSION,
            cpu: "nobody's".into(),
            cores: 1,
            startup_s: round(0.1),
            data_ns_per_byte: round(1.0),
            flops_per_s: round(50e9),
            sharing: Vec::new(),
            work: work.map(cost).into(),
            transport: Vec::new(),
            pass: Vec::new(),
            script: Vec::new(),
        }
    }

    /// The same machine at the fast or the slow end of every confidence interval.
    pub fn bound(&self, slow: bool) -> Self {
        let of = |estimate: &mut MedianEstimate| {
            *estimate = MedianEstimate::round(if slow { estimate.high } else { estimate.low });
        };
        let mut bound = self.clone();
        [&mut bound.startup_s, &mut bound.data_ns_per_byte].into_iter().for_each(of);
        let rate = self.flops_per_s;
        bound.flops_per_s = MedianEstimate::round(if slow { rate.low } else { rate.high });
        let of_sharing = |sharing: &mut CoreSharing| {
            of(&mut sharing.slowdown);
            sharing.in_step.as_mut().map(of);
            sharing.in_step_long.as_mut().map(of);
        };
        bound.sharing.iter_mut().for_each(of_sharing);
        for work in &mut bound.work {
            of(&mut work.ns_per_element);
            work.large_ns_per_element.as_mut().map(of);
            work.crowded_ns_per_element.as_mut().map(of);
        }
        for transport in &mut bound.transport {
            let own = [&mut transport.latency_s, &mut transport.message_s, &mut transport.ns_per_byte];
            own.into_iter().for_each(of);
            transport.large_ns_per_byte.as_mut().map(of);
        }
        for pass in &mut bound.pass {
            of(&mut pass.seconds);
            pass.data_s.as_mut().map(of);
            pass.sharing.iter_mut().for_each(of_sharing);
        }
        for script in &mut bound.script {
            [&mut script.alone_s, &mut script.pass_s].into_iter().for_each(of);
            script.sharing.iter_mut().for_each(of_sharing);
        }
        bound
    }

    /// Nanoseconds per element of a computation on a model with `elements` elements: that of the name in full, else of
    /// its first word. `at_once` of the other cores do such things, too (0 to 1).
    pub fn ns_per_element(&self, what: &str, elements: usize, at_once: f64) -> f64 {
        let found = |name: &str| self.work.iter().find(|work| work.what == name);
        let kind = what.split(' ').next().unwrap_or(what);
        let alike = || self.work.iter().find(|work| work.what.starts_with(kind));
        let found = found(what).or_else(|| found(kind)).or_else(alike);
        found.map_or(1.0, |work| {
            let alone = work.large_ns_per_element.unwrap_or(work.ns_per_element).median;
            let crowded = work.crowded_ns_per_element.map_or(alone, |crowded| crowded.median.max(alone));
            let large = MedianEstimate::round(alone + (crowded - alone) * at_once);
            at_size(work.ns_per_element, Some(large), elements)
        })
    }

    /// How many times as long each of several computing processes takes on a machine with so many cores, by how they
    /// begin.
    pub fn slowdown(&self, processes: f64, cores: usize, beginning: StartPattern) -> f64 {
        let StartPattern::Together { short } = beginning else {
            return self.shared(processes, cores, |sharing| sharing.slowdown);
        };
        let long = self.shared(processes, cores, |sharing| sharing.in_step_long.unwrap_or(sharing.slowdown));
        let brief = self.shared(processes, cores, |sharing| sharing.in_step.unwrap_or(sharing.slowdown));
        long + (brief - long) * short
    }

    fn shared(&self, processes: f64, cores: usize, estimate: fn(&CoreSharing) -> MedianEstimate) -> f64 {
        // As many per core as here.
        let here = processes * self.cores as f64 / cores as f64;
        let crowded = (processes / cores as f64).max(1.0);
        let median = |sharing: &CoreSharing| (sharing.processes as f64, estimate(sharing).median);
        let Some((most, slowest)) = self.sharing.last().filter(|_| here > 1.0).map(median) else {
            return crowded;
        };
        if here >= most {
            return slowest * here / most;
        }
        let above = self.sharing.partition_point(|sharing| (sharing.processes as f64) < here);
        let (to, end) = median(&self.sharing[above.min(self.sharing.len() - 1)]);
        let below = self.sharing.iter().rev().map(median).find(|(processes, _)| *processes < to);
        let (from, start) = below.unwrap_or((1.0, 1.0));
        (start + (end - start) * (here - from) / (to - from)).max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pass::PassKey;

    #[test]
    fn a_median_comes_with_the_order_statistics_around_it() {
        let values: Vec<f64> = (1..=101).map(f64::from).collect();
        let found = MedianEstimate::of(&values);
        assert_eq!((found.median, found.low, found.high), (51.0, 41.0, 62.0));
        let few = MedianEstimate::of(&[3.0, 1.0, 2.0]);
        assert_eq!((few.median, few.low, few.high), (2.0, 1.0, 3.0));
    }

    #[test]
    fn a_mean_of_rounds_lies_between_the_lowest_and_the_highest() {
        let found = MedianEstimate::of_rounds(&[1.0, 6.0, 2.0, 3.0]);
        assert_eq!((found.median, found.low, found.high), (3.0, 1.0, 6.0));
        assert_eq!(MedianEstimate::of_rounds(&[2.0]), MedianEstimate::round(2.0));
    }

    #[test]
    fn what_a_cache_does_not_hold_costs_more() {
        let (small, large) = (MedianEstimate::round(1.0), Some(MedianEstimate::round(3.0)));
        for (elements, want) in [(0, 1.0), (SMALL, 1.0), (4 * SMALL, 2.0), (LARGE, 3.0), (9 * LARGE, 3.0)] {
            assert!((at_size(small, large, elements) - want).abs() < 1e-12, "{elements}");
            assert_eq!(at_size(small, None, elements), 1.0, "what was not measured is no other");
        }
    }

    #[test]
    fn a_calibration_is_read_as_it_was_written() {
        let mut calibration = Calibration::defaults();
        let round = MedianEstimate::round;
        let sharing = |processes, slowdown: f64, in_step| CoreSharing {
            processes,
            slowdown: round(slowdown),
            in_step,
            in_step_long: in_step,
        };
        calibration.sharing = vec![sharing(1, 1.0, None), sharing(2, 1.5, Some(round(2.0)))];
        calibration.pass.push(PassTime {
            key: PassKey {
                model: "mlp".into(),
                network: Some("abc".into()),
                input: [28, 28, 1],
                classes: 26,
                batch: 64,
                threads: 1,
            },
            repetitions: 9,
            seconds: MedianEstimate { median: 2e-3, low: 1e-3, high: 3e-3 },
            data_s: Some(round(1e-4)),
            again_s: Some(round(1.8e-3)),
            first_s: Some(5e-3),
            quantiles: vec![0.9, 1.0, 1.4],
            layer: vec![Layer { name: "fc1".into(), forward_s: 1e-3, backward_s: 1e-3 }],
            sharing: calibration.sharing.clone(),
        });
        assert_eq!(toml::from_str::<Calibration>(&calibration.text()).unwrap(), calibration);
    }

    #[test]
    fn sharing_is_interpolated_and_goes_on_beyond_what_was_measured() {
        let sharing = |processes, slowdown: f64| CoreSharing {
            processes,
            slowdown: MedianEstimate::round(slowdown),
            in_step: (processes == 4).then(|| MedianEstimate::round(slowdown + 1.0)),
            in_step_long: None,
        };
        let measured = Calibration {
            cores: 2,
            sharing: vec![sharing(1, 1.0), sharing(2, 1.2), sharing(4, 2.4)],
            ..Calibration::defaults()
        };
        for (processes, cores, want) in
            [(1.0, 2, 1.0), (2.0, 2, 1.2), (3.0, 2, 1.8), (8.0, 2, 4.8), (4.0, 4, 1.2), (1.0, 4, 1.0)]
        {
            let found = measured.slowdown(processes, cores, StartPattern::Apart);
            assert!((found - want).abs() < 1e-12, "{processes} on {cores}: {found}");
        }
        for (processes, short, want) in [(2.0, 1.0, 1.2), (3.0, 1.0, 2.3), (4.0, 1.0, 3.4), (4.0, 0.5, 2.9)] {
            let found = measured.slowdown(processes, 2, StartPattern::Together { short });
            assert!((found - want).abs() < 1e-12, "{processes} in step ({short}): {found}");
        }
        assert_eq!(Calibration::defaults().slowdown(6.0, 4, StartPattern::Together { short: 1.0 }), 1.5);
        assert_eq!(Calibration::defaults().slowdown(3.0, 4, StartPattern::Apart), 1.0);
    }

    #[test]
    fn what_was_not_measured_costs_what_is_most_like_it() {
        let calibration = Calibration::defaults();
        let ns = |what| calibration.ns_per_element(what, 1000, 0.0);
        assert_eq!(ns("apply adam"), ns("apply"));
        assert!(ns("encode int8") > ns("copy"));
    }
}
