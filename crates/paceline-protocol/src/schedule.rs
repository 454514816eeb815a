//! The rounds of a collective as data: who sends which chunk to whom, and what is done with it.

use crate::vocabulary::Rank;

/// What is done with a received chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    /// Added to the rank's own.
    Add,
    /// Takes its place.
    Replace,
}

/// One rank's part in one round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Move {
    /// The round, counted over the whole collective.
    pub round: u16,
    /// To whom, and which chunk.
    pub send: Option<(Rank, usize)>,
    /// From whom, which chunk, and what is done with it. The next move begins after that.
    pub receive: Option<(Rank, usize, Combine)>,
}

/// A collective: chunks per lane, and each rank's moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Into how many chunks a lane is cut.
    pub chunks: usize,
    /// The moves of one rank.
    pub moves: Vec<Move>,
}

/// Ring all-reduce: reduce-scatter, then all-gather, over p chunks.
pub fn ring_allreduce(rank: Rank, p: usize) -> Schedule {
    let (next, before) = ((rank + 1) % p, (rank + p - 1) % p);
    let chunk = |back: usize| (rank + 2 * p - back) % p;
    let rounds = p - 1;
    let scatter = (0..rounds).map(|k| Move {
        round: k as u16,
        send: Some((next, chunk(k))),
        receive: Some((before, chunk(k + 1), Combine::Add)),
    });
    let gather = (0..rounds).map(|k| Move {
        round: (rounds + k) as u16,
        send: Some((next, (chunk(k) + 1) % p)),
        receive: Some((before, chunk(k), Combine::Replace)),
    });
    Schedule { chunks: p, moves: scatter.chain(gather).collect() }
}

/// Ring reduce: the whole lane travels from rank 1 round the ring to the root (rank 0), and the result
/// travels back round.
pub fn ring_reduce(rank: Rank, p: usize) -> Schedule {
    let mut moves = Vec::new();
    if p > 1 {
        let (next, before) = ((rank + 1) % p, (rank + p - 1) % p);
        // On the way in, rank r (the root counts as p) receives in round r − 2 and sends in round r − 1;
        // on the way out it receives in round p + r − 2 and sends in round p + r − 1.
        let turn = if rank == 0 { p } else { rank };
        if turn >= 2 {
            let receive = Some((before, 0, Combine::Add));
            moves.push(Move { round: (turn - 2) as u16, send: None, receive });
        }
        if rank != 0 {
            moves.push(Move { round: (turn - 1) as u16, send: Some((next, 0)), receive: None });
            let receive = Some((before, 0, Combine::Replace));
            moves.push(Move { round: (p + rank - 2) as u16, send: None, receive });
        }
        if rank != p - 1 {
            moves.push(Move { round: (p + rank - 1) as u16, send: Some((next, 0)), receive: None });
        }
    }
    Schedule { chunks: 1, moves }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a schedule on sets of contributions: in the end every rank must have every one exactly once.
    fn check(make: fn(Rank, usize) -> Schedule) {
        for p in 1..=9 {
            let schedules: Vec<_> = (0..p).map(|r| make(r, p)).collect();
            let chunks = schedules[0].chunks;
            let mut held: Vec<Vec<Vec<u32>>> = (0..p)
                .map(|r| (0..chunks).map(|_| (0..p).map(|q| u32::from(q == r)).collect()).collect())
                .collect();
            let mut at = vec![0; p];
            let mut flying: Vec<(Rank, Rank, u16, Vec<u32>)> = Vec::new();
            let mut sent = vec![false; p];
            loop {
                let mut moved = false;
                for r in 0..p {
                    let Some(m) = schedules[r].moves.get(at[r]) else { continue };
                    if let (Some((to, chunk)), false) = (m.send, sent[r]) {
                        flying.push((r, to, m.round, held[r][chunk].clone()));
                        sent[r] = true;
                        moved = true;
                    }
                    if let Some((from, chunk, combine)) = m.receive {
                        let Some(i) = flying.iter().position(|f| (f.0, f.1, f.2) == (from, r, m.round))
                        else {
                            continue;
                        };
                        let body = flying.remove(i).3;
                        for (own, new) in held[r][chunk].iter_mut().zip(body) {
                            *own = if combine == Combine::Add { *own + new } else { new };
                        }
                    }
                    at[r] += 1;
                    sent[r] = false;
                    moved = true;
                }
                if !moved {
                    break;
                }
            }
            assert!(flying.is_empty(), "p = {p}: a message that nobody takes");
            for r in 0..p {
                assert_eq!(at[r], schedules[r].moves.len(), "p = {p}: rank {r} is stuck");
                assert!(held[r].iter().flatten().all(|&n| n == 1), "p = {p}, rank {r}: {:?}", held[r]);
            }
        }
    }

    #[test]
    fn ring_allreduce_gives_every_rank_every_contribution_once() {
        check(ring_allreduce);
    }

    #[test]
    fn ring_reduce_gives_every_rank_every_contribution_once() {
        check(ring_reduce);
    }

    #[test]
    fn ring_allreduce_sends_two_times_p_minus_1_chunks_to_one_neighbour() {
        let s = ring_allreduce(2, 5);
        assert_eq!((s.moves.len(), s.chunks), (8, 5));
        assert!(s.moves.iter().all(|m| m.send.unwrap().0 == 3 && m.receive.unwrap().0 == 1));
    }
}
