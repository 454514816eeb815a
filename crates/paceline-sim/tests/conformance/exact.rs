//! Equality: exact strategies are one worker with the whole batch, replicas are identical, and nothing
//! depends on timing that should not.

use paceline_conformance::checks;
use paceline_protocol::{Setup, Strategy};
use paceline_sim::{Costs, SizesOnly, simulate};

use super::{all, costs, make, run};

#[test]
fn exact_strategies_equal_one_worker_with_the_whole_batch_and_replicas_are_identical() {
    let exact: usize = all().iter().map(|case| checks::replicas_are_what_is_said(case, 100)).sum();
    assert!(exact > 1_000, "{exact} runs");
}

#[test]
fn one_worker_is_plain_gradient_descent_bit_for_bit_with_every_strategy() {
    all().iter().for_each(checks::one_worker_is_plain_gradient_descent);
}

#[test]
fn deterministic_results_do_not_depend_on_timing() {
    all().iter().for_each(|case| checks::timing_decides_nothing(case, 40, true));
}

#[test]
fn every_unit_of_work_is_done_exactly_once() {
    all().iter().for_each(|case| checks::every_unit_is_done_once(case, 60));
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
    all().iter().for_each(|case| checks::what_stops_goes_on_as_if_it_had_not(case, 10));
}
