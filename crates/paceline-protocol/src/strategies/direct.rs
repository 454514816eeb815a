//! Direct all-reduce: each chunk goes straight to its owner, and the owner's sum straight to everybody.

use std::ops::Range;

use super::{COLLECTIVE, Strategy};
use crate::collective;
use crate::schedule::{CollectiveCall, CollectivePath, Move, Piece, Schedule};
use crate::vocabulary::Rank;

pub(super) const DIRECT: Strategy = Strategy {
    name: "direct",
    about: "each chunk straight to its owner, the sums straight to everybody: two hops",
    detail: "The buffer is cut into p chunks, chunk r being worker r's. Everybody sends its part of each chunk to \
             the chunk's owner, which adds up what comes and sends the sum to everybody. Sends wait for nobody, so \
             that two messages follow one another, however many workers there are.",
    cost: "2α + 2·(p−1)/p·n/B, and 2(p−1) messages per worker",
    good: "Workers of one machine: through shared memory the owner adds straight out of the others' memory. As few \
           bytes as the ring.",
    bad: "Many workers: p(p − 1) links, and messages that get shorter and shorter.",
    make: |setup, rank| collective::make(PATH, setup, rank),
    links: |setup, rank| (0..setup.workers).filter(|peer| *peer != rank).collect(),
    path: Some(PATH),
    ..COLLECTIVE
};

pub(super) const PATH: CollectivePath = CollectivePath { reduce, gather };

fn reduce(rank: Rank, call: &CollectiveCall<'_>) -> Schedule {
    let p = call.positions();
    let everybody: Vec<Rank> = (0..p).collect();
    let circle = Circle { members: &everybody, own: rank, block: &|i| i..i + 1 };
    let mut moves = circle.scatter(0);
    moves.extend(circle.spread(p - 1));
    Schedule { chunks: p, piece: 1, moves }
}

fn gather(rank: Rank, call: &CollectiveCall<'_>) -> Schedule {
    let p = call.positions();
    let everybody: Vec<Rank> = (0..p).collect();
    let circle = Circle { members: &everybody, own: rank, block: &|i| i..i + 1 };
    Schedule { chunks: p, piece: 1, moves: circle.spread(0) }
}

/// Members that all send to each other. In round k everybody sends to the k-th after it and hears from the k-th
/// before it; all sends are made before the first receive, and nobody is sent to by all at once.
pub(super) struct Circle<'a> {
    pub members: &'a [Rank],
    /// The rank's number among them.
    pub own: usize,
    /// The chunks that each member owns.
    pub block: &'a dyn Fn(usize) -> Range<usize>,
}

impl Circle<'_> {
    /// Each block is summed by its owner.
    pub fn scatter(&self, round: usize) -> Vec<Move> {
        let piece = |peer: usize, owner: usize| {
            let block = (self.block)(owner);
            Piece::add(self.members[peer], block.start, block.len())
        };
        self.rounds(round, |to| piece(to, to), |from| piece(from, self.own))
    }

    /// Each owner's block goes to everybody.
    pub fn spread(&self, round: usize) -> Vec<Move> {
        let piece = |peer: usize, owner: usize| {
            let block = (self.block)(owner);
            Piece::replace(self.members[peer], block.start, block.len())
        };
        self.rounds(round, |to| piece(to, self.own), |from| piece(from, from))
    }

    fn rounds(
        &self,
        first: usize,
        sent: impl Fn(usize) -> Option<Piece>,
        received: impl Fn(usize) -> Option<Piece>,
    ) -> Vec<Move> {
        let (own, size) = (self.own, self.members.len());
        let round = |k: usize| (first + k - 1) as u32;
        let sends = (1..size).map(|k| Move { round: round(k), send: sent((own + k) % size), receive: None });
        let receives = (1..size).map(|k| Move {
            round: round(k),
            send: None,
            receive: received((own + size - k) % size),
        });
        sends.chain(receives).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Topology;

    #[test]
    fn no_send_waits_for_a_message_of_its_own_half() {
        let topology = Topology::apart(5);
        let s = reduce(2, &CollectiveCall { topology: &topology, bytes: 0, paths: &[] });
        let sends: Vec<bool> = s.moves.iter().map(|m| m.send.is_some()).collect();
        let half = [true, true, true, true, false, false, false, false];
        assert_eq!(sends, [half, half].concat());
    }
}
