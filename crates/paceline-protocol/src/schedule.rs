//! The rounds of a collective as data: who sends which chunks to whom, and what is done with them.

use crate::setup::Setup;
use crate::topology::Topology;
use crate::vocabulary::Rank;

/// What is done with received chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    /// Added to the rank's own.
    Add,
    /// They take its place.
    Replace,
}

/// Neighbouring chunks that travel in one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// To or from whom.
    pub peer: Rank,
    /// The first chunk.
    pub first: usize,
    /// How many.
    pub count: usize,
    /// What the receiver does with them.
    pub combine: Combine,
}

impl Piece {
    /// Chunks that are added.
    pub fn add(peer: Rank, first: usize, count: usize) -> Option<Self> {
        Some(Self { peer, first, count, combine: Combine::Add })
    }

    /// Chunks that take the others' place.
    pub fn replace(peer: Rank, first: usize, count: usize) -> Option<Self> {
        Some(Self { peer, first, count, combine: Combine::Replace })
    }
}

/// One rank's part in one round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Move {
    /// The round, counted over the whole collective: the same number on both ends of a message, and no two
    /// messages of one round go to the same rank.
    pub round: u32,
    /// What is sent.
    pub send: Option<Piece>,
    /// What is received. The next move begins after that.
    pub receive: Option<Piece>,
}

/// A collective: chunks per lane, and one rank's moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Into how many chunks a lane is cut.
    pub chunks: usize,
    /// Most chunks of one message, on any rank.
    pub piece: usize,
    /// The moves of one rank.
    pub moves: Vec<Move>,
}

/// The path of an exact average: how a rank takes part in summing, and in gathering what each rank has.
#[derive(Clone, Copy, Debug)]
pub struct CollectivePath {
    /// In the end every rank has every chunk's sum.
    pub reduce: ScheduleOf,
    /// There are p chunks, chunk r being rank r's own; in the end every rank has all of them.
    pub gather: ScheduleOf,
}

/// A rank's part in a collective.
pub type ScheduleOf = fn(Rank, &CollectiveCall<'_>) -> Schedule;

/// What a path makes a schedule for: between whom, and of how much.
#[derive(Clone, Copy, Debug)]
pub struct CollectiveCall<'a> {
    /// The positions, and who sits where.
    pub topology: &'a Topology,
    /// Bytes of the bucket.
    pub bytes: usize,
    /// What the path may choose between, by bytes.
    pub paths: &'a [SizedPath],
}

/// The path of buckets below a length.
#[derive(Clone, Copy, Debug)]
pub struct SizedPath {
    /// The bytes that a bucket has to be below; none if any will do.
    pub below_bytes: Option<usize>,
    /// The strategy that has the path.
    pub name: &'static str,
    /// The path.
    pub path: CollectivePath,
}

impl CollectiveCall<'_> {
    /// Number of positions.
    pub fn positions(&self) -> usize {
        self.topology.positions()
    }
}

