//! Runs whose members change end with the parameters of those whose members do not, bit for bit: whoever is killed, and
//! whenever. (Where workers take units one by one, something else holds: `changing_apart`.)

use paceline_conformance::{StrategyCase as Case, costs, make, numbers};
use paceline_protocol::{Action, Actions, Input, Membership, MsgId, RegroupEnd, Setup, Strategy, Tag};
use paceline_random::{Purpose, Stream};
use paceline_sim::{
    ChangingReport, ChangingRun, Costs, GenerationReport, NumericMemory, Revocation, SizesOnly, run_changing,
    simulate,
};

use super::all;

const MOMENTUM: f32 = 0.9;

/// The cases whose members can change and make their steps together, with servers that have backups.
fn cases() -> Vec<Case> {
    changing(true)
}

/// The cases whose members can change: those that make their steps together, or the others.
pub(super) fn changing(together: bool) -> Vec<Case> {
    let changes = |case: &Case| {
        let setup = case.setup(Setup::new(4, if case.strategy.servers { 2 } else { 0 }, 100, 5));
        let allowed = case.strategy.check_membership(&setup, case.strategy.servers).is_ok();
        allowed && setup.sync.is_bsp() == together && !case.strategy.own_weights(&setup)
    };
    all().into_iter().filter(changes).collect()
}

/// A setup drawn from a seed: 4 to 6 shares on 4 workers, servers if there are some.
fn drawn(case: &Case, seed: u64) -> Setup {
    let s = Stream::new(seed, Purpose::Virtual).fork(20);
    let drawn = case.draw(seed);
    let shares = 4 + s.below(0, 3) as usize;
    let setup = Setup {
        workers: 4,
        servers: if case.strategy.servers { 2 + s.below(1, 2) as usize } else { 0 },
        shares: (shares > 4).then_some(shares),
        steps: Some(4 + s.below(2, 8)),
        ..drawn
    };
    case.setup(setup)
}

type Memory = NumericMemory<paceline_conformance::Gradient>;

fn memory(setup: &Setup) -> Memory {
    numbers(setup, vec![Vec::new(); setup.world()]).with_momentum(MOMENTUM)
}

/// The parameters of the run that nothing happens to, and its time.
fn undisturbed(strategy: &Strategy, setup: &Setup, costs: &Costs) -> (Vec<f32>, u64) {
    let participants = make(strategy, setup);
    let scratch = participants.iter().map(|p| p.scratch()).collect();
    let mut memory = numbers(setup, scratch).with_momentum(MOMENTUM);
    let report = simulate(setup, participants, costs, &mut memory, None, &[]);
    assert_eq!(report.stuck, [0usize; 0]);
    (memory.params(0).to_vec(), report.end)
}

pub(super) fn run<'a>(
    case: &Case,
    setup: &'a Setup,
    costs: &'a Costs,
    revocations: &'a [Revocation],
) -> ChangingRun<'a> {
    ChangingRun {
        strategy: case.strategy,
        setup,
        costs,
        backups: case.strategy.servers,
        least: 1,
        most: 4,
        spares: 0,
        blocks: 1,
        revocations,
        noticed_after: 1_000,
        regroup: 500,
    }
}

/// Every worker that took part in the end has these parameters, and each server its shards of them.
fn same(report: &ChangingReport, memory: &Memory, setup: &Setup, want: &[f32], name: &str) {
    assert_eq!(report.stuck, [0usize; 0], "{name}: {report:?}");
    assert_eq!(report.end, None, "{name}: {report:?}");
    let last = report.generations.last().unwrap();
    assert_eq!(last.to, setup.end(), "{name}");
    for member in &last.membership.workers {
        let alive = last.lost.iter().all(|(lost, _)| lost != member);
        assert!(!alive || memory.params(*member) == want, "{name}: worker {member}: {report:?}");
    }
    for (shard, range) in setup.shards().into_iter().enumerate() {
        let held = last.membership.shards[shard];
        for member in [Some(held.primary), held.backup].into_iter().flatten() {
            let alive = last.lost.iter().all(|(lost, _)| *lost != member);
            let same = memory.params(member)[range.clone()] == want[range.clone()];
            assert!(!alive || same, "{name}: shard {shard} of member {member}: {report:?}");
        }
    }
    for member in last.membership.ranks() {
        let alive = last.lost.iter().all(|(lost, _)| *lost != member);
        assert!(!alive || memory.held(member) == 0, "{name}: member {member} releases every body");
    }
}

