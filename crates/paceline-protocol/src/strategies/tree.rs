//! Binomial tree: reduce to the root, then broadcast.

use super::{COLLECTIVE, Strategy};
use crate::collective;
use crate::schedule::{CollectiveCall, CollectivePath, Move, Piece, Schedule};
use crate::vocabulary::Rank;

pub(super) const TREE: Strategy = Strategy {
    name: "tree",
    about: "binomial tree: sums travel up to the root, the result travels down",
    detail: "In round i, a worker whose i-th bit is set hands its sum to the one without that bit; after \
             ⌈log2 p⌉ rounds worker 0 has the sum of all, and the same edges carry it back.",
    cost: "2⌈log2 p⌉(α + n/B); the root sends ⌈log2 p⌉·n",
    good: "Small models and many workers: the number of rounds grows with log p only.",
    bad: "Large models: every message is the whole buffer, and the root sends more of them than anybody.",
    make: |setup, rank| collective::make(PATH, setup, rank),
    links: |setup, rank| {
        let mut links: Vec<Rank> = children(rank, setup.workers).map(|(_, child)| child).collect();
        links.extend(parent(rank));
        links.sort_unstable();
        links
    },
    path: Some(PATH),
    ..COLLECTIVE
};

pub(super) const PATH: CollectivePath = CollectivePath { reduce, gather };

fn levels(p: usize) -> u32 {
    p.next_power_of_two().trailing_zeros()
}

fn parent(rank: Rank) -> Option<Rank> {
    (rank > 0).then(|| rank & (rank - 1))
}

/// The rounds in which a rank hears from its children, and the children; each child's sum covers the ranks
/// from itself up to the next sibling.
fn children(rank: Rank, p: usize) -> impl DoubleEndedIterator<Item = (u32, Rank)> {
    let own = if rank == 0 { levels(p) } else { rank.trailing_zeros() };
    (0..own).map(move |k| (k, rank + (1 << k))).filter(move |(_, child)| *child < p)
}

/// Up and down the tree: `up(r, peer)` is what rank r hands to its parent, `all` what everybody has in the
/// end.
fn up_and_down(rank: Rank, p: usize, up: impl Fn(Rank, Rank) -> Option<Piece>, all: usize) -> Vec<Move> {
    let levels = levels(p);
    let outward = |k: u32| 2 * levels - 1 - k;
    let mut moves = Vec::new();
    for (k, child) in children(rank, p) {
        let receive = up(child, child);
        moves.push(Move { round: k, send: None, receive });
    }
    if let Some(parent) = parent(rank) {
        let k = rank.trailing_zeros();
        moves.push(Move { round: k, send: up(rank, parent), receive: None });
        moves.push(Move { round: outward(k), send: None, receive: Piece::replace(parent, 0, all) });
    }
    for (k, child) in children(rank, p).rev() {
        moves.push(Move { round: outward(k), send: Piece::replace(child, 0, all), receive: None });
    }
    moves
}

fn reduce(rank: Rank, call: &CollectiveCall<'_>) -> Schedule {
    let p = call.positions();
    let moves = up_and_down(rank, p, |_, peer| Piece::add(peer, 0, 1), 1);
    Schedule { chunks: 1, piece: 1, moves }
}

fn gather(rank: Rank, call: &CollectiveCall<'_>) -> Schedule {
    let p = call.positions();
    let subtree = |r: Rank| (r + (1 << r.trailing_zeros())).min(p) - r;
    let moves = up_and_down(rank, p, |sender, peer| Piece::replace(peer, sender, subtree(sender)), p);
    Schedule { chunks: p, piece: p, moves }
}
