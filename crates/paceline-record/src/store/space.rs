//! Room on the disk, looked at before a run begins.

use std::path::Path;

use rustix::fs::statvfs;

/// What the record of a run may take before it is worth asking: the log ahead of the database and some rows.
const RECORD: u64 = 8 << 20;

/// Too little room for what a run would keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfSpace {
    /// Bytes that would be needed at least.
    pub needed: u64,
    /// Bytes that are free.
    pub free: u64,
}

/// Whether a store has room for the record of a run and so many checkpoints of so many bytes each; nothing if it has,
/// or if the system does not say.
pub fn scarce(folder: &Path, checkpoints: u64, bytes: u64) -> Option<OutOfSpace> {
    let needed = RECORD.saturating_add(checkpoints.saturating_mul(bytes));
    let free = free_bytes(folder)?;
    (free < needed).then_some(OutOfSpace { needed, free })
}

/// Bytes that are free where a folder is, or would be.
pub fn free_bytes(folder: &Path) -> Option<u64> {
    let here = std::path::absolute(folder).ok()?;
    let found = here.ancestors().find_map(|place| statvfs(place).ok())?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_measured_where_the_folder_will_be() {
        let folder = tempfile::tempdir().unwrap();
        let later = folder.path().join("not/yet/there");
        assert_eq!(scarce(&later, 1, 1), None, "the tests themselves need more room than that");
        let scarce = scarce(&later, 3, u64::MAX / 2).unwrap();
        assert!(scarce.needed == u64::MAX && scarce.free > 0, "{scarce:?}");
    }
}
