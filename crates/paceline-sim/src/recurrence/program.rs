//! Schedules of hosts that form a ring: ranks exchange messages inside their host, and one rank of each host sends
//! to one of the next. Hosts of one size do the same, each from its own place in the ring.

use std::collections::HashMap;
use std::ops::Range;

use paceline_protocol::setup::part;
use paceline_protocol::{
    CollectiveCall, CollectivePath, Combine, Move, Piece, Rank, Schedule, Setup, Topology,
};

use super::rotation::{MARKS, NOTHING, everywhere};
use crate::costs::Costs;

/// The peer of a message that leaves the host.
pub(super) const OUTSIDE: u32 = u32::MAX;
/// Most moves that are kept: larger hosts are refused.
const MOST_MOVES: usize = 1 << 24;

/// A piece that is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Sent {
    /// The local rank that it goes to, or [`OUTSIDE`].
    pub(super) to: u32,
    /// Its number among the pieces of the program, or its place as host 0 has it.
    pub(super) piece: u32,
    /// Inside a host: which of the receiver's receives it is for.
    pub(super) lands: u32,
    /// Outside: the mark that is made behind it.
    pub(super) mark: u32,
}

/// A piece that is received.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) outside: bool,
    pub(super) piece: u32,
    pub(super) combine: Combine,
    /// Its number among the receives inside the host, or among those from outside.
    pub(super) number: u32,
    /// From outside: the mark behind the send that must have left before.
    pub(super) needs: u32,
}

/// A move of a local rank.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct LocalMove {
    pub(super) send: Option<Sent>,
    pub(super) receive: Option<Received>,
}

/// What the leader receives from outside, and sends there then: places as host 0 has them.
#[derive(Clone, Copy)]
pub(super) struct LeaderTurn {
    /// [`NOTHING`] where a move is another one.
    pub(super) receive: u32,
    pub(super) number: u32,
    pub(super) combine: Combine,
    pub(super) needs: u32,
    pub(super) send: u32,
    pub(super) mark: u32,
}

impl LeaderTurn {
    fn new(step: &LocalMove, next: Option<&LocalMove>) -> Self {
        let received = step.receive.filter(|receive| receive.outside);
        let next = next.filter(|next| next.receive.is_some());
        let sent = next.and_then(|next| next.send).filter(|send| send.to == OUTSIDE);
        match (received, sent) {
            (Some(Received { piece, number, combine, needs, .. }), Some(send)) => {
                Self { receive: piece, number, combine, needs, send: send.piece, mark: send.mark }
            }
            _ => Self { receive: NOTHING, number: 0, combine: Combine::Add, needs: 0, send: 0, mark: 0 },
        }
    }
}

/// What the ranks of a host do with a lane.
pub(super) struct Program {
    /// The moves of each local rank.
    pub(super) local_ranks: Vec<Vec<LocalMove>>,
    /// How many receives and sends inside the host each local rank has.
    pub(super) receives: Vec<usize>,
    pub(super) sends: Vec<usize>,
    /// The places of what comes from outside, in order.
    pub(super) heard: Vec<u32>,
    /// The leader's moves, where one receives from outside and the next one sends there and receives.
    pub(super) turns: Vec<LeaderTurn>,
    /// Pieces inside the host: their first chunk, and how many.
    pieces: Vec<(usize, usize)>,
    chunks: usize,
}

/// The hosts of a run, in the order of the ring.
pub(super) struct HostRing {
    /// The ranks of each host.
    pub(super) hosts: Vec<Vec<Rank>>,
    /// For each host its size's number.
    pub(super) size: Vec<usize>,
    /// The local rank that sends to the next host and hears from the one before.
    pub(super) leader: usize,
    /// For each kind of lane and each size of host, what its ranks do.
    pub(super) programs: Vec<Vec<Program>>,
    /// The kind of each lane.
    pub(super) kinds: Vec<usize>,
}

/// A move before peers are numbered: what it is besides, and its round.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Relative {
    round: u32,
    send: Option<(u32, usize, usize, Combine)>,
    receive: Option<(u32, usize, usize, Combine)>,
}

/// Who sits where.
struct LocalRanks {
    hosts: Vec<Vec<Rank>>,
    of: Vec<(usize, usize)>,
}

