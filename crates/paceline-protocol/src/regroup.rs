//! How a run goes on with other members: a function of what the survivors of a loss say of their parameters.
//!
//! Shares never change, so that sums do not depend on who computes them; a lost worker's go to others. A run goes on
//! from the last step that anybody has updated (so that no update is undone that was told to somebody):
//! - Workers that update by themselves do so after a vote (`commit`). If one has updated, all have voted, and those who
//!   have not heard of it hold the same sums: they catch up by themselves.
//! - Where servers hold the model, a worker that has all parts of a step has them from shards whose backups have made
//!   the same update: every copy of every part is at that step, or one further. The step behind it is made anew.
//! - Workers with weights of their own (`own_weights`) stand at steps of their own. They exchange again from the furthest
//!   one's on; who is behind gets there by itself, with the shares that it had. What a worker that is gone had not
//!   computed by then is dropped.
//!
//! Who has no whole parameters, or those of an older step, is handed them by somebody who has.
//!
//! Where workers take units of work one by one, there are no steps to agree on: what counts is which units each part of the
//! servers' parameters has. Of two copies of a part, one has the beginning of what the other one has, and is handed the rest.
//! Units that some part lacks are done again ([`WorkLeft`]); workers begin with the servers' parameters.

use std::cmp::Ordering;
use std::ops::Range;

use crate::membership::{MemberId, Membership, ServerShard};
use crate::setup::{Handover, Setup, WorkLeft};
use crate::vocabulary::{PartStanding, Rank, RankStanding};

/// Who can take part in the next generation.
#[derive(Clone, Debug, Default)]
pub struct TakingPart {
    /// Members of the generation before that are there, and where they stand.
    pub survivors: Vec<(MemberId, RankStanding)>,
    /// Steps that workers which are gone have told of. (That counts only where workers have weights of their own.)
    pub told: Vec<(MemberId, u64)>,
    /// Workers that join.
    pub workers: Vec<MemberId>,
    /// Servers that join.
    pub servers: Vec<MemberId>,
    /// The fewest workers that the run goes on with.
    pub least: usize,
    /// The most.
    pub most: usize,
}

impl TakingPart {
    /// The steps that a worker which is gone has told of.
    fn told(&self, member: MemberId) -> u64 {
        self.told.iter().find(|(other, _)| *other == member).map_or(0, |(_, told)| *told)
    }
}

/// How a run goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Regrouped {
    /// With whom.
    pub membership: Membership,
    /// From which step.
    pub from: u64,
    /// Who first makes an update that it has put off.
    pub commits: Vec<MemberId>,
    /// What is handed over, in the ranks of the new generation.
    pub handovers: Vec<Handover>,
    /// Parts whose update of that step is made already, by rank.
    pub ahead: Vec<Vec<u32>>,
    /// The work that is left, where workers take units one by one.
    pub work: Option<WorkLeft>,
    /// Steps that nobody computes any more of a share, because its worker is gone.
    pub dropped: Vec<DroppedSteps>,
}

/// Steps of a share that nobody computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DroppedSteps {
    /// The share.
    pub share: usize,
    /// Its steps.
    pub steps: Range<u64>,
}

/// Why a run cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegroupEnd {
    /// Nobody is left who has the parameters.
    NobodyLeft,
    /// There are too few workers.
    TooFew {
        /// Workers.
        workers: usize,
        /// The fewest that the run goes on with.
        least: usize,
    },
    /// Nobody is left who holds this shard.
    ShardLost(usize),
}

impl std::fmt::Display for RegroupEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NobodyLeft => write!(f, "no worker is left that has the parameters"),
            Self::TooFew { workers, least } => {
                write!(f, "{workers} workers are left, and the run needs at least {least}")
            }
            Self::ShardLost(shard) => {
                write!(f, "server shard {shard} was lost, and nobody has a copy of it")
            }
        }
    }
}

