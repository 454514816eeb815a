//! The transport between threads of one process: one queue per ordered pair of ranks.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::body::{Body, Pool};
use crate::error::WireError;
use crate::frame::HEADER;
use crate::registry::{TransportDefaults, TransportKind};
use crate::transport::{Event, Meta, Source, Span, Traffic, Transport, lent};

/// Its line in the registry.
pub const KIND: TransportKind = TransportKind {
    name: "inproc",
    memory: true,
    about: "threads of one process",
    buffer: None,
    defaults: TransportDefaults { latency_us: 5.0, message_us: 1.0, ns_per_byte: 0.2 },
    lends: false,
    mesh: Some(|world| mesh(world).into_iter().map(|end| Box::new(end) as Box<dyn Transport>).collect()),
    bind: None,
    bind_at: None,
};

/// A queue that holds this many elements takes no further message (16 MiB).
const FULL: usize = 4 << 20;

/// Connects `world` ranks; the ends are in order of rank.
pub fn mesh(world: usize) -> Vec<Inproc> {
    let links = (0..world * world).map(|_| Mutex::default()).collect();
    let bells = (0..world).map(|_| TlsListener::default()).collect();
    let mesh = Arc::new(Mesh { world, links, bells, pool: Arc::default() });
    let end = |rank| Inproc {
        rank,
        mesh: Arc::clone(&mesh),
        queues: (0..world).map(|_| VecDeque::new()).collect(),
        gone: (0..world).map(|peer| peer == rank).collect(),
        traffic: vec![Traffic::default(); world],
    };
    (0..world).map(end).collect()
}

/// The end of a rank that has no peers.
pub fn alone() -> Inproc {
    mesh(1).pop().expect("a mesh of one has one end")
}

/// One rank's end of a mesh; dropping it tells its peers.
pub struct Inproc {
    rank: usize,
    mesh: Arc<Mesh>,
    /// Messages whose bodies were not copied yet, by receiver.
    queues: Vec<VecDeque<Outgoing>>,
    gone: Vec<bool>,
    traffic: Vec<Traffic>,
}

struct Mesh {
    world: usize,
    links: Vec<Mutex<Link>>,
    bells: Vec<TlsListener>,
    pool: Arc<Pool>,
}

#[derive(Default)]
struct Link {
    packets: VecDeque<(Meta, Body)>,
    elements: usize,
    closed: bool,
}

struct Outgoing {
    meta: Meta,
    span: Span,
    op: u64,
}

/// Wakes one rank. It counts, so that what happens between a look and a wait is not missed.
#[derive(Default)]
struct TlsListener {
    rung: Mutex<u64>,
    sound: Condvar,
}

impl TlsListener {
    fn ring(&self) {
        *lock(&self.rung) += 1;
        self.sound.notify_one();
    }
}

impl Mesh {
    fn link(&self, from: usize, to: usize) -> MutexGuard<'_, Link> {
        lock(&self.links[from * self.world + to])
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inproc {
    fn push(&mut self, to: usize, source: &dyn Source, events: &mut Vec<Event>) -> Result<(), WireError> {
        let mut pushed = false;
        while let Some(&Outgoing { meta, span, op }) = self.queues[to].front() {
            let link = self.mesh.link(self.rank, to);
            if link.closed || link.elements >= FULL {
                break;
            }
            drop(link);
            let body = copy(&self.mesh.pool, source, span)?;
            self.queues[to].pop_front();
            let mut link = self.mesh.link(self.rank, to);
            link.elements += span.len;
            link.packets.push_back((meta, body));
            drop(link);
            pushed = true;
            self.traffic[to].count_sent(HEADER + 4 * span.len);
            events.push(Event::Sent { op });
        }
        if pushed {
            self.mesh.bells[to].ring();
        }
        Ok(())
    }

    fn pull(&mut self, from: usize, events: &mut Vec<Event>) {
        let mut link = self.mesh.link(from, self.rank);
        let was_full = link.elements >= FULL;
        while let Some((meta, body)) = link.packets.pop_front() {
            self.traffic[from].count_received(HEADER + 4 * body.len());
            events.push(Event::Message { from, meta, body });
        }
        link.elements = 0;
        let closed = link.closed;
        drop(link);
        if closed {
            self.gone[from] = true;
            self.queues[from].clear();
            events.push(Event::Lost { rank: from, cause: "its end was dropped".into() });
        } else if was_full {
            self.mesh.bells[from].ring();
        }
    }
}

fn copy(pool: &Arc<Pool>, source: &dyn Source, span: Span) -> Result<Body, WireError> {
    let mut body = pool.take(span.len);
    let mut found = 0;
    if span.len > 0 {
        let rest = body.as_mut_slice();
        source.slices(span, &mut |slice| {
            if let Some(place) = rest.get_mut(found..found + slice.len()) {
                place.copy_from_slice(slice);
            }
            found += slice.len();
        });
    }
    lent(span, found)?;
    Ok(body)
}

impl Transport for Inproc {
    fn rank(&self) -> usize {
        self.rank
    }

    fn send(&mut self, to: usize, meta: Meta, span: Span, op: u64) -> Result<(), WireError> {
        if to == self.rank || to >= self.mesh.world {
            return Err(WireError::NoPeer { rank: self.rank, to });
        }
        if self.gone[to] {
            return Err(WireError::Gone { to, cause: "its end was dropped".into() });
        }
        self.queues[to].push_back(Outgoing { meta, span, op });
        Ok(())
    }

    fn progress(
        &mut self,
        source: &dyn Source,
        wait: Option<Duration>,
        events: &mut Vec<Event>,
    ) -> Result<(), WireError> {
        let before = events.len();
        let until = wait.map(|wait| Instant::now() + wait);
        loop {
            let seen = *lock(&self.mesh.bells[self.rank].rung);
            for peer in 0..self.mesh.world {
                if !self.gone[peer] {
                    self.push(peer, source, events)?;
                    self.pull(peer, events);
                }
            }
            let left = until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
            if events.len() > before || left.is_zero() {
                return Ok(());
            }
            let bell = &self.mesh.bells[self.rank];
            let waited = bell.sound.wait_timeout_while(lock(&bell.rung), left, |rung| *rung == seen);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
    }

    fn traffic(&self) -> &[Traffic] {
        &self.traffic
    }
}

impl Drop for Inproc {
    fn drop(&mut self) {
        for peer in (0..self.mesh.world).filter(|&peer| peer != self.rank) {
            self.mesh.link(self.rank, peer).closed = true;
            let mut inbound = self.mesh.link(peer, self.rank);
            inbound.closed = true;
            inbound.packets.clear();
            drop(inbound);
            self.mesh.bells[peer].ring();
        }
    }
}
