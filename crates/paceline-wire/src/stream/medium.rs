//! What a connection is made of.

use std::fmt::Display;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::str::FromStr;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::net::sockopt;

use super::{BOTH, READABLE, StreamOptions, await_any};
use crate::body::Body;
use crate::error::WireError;
use crate::frame::LentPlace;
use crate::handshake::Side;
use crate::identity::Key;
use crate::kernel::KernelView;

/// A kind of connection: how to listen, to dial, and to carry bytes. Nothing here blocks.
pub trait Medium: Sized + 'static {
    /// Where somebody listens.
    type Address: Clone + Display + FromStr + Send + Sync;
    /// Somebody who listens.
    type Listener: AsFd + Send;
    /// A connection during the handshake.
    type Socket: Stream;
    /// A connection after it.
    type Stream: Stream;

    /// Whether a thread of the medium's own moves the bytes: it may need the core that a wait keeps busy.
    const OWN_THREAD: bool = false;
    /// How long a wait asks again before it sleeps, where ranks share cores: an answer to a small message comes
    /// within that time, and a sleep costs more than it.
    const SPIN: Duration = Duration::from_micros(30);

    /// An address of this machine to listen on that nobody else has.
    fn anywhere() -> Result<Self::Address, WireError>;

    /// Listens; returns the address as others must dial it.
    fn bind(address: &Self::Address) -> io::Result<(Self::Listener, Self::Address)>;

    /// Sizes the buffers that accepted connections inherit, where they do.
    fn size(_listener: &Self::Listener, _options: &StreamOptions) -> io::Result<()> {
        Ok(())
    }

    /// Takes whoever knocks, and what is known of it. Few media need the run's key before the handshake.
    fn accept(listener: &Self::Listener, key: &Key) -> io::Result<(Self::Socket, String)>;

    /// Sets what every accepted connection has; it must not block.
    fn prepare(socket: &Self::Socket, options: &StreamOptions) -> io::Result<()>;

    /// Starts to open a connection.
    fn open(address: &Self::Address, key: &Key, options: &StreamOptions) -> io::Result<Self::Socket>;

    /// What to wait for during the handshake.
    fn interest(socket: &Self::Socket, writing: bool) -> PollFd<'_> {
        socket.interest(writing)
    }

    /// Goes over from the handshake to frames.
    fn stream(socket: Self::Socket, side: Side, options: &StreamOptions) -> io::Result<Self::Stream>;
}

/// A non-blocking stream of bytes, and how to sleep until it moves.
pub trait Stream: Read + Write + AsFd + Send {
    /// Bytes to read beyond what is needed, so that a small message costs one call: at least a header's, and
    /// no more where a call costs nothing, since they are copied twice.
    const AHEAD: usize = 16 << 10;
    /// Whether bodies are summed: not where there is no line on which a bit could flip.
    const SUMMED: bool = true;
    /// Bytes of a long body to read at once: few enough to be in the cache when their checksum is taken.
    const CHUNK: usize = 256 << 10;
    /// Bytes to move in one direction before the other direction and the other peers get their turn.
    const TURN: usize = 4 << 20;

    /// Whether bodies can stay in the sender's memory.
    const LENDS: bool = false;

    /// Hands the peer a memory file that bodies will lie in.
    fn hand_over(&mut self, _file: BorrowedFd<'_>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// A body of `len` elements that stays in the peer's memory: the one with this number in its slot.
    fn lent(&mut self, _place: LentPlace, _len: usize, _number: u64) -> io::Result<Body> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The number of the last body lent in a slot that the peer has done with.
    fn released(&self, _slot: u8) -> u64 {
        0
    }

    /// Whether a connection that was dialled is open by now.
    fn opened(&mut self) -> io::Result<bool> {
        writable(self.as_fd(), Duration::ZERO)
    }

    /// Prepares a sleep that ends when bytes have come or, if `writing`, can be written; true if there is no
    /// need to sleep.
    fn lie_down(&mut self, _writing: bool) -> bool {
        false
    }

    /// What to wait for.
    fn interest(&self, writing: bool) -> PollFd<'_> {
        PollFd::from_borrowed_fd(self.as_fd(), if writing { BOTH } else { READABLE })
    }

    /// Ends a sleep.
    fn get_up(&mut self) {}

    /// The same connection once more, for another thread to read; none where only one can.
    fn second(&self) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }

    /// What the kernel knows of it, if it is a connection that the kernel measures.
    fn kernel(&self) -> Option<KernelView> {
        None
    }
}

/// Whether a socket has finished connecting, after a wait for that.
pub(crate) fn writable(socket: BorrowedFd<'_>, wait: Duration) -> io::Result<bool> {
    let mut sockets = [PollFd::from_borrowed_fd(socket, PollFlags::OUT)];
    await_any(&mut sockets, wait).map_err(io::Error::other)?;
    if sockets[0].revents().is_empty() {
        return Ok(false);
    }
    sockopt::socket_error(socket)??;
    Ok(true)
}
