//! What happens when: a heap of small entries.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use paceline_protocol::Time;

/// What happens; numbers are ranks or places in the driver's lists.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// An input that was put by.
    Input(u32),
    /// A part of a rank's pass is over.
    Part(u32),
    /// A rank has time for what has come meanwhile.
    Free(u32),
    /// A message reaches the interface of its sender's host.
    Departs(u32),
    /// A message's region may be written again.
    Sent(u32),
    /// A message's first bit is there.
    Reaches(u32),
    Arrived(u32),
    /// A rank dies.
    Crash(u32),
    /// All are to stop together, as soon as they can.
    Stop,
}

struct Entry {
    at: Time,
    /// Keeps the order of things that happen at once.
    number: u64,
    event: Event,
}

impl Ord for Entry {
    /// The heap's largest is the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

/// Events in time; those of one time in the order in which they were scheduled.
#[derive(Default)]
pub(crate) struct Queue {
    heap: BinaryHeap<Entry>,
    next: u64,
}

impl Queue {
    pub fn push(&mut self, at: Time, event: Event) {
        self.heap.push(Entry { at, number: self.next, event });
        self.next += 1;
    }

    /// All that will happen, in order.
    pub fn sorted(&self) -> Vec<(Time, Event)> {
        let mut entries: Vec<&Entry> = self.heap.iter().collect();
        entries.sort_unstable_by(|a, b| b.cmp(a));
        entries.into_iter().map(|entry| (entry.at, entry.event)).collect()
    }

    pub fn pop(&mut self) -> Option<(Time, Event)> {
        self.heap.pop().map(|entry| (entry.at, entry.event))
    }
}

/// Things with numbers that are used again.
pub(crate) struct Slab<T> {
    items: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { items: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub fn insert(&mut self, item: T) -> u32 {
        match self.free.pop() {
            Some(at) => {
                self.items[at as usize] = Some(item);
                at
            }
            None => {
                self.items.push(Some(item));
                self.items.len() as u32 - 1
            }
        }
    }

    pub fn remove(&mut self, at: u32) -> T {
        self.free.push(at);
        self.items[at as usize].take().expect("a number that is in use")
    }

    pub fn get(&mut self, at: u32) -> &mut T {
        self.items[at as usize].as_mut().expect("a number that is in use")
    }
}
