//! What every transport must do, and what the one over TCP must do about those who do not belong.

mod hostile;
mod memory;
mod suite;

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use paceline_wire::tcp::{Listener, Options, Tcp};
use paceline_wire::{Identity, Key, Transport, inproc};

/// No wait in these tests is longer.
const PATIENCE: Duration = Duration::from_secs(60);

fn identity(rank: usize, world: usize) -> Identity {
    let key = Key::from([7; 32]);
    Identity { run: "run-1".into(), rank, workers: world, world, model_hash: [0xab; 32], key }
}

fn listeners(world: usize) -> (Vec<Listener>, Vec<(usize, SocketAddr)>) {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listeners: Vec<_> = (0..world).map(|_| Listener::bind(any).unwrap()).collect();
    let addresses = listeners.iter().map(Listener::address).enumerate().collect();
    (listeners, addresses)
}

fn tcp_mesh(world: usize, options: Options) -> Vec<Tcp> {
    let (listeners, addresses) = listeners(world);
    let connect = |(rank, listener): (usize, Listener)| {
        let peers: Vec<_> = addresses.iter().copied().filter(|(peer, _)| *peer != rank).collect();
        thread::spawn(move || listener.connect(identity(rank, world), &peers, options, PATIENCE).unwrap())
    };
    let threads: Vec<_> = listeners.into_iter().enumerate().map(connect).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

fn boxed<T: Transport + 'static>(ends: Vec<T>) -> Vec<Box<dyn Transport>> {
    ends.into_iter().map(|end| Box::new(end) as Box<dyn Transport>).collect()
}

macro_rules! conformance {
    ($($test:ident)*) => {
        mod inprocess {
            $(#[test] fn $test() { super::suite::$test(|world| super::boxed(super::inproc::mesh(world))) })*
        }
        mod tcp {
            $(#[test] fn $test() {
                super::suite::$test(|world| super::boxed(super::tcp_mesh(world, Default::default())))
            })*
        }
        mod tcp_with_small_buffers {
            use paceline_wire::tcp::Options;
            $(#[test] fn $test() {
                let options = Options { buffer: Some(8 << 10), ..Options::default() };
                super::suite::$test(|world| super::boxed(super::tcp_mesh(world, options)))
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
