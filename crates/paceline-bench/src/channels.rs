//! Latency and bandwidth between pairs of ranks, over every transport.
//!
//! Ranks 2i and 2i + 1 are a pair: the even one leads. It first has messages sent back to it (half of a round
//! trip is the latency), then streams messages one way until it is told that the last has come. Leaders begin
//! each part together, at a word of rank 0. A repeat has processes of its own.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use paceline_analyze::Quantiles;
use paceline_launch::{Done, LaunchError};
use paceline_record::process;
use paceline_train::TrainError;
use paceline_train::worker::MESSAGE;
use paceline_wire::{Event, META, Span, Transport};
use serde::{Deserialize, Serialize};

use crate::channels_document::{Channel, ChannelRepeat};
use crate::document::Channels;
use crate::exchange::{self, Account, Bench, Flat, PATIENCE};
use crate::payload;
use crate::sweep::{Progress, SweepRules, order};

/// Parts of messages that wait to be sent at most: enough to keep a channel full.
const WINDOW: usize = 64;
/// Round trips that are timed at most.
const ROUND_TRIPS: usize = 20_000;
/// Elements that messages are sent from: far more than caches hold, and no more than needed. Longer messages
/// begin again at its start.
const MEMORY: usize = 128 * MESSAGE;
/// Part of the time that goes by before anything counts.
const WARM_UP: f64 = 0.1;

/// What a benchmark of channels is to measure.
pub struct Sweep {
    /// What every sweep is told.
    pub rules: SweepRules,
    /// Mean sizes, in elements.
    pub sizes: Vec<usize>,
    /// Pairs of ranks at the same time.
    pub pairs: usize,
}

impl Sweep {
    /// Measures everything with processes of `program WORD`.
    pub fn run(
        &self,
        program: &Path,
        word: &str,
        report: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Channels, LaunchError> {
        let rules = &self.rules;
        let (combinations, left_out) = rules.over.combinations()?;
        let load_average = process::load_average();
        let tensors = payload::tensors(&rules.model).expect("the model's name comes from the registry");
        let mut points = Vec::new();
        for (transport, buffer) in &combinations {
            for (payload, &size) in rules.payloads.iter().flat_map(|p| self.sizes.iter().map(move |s| (p, s)))
            {
                let sizes = payload.messages(size, &tensors, rules.seed);
                let task = exchange::Task::Channel(Task { sizes: sizes.clone() });
                let bench = Bench::of_task(task, (transport, *buffer), 2 * self.pairs, rules.seconds);
                points.push((bench, payload.name, sizes, Vec::new()));
            }
        }
        let order = order(rules.seed, points.len(), rules.repeats);
        for (done, &at) in order.iter().enumerate() {
            let (bench, payload, _, repeats) = &mut points[at];
            let next = format!("{} {payload}", bench.transport);
            report(Progress { done, total: order.len(), next: &next });
            repeats.push(repeat(done, &bench.accounts(program, word)?));
        }
        let point = |(bench, payload, sizes, repeats): (Bench, &str, Vec<usize>, Vec<ChannelRepeat>)| {
            let bytes = sizes.iter().map(|len| 4 * len).collect();
            Channel::new(&bench.transport, bench.buffer, payload, bytes, repeats)
        };
        let points = points.into_iter().map(point).collect();
        let document = rules.document("channels", load_average, left_out, points);
        Ok(Channels { pairs: Some(self.pairs), ..document })
    }
}

/// What the ranks of one repeat come to.
fn repeat(order: usize, accounts: &[Account]) -> ChannelRepeat {
    let half_trips: Vec<f64> =
        accounts.iter().flat_map(|(_, times)| times).map(|&trip| f64::from(trip) / 2.0).collect();
    let even = || accounts.iter().step_by(2).map(|(done, _)| done);
    let odd = || accounts.iter().skip(1).step_by(2).map(|(done, _)| done);
    ChannelRepeat {
        order,
        round_trips: half_trips.len(),
        latency_s: Quantiles::of(&half_trips),
        messages: even().map(|done| done.steps).sum(),
        sent_bytes: even().map(|done| done.sent_bytes).sum(),
        received_bytes: odd().map(|done| done.received_bytes).sum(),
        seconds: even().map(|done| done.train_s).fold(0.0, f64::max),
        sender_cpu_s: even().map(|done| done.cpu_s).sum(),
        receiver_cpu_s: odd().map(|done| done.cpu_s).sum(),
    }
}

/// The ranks that a rank talks with: its partner, and for a leader rank 0.
pub(super) fn links(world: usize, rank: usize) -> Vec<usize> {
    match rank {
        0 => [1].into_iter().chain((2..world).step_by(2)).collect(),
        rank if rank.is_multiple_of(2) => vec![0, rank + 1],
        rank => vec![rank - 1],
    }
}

/// What the ranks of a measurement are told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    /// Lengths of messages in turn, in elements.
    pub sizes: Vec<usize>,
}

