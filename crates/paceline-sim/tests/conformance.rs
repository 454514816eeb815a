//! The conformance suite of strategies, in virtual time: every strategy in the registry must pass it.

use paceline_protocol::{Input, Outcome, STRATEGIES, Setup, Strategy, Sync, Unit};
use paceline_random::{Purpose, Stream};
use paceline_sim::{Costs, Crash, Nothing, Numbers, Report, Started, simulate};
use proptest::prelude::*;

fn sync(name: &str) -> Sync {
    match name {
        "bsp" => Sync::Bsp,
        "asp" => Sync::Asp,
        _ => Sync::Ssp(2),
    }
}

/// Every strategy with every consistency model that it has.
fn all() -> impl Iterator<Item = (&'static Strategy, Sync)> {
    STRATEGIES.iter().flat_map(|s| s.syncs.iter().map(move |name| (s, sync(name))))
}

/// A setup drawn from a seed: 1 to 8 workers, 1 to 3 servers, sizes that divide nothing evenly.
fn draw(strategy: &Strategy, sync: Sync, seed: u64) -> Setup {
    let s = Stream::new(seed, Purpose::Virtual).fork(9);
    Setup {
        workers: 1 + s.below(0, 8) as usize,
        servers: if strategy.servers { 1 + s.below(1, 3) as usize } else { 0 },
        params: 3 + s.below(2, 60) as usize,
        bucket: 1 + s.below(3, 40) as usize,
        message: 1 + s.below(4, 20) as usize,
        steps: 1 + s.below(5, 6),
        sync,
        generation: 3,
    }
}

fn costs(setup: &Setup, seed: u64) -> Costs {
    let s = Stream::new(seed, Purpose::Virtual).fork(10);
    Costs {
        compute: (0..setup.workers).map(|r| 500 + s.below(r as u64, 5_000)).collect(),
        latency: s.below(100, 2_000),
        per_byte: s.unit(101) * 10.0,
        per_element: s.unit(102),
        spread: 3.0 * s.unit(103),
        seed,
    }
}

/// A worker's gradient: its share's pull towards a point that belongs to the unit, over all shares.
fn gradient(workers: usize, unit: Unit, params: &[f32], grads: &mut [f32]) {
    let s = Stream::new(unit.step * 100 + unit.share as u64, Purpose::Bench);
    for (i, (g, p)) in grads.iter_mut().zip(params).enumerate() {
        *g = 0.2 * (p - s.uniform(i as u64, -1.0, 1.0) as f32) / workers as f32;
    }
}

fn start(params: usize) -> Vec<f32> {
    (0..params).map(|i| (i as f32 * 0.37).sin()).collect()
}

/// Runs with real numbers; the report and each rank's parameters.
fn run(strategy: &Strategy, setup: &Setup, costs: &Costs, crash: Option<Crash>) -> (Report, Vec<Vec<f32>>) {
    let participants: Vec<_> = (0..setup.world()).map(|r| (strategy.make)(setup, r)).collect();
    let scratch = participants.iter().map(|p| p.scratch()).collect();
    let workers = setup.workers;
    let mut memory = Numbers::new(&start(setup.params), scratch, |_, unit, p: &[f32], g: &mut [f32]| {
        gradient(workers, unit, p, g)
    });
    let report = simulate(setup, participants, costs, &mut memory, crash, &[]);
    if crash.is_none() {
        assert!((0..setup.world()).all(|r| memory.held(r) == 0), "{}: every body is released", strategy.name);
    }
    let params = (0..setup.world()).map(|r| memory.params(r).to_vec()).collect();
    (report, params)
}

/// One worker that computes all shares itself, in f64.
fn reference(setup: &Setup) -> Vec<f64> {
    let mut params: Vec<f64> = start(setup.params).iter().map(|&p| f64::from(p)).collect();
    for step in 0..setup.steps {
        let mut sum = vec![0.0; setup.params];
        for share in 0..setup.workers {
            let s = Stream::new(step * 100 + share as u64, Purpose::Bench);
            for (i, g) in sum.iter_mut().enumerate() {
                *g += 0.2 * (params[i] - f64::from(s.uniform(i as u64, -1.0, 1.0) as f32))
                    / setup.workers as f64;
            }
        }
        params.iter_mut().zip(sum).for_each(|(p, g)| *p -= g);
    }
    params
}

