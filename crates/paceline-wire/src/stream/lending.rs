//! Bodies that a peer reads where they lie: which buffers it can read, and what it has not done with yet.

use super::medium::Stream;
use crate::frame::LentPlace;
use crate::transport::Span;

/// Elements from which on a body is lent rather than sent: the peer then has to say when it has done with it.
const WORTH_LENDING: usize = 2 << 10;

/// The number of a lent body on its connection: that of its frame, from 1.
pub(super) fn lent_number(sequence: u32) -> u64 {
    u64::from(sequence) + 1
}

/// A body that the peer has not done with yet.
struct LentBody {
    slot: u8,
    number: u64,
    op: u64,
}

/// What one end of a connection lends.
#[derive(Default)]
pub(super) struct Lending {
    /// The caller's buffers that the peer can read, in the order in which they were handed over.
    readable: Vec<u32>,
    out: Vec<LentBody>,
    /// Slots that are not in use, and the first of those that never were.
    free: Vec<u8>,
    fresh: u8,
}

impl Lending {
    /// Notes that the peer can read a buffer.
    pub(super) fn hand_over(&mut self, buffer: u32) {
        self.readable.push(buffer);
    }

    /// Where the peer finds a body; none if it has to be sent.
    pub(super) fn place(&mut self, span: Span) -> Option<LentPlace> {
        let Span { buffer, offset, len } = span;
        let file = self.readable.iter().rposition(|readable| *readable == buffer)?;
        let offset = u32::try_from(offset).ok().filter(|_| len >= WORTH_LENDING)?;
        Some(LentPlace { file: file as u8, slot: self.free_slot()?, offset })
    }

    fn free_slot(&mut self) -> Option<u8> {
        self.free.pop().or_else(|| {
            let next = self.fresh;
            self.fresh += u8::from(next < LentPlace::SLOTS);
            (next < LentPlace::SLOTS).then_some(next)
        })
    }

    /// Notes that the peer has been told of a body.
    pub(super) fn lend(&mut self, slot: u8, number: u64, op: u64) {
        self.out.push(LentBody { slot, number, op });
    }

    /// Takes back what the peer has done with; `sent` gets the ops.
    pub(super) fn take_back<S: Stream>(&mut self, stream: &S, mut sent: impl FnMut(u64)) {
        let Self { out, free, .. } = self;
        out.retain(|body| {
            let over = stream.released(body.slot) == body.number;
            if over {
                free.push(body.slot);
                sent(body.op);
            }
            !over
        });
    }

    /// Whether the peer has done with something.
    pub(super) fn returned<S: Stream>(&self, stream: &S) -> bool {
        self.out.iter().any(|body| stream.released(body.slot) == body.number)
    }
}