/// What a message is, in the first byte of its meta data.
const PART: u8 = 0;
const PING: u8 = 1;
const PONG: u8 = 2;
const STREAMED: u8 = 3;
const BEGIN: u8 = 4;
const END: u8 = 5;
const ALL_HERE: u8 = 6;
const OVER: u8 = 7;
const READY: u8 = 8;
const GO: u8 = 9;

impl Task {
    /// Plays a rank's part. A leader tells the times of its round trips, and of its stream the messages
    /// (`steps`), bytes, seconds (`train_s`) and CPU time; its partner what came of the stream, and its CPU time.
    pub(super) fn play(
        &self,
        bench: &Bench,
        rank: usize,
        transport: Box<dyn Transport>,
    ) -> Result<Account, TrainError> {
        let largest = *self.sizes.iter().max().expect("a size");
        let mut end = End {
            transport,
            memory: Flat((0..largest.min(MEMORY)).map(|i| (i % 251 + 1) as f32).collect()),
            events: Vec::new(),
            inbox: VecDeque::new(),
            partial: vec![0; bench.workers],
            lost: vec![None; bench.workers],
            leaving: 0,
        };
        if rank.is_multiple_of(2) {
            self.lead(bench, rank, &mut end)
        } else {
            follow(bench, rank - 1, &mut end)
        }
    }

    fn lead(&self, bench: &Bench, rank: usize, end: &mut End) -> Result<Account, TrainError> {
        let (partner, world) = (rank + 1, bench.workers);
        let half = Duration::from_secs_f64(bench.seconds / 2.0);
        let warm_up = half.mul_f64(WARM_UP);
        end.together(rank, world)?;
        self.round_trips(end, partner, warm_up)?;
        end.together(rank, world)?;
        let trips = self.round_trips(end, partner, half)?;
        end.together(rank, world)?;
        self.stream(end, partner, warm_up)?;
        end.together(rank, world)?;
        let (start, cpu) = (Instant::now(), bench.cpu_seconds());
        let (messages, elements) = self.stream(end, partner, half)?;
        let done = Done {
            steps: messages,
            sent_bytes: 4 * elements,
            train_s: start.elapsed().as_secs_f64(),
            cpu_s: bench.cpu_seconds() - cpu,
            ..Done::default()
        };
        end.send(partner, OVER, 0)?;
        end.receive(partner, ALL_HERE)?;
        Ok((done, trips))
    }

    /// Messages there and back, in whole rounds of sizes: the time of each.
    fn round_trips(&self, end: &mut End, partner: usize, time: Duration) -> Result<Vec<f32>, TrainError> {
        let (start, mut trips) = (Instant::now(), Vec::new());
        while trips.is_empty() || (start.elapsed() < time && trips.len() < ROUND_TRIPS) {
            for &len in &self.sizes {
                let begin = Instant::now();
                end.send(partner, PING, len)?;
                end.receive(partner, PONG)?;
                trips.push(begin.elapsed().as_secs_f32());
            }
        }
        Ok(trips)
    }

    /// Messages one way, in whole rounds of sizes: how many, and their elements.
    fn stream(&self, end: &mut End, partner: usize, time: Duration) -> Result<(u64, u64), TrainError> {
        let (start, mut messages, mut elements) = (Instant::now(), 0, 0);
        end.send(partner, BEGIN, 0)?;
        while messages == 0 || start.elapsed() < time {
            for &len in &self.sizes {
                if end.leaving >= WINDOW {
                    end.drain(partner, WINDOW / 2)?;
                }
                end.send(partner, STREAMED, len)?;
                messages += 1;
                elements += len as u64;
            }
        }
        end.send(partner, END, 0)?;
        end.receive(partner, ALL_HERE)?;
        Ok((messages, elements))
    }
}

