//! What a network computes with: an instruction set, threads, and aligned memory.

use std::ops::{Deref, DerefMut};

use crate::accel::{Level, Pool, elementwise};
use crate::real::Real;

/// The instruction set and the threads of one worker.
pub struct Compute {
    /// Instruction set of the kernels.
    pub level: Level,
    /// Threads that share each layer's work.
    pub pool: Pool,
}

impl Compute {
    /// The best instruction set of this CPU, with `threads` threads (pinned to cores if `pin`).
    pub fn new(threads: usize, pin: bool) -> Self {
        Self::with_level(Level::detect(), threads, pin)
    }

    /// A given instruction set, e.g. the portable one.
    pub fn with_level(level: Level, threads: usize, pin: bool) -> Self {
        Self { level, pool: Pool::new(threads, pin) }
    }

    /// Splits `out` in any place: for loops that treat every element alike.
    pub(crate) fn each<T: Real>(&self, out: &mut [T], f: impl Fn(usize, &mut [T]) + Sync) {
        self.pool.split(out, 1, 1, f);
    }

    /// Clears the gradient where a fused ReLU's output was not positive.
    pub(crate) fn relu_backward<T: Real>(&self, y: &[T], dy: &mut [T]) {
        self.each(dy, |first, dy| elementwise::relu_backward(self.level, &y[first..first + dy.len()], dy));
    }
}

/// Memory of a caller's, which a network works on during a pass.
pub type OuterMemory<T> = Box<dyn DerefMut<Target = [T]> + Send + Sync>;

/// Memory for a value or its gradient: the network's own, or the caller's where it goes over a cut.
pub(crate) enum ValueMemory<T> {
    Own(Buffer<T>),
    Outer(OuterMemory<T>),
}

impl<T: Real> ValueMemory<T> {
    pub fn new(len: usize) -> Self {
        Self::Own(Buffer::new(len))
    }

    /// Room for a caller's memory.
    pub fn outer() -> Self {
        Self::Outer(Box::new(Vec::new()))
    }

    /// Exchanges the caller's memory.
    ///
    /// # Panics
    /// If this is the network's own.
    pub fn swap(&mut self, memory: &mut OuterMemory<T>) {
        let Self::Outer(own) = self else {
            panic!("a value that goes over a cut of a network with outer memory")
        };
        std::mem::swap(own, memory);
    }
}

impl<T> Deref for ValueMemory<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        match self {
            Self::Own(memory) => memory,
            Self::Outer(memory) => memory,
        }
    }
}

impl<T> DerefMut for ValueMemory<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::Own(memory) => memory,
            Self::Outer(memory) => memory,
        }
    }
}

/// Memory that starts on a cache line, so that vectors do not straddle two of them.
#[derive(Debug, Default)]
pub(crate) struct Buffer<T> {
    memory: Vec<T>,
    start: usize,
    len: usize,
}

impl<T: Copy + Default> Buffer<T> {
    const LINE: usize = 64;

    pub fn new(len: usize) -> Self {
        let memory = vec![T::default(); len + Self::LINE / size_of::<T>()];
        let start = memory.as_ptr().align_offset(Self::LINE).min(memory.len() - len);
        Self { memory, start, len }
    }
}

impl<T> Deref for Buffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.memory[self.start..self.start + self.len]
    }
}

impl<T> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.memory[self.start..self.start + self.len]
    }
}
