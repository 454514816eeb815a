//! Runs whose workers have weights of their own, and change: what is lost with a worker is its weights, and nothing else.

use std::collections::{BTreeMap, HashSet};

use paceline_conformance::{Gradient, StrategyCase as Case, costs, gradient, numbers};
use paceline_protocol::{Action, Averages, MsgId, Rank, Region, ReplicaAgreement, Setup, Time, WorkUnit};
use paceline_random::{Purpose, Stream};
use paceline_sim::{
    ChangingReport, ChangingRun, Costs, NumericMemory, RankMemory, Revocation, SizesOnly, StepStart,
    run_changing, simulate,
};

use super::changing::kills;
use super::{all, make};

/// The cases whose workers have weights of their own, and can change.
fn cases() -> Vec<Case> {
    let changes = |case: &Case| {
        let setup = case.setup(Setup::new(4, 0, 100, 5));
        !case.strategy.servers
            && case.strategy.own_weights(&setup)
            && case.strategy.check_membership(&setup, false).is_ok()
    };
    all().into_iter().filter(changes).collect()
}

/// A setup of four workers drawn from a seed.
fn drawn(case: &Case, seed: u64) -> Setup {
    let s = Stream::new(seed, Purpose::Virtual).fork(20);
    case.setup(Setup { workers: 4, servers: 0, steps: Some(4 + s.below(2, 14)), ..case.draw(seed) })
}

/// What a gradient is made of.
#[derive(Clone, Copy, PartialEq)]
enum Pull {
    /// Each unit pulls to a point of its own.
    Learning,
    /// The first step puts each share's worker at a point of its own; from then on nothing pulls.
    Apart,
    /// Nothing pulls at all.
    None,
}

/// Where the first step puts the worker of a share.
fn point(share: usize, element: usize) -> f32 {
    Stream::new(share as u64, Purpose::Bench).fork(3).uniform(element as u64, 0.0, 1.0) as f32
}

/// Real numbers, with a note of what is computed and told.
struct Noted {
    numbers: NumericMemory<Gradient>,
    /// Each member's parameters as they were changed last.
    last: BTreeMap<usize, Vec<f32>>,
    /// Members of the present generation, and its number.
    seated: HashSet<usize>,
    generation: usize,
    /// Units that each member has computed since its last update; those whose update was made, by generation.
    pending: BTreeMap<usize, Vec<WorkUnit>>,
    made: Vec<(usize, usize, WorkUnit)>,
    /// Steps that members have told of, by generation.
    told: BTreeMap<(usize, usize), u64>,
    /// Each worker's parameters when its generation began.
    began: Vec<BTreeMap<usize, Vec<f32>>>,
}

impl Noted {
    fn new(setup: &Setup, pull: Pull) -> Self {
        let own: Gradient = match pull {
            Pull::Learning => {
                let shares = setup.shares();
                Box::new(move |_, unit, scale, p, g| gradient(shares, unit, scale, p, g))
            }
            Pull::Apart => Box::new(|_, unit, _, p, g| {
                let first = unit.step == 0;
                let towards = |(i, g): (usize, &mut f32)| {
                    *g = if first { p[i] - point(unit.share, i) } else { 0.0 };
                };
                g.iter_mut().enumerate().for_each(towards);
            }),
            Pull::None => Box::new(|_, _, _, _, g| g.fill(0.0)),
        };
        let empty = vec![Vec::new(); setup.world()];
        let start = numbers(setup, empty.clone()).params(0).to_vec();
        let numbers = NumericMemory::new(&start, empty, own);
        Self {
            numbers: if pull == Pull::Learning { numbers.with_momentum(0.9) } else { numbers },
            last: BTreeMap::new(),
            seated: HashSet::new(),
            generation: 0,
            pending: BTreeMap::new(),
            made: Vec::new(),
            told: BTreeMap::new(),
            began: vec![BTreeMap::new()],
        }
    }

