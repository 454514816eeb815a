//! Connections that carry frames as a stream of bytes: one non-blocking connection per peer, whatever it is
//! made of.
//!
//! - [`medium`]: what a connection is made of; one file each outside: `tcp`, `uds`, `shm`
//! - `connect`: from a list of peers to connections
//! - `shake`: one handshake on one socket; `strangers`: whoever knocks at the listener
//! - [`fed`]: frames out of bytes in memory
//! - `peer`: one connection; `outbound` and `inbound`: its two directions; `lending`: bodies that stay where they are;
//!   `intake`: a second thread that reads
//!
//! Dropping a [`StreamTransport`] closes its connections. Over TCP the kernel forgets what it still has to send if
//! something unread came from the same peer, so ranks say goodbye to each other before they drop theirs.

mod connect;
pub mod fed;
mod inbound;
mod intake;
mod lending;
pub mod medium;
mod outbound;
mod peer;
mod shake;
mod strangers;

use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::body::Pool;
use crate::error::WireError;
use crate::frame::LONGEST;
use crate::identity::Identity;
use crate::kernel::KernelView;
use crate::transport::{Event, Meta, Source, Span, Traffic, Transport};
use intake::{ReaderThread, WORTH_A_THREAD};
use medium::Medium;
use peer::Peer;
use strangers::{Strangers, Visit};

/// How long a wait asks again before it sleeps where each rank has a core of its own. A rank that sleeps is woken
/// on its peer's core, and the two then take turns there instead of working side by side.
const OWN_CORE_SPIN: Duration = Duration::from_micros(300);
/// A rank that never waits looks this often whether somebody knocks.
const KNOCKS: Duration = Duration::from_millis(10);

/// Limits and sizes.
#[derive(Clone, Copy, Debug)]
pub struct StreamOptions {
    /// The longest body to send or to take, in elements.
    pub max_body: usize,
    /// Bytes of the buffer per connection and direction, the kernel's or the ring's; `None` leaves them to
    /// the kernel or the medium.
    pub buffer: Option<usize>,
    /// The time a stranger has to prove that it belongs here.
    pub handshake: Duration,
    /// Whether this host has a core for each of its ranks, so that a short wait may keep it busy.
    pub own_core: bool,
    /// Whether it has another core for each of them, so that a second thread may read long messages.
    pub spare_core: bool,
    /// How long a wait may leave its core to others, at most, before it sleeps.
    pub yielding: Duration,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self {
            max_body: 16 << 20,
            buffer: None,
            handshake: Duration::from_secs(1),
            own_core: false,
            spare_core: false,
            yielding: Duration::MAX,
        }
    }
}

/// A bound socket that is not connected to anybody yet.
pub struct Listener<M: Medium> {
    socket: M::Listener,
    address: M::Address,
}

impl<M: Medium> Listener<M> {
    /// Listens on an address of this machine that nobody else has.
    pub fn anywhere() -> Result<Self, WireError> {
        Self::bind(M::anywhere()?)
    }

    /// Listens on an address.
    pub fn bind(address: M::Address) -> Result<Self, WireError> {
        let failed = |source| WireError::Listen { address: address.to_string(), source };
        let (socket, address) = M::bind(&address).map_err(failed)?;
        Ok(Self { socket, address })
    }

    /// The address to tell the peers.
    pub fn address(&self) -> M::Address {
        self.address.clone()
    }

    /// Connects to every listed peer within `deadline`: those of smaller rank are dialled, those of larger
    /// rank are waited for. Strangers that knock meanwhile are refused and reported by the first `progress`.
    pub fn connect(
        self,
        identity: Identity,
        peers: &[(usize, M::Address)],
        options: StreamOptions,
        deadline: Duration,
    ) -> Result<StreamTransport<M>, WireError> {
        let options = StreamOptions { max_body: options.max_body.min(LONGEST), ..options };
        connect::connect(self.socket, identity, peers, options, deadline)
    }
}

/// What is known of a rank.
enum Slot<M: Medium> {
    Unknown,
    Connected(Box<Peer<M>>),
    Lost { cause: String },
}

impl<M: Medium> Slot<M> {
    fn connected(&mut self) -> Option<&mut Peer<M>> {
        if let Self::Connected(peer) = self { Some(peer) } else { None }
    }
}

/// One rank's connections.
pub struct StreamTransport<M: Medium> {
    rank: usize,
    options: StreamOptions,
    slots: Vec<Slot<M>>,
    traffic: Vec<Traffic>,
    pool: Arc<Pool>,
    strangers: Strangers<M>,
    /// Somebody knocks, or may do so by now.
    knocked: bool,
    looked: Instant,
    /// Refusals from before the first `progress`.
    early: Vec<Event>,
    /// What ends a wait besides messages.
    wakes: Option<Arc<UnixStream>>,
    spin: Spin,
    /// Reads beside this thread while long messages are on their way, and whether it did so before a sleep.
    reader: Option<ReaderThread>,
    was_reading: bool,
}

