//! What comes from a peer, where two threads may read it: the rank's own, and one beside it on a core of its own.
//!
//! Whoever finds a connection free reads it. Messages are handed over before the connection is free again, so they keep
//! their order. While the rank sleeps, the thread reads nothing: then a socket that is ready always wakes the rank.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use super::inbound::Inbound;
use super::medium::Stream;
use crate::body::{Body, Pool};
use crate::transport::Meta;

/// Bytes from which on a message is worth a second thread.
pub(super) const WORTH_A_THREAD: usize = 64 << 10;
/// Bytes of a peer that the thread reads ahead of the rank at most: what waits longer is in no cache any more.
const AHEAD_OF_RANK: usize = 4 << 20;
/// The thread's pause where nothing has come.
const PAUSE: Duration = Duration::from_micros(20);
/// The thread stops by itself when nothing has come for this long.
const IDLE: Duration = Duration::from_millis(5);

/// What comes from one peer.
pub(super) struct Intake<S> {
    /// None once the connection is given up.
    reading: Mutex<Option<Reading<S>>>,
    come: Mutex<Come>,
}

struct Reading<S> {
    stream: S,
    inbound: Inbound,
}

/// What has been read and not been taken.
#[derive(Default)]
struct Come {
    messages: Vec<(Meta, Body)>,
    bytes: usize,
    /// Why nothing more will come.
    end: Option<String>,
}

impl<S: Stream> Intake<S> {
    fn new(stream: S, inbound: Inbound) -> Self {
        Self { reading: Mutex::new(Some(Reading { stream, inbound })), come: Mutex::default() }
    }

    /// Reads what is there, unless somebody else does so at this moment; the number of bytes.
    fn read(&self, pool: &Arc<Pool>, wanted: impl Fn() -> bool) -> usize {
        let mut reading = match self.reading.try_lock() {
            Ok(reading) => reading,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return 0,
        };
        // Looked at under the lock: see `is_quiet`.
        let Some(Reading { stream, inbound }) = reading.as_mut().filter(|_| wanted()) else { return 0 };
        let deliver = |meta, body: Body| {
            let mut come = self.come();
            come.bytes += 4 * body.len();
            come.messages.push((meta, body));
        };
        match inbound.read(stream, pool, deliver) {
            Ok(bytes) => bytes,
            Err(cause) => {
                *reading = None;
                self.come().end = Some(cause);
                0
            }
        }
    }

    /// Hands over what has come, after reading what is there; how many bytes there were at least, or why nothing more
    /// will come.
    pub(super) fn take(
        &self,
        pool: &Arc<Pool>,
        mut deliver: impl FnMut(Meta, Body),
    ) -> Result<usize, String> {
        let read = self.read(pool, || true);
        let mut come = self.come();
        let taken = come.messages.len();
        come.bytes = 0;
        come.messages.drain(..).for_each(|(meta, body)| deliver(meta, body));
        match come.end.take() {
            Some(cause) => Err(cause),
            None => Ok(read.max(taken)),
        }
    }

    /// Whether there is nothing to take and nobody is reading.
    fn is_quiet(&self) -> bool {
        let free = !matches!(self.reading.try_lock(), Err(TryLockError::WouldBlock));
        let come = self.come();
        free && come.messages.is_empty() && come.end.is_none()
    }

    fn come(&self) -> MutexGuard<'_, Come> {
        self.come.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread that reads what comes from all peers, while long messages are on their way.
pub(super) struct ReaderThread {
    shared: Arc<Shared>,
    thread: Thread,
    joined: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    reading: AtomicBool,
    ended: AtomicBool,
}

impl ReaderThread {
    /// A thread for these connections; none if the system gives none.
    pub(super) fn new<S: Stream + 'static>(intakes: Vec<Arc<Intake<S>>>, pool: Arc<Pool>) -> Option<Self> {
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        let work = move || {
            while !own.ended.load(Ordering::SeqCst) {
                match own.reading.load(Ordering::SeqCst) {
                    true => own.read_all(&intakes, &pool),
                    false => thread::park(),
                }
            }
        };
        let joined = thread::Builder::new().name("reader".into()).spawn(work).ok()?;
        Some(Self { shared, thread: joined.thread().clone(), joined: Some(joined) })
    }

    /// Begins to read, if it does not do so already.
    pub(super) fn start(&self) {
        if !self.shared.reading.swap(true, Ordering::SeqCst) {
            self.thread.unpark();
        }
    }

    /// Reads nothing more; true if it was reading.
    pub(super) fn stop(&self) -> bool {
        self.shared.reading.swap(false, Ordering::SeqCst)
    }
}

impl Shared {
    /// Reads until it is told to stop, or nothing has come for a while.
    fn read_all<S: Stream>(&self, intakes: &[Arc<Intake<S>>], pool: &Arc<Pool>) {
        let wanted = || self.reading.load(Ordering::SeqCst);
        let mut came = Instant::now();
        while wanted() {
            let ahead = |intake: &&Arc<Intake<S>>| intake.come().bytes < AHEAD_OF_RANK;
            let read: usize = intakes.iter().filter(ahead).map(|intake| intake.read(pool, wanted)).sum();
            match read {
                0 if came.elapsed() > IDLE => self.reading.store(false, Ordering::SeqCst),
                0 => thread::sleep(PAUSE),
                _ => came = Instant::now(),
            }
        }
    }
}

impl Drop for ReaderThread {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.stop();
        self.thread.unpark();
        if let Some(joined) = self.joined.take() {
            let _ = joined.join();
        }
    }
}

/// How a rank reads a connection.
pub(super) enum Inlet<S> {
    /// Alone.
    Own(Box<Inbound>),
    /// In turns with a thread beside it.
    Shared(Arc<Intake<S>>),
}

impl<S: Stream> Inlet<S> {
    /// Lets a thread read this connection, too, where its kind allows that.
    pub(super) fn share(&mut self, stream: &S) -> Option<Arc<Intake<S>>> {
        let Self::Own(inbound) = self else { return None };
        let second = stream.second()?;
        let intake = Arc::new(Intake::new(second, std::mem::take(&mut **inbound)));
        *self = Self::Shared(Arc::clone(&intake));
        Some(intake)
    }

    /// Reads what is there; see [`Inbound::read`].
    pub(super) fn read(
        &mut self,
        stream: &mut S,
        pool: &Arc<Pool>,
        deliver: impl FnMut(Meta, Body),
    ) -> Result<usize, String> {
        match self {
            Self::Own(inbound) => inbound.read(stream, pool, deliver),
            Self::Shared(intake) => intake.take(pool, deliver),
        }
    }

    /// Whether the sockets alone say if there is something to read. (The thread has been stopped.)
    pub(super) fn is_quiet(&self) -> bool {
        match self {
            Self::Own(_) => true,
            Self::Shared(intake) => intake.is_quiet(),
        }
    }
}

impl<S> Drop for Inlet<S> {
    fn drop(&mut self) {
        if let Self::Shared(intake) = self {
            // The connection ends with the rank's own end of it.
            *intake.reading.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
}
