//! Every layer's gradients agree with finite differences of the loss, in f64.
//!
//! The layer under test stands behind a small convolution, so that its input gradient is checked
//! through that convolution's parameters, and in front of a dense layer.

use std::sync::Arc;

use paceline_nn::layers::{
    Activation, Add, Attention, AveragePool, BatchNorm, Concat, Conv1d, Conv2d, Dense, Dropout, Embedding,
    Function, GlobalAveragePool, Gru, LastStep, LayerNorm, Lstm, MaxPool, Maximum, Mean, Op, Positions, Rows,
    ViewPart,
};
use paceline_nn::{Compute, Graph, Network, Pass, Shape, ShapeError, Targets, ValueId};
use paceline_random::{Purpose, Stream};

const SAMPLES: usize = 3;

/// The loss at `params`, and its gradient if `grads` is given.
fn loss(graph: &Arc<Graph>, params: &[f64], numbers: bool, grads: Option<&mut [f64]>) -> f64 {
    let compute = Arc::new(Compute::new(1, false));
    let mut net = Network::<f64>::new(Arc::clone(graph), SAMPLES, compute);
    let noise = Stream::new(11, Purpose::Bench);
    for (i, v) in net.input(0, SAMPLES).iter_mut().enumerate() {
        *v = match &graph.nodes()[0].op {
            Op::Embedding(embedding) => noise.below(i as u64, embedding.vocabulary as u64) as f64,
            _ => noise.uniform(i as u64, -1.0, 1.0),
        };
    }
    let mut state = vec![0.5; graph.state_count()];
    let pass = Pass::training(3, 7, &[5, 9, 2]);
    net.forward(&pass, params, &mut state);
    let classes = [1u16, 0, 2];
    let wanted: Vec<f64> =
        (0..SAMPLES * graph.output().size()).map(|i| noise.fork(1).uniform(i as u64, -1.0, 1.0)).collect();
    let targets = if numbers { Targets::Numbers(&wanted) } else { Targets::Classes(&classes) };
    let outcome = net.loss(0, targets, 1.0);
    if let Some(grads) = grads {
        // A stale gradient must not shine through.
        grads.fill(f64::NAN);
        let mut announced = Vec::new();
        net.backward(&pass, params, grads, &mut |at, g| announced.push((at, g.len())));
        let expected: Vec<_> = graph.params().iter().rev().map(|t| (t.range.start, t.range.len())).collect();
        assert_eq!(announced, expected, "each tensor once, from the last to the first");
    }
    outcome.loss
}

fn check_with(numbers: bool, build: impl Fn(&mut Graph) -> Result<(), ShapeError>) {
    check_on(Shape::new(6, 5, 2), numbers, |graph| {
        graph.then("before", Conv2d::square(3, 3, 1, 1, true))?;
        build(graph)
    });
}

/// The layer under test reads the input itself.
fn check_first(input: Shape, build: impl Fn(&mut Graph) -> Result<(), ShapeError>) {
    check_on(input, false, build);
}

fn check_on(input: Shape, numbers: bool, build: impl Fn(&mut Graph) -> Result<(), ShapeError>) {
    let mut graph = Graph::new(input);
    build(&mut graph).unwrap();
    graph.then("after", Dense { outputs: 4 }).unwrap();
    let graph = Arc::new(graph);
    let n = graph.param_count();
    let (mut params, mut state) = (vec![0.0; n], vec![0.0; graph.state_count()]);
    graph.init(17, &mut params, &mut state);
    // Away from the special points (batch norm's 1 and 0, biases that are alike).
    let noise = Stream::new(23, Purpose::Bench);
    for (i, p) in params.iter_mut().enumerate() {
        *p += noise.uniform(i as u64, -0.2, 0.2);
    }
    let mut grads = vec![0.0; n];
    loss(&graph, &params, numbers, Some(&mut grads));
    let norm = grads.iter().map(|g| g * g).sum::<f64>().sqrt();
    assert!(norm > 1e-3, "a gradient to speak of");
    for tensor in graph.params() {
        for i in tensor.range.clone() {
            let h = 1e-6;
            let mut at = |delta: f64| {
                let kept = params[i];
                params[i] = kept + delta;
                let value = loss(&graph, &params, numbers, None);
                params[i] = kept;
                value
            };
            let slope = (at(h) - at(-h)) / (2.0 * h);
            assert!(
                (slope - grads[i]).abs() <= 1e-6 * (1.0 + slope.abs()),
                "{} [{}]: {} instead of {slope}",
                tensor.name,
                i - tensor.range.start,
                grads[i]
            );
        }
    }
}

fn check(build: impl Fn(&mut Graph) -> Result<(), ShapeError>) {
    check_with(false, build);
}

#[test]
fn dense() {
    check(|g| g.then("fc", Dense { outputs: 7 }).map(drop));
}

