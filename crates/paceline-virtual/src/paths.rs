//! The paths of a plan's buckets by what a machine costs: each candidate is driven in virtual time.

use paceline_plan::{PathRule, Plan, TrainingLength};
use paceline_protocol::{AUTO, AUTO_PATHS, Setup};
use paceline_resolve::TypedPlan;
use paceline_sim::{PassPart, SizesOnly};
use paceline_train::{Layout, TensorLayout, worker};

use crate::price::{self, PassTiming, Terms};

/// Bytes of the buckets that are tried, from the least; each is four times the one before.
const LEAST_BYTES: usize = 4 << 10;
const MOST_BYTES: usize = 16 << 20;

/// Most workers for whom every path is tried: for more that would take longer than it is worth.
const MOST_WORKERS: usize = 64;

/// What another path must take at most, of the usual one's time, to be taken in its place: closer figures are within what
/// a calibration can tell.
const CLEARLY_LESS: f64 = 0.95;

/// The paths that take the least virtual time by `terms`, for buckets of any size. The plan's own (its rule of thumb) where
/// nothing is clearly faster, where the plan names a strategy, for more than 64 workers, with stages, and over several machines
/// whose network nobody has described.
pub fn calibrated_paths(plan: &Plan, terms: &Terms<'_>) -> Vec<PathRule> {
    let usual = &plan.paths;
    // A calibration knows nothing of what lies between machines: that is a network's, or a cluster's.
    let unknown = plan.network.is_none() && terms.cluster.is_none() && plan.host_count() > 1;
    let many = plan.workers > MOST_WORKERS || plan.stages > 1 || unknown;
    if plan.strategy != AUTO || usual.is_empty() || many {
        return usual.clone();
    }
    let sizes = std::iter::successors(Some(LEAST_BYTES), |bytes| Some(bytes * 4));
    let sizes: Vec<usize> = sizes.take_while(|bytes| *bytes <= MOST_BYTES).collect();
    let best: Vec<String> = sizes.iter().map(|bytes| best(plan, terms, *bytes)).collect();
    let mut rules: Vec<PathRule> = Vec::new();
    for (bytes, path) in sizes.iter().zip(best).rev() {
        match rules.last_mut() {
            Some(last) if last.path == path => {}
            // Between the two sizes that were tried, halfway along their logarithm.
            Some(_) => rules.push(PathRule { below_bytes: Some(2 * bytes), path }),
            None => rules.push(PathRule { below_bytes: None, path }),
        }
    }
    rules.reverse();
    rules
}

/// The path of a bucket of so many bytes.
fn best(plan: &Plan, terms: &Terms<'_>, bytes: usize) -> String {
    let fits = |rule: &&PathRule| rule.below_bytes.is_none_or(|below| bytes < below);
    let usual = plan.paths.iter().find(fits).map_or("ring-allreduce", |rule| &rule.path);
    let time = |path: &str| seconds(plan, terms, path, bytes);
    let limit = time(usual).map_or(f64::MAX, |usual| CLEARLY_LESS * usual);
    let others =
        AUTO_PATHS.iter().filter(|path| **path != usual).filter_map(|path| Some((time(path)?, *path)));
    let fastest = others.min_by(|a, b| a.0.total_cmp(&b.0));
    fastest.filter(|(time, _)| *time < limit).map_or(usual, |(_, path)| path).to_owned()
}

/// Virtual seconds of one exchange along a path; none if the plan cannot take it.
fn seconds(plan: &Plan, terms: &Terms<'_>, path: &str, bytes: usize) -> Option<f64> {
    let candidate = Plan {
        strategy: path.into(),
        paths: Vec::new(),
        straggler: None,
        script: None,
        work: TrainingLength::Steps(1),
        stop_after_step: None,
        ..plan.clone()
    };
    let typed = TypedPlan::new(&candidate, terms.registries).ok()?;
    let params = bytes / size_of::<f32>();
    let bucket = TensorLayout { name: "bucket".into(), shape: vec![params], range: 0..params };
    let layout = Layout { params, tensors: vec![bucket], ..Layout::default() };
    let setup = worker::setup(&typed, &layout, candidate.global_batch());
    let setup = Setup { bucket: params, ..setup };
    typed.strategy.check(&setup).ok()?;
    let timing = PassTiming {
        seconds: 0.0,
        data: 0.0,
        forward: 0.0,
        first: 0.0,
        parts: vec![PassPart { end: 1.0, announces: Some(0) }],
        quantiles: Vec::new(),
        sharing: Vec::new(),
    };
    let terms = Terms { jitter: Some(false), ..*terms };
    let costs = price::costs_of(&typed, [params; 2], &setup, &timing, None, &terms);
    let ranks = (0..setup.world()).map(|rank| typed.strategy.participant(&setup, rank)).collect();
    Some(paceline_sim::run(&setup, ranks, &costs, &mut SizesOnly).end as f64 * 1e-9)
}

