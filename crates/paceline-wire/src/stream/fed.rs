//! Frames out of bytes in memory, as they would be read from a connection: what fuzzing feeds.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::inbound::Inbound;
use super::medium::Stream;
use crate::body::{Body, Pool};
use crate::transport::Meta;

/// Bytes that come in pieces.
struct Fed<'a> {
    rest: &'a [u8],
    /// Most bytes that a read gives.
    piece: usize,
    /// There is no socket; nobody waits for this one.
    nothing: File,
}

impl Read for Fed<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = into.len().min(self.piece).min(self.rest.len());
        into[..n].copy_from_slice(&self.rest[..n]);
        self.rest = &self.rest[n..];
        Ok(n)
    }
}

impl Write for Fed<'_> {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Fed<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.nothing.as_fd()
    }
}

impl Stream for Fed<'_> {
    const AHEAD: usize = 256;
}

/// Reads frames of at most `max_body` elements out of bytes that come in pieces of at most `piece`: the whole
/// messages, and why it ended.
pub fn frames(bytes: &[u8], piece: usize, max_body: usize) -> (Vec<(Meta, Body)>, String) {
    let nothing = match File::open("/dev/null") {
        Ok(file) => file,
        Err(error) => return (Vec::new(), error.to_string()),
    };
    let mut fed = Fed { rest: bytes, piece: piece.max(1), nothing };
    let mut inbound = Inbound::new(max_body, Fed::AHEAD);
    let (pool, mut messages) = (Arc::new(Pool::default()), Vec::new());
    loop {
        let read = inbound.read(&mut fed, &pool, |meta, body| messages.push((meta, body)));
        if let Err(cause) = read {
            return (messages, cause);
        }
    }
}
