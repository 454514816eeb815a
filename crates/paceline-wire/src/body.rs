//! Received bodies and the pool that their memory returns to.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::shared::stream_slice;
use crate::shm::Lent;

/// New buffers are this much longer than asked for at most, so that nearly equal messages share them.
const ROUND: usize = 1024;
/// Buffers that rest in a pool at most.
const BUFFERS: usize = 256;
/// Elements that rest in a pool at most (256 MiB).
const ELEMENTS: usize = 64 << 20;

/// A received body. Its memory goes back to the pool when it is dropped. One that its sender has lent lies in the sender's
/// memory until then: it can be added and copied from there; who wants to look at it gets a copy.
#[derive(Default)]
pub struct Body {
    len: usize,
    elements: Elements,
}

enum Elements {
    /// May be longer than the body: it is never shortened, so that reuse need not fill it again.
    Own(Pooled),
    /// The sender's, and the copy for those who look at them.
    Lent(Lent, OnceLock<Vec<f32>>),
}

impl Default for Elements {
    fn default() -> Self {
        Self::Own(Pooled::default())
    }
}

/// Memory that returns to its pool.
#[derive(Default)]
struct Pooled {
    buffer: Vec<f32>,
    pool: Option<Arc<Pool>>,
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            pool.put(std::mem::take(&mut self.buffer));
        }
    }
}

impl Body {
    /// A body in its sender's memory.
    pub(crate) fn lent(lent: Lent, len: usize) -> Self {
        Self { len, elements: Elements::Lent(lent, OnceLock::new()) }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// `dst = ` the elements from `at` on.
    pub fn copy_to(&self, at: usize, dst: &mut [f32]) {
        self.check(at, dst.len());
        match &self.elements {
            Elements::Own(own) => dst.copy_from_slice(&own.buffer[at..at + dst.len()]),
            Elements::Lent(lent, _) => lent.copy_to(at, dst),
        }
    }

    /// The same past the caches: for memory that is longer than they are, of which this is a part.
    pub fn stream_to(&self, at: usize, dst: &mut [f32]) {
        self.check(at, dst.len());
        match &self.elements {
            Elements::Own(own) => stream_slice(&own.buffer[at..at + dst.len()], dst),
            Elements::Lent(lent, _) => lent.stream_to(at, dst),
        }
    }

    /// `dst += ` the elements from `at` on; `add` does that for elements that lie here.
    pub fn add_to(&self, at: usize, dst: &mut [f32], add: fn(&mut [f32], &[f32])) {
        self.check(at, dst.len());
        match &self.elements {
            Elements::Own(own) => add(dst, &own.buffer[at..at + dst.len()]),
            Elements::Lent(lent, _) => lent.add_to(at, dst),
        }
    }

    /// Whether the elements lie in their sender's memory.
    pub fn is_lent(&self) -> bool {
        matches!(self.elements, Elements::Lent(..))
    }

    /// The elements where they lie, or copied to `piece` if their sender has lent them.
    pub fn read<'a>(&'a self, piece: &'a mut Vec<f32>) -> &'a [f32] {
        match &self.elements {
            Elements::Own(own) => &own.buffer[..self.len],
            Elements::Lent(lent, _) => {
                piece.resize(piece.len().max(self.len), 0.0);
                lent.copy_to(0, &mut piece[..self.len]);
                &piece[..self.len]
            }
        }
    }

    fn check(&self, at: usize, len: usize) {
        assert!(at <= self.len && len <= self.len - at, "elements of the body");
    }

    /// The whole body as bytes to be received.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(self.as_mut_slice())
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [f32] {
        match &mut self.elements {
            Elements::Own(own) => &mut own.buffer[..self.len],
            Elements::Lent(..) => unreachable!("nobody receives into a peer's memory"),
        }
    }
}

impl Deref for Body {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match &self.elements {
            Elements::Own(own) => &own.buffer[..self.len],
            Elements::Lent(lent, copy) => copy.get_or_init(|| {
                let mut copy = vec![0.0; self.len];
                lent.copy_to(0, &mut copy);
                copy
            }),
        }
    }
}

/// A body that belongs to no pool.
impl From<Vec<f32>> for Body {
    fn from(buffer: Vec<f32>) -> Self {
        Self { len: buffer.len(), elements: Elements::Own(Pooled { buffer, pool: None }) }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Body({} elements)", self.len)
    }
}

/// Buffers at rest, the one returned last at the back.
#[derive(Default)]
pub(crate) struct Pool {
    rest: Mutex<Rest>,
}

#[derive(Default)]
struct Rest {
    buffers: VecDeque<Vec<f32>>,
    elements: usize,
}

impl Pool {
    /// A body of `len` elements with any content.
    pub(crate) fn take(self: &Arc<Self>, len: usize) -> Body {
        if len == 0 {
            return Body::default();
        }
        // A buffer far too long is left for the messages that need it.
        let longest = 2 * len + ROUND;
        let mut rest = self.lock();
        let fits = rest.buffers.iter().enumerate().filter(|(_, b)| (len..=longest).contains(&b.len()));
        let best = fits.min_by_key(|(_, b)| b.len()).map(|(i, _)| i);
        let buffer = best.and_then(|i| rest.buffers.swap_remove_back(i));
        rest.elements -= buffer.as_ref().map_or(0, Vec::len);
        drop(rest);
        let buffer = buffer.unwrap_or_else(|| vec![0.0; len.next_multiple_of(ROUND)]);
        Body { len, elements: Elements::Own(Pooled { buffer, pool: Some(Arc::clone(self)) }) }
    }

    fn put(&self, buffer: Vec<f32>) {
        let mut rest = self.lock();
        rest.elements += buffer.len();
        rest.buffers.push_back(buffer);
        while rest.buffers.len() > BUFFERS || rest.elements > ELEMENTS {
            let oldest = rest.buffers.pop_front().map_or(0, |b| b.len());
            rest.elements -= oldest;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Rest> {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_for_bodies_of_like_size() {
        let pool = Arc::new(Pool::default());
        let body = pool.take(5000);
        let at = body.as_ptr();
        drop(body);
        let tiny = pool.take(3);
        assert_ne!(tiny.as_ptr(), at, "a long buffer is not spent on a short body");
        let again = pool.take(4800);
        assert_eq!((again.as_ptr(), again.len()), (at, 4800));
    }

    #[test]
    fn what_rests_in_the_pool_is_bounded() {
        let pool = Arc::new(Pool::default());
        drop((0..2 * BUFFERS).map(|_| pool.take(1)).collect::<Vec<_>>());
        assert_eq!(pool.lock().buffers.len(), BUFFERS);
        pool.put(vec![0.0; ELEMENTS + 1]);
        let rest = pool.lock();
        assert_eq!((rest.buffers.len(), rest.elements), (0, 0));
    }

    #[test]
    fn a_body_may_be_made_of_a_vec_and_sent_to_another_thread() {
        let body = Body::from(vec![1.0, 2.0]);
        std::thread::spawn(move || assert_eq!(*body, [1.0, 2.0])).join().unwrap();
    }
}
