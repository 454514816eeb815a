//! One rank of one run, and the run's key.

use std::fmt;

use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::WireError;

/// Bytes of a key.
pub const KEY: usize = 32;

/// The secret of a run; whoever holds it may take part.
#[derive(Clone)]
pub struct Key([u8; KEY]);

impl Key {
    /// A new key from the system's randomness.
    pub fn generate() -> Result<Self, WireError> {
        random().map(Self)
    }

    /// The bytes, to hand the key down to a child.
    pub fn as_bytes(&self) -> &[u8; KEY] {
        &self.0
    }
}

impl From<[u8; KEY]> for Key {
    fn from(bytes: [u8; KEY]) -> Self {
        Self(bytes)
    }
}

/// Keys end up inside structs that are logged; their bytes must not.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// What a rank is and which run it belongs to.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The run's id; one longer than 32 bytes travels as a hash.
    pub run: String,
    /// The rank of this end.
    pub rank: usize,
    /// How many of the ranks work; what any rank does follows from it.
    pub workers: usize,
    /// The number of ranks.
    pub world: usize,
    /// The hash of the model, which all ranks must share.
    pub model_hash: [u8; 32],
    /// The run's key.
    pub key: Key,
}

/// What a rank does in a run with so many workers: they come first, servers after them.
pub fn role(workers: usize, rank: usize) -> &'static str {
    if rank < workers { "worker" } else { "server" }
}

/// Fresh random bytes from the system.
pub(crate) fn random() -> Result<[u8; 32], WireError> {
    let mut bytes = [0; 32];
    let mut have = 0;
    while have < bytes.len() {
        match getrandom(&mut bytes[have..], GetRandomFlags::empty()) {
            Ok(n) => have += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(WireError::system("get random bytes")(e)),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_never_printed() {
        let key = Key::from([0xab; KEY]);
        assert_eq!(format!("{key:?}"), "Key(..)");
    }

    #[test]
    fn random_bytes_differ() {
        assert_ne!(random().unwrap(), random().unwrap());
    }
}
