//! Gossip and local SGD are what their definitions say, computed here directly.

use paceline_protocol::{GradientScale, STRATEGIES, Setup, WorkUnit};
use paceline_sim::{Costs, NumericMemory, simulate};

use super::{Case, make};

/// Gradients that differ by worker, step and element, and pull towards zero.
fn pull(rank: usize, step: u64, i: usize, x: f64) -> f64 {
    0.1 * x + 0.05 * ((rank * 5 + step as usize * 3 + i) as f64).cos()
}

fn run(case: &Case, setup: &Setup) -> Vec<Vec<f32>> {
    let participants = make(case.strategy, setup);
    let scratch = participants.iter().map(|p| p.scratch()).collect();
    let gradient = |rank: usize, unit: WorkUnit, _: GradientScale, params: &[f32], grads: &mut [f32]| {
        for (i, (g, &x)) in grads.iter_mut().zip(params).enumerate() {
            *g = pull(rank, unit.step, i, f64::from(x)) as f32;
        }
    };
    let mut memory = NumericMemory::new(&vec![0.5; setup.params], scratch, gradient);
    simulate(setup, participants, &Costs::constant(setup.workers, 1_000, 100, 0.5), &mut memory, None, &[]);
    (0..setup.workers).map(|r| memory.params(r).to_vec()).collect()
}

/// The same by the definition: `average(step, all workers' weights)` after each step.
fn direct(setup: &Setup, mut average: impl FnMut(u64, &mut Vec<Vec<f64>>)) -> Vec<Vec<f64>> {
    let mut all = vec![vec![0.5; setup.params]; setup.workers];
    for step in 0..setup.end() {
        for (rank, own) in all.iter_mut().enumerate() {
            own.iter_mut().enumerate().for_each(|(i, x)| *x -= pull(rank, step, i, *x));
        }
        average(step, &mut all);
    }
    all
}

fn same(case: &Case, ran: &[Vec<f32>], want: &[Vec<f64>]) {
    for (rank, (ran, want)) in ran.iter().zip(want).enumerate() {
        for (is, want) in ran.iter().zip(want) {
            assert!((f64::from(*is) - want).abs() < 1e-5, "{} rank {rank}: {is} {want}", case.name());
        }
    }
}

fn setup(case: &Case, p: usize) -> Setup {
    case.setup(Setup { message: 4, bucket: 7, ..Setup::new(p, 0, 11, 23) })
}

#[test]
fn gossip_takes_the_mean_with_its_neighbours() {
    for p in [1, 2, 3, 4, 7] {
        for count in ["1", "2"] {
            let case = Case::new("gossip", "bsp", &[("neighbours", count)]);
            let setup = setup(&case, p);
            let want = direct(&setup, |step, all| {
                let before = all.clone();
                for (r, own) in all.iter_mut().enumerate() {
                    let up = (r as u64 + step).is_multiple_of(2);
                    let pair = if up { (r + 1) % p } else { (r + p - 1) % p };
                    let rests = p % 2 == 1 && if step % 2 == 0 { r == p - 1 } else { r == 0 };
                    let mut group = match count {
                        "1" if rests => vec![r],
                        "1" => vec![r, pair],
                        _ => vec![r, (r + 1) % p, (r + p - 1) % p],
                    };
                    group.sort_unstable();
                    group.dedup();
                    for (i, x) in own.iter_mut().enumerate() {
                        *x = group.iter().map(|&q| before[q][i]).sum::<f64>() / group.len() as f64;
                    }
                }
            });
            same(&case, &run(&case, &setup), &want);
        }
    }
}

#[test]
fn local_averages_every_h_steps_and_diloco_adds_nesterov() {
    for (p, steps, outer) in
        [(3, "4", "none"), (3, "4", "nesterov"), (1, "3", "nesterov"), (5, "1", "nesterov")]
    {
        let case = Case::new("local", "bsp", &[("local-steps", steps), ("outer", outer)]);
        let setup = setup(&case, p);
        let every: u64 = steps.parse().unwrap();
        let (mut anchor, mut velocity) = (vec![0.5; setup.params], vec![0.0; setup.params]);
        let want = direct(&setup, |step, all| {
            if !(step + 1).is_multiple_of(every) {
                return;
            }
            for i in 0..setup.params {
                let mean = all.iter().map(|own| own[i]).sum::<f64>() / p as f64;
                // The outer gradient is what the average has moved, backwards.
                let gradient = anchor[i] - mean;
                velocity[i] = 0.9 * velocity[i] + gradient;
                let next = anchor[i] - 0.7 * (gradient + 0.9 * velocity[i]);
                let next = if outer == "none" { mean } else { next };
                anchor[i] = next;
                all.iter_mut().for_each(|own| own[i] = next);
            }
        });
        same(&case, &run(&case, &setup), &want);
    }
}

#[test]
fn a_message_of_another_generation_is_given_back_and_changes_nothing() {
    STRATEGIES
        .iter()
        .map(|strategy| Case::new(strategy.name, "bsp", &[]))
        .for_each(|case| paceline_conformance::checks::other_generations_change_nothing(&case));
}
