//! Equality: exact strategies are one worker with the whole batch, replicas are identical, and nothing
//! depends on timing that should not.

use paceline_protocol::{Input, Outcome, ReplicaAgreement, Setup, Strategy};
use paceline_random::{Purpose, Stream};
use paceline_sim::{Costs, SimulationReport, SizesOnly, simulate};

use super::{all, costs, make, numbers, run, start};

/// One worker that computes all shares itself, in f64.
fn reference(setup: &Setup) -> Vec<f64> {
    let mut params: Vec<f64> = start(setup.params).iter().map(|&p| f64::from(p)).collect();
    for step in 0..setup.end() {
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

pub fn norm(v: impl Iterator<Item = f64>) -> f64 {
    v.map(|x| x * x).sum::<f64>().sqrt()
}

#[test]
fn exact_strategies_equal_one_worker_with_the_whole_batch_and_replicas_are_identical() {
    let mut exact = 0;
    for case in all() {
        for seed in 0..100 {
            let setup = case.draw(seed);
            let agreement = case.agreement(&setup);
            if agreement == ReplicaAgreement::Apart {
                continue;
            }
            let (report, params) = run(&case, &setup, &costs(&setup, seed), None);
            assert_eq!(report.stuck, [0usize; 0], "{} seed {seed}", case.name());
            for rank in 0..setup.workers {
                assert!(params[rank] == params[0], "{} seed {seed}: replica {rank}", case.name());
            }
            if agreement != ReplicaAgreement::Exact {
                continue;
            }
            exact += 1;
            let (want, begin) = (reference(&setup), start(setup.params));
            let error = norm(params[0].iter().zip(&want).map(|(p, w)| f64::from(*p) - w));
            let moved = norm(begin.iter().zip(&want).map(|(b, w)| f64::from(*b) - w));
            assert!(error <= 1e-5 * moved, "{} seed {seed}: {error:e} of {moved:e}", case.name());
        }
    }
    assert!(exact > 1_000, "{exact} runs");
}

#[test]
fn one_worker_is_plain_gradient_descent_bit_for_bit_with_every_strategy() {
    for case in all().into_iter().filter(|case| case.coder.is_none()) {
        if case.options.0.get("outer").is_some_and(|outer| outer == "nesterov") {
            continue;
        }
        let setup = case.setup(Setup { workers: 1, steps: Some(9), ..case.draw(4) });
        let (_, params) = run(&case, &setup, &costs(&setup, 4), None);
        let mut want = start(setup.params);
        for step in 0..setup.end() {
            let mut grads = vec![0.0; setup.params];
            let unit = paceline_protocol::WorkUnit { step, share: 0 };
            super::gradient(1, unit, paceline_protocol::GradientScale::Part, &want, &mut grads);
            want.iter_mut().zip(grads).for_each(|(w, g)| *w -= g);
        }
        assert_eq!(params[0], want, "{}", case.name());
    }
}

#[test]
fn deterministic_results_do_not_depend_on_timing() {
    for case in all() {
        for seed in 0..40 {
            let setup = case.draw(seed);
            if !case.strategy.deterministic(&setup) {
                continue;
            }
            let (one, params) = run(&case, &setup, &costs(&setup, seed), None);
            let (two, again) = run(&case, &setup, &costs(&setup, seed + 1_000), None);
            assert_eq!(params, again, "{} seed {seed}", case.name());
            assert!(one.traces == two.traces, "{} seed {seed}: other actions", case.name());
        }
    }
}

#[test]
fn every_unit_of_work_is_done_exactly_once() {
    for case in all() {
        for seed in 0..60 {
            let setup = case.draw(seed);
            let (report, _) = run(&case, &setup, &costs(&setup, seed), None);
            let done = report.outcomes.iter().all(|o| *o == Some(Outcome::Completed));
            assert!(done, "{} seed {seed}: {:?}", case.name(), report.outcomes);
            let mut units: Vec<_> = report.steps.iter().map(|s| (s.unit.step, s.unit.share)).collect();
            units.sort_unstable();
            let want: Vec<_> =
                (0..setup.end()).flat_map(|t| (0..setup.workers).map(move |share| (t, share))).collect();
            assert_eq!(units, want, "{} seed {seed}", case.name());
        }
    }
}

#[test]
fn one_worker_moves_no_bytes_without_servers() {
    for case in all().into_iter().filter(|case| !case.strategy.servers) {
        let setup = case.setup(Setup { workers: 1, ..case.draw(1) });
        let (report, _) = run(&case, &setup, &costs(&setup, 1), None);
        assert_eq!(report.sent_bytes, [0], "{}", case.name());
    }
}

/// The end of one step with fixed costs and one bucket, and the bytes that each rank sent.
fn one_step(strategy: &Strategy, p: usize, n: usize) -> (u64, Vec<u64>) {
    let setup = Setup::new(p, 0, n, 1);
    let costs = Costs { header: 0, ..Costs::constant(p, 12_000, 5_000, 2.0) };
    let report = simulate(&setup, make(strategy, &setup), &costs, &mut SizesOnly, None, &[]);
    (report.end - 12_000, report.sent_bytes)
}

#[test]
fn collectives_take_the_time_and_bytes_of_their_formulas() {
    let alpha = 5_000;
    for p in [2usize, 4, 8] {
        let n = p * 1_000;
        let (whole, chunk) = (2 * 4 * n as u64, 2 * 4 * (n / p) as u64);
        let rounds = u64::from(p.ilog2());
        for (name, time) in [
            ("ring-allreduce", 2 * (p as u64 - 1) * (alpha + chunk)),
            ("ring-reduce", 2 * (p as u64 - 1) * (alpha + whole)),
            ("tree", 2 * rounds * (alpha + whole)),
            ("halving-doubling", 2 * rounds * alpha + 2 * (p as u64 - 1) * chunk),
        ] {
            let (took, bytes) = one_step(paceline_protocol::find(name).unwrap(), p, n);
            assert_eq!(took, time, "{name}, p = {p}");
            if ["ring-allreduce", "halving-doubling"].contains(&name) {
                assert!(bytes.iter().all(|&b| b == 2 * (p as u64 - 1) * 4 * (n / p) as u64), "{name}");
            }
        }
        // Outside the powers of two the remainder is folded in first and out last; the half that a partner sends
        // meanwhile takes the same way in, and holds the fold up.
        let (took, _) = one_step(paceline_protocol::find("halving-doubling").unwrap(), p + 1, n);
        let formula = 2 * rounds * alpha + 2 * (p as u64 - 1) * chunk + 2 * (alpha + whole);
        assert_eq!(took, formula + whole / 2, "p = {}", p + 1);
    }
}

#[test]
fn a_run_that_stops_goes_on_with_exactly_the_work_that_is_left_as_if_it_had_not() {
    for case in all() {
        for seed in 0..10 {
            let drawn = Setup { steps: Some(6), workers: 4, ..case.draw(seed) };
            let setup = case.setup(drawn);
            let (costs, name) = (costs(&setup, seed), case.name());
            let rest = Setup { from: 3, generation: setup.generation + 1, ..setup.clone() };
            let participants = make(case.strategy, &setup);
            let scratch = participants.iter().map(|p| p.scratch()).collect();
            let mut memory = numbers(&setup, scratch);
            let stop = [Input::StopAt(3)];
            let first = simulate(&setup, participants, &costs, &mut memory, None, &stop);
            let second = simulate(&rest, make(case.strategy, &rest), &costs, &mut memory, None, &[]);
            let units = |report: &SimulationReport| {
                let mut units: Vec<_> = report.steps.iter().map(|s| (s.unit.step, s.unit.share)).collect();
                units.sort_unstable();
                units
            };
            let all = |steps: std::ops::Range<u64>| -> Vec<_> {
                steps.flat_map(|step| (0..4).map(move |share| (step, share))).collect()
            };
            assert_eq!(units(&first), all(0..3), "{name}, seed {seed}");
            assert_eq!(units(&second), all(3..6), "{name}, seed {seed}");
            if setup.servers == 0 || setup.sync.is_bsp() {
                let (_, whole) = run(&case, &setup, &costs, None);
                for (rank, params) in whole.iter().enumerate() {
                    assert_eq!(memory.params(rank), params, "{name}, seed {seed}, rank {rank}");
                }
            }
        }
    }
}