    /// How often each step of each share counts: those whose worker was lost only if it had told of them.
    fn counts(&self, report: &ChangingReport, setup: &Setup) -> Vec<Vec<u64>> {
        let mut counts = vec![vec![0; setup.end() as usize]; setup.shares()];
        for (generation, member, unit) in &self.made {
            let lost = report.generations[*generation].lost.iter().any(|(lost, _)| lost == member);
            let told = self.told.get(&(*generation, *member)).copied().unwrap_or(0);
            if !lost || unit.step < told {
                counts[unit.share][unit.step as usize] += 1;
            }
        }
        counts
    }
}

impl RankMemory for Noted {
    type Body = Vec<f32>;

    fn gradient(&mut self, member: Rank, begin: StepStart) -> bool {
        self.pending.entry(member).or_default().push(begin.unit);
        self.numbers.gradient(member, begin)
    }
    fn read(&mut self, member: Rank, region: Region) -> Vec<f32> {
        self.numbers.read(member, region)
    }
    fn hold(&mut self, member: Rank, msg: MsgId, body: Vec<f32>) {
        self.numbers.hold(member, msg, body);
    }
    fn release(&mut self, member: Rank, msg: MsgId) {
        self.numbers.release(member, msg);
    }
    fn compute(&mut self, member: Rank, action: &Action) {
        self.numbers.compute(member, action);
        if let Action::Apply { step, .. } = action {
            for unit in self.pending.remove(&member).unwrap_or_default() {
                assert_eq!(unit.step, *step, "an update is made of its own step's units");
                self.made.push((self.generation, member, unit));
            }
        }
        self.last.insert(member, self.numbers.params(member).to_vec());
    }
    fn step_over(&mut self, member: Rank, steps: u64, _: Time) {
        self.told.insert((self.generation, member), steps);
    }
    fn seat(&mut self, member: usize, positions: usize, scratch: Vec<usize>) {
        if !self.seated.insert(member) {
            (self.generation, self.seated) = (self.generation + 1, HashSet::from([member]));
            self.began.push(BTreeMap::new());
        }
        self.pending.remove(&member);
        self.numbers.seat(member, positions, scratch);
        let own = self.numbers.params(member).to_vec();
        let same = self.last.get(&member).is_none_or(|last| *last == own || own[0].is_nan());
        assert!(same, "regrouping changes no weight of member {member}");
        self.began[self.generation].insert(member, own);
    }
    fn forget(&mut self, member: usize) {
        self.numbers.forget(member);
    }
}

fn run<'a>(
    case: &Case,
    setup: &'a Setup,
    costs: &'a Costs,
    revocations: &'a [Revocation],
) -> ChangingRun<'a> {
    ChangingRun {
        strategy: case.strategy,
        setup,
        costs,
        backups: false,
        least: 1,
        most: 4,
        spares: 0,
        blocks: 1,
        revocations,
        noticed_after: 1_000,
        regroup: 500,
    }
}

/// The workers that took part to the end.
fn remain(report: &ChangingReport) -> Vec<usize> {
    let last = report.generations.last().unwrap();
    let lost = |member: &&usize| last.lost.iter().all(|(lost, _)| lost != *member);
    last.membership.workers.iter().filter(lost).copied().collect()
}

fn undisturbed_end(case: &Case, setup: &Setup, costs: &Costs) -> u64 {
    simulate(setup, make(case.strategy, setup), costs, &mut SizesOnly, None, &[]).end
}

/// Drives a run with such kills to its end.
fn driven(
    case: &Case,
    setup: &Setup,
    costs: &Costs,
    kills: &[Revocation],
    pull: Pull,
) -> (ChangingReport, Noted) {
    let mut memory = Noted::new(setup, pull);
    let changing =
        ChangingRun { blocks: u16::from(pull == Pull::Learning), ..run(case, setup, costs, kills) };
    let report = run_changing(&changing, &mut memory);
    assert_eq!((&report.stuck[..], report.end), (&[][..], None), "{} {kills:?}: {report:?}", case.name());
    for member in remain(&report) {
        assert_eq!(memory.numbers.held(member), 0, "{} member {member} releases every body", case.name());
    }
    (report, memory)
}

