//! A line between two machines of a run: documents both ways, and a heartbeat that tells whether the other end
//! is there.
//!
//! - `link`: documents on an encrypted connection, proved by a key
//! - [`join_listener`]: whoever comes to the port where other machines join
//!
//! Each line has a thread of its own, so that it beats however busy the program is.

pub mod join_listener;
mod link;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, eventfd};

use crate::error::WireError;
use crate::stream::{READABLE, await_any};
pub use link::Link;

/// Time that the other end has to take the last words.
const FAREWELL: Duration = Duration::from_secs(1);

/// How often ends tell that they are there, and what silence means.
#[derive(Clone, Copy, Debug)]
pub struct HeartbeatTiming {
    /// Time between two beats.
    pub beat: Duration,
    /// Silence after which the other end is under suspicion.
    pub suspect: Duration,
    /// Silence after which it is taken for lost.
    pub dead: Duration,
}

impl Default for HeartbeatTiming {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { beat: Duration::from_millis(250), suspect: seconds(2), dead: seconds(5) }
    }
}

/// What is heard on a line.
#[derive(Debug)]
pub enum LineEvent {
    /// The other end says something.
    Document(Vec<u8>),
    /// Nothing was heard for so long that the other end is under suspicion.
    Quiet,
    /// It is there again.
    Back,
    /// It is gone; nothing follows.
    Lost {
        /// Why.
        cause: String,
    },
}

/// A line. Dropping it hangs up after what was said has gone out.
pub struct Line {
    words: Option<Sender<Vec<u8>>>,
    bell: Arc<TlsListener>,
    thread: Option<JoinHandle<()>>,
    local: SocketAddr,
    remote: SocketAddr,
}

impl Line {
    /// Makes a line of a link. `hear` gets what comes, documents of at most `limit` bytes; it is called on the
    /// line's own thread and must not take long.
    pub fn new(
        link: Link,
        limit: usize,
        pulse: HeartbeatTiming,
        hear: impl FnMut(LineEvent) + Send + 'static,
    ) -> Result<Self, WireError> {
        let (local, remote) = link.addresses().map_err(WireError::system("read a socket's addresses"))?;
        let (words, to_say) = channel();
        let bell = Arc::new(TlsListener::new()?);
        let mut thread = Thread { link, limit, pulse, to_say, bell: Arc::clone(&bell), hear };
        let thread = std::thread::spawn(move || {
            if let Err(cause) = thread.listen() {
                (thread.hear)(LineEvent::Lost { cause });
            }
        });
        Ok(Self { words: Some(words), bell, thread: Some(thread), local, remote })
    }

    /// Says something, some time soon. Nobody hears it if the line is lost.
    pub fn say(&self, document: Vec<u8>) {
        if let Some(words) = &self.words {
            let _ = words.send(document);
            self.bell.ring();
        }
    }

    /// This end's address, as the other end knows it.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// The other end's address.
    pub fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// Says nothing more: the other end hears the rest, and then the end.
    pub fn hang_up(&mut self) {
        self.words = None;
        self.bell.ring();
    }

    /// Hangs up, and waits until the other end has heard everything, or a short time.
    pub fn close(mut self) {
        let thread = self.thread.take();
        drop(self);
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.hang_up();
    }
}

/// The thread behind a line.
struct Thread<F> {
    link: Link,
    limit: usize,
    pulse: HeartbeatTiming,
    to_say: Receiver<Vec<u8>>,
    bell: Arc<TlsListener>,
    hear: F,
}

impl<F: FnMut(LineEvent)> Thread<F> {
    /// Until somebody hangs up. Why the other end is lost, if it is.
    fn listen(&mut self) -> Result<(), String> {
        let mut heard = Instant::now();
        let (mut beat, mut quiet) = (heard, false);
        loop {
            self.bell.hush();
            let leaving = self.take_words();
            if leaving {
                self.say_farewell();
                return Ok(());
            }
            let now = Instant::now();
            if now >= beat {
                self.link.beat();
                beat = now + self.pulse.beat;
            }
            let written = self.link.write();
            let mut any = false;
            while let Some(document) = self.link.read(self.limit, &mut any)? {
                (self.hear)(LineEvent::Document(document));
            }
            // Somebody who cannot be written to may have said why before.
            written.map_err(|e| e.to_string())?;
            let now = Instant::now();
            if any {
                heard = now;
                if std::mem::take(&mut quiet) {
                    (self.hear)(LineEvent::Back);
                }
            }
            let silence = now.duration_since(heard);
            if silence >= self.pulse.dead {
                return Err(format!("nothing was heard from it for {:.1} s", silence.as_secs_f64()));
            }
            if silence >= self.pulse.suspect && !quiet {
                quiet = true;
                (self.hear)(LineEvent::Quiet);
            }
            let next = if quiet { self.pulse.dead } else { self.pulse.suspect };
            self.wait((heard + next).min(beat)).map_err(|e| e.to_string())?;
        }
    }

    /// Takes what is to be said; true when nobody will say anything more.
    fn take_words(&mut self) -> bool {
        loop {
            match self.to_say.try_recv() {
                Ok(document) => self.link.queue(&document),
                Err(TryRecvError::Empty) => return false,
                Err(TryRecvError::Disconnected) => return true,
            }
        }
    }

    /// Says the last words and waits until the other end hangs up too: before that the kernel could forget
    /// them, since something may have come that nobody reads.
    fn say_farewell(&mut self) {
        let end = Instant::now() + FAREWELL;
        let mut shut = false;
        while Instant::now() < end {
            if self.link.write().is_err() {
                return;
            }
            if !shut && !self.link.has_output() {
                shut = true;
                self.link.shut();
            }
            loop {
                match self.link.read(self.limit, &mut false) {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(_) => return,
                }
            }
            if self.wait(end).is_err() {
                return;
            }
        }
    }

    fn wait(&self, until: Instant) -> Result<(), WireError> {
        let mut sockets = [self.link.interest(), PollFd::new(&self.bell.0, READABLE)];
        await_any(&mut sockets, until.saturating_duration_since(Instant::now()))
    }
}

/// Wakes a thread that waits for sockets.
struct TlsListener(OwnedFd);

impl TlsListener {
    fn new() -> Result<Self, WireError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        eventfd(0, flags).map(Self).map_err(WireError::system("make an event descriptor"))
    }

    fn ring(&self) {
        // It can only fail because it is ringing already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    fn hush(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

/// Whether dialling again may help.
pub fn may_come_yet(error: &io::Error) -> bool {
    error.kind() != io::ErrorKind::InvalidData
}
