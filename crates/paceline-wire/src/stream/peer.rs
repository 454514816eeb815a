//! One connection that has been proved to be a peer's.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::event::PollFd;

use super::inbound::Inbound;
use super::intake::{Inlet, Intake};
use super::medium::{Medium, Stream};
use super::outbound::Outbound;
use crate::body::Pool;
use crate::error::WireError;
use crate::frame::HEADER;
use crate::kernel::KernelView;
use crate::transport::{Event, Meta, Source, Span, Traffic};

pub(super) struct Peer<M: Medium> {
    rank: usize,
    stream: M::Stream,
    outbound: Outbound,
    inlet: Inlet<M::Stream>,
}

impl<M: Medium> Peer<M> {
    pub(super) fn new(rank: usize, stream: M::Stream, max_body: usize) -> Self {
        let inlet = Inlet::Own(Box::new(Inbound::new(max_body, M::Stream::AHEAD)));
        Self { rank, stream, outbound: Outbound::default(), inlet }
    }

    pub(super) fn queue(&mut self, meta: Meta, body: Span, op: u64) {
        self.outbound.push(meta, body, op);
    }

    /// Lets a thread read the connection, too, where its kind allows that.
    pub(super) fn share(&mut self) -> Option<Arc<Intake<M::Stream>>> {
        self.inlet.share(&self.stream)
    }

    /// What the kernel knows of it.
    pub(super) fn kernel(&self) -> Option<KernelView> {
        self.stream.kernel()
    }

    pub(super) fn interest(&self) -> PollFd<'_> {
        self.stream.interest(!self.outbound.is_empty())
    }

    /// To be called before a sleep: whether there is something to do already.
    pub(super) fn lie_down(&mut self) -> bool {
        self.stream.lie_down(!self.outbound.is_empty())
            || self.outbound.lending.returned(&self.stream)
            || !self.inlet.is_quiet()
    }

    /// Lets the peer read a buffer of the caller's.
    pub(super) fn lend(&mut self, buffer: u32, file: BorrowedFd<'_>) -> io::Result<()> {
        self.stream.hand_over(file)?;
        self.outbound.lending.hand_over(buffer);
        Ok(())
    }

    /// To be called after a sleep.
    pub(super) fn get_up(&mut self) {
        self.stream.get_up();
    }

    /// Moves what can be moved in both directions; says why the peer is lost, if it is.
    pub(super) fn exchange(
        &mut self,
        source: &dyn Source,
        pool: &Arc<Pool>,
        traffic: &mut Traffic,
        events: &mut Vec<Event>,
    ) -> Result<Option<String>, WireError> {
        let written = self.outbound.write(&mut self.stream, source, |op, bytes| {
            traffic.count_sent(bytes);
            events.extend(op.map(|op| Event::Sent { op }));
        })?;
        self.outbound.lending.take_back(&self.stream, |op| events.push(Event::Sent { op }));
        let from = self.rank;
        let read = self.inlet.read(&mut self.stream, pool, |meta, body| {
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
