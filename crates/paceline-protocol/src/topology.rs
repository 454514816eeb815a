//! Who sits where.

use crate::vocabulary::Rank;

/// The hosts of a collective's positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// For each position its host, and its number among those of the host.
    seats: Vec<(usize, usize)>,
    /// The positions of each host, in rising order.
    members: Vec<Vec<Rank>>,
    /// The most that one of them has: every rank's schedule asks for it.
    most: usize,
}

impl Topology {
    /// Every position on a host of its own.
    pub fn apart(positions: usize) -> Self {
        Self {
            seats: (0..positions).map(|position| (position, 0)).collect(),
            members: (0..positions).map(|position| vec![position]).collect(),
            most: positions.min(1),
        }
    }

    /// Positions on hosts, which may have any numbers.
    pub fn of(hosts: &[usize]) -> Self {
        let last = hosts.iter().max().map_or(0, |last| last + 1);
        let (mut numbers, mut members): (Vec<Option<usize>>, Vec<Vec<Rank>>) = (vec![None; last], Vec::new());
        let mut seat = |(position, host): (Rank, &usize)| {
            let number = *numbers[*host].get_or_insert_with(|| {
                members.push(Vec::new());
                members.len() - 1
            });
            members[number].push(position);
            (number, members[number].len() - 1)
        };
        let seats = hosts.iter().enumerate().map(&mut seat).collect();
        let most = members.iter().map(Vec::len).max().unwrap_or(0);
        Self { seats, members, most }
    }

    /// Positions of workers that sit on `hosts`. Where shares are spread over fewer workers of several hosts, each counts
    /// as a host of its own: sums must not depend on who computes what.
    pub fn of_workers(hosts: &[usize], positions: usize) -> Self {
        match hosts {
            _ if hosts.len() == positions => Self::of(hosts),
            [first, rest @ ..] if rest.iter().all(|host| host == first) => Self::of(&vec![0; positions]),
            _ => Self::apart(positions),
        }
    }

    /// Number of positions.
    pub fn positions(&self) -> usize {
        self.seats.len()
    }

    /// Number of hosts.
    pub fn hosts(&self) -> usize {
        self.members.len()
    }

    /// Most positions of one host.
    pub fn most_per_host(&self) -> usize {
        self.most
    }

    /// The positions of a host; the first one is its leader.
    pub fn members(&self, host: usize) -> &[Rank] {
        &self.members[host]
    }

    /// A position's host, and its number among those of the host.
    pub fn seat(&self, position: Rank) -> (usize, usize) {
        self.seats[position]
    }
}