#[test]
fn synchronous_runs_equal_one_worker_with_the_whole_batch_and_replicas_are_identical() {
    for (strategy, sync) in all().filter(|(s, sync)| s.deterministic(*sync)) {
        for seed in 0..200 {
            let setup = draw(strategy, sync, seed);
            let (report, params) = run(strategy, &setup, &costs(&setup, seed), None);
            assert_eq!(report.stuck, [0usize; 0], "{} seed {seed}", strategy.name);
            let (want, begin) = (reference(&setup), start(setup.params));
            for rank in 0..setup.workers {
                assert_eq!(params[rank], params[0], "{} seed {seed}: replica {rank}", strategy.name);
            }
            let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
            let error = norm(&mut params[0].iter().zip(&want).map(|(p, w)| f64::from(*p) - w));
            let moved = norm(&mut begin.iter().zip(&want).map(|(b, w)| f64::from(*b) - w));
            assert!(error <= 1e-5 * moved, "{} seed {seed}: {error:e} of {moved:e}", strategy.name);
        }
    }
}

#[test]
fn synchronous_results_do_not_depend_on_timing() {
    for (strategy, sync) in all().filter(|(s, sync)| s.deterministic(*sync)) {
        for seed in 0..50 {
            let setup = draw(strategy, sync, seed);
            let (one, params) = run(strategy, &setup, &costs(&setup, seed), None);
            let (two, again) = run(strategy, &setup, &costs(&setup, seed + 1_000), None);
            assert_eq!(params, again, "{} seed {seed}", strategy.name);
            assert_eq!(one.traces, two.traces, "{} seed {seed}", strategy.name);
        }
    }
}

#[test]
fn every_unit_of_work_is_done_exactly_once() {
    for (strategy, sync) in all() {
        for seed in 0..100 {
            let setup = draw(strategy, sync, seed);
            let (report, _) = run(strategy, &setup, &costs(&setup, seed), None);
            assert!(
                report.outcomes.iter().all(|o| *o == Some(Outcome::Completed)),
                "{} seed {seed}",
                strategy.name
            );
            let mut units: Vec<_> = report.steps.iter().map(|s| (s.unit.step, s.unit.share)).collect();
            units.sort_unstable();
            let want: Vec<_> =
                (0..setup.steps).flat_map(|t| (0..setup.workers).map(move |share| (t, share))).collect();
            assert_eq!(units, want, "{} {sync:?} seed {seed}", strategy.name);
        }
    }
}

#[test]
fn with_a_crash_every_run_ends_or_every_survivor_names_the_lost_rank() {
    for (strategy, sync) in all() {
        for seed in 0..500 {
            let setup = draw(strategy, sync, seed);
            let costs = costs(&setup, seed);
            let whole = simulate(&setup, make(strategy, &setup), &costs, &mut Nothing, None, &[]);
            assert_eq!(whole.stuck, [0usize; 0], "{} {sync:?} seed {seed}: a deadlock", strategy.name);
            let s = Stream::new(seed, Purpose::Virtual).fork(11);
            let crash = Crash {
                rank: s.below(0, setup.world() as u64) as usize,
                at: s.below(1, whole.end + 1),
                noticed_after: s.below(2, 5_000),
            };
            let (report, _) = run(strategy, &setup, &costs, Some(crash));
            assert_eq!(report.stuck, [0usize; 0], "{} {sync:?} seed {seed} {crash:?}", strategy.name);
            for (rank, outcome) in report.outcomes.iter().enumerate().filter(|(r, _)| *r != crash.rank) {
                let fine = matches!(outcome, Some(Outcome::Completed))
                    || *outcome == Some(Outcome::Lost(crash.rank));
                assert!(fine, "{} {sync:?} seed {seed} {crash:?}: rank {rank} {outcome:?}", strategy.name);
            }
        }
    }
}

fn make(strategy: &Strategy, setup: &Setup) -> Vec<Box<dyn paceline_protocol::Participant>> {
    (0..setup.world()).map(|r| (strategy.make)(setup, r)).collect()
}

#[test]
fn one_worker_moves_no_bytes_in_a_collective() {
    for strategy in STRATEGIES.iter().filter(|s| s.schedule.is_some()) {
        let setup = Setup { workers: 1, ..draw(strategy, Sync::Bsp, 1) };
        let (report, _) = run(strategy, &setup, &costs(&setup, 1), None);
        assert_eq!(report.sent_bytes, [0], "{}", strategy.name);
    }
}

#[test]
fn ring_allreduce_takes_the_time_and_bytes_of_its_formula() {
    let strategy = paceline_protocol::find("ring-allreduce").unwrap();
    for p in [2usize, 4, 8] {
        let n = p * 1_000;
        let setup = Setup {
            workers: p,
            servers: 0,
            params: n,
            bucket: n,
            message: n,
            steps: 1,
            sync: Sync::Bsp,
            generation: 0,
        };
        let costs = Costs::constant(p, 12_000, 5_000, 2.0);
        let report = simulate(&setup, make(strategy, &setup), &costs, &mut Nothing, None, &[]);
        let round = 5_000 + costs.transfer(n / p);
        assert_eq!(report.end, 12_000 + 2 * (p as u64 - 1) * round, "p = {p}");
        assert!(report.sent_bytes.iter().all(|&b| b == (2 * (p - 1) * 4 * n / p) as u64), "p = {p}");
    }
}

