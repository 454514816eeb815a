//! Collectives that are one schedule, evaluated as a recurrence of maxima and sums over all ranks at once.
//!
//! Every rank makes its moves in order: a send leaves when the rank comes to it and its interface is free, a
//! receive is over when the rank has come to it, the message is there and what it replaces has left. Where the
//! order in which interfaces are used is the schedule's own, times follow from the times of the round before, and
//! no event has to be looked at. The result is the driver's, to the nanosecond; where the order could be another
//! one, there is none.
//!
//! Ranks whose moves are alike (the same distance to the peer, neighbouring chunks) are evaluated together.
//!
//! Schedules that every rank follows from its own place (`rotation`) have any number of lanes: a rank that hears from
//! one other only takes its messages in the order in which that one sends them.

mod blocks;
mod evaluation;
mod hosts;
mod member;
mod program;
mod rotation;
mod steps;
mod stream;

use std::ops::Range;

use paceline_protocol::setup::part;
use paceline_protocol::{
    Action, Buf, CollectiveCall, CollectivePath, Combine, Piece, Rank, Region, Setup, Time, exchange,
};

use crate::costs::{Costs, Host};
use crate::driver::Progress;
use crate::report::{SimulatedTimes, SimulationReport};
use evaluation::Evaluation;
use hosts::Hosts;
use program::HostRing;
use rotation::Rotation;
use steps::{StepCosts, Together};

/// Why a run has to be driven event by event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecurrenceRefusal {
    /// Lanes share interfaces, and messages of several senders have no order that is known before.
    #[error("gradients travel in several lanes, and workers hear from several others")]
    Lanes,
    /// Rounds are not in order, or several moves share one.
    #[error("the schedule's rounds do not follow one another")]
    StepProtocol,
    /// Hosts differ, or ranks of one host share its interface.
    #[error("ranks share a host's interface, or hosts differ")]
    Hosts,
    /// Ranks are slower where others compute beside them.
    #[error(
        "ranks share the cores of a machine (emulated hosts those of the calibrated one; --cluster FILE gives each its own)"
    )]
    SharedCores,
    /// Every round's sends would have to be remembered, for every rank.
    #[error("there are too many rounds and ranks to remember when each send has left")]
    Memory,
    /// Something depends on more than the rank and the step.
    #[error("workers are slowed down on purpose, or latencies vary")]
    Variation,
    /// Nobody knows how many steps there are.
    #[error("the number of steps is not known")]
    OpenEnd,
    /// Messages of different senders came in another order than the schedule's.
    #[error("messages came in another order than the schedule's")]
    Order,
}

/// Most moments at which sends have left that are remembered: 1 GiB.
const MOST_KEPT: usize = 1 << 27;

/// Where nothing was sent before that a receive has to wait for.
const NOTHING: u32 = u32::MAX;

/// Moves of neighbouring ranks in one round.
#[derive(Clone, Copy)]
struct Run {
    rank: usize,
    peer: usize,
    len: usize,
    /// The first rank's place in the table of pieces, and how much further each next one's is.
    piece: usize,
    stride: usize,
    combine: Combine,
    /// Whether the messages stay inside a host.
    local: bool,
    /// For receives: the kept round whose send has to have left. For sends: where its end is kept.
    kept: u32,
    /// Whether a receiver has several senders.
    mixed: bool,
}

#[derive(Default)]
struct Round {
    sends: Vec<Run>,
    receives: Vec<Run>,
}

#[derive(Default)]
struct Table {
    send: Vec<f64>,
    transfer: Vec<f64>,
    add: Vec<f64>,
    replace: Vec<f64>,
}

/// A schedule as data, for all ranks.
struct Compiled {
    rounds: Vec<Round>,
    table: Table,
    kept: usize,
    spent: Vec<SimulatedTimes>,
    sent_bytes: Vec<u64>,
    messages: u64,
}

