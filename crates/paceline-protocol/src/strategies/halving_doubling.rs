//! Recursive halving and doubling.

use super::{COLLECTIVE, Strategy};
use crate::collective;
use crate::schedule::{CollectiveCall, CollectivePath, Move, Piece, Schedule};
use crate::vocabulary::Rank;

pub(super) const HALVING_DOUBLING: Strategy = Strategy {
    name: "halving-doubling",
    about: "recursive halving reduce-scatter, then recursive doubling all-gather",
    detail: "In each round workers whose numbers differ in one bit exchange halves of what they still share, \
             until each holds the sum of one chunk; the same exchanges in reverse spread the sums. Where p is \
             no power of two, the workers beyond the largest power of two first fold their buffers into a partner's, and get the result last.",
    cost: "2·log2(p)·α + 2·(p−1)/p·n/B for powers of two; for other p, 2α + 2n/B more",
    good: "Powers of two: as few bytes as the ring, and only 2·log2(p) messages in a row.",
    bad: "Other numbers of workers (the fold moves the whole buffer twice), and networks where distant pairs \
          share links.",
    make: |setup, rank| collective::make(PATH, setup, rank),
    links: |setup, rank| {
        let (core, extra) = folded(setup.workers);
        let mut links: Vec<Rank> = Vec::new();
        if rank >= core {
            return vec![rank - core];
        }
        links.extend((0..core.trailing_zeros()).map(|bit| rank ^ (1 << bit)));
        links.extend((rank < extra).then_some(rank + core));
        links.sort_unstable();
        links
    },
    path: Some(PATH),
    ..COLLECTIVE
};

pub(super) const PATH: CollectivePath = CollectivePath { reduce, gather };

/// The largest power of two among p workers, and how many there are beyond it.
fn folded(p: usize) -> (usize, usize) {
    let core = 1 << p.ilog2();
    (core, p - core)
}

fn reduce(rank: Rank, call: &CollectiveCall<'_>) -> Schedule {
    let p = call.positions();
    let (core, extra) = folded(p);
    let bits = core.trailing_zeros();
    let last = 2 * bits + 1;
    let piece = if extra > 0 { core } else { (core / 2).max(1) };
    let mut moves = Vec::new();
    if rank >= core {
        let partner = rank - core;
        moves.push(Move { round: 0, send: Piece::add(partner, 0, core), receive: None });
        moves.push(Move { round: last, send: None, receive: Piece::replace(partner, 0, core) });
        return Schedule { chunks: core, piece, moves };
    }
    if rank < extra {
        moves.push(Move { round: 0, send: None, receive: Piece::add(rank + core, 0, core) });
    }
    // In round k the ranks that agree in all higher bits share a block; each keeps its own half.
    for k in 0..bits {
        let half = core >> (k + 1);
        let own = rank & !(half - 1);
        let (partner, theirs) = (rank ^ half, own ^ half);
        let round = 1 + k;
        moves.push(Move {
            round,
            send: Piece::add(partner, theirs, half),
            receive: Piece::add(partner, own, half),
        });
    }
    for k in (0..bits).rev() {
        let half = core >> (k + 1);
        let own = rank & !(half - 1);
        let (partner, theirs) = (rank ^ half, own ^ half);
        let (send, receive) = (Piece::replace(partner, own, half), Piece::replace(partner, theirs, half));
        moves.push(Move { round: 2 * bits - k, send, receive });
    }
    if rank < extra {
        moves.push(Move { round: last, send: Piece::replace(rank + core, 0, core), receive: None });
    }
    Schedule { chunks: core, piece, moves }
}

fn gather(rank: Rank, call: &CollectiveCall<'_>) -> Schedule {
    let p = call.positions();
    let (core, extra) = folded(p);
    let bits = core.trailing_zeros();
    let last = 2 * bits + 1;
    let mut moves = Vec::new();
    if rank >= core {
        let partner = rank - core;
        moves.push(Move { round: 0, send: Piece::replace(partner, rank, 1), receive: None });
        moves.push(Move { round: last, send: None, receive: Piece::replace(partner, 0, p) });
        return Schedule { chunks: p, piece: p, moves };
    }
    if rank < extra {
        moves.push(Move { round: 0, send: None, receive: Piece::replace(rank + core, rank + core, 1) });
    }
    for k in 0..bits {
        let size = 1 << k;
        let (own, partner) = (rank & !(size - 1), rank ^ size);
        let theirs = own ^ size;
        let (send, receive) = (Piece::replace(partner, own, size), Piece::replace(partner, theirs, size));
        moves.push(Move { round: 1 + 2 * k, send, receive });
        // The chunks that were folded into each block.
        let folded = |first: usize| {
            let count = size.min(extra.saturating_sub(first));
            (count > 0).then(|| Piece::replace(partner, core + first, count)).flatten()
        };
        let (send, receive) = (folded(own), folded(theirs));
        if send.or(receive).is_some() {
            moves.push(Move { round: 2 + 2 * k, send, receive });
        }
    }
    if rank < extra {
        moves.push(Move { round: last, send: Piece::replace(rank + core, 0, p), receive: None });
    }
    Schedule { chunks: p, piece: p, moves }
}