/// Kills drawn from a seed: one or two, of workers and servers, the second one at any time or within the same step; the
/// killed may come back.
pub(super) fn kills(setup: &Setup, seed: u64, end: u64) -> Vec<Revocation> {
    let s = Stream::new(seed, Purpose::Virtual).fork(21);
    let step = end / setup.end();
    let at = s.below(0, end);
    let second = if s.below(1, 2) == 0 { at + s.below(2, step + 1) } else { s.below(3, end) };
    let first = s.below(4, setup.world() as u64) as usize;
    // Another one: a server together with its backup is out of scope.
    let others: Vec<usize> = (0..setup.world())
        .filter(|member| *member != first && (*member < setup.workers || first < setup.workers))
        .collect();
    let other = others[s.below(5, others.len() as u64) as usize];
    let revocation = |n: u64, at, member| Revocation {
        at,
        member,
        notice: if s.below(10 + n, 4) == 0 { s.below(20 + n, 4 * step) } else { 0 },
        back_after: (s.below(30 + n, 2) == 0).then(|| s.below(40 + n, end)),
    };
    let both = [revocation(0, at, first), revocation(1, second, other)];
    both[..1 + usize::from(s.below(6, 3) > 0)].to_vec()
}

#[test]
fn every_exact_path_and_synchronous_servers_can_change_their_members_without_changing_a_bit() {
    let mut names: Vec<_> = cases().iter().map(|case| case.strategy.name).collect();
    names.sort_unstable();
    names.dedup();
    let exact =
        ["auto", "direct", "halving-doubling", "hierarchical", "ps", "ring-allreduce", "ring-reduce", "tree"];
    assert_eq!(names, exact);
}

#[test]
fn whoever_is_killed_and_whenever_the_parameters_are_those_of_the_undisturbed_run() {
    let (mut kinds, mut within_a_step, mut caught_up, mut ahead, mut anew) = ([0; 3], 0, 0, 0, 0);
    for case in cases() {
        let seeds = if case.coder.is_none() { 500 } else { 100 };
        for seed in 0..seeds {
            let setup = drawn(&case, seed);
            let (costs, name) = (costs(&setup, seed), format!("{} seed {seed}", case.name()));
            let (want, end) = undisturbed(case.strategy, &setup, &costs);
            let revocations = kills(&setup, seed, end);
            let name = format!("{name} {revocations:?}");
            let mut memory = memory(&setup);
            let report = run_changing(&run(&case, &setup, &costs, &revocations), &mut memory);
            same(&report, &memory, &setup, &want, &name);
            let lost = report.generations.iter().flat_map(|generation| &generation.lost).count();
            kinds[lost.min(2)] += 1;
            for generation in &report.generations {
                within_a_step += usize::from(generation.lost.len() > 1);
                caught_up += generation.caught_up.len();
                ahead += generation.ahead;
                anew += generation.anew();
            }
        }
    }
    // The draws reach what they are for.
    let reached = (kinds, within_a_step, caught_up, ahead, anew);
    assert!(kinds[1].min(kinds[2]) > 1_000, "{reached:?}");
    assert!(within_a_step > 50 && caught_up > 100 && ahead > 100 && anew > 1_000, "{reached:?}");
}

#[test]
fn four_workers_become_two_and_four_again() {
    let (mut all, mut runs) = (0, 0);
    for case in cases() {
        for seed in 0..50 {
            let setup = drawn(&case, seed);
            let costs = costs(&setup, seed);
            let (want, end) = undisturbed(case.strategy, &setup, &costs);
            let gone = |n: u64, member| Revocation {
                at: end * (1 + n) / 6,
                member,
                notice: 0,
                back_after: Some(end / 4),
            };
            let revocations = [gone(0, 3), gone(1, 1)];
            let mut memory = memory(&setup);
            let report = run_changing(&run(&case, &setup, &costs, &revocations), &mut memory);
            same(&report, &memory, &setup, &want, &format!("{} seed {seed}", case.name()));
            let workers: Vec<_> = report.generations.iter().map(|g| g.membership.workers.len()).collect();
            all += usize::from(workers[0] == 4 && workers.contains(&2) && workers.last() == Some(&4));
            runs += 1;
        }
    }
    // (In the others a worker comes back before the second one is gone, or the run ends before.)
    assert!(2 * all > runs, "{all} of {runs}");
}

