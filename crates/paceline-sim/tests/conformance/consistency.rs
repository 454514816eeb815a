//! The consistency models of the parameter server: bounds, staleness, switching.

use paceline_protocol::{GradientScale, Setup};
use paceline_sim::{Costs, SimulationReport, SizesOnly, StartedStep, StepFactor, WorkCost, simulate};
use proptest::prelude::*;

use super::{Case, costs, make};

fn simulated(case: &Case, setup: &Setup, costs: &Costs) -> SimulationReport {
    simulate(setup, make(case.strategy, setup), costs, &mut SizesOnly, None, &[])
}

/// The greatest lead at a step's start. A step is finished when its computation is over; a worker without
/// further work is out of the race.
fn greatest_lead(setup: &Setup, costs: &Costs, report: &SimulationReport) -> u64 {
    let end = |s: &StartedStep| s.at + costs.step(s.rank, s.step);
    let lead = |s: &StartedStep| {
        let of = |r: usize| report.steps.iter().filter(move |t| t.rank == r);
        let finished = |r: usize| of(r).filter(|t| end(t) <= s.at).count();
        let racing = |&r: &usize| of(r).any(|t| end(t) > s.at);
        let slowest = (0..setup.workers).filter(racing).map(finished).min().unwrap_or(0) as u64;
        s.step.saturating_sub(slowest)
    };
    report.steps.iter().map(lead).max().unwrap_or(0)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_lead_at_a_steps_start_never_exceeds_the_bound(
        seed in any::<u64>(), bound in 0u64..5, more in 0u64..4, slow in 1u64..20,
    ) {
        let (s, both) = (bound.to_string(), format!("{bound},{}", bound + more));
        for (sync, options, most) in [
            ("ssp", vec![("staleness", s.as_str())], bound),
            ("essp", vec![("staleness", s.as_str())], bound),
            ("dssp", vec![("staleness-bounds", both.as_str())], bound + more),
            ("adaptive", vec![("staleness", s.as_str()), ("staleness-bounds", both.as_str())], bound + more),
        ] {
            let case = Case::new("ps", sync, &options);
            let setup = Setup { steps: Some(12), ..case.draw(seed) };
            let mut costs = costs(&setup, seed);
            costs.compute[0] *= slow;
            let report = simulated(&case, &setup, &costs);
            prop_assert!(report.stuck.is_empty());
            let lead = greatest_lead(&setup, &costs, &report);
            prop_assert!(lead <= most, "{sync}: a lead of {lead}, allowed {most}");
        }
    }

    #[test]
    fn under_asp_the_recorded_staleness_counts_the_updates_between_read_and_write(seed in any::<u64>()) {
        let case = Case::new("ps", "asp", &[]);
        let setup = Setup { steps: Some(8), servers: 1, ..case.draw(seed) };
        let report = simulated(&case, &setup, &costs(&setup, seed));
        let recorded = &report.staleness[setup.workers];
        prop_assert_eq!(recorded.len() as u64, setup.end() * setup.workers as u64);
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
fn last_pushes(setup: &Setup, report: &SimulationReport) -> Vec<usize> {
    let parts = report.arrivals.iter().map(|a| a.tag.bucket).max().map_or(1, |b| b as usize + 1);
    let mut seen = vec![0usize; setup.workers];
    let pushes = report.arrivals.iter().filter(|a| a.to == setup.workers && a.body);
    pushes
        .filter_map(|a| {
            seen[a.from] += 1;
            seen[a.from].is_multiple_of(parts).then_some(a.from)
        })
        .collect()
}

#[test]
fn eager_pushes_lower_the_observed_staleness_at_the_same_bound() {
    let (mut lazy, mut eager) = (0, 0);
    for seed in 0..200 {
        let mean = |sync, sum: &mut u64| {
            let case = Case::new("ps", sync, &[("staleness", "1")]);
            let setup = case.setup(Setup { steps: Some(12), servers: 3, workers: 5, ..case.draw(seed) });
            // Bytes cost nothing here: otherwise the eager ones delay the others.
            let costs = Costs { per_byte: 0.0, work: WorkCost::default(), ..costs(&setup, seed) };
            let report = simulated(&case, &setup, &costs);
            *sum += report.staleness.iter().flatten().sum::<u64>();
        };
        mean("ssp", &mut lazy);
        mean("essp", &mut eager);
    }
    assert!(eager < lazy, "{eager} of {lazy}");
}

#[test]
fn a_raised_bound_shortens_runs_whose_slowness_passes() {
    // Steps take up to seven times as long, at random: who waits at a bound of 1 waits for bad luck only.
    let took = |sync, options: &[(&str, &str)]| -> u64 {
        let case = Case::new("ps", sync, options);
        let setup = case.setup(Setup::new(4, 2, 40, 40));
        let costs = |seed| Costs { spread: 6.0, seed, ..Costs::constant(4, 1_000, 10, 0.0) };
        (0..20).map(|seed| simulated(&case, &setup, &costs(seed)).end).sum()
    };
    let ssp = took("ssp", &[("staleness", "1")]);
    let dssp = took("dssp", &[("staleness-bounds", "1,8")]);
    let adaptive = took("adaptive", &[("staleness", "1"), ("staleness-bounds", "1,8")]);
    let asp = took("asp", &[]);
    assert!(dssp < ssp && adaptive < ssp && asp < dssp.min(adaptive), "{ssp} {dssp} {adaptive} {asp}");
}

/// How the units of a run were weighted, by their step.
fn weights(report: &SimulationReport) -> Vec<(u64, GradientScale)> {
    let mut all: Vec<_> = report.steps.iter().map(|s| (s.unit.step, s.scale)).collect();
    all.sort_by_key(|(step, _)| *step);
    all
}

#[test]
fn a_switch_is_synchronous_before_its_fraction_and_asynchronous_after() {
    for (at, servers) in [("0", 1), ("0.25", 2), ("0.5", 3), ("1", 1)] {
        let case = Case::new("ps", "switch", &[("switch-at", at)]);
        let setup = case.setup(Setup { steps: Some(12), workers: 3, servers, ..case.draw(3) });
        let report = simulated(&case, &setup, &costs(&setup, 3));
        let from = (12.0 * at.parse::<f64>().unwrap()) as u64;
        for (step, scale) in weights(&report) {
            let want = if step < from { GradientScale::Part } else { GradientScale::Own };
            assert_eq!(scale, want, "switch({at}), step {step}");
        }
        // Every gradient is an update of its own, or one of p in a step without staleness.
        assert!(report.staleness[3..].iter().all(|s| s.len() == 36));
        assert!(report.staleness[3][..from as usize * 3].iter().all(|&s| s == 0));
    }
}

#[test]
fn the_greedy_policy_falls_to_single_pushes_while_a_straggler_lasts_and_returns() {
    for servers in [1, 3] {
        let case = Case::new("ps", "switch", &[("switch-at", "1"), ("straggler-policy", "greedy")]);
        let setup = case.setup(Setup { steps: Some(60), workers: 4, servers, ..case.draw(5) });
        let slow = |rank, step| if rank == 2 && (8..18).contains(&step) { 6.0 } else { 1.0 };
        let slowness = Some(StepFactor(std::sync::Arc::new(slow)));
        let costs = Costs { slowness, ..Costs::constant(4, 10_000, 20, 0.1) };
        let report = simulated(&case, &setup, &costs);
        assert!(report.stuck.is_empty());
        let weights = weights(&report);
        let single = |(_, scale): &(u64, GradientScale)| *scale == GradientScale::Own;
        let (first, last) = (weights.iter().position(single), weights.iter().rposition(single));
        let (first, last) = (weights[first.unwrap()].0, weights[last.unwrap()].0);
        // Five slow steps, from the eighth on, give it away; it ends by itself.
        assert!((12..=15).contains(&first), "single pushes from step {first}");
        assert!(
            last < 50 && weights[weights.len() - 1].1 == GradientScale::Part,
            "single pushes to step {last}"
        );
        let steps = weights.iter().filter(|w| !single(w)).map(|(step, _)| *step);
        let whole: std::collections::BTreeMap<u64, usize> =
            steps.fold(Default::default(), |mut all, step| {
                *all.entry(step).or_default() += 1;
                all
            });
        assert!(whole.values().all(|&shares| shares == 4), "a synchronous step has everybody: {whole:?}");
    }
}
