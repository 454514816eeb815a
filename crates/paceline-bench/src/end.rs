//! A rank's end of its channels: whole messages out of the parts that a transport moves.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::time::Instant;

use paceline_train::TrainError;
use paceline_train::worker::MESSAGE;
use paceline_wire::{Event, META, Span, Transport};

use crate::exchange::{Flat, PATIENCE};

/// Elements that messages are sent from: far more than caches hold, and no more than needed. Longer messages
/// begin again at its start.
pub(crate) const MEMORY: usize = 128 * MESSAGE;

/// Numbers of a cache line.
const LINE: usize = 16;

/// The first byte of the meta data of a part that others follow; of the last one it is the kind of message.
const PART: u8 = 0;

pub(crate) struct End<B = Vec<f32>> {
    transport: Box<dyn Transport>,
    /// CPU time so far of what this rank is: a process or a thread.
    pub cpu_seconds: fn() -> f64,
    pub memory: Flat<B>,
    /// Where bodies are taken in that stay in their sender's memory.
    room: Vec<f32>,
    /// What errors say where the exchange was.
    pub step: u64,
    events: Vec<Event>,
    /// Whole messages that have come: from whom, what, and how many elements.
    inbox: VecDeque<(usize, u8, usize)>,
    /// Elements that have come of a message that is not whole, by sender.
    partial: Vec<usize>,
    /// Ranks that are gone, and why.
    lost: Vec<Option<String>>,
    /// Parts of messages that have not left.
    pub leaving: usize,
}

impl<B: Deref<Target = [f32]>> End<B> {
    pub fn new(
        transport: Box<dyn Transport>,
        memory: Flat<B>,
        world: usize,
        cpu_seconds: fn() -> f64,
    ) -> Self {
        let (events, inbox) = (Vec::new(), VecDeque::new());
        let (partial, lost) = (vec![0; world], vec![None; world]);
        let room = Vec::new();
        Self { transport, cpu_seconds, memory, room, step: 0, events, inbox, partial, lost, leaving: 0 }
    }

    /// Takes bodies of up to so many elements in, out of their sender's memory, as training does.
    pub fn take_bodies_in(&mut self, longest: usize) {
        self.room.resize(longest.clamp(MESSAGE, MEMORY), 0.0);
    }

    /// Reads what was taken in of so many elements, and writes what is sent next: one number of each cache line. Seconds.
    pub fn use_bodies(&mut self, elements: usize) -> f32
    where
        B: DerefMut,
    {
        let start = Instant::now();
        let (own, room) = (&mut self.memory.0, &self.room);
        let own = &mut own[..elements.min(MEMORY)];
        own.iter_mut().step_by(LINE).zip(room.iter().step_by(LINE)).for_each(|(own, there)| *own += *there);
        std::hint::black_box(own);
        start.elapsed().as_secs_f32()
    }

    /// Queues a message, in parts where it is longer than the messages of training.
    pub fn send(&mut self, to: usize, kind: u8, elements: usize) -> Result<(), TrainError> {
        let mut at = 0;
        loop {
            let len = MESSAGE.min(elements - at);
            let last = at + len == elements;
            let mut meta = [0; META];
            meta[0] = if last { kind } else { PART };
            let span = if len == 0 { Span::EMPTY } else { Span { buffer: 0, offset: at % MEMORY, len } };
            self.transport.send(to, meta, span, 1)?;
            self.leaving += 1;
            at += len;
            if last {
                return Ok(());
            }
        }
    }

    /// Moves messages, waiting for some; an error if the one that is waited for is gone or says nothing.
    fn pump(&mut self, from: usize) -> Result<(), TrainError> {
        if let Some(cause) = &self.lost[from] {
            return Err(TrainError::Lost { rank: from, step: self.step, cause: cause.clone() });
        }
        let start = Instant::now();
        while self.events.is_empty() {
            self.transport.progress(&self.memory, Some(PATIENCE), &mut self.events)?;
            if self.events.is_empty() && start.elapsed() > PATIENCE {
                return Err(TrainError::Silent { rank: from, seconds: PATIENCE.as_secs(), step: self.step });
            }
        }
        for event in self.events.drain(..) {
            match event {
                Event::Sent { .. } => self.leaving -= 1,
                Event::Message { from, meta, body } => {
                    if !self.room.is_empty() && !body.is_empty() {
                        let at = self.partial[from] % (self.room.len() - body.len() + 1);
                        body.copy_to(0, &mut self.room[at..at + body.len()]);
                    }
                    self.partial[from] += body.len();
                    if meta[0] != PART {
                        let elements = std::mem::take(&mut self.partial[from]);
                        self.inbox.push_back((from, meta[0], elements));
                    }
                }
                Event::Lost { rank, cause } => self.lost[rank] = Some(cause),
                Event::Refused { .. } | Event::Woken => {}
            }
        }
        Ok(())
    }

    /// Waits until at most `most` parts have not left.
    pub fn drain(&mut self, to: usize, most: usize) -> Result<(), TrainError> {
        while self.leaving > most {
            self.pump(to)?;
        }
        Ok(())
    }

    pub fn next(&mut self, from: usize) -> Result<(u8, usize), TrainError> {
        loop {
            if let Some(at) = self.inbox.iter().position(|(sender, ..)| *sender == from) {
                let (_, kind, elements) = self.inbox.remove(at).expect("it was just there");
                return Ok((kind, elements));
            }
            self.pump(from)?;
        }
    }

    /// The next message of a rank, which must be of this kind.
    pub fn receive(&mut self, from: usize, kind: u8) -> Result<usize, TrainError> {
        let (found, elements) = self.next(from)?;
        assert_eq!(found, kind, "a message of rank {from} out of turn");
        Ok(elements)
    }
}