fn mean(of: impl Iterator<Item = Vec<f32>> + Clone) -> Vec<f64> {
    let count = of.clone().count() as f64;
    let len = of.clone().next().map_or(0, |one| one.len());
    (0..len).map(|i| of.clone().map(|one| f64::from(one[i])).sum::<f64>() / count).collect()
}

fn near(a: &[f64], b: &[f64], what: &str) {
    assert_eq!(a.len(), b.len());
    assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4), "{what}: {a:?} is not {b:?}");
}

#[test]
fn workers_with_weights_of_their_own_can_change_where_nothing_else_is_lost_with_one() {
    let mut names: Vec<_> = cases().iter().map(|case| case.strategy.name).collect();
    names.sort_unstable();
    names.dedup();
    for name in ["gossip", "local", "stepwise", "ring-allreduce", "tree"] {
        assert!(names.contains(&name), "{names:?}");
    }
    let refused = |case: &Case| {
        let setup = case.setup(Setup::new(4, 0, 100, 5));
        case.strategy.check_membership(&setup, false).unwrap_err().flag
    };
    assert_eq!(refused(&Case::new("stepwise", "bsp", &[("variant", "push-sum")])), "--debias");
    assert_eq!(refused(&Case::new("local", "bsp", &[("outer", "nesterov")])), "--outer");
    let gradients = Case::new("stepwise", "bsp", &[("variant", "periodic")]);
    assert_eq!(refused(&Case { averages: Averages::Gradients, ..gradients }), "--averages");
}

#[test]
fn whoever_is_killed_and_whenever_each_step_of_each_share_counts_once_or_is_dropped() {
    let (mut kinds, mut within_a_step, mut behind, mut dropped, mut handed) = ([0; 3], 0, 0, 0, 0);
    for case in cases() {
        let seeds = if case.coder.is_none() { 500 } else { 100 };
        for seed in 0..seeds {
            let setup = drawn(&case, seed);
            let costs = costs(&setup, seed);
            let end = undisturbed_end(&case, &setup, &costs);
            let kills = kills(&setup, seed, end);
            let what = format!("{} seed {seed} {kills:?}", case.name());
            let (report, memory) = driven(&case, &setup, &costs, &kills, Pull::Learning);
            for member in remain(&report) {
                let own = memory.numbers.params(member);
                assert!(own.iter().all(|p| p.abs() < 100.0), "{what}: member {member}: {own:?}");
            }
            let counts = memory.counts(&report, &setup);
            let left_out: HashSet<(usize, u64)> = report
                .generations
                .iter()
                .flat_map(|generation| &generation.dropped)
                .flat_map(|dropped| dropped.steps.clone().map(|step| (dropped.share, step)))
                .collect();
            for (share, steps) in counts.iter().enumerate() {
                for (step, count) in steps.iter().enumerate() {
                    let want = u64::from(!left_out.contains(&(share, step as u64)));
                    assert_eq!(*count, want, "{what}: share {share}, step {step}: {report:?}");
                }
            }
            let lost = report.generations.iter().flat_map(|generation| &generation.lost).count();
            kinds[lost.min(2)] += 1;
            dropped += left_out.len();
            for generation in &report.generations {
                within_a_step += usize::from(generation.lost.len() > 1);
                handed += generation.handed.len();
                behind += generation.membership.begins.iter().filter(|from| **from < generation.from).count();
            }
        }
    }
    // The draws reach what they are for.
    let reached = (kinds, within_a_step, behind, dropped, handed);
    assert!(kinds[1].min(kinds[2]) > 1_000 && within_a_step > 50, "{reached:?}");
    assert!(behind > 100 && dropped > 100 && handed > 500, "{reached:?}");
}

