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

    /// The same past the caches, for numbers that would not stay in them.
    pub(crate) fn stream_to(&self, offset: usize, dst: &mut [f32]) {
        let from = self.from(offset, dst.len());
        // SAFETY: as above.
        unsafe { stream(from, dst) }
    }

    /// `dst += ` the numbers from `offset` on.
    pub(crate) fn add_to(&self, offset: usize, dst: &mut [f32]) {
        let from = self.from(offset, dst.len());
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            // SAFETY: so many numbers are there, as above, and the processor has these instructions.
            return unsafe { add_ahead(from, dst) };
        }
        // SAFETY: as above.
        unsafe { add(from, dst) }
    }
}

/// `to = from`, past the caches. A line that is written as usual is first read, and then drives out what is used sooner.
pub(crate) fn stream_slice(from: &[f32], to: &mut [f32]) {
    assert_eq!(from.len(), to.len(), "as many numbers");
    // SAFETY: so many numbers are there.
    unsafe { stream(from.as_ptr(), to) }
}

/// Adds numbers in another process's memory.
///
/// # Safety
/// There are as many of them; each is read once.
#[inline(always)]
unsafe fn add(from: *const f32, dst: &mut [f32]) {
    for (i, number) in dst.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *number += unsafe { from.add(i).read() };
    }
}

/// The same, asking for lines before they are needed: no processor looks beyond a page by itself.
///
/// # Safety
/// As for [`add`], on a processor with AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn add_ahead(from: *const f32, dst: &mut [f32]) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    /// Numbers in a line, and how far ahead lines are asked for.
    const LINE: usize = 16;
    const AHEAD: usize = 256;
    for (i, line) in dst.chunks_mut(LINE).enumerate() {
        let at = from.wrapping_add(LINE * i);
        // An address beyond the end is no error here: nothing is read.
        _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD).cast());
        // SAFETY: the caller's promise, for a part of the numbers.
        unsafe { add(at, line) };
    }
}

/// Copies past the caches.
///
/// # Safety
/// As for [`ptr::copy_nonoverlapping`].
#[cfg(target_arch = "x86_64")]
unsafe fn stream(from: *const f32, to: &mut [f32]) {
    use std::arch::x86_64::{_mm_loadu_ps, _mm_sfence, _mm_stream_ps};
    let len = to.len();
    let to = to.as_mut_ptr();
    // Stores past the caches go to aligned places.
    let head = to.align_offset(16).min(len);
    let body = (len - head) / 4 * 4;
    // SAFETY: the caller's promise, for the parts before, within and behind the aligned places. The fence makes what was
    // written here visible before anything that is written later.
    unsafe {
        ptr::copy_nonoverlapping(from, to, head);
        for i in (head..head + body).step_by(4) {
            _mm_stream_ps(to.add(i), _mm_loadu_ps(from.add(i)));
        }
        _mm_sfence();
        let done = head + body;
        ptr::copy_nonoverlapping(from.add(done), to.add(done), len - done);
    }
}

/// Copies: these processors decide by themselves.
///
/// # Safety
/// As for [`ptr::copy_nonoverlapping`].
#[cfg(not(target_arch = "x86_64"))]
unsafe fn stream(from: *const f32, to: &mut [f32]) {
    // SAFETY: the caller's promise.
    unsafe { copy(from.cast(), to.as_mut_ptr().cast(), size_of_val(to)) }
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
    fn numbers_are_the_same_past_the_caches_and_asked_for_ahead_wherever_they_lie() {
        let numbers: Vec<f32> = (0..1000).map(|i| i as f32).collect();
        let (ours, file) = Shared::create(4000).unwrap();
        ours.copy_in(0, bytemuck::cast_slice(&numbers));
        let lent = LentMemory::open(&file).unwrap();
        for (at, len) in [(0, 1000), (1, 999), (2, 37), (3, 5), (7, 0), (999, 1)] {
            for shift in 0..5 {
                let mut all = vec![-1.0; shift + len + 3];
                lent.stream_to(at, &mut all[shift..shift + len]);
                assert_eq!(all[shift..shift + len], numbers[at..at + len]);
                assert_eq!((shift == 0 || all[shift - 1] == -1.0, all[shift + len]), (true, -1.0));
                stream_slice(&numbers[at..at + len], &mut all[shift..shift + len]);
                lent.add_to(at, &mut all[shift..shift + len]);
                let twice: Vec<f32> = numbers[at..at + len].iter().map(|x| 2.0 * x).collect();
                assert_eq!((&all[shift..shift + len], all[shift + len]), (&twice[..], -1.0));
            }
        }
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
