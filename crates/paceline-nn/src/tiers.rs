//! Where the layers of a network with early exits are computed: on devices, each with a view of its own, and on tiers
//! above them (a gateway, an edge, a cloud).
//!
//! A layer's name up to its first point says where: `device0.conv`, `local.scores`, `cloud.fc`.

use std::ops::Range;

use crate::graph::{Graph, ValueId};
use crate::layers::{Activation, Function, Op};
use crate::part::GraphPart;

/// A network as devices and the tiers above them.
#[derive(Clone, Debug)]
pub struct Tiers {
    /// The layers that cut the input into views, one for each device.
    pub views: GraphPart,
    /// How many of the tiers are devices.
    pub devices: usize,
    /// The devices, then the tiers above them from the lowest to the highest, each with an answer.
    pub tiers: Vec<Tier>,
}

/// A place that computes some layers.
#[derive(Clone, Debug)]
pub struct Tier {
    /// Its name.
    pub name: String,
    /// Its layers.
    pub part: GraphPart,
    /// What it is handed. A device is handed its view alone, from itself.
    pub reads: Vec<TierEdge>,
}

/// A value that one tier hands to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierEdge {
    /// The value.
    pub value: ValueId,
    /// Numbers of a sample.
    pub size: usize,
    /// Whether its numbers are 1 and −1 only: a bit each says it all.
    pub binary: bool,
    /// The tier that makes it.
    pub from: usize,
}

impl TierEdge {
    /// Bytes of the bodies of `samples` samples.
    pub fn bytes(&self, samples: usize) -> usize {
        if self.binary { (samples * self.size).div_ceil(8) } else { size_of::<f32>() * samples * self.size }
    }
}

impl Tier {
    /// What it answers: its last layer's output.
    pub fn answer(&self) -> ValueId {
        ValueId(self.part.nodes.end)
    }
}

impl Tiers {
    /// The tiers above the devices.
    pub fn upper(&self) -> &[Tier] {
        &self.tiers[self.devices..]
    }

    /// What a device hands to a tier above.
    pub fn from_device(&self, device: usize, upper: usize) -> impl Iterator<Item = TierEdge> {
        self.upper()[upper].reads.iter().copied().filter(move |edge| edge.from == device)
    }
}

impl Graph {
    /// The network as devices and tiers above them, or why it is none.
    pub fn tiers(&self) -> Result<Tiers, String> {
        let nodes = self.nodes();
        let is_view = |node: &&crate::graph::Node| {
            matches!(node.op, Op::ViewPart(_)) && node.inputs[0] == ValueId(0) && !node.relu
        };
        let devices = nodes.iter().take_while(is_view).count();
        let place = |i: usize| nodes[i].name.split('.').next().unwrap_or_default();
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for i in devices..nodes.len() {
            match ranges.last_mut() {
                Some(range) if place(range.start) == place(i) => range.end = i + 1,
                _ => ranges.push(i..i + 1),
            }
        }
        if devices == 0 || ranges.len() < devices + 2 {
            return Err(
                "it does not begin with views for devices, followed by the layers of each device and \
                        those of at least two tiers above them"
                    .into(),
            );
        }
        let cuts: Vec<usize> = ranges.iter().map(|range| range.start).collect();
        let mut parts = self.parts(&cuts).into_iter();
        let views = parts.next().ok_or("it has no layers")?;
        let mut tiers = Vec::new();
        for (tier, (range, part)) in ranges.iter().zip(parts).enumerate() {
            let mut reads: Vec<TierEdge> = Vec::new();
            let outside = |value: &&ValueId| value.0 <= range.start;
            for value in nodes[range.clone()].iter().flat_map(|node| &node.inputs).filter(outside) {
                let from = ranges.iter().position(|other| value.0 > 0 && other.contains(&(value.0 - 1)));
                let own_view = tier < devices && value.0 == tier + 1;
                let from = if own_view { Some(tier) } else { from.filter(|_| tier >= devices) };
                let from = from.ok_or_else(|| {
                    format!(
                        "`{}` reads what its place has not got: a device has its own view",
                        place(range.start)
                    )
                })?;
                if !reads.iter().any(|edge| edge.value == *value) {
                    let binary = !own_view && self.is_binary(*value);
                    reads.push(TierEdge { value: *value, size: self.shape(*value).size(), binary, from });
                }
            }
            let last = ValueId(range.end);
            let answers = last == self.last() || self.exits().iter().any(|exit| exit.value == last);
            if tier >= devices && !answers {
                return Err(format!("`{}` does not end with an exit", place(range.start)));
            }
            reads.sort_unstable_by_key(|edge| edge.value);
            tiers.push(Tier { name: place(range.start).to_owned(), part, reads });
        }
        if self.exits().len() + 1 != tiers.len() - devices {
            return Err("an exit is not the end of a tier above the devices".into());
        }
        Ok(Tiers { views, devices, tiers })
    }

