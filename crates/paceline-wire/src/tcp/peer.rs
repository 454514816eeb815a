//! One connection that has been proved to be a peer's.

use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::event::PollFlags;

use super::inbound::Inbound;
use super::outbound::Outbound;
use super::{BOTH, READABLE};
use crate::body::Pool;
use crate::error::WireError;
use crate::frame::HEADER;
use crate::transport::{Event, Meta, Source, Span, Traffic};

pub(super) struct Peer {
    rank: usize,
    stream: TcpStream,
    outbound: Outbound,
    inbound: Inbound,
}

impl Peer {
    pub(super) fn new(rank: usize, stream: TcpStream, max_body: usize) -> Self {
        Self { rank, stream, outbound: Outbound::default(), inbound: Inbound::new(max_body) }
    }

    pub(super) fn queue(&mut self, meta: Meta, body: Span, op: u64) {
        self.outbound.push(meta, body, op);
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub(super) fn interest(&self) -> PollFlags {
        if self.outbound.is_empty() { READABLE } else { BOTH }
    }

    /// Moves what can be moved in both directions; says why the peer is lost, if it is.
    pub(super) fn exchange(
        &mut self,
        source: &dyn Source,
        pool: &Arc<Pool>,
        traffic: &mut Traffic,
        events: &mut Vec<Event>,
    ) -> Result<Option<String>, WireError> {
        let written = self.outbound.write(&self.stream, source, |op, bytes| {
            traffic.count_sent(bytes);
            events.push(Event::Sent { op });
        })?;
        let from = self.rank;
        let read = self.inbound.read(&self.stream, pool, |meta, body| {
            traffic.count_received(HEADER + 4 * body.len());
            events.push(Event::Message { from, meta, body });
        });
        Ok(match (read, written) {
            (Err(cause), _) => Some(cause),
            // A peer that cannot be written to may have said something before; it is lost when that is read.
            (Ok(0), Err(e)) => Some(e.to_string()),
            _ => None,
        })
    }
}
