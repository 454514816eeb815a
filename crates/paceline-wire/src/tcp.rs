//! Connections over TCP: between processes of one machine. Off it, `tls` goes over the same sockets.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};
use socket2::SockRef;

use crate::error::WireError;
use crate::handshake::Side;
use crate::identity::Key;
use crate::kernel::{self, KernelView};
use crate::registry::{TransportDefaults, TransportKind, door, door_at};
use crate::stream::StreamOptions;
use crate::stream::medium::{Medium, Stream};
use crate::tls::Secure;

/// Its line in the registry.
pub const KIND: TransportKind = TransportKind {
    name: "tcp",
    memory: false,
    about: "processes over TCP",
    buffer: Some("the kernel's buffer of each connection and direction"),
    defaults: TransportDefaults { latency_us: 25.0, message_us: 5.0, ns_per_byte: 0.2 },
    lends: false,
    mesh: None,
    bind: Some(door::<Net>),
    bind_at: Some(door_at::<Secure>),
};

/// Connections made of TCP.
pub struct Net;

/// A socket that listens, and what its connections get once that is known.
pub struct Listening<T> {
    pub(crate) socket: TcpListener,
    pub(crate) ready: OnceLock<T>,
}

impl<T> Listening<T> {
    pub(crate) fn bind(address: &SocketAddr) -> io::Result<(Self, SocketAddr)> {
        let (socket, address) = Net::bind(address)?;
        Ok((Self { socket, ready: OnceLock::new() }, address))
    }
}

impl<T> AsFd for Listening<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Stream for TcpStream {
    fn second(&self) -> Option<Self> {
        self.try_clone().ok()
    }

    fn kernel(&self) -> Option<KernelView> {
        kernel::tcp(self)
    }
}

impl Medium for Net {
    type Address = SocketAddr;
    type Listener = TcpListener;
    type Socket = TcpStream;
    type Stream = TcpStream;

    fn anywhere() -> Result<SocketAddr, WireError> {
        Ok(SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    fn bind(address: &SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    }

    fn size(listener: &TcpListener, options: &StreamOptions) -> io::Result<()> {
        buffers_and_segments(listener, options)
    }

    fn accept(listener: &TcpListener, _: &Key) -> io::Result<(TcpStream, String)> {
        listener.accept().map(|(socket, address)| (socket, address.to_string()))
    }

    fn prepare(socket: &TcpStream, options: &StreamOptions) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        buffers(socket, options)
    }

    fn open(address: &SocketAddr, _: &Key, options: &StreamOptions) -> io::Result<TcpStream> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        buffers_and_segments(&socket, options)?;
        match rustix::net::connect(&socket, address) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(TcpStream::from(socket)),
            Err(e) => Err(e.into()),
        }
    }

    fn stream(socket: TcpStream, _: Side, _: &StreamOptions) -> io::Result<TcpStream> {
        Ok(socket)
    }
}

/// The longest segment that can be asked for.
const LONGEST_SEGMENT: usize = 32 << 10;
/// The shortest that every network must carry.
const SHORTEST_SEGMENT: usize = 536;

/// Sizes the kernel's buffers of a socket.
pub(crate) fn buffers(socket: impl AsFd, options: &StreamOptions) -> io::Result<()> {
    if let Some(bytes) = options.buffer {
        sockopt::set_socket_send_buffer_size(&socket, bytes)?;
        sockopt::set_socket_recv_buffer_size(&socket, bytes)?;
    }
    Ok(())
}

/// The same for TCP, before there is a connection. Segments stay well below a small buffer: one that the other
/// side's window cannot hold leaves only when a timer of 0.2 s runs out.
pub(crate) fn buffers_and_segments(socket: impl AsFd, options: &StreamOptions) -> io::Result<()> {
    buffers(&socket, options)?;
    match options.buffer {
        Some(bytes) if bytes < 4 * LONGEST_SEGMENT => {
            SockRef::from(&socket).set_tcp_mss((bytes / 4).max(SHORTEST_SEGMENT) as u32)
        }
        _ => Ok(()),
    }
}
