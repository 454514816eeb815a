//! The rank's end of the socket.

use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::frame::Inbox;
use crate::message::{RankMessage, ScriptMessage};

/// Longest time that a script may take to read what it is told.
const SEND: Duration = Duration::from_secs(5);

/// Why nothing more can be said or heard.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The script's end is closed.
    #[error("the script closed its connection{}", of_frame(*.torn))]
    Closed {
        /// Bytes of a frame that did not come whole.
        torn: usize,
    },
    /// It said something that the protocol does not have.
    #[error("the script said what the attach protocol does not know: {0}")]
    Nonsense(String),
    /// The system failed.
    #[error("the script's connection: {0}")]
    System(#[from] io::Error),
}

fn of_frame(bytes: usize) -> String {
    if bytes == 0 { String::new() } else { format!(" within a frame ({bytes} bytes of it came)") }
}

/// Tells a script which parts of the mean gradient are there already, from wherever the exchange is made.
pub struct Arrivals {
    stream: Arc<UnixStream>,
    out: Vec<u8>,
}

impl Arrivals {
    /// These numbers are there. The end of the step says so once more: a script that does not listen now misses nothing.
    pub fn tell(&mut self, first: usize, numbers: usize) {
        self.out.clear();
        RankMessage::Arrived { first, numbers }.write(&mut self.out);
        // So short a message is written whole or, where there is no room, not at all. A lost script is noticed elsewhere.
        let _ = (&*self.stream).write(&self.out);
    }
}

/// The rank's end.
pub struct ScriptSocket {
    stream: Arc<UnixStream>,
    inbox: Inbox,
    buffer: Vec<u8>,
    out: Vec<u8>,
    /// How many tensors the script has, once it has said so.
    pub tensors: usize,
    /// Whether accounts carry the learning rate.
    pub rated: bool,
}

impl ScriptSocket {
    /// The rank's end of a connection.
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream: Arc::new(stream),
            inbox: Inbox::default(),
            buffer: vec![0; 64 << 10],
            out: Vec::new(),
            tensors: 0,
            rated: false,
        })
    }

    /// What can be waited for: it is readable when the script has said something.
    pub fn wakes(&self) -> Arc<UnixStream> {
        Arc::clone(&self.stream)
    }

    /// What tells of arrivals.
    pub fn arrivals(&self) -> Arrivals {
        Arrivals { stream: Arc::clone(&self.stream), out: Vec::new() }
    }

    /// The next message, if it has come.
    pub fn try_next(&mut self) -> Result<Option<ScriptMessage>, AttachError> {
        loop {
            if let Some((kind, body)) = self.inbox.next().map_err(AttachError::Nonsense)? {
                let message = ScriptMessage::read(kind, body, self.tensors, self.rated);
                return message.map(Some).map_err(AttachError::Nonsense);
            }
            match (&*self.stream).read(&mut self.buffer) {
                Ok(0) => return Err(AttachError::Closed { torn: self.inbox.torn() }),
                Ok(n) => self.inbox.push(&self.buffer[..n]),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(None),
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::ConnectionReset => {
                        return Err(AttachError::Closed { torn: self.inbox.torn() });
                    }
                    _ => return Err(error.into()),
                },
            }
        }
    }

    /// The next message, if it comes within a time.
    pub fn next(&mut self, wait: Duration) -> Result<Option<ScriptMessage>, AttachError> {
        if let Some(message) = self.try_next()? {
            return Ok(Some(message));
        }
        self.ready(PollFlags::IN, wait)?;
        self.try_next()
    }

    fn ready(&self, what: PollFlags, wait: Duration) -> io::Result<bool> {
        let mut sockets = [PollFd::new(&*self.stream, what)];
        let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
        match poll(&mut sockets, Some(&wait)) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Says something.
    pub fn say(&mut self, message: &RankMessage<'_>) -> Result<(), AttachError> {
        self.out.clear();
        message.write(&mut self.out);
        self.send(&[])
    }

    /// Says something and hands over descriptors with it.
    pub fn hand_over(
        &mut self,
        message: &RankMessage<'_>,
        files: &[BorrowedFd<'_>],
    ) -> Result<(), AttachError> {
        self.out.clear();
        message.write(&mut self.out);
        self.send(files)
    }

    fn send(&mut self, files: &[BorrowedFd<'_>]) -> Result<(), AttachError> {
        let mut sent = 0;
        if !files.is_empty() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !control.push(SendAncillaryMessage::ScmRights(files)) {
                return Err(io::Error::other("too many descriptors").into());
            }
            let bytes = [io::IoSlice::new(&self.out)];
            sent = sendmsg(self.stream.as_fd(), &bytes, &mut control, SendFlags::NOSIGNAL)
                .map_err(io::Error::from)?;
        }
        while sent < self.out.len() {
            match (&*self.stream).write(&self.out[sent..]) {
                Ok(n) => sent += n,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => {
                        if !self.ready(PollFlags::OUT, SEND)? {
                            let problem =
                                format!("it took nothing of what it was told for {} s", SEND.as_secs());
                            return Err(io::Error::new(io::ErrorKind::TimedOut, problem).into());
                        }
                    }
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                        return Err(AttachError::Closed { torn: 0 });
                    }
                    _ => return Err(error.into()),
                },
            }
        }
        Ok(())
    }
}