/// Evaluates a run in which gradients are summed along `path` and then applied, telling `progress` how far it is.
pub fn evaluate(
    setup: &Setup,
    path: CollectivePath,
    costs: &Costs,
    progress: Progress<'_>,
) -> Result<SimulationReport, RecurrenceRefusal> {
    let lanes: Vec<Range<usize>> = exchange::lanes(setup, path, 0).map(|(lane, _)| lane).collect();
    if costs.spread != 0.0 || costs.slowness.is_some() {
        return Err(RecurrenceRefusal::Variation);
    }
    let host = alike(setup, costs)?;
    let mut refusal = RecurrenceRefusal::Lanes;
    if let Some(rotation) = Rotation::of(setup, path) {
        match Evaluation::new(setup, costs, &host, &lanes, rotation).and_then(|all| all.run(progress)) {
            Err(why) => refusal = why,
            happened => return happened,
        }
    }
    if let [lane] = &lanes[..] {
        match one_lane(setup, path, costs, &host, lane, progress) {
            Err(why) => refusal = why,
            happened => return happened,
        }
    }
    ring_of_hosts(setup, path, costs, &host, lanes, progress).ok_or(refusal)?
}

/// Evaluates a run in which ranks exchange messages inside their hosts, and one of each with the next host; nothing if
/// it is no such run.
fn ring_of_hosts(
    setup: &Setup,
    path: CollectivePath,
    costs: &Costs,
    host: &Host,
    lanes: Vec<Range<usize>>,
    progress: Progress<'_>,
) -> Option<Result<SimulationReport, RecurrenceRefusal>> {
    let buckets = setup.buckets();
    let bytes = |lane: &Range<usize>| {
        let bucket = buckets.iter().find(|bucket| bucket.contains(&lane.start));
        bucket.map_or(0, Range::len) * size_of::<f32>()
    };
    let lanes: Vec<(Range<usize>, usize)> =
        lanes.into_iter().map(|lane| (bytes(&lane), lane)).map(|(bytes, lane)| (lane, bytes)).collect();
    let ring = HostRing::of(setup, path, costs, &lanes)?;
    let parts = costs.division(setup.params);
    let happened = hosts::between(costs, host, &lanes, ring.hosts.len()).and_then(|outside| {
        Hosts::new(setup, costs, host, &parts, &ring, &outside, &lanes).and_then(|all| all.run(progress))
    });
    Some(happened)
}

/// Evaluates a run with one lane whose rounds follow one another.
fn one_lane(
    setup: &Setup,
    path: CollectivePath,
    costs: &Costs,
    host: &Host,
    lane: &Range<usize>,
    progress: Progress<'_>,
) -> Result<SimulationReport, RecurrenceRefusal> {
    let whole = |part: &crate::PassPart| part.announces.is_some_and(|from| from <= lane.start);
    let parts = costs.division(setup.params);
    if parts[..parts.len() - 1].iter().any(whole) || parts[parts.len() - 1].end != 1.0 {
        return Err(RecurrenceRefusal::Lanes);
    }
    let compiled = Compiled::new(setup, path, costs, host, lane)?;
    let params = Region::new(Buf::Param, lane.clone());
    let update = Action::Apply { params, grad: Region { buf: Buf::Grad, ..params }, step: 0, whole: true };
    let apply = (costs.work.of(&update) / host.speed) as Time;

    let mut each = StepCosts {
        spent: compiled.spent.clone(),
        sent_bytes: compiled.sent_bytes.clone(),
        messages: compiled.messages,
    };
    each.spent.iter_mut().for_each(|spent| spent.apply = apply);
    if compiled.kept.saturating_mul(setup.workers) > MOST_KEPT {
        return Err(RecurrenceRefusal::Memory);
    }
    let ranks = Ranks::new(setup.workers, compiled.kept, costs, host);
    steps::run(setup, costs, each, &mut OneLane { compiled, ranks, apply: apply as f64 }, progress)
}

