//! Whole networks agree between instruction sets within rounding, and bit for bit between numbers of
//! threads and from run to run.

use std::sync::Arc;

use paceline_nn::accel::Level;
use paceline_nn::models::Model;
use paceline_nn::{Compute, Network, Pass, Shape, Targets};
use paceline_random::{Purpose, Stream};
use paceline_registry::Registry;

/// Three training passes of a model; its gradients and running statistics.
fn gradients(model: &str, input: Shape, samples: usize, compute: Compute) -> (Vec<f32>, Vec<f32>) {
    let graph = Arc::new(Registry::<Model>::default().find(model).unwrap().build(input, 10).unwrap());
    let (mut params, mut state) = (vec![0f32; graph.param_count()], vec![0f32; graph.state_count()]);
    graph.init(1, &mut params, &mut state);
    let mut net = Network::<f32>::new(Arc::clone(&graph), samples + 2, Arc::new(compute));
    let mut grads = vec![f32::NAN; params.len()];
    let noise = Stream::new(2, Purpose::Bench);
    let answers = samples * graph.output().w;
    let classes: Vec<u16> = (0..answers).map(|i| (i % 10) as u16).collect();
    let ids: Vec<u32> = (0..samples as u32).collect();
    for step in 0..3 {
        for (i, v) in net.input(0, samples).iter_mut().enumerate() {
            *v = match graph.vocabulary() {
                Some(tokens) => noise.fork(step).below(i as u64, tokens as u64) as f32,
                None => noise.fork(step).uniform(i as u64, -1.0, 1.0) as f32,
            };
        }
        let pass = Pass::training(1, step, &ids);
        net.forward(&pass, &params, &mut state);
        net.loss(0, Targets::Classes(&classes), 1.0 / samples as f64);
        net.backward(&pass, &params, &mut grads, &mut |_, _| {});
        params.iter_mut().zip(&grads).for_each(|(p, g)| *p -= 0.05 * g);
    }
    (grads, state)
}

type Case = (&'static str, Shape, usize);

const IMAGES: &[Case] = &[
    ("softmax", Shape::new(8, 8, 1), 5),
    ("mlp", Shape::new(8, 8, 1), 17),
    ("lenet", Shape::new(12, 9, 1), 5),
    ("resnet20", Shape::new(11, 9, 3), 5),
    ("ddnn", Shape::new(12, 9, 1), 5),
    ("ddnn-edge", Shape::new(11, 12, 2), 17),
];

const SEQUENCES: &[Case] = &[
    ("conv1d", Shape::new(1, 19, 5), 5),
    ("gru", Shape::new(7, 5, 3), 17),
    ("lstm", Shape::new(1, 9, 3), 5),
    ("transformer", Shape::new(1, 31, 1), 3),
    ("transformer", Shape::new(6, 4, 2), 5),
];

fn levels_agree(cases: &[Case]) {
    for &(model, input, samples) in cases {
        let (want, want_state) =
            gradients(model, input, samples, Compute::with_level(Level::PORTABLE, 1, false));
        for level in Level::available() {
            let (got, state) = gradients(model, input, samples, Compute::with_level(level, 1, false));
            for (got, want) in [(got, &want), (state, &want_state)] {
                let norm = want.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
                let error = got.iter().zip(want).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt();
                assert!(error <= 2e-5 * norm, "{model} with {level}: {error:e} of {norm:e}");
            }
        }
    }
}

fn threads_agree(cases: &[Case]) {
    for &(model, input, samples) in cases {
        let one = gradients(model, input, samples, Compute::new(1, false));
        for threads in [2, 3, 5] {
            assert_eq!(one, gradients(model, input, samples, Compute::new(threads, threads == 2)), "{model}");
        }
    }
}

#[test]
fn every_instruction_set_agrees_with_the_portable_path() {
    levels_agree(IMAGES);
}

#[test]
fn every_instruction_set_agrees_with_the_portable_path_on_sequences() {
    levels_agree(SEQUENCES);
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    threads_agree(IMAGES);
}

#[test]
fn results_on_sequences_do_not_depend_on_the_number_of_threads() {
    threads_agree(SEQUENCES);
}
