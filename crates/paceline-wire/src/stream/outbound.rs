//! Messages on their way out: headers and bodies go to the kernel together, without a copy. Bodies that the peer can
//! read where they lie do not go at all.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};

use super::lending::{Lending, lent_number};
use super::medium::Stream;
use crate::error::WireError;
use crate::frame::{HEADER, Header};
use crate::transport::{Meta, Source, Span, lent};

/// Slices handed to the kernel at once.
const SLICES: usize = 64;
/// Small messages are gathered into one call up to this many bytes.
const GATHER: usize = 256 << 10;

struct Outgoing {
    meta: Meta,
    span: Span,
    op: u64,
    /// Made when the message comes near its turn, since the checksum needs the body.
    header: Option<[u8; HEADER]>,
    /// Where its end will be told, if it is lent.
    lent: Option<(u8, u64)>,
}

impl Outgoing {
    /// Bytes of the message.
    fn bytes(&self) -> usize {
        HEADER + 4 * self.span.len
    }

    /// Bytes that go through the stream.
    fn streamed(&self) -> usize {
        if self.lent.is_some() { HEADER } else { self.bytes() }
    }
}

#[derive(Default)]
pub(super) struct Outbound {
    /// Bodies that stay where they are.
    pub(super) lending: Lending,
    queue: VecDeque<Outgoing>,
    /// Bytes of the first message that the kernel has.
    written: usize,
    sequence: u32,
}

impl Outbound {
    pub(super) fn push(&mut self, meta: Meta, span: Span, op: u64) {
        self.queue.push_back(Outgoing { meta, span, op, header: None, lent: None });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Writes as much as the kernel takes; `sent` gets the size of each message it has entirely, and its op if the body
    /// is not lent. The inner error is the connection's, the outer one the caller's.
    pub(super) fn write<S: Stream>(
        &mut self,
        stream: &mut S,
        source: &dyn Source,
        mut sent: impl FnMut(Option<u64>, usize),
    ) -> Result<io::Result<()>, WireError> {
        let mut total = 0;
        while !self.queue.is_empty() && total < S::TURN {
            self.seal::<S>(source)?;
            let mut slices = [IoSlice::new(&[]); SLICES];
            let (used, offered) = self.gather(source, &mut slices);
            match stream.write_vectored(&slices[..used]) {
                Ok(n) => {
                    self.advance(n, &mut sent);
                    total += n;
                    if n < offered {
                        break;
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Ok(Err(e)),
            }
        }
        Ok(Ok(()))
    }

    /// Makes the headers of the messages that go out next.
    fn seal<S: Stream>(&mut self, source: &dyn Source) -> Result<(), WireError> {
        let mut bytes = 0;
        for message in self.queue.iter_mut().take(SLICES / 2) {
            if message.header.is_none() {
                let place = self.lending.place(message.span);
                let mut checksum = 0;
                if place.is_none() {
                    let (sum, found) = sum_of(source, message.span, S::SUMMED);
                    lent(message.span, found)?;
                    checksum = sum;
                }
                let (sequence, bytes) = (self.sequence, 4 * message.span.len as u32);
                let header = Header { sequence, bytes, checksum, meta: message.meta, place };
                message.header = Some(header.encode());
                message.lent = place.map(|place| (place.slot, lent_number(sequence)));
                self.sequence = sequence.wrapping_add(1);
            }
            bytes += message.streamed();
            if bytes >= GATHER {
                break;
            }
        }
        Ok(())
    }

    /// Collects the slices of all sealed messages, less what was written already; returns how many there are
    /// and their bytes.
    fn gather<'a>(&'a self, source: &'a dyn Source, slices: &mut [IoSlice<'a>; SLICES]) -> (usize, usize) {
        let (mut used, mut offered, mut skip) = (0, 0, self.written);
        let mut add = |bytes: &'a [u8]| {
            let skipped = skip.min(bytes.len());
            skip -= skipped;
            let bytes = &bytes[skipped..];
            if !bytes.is_empty() && used < SLICES {
                slices[used] = IoSlice::new(bytes);
                used += 1;
                offered += bytes.len();
            }
        };
        for message in &self.queue {
            let Some(header) = &message.header else { break };
            add(header);
            if message.span.len > 0 && message.lent.is_none() {
                source.slices(message.span, &mut |slice| add(bytemuck::cast_slice(slice)));
            }
        }
        (used, offered)
    }

    fn advance(&mut self, n: usize, sent: &mut impl FnMut(Option<u64>, usize)) {
        self.written += n;
        while let Some(first) = self.queue.front().filter(|first| self.written >= first.streamed()) {
            self.written -= first.streamed();
            sent(first.lent.is_none().then_some(first.op), first.bytes());
            if let Some((slot, number)) = first.lent {
                self.lending.lend(slot, number, first.op);
            }
            self.queue.pop_front();
        }
    }
}

/// The CRC-32 of a span (0 if bodies are not summed) and the number of elements lent for it.
fn sum_of(source: &dyn Source, span: Span, summed: bool) -> (u32, usize) {
    let (mut sum, mut found) = (crc32fast::Hasher::new(), 0);
    if span.len > 0 {
        source.slices(span, &mut |slice| {
            if summed {
                sum.update(bytemuck::cast_slice(slice));
            }
            found += slice.len();
        });
    }
    (if summed { sum.finalize() } else { 0 }, found)
}
