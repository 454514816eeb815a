//! Connections over gRPC: between processes, on one machine or several.
//!
//! A connection is one call of `Link.Exchange` (`proto/link.proto`) on an HTTP/2 connection of its own: a
//! stream of bytes each way, in which everything is as over TCP. One thread per process moves what all of them
//! have queued, so that reading and writing here never wait, and HTTP/2 is spoken while the ranks compute.
//! Dropping the last connection of a process waits until the peers have what was written, for a few seconds at
//! most: no kernel does it for this one.
//!
//! - `runtime`: the thread; `connection`: one connection as a task on it
//! - `link`: what the two sides share; `gate`: how little is believed before a proof

mod connection;
mod gate;
mod link;
mod runtime;

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use rustix::event::{PollFd, PollFlags};

use crate::error::WireError;
use crate::frame::HEADER;
use crate::handshake::Side;
use crate::identity::Key;
use crate::registry::{TransportDefaults, TransportKind, door};
use crate::stream::READABLE;
use crate::stream::StreamOptions;
use crate::stream::medium::{self, Medium};
use crate::tcp::{Listening, Net};
use link::Link;
use runtime::Runtime;

/// Its line in the registry.
pub const KIND: TransportKind = TransportKind {
    name: "grpc",
    memory: false,
    about: "processes over gRPC",
    buffer: Some("the HTTP/2 window of each connection and direction, and the queues at its ends"),
    defaults: TransportDefaults { latency_us: 100.0, message_us: 20.0, ns_per_byte: 0.2 },
    lends: false,
    mesh: None,
    bind: Some(door::<Rpc>),
    bind_at: None,
};

/// Bytes of a window where nothing else is said.
const WINDOW: usize = 1 << 20;
/// Bytes of one message at most: few enough that the other end need not wait long for the first of them.
const CHUNK: usize = 256 << 10;
/// The largest frame of HTTP/2 to take; smaller ones than the first are not allowed.
const FRAMES: [usize; 2] = [16 << 10, 256 << 10];

#[derive(Clone, Copy)]
pub struct Sizes {
    /// Bytes under way in each direction.
    window: u32,
    /// Bytes of a frame of HTTP/2.
    frame: u32,
}

impl Sizes {
    fn new(options: &StreamOptions) -> Self {
        let window = options.buffer.unwrap_or(WINDOW).clamp(1, i32::MAX as usize);
        let frame = window.clamp(FRAMES[0], FRAMES[1]);
        // All of them fit by now.
        Self { window: window as u32, frame: frame as u32 }
    }
}

/// Connections made of gRPC calls.
pub struct Rpc;

type GrpcListener = Listening<(Arc<Runtime>, Sizes)>;

impl Medium for Rpc {
    type Address = SocketAddr;
    type Listener = GrpcListener;
    type Socket = Call;
    type Stream = Call;

    const OWN_THREAD: bool = true;

    fn anywhere() -> Result<SocketAddr, WireError> {
        Net::anywhere()
    }

    fn bind(address: &SocketAddr) -> io::Result<(GrpcListener, SocketAddr)> {
        GrpcListener::bind(address)
    }

    /// The thread starts here and not earlier, since by now a process is on the cores that it keeps to.
    fn size(ear: &GrpcListener, options: &StreamOptions) -> io::Result<()> {
        let ready = (Runtime::get()?, Sizes::new(options));
        ear.ready.set(ready).map_err(|_| io::Error::other("the listener has its sizes already"))
    }

    fn accept(ear: &GrpcListener, key: &Key) -> io::Result<(Call, String)> {
        let Some((runtime, sizes)) = ear.ready.get() else {
            return Err(io::Error::other("the listener has no sizes yet"));
        };
        let (socket, who) = Net::accept(&ear.socket, key)?;
        let call = Call::new(runtime, *sizes)?;
        let lingering = Arc::clone(&runtime.lingering);
        runtime.spawn(connection::serve(socket, Arc::clone(&call.link), *sizes, lingering));
        Ok((call, who))
    }

    fn prepare(_: &Call, _: &StreamOptions) -> io::Result<()> {
        Ok(())
    }