impl<M: Medium> StreamTransport<M> {
    /// One round over all connections.
    fn round(&mut self, source: &dyn Source, events: &mut Vec<Event>) -> Result<(), WireError> {
        for (rank, slot) in self.slots.iter_mut().enumerate() {
            let Slot::Connected(peer) = slot else { continue };
            if let Some(cause) = peer.exchange(source, &self.pool, &mut self.traffic[rank], events)? {
                events.push(Event::Lost { rank, cause: cause.clone() });
                *slot = Slot::Lost { cause };
            }
        }
        let now = Instant::now();
        if self.knocked || now.duration_since(self.looked) >= KNOCKS {
            (self.knocked, self.looked) = (false, now);
            self.answer_the_door(now, events)?;
        }
        Ok(())
    }

    /// Everybody who belongs here is here already, so whoever comes is refused, once it is known who it is.
    fn answer_the_door(&mut self, now: Instant, events: &mut Vec<Event>) -> Result<(), WireError> {
        let (slots, us) = (&self.slots, self.rank);
        let visits = self.strangers.visit(now, |rank| {
            Err(match slots.get(rank) {
                Some(Slot::Connected(_)) => format!("rank {rank} is already connected to rank {us}"),
                Some(Slot::Lost { .. }) => format!("rank {rank} was lost by rank {us} and cannot come back"),
                _ => format!("rank {rank} is not expected by rank {us}"),
            })
        })?;
        for visit in visits {
            if let Visit::Refused { cause } = visit {
                events.push(Event::Refused { cause });
            }
        }
        Ok(())
    }
}

/// Connections that move in turns, and are waited for together with others.
pub(crate) trait Turns {
    /// One round over all connections.
    fn turn(&mut self, source: &dyn Source, events: &mut Vec<Event>) -> Result<(), WireError>;
    /// To be called before a sleep: whether there is something to do already.
    fn lie_down(&mut self) -> bool;
    /// Adds the sockets to wait for.
    fn interests<'a>(&'a self, sockets: &mut Vec<PollFd<'a>>);
    /// When to look again even if no socket is ready.
    fn next_deadline(&self) -> Option<Instant>;
    /// To be called after a sleep, with whether each socket was ready.
    fn get_up(&mut self, ready: &[bool]);
}

impl<M: Medium> Turns for StreamTransport<M> {
    fn turn(&mut self, source: &dyn Source, events: &mut Vec<Event>) -> Result<(), WireError> {
        events.append(&mut self.early);
        self.round(source, events)
    }

    fn lie_down(&mut self) -> bool {
        self.was_reading = self.reader.as_ref().is_some_and(ReaderThread::stop);
        // Every peer must know, even if one of them has something already.
        self.slots.iter_mut().filter_map(Slot::connected).fold(false, |ready, peer| peer.lie_down() | ready)
    }

    fn interests<'a>(&'a self, sockets: &mut Vec<PollFd<'a>>) {
        for slot in &self.slots {
            if let Slot::Connected(peer) = slot {
                sockets.push(peer.interest());
            }
        }
        self.strangers.interests(sockets);
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.strangers.next_deadline()
    }

    fn get_up(&mut self, ready: &[bool]) {
        let mut peers = 0;
        for peer in self.slots.iter_mut().filter_map(Slot::connected) {
            peer.get_up();
            peers += 1;
        }
        if let Some(reader) = self.reader.as_ref().filter(|_| self.was_reading) {
            reader.start();
        }
        let knocked = ready.iter().skip(peers).any(|ready| *ready);
        self.knocked |= knocked || self.next_deadline().is_some_and(|at| at <= Instant::now());
    }
}

/// How long a wait asks again before it sleeps: keeping its core busy, and then leaving it to whoever has work.
#[derive(Clone, Copy)]
pub(crate) struct Spin {
    pub(crate) busy: Duration,
    pub(crate) yielding: Duration,
}

impl Spin {
    /// Sleeps at once.
    pub(crate) const NONE: Self = Self { busy: Duration::ZERO, yielding: Duration::ZERO };

    /// What suits a medium.
    pub(crate) fn of<M: Medium>(options: &StreamOptions) -> Self {
        let busy = options.own_core && !M::OWN_THREAD;
        Self {
            busy: if busy { OWN_CORE_SPIN } else { Duration::ZERO },
            yielding: M::SPIN.min(options.yielding),
        }
    }
}

/// Moves connections of several kinds: see [`Transport::progress`].
pub(crate) fn progress(
    parts: &mut [&mut dyn Turns],
    wakes: Option<&UnixStream>,
    spin: Spin,
    source: &dyn Source,
    wait: Option<Duration>,
    events: &mut Vec<Event>,
) -> Result<(), WireError> {
    let before = events.len();
    let begun = Instant::now();
    loop {
        for part in parts.iter_mut() {
            part.turn(source, events)?;
        }
        let Some(wait) = wait.filter(|_| events.len() == before) else { return Ok(()) };
        let elapsed = begun.elapsed();
        if elapsed >= wait {
            return Ok(());
        }
        if elapsed < spin.busy {
            std::hint::spin_loop();
        } else if elapsed < spin.yielding {
            // The peer may be waiting for this very core.
            rustix::thread::sched_yield();
        } else if sleep(parts, wakes, wait - elapsed)? {
            events.push(Event::Woken);
        }
    }
}

