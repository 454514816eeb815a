//! Hierarchical all-reduce: sums inside each host first, between one leader per host then.

use std::ops::Range;

use super::direct::Circle;
use super::{COLLECTIVE, Strategy, direct, ring_allreduce};
use crate::collective;
use crate::schedule::{CollectiveCall, CollectivePath, Move, Piece, Schedule};
use crate::setup::part;
use crate::topology::Topology;
use crate::vocabulary::Rank;

pub(super) const HIERARCHICAL: Strategy = Strategy {
    name: "hierarchical",
    about: "sums inside each host, a ring of one leader per host, and back inside",
    detail: "The workers of a host sum their gradients, each its own part, and hand the parts to their leader (the \
             first of them); the leaders make a ring all-reduce, one per host, and pass the result on inside. With \
             one host it is direct, with one worker per host a ring. Where shares are spread over \
             fewer workers of several hosts it is a ring of all shares: what comes out must not depend on who \
             computes it.",
    cost: "2(H−1)α + 2·(H−1)/H·n/B between H hosts, with any number of workers on them",
    good: "Several workers per host: the network carries one buffer per host instead of one per worker.",
    bad: "Few workers per host, and hosts whose memory is no faster than their network: sums inside come before \
          and after.",
    make: |setup, rank| collective::make(PATH, setup, rank),
    links: |setup, rank| PATH.peers(setup, rank),
    path: Some(PATH),
    ..COLLECTIVE
};

pub(super) const PATH: CollectivePath = CollectivePath { reduce, gather };

/// A rank's place among the hosts.
struct Place<'a> {
    topology: &'a Topology,
    host: usize,
    /// Its number on the host; the leader's is 0.
    own: usize,
    members: &'a [Rank],
}

impl<'a> Place<'a> {
    fn of(rank: Rank, topology: &'a Topology) -> Self {
        let (host, own) = topology.seat(rank);
        Self { topology, host, own, members: topology.members(host) }
    }

    fn leader(&self, host: usize) -> Rank {
        self.topology.members(host)[0]
    }

    /// The leaders before and after this one.
    fn neighbours(&self) -> (Rank, Rank) {
        let hosts = self.topology.hosts();
        (self.leader((self.host + hosts - 1) % hosts), self.leader((self.host + 1) % hosts))
    }

    /// Each member hands the leader what `own(member)` says.
    fn collect(&self, round: usize, own: impl Fn(usize) -> Range<usize>) -> Vec<Move> {
        let piece = |peer: Rank, chunks: Range<usize>| Piece::replace(peer, chunks.start, chunks.len());
        let at = |member: usize| (round + member - 1) as u32;
        if self.own > 0 {
            let send = piece(self.members[0], own(self.own));
            return vec![Move { round: at(self.own), send, receive: None }];
        }
        let from = |i: usize| Move { round: at(i), send: None, receive: piece(self.members[i], own(i)) };
        (1..self.members.len()).map(from).collect()
    }

    /// The leader hands all chunks to each member.
    fn pass_on(&self, round: usize, chunks: usize) -> Vec<Move> {
        let at = |member: usize| (round + member - 1) as u32;
        if self.own > 0 {
            let receive = Piece::replace(self.members[0], 0, chunks);
            return vec![Move { round: at(self.own), send: None, receive }];
        }
        let to =
            |i: usize| Move { round: at(i), send: Piece::replace(self.members[i], 0, chunks), receive: None };
        (1..self.members.len()).map(to).collect()
    }
}

fn reduce(rank: Rank, call: &CollectiveCall<'_>) -> Schedule {
    let topology = call.topology;
    let (hosts, most) = (topology.hosts(), topology.most_per_host());
    if hosts == 1 {
        return (direct::PATH.reduce)(rank, call);
    }
    if most == 1 {
        return (ring_allreduce::PATH.reduce)(rank, call);
    }
    let place = Place::of(rank, topology);
    // Members' parts and hosts' parts both begin where chunks do; those of the largest hosts are equally long.
    let chunks = most / common_divisor(most, hosts) * hosts;
    let of_member = |i: usize| part(&(0..chunks), place.members.len(), i);
    let mut moves = Circle { members: place.members, own: place.own, block: &of_member }.scatter(0);
    moves.extend(place.collect(most - 1, of_member));
    let ring = 2 * (most - 1);
    if place.own == 0 {
        let (before, after) = place.neighbours();
        let of_host = |back: usize| part(&(0..chunks), hosts, (place.host + 2 * hosts - back) % hosts);
        let piece = |make: fn(Rank, usize, usize) -> Option<Piece>, peer, chunks: Range<usize>| {
            make(peer, chunks.start, chunks.len())
        };
        moves.extend((0..hosts - 1).map(|k| Move {
            round: (ring + k) as u32,
            send: piece(Piece::add, after, of_host(k)),
            receive: piece(Piece::add, before, of_host(k + 1)),
        }));
        moves.extend((0..hosts - 1).map(|k| Move {
            round: (ring + hosts - 1 + k) as u32,
            send: piece(Piece::replace, after, of_host(hosts + k - 1)),
            receive: piece(Piece::replace, before, of_host(hosts + k)),
        }));
    }
    moves.extend(place.pass_on(ring + 2 * (hosts - 1), chunks));
    Schedule { chunks, piece: chunks, moves }
}

fn gather(rank: Rank, call: &CollectiveCall<'_>) -> Schedule {
    let topology = call.topology;
    let (p, hosts, most) = (topology.positions(), topology.hosts(), topology.most_per_host());
    if hosts == 1 {
        return (direct::PATH.gather)(rank, call);
    }
    if most == 1 {
        return (ring_allreduce::PATH.gather)(rank, call);
    }
    let place = Place::of(rank, topology);
    let mut moves = place.collect(0, |member| place.members[member]..place.members[member] + 1);
    let ring = most - 1;
    if place.own == 0 {
        let (before, after) = place.neighbours();
        for k in 0..hosts - 1 {
            // The k-th host back goes on, the one behind it comes: chunk by chunk, they need not be neighbours.
            let host = |back: usize| topology.members((place.host + hosts - back) % hosts);
            let (sent, received) = (host(k), host(k + 1));
            moves.extend((0..sent.len().max(received.len())).map(|i| Move {
                round: (ring + k * most + i) as u32,
                send: sent.get(i).and_then(|chunk| Piece::replace(after, *chunk, 1)),
                receive: received.get(i).and_then(|chunk| Piece::replace(before, *chunk, 1)),
            }));
        }
    }
    moves.extend(place.pass_on(ring + (hosts - 1) * most, p));
    Schedule { chunks: p, piece: p, moves }
}

fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}
