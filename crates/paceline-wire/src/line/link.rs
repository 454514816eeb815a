//! Documents on an encrypted connection: a length of eight bytes, little-endian, then the document. A length of
//! zero is a heartbeat.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::PollFd;

use crate::identity::Key;
use crate::stream::medium::{Medium, Stream as _, writable};
use crate::stream::{StreamOptions, await_any, unless_blocked};
use crate::tls::{Secure, Stream};

const LENGTH: usize = 8;
/// Bytes to read at once; no more is set aside for a document than has come of it, and this.
const PIECE: usize = 64 << 10;

/// One end of a connection whose other end holds the same key, or has yet to prove it.
pub struct Link {
    stream: Stream,
    queue: VecDeque<Vec<u8>>,
    /// Bytes of the first in the queue that are gone.
    written: usize,
    length: [u8; LENGTH],
    /// How many bytes of the length have come; all of them while a document is incomplete.
    have: usize,
    document: Vec<u8>,
}

impl Link {
    pub(super) fn new(stream: Stream) -> Self {
        let (queue, document) = (VecDeque::new(), Vec::new());
        Self { stream, queue, written: 0, length: [0; LENGTH], have: 0, document }
    }

    /// Opens a connection and lets both ends prove themselves, within a time. An error of the kind
    /// `InvalidData` will be the same next time.
    pub fn dial(address: SocketAddr, key: &Key, within: Duration) -> io::Result<Self> {
        let end = Instant::now() + within;
        let mut stream = Secure::open(&address, key, &StreamOptions::default())?;
        let left = || end.saturating_duration_since(Instant::now());
        let late = |what: &str| {
            io::Error::new(ErrorKind::TimedOut, format!("{what} within {:.1} s", within.as_secs_f64()))
        };
        if !writable(stream.as_fd(), left())? {
            return Err(late("no answer"));
        }
        loop {
            // Nothing is written; the handshake moves on.
            match stream.write(&[]) {
                Err(e) if e.kind() == ErrorKind::WouldBlock || e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => {
                    return Err(io::Error::new(e.kind(), "the connection was closed during the handshake"));
                }
                Err(e) => return Err(e),
                Ok(_) => return Ok(Self::new(stream)),
            }
            if left().is_zero() {
                return Err(late("no proof"));
            }
            let mut sockets = [stream.interest(false)];
            await_any(&mut sockets, left()).map_err(io::Error::other)?;
        }
    }

    /// The addresses of this end and of the other.
    pub fn addresses(&self) -> io::Result<(SocketAddr, SocketAddr)> {
        self.stream.addresses()
    }

    /// Whether both ends have proved themselves.
    pub(super) fn proven(&self) -> bool {
        self.stream.proven()
    }

    /// Queues a document.
    pub fn queue(&mut self, document: &[u8]) {
        self.queue.push_back([&(document.len() as u64).to_le_bytes(), document].concat());
    }

    /// Queues a heartbeat, unless something is on its way that tells as much.
    pub(super) fn beat(&mut self) {
        if self.queue.is_empty() {
            self.queue(&[]);
        }
    }

    pub(super) fn has_output(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Tells the other end that nothing more comes.
    pub(super) fn shut(&self) {
        let _ = self.stream.socket().shutdown(Shutdown::Write);
    }

    /// Writes what can be written.
    pub fn write(&mut self) -> io::Result<()> {
        while let Some(first) = self.queue.front() {
            let Some(n) = unless_blocked(|| self.stream.write(&first[self.written..]))? else { break };
            self.written += n;
            if self.written == first.len() {
                self.queue.pop_front();
                self.written = 0;
            }
        }
        Ok(())
    }

    /// The next document, if all of it has come; `any` becomes true if anything has. The error says why nothing
    /// more will come.
    pub fn read(&mut self, limit: usize, any: &mut bool) -> Result<Option<Vec<u8>>, String> {
        loop {
            if self.have < LENGTH {
                let mut rest = [0; LENGTH];
                let Some(n) = self.some(&mut rest[self.have..])? else { return Ok(None) };
                let have = self.have;
                self.length[have..have + n].copy_from_slice(&rest[have..have + n]);
                (self.have, *any) = (have + n, true);
                continue;
            }
            let length = u64::from_le_bytes(self.length);
            if length > limit as u64 {
                return Err(format!("it announced {length} bytes where at most {limit} are allowed"));
            }
            let missing = length as usize - self.document.len();
            if missing == 0 {
                self.have = 0;
                if length > 0 {
                    return Ok(Some(std::mem::take(&mut self.document)));
                }
                continue;
            }
            let at = self.document.len();
            self.document.resize(at + missing.min(PIECE), 0);
            let mut piece = std::mem::take(&mut self.document);
            let came = self.some(&mut piece[at..]);
            piece.truncate(at + came.as_ref().map_or(0, |n| n.unwrap_or(0)));
            self.document = piece;
            match came? {
                Some(_) => *any = true,
                None => return Ok(None),
            }
        }
    }

    /// Some bytes; none if none have come.
    fn some(&mut self, bytes: &mut [u8]) -> Result<Option<usize>, String> {
        match unless_blocked(|| self.stream.read(bytes)) {
            Ok(Some(0)) => Err("the connection was closed".into()),
            came => came.map_err(|e| e.to_string()),
        }
    }

    /// What to wait for. Everything that has come was read.
    pub(super) fn interest(&self) -> PollFd<'_> {
        Secure::interest(&self.stream, self.has_output())
    }
}