impl CollectivePath {
    /// The ranks that a rank exchanges messages with along this path, in rising order.
    pub fn peers(&self, setup: &Setup, rank: Rank) -> Vec<Rank> {
        let topology = setup.topology();
        let call = CollectiveCall { topology: &topology, bytes: 0, paths: &setup.paths };
        let schedules = [(self.reduce)(rank, &call), (self.gather)(rank, &call)];
        let moves = schedules.iter().flat_map(|schedule| &schedule.moves);
        let mut peers: Vec<Rank> =
            moves.flat_map(|step| [step.send, step.receive]).flatten().map(|piece| piece.peer).collect();
        peers.sort_unstable();
        peers.dedup();
        peers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategies::STRATEGIES;

    /// What a rank has of each chunk: how often each contribution is in it.
    type Held = Vec<Vec<u32>>;

    /// A message: from, to, round, what it is, and its content.
    type Flying = (Rank, Rank, u32, Piece, Held);

    fn each_round_brings_a_rank_one_message(schedule: &Schedule) -> bool {
        let mut rounds: Vec<u32> =
            schedule.moves.iter().filter(|m| m.receive.is_some()).map(|m| m.round).collect();
        rounds.sort_unstable();
        rounds.windows(2).all(|pair| pair[0] < pair[1])
    }

    /// Runs a schedule on counts of contributions, `own(rank, chunk, contribution)` being what is there at
    /// first; what every rank has in the end.
    fn run(make: ScheduleOf, topology: &Topology, own: fn(Rank, usize, Rank) -> bool) -> Vec<Held> {
        let p = topology.positions();
        let call = CollectiveCall { topology, bytes: 0, paths: &[] };
        let schedules: Vec<_> = (0..p).map(|r| make(r, &call)).collect();
        assert!(schedules.iter().all(each_round_brings_a_rank_one_message), "p = {p}");
        let chunks = schedules[0].chunks;
        let first = |r| (0..chunks).map(|c| (0..p).map(|q| u32::from(own(r, c, q))).collect()).collect();
        let mut held: Vec<Held> = (0..p).map(first).collect();
        let (mut at, mut sent) = (vec![0; p], vec![false; p]);
        let mut flying: Vec<Flying> = Vec::new();
        loop {
            let mut moved = false;
            for r in 0..p {
                let Some(m) = schedules[r].moves.get(at[r]) else { continue };
                if let (Some(piece), false) = (m.send, sent[r]) {
                    assert!(piece.count <= schedules[r].piece && piece.count > 0);
                    let body = held[r][piece.first..piece.first + piece.count].to_vec();
                    flying.push((r, piece.peer, m.round, piece, body));
                    sent[r] = true;
                    moved = true;
                }
                if let Some(piece) = m.receive {
                    let found = flying.iter().position(|f| (f.0, f.1, f.2) == (piece.peer, r, m.round));
                    let Some(i) = found else { continue };
                    let (.., told, body) = flying.remove(i);
                    let (ours, theirs) = ((piece.first, piece.count), (told.first, told.count));
                    assert_eq!((ours, piece.combine), (theirs, told.combine), "both ends agree");
                    for (own, new) in held[r][piece.first..].iter_mut().zip(body) {
                        match piece.combine {
                            Combine::Add => own.iter_mut().zip(new).for_each(|(o, n)| *o += n),
                            Combine::Replace => *own = new,
                        }
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
        (0..p).for_each(|r| assert_eq!(at[r], schedules[r].moves.len(), "p = {p}: rank {r} is stuck"));
        held
    }

    /// Up to 17 positions, each on its own host, all on one, and in twos and threes; then uneven hosts, hosts whose
    /// members are no neighbours, and many of each.
    fn layouts() -> Vec<Vec<usize>> {
        let grouped = |p: usize, size: usize| (0..p).map(|position| position / size).collect();
        let mut layouts: Vec<Vec<usize>> =
            (1..=17).flat_map(|p| [1, 2, 3, p].map(|size| grouped(p, size))).collect();
        layouts.extend([vec![0, 1, 0, 1], vec![0, 0, 0, 1], vec![2, 0, 0, 1, 1, 1, 1, 2], vec![1, 0]]);
        layouts.extend([grouped(48, 8), grouped(36, 4), (0..24).map(|position| position % 5).collect()]);
        layouts
    }

    #[test]
    fn every_path_gives_every_rank_every_contribution_once() {
        for strategy in STRATEGIES {
            let Some(path) = strategy.path else { continue };
            for hosts in layouts() {
                let (p, topology) = (hosts.len(), Topology::of(&hosts));
                for (r, chunks) in run(path.reduce, &topology, |r, _, q| r == q).iter().enumerate() {
                    let once = chunks.iter().flatten().all(|&n| n == 1);
                    assert!(once, "{} sums, {hosts:?}, rank {r}: {chunks:?}", strategy.name);
                }
                for (r, chunks) in run(path.gather, &topology, |r, c, q| r == c && c == q).iter().enumerate()
                {
                    let own =
                        |c: usize, n: &Vec<u32>| n.iter().enumerate().all(|(q, &n)| n == u32::from(q == c));
                    let all = chunks.len() == p && chunks.iter().enumerate().all(|(c, n)| own(c, n));
                    assert!(all, "{} gathers, {hosts:?}, rank {r}: {chunks:?}", strategy.name);
                }
            }
        }
    }

    #[test]
    fn a_rank_talks_with_its_links_only() {
        for strategy in STRATEGIES {
            let Some(path) = strategy.path else { continue };
            for hosts in layouts().into_iter().filter(|hosts| hosts.len() <= 9) {
                let p = hosts.len();
                let setup = Setup { hosts, ..Setup::new(p, 0, 10, 1) };
                for rank in 0..p {
                    let links = (strategy.links)(&setup, rank);
                    for peer in path.peers(&setup, rank) {
                        assert!(links.contains(&peer), "{} {rank} → {peer}", strategy.name);
                    }
                }
            }
        }
    }
}