/// All ranks of a run with one lane.
struct OneLane {
    compiled: Compiled,
    ranks: Ranks,
    apply: f64,
}

impl Together for OneLane {
    fn step(&mut self, passes: &[Time]) -> Result<(), RecurrenceRefusal> {
        let Self { compiled, ranks, apply } = self;
        ranks.time.iter_mut().zip(passes).for_each(|(time, pass)| *time += *pass as f64);
        for round in &compiled.rounds {
            round.sends.iter().for_each(|run| ranks.send(run, &compiled.table));
            for run in &round.receives {
                ranks.receive(run, &compiled.table)?;
            }
        }
        ranks.time.iter_mut().zip(&ranks.left).for_each(|(time, left)| *time = larger(*time + *apply, *left));
        Ok(())
    }

    fn ends(&self, ends: &mut Vec<Time>) {
        ends.extend(self.ranks.time.iter().map(|time| *time as Time));
    }

    fn state(&self, first: Time) -> Vec<Time> {
        let Ranks { time, sends, receives, latest, .. } = &self.ranks;
        let free = sends.iter().chain(receives).map(|time| (*time as Time).max(first) - first);
        // Messages of several senders must come later than the last one, which may have been there long ago.
        let latest = latest.iter().map(|time| (*time as Time).wrapping_sub(first));
        time.iter().map(|time| *time as Time - first).chain(free).chain(latest).collect()
    }

    fn move_on(&mut self, by: Time) {
        let Ranks { time, sends, receives, latest, left, .. } = &mut self.ranks;
        for times in [time, sends, receives, latest, left] {
            times.iter_mut().for_each(|time| *time += by as f64);
        }
    }
}

/// What all hosts are, if they are alike and nobody shares their cores.
fn alike(setup: &Setup, costs: &Costs) -> Result<Host, RecurrenceRefusal> {
    let all = |rank: Rank| [costs.host_of(rank), costs.machine_of(rank)];
    let last = (0..setup.workers).flat_map(all).max().unwrap_or(0);
    // Ranks that compute on each host, and hosts that somebody uses.
    let (mut ranks, mut used) = (vec![0; last + 1], vec![false; last + 1]);
    for rank in 0..setup.workers {
        ranks[costs.machine_of(rank)] += 1;
        all(rank).into_iter().for_each(|host| used[host] = true);
    }
    let first = costs.host(costs.host_of(0)).unshared();
    for (host, count) in ranks.into_iter().enumerate().filter(|(host, _)| used[*host]) {
        let own = costs.host(host);
        let shared = (1..=count).any(|n| own.shared_by(n) != 1.0 || own.pass_shared_by(n) != 1.0);
        if shared {
            return Err(RecurrenceRefusal::SharedCores);
        }
        if own.unshared() != first {
            return Err(RecurrenceRefusal::Hosts);
        }
    }
    Ok(first)
}