#[test]
fn a_run_goes_on_from_a_snapshot_as_if_it_had_not_stopped() {
    for strategy in STRATEGIES.iter().filter(|s| s.schedule.is_some()) {
        let setup = Setup { steps: 6, ..draw(strategy, Sync::Bsp, 7) };
        let costs = costs(&setup, 7);
        let stop = [Input::StopAt(3), Input::Snapshot];
        let first = simulate(&setup, make(strategy, &setup), &costs, &mut Nothing, None, &stop);
        assert!(first.steps.iter().all(|s| s.step < 3));
        let mut again = make(strategy, &setup);
        again.iter_mut().for_each(|p| p.restore(&[3]));
        let second = simulate(&setup, again, &costs, &mut Nothing, None, &[]);
        let steps: Vec<u64> = second.steps.iter().filter(|s| s.rank == 0).map(|s| s.step).collect();
        assert_eq!(steps, [3, 4, 5], "{}", strategy.name);
        assert!(first.snapshots.iter().all(|s| s == &[vec![0]]), "{}", strategy.name);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn under_ssp_the_lead_at_a_steps_start_never_exceeds_the_bound(
        seed in any::<u64>(), bound in 0u64..5, slow in 1u64..20,
    ) {
        let strategy = paceline_protocol::find("ps").unwrap();
        let setup = Setup { sync: Sync::Ssp(bound), steps: 12, ..draw(strategy, Sync::Asp, seed) };
        let mut costs = costs(&setup, seed);
        costs.compute[0] *= slow;
        let report = simulate(&setup, make(strategy, &setup), &costs, &mut Nothing, None, &[]);
        prop_assert!(report.stuck.is_empty());
        // A step is finished when its computation is over; a worker without further work is out of the race.
        let end = |s: &Started| s.at + costs.step(s.rank, s.step);
        for s in &report.steps {
            let of = |r: usize| report.steps.iter().filter(move |t| t.rank == r);
            let finished = |r: usize| of(r).filter(|t| end(t) <= s.at).count();
            let racing = |&r: &usize| of(r).any(|t| end(t) > s.at);
            let slowest = (0..setup.workers).filter(racing).map(finished).min().unwrap_or(0) as u64;
            prop_assert!(s.step <= slowest + bound, "worker {} starts {} at {slowest}", s.rank, s.step);
        }
    }

    #[test]
    fn under_asp_the_recorded_staleness_counts_the_updates_between_read_and_write(seed in any::<u64>()) {
        let strategy = paceline_protocol::find("ps").unwrap();
        let setup = Setup { steps: 8, servers: 1, ..draw(strategy, Sync::Asp, seed) };
        let report = simulate(&setup, make(strategy, &setup), &costs(&setup, seed), &mut Nothing, None, &[]);
        let recorded = &report.staleness[setup.workers];
        prop_assert_eq!(recorded.len() as u64, setup.steps * setup.workers as u64);
        // With one shard, versions are given out in the order of the updates: worker w's n-th update is the
        // k-th of all, it read the version after its (n − 1)-th (or none), and was stale by what lies between.
        let order: Vec<usize> = last_pushes(&setup, &report);
        prop_assert_eq!(order.len(), recorded.len());
        let mut read = vec![0u64; setup.workers];
        for (k, (&worker, &stale)) in order.iter().zip(recorded).enumerate() {
            prop_assert_eq!(stale, k as u64 - read[worker], "update {} by worker {}", k, worker);
            read[worker] = k as u64 + 1;
        }
        if setup.workers == 1 {
            prop_assert!(recorded.iter().all(|&s| s == 0));
        }
    }
}

/// The workers in the order in which the last part of each of their pushes arrived at the only server.
fn last_pushes(setup: &Setup, report: &Report) -> Vec<usize> {
    let parts = report.arrivals.iter().map(|a| a.tag.bucket).max().map_or(1, |b| usize::from(b) + 1);
    let mut seen = vec![0usize; setup.workers];
    let pushes = report.arrivals.iter().filter(|a| a.to == setup.workers && a.body);
    pushes
        .filter_map(|a| {
            seen[a.from] += 1;
            seen[a.from].is_multiple_of(parts).then_some(a.from)
        })
        .collect()
}
