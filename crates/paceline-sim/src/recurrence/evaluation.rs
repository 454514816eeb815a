//! Runs that are a rotation.
//!
//! What a rank does follows from the stream of messages that comes to it and from its own pass. So ranks are
//! evaluated one after the other, each as far as its stream goes, round and round until all are at the end of the
//! step, whatever the lanes and however their messages follow one another. A rank in its pass looks at what has come
//! when a part is over: then it must be known that nothing more can have come, which a bound on its predecessor's
//! next message tells. Where neighbours do the same in the same order, they are evaluated together (`blocks`).

use std::ops::Range;

use paceline_protocol::{Combine, Rank, Setup, Time};

use super::RecurrenceRefusal;
use super::blocks::Blocks;
use super::rotation::{ChunkCosts, LaneCosts, MARKS, Rotation, Turn};
use super::steps::{self, StepCosts, Together};
use super::stream::{Flying, LaneState, RankRun, RankState, Stage};
use crate::costs::{Costs, Host, PassPart};
use crate::driver::Progress;
use crate::report::{SimulatedTimes, SimulationReport};

/// A run that is a rotation.
pub(super) struct Evaluation<'a> {
    pub(super) setup: &'a Setup,
    pub(super) costs: &'a Costs,
    pub(super) rotation: Rotation,
    pub(super) parts: Vec<PassPart>,
    pub(super) lanes: Vec<LaneCosts>,
    pub(super) ranks: Vec<RankState>,
    states: Vec<LaneState>,
    /// When interfaces were free again after every so many moves of a lane.
    pub(super) marks: Vec<Time>,
    /// What is on its way to each rank.
    pub(super) streams: Vec<Vec<Flying>>,
    pub(super) latency: Time,
    pub(super) room: Time,
    /// The least time of sending, and of passing an interface.
    pub(super) least: (Time, Time),
}

impl<'a> Evaluation<'a> {
    pub(super) fn new(
        setup: &'a Setup,
        costs: &'a Costs,
        host: &Host,
        lanes: &[Range<usize>],
        rotation: Rotation,
    ) -> Result<Self, RecurrenceRefusal> {
        let p = setup.workers;
        let parts = costs.division(setup.params);
        if parts.last().is_none_or(|last| last.announces != Some(0) || last.end != 1.0) {
            return Err(RecurrenceRefusal::StepProtocol);
        }
        let lanes: Option<Vec<LaneCosts>> =
            lanes.iter().map(|lane| LaneCosts::new(costs, host, lane, p)).collect();
        let lanes = lanes.ok_or(RecurrenceRefusal::Variation)?;
        let least = |of: fn(&ChunkCosts) -> u32| {
            lanes.iter().flat_map(|lane| &lane.chunks).map(of).min().unwrap_or(0).into()
        };
        let least = (least(|chunk| chunk.send), least(|chunk| chunk.transfer));
        let mut own = Self {
            setup,
            costs,
            parts,
            ranks: Vec::with_capacity(p),
            states: vec![LaneState::default(); p * lanes.len()],
            marks: vec![0; p * lanes.len() * MARKS],
            streams: vec![Vec::new(); p],
            latency: host.latency,
            room: host.transfer(costs.buffer),
            least,
            lanes,
            rotation,
        };
        for rank in 0..p {
            let next = (rank + own.rotation.distance) % p;
            let before = (rank + p - own.rotation.distance) % p;
            let outside = |other: Rank| costs.host_of(other) != costs.host_of(rank);
            own.ranks.push(RankState {
                stage: Stage::Over,
                part: 0,
                whole: 0,
                done: 0,
                time: 0,
                sends: 0,
                receives: 0,
                left: 0,
                looked: 0,
                open: 0,
                sends_out: outside(next),
                hears_from_outside: outside(before),
                bound: 0,
            });
        }
        own.alone()?;
        Ok(own)
    }

    /// Each host's interface must be used by one of its ranks alone, in each direction.
    fn alone(&self) -> Result<(), RecurrenceRefusal> {
        let hosts =
            (0..self.ranks.len()).map(|rank| self.costs.host_of(rank)).max().map_or(0, |last| last + 1);
        let mut users = vec![[0; 2]; hosts];
        for (rank, state) in self.ranks.iter().enumerate() {
            let [out, into] = &mut users[self.costs.host_of(rank)];
            *out += usize::from(state.sends_out);
            *into += usize::from(state.hears_from_outside);
        }
        let shared = users.iter().any(|[out, into]| *out > 1 || *into > 1);
        if shared { Err(RecurrenceRefusal::Hosts) } else { Ok(()) }
    }

