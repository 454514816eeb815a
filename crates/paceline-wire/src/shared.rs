//! Memory that several processes have mapped. All that is unsafe about it is here.
//!
//! Another process can write anything anywhere in it at any time. So nothing of it is ever lent as a reference
//! but atomics; bytes are copied out first and looked at then; and every offset is checked.

#![allow(unsafe_code, reason = "maps memory that another process has too")]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

const BLOCK: usize = 2 << 10;
/// The size stays what it is: an access beyond the end of a file that was cut would end the process.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A mapped memory file of sealed size, without a name: it goes with its last user.
pub(crate) struct Shared {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to no thread, and every access to it is by raw copies or atomics.
unsafe impl Send for Shared {}
// SAFETY: as above; two threads that copy at once are no worse than two processes that do.
unsafe impl Sync for Shared {}

impl Shared {
    /// Makes `len` bytes, all zero; the descriptor is for the other processes.
    pub(crate) fn create(len: usize) -> io::Result<(Self, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::NOEXEC_SEAL;
        let file = memfd_create("paceline", flags).or_else(|error| {
            // Kernels before 6.3 do not know the last flag.
            if error != rustix::io::Errno::INVAL {
                return Err(error);
            }
            memfd_create("paceline", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        })?;
        ftruncate(&file, len as u64)?;
        fcntl_add_seals(&file, SEALS)?;
        Ok((Self::map(&file, len)?, file))
    }

    /// Maps what another process made; nothing of it is believed. `fits` judges its length.
    pub(crate) fn open(file: &impl AsFd, fits: impl Fn(usize) -> Result<(), String>) -> io::Result<Self> {
        let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        // Anything but a memory file has no seals.
        let seals = fcntl_get_seals(file).unwrap_or(SealFlags::empty());
        if !seals.contains(SEALS) {
            let found = seals.bits();
            return Err(wrong(format!("expected shared memory of sealed size, found seals {found:#x}")));
        }
        let len = usize::try_from(fstat(file)?.st_size).unwrap_or(0);
        fits(len).map_err(wrong)?;
        Self::map(file, len)
    }

    /// Maps a file that has and keeps that length.
    fn map(file: &impl AsFd, len: usize) -> io::Result<Self> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice aliases no memory of this program.
        let base = unsafe { mmap(ptr::null_mut(), len, access, flags, file, 0) }?;
        let base = NonNull::new(base.cast()).expect("the kernel maps nothing at zero by itself");
        Ok(Self { base, len })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The word at an offset.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset < self.len && self.len - offset >= 8, "a word within");
        // SAFETY: the offset is aligned (mappings begin at pages) and within memory that stays mapped as long as
        // `self`; words are touched only through atomics, and bytes that are copied lie elsewhere.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    pub(crate) fn copy_in(&self, offset: usize, bytes: &[u8]) {
        assert!(offset <= self.len && bytes.len() <= self.len - offset, "a copy within");
        // SAFETY: the place is within the mapping, and nothing in this process refers to that memory. Another
        // process may write to it at the same time, if it breaks the rules; then any bytes will do.
        unsafe { copy(bytes.as_ptr(), self.base.as_ptr().add(offset), bytes.len()) }
    }

    pub(crate) fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        assert!(offset <= self.len && bytes.len() <= self.len - offset, "a copy within");
        // SAFETY: as above; every value that may be there is a valid byte.
        unsafe { copy(self.base.as_ptr().add(offset), bytes.as_mut_ptr(), bytes.len()) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and nothing borrows from it any more. (An error would only
        // leave it mapped.)
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
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
    fn a_file_that_can_shrink_is_refused() {
        // It would turn a read into a signal.
        for seals in [SealFlags::empty(), SealFlags::GROW, SealFlags::GROW | SealFlags::SHRINK] {
            let file = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
            ftruncate(&file, 4096).unwrap();
            fcntl_add_seals(&file, seals).unwrap();
            let error = Shared::open(&file, |_| Ok(())).err().unwrap().to_string();
            assert!(error.starts_with("expected shared memory of sealed size, found seals"), "{error}");
        }
        assert!(Shared::open(&std::fs::File::open("/dev/zero").unwrap(), |_| Ok(())).is_err());
    }

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
    #[should_panic(expected = "a copy within")]
    fn a_copy_beyond_the_end_is_refused() {
        Shared::create(4096).unwrap().0.copy_in(4095, &[1, 2]);
    }
}
