//! A rank, or somebody who would like to be one, played by hand over a non-blocking connection.

use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use paceline_wire::stream::medium::Medium;
use paceline_wire::{Handshake, HandshakeState, Side, StreamOptions, VERDICT};

use crate::{PATIENCE, identity};

/// A connection that is tried again until it is ready.
pub struct Hand<S>(pub S);

impl<S> Hand<S> {
    fn patiently<T>(&mut self, mut call: impl FnMut(&mut S) -> io::Result<T>) -> io::Result<T> {
        let begun = Instant::now();
        loop {
            match call(&mut self.0) {
                Err(e) if e.kind() == ErrorKind::WouldBlock && begun.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                done => return done,
            }
        }
    }
}

impl<S: Read> Read for Hand<S> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.patiently(|stream| stream.read(bytes))
    }
}

impl<S: Write> Write for Hand<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.patiently(|stream| stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Knocks at a door.
pub fn knock<M: Medium>(door: &M::Address) -> Hand<M::Socket> {
    Hand(M::open(door, &identity(1, 3).key, &StreamOptions::default()).unwrap())
}

/// Rank 2 of 3 by hand: a connection after a valid handshake with `rank`.
pub fn join<M: Medium>(door: &M::Address, rank: usize) -> Hand<M::Stream> {
    join_when::<M>(door, rank, || {})
}

/// The same; before it hears the last that the other end says in the handshake, it waits.
pub fn join_when<M: Medium>(door: &M::Address, rank: usize, wait: impl Fn()) -> Hand<M::Stream> {
    let mut stream = knock::<M>(door);
    let mut handshake = Handshake::dial(&identity(2, 3), [9; 32], rank);
    while handshake.standing() == HandshakeState::Pending {
        let output = std::mem::take(handshake.output());
        stream.write_all(&output).unwrap();
        if handshake.wants() == VERDICT {
            wait();
        }
        let mut bytes = vec![0; handshake.wants()];
        stream.read_exact(&mut bytes).unwrap();
        handshake.receive(&bytes);
    }
    assert_eq!(handshake.standing(), HandshakeState::Proven);
    Hand(M::stream(stream.0, Side::Dialler, &StreamOptions::default()).unwrap())
}
