//! Step-wise averaging: its mixing matrices, its period and its noise are the ones that its definition
//! gives, computed here directly.

use paceline_protocol::{GradientScale, Setup, WorkUnit};
use paceline_random::{Purpose, Stream};
use paceline_sim::{Costs, NumericMemory, SizesOnly, StartedStep, simulate};

use super::{Case, make};

const VARIANTS: [&str; 6] = ["naive", "rotate", "random-start", "push-sum", "periodic", "chunked"];

/// Where a step's wave of a chunk starts, by the definition.
fn start(setup: &Setup, step: u64, chunk: usize) -> usize {
    let (p, option) = (setup.workers, |name: &str| setup.options.0[name].as_str());
    let first = match option("start") {
        "fixed" => 0,
        "rotate+1" => step as usize % p,
        "rotate-1" => (p - step as usize % p) % p,
        _ => Stream::new(setup.seed, Purpose::Protocol).below(step, p as u64) as usize,
    };
    (first + if option("path") == "chunked" { chunk } else { 0 }) % p
}

fn together(setup: &Setup, step: u64) -> bool {
    let every: u64 = setup.options.0["sync-every"].parse().unwrap();
    every > 0 && (step + 1).is_multiple_of(every)
}

/// The matrix by which a step mixes the workers' weights: row = who, column = whose.
fn matrix(setup: &Setup, step: u64, chunk: usize) -> Vec<Vec<f64>> {
    let (p, first) = (setup.workers, start(setup, step, chunk));
    let push_sum = setup.options.0["debias"] == "push-sum";
    let mut rows = vec![vec![0.0; p]; p];
    for k in 0..p {
        for j in 0..=k {
            let weight = if push_sum { 1.0 / (p - j) as f64 } else { 1.0 / (k + 1) as f64 };
            rows[(first + k) % p][(first + j) % p] = weight;
        }
    }
    if together(setup, step) { vec![vec![1.0 / p as f64; p]; p] } else { rows }
}

fn setup(options: &[(&str, &str)], p: usize, params: usize, steps: u64) -> (Case, Setup) {
    let case = Case::new("stepwise", "bsp", options);
    let setup = case.setup(Setup { seed: 11, ..Setup::new(p, 0, params, steps) });
    (case, setup)
}

/// Runs with gradients that the caller gives; every worker's parameters.
fn impulses(case: &Case, setup: &Setup, mut impulse: impl FnMut(usize, u64, &mut [f32])) -> Vec<Vec<f32>> {
    let participants = make(case.strategy, setup);
    let scratch = participants.iter().map(|p| p.scratch()).collect();
    let gradient = |rank, unit: WorkUnit, _: GradientScale, _: &[f32], grads: &mut [f32]| {
        grads.fill(0.0);
        impulse(rank, unit.step, grads);
    };
    let mut memory = NumericMemory::new(&vec![0.0; setup.params], scratch, gradient);
    let costs = Costs::constant(setup.workers, 5_000, 1_000, 0.0);
    simulate(setup, participants, &costs, &mut memory, None, &[]);
    (0..setup.workers).map(|r| memory.params(r).to_vec()).collect()
}

