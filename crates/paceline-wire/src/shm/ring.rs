//! Two rings of bytes between two processes: each writes one and reads the other.
//!
//! Positions count bytes from the beginning and never go back. A side keeps its own ones to itself and only
//! publishes them; of the other side's it believes that they are between its own and the ring's length, and
//! ends the connection if they are not. A lying peer can so spoil the stream, which checksums notice, but
//! nothing else.
//!
//! Whoever is about to sleep says so, then looks once more; whoever has moved a position looks afterwards
//! whether somebody sleeps for it. With a full fence between the two on both sides, one of them sees the
//! other.

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::segment::{Segment, Word};
use crate::handshake::Side;

/// Bytes moved before the other side hears of it, so that both work at the same time.
const PIECE: u64 = 32 << 10;
/// A sleeper waits for bytes to read.
const BYTES: u64 = 1;
/// A sleeper waits for room to write.
const ROOM: u64 = 2;
/// A sleeper waits for what it has lent.
const RELEASES: u64 = 4;

/// One side's ends of both rings.
pub(super) struct Rings {
    segment: Arc<Segment>,
    capacity: u64,
    /// The ring that this side writes, which is also the number of this side.
    ours: usize,
    theirs: usize,
    /// Bytes ever written, and how many of them were seen to be read.
    head: u64,
    tail_seen: u64,
    /// Bytes ever read, and how many were seen to be there.
    tail: u64,
    head_seen: u64,
}

impl Rings {
    pub(super) fn new(segment: Segment, side: Side) -> Self {
        let ours = usize::from(side == Side::Acceptor);
        let capacity = segment.capacity() as u64;
        let segment = Arc::new(segment);
        Self { segment, capacity, ours, theirs: 1 - ours, head: 0, tail_seen: 0, tail: 0, head_seen: 0 }
    }

    /// Writes as much as there is room for; `ring` is called if the other side sleeps for it.
    pub(super) fn write(&mut self, slices: &[IoSlice<'_>], mut ring: impl FnMut()) -> io::Result<usize> {
        let begin = self.head;
        let mut published = begin;
        'full: for slice in slices {
            let mut rest = &slice[..];
            while !rest.is_empty() {
                let mut room = self.capacity - (self.head - self.tail_seen);
                if room < PIECE.min(rest.len() as u64) {
                    self.tail_seen = self.look(Word::Tail(self.ours), self.tail_seen, self.head)?;
                    room = self.capacity - (self.head - self.tail_seen);
                }
                let n = room.min(PIECE).min(rest.len() as u64) as usize;
                if n == 0 {
                    break 'full;
                }
                self.segment.copy_in(self.ours, self.head, &rest[..n]);
                self.head += n as u64;
                rest = &rest[n..];
                if self.head - published >= PIECE {
                    published = self.head;
                    self.publish(Word::Head(self.ours), self.head, BYTES, &mut ring);
                }
            }
        }
        if published != self.head {
            self.publish(Word::Head(self.ours), self.head, BYTES, &mut ring);
        }
        Ok((self.head - begin) as usize)
    }

    /// Reads as much as is there.
    pub(super) fn read(
        &mut self,
        slices: &mut [IoSliceMut<'_>],
        mut ring: impl FnMut(),
    ) -> io::Result<usize> {
        let begin = self.tail;
        let mut published = begin;
        'empty: for slice in slices {
            let mut rest = &mut slice[..];
            while !rest.is_empty() {
                let mut ready = self.head_seen - self.tail;
                if ready < PIECE.min(rest.len() as u64) {
                    self.head_seen = self.look_ahead()?;
                    ready = self.head_seen - self.tail;
                }
                let n = ready.min(PIECE).min(rest.len() as u64) as usize;
                if n == 0 {
                    break 'empty;
                }
                let (now, later) = rest.split_at_mut(n);
                self.segment.copy_out(self.theirs, self.tail, now);
                self.tail += n as u64;
                rest = later;
                if self.tail - published >= PIECE {
                    published = self.tail;
                    self.free(&mut ring);
                }
            }
        }
        if published != self.tail {
            self.free(&mut ring);
        }
        Ok((self.tail - begin) as usize)
    }

