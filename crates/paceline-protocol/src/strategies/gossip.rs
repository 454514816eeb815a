//! Gossip: after its own update, each worker averages its weights with one or two neighbours.

use std::collections::HashMap;
use std::ops::Range;

use super::{COLLECTIVE, ReplicaAgreement, Strategy, refuse_lossy, ring_links};
use crate::codec::{Accumulate, Coder};
use crate::options::{Kind, Parameter};
use crate::setup::{Averages, Setup, pieces};
use crate::step_driver::{StepDriver, StepProtocol};
use crate::vocabulary::{Action, Actions, Buf, GradientScale, MessageHead, MsgId, OpId, Rank, Region, Tag};

pub(super) const GOSSIP: Strategy = Strategy {
    name: "gossip",
    about: "each worker averages its weights with one or two neighbours on the ring",
    detail: "After its own update a worker sends its weights to its neighbours and takes the mean of what it \
             has and what they have. Two neighbours: the mean of three. One: pairs that alternate from step \
             to step. News of a worker travels one place per step, so replicas agree only in the limit.",
    cost: "α + n/B per neighbour",
    good: "Latency: one exchange per step whatever the number of workers, and a slow worker holds up its \
           neighbours only.",
    bad: "Many workers with different data: on a ring of 64 about three quarters of the disagreement \
          (variance) is left after each step.",
    loss: "The lost worker's neighbours become each other's, and its weights are gone. Until then the ring's mean was \
           that of all p workers; from then on it is that of the others: it jumps by (m − x)/(p − 1), where m is \
           the mean and x what the lost worker had. What the others have taken from it before stays with them. An \
           exchange under way is given up, piece by piece: a worker that has taken the mean with its neighbours keeps \
           it, others keep their own weights. Where one side only has taken it, the others' mean moves by what that \
           one took, divided by p − 1. No piece is averaged twice, and what weights count always adds up to 1.",
    parameters: &[&NEIGHBOURS],
    averages: &[Averages::Weights],
    make: |setup, rank| Box::new(StepDriver::new(setup, rank, Gossip::new(setup, rank))),
    links: ring_links,
    check: |setup| refuse_lossy(setup, "gossip"),
    agreement: |setup| if setup.workers == 1 { ReplicaAgreement::Exact } else { ReplicaAgreement::Apart },
    ..COLLECTIVE
};

const NEIGHBOURS: Parameter = Parameter {
    name: "neighbours",
    about: "with how many neighbours a worker exchanges in each step",
    default: "2",
    kind: Kind::Choice(&["1", "2"]),
};

/// With whom a worker exchanges in a step.
fn neighbours(rank: Rank, p: usize, step: u64, count: u64) -> Vec<Rank> {
    if count == 2 {
        let mut both = vec![(rank + p - 1) % p, (rank + 1) % p];
        both.dedup();
        both.retain(|&peer| peer != rank);
        return both;
    }
    // Pairs (0,1), (2,3), … in even steps, (1,2), (3,4), … in odd ones; with an odd number somebody rests.
    let up = rank.is_multiple_of(2) == step.is_multiple_of(2);
    let peer = if up { rank + 1 } else { rank + p - 1 };
    let wraps = if up { peer >= p } else { rank == 0 };
    if p == 1 || wraps && !p.is_multiple_of(2) { Vec::new() } else { vec![peer % p] }
}

struct Gossip {
    lanes: Vec<Lane>,
    rank: Rank,
    workers: usize,
    count: u64,
    coder: Option<Coder>,
    generation: u32,
    step: u64,
    peers: Vec<Rank>,
    /// Bodies that have come, by lane, step and sender.
    held: HashMap<(usize, u32, Rank), MsgId>,
    sends: HashMap<OpId, usize>,
    /// Lanes that are not mixed in this step, and the first of them.
    open: usize,
    first: usize,
}

struct Lane {
    range: Range<usize>,
    /// Where its code lies until it has left.
    code: usize,
    /// Sends that still read it.
    leaving: usize,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Idle,
    Updated,
    Mixed,
}

impl Gossip {
    fn new(setup: &Setup, rank: Rank) -> Self {
        let ranges = setup.buckets().into_iter().flat_map(|bucket| pieces(&bucket, setup.message));
        let mut at = 0;
        let lanes = ranges.map(|range| {
            let words = setup.coder.map_or(0, |coder| coder.words(range.len()));
            at += words;
            Lane { range, code: at - words, leaving: 0, stage: Stage::Idle }
        });
        Self {
            lanes: lanes.collect(),
            rank,
            workers: setup.workers,
            count: setup.options.count(&NEIGHBOURS),
            coder: setup.coder,
            generation: setup.generation,
            step: 0,
            peers: Vec::new(),
            held: HashMap::new(),
            sends: HashMap::new(),
            open: 0,
            first: 0,
        }
    }

