//! Latency and bandwidth between pairs of ranks, over every transport.
//!
//! Ranks 2i and 2i + 1 are a pair: the even one leads. It first has messages sent back to it (half of a round
//! trip is the latency), then streams messages one way until it is told that the last has come. Leaders begin
//! each part together, at a word of rank 0. A repeat has processes of its own.

use std::time::{Duration, Instant};

use paceline_analyze::Quantiles;
use paceline_launch::{LaunchError, RankAccount};
use paceline_record::process;
use paceline_train::TrainError;
use serde::{Deserialize, Serialize};

use crate::channels_document::{Channel, ChannelRepeat};
use crate::document::Channels;
use crate::end::{End, MEMORY};
use crate::exchange::{self, Account, Bench, BenchProgram, Flat, RankPart};
use crate::payload;
use crate::sweep::{Progress, SweepRules, order};

/// Parts of messages that wait to be sent at most: enough to keep a channel full.
const WINDOW: usize = 64;
/// Round trips that are timed at most.
const ROUND_TRIPS: usize = 20_000;
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
    /// Measures everything.
    pub fn run(
        &self,
        by: &BenchProgram<'_>,
        report: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Channels, LaunchError> {
        let rules = &self.rules;
        let (combinations, left_out) = rules.over.combinations(&by.registries.transports)?;
        let load_average = process::load_average();
        let tensors = payload::tensors(rules.model);
        let mut points = Vec::new();
        for (transport, buffer) in &combinations {
            for (payload, &size) in rules.payloads.iter().flat_map(|p| self.sizes.iter().map(move |s| (p, s)))
            {
                let sizes = payload.messages(size, &tensors, rules.seed);
                let task = exchange::Task::Channel(Task { sizes: sizes.clone() });
                let (transport, buffer, workers) = (transport.clone(), *buffer, 2 * self.pairs);
                let seconds = rules.seconds;
                let bench = Bench { task, transport, buffer, workers, seconds, ..Bench::default() };
                points.push((bench, payload.name, sizes, Vec::new()));
            }
        }
        let order = order(rules.seed, points.len(), rules.repeats);
        for (done, &at) in order.iter().enumerate() {
            let (bench, payload, _, repeats) = &mut points[at];
            let next = format!("{} {payload}", bench.transport);
            report(Progress { done, total: order.len(), next: &next });
            repeats.push(repeat(done, &bench.accounts(by)?));
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

/// What a message is.
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
    pub(super) fn play(&self, bench: &Bench, part: RankPart<'_>) -> Result<Account, TrainError> {
        let RankPart { rank, transport, cpu_seconds, .. } = part;
        let largest = *self.sizes.iter().max().expect("a size");
        let memory = (0..largest.min(MEMORY)).map(|i| (i % 251 + 1) as f32).collect();
        let mut end = End::new(transport, Flat(memory, 0), bench.workers, cpu_seconds);
        if rank.is_multiple_of(2) { self.lead(bench, rank, &mut end) } else { follow(rank - 1, &mut end) }
    }

    fn lead(&self, bench: &Bench, rank: usize, end: &mut End) -> Result<Account, TrainError> {
        let (partner, world) = (rank + 1, bench.workers);
        let half = Duration::from_secs_f64(bench.seconds / 2.0);
        let warm_up = half.mul_f64(WARM_UP);
        together(end, rank, world)?;
        self.round_trips(end, partner, warm_up)?;
        together(end, rank, world)?;
        let trips = self.round_trips(end, partner, half)?;
        together(end, rank, world)?;
        self.stream(end, partner, warm_up)?;
        together(end, rank, world)?;
        let (start, cpu) = (Instant::now(), (end.cpu_seconds)());
        let (messages, elements) = self.stream(end, partner, half)?;
        let done = RankAccount {
            steps: messages,
            sent_bytes: 4 * elements,
            train_s: start.elapsed().as_secs_f64(),
            cpu_s: (end.cpu_seconds)() - cpu,
            ..RankAccount::default()
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
fn follow(leader: usize, end: &mut End) -> Result<Account, TrainError> {
    let mut done = RankAccount::default();
    let mut cpu = 0.0;
    loop {
        let (kind, elements) = end.next(leader)?;
        match kind {
            PING => end.send(leader, PONG, elements)?,
            // What came before was to warm up.
            BEGIN => (done, cpu) = (RankAccount::default(), (end.cpu_seconds)()),
            STREAMED => {
                done.steps += 1;
                done.received_bytes += 4 * elements as u64;
            }
            END => {
                done.cpu_s = (end.cpu_seconds)() - cpu;
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

/// Leaders begin together, at a word of rank 0.
fn together(end: &mut End, rank: usize, world: usize) -> Result<(), TrainError> {
    if rank == 0 {
        for leader in (2..world).step_by(2) {
            end.receive(leader, READY)?;
        }
        (2..world).step_by(2).try_for_each(|leader| end.send(leader, GO, 0))
    } else {
        end.send(0, READY, 0)?;
        end.receive(0, GO).map(drop)
    }
}
