//! Mapped pages. All that is unsafe about them is here.

#![allow(unsafe_code, reason = "maps memory, which other processes may have too")]

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// The size stays what it is: an access beyond the end of a file that was cut would end the process. (Seals are never
/// taken back.)
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Private memory from this length on asks for huge pages: a pass over it then misses the TLB less often.
const HUGE: usize = 4 << 20;

/// Pages of this process, or of a memory file without a name, which goes with its last user.
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to no thread; what is done with its memory is up to those who get the pointer.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `len` bytes of this process alone, all zero.
    pub fn private(len: usize) -> io::Result<Self> {
        if len == 0 {
            return Ok(Self { base: NonNull::<f32>::dangling().cast(), len });
        }
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice aliases no memory of this program.
        let mapping = Self::new(unsafe { mmap_anonymous(ptr::null_mut(), len, access, flags) }?, len);
        if len >= HUGE {
            // SAFETY: advice changes how the pages are kept, not what is in them. Kernels without huge pages refuse.
            let _ = unsafe { madvise(mapping.base.as_ptr().cast(), len, Advice::LinuxHugepage) };
        }
        Ok(mapping)
    }

    /// `len` bytes of a new memory file, all zero; the descriptor is for the other processes.
    pub fn create(len: usize) -> io::Result<(Self, OwnedFd)> {
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
        Ok((Self::map(&file, len, ProtFlags::READ | ProtFlags::WRITE)?, file))
    }

    /// Maps a memory file that another process made; nothing of it is believed. `fits` judges its length.
    pub fn open(file: &impl AsFd, fits: impl Fn(usize) -> Result<(), String>) -> io::Result<Self> {
        Self::map(file, sealed_length(file, fits)?, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// The same for reading only: writing to it would end this process.
    pub fn open_to_read(file: &impl AsFd, fits: impl Fn(usize) -> Result<(), String>) -> io::Result<Self> {
        Self::map(file, sealed_length(file, fits)?, ProtFlags::READ)
    }

    /// From now on nobody else can map the file to write to it. Who has done so before still can.
    pub fn seal_against_writers(file: &impl AsFd) -> io::Result<()> {
        if fcntl_get_seals(file)?.contains(SealFlags::FUTURE_WRITE | SealFlags::SEAL) {
            return Ok(());
        }
        Ok(fcntl_add_seals(file, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?)
    }

    /// Maps a file that has and keeps that length.
    fn map(file: &impl AsFd, len: usize, access: ProtFlags) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice aliases no memory of this program.
        Ok(Self::new(unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED, file, 0) }?, len))
    }

    fn new(base: *mut std::ffi::c_void, len: usize) -> Self {
        Self { base: NonNull::new(base.cast()).expect("the kernel maps nothing at zero by itself"), len }
    }

    /// Its first byte, at the start of a page.
    #[inline]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Its length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes as numbers.
    #[inline]
    pub(crate) fn numbers(&self) -> &[f32] {
        // SAFETY: pages are aligned for numbers, stay mapped as long as `self`, and any bytes are a number. Those who
        // share the memory take turns (`TensorStorage`): nobody writes to what is read here.
        unsafe {
            std::slice::from_raw_parts(self.base.as_ptr().cast_const().cast(), self.len / size_of::<f32>())
        }
    }

    /// The bytes as numbers that can be changed.
    #[inline]
    pub(crate) fn numbers_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().cast(), self.len / size_of::<f32>()) }
    }

    /// The numbers in parts of `len`, one behind the other. What is left over at the end belongs to nobody.
    pub(crate) fn into_parts(self, len: usize) -> impl Iterator<Item = TensorPart> {
        let count = (self.len / size_of::<f32>()).checked_div(len).unwrap_or(0);
        let pages = Arc::new(self);
        (0..count).map(move |part| TensorPart { pages: Arc::clone(&pages), start: part * len, len })
    }
}

/// Consecutive numbers of pages, lent apart from the others: those are other parts'.
pub struct TensorPart {
    /// Only parts have these pages, each its own numbers of them.
    pages: Arc<Mapping>,
    start: usize,
    len: usize,
}

impl Deref for TensorPart {
    type Target = [f32];

    #[inline]
    fn deref(&self) -> &[f32] {
        // SAFETY: as for `Mapping::numbers`; `into_parts` gave these numbers, which are within the pages, to this part alone.
        unsafe {
            let first = self.pages.base.as_ptr().cast_const().cast::<f32>().add(self.start);
            std::slice::from_raw_parts(first, self.len)
        }
    }
}

impl DerefMut for TensorPart {
    #[inline]
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above, and `self` is borrowed alone.
        unsafe {
            let first = self.pages.base.as_ptr().cast::<f32>().add(self.start);
            std::slice::from_raw_parts_mut(first, self.len)
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: it was mapped with this length, and nothing borrows from it any more. (An error would only
            // leave it mapped.)
            let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        }
    }
}

/// The length of a memory file, if that cannot change and fits.
fn sealed_length(file: &impl AsFd, fits: impl Fn(usize) -> Result<(), String>) -> io::Result<usize> {
    let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    // Anything but a memory file has no seals.
    let seals = fcntl_get_seals(file).unwrap_or(SealFlags::empty());
    if !seals.contains(SEALS) {
        let found = seals.bits();
        return Err(wrong(format!("expected shared memory of sealed size, found seals {found:#x}")));
    }
    let len = usize::try_from(fstat(file)?.st_size).unwrap_or(0);
    fits(len).map_err(wrong)?;
    Ok(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_can_shrink_is_refused() {
        // It would turn a read into a signal.
        for seals in [SealFlags::empty(), SealFlags::GROW, SealFlags::SHRINK] {
            let file = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
            ftruncate(&file, 4096).unwrap();
            fcntl_add_seals(&file, seals).unwrap();
            let error = Mapping::open(&file, |_| Ok(())).err().unwrap().to_string();
            assert!(error.starts_with("expected shared memory of sealed size, found seals"), "{error}");
        }
        assert!(Mapping::open(&std::fs::File::open("/dev/zero").unwrap(), |_| Ok(())).is_err());
    }

    #[test]
    fn a_file_that_is_sealed_against_writers_can_only_be_read() {
        let (ours, file) = Mapping::create(4096).unwrap();
        Mapping::seal_against_writers(&file).unwrap();
        assert!(Mapping::open(&file, |_| Ok(())).is_err(), "no new writer");
        let theirs = Mapping::open_to_read(&file, |_| Ok(())).unwrap();
        let mut ours = ours;
        ours.numbers_mut()[7] = 2.5;
        assert_eq!(theirs.numbers()[7], 2.5);
    }
}
