//! Ranks on several machines, some of them on the same one: shared memory within a machine, TLS over TCP between machines.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::WireError;
use crate::identity::Identity;
use crate::kernel::KernelView;
use crate::registry::Door;
use crate::shm::SharedMemory;
use crate::stream::{Listener, Spin, StreamOptions, StreamTransport, progress};
use crate::tls::Secure;
use crate::transport::{Event, Meta, Source, Span, Traffic, Transport};
use crate::uds::Name;

/// Listens for ranks of this machine and for those of others.
pub(crate) fn door_at(address: IpAddr) -> Result<Box<dyn Door>, WireError> {
    let (near, far) = (Listener::anywhere()?, Listener::bind(SocketAddr::new(address, 0))?);
    Ok(Box::new(MixedDoor { machine: machine(), near, far }))
}

/// What ranks have in common that can reach each other's Unix sockets: the machine since its start, and the network
/// namespace.
fn machine() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let network = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    format!("{}-{}", boot.trim(), network.display())
}

struct MixedDoor {
    machine: String,
    near: Listener<SharedMemory>,
    far: Listener<Secure>,
}

impl Door for MixedDoor {
    fn address(&self) -> String {
        format!("{} {} {}", self.far.address(), self.near.address(), self.machine)
    }

    fn connect(
        self: Box<Self>,
        identity: Identity,
        peers: &[(usize, String)],
        options: StreamOptions,
        deadline: Duration,
    ) -> Result<Box<dyn Transport>, WireError> {
        let begun = Instant::now();
        let (mut near, mut far) = (Vec::new(), Vec::new());
        for (rank, address) in peers {
            match addresses(address) {
                Some((_, name, machine)) if machine == self.machine => near.push((*rank, name)),
                Some((socket, ..)) => far.push((*rank, socket)),
                None => {
                    let problem = format!("{address:?} is no address for rank {rank}");
                    return Err(WireError::Identity { rank: identity.rank, world: identity.world, problem });
                }
            }
        }
        let mut near_ranks = vec![false; identity.world];
        near.iter().for_each(|(rank, _)| near_ranks[*rank] = true);
        let near = self.near.connect(identity.clone(), &near, options, deadline)?;
        let left = deadline.saturating_sub(begun.elapsed());
        let traffic = vec![Traffic::default(); identity.world];
        let far = self.far.connect(identity, &far, options, left)?;
        let spin = Spin::of::<SharedMemory>(&options);
        Ok(Box::new(Mixed { near, far, near_ranks, traffic, wakes: None, options, spin }))
    }
}

/// The parts of an address.
fn addresses(text: &str) -> Option<(SocketAddr, Name, &str)> {
    let mut words = text.splitn(3, ' ');
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?, words.next()?))
}

/// One rank's connections.
struct Mixed {
    near: StreamTransport<SharedMemory>,
    far: StreamTransport<Secure>,
    near_ranks: Vec<bool>,
    traffic: Vec<Traffic>,
    wakes: Option<Arc<UnixStream>>,
    options: StreamOptions,
    spin: Spin,
}

impl Mixed {
    /// What carries messages to a rank.
    fn to(&self, rank: usize) -> &dyn Transport {
        if self.is_near(rank) { &self.near } else { &self.far }
    }

    fn is_near(&self, rank: usize) -> bool {
        self.near_ranks.get(rank) == Some(&true)
    }
}

impl Transport for Mixed {
    fn rank(&self) -> usize {
        self.far.rank()
    }

    fn send(&mut self, to: usize, meta: Meta, body: Span, op: u64) -> Result<(), WireError> {
        if self.is_near(to) { self.near.send(to, meta, body, op) } else { self.far.send(to, meta, body, op) }
    }

    fn progress(
        &mut self,
        source: &dyn Source,
        wait: Option<Duration>,
        events: &mut Vec<Event>,
    ) -> Result<(), WireError> {
        let parts = &mut [&mut self.near as &mut dyn crate::stream::Turns, &mut self.far];
        progress(parts, self.wakes.as_deref(), self.spin, source, wait, events)?;
        for rank in 0..self.traffic.len() {
            self.traffic[rank] = self.to(rank).traffic()[rank];
        }
        Ok(())
    }

