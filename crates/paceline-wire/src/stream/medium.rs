//! What a connection is made of.

use std::fmt::Display;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::str::FromStr;

use rustix::event::PollFd;

use super::{BOTH, Options, READABLE};
use crate::error::WireError;
use crate::handshake::Side;
use crate::kernel::KernelView;

/// A kind of connection: how to listen, to dial, and to carry bytes. Nothing here blocks.
pub trait Medium: Sized + 'static {
    /// Where somebody listens.
    type Address: Clone + Display + FromStr + Send + Sync;
    /// Somebody who listens.
    type Listener: AsFd + Send;
    /// A connection during the handshake.
    type Socket: Read + Write + AsFd + Send;
    /// A connection after it.
    type Stream: Stream;

    /// An address of this machine to listen on that nobody else has.
    fn anywhere() -> Result<Self::Address, WireError>;

    /// Listens; returns the address as others must dial it.
    fn bind(address: &Self::Address) -> io::Result<(Self::Listener, Self::Address)>;

    /// Sizes the buffers that accepted connections inherit.
    fn size(listener: &Self::Listener, options: &Options) -> io::Result<()>;

    /// Takes whoever knocks, and what is known of it.
    fn accept(listener: &Self::Listener) -> io::Result<(Self::Socket, String)>;

    /// Sets what every accepted connection has; it must not block.
    fn prepare(socket: &Self::Socket, options: &Options) -> io::Result<()>;

    /// Starts to open a connection.
    fn open(address: &Self::Address, options: &Options) -> io::Result<Self::Socket>;

    /// Goes over from the handshake to frames.
    fn stream(socket: Self::Socket, side: Side, options: &Options) -> io::Result<Self::Stream>;
}

/// A non-blocking stream of bytes, and how to sleep until it moves.
pub trait Stream: Read + Write + AsFd + Send {
    /// Bytes to read beyond what is needed, so that a small message costs one call: at least a header's, and
    /// no more where a call costs nothing, since they are copied twice.
    const AHEAD: usize = 16 << 10;
    /// Bytes of a long body to read at once: few enough to be in the cache when their checksum is taken.
    const CHUNK: usize = 256 << 10;
    /// Bytes to move in one direction before the other direction and the other peers get their turn.
    const TURN: usize = 4 << 20;

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

    /// What the kernel knows of it, if it is a connection that the kernel measures.
    fn kernel(&self) -> Option<KernelView> {
        None
    }
}
