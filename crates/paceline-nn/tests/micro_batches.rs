//! The gradient of a batch in several passes is bit for bit that of a single one, except with batch norm; passes in
//! different slots do not disturb each other.

mod every_layer;

use std::sync::Arc;

use every_layer::{Case, layers, models};
use paceline_nn::accel::Level;
use paceline_nn::layers::{Dense, Op};
use paceline_nn::{Compute, Graph, Network, Pass, Shape};

/// What a batch leaves: gradients and running statistics.
#[derive(Debug, PartialEq)]
struct Trained {
    grads: Vec<f32>,
    state: Vec<f32>,
}

/// In which order passes are made.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// Each pass forward, then backward, in slot 0.
    OneByOne,
    /// All forward, then all backward, each in a slot of its own.
    AllForward,
    /// Forward is two passes ahead of backward; three slots are used in turn.
    TwoAhead,
}

/// A batch that is cut into passes.
struct Batch<'a> {
    case: &'a Case,
    params: Vec<f32>,
    state: Vec<f32>,
    ids: Vec<u32>,
}

impl<'a> Batch<'a> {
    fn new(case: &'a Case, samples: usize) -> Self {
        let graph = &case.graph;
        let (mut params, mut state) = (vec![0.0; graph.param_count()], vec![0.0; graph.state_count()]);
        graph.init(1, &mut params, &mut state);
        Self { case, params, state, ids: (0..samples as u32).map(|i| i * 5 % 97).collect() }
    }

