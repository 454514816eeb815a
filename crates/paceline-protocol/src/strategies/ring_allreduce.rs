//! Ring all-reduce: reduce-scatter, then all-gather.

use super::{COLLECTIVE, Strategy, ring_links};
use crate::collective;
use crate::schedule::{CollectiveCall, CollectivePath, Move, Piece, Schedule};
use crate::vocabulary::Rank;

pub(super) const RING_ALLREDUCE: Strategy = Strategy {
    name: "ring-allreduce",
    about: "reduce-scatter, then all-gather round the ring: the fewest bytes",
    detail: "The buffer is cut into p chunks. In p − 1 rounds each chunk travels once round the ring and \
             gathers its sum; in p − 1 more the sums travel round to everybody. Every worker sends and receives the same, \
             at the same time, with two neighbours only.",
    cost: "2(p−1)α + 2·(p−1)/p·n/B",
    good: "Large models and any number of workers: no other path moves fewer bytes per worker.",
    bad: "Latency: 2(p − 1) messages follow one another, so small models and many workers wait for α.",
    make: |setup, rank| collective::make(PATH, setup, rank),
    links: ring_links,
    path: Some(PATH),
    ..COLLECTIVE
};

/// Also what `local` averages along.
pub(super) const PATH: CollectivePath = CollectivePath { reduce, gather };

fn reduce(rank: Rank, call: &CollectiveCall<'_>) -> Schedule {
    let p = call.positions();
    let (next, before) = ((rank + 1) % p, (rank + p - 1) % p);
    // (Schedules of many thousand workers are made to be simulated: no divisions.)
    let chunk = |back: usize| if back <= rank { rank - back } else { rank + p - back };
    let after = |chunk: usize| if chunk + 1 < p { chunk + 1 } else { 0 };
    let rounds = p - 1;
    let scatter = (0..rounds).map(|k| Move {
        round: k as u32,
        send: Piece::add(next, chunk(k), 1),
        receive: Piece::add(before, chunk(k + 1), 1),
    });
    let spread = (0..rounds).map(|k| Move {
        round: (rounds + k) as u32,
        send: Piece::replace(next, after(chunk(k)), 1),
        receive: Piece::replace(before, chunk(k), 1),
    });
    Schedule { chunks: p, piece: 1, moves: scatter.chain(spread).collect() }
}

fn gather(rank: Rank, call: &CollectiveCall<'_>) -> Schedule {
    let p = call.positions();
    let (next, before) = ((rank + 1) % p, (rank + p - 1) % p);
    let chunk = |back: usize| (rank + p - back) % p;
    let moves = (0..p - 1).map(|k| Move {
        round: k as u32,
        send: Piece::replace(next, chunk(k), 1),
        receive: Piece::replace(before, chunk(k + 1), 1),
    });
    Schedule { chunks: p, piece: 1, moves: moves.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_times_p_minus_1_chunks_go_to_one_neighbour() {
        let topology = crate::topology::Topology::apart(5);
        let s = reduce(2, &CollectiveCall { topology: &topology, bytes: 0, paths: &[] });
        assert_eq!((s.moves.len(), s.chunks), (8, 5));
        assert!(s.moves.iter().all(|m| m.send.unwrap().peer == 3 && m.receive.unwrap().peer == 1));
    }
}
