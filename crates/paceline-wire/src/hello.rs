//! What an end of a connection says of itself first: fixed size, the same in every version.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::frame::VERSION;
use crate::identity::{Identity, role};

/// Bytes of a hello.
pub const HELLO: usize = 132;
/// The bytes that a hello starts with.
pub const MAGIC: [u8; 8] = *b"paceline";

const RUN: usize = 32;
const ROLE: usize = 16;

/// Who is at one end of a connection, and a number that was never used before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The version of the wire.
    pub version: u16,
    /// The rank.
    pub rank: u32,
    /// The number of ranks.
    pub world: u32,
    /// The run id, padded with zeros.
    pub run: [u8; RUN],
    /// The role, padded with zeros.
    pub role: [u8; ROLE],
    /// The hash of the model.
    pub model_hash: [u8; 32],
    /// Random bytes, so that no proof can be used twice.
    pub nonce: [u8; 32],
}

impl Hello {
    /// The hello of an identity.
    pub fn new(identity: &Identity, nonce: [u8; 32]) -> Self {
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Self {
            version: VERSION,
            rank: number(identity.rank),
            world: number(identity.world),
            run: padded(short(&identity.run).as_bytes()),
            role: padded(role(identity.workers, identity.rank).as_bytes()),
            model_hash: identity.model_hash,
            nonce,
        }
    }

    /// The hello as it travels.
    pub fn encode(&self) -> [u8; HELLO] {
        let mut out = [0; HELLO];
        out[0..8].copy_from_slice(&MAGIC);
        out[8..10].copy_from_slice(&self.version.to_le_bytes());
        out[12..16].copy_from_slice(&self.rank.to_le_bytes());
        out[16..20].copy_from_slice(&self.world.to_le_bytes());
        out[20..52].copy_from_slice(&self.run);
        out[52..68].copy_from_slice(&self.role);
        out[68..100].copy_from_slice(&self.model_hash);
        out[100..132].copy_from_slice(&self.nonce);
        out
    }

    /// Reads a hello; its magic bytes were checked when they came.
    pub fn decode(bytes: &[u8; HELLO]) -> Self {
        let word = |at: usize| u32::from_le_bytes(piece(bytes, at));
        Self {
            version: u16::from_le_bytes(piece(bytes, 8)),
            rank: word(12),
            world: word(16),
            run: piece(bytes, 20),
            role: piece(bytes, 52),
            model_hash: piece(bytes, 68),
            nonce: piece(bytes, 100),
        }
    }

    /// What keeps two ends from being of one run, if anything. Ranks are the caller's matter, and roles depend on
    /// them.
    pub fn conflict(&self, other: &Self) -> Option<&'static str> {
        let differs = [
            (self.version != other.version, "wire version differs"),
            (self.run != other.run, "run id differs"),
            (self.world != other.world, "number of ranks differs"),
            (self.model_hash != other.model_hash, "model hash differs"),
        ];
        differs.into_iter().find_map(|(differs, what)| differs.then_some(what))
    }

    /// What is wrong with the role, if anything, in a run with so many workers. A rank that does not exist has
    /// no role to be wrong.
    pub fn misplaced(&self, workers: usize) -> Option<String> {
        let (rank, expected) = (self.rank, role(workers, self.rank as usize));
        let wrong = rank < self.world && self.role != padded(expected.as_bytes());
        wrong.then(|| format!("expected rank {rank} to be a {expected}, found role {:?}", text(&self.role)))
    }
}

/// For people; everything that came from outside is escaped.
impl fmt::Display for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let model: String = self.model_hash[..4].iter().map(|b| format!("{b:02x}")).collect();
        write!(
            f,
            "wire version {}, run {:?}, rank {} of {}, role {:?}, model {model}",
            self.version,
            text(&self.run),
            self.rank,
            self.world,
            text(&self.role),
        )
    }
}

/// The run id if it fits, else half of its SHA-256.
fn short(run: &str) -> String {
    if run.len() <= RUN {
        return run.to_owned();
    }
    Sha256::digest(run.as_bytes())[..RUN / 2].iter().map(|b| format!("{b:02x}")).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned()
}

fn padded<const N: usize>(bytes: &[u8]) -> [u8; N] {
    std::array::from_fn(|i| bytes.get(i).copied().unwrap_or(0))
}

fn piece<const N: usize>(bytes: &[u8; HELLO], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Key;

    fn hello(run: &str) -> Hello {
        let (run, key) = (run.to_owned(), Key::from([0; 32]));
        Hello::new(&Identity { run, rank: 1, workers: 2, world: 4, model_hash: [0xab; 32], key }, [5; 32])
    }

    #[test]
    fn a_hello_comes_back_as_it_was_and_reads_well() {
        let hello = hello("r\n1");
        assert_eq!(Hello::decode(&hello.encode()), hello);
        let text = r#"wire version 1, run "r\n1", rank 1 of 4, role "worker", model abababab"#;
        assert_eq!(hello.to_string(), text);
    }

    #[test]
    fn long_run_ids_stay_apart() {
        let long = "x".repeat(40);
        assert_eq!(hello(&long).conflict(&hello(&long)), None);
        assert_eq!(hello(&long).conflict(&hello(&(long + "y"))), Some("run id differs"));
    }

    #[test]
    fn a_role_must_fit_the_rank_if_there_is_such_a_rank() {
        let worker = hello("r");
        assert_eq!(worker.misplaced(2), None);
        let what = r#"expected rank 1 to be a server, found role "worker""#;
        assert_eq!(worker.misplaced(1).as_deref(), Some(what));
        let what = r#"expected rank 2 to be a server, found role "work\0r""#;
        let role = padded(b"work\0r");
        assert_eq!(Hello { rank: 2, role, ..worker }.misplaced(2).as_deref(), Some(what));
        assert_eq!(Hello { rank: 4, ..worker }.misplaced(2), None);
    }
}
