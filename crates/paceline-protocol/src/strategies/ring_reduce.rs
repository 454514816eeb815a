//! Ring reduce: round the ring to the root, and back round.

use super::{COLLECTIVE, Strategy, ring_links};
use crate::collective;
use crate::schedule::{CollectiveCall, CollectivePath, Move, Piece, Schedule};
use crate::vocabulary::Rank;

pub(super) const RING_REDUCE: Strategy = Strategy {
    name: "ring-reduce",
    about: "the whole buffer travels the ring to the root, the result travels back round",
    detail: "The running sum of the whole buffer goes from worker 1 round the ring to the root (worker \
             0), and \
             the result goes round once more. Buckets pipeline it.",
    cost: "2(p−1)(α + n/B)",
    good: "Two or three workers, and as the plain reference for what a ring can save.",
    bad: "More workers: each hop carries the whole buffer, and most workers wait most of the time.",
    make: |setup, rank| collective::make(PATH, setup, rank),
    links: ring_links,
    path: Some(PATH),
    ..COLLECTIVE
};

const PATH: CollectivePath = CollectivePath { reduce, gather };

/// On the way in, rank r (the root counts as p) receives in round r − 2 and sends in round r − 1; on the way
/// out it receives in round p + r − 2 and sends in round p + r − 1. `inward(r)` is what rank r sends on the
/// way in, `all` what everybody has in the end.
fn round_trip(rank: Rank, p: usize, inward: impl Fn(Rank, Rank) -> Option<Piece>, all: usize) -> Vec<Move> {
    let mut moves = Vec::new();
    if p > 1 {
        let (next, before) = ((rank + 1) % p, (rank + p - 1) % p);
        let turn = if rank == 0 { p } else { rank };
        if turn >= 2 {
            let receive = inward(before, before);
            moves.push(Move { round: (turn - 2) as u32, send: None, receive });
        }
        if rank != 0 {
            moves.push(Move { round: (turn - 1) as u32, send: inward(rank, next), receive: None });
            let receive = Piece::replace(before, 0, all);
            moves.push(Move { round: (p + rank - 2) as u32, send: None, receive });
        }
        if rank != p - 1 {
            let send = Piece::replace(next, 0, all);
            moves.push(Move { round: (p + rank - 1) as u32, send, receive: None });
        }
    }
    moves
}

fn reduce(rank: Rank, call: &CollectiveCall<'_>) -> Schedule {
    let p = call.positions();
    let moves = round_trip(rank, p, |_, peer| Piece::add(peer, 0, 1), 1);
    Schedule { chunks: 1, piece: 1, moves }
}

fn gather(rank: Rank, call: &CollectiveCall<'_>) -> Schedule {
    let p = call.positions();
    let moves = round_trip(rank, p, |sender, peer| Piece::replace(peer, 1, sender), p);
    Schedule { chunks: p, piece: p, moves }
}
