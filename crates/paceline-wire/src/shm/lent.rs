//! Bodies that stay in the memory of whoever sent them.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use super::ring::LentReturn;
use crate::shared::LentMemory;

/// Numbers in a peer's memory, which it leaves alone until this is dropped.
pub(crate) struct Lent {
    memory: Arc<LentMemory>,
    /// The first of them.
    offset: usize,
    back: LentReturn,
    socket: Arc<UnixStream>,
}

impl Lent {
    pub(super) fn new(
        memory: Arc<LentMemory>,
        offset: usize,
        back: LentReturn,
        socket: Arc<UnixStream>,
    ) -> Self {
        Self { memory, offset, back, socket }
    }

    /// `dst = ` the numbers from `at` on.
    pub(crate) fn copy_to(&self, at: usize, dst: &mut [f32]) {
        self.memory.copy_to(self.offset + at, dst);
    }

    /// The same past the caches.
    pub(crate) fn stream_to(&self, at: usize, dst: &mut [f32]) {
        self.memory.stream_to(self.offset + at, dst);
    }

    /// `dst += ` the numbers from `at` on.
    pub(crate) fn add_to(&self, at: usize, dst: &mut [f32]) {
        self.memory.add_to(self.offset + at, dst);
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.back.give_back(|| super::ring(&self.socket));
    }
}