#[test]
fn what_weights_count_adds_up_to_1_whoever_is_lost() {
    for case in cases().into_iter().filter(|case| case.coder.is_none()) {
        for seed in 0..100 {
            let setup = drawn(&case, seed);
            let costs = costs(&setup, seed);
            let kills = kills(&setup, seed, undisturbed_end(&case, &setup, &costs));
            let what = format!("{} seed {seed} {kills:?}", case.name());
            // Workers that are equal stay what they are.
            let (report, memory) = driven(&case, &setup, &costs, &kills, Pull::None);
            let start = memory.began[0][&0].clone();
            for member in remain(&report) {
                let own = memory.numbers.params(member).iter().zip(&start);
                let far = own.map(|(own, start)| (own - start).abs()).fold(0.0, f32::max);
                assert!(far < 1e-5, "{what}: member {member} is {far} off");
            }
            // And no average lies outside of what workers have had.
            let (report, memory) = driven(&case, &setup, &costs, &kills, Pull::Apart);
            for member in remain(&report) {
                for (i, own) in memory.numbers.params(member).iter().enumerate() {
                    let points = || (0..4).map(|share| point(share, i)).chain([start[i]]);
                    let (least, most) = (points().fold(1.0, f32::min), points().fold(0.0, f32::max));
                    assert!(
                        (least - 1e-5..=most + 1e-5).contains(own),
                        "{what}: member {member}, {i}: {own}"
                    );
                }
            }
        }
    }
}

/// A run of four workers at points of their own, of which one is lost at a time given in steps.
fn one_lost(case: &Case, steps: u64, member: usize, after: f64) -> (ChangingReport, Noted, Setup) {
    let setup = case.setup(Setup { bucket: 7, message: 3, ..Setup::new(4, 0, 23, steps) });
    let costs = Costs::constant(4, 100_000, 10, 0.01);
    let end = undisturbed_end(case, &setup, &costs);
    let at = (end as f64 / steps as f64 * after) as u64;
    let kills = [Revocation { at, member, notice: 0, back_after: None }];
    let (report, memory) = driven(case, &setup, &costs, &kills, Pull::Apart);
    assert_eq!(report.generations.len(), 2);
    (report, memory, setup)
}

#[test]
fn survivors_of_a_local_average_have_the_mean_of_their_own_weights() {
    let case = Case::new("local", "bsp", &[("local-steps", "4")]);
    // Before the first average, worker 2's weights are lost; after it, they are a quarter of everybody's.
    for (after, shares) in [(2.5, &[0, 1, 3][..]), (4.5, &[0, 1, 2, 3])] {
        let (report, memory, setup) = one_lost(&case, 10, 2, after);
        let point = |share: &usize| (0..setup.params).map(|i| point(*share, i)).collect::<Vec<_>>();
        let want = mean(shares.iter().map(point));
        for member in remain(&report) {
            let own: Vec<f64> = memory.numbers.params(member).iter().map(|p| f64::from(*p)).collect();
            near(&own, &want, &format!("after step {after}: member {member}"));
        }
    }
}

#[test]
fn the_mean_of_a_gossip_ring_is_that_of_the_survivors_from_the_loss_on() {
    for neighbours in ["1", "2"] {
        let case = Case::new("gossip", "bsp", &[("neighbours", neighbours)]);
        for member in 0..4 {
            let (report, memory, _) = one_lost(&case, 40, member, 3.5);
            let survivors = remain(&report);
            assert!(survivors.len() == 3 && !survivors.contains(&member));
            let before = mean(survivors.iter().map(|member| memory.began[1][member].clone()));
            let after = mean(survivors.iter().map(|member| memory.numbers.params(*member).to_vec()));
            near(&before, &after, &format!("{neighbours} neighbours, {member} lost"));
            // The ring is closed: all agree in the end.
            for survivor in &survivors {
                let own: Vec<f64> = memory.numbers.params(*survivor).iter().map(|p| f64::from(*p)).collect();
                near(&own, &after, &format!("{neighbours} neighbours, {member} lost, {survivor}"));
            }
        }
    }
}