impl LocalRanks {
    fn new(workers: usize, costs: &Costs) -> Self {
        let mut numbers = HashMap::new();
        let (mut hosts, mut of): (Vec<Vec<Rank>>, _) = (Vec::new(), Vec::with_capacity(workers));
        for rank in 0..workers {
            let host = *numbers.entry(costs.host_of(rank)).or_insert_with(|| {
                hosts.push(Vec::new());
                hosts.len() - 1
            });
            of.push((host, hosts[host].len()));
            hosts[host].push(rank);
        }
        Self { hosts, of }
    }

    /// A rank's schedule, as all ranks of its local rank have it in hosts of this size. None if it sends outside to others
    /// than the next host's leader, or pieces that are not its place's.
    fn relative(&self, rank: Rank, schedule: &Schedule, out: (usize, usize)) -> Option<Vec<Relative>> {
        let ((host, local), (leader, distance), count) = (self.of[rank], out, self.hosts.len());
        let unit = schedule.chunks / count;
        let piece = |piece: &Option<Piece>, further: usize| {
            let Some(Piece { peer, first, count: chunks, combine }) = *piece else { return Some(None) };
            let (their_host, their_local) = self.of[peer];
            if their_host == host {
                return Some(Some((their_local as u32, first, chunks, combine)));
            }
            let in_place = unit * count == schedule.chunks && chunks == unit && first % unit == 0;
            let next = (host + further) % count == their_host && (local, their_local) == (leader, leader);
            (in_place && next).then(|| Some((OUTSIDE, (first / unit + count - host) % count, 1, combine)))
        };
        let own = |step: &Move| {
            let (send, receive) = (piece(&step.send, distance)?, piece(&step.receive, count - distance)?);
            Some(Relative { round: step.round, send, receive })
        };
        schedule.moves.iter().map(own).collect()
    }

    /// The local rank that sends outside, and how far.
    fn leader(&self, schedule: impl Fn(Rank) -> Schedule) -> (usize, usize) {
        let count = self.hosts.len();
        for (local, rank) in self.hosts[0].iter().enumerate() {
            let schedule = schedule(*rank);
            let sent = schedule.moves.iter().filter_map(|step| step.send.map(|piece| self.of[piece.peer].0));
            if let Some(host) = sent.into_iter().find(|host| *host != 0) {
                return (local, host % count);
            }
        }
        (0, 0)
    }
}

impl HostRing {
    /// The ring of hosts that a run is, if it is one.
    pub(super) fn of(
        setup: &Setup,
        path: CollectivePath,
        costs: &Costs,
        lanes: &[(Range<usize>, usize)],
    ) -> Option<Self> {
        let (p, topology) = (setup.workers, setup.topology());
        let local_ranks = LocalRanks::new(p, costs);
        let mut bytes: Vec<usize> = lanes.iter().map(|(_, bytes)| *bytes).collect();
        bytes.sort_unstable();
        bytes.dedup();
        let kind = |of: &usize| bytes.iter().position(|bytes| bytes == of);
        let kinds = lanes.iter().map(|(_, bytes)| kind(bytes)).collect::<Option<Vec<_>>>()?;
        let mut sizes: Vec<(usize, usize)> = Vec::new();
        let size = |(host, ranks): (usize, &Vec<Rank>)| {
            sizes.iter().position(|(_, len)| *len == ranks.len()).unwrap_or_else(|| {
                sizes.push((host, ranks.len()));
                sizes.len() - 1
            })
        };
        let size: Vec<usize> = local_ranks.hosts.iter().enumerate().map(size).collect();
        let mut out = None;
        let mut programs = Vec::with_capacity(bytes.len());
        for bytes in bytes {
            let schedule = |rank: Rank| schedule(path, &topology, bytes, setup, rank);
            let out = *out.get_or_insert_with(|| local_ranks.leader(schedule));
            if out.1 > 1 {
                return None;
            }
            let (mut relative, mut moves): (Vec<Vec<Vec<Relative>>>, _) = (Vec::new(), 0);
            let mut chunks = 0;
            for (host, _) in &sizes {
                let mut own = Vec::new();
                for rank in &local_ranks.hosts[*host] {
                    let schedule = schedule(*rank);
                    moves += schedule.moves.len();
                    if moves > MOST_MOVES {
                        return None;
                    }
                    chunks = schedule.chunks;
                    own.push(local_ranks.relative(*rank, &schedule, out)?);
                }
                relative.push(own);
            }
            let alike = |rank: Rank| {
                let (host, local) = local_ranks.of[rank];
                let schedule = schedule(rank);
                let found = local_ranks.relative(rank, &schedule, out);
                schedule.chunks == chunks && found.as_ref() == Some(&relative[size[host]][local])
            };
            if !everywhere(p, alike) || !in_order(&relative) {
                return None;
            }
            let of_size = |relative: &Vec<Vec<Relative>>| {
                Program::new(relative, chunks, chunks / local_ranks.hosts.len())
            };
            programs.push(relative.iter().map(of_size).collect::<Option<Vec<_>>>()?);
        }
        let (leader, _) = out?;
        Some(Self { hosts: local_ranks.hosts, size, leader, programs, kinds })
    }
}

