//! Numbers in mapped pages.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::mapping::{Mapping, TensorPart};

/// Who makes the memory of a rank's tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Allocator {
    /// Pages of this process alone.
    #[default]
    Private,
    /// Memory files: other ranks of the host, or another program, map the same pages.
    Shared,
}

impl Allocator {
    /// Zeros, as many as are asked for.
    pub fn zeros(self, numbers: usize) -> io::Result<TensorStorage> {
        let len = numbers * size_of::<f32>();
        match self {
            Self::Shared if len > 0 => {
                let (pages, file) = Mapping::create(len)?;
                Ok(TensorStorage { pages: Some(pages), file: Some(Arc::new(file)) })
            }
            _ => Ok(TensorStorage { pages: Some(Mapping::private(len)?), file: None }),
        }
    }
}

/// The numbers of one or more tensors. An owner lends them as a slice.
///
/// Processes that map the same file take turns: it is the protocol between them that says when one may write, and
/// when another may read. One that breaks it makes numbers wrong, nothing else: every pattern of bits is a number,
/// and the size cannot change.
#[derive(Default)]
pub struct TensorStorage {
    pages: Option<Mapping>,
    file: Option<Arc<OwnedFd>>,
}

impl TensorStorage {
    /// Maps numbers that another process has allocated; an error if there are not exactly as many.
    pub fn open(file: OwnedFd, numbers: usize) -> io::Result<Self> {
        let pages = Mapping::open(&file, |len| match len == numbers * size_of::<f32>() {
            true => Ok(()),
            false => Err(format!("expected shared memory of {numbers} numbers, found {len} bytes")),
        })?;
        Ok(Self { pages: Some(pages), file: Some(Arc::new(file)) })
    }

    /// The numbers in parts of `len`, to be lent apart from each other; what is left over at the end belongs to nobody.
    /// From now on this has the descriptor alone.
    pub fn take_parts(&mut self, len: usize) -> Vec<TensorPart> {
        self.pages.take().map_or_else(Vec::new, |pages| pages.into_parts(len).collect())
    }

    /// The descriptor by which others map the same numbers, if they are shared.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(|file| file.as_fd())
    }

    /// The descriptor by which others can read the same numbers; nobody else can map them to write from now on. None if
    /// they are not shared.
    pub fn descriptor_to_read(&self) -> io::Result<Option<BorrowedFd<'_>>> {
        let Some(file) = &self.file else { return Ok(None) };
        Mapping::seal_against_writers(file)?;
        Ok(Some(file.as_fd()))
    }
}

impl Deref for TensorStorage {
    type Target = [f32];

    #[inline]
    fn deref(&self) -> &[f32] {
        self.pages.as_ref().map_or(&[], Mapping::numbers)
    }
}

impl DerefMut for TensorStorage {
    #[inline]
    fn deref_mut(&mut self) -> &mut [f32] {
        self.pages.as_mut().map_or(&mut [], Mapping::numbers_mut)
    }
}

impl fmt::Debug for TensorStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TensorStorage({} numbers)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_zero_at_first_and_none_is_fine() {
        for allocator in [Allocator::Private, Allocator::Shared] {
            for numbers in [0, 1, 1023, 3 << 20] {
                let mut storage = allocator.zeros(numbers).unwrap();
                assert_eq!(storage.len(), numbers);
                assert!(storage.iter().all(|x| *x == 0.0));
                storage.iter_mut().for_each(|x| *x = 2.5);
                assert!(storage.iter().all(|x| *x == 2.5));
            }
        }
        assert!(TensorStorage::default().is_empty());
        assert!(Allocator::Private.zeros(7).unwrap().descriptor().is_none());
    }

    #[test]
    fn what_one_owner_writes_the_next_one_reads() {
        let mut ours = Allocator::Shared.zeros(1000).unwrap();
        let file = ours.descriptor().unwrap().try_clone_to_owned().unwrap();
        let mut theirs = TensorStorage::open(file, 1000).unwrap();
        ours[999] = 4.0;
        assert_eq!(theirs[999], 4.0);
        theirs[0] = f32::NAN;
        assert!(ours[0].is_nan());
    }

    #[test]
    fn shared_numbers_are_those_of_another_program_too() {
        let mut ours = Allocator::Shared.zeros(4).unwrap();
        ours[2] = 1.5;
        let file = ours.descriptor().unwrap().try_clone_to_owned().unwrap();
        let path = format!("/proc/{}/fd/{}", std::process::id(), std::os::fd::AsRawFd::as_raw_fd(&file));
        // Another program reads the third number, and writes the first: 1.5 is 0x3fc00000.
        let script = format!(
            "head -c 12 {path} | tail -c 4 | od -An -tx4; printf '\\0\\0\\300\\077' | dd of={path} conv=notrunc status=none"
        );
        let done = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&done.stdout).trim(), "3fc00000", "{done:?}");
        assert_eq!(ours[0], 1.5);
    }

    #[test]
    fn parts_are_lent_apart_from_each_other_and_others_map_them_as_one() {
        for allocator in [Allocator::Private, Allocator::Shared] {
            let mut whole = allocator.zeros(11).unwrap();
            let file = whole.descriptor().map(|file| file.try_clone_to_owned().unwrap());
            let mut parts = whole.take_parts(4);
            assert!(whole.is_empty() && whole.take_parts(4).is_empty());
            let [first, second] = &mut parts[..] else { panic!("two parts of 4 in 11 numbers") };
            first.fill(1.0);
            // Both are borrowed at once.
            second.copy_from_slice(first);
            second[0] = 2.0;
            assert_eq!((&first[..], &second[..]), (&[1.0; 4][..], &[2.0, 1.0, 1.0, 1.0][..]));
            if let Some(file) = file {
                let theirs = TensorStorage::open(file, 11).unwrap();
                assert_eq!(theirs[..], [1.0, 1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]);
            }
            parts.remove(0);
            assert_eq!(parts[0][..], [2.0, 1.0, 1.0, 1.0], "the pages stay as long as any of their parts");
        }
        assert!(Allocator::Private.zeros(3).unwrap().take_parts(0).is_empty());
    }

    #[test]
    fn another_length_is_refused() {
        let ours = Allocator::Shared.zeros(10).unwrap();
        let file = ours.descriptor().unwrap().try_clone_to_owned().unwrap();
        let error = TensorStorage::open(file, 11).unwrap_err().to_string();
        assert_eq!(error, "expected shared memory of 11 numbers, found 40 bytes");
    }
}