#[test]
fn the_mixing_matrices_are_those_of_the_definition() {
    for variant in VARIANTS.iter().map(|v| vec![("variant", *v)]).chain([
        vec![("variant", "rotate"), ("start", "rotate-1")],
        vec![("variant", "chunked"), ("debias", "push-sum")],
        vec![("variant", "push-sum"), ("sync-every", "3")],
    ]) {
        for p in [1usize, 2, 4, 7] {
            for last in 0..9 {
                // Everything is zero until, in the last step, worker r moves to the unit vector r of each
                // chunk: what it has after mixing is its row.
                let (case, setup) = setup(&variant, p, p * p, last + 1);
                let params = impulses(&case, &setup, |rank, step, grads| {
                    if step == last {
                        grads.iter_mut().skip(rank).step_by(p).for_each(|g| *g = -1.0);
                    }
                });
                for chunk in 0..p {
                    // Push-sum's parameters are x/w, w being what the ones before made of it; what a worker
                    // spreads is w times where it has moved to.
                    let (mut w, mut before) = (vec![1.0; p], vec![1.0; p]);
                    for step in 0..=last {
                        if setup.options.0["debias"] == "push-sum" {
                            let m = matrix(&setup, step, chunk);
                            before.clone_from(&w);
                            w = m.iter().map(|row| row.iter().zip(&w).map(|(a, w)| a * w).sum()).collect();
                        }
                    }
                    for (r, row) in matrix(&setup, last, chunk).iter().enumerate() {
                        for (j, want) in row.iter().enumerate() {
                            let want = want * before[j];
                            let is = f64::from(params[r][chunk * p + j]) * w[r];
                            assert!(
                                (is - want).abs() < 1e-5,
                                "{variant:?} p = {p} step {last}: [{r}][{j}] {is} {want}"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn prefix_means_are_row_stochastic_push_sum_is_column_stochastic_and_naives_first_row_is_its_own() {
    for variant in VARIANTS {
        let (_, setup) = setup(&[("variant", variant)], 6, 36, 10);
        for step in 0..7 {
            let m = matrix(&setup, step, 2);
            let sums: Vec<f64> = match variant {
                "push-sum" => (0..6).map(|j| m.iter().map(|row| row[j]).sum()).collect(),
                _ => m.iter().map(|row| row.iter().sum()).collect(),
            };
            assert!(sums.iter().all(|s| (s - 1.0).abs() < 1e-12), "{variant} {sums:?}");
        }
    }
    let (_, setup) = setup(&[("variant", "naive")], 6, 36, 10);
    assert_eq!(matrix(&setup, 3, 0)[0], [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
}

/// When each worker begins each step, by the definition: (rank, step) → time, for one wave per step.
fn direct_starts(setup: &Setup, compute: u64, hop: u64) -> Vec<Vec<u64>> {
    let p = setup.workers;
    let mut begin = vec![0; p];
    let mut all = Vec::new();
    for step in 0..setup.end() {
        all.push(begin.clone());
        let (first, mut before) = (start(setup, step, 0), 0);
        let mut next = begin.clone();
        for k in 0..p {
            let r = (first + k) % p;
            let ready = begin[r] + compute;
            next[r] = if k == 0 { ready } else { ready.max(before + hop) };
            before = next[r];
        }
        begin = next;
    }
    all.push(begin);
    all
}

#[test]
fn periods_are_those_of_the_direct_computation() {
    // Hop 1, compute 5: the period per iteration over 300 of them.
    let mut periods = Vec::new();
    for p in [4, 16, 64] {
        for start in ["fixed", "rotate+1", "rotate-1", "random"] {
            let (case, setup) = setup(&[("path", "wave"), ("start", start)], p, 8, 300);
            let costs = Costs::constant(p, 5_000, 1_000, 0.0);
            let report = simulate(&setup, make(case.strategy, &setup), &costs, &mut SizesOnly, None, &[]);
            let want = direct_starts(&setup, 5_000, 1_000);
            let wrong = |s: &&StartedStep| s.at != want[s.step as usize][s.rank];
            assert_eq!(report.steps.iter().find(wrong), None, "p = {p}, {start}");
            periods.push((p, start, *want[300].iter().max().unwrap() as f64 / 300.0 / 1_000.0));
        }
    }
    // The design's figures at p = 64: 5.2, 6.2, 68 and 36.
    let at_64: Vec<f64> = periods.iter().filter(|(p, ..)| *p == 64).map(|(.., period)| *period).collect();
    for (is, want) in at_64.iter().zip([5.2, 6.2, 68.0, 36.0]) {
        assert!((is - want).abs() < 0.05 * want, "{periods:?}");
    }
}

#[test]
fn noise_of_the_fleet_mean_is_that_of_the_direct_computation() {
    // Each worker's gradient of each step has a place of its own: what the fleet's mean in the end owes to
    // it. Exact averaging owes 1/p to each; the noise is the sum of squares, times p.
    let steps = 40;
    for p in [4usize, 16, 64] {
        let mut noises = Vec::new();
        for options in [
            vec![("start", "fixed")],
            vec![("start", "rotate+1")],
            vec![("start", "rotate-1")],
            vec![("start", "random")],
            vec![("start", "fixed"), ("sync-every", "1")],
        ] {
            let (case, setup) = setup(&options, p, p * steps, steps as u64);
            let params = impulses(&case, &setup, |rank, step, grads| grads[step as usize * p + rank] = -1.0);
            let mean = |i: usize| params.iter().map(|x| f64::from(x[i])).sum::<f64>() / p as f64;
            let noise = (0..p * steps).map(|i| mean(i).powi(2)).sum::<f64>() * p as f64 / steps as f64;
            // Directly: from the last step back, what a step's contributions will count.
            let (mut count, mut direct) = (vec![1.0 / p as f64; p], 0.0);
            for step in (0..steps as u64).rev() {
                let m = matrix(&setup, step, 0);
                count = (0..p).map(|j| (0..p).map(|r| count[r] * m[r][j]).sum()).collect();
                direct += count.iter().map(|c| c * c).sum::<f64>() * p as f64 / steps as f64;
            }
            assert!((noise - direct).abs() < 1e-3 * direct, "p = {p} {options:?}: {noise} {direct}");
            noises.push(noise);
        }
        let [fixed, forward, backward, random, exact] = noises[..] else { unreachable!() };
        assert!((exact - 1.0).abs() < 1e-4, "an exact average has noise 1: {exact}");
        assert!(fixed > 0.8 * p as f64, "the fleet follows the start worker: {fixed}");
        assert!(fixed > forward && forward > 1.0 && backward > 1.0 && random > 1.0, "{noises:?}");
        if p == 64 {
            assert!(forward > backward && backward > random, "period is traded for noise: {noises:?}");
        }
    }
}

#[test]
fn with_a_fixed_start_the_fleet_ends_up_where_the_start_worker_pulls_and_otherwise_between_all() {
    // Each worker's loss pulls it to its own number; training on the mean would end at their mean.
    let settle = |variant: &str| {
        let (case, setup) = setup(&[("variant", variant)], 5, 5, 400);
        let participants = make(case.strategy, &setup);
        let scratch = participants.iter().map(|p| p.scratch()).collect();
        let gradient = |rank, _: WorkUnit, _: GradientScale, params: &[f32], grads: &mut [f32]| {
            grads.iter_mut().zip(params).for_each(|(g, p)| *g = 0.02 * (p - rank as f32));
        };
        let mut memory = NumericMemory::new(&[0.5; 5], scratch, gradient);
        simulate(&setup, participants, &Costs::constant(5, 5_000, 1_000, 0.0), &mut memory, None, &[]);
        (0..5).map(|r| f64::from(memory.params(r)[0])).sum::<f64>() / 5.0
    };
    assert!(settle("naive") < 0.2, "naive follows worker 0: {}", settle("naive"));
    for (variant, off) in [("random-start", 0.6), ("rotate", 0.6), ("push-sum", 0.6), ("chunked", 0.6)] {
        assert!((settle(variant) - 2.0).abs() < off, "{variant}: {}", settle(variant));
    }
}
