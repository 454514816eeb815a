//! What a codec does not send is not lost: with error feedback the sum of all updates is that of all
//! gradients, up to what is still waiting.

use paceline_protocol::{CODECS, Coder, Family, GradientScale, Setup, Tensor, WorkUnit};
use paceline_sim::{Costs, NumericMemory, simulate};

use super::{Case, make};

/// How far the model is, relative to how far it should be, after so many steps of the same gradients.
fn off(case: &Case, servers: usize, steps: u64) -> f64 {
    let (p, rows, cols) = (3, 12, 10);
    let tensors = vec![Tensor { offset: 0, rows, cols }];
    let setup =
        case.setup(Setup { tensors, message: 50, bucket: 50, ..Setup::new(p, servers, rows * cols, steps) });
    let participants = make(case.strategy, &setup);
    let scratch = participants.iter().map(|p| p.scratch()).collect();
    // Every worker has its own; entries of very different size, in a matrix of full rank.
    let entry = |rank: usize, i: usize| {
        ((i * 7 + rank * 3) as f32).sin() * if i.is_multiple_of(9) { 0.02 } else { 0.001 }
    };
    let gradient = |rank: usize, _: WorkUnit, _: GradientScale, _: &[f32], grads: &mut [f32]| {
        grads.iter_mut().enumerate().for_each(|(i, g)| *g = entry(rank, i) / p as f32);
    };
    let mut memory = NumericMemory::new(&vec![0.0; rows * cols], scratch, gradient);
    simulate(&setup, participants, &Costs::constant(p, 1_000, 100, 0.0), &mut memory, None, &[]);
    let want = |i: usize| -(0..p).map(|r| f64::from(entry(r, i) / p as f32)).sum::<f64>() * steps as f64;
    let norm = |f: &dyn Fn(usize) -> f64| (0..rows * cols).map(|i| f(i).powi(2)).sum::<f64>().sqrt();
    // The model is the servers', who have it in full.
    let model = |i: usize| match servers {
        0 => f64::from(memory.params(0)[i]),
        _ => {
            let shard = setup.shards().iter().position(|s| s.contains(&i)).unwrap();
            f64::from(memory.params(p + shard)[i])
        }
    };
    norm(&|i| model(i) - want(i)) / norm(&want)
}

#[test]
fn the_sum_of_all_updates_approaches_that_of_all_gradients() {
    for strategy in paceline_protocol::STRATEGIES.iter().filter(|s| s.path.is_some() || s.servers) {
        let servers = if strategy.servers { 2 } else { 0 };
        for coder in CODECS.iter().map(Coder::new).filter(|c| c.codec.family != Family::PerHop) {
            if !strategy.codecs().contains(&coder.codec.name) {
                continue;
            }
            let coder = if coder.codec.name == "topk" { "topk,ratio=0.1".parse().unwrap() } else { coder };
            let case = Case { coder: Some(coder), ..Case::new(strategy.name, "bsp", &[]) };
            let (early, late) = (off(&case, servers, 20), off(&case, servers, 2_000));
            assert!(late < 0.05, "{}: {late} is still missing", case.name());
            assert!(late < 0.2 * early || early < 1e-3, "{}: {early}, then {late}", case.name());
        }
    }
}