    pub(super) fn run(self, progress: Progress<'_>) -> Result<SimulationReport, RecurrenceRefusal> {
        let each = StepCosts {
            spent: self.spent(),
            messages: (self.ranks.len() * self.rotation.turns.len() * self.lanes.len()) as u64,
            sent_bytes: self.sum(|turn| Some(turn.send), |lane, chunk| 4 * lane.lens[chunk] as u64),
        };
        let (setup, costs, blocks) = (self.setup, self.costs, Blocks::new(&self));
        steps::run(setup, costs, each, &mut InBlocks { evaluation: self, blocks }, progress)
    }

    /// Sums over all moves of each rank: `of` gives what a chunk counts; moves without a chunk are not counted.
    fn sum(&self, chunk: fn(&Turn) -> Option<u32>, of: impl Fn(&LaneCosts, usize) -> u64) -> Vec<u64> {
        let p = self.ranks.len();
        let mut times = vec![0u64; p];
        self.rotation.turns.iter().filter_map(chunk).for_each(|chunk| times[chunk as usize] += 1);
        // Most places are passed equally often: only the others make a difference between ranks.
        let mut sorted = times.clone();
        sorted.sort_unstable();
        let usual = sorted[p / 2];
        let others: Vec<_> = times.iter().enumerate().filter(|(_, times)| **times != usual).collect();
        let mut sums = vec![0; p];
        for lane in &self.lanes {
            let counts: Vec<u64> = (0..p).map(|chunk| of(lane, chunk)).collect();
            let all = usual * counts.iter().sum::<u64>();
            for (rank, sum) in sums.iter_mut().enumerate() {
                *sum += all;
                for &(place, times) in &others {
                    let count = counts[(place + rank) % p];
                    *sum = *sum + times * count - usual * count;
                }
            }
        }
        sums
    }

    /// What a step takes of each rank, besides its pass.
    fn spent(&self) -> Vec<SimulatedTimes> {
        let bytes = |lane: &LaneCosts, chunk: usize| self.costs.bytes(lane.lens[chunk]) as u64;
        let sent = self.sum(|turn| Some(turn.send), bytes);
        let received = self.sum(|turn| Some(turn.receive), bytes);
        let sending = self.sum(|turn| Some(turn.send), |lane, chunk| lane.chunks[chunk].send.into());
        let adding = self.sum(
            |turn| (turn.combine == Combine::Add).then_some(turn.receive),
            |lane, chunk| lane.chunks[chunk].add.into(),
        );
        let replacing = self.sum(
            |turn| (turn.combine == Combine::Replace).then_some(turn.receive),
            |lane, chunk| lane.chunks[chunk].replace.into(),
        );
        let apply = self.lanes.iter().map(|lane| lane.apply).sum();
        let own = |rank: usize| SimulatedTimes {
            exchange: sending[rank] + adding[rank] + replacing[rank],
            apply,
            sent_bytes: sent[rank],
            received_bytes: received[rank],
            ..SimulatedTimes::default()
        };
        (0..self.ranks.len()).map(own).collect()
    }

    /// The step is over for everybody, as blocks of ranks have found.
    fn set(&mut self, times: &[[Time; 4]]) {
        for (rank, [time, sends, receives, left]) in self.ranks.iter_mut().zip(times) {
            (rank.time, rank.sends, rank.receives, rank.left) = (*time, *sends, *receives, *left);
        }
    }

    pub(super) fn latency_of(&self, out: bool) -> Time {
        if out { self.latency } else { self.costs.local_latency }
    }

    fn begin(&mut self, rank: Rank, whole: Time) {
        let lanes = self.lanes.len();
        self.states[rank * lanes..(rank + 1) * lanes].fill(LaneState::default());
        let state = &mut self.ranks[rank];
        (state.part, state.whole, state.done) = (0, whole, 0);
        (state.open, state.left, state.looked) = (lanes, 0, state.time);
        state.bound = state.time;
        state.next_part(&self.parts);
    }