fn schedule(path: CollectivePath, topology: &Topology, bytes: usize, setup: &Setup, rank: Rank) -> Schedule {
    (path.reduce)(rank, &CollectiveCall { topology, bytes, paths: &setup.paths })
}

/// Whether hosts of all sizes send outside in the order in which the next one receives.
fn in_order(sizes: &[Vec<Vec<Relative>>]) -> bool {
    let outside = |piece: &Option<(u32, usize, usize, Combine)>| piece.is_some_and(|(to, ..)| to == OUTSIDE);
    let rounds = |of: &dyn Fn(&Relative) -> bool, local_ranks: &Vec<Vec<Relative>>| -> Vec<u32> {
        local_ranks.iter().flatten().filter(|step| of(step)).map(|step| step.round).collect()
    };
    let first = rounds(&|step| outside(&step.send), &sizes[0]);
    sizes.iter().all(|local_ranks| {
        rounds(&|step| outside(&step.send), local_ranks) == first
            && rounds(&|step| outside(&step.receive), local_ranks) == first
    })
}

/// The last send of each chunk that nothing has been received into since.
#[derive(Clone, Copy, Default)]
struct Unreplaced {
    /// Inside the host: the move.
    inside: Option<usize>,
    /// Outside: which of the sends.
    outside: Option<usize>,
}

