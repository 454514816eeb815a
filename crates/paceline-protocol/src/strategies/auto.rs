//! Automatic choice: each bucket takes the path that suits its bytes.

use super::{COLLECTIVE, Strategy, direct, halving_doubling, hierarchical, ring_allreduce, tree};
use crate::collective;
use crate::schedule::{CollectiveCall, CollectivePath, SizedPath};
use crate::topology::Topology;
use crate::vocabulary::Rank;

pub(super) const AUTO: Strategy = Strategy {
    name: "auto",
    about: "an exact path for each bucket, by its bytes, the workers, their hosts and the transport",
    detail: "Which path a bucket takes is decided when the run is planned, from the number of workers, the hosts that \
             they sit on (emulated ones too), the transport and the codec; the plan holds the choice, in `paths`. On \
             one host through memory: direct for up to 16 workers. Several workers on several hosts: hierarchical. \
             Two workers without a codec: direct. Up to 16 workers of one host without a codec: direct for buckets of \
             16 KiB and more. Otherwise halving-doubling for buckets below 64 KiB if the number of workers is a power \
             of two, tree below 16 KiB if it is none, and ring-allreduce for longer ones. With \
             `--calibration FILE`, up to 64 workers take the paths that are clearly the fastest in virtual time by it.",
    cost: "that of the path taken",
    good: "Whoever has not measured which path is the fastest.",
    bad: "Networks whose latency and bandwidth are far from those of ordinary ones: name a path, or a calibration.",
    make: |setup, rank| collective::make(PATH, setup, rank),
    links: |setup, rank| {
        let topology = setup.topology();
        let paths = rules(&setup.paths, &topology);
        let mut links: Vec<Rank> = paths.iter().flat_map(|sized| sized.path.peers(setup, rank)).collect();
        links.sort_unstable();
        links.dedup();
        links
    },
    path: Some(PATH),
    ..COLLECTIVE
};

const PATH: CollectivePath = CollectivePath {
    reduce: |rank, call| (pick(call).reduce)(rank, call),
    gather: |rank, call| (pick(call).gather)(rank, call),
};

/// The paths that are chosen from.
pub const AUTO_PATHS: &[&str] = &[
    ring_allreduce::RING_ALLREDUCE.name,
    halving_doubling::HALVING_DOUBLING.name,
    tree::TREE.name,
    direct::DIRECT.name,
    hierarchical::HIERARCHICAL.name,
];

const KIB: usize = 1024;

/// Most workers of one host that all send to each other, or read each other's memory.
const MOST_DIRECT: usize = 16;

/// The paths between positions that sit like that: for each the bytes of a bucket below which it is taken; the last
/// one takes what is left. `memory`: what they send stays in the memory of one host.
pub fn choose_paths(topology: &Topology, memory: bool, codec: bool) -> Vec<SizedPath> {
    let sized = |below_bytes: Option<usize>, strategy: &Strategy, path: CollectivePath| SizedPath {
        below_bytes,
        name: strategy.name,
        path,
    };
    let direct = || sized(None, &direct::DIRECT, direct::PATH);
    let p = topology.positions();
    let (one_host, one_each) = (topology.hosts() <= 1, topology.most_per_host() <= 1);
    if !one_host && !one_each {
        return vec![sized(None, &hierarchical::HIERARCHICAL, hierarchical::PATH)];
    }
    if memory && one_host && p <= MOST_DIRECT || p == 2 && !codec {
        return vec![direct()];
    }
    // Between processes of one host a message costs little, and each further hop waits for the slowest rank of the one before.
    let near = one_host && p <= MOST_DIRECT && !codec;
    let few_hops = match p.is_power_of_two() {
        true => {
            let below = if near { 16 * KIB } else { 64 * KIB };
            sized(Some(below), &halving_doubling::HALVING_DOUBLING, halving_doubling::PATH)
        }
        false => sized(Some(16 * KIB), &tree::TREE, tree::PATH),
    };
    if near {
        return vec![few_hops, direct()];
    }
    vec![few_hops, sized(None, &ring_allreduce::RING_ALLREDUCE, ring_allreduce::PATH)]
}

/// The given paths; where there are none, those of a network.
fn rules(given: &[SizedPath], topology: &Topology) -> Vec<SizedPath> {
    if given.is_empty() { choose_paths(topology, false, false) } else { given.to_vec() }
}

/// The path of a bucket.
fn pick(call: &CollectiveCall<'_>) -> CollectivePath {
    let paths = rules(call.paths, call.topology);
    let fits = |sized: &&SizedPath| sized.below_bytes.is_none_or(|below| call.bytes < below);
    paths.iter().find(fits).map_or(ring_allreduce::PATH, |sized| sized.path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Schedule;

    fn chosen(hosts: &[usize], memory: bool, codec: bool) -> Vec<(Option<usize>, &'static str)> {
        let paths = choose_paths(&Topology::of(hosts), memory, codec);
        paths.iter().map(|sized| (sized.below_bytes, sized.name)).collect()
    }

    #[test]
    fn the_choice_follows_workers_hosts_transport_and_codec() {
        let ring = (None, "ring-allreduce");
        let halving = (Some(65_536), "halving-doubling");
        let tree = (Some(16_384), "tree");
        let direct = [(None, "direct")];
        let apart = |p: usize| (0..p).collect::<Vec<_>>();
        assert_eq!(chosen(&[0; 2], true, false), direct);
        assert_eq!(chosen(&[0; 16], true, true), direct);
        assert_eq!(chosen(&[0; 32], true, false), [halving, ring]);
        assert_eq!(chosen(&[0; 17], true, false), [tree, ring]);
        assert_eq!(chosen(&[0; 2], false, false), direct);
        assert_eq!(chosen(&apart(2), true, false), direct);
        assert_eq!(chosen(&apart(2), false, true), [halving, ring]);
        let (near, direct_above) = ((Some(16_384), "halving-doubling"), (None, "direct"));
        assert_eq!(chosen(&[0; 4], false, false), [near, direct_above]);
        assert_eq!(chosen(&[0; 6], false, false), [tree, direct_above]);
        assert_eq!(chosen(&[0; 4], false, true), [halving, ring]);
        assert_eq!(chosen(&[0; 32], false, false), [halving, ring]);
        assert_eq!(chosen(&apart(4), true, false), [halving, ring]);
        assert_eq!(chosen(&apart(6), false, false), [tree, ring]);
        for (memory, codec) in [(true, true), (false, false)] {
            assert_eq!(chosen(&[0, 0, 1, 1], memory, codec), [(None, "hierarchical")]);
            assert_eq!(chosen(&[0, 0, 1], memory, codec), [(None, "hierarchical")]);
        }
    }

    #[test]
    fn a_bucket_takes_the_first_path_that_its_bytes_are_below() {
        let topology = Topology::apart(4);
        let paths = choose_paths(&topology, false, false);
        let schedule =
            |bytes| (PATH.reduce)(1, &CollectiveCall { topology: &topology, bytes, paths: &paths });
        let along = |path: CollectivePath| -> Schedule {
            (path.reduce)(1, &CollectiveCall { topology: &topology, bytes: 0, paths: &[] })
        };
        assert_eq!(schedule(65_535), along(halving_doubling::PATH));
        assert_eq!(schedule(65_536), along(ring_allreduce::PATH));
    }
}
