//! No pass allocates: forward, loss, backward, with micro-batches, slots and threads. A slot takes what the graph
//! tells.

#![allow(unsafe_code, reason = "an allocator that counts")]

mod every_layer;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use every_layer::{Case, layers, models};
use paceline_nn::{Compute, Network, Pass};

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

/// Allocations of a batch in three passes, each in a slot of its own: the fewest of some rounds, since the thread that
/// runs the tests is counted too.
fn allocations(case: &Case) -> usize {
    const SAMPLES: usize = 8;
    const PASSES: usize = 3;
    let graph = &case.graph;
    let (mut params, mut state) = (vec![0.0; graph.param_count()], vec![0.0; graph.state_count()]);
    graph.init(1, &mut params, &mut state);
    let mut grads = vec![0.0; params.len()];
    let compute = Arc::new(Compute::new(2, false));
    let mut net = Network::with_slots(Arc::clone(graph), SAMPLES.div_ceil(PASSES), PASSES, compute);
    let ids: Vec<u32> = (0..SAMPLES as u32).collect();
    let whole = Pass::training(1, 1, &ids);
    let classes: Vec<_> = (0..PASSES).map(|i| case.classes(whole.micro_batch(i, PASSES).ids)).collect();
    let mut fewest = usize::MAX;
    for _ in 0..4 {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        for slot in 0..PASSES {
            let pass = Pass { slot, ..whole.micro_batch(slot, PASSES) };
            case.load(&mut net, slot, pass.ids);
            net.forward(&pass, &params, &mut state);
        }
        for (slot, classes) in classes.iter().enumerate() {
            let pass = Pass { slot, ..whole.micro_batch(slot, PASSES) };
            case.loss(&mut net, slot, classes, 1.0 / SAMPLES as f64);
            net.backward(&pass, &params, &mut grads, &mut |_, _| {});
        }
        fewest = fewest.min(ALLOCATIONS.load(Ordering::Relaxed) - before);
    }
    fewest
}

/// Bytes of a network for four samples and this many slots.
fn bytes(case: &Case, slots: usize) -> usize {
    let compute = Arc::new(Compute::new(1, false));
    let before = BYTES.get();
    drop(Network::<f32>::with_slots(Arc::clone(&case.graph), 4, slots, compute));
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
        assert_eq!(allocations(case), 0, "{}", case.name);
        let (slot, told) = (bytes(case, 3) - bytes(case, 2), 16 * case.graph.pass_memory().slot);
        // What a layer's buffers take beside their numbers, and batch norm's statistics.
        let more = case.graph.nodes().len() * 400 + case.graph.state_count() * 6 + 200;
        assert!((told..=told + more).contains(&slot), "{}: {slot} instead of {told}", case.name);
    }
}
