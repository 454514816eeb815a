//! Several positions on one rank: S shares give the same numbers whoever computes them; and a worker that leaves ends
//! the run for everybody.

use paceline_protocol::{Averages, Outcome, Setup};
use paceline_random::{Purpose, Stream};
use paceline_sim::{Crash, SizesOnly, simulate};

use super::{Case, all, costs, make, numbers, run};

/// The cases that can spread their shares over fewer workers.
fn cases() -> Vec<Case> {
    let spreads = |case: &Case| {
        let servers = usize::from(case.strategy.servers);
        let setup = Setup { shares: Some(4), ..case.setup(Setup::new(2, servers, 100, 5)) };
        case.strategy.check(&setup).is_ok()
    };
    all().into_iter().filter(spreads).collect()
}

/// A drawn setup whose workers are positions, each on a host of its own, and the same with so many ranks.
fn spread(case: &Case, seed: u64, workers: usize) -> (Setup, Setup) {
    let whole = Setup { hosts: Vec::new(), ..case.draw(seed) };
    let hosted = Setup { shares: Some(whole.workers), workers: workers.min(whole.workers), ..whole.clone() };
    (whole, hosted)
}

#[test]
fn every_exact_path_and_synchronous_servers_spread_their_shares_and_nobody_else_does() {
    let mut names: Vec<_> = cases().iter().map(|case| case.strategy.name).collect();
    names.dedup();
    names.sort_unstable();
    names.dedup();
    let exact =
        ["auto", "direct", "halving-doubling", "hierarchical", "ps", "ring-allreduce", "ring-reduce", "tree"];
    assert_eq!(names, exact);
    assert!(cases().iter().all(|case| case.sync == "bsp" || case.options.0.contains_key("switch-at")));
    let with_codecs = cases().iter().filter(|case| case.coder.is_some()).count();
    assert!(with_codecs >= 20, "{with_codecs} cases with a codec");
}

#[test]
fn shares_give_the_parameters_of_as_many_workers_whoever_computes_them() {
    for case in cases() {
        for seed in 0..10 {
            for workers in 1..=8 {
                let (whole, hosted) = spread(&case, seed, workers);
                if workers > whole.workers {
                    break;
                }
                let (_, want) = run(&case, &whole, &costs(&whole, seed), None);
                let (report, got) = run(&case, &hosted, &costs(&hosted, seed), None);
                let name = format!("{} seed {seed}: {} on {workers}", case.name(), whole.workers);
                assert_eq!(report.stuck, [0usize; 0], "{name}");
                for (rank, got) in got.iter().enumerate() {
                    let position = hosted.positions(rank)[0];
                    assert!(*got == want[position], "{name}, rank {rank}");
                }
                let mut units: Vec<_> = report.steps.iter().map(|s| (s.unit.step, s.unit.share)).collect();
                units.sort_unstable();
                let all = (0..whole.end()).flat_map(|t| (0..whole.workers).map(move |share| (t, share)));
                assert_eq!(units, all.collect::<Vec<_>>(), "{name}");
                assert!(report.finished.iter().all(|steps| steps.len() as u64 == whole.end()), "{name}");
            }
        }
    }
}

#[test]
fn one_worker_with_all_shares_sends_nothing_without_servers() {
    for case in cases().into_iter().filter(|case| !case.strategy.servers) {
        let (_, hosted) = spread(&case, 1, 1);
        let (report, _) = run(&case, &hosted, &costs(&hosted, 1), None);
        assert_eq!(report.sent_bytes, [0], "{}", case.name());
    }
}

#[test]
fn with_several_positions_per_rank_every_crash_ends_the_run_or_is_named_by_every_survivor() {
    for case in cases() {
        let seeds = if case.coder.is_none() { 500 } else { 20 };
        for seed in 0..seeds {
            let s = Stream::new(seed, Purpose::Virtual).fork(12);
            let (_, setup) = spread(&case, seed, 1 + s.below(0, 4) as usize);
            let (name, costs) = (case.name(), costs(&setup, seed));
            let whole = simulate(&setup, make(case.strategy, &setup), &costs, &mut SizesOnly, None, &[]);
            assert_eq!(whole.stuck, [0usize; 0], "{name} seed {seed}: a deadlock");
            let crash = Crash {
                rank: s.below(1, setup.world() as u64) as usize,
                at: s.below(2, whole.end + 1),
                noticed_after: s.below(3, 5_000),
            };
            let (report, _) = run(&case, &setup, &costs, Some(crash));
            assert_eq!(report.stuck, [0usize; 0], "{name} seed {seed} {crash:?}");
            for (rank, outcome) in report.outcomes.iter().enumerate().filter(|(r, _)| *r != crash.rank) {
                let named = *outcome == Some(Outcome::Lost(crash.rank));
                assert!(
                    named || *outcome == Some(Outcome::Completed),
                    "{name} seed {seed}: {rank} {outcome:?}"
                );
            }
        }
    }
}

#[test]
fn a_worker_that_leaves_ends_an_open_run_for_everybody_who_all_name_it() {
    for case in all() {
        for seed in 0..20 {
            let s = Stream::new(seed, Purpose::Virtual).fork(13);
            let hosted = (case.strategy.check(&spread(&case, seed, 2).1).is_ok() && seed % 2 == 1)
                .then(|| spread(&case, seed, 2).1);
            let setup = Setup { steps: None, ..hosted.unwrap_or_else(|| case.draw(seed)) };
            let (name, costs) = (case.name(), costs(&setup, seed));
            let leaver = s.below(0, setup.workers as u64) as usize;
            let last = s.below(1, 12);
            let participants = make(case.strategy, &setup);
            let scratch = participants.iter().map(|p| p.scratch()).collect();
            let mut memory = numbers(&setup, scratch).leaving(leaver, last);
            let report = simulate(&setup, participants, &costs, &mut memory, None, &[]);
            assert_eq!(report.stuck, [0usize; 0], "{name} seed {seed}");
            for (rank, outcome) in report.outcomes.iter().enumerate() {
                let left = Outcome::Left { worker: leaver, before: last };
                assert_eq!(*outcome, Some(left), "{name} seed {seed}: rank {rank}");
                assert_eq!(memory.held(rank), 0, "{name} seed {seed}: every body is released");
            }
            // Where gradients are summed in steps that all make together, everybody has made those before the one that
            // was not computed. (Weights that are averaged may have had the own update of that step.)
            if case.averages == Averages::Gradients && case.strategy.path.is_some() {
                let end = Setup { steps: Some(last), ..setup.clone() };
                let (_, want) = run(&case, &end, &costs, None);
                for (rank, want) in want.iter().enumerate() {
                    assert!(memory.params(rank) == want, "{name} seed {seed}: rank {rank}");
                }
            }
        }
    }
}
