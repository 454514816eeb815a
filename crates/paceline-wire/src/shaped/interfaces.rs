//! The emulated hosts' network interfaces: when each will be free, known to all ranks of the run.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::shared::Shared;

/// Bytes of a host's two words, each on cache lines of its own.
const HOST: usize = 256;

/// What lies between any two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Bits per second of an interface, in each direction.
    pub bits_per_s: u64,
    /// Time that a bit is under way.
    pub latency: Duration,
}

impl Link {
    /// Nanoseconds that an interface needs for so many bytes.
    pub(super) fn nanoseconds(&self, bytes: usize) -> u64 {
        let bits = bytes as u128 * 8 * 1_000_000_000;
        u64::try_from(bits / u128::from(self.bits_per_s.max(1))).unwrap_or(u64::MAX / 4)
    }
}

/// Two words per host in memory that all ranks share: the times at which it will have sent and received what
/// is known so far.
pub struct Interfaces {
    memory: Shared,
    /// Kept by whoever made it, for the others to open.
    file: Option<OwnedFd>,
}

impl Interfaces {
    /// Idle interfaces.
    pub fn create(hosts: usize) -> io::Result<Self> {
        let (memory, file) = Shared::create(hosts.max(1) * HOST)?;
        Ok(Self { memory, file: Some(file) })
    }

    /// Where other processes of this user find it, as long as this one lives.
    pub fn path(&self) -> Option<String> {
        let file = self.file.as_ref()?;
        Some(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()))
    }

    /// Opens what the launcher made.
    pub fn open(path: &str, hosts: usize) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let wanted = hosts.max(1) * HOST;
        let memory = Shared::open(&file, |found| {
            if found == wanted {
                return Ok(());
            }
            Err(format!("expected shared memory for {hosts} hosts ({wanted} bytes), found {found} bytes"))
        })?;
        Ok(Self { memory, file: None })
    }

    /// Takes a host's way out for `time`, from `earliest` on or as soon as it is free; when it begins.
    pub(super) fn send(&self, host: usize, earliest: u64, time: u64) -> u64 {
        reserve(self.memory.word(host * HOST), earliest, time)
    }

    /// Takes a host's way in.
    pub(super) fn receive(&self, host: usize, earliest: u64, time: u64) -> u64 {
        reserve(self.memory.word(host * HOST + HOST / 2), earliest, time)
    }

    /// When a host's way in will be free.
    pub(super) fn free_to_receive(&self, host: usize) -> u64 {
        self.memory.word(host * HOST + HOST / 2).load(Ordering::Relaxed)
    }
}

fn reserve(free: &AtomicU64, earliest: u64, time: u64) -> u64 {
    let begin = |free: u64| free.max(earliest);
    let until = |free: u64| Some(begin(free).saturating_add(time));
    let before = free.fetch_update(Ordering::AcqRel, Ordering::Acquire, until);
    begin(before.unwrap_or_else(|free| free))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_does_one_thing_after_the_other() {
        let ours = Interfaces::create(2).unwrap();
        let theirs = Interfaces::open(&ours.path().unwrap(), 2).unwrap();
        assert_eq!(ours.send(1, 100, 50), 100);
        assert_eq!(theirs.send(1, 120, 10), 150, "another rank of the host waits");
        assert_eq!(ours.send(1, 500, 10), 500, "an idle interface keeps nothing");
        assert_eq!(ours.receive(1, 100, 50), 100, "the way in is another one");
        assert_eq!(ours.send(0, 100, 50), 100, "and so is another host");
        assert_eq!(theirs.free_to_receive(1), 150);
    }

    #[test]
    fn memory_for_another_number_of_hosts_is_refused() {
        let two = Interfaces::create(2).unwrap();
        let error = Interfaces::open(&two.path().unwrap(), 3).err().unwrap().to_string();
        assert!(error.contains("for 3 hosts (768 bytes), found 512 bytes"), "{error}");
    }

    #[test]
    fn bytes_take_their_time() {
        let link = |bits_per_s| Link { bits_per_s, latency: Duration::ZERO };
        assert_eq!(link(1_000_000_000).nanoseconds(125), 1_000);
        assert_eq!(link(10_000_000).nanoseconds(1 << 20), 838_860_800);
    }
}
