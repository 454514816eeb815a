//! Connections through shared memory: between processes of one machine.
//!
//! Ranks find and prove each other over Unix sockets. Then the dialler makes a segment, which has no name and
//! goes with its last user, and hands its descriptor over; from there on bytes go through its rings. The
//! socket stays as doorbell for whoever sleeps, and as the sign of life: its end is the peer's.
//!
//! Bodies can stay where they are. A rank hands the descriptors of its memory files over, and peers map them to read; a
//! frame then only says where its body lies, and the receiver says in a word of the segment when it has done with it.

mod lent;
mod ring;
mod segment;

pub(crate) use lent::Lent;

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::PollFd;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, send, sendmsg,
};

use crate::body::Body;
use crate::error::WireError;
use crate::frame::{HEADER, LentPlace};
use crate::handshake::Side;
use crate::identity::Key;
use crate::mixed;
use crate::registry::{TransportDefaults, TransportKind, door};
use crate::shared::LentMemory;
use crate::stream::READABLE;
use crate::stream::StreamOptions;
use crate::stream::medium::{self, Medium};
use crate::uds::{Name, Unix};
use ring::Rings;
use segment::Segment;

/// Its line in the registry.
pub const KIND: TransportKind = TransportKind {
    name: "shm",
    memory: true,
    about: "processes of one machine through shared memory, those of different machines over TCP",
    buffer: Some("the ring of each connection and direction, rounded up to a power of two"),
    defaults: TransportDefaults { latency_us: 5.0, message_us: 1.0, ns_per_byte: 0.2 },
    lends: true,
    mesh: None,
    bind: Some(door::<SharedMemory>),
    bind_at: Some(mixed::door_at),
};

/// Bytes of a ring where nothing else is said.
const RING: usize = 1 << 20;
/// Reads that find nothing before the socket is asked whether the peer lives: that costs a call to the
/// kernel, a look into the ring costs next to nothing.
const PATIENCE: u32 = 64;
/// Memory files that a peer may hand over.
const FILES: usize = 64;

/// Connections made of shared memory.
pub struct SharedMemory;

impl Medium for SharedMemory {
    type Address = Name;
    type Listener = UnixListener;
    type Socket = UnixStream;
    type Stream = Stream;

    /// A look costs nothing, and leaves the core to whoever has work; waking somebody costs two calls, and more than all
    /// looks where ranks share cores. (Measured: from 200 µs on, 8 to 15% less time for steps of 1 to 5 ms with twice as many
    /// workers as cores; beyond this, nothing.)
    const SPIN: Duration = Duration::from_micros(600);

    fn anywhere() -> Result<Name, WireError> {
        Unix::anywhere()
    }

    fn bind(name: &Name) -> io::Result<(UnixListener, Name)> {
        Unix::bind(name)
    }

    fn accept(listener: &UnixListener, key: &Key) -> io::Result<(UnixStream, String)> {
        Unix::accept(listener, key)
    }

    fn prepare(socket: &UnixStream, options: &StreamOptions) -> io::Result<()> {
        Unix::prepare(socket, &StreamOptions { buffer: None, ..*options })
    }

    fn open(name: &Name, key: &Key, options: &StreamOptions) -> io::Result<UnixStream> {
        Unix::open(name, key, &StreamOptions { buffer: None, ..*options })
    }

    fn stream(socket: UnixStream, side: Side, options: &StreamOptions) -> io::Result<Stream> {
        let rings = match side {
            Side::Dialler => {
                let (segment, file) = Segment::create(options.buffer.unwrap_or(RING))?;
                hand_over(&socket, file.as_fd())?;
                Some(Rings::new(segment, side))
            }
            Side::Acceptor => None,
        };
        let socket = Arc::new(socket);
        Ok(Stream { socket, rings, lent: Vec::new(), ask: false, idle: 0, closed: false })
    }
}

pub struct Stream {
    socket: Arc<UnixStream>,
    /// What the peer has handed over after the segment, in that order.
    lent: Vec<Arc<LentMemory>>,
    /// None as long as an acceptor waits for the dialler's segment.
    rings: Option<Rings>,
    /// Whether to ask the socket at the next occasion.
    ask: bool,
    /// Reads in turn that found nothing.
    idle: u32,
    /// The peer has closed its end: what is in the ring is all that comes.
    closed: bool,
}