#[test]
fn a_wave_starts_at_the_next_survivor_when_the_worker_that_it_started_at_is_lost() {
    let case = Case::new("stepwise", "bsp", &[("variant", "naive")]);
    let (report, memory, _) = one_lost(&case, 60, 0, 2.5);
    // With a fixed start, nobody changes the start worker, and the others come to have what it has.
    let start = memory.began[1][&1].clone();
    let want: Vec<f64> = start.iter().map(|p| f64::from(*p)).collect();
    assert_eq!(memory.numbers.params(1), start);
    for member in remain(&report) {
        let own: Vec<f64> = memory.numbers.params(member).iter().map(|p| f64::from(*p)).collect();
        near(&own, &want, &format!("member {member}"));
    }
}

#[test]
fn a_worker_with_two_shares_counts_as_two() {
    // Averaged after each step, weights are those of the whole global batch's gradient, whoever computes it.
    let case = Case::new("local", "bsp", &[("local-steps", "1")]);
    let setup = case.setup(Setup::new(4, 0, 11, 12));
    let costs = Costs::constant(4, 100_000, 10, 0.01);
    let undisturbed = undisturbed_end(&case, &setup, &costs);
    let (_, calm) = driven(&case, &setup, &costs, &[], Pull::Learning);
    let kills = [Revocation { at: undisturbed / 2, member: 1, notice: undisturbed / 10, back_after: None }];
    let (report, memory) = driven(&case, &setup, &costs, &kills, Pull::Learning);
    assert!(report.generations.iter().all(|generation| generation.dropped.is_empty()), "{report:?}");
    assert_eq!(report.generations[1].membership.workers, [0, 2, 3]);
    let numbers = |memory: &Noted, member| -> Vec<f64> {
        memory.numbers.params(member).iter().map(|p| f64::from(*p)).collect()
    };
    // Without momentum that a worker keeps for itself it would be the same; with it, it is near.
    let (own, want) = (numbers(&memory, 0), numbers(&calm, 0));
    let far = own.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(far < 0.2, "{far}");
    near(&own, &numbers(&memory, 3), "all have the same");
}

#[test]
fn replicas_that_may_have_lost_an_average_are_evaluated_by_their_mean() {
    let case = Case::new("local", "bsp", &[("local-steps", "1")]);
    let setup = case.setup(Setup::new(4, 0, 9, 4));
    assert_eq!(case.strategy.agreement_of_members(&setup, false), ReplicaAgreement::Exact);
    assert_eq!(case.strategy.agreement_of_members(&setup, true), ReplicaAgreement::Apart);
}

#[test]
fn without_a_loss_bytes_and_weights_are_those_of_the_strategy_alone() {
    for case in cases() {
        for seed in 0..20 {
            let setup = drawn(&case, seed);
            let costs = Costs { header: 0, ..costs(&setup, seed) };
            let participants = make(case.strategy, &setup);
            let scratch = participants.iter().map(|participant| participant.scratch()).collect();
            let mut alone = numbers(&setup, scratch).with_momentum(0.9);
            let report = simulate(&setup, participants, &costs, &mut alone, None, &[]);
            let (changing, memory) = driven(&case, &setup, &costs, &[], Pull::Learning);
            let bytes: u64 = changing.spent.iter().map(|spent| spent.sent_bytes).sum();
            let what = format!("{} seed {seed}", case.name());
            assert_eq!(
                (bytes, changing.messages),
                (report.sent_bytes.iter().sum(), report.messages),
                "{what}"
            );
            for rank in 0..4 {
                assert_eq!(memory.numbers.params(rank), alone.params(rank), "{what}");
            }
        }
    }
}
