//! Connections over TCP that only holders of the run's key can read, alter or take part in: TLS 1.3, for ranks
//! on different machines.
//!
//! Both ends prove that they hold the run's key (`tls/proof.rs`), without certificates, names or clocks, and
//! nobody who records a connection can read it later, even with the key. The handshake of every transport
//! follows inside. An end of TCP is the end of a connection: frames tell whether something is missing.

mod proof;

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::event::PollFd;
use rustls::{ClientConnection, Connection, ServerConfig, ServerConnection};

use crate::error::WireError;
use crate::handshake::Side;
use crate::identity::Key;
use crate::kernel::{self, KernelView};
use crate::stream::StreamOptions;
use crate::stream::medium::{self, Medium};
use crate::stream::{BOTH, READABLE, unless_blocked};
use crate::tcp::{Listening, Net, buffers_and_segments};

/// Bytes read from the kernel at once: two records of the greatest length.
const STAGING: usize = 32 << 10;

/// Connections made of TLS over TCP.
pub struct Secure;

/// A socket that listens, and its side of the handshake, made for the first stranger that knocks.
pub type TlsListener = Listening<Arc<ServerConfig>>;

impl Medium for Secure {
    type Address = SocketAddr;
    type Listener = TlsListener;
    type Socket = Stream;
    type Stream = Stream;

    fn anywhere() -> Result<SocketAddr, WireError> {
        Net::anywhere()
    }

    fn bind(address: &SocketAddr) -> io::Result<(TlsListener, SocketAddr)> {
        TlsListener::bind(address)
    }

    fn size(listener: &TlsListener, options: &StreamOptions) -> io::Result<()> {
        buffers_and_segments(&listener.socket, options)
    }

    fn accept(listener: &TlsListener, key: &Key) -> io::Result<(Stream, String)> {
        let (socket, who) = Net::accept(&listener.socket, key)?;
        let config = listener.ready.get_or_init(|| proof::server(key));
        let tls = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
        Ok((Stream::new(socket, tls.into()), who))
    }

    fn prepare(socket: &Stream, options: &StreamOptions) -> io::Result<()> {
        Net::prepare(&socket.socket, options)
    }

    fn open(address: &SocketAddr, key: &Key, options: &StreamOptions) -> io::Result<Stream> {
        let socket = Net::open(address, key, options)?;
        let tls = ClientConnection::new(proof::client(key), proof::name()).map_err(io::Error::other)?;
        Ok(Stream::new(socket, tls.into()))
    }

    fn interest(socket: &Stream, writing: bool) -> PollFd<'_> {
        // What the caller has to say must wait until TLS has said its own.
        medium::Stream::interest(socket, writing && !socket.tls.is_handshaking())
    }

    fn stream(socket: Stream, _: Side, _: &StreamOptions) -> io::Result<Stream> {
        Ok(socket)
    }
}

/// One connection. A write counts bytes only when the kernel has all that they became; those that it does not
/// count must be offered again, unchanged.
pub struct Stream {
    socket: TcpStream,
    tls: Connection,
    /// Bytes as they came; those between `start` and `end` were not looked at yet.
    staging: Box<[u8]>,
    start: usize,
    end: usize,
    /// Bytes that can be read without asking the kernel.
    plain: usize,
    /// Bytes that were encrypted but not counted as written yet.
    owed: usize,
    /// Why nothing more can be read.
    failed: Option<(ErrorKind, String)>,
}

impl Stream {
    fn new(socket: TcpStream, tls: Connection) -> Self {
        let staging = vec![0; STAGING].into_boxed_slice();
        Self { socket, tls, staging, start: 0, end: 0, plain: 0, owed: 0, failed: None }
    }

    /// The addresses of this end and of the other.
    pub fn addresses(&self) -> io::Result<(SocketAddr, SocketAddr)> {
        Ok((self.socket.local_addr()?, self.socket.peer_addr()?))
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Whether both ends have proved that they hold the key.
    pub fn proven(&self) -> bool {
        !self.tls.is_handshaking()
    }

    /// Takes in what has come, as far as one look goes; false at the end of the connection.
    fn fetch(&mut self) -> io::Result<bool> {
        if let Some((kind, cause)) = &self.failed {
            return Err(io::Error::new(*kind, cause.clone()));
        }
        if self.start == self.end {
            self.end = 0;
            self.start = 0;
            match self.socket.read(&mut self.staging) {
                Ok(0) => return Ok(false),
                Ok(n) => self.end = n,
                Err(e) if e.kind() == ErrorKind::WouldBlock || e.kind() == ErrorKind::Interrupted => {
                    return Err(e);
                }
                Err(e) => return Err(self.fail(e.kind(), e.to_string())),
            }
        }
        self.start += self.tls.read_tls(&mut &self.staging[self.start..self.end])?;
        match self.tls.process_new_packets() {
            Ok(state) => self.plain = state.plaintext_bytes_to_read(),
            Err(error) => {
                // The other end learns why, if it listens.
                let _ = self.push();
                let cause = proof::explain(&error, self.tls.is_handshaking());
                return Err(self.fail(ErrorKind::InvalidData, cause));
            }
        }
        self.push()?;
        Ok(true)
    }

    fn fail(&mut self, kind: ErrorKind, cause: String) -> io::Error {
        self.failed = Some((kind, cause.clone()));
        io::Error::new(kind, cause)
    }

    /// Hands the kernel what it takes; whether that was everything.
    fn push(&mut self) -> io::Result<bool> {
        while self.tls.wants_write() {
            if unless_blocked(|| self.tls.write_tls(&mut self.socket))?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(bytes)])
    }

    /// Fills the slices as far as bytes have come.
    fn read_vectored(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut total = 0;
        for slice in slices {
            let mut at = 0;
            while at < slice.len() {
                if self.plain == 0 {
                    match self.fetch() {
                        Ok(true) => continue,
                        // Whatever it is, the next read finds it again.
                        Ok(false) => return Ok(total),
                        Err(_) if total > 0 => return Ok(total),
                        Err(e) => return Err(e),
                    }
                }
                let n = self.tls.reader().read(&mut slice[at..])?;
                self.plain -= n;
                (at, total) = (at + n, total + n);
            }
        }
        Ok(total)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        while self.tls.is_handshaking() {
            self.push()?;
            if !self.fetch()? {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        let mut slices = slices.to_vec();
        let mut rest = &mut slices[..];
        let mut total = 0;
        loop {
            if !self.push()? {
                return if total > 0 { Ok(total) } else { Err(ErrorKind::WouldBlock.into()) };
            }
            let n = std::mem::take(&mut self.owed);
            total += n;
            IoSlice::advance_slices(&mut rest, n);
            if rest.is_empty() {
                return Ok(total);
            }
            self.owed = self.tls.writer().write_vectored(rest)?;
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.push()? { Ok(()) } else { Err(ErrorKind::WouldBlock.into()) }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl medium::Stream for Stream {
    fn lie_down(&mut self, _: bool) -> bool {
        self.plain > 0 || self.start < self.end || self.failed.is_some()
    }

    fn interest(&self, writing: bool) -> PollFd<'_> {
        let writing = writing || self.tls.wants_write();
        PollFd::new(&self.socket, if writing { BOTH } else { READABLE })
    }

    fn kernel(&self) -> Option<KernelView> {
        kernel::tcp(&self.socket)
    }
}
