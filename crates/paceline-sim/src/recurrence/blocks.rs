//! A step of a rotation, with neighbouring ranks evaluated together: as long as all ranks of a block do the same
//! things in the same order, their times are vectors. Where they do not, there is no result.

use std::collections::VecDeque;
use std::ops::Range;

use paceline_protocol::{Combine, Time};

use super::RecurrenceRefusal;
use super::evaluation::Evaluation;
use super::rotation::{ChunkCosts, LaneCosts, MARKS, NOTHING, Turn};
use super::stream::RankState;

/// Ranks that are evaluated together: what they need stays in the nearest cache.
const RANKS: usize = 256;

/// A lane's costs in the order of its chunks, twice over: a block's are never apart. (Whole numbers: sums of them are
/// exact up to 104 days.)
struct Tables {
    send: Vec<f64>,
    transfer: Vec<f64>,
    add: Vec<f64>,
    replace: Vec<f64>,
}

impl Tables {
    fn new(lane: &LaneCosts) -> Self {
        let twice = |of: fn(&ChunkCosts) -> u32| {
            lane.chunks.iter().chain(&lane.chunks).map(|chunk| f64::from(of(chunk))).collect()
        };
        Self {
            send: twice(|chunk| chunk.send),
            transfer: twice(|chunk| chunk.transfer),
            add: twice(|chunk| chunk.add),
            replace: twice(|chunk| chunk.replace),
        }
    }

    fn take(&self, combine: Combine) -> &[f64] {
        match combine {
            Combine::Add => &self.add,
            Combine::Replace => &self.replace,
        }
    }
}

/// What all steps have in common.
pub(super) struct Blocks {
    tables: Vec<Tables>,
    /// Whether what a rank gets, and what it sends, passes an interface: 1, or 0.
    inward: Vec<f64>,
    outward: Vec<f64>,
    latency: Vec<f64>,
    /// Whether one lane alone starts first: what comes before may wait for it.
    one_first: bool,
}

/// How far a block is with a lane.
#[derive(Clone, Copy, Default)]
struct LaneState {
    started: bool,
    at: usize,
    /// The last mark that was found to be passed.
    passed: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// A part of the pass is under way.
    Part,
    /// It has ended, and what has come is taken in.
    Draining,
    Waiting,
    Over,
}

struct Block {
    ranks: Range<usize>,
    stage: Stage,
    part: usize,
    open: usize,
    lanes: Vec<LaneState>,
    /// What is on its way to its first rank; and to each of the others, in the order in which they sent it.
    stream: VecDeque<(u32, f64)>,
    pending: VecDeque<u32>,
    /// Nothing that its last rank sends from now on is there before.
    bound: f64,
}

/// A step under way.
struct Step<'a> {
    shared: &'a Blocks,
    evaluation: &'a Evaluation<'a>,
    time: Vec<f64>,
    sends: Vec<f64>,
    receives: Vec<f64>,
    left: Vec<f64>,
    /// When the present part of each pass ends.
    end: Vec<f64>,
    /// When the first bit of each lane's message to each rank is there.
    first_bit: Vec<Vec<f64>>,
    marks: Vec<f64>,
}

impl Blocks {
    pub(super) fn new(evaluation: &Evaluation<'_>) -> Self {
        let flag = |set: bool| if set { 1.0 } else { 0.0 };
        let latency = |out: bool| evaluation.latency_of(out) as f64;
        let started = |from: usize| evaluation.lanes.iter().filter(|lane| lane.start >= from).count();
        let announced = evaluation.parts.iter().filter_map(|part| part.announces);
        let one_first = announced.map(started).find(|lanes| *lanes > 0) == Some(1);
        Self {
            one_first,
            tables: evaluation.lanes.iter().map(Tables::new).collect(),
            inward: evaluation.ranks.iter().map(|rank| flag(rank.hears_from_outside)).collect(),
            outward: evaluation.ranks.iter().map(|rank| flag(rank.sends_out)).collect(),
            latency: evaluation.ranks.iter().map(|rank| latency(rank.sends_out)).collect(),
        }
    }