/// Spreads shares over `workers` ranks: numbers that differ by one at most, and as many shares as can be stay where they
/// are (`before`: their rank, if that is still there).
pub fn place_shares(before: &[Option<Rank>], workers: usize) -> Vec<Rank> {
    let (each, more) = (before.len() / workers, before.len() % workers);
    let held = |rank: Rank| before.iter().filter(|host| **host == Some(rank)).count();
    // Those who have the most keep one more.
    let mut by_held: Vec<Rank> = (0..workers).collect();
    by_held.sort_by_key(|rank| (std::cmp::Reverse(held(*rank)), *rank));
    let mut room = vec![each; workers];
    by_held.iter().take(more).for_each(|rank| room[*rank] += 1);
    let mut keep = |host: &Option<Rank>| {
        let rank = host.filter(|rank| room[*rank] > 0)?;
        room[rank] -= 1;
        Some(rank)
    };
    let kept: Vec<Option<Rank>> = before.iter().map(&mut keep).collect();
    let mut free = (0..workers).flat_map(|rank| std::iter::repeat_n(rank, room[rank]));
    kept.into_iter().map(|rank| rank.or_else(|| free.next()).unwrap_or_default()).collect()
}

/// From where workers go on that make their steps together, or at steps of their own.
struct CommonStep {
    from: u64,
    /// Whether workers have weights of their own.
    own: bool,
    /// Workers that have its parameters, or can make them by the update that they have put off; with the steps that they
    /// have made then. Whole weights of one's own are as good as anybody's.
    has: Vec<(MemberId, u64)>,
    commits: Vec<MemberId>,
}

impl CommonStep {
    /// None if no worker has parameters.
    fn of(before: &Membership, part: &TakingPart, workers: &[MemberId]) -> Option<Self> {
        let there = part.survivors.iter().filter(|(member, _)| workers.contains(member));
        let own = there.clone().any(|(_, standing)| standing.own);
        let whole: Vec<_> = there.filter(|(_, standing)| standing.missing.is_empty()).collect();
        let reach = |standing: &RankStanding| standing.at + u64::from(standing.ready);
        let updated = whole.iter().map(|(_, standing)| standing.at).max()?;
        let common = whole.iter().map(|(_, standing)| reach(standing)).min()?;
        // Nobody computes what one that is gone has told of, or what was dropped once.
        let told = before.workers.iter().map(|member| part.told(*member));
        let settled = told.chain(before.begins.iter().copied()).filter(|_| own).max();
        let from = updated.max(common).max(settled.unwrap_or(0));
        let has: Vec<_> = whole.iter().filter(|(_, standing)| own || reach(standing) >= from).collect();
        let behind = has.iter().filter(|(_, standing)| !own && standing.at < from);
        let commits = behind.map(|(member, _)| *member).collect();
        let mut has: Vec<_> = has.iter().map(|(member, standing)| (*member, reach(standing))).collect();
        has.sort_by_key(|(member, _)| workers.iter().position(|worker| worker == member));
        Some(Self { from, own, has, commits })
    }

    /// Who hands parameters to those that have none: who is furthest, and of several the first.
    fn donor(&self) -> Option<MemberId> {
        let furthest = self.has.iter().map(|(_, reach)| *reach).max()?;
        self.has.iter().find(|(_, reach)| *reach == furthest).map(|(member, _)| *member)
    }

    /// From which step each share is computed by its worker, where workers have weights of their own, and what nobody
    /// computes any more.
    fn begins(
        &self,
        before: &Membership,
        part: &TakingPart,
        base: &Setup,
        shares: &[MemberId],
    ) -> (Vec<u64>, Vec<DroppedSteps>) {
        let (mut begins, mut dropped) = (Vec::new(), Vec::new());
        for (share, (then, now)) in before.shares.iter().zip(shares).enumerate() {
            let standing = part
                .survivors
                .iter()
                .find(|(member, standing)| member == then && standing.missing.is_empty());
            // A worker that was lost before its first step in its generation has told of none.
            let since = before.begins.get(share).copied().unwrap_or(base.from);
            let done = standing.map_or(part.told(*then), |(_, standing)| standing.at).max(since);
            let stays = then == now && self.has.iter().any(|(member, _)| member == now);
            begins.push(if stays { done } else { self.from });
            if !stays && done < self.from {
                dropped.push(DroppedSteps { share, steps: done..self.from });
            }
        }
        (begins, dropped)
    }
}