    /// Evaluates all ranks until each is at the end of the step.
    fn one_by_one(&mut self) -> Result<(), RecurrenceRefusal> {
        let p = self.ranks.len();
        let mut spare = Vec::new();
        loop {
            let (mut over, mut moved) = (true, false);
            for rank in 0..p {
                if self.ranks[rank].stage != Stage::Over {
                    moved |= self.go_on(rank, &mut spare)?;
                    over &= self.ranks[rank].stage == Stage::Over;
                }
            }
            if over {
                return Ok(());
            }
            if !moved {
                return Err(RecurrenceRefusal::Order);
            }
        }
    }

    /// Goes on with a rank as far as is known what comes to it; whether that is any further than before.
    fn go_on(&mut self, rank: Rank, spare: &mut Vec<Flying>) -> Result<bool, RecurrenceRefusal> {
        let p = self.ranks.len();
        let (before, next) = ((rank + p - self.rotation.distance) % p, (rank + self.rotation.distance) % p);
        let heard = self.ranks[before].bound;
        let stream = std::mem::take(&mut self.streams[rank]);
        if spare.capacity() > self.streams[next].capacity() {
            // One long stream goes round, not one at each rank.
            spare.extend_from_slice(&self.streams[next]);
            std::mem::swap(spare, &mut self.streams[next]);
        }
        let lanes = self.lanes.len();
        let mut own = RankRun {
            rank,
            state: &mut self.ranks[rank],
            lanes: &mut self.states[rank * lanes..(rank + 1) * lanes],
            marks: &mut self.marks[rank * lanes * MARKS..(rank + 1) * lanes * MARKS],
            costs: &self.lanes,
            rotation: &self.rotation,
            out: &mut self.streams[next],
            latency: self.latency,
            local_latency: self.costs.local_latency,
            room: self.room,
        };
        let was = (own.state.stage, own.state.bound);
        let taken = own.go_on(&stream, &self.parts, heard + self.least.1)?;
        let moved = taken > 0 || was.0 != own.state.stage;
        let earliest = match own.state.stage {
            Stage::Part(end) => end,
            Stage::Draining(_) => own.state.time,
            Stage::Waiting => own.state.time.max(heard + self.least.1),
            // What it sends in its next step nobody waits for in this one.
            Stage::Over => Time::MAX / 2,
        };
        let sends_out = own.state.sends_out;
        let latency = if sends_out { self.latency } else { self.costs.local_latency };
        own.state.bound = earliest + self.least.0 + latency;
        let moved = moved || own.state.bound > was.1;
        // What it could not take in yet stays.
        let rest = &stream[taken..];
        if !rest.is_empty() {
            let mut kept = rest.to_vec();
            kept.append(&mut self.streams[rank]);
            self.streams[rank] = kept;
        }
        *spare = stream;
        spare.clear();
        Ok(moved)
    }
}

/// A rotation whose steps are evaluated in blocks of ranks where that is possible, rank by rank otherwise.
struct InBlocks<'a> {
    evaluation: Evaluation<'a>,
    blocks: Blocks,
}

impl Together for InBlocks<'_> {
    fn step(&mut self, passes: &[Time]) -> Result<(), RecurrenceRefusal> {
        let Self { evaluation, blocks } = self;
        passes.iter().enumerate().for_each(|(rank, pass)| evaluation.begin(rank, *pass));
        match blocks.step(evaluation) {
            Ok(times) => evaluation.set(&times),
            Err(_) => evaluation.one_by_one()?,
        }
        evaluation.ranks.iter_mut().for_each(|rank| rank.time = rank.time.max(rank.left));
        Ok(())
    }

    fn ends(&self, ends: &mut Vec<Time>) {
        ends.extend(self.evaluation.ranks.iter().map(|rank| rank.time));
    }

    fn state(&self, first: Time) -> Vec<Time> {
        let own = |rank: &RankState| [rank.time, rank.sends.max(rank.time), rank.receives.max(first)];
        self.evaluation.ranks.iter().flat_map(own).map(|time| time - first).collect()
    }

    fn move_on(&mut self, by: Time) {
        for rank in &mut self.evaluation.ranks {
            rank.time += by;
            rank.sends += by;
            rank.receives += by;
        }
    }
}
