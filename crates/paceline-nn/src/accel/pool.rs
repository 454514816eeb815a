//! A persistent pool of threads, and the one way in which work is split: each thread writes its own
//! contiguous piece of the output, so results do not depend on the number of threads.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// How often a waiting thread looks before it goes to sleep (some tens of microseconds). Layers
/// follow one another within that time; between steps the cores are left to others.
const SPINS: usize = 2_000;

/// Work below this many element operations is not worth waking a thread for.
const GRAIN: usize = 16 * 1024;

type Job = *const (dyn Fn(usize) + Sync);

/// Threads that live as long as the pool and share each piece of work.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// One piece of work at a time.
    turn: Mutex<()>,
}

struct Shared {
    /// Counts the jobs handed out; a change wakes the threads.
    epoch: AtomicUsize,
    job: UnsafeCell<Option<Job>>,
    /// Threads that have not finished the current job.
    running: AtomicUsize,
    stop: AtomicBool,
    panicked: AtomicBool,
    lock: Mutex<()>,
    wake: Condvar,
    done: Condvar,
}

// SAFETY: `job` is written by `Pool::run` only while no thread runs a job (`running` is 0), and read
// only after the release store to `epoch` that follows the write.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` refers to a `Sync` closure that outlives the job (see `Pool::run`).
unsafe impl Send for Shared {}

impl Pool {
    /// A pool of `threads` threads, the calling one included. With `pin`, thread `i` stays on the
    /// `i`-th core that this process may use.
    pub fn new(threads: usize, pin: bool) -> Self {
        let shared = Arc::new(Shared {
            epoch: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            running: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            lock: Mutex::new(()),
            wake: Condvar::new(),
            done: Condvar::new(),
        });
        let cores = if pin { allowed_cores() } else { Vec::new() };
        let core = |i: usize| (!cores.is_empty()).then(|| cores[i % cores.len()]);
        pin_to(core(0));
        let threads = (1..threads.max(1))
            .map(|index| {
                let (shared, core) = (Arc::clone(&shared), core(index));
                std::thread::Builder::new()
                    .name(format!("compute-{index}"))
                    .spawn(move || {
                        pin_to(core);
                        shared.work(index);
                    })
                    .expect("the operating system gives a thread")
            })
            .collect();
        Self { shared, threads, turn: Mutex::new(()) }
    }