#[test]
fn a_spare_takes_a_lost_workers_place_and_is_handed_the_optimisers_memory() {
    for case in cases() {
        for seed in 0..30 {
            let setup = drawn(&case, seed);
            let costs = costs(&setup, seed);
            let (want, end) = undisturbed(case.strategy, &setup, &costs);
            let lost = Revocation { at: end / 3, member: 2, notice: 0, back_after: None };
            let mut memory = memory(&setup);
            let run = ChangingRun { spares: 1, least: 4, ..run(&case, &setup, &costs, &[]) };
            let report = run_changing(&ChangingRun { revocations: &[lost], ..run }, &mut memory);
            same(&report, &memory, &setup, &want, &format!("{} seed {seed}", case.name()));
            assert!(report.generations.last().unwrap().membership.workers.contains(&setup.world()));
        }
    }
}

#[test]
fn a_server_together_with_its_backup_ends_the_run_and_says_which_shard_was_lost() {
    let case = Case::new("ps", "bsp", &[]);
    let setup = case.setup(Setup { servers: 2, workers: 4, steps: Some(8), ..case.draw(3) });
    let costs = costs(&setup, 3);
    let (_, end) = undisturbed(case.strategy, &setup, &costs);
    let lost = |member| Revocation { at: end / 2, member, notice: 0, back_after: None };
    let revocations = [lost(4), lost(5)];
    let report = run_changing(&run(&case, &setup, &costs, &revocations), &mut memory(&setup));
    assert_eq!((report.end, report.stuck.len()), (Some(RegroupEnd::ShardLost(0)), 0));
    let one =
        ChangingRun { backups: false, revocations: &revocations[..1], ..run(&case, &setup, &costs, &[]) };
    assert_eq!(run_changing(&one, &mut memory(&setup)).end, Some(RegroupEnd::ShardLost(0)));
    let few = [Revocation { at: end / 2, member: 0, notice: 0, back_after: None }];
    let few = ChangingRun { least: 4, ..run(&case, &setup, &costs, &few) };
    let end = run_changing(&few, &mut memory(&setup)).end;
    assert_eq!(end, Some(RegroupEnd::TooFew { workers: 3, least: 4 }));
}

#[test]
fn sizes_alone_take_the_time_that_numbers_take() {
    for case in cases().into_iter().filter(|case| case.coder.is_none()) {
        for seed in 0..20 {
            let setup = drawn(&case, seed);
            let costs = costs(&setup, seed);
            let (_, end) = undisturbed(case.strategy, &setup, &costs);
            let revocations = kills(&setup, seed, end);
            let run = run(&case, &setup, &costs, &revocations);
            let (one, two) = (run_changing(&run, &mut memory(&setup)), run_changing(&run, &mut SizesOnly));
            assert_eq!((one.ended, one.pauses()), (two.ended, two.pauses()), "{} seed {seed}", case.name());
        }
    }
}

#[test]
fn what_single_workers_keep_is_no_member_to_do_without() {
    let refused = |case: &Case, servers| {
        let setup = case.setup(Setup::new(4, servers, 100, 5));
        case.strategy.check_membership(&setup, false).unwrap_err().flag
    };
    let coder = "fp16".parse().ok();
    let ring = Case::new("ring-allreduce", "bsp", &[]);
    assert_eq!(refused(&Case { coder: "topk".parse().ok(), ..ring }, 0), "--compression");
    assert_eq!(refused(&Case { coder, ..Case::new("ps", "bsp", &[]) }, 2), "--compression");
    assert_eq!(refused(&Case::new("ps", "switch", &[]), 2), "--sync");
    let asynchronous = Case { coder: "fp16".parse().ok(), ..Case::new("ps", "asp", &[]) };
    assert_eq!(refused(&asynchronous, 2), "--compression");
    let setup = Setup::new(4, 1, 100, 5);
    let alone = paceline_protocol::find("ps").unwrap().check_membership(&setup, true);
    assert_eq!(alone.unwrap_err().flag, "--backup");
}

/// Bytes of bodies that all members sent, and messages, of a run that nothing happens to.
pub(super) fn undisturbed_costs(case: &Case, setup: &Setup, changing: Option<bool>) -> (u64, u64) {
    let costs = Costs { header: 0, ..Costs::constant(setup.workers, 1_000, 100, 0.1) };
    let Some(backups) = changing else {
        let report = simulate(setup, make(case.strategy, setup), &costs, &mut SizesOnly, None, &[]);
        return (report.sent_bytes.iter().sum(), report.messages);
    };
    let run = ChangingRun { backups, ..run(case, setup, &costs, &[]) };
    let report = run_changing(&run, &mut SizesOnly);
    assert_eq!((report.generations.len(), report.end, report.stuck.len()), (1, None, 0));
    (report.spent.iter().map(|spent| spent.sent_bytes).sum(), report.messages)
}

