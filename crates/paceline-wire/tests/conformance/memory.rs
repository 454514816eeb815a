//! Memory that tests lend, and ends that are driven until something has happened.

use std::time::{Duration, Instant};

use paceline_wire::{Event, META, Meta, Source, Span, Transport};

use crate::PATIENCE;

/// Buffers; a span of one of them is lent in slices of at most `pieces` elements.
pub struct Memory {
    pub buffers: Vec<Vec<f32>>,
    pub pieces: usize,
}

impl Memory {
    pub fn new(buffers: Vec<Vec<f32>>) -> Self {
        Self { buffers, pieces: usize::MAX }
    }

    pub fn span(&self, buffer: usize) -> Span {
        Span { buffer: buffer as u32, offset: 0, len: self.buffers[buffer].len() }
    }
}

impl Source for Memory {
    fn slices<'a>(&'a self, span: Span, f: &mut dyn FnMut(&'a [f32])) {
        let whole = &self.buffers[span.buffer as usize][span.offset..span.offset + span.len];
        whole.chunks(self.pieces).for_each(f);
    }
}

pub fn meta(number: u64) -> Meta {
    let mut meta = [0; META];
    meta[..8].copy_from_slice(&number.to_le_bytes());
    meta
}

/// Numbers that differ by `seed` and place.
pub fn numbers(seed: u64, len: usize) -> Vec<f32> {
    (0..len as u64).map(|i| ((seed * 7919 + i) % 1_000_003) as f32).collect()
}

/// Drives an end until `enough` says so of the events.
pub fn until(end: &mut dyn Transport, memory: &Memory, enough: impl Fn(&[Event]) -> bool) -> Vec<Event> {
    let begun = Instant::now();
    let mut events = Vec::new();
    while !enough(&events) {
        let left = PATIENCE.checked_sub(begun.elapsed());
        let left = left.unwrap_or_else(|| panic!("rank {} waited in vain after {events:?}", end.rank()));
        end.progress(memory, Some(left.min(Duration::from_millis(500))), &mut events).unwrap();
    }
    events
}

/// Drives two ends by turns in one thread, which works only since nothing blocks.
pub fn both(
    ends: [&mut dyn Transport; 2],
    memory: &Memory,
    enough: impl Fn(&[Event], &[Event]) -> bool,
) -> [Vec<Event>; 2] {
    let begun = Instant::now();
    let mut events = [Vec::new(), Vec::new()];
    let [a, b] = ends;
    while !enough(&events[0], &events[1]) {
        assert!(begun.elapsed() < PATIENCE, "waited in vain after {events:?}");
        a.progress(memory, None, &mut events[0]).unwrap();
        b.progress(memory, None, &mut events[1]).unwrap();
    }
    events
}

pub fn messages(events: &[Event]) -> Vec<(usize, u64, &[f32])> {
    let number = |meta: &Meta| u64::from_le_bytes(meta[..8].try_into().unwrap());
    let message = |event| match event {
        &Event::Message { from, ref meta, ref body } => Some((from, number(meta), &body[..])),
        _ => None,
    };
    events.iter().filter_map(message).collect()
}

pub fn sent(events: &[Event]) -> Vec<u64> {
    events.iter().filter_map(|event| if let Event::Sent { op } = event { Some(*op) } else { None }).collect()
}

pub fn lost(events: &[Event]) -> Vec<(usize, &str)> {
    let lost = |event| match event {
        &Event::Lost { rank, ref cause } => Some((rank, &cause[..])),
        _ => None,
    };
    events.iter().filter_map(lost).collect()
}

pub fn refused(events: &[Event]) -> Vec<&str> {
    let mut causes = Vec::new();
    for event in events {
        if let Event::Refused { cause } = event {
            causes.push(&cause[..]);
        }
    }
    causes
}