    /// Whether a value's numbers are 1 and −1 only.
    fn is_binary(&self, value: ValueId) -> bool {
        let sign = Op::Activation(Activation { function: Function::Sign });
        value.0 > 0 && self.nodes()[value.0 - 1].op == sign
    }
}

/// The entropy of the softmax of scores, divided by the largest there can be: 0 where one class is certain, 1 where all
/// are alike.
pub fn normalised_entropy(scores: &[f32]) -> f64 {
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers = || scores.iter().map(|score| f64::from(score - largest));
    let sum: f64 = powers().map(f64::exp).sum();
    // −Σ p·ln p, with p = eˣ / sum.
    let entropy = sum.ln() - powers().map(|x| x * x.exp()).sum::<f64>() / sum;
    entropy / (scores.len() as f64).ln()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::Model;
    use crate::shape::Shape;

    fn ddnn(name: &str) -> Graph {
        let model = paceline_registry::Registry::<Model>::default().find(name).unwrap();
        model.build(Shape::new(28, 30, 1), 10).unwrap()
    }

    #[test]
    fn entropy_is_0_of_certainty_and_1_of_ignorance() {
        assert!((normalised_entropy(&[0.25; 7]) - 1.0).abs() < 1e-12);
        assert!(normalised_entropy(&[90.0, 0.0, 0.0]) < 1e-12);
        let p = [0.5f64, 0.25, 0.25];
        let scores = p.map(|p| (p.ln() + 3.0) as f32);
        let want = -p.iter().map(|p| p * p.ln()).sum::<f64>() / 3f64.ln();
        assert!((normalised_entropy(&scores) - want).abs() < 1e-6);
        assert!(normalised_entropy(&[f32::NAN, 0.0]).is_nan());
    }

    #[test]
    fn devices_hand_on_scores_as_numbers_and_features_as_bits() {
        for (name, above) in [("ddnn", &["local", "cloud"][..]), ("ddnn-edge", &["local", "edge", "cloud"])] {
            let tiers = ddnn(name).tiers().unwrap();
            assert_eq!(tiers.devices, 6);
            assert_eq!(tiers.upper().iter().map(|tier| tier.name.as_str()).collect::<Vec<_>>(), above);
            for device in 0..6 {
                let scores: Vec<_> = tiers.from_device(device, 0).collect();
                let features: Vec<_> = tiers.from_device(device, 1).collect();
                assert_eq!((scores.len(), scores[0].size, scores[0].binary), (1, 10, false));
                assert_eq!((features.len(), features[0].binary), (1, true));
                assert_eq!(scores[0].bytes(3), 120);
                assert_eq!(features[0].bytes(8), features[0].size);
                assert_eq!(tiers.tiers[device].reads.len(), 1);
            }
        }
    }

    #[test]
    fn a_network_without_tiers_says_why() {
        let lenet = paceline_registry::Registry::<Model>::default().find("lenet").unwrap();
        let error = lenet.build(Shape::new(28, 28, 1), 10).unwrap().tiers().unwrap_err();
        assert!(error.contains("views for devices"), "{error}");
    }
}
