//! What every transport does: the trait, its events, and how bodies are lent to it.

use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use crate::body::Body;
use crate::error::WireError;
use crate::kernel::KernelView;

/// Bytes that travel with each message. The last eight are the time stamp of emulated networks; callers leave
/// them zero.
pub const META: usize = 48;

/// The caller's tag and head of a message; the wire never looks at it.
pub type Meta = [u8; META];

/// Where an outgoing body lies: opaque to the wire, resolved by the caller's [`Source`] whenever bytes are
/// written. In `f32` elements; a length of 0 means no body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The caller's number of a buffer.
    pub buffer: u32,
    /// The first element.
    pub offset: usize,
    /// The number of elements.
    pub len: usize,
}

impl Span {
    /// No body.
    pub const EMPTY: Self = Self { buffer: 0, offset: 0, len: 0 };
}

/// Lends the memory of spans.
pub trait Source {
    /// Calls `f` with the slices that make up `span`, in order (a span may be scattered over several slices).
    fn slices<'a>(&'a self, span: Span, f: &mut dyn FnMut(&'a [f32]));
}

/// What happened on a transport.
#[derive(Debug)]
#[allow(missing_docs, reason = "what an event reports says what its fields are")]
pub enum Event {
    /// A message came from a rank, with the sender's 48 bytes; the body is empty if it has none.
    Message { from: usize, meta: Meta, body: Body },
    /// The body of an op (the number given to [`Transport::send`]) was taken: its span may be overwritten now.
    Sent { op: u64 },
    /// A peer is gone; said once per peer, after the last message that came from it. What was still queued
    /// for it is dropped: those spans are free, and no `Sent` follows for them.
    Lost { rank: usize, cause: String },
    /// What the caller asked to be woken by ([`Transport::wake_by`]) has something.
    Woken,
    /// A stranger was turned away; the run goes on. The cause names the stranger, and what both sides said of
    /// themselves.
    Refused { cause: String },
}

/// Messages and bytes exchanged with one peer, counting whole messages with their frame headers (in
/// process as if they had been framed).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes of the messages sent.
    pub sent_bytes: u64,
    /// Messages of which the last byte was taken.
    pub sent_messages: u64,
    /// Bytes of the messages received.
    pub received_bytes: u64,
    /// Messages delivered.
    pub received_messages: u64,
}

impl Traffic {
    pub(crate) fn count_sent(&mut self, bytes: usize) {
        self.sent_bytes += bytes as u64;
        self.sent_messages += 1;
    }

    pub(crate) fn count_received(&mut self, bytes: usize) {
        self.received_bytes += bytes as u64;
        self.received_messages += 1;
    }
}

/// One rank's end of the connections to its peers.
pub trait Transport: Send {
    /// The rank of this end.
    fn rank(&self) -> usize;

    /// Queues a message; never blocks. Messages to one peer stay in order. `body` must stay as it is until
    /// [`Event::Sent`] names `op`.
    fn send(&mut self, to: usize, meta: Meta, body: Span, op: u64) -> Result<(), WireError>;

    /// Moves whatever can be moved in both directions, and appends what happened to `events`. With `wait`, if
    /// nothing happened yet, waits at most that long for something to happen. Errors only for unusable state.
    fn progress(
        &mut self,
        source: &dyn Source,
        wait: Option<Duration>,
        events: &mut Vec<Event>,
    ) -> Result<(), WireError>;

    /// Bytes and messages sent and received so far, by the peer's rank.
    fn traffic(&self) -> &[Traffic];

    /// Whether bodies can stay in the memory of whoever sends them: see [`Transport::lend`].
    fn lends(&self) -> bool {
        false
    }

    /// Lets every peer read a buffer (the number in [`Span`]), a memory file that nobody else writes to. Longer bodies
    /// from it are not copied any more: [`Event::Sent`] comes when the receiver has dropped the [`Body`].
    fn lend(&mut self, _buffer: u32, _file: BorrowedFd<'_>) -> Result<(), WireError> {
        Ok(())
    }

    /// Lets a wait end when a stream of the caller's has something to read, too; none takes that back. Whether this
    /// transport can do that.
    fn wake_by(&mut self, _stream: Option<Arc<UnixStream>>) -> bool {
        false
    }

    /// Whether a wait may keep its core busy for a moment before it sleeps, which is so at first: not where somebody else
    /// computes on that core meanwhile.
    fn keep_busy(&mut self, _busy: bool) {}

    /// What the kernel knows of the connection to a peer, where it is one that the kernel measures.
    fn kernel(&self, _peer: usize) -> Option<KernelView> {
        None
    }
}

/// Checks that a source lent what a span says.
pub(crate) fn lent(span: Span, found: usize) -> Result<(), WireError> {
    if found == span.len { Ok(()) } else { Err(WireError::Span { span, found }) }
}
