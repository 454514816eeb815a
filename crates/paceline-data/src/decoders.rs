//! Threads that decode the images of the next batches while a batch computes.
//!
//! What was asked for is decoded in that order and kept until it is taken; nobody asks for more than the
//! batch at hand and the one after it, which bounds the memory. Which thread decodes an image, and when,
//! changes nothing in it.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::error::DataError;
use crate::image_folder::Files;
use crate::picture::Scratch;
use crate::reader::SampleVariation;

/// The threads, and what they were asked for.
#[derive(Debug)]
pub(crate) struct Decoders {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    asked: VecDeque<Batch>,
    /// The ticket of the next image that is asked for.
    tickets: u64,
    /// The ticket of the next image that is taken.
    taken: u64,
}

#[derive(Debug)]
struct Batch {
    look: SampleVariation,
    ids: Vec<u32>,
    /// Ticket of its first image.
    first: u64,
}

#[derive(Debug)]
struct Shared {
    files: Arc<Files>,
    state: Mutex<State>,
    /// Something is to be done, or nothing ever again.
    work: Condvar,
    done: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<(u64, SampleVariation, u32)>,
    finished: BTreeMap<u64, Result<Vec<u8>, DataError>>,
    spare: Vec<Vec<u8>>,
    /// Tickets below are of no interest any more.
    oldest: u64,
    over: bool,
}

impl Shared {
    /// The state. A thread that panicked has not held the lock: decoding happens outside.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn decode(&self) {
        let mut scratch = Scratch::default();
        loop {
            let mut state = self.state();
            let (ticket, look, id) = loop {
                if state.over {
                    return;
                }
                match state.queue.pop_front() {
                    Some(job) => break job,
                    None => state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner),
                }
            };
            let mut bytes = state.spare.pop().unwrap_or_default();
            drop(state);
            bytes.resize(self.files.sample_bytes(), 0);
            // A decoder that panics on a damaged file must not leave the reader waiting.
            let caught = catch_unwind(AssertUnwindSafe(|| {
                self.files.read(id as usize, look.draws(id), &mut scratch, &mut bytes)
            }));
            let result = caught.unwrap_or_else(|_| {
                Err(self.files.damaged(id as usize, "the decoder gave up on it (a panic)".into()))
            });
            let mut state = self.state();
            if ticket >= state.oldest {
                state.finished.insert(ticket, result.map(|()| bytes));
                self.done.notify_one();
            } else {
                state.spare.push(bytes);
            }
        }
    }
}

impl Decoders {
    pub(crate) fn start(files: &Arc<Files>) -> Self {
        let shared = Arc::new(Shared {
            files: Arc::clone(files),
            state: Mutex::default(),
            work: Condvar::new(),
            done: Condvar::new(),
        });
        let decoder = |_| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.decode())
        };
        let threads = (0..files.decoders()).map(decoder).collect();
        Self { shared, threads, asked: VecDeque::new(), tickets: 0, taken: 0 }
    }

    /// Whether they decode these files.
    pub(crate) fn are_for(&self, files: &Arc<Files>) -> bool {
        Arc::ptr_eq(&self.shared.files, files)
    }

    /// Has a batch decoded, unless it was asked for already.
    pub(crate) fn ask(&mut self, look: SampleVariation, ids: &[u32]) {
        if ids.is_empty() || self.asked.iter().any(|batch| batch.look == look && batch.ids == ids) {
            return;
        }
        let first = self.tickets;
        self.tickets += ids.len() as u64;
        self.shared.state().queue.extend((first..).zip(ids).map(|(ticket, &id)| (ticket, look, id)));
        self.shared.work.notify_all();
        self.asked.push_back(Batch { look, ids: ids.to_vec(), first });
    }

    /// Goes to the batch that is read now; what was asked for before it and not read is forgotten.
    pub(crate) fn turn_to(&mut self, look: SampleVariation, ids: &[u32]) {
        while self.asked.front().is_some_and(|batch| batch.look != look || batch.ids != ids) {
            self.asked.pop_front();
        }
        self.taken = self.asked.front().map_or(self.tickets, |batch| batch.first);
        let mut state = self.shared.state();
        state.oldest = self.taken;
        state.queue.retain(|&(ticket, ..)| ticket >= self.taken);
        let kept = state.finished.split_off(&self.taken);
        let forgotten = std::mem::replace(&mut state.finished, kept);
        state.spare.extend(forgotten.into_values().flatten());
    }

    /// Hands over the next image of the batch at hand.
    pub(crate) fn next(&mut self, take: &mut dyn FnMut(&[u8])) -> Result<(), DataError> {
        let mut state = self.shared.state();
        let result = loop {
            match state.finished.remove(&self.taken) {
                Some(result) => break result,
                // Decoders answer every ticket, if with an error: reading a file ends.
                None => state = self.shared.done.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(state);
        self.taken += 1;
        if let Some(batch) = self.asked.front()
            && self.taken == batch.first + batch.ids.len() as u64
        {
            self.asked.pop_front();
        }
        let bytes = result?;
        take(&bytes);
        let mut state = self.shared.state();
        state.oldest = self.taken;
        state.spare.push(bytes);
        Ok(())
    }
}

impl Drop for Decoders {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.over = true;
        state.queue.clear();
        drop(state);
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A panic was told as a damaged file.
            let _ = thread.join();
        }
    }
}
