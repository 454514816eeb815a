//! Which worker holds which samples.
//!
//! On one machine every worker can draw from the whole dataset; where data stay where they arise (federated
//! training, one node per site) workers see different mixtures of classes, and how far averaging still
//! works is then a question of its own. A part is as large as the worker's share of an epoch, whatever the
//! mixture, so that shardings differ in what is learnt and not in who has how much to do.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use paceline_random::{Purpose, Stream};

/// Which samples a worker sees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sharding {
    /// Every worker draws from the whole split, anew in each epoch.
    Iid,
    /// Samples sorted by class and cut into one part per worker: few classes each.
    ByLabel,
    /// Each worker's mixture of classes is drawn from a symmetric Dirichlet distribution of this
    /// concentration: nearly one class per worker where it is small, nearly the overall mixture where it is
    /// large. Only as far as samples go round, since all are handed out in parts of one size: a class that
    /// is used up is left out of the mixtures.
    Dirichlet(f64),
}

impl Sharding {
    /// The forms that a user can write.
    pub const FORMS: &'static str = "iid, by-label or dirichlet(A), A a positive number";

    /// The workers' parts, of the given sizes; none where every worker draws from the whole.
    pub(crate) fn parts(
        self,
        seed: u64,
        labels: &[u16],
        capacities: impl Iterator<Item = usize>,
    ) -> Option<Parts> {
        let stream = Stream::new(seed, Purpose::Shard);
        let mut ends = vec![0];
        ends.extend(capacities.scan(0, |end, capacity| {
            *end += capacity;
            Some(*end)
        }));
        assert_eq!(ends.last(), Some(&labels.len()), "every sample belongs to one worker");
        let samples = match self {
            Sharding::Iid => return None,
            Sharding::ByLabel => pools(stream.fork(0), labels).concat(),
            Sharding::Dirichlet(a) => mixtures(stream, pools(stream.fork(0), labels), &ends, a),
        };
        Some(Parts { samples, ends })
    }
}

impl fmt::Display for Sharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sharding::Iid => f.write_str("iid"),
            Sharding::ByLabel => f.write_str("by-label"),
            Sharding::Dirichlet(a) => write!(f, "dirichlet({a})"),
        }
    }
}

impl FromStr for Sharding {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = match text {
            "iid" => Some(Sharding::Iid),
            "by-label" => Some(Sharding::ByLabel),
            _ => text
                .strip_prefix("dirichlet")
                .and_then(|rest| match rest.strip_prefix(",a=") {
                    Some(a) => Some(a),
                    None => rest.strip_prefix('(')?.strip_suffix(')'),
                })
                .and_then(|a| a.parse::<f64>().ok())
                .filter(|a| a.is_finite() && *a > 0.0)
                .map(Sharding::Dirichlet),
        };
        found.ok_or_else(|| format!("possible: {}", Self::FORMS))
    }
}

/// The samples of every worker.
#[derive(Debug)]
pub(crate) struct Parts {
    /// All samples, part after part.
    samples: Vec<u32>,
    /// Where parts begin and end: one more than there are workers.
    ends: Vec<usize>,
}

impl Parts {
    pub(crate) fn workers(&self) -> usize {
        self.ends.len() - 1
    }

    /// Where the part of `rank` lies among all samples.
    pub(crate) fn range(&self, rank: usize) -> Range<usize> {
        self.ends[rank]..self.ends[rank + 1]
    }

    #[cfg(test)]
    pub(crate) fn part(&self, rank: usize) -> &[u32] {
        &self.samples[self.range(rank)]
    }

    /// All samples, part after part, each part shuffled with its own fork of `stream`.
    pub(crate) fn shuffled(&self, stream: Stream) -> Vec<u32> {
        let mut shuffled = Vec::with_capacity(self.samples.len());
        for rank in 0..self.workers() {
            let part = &self.samples[self.range(rank)];
            let order = stream.fork(rank as u64).permutation(part.len());
            shuffled.extend(order.into_iter().map(|i| part[i as usize]));
        }
        shuffled
    }
}