/// Does what the leader's messages ask for, to the last of them.
fn follow(bench: &Bench, leader: usize, end: &mut End) -> Result<Account, TrainError> {
    let mut done = Done::default();
    let mut cpu = 0.0;
    loop {
        let (kind, elements) = end.next(leader)?;
        match kind {
            PING => end.send(leader, PONG, elements)?,
            // What came before was to warm up.
            BEGIN => (done, cpu) = (Done::default(), bench.cpu_seconds()),
            STREAMED => {
                done.steps += 1;
                done.received_bytes += 4 * elements as u64;
            }
            END => {
                done.cpu_s = bench.cpu_seconds() - cpu;
                end.send(leader, ALL_HERE, 0)?;
            }
            _ => {
                end.send(leader, ALL_HERE, 0)?;
                end.drain(leader, 0)?;
                return Ok((done, Vec::new()));
            }
        }
    }
}

/// One rank's end of its channels.
struct End {
    transport: Box<dyn Transport>,
    memory: Flat,
    events: Vec<Event>,
    /// Whole messages that have come: from whom, what, and how many elements.
    inbox: VecDeque<(usize, u8, usize)>,
    /// Elements that have come of a message that is not whole, by sender.
    partial: Vec<usize>,
    /// Ranks that are gone, and why.
    lost: Vec<Option<String>>,
    /// Parts of messages that have not left.
    leaving: usize,
}

impl End {
    /// Queues a message, in parts where it is longer than the messages of training.
    fn send(&mut self, to: usize, kind: u8, elements: usize) -> Result<(), TrainError> {
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
            return Err(TrainError::Lost { rank: from, step: 0, cause: cause.clone() });
        }
        let start = Instant::now();
        while self.events.is_empty() {
            self.transport.progress(&self.memory, Some(PATIENCE), &mut self.events)?;
            if self.events.is_empty() && start.elapsed() > PATIENCE {
                return Err(TrainError::Silent { rank: from, seconds: PATIENCE.as_secs(), step: 0 });
            }
        }
        for event in self.events.drain(..) {
            match event {
                Event::Sent { .. } => self.leaving -= 1,
                Event::Message { from, meta, body } => {
                    self.partial[from] += body.len();
                    if meta[0] != PART {
                        let elements = std::mem::take(&mut self.partial[from]);
                        self.inbox.push_back((from, meta[0], elements));
                    }
                }
                Event::Lost { rank, cause } => self.lost[rank] = Some(cause),
                Event::Refused { .. } => {}
            }
        }
        Ok(())
    }

    /// Waits until at most so many parts have not left.
    fn drain(&mut self, to: usize, most: usize) -> Result<(), TrainError> {
        while self.leaving > most {
            self.pump(to)?;
        }
        Ok(())
    }

    /// The next message of a rank.
    fn next(&mut self, from: usize) -> Result<(u8, usize), TrainError> {
        loop {
            if let Some(at) = self.inbox.iter().position(|(sender, ..)| *sender == from) {
                let (_, kind, elements) = self.inbox.remove(at).expect("it was just there");
                return Ok((kind, elements));
            }
            self.pump(from)?;
        }
    }

    /// The next message of a rank, which must be of this kind.
    fn receive(&mut self, from: usize, kind: u8) -> Result<usize, TrainError> {
        let (found, elements) = self.next(from)?;
        assert_eq!(found, kind, "a message of rank {from} out of turn");
        Ok(elements)
    }

    fn together(&mut self, rank: usize, world: usize) -> Result<(), TrainError> {
        if rank == 0 {
            for leader in (2..world).step_by(2) {
                self.receive(leader, READY)?;
            }
            (2..world).step_by(2).try_for_each(|leader| self.send(leader, GO, 0))
        } else {
            self.send(0, READY, 0)?;
            self.receive(0, GO).map(drop)
        }
    }
}