#[cfg(test)]
mod tests {
    use paceline_plan::Value;
    use paceline_resolve::{PlanSettings, Registries, SettingTable, resolve};
    use paceline_wire::TRANSPORTS;

    use super::*;
    use crate::calibration::{Calibration, MedianEstimate, TransportCost};

    fn plan(words: &str) -> Plan {
        let mut settings = PlanSettings::new(&std::sync::Arc::new(SettingTable::new(Registries::default())));
        for word in words.split_whitespace() {
            let (name, value) = word.split_once('=').unwrap();
            settings.set(name, &Value::Text(value.into())).unwrap();
        }
        resolve(&settings).unwrap()
    }

    /// A machine on which a message over tcp takes `message_s` of each rank's time, and a byte `ns_per_byte`.
    fn machine(message_s: f64, ns_per_byte: f64) -> Calibration {
        let tcp = TRANSPORTS.iter().find(|kind| kind.name == "tcp").unwrap();
        let transport = TransportCost {
            message_s: MedianEstimate::round(message_s),
            ns_per_byte: MedianEstimate::round(ns_per_byte),
            ..TransportCost::unmeasured(tcp)
        };
        Calibration { transport: vec![transport], ..Calibration::defaults() }
    }

    fn chosen(plan: &Plan, calibration: &Calibration) -> Vec<PathRule> {
        let registries = Registries::default();
        let terms =
            Terms { registries: &registries, calibration: Some(calibration), cluster: None, jitter: None };
        calibrated_paths(plan, &terms)
    }

    #[test]
    fn a_machine_on_which_messages_are_dear_takes_few_hops_and_one_on_which_bytes_are_moves_few() {
        let plan = plan("workers=6 transport=tcp");
        let dear_messages = chosen(&plan, &machine(0.05, 0.01));
        // By rule, a tree takes buckets below 16 KiB.
        let PathRule { below_bytes, path } = &dear_messages[0];
        assert!(path == "tree" && below_bytes.is_none_or(|below| below > 16 << 10), "{dear_messages:?}");
        let dear_bytes = chosen(&plan, &machine(1e-9, 100.0));
        assert!(["ring-allreduce", "direct"].contains(&&*dear_bytes.last().unwrap().path), "{dear_bytes:?}");
        assert_eq!(
            (dear_bytes.last().unwrap().below_bytes, dear_messages.last().unwrap().below_bytes),
            (None, None)
        );
    }

    #[test]
    fn each_rule_is_the_fastest_at_the_sizes_that_were_tried() {
        let (plan, calibration, registries) =
            (plan("workers=5 transport=tcp"), machine(20e-6, 1.0), Registries::default());
        let rules = chosen(&plan, &calibration);
        let terms =
            Terms { registries: &registries, calibration: Some(&calibration), cluster: None, jitter: None };
        for bytes in [LEAST_BYTES, 256 << 10, MOST_BYTES] {
            let taken = rules.iter().find(|rule| rule.below_bytes.is_none_or(|below| bytes < below)).unwrap();
            let time = |path: &str| seconds(&plan, &terms, path, bytes).unwrap();
            for other in ["ring-allreduce", "tree", "direct"] {
                assert!(CLEARLY_LESS * time(&taken.path) <= time(other), "{bytes}: {taken:?} beside {other}");
            }
        }
    }

    #[test]
    fn a_named_path_large_clusters_and_networks_that_nobody_knows_keep_theirs() {
        for words in [
            "workers=4 strategy=tree transport=tcp",
            "workers=65 transport=tcp",
            "workers=4 hosts=2 transport=tcp",
        ] {
            let plan = plan(words);
            assert_eq!(chosen(&plan, &machine(0.05, 0.01)), plan.paths, "{words}");
        }
    }
}