impl Stream {
    /// Takes the segment if it has come.
    fn take_over(&mut self) -> io::Result<()> {
        match receive(&self.socket, &mut [0])? {
            (_, Some(file)) => self.rings = Some(Rings::new(Segment::open(&file)?, Side::Acceptor)),
            (0, None) => self.closed = true,
            (_, None) => {
                let what = "expected shared memory, found no descriptor";
                return Err(io::Error::new(ErrorKind::InvalidData, what));
            }
        }
        Ok(())
    }

    /// Hears the bell out; takes memory that is handed over; notices if the peer is gone.
    fn listen(&mut self) -> io::Result<()> {
        let mut bytes = [0; 64];
        loop {
            match receive(&self.socket, &mut bytes) {
                Ok((_, Some(file))) => {
                    if self.lent.len() == FILES {
                        let what = format!("expected at most {FILES} memory files, found another one");
                        return Err(io::Error::new(ErrorKind::InvalidData, what));
                    }
                    // There may be another one.
                    self.lent.push(Arc::new(LentMemory::open(&file)?));
                    continue;
                }
                Ok((0, None)) => self.closed = true,
                // More than that is not the bell; what is left rings at the next sleep.
                Ok((_, None)) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            }
            return Ok(());
        }
    }
}

/// Wakes the peer. If the bell cannot be rung it is ringing already, or nobody is there to hear it.
fn ring(socket: &UnixStream) {
    let _ = send(socket, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(bytes)])
    }

    fn read_vectored(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if self.rings.is_none() && !self.closed {
            self.take_over()?;
        }
        loop {
            let Self { socket, rings: Some(rings), .. } = self else { return Ok(0) };
            // What the peer wrote before it left is there when its end is noticed.
            let n = rings.read(slices, || ring(socket))?;
            if n > 0 || self.closed {
                self.idle = 0;
                return Ok(n);
            }
            self.idle += 1;
            if self.idle >= PATIENCE || self.ask {
                (self.idle, self.ask) = (0, false);
                self.listen()?;
            }
            if !self.closed {
                return Err(ErrorKind::WouldBlock.into());
            }
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let Self { socket, rings: Some(rings), .. } = self else { return Err(ErrorKind::WouldBlock.into()) };
        match rings.write(slices, || ring(socket))? {
            0 => Err(ErrorKind::WouldBlock.into()),
            n => Ok(n),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl medium::Stream for Stream {
    const AHEAD: usize = HEADER;
    const SUMMED: bool = false;
    const LENDS: bool = true;

    fn hand_over(&mut self, file: BorrowedFd<'_>) -> io::Result<()> {
        hand_over(&self.socket, file)
    }

    fn lent(&mut self, place: LentPlace, len: usize, number: u64) -> io::Result<Body> {
        let file = usize::from(place.file);
        if file >= self.lent.len() {
            self.listen()?;
        }
        let wrong = |what: String| Err(io::Error::new(ErrorKind::InvalidData, what));
        let (Some(memory), Some(rings)) = (self.lent.get(file), &self.rings) else {
            return wrong(format!("expected a body in memory that was handed over, found file {file}"));
        };
        let offset = place.offset as usize;
        if offset + len > memory.len() {
            let most = memory.len();
            return wrong(format!("expected a body within {most} elements, found {len} from {offset} on"));
        }
        let back = rings.return_of(place.slot, number);
        let lent = Lent::new(Arc::clone(memory), offset, back, Arc::clone(&self.socket));
        Ok(Body::lent(lent, len))
    }

    fn released(&self, slot: u8) -> u64 {
        self.rings.as_ref().map_or(0, |rings| rings.released(slot))
    }

    fn lie_down(&mut self, writing: bool) -> bool {
        self.rings.as_mut().is_some_and(|rings| rings.lie_down(writing))
    }

    fn interest(&self, _: bool) -> PollFd<'_> {
        PollFd::new(&*self.socket, READABLE)
    }

    fn get_up(&mut self) {
        if let Some(rings) = &mut self.rings {
            rings.get_up();
        }
        self.ask = true;
    }
}

/// Gives the peer a descriptor, with a byte since nothing travels alone. The socket's buffer is empty.
fn hand_over(socket: &UnixStream, file: BorrowedFd<'_>) -> io::Result<()> {
    let files = [file];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(io::Error::other("a descriptor does not fit into a message"));
    }
    sendmsg(socket, &[IoSlice::new(&[0])], &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
    Ok(())
}

/// What has come from the peer: how many bytes (none if the peer is gone), and a descriptor if it sent one.
fn receive(socket: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let came = match recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags) {
        Err(Errno::CONNRESET) => return Ok((0, None)),
        came => came?,
    };
    // Those after the first are closed here.
    let mut files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let file = files.next().and_then(|mut files| files.next());
    Ok((came.bytes, file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use medium::Stream as _;

    fn sockets() -> [UnixStream; 2] {
        let (a, b) = UnixStream::pair().unwrap();
        [a, b].map(|socket| {
            socket.set_nonblocking(true).unwrap();
            socket
        })
    }

    fn pair() -> [Stream; 2] {
        let [a, b] = sockets();
        let options = StreamOptions { buffer: Some(4096), ..StreamOptions::default() };
        let a = SharedMemory::stream(a, Side::Dialler, &options).unwrap();
        [a, SharedMemory::stream(b, Side::Acceptor, &options).unwrap()]
    }

    fn blocks<T: std::fmt::Debug>(result: io::Result<T>) -> bool {
        result.unwrap_err().kind() == ErrorKind::WouldBlock
    }

    #[test]
    fn bytes_go_both_ways_and_an_end_comes_after_the_last_of_them() {
        let [mut a, mut b] = pair();
        assert!(blocks(b.write(&[1])), "no segment yet");
        assert!(blocks(b.read(&mut [0])));
        assert_eq!((a.write(&[1, 2, 3]).unwrap(), b.write(&[4]).unwrap()), (3, 1));
        let mut bytes = [0; 9];
        assert_eq!((b.read(&mut bytes).unwrap(), bytes[2]), (3, 3));
        assert_eq!((a.read(&mut bytes).unwrap(), bytes[0]), (1, 4));
        assert_eq!(a.write(&[7; 5000]).unwrap(), 4096);
        assert!(blocks(a.write(&[7])));
        drop(a);
        let mut all = vec![0; 5000];
        assert_eq!(b.read(&mut all).unwrap(), 4096);
        let end = (0..=PATIENCE).find_map(|_| b.read(&mut bytes).ok());
        assert_eq!(end, Some(0), "the end is noticed after some reads");
        assert_eq!(b.read(&mut bytes).unwrap(), 0);
    }

    #[test]
    fn a_sleeper_hears_the_bell_and_a_silent_end() {
        let [mut a, mut b] = pair();
        assert!(blocks(b.read(&mut [0])));
        assert!(!b.lie_down(false));
        a.write_all(&[1]).unwrap();
        let heard = |b: &Stream| {
            let mut sockets = [b.interest(false)];
            rustix::event::poll(&mut sockets, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 }))
                .unwrap()
        };
        assert_eq!(heard(&b), 1);
        b.get_up();
        assert_eq!(b.read(&mut [0; 9]).unwrap(), 1);
        assert!(blocks(b.read(&mut [0])));
        assert_eq!(heard(&b), 0, "the bell was heard out");
        assert!(!b.lie_down(false));
        drop(a);
        assert_eq!(heard(&b), 1);
        b.get_up();
        assert_eq!(b.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn a_peer_that_hands_over_nothing_or_something_else_is_refused() {
        let [a, b] = sockets();
        let mut b = SharedMemory::stream(b, Side::Acceptor, &StreamOptions::default()).unwrap();
        (&a).write_all(&[0]).unwrap();
        assert_eq!(b.read(&mut [0]).unwrap_err().to_string(), "expected shared memory, found no descriptor");

        let [a, b] = sockets();
        let mut b = SharedMemory::stream(b, Side::Acceptor, &StreamOptions::default()).unwrap();
        hand_over(&a, std::fs::File::open("/dev/null").unwrap().as_fd()).unwrap();
        let error = b.read(&mut [0]).unwrap_err().to_string();
        assert!(error.starts_with("expected shared memory of sealed size"), "{error}");

        let [a, b] = sockets();
        let mut b = SharedMemory::stream(b, Side::Acceptor, &StreamOptions::default()).unwrap();
        drop(a);
        assert_eq!(b.read(&mut [0]).unwrap(), 0);
    }
}
