//! The port where other machines join: whoever comes proves that it holds the key and says one document. Those
//! who do not are turned away; they cost a bounded amount of memory and nobody's time but this thread's.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::PollFd;

use super::TlsListener;
use super::link::Link;
use crate::error::WireError;
use crate::identity::Key;
use crate::stream::medium::Medium;
use crate::stream::{READABLE, StreamOptions, await_any, unless_blocked};
use crate::tls::{self, Secure};

/// Time to prove that one holds the key and to say why one comes.
const DEADLINE: Duration = Duration::from_secs(5);
/// Bytes of the first document.
const GREETING: usize = 4 << 10;
/// Visitors at a time. When there are more, whoever has taken longest goes: those who hold the key are quick.
const VISITORS: usize = 64;
/// Rest after the system could not accept a connection (it has no descriptors left, say).
const REST: Duration = Duration::from_millis(100);

/// Who came.
#[allow(missing_docs, reason = "the texts of the variants say what their fields are")]
pub enum Visit {
    /// Somebody who holds the key, and its first document.
    Arrived { link: Box<Link>, greeting: Vec<u8> },
    /// Somebody who was turned away; the cause says who, and why.
    Refused { cause: String },
}

/// A bound port that nobody attends to yet.
pub struct JoinListener {
    listener: tls::TlsListener,
    address: SocketAddr,
}

impl JoinListener {
    /// Listens; port 0 means any that is free.
    pub fn bind(address: SocketAddr) -> Result<Self, WireError> {
        let failed = |source| WireError::Listen { address: address.to_string(), source };
        let (listener, address) = Secure::bind(&address).map_err(failed)?;
        Ok(Self { listener, address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Attends to whoever comes, on a thread of its own; `tell` is called there.
    pub fn attend(self, key: Key, tell: impl FnMut(Visit) + Send + 'static) -> Result<JoinPort, WireError> {
        let (bell, over) = (Arc::new(TlsListener::new()?), Arc::new(AtomicBool::new(false)));
        let mut thread = Thread {
            listener: self.listener,
            key,
            visitors: Vec::new(),
            resting_until: None,
            bell: Arc::clone(&bell),
            tell,
        };
        let ends = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            while !ends.load(Ordering::Acquire) {
                thread.round();
                // There is nobody to tell that waiting failed; it is tried again.
                if thread.wait().is_err() {
                    std::thread::sleep(REST);
                }
            }
        });
        Ok(JoinPort { bell, over, thread: Some(thread) })
    }
}

/// A port that is attended to until this is dropped.
pub struct JoinPort {
    bell: Arc<TlsListener>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for JoinPort {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        self.bell.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Visitor {
    link: Box<Link>,
    who: String,
    deadline: Instant,
}

struct Thread<F> {
    listener: tls::TlsListener,
    key: Key,
    /// The first has been here longest.
    visitors: Vec<Visitor>,
    resting_until: Option<Instant>,
    bell: Arc<TlsListener>,
    tell: F,
}

impl<F: FnMut(Visit)> Thread<F> {
    fn round(&mut self) {
        self.bell.hush();
        self.accept(Instant::now());
        let now = Instant::now();
        for mut visitor in std::mem::take(&mut self.visitors) {
            // A visitor says one document; what the kernel does not take of the answers of TLS waits.
            let _ = visitor.link.write();
            match visitor.link.read(GREETING, &mut false) {
                Ok(Some(greeting)) => (self.tell)(Visit::Arrived { link: visitor.link, greeting }),
                Ok(None) if now < visitor.deadline => self.visitors.push(visitor),
                Ok(None) => {
                    let what = if visitor.link.proven() { "greeting" } else { "proof" };
                    self.refuse(&visitor.who, &format!("no {what} within {} s", DEADLINE.as_secs()));
                }
                Err(cause) => self.refuse(&visitor.who, &cause),
            }
        }
    }

    fn accept(&mut self, now: Instant) {
        if self.resting_until.is_some_and(|until| now < until) {
            return;
        }
        self.resting_until = None;
        // No more in a round than fit: a flood must not keep those who are here from going on.
        for _ in 0..VISITORS {
            match unless_blocked(|| Secure::accept(&self.listener, &self.key)) {
                Ok(Some((stream, who))) => {
                    // This fails only for a connection that is gone already.
                    if Secure::prepare(&stream, &StreamOptions::default()).is_err() {
                        continue;
                    }
                    if self.visitors.len() >= VISITORS {
                        let oldest = self.visitors.remove(0);
                        self.refuse(&oldest.who, "no proof yet, and too many others came");
                    }
                    let link = Box::new(Link::new(stream));
                    self.visitors.push(Visitor { link, who, deadline: now + DEADLINE });
                }
                Ok(None) => return,
                Err(_) => {
                    self.resting_until = Some(now + REST);
                    return;
                }
            }
        }
    }

    fn refuse(&mut self, who: &str, what: &str) {
        (self.tell)(Visit::Refused { cause: format!("{who}: {what}") });
    }

    fn wait(&self) -> Result<(), WireError> {
        let mut sockets = vec![PollFd::new(&self.bell.0, READABLE)];
        if self.resting_until.is_none() {
            sockets.push(PollFd::new(&self.listener, READABLE));
        }
        sockets.extend(self.visitors.iter().map(|visitor| visitor.link.interest()));
        let deadlines = self.visitors.iter().map(|visitor| visitor.deadline).chain(self.resting_until);
        let wait = deadlines
            .min()
            .map_or(Duration::from_secs(60), |at| at.saturating_duration_since(Instant::now()));
        await_any(&mut sockets, wait)
    }
}