    /// The even cut into `count` micro-batches.
    fn even(&self, count: usize) -> Vec<Pass<'_>> {
        let whole = Pass::training(3, 7, &self.ids);
        (0..count).map(|i| whole.micro_batch(i, count)).collect()
    }

    /// The cut into micro-batches of these sizes.
    fn cut(&self, sizes: &[usize]) -> Vec<Pass<'_>> {
        assert_eq!(sizes.iter().sum::<usize>(), self.ids.len());
        let mut before = 0;
        let pass = |&samples: &usize| {
            let ids = &self.ids[before..before + samples];
            let after = self.ids.len() - before - samples;
            let pass = Pass { before, after, ..Pass::training(3, 7, ids) };
            before += samples;
            pass
        };
        sizes.iter().map(pass).collect()
    }

    /// Makes the passes. Announcements are checked.
    fn run(&self, passes: &[Pass<'_>], order: Order, compute: Compute) -> Trained {
        let graph = &self.case.graph;
        let capacity = passes.iter().map(|pass| pass.samples).max().unwrap_or(0);
        let slots = match order {
            Order::OneByOne => 1,
            Order::AllForward => passes.len(),
            Order::TwoAhead => 3,
        };
        let mut net = Network::with_slots(Arc::clone(graph), capacity, slots, Arc::new(compute));
        let passes: Vec<Pass<'_>> =
            passes.iter().enumerate().map(|(i, pass)| Pass { slot: i % slots, ..*pass }).collect();
        // A stale gradient must not shine through.
        let mut grads = vec![f32::NAN; self.params.len()];
        let mut state = self.state.clone();
        let mut announced = Vec::new();
        let lead = slots - 1;
        for i in 0..passes.len() + lead {
            if let Some(pass) = passes.get(i) {
                self.case.load(&mut net, pass.slot, pass.ids);
                net.forward(pass, &self.params, &mut state);
            }
            if let Some(pass) = i.checked_sub(lead).map(|i| &passes[i]) {
                let classes = self.case.classes(pass.ids);
                self.case.loss(&mut net, pass.slot, &classes, 1.0 / self.ids.len() as f64);
                let last = pass.after == 0 && pass.samples > 0;
                net.backward(pass, &self.params, &mut grads, &mut |at, g| {
                    assert!(last, "{}: announced before the last pass", self.case.name);
                    announced.push((at, g.len()));
                });
            }
        }
        let expected: Vec<_> = graph.params().iter().rev().map(|t| (t.range.start, t.range.len())).collect();
        assert_eq!(announced, expected, "{}: each tensor once, from the last to the first", self.case.name);
        Trained { grads, state }
    }

    /// The sum of the passes' gradients, each computed on its own.
    fn separately(&self, passes: &[Pass<'_>]) -> Vec<f32> {
        let mut sum = vec![0.0; self.params.len()];
        for pass in passes.iter().filter(|pass| pass.samples > 0) {
            let alone = Pass { before: 0, after: 0, ..*pass };
            let own = self.run(&[alone], Order::OneByOne, Compute::new(1, false));
            sum.iter_mut().zip(own.grads).for_each(|(sum, own)| *sum += own);
        }
        sum
    }

    /// Asserts that passes leave what is wanted, bit for bit.
    fn check(&self, passes: &[Pass<'_>], order: Order, compute: Compute, want: &Trained) {
        let got = self.run(passes, order, compute);
        let sizes: Vec<_> = passes.iter().map(|pass| pass.samples).collect();
        let what = format!("{} cut into {sizes:?}, {order:?}", self.case.name);
        for tensor in self.case.graph.params() {
            for i in tensor.range.clone() {
                let (got, want) = (got.grads[i], want.grads[i]);
                assert_eq!(
                    got.to_bits(),
                    want.to_bits(),
                    "{what}: {got} instead of {want} in {}",
                    tensor.name
                );
            }
        }
        assert_eq!(got.state, want.state, "{what}");
    }
}

/// Whether a layer looks at all samples of a pass.
fn has_batch_norm(case: &Case) -> bool {
    case.graph.nodes().iter().any(|node| matches!(node.op, Op::BatchNorm(_)))
}

/// How far `got` is from `want`, as a part of the norm of `want`.
fn error(got: &[f32], want: &[f32]) -> f64 {
    let norm = |v: &mut dyn Iterator<Item = f32>| v.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt();
    norm(&mut got.iter().zip(want).map(|(a, b)| a - b)) / norm(&mut want.iter().copied())
}

/// Every cut gives the bits of a single pass.
fn exact(case: &Case, samples: usize, counts: &[usize]) {
    let batch = Batch::new(case, samples);
    for level in Level::available() {
        let compute = |threads| Compute::with_level(level, threads, false);
        let want = batch.run(&batch.even(1), Order::OneByOne, compute(1));
        for &count in counts {
            batch.check(&batch.even(count), Order::OneByOne, compute(1), &want);
            batch.check(&batch.even(count), Order::OneByOne, compute(3), &want);
        }
    }
}

/// With batch norm, each pass is normalised on its own: the gradient is the sum of the passes' gradients.
fn sum_of_passes(case: &Case, samples: usize, counts: &[usize]) {
    let batch = Batch::new(case, samples);
    let whole = batch.run(&batch.even(1), Order::OneByOne, Compute::new(1, false));
    for &count in counts {
        let passes = batch.even(count);
        let got = batch.run(&passes, Order::OneByOne, Compute::new(1, false));
        batch.check(&passes, Order::OneByOne, Compute::new(3, false), &got);
        let apart = error(&got.grads, &batch.separately(&passes));
        assert!(apart < 1e-6, "{} in {count} passes: {apart:e}", case.name);
        assert_eq!(got == whole, count == 1, "{} in {count} passes", case.name);
    }
}

#[test]
fn every_kind_of_layer_is_here() {
    let cases = layers();
    for kind in Op::KINDS {
        let has = |case: &Case| case.graph.nodes().iter().any(|node| node.op.kind() == kind.name);
        assert!(cases.iter().any(has), "{}", kind.name);
    }
}

#[test]
fn every_layer_but_batch_norm_gives_the_bits_of_one_pass() {
    for case in layers().iter().filter(|case| !has_batch_norm(case)) {
        for samples in [7, 26] {
            exact(case, samples, &[1, 2, 3, 5, 8]);
        }
    }
}

#[test]
fn models_without_batch_norm_give_the_bits_of_one_pass() {
    for case in models().iter().filter(|case| !has_batch_norm(case)) {
        exact(case, 9, &[2, 3, 5, 8]);
    }
}

#[test]
fn batch_norm_takes_each_pass_on_its_own() {
    for case in layers().iter().chain(&models()).filter(|case| has_batch_norm(case)) {
        match case.name.as_str() {
            "resnet50" => sum_of_passes(case, 3, &[2]),
            _ => sum_of_passes(case, 13, &[1, 2, 3, 5]),
        }
    }
}

#[test]
fn uneven_and_empty_passes_change_nothing() {
    for case in layers().iter().filter(|case| !has_batch_norm(case)) {
        let batch = Batch::new(case, 11);
        let want = batch.run(&batch.even(1), Order::OneByOne, Compute::new(1, false));
        for sizes in [&[1, 10][..], &[10, 1], &[0, 4, 0, 0, 7, 0], &[5, 1, 0, 3, 2]] {
            batch.check(&batch.cut(sizes), Order::OneByOne, Compute::new(2, false), &want);
        }
        // More passes than samples.
        batch.check(&batch.even(30), Order::OneByOne, Compute::new(1, false), &want);
        batch.check(&batch.even(30), Order::TwoAhead, Compute::new(1, false), &want);
    }
}

#[test]
fn an_empty_batch_has_a_gradient_of_zeros() {
    let case = &layers()[0];
    let got = Batch::new(case, 0);
    let mut net = Network::new(Arc::clone(&case.graph), 1, Arc::new(Compute::new(1, false)));
    let (mut grads, mut announced) = (vec![f32::NAN; got.params.len()], 0);
    net.backward(&Pass::training(1, 1, &[]), &got.params, &mut grads, &mut |_, _| announced += 1);
    assert_eq!(announced, case.graph.params().len());
    assert!(grads.iter().all(|&g| g == 0.0));
}

#[test]
fn slots_in_any_order_give_the_bits_of_one_pass_after_the_other() {
    for case in layers().iter().chain(&models()).filter(|case| case.name != "resnet50") {
        let batch = Batch::new(case, 13);
        for count in [2, 5] {
            let passes = batch.even(count);
            let want = batch.run(&passes, Order::OneByOne, Compute::new(1, false));
            batch.check(&passes, Order::AllForward, Compute::new(1, false), &want);
            batch.check(&passes, Order::TwoAhead, Compute::new(2, false), &want);
        }
    }
}

#[test]
fn gradients_that_are_added_up_afterwards_have_other_bits() {
    // So the equality above is one of sums that go on, not of sums that do not depend on their order.
    for case in layers().iter().filter(|case| !has_batch_norm(case)) {
        let batch = Batch::new(case, 26);
        let whole = batch.run(&batch.even(1), Order::OneByOne, Compute::new(1, false));
        let separately = batch.separately(&batch.even(3));
        assert_ne!(whole.grads, separately, "{}", case.name);
        let apart = error(&separately, &whole.grads);
        assert!(apart < 2e-5, "{}: {apart:e}", case.name);
    }
}

#[test]
fn the_memory_of_passes_is_a_multiple_of_samples_and_slots() {
    // Input 2, dense 3 and 10: gradients of the last two.
    let mut graph = Graph::new(Shape::vector(2));
    graph.then("a", Dense { outputs: 3 }).unwrap();
    graph.then("b", Dense { outputs: 10 }).unwrap();
    let memory = graph.pass_memory();
    assert_eq!((memory.slot, memory.shared), (15, 13));
    assert_eq!(memory.bytes(4, 1), 4 * 4 * 28);
    assert_eq!(memory.bytes(4, 3), 4 * 4 * (3 * 15 + 13));
    // Halving the micro-batch halves the memory.
    for case in models() {
        let memory = case.graph.pass_memory();
        assert_eq!(memory.bytes(8, 2), 2 * memory.bytes(4, 2), "{}", case.name);
        assert!(memory.slot >= case.graph.input().size() + case.graph.output().size(), "{}", case.name);
    }
}
