//! Connections over Unix sockets: between processes of one machine.
//!
//! They listen on abstract names, which the kernel forgets with the last descriptor: nothing is left behind,
//! whoever is killed. A name is random, so that nobody can take it in advance, and worth nothing without the
//! run's key.

use std::fmt;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::str::FromStr;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with, sockopt};

use crate::error::WireError;
use crate::handshake::Side;
use crate::identity::{Key, random};
use crate::registry::{TransportDefaults, TransportKind, door};
use crate::stream::StreamOptions;
use crate::stream::medium::{Medium, Stream};
use crate::tcp::buffers;

/// Its line in the registry.
pub const KIND: TransportKind = TransportKind {
    name: "uds",
    memory: false,
    about: "processes of one machine over Unix sockets",
    buffer: Some("the kernel's buffer of each connection and direction"),
    defaults: TransportDefaults { latency_us: 15.0, message_us: 3.0, ns_per_byte: 0.2 },
    lends: false,
    mesh: None,
    bind: Some(door::<Unix>),
    bind_at: None,
};

/// Connections that wait to be accepted at most, as the kernel's own limit allows.
const BACKLOG: i32 = 4096;

/// A name in the kernel's abstract namespace; written `@NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(String);

impl Name {
    /// A name that nobody can guess.
    pub(crate) fn new() -> Result<Self, WireError> {
        let bytes: [u8; 32] = random()?;
        Ok(Self(bytes.iter().fold("paceline-".to_owned(), |name, byte| format!("{name}{byte:02x}"))))
    }

    fn address(&self) -> io::Result<SocketAddrUnix> {
        Ok(SocketAddrUnix::new_abstract_name(self.0.as_bytes())?)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{}", self.0)
    }
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.strip_prefix('@').filter(|name| (1..=100).contains(&name.len()));
        name.map(|name| Self(name.to_owned())).ok_or_else(|| format!("expected @NAME, found {text:?}"))
    }
}

/// Connections made of Unix sockets.
pub struct Unix;

impl Stream for UnixStream {}

impl Medium for Unix {
    type Address = Name;
    type Listener = UnixListener;
    type Socket = UnixStream;
    type Stream = UnixStream;

    fn anywhere() -> Result<Name, WireError> {
        Name::new()
    }

    fn bind(name: &Name) -> io::Result<(UnixListener, Name)> {
        let socket = socket()?;
        rustix::net::bind(&socket, &name.address()?)?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok((UnixListener::from(socket), name.clone()))
    }

    fn accept(listener: &UnixListener, _: &Key) -> io::Result<(UnixStream, String)> {
        let (socket, _) = listener.accept()?;
        let who = sockopt::socket_peercred(&socket)
            .map_or("a process".to_owned(), |peer| format!("process {}", peer.pid.as_raw_nonzero()));
        Ok((socket, who))
    }

    fn prepare(socket: &UnixStream, options: &StreamOptions) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        buffers(socket, options)
    }

    fn open(name: &Name, _: &Key, options: &StreamOptions) -> io::Result<UnixStream> {
        let socket = socket()?;
        buffers(&socket, options)?;
        rustix::net::connect(&socket, &name.address()?)?;
        Ok(UnixStream::from(socket))
    }

    fn stream(socket: UnixStream, _: Side, _: &StreamOptions) -> io::Result<UnixStream> {
        Ok(socket)
    }
}

fn socket() -> io::Result<rustix::fd::OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}