/// How a run goes on after a generation: `base` as in [`Membership::setup`].
pub fn regroup(before: &Membership, part: &TakingPart, base: &Setup) -> Result<Regrouped, RegroupEnd> {
    let standing = |member: MemberId| part.survivors.iter().find(|(id, _)| *id == member).map(|(_, s)| s);
    let there = |members: &[MemberId]| -> Vec<MemberId> {
        members.iter().copied().filter(|member| standing(*member).is_some()).collect()
    };
    let (mut workers, mut servers) = (there(&before.workers), there(&before.servers));
    let together = match base.sync.is_bsp() {
        true => Some(CommonStep::of(before, part, &workers).ok_or(RegroupEnd::NobodyLeft)?),
        false => None,
    };

    let most = part.most.min(base.shares()).saturating_sub(workers.len());
    workers.extend(part.workers.iter().take(most));
    if workers.len() < part.least.max(1) {
        return Err(RegroupEnd::TooFew { workers: workers.len(), least: part.least.max(1) });
    }
    let stays = |member: &MemberId| workers.iter().position(|worker| worker == member);
    let placed = place_shares(&before.shares.iter().map(stays).collect::<Vec<_>>(), workers.len());
    let most = before.shards.len().saturating_sub(servers.len());
    servers.extend(part.servers.iter().take(most));
    let ranges = Setup { servers: before.shards.len(), ..base.clone() }.shards();
    let copy = |member: MemberId, shard: usize| {
        standing(member).is_some_and(|s| s.missing.iter().all(|missing| !meets(missing, &ranges[shard])))
    };
    let shards = place_shards(before, &servers, copy)?;

    let shares: Vec<MemberId> = placed.into_iter().map(|rank| workers[rank]).collect();
    let (begins, dropped) = match &together {
        Some(common) if common.own => common.begins(before, part, base, &shares),
        _ => (Vec::new(), Vec::new()),
    };
    let membership = Membership { shares, begins, workers, servers, shards, backups: before.backups };
    // Who has a shard's parameters already, among those who hold it from now on.
    let has = |member: MemberId, shard: usize| holds(before, member, shard) && copy(member, shard);
    let own = |member: MemberId, shard: usize| -> Vec<&PartStanding> {
        let parts = standing(member).into_iter().flat_map(|s| &s.parts);
        parts.filter(|part| ranges[shard].contains(&part.range.start)).collect()
    };
    let rank = |member: MemberId| membership.rank(member).unwrap_or_default();
    let mut handovers = Vec::new();
    for (i, shard) in membership.shards.iter().enumerate() {
        let Some(backup) = shard.backup else { continue };
        let (from, to) = (rank(shard.primary), rank(backup));
        if !has(backup, i) {
            handovers.push(Handover { from, to, range: ranges[i].clone(), optimiser: true, older: None });
        } else if together.is_none() {
            handovers.extend(level((from, own(shard.primary, i)), (to, own(backup, i))));
        }
    }
    let Some(common) = together else {
        let holders = membership.shards.iter().enumerate().flat_map(|(i, shard)| {
            let backup = shard.backup.filter(|backup| has(*backup, i));
            [Some(shard.primary), backup].into_iter().flatten().map(move |member| (member, i))
        });
        let work = WorkLeft::of(holders.flat_map(|(member, shard)| own(member, shard)));
        let from = work.first() / base.shares() as u64;
        let (commits, ahead, work) = (Vec::new(), Vec::new(), Some(work));
        return Ok(Regrouped { membership, from, commits, handovers, ahead, work, dropped });
    };
    let (from, donor) = (common.from, rank(common.donor().ok_or(RegroupEnd::NobodyLeft)?));
    let has_step = |member: &MemberId| common.has.iter().any(|(other, _)| other == member);
    let lacking = membership.workers.iter().filter(|member| !has_step(member));
    let optimiser = before.shards.is_empty();
    handovers.extend(lacking.map(|member| {
        let (to, range) = (rank(*member), 0..base.params);
        Handover { from: donor, to, range, optimiser, older: None }
    }));
    let mut ahead = vec![Vec::new(); membership.workers.len() + membership.servers.len()];
    let made = |member: MemberId, shard: usize| {
        let ahead = own(member, shard).into_iter().filter(|part| part.made > from);
        ahead.map(|part| part.part).collect::<Vec<_>>()
    };
    for (i, shard) in membership.shards.iter().enumerate() {
        ahead[rank(shard.primary)].extend(made(shard.primary, i));
        let Some(backup) = shard.backup else { continue };
        // A copy is as far as what it is made of.
        ahead[rank(backup)].extend(made(if has(backup, i) { backup } else { shard.primary }, i));
    }
    Ok(Regrouped { membership, from, commits: common.commits, handovers, ahead, work: None, dropped })
}