/// The samples of each class that occurs, in order of the classes and within a class shuffled.
fn pools(stream: Stream, labels: &[u16]) -> Vec<Vec<u32>> {
    let classes = labels.iter().max().map_or(0, |&largest| 1 + usize::from(largest));
    let mut pools = vec![Vec::new(); classes];
    for sample in stream.permutation(labels.len()) {
        pools[usize::from(labels[sample as usize])].push(sample);
    }
    pools.retain(|pool| !pool.is_empty());
    pools
}

/// Workers take turns at drawing one sample each, of a class chosen by their proportions, until all parts
/// are full.
fn mixtures(stream: Stream, mut pools: Vec<Vec<u32>>, ends: &[usize], a: f64) -> Vec<u32> {
    let workers = ends.len() - 1;
    let (mixture, choice) = (stream.fork(1), stream.fork(2));
    // Logarithms of gamma draws are those of the proportions but for a common summand. They are finite
    // even where all but one proportion underflow, so that there is always a next class in order.
    let logs: Vec<Vec<f64>> = (0..workers)
        .map(|r| (0..pools.len()).map(|c| mixture.fork(r as u64).gamma_ln(c as u64, a)).collect())
        .collect();
    let mut samples = vec![0; ends[workers]];
    let mut hungry: Vec<usize> = (0..workers).collect();
    for turn in 0.. {
        hungry.retain(|&r| ends[r] + turn < ends[r + 1]);
        if hungry.is_empty() {
            break;
        }
        for &r in &hungry {
            let class = choose(&logs[r], &pools, choice.fork(r as u64).unit(turn as u64));
            samples[ends[r] + turn] = pools[class].pop().expect("a class that is not used up");
        }
    }
    samples
}

