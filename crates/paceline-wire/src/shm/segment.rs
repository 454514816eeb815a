//! The memory of one connection: a page of control words, positions on cache lines of their own, and two rings of
//! equal, known size. No position that the other side wrote leads to an address outside the rings.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;

use crate::frame::LentPlace;
use crate::shared::Shared;

/// Bytes of the control words' page.
const CONTROL: usize = 4096;
/// Distance of two control words: a pair of cache lines, since they are fetched in pairs.
const LINE: usize = 128;
/// Where the words of lent bodies begin, and how many there are in each direction.
const RELEASED: usize = 1024;
const SLOTS: usize = LentPlace::SLOTS as usize;
/// The smallest and the largest ring.
const SMALLEST: usize = 4 << 10;
const LARGEST: usize = 1 << 30;

#[derive(Clone, Copy, Debug)]
pub(super) enum Word {
    /// Bytes ever written to a ring.
    Head(usize),
    /// Bytes ever read from a ring.
    Tail(usize),
    /// What the writer of a ring sleeps for.
    Asleep(usize),
    /// The last body that the writer of a ring has lent in a slot, and got back.
    Released(usize, u8),
}

pub(super) struct Segment {
    memory: Shared,
    /// Bytes of each ring, a power of two.
    capacity: usize,
}

impl Segment {
    /// Makes a segment with rings of at least `bytes`; the descriptor is for the other process.
    pub(super) fn create(bytes: usize) -> io::Result<(Self, OwnedFd)> {
        let capacity = bytes.clamp(SMALLEST, LARGEST).next_power_of_two();
        let (memory, file) = Shared::create(length(capacity))?;
        Ok((Self { memory, capacity }, file))
    }

    /// Maps what another process made; nothing of it is believed.
    pub(super) fn open(file: &OwnedFd) -> io::Result<Self> {
        let capacity_of = |size: usize| size.saturating_sub(CONTROL) / 2;
        let memory = Shared::open(file, |size| {
            let capacity = capacity_of(size);
            let valid = (SMALLEST..=LARGEST).contains(&capacity) && capacity.is_power_of_two();
            if valid && length(capacity) == size {
                return Ok(());
            }
            Err(format!("expected shared memory of two rings, found {size} bytes"))
        })?;
        let capacity = capacity_of(memory.len());
        Ok(Self { memory, capacity })
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn word(&self, word: Word) -> &AtomicU64 {
        let line = |kind: usize, ring: usize| LINE * (2 * kind + ring);
        self.memory.word(match word {
            Word::Head(ring) => line(0, ring),
            Word::Tail(ring) => line(1, ring),
            Word::Asleep(ring) => line(2, ring),
            Word::Released(ring, slot) => RELEASED + 8 * (SLOTS * ring + usize::from(slot) % SLOTS),
        })
    }

    /// Copies bytes into a ring, from a position that is taken modulo its size.
    pub(super) fn copy_in(&self, ring: usize, position: u64, bytes: &[u8]) {
        let (start, at, first) = self.split(ring, position, bytes.len());
        self.memory.copy_in(start + at, &bytes[..first]);
        self.memory.copy_in(start, &bytes[first..]);
    }

    /// Copies bytes out of a ring.
    pub(super) fn copy_out(&self, ring: usize, position: u64, bytes: &mut [u8]) {
        let (start, at, first) = self.split(ring, position, bytes.len());
        let (now, later) = bytes.split_at_mut(first);
        self.memory.copy_out(start + at, now);
        self.memory.copy_out(start, later);
    }

    /// Where a ring starts, where a position is in it, and how many of `len` bytes fit before its end.
    fn split(&self, ring: usize, position: u64, len: usize) -> (usize, usize, usize) {
        assert!(ring < 2 && len <= self.capacity, "a copy longer than its ring");
        let at = position as usize & (self.capacity - 1);
        (CONTROL + ring * self.capacity, at, len.min(self.capacity - at))
    }
}

fn length(capacity: usize) -> usize {
    CONTROL + 2 * capacity
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_the_wrong_size_is_refused() {
        let good = length(SMALLEST);
        let opened = |bytes: usize| Segment::open(&Shared::create(bytes).unwrap().1);
        assert!(opened(good).is_ok());
        for bytes in [1, CONTROL, good - 1, good + 1, good + 4096, length(3 << 12)] {
            let error = opened(bytes).err().unwrap().to_string();
            assert_eq!(error, format!("expected shared memory of two rings, found {bytes} bytes"));
        }
    }

    #[test]
    fn sizes_are_rounded_up_within_limits() {
        for (asked, given) in [(1, 4096), (4096, 4096), (4097, 8192), (1_000_000, 1 << 20)] {
            assert_eq!(Segment::create(asked).unwrap().0.capacity(), given);
        }
    }
}