/// What two copies of a shard hand each other, where units are applied one by one: of each part, who has more of it gives it
/// to the other one, which keeps what it has until all has come.
fn level<'p>(
    (one, ones): (Rank, Vec<&'p PartStanding>),
    (other, others): (Rank, Vec<&'p PartStanding>),
) -> impl Iterator<Item = Handover> + 'p {
    ones.into_iter().filter_map(move |part| {
        let twin = others.iter().find(|twin| twin.part == part.part)?;
        let (from, to, older) = match part.updates().cmp(&twin.updates()) {
            Ordering::Equal => return None,
            Ordering::Greater => (one, other, *twin),
            Ordering::Less => (other, one, part),
        };
        let (range, older) = (part.range.clone(), Some(older.clone()));
        Some(Handover { from, to, range, optimiser: true, older })
    })
}

fn meets(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

fn holds(before: &Membership, member: MemberId, shard: usize) -> bool {
    let ServerShard { primary, backup } = before.shards[shard];
    primary == member || backup == Some(member)
}

/// Who holds each shard: somebody who has it serves it, as evenly as that can be; backups go to those who have it, else
/// to those who hold the least.
fn place_shards(
    before: &Membership,
    servers: &[MemberId],
    copy: impl Fn(MemberId, usize) -> bool,
) -> Result<Vec<ServerShard>, RegroupEnd> {
    let (mut serves, mut copies) = (vec![0; servers.len()], vec![0; servers.len()]);
    let mut shards = Vec::new();
    for (i, shard) in before.shards.iter().enumerate() {
        let holders = [Some(shard.primary), shard.backup].into_iter().flatten();
        let holders = holders.filter(|member| copy(*member, i));
        let places: Vec<usize> =
            holders.filter_map(|member| servers.iter().position(|server| *server == member)).collect();
        let Some(&primary) = places.iter().min_by_key(|place| serves[**place]) else {
            return Err(RegroupEnd::ShardLost(i));
        };
        (serves[primary], copies[primary]) = (serves[primary] + 1, copies[primary] + 1);
        let backup = places.into_iter().find(|place| *place != primary && before.backups);
        backup.into_iter().for_each(|place| copies[place] += 1);
        shards.push((primary, backup));
    }
    if before.backups && servers.len() > 1 {
        for (primary, backup) in &mut shards {
            let least =
                (0..servers.len()).filter(|place| place != primary).min_by_key(|place| copies[*place]);
            // One that has joined and holds nothing takes over from who holds the most.
            let moves = |place: usize, least: usize| copies[least] == 0 && copies[place] > 1;
            match (*backup, least) {
                (Some(place), Some(least)) if moves(place, least) => {
                    copies[place] -= 1;
                    copies[least] += 1;
                    *backup = Some(least);
                }
                (None, Some(least)) => {
                    copies[least] += 1;
                    *backup = Some(least);
                }
                _ => {}
            }
        }
    }
    let member = |(primary, backup): (usize, Option<usize>)| ServerShard {
        primary: servers[primary],
        backup: backup.map(|place| servers[place]),
    };
    Ok(shards.into_iter().map(member).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::PartStanding;

    fn at(at: u64, ready: bool) -> RankStanding {
        RankStanding { at, ready, ..RankStanding::default() }
    }

    fn part(survivors: Vec<(MemberId, RankStanding)>) -> TakingPart {
        TakingPart { survivors, least: 1, most: 8, ..TakingPart::default() }
    }

    /// Every way to spread shares evenly, with the number of shares that move.
    fn fewest_moves(before: &[Option<Rank>], workers: usize) -> usize {
        let ways = (workers as u32).pow(before.len() as u32);
        let way = |n: u32| -> Vec<Rank> {
            (0..before.len() as u32).map(|i| (n / (workers as u32).pow(i)) as usize % workers).collect()
        };
        (0..ways).map(way).filter(|way| even(way, workers)).map(|way| moves(before, &way)).min().unwrap()
    }

    fn even(placed: &[Rank], workers: usize) -> bool {
        let counts = |rank| placed.iter().filter(|host| **host == rank).count();
        let counts: Vec<_> = (0..workers).map(counts).collect();
        counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1
    }

    fn moves(before: &[Option<Rank>], placed: &[Rank]) -> usize {
        before.iter().zip(placed).filter(|(before, placed)| **before != Some(**placed)).count()
    }

    #[test]
    fn shares_are_spread_evenly_and_none_moves_that_need_not() {
        for shares in 1..=6usize {
            for workers in 1..=shares.min(4) {
                for seed in 0..40u64 {
                    let s = paceline_random::Stream::new(seed, paceline_random::Purpose::Virtual);
                    let host = |i: usize| {
                        Some(s.below(i as u64, workers as u64 + 1) as usize).filter(|r| *r < workers)
                    };
                    let before: Vec<_> = (0..shares).map(host).collect();
                    let placed = place_shares(&before, workers);
                    assert!(even(&placed, workers), "{before:?} on {workers}: {placed:?}");
                    assert_eq!(
                        moves(&before, &placed),
                        fewest_moves(&before, workers),
                        "{before:?} on {workers}: {placed:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn who_is_behind_catches_up_and_a_step_that_somebody_lacks_is_made_anew() {
        let base = Setup::new(4, 0, 10, 9);
        let before = Membership::first(&base, false);
        // One has updated step 4: everybody holds its sums.
        let on = regroup(&before, &part(vec![(0, at(5, false)), (1, at(4, true)), (3, at(4, true))]), &base);
        let on = on.unwrap();
        assert_eq!((on.from, &on.commits[..], on.handovers.len()), (5, &[1, 3][..], 0));
        assert_eq!(on.membership.shares, [0, 1, 0, 3], "only the lost worker's share moves");
        // Nobody has, and not everybody could.
        let on = regroup(&before, &part(vec![(0, at(4, true)), (1, at(4, false))]), &base).unwrap();
        assert_eq!((on.from, on.commits.len()), (4, 0));
        // All survivors could: nothing that the lost one may have told is undone.
        let on = regroup(&before, &part(vec![(0, at(4, true)), (1, at(4, true))]), &base).unwrap();
        assert_eq!((on.from, &on.commits[..]), (5, &[0, 1][..]));
    }

    #[test]
    fn who_joins_or_was_not_handed_everything_gets_it_from_a_survivor() {
        let base = Setup::new(4, 0, 10, 9);
        let before = Membership::first(&base, false);
        let torn = RankStanding { missing: std::iter::once(0..10).collect(), ..at(3, false) };
        let survivors = vec![(1, torn), (2, at(4, false))];
        let on = regroup(&before, &TakingPart { workers: vec![9], ..part(survivors) }, &base).unwrap();
        assert_eq!((on.from, &on.membership.workers[..]), (4, &[1, 2, 9][..]));
        let gets: Vec<_> = on.handovers.iter().map(|h| (h.from, h.to, h.optimiser)).collect();
        assert_eq!(gets, [(1, 0, true), (1, 2, true)]);
    }

    #[test]
    fn workers_with_weights_of_their_own_catch_up_by_themselves_and_what_a_lost_one_lacks_is_dropped() {
        let base = Setup::new(4, 0, 10, 20);
        let before = Membership::first(&base, false);
        let own = |at| RankStanding { at, own: true, ..RankStanding::default() };
        let lost =
            |told| TakingPart { told: vec![(2, told)], ..part(vec![(0, own(4)), (1, own(6)), (3, own(5))]) };
        let on = regroup(&before, &lost(3), &base).unwrap();
        assert_eq!((on.from, on.commits.len(), on.handovers.len()), (6, 0, 0));
        assert_eq!(
            (&on.membership.shares[..], &on.membership.begins[..]),
            (&[0, 1, 0, 3][..], &[4, 6, 6, 5][..])
        );
        assert_eq!(on.dropped, [DroppedSteps { share: 2, steps: 3..6 }]);
        let setup = on.membership.setup(&base, 1, Some(&on), 0);
        assert_eq!([0, 1, 2].map(|rank| setup.first_step(rank)), [4, 6, 5]);
        assert_eq!([4, 5, 6].map(|step| setup.shares_at(0, step)), [vec![0], vec![0], vec![0, 2]]);
        // What a lost worker has told of is computed by nobody else.
        let further = regroup(&before, &lost(8), &base).unwrap();
        assert_eq!((further.from, &further.membership.begins[..]), (8, &[4, 6, 8, 5][..]));
        assert!(further.dropped.is_empty());
        // A second loss, while some catch up: what was dropped once is not dropped, or computed, again.
        let survivors = part(vec![(0, own(5)), (1, own(6))]);
        let again = TakingPart { told: vec![(3, 5)], workers: vec![9], ..survivors };
        let again = regroup(&on.membership, &again, &base).unwrap();
        assert_eq!((again.from, &again.membership.workers[..]), (6, &[0, 1, 9][..]));
        assert_eq!(again.membership.begins, [5, 6, 6, 6]);
        assert_eq!(again.dropped, [DroppedSteps { share: 3, steps: 5..6 }]);
        let gets: Vec<_> = again.handovers.iter().map(|h| (h.from, h.to, h.optimiser)).collect();
        assert_eq!(gets, [(1, 2, true)], "who joins has the weights of the furthest");
    }

    #[test]
    fn a_backup_serves_in_place_of_a_lost_server_and_a_new_one_is_a_backup_first() {
        let base = Setup::new(2, 2, 10, 9);
        let before = Membership::first(&base, true);
        assert_eq!(
            before.shards,
            [(2, 3), (3, 2)].map(|(primary, b)| ServerShard { primary, backup: Some(b) })
        );
        let server = |made: [u64; 2]| {
            let part = |i: usize| PartStanding {
                part: i as u32,
                range: 5 * i..5 * i + 5,
                made: made[i],
                lacks: Vec::new(),
            };
            RankStanding { parts: vec![part(0), part(1)], ..RankStanding::default() }
        };
        let workers = [(0, at(4, false)), (1, at(3, false))];
        let survivors = || workers.iter().cloned().chain([(3, server([5, 4]))]).collect();
        let on = regroup(&before, &part(survivors()), &base).unwrap();
        assert_eq!(on.membership.shards, [ServerShard { primary: 3, backup: None }; 2]);
        assert_eq!((on.from, &on.ahead[2][..]), (4, &[0][..]), "one part has its update already");
        assert_eq!(on.handovers, [Handover { from: 0, to: 1, range: 0..10, optimiser: false, older: None }]);
        let joined = TakingPart { servers: vec![7], ..part(survivors()) };
        let on = regroup(&before, &joined, &base).unwrap();
        assert_eq!(on.membership.shards, [ServerShard { primary: 3, backup: Some(7) }; 2]);
        assert_eq!((on.handovers.len(), &on.ahead[3][..]), (3, &[0][..]));
        let lost = regroup(&before, &part(workers.to_vec()), &base);
        assert_eq!(lost, Err(RegroupEnd::ShardLost(0)), "a server together with its backup");
    }

    #[test]
    fn too_few_workers_end_a_run() {
        let base = Setup::new(4, 0, 10, 9);
        let before = Membership::first(&base, false);
        let few = TakingPart { least: 2, ..part(vec![(0, at(1, false))]) };
        assert_eq!(regroup(&before, &few, &base), Err(RegroupEnd::TooFew { workers: 1, least: 2 }));
        assert_eq!(regroup(&before, &part(Vec::new()), &base), Err(RegroupEnd::NobodyLeft));
    }

    #[test]
    fn units_that_some_part_lacks_are_left_and_the_copy_that_has_fewer_is_handed_the_part() {
        let sync = (crate::consistency::find("asp").unwrap().make)(&crate::Options::default(), 9);
        let base = Setup { sync, ..Setup::new(2, 2, 10, 9) };
        let before = Membership::first(&base, true);
        assert!(before.shares.is_empty(), "workers take units as they come");
        let copy = |i: usize, made, lacks: &[u64]| PartStanding {
            part: i as u32,
            range: 5 * i..5 * i + 5,
            made,
            lacks: lacks.to_vec(),
        };
        let server =
            |parts: [PartStanding; 2]| RankStanding { parts: parts.into(), ..RankStanding::default() };
        // Unit 3 has come to part 0 alone, and not to its copy; unit 4 to both parts and copies.
        let survivors = || {
            let first = server([copy(0, 5, &[]), copy(1, 5, &[3])]);
            vec![(0, at(2, false)), (2, first), (3, server([copy(0, 5, &[3]), copy(1, 5, &[3])]))]
        };
        let on = regroup(&before, &part(survivors()), &base).unwrap();
        let work = WorkLeft { open: vec![3], next: 5, made: vec![(0, 3)] };
        assert_eq!((on.from, on.work.as_ref()), (1, Some(&work)), "three units are one step and a half");
        assert_eq!((work.lacking(0), work.lacking(1)), (vec![], vec![3]));
        let older = Some(copy(0, 5, &[3]));
        let levelled = Handover { from: 1, to: 2, range: 0..5, optimiser: true, older };
        assert_eq!(on.handovers, [levelled], "the workers' parameters count for nothing");
        // Without the server that had it, unit 3 is done again for both.
        let fewer = survivors().into_iter().filter(|(member, _)| *member != 2).collect();
        let work = regroup(&before, &part(fewer), &base).unwrap().work.unwrap();
        assert_eq!(work, WorkLeft { open: vec![3], next: 5, made: vec![] });
        let none = vec![(2, server([copy(0, 5, &[]), copy(1, 5, &[])]))];
        let few = regroup(&before, &part(none), &base);
        assert_eq!(few, Err(RegroupEnd::TooFew { workers: 0, least: 1 }), "servers have all that counts");
    }

    #[test]
    fn a_part_knows_which_units_it_has() {
        let mut part = PartStanding { part: 0, range: 0..1, made: 0, lacks: Vec::new() };
        for (unit, made, lacks, first) in
            [(0, 1, vec![], 1), (3, 4, vec![1, 2], 1), (1, 4, vec![2], 2), (2, 4, vec![], 4)]
        {
            assert!(!part.has(unit));
            part.note(unit);
            assert!(part.has(unit));
            assert_eq!((part.made, &part.lacks, part.first_missing()), (made, &lacks, first));
        }
        assert_eq!(part.updates(), 4);
    }
}