    fn traffic(&self) -> &[Traffic] {
        &self.traffic
    }

    fn lends(&self) -> bool {
        self.near.lends()
    }

    fn lend(&mut self, buffer: u32, file: BorrowedFd<'_>) -> Result<(), WireError> {
        self.near.lend(buffer, file)
    }

    fn wake_by(&mut self, stream: Option<Arc<UnixStream>>) -> bool {
        self.wakes = stream;
        true
    }

    fn keep_busy(&mut self, busy: bool) {
        self.spin = if busy { Spin::of::<SharedMemory>(&self.options) } else { Spin::NONE };
    }

    fn kernel(&self, peer: usize) -> Option<KernelView> {
        self.to(peer).kernel(peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_both_ways_and_the_machine() {
        let door = door_at(IpAddr::from([127, 0, 0, 1])).unwrap();
        let address = door.address();
        let (socket, _, machine) = addresses(&address).unwrap();
        assert!(socket.port() > 0 && machine == super::machine());
        assert!(addresses("127.0.0.1:80").is_none() && addresses("x @y z").is_none());
    }

    struct Numbers(Vec<f32>);

    impl Source for Numbers {
        fn slices<'a>(&'a self, span: Span, f: &mut dyn FnMut(&'a [f32])) {
            f(&self.0[span.offset..span.offset + span.len]);
        }
    }

    /// Four ranks on two machines.
    fn four() -> Vec<Box<dyn Transport>> {
        let doors = (0..4).map(|rank| {
            let far = Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
            MixedDoor { machine: format!("machine {}", rank / 2), near: Listener::anywhere().unwrap(), far }
        });
        let doors: Vec<_> = doors.collect();
        let all: Vec<_> = doors.iter().map(Door::address).enumerate().collect();
        std::thread::scope(|scope| {
            let connect = |(rank, door): (usize, MixedDoor)| {
                let peers: Vec<_> = all.iter().filter(|(peer, _)| *peer != rank).cloned().collect();
                let key = crate::identity::Key::from([7; 32]);
                let model_hash = [1; 32];
                let identity = Identity { run: "run".into(), rank, workers: 4, world: 4, model_hash, key };
                let options = StreamOptions::default();
                scope.spawn(move || {
                    Box::new(door).connect(identity, &peers, options, Duration::from_secs(60)).unwrap()
                })
            };
            let ranks: Vec<_> = doors.into_iter().enumerate().map(connect).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn everybody_hears_everybody_and_of_a_loss_on_either_way() {
        let numbers = Numbers((0..5000).map(|i| i as f32).collect());
        std::thread::scope(|scope| {
            for (rank, mut end) in four().into_iter().enumerate() {
                let numbers = &numbers;
                scope.spawn(move || {
                    assert!(end.lends());
                    let others = (0..4).filter(|peer| *peer != rank);
                    let span = Span { buffer: 0, offset: 0, len: 5000 };
                    others.for_each(|peer| end.send(peer, [rank as u8; crate::META], span, 1).unwrap());
                    let mut events = Vec::new();
                    let count = |events: &[Event], wanted: fn(&Event) -> bool| {
                        events.iter().filter(|event| wanted(event)).count()
                    };
                    let message = |event: &Event| matches!(event, Event::Message { .. });
                    let sent = |event: &Event| matches!(event, Event::Sent { .. });
                    while count(&events, message) < 3 || count(&events, sent) < 3 {
                        end.progress(numbers, Some(Duration::from_secs(1)), &mut events).unwrap();
                    }
                    for event in &events {
                        if let Event::Message { from, meta, body } = event {
                            assert!(meta[0] as usize == *from && body[..] == numbers.0[..]);
                        }
                    }
                    let (total, own) = (end.traffic().iter().map(|t| t.received_messages).sum::<u64>(), rank);
                    assert_eq!((total, end.rank()), (3, own));
                    // The last one leaves: one peer is near, two are far.
                    let lost = |event: &Event| matches!(event, Event::Lost { rank: 3, .. });
                    while rank != 3 && count(&events, lost) < 1 {
                        end.progress(numbers, Some(Duration::from_secs(1)), &mut events).unwrap();
                    }
                });
            }
        });
    }
}