    fn open(address: &SocketAddr, key: &Key, options: &StreamOptions) -> io::Result<Call> {
        let socket = Net::open(address, key, &StreamOptions { buffer: None, ..*options })?;
        let mut call = Call::new(&Runtime::get()?, Sizes::new(options))?;
        call.dialled = Some((socket, *address));
        Ok(call)
    }

    fn stream(call: Call, _: Side, _: &StreamOptions) -> io::Result<Call> {
        call.link.prove();
        Ok(call)
    }
}

/// This end of a call.
pub struct Call {
    /// A connection that is not open yet, and where it leads.
    dialled: Option<(TcpStream, SocketAddr)>,
    /// What came and was not read yet.
    rest: Bytes,
    link: Arc<Link>,
    sizes: Sizes,
    runtime: Arc<Runtime>,
}

impl Call {
    fn new(runtime: &Arc<Runtime>, sizes: Sizes) -> io::Result<Self> {
        let (link, runtime) = (Arc::new(Link::new(sizes.window as usize)?), Arc::clone(runtime));
        Ok(Self { dialled: None, rest: Bytes::new(), link, sizes, runtime })
    }

    /// An error as long as the connection is not open.
    fn link(&mut self) -> io::Result<&Link> {
        if medium::Stream::opened(self)? { Ok(&self.link) } else { Err(ErrorKind::WouldBlock.into()) }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.link.close();
    }
}

impl Read for Call {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(bytes)])
    }

    fn read_vectored(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut read = 0;
        for slice in slices {
            let mut room = &mut slice[..];
            while !room.is_empty() {
                if self.rest.is_empty() {
                    match self.link()?.take() {
                        Ok(Some(piece)) => self.rest = piece,
                        // Whatever there is to say about it is said when nothing else is left to tell.
                        Ok(None) | Err(_) if read > 0 => return Ok(read),
                        Ok(None) => return Ok(0),
                        Err(e) => return Err(e),
                    }
                }
                let n = room.len().min(self.rest.len());
                self.rest.copy_to_slice(&mut room[..n]);
                room = &mut room[n..];
                read += n;
            }
        }
        Ok(read)
    }
}

impl Write for Call {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let offered: usize = slices.iter().map(|slice| slice.len()).sum();
        let all = self.link()?.room()?.min(offered);
        let mut left = all;
        let mut chunk = BytesMut::with_capacity(left.min(CHUNK));
        for slice in slices {
            let mut bytes = &slice[..slice.len().min(left)];
            left -= bytes.len();
            while !bytes.is_empty() {
                let n = bytes.len().min(CHUNK - chunk.len());
                chunk.put_slice(&bytes[..n]);
                bytes = &bytes[n..];
                if chunk.len() == CHUNK {
                    let next = BytesMut::with_capacity((left + bytes.len()).min(CHUNK));
                    self.link.put(std::mem::replace(&mut chunk, next).freeze());
                }
            }
        }
        if !chunk.is_empty() {
            self.link.put(chunk.freeze());
        }
        Ok(all)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Call {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dialled.as_ref().map_or(self.link.as_fd(), |(socket, _)| socket.as_fd())
    }
}

impl medium::Stream for Call {
    const AHEAD: usize = HEADER;

    fn opened(&mut self) -> io::Result<bool> {
        if let Some((socket, _)) = &mut self.dialled
            && !medium::Stream::opened(socket)?
        {
            return Ok(false);
        }
        if let Some((socket, address)) = self.dialled.take() {
            let (link, lingering) = (Arc::clone(&self.link), Arc::clone(&self.runtime.lingering));
            self.runtime.spawn(connection::dial(socket, address, link, self.sizes, lingering));
        }
        Ok(true)
    }

    fn lie_down(&mut self, writing: bool) -> bool {
        !self.rest.is_empty() || !self.link.lie_down(writing)
    }

    fn interest(&self, _: bool) -> PollFd<'_> {
        // A bell tells of both directions; a connection that opens has nothing to read yet.
        PollFd::new(self, if self.dialled.is_some() { PollFlags::OUT } else { READABLE })
    }

    fn get_up(&mut self) {
        self.link.get_up();
    }
}