/// Sleeps until a socket is ready, at most for `wait`; whether it was what the caller asked to be woken by.
fn sleep(
    parts: &mut [&mut dyn Turns],
    wakes: Option<&UnixStream>,
    wait: Duration,
) -> Result<bool, WireError> {
    if parts.iter_mut().fold(false, |ready, part| part.lie_down() | ready) {
        parts.iter_mut().for_each(|part| part.get_up(&[]));
        return Ok(false);
    }
    let mut sockets: Vec<PollFd<'_>> =
        wakes.map(|stream| PollFd::new(stream, PollFlags::IN)).into_iter().collect();
    let mut ends = Vec::with_capacity(parts.len());
    for part in parts.iter() {
        part.interests(&mut sockets);
        ends.push(sockets.len());
    }
    let now = Instant::now();
    let due = parts.iter().filter_map(|part| part.next_deadline());
    let wait = due.fold(wait, |wait, at| wait.min(at.saturating_duration_since(now)));
    await_any(&mut sockets, wait)?;
    let ready: Vec<bool> = sockets.iter().map(|socket| !socket.revents().is_empty()).collect();
    drop(sockets);
    let own = usize::from(wakes.is_some());
    let starts = [own].into_iter().chain(ends.iter().copied());
    for ((part, start), end) in parts.iter_mut().zip(starts).zip(&ends) {
        part.get_up(&ready[start..*end]);
    }
    Ok(own == 1 && ready[0])
}

impl<M: Medium> Transport for StreamTransport<M> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn send(&mut self, to: usize, meta: Meta, body: Span, op: u64) -> Result<(), WireError> {
        if body.len > self.options.max_body {
            return Err(WireError::TooLong { to, len: body.len, max: self.options.max_body });
        }
        match self.slots.get_mut(to) {
            Some(Slot::Connected(peer)) => {
                peer.queue(meta, body, op);
                if let Some(reader) = self.reader.as_ref().filter(|_| 4 * body.len >= WORTH_A_THREAD) {
                    reader.start();
                }
            }
            Some(Slot::Lost { cause }) => return Err(WireError::Gone { to, cause: cause.clone() }),
            _ => return Err(WireError::NoPeer { rank: self.rank, to }),
        }
        Ok(())
    }

    fn progress(
        &mut self,
        source: &dyn Source,
        wait: Option<Duration>,
        events: &mut Vec<Event>,
    ) -> Result<(), WireError> {
        let (wakes, spin) = (self.wakes.clone(), self.spin);
        progress(&mut [self], wakes.as_deref(), spin, source, wait, events)
    }

    fn traffic(&self) -> &[Traffic] {
        &self.traffic
    }

    fn lends(&self) -> bool {
        <M::Stream as medium::Stream>::LENDS
    }

    fn lend(&mut self, buffer: u32, file: BorrowedFd<'_>) -> Result<(), WireError> {
        for peer in self.slots.iter_mut().filter_map(Slot::connected) {
            match peer.lend(buffer, file) {
                // One that has ended is told of when it is read from.
                Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {}
                lent => lent.map_err(WireError::system("hand memory over"))?,
            }
        }
        Ok(())
    }

    fn wake_by(&mut self, stream: Option<Arc<UnixStream>>) -> bool {
        self.wakes = stream;
        true
    }

    fn keep_busy(&mut self, busy: bool) {
        self.spin = if busy { Spin::of::<M>(&self.options) } else { Spin::NONE };
    }

    fn kernel(&self, peer: usize) -> Option<KernelView> {
        if let Some(Slot::Connected(peer)) = self.slots.get(peer) { peer.kernel() } else { None }
    }
}

/// Waits until one of the sockets is ready; a signal ends the wait early.
pub(crate) fn await_any(sockets: &mut [PollFd<'_>], wait: Duration) -> Result<(), WireError> {
    let timeout = Timespec {
        tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(wait.subsec_nanos()),
    };
    match poll(sockets, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(WireError::system("wait for sockets")(e)),
    }
}

/// What a call on a non-blocking socket gives; none if it would have to wait. A call that a signal interrupts is made
/// again.
pub(crate) fn unless_blocked<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<Option<T>> {
    loop {
        match call() {
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
            done => return done.map(Some),
        }
    }
}

/// What to wait for to read.
pub(crate) const READABLE: PollFlags = PollFlags::IN;
/// What to wait for to read and to write.
pub(crate) const BOTH: PollFlags = PollFlags::IN.union(PollFlags::OUT);
