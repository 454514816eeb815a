//! What every transport must do, and what those between processes must do about whoever does not belong.

mod hand;
mod hostile;
mod hostile_grpc;
mod lending;
mod line;
mod memory;
mod rpc;
mod secure;
mod suite;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use paceline_wire::stream::medium::Medium;
use paceline_wire::stream::{Listener, StreamTransport};
use paceline_wire::{Identity, Interfaces, Key, Link, Shaped, StreamOptions, Transport, inproc};

/// No wait in these tests is longer.
const PATIENCE: Duration = Duration::from_secs(60);

fn identity(rank: usize, world: usize) -> Identity {
    let key = Key::from([7; 32]);
    Identity { run: "run-1".into(), rank, workers: world, world, model_hash: [0xab; 32], key }
}

/// Listeners, and their addresses by rank.
type Doors<M> = (Vec<Listener<M>>, Vec<(usize, <M as Medium>::Address)>);

fn listeners<M: Medium>(world: usize) -> Doors<M> {
    let listeners: Vec<_> = (0..world).map(|_| Listener::anywhere().unwrap()).collect();
    let addresses = listeners.iter().map(Listener::address).enumerate().collect();
    (listeners, addresses)
}

fn mesh<M: Medium>(world: usize, options: StreamOptions) -> Vec<StreamTransport<M>> {
    let (listeners, addresses) = listeners::<M>(world);
    thread::scope(|scope| {
        let connect = |(rank, listener): (usize, Listener<M>)| {
            let peers: Vec<_> = addresses.iter().filter(|(peer, _)| *peer != rank).cloned().collect();
            scope.spawn(move || listener.connect(identity(rank, world), &peers, options, PATIENCE).unwrap())
        };
        let threads: Vec<_> = listeners.into_iter().enumerate().map(connect).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn boxed<T: Transport + 'static>(ends: Vec<T>) -> Vec<Box<dyn Transport>> {
    ends.into_iter().map(|end| Box::new(end) as Box<dyn Transport>).collect()
}

/// Every rank a host of its own on an emulated network, fast enough for the suite.
fn emulated(ends: Vec<Box<dyn Transport>>) -> Vec<Box<dyn Transport>> {
    let link = Link { bits_per_s: 2_000_000_000, latency: Duration::from_micros(100) };
    let hosts: Vec<usize> = (0..ends.len()).collect();
    let interfaces = Arc::new(Interfaces::create(hosts.len()).unwrap());
    let shape = |end| -> Box<dyn Transport> {
        Box::new(Shaped::new(end, hosts.clone(), link, Arc::clone(&interfaces), None, false))
    };
    ends.into_iter().map(shape).collect()
}

macro_rules! conformance {
    ($($test:ident)*) => {
        mod emulated_inprocess {
            $(#[test] fn $test() {
                super::suite::$test(|world| super::emulated(super::boxed(super::inproc::mesh(world))))
            })*
        }
        mod emulated_tcp {
            use paceline_wire::Net;
            $(#[test] fn $test() {
                let ends = |world| super::boxed(super::mesh::<Net>(world, Default::default()));
                super::suite::$test(|world| super::emulated(ends(world)))
            })*
        }
        mod tcp_with_a_thread_that_reads {
            use paceline_wire::{Net, StreamOptions};
            $(#[test] fn $test() {
                let options = StreamOptions { spare_core: true, ..StreamOptions::default() };
                super::suite::$test(|world| super::boxed(super::mesh::<Net>(world, options)))
            })*
        }
        mod inprocess {
            $(#[test] fn $test() { super::suite::$test(|world| super::boxed(super::inproc::mesh(world))) })*
        }
        conformance! { between processes: tcp, tcp_with_small_buffers: paceline_wire::Net; $($test)* }
        conformance! { between processes: tls, tls_with_small_buffers: paceline_wire::Secure; $($test)* }
        conformance! { between processes: uds, uds_with_small_buffers: paceline_wire::Unix; $($test)* }
        conformance! { between processes: shm, shm_with_small_buffers: paceline_wire::SharedMemory; $($test)* }
        conformance! { between processes: grpc, grpc_with_small_buffers: paceline_wire::Rpc; $($test)* }
    };
    (between processes: $usual:ident, $small:ident: $medium:ty; $($test:ident)*) => {
        mod $usual {
            $(#[test] fn $test() {
                super::suite::$test(|world| super::boxed(super::mesh::<$medium>(world, Default::default())))
            })*
        }
        mod $small {
            use paceline_wire::StreamOptions;
            $(#[test] fn $test() {
                let options = StreamOptions { buffer: Some(8 << 10), ..StreamOptions::default() };
                super::suite::$test(|world| super::boxed(super::mesh::<$medium>(world, options)))
            })*
        }
    };
}

conformance! {
    messages_of_a_peer_stay_in_order
    contents_are_exact_for_every_size
    nobody_waits_for_whoever_sends_first
    a_span_may_be_overwritten_after_sent
    scattered_spans_arrive_whole
    a_lost_peer_is_reported_once_to_each_neighbour_after_its_messages
    whatever_was_sent_arrives_even_if_the_sender_leaves
    traffic_counts_are_exact
    mistakes_of_the_caller_are_errors
    a_wait_for_nothing_ends_in_time
}
