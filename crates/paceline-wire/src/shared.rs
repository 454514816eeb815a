//! Memory that several processes have mapped. All that is unsafe about it is here.
//!
//! Another process can write anything anywhere in it at any time. So nothing of it is ever lent as a reference
//! but atomics; bytes are copied out first and looked at then; and every offset is checked.

#![allow(unsafe_code, reason = "copies to and from memory that another process has too")]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr;
use std::sync::atomic::AtomicU64;

use paceline_memory::Mapping;

const BLOCK: usize = 2 << 10;

/// A mapped memory file of sealed size, without a name: it goes with its last user.
pub(crate) struct Shared(Mapping);

impl Shared {
    /// Makes `len` bytes, all zero; the descriptor is for the other processes.
    pub(crate) fn create(len: usize) -> io::Result<(Self, OwnedFd)> {
        Mapping::create(len).map(|(mapping, file)| (Self(mapping), file))
    }

    /// Maps what another process made; nothing of it is believed. `fits` judges its length.
    pub(crate) fn open(file: &impl AsFd, fits: impl Fn(usize) -> Result<(), String>) -> io::Result<Self> {
        Mapping::open(file, fits).map(Self)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The word at an offset.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset < self.len() && self.len() - offset >= 8, "a word within");
        // SAFETY: the offset is aligned (mappings begin at pages) and within memory that stays mapped as long as
        // `self`; words are touched only through atomics, and bytes that are copied lie elsewhere.
        unsafe { AtomicU64::from_ptr(self.0.base().as_ptr().add(offset).cast()) }
    }

    pub(crate) fn copy_in(&self, offset: usize, bytes: &[u8]) {
        assert!(offset <= self.len() && bytes.len() <= self.len() - offset, "a copy within");
        // SAFETY: the place is within the mapping, and nothing in this process refers to that memory. Another
        // process may write to it at the same time, if it breaks the rules; then any bytes will do.
        unsafe { copy(bytes.as_ptr(), self.0.base().as_ptr().add(offset), bytes.len()) }
    }

    pub(crate) fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        assert!(offset <= self.len() && bytes.len() <= self.len() - offset, "a copy within");
        // SAFETY: as above; every value that may be there is a valid byte.
        unsafe { copy(self.0.base().as_ptr().add(offset), bytes.as_mut_ptr(), bytes.len()) }
    }
}

/// Numbers that another process has and keeps changing: they can be added or copied, never borrowed.
pub(crate) struct LentMemory(Mapping);

impl LentMemory {
    /// Maps what another process has handed over, to read it.
    pub(crate) fn open(file: &impl AsFd) -> io::Result<Self> {
        let whole = |len: usize| match len > 0 && len.is_multiple_of(4) {
            true => Ok(()),
            false => Err(format!("expected memory of numbers, found {len} bytes")),
        };
        Mapping::open_to_read(file, whole).map(Self)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len() / size_of::<f32>()
    }

    fn from(&self, offset: usize, len: usize) -> *const f32 {
        assert!(offset <= self.len() && len <= self.len() - offset, "numbers within");
        // SAFETY: the offset is within the mapping.
        unsafe { self.0.base().as_ptr().cast_const().cast::<f32>().add(offset) }
    }

    /// `dst = ` the numbers from `offset` on.
    pub(crate) fn copy_to(&self, offset: usize, dst: &mut [f32]) {
        let from = self.from(offset, dst.len());
        // SAFETY: so many numbers are there, and nothing in this process refers to them. Their owner may change them
        // meanwhile, if it breaks the rules; then any numbers will do.
        unsafe { copy(from.cast(), dst.as_mut_ptr().cast(), size_of_val(dst)) }
    }

    /// `dst += ` the numbers from `offset` on.
    pub(crate) fn add_to(&self, offset: usize, dst: &mut [f32]) {
        let from = self.from(offset, dst.len());
        for (i, number) in dst.iter_mut().enumerate() {
            // SAFETY: as above; each number is read once.
            *number += unsafe { from.add(i).read() };
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_mapping_writes_the_other_reads() {
        let (ours, file) = Shared::create(8192).unwrap();
        let theirs = Shared::open(&file, |len| if len == 8192 { Ok(()) } else { Err("no".into()) }).unwrap();
        ours.copy_in(8192 - 3, &[1, 2, 3]);
        let mut bytes = [0; 4];
        theirs.copy_out(8192 - 4, &mut bytes);
        assert_eq!(bytes, [0, 1, 2, 3]);
        ours.word(64).store(7, std::sync::atomic::Ordering::SeqCst);
        assert_eq!(theirs.word(64).load(std::sync::atomic::Ordering::SeqCst), 7);
    }

    #[test]
    fn numbers_of_another_are_added_and_copied() {
        let (ours, file) = Shared::create(16).unwrap();
        let numbers: Vec<u8> = [1.0_f32, 2.0, 3.0, 4.0].iter().flat_map(|x| x.to_ne_bytes()).collect();
        ours.copy_in(0, &numbers);
        let lent = LentMemory::open(&file).unwrap();
        let mut sum = [10.0; 3];
        lent.add_to(1, &mut sum);
        assert_eq!((lent.len(), sum), (4, [12.0, 13.0, 14.0]));
        lent.copy_to(0, &mut sum);
        assert_eq!(sum, [1.0, 2.0, 3.0]);
        assert!(LentMemory::open(&Shared::create(6).unwrap().1).is_err());
    }

    #[test]
    #[should_panic(expected = "numbers within")]
    fn numbers_beyond_the_end_are_refused() {
        LentMemory::open(&Shared::create(16).unwrap().1).unwrap().add_to(2, &mut [0.0; 3]);
    }

    #[test]
    #[should_panic(expected = "a copy within")]
    fn a_copy_beyond_the_end_is_refused() {
        Shared::create(4096).unwrap().0.copy_in(4095, &[1, 2]);
    }
}
