//! Identities that every implementation must satisfy.

use paceline_protocol::{Averages, Setup};

use super::{Case, costs, norm, run, start};

/// Whether two cases end with the same parameters on every worker, bit for bit.
fn same(one: &Case, two: &Case, servers: usize) {
    for seed in 0..40 {
        let drawn = Setup { servers, steps: Some(7), ..one.draw(seed) };
        let (first, second) = (one.setup(drawn.clone()), two.setup(drawn));
        let costs = costs(&first, seed);
        let ((report, params), (again, others)) =
            (run(one, &first, &costs, None), run(two, &second, &costs, None));
        assert_eq!(
            params[..first.workers],
            others[..first.workers],
            "{} and {}, seed {seed}",
            one.name(),
            two.name()
        );
        assert_eq!(report.staleness, again.staleness, "{} and {}, seed {seed}", one.name(), two.name());
    }
}

#[test]
fn switch_1_is_bsp() {
    for servers in 1..=3 {
        same(&Case::new("ps", "switch", &[("switch-at", "1")]), &Case::new("ps", "bsp", &[]), servers);
    }
}

#[test]
fn switch_0_is_asp() {
    for servers in 1..=3 {
        same(&Case::new("ps", "switch", &[("switch-at", "0")]), &Case::new("ps", "asp", &[]), servers);
    }
}

#[test]
fn dssp_without_room_is_ssp() {
    // With one shard; with more, shard 0's word to the others takes its time, and arrivals shift.
    for s in ["0", "1", "3"] {
        let both = format!("{s},{s}");
        let dssp = Case::new("ps", "dssp", &[("staleness-bounds", &both)]);
        same(&dssp, &Case::new("ps", "ssp", &[("staleness", s)]), 1);
    }
}

#[test]
fn ssp_0_has_the_schedule_of_bsp() {
    for servers in 1..=3 {
        for seed in 0..40 {
            let (ssp, bsp) = (Case::new("ps", "ssp", &[("staleness", "0")]), Case::new("ps", "bsp", &[]));
            let drawn = Setup { servers, steps: Some(7), ..bsp.draw(seed) };
            for case in [ssp, bsp] {
                let setup = case.setup(drawn.clone());
                let (report, _) = run(&case, &setup, &costs(&setup, seed), None);
                // Nobody starts a step before everybody has started the one before.
                let mut steps = report.steps.clone();
                steps.sort_by_key(|s| s.at);
                for s in steps.iter().filter(|s| s.step > 0) {
                    let before = steps.iter().filter(|t| t.step + 1 == s.step && t.at < s.at).count();
                    assert_eq!(before, setup.workers, "{} seed {seed}", case.name());
                }
            }
        }
    }
}

#[test]
fn local_with_one_step_is_ring_allreduce() {
    let local = Case::new("local", "bsp", &[("local-steps", "1")]);
    let ring = Case { averages: Averages::Weights, ..Case::new("ring-allreduce", "bsp", &[]) };
    same(&local, &ring, 0);
    near(&local, &Case::new("ring-allreduce", "bsp", &[]));
}

#[test]
fn stepwise_that_syncs_in_every_step_is_ring_allreduce_of_weights() {
    let ring = Case { averages: Averages::Weights, ..Case::new("ring-allreduce", "bsp", &[]) };
    for variant in ["naive", "rotate", "random-start", "push-sum", "chunked"] {
        near(&Case::new("stepwise", "bsp", &[("variant", variant), ("sync-every", "1")]), &ring);
    }
}

/// Whether two cases end with the same parameters up to rounding.
fn near(one: &Case, two: &Case) {
    for seed in 0..40 {
        let drawn = Setup { steps: Some(7), ..one.draw(seed) };
        let (first, second) = (one.setup(drawn.clone()), two.setup(drawn));
        let costs = costs(&first, seed);
        let ((_, params), (_, others)) = (run(one, &first, &costs, None), run(two, &second, &costs, None));
        for rank in 0..first.workers {
            let wide = |v: &[f32]| v.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
            let (a, b, begin) = (wide(&params[rank]), wide(&others[rank]), wide(&start(first.params)));
            let error = norm(a.iter().zip(&b).map(|(a, b)| a - b));
            let moved = norm(b.iter().zip(&begin).map(|(b, s)| b - s));
            assert!(
                error <= 2e-6 * moved.max(1.0),
                "{} and {}, seed {seed}: {error:e}",
                one.name(),
                two.name()
            );
        }
    }
}
