//! Direct all-reduce: everybody sends each chunk straight to its owner, and each owner sends the sum straight back.
//!
//! As many bytes as round the ring, and each number travels two hops instead of 2(p − 1); but every worker talks with
//! every other.

use paceline::protocol::{COLLECTIVE, CollectivePath, Move, Piece, Rank, Schedule, Strategy, collective};

pub static DIRECT: Strategy = Strategy {
    name: "direct",
    about: "each chunk straight to its owner, the sums straight back: two hops",
    detail: "The buffer is cut into p chunks, chunk r being worker r's. Everybody sends its part of chunk r to \
             worker r, which adds up what comes and sends the sum to everybody.",
    cost: "2(p−1)α + 2·(p−1)/p·n/B",
    good: "Few workers that all reach each other.",
    bad: "Many workers: p(p − 1) links.",
    make: |setup, rank| collective::make(PATH, setup, rank),
    links: |setup, rank| (0..setup.workers).filter(|peer| *peer != rank).collect(),
    path: Some(PATH),
    ..COLLECTIVE
};

const PATH: CollectivePath = CollectivePath { reduce, gather };

/// In the end everybody has every chunk's sum.
fn reduce(rank: Rank, p: usize) -> Schedule {
    // In round k everybody sends to the k-th worker after it, and hears from the k-th before it.
    let scatter = (1..p).map(|k| {
        let (to, from) = peers(rank, p, k);
        Move { round: k as u16, send: Piece::add(to, to, 1), receive: Piece::add(from, rank, 1) }
    });
    let spread = gather(rank, p).moves.into_iter().map(|each| Move { round: each.round + p as u16, ..each });
    Schedule { chunks: p, piece: 1, moves: scatter.chain(spread).collect() }
}

/// Everybody has one chunk; in the end everybody has all.
fn gather(rank: Rank, p: usize) -> Schedule {
    let moves = (1..p).map(|k| {
        let (to, from) = peers(rank, p, k);
        Move { round: k as u16, send: Piece::replace(to, rank, 1), receive: Piece::replace(from, from, 1) }
    });
    Schedule { chunks: p, piece: 1, moves: moves.collect() }
}

/// The k-th worker after a rank, and the k-th before it.
fn peers(rank: Rank, p: usize, k: usize) -> (Rank, Rank) {
    ((rank + k) % p, (rank + p - k) % p)
}