#[test]
fn undisturbed_votes_have_no_bodies_and_a_backup_costs_one_body_beside_two_per_worker() {
    for case in cases() {
        let servers = if case.strategy.servers { 3 } else { 0 };
        let setup = case.setup(Setup { bucket: 30, message: 20, ..Setup::new(5, servers, 100, 7) });
        let setup = Setup { paths: case.draw(0).paths, ..setup };
        let (bytes, messages) = undisturbed_costs(&case, &setup, None);
        let (changing, more) = undisturbed_costs(&case, &setup, Some(false));
        assert_eq!(changing, bytes, "{}", case.name());
        // A vote of 5 workers has 3 rounds.
        let votes = if case.strategy.servers { 0 } else { 5 * 3 * 7 };
        assert_eq!(more, messages + votes, "{}", case.name());
        if case.strategy.servers {
            let (backed_up, _) = undisturbed_costs(&case, &setup, Some(true));
            assert_eq!(backed_up, bytes + bytes / (2 * 5), "{}", case.name());
        }
    }
}

#[test]
fn messages_of_other_generations_change_nothing_whatever_they_are() {
    for case in cases().into_iter().chain(changing(false)) {
        let base = case
            .setup(Setup { generation: 5, ..Setup::new(3, if case.strategy.servers { 2 } else { 0 }, 9, 4) });
        let base = Setup { paths: case.draw(0).paths, ..base };
        let membership = Membership::first(&base, case.strategy.servers);
        let setup = membership.setup(&base, 0, None, 1);
        for rank in 0..setup.world() {
            let mut participant = case.strategy.participant(&setup, rank);
            let mut out = Actions::default();
            participant.on(0, Input::Start, &mut out);
            out.drain().count();
            let standing = participant.standing();
            for (generation, phase) in [4, 6]
                .into_iter()
                .flat_map(|g| (0..10).chain(u32::MAX - 12..=u32::MAX).map(move |phase| (g, phase)))
            {
                for from in (0..setup.world()).filter(|from| *from != rank) {
                    let (tag, head) = (Tag { generation, step: 0, bucket: 0, phase }, Default::default());
                    participant.on(1, Input::Message { from, tag, head, body: Some(MsgId(1)) }, &mut out);
                    let done: Vec<Action> = out.drain().collect();
                    let released = done.iter().filter(|a| **a == Action::Release(MsgId(1))).count();
                    let others = done.iter().all(|a| matches!(a, Action::Release(_) | Action::WaitingFor(_)));
                    assert!(released == 1 && others, "{} rank {rank} {tag:?}: {done:?}", case.name());
                }
            }
            assert_eq!(participant.standing(), standing, "{}", case.name());
        }
    }
}

#[test]
fn who_is_lost_while_it_hands_parameters_over_leaves_nobody_with_half_of_them() {
    let (mut torn, mut runs) = (0, 0);
    for case in cases() {
        for seed in 0..60 {
            let setup = drawn(&case, seed);
            let costs = costs(&setup, seed);
            let (want, end) = undisturbed(case.strategy, &setup, &costs);
            let back = Revocation { at: end / 4, member: 3, notice: 0, back_after: Some(end / 10) };
            let once = run_changing(&run(&case, &setup, &costs, &[back]), &mut SizesOnly);
            let joins = |g: &&GenerationReport| g.handed.contains(&3);
            let Some(joined) = once.generations.iter().find(joins) else { continue };
            let s = Stream::new(seed, Purpose::Virtual).fork(22);
            let donor = joined.membership.workers[0];
            let at = joined.began + s.below(0, end / setup.end() / 4);
            let revocations = [back, Revocation { at, member: donor, notice: 0, back_after: None }];
            let mut memory = memory(&setup);
            let report = run_changing(&run(&case, &setup, &costs, &revocations), &mut memory);
            same(&report, &memory, &setup, &want, &format!("{} seed {seed} {revocations:?}", case.name()));
            let lost = |g: &GenerationReport| g.lost.iter().any(|(member, _)| *member == donor);
            let again = report.generations.iter().filter(|g| g.handed.contains(&3)).count() > 1;
            torn += usize::from(again && report.generations.iter().any(lost));
            runs += 1;
        }
    }
    assert!(torn > 50, "{torn} of {runs} were lost before they had handed everything over");
}