    /// The times of each rank at the end of the step that all have begun: it is done, its interface is free to send and
    /// to receive, its last send has left.
    pub(super) fn step(&self, evaluation: &Evaluation<'_>) -> Result<Vec<[Time; 4]>, RecurrenceRefusal> {
        if evaluation.rotation.distance != 1 {
            return Err(RecurrenceRefusal::Order);
        }
        let (p, lanes) = (evaluation.ranks.len(), evaluation.lanes.len());
        let times = |of: fn(&RankState) -> Time| -> Vec<f64> {
            evaluation.ranks.iter().map(|rank| of(rank) as f64).collect()
        };
        let mut step = Step {
            shared: self,
            evaluation,
            time: times(|rank| rank.time),
            sends: times(|rank| rank.sends),
            receives: times(|rank| rank.receives),
            left: vec![0.0; p],
            end: vec![0.0; p],
            first_bit: vec![vec![0.0; p]; lanes],
            marks: vec![0.0; p * lanes * MARKS],
        };
        let block = |first: usize| Block {
            ranks: first..(first + RANKS).min(p),
            stage: Stage::Part,
            part: 0,
            open: lanes,
            lanes: vec![LaneState::default(); lanes],
            stream: VecDeque::new(),
            pending: VecDeque::new(),
            bound: 0.0,
        };
        let mut blocks: Vec<Block> = (0..p).step_by(RANKS).map(block).collect();
        for block in &mut blocks {
            step.begin_part(block);
            block.bound = step.time[block.ranks.end - 1];
        }
        let count = blocks.len();
        loop {
            let (mut over, mut moved) = (true, false);
            for i in 0..count {
                if blocks[i].stage == Stage::Over {
                    continue;
                }
                let heard = blocks[(i + count - 1) % count].bound + evaluation.least.1 as f64;
                let (stage, bound, mut out) = (blocks[i].stage, blocks[i].bound, Vec::new());
                let taken = step.go_on(&mut blocks[i], heard, &mut out)?;
                moved |= taken || !out.is_empty() || (blocks[i].stage, blocks[i].bound) != (stage, bound);
                over &= blocks[i].stage == Stage::Over;
                blocks[(i + 1) % count].stream.extend(out);
            }
            if over {
                let all = |i: usize| [step.time[i], step.sends[i], step.receives[i], step.left[i]];
                return Ok((0..p).map(|i| all(i).map(|time| time as Time)).collect());
            }
            if !moved {
                return Err(RecurrenceRefusal::Order);
            }
        }
    }
}