impl Compiled {
    fn new(
        setup: &Setup,
        path: CollectivePath,
        costs: &Costs,
        host: &Host,
        lane: &Range<usize>,
    ) -> Result<Self, RecurrenceRefusal> {
        let p = setup.workers;
        let (mut rounds, mut table): (Vec<Round>, _) = (Vec::new(), Table::default());
        // Where the pieces of each length begin in the table.
        let mut places: Vec<Option<usize>> = Vec::new();
        let (mut spent, mut sent_bytes, mut messages) = (vec![SimulatedTimes::default(); p], vec![0; p], 0);
        let mut needed: Vec<bool> = Vec::new();
        let topology = setup.topology();
        // One lane is one bucket.
        let bytes = lane.len() * size_of::<f32>();
        let call = CollectiveCall { topology: &topology, bytes, paths: &setup.paths };
        for rank in 0..p {
            let schedule = (path.reduce)(rank, &call);
            let mut before = None;
            // The last round in which this rank sent each chunk.
            let mut sent = vec![NOTHING; schedule.chunks];
            let mut place = |piece: &Piece| {
                if places.len() <= piece.count {
                    places.resize(piece.count + 1, None);
                }
                let base = *places[piece.count]
                    .get_or_insert_with(|| table.add_pieces(costs, host, lane, schedule.chunks, piece.count));
                base + piece.first
            };
            for step in &schedule.moves {
                let round = step.round as usize;
                if before.is_some_and(|before| before >= round) {
                    return Err(RecurrenceRefusal::StepProtocol);
                }
                before = Some(round);
                if rounds.len() <= round {
                    rounds.resize_with(round + 1, Round::default);
                    needed.resize(round + 1, false);
                }
                let here = costs.host_of(rank);
                let run = |piece: &Piece, at: usize, kept: u32| Run {
                    rank,
                    peer: piece.peer,
                    len: 1,
                    piece: at,
                    stride: 0,
                    combine: piece.combine,
                    local: costs.host_of(piece.peer) == here,
                    kept,
                    mixed: false,
                };
                if let Some(piece) = &step.send {
                    sent[piece.first..piece.first + piece.count].fill(step.round);
                    let at = place(piece);
                    extend(&mut rounds[round].sends, run(piece, at, NOTHING));
                    messages += 1;
                }
                if let Some(piece) = &step.receive {
                    let chunks = &sent[piece.first..piece.first + piece.count];
                    let last = chunks.iter().copied().filter(|round| *round != NOTHING).max();
                    last.into_iter().for_each(|round| needed[round as usize] = true);
                    let at = place(piece);
                    extend(&mut rounds[round].receives, run(piece, at, last.unwrap_or(NOTHING)));
                }
            }
            for step in &schedule.moves {
                let elements = |piece: &Piece| {
                    let end = part(lane, schedule.chunks, piece.first + piece.count - 1).end;
                    end - part(lane, schedule.chunks, piece.first).start
                };
                if let Some(piece) = &step.send {
                    let at = places[piece.count].unwrap_or_default() + piece.first;
                    spent[rank].exchange += table.send[at] as Time;
                    spent[rank].sent_bytes += costs.bytes(elements(piece)) as u64;
                    sent_bytes[rank] += 4 * elements(piece) as u64;
                }
                if let Some(piece) = &step.receive {
                    let at = places[piece.count].unwrap_or_default() + piece.first;
                    spent[rank].exchange += table.take(piece.combine)[at] as Time;
                    spent[rank].received_bytes += costs.bytes(elements(piece)) as u64;
                }
            }
        }
        let mut compiled = Self { rounds, table, kept: 0, spent, sent_bytes, messages };
        compiled.keep(&needed);
        compiled.order(costs, p)?;
        Ok(compiled)
    }

    /// Numbers the rounds whose ends somebody waits for.
    fn keep(&mut self, needed: &[bool]) {
        let mut numbers = vec![NOTHING; needed.len()];
        for round in (0..needed.len()).filter(|round| needed[*round]) {
            numbers[round] = self.kept as u32;
            self.kept += 1;
        }
        for (round, Round { sends, receives }) in self.rounds.iter_mut().enumerate() {
            sends.iter_mut().for_each(|run| run.kept = numbers[round]);
            for run in receives.iter_mut().filter(|run| run.kept != NOTHING) {
                run.kept = numbers[run.kept as usize];
            }
        }
    }

