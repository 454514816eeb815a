//! Any transport with the bandwidth and latency of an emulated network.
//!
//! Ranks sit on emulated hosts. A host has one interface, which its ranks share; it sends and receives at the
//! link's bandwidth, one message after the other, and each bit is under way for the link's latency. Messages
//! inside a host are not slowed.
//!
//! A message goes through the real transport at once and carries the time at which its first bit would
//! arrive; the receiver keeps it until its last bit would have. So nothing has to be awake while a message is
//! under way, nothing costs time while nothing is, and what the real transport needs is not added to what was
//! asked for, as long as it is faster than the emulated link. A span is free again when what waits at the
//! interface fits into its buffer.

mod interfaces;

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU64;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

pub use self::interfaces::{Interfaces, Link};
use crate::error::WireError;
use crate::frame::HEADER;
use crate::kernel::KernelView;
use crate::transport::{Event, META, Meta, Source, Span, Traffic, Transport};

/// Bytes that wait at an interface before a send has to, where nothing else is said.
const BUFFER: usize = 1 << 20;
/// Nanoseconds before a message is due at which a sleep ends: waking up takes about that long, and more on a
/// virtual machine whose cores have gone to sleep.
const EARLY: u64 = 80_000;
/// Nanoseconds before a message is due from which only the clock is looked at.
const CLOSE: u64 = 5_000;
/// Where the time stamp is in a message's bytes.
const STAMP: std::ops::Range<usize> = META - 8..META;

/// A transport on an emulated network.
pub struct Shaped {
    inner: Box<dyn Transport>,
    /// The host of each rank.
    hosts: Vec<usize>,
    host: usize,
    link: Link,
    interfaces: Arc<Interfaces>,
    /// Nanoseconds of sending that an interface's buffer holds.
    buffer: u64,
    /// Nobody minds a short wait that keeps the core busy.
    own_core: bool,
    /// Sends that the real transport has not taken yet.
    leaving: Vec<Taken>,
    /// Sends that it has taken, but the interface's buffer has not.
    waiting: Vec<Taken>,
    /// Messages whose first bit has not come yet, or was not looked at, with their bytes: by the time of that bit, and
    /// in the order in which they were heard of.
    coming: BTreeMap<(u64, u64), (usize, Event)>,
    /// Messages with the time of their last bit, in that order.
    here: VecDeque<(u64, Event)>,
    /// Messages of each rank among these two.
    kept: Vec<usize>,
    /// Peers that are lost once their last message was delivered.
    lost: Vec<(usize, String)>,
    count: u64,
    fresh: Vec<Event>,
}

/// A send, and when the interface's buffer has room for its last byte.
struct Taken {
    to: usize,
    op: u64,
    at: u64,
}

/// Nanoseconds of the clock that all processes of a machine share.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl Shaped {
    /// Puts a transport on the network; `hosts` has the host of each rank. `buffer` is that of an interface, in
    /// bytes; `own_core` says that nobody minds a short wait that keeps the core busy.
    pub fn new(
        inner: Box<dyn Transport>,
        hosts: Vec<usize>,
        link: Link,
        interfaces: Arc<Interfaces>,
        buffer: Option<usize>,
        own_core: bool,
    ) -> Self {
        // Sleeps of this thread end when they should; one that may not ask for that sleeps 50 µs longer.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        Self {
            host: hosts[inner.rank()],
            kept: vec![0; hosts.len()],
            hosts,
            buffer: link.nanoseconds(buffer.unwrap_or(BUFFER)),
            own_core,
            link,
            interfaces,
            inner,
            leaving: Vec::new(),
            waiting: Vec::new(),
            coming: BTreeMap::new(),
            here: VecDeque::new(),
            lost: Vec::new(),
            count: 0,
            fresh: Vec::new(),
        }
    }

    /// Takes in what the real transport tells of.
    fn take_in(&mut self, events: &mut Vec<Event>) {
        for event in self.fresh.drain(..) {
            match event {
                Event::Message { from, mut meta, body } if self.hosts[from] != self.host => {
                    let stamp = meta[STAMP].try_into().map_or(0, u64::from_le_bytes);
                    meta[STAMP].fill(0);
                    self.count += 1;
                    self.kept[from] += 1;
                    let bytes = HEADER + 4 * body.len();
                    self.coming.insert((stamp, self.count), (bytes, Event::Message { from, meta, body }));
                }
                Event::Sent { op } => match self.leaving.iter().position(|taken| taken.op == op) {
                    Some(at) => self.waiting.push(self.leaving.remove(at)),
                    None => events.push(Event::Sent { op }),
                },
                Event::Lost { rank, cause } => {
                    self.leaving.retain(|taken| taken.to != rank);
                    self.waiting.retain(|taken| {
                        if taken.to == rank {
                            events.push(Event::Sent { op: taken.op });
                        }
                        taken.to != rank
                    });
                    self.lost.push((rank, cause));
                }
                event => events.push(event),
            }
        }
    }

    /// Hands out what is due.
    fn deliver(&mut self, now: u64, events: &mut Vec<Event>) {
        while let Some(next) = self.coming.first_entry().filter(|next| next.key().0 <= now) {
            let ((first_bit, _), (bytes, event)) = next.remove_entry();
            let time = self.link.nanoseconds(bytes);
            let begun = self.interfaces.receive(self.host, first_bit, time);
            self.here.push_back((begun.saturating_add(time), event));
        }
        while self.here.front().is_some_and(|(due, _)| *due <= now) {
            let Some((_, event)) = self.here.pop_front() else { break };
            if let Event::Message { from, .. } = event {
                self.kept[from] -= 1;
            }
            events.push(event);
        }
        self.waiting.retain(|taken| {
            if taken.at <= now {
                events.push(Event::Sent { op: taken.op });
            }
            taken.at > now
        });
        let kept = &self.kept;
        for (rank, cause) in self.lost.extract_if(.., |(rank, _)| kept[*rank] == 0) {
            events.push(Event::Lost { rank, cause });
        }
    }

    /// When something will be due, as far as is known.
    fn next(&self) -> Option<u64> {
        let coming = self.coming.first_key_value().map(|((first_bit, _), (bytes, _))| {
            let free = self.interfaces.free_to_receive(self.host);
            free.max(*first_bit).saturating_add(self.link.nanoseconds(*bytes))
        });
        let here = self.here.front().map(|(due, _)| *due);
        self.waiting.iter().map(|taken| taken.at).chain(coming).chain(here).min()
    }
}

