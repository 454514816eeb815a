//! The transport between processes: one non-blocking connection per peer.
//!
//! - `connect`: from a list of peers to connections
//! - `shake`: one handshake on one socket; `strangers`: whoever knocks at the listener
//! - `peer`: one connection; `outbound` and `inbound`: its two directions
//!
//! Dropping a [`Tcp`] closes its connections. The kernel forgets what it still has to send if something
//! unread came from the same peer, so ranks say goodbye to each other before they drop theirs.

mod connect;
mod inbound;
mod outbound;
mod peer;
mod shake;
mod strangers;

use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::body::Pool;
use crate::error::WireError;
use crate::frame::LONGEST;
use crate::identity::Identity;
use crate::transport::{Event, Meta, Source, Span, Traffic, Transport};
use peer::Peer;
use strangers::{Strangers, Visit};

/// How long a wait asks again before it sleeps: an answer to a small message comes within that time, and a
/// sleep costs more than it.
const SPIN: Duration = Duration::from_micros(30);
/// The same where each rank has a core of its own. A rank that sleeps is woken on its peer's core, and the
/// two then take turns there instead of working side by side.
const OWN_CORE_SPIN: Duration = Duration::from_micros(300);
/// A rank that never waits looks this often whether somebody knocks.
const KNOCKS: Duration = Duration::from_millis(10);

/// Limits and sizes.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The longest body to send or to take, in elements.
    pub max_body: usize,
    /// Bytes of the kernel's buffer per connection and direction; `None` leaves them to the kernel.
    pub buffer: Option<usize>,
    /// The time a stranger has to prove that it belongs here.
    pub handshake: Duration,
    /// Whether this host has a core for each of its ranks, so that a short wait may keep it busy.
    pub own_core: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { max_body: 16 << 20, buffer: None, handshake: Duration::from_secs(1), own_core: false }
    }
}

/// A bound socket that is not connected to anybody yet.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Listens on an address; port 0 means any that is free.
    pub fn bind(address: SocketAddr) -> Result<Self, WireError> {
        let failed = |source| WireError::Listen { address, source };
        let socket = TcpListener::bind(address).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        let address = socket.local_addr().map_err(failed)?;
        Ok(Self { socket, address })
    }

    /// The address to tell the peers.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connects to every listed peer within `deadline`: those of smaller rank are dialled, those of larger
    /// rank are waited for. Strangers that knock meanwhile are refused and reported by the first `progress`.
    pub fn connect(
        self,
        identity: Identity,
        peers: &[(usize, SocketAddr)],
        options: Options,
        deadline: Duration,
    ) -> Result<Tcp, WireError> {
        let options = Options { max_body: options.max_body.min(LONGEST), ..options };
        connect::connect(self.socket, identity, peers, options, deadline)
    }
}

/// What is known of a rank.
enum Slot {
    Unknown,
    Connected(Box<Peer>),
    Lost { cause: String },
}

/// One rank's connections.
pub struct Tcp {
    rank: usize,
    options: Options,
    slots: Vec<Slot>,
    traffic: Vec<Traffic>,
    pool: Arc<Pool>,
    strangers: Strangers,
    /// Somebody knocks, or may do so by now.
    knocked: bool,
    looked: Instant,
    /// Refusals from before the first `progress`.
    early: Vec<Event>,
}

impl Tcp {
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

    /// Sleeps until a socket is ready, at most for `wait`.
    fn sleep(&mut self, wait: Duration) -> Result<(), WireError> {
        let mut sockets = Vec::with_capacity(self.slots.len() + 1);
        for slot in &self.slots {
            if let Slot::Connected(peer) = slot {
                sockets.push(PollFd::from_borrowed_fd(peer.socket(), peer.interest()));
            }
        }
        let own = sockets.len();
        self.strangers.interests(&mut sockets);
        let now = Instant::now();
        let wait =
            self.strangers.next_deadline().map_or(wait, |at| wait.min(at.saturating_duration_since(now)));
        await_any(&mut sockets, wait)?;
        let knocked = sockets[own..].iter().any(|socket| !socket.revents().is_empty());
        drop(sockets);
        self.knocked |= knocked || self.strangers.next_deadline().is_some_and(|at| at <= Instant::now());
        Ok(())
    }
}

impl Transport for Tcp {
    fn rank(&self) -> usize {
        self.rank
    }

    fn send(&mut self, to: usize, meta: Meta, body: Span, op: u64) -> Result<(), WireError> {
        if body.len > self.options.max_body {
            return Err(WireError::TooLong { to, len: body.len, max: self.options.max_body });
        }
        match self.slots.get_mut(to) {
            Some(Slot::Connected(peer)) => peer.queue(meta, body, op),
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
        let before = events.len();
        let begun = Instant::now();
        events.append(&mut self.early);
        loop {
            self.round(source, events)?;
            let Some(wait) = wait.filter(|_| events.len() == before) else { return Ok(()) };
            let elapsed = begun.elapsed();
            if elapsed >= wait {
                return Ok(());
            }
            if self.options.own_core && elapsed < OWN_CORE_SPIN {
                std::hint::spin_loop();
            } else if elapsed < SPIN {
                // The peer may be waiting for this very core.
                rustix::thread::sched_yield();
            } else {
                self.sleep(wait - elapsed)?;
            }
        }
    }

    fn traffic(&self) -> &[Traffic] {
        &self.traffic
    }
}

/// Waits until one of the sockets is ready; a signal ends the wait early.
fn await_any(sockets: &mut [PollFd<'_>], wait: Duration) -> Result<(), WireError> {
    let timeout = Timespec {
        tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(wait.subsec_nanos()),
    };
    match poll(sockets, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(WireError::system("wait for sockets")(e)),
    }
}

/// Sets what every connection has.
fn prepare(socket: impl AsFd, options: &Options) -> std::io::Result<()> {
    rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
    buffers(socket, options)
}

fn buffers(socket: impl AsFd, options: &Options) -> std::io::Result<()> {
    if let Some(bytes) = options.buffer {
        rustix::net::sockopt::set_socket_send_buffer_size(&socket, bytes)?;
        rustix::net::sockopt::set_socket_recv_buffer_size(&socket, bytes)?;
    }
    Ok(())
}

/// What to wait for to read.
const READABLE: PollFlags = PollFlags::IN;
/// What to wait for to read and to write.
const BOTH: PollFlags = PollFlags::IN.union(PollFlags::OUT);