#[test]
fn conv2d_of_any_kernel_stride_and_padding() {
    for (kernel, stride, pad) in [
        ([3, 3], [1, 1], [1, 1]),
        ([5, 5], [1, 1], [2, 2]),
        ([1, 1], [2, 2], [0, 0]),
        ([3, 3], [2, 2], [1, 1]),
        ([2, 3], [1, 2], [0, 1]),
        ([3, 2], [3, 1], [2, 0]),
        ([2, 2], [3, 3], [0, 0]),
        ([1, 4], [2, 3], [1, 3]),
        ([4, 1], [1, 1], [0, 2]),
    ] {
        for bias in [true, false] {
            check(|g| g.then("conv", Conv2d { channels: 5, kernel, stride, pad, groups: 1, bias }).map(drop));
        }
    }
}

#[test]
fn grouped_convolution() {
    for (channels, groups, kernel, stride) in [(6, 3, 3, 1), (3, 3, 2, 2), (6, 2, 1, 1), (4, 2, 1, 2)] {
        for bias in [true, false] {
            check(|g| {
                g.then("wider", Conv2d::square(2 * groups, 1, 1, 0, true))?;
                let conv = Conv2d { groups, ..Conv2d::square(channels, kernel, stride, kernel / 2, bias) };
                g.then("conv", conv)?;
                g.relu();
                Ok(())
            });
        }
    }
}

#[test]
fn conv1d_of_any_kernel_stride_and_padding() {
    for (kernel, stride, pad, groups) in
        [(3, 1, 1, 1), (1, 1, 0, 1), (4, 2, 3, 1), (2, 3, 0, 3), (1, 2, 0, 5)]
    {
        let conv = Conv1d { channels: 15, kernel, stride, pad, groups, bias: true };
        check(|g| {
            g.then("rows", Rows)?;
            g.then("conv", conv.clone()).map(drop)
        });
        check_first(Shape::new(1, 7, 15), |g| g.then("conv", conv.clone()).map(drop));
    }
}

#[test]
fn layer_norm_of_pixels_and_of_steps() {
    check(|g| g.then("norm", LayerNorm::default()).map(drop));
    check(|g| {
        g.then("rows", Rows)?;
        g.then("norm", LayerNorm::default()).map(drop)
    });
    // More channels than the widest vector, and not a multiple of it.
    check(|g| {
        g.then("wider", Conv2d::square(37, 1, 1, 0, true))?;
        g.then("pool", GlobalAveragePool)?;
        g.then("norm", LayerNorm { epsilon: 1e-3 }).map(drop)
    });
}

#[test]
fn recurrent_layers() {
    for width in [1, 5, 18] {
        check(|g| {
            g.then("rows", Rows)?;
            g.then("rnn", Gru { width })?;
            g.then("second", Gru { width: 3 })?;
            g.then("last", LastStep).map(drop)
        });
        check(|g| {
            g.then("rows", Rows)?;
            g.then("rnn", Lstm { width })?;
            g.then("second", Lstm { width: 3 }).map(drop)
        });
    }
    for steps in [1, 2, 7] {
        check_first(Shape::new(1, steps, 4), |g| g.then("rnn", Gru { width: 3 }).map(drop));
        check_first(Shape::new(1, steps, 4), |g| g.then("rnn", Lstm { width: 3 }).map(drop));
    }
}

#[test]
fn attention_with_and_without_looking_ahead() {
    for (heads, causal) in [(1, true), (5, true), (5, false)] {
        check(|g| {
            g.then("rows", Rows)?;
            g.then("attention", Attention { heads, causal }).map(drop)
        });
    }
    // More steps than are worked on at once.
    for causal in [true, false] {
        check_first(Shape::new(1, 33, 2), |g| {
            g.then("qkv", Conv1d::each_step(6))?;
            g.then("attention", Attention { heads: 2, causal })?;
            g.then("last", LastStep).map(drop)
        });
    }
}

#[test]
fn tokens_and_positions() {
    check_first(Shape::new(1, 9, 1), |g| {
        g.then("embedding", Embedding { vocabulary: 6, width: 4 })?;
        g.then("positions", Positions).map(drop)
    });
}

#[test]
fn a_value_with_a_residual_past_layers_that_are_not_in_place() {
    check(|g| {
        let x = g.then("rows", Rows)?;
        g.then("norm", LayerNorm::default())?;
        g.then("qkv", Conv1d::each_step(45))?;
        let y = g.then("attention", Attention { heads: 3, causal: true })?;
        let x = g.push("add", Add, &[x, y])?;
        let y = g.then("rnn", Gru { width: 15 })?;
        let x = g.push("add2", Add, &[x, y])?;
        let last = g.push("last", LastStep, &[x])?;
        let first = g.push("first", LastStep, &[y])?;
        g.push("add3", Add, &[first, last]).map(drop)
    });
}

#[test]
fn batch_norm() {
    check(|g| g.then("bn", BatchNorm::default()).map(drop));
    check(|g| {
        g.then("bn", BatchNorm::default())?;
        g.relu();
        Ok(())
    });
}

#[test]
fn pooling_with_overlap_padding_and_remainders() {
    for (size, stride, pad) in [(2, 2, 0), (3, 2, 1), (2, 1, 0), (3, 3, 0), (2, 3, 1)] {
        check(|g| g.then("max", MaxPool { size, stride, pad }).map(drop));
        check(|g| {
            g.then("max", MaxPool { size, stride, pad })?;
            g.relu();
            Ok(())
        });
        check(|g| g.then("mean", AveragePool { size, stride, pad }).map(drop));
    }
    check(|g| g.then("all", GlobalAveragePool).map(drop));
}

