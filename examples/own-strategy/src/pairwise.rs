//! Pairwise all-reduce: everybody sends each chunk straight to its owner, and each owner sends the sum straight back.
//!
//! As many bytes as round the ring, and each number travels two hops instead of 2(p − 1); but every worker talks with
//! every other.

use paceline::protocol::{
    COLLECTIVE, CollectiveCall, CollectivePath, Move, Piece, Rank, Schedule, Strategy, collective,
};

pub static PAIRWISE: Strategy = Strategy {
    name: "pairwise",
    about: "each chunk to its owner and back, round by round",
    detail: "The buffer is cut into p chunks, chunk r being worker r's. Everybody sends its part of chunk r to \
             worker r, which adds up what comes and sends the sum to everybody; in each round everybody sends one \
             message and waits for one. Paceline's own direct does not wait in between.",
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
fn reduce(rank: Rank, call: &CollectiveCall<'_>) -> Schedule {
    let p = call.positions();
    // In round k everybody sends to the k-th worker after it, and hears from the k-th before it.
    let scatter = (1..p).map(|k| {
        let (to, from) = peers(rank, p, k);
        Move { round: k as u32, send: Piece::add(to, to, 1), receive: Piece::add(from, rank, 1) }
    });
    let spread =
        gather(rank, call).moves.into_iter().map(|each| Move { round: each.round + p as u32, ..each });
    Schedule { chunks: p, piece: 1, moves: scatter.chain(spread).collect() }
}

/// Everybody has one chunk; in the end everybody has all.
fn gather(rank: Rank, call: &CollectiveCall<'_>) -> Schedule {
    let p = call.positions();
    let moves = (1..p).map(|k| {
        let (to, from) = peers(rank, p, k);
        Move { round: k as u32, send: Piece::replace(to, rank, 1), receive: Piece::replace(from, from, 1) }
    });
    Schedule { chunks: p, piece: 1, moves: moves.collect() }
}

/// The k-th worker after a rank, and the k-th before it.
fn peers(rank: Rank, p: usize, k: usize) -> (Rank, Rank) {
    ((rank + k) % p, (rank + p - k) % p)
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_passes_the_conformance_suite() {
        paceline::conformance::strategy(&super::PAIRWISE);
    }
}