impl Transport for Shaped {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn send(&mut self, to: usize, mut meta: Meta, body: Span, op: u64) -> Result<(), WireError> {
        if self.hosts.get(to).is_none_or(|host| *host == self.host) {
            return self.inner.send(to, meta, body, op);
        }
        let time = self.link.nanoseconds(HEADER + 4 * body.len);
        let now = now();
        let begin = self.interfaces.send(self.host, now, time);
        let latency = u64::try_from(self.link.latency.as_nanos()).unwrap_or(u64::MAX / 4);
        meta[STAMP].copy_from_slice(&begin.saturating_add(latency).to_le_bytes());
        self.inner.send(to, meta, body, op)?;
        let at = begin.saturating_add(time).saturating_sub(self.buffer);
        if at > now {
            self.leaving.push(Taken { to, op, at });
        }
        Ok(())
    }

    fn progress(
        &mut self,
        source: &dyn Source,
        wait: Option<Duration>,
        events: &mut Vec<Event>,
    ) -> Result<(), WireError> {
        let before = events.len();
        let wait = wait.map_or(0, |wait| u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX / 4));
        let end = now().saturating_add(wait);
        let mut sleep = None;
        loop {
            self.inner.progress(source, sleep, &mut self.fresh)?;
            self.take_in(events);
            let time = now();
            self.deliver(time, events);
            if events.len() > before || time >= end {
                return Ok(());
            }
            let next = self.next().unwrap_or(u64::MAX);
            let gap = next.saturating_sub(time);
            sleep = None;
            if next > end {
                sleep = Some(Duration::from_nanos(end - time));
            } else if gap > EARLY {
                sleep = Some(Duration::from_nanos(gap - EARLY));
            } else if gap <= CLOSE {
                while now() < next {
                    std::hint::spin_loop();
                }
            } else if !self.own_core {
                rustix::thread::sched_yield();
            }
        }
    }

    fn traffic(&self) -> &[Traffic] {
        self.inner.traffic()
    }

    fn wake_by(&mut self, stream: Option<Arc<UnixStream>>) -> bool {
        self.inner.wake_by(stream)
    }

    fn keep_busy(&mut self, busy: bool) {
        self.inner.keep_busy(busy);
    }

    fn kernel(&self, peer: usize) -> Option<KernelView> {
        self.inner.kernel(peer)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::inproc;

    struct Ones(Vec<f32>);

    impl Source for Ones {
        fn slices<'a>(&'a self, span: Span, f: &mut dyn FnMut(&'a [f32])) {
            f(&self.0[span.offset..span.offset + span.len]);
        }
    }

    fn network(hosts: &[usize], bits_per_s: u64, latency: Duration) -> Vec<Shaped> {
        let interfaces = Arc::new(Interfaces::create(hosts.len()).unwrap());
        let link = Link { bits_per_s, latency };
        let shape = |inner| {
            Shaped::new(Box::new(inner), hosts.to_vec(), link, Arc::clone(&interfaces), Some(4096), false)
        };
        inproc::mesh(hosts.len()).into_iter().map(shape).collect()
    }

    fn span(len: usize) -> Span {
        Span { buffer: 0, offset: 0, len }
    }

    /// Waits until `rank` has heard of `messages` messages; what it heard, and when each came.
    fn hear(ends: &mut [Shaped], rank: usize, messages: usize) -> Vec<(Instant, Event)> {
        let (source, mut heard) = (Ones(vec![1.0; 1 << 16]), Vec::new());
        let limit = Instant::now() + Duration::from_secs(60);
        while heard.iter().filter(|(_, e)| matches!(e, Event::Message { .. })).count() < messages {
            assert!(Instant::now() < limit, "only {heard:?}");
            for (i, end) in ends.iter_mut().enumerate() {
                let mut events = Vec::new();
                end.progress(&source, None, &mut events).unwrap();
                if i == rank {
                    heard.extend(events.into_iter().map(|event| (Instant::now(), event)));
                }
            }
        }
        heard
    }

    #[test]
    fn nothing_comes_before_its_time() {
        let mut ends = network(&[0, 1], 8_000_000, Duration::from_millis(20));
        let begun = Instant::now();
        for op in 0..3 {
            ends[0].send(1, [7; META], span(10_000), op).unwrap();
        }
        let came = hear(&mut ends, 1, 3);
        for (n, (at, event)) in came.iter().enumerate() {
            // 40,072 bytes at 8 Mbit/s.
            let least = Duration::from_millis(20) + Duration::from_micros(40_072) * (n as u32 + 1);
            assert!(at.duration_since(begun) >= least, "message {n} after {:?}", at.duration_since(begun));
            let Event::Message { from: 0, meta, body } = event else { panic!("{event:?}") };
            assert_eq!((&meta[..40], &meta[40..]), (&[7; 40][..], &[0; 8][..]));
            assert_eq!(body.len(), 10_000);
        }
    }

    #[test]
    fn an_interface_is_shared_by_the_ranks_of_its_host() {
        // Ranks 0 and 1 share one way out to 2; and 2 has one way in.
        for hosts in [[0, 0, 1], [0, 1, 2]] {
            let mut ends = network(&hosts, 8_000_000, Duration::ZERO);
            let begun = Instant::now();
            ends[0].send(2, [0; META], span(10_000), 1).unwrap();
            ends[1].send(2, [0; META], span(10_000), 2).unwrap();
            let came = hear(&mut ends, 2, 2);
            let last = came.last().unwrap().0.duration_since(begun);
            assert!(last >= Duration::from_micros(2 * 40_072), "{hosts:?}: {last:?}");
        }
    }

    #[test]
    fn inside_a_host_nothing_is_slowed() {
        let mut ends = network(&[0, 0], 1_000, Duration::from_secs(10));
        let begun = Instant::now();
        ends[0].send(1, [3; META], span(1000), 1).unwrap();
        let came = hear(&mut ends, 1, 1);
        // At a kilobit per second it would take 42 s.
        assert!(came[0].0.duration_since(begun) < Duration::from_secs(10));
        assert!(matches!(came[0].1, Event::Message { meta: [3, ..], .. }));
    }

    #[test]
    fn a_send_is_taken_when_the_interface_has_room() {
        let mut ends = network(&[0, 1], 8_000_000, Duration::ZERO);
        let (source, begun) = (Ones(vec![1.0; 1 << 16]), Instant::now());
        ends[0].send(1, [0; META], span(1000), 1).unwrap();
        ends[0].send(1, [0; META], span(10_000), 2).unwrap();
        let (mut events, mut sent) = (Vec::new(), Vec::new());
        while sent.len() < 2 {
            ends[0].progress(&source, Some(Duration::from_secs(10)), &mut events).unwrap();
            sent.extend(events.drain(..).map(|event| (event, begun.elapsed())));
        }
        // 4,072 + 40,072 bytes less 4,096 of buffer.
        assert!(matches!(sent[0].0, Event::Sent { op: 1 }) && matches!(sent[1].0, Event::Sent { op: 2 }));
        assert!(sent[1].1 >= Duration::from_micros(4_072 + 40_072 - 4_096), "{:?}", sent[1].1);
    }

    #[test]
    fn a_loss_is_told_after_the_last_message() {
        let mut ends = network(&[0, 1], 8_000_000, Duration::from_millis(5));
        ends[0].send(1, [0; META], span(1000), 1).unwrap();
        ends[0].progress(&Ones(vec![1.0; 1000]), None, &mut Vec::new()).unwrap();
        drop(ends.remove(0));
        let (source, mut events) = (Ones(Vec::new()), Vec::new());
        while events.len() < 2 {
            ends[0].progress(&source, Some(Duration::from_secs(10)), &mut events).unwrap();
        }
        assert!(matches!(events[0], Event::Message { from: 0, .. }), "{events:?}");
        assert!(matches!(events[1], Event::Lost { rank: 0, .. }), "{events:?}");
    }
}