#[test]
fn activations() {
    for function in [Function::Relu, Function::Gelu, Function::Tanh, Function::Sigmoid] {
        check(|g| g.then("act", Activation { function }).map(drop));
    }
}

#[test]
fn relu_folded_into_dense_and_convolution() {
    check(|g| {
        g.then("conv", Conv2d::square(4, 3, 1, 1, true))?;
        g.relu();
        g.then("fc", Dense { outputs: 6 })?;
        g.relu();
        Ok(())
    });
}

#[test]
fn dropout() {
    check(|g| g.then("drop", Dropout { rate: 0.4 }).map(drop));
}

#[test]
fn a_value_that_is_read_three_times_collects_all_its_gradients() {
    check(|g| {
        let x = g.last();
        let a = g.then("a", Conv2d::square(3, 3, 1, 1, true))?;
        let sum = g.push("sum", Add, &[a, x])?;
        g.relu();
        let b = g.push("b", Activation { function: Function::Tanh }, &[x])?;
        g.push("sum2", Add, &[b, sum])?;
        Ok(())
    });
}

#[test]
fn mean_squared_error() {
    check_with(true, |g| g.then("fc", Dense { outputs: 5 }).map(drop));
}

/// Two convolutions of what was there.
fn two(g: &mut Graph, channels: [usize; 2]) -> Result<[ValueId; 2], ShapeError> {
    let x = g.last();
    let a = g.push("a", Conv2d::square(channels[0], 3, 1, 1, true), &[x])?;
    Ok([a, g.push("b", Conv2d::square(channels[1], 1, 1, 0, true), &[x])?])
}

#[test]
fn values_brought_together() {
    // Any number of them; one is read by two layers, and one has no parameters before it but the first layer's.
    check(|g| {
        let x = g.last();
        let [a, b] = two(g, [3, 3])?;
        g.push("largest", Maximum, &[b, x, a])?;
        let largest = g.last();
        g.push("mean", Mean, &[largest, a])?;
        g.push("both", Mean, &[g.last(), x, b]).map(drop)
    });
    check(|g| {
        let x = g.last();
        let [a, b] = two(g, [2, 5])?;
        let side = g.push("concat", Concat, &[a, x, b])?;
        let other = g.push("again", Concat, &[b, a])?;
        g.push("all", Concat, &[other, side]).map(drop)
    });
}

#[test]
fn views_of_values_and_blank_ones() {
    for blank in [0.0, 0.5] {
        check(|g| {
            let x = g.last();
            let a = g.push("a", ViewPart { top: 0, left: 1, height: 3, width: 4, blank }, &[x])?;
            let b = g.push("b", ViewPart { top: 2, left: 0, height: 3, width: 4, blank }, &[x])?;
            g.push("both", Maximum, &[a, b]).map(drop)
        });
    }
}

#[test]
fn early_exits_add_their_weighted_loss() {
    let fc = |outputs| Dense { outputs };
    // One exit is a layer's output that nobody else reads, the other one is read on.
    check(|g| {
        let x = g.last();
        g.then("first", fc(4))?;
        g.exit(0.3);
        g.push("second", fc(4), &[x])?;
        g.exit(2.0);
        g.then("act", Activation { function: Function::Tanh }).map(drop)
    });
}

/// Of the sign there are no finite differences: the gradient in front of it is what is behind it, where |x| ≤ 1.
#[test]
fn the_gradient_of_a_sign_passes_straight_through_between_minus_1_and_1() {
    let mut graph = Graph::new(Shape::vector(4));
    graph.then("add", Positions).unwrap();
    let sign = graph.then("sign", Activation { function: Function::Sign }).unwrap();
    graph.then("fc", Dense { outputs: 2 }).unwrap();
    let graph = Arc::new(graph);
    let mut net = Network::<f64>::new(Arc::clone(&graph), 1, Arc::new(Compute::new(1, false)));
    net.input(0, 1).copy_from_slice(&[0.0, -0.5, 1.5, -3.0]);
    let params: Vec<f64> = (0..graph.param_count()).map(|i| if i < 4 { 0.0 } else { i as f64 }).collect();
    let pass = Pass::training(1, 0, &[0]);
    net.forward(&pass, &params, &mut []);
    assert_eq!(net.value(0, sign, 1), [1.0, -1.0, 1.0, -1.0]);
    net.loss(0, Targets::Numbers(&[0.0, 0.0]), 1.0);
    let mut grads = vec![f64::NAN; params.len()];
    // Mean squared error: the slopes of the two outputs are the outputs themselves.
    let output = net.output(0, 1).to_vec();
    net.backward(&pass, &params, &mut grads, &mut |_, _| {});
    let behind = |i: usize| output[0] * params[4 + 2 * i] + output[1] * params[5 + 2 * i];
    assert_eq!(grads[..4], [behind(0), behind(1), 0.0, 0.0]);
}