impl Step<'_> {
    /// When the part under way ends, for each rank.
    fn begin_part(&mut self, block: &Block) {
        for rank in block.ranks.clone() {
            let [from, to] = [block.part.checked_sub(1), Some(block.part)].map(|part| {
                let whole = self.evaluation.ranks[rank].whole as f64;
                part.map_or(0.0, |part| (whole * self.evaluation.parts[part].end).trunc())
            });
            self.end[rank] = self.time[rank] + (to - from);
        }
    }

    /// Goes on with a block as far as is known what comes to it; whether it took anything in.
    fn go_on(
        &mut self,
        block: &mut Block,
        heard: f64,
        out: &mut Vec<(u32, f64)>,
    ) -> Result<bool, RecurrenceRefusal> {
        let parts = &self.evaluation.parts;
        let mut taken = false;
        loop {
            match block.stage {
                Stage::Part => {
                    let ranks = block.ranks.clone();
                    self.time[ranks.clone()].copy_from_slice(&self.end[ranks]);
                    let Some(from) = parts[block.part].announces else {
                        self.part_over(block);
                        continue;
                    };
                    block.stage = Stage::Draining;
                    for lane in 0..block.lanes.len() {
                        if !block.lanes[lane].started && self.evaluation.lanes[lane].start >= from {
                            block.lanes[lane].started = true;
                            self.send(block, lane, out);
                        }
                    }
                    // Behind the last part everything is taken in as it comes; nothing before the first lane starts.
                    let idle = self.shared.one_first && !block.lanes.iter().any(|lane| lane.started);
                    if idle || block.part + 1 == parts.len() {
                        self.part_over(block);
                    }
                }
                Stage::Draining => match self.arrived(block, heard)? {
                    Some(true) => {
                        self.take(block, out)?;
                        taken = true;
                    }
                    Some(false) => self.part_over(block),
                    None => break,
                },
                Stage::Waiting if block.open == 0 => block.stage = Stage::Over,
                Stage::Waiting if block.stream.is_empty() => break,
                Stage::Waiting => {
                    self.take(block, out)?;
                    taken = true;
                }
                Stage::Over => break,
            }
        }
        let last = block.ranks.end - 1;
        let earliest = match block.stage {
            Stage::Part => self.end[last],
            Stage::Draining => self.time[last],
            // Its own last rank hears from one that may still send what it sends now.
            Stage::Waiting => self.time[last].max(if block.ranks.len() == 1 { heard } else { 0.0 }),
            Stage::Over => f64::MAX / 2.0,
        };
        block.bound = earliest + self.evaluation.least.0 as f64 + self.shared.latency[last];
        Ok(taken)
    }

    fn part_over(&mut self, block: &mut Block) {
        block.part += 1;
        if block.part < self.evaluation.parts.len() {
            block.stage = Stage::Part;
            self.begin_part(block);
        } else {
            block.stage = Stage::Waiting;
        }
    }

    /// Whether the next message had come to every rank when the part of its pass was over, or to none; nothing if that is
    /// not known yet.
    fn arrived(&self, block: &Block, heard: f64) -> Result<Option<bool>, RecurrenceRefusal> {
        let Range { start, end } = block.ranks;
        let (mut all, mut none) = (true, true);
        let mut look = |rank: usize, there: f64| {
            all &= there < self.end[rank];
            none &= there > self.end[rank];
        };
        let lane = match (block.stream.front(), block.pending.front()) {
            (Some((one, _)), Some(other)) if one != other => return Err(RecurrenceRefusal::Order),
            (Some((lane, _)), _) | (None, Some(lane)) => Some(*lane as usize),
            (None, None) => None,
        };
        let transfer = |rank: usize| match lane {
            Some(lane) => {
                let turn = &self.evaluation.rotation.turns[block.lanes[lane].at];
                let chunk = turn.receive as usize + rank;
                self.shared.tables[lane].transfer[chunk] * self.shared.inward[rank]
            }
            None => 0.0,
        };
        match block.stream.front() {
            Some((_, first_bit)) => look(start, self.receives[start].max(*first_bit) + transfer(start)),
            None => look(start, self.receives[start].max(heard)),
        }
        for rank in start + 1..end {
            match lane.filter(|_| !block.pending.is_empty()) {
                Some(lane) => {
                    look(rank, self.receives[rank].max(self.first_bit[lane][rank]) + transfer(rank));
                }
                // The rank before sends something after the end of its own part at the earliest.
                None => {
                    let sends = self.end[rank - 1] + self.evaluation.least.0 as f64;
                    let wire = self.evaluation.least.1 as f64 * self.shared.inward[rank];
                    look(rank, sends + self.shared.latency[rank - 1] + wire);
                }
            }
        }
        match (all, none) {
            (_, true) => Ok(Some(false)),
            (true, _) if !block.stream.is_empty() => Ok(Some(true)),
            // The first rank's is not known; the others' may all have come.
            _ if block.stream.is_empty() => Ok(None),
            _ => Err(RecurrenceRefusal::Order),
        }
    }

    /// Takes in the next message of each rank, and sends what follows.
    fn take(&mut self, block: &mut Block, out: &mut Vec<(u32, f64)>) -> Result<(), RecurrenceRefusal> {
        let Some((number, first_bit)) = block.stream.pop_front() else { return Ok(()) };
        let lane = number as usize;
        let in_order = block.ranks.len() == 1 || block.pending.pop_front() == Some(number);
        if !in_order || !block.lanes[lane].started {
            return Err(RecurrenceRefusal::Order);
        }
        self.first_bit[lane][block.ranks.start] = first_bit;
        self.receive(block, lane)?;
        if block.lanes[lane].at == self.evaluation.rotation.turns.len() {
            let apply = self.evaluation.lanes[lane].apply as f64;
            self.time[block.ranks.clone()].iter_mut().for_each(|time| *time += apply);
            block.open -= 1;
        } else {
            self.send(block, lane, out);
        }
        Ok(())
    }

    fn receive(&mut self, block: &mut Block, lane: usize) -> Result<(), RecurrenceRefusal> {
        let ranks = block.ranks.clone();
        let LaneState { at, passed, .. } = &mut block.lanes[lane];
        let turn: &Turn = &self.evaluation.rotation.turns[*at];
        let waits = self.time[ranks.clone()].iter_mut().zip(&mut self.receives[ranks.clone()]);
        let chunks = turn.receive as usize + ranks.start..;
        let tables = &self.shared.tables[lane];
        let costs = tables.transfer[chunks.clone()].iter().zip(&tables.take(turn.combine)[chunks]);
        let comes = self.first_bit[lane][ranks.clone()].iter().zip(&self.shared.inward[ranks.clone()]);
        for (((time, receives), (transfer, take)), (first_bit, inward)) in waits.zip(costs).zip(comes) {
            *receives = larger(*receives, *first_bit) + transfer * inward;
            *time = larger(*time, *receives) + take;
        }
        // What is replaced must be known to have left: the interface was free at the next mark.
        if turn.needs != NOTHING && passed.is_none_or(|passed| passed < turn.needs) {
            let marks = &self.marks[self.mark(lane, turn.needs)..];
            let marks = &marks[ranks.clone()];
            if marks.iter().zip(&self.receives[ranks]).any(|(mark, there)| mark >= there) {
                return Err(RecurrenceRefusal::Order);
            }
            *passed = Some(turn.needs);
        }
        *at += 1;
        Ok(())
    }

    fn send(&mut self, block: &mut Block, lane: usize, out: &mut Vec<(u32, f64)>) {
        let ranks = block.ranks.clone();
        let turn = &self.evaluation.rotation.turns[block.lanes[lane].at];
        let chunks = turn.send as usize + ranks.start..;
        let tables = &self.shared.tables[lane];
        let costs = tables.send[chunks.clone()].iter().zip(&tables.transfer[chunks]);
        let ways = self.shared.outward[ranks.clone()].iter().zip(&self.shared.latency[ranks.clone()]);
        let own = self.time[ranks.clone()].iter_mut().zip(&mut self.sends[ranks.clone()]);
        let mut all =
            own.zip(costs).zip(ways).map(|(((time, sends), (send, transfer)), (outward, latency))| {
                *time += send;
                let begin = larger(*time, *sends);
                *sends = begin + transfer * outward;
                begin + latency
            });
        let inner = &mut self.first_bit[lane][ranks.start + 1..ranks.end];
        inner.iter_mut().zip(&mut all).for_each(|(first_bit, sent)| *first_bit = sent);
        out.extend(all.map(|sent| (lane as u32, sent)));
        if ranks.len() > 1 {
            block.pending.push_back(lane as u32);
        }
        if turn.mark != NOTHING {
            let at = self.mark(lane, turn.mark);
            self.marks[at + ranks.start..at + ranks.end].copy_from_slice(&self.sends[ranks.clone()]);
        }
        if block.lanes[lane].at + 1 == self.evaluation.rotation.turns.len() {
            for rank in ranks {
                self.left[rank] = self.time[rank].max(self.sends[rank] - self.evaluation.room as f64);
            }
        }
    }

    /// Where a mark of a lane lies.
    fn mark(&self, lane: usize, mark: u32) -> usize {
        (lane * MARKS + mark as usize) * self.time.len()
    }
}

/// The larger one of two numbers, as processors know it.
fn larger(a: f64, b: f64) -> f64 {
    if a > b { a } else { b }
}
