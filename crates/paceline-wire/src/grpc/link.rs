//! What the thread of a transport and the task of a connection share: a bounded queue of bytes each way, and
//! a bell for the thread when it sleeps.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use rustix::event::{EventfdFlags, eventfd};

/// One connection, between its thread and its task. Nothing here blocks.
pub(super) struct Link {
    state: Mutex<State>,
    bell: OwnedFd,
    /// Bytes of each queue: more come in when half of it is free.
    size: usize,
}

#[derive(Default)]
struct State {
    incoming: Queue,
    outgoing: Queue,
    /// The call is under way, so that the other end can hear what is said.
    begun: bool,
    /// The other end holds the run's key.
    proven: bool,
    /// This end is done with it.
    closed: bool,
    /// Nothing more comes from the other end: it is done, or this went wrong.
    ended: Option<Result<(), String>>,
    /// The thread sleeps, or may do so any time.
    asleep: bool,
    /// The thread could not write all that it has.
    crowded: bool,
    rung: bool,
    /// Who waits for room for what comes in.
    receiver: Option<Waker>,
    /// Who waits for something to send.
    sender: Option<Waker>,
    /// Who waits for the proof.
    gate: Option<Waker>,
    /// Who waits for the end of this side, then for that of the other.
    closer: Option<Waker>,
}

/// Bytes on their way, in the pieces that they came in.
#[derive(Default)]
struct Queue {
    pieces: VecDeque<Bytes>,
    bytes: usize,
}

impl Queue {
    fn push(&mut self, piece: Bytes) {
        self.bytes += piece.len();
        self.pieces.push_back(piece);
    }

    fn pop(&mut self) -> Option<Bytes> {
        let piece = self.pieces.pop_front()?;
        self.bytes -= piece.len();
        Some(piece)
    }
}

impl Link {
    /// A link with queues of so many bytes. Its bell rings for everything until a [`Link::prove`].
    pub(super) fn new(size: usize) -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let state = Mutex::new(State { asleep: true, ..State::default() });
        Ok(Self { state, bell, size })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the thread, if it sleeps.
    fn ring(&self, state: &mut State) {
        if state.asleep && !state.rung {
            state.rung = true;
            // A counter from 0 to 1 cannot overflow.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    fn hush(&self, state: &mut State) {
        if state.rung {
            state.rung = false;
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        }
    }
}

impl Link {
    /// The next bytes that came; none at the end.
    pub(super) fn take(&self) -> io::Result<Option<Bytes>> {
        let mut state = self.lock();
        self.hush(&mut state);
        if let Some(piece) = state.incoming.pop() {
            if state.incoming.bytes <= self.size / 2 {
                wake(&mut state.receiver);
            }
            return Ok(Some(piece));
        }
        match &state.ended {
            None => Err(ErrorKind::WouldBlock.into()),
            Some(Ok(())) => Ok(None),
            Some(Err(cause)) => Err(io::Error::new(ErrorKind::ConnectionAborted, cause.clone())),
        }
    }

    /// How many bytes may be put now.
    pub(super) fn room(&self) -> io::Result<usize> {
        let mut state = self.lock();
        if state.ended.is_some() {
            return Err(io::Error::new(ErrorKind::BrokenPipe, "the other end has closed the connection"));
        }
        state.crowded = state.outgoing.bytes > self.size / 2;
        if state.crowded {
            self.hush(&mut state);
            return Err(ErrorKind::WouldBlock.into());
        }
        Ok(self.size - state.outgoing.bytes)
    }

    /// Queues bytes to be sent.
    pub(super) fn put(&self, piece: Bytes) {
        let mut state = self.lock();
        state.outgoing.push(piece);
        wake(&mut state.sender);
    }

    /// Whether there is nothing to do: then the bell rings when there is.
    pub(super) fn lie_down(&self, writing: bool) -> bool {
        let mut state = self.lock();
        let busy = state.incoming.bytes > 0
            || state.ended.is_some()
            || writing && state.outgoing.bytes <= self.size / 2;
        state.asleep = !busy;
        state.crowded = writing;
        state.asleep
    }

    /// The thread is awake, and the bell need not ring.
    pub(super) fn get_up(&self) {
        let mut state = self.lock();
        state.asleep = false;
        self.hush(&mut state);
    }

    /// The other end holds the key: it may say more than a handshake takes.
    pub(super) fn prove(&self) {
        let mut state = self.lock();
        state.proven = true;
        wake(&mut state.gate);
        state.asleep = false;
        self.hush(&mut state);
    }

    /// This end is done with it: what was put is still sent, what comes is thrown away.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.incoming = Queue::default();
        let State { receiver, sender, closer, .. } = &mut *state;
        [receiver, sender, closer].into_iter().for_each(wake);
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl Link {
    /// Begins the call; false if there was one already.
    pub(super) fn begin(&self) -> bool {
        !std::mem::replace(&mut self.lock().begun, true)
    }

    /// Ready when there is room for what comes in.
    pub(super) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        let room = state.incoming.bytes <= self.size / 2;
        let State { closed, receiver, .. } = &mut *state;
        ready_or(room || *closed, receiver, cx)
    }

    pub(super) fn arrived(&self, piece: Bytes) {
        let mut state = self.lock();
        if !state.closed && !piece.is_empty() {
            state.incoming.push(piece);
            self.ring(&mut state);
        }
    }

    /// Nothing more comes, and what is said from now on is not heard.
    pub(super) fn ended(&self, how: Result<(), String>) {
        let mut state = self.lock();
        state.ended.get_or_insert(how);
        state.outgoing = Queue::default();
        let State { sender, closer, .. } = &mut *state;
        [sender, closer].into_iter().for_each(wake);
        self.ring(&mut state);
    }