/// The class at `unit` of the mixture with these logarithms, over the classes that are not used up.
fn choose(logs: &[f64], pools: &[Vec<u32>], unit: f64) -> usize {
    let open = || (0..pools.len()).filter(|&c| !pools[c].is_empty());
    let top = open().max_by(|&a, &b| logs[a].total_cmp(&logs[b])).expect("a sample that is left");
    let weight = |c: usize| (logs[c] - logs[top]).exp();
    let mut left = unit * open().map(weight).sum::<f64>();
    open()
        .find(|&c| {
            left -= weight(c);
            left < 0.0
        })
        .unwrap_or(top)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASSES: usize = 10;

    /// `per_class` samples of each of ten classes, interleaved.
    fn labels(per_class: usize) -> Vec<u16> {
        (0..CLASSES * per_class).map(|i| (i % CLASSES) as u16).collect()
    }

    /// The labels of each worker's part, with parts of equal size.
    fn parts(seed: u64, labels: &[u16], workers: usize, sharding: Sharding) -> Vec<Vec<u16>> {
        let capacity = labels.len() / workers;
        let parts = sharding.parts(seed, labels, (0..workers).map(|_| capacity)).unwrap();
        (0..workers).map(|r| parts.part(r).iter().map(|&i| labels[i as usize]).collect()).collect()
    }

    /// Mean over workers of the share of the class that a worker has most of.
    fn concentration(parts: &[Vec<u16>]) -> f64 {
        let largest = |part: &Vec<u16>| {
            let counts = (0..CLASSES).map(|c| part.iter().filter(|&&l| usize::from(l) == c).count());
            counts.max().unwrap() as f64 / part.len() as f64
        };
        parts.iter().map(largest).sum::<f64>() / parts.len() as f64
    }

    #[test]
    fn every_form_is_read_and_written_and_others_are_refused() {
        for text in ["iid", "by-label", "dirichlet(0.5)", "dirichlet(100)"] {
            assert_eq!(text.parse::<Sharding>().unwrap().to_string(), text);
        }
        assert_eq!("dirichlet,a=0.5".parse(), Ok(Sharding::Dirichlet(0.5)));
        assert_eq!("dirichlet(1e-3)".parse::<Sharding>().unwrap().to_string(), "dirichlet(0.001)");
        for text in [
            "",
            "IID",
            "dirichlet",
            "dirichlet()",
            "dirichlet(0)",
            "dirichlet(-1)",
            "dirichlet(inf)",
            "dirichlet(NaN)",
            "dirichlet(1",
            "dirichlet,a=",
            "dirichlet,b=1",
            "dirichlet,a=1)",
        ] {
            let error = text.parse::<Sharding>().unwrap_err();
            assert!(error.contains("iid, by-label or dirichlet(A)"), "{text}: {error}");
        }
    }

    #[test]
    fn parts_by_label_are_ordered_by_label() {
        let labels = labels(13);
        let all = parts(1, &labels, 5, Sharding::ByLabel).concat();
        assert!(all.is_sorted());
        let other: Vec<u16> = labels.iter().rev().copied().collect();
        assert_eq!(parts(2, &other, 5, Sharding::ByLabel).concat(), all);
    }

    #[test]
    fn with_as_many_workers_as_classes_each_sees_one() {
        for (class, part) in parts(1, &labels(20), CLASSES, Sharding::ByLabel).iter().enumerate() {
            assert_eq!(part, &[class as u16; 20]);
        }
        // A few samples more in one class: each worker sees about one.
        let mut uneven = labels(20);
        uneven.extend([0; 10]);
        assert!(concentration(&parts(1, &uneven, CLASSES, Sharding::ByLabel)) > 0.7);
    }

    #[test]
    fn a_large_concentration_is_near_the_overall_mixture() {
        let parts = parts(1, &labels(500), 5, Sharding::Dirichlet(1000.0));
        for part in &parts {
            for class in 0..CLASSES {
                let share =
                    part.iter().filter(|&&l| usize::from(l) == class).count() as f64 / part.len() as f64;
                assert!((share - 0.1).abs() < 0.05, "class {class}: {share}");
            }
        }
    }

    #[test]
    fn a_small_concentration_gives_a_worker_few_classes() {
        let mean = |a| {
            (0..10)
                .map(|seed| concentration(&parts(seed, &labels(100), 20, Sharding::Dirichlet(a))))
                .sum::<f64>()
                / 10.0
        };
        // Two workers fill up from one class; where more want it first, some must go on to another, so that
        // even a vanishing concentration stays below 1 (at about two thirds).
        let [vanishing, small, middle, large] = [1e-320, 0.01, 0.3, 1000.0].map(mean);
        assert!(vanishing > 0.6 && small > 0.9 * vanishing, "{small} of {vanishing}");
        assert!(small > middle + 0.15 && middle > large + 0.15, "{small}, {middle}, {large}");
        assert!(large < 0.2, "{large}");
    }

    #[test]
    fn a_seed_determines_the_parts() {
        let labels = labels(30);
        for sharding in [Sharding::ByLabel, Sharding::Dirichlet(0.5)] {
            let ids = |seed| sharding.parts(seed, &labels, [100, 100, 100].into_iter()).unwrap().samples;
            assert_eq!(ids(1), ids(1), "{sharding}");
            assert_ne!(ids(1), ids(2), "{sharding}");
        }
        let dirichlet = Sharding::Dirichlet(0.5);
        assert_ne!(parts(1, &labels, 3, dirichlet), parts(2, &labels, 3, dirichlet));
    }

    #[test]
    fn workers_without_samples_have_empty_parts() {
        for sharding in [Sharding::ByLabel, Sharding::Dirichlet(0.5)] {
            let parts = sharding.parts(1, &[3, 1], [0, 1, 0, 1].into_iter()).unwrap();
            assert_eq!([0, 1, 2, 3].map(|r| parts.part(r).len()), [0, 1, 0, 1], "{sharding}");
        }
    }
}