    /// Each host's interface must be used by one of its ranks alone, in each direction; ranks that hear from
    /// several others are marked.
    fn order(&mut self, costs: &Costs, p: usize) -> Result<(), RecurrenceRefusal> {
        let hosts = (0..p).map(|rank| costs.host_of(rank)).max().map_or(0, |last| last + 1);
        let (mut sender, mut receiver) = (vec![None; hosts], vec![None; hosts]);
        let (mut from, mut mixed) = (vec![None; p], vec![false; p]);
        let alone = |user: &mut Option<Rank>, rank: Rank| *user.get_or_insert(rank) == rank;
        for round in &self.rounds {
            for run in round.sends.iter().filter(|run| !run.local) {
                let mut ranks = run.rank..run.rank + run.len;
                if !ranks.all(|rank| alone(&mut sender[costs.host_of(rank)], rank)) {
                    return Err(RecurrenceRefusal::Hosts);
                }
            }
            for run in round.receives.iter().filter(|run| !run.local) {
                for i in 0..run.len {
                    let rank = run.rank + i;
                    if !alone(&mut receiver[costs.host_of(rank)], rank) {
                        return Err(RecurrenceRefusal::Hosts);
                    }
                    mixed[rank] |= !alone(&mut from[rank], run.peer + i);
                }
            }
        }
        for run in self.rounds.iter_mut().flat_map(|round| &mut round.receives) {
            run.mixed = !run.local && mixed[run.rank..run.rank + run.len].contains(&true);
        }
        Ok(())
    }
}

/// Adds a rank's move to the last run, if it goes on there.
fn extend(runs: &mut Vec<Run>, next: Run) {
    if let Some(last) = runs.last_mut() {
        let stride = next.piece.wrapping_sub(last.piece + last.stride * (last.len - 1));
        let goes_on = (last.rank + last.len, last.peer + last.len) == (next.rank, next.peer)
            && (last.combine, last.local, last.kept) == (next.combine, next.local, next.kept)
            && stride <= 1
            && (last.len == 1 || stride == last.stride);
        if goes_on {
            last.stride = stride;
            last.len += 1;
            return;
        }
    }
    runs.push(next);
}

impl Table {
    /// Adds the pieces of `count` chunks; where they begin.
    fn add_pieces(
        &mut self,
        costs: &Costs,
        host: &Host,
        lane: &Range<usize>,
        chunks: usize,
        count: usize,
    ) -> usize {
        let base = self.send.len();
        for first in 0..=chunks - count {
            let elements = part(lane, chunks, first + count - 1).end - part(lane, chunks, first).start;
            let bytes = costs.bytes(elements);
            let handling = costs.handling(bytes, host.speed);
            let region = |buf| Region { buf, offset: 0, len: elements };
            let (dst, src) = (region(Buf::Grad), region(Buf::Scratch(0)));
            let take = |action: &Action| ((costs.work.of(action) / host.speed) as Time + handling) as f64;
            self.send.push(handling as f64);
            self.transfer.push(host.transfer(bytes) as f64);
            self.add.push(take(&Action::Reduce { dst, src }));
            self.replace.push(take(&Action::Copy { dst, src }));
        }
        base
    }

    fn take(&self, combine: Combine) -> &[f64] {
        match combine {
            Combine::Add => &self.add,
            Combine::Replace => &self.replace,
        }
    }
}

/// Where every rank is, in nanoseconds. (Whole numbers: sums of them are exact up to 104 days.)
struct Ranks {
    /// When it has done what it was last asked for.
    time: Vec<f64>,
    /// When its interface is free to send, and to receive.
    sends: Vec<f64>,
    receives: Vec<f64>,
    /// When its last send has left.
    left: Vec<f64>,
    /// When the first bit (inside a host: the whole) of its last message is there.
    first_bit: Vec<f64>,
    /// The first bit that came to it last.
    latest: Vec<f64>,
    /// When sends of earlier rounds have left, for those who wait for that.
    kept: Vec<f64>,
    latency: f64,
    local_latency: f64,
    room: f64,
}

impl Ranks {
    fn new(p: usize, kept: usize, costs: &Costs, host: &Host) -> Self {
        let zeros = || vec![0.0; p];
        Self {
            time: zeros(),
            sends: zeros(),
            receives: zeros(),
            left: zeros(),
            first_bit: zeros(),
            latest: vec![-1.0; p],
            kept: vec![0.0; kept * p],
            latency: host.latency as f64,
            local_latency: costs.local_latency as f64,
            room: host.transfer(costs.buffer) as f64,
        }
    }