impl Program {
    fn new(relative: &[Vec<Relative>], chunks: usize, unit: usize) -> Option<Self> {
        let mut pieces = HashMap::new();
        let mut numbers: HashMap<(u32, u32, u32), (u32, usize)> = HashMap::new();
        let mut receives = vec![0; relative.len()];
        for (local, moves) in relative.iter().enumerate() {
            for (at, step) in moves.iter().enumerate() {
                if let Some((from, ..)) = step.receive.filter(|(from, ..)| *from != OUTSIDE) {
                    numbers.insert((local as u32, from, step.round), (receives[local] as u32, at));
                    receives[local] += 1;
                }
            }
        }
        // Of each message inside the host, the move that sends it.
        let mut sent_at = HashMap::new();
        for (local, moves) in relative.iter().enumerate() {
            for (at, step) in moves.iter().enumerate() {
                if let Some((to, ..)) = step.send.filter(|(to, ..)| *to != OUTSIDE) {
                    sent_at.insert((to, local as u32, step.round), at);
                }
            }
        }
        if sent_at.len() != numbers.len() {
            return None;
        }
        let mut number = |first: usize, count: usize| {
            let next = pieces.len() as u32;
            *pieces.entry((first, count)).or_insert(next)
        };
        let mut local_ranks = Vec::with_capacity(relative.len());
        for (local, moves) in relative.iter().enumerate() {
            let outside = |step: &&Relative| step.send.is_some_and(|(to, ..)| to == OUTSIDE);
            let stride = moves.iter().filter(outside).count().div_ceil(MARKS).max(1);
            let (mut sent_out, mut heard) = (0, 0);
            let mut unreplaced = vec![Unreplaced::default(); chunks];
            let span = |outside: bool, first: usize, count: usize| match outside {
                true => first * unit..(first + 1) * unit,
                false => first..first + count,
            };
            // How many chunks are such: places are other chunks in each host, so that none may be the others'.
            let mut waiting = [0; 2];
            let mut own = Vec::with_capacity(moves.len());
            for (at, step) in moves.iter().enumerate() {
                let mut next = LocalMove::default();
                if let Some((to, first, count, _)) = step.send {
                    let out = to == OUTSIDE;
                    for chunk in &mut unreplaced[span(out, first, count)] {
                        let last = if out { &mut chunk.outside } else { &mut chunk.inside };
                        waiting[usize::from(out)] += usize::from(last.is_none());
                        *last = Some(if out { sent_out } else { at });
                    }
                    next.send = Some(match out {
                        true => {
                            let marked = sent_out % stride == 0;
                            let mark = if marked { (sent_out / stride) as u32 } else { NOTHING };
                            sent_out += 1;
                            Sent { to, piece: first as u32, lands: 0, mark }
                        }
                        false => {
                            let lands = numbers.get(&(to, local as u32, step.round))?.0;
                            Sent { to, piece: number(first, count), lands, mark: NOTHING }
                        }
                    });
                }
                if let Some((from, first, count, combine)) = step.receive {
                    let out = from == OUTSIDE;
                    let mut needs = NOTHING;
                    if waiting[usize::from(!out)] > 0 {
                        return None;
                    }
                    let mut last_inside = None;
                    for chunk in &mut unreplaced[span(out, first, count)] {
                        let Unreplaced { inside, outside } = std::mem::take(chunk);
                        waiting[usize::from(out)] -= usize::from(inside.or(outside).is_some());
                        last_inside = last_inside.max(inside);
                        if let Some(sent) = outside {
                            let mark = sent.div_ceil(stride);
                            if mark * stride >= sent_out {
                                return None;
                            }
                            needs = if needs == NOTHING { mark as u32 } else { needs.max(mark as u32) };
                        }
                    }
                    if let Some(sent) = last_inside {
                        // Sends inside a host leave one after the other: all have left if what comes was sent by one who
                        // had the last one, or a later one.
                        let answered = *sent_at.get(&(local as u32, from, step.round))?;
                        let had = |before: &Relative| {
                            let there = numbers.get(&(from, local as u32, before.round));
                            before.send.is_some_and(|(to, ..)| to == from)
                                && there.is_some_and(|(_, there)| *there < answered)
                        };
                        if !moves[sent..at].iter().any(had) {
                            return None;
                        }
                    }
                    let piece = if out { first as u32 } else { number(first, count) };
                    let number = match out {
                        true => heard,
                        false => numbers.get(&(local as u32, from, step.round))?.0,
                    };
                    heard += u32::from(out);
                    next.receive = Some(Received { outside: out, piece, combine, number, needs });
                }
                own.push(next);
            }
            local_ranks.push(own);
        }
        let mut all = vec![(0, 0); pieces.len()];
        pieces.into_iter().for_each(|(piece, number)| all[number as usize] = piece);
        let inside = |step: &&LocalMove| step.send.is_some_and(|send| send.to != OUTSIDE);
        let sends =
            local_ranks.iter().map(|moves: &Vec<LocalMove>| moves.iter().filter(inside).count()).collect();
        let outside = |step: &LocalMove| step.receive.filter(|receive| receive.outside);
        let leader = local_ranks.iter().find(|moves| moves.iter().any(|step| outside(step).is_some()));
        let leader: &[LocalMove] = leader.map_or(&[], |moves| moves);
        let heard = leader.iter().filter_map(outside).map(|receive| receive.piece).collect();
        let turns =
            leader.iter().enumerate().map(|(at, step)| LeaderTurn::new(step, leader.get(at + 1))).collect();
        Some(Self { receives, sends, heard, turns, local_ranks, pieces: all, chunks })
    }

    /// Elements of the pieces inside a host.
    pub(super) fn lens(&self, lane: &Range<usize>) -> Vec<usize> {
        let len = |(first, count): &(usize, usize)| {
            part(lane, self.chunks, first + count - 1).end - part(lane, self.chunks, *first).start
        };
        self.pieces.iter().map(len).collect()
    }
}
