//! No pass allocates: forward, loss, backward, with micro-batches, slots and threads, of whole graphs and of parts. A
//! slot takes what the graph or the part tells.

#![allow(unsafe_code, reason = "an allocator that counts")]

mod every_layer;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use every_layer::{Case, layers, models};
use paceline_nn::{Compute, GraphPart, Network, Pass};

struct Counting;

/// Of all threads: a network's own, and the one that runs the test.
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Of this thread.
    static BYTES: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: `System` does the work; `realloc` and `alloc_zeroed` come here by their default definitions.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        BYTES.set(BYTES.get() + layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of a batch in three passes through the parts of a cut graph, each in a slot of its own: the fewest of some
/// rounds, since the thread that runs the tests is counted too.
fn allocations(case: &Case, cuts: &[usize]) -> usize {
    const SAMPLES: usize = 8;
    const PASSES: usize = 3;
    let graph = &case.graph;
    let (mut params, mut state) = (vec![0.0; graph.param_count()], vec![0.0; graph.state_count()]);
    graph.init(1, &mut params, &mut state);
    let mut grads = vec![0.0; params.len()];
    let compute = Arc::new(Compute::new(2, false));
    let parts = graph.parts(cuts);
    let net = |part: &GraphPart| {
        let capacity = SAMPLES.div_ceil(PASSES);
        Network::of_part(Arc::clone(graph), part.clone(), capacity, PASSES, Arc::clone(&compute))
    };
    let mut nets: Vec<Network<f32>> = parts.iter().map(net).collect();
    let ids: Vec<u32> = (0..SAMPLES as u32).collect();
    let whole = Pass::training(1, 1, &ids);
    let classes: Vec<_> = (0..PASSES).map(|i| case.classes(whole.micro_batch(i, PASSES).ids)).collect();
    let mut fewest = usize::MAX;
    for _ in 0..4 {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        for slot in 0..PASSES {
            let pass = Pass { slot, ..whole.micro_batch(slot, PASSES) };
            case.load(&mut nets[0], slot, pass.ids);
            for (i, part) in parts.iter().enumerate() {
                let (earlier, own) = nets.split_at_mut(i);
                for edge in &part.receives {
                    let value = earlier[edge.part].value(slot, edge.value, pass.samples);
                    own[0].value_mut(slot, edge.value, pass.samples).copy_from_slice(value);
                }
                own[0].forward(&pass, &params[part.params.clone()], &mut state[part.state.clone()]);
            }
        }
        for (slot, classes) in classes.iter().enumerate() {
            let pass = Pass { slot, ..whole.micro_batch(slot, PASSES) };
            case.loss(nets.last_mut().unwrap(), slot, classes, 1.0 / SAMPLES as f64);
            for (i, part) in parts.iter().enumerate().rev() {
                let (own, later) = nets[i..].split_at_mut(1);
                for edge in part.sends.iter().filter(|edge| edge.gradient) {
                    let gradient = later[edge.part - i - 1].outgoing_gradient(edge.value, pass.samples);
                    own[0].incoming_gradient(edge.value, pass.samples).copy_from_slice(gradient);
                }
                let grads = &mut grads[part.params.clone()];
                own[0].backward(&pass, &params[part.params.clone()], grads, &mut |_, _| {});
            }
        }
        fewest = fewest.min(ALLOCATIONS.load(Ordering::Relaxed) - before);
    }
    fewest
}

/// Bytes of the network of a part for four samples and this many slots, besides what goes over cuts.
fn bytes(case: &Case, part: &GraphPart, slots: usize) -> usize {
    let (compute, part) = (Arc::new(Compute::new(1, false)), part.clone());
    let before = BYTES.get();
    drop(Network::<f32>::with_outer_memory(Arc::clone(&case.graph), part, 4, slots, compute));
    BYTES.get() - before
}

// One test: others would be counted too.
#[test]
fn no_pass_allocates_and_a_slot_takes_what_the_graph_tells() {
    // The counter counts.
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    drop(std::hint::black_box(Box::new(1)));
    assert!(ALLOCATIONS.load(Ordering::Relaxed) > before);
    for case in layers().iter().chain(&models()).filter(|case| case.name != "resnet50") {
        let (graph, layers) = (&case.graph, case.graph.nodes().len());
        let third = [layers / 3, 2 * layers / 3];
        // A network with early exits is trained whole.
        let trained = |cuts: &&[usize]| cuts.is_empty() || cuts[0] > 0 && graph.exits().is_empty();
        for cuts in [&[][..], &third].into_iter().filter(trained) {
            assert_eq!(allocations(case, cuts), 0, "{}, cut before {cuts:?}", case.name);
            for part in graph.parts(cuts) {
                let (slot, told) =
                    (bytes(case, &part, 3) - bytes(case, &part, 2), 16 * part.pass_memory(graph).slot);
                // What a layer's buffers take beside their numbers, and batch norm's statistics.
                let more = layers * 400 + graph.state_count() * 6 + 200;
                assert!((told..=told + more).contains(&slot), "{}: {slot} instead of {told}", case.name);
            }
        }
    }
}
