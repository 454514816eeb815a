//! Sizes of messages: the registry of payload schemes.

use paceline_nn::models::Model;
use paceline_random::{Purpose, Stream};

use crate::document::SizeDistribution;

/// How the sizes of messages are distributed.
pub struct Payload {
    /// The name on the command line.
    pub name: &'static str,
    /// What it is, for help texts and docs.
    pub about: &'static str,
    /// How large `n` messages are, up to a factor; the tensors are the model's, in elements.
    weights: fn(n: usize, tensors: &[usize], seed: u64) -> Vec<f64>,
}

/// The schemes.
pub static PAYLOADS: &[Payload] = &[
    Payload { name: "uniform", about: "all messages are of the size", weights: |n, _, _| vec![1.0; n] },
    Payload {
        name: "random",
        about: "sizes drawn log-uniformly over a range of 1 to 64, then scaled so that their mean is the size",
        weights: |n, _, seed| {
            let draws = Stream::new(seed, Purpose::Bench).fork(n as u64);
            (0..n as u64).map(|i| RANGE.powf(draws.unit(i))).collect()
        },
    },
    Payload {
        name: "skewed",
        about: "the tensors of a model, one message each in the order in which backward finishes them, scaled so that their mean is the size",
        weights: |_, tensors, _| tensors.iter().map(|&len| len as f64).collect(),
    },
];

/// How many times larger than the smallest the largest random message can be.
const RANGE: f64 = 64.0;
/// Random messages before their sizes come again.
const DRAWS: usize = 32;

/// The scheme of a name.
pub fn find(name: &str) -> Option<&'static Payload> {
    PAYLOADS.iter().find(|payload| payload.name == name)
}

/// Lengths of a model's tensors in the order in which backward finishes them.
pub fn tensors(model: &Model) -> Vec<usize> {
    let graph = model.build(model.native_input, 10).expect("a model can be built for its own input");
    graph.params().iter().rev().map(|tensor| tensor.range.len()).collect()
}

impl Payload {
    /// Its name and what it is.
    pub fn scheme(&self) -> SizeDistribution {
        SizeDistribution { name: self.name.into(), about: self.about.into() }
    }

    /// Lengths of messages in turn, of mean `mean`, all in elements.
    pub fn messages(&self, mean: usize, tensors: &[usize], seed: u64) -> Vec<usize> {
        let weights = (self.weights)(DRAWS, tensors, seed);
        let mut lens = fit(&weights, mean * weights.len());
        if lens.iter().all(|len| *len == lens[0]) {
            lens.truncate(1);
        }
        lens
    }

    /// Lengths of as many buckets as there are tensors, of `total` elements together (fewer where there are
    /// not enough elements).
    pub fn buckets(&self, total: usize, tensors: &[usize], seed: u64) -> Vec<usize> {
        let mut weights = (self.weights)(tensors.len(), tensors, seed);
        weights.truncate(total);
        fit(&weights, total)
    }
}

/// Splits `total` elements in proportion to weights: at least one each, and exactly `total` together.
fn fit(weights: &[f64], total: usize) -> Vec<usize> {
    let (sum, spare): (f64, usize) = (weights.iter().sum(), total - weights.len());
    let exact: Vec<f64> = weights.iter().map(|weight| weight / sum * spare as f64).collect();
    let mut lens: Vec<usize> = exact.iter().map(|len| 1 + *len as usize).collect();
    let mut order: Vec<usize> = (0..lens.len()).collect();
    // What rounding down left over goes to those that lost most.
    order.sort_by(|&a, &b| exact[b].fract().total_cmp(&exact[a].fract()).then(a.cmp(&b)));
    let left = total.saturating_sub(lens.iter().sum());
    order.iter().cycle().take(left).for_each(|&i| lens[i] += 1);
    lens
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_registry::Registry;

    fn tensors_of(model: &str) -> Vec<usize> {
        tensors(Registry::default().find(model).unwrap())
    }

    fn mean(lens: &[usize]) -> f64 {
        lens.iter().sum::<usize>() as f64 / lens.len() as f64
    }

    #[test]
    fn every_scheme_has_exactly_the_mean_that_is_asked_for() {
        for model in Registry::<Model>::default().iter() {
            let tensors = tensors(model);
            for (payload, size) in PAYLOADS.iter().flat_map(|p| [1, 2, 16, 1000, 4 << 20].map(|s| (p, s))) {
                let lens = payload.messages(size, &tensors, 7);
                assert_eq!(mean(&lens), size as f64, "{} of {}: {lens:?}", payload.name, model.name);
                assert!(lens.iter().all(|len| *len > 0));
                assert_eq!(lens, payload.messages(size, &tensors, 7), "the same for the same seed");
            }
        }
    }

    #[test]
    fn buckets_make_up_the_whole_model() {
        let tensors = tensors_of("lenet");
        for (payload, total) in PAYLOADS.iter().flat_map(|p| [1, 5, 8, 1 << 20].map(|t| (p, t))) {
            let lens = payload.buckets(total, &tensors, 1);
            assert_eq!(lens.iter().sum::<usize>(), total, "{}", payload.name);
            assert_eq!(lens.len(), tensors.len().min(total));
        }
    }

    #[test]
    fn uniform_sizes_are_alike_random_ones_depend_on_the_seed_and_skewed_ones_on_the_model() {
        let [lenet, mlp] = ["lenet", "mlp"].map(tensors_of);
        let of = |name: &str, tensors: &[usize], seed| find(name).unwrap().messages(4096, tensors, seed);
        assert_eq!(of("uniform", &lenet, 1), [4096]);
        assert_ne!(of("random", &lenet, 1), of("random", &lenet, 2));
        assert_eq!(of("random", &lenet, 1), of("random", &mlp, 1));
        assert_ne!(of("skewed", &lenet, 1), of("skewed", &mlp, 1));
        assert_eq!(of("skewed", &lenet, 1), of("skewed", &lenet, 2));
    }

    #[test]
    fn random_sizes_span_a_wide_range_and_skewed_ones_keep_the_proportions_of_the_tensors() {
        let tensors = tensors_of("lenet");
        let random = find("random").unwrap().messages(1 << 20, &tensors, 1);
        let (least, most) = (*random.iter().min().unwrap(), *random.iter().max().unwrap());
        assert!(most <= 64 * least && most > 16 * least, "{least} to {most}");
        let skewed = find("skewed").unwrap().messages(1 << 20, &tensors, 1);
        let factor = mean(&skewed) / mean(&tensors);
        for (len, tensor) in skewed.iter().zip(&tensors) {
            // At least one element each takes a few from the longest.
            assert!(
                (*len as f64 - factor * *tensor as f64).abs() <= tensors.len() as f64,
                "{len} for {tensor}"
            );
        }
    }
}
