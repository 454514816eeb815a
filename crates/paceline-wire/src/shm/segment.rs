//! The memory of one connection, mapped into both processes. All that is unsafe about it is here.
//!
//! A segment is a page of control words, each on cache lines of its own, and two rings of equal, known size.
//! The other process can write anything anywhere in it at any time. So nothing here is ever lent as a
//! reference but atomics; bytes are copied out first and looked at then; and no position that the other side
//! wrote leads to an address outside the rings.

#![allow(unsafe_code, reason = "maps memory that another process has too")]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Bytes of the control words' page.
const CONTROL: usize = 4096;
/// Distance of two control words: a pair of cache lines, since they are fetched in pairs.
const LINE: usize = 128;
/// The smallest and the largest ring.
const SMALLEST: usize = 4 << 10;
const LARGEST: usize = 1 << 30;
/// Bytes copied at once.
const BLOCK: usize = 2 << 10;
/// The size stays what it is: an access beyond the end of a file that was cut would end the process.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A control word.
#[derive(Clone, Copy, Debug)]
pub(super) enum Word {
    /// Bytes ever written to a ring.
    Head(usize),
    /// Bytes ever read from a ring.
    Tail(usize),
    /// What the writer of a ring sleeps for.
    Asleep(usize),
}

/// A mapped segment.
pub(super) struct Segment {
    base: NonNull<u8>,
    /// Bytes of each ring, a power of two.
    capacity: usize,
}

// SAFETY: the mapping belongs to no thread, and every access to it is by raw copies or atomics.
unsafe impl Send for Segment {}

impl Segment {
    /// Makes a segment with rings of at least `bytes`; the descriptor is for the other process.
    pub(super) fn create(bytes: usize) -> io::Result<(Self, OwnedFd)> {
        let capacity = bytes.clamp(SMALLEST, LARGEST).next_power_of_two();
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::NOEXEC_SEAL;
        let file = memfd_create("paceline", flags).or_else(|error| {
            // Kernels before 6.3 do not know the last flag.
            if error != rustix::io::Errno::INVAL {
                return Err(error);
            }
            memfd_create("paceline", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        })?;
        ftruncate(&file, length(capacity) as u64)?;
        fcntl_add_seals(&file, SEALS)?;
        Ok((Self::map(&file, capacity)?, file))
    }

    /// Maps what another process made; nothing of it is believed.
    pub(super) fn open(file: &OwnedFd) -> io::Result<Self> {
        let wrong = |what: String| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        // Anything but a memory file has no seals.
        let seals = fcntl_get_seals(file).unwrap_or(SealFlags::empty());
        if !seals.contains(SEALS) {
            return wrong(format!("expected shared memory of sealed size, found seals {:#x}", seals.bits()));
        }
        let size = usize::try_from(fstat(file)?.st_size).unwrap_or(0);
        let capacity = size.saturating_sub(CONTROL) / 2;
        let valid = (SMALLEST..=LARGEST).contains(&capacity) && capacity.is_power_of_two();
        if !valid || length(capacity) != size {
            return wrong(format!("expected shared memory of two rings, found {size} bytes"));
        }
        Self::map(file, capacity)
    }

    /// Maps a file that has and keeps the length for `capacity`.
    fn map(file: &impl AsFd, capacity: usize) -> io::Result<Self> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice aliases no memory of this program.
        let base = unsafe { mmap(ptr::null_mut(), length(capacity), access, flags, file, 0) }?;
        let base = NonNull::new(base.cast()).expect("the kernel maps nothing at zero by itself");
        Ok(Self { base, capacity })
    }