    /// The next bytes to send; none at the end.
    pub(super) fn poll_outgoing(&self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut state = self.lock();
        if let Some(piece) = state.outgoing.pop() {
            if state.crowded && state.outgoing.bytes <= self.size / 2 {
                state.crowded = false;
                self.ring(&mut state);
            }
            return Poll::Ready(Some(piece));
        }
        let done = state.closed || state.ended.is_some();
        ready_or(done, &mut state.sender, cx).map(|()| None)
    }

    /// Ready when the other end has proved itself.
    pub(super) fn poll_proven(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        let State { proven, gate, .. } = &mut *state;
        ready_or(*proven, gate, cx)
    }

    /// Ready when the other end has said all that it will say.
    pub(super) fn poll_ended(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        let State { ended, closer, .. } = &mut *state;
        ready_or(ended.is_some(), closer, cx)
    }

    /// Ready when this end is done with it: how far it had come.
    pub(super) fn poll_closed(&self, cx: &mut Context<'_>) -> Poll<Reached> {
        let mut state = self.lock();
        let reached = match &*state {
            State { begun: false, .. } => Reached::Nothing,
            State { proven: false, .. } => Reached::Call,
            _ => Reached::Proof,
        };
        let State { closed, closer, .. } = &mut *state;
        ready_or(*closed, closer, cx).map(|()| reached)
    }
}

/// How far a connection had come when it was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reached {
    /// No call: nobody could hear anything.
    Nothing,
    /// A call of somebody without proof.
    Call,
    /// A connection of a peer.
    Proof,
}

fn ready_or(ready: bool, waker: &mut Option<Waker>, cx: &Context<'_>) -> Poll<()> {
    if ready {
        return Poll::Ready(());
    }
    match waker {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *waker = Some(cx.waker().clone()),
    }
    Poll::Pending
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks<T: std::fmt::Debug>(result: io::Result<T>) -> bool {
        result.unwrap_err().kind() == ErrorKind::WouldBlock
    }

    fn rings(link: &Link) -> bool {
        let mut fds = [rustix::event::PollFd::new(link, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&now)).unwrap() == 1
    }

    fn context() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    fn piece(bytes: usize) -> Bytes {
        Bytes::from(vec![7; bytes])
    }

    #[test]
    fn queues_are_bounded_both_ways() {
        let link = Link::new(1000).unwrap();
        assert_eq!(link.room().unwrap(), 1000);
        link.put(piece(501));
        assert!(blocks(link.room()));
        assert_eq!(link.poll_outgoing(&mut context()), Poll::Ready(Some(piece(501))));
        assert_eq!(link.room().unwrap(), 1000);
        assert!(link.poll_outgoing(&mut context()).is_pending());

        assert!(link.poll_room(&mut context()).is_ready());
        link.arrived(piece(501));
        assert!(link.poll_room(&mut context()).is_pending());
        assert_eq!(link.take().unwrap(), Some(piece(501)));
        assert!(link.poll_room(&mut context()).is_ready());
        assert!(blocks(link.take()));
    }

    #[test]
    fn the_bell_rings_for_a_sleeper_and_only_for_what_it_waits_for() {
        let link = Link::new(1000).unwrap();
        link.arrived(piece(1));
        assert!(rings(&link), "anybody may sleep during a handshake");
        assert!(link.take().is_ok() && !rings(&link));
        link.prove();
        link.arrived(piece(1));
        assert!(!rings(&link) && !link.lie_down(false) && link.take().is_ok());

        link.put(piece(600));
        assert!(link.lie_down(false) && link.poll_outgoing(&mut context()).is_ready());
        assert!(!rings(&link), "it has nothing to write");
        link.get_up();
        link.put(piece(600));
        assert!(link.lie_down(true) && !rings(&link));
        assert!(link.poll_outgoing(&mut context()).is_ready() && rings(&link), "it has room again");
        link.get_up();
        assert!(!rings(&link) && !link.lie_down(true), "no need to sleep");
        assert!(link.lie_down(false));
        link.ended(Ok(()));
        assert!(rings(&link));
    }

    #[test]
    fn an_end_comes_after_the_last_bytes_and_stops_what_is_to_be_sent() {
        let link = Link::new(1000).unwrap();
        link.put(piece(1));
        link.arrived(piece(2));
        link.ended(Err("it broke".into()));
        link.ended(Ok(()));
        assert_eq!(link.take().unwrap(), Some(piece(2)));
        assert_eq!(link.take().unwrap_err().to_string(), "it broke");
        assert_eq!(link.room().unwrap_err().kind(), ErrorKind::BrokenPipe);
        assert_eq!(link.poll_outgoing(&mut context()), Poll::Ready(None));
    }

    #[test]
    fn a_closed_link_sends_what_is_left_and_takes_in_nothing() {
        let link = Link::new(1000).unwrap();
        assert!(link.poll_closed(&mut context()).is_pending() && link.begin() && !link.begin());
        link.arrived(piece(900));
        link.put(piece(3));
        link.close();
        assert_eq!(link.poll_closed(&mut context()), Poll::Ready(Reached::Call));
        assert!(link.poll_room(&mut context()).is_ready());
        link.arrived(piece(900));
        assert!(link.poll_room(&mut context()).is_ready(), "it is thrown away");
        assert_eq!(link.poll_outgoing(&mut context()), Poll::Ready(Some(piece(3))));
        assert_eq!(link.poll_outgoing(&mut context()), Poll::Ready(None));
        assert!(link.poll_ended(&mut context()).is_pending());
        link.ended(Ok(()));
        assert!(link.poll_ended(&mut context()).is_ready());
    }
}
