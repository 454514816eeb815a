//! Messages on their way in: headers and small bodies through a small buffer, long bodies into their place.

use std::io::{ErrorKind, IoSliceMut};
use std::sync::Arc;

use super::lending::lent_number;
use super::medium::Stream;
use crate::body::{Body, Pool};
use crate::error::WireError;
use crate::frame::{HEADER, Header};
use crate::transport::Meta;

#[derive(Default)]
pub(super) struct Inbound {
    staging: Box<[u8]>,
    /// Staged bytes not digested yet; none while a body is incomplete.
    start: usize,
    end: usize,
    partial: Option<Partial>,
    sequence: u32,
    max_body: usize,
}

/// A message whose body is incomplete.
struct Partial {
    header: Header,
    body: Body,
    filled: usize,
    sum: Option<crc32fast::Hasher>,
}

impl Partial {
    fn rest(&mut self) -> &mut [u8] {
        &mut self.body.bytes_mut()[self.filled..]
    }

    /// Counts bytes that are in place.
    fn advance(&mut self, n: usize) {
        if let Some(sum) = &mut self.sum {
            sum.update(&self.body.bytes_mut()[self.filled..self.filled + n]);
        }
        self.filled += n;
    }
}

impl Inbound {
    /// Reads at most `ahead` bytes beyond what is needed.
    pub(super) fn new(max_body: usize, ahead: usize) -> Self {
        let staging = vec![0; ahead].into_boxed_slice();
        Self { staging, start: 0, end: 0, partial: None, sequence: 0, max_body }
    }

    /// Reads what is there; `deliver` gets each whole message. Returns the number of bytes, or why nothing
    /// more will come.
    pub(super) fn read<S: Stream>(
        &mut self,
        stream: &mut S,
        pool: &Arc<Pool>,
        mut deliver: impl FnMut(Meta, Body),
    ) -> Result<usize, String> {
        let mut total = 0;
        while total < S::TURN {
            let (room, result) = match &mut self.partial {
                Some(partial) => {
                    let rest = partial.rest();
                    let long = rest.len() > S::CHUNK;
                    let room = if long { S::CHUNK } else { rest.len() };
                    let staged = if long { 0 } else { self.staging.len() };
                    let mut slices =
                        [IoSliceMut::new(&mut rest[..room]), IoSliceMut::new(&mut self.staging[..staged])];
                    (room + staged, stream.read_vectored(&mut slices))
                }
                None => (self.staging.len() - self.end, stream.read(&mut self.staging[self.end..])),
            };
            let n = match result {
                Ok(0) => return Err(self.end_of_stream()),
                Ok(n) => n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(e.to_string()),
            };
            total += n;
            self.place(n);
            self.digest(stream, pool, &mut deliver).map_err(|e| e.to_string())?;
            if n < room {
                break;
            }
        }
        Ok(total)
    }

    fn place(&mut self, n: usize) {
        let mut staged = n;
        if let Some(partial) = &mut self.partial {
            let placed = n.min(partial.rest().len());
            partial.advance(placed);
            staged -= placed;
        }
        self.end += staged;
    }

    /// Turns bytes into messages as far as they go.
    fn digest<S: Stream>(
        &mut self,
        stream: &mut S,
        pool: &Arc<Pool>,
        deliver: &mut impl FnMut(Meta, Body),
    ) -> Result<(), WireError> {
        loop {
            if let Some(mut partial) = self.partial.take() {
                let n = partial.rest().len().min(self.end - self.start);
                partial.rest()[..n].copy_from_slice(&self.staging[self.start..self.start + n]);
                partial.advance(n);
                self.start += n;
                if !partial.rest().is_empty() {
                    self.partial = Some(partial);
                    (self.start, self.end) = (0, 0);
                    return Ok(());
                }
                partial.header.check_body(partial.sum.map_or(0, crc32fast::Hasher::finalize))?;
                deliver(partial.header.meta, partial.body);
            }
            let Some(bytes) = self.staging[self.start..self.end].first_chunk::<HEADER>() else { break };
            let header = Header::decode(bytes, self.sequence, self.max_body, S::LENDS)?;
            self.start += HEADER;
            let number = lent_number(self.sequence);
            self.sequence = self.sequence.wrapping_add(1);
            if let Some(place) = header.place {
                let len = header.bytes as usize / 4;
                let body =
                    stream.lent(place, len, number).map_err(WireError::system("take what a peer lends"))?;
                deliver(header.meta, body);
                continue;
            }
            let body = pool.take(header.bytes as usize / 4);
            let sum = S::SUMMED.then(crc32fast::Hasher::new);
            self.partial = Some(Partial { header, body, filled: 0, sum });
        }
        self.staging.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        Ok(())
    }

    fn end_of_stream(&mut self) -> String {
        match &mut self.partial {
            Some(partial) => {
                let (have, all) = (partial.filled, partial.header.bytes);
                format!("the connection was closed {have} bytes into a body of {all}")
            }
            None if self.end > 0 => format!("the connection was closed {} bytes into a header", self.end),
            None => "the connection was closed".to_owned(),
        }
    }
}