    /// Bytes of each ring.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// A control word.
    pub(super) fn word(&self, word: Word) -> &AtomicU64 {
        let (kind, ring) = match word {
            Word::Head(ring) => (0, ring),
            Word::Tail(ring) => (1, ring),
            Word::Asleep(ring) => (2, ring),
        };
        assert!(ring < 2, "there are two rings");
        let offset = LINE * (2 * kind + ring);
        // SAFETY: the offset is below 6 × 128 in a page that stays mapped as long as `self`, is aligned, and
        // this process touches it only through atomics.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// Copies bytes into a ring, from a position that is taken modulo its size.
    pub(super) fn copy_in(&self, ring: usize, position: u64, bytes: &[u8]) {
        let (at, first) = self.split(position, bytes.len());
        let data = self.data(ring);
        // SAFETY: `at + first` is within the ring, and so is the rest from its start, since `bytes` is not
        // longer than the ring. Nothing in this process refers to that memory. The other process may write to
        // it at the same time, if it breaks the rules; then any bytes will do, and checksums tell.
        unsafe {
            copy(bytes.as_ptr(), data.add(at), first);
            copy(bytes.as_ptr().add(first), data, bytes.len() - first);
        }
    }

    /// Copies bytes out of a ring.
    pub(super) fn copy_out(&self, ring: usize, position: u64, bytes: &mut [u8]) {
        let (at, first) = self.split(position, bytes.len());
        let data = self.data(ring);
        // SAFETY: as above; every value that may be there is a valid byte.
        unsafe {
            copy(data.add(at), bytes.as_mut_ptr(), first);
            copy(data, bytes.as_mut_ptr().add(first), bytes.len() - first);
        }
    }

    /// Where a position is in a ring, and how many of `len` bytes fit before its end.
    fn split(&self, position: u64, len: usize) -> (usize, usize) {
        assert!(len <= self.capacity, "a copy longer than its ring");
        let at = position as usize & (self.capacity - 1);
        (at, len.min(self.capacity - at))
    }

    fn data(&self, ring: usize) -> *mut u8 {
        assert!(ring < 2, "there are two rings");
        // SAFETY: the mapping is as long as the control page and two rings.
        unsafe { self.base.as_ptr().add(CONTROL + ring * self.capacity) }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and nothing borrows from it any more. (An error would only
        // leave it mapped.)
        let _ = unsafe { munmap(self.base.as_ptr().cast(), length(self.capacity)) };
    }
}

/// Copies block by block. The C library takes another way for long copies (string instructions), which is a
/// tenth slower here: it does not like lines that another core has just used.
///
/// # Safety
/// As for [`ptr::copy_nonoverlapping`].
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    let mut done = 0;
    while done < len {
        let n = BLOCK.min(len - done);
        // SAFETY: the caller's promise, for a part of it.
        unsafe { ptr::copy_nonoverlapping(from.add(done), to.add(done), n) };
        done += n;
    }
}

fn length(capacity: usize) -> usize {
    CONTROL + 2 * capacity
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: u64, seals: SealFlags) -> OwnedFd {
        let file = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, bytes).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file
    }

    #[test]
    fn memory_of_the_wrong_kind_or_size_is_refused() {
        let good = length(SMALLEST) as u64;
        assert!(Segment::open(&file(good, SEALS)).is_ok());
        for bytes in [0, 1, CONTROL as u64, good - 1, good + 1, good + 4096, length(3 << 12) as u64] {
            let error = Segment::open(&file(bytes, SEALS)).err().unwrap().to_string();
            assert_eq!(error, format!("expected shared memory of two rings, found {bytes} bytes"));
        }
        // A file that can shrink would turn a read into a signal.
        for seals in [SealFlags::empty(), SealFlags::GROW, SealFlags::GROW | SealFlags::SHRINK] {
            let error = Segment::open(&file(good, seals)).err().unwrap().to_string();
            assert!(error.starts_with("expected shared memory of sealed size, found seals"), "{error}");
        }
        assert!(Segment::open(&std::fs::File::open("/dev/zero").unwrap().into()).is_err());
    }

    #[test]
    fn sizes_are_rounded_up_within_limits() {
        for (asked, given) in [(1, 4096), (4096, 4096), (4097, 8192), (1_000_000, 1 << 20)] {
            assert_eq!(Segment::create(asked).unwrap().0.capacity(), given);
        }
    }
}