    fn kept(&self, run: &Run) -> Range<usize> {
        let start = run.kept as usize * self.time.len() + run.rank;
        start..start + run.len
    }

    fn send(&mut self, run: &Run, table: &Table) {
        let ranks = run.rank..run.rank + run.len;
        let (kept, keeps) = (self.kept(run), run.kept != NOTHING);
        let (latency, local, room) = (self.latency, self.local_latency, self.room);
        let time = &mut self.time[ranks.clone()];
        let left = &mut self.left[ranks.clone()];
        let first_bit = &mut self.first_bit[ranks.clone()];
        let sends = &mut self.sends[ranks];
        let pieces = run.piece..run.piece + run.stride * (run.len - 1) + 1;
        let (send, transfer) = (&table.send[pieces.clone()], &table.transfer[pieces]);
        let all = time.iter_mut().zip(left.iter_mut()).zip(first_bit.iter_mut()).zip(sends.iter_mut());
        if run.local {
            for (i, (((time, left), first_bit), _)) in all.enumerate() {
                *time += send[i * run.stride];
                (*left, *first_bit) = (larger(*left, *time), *time + local);
            }
        } else {
            let one = |(((time, left), first_bit), sends): (((&mut f64, &mut f64), &mut f64), &mut f64),
                       cpu: f64,
                       wire: f64| {
                let at = *time + cpu;
                let begin = larger(at, *sends);
                (*time, *sends, *first_bit) = (at, begin + wire, begin + latency);
                *left = larger(at, begin + wire - room);
            };
            if run.stride == 1 {
                all.zip(send).zip(transfer).for_each(|((rank, cpu), wire)| one(rank, *cpu, *wire));
            } else {
                all.for_each(|rank| one(rank, send[0], transfer[0]));
            }
        }
        if keeps {
            self.kept[kept].copy_from_slice(left);
        }
    }

    fn receive(&mut self, run: &Run, table: &Table) -> Result<(), RecurrenceRefusal> {
        let ranks = run.rank..run.rank + run.len;
        let (kept, keeps) = (self.kept(run), run.kept != NOTHING);
        let first_bit = &self.first_bit[run.peer..run.peer + run.len];
        let pieces = run.piece..run.piece + run.stride * (run.len - 1) + 1;
        let (transfer, take) = (&table.transfer[pieces.clone()], &table.take(run.combine)[pieces]);
        let time = &mut self.time[ranks.clone()];
        if keeps {
            // What is replaced must have left.
            time.iter_mut().zip(&self.kept[kept]).for_each(|(time, left)| *time = larger(*time, *left));
        }
        if run.local {
            for (i, (time, there)) in time.iter_mut().zip(first_bit).enumerate() {
                *time = larger(*time, *there) + take[i * run.stride];
            }
            return Ok(());
        }
        if run.mixed {
            for (latest, first_bit) in self.latest[ranks.clone()].iter_mut().zip(first_bit) {
                if *first_bit <= *latest {
                    return Err(RecurrenceRefusal::Order);
                }
                *latest = *first_bit;
            }
        }
        let receives = &mut self.receives[ranks];
        let all = time.iter_mut().zip(receives.iter_mut()).zip(first_bit);
        let one = |((time, receives), first_bit): ((&mut f64, &mut f64), &f64), wire: f64, cpu: f64| {
            *receives = larger(*receives, *first_bit) + wire;
            *time = larger(*time, *receives) + cpu;
        };
        if run.stride == 1 {
            all.zip(transfer).zip(take).for_each(|((rank, wire), cpu)| one(rank, *wire, *cpu));
        } else {
            all.for_each(|rank| one(rank, transfer[0], take[0]));
        }
        Ok(())
    }
}

/// The larger one of two numbers, as processors know it.
fn larger(a: f64, b: f64) -> f64 {
    if a > b { a } else { b }
}