    /// How many threads share the work.
    pub fn threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Runs `job(i)` on every thread `i` and returns when all have finished.
    fn run(&self, job: &(dyn Fn(usize) + Sync)) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        // SAFETY: only the lifetime is erased; this function does not return (or unwind) before
        // `running` is 0, that is, before every thread has dropped its copy of the pointer.
        let erased: Job = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Job>(job) };
        // SAFETY: `running` is 0 here, so no thread reads `job` (see `Shared`).
        unsafe { *shared.job.get() = Some(erased) };
        shared.running.store(self.threads.len(), Ordering::Relaxed);
        {
            let _guard = shared.lock.lock().unwrap_or_else(PoisonError::into_inner);
            shared.epoch.fetch_add(1, Ordering::Release);
        }
        shared.wake.notify_all();
        let own = catch_unwind(AssertUnwindSafe(|| job(0)));
        shared.wait_until(&shared.done, || shared.running.load(Ordering::Acquire) == 0);
        let theirs = shared.panicked.swap(false, Ordering::Relaxed);
        if let Err(panic) = own {
            std::panic::resume_unwind(panic);
        }
        assert!(!theirs, "a compute thread panicked");
    }

    /// Cuts `0..units` into one range per thread and calls `f(share, range)` for each. `cost` is the
    /// work per unit in element operations: what is too small to share is done by the caller alone.
    fn shares(&self, units: usize, cost: usize, f: &(dyn Fn(usize, Range<usize>) + Sync)) {
        let shares = self.threads().min(units);
        if shares <= 1 || units * cost < GRAIN {
            return f(0, 0..units);
        }
        self.run(&|i| {
            if i < shares {
                f(i, i * units / shares..(i + 1) * units / shares);
            }
        });
    }

    /// Splits `out` into one contiguous piece per thread, cut at multiples of `unit`, and calls
    /// `f(first unit, piece)` for each.
    pub fn split<T: Send>(
        &self,
        out: &mut [T],
        unit: usize,
        cost: usize,
        f: impl Fn(usize, &mut [T]) + Sync,
    ) {
        self.split2(out, unit, &mut [] as &mut [()], 0, cost, |first, piece, _| f(first, piece));
    }

    /// Like [`Pool::split`] for two outputs cut at the same unit numbers.
    pub fn split2<T: Send, U: Send>(
        &self,
        a: &mut [T],
        a_unit: usize,
        b: &mut [U],
        b_unit: usize,
        cost: usize,
        f: impl Fn(usize, &mut [T], &mut [U]) + Sync,
    ) {
        let units = a.len() / a_unit;
        assert_eq!(a.len(), units * a_unit, "the output is a whole number of units");
        assert_eq!(b.len(), units * b_unit, "both outputs have the same number of units");
        let (a, b) = (Pieces::of(a), Pieces::of(b));
        self.shares(units, cost, &|_, range| {
            // SAFETY: the ranges of different shares are disjoint.
            let (a, b) = unsafe { (a.piece(&range, a_unit), b.piece(&range, b_unit)) };
            f(range.start, a, b);
        });
    }

    /// Cuts three outputs of the same length (or empty) in the same places.
    pub fn split3<T: Send>(&self, outs: [&mut [T]; 3], f: impl Fn(usize, [&mut [T]; 3]) + Sync) {
        let len = outs[0].len();
        assert!(outs.iter().all(|out| out.len() == len || out.is_empty()), "equal lengths, or none");
        let outs = outs.map(|out| (usize::from(!out.is_empty()), Pieces::of(out)));
        self.shares(len, 1, &|_, range| {
            // SAFETY: the ranges of different shares are disjoint.
            f(range.start, outs.each_ref().map(|(unit, out)| unsafe { out.piece(&range, *unit) }));
        });
    }

    /// Like [`Pool::split`], with `scratch` cut into one equal piece of `each` per thread.
    pub fn split_scratch<T: Send>(
        &self,
        out: &mut [T],
        unit: usize,
        scratch: &mut [T],
        each: usize,
        cost: usize,
        f: impl Fn(usize, &mut [T], &mut [T]) + Sync,
    ) {
        let units = out.len() / unit;
        assert_eq!(out.len(), units * unit, "the output is a whole number of units");
        assert!(scratch.len() >= each * self.threads(), "scratch for every thread");
        let (out, scratch) = (Pieces::of(out), Pieces::of(scratch));
        self.shares(units, cost, &|share, range| {
            // SAFETY: the ranges of different shares are disjoint, and so are their numbers.
            let (out, scratch) =
                unsafe { (out.piece(&range, unit), scratch.piece(&(share..share + 1), each)) };
            f(range.start, out, scratch);
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        {
            let _guard = self.shared.lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.shared.stop.store(true, Ordering::Release);
        }
        self.shared.wake.notify_all();
        for thread in self.threads.drain(..) {
            // A panic inside a job was caught and reported by `run`.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn work(&self, index: usize) {
        let mut seen = 0;
        loop {
            self.wait_until(&self.wake, || {
                self.epoch.load(Ordering::Acquire) != seen || self.stop.load(Ordering::Acquire)
            });
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            seen = self.epoch.load(Ordering::Acquire);
            // SAFETY: written before the epoch changed, and not written again before this thread
            // has counted itself out of `running`.
            let job = unsafe { *self.job.get() }.expect("a job comes with each epoch");
            // SAFETY: `Pool::run` keeps the closure alive until `running` is 0.
            let job = unsafe { &*job };
            if catch_unwind(AssertUnwindSafe(|| job(index))).is_err() {
                self.panicked.store(true, Ordering::Relaxed);
            }
            if self.running.fetch_sub(1, Ordering::AcqRel) == 1 {
                let _guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
                self.done.notify_one();
            }
        }
    }

    /// Spins for a moment, then sleeps on `signal`, until `ready`.
    fn wait_until(&self, signal: &Condvar, ready: impl Fn() -> bool) {
        for _ in 0..SPINS {
            if ready() {
                return;
            }
            std::hint::spin_loop();
        }
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while !ready() {
            guard = signal.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A slice that threads write disjoint pieces of.
struct Pieces<'a, T> {
    start: *mut T,
    len: usize,
    /// The unique borrow that the pieces are made from.
    _borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: a piece is a `&mut [T]` handed to one thread; `T: Send` allows that.
unsafe impl<T: Send> Sync for Pieces<'_, T> {}

impl<'a, T> Pieces<'a, T> {
    fn of(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), _borrow: PhantomData }
    }

    /// The units of `range`.
    ///
    /// # Safety
    /// No two pieces that are alive at once overlap.
    #[allow(clippy::mut_from_ref)]
    unsafe fn piece(&self, range: &Range<usize>, unit: usize) -> &mut [T] {
        assert!(range.start <= range.end && range.end * unit <= self.len);
        // SAFETY: inside the slice, whose unique borrow `self` holds; disjoint by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start * unit), range.len() * unit) }
    }
}

fn allowed_cores() -> Vec<usize> {
    sched_getaffinity(None)
        .map(|set| (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect())
        .unwrap_or_default()
}

/// Pinning is a wish: where the system refuses it, training is as right, only less steady.
fn pin_to(core: Option<usize>) {
    if let Some(core) = core {
        let mut set = CpuSet::new();
        set.set(core);
        let _ = sched_setaffinity(None, &set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_is_written_once_for_any_number_of_threads() {
        for threads in 1..=5 {
            let pool = Pool::new(threads, false);
            for units in [1usize, 2, 3, 7, 64] {
                let (mut a, mut b) = (vec![0usize; units * 3], vec![0usize; units]);
                pool.split2(&mut a, 3, &mut b, 1, GRAIN, |first, a, b| {
                    for (i, v) in a.iter_mut().enumerate() {
                        *v += first * 3 + i;
                    }
                    for (i, v) in b.iter_mut().enumerate() {
                        *v += first + i;
                    }
                });
                assert_eq!(a, (0..units * 3).collect::<Vec<_>>());
                assert_eq!(b, (0..units).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn a_panic_on_any_thread_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(3, false);
        for culprit in 0..3 {
            let mut out = vec![0u8; 3];
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.split(&mut out, 1, GRAIN, |first, _| assert_ne!(first, culprit));
            }));
            assert!(result.is_err());
        }
        let mut out = vec![0u8; 3];
        pool.split(&mut out, 1, GRAIN, |_, piece| piece.fill(1));
        assert_eq!(out, [1, 1, 1]);
    }
}