    fn send(&mut self, lane: usize, out: &mut Actions) {
        let params = Region::new(Buf::Param, self.lanes[lane].range.clone());
        let body = self.coder.map_or(params, |coder| {
            let len = coder.words(params.len);
            let dst = Region { buf: Buf::Scratch(0), offset: self.lanes[lane].code, len };
            out.push(Action::Encode { coder, dst, src: params, feedback: false });
            dst
        });
        let (generation, step) = (self.generation, self.step as u32);
        let tag = Tag { generation, step, bucket: lane as u32, phase: 0 };
        for &peer in &self.peers {
            let op = out.send(peer, tag, MessageHead::default(), Some(body));
            self.sends.insert(op, lane);
        }
        self.lanes[lane].leaving = self.peers.len();
        self.lanes[lane].stage = Stage::Updated;
    }

    /// Takes the mean once everybody's weights are there and the own ones have left.
    fn mix(&mut self, lane: usize, out: &mut Actions) {
        let key = |peer| (lane, self.step as u32, peer);
        let there = self.peers.iter().all(|&peer| self.held.contains_key(&key(peer)));
        if self.lanes[lane].stage != Stage::Updated || self.lanes[lane].leaving > 0 || !there {
            return;
        }
        let dst = Region::new(Buf::Param, self.lanes[lane].range.clone());
        for peer in self.peers.clone() {
            let Some(msg) = self.held.remove(&(lane, self.step as u32, peer)) else { continue };
            out.push(Action::take(self.coder, dst, msg, Accumulate::Add));
            out.push(Action::Release(msg));
        }
        if !self.peers.is_empty() {
            out.push(Action::Scale { dst, by: 1.0 / (self.peers.len() + 1) as f32 });
        }
        self.lanes[lane].stage = Stage::Mixed;
        self.open -= 1;
        while self.lanes.get(self.first).is_some_and(|lane| lane.stage == Stage::Mixed) {
            self.first += 1;
        }
    }
}

impl StepProtocol for Gossip {
    fn scale(&self) -> GradientScale {
        GradientScale::Even
    }

    fn begin(&mut self, step: u64, _: &mut Actions) {
        (self.step, self.open, self.first) = (step, self.lanes.len(), 0);
        self.lanes.iter_mut().for_each(|lane| lane.stage = Stage::Idle);
        self.peers = neighbours(self.rank, self.workers, step, self.count);
    }

    fn gradients(&mut self, _: usize, _: &mut Actions) {}

    fn backward_done(&mut self, out: &mut Actions) {
        for lane in 0..self.lanes.len() {
            let [params, grad] =
                [Buf::Param, Buf::Grad].map(|buf| Region::new(buf, self.lanes[lane].range.clone()));
            out.push(Action::Apply { params, grad, step: self.step, whole: true });
            self.send(lane, out);
            self.mix(lane, out);
        }
    }

    fn message(&mut self, from: Rank, tag: Tag, msg: Option<MsgId>, out: &mut Actions) {
        let (Some(msg), lane) = (msg, tag.bucket as usize) else { return };
        if lane >= self.lanes.len() {
            out.push(Action::Release(msg));
            return;
        }
        self.held.insert((lane, tag.step, from), msg);
        self.mix(lane, out);
    }

    fn sent(&mut self, op: OpId, out: &mut Actions) {
        if let Some(lane) = self.sends.remove(&op) {
            self.lanes[lane].leaving -= 1;
            self.mix(lane, out);
        }
    }

    fn over(&self) -> bool {
        self.open == 0
    }

    fn waiting_for(&self) -> Option<Rank> {
        let missing = |peer: &Rank| !self.held.contains_key(&(self.first, self.step as u32, *peer));
        self.peers.iter().copied().find(missing)
    }

    fn release(&mut self, out: &mut Actions) {
        self.held.drain().for_each(|(_, msg)| out.push(Action::Release(msg)));
    }

    fn scratch(&self) -> Vec<usize> {
        let coder = self.coder.iter();
        coder.map(|coder| self.lanes.iter().map(|lane| coder.words(lane.range.len())).sum()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_agree_and_everybody_has_a_partner_when_the_number_is_even() {
        for p in 1..=9 {
            for step in 0..4 {
                for rank in 0..p {
                    for count in [1, 2] {
                        let peers = neighbours(rank, p, step, count);
                        assert!(peers.len() <= count as usize && !peers.contains(&rank));
                        for peer in peers {
                            assert!(neighbours(peer, p, step, count).contains(&rank), "{p} {step} {rank}");
                        }
                    }
                    let alone = neighbours(rank, p, step, 1).is_empty();
                    let odd_one = if step % 2 == 0 { p - 1 } else { 0 };
                    assert_eq!(alone, p % 2 == 1 && rank == odd_one, "{p} {step} {rank}");
                }
            }
        }
    }
}
