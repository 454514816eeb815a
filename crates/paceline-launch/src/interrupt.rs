//! Requests to stop a run: SIGINT and SIGTERM sent to the launcher, or passed on by a rank.
//!
//! A terminal, `timeout` and service managers signal a whole process group, ranks included. Ranks therefore never die
//! of these signals: they are started with both blocked ([`Blocked`]), and a thread passes each one on
//! ([`pass_on`]) to the launcher, which decides.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::{self, pipe};

/// The exit code of an interrupted run.
const EXIT: i32 = 130;
/// Two signals closer together than this are one request: `timeout` signals its child, then the child's group.
const SAME_REQUEST: Duration = Duration::from_millis(100);
/// Time that an abandoned run has to end its processes and its record.
const ABANDON: Duration = Duration::from_millis(600);

/// A signal ends the process at once: there is nothing to save yet.
const UNARMED: u8 = 0;
const ARMED: u8 = 1;
/// The run is to save itself and stop.
const REQUESTED: u8 = 2;
/// The run is to stop without saving.
const ABANDONED: u8 = 3;

/// Whether a run was asked to stop, and how urgently.
#[derive(Debug)]
pub struct Interrupt {
    state: AtomicU8,
    /// Whether SIGTERM has come.
    terminated: Arc<AtomicBool>,
    /// Why, where it was no signal.
    cause: OnceLock<String>,
}

impl Default for Interrupt {
    /// One that only [`request`](Self::request) raises.
    fn default() -> Self {
        Self::new(ARMED)
    }
}

impl Interrupt {
    fn new(state: u8) -> Self {
        Self { state: AtomicU8::new(state), terminated: Arc::default(), cause: OnceLock::new() }
    }

    /// One that SIGINT and SIGTERM raise: the first asks for a stop, the next one for a stop at once. Until it is
    /// [armed](Self::arm), a signal ends the process.
    pub fn on_signals() -> io::Result<Arc<Self>> {
        let interrupt = Arc::new(Self::new(UNARMED));
        let (receiver, sender) = UnixStream::pair()?;
        // Before the request is seen.
        flag::register(SIGTERM, Arc::clone(&interrupt.terminated))?;
        for signal in [SIGINT, SIGTERM] {
            pipe::register(signal, sender.try_clone()?)?;
        }
        let raised = Arc::clone(&interrupt);
        std::thread::Builder::new().name("signals".into()).spawn(move || raised.listen(receiver))?;
        Ok(interrupt)
    }

    /// Takes a byte for each signal.
    fn listen(&self, mut signals: UnixStream) {
        let (mut first, mut byte) = (None::<Instant>, [0]);
        while signals.read_exact(&mut byte).is_ok() {
            if self.state.load(Ordering::SeqCst) == UNARMED {
                low_level::exit(EXIT);
            }
            match first {
                None => {
                    first = Some(Instant::now());
                    self.request();
                }
                Some(at) if at.elapsed() < SAME_REQUEST => {}
                Some(_) => self.abandon(),
            }
        }
    }

    /// From now on there is something to save: the first signal asks for that.
    pub fn arm(&self) {
        let _ = self.state.compare_exchange(UNARMED, ARMED, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Asks for a stop, as the first signal does.
    pub fn request(&self) {
        let _ = self.state.compare_exchange(ARMED, REQUESTED, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Asks for a stop, and says why.
    pub(crate) fn request_because(&self, cause: String) {
        let _ = self.cause.set(cause);
        self.request();
    }

    /// Why a stop was asked for, where it was no signal.
    pub(crate) fn cause(&self) -> Option<&str> {
        self.cause.get().map(String::as_str)
    }

    /// Stops the run without saving, and ends this process.
    pub(crate) fn abandon(&self) {
        self.state.store(ABANDONED, Ordering::SeqCst);
        std::thread::sleep(ABANDON);
        low_level::exit(EXIT);
    }

    /// Whether it was asked for by SIGTERM: a notice to this process, rather than somebody's word at a terminal.
    pub(crate) fn is_notice(&self) -> bool {
        self.terminated.load(Ordering::SeqCst)
    }

    /// Whether the run is to stop.
    pub fn requested(&self) -> bool {
        self.state.load(Ordering::SeqCst) >= REQUESTED
    }

    /// Whether the run is to stop without saving.
    pub fn abandoned(&self) -> bool {
        self.state.load(Ordering::SeqCst) == ABANDONED
    }
}

fn signals() -> SigSet {
    [Signal::SIGINT, Signal::SIGTERM].into_iter().collect()
}

/// Blocks SIGINT and SIGTERM in this thread, and in processes that it starts, as long as it lives.
pub(crate) struct Blocked(Option<SigSet>);

impl Blocked {
    pub(crate) fn new() -> Self {
        let before = SigSet::thread_get_mask().ok();
        // A thread whose mask cannot be changed starts ranks that block the signals a moment later themselves.
        Self(signals().thread_block().ok().and(before))
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            before.thread_set_mask().unwrap_or_default();
        }
    }
}

/// A signal that came to a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RankSignal(Signal);

impl RankSignal {
    /// Whether it gives notice to this process alone (SIGTERM), rather than being a terminal's word to all of a group.
    pub(crate) fn is_notice(self) -> bool {
        self.0 == Signal::SIGTERM
    }
}

/// Inside a rank, before it has other threads: SIGINT and SIGTERM are passed on instead of ending the process.
pub(crate) fn pass_on(send: impl Fn(RankSignal) + Send + 'static) {
    let signals = signals();
    if signals.thread_block().is_err() {
        return;
    }
    // A rank that cannot start a thread ignores both: the launcher has its own way to end it.
    let _ = std::thread::Builder::new().name("signals".into()).spawn(move || {
        while let Ok(signal) = signals.wait() {
            send(RankSignal(signal));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_request_counts_and_only_once_there_is_something_to_save() {
        let interrupt = Interrupt::new(UNARMED);
        interrupt.request();
        assert!(!interrupt.requested());
        interrupt.arm();
        interrupt.request();
        interrupt.request();
        assert!(interrupt.requested() && !interrupt.abandoned());
        interrupt.arm();
        assert!(interrupt.requested());
    }
}
