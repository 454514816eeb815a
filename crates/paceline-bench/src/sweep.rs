//! Which points a benchmark measures, and in which order.

use paceline_analyze::distinct;
use paceline_launch::run;
use paceline_nn::models::Model;
use paceline_plan::PlanError;
use paceline_random::{Purpose, Stream};
use paceline_record::Machine;
use paceline_registry::Registry;
use paceline_wire::TransportKind;

use crate::document::BenchDocument;
use crate::payload::Payload;

/// What every benchmark of many points is told.
pub struct SweepRules {
    /// Transports and buffers.
    pub over: ChannelAxes,
    /// How sizes are distributed.
    pub payloads: Vec<&'static Payload>,
    /// The model whose tensors are the skewed sizes.
    pub model: &'static Model,
    /// Repeats of each point.
    pub repeats: usize,
    /// Seconds per repeat, roughly.
    pub seconds: f64,
    /// Seed of the order and of random sizes.
    pub seed: u64,
}

impl SweepRules {
    /// What was measured by these rules.
    pub(crate) fn document<P>(
        &self,
        bench: &str,
        load_average: f64,
        left_out: Vec<String>,
        points: Vec<P>,
    ) -> BenchDocument<P> {
        BenchDocument {
            bench: bench.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            machine: Machine::here(),
            load_average,
            pairs: None,
            repeats: self.repeats,
            seconds: self.seconds,
            seed: self.seed,
            model: self.model.name.into(),
            payloads: self.payloads.iter().map(|payload| payload.scheme()).collect(),
            left_out: distinct(left_out),
            points,
        }
    }
}

/// A transport and the bytes of its buffers.
pub type Combination = (String, Option<usize>);

/// What ranks talk over: transports and the sizes of their buffers.
#[derive(Clone, Debug)]
pub struct ChannelAxes {
    /// Names; all that there are if empty.
    pub transports: Vec<String>,
    /// Bytes of each connection's buffer; the transport's own choice if absent.
    pub buffers: Vec<Option<usize>>,
}

impl ChannelAxes {
    /// Every transport with every buffer, and what was left out and why. Only what was not asked for by name
    /// is left out; the rest is refused.
    pub fn combinations(
        &self,
        registry: &Registry<TransportKind>,
    ) -> Result<(Vec<Combination>, Vec<String>), PlanError> {
        let named = !self.transports.is_empty();
        let all = || registry.iter().map(|kind| kind.name.to_owned()).collect();
        let transports: Vec<String> = if named { self.transports.clone() } else { all() };
        let (mut combinations, mut left_out) = (Vec::new(), Vec::new());
        for transport in &transports {
            for &buffer in &self.buffers {
                match run::transport(registry, transport, buffer) {
                    Ok(_) => combinations.push((transport.clone(), buffer)),
                    Err(error) if !named && registry.find(transport).is_some_and(|k| k.buffer.is_none()) => {
                        left_out.push(error.problem);
                    }
                    Err(error) => return Err(PlanError { flag: error.flag + "s", ..error }),
                }
            }
        }
        left_out.dedup();
        if combinations.is_empty() {
            let names = transports.join(",");
            let problem = "nothing is left to measure".into();
            return Err(PlanError { flag: "--transport".into(), value: names, problem });
        }
        Ok((combinations, left_out))
    }
}

/// The order in which points are measured: each repeat goes through all of them once, every time in another
/// order, so that what changes while everything is measured does not hit one point alone.
pub fn order(seed: u64, points: usize, repeats: usize) -> Vec<usize> {
    let draws = Stream::new(seed, Purpose::Bench);
    let repeat = |r: usize| draws.fork(r as u64).permutation(points).into_iter().map(|i| i as usize);
    (0..repeats).flat_map(repeat).collect()
}

/// How far a benchmark has come.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// What has been done.
    pub done: usize,
    /// What there is to do.
    pub total: usize,
    /// What is next.
    pub next: &'a str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_repeat_goes_through_all_points_in_an_order_of_its_own() {
        let order = order(1, 20, 3);
        for repeat in order.chunks(20) {
            let mut sorted = repeat.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..20).collect::<Vec<_>>());
        }
        assert_ne!(order[..20], order[20..40]);
        assert_eq!(order, super::order(1, 20, 3));
        assert_ne!(order, super::order(2, 20, 3));
    }

    #[test]
    fn what_cannot_be_is_left_out_by_default_and_refused_by_name() {
        let (buffers, registry) = (vec![None, Some(64 << 10)], Registry::default());
        let (all, left_out) =
            ChannelAxes { transports: Vec::new(), buffers: buffers.clone() }.combinations(&registry).unwrap();
        assert!(all.contains(&("inproc".into(), None)) && all.contains(&("tcp".into(), Some(64 << 10))));
        assert!(!all.contains(&("inproc".into(), Some(64 << 10))));
        assert!(left_out.iter().any(|reason| reason.contains("inproc has no buffer")), "{left_out:?}");
        let error =
            ChannelAxes { transports: vec!["inproc".into()], buffers }.combinations(&registry).unwrap_err();
        assert_eq!(error.flag, "--buffers");
        let only = ChannelAxes { transports: Vec::new(), buffers: vec![Some(100)] };
        assert!(only.combinations(&registry).unwrap_err().problem.contains("between 4KiB and 1GiB"));
    }
}
