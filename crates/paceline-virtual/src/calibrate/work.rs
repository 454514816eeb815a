//! What computations on elements cost: sums, copies, codes, updates.

use std::time::Instant;

use paceline_nn::Compute;
use paceline_nn::optim::{Optimiser, Settings, Step};
use paceline_protocol::{
    Accumulate, Action, Buf, Buffers, CODECS, Coder, Family, Matrix, MsgId, Region, Transposed,
};
use paceline_random::{Purpose, Stream};
use paceline_registry::Registry;

use super::{Effort, repeat};
use crate::calibration::{ElementCost, LARGE, MedianEstimate, SMALL};

/// Computations on few and on many elements.
pub(super) fn work(effort: &Effort, cores: usize, optimisers: &Registry<Optimiser>) -> Vec<ElementCost> {
    let each = Effort { each: effort.each / 2, ..*effort };
    let (small, large) = (work_on(&each, SMALL, optimisers), work_on(&each, LARGE, optimisers));
    let crowded = if cores > 1 { on_every_core(&each, cores, optimisers) } else { Vec::new() };
    let cold = updates(&each, LARGE, optimisers, &mut evict());
    let mut crowded = crowded.into_iter().map(|(_, crowded)| crowded);
    let all = small.into_iter().zip(large).map(|((what, small), (_, large))| {
        let crowded = crowded.next();
        let found = cold.iter().find(|(update, _)| *update == what);
        let (large, crowded) = match found {
            Some((_, cold)) => (*cold, crowded.map(|crowded| in_addition(*cold, large, crowded))),
            None => (large, crowded),
        };
        ElementCost {
            what,
            ns_per_element: small,
            large_ns_per_element: Some(large),
            crowded_ns_per_element: crowded,
        }
    });
    all.collect()
}

/// An update after a pass, `cold`, where the other cores are busy: longer by what they make one longer that follows another,
/// from `alone` to `crowded`.
fn in_addition(cold: MedianEstimate, alone: MedianEstimate, crowded: MedianEstimate) -> MedianEstimate {
    cold.times(1.0 + (crowded.median - alone.median).max(0.0) / cold.median)
}

/// Drives what was used before out of the caches, as a step's pass does: an update finds neither parameters nor gradients there.
fn evict() -> impl FnMut() {
    /// More than the cores of most machines share.
    const BYTES: usize = 64 << 20;
    const LINE: usize = 64;
    let mut other = vec![0_u8; BYTES];
    move || other.iter_mut().step_by(LINE).for_each(|byte| *byte = byte.wrapping_add(1))
}

/// Computations on many elements, on every core at once.
fn on_every_core(
    effort: &Effort,
    cores: usize,
    optimisers: &Registry<Optimiser>,
) -> Vec<(String, MedianEstimate)> {
    std::thread::scope(|scope| {
        let core = || work_on(effort, LARGE, optimisers);
        let others: Vec<_> = (1..cores).map(|_| scope.spawn(core)).collect();
        let own = core();
        others.into_iter().for_each(|other| drop(other.join()));
        own
    })
}

/// Computations on so many elements: nanoseconds per element.
fn work_on(effort: &Effort, count: usize, optimisers: &Registry<Optimiser>) -> Vec<(String, MedianEstimate)> {
    let body = numbers(1, count);
    let (mut param, mut grad, mut work) = (numbers(2, count), numbers(3, count), Vec::new());
    let mut scratch = vec![numbers(4, count), vec![0.0; 2 * count]];
    let region = |buf| Region { buf, offset: 0, len: count };
    let (dst, src) = (region(Buf::Grad), region(Buf::Msg(MsgId(0))));
    let matrix = |buf, rows: usize, cols: usize| Matrix {
        region: Region { buf, offset: 0, len: rows * cols },
        rows,
        cols,
    };
    let (rows, columns) = (512, 4);
    let mut all = vec![
        ("reduce".to_owned(), Action::Reduce { dst, src }, count),
        ("copy".to_owned(), Action::Copy { dst, src }, count),
        ("mix".to_owned(), Action::Mix { dst, keep: 0.5, src, add: 0.5 }, count),
        (
            "product".to_owned(),
            Action::MatMul {
                dst: matrix(Buf::Scratch(1), rows, columns),
                a: matrix(Buf::Grad, rows, count / rows),
                b: matrix(Buf::Param, count / rows, columns),
                transposed: Transposed::None,
            },
            count * columns,
        ),
    ];
    for codec in CODECS.iter().filter(|codec| codec.family != Family::LowRank) {
        let coder = Coder::new(codec);
        let code = Region { buf: Buf::Scratch(1), offset: 0, len: coder.words(count) };
        let feedback = codec.family == Family::Gathered;
        let encode = Action::Encode { coder, dst: code, src: region(Buf::Scratch(0)), feedback };
        all.push((format!("encode {}", codec.name), encode, count));
        let decode = Action::Decode { coder, dst, src: code, into: Accumulate::Add };
        all.push((format!("decode {}", codec.name), decode, count));
    }
    for (what, action, elements) in all {
        let mut codes = Vec::new();
        let accumulate = paceline_train::memory::add;
        let laps = repeat(effort, || {
            let mut buffers = Buffers {
                param: &mut param,
                grads: std::slice::from_mut(&mut grad),
                scratch: &mut scratch,
                work: &mut codes,
                accumulate,
            };
            let start = Instant::now();
            buffers.compute(&action, &|_| body.as_slice());
            1e9 * start.elapsed().as_secs_f64() / elements as f64
        });
        // Sums must not grow without bounds, nor residuals vanish.
        grad.copy_from_slice(&body);
        scratch[0].copy_from_slice(&body);
        work.push((what, MedianEstimate::of(&laps)));
    }
    work.extend(updates(effort, count, optimisers, &mut || {}));
    work
}

/// Updates of so many parameters, with something else `between` two of them: nanoseconds per parameter.
fn updates(
    effort: &Effort,
    count: usize,
    optimisers: &Registry<Optimiser>,
    between: &mut dyn FnMut(),
) -> Vec<(String, MedianEstimate)> {
    let (compute, settings) = (Compute::new(1, false), Settings::default());
    let (mut param, grad) = (numbers(2, count), numbers(3, count));
    let update_of = |optimiser: &Optimiser| {
        let mut memory = vec![0.0; (optimiser.memory)(&settings) * count];
        let mut step = 0;
        let laps = repeat(effort, || {
            between();
            step += 1;
            let update = Step { params: &mut param, grads: &grad, memory: &mut memory, lr: 1e-6, step };
            let start = Instant::now();
            optimiser.apply(&compute, &settings, update);
            1e9 * start.elapsed().as_secs_f64() / count as f64
        });
        (format!("apply {}", optimiser.name), MedianEstimate::of(&laps))
    };
    optimisers.iter().map(update_of).collect()
}

fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let draws = Stream::new(seed, Purpose::Bench);
    (0..count as u64).map(|i| draws.uniform(i, -1.0, 1.0) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_cores_add_to_a_cold_update_what_they_add_to_a_warm_one() {
        let [cold, alone, crowded] = [0.3, 0.1, 0.2].map(MedianEstimate::round);
        assert!((in_addition(cold, alone, crowded).median - 0.4).abs() < 1e-9);
        assert_eq!(in_addition(cold, crowded, alone), cold, "others make nothing quicker");
    }
}