    /// Says that this side is going to sleep until there is something to read or, if `writing`, room to
    /// write; true if there is already.
    pub(super) fn lie_down(&mut self, writing: bool) -> bool {
        let wanted = if writing { BYTES | ROOM | RELEASES } else { BYTES | RELEASES };
        self.segment.word(Word::Asleep(self.ours)).store(wanted, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        // A position that cannot be is news too.
        let bytes = self.look_ahead().map_or(true, |head| head != self.tail);
        let room = || {
            let tail = self.look(Word::Tail(self.ours), self.tail_seen, self.head);
            tail.map_or(true, |tail| self.head - tail < self.capacity)
        };
        bytes || writing && room()
    }

    /// Says that this side is awake.
    pub(super) fn get_up(&mut self) {
        self.segment.word(Word::Asleep(self.ours)).store(0, Ordering::SeqCst);
    }

    /// The last body lent in a slot that the other side has released.
    pub(super) fn released(&self, slot: u8) -> u64 {
        self.segment.word(Word::Released(self.ours, slot)).load(Ordering::Acquire)
    }

    /// Where a body that the other side has lent is given back.
    pub(super) fn return_of(&self, slot: u8, number: u64) -> LentReturn {
        LentReturn { segment: Arc::clone(&self.segment), lender: self.theirs, slot, number }
    }

    /// How far the other side has written.
    fn look_ahead(&self) -> io::Result<u64> {
        self.look(Word::Head(self.theirs), self.head_seen, self.tail + self.capacity)
    }

    /// A position of the other side's, which must lie between two that are known.
    fn look(&self, word: Word, least: u64, most: u64) -> io::Result<u64> {
        let found = self.segment.word(word).load(Ordering::Acquire);
        if (least..=most).contains(&found) {
            return Ok(found);
        }
        let what = format!("expected a position between {least} and {most} in the ring, found {found}");
        Err(io::Error::new(io::ErrorKind::InvalidData, what))
    }

    /// Makes what was read room again. A sleeper is woken only when half of the ring is free: to be woken for
    /// every piece would cost more than the piece. (It was read to the end if it comes to less.)
    fn free(&self, ring: &mut impl FnMut()) {
        let wake = if self.head_seen - self.tail <= self.capacity / 2 { ROOM } else { 0 };
        self.publish(Word::Tail(self.theirs), self.tail, wake, ring);
    }

    /// Publishes a position and wakes the other side if it sleeps for that.
    fn publish(&self, word: Word, position: u64, wakes: u64, ring: &mut impl FnMut()) {
        publish(&self.segment, word, position, self.theirs, wakes, ring);
    }
}

/// Stores a word and wakes a side if it sleeps for that.
fn publish(segment: &Segment, word: Word, value: u64, side: usize, wakes: u64, ring: &mut impl FnMut()) {
    segment.word(word).store(value, Ordering::Release);
    fence(Ordering::SeqCst);
    let asleep = segment.word(Word::Asleep(side));
    if asleep.load(Ordering::Relaxed) & wakes != 0 {
        asleep.store(0, Ordering::Relaxed);
        ring();
    }
}

/// Where a lent body is given back.
pub(super) struct LentReturn {
    segment: Arc<Segment>,
    lender: usize,
    slot: u8,
    number: u64,
}

impl LentReturn {
    /// Tells the lender; `ring` is called if it sleeps for that.
    pub(super) fn give_back(&self, mut ring: impl FnMut()) {
        let word = Word::Released(self.lender, self.slot);
        publish(&self.segment, word, self.number, self.lender, RELEASES, &mut ring);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SMALL: usize = 4096;

    fn pair(bytes: usize) -> (Rings, Rings) {
        let (segment, file) = Segment::create(bytes).unwrap();
        let other = Segment::open(&file).unwrap();
        (Rings::new(segment, Side::Dialler), Rings::new(other, Side::Acceptor))
    }

    fn write(rings: &mut Rings, bytes: &[u8]) -> usize {
        rings.write(&[IoSlice::new(bytes)], || {}).unwrap()
    }

    fn read(rings: &mut Rings, most: usize) -> Vec<u8> {
        let mut bytes = vec![0; most];
        let n = rings.read(&mut [IoSliceMut::new(&mut bytes)], || {}).unwrap();
        bytes.truncate(n);
        bytes
    }

    /// Bytes that tell their place in a stream.
    fn stream(from: usize, len: usize) -> Vec<u8> {
        (from..from + len).map(|i| (i * 31 + i / 251) as u8).collect()
    }

    #[test]
    fn an_empty_ring_gives_nothing_and_a_full_one_takes_nothing() {
        let (mut a, mut b) = pair(SMALL);
        assert!(read(&mut a, 10).is_empty() && read(&mut b, 10).is_empty());
        assert_eq!(write(&mut a, &stream(0, SMALL + 100)), SMALL);
        assert_eq!(write(&mut a, &[1]), 0);
        assert_eq!(read(&mut b, 2 * SMALL), stream(0, SMALL));
        assert!(read(&mut b, 1).is_empty());
        assert_eq!(write(&mut a, &[1]), 1);
        // The other direction has a ring of its own.
        assert_eq!((write(&mut b, &[7; 9]), read(&mut a, 99)), (9, vec![7; 9]));
    }

    #[test]
    fn bytes_that_wrap_around_the_end_stay_in_order() {
        let (mut a, mut b) = pair(SMALL);
        let (mut written, mut seen) = (0, 0);
        for len in [3000, 3000, 4096, 1, 4095, 2048, 2049, 4096] {
            let n = write(&mut a, &stream(written, len));
            written += n;
            let came = read(&mut b, n);
            assert_eq!(came, stream(seen, n));
            seen += n;
        }
        assert_eq!(written, 3000 + 3000 + 4096 + 1 + 4095 + 2048 + 2049 + 4096);
    }

    #[test]
    fn two_threads_move_100_megabytes_exactly() {
        const ALL: usize = 100_000_000;
        let (mut a, mut b) = pair(64 << 10);
        let sizes = |mut state: u64| {
            move || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 40) as usize % 100_000 + 1
            }
        };
        let source: Vec<u8> = stream(0, 251 * 256 * 2);
        let period = 251 * 256;
        let at = |place: usize, len: usize| {
            let start = place % period;
            &source[start..start + len.min(source.len() - start)]
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut done, mut next) = (0, sizes(1));
                while done < ALL {
                    let n = write(&mut a, at(done, next().min(ALL - done)));
                    if n == 0 {
                        std::thread::yield_now();
                    }
                    done += n;
                }
            });
            let (mut done, mut next) = (0, sizes(2));
            while done < ALL {
                let came = read(&mut b, next().min(period));
                assert!(came == at(done, came.len()), "at {done}");
                if came.is_empty() {
                    std::thread::yield_now();
                }
                done += came.len();
            }
        });
    }

    #[test]
    fn positions_that_cannot_be_end_the_connection() {
        for (word, value) in
            [(Word::Head(0), SMALL as u64 + 11), (Word::Head(0), u64::MAX), (Word::Head(0), 9)]
        {
            let (mut a, mut b) = pair(SMALL);
            write(&mut a, &[1; 10]);
            read(&mut b, 10);
            a.segment.word(word).store(value, Ordering::SeqCst);
            let error = b.read(&mut [IoSliceMut::new(&mut [0; 9])], || {}).unwrap_err().to_string();
            assert!(error.starts_with("expected a position between 10 and 4106 in the ring"), "{error}");
            assert!(b.lie_down(false), "and nobody sleeps over it");
        }
        for value in [11, u64::MAX] {
            let (mut a, b) = pair(SMALL);
            write(&mut a, &[1; 10]);
            b.segment.word(Word::Tail(0)).store(value, Ordering::SeqCst);
            let error = a.write(&[IoSlice::new(&[0; SMALL])], || {}).unwrap_err().to_string();
            assert!(error.starts_with("expected a position between 0 and 10 in the ring"), "{error}");
        }
    }

    #[test]
    fn a_sleeper_is_woken_once_for_what_it_waits_for() {
        let (mut a, mut b) = pair(SMALL);
        let mut rung = 0;
        assert!(b.lie_down(true), "an empty ring has room");
        b.get_up();
        assert!(!b.lie_down(false), "nothing is there");
        a.write(&[IoSlice::new(&[1])], || rung += 1).unwrap();
        a.write(&[IoSlice::new(&[2])], || rung += 1).unwrap();
        assert_eq!(rung, 1);
        assert!(b.lie_down(false), "there is something already");
        b.get_up();
        a.write(&[IoSlice::new(&[3])], || rung += 1).unwrap();
        assert_eq!(rung, 1, "nobody sleeps");

        write(&mut a, &[0; SMALL]);
        assert!(!a.lie_down(true), "it is full");
        b.read(&mut [IoSliceMut::new(&mut [0; 100])], || rung += 1).unwrap();
        assert_eq!(rung, 1, "too little room to wake anybody");
        b.read(&mut [IoSliceMut::new(&mut [0; SMALL])], || rung += 1).unwrap();
        assert_eq!(rung, 2);
        write(&mut a, &[0; 100]);
        assert!(!a.lie_down(false), "room does not matter to a reader");
        b.read(&mut [IoSliceMut::new(&mut [0; SMALL])], || rung += 1).unwrap();
        assert_eq!(rung, 2);
    }

    proptest! {
        #[test]
        fn any_sizes_of_reads_and_writes_give_the_same_stream(
            moves in prop::collection::vec((any::<bool>(), 0usize..6000, 0usize..3000), 1..60),
        ) {
            let (mut a, mut b) = pair(SMALL);
            let (mut written, mut seen) = (0, 0);
            for (writes, first, second) in moves {
                if writes {
                    let bytes = stream(written, first + second);
                    let slices = [IoSlice::new(&bytes[..first]), IoSlice::new(&bytes[first..])];
                    let n = a.write(&slices, || {}).unwrap();
                    prop_assert_eq!(n, (first + second).min(SMALL - (written - seen)));
                    written += n;
                } else {
                    let (mut one, mut two) = (vec![0; first], vec![0; second]);
                    let n = b.read(&mut [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)], || {}).unwrap();
                    prop_assert_eq!(n, (first + second).min(written - seen));
                    one.extend(two);
                    prop_assert_eq!(&one[..n], &stream(seen, n)[..]);
                    seen += n;
                }
            }
        }
    }
}
