//! Runs whose members change and whose workers take units of work one by one: every unit is applied to every parameter
//! exactly once, both copies of a shard are the same, and the bounds of the consistency models hold.

use paceline_conformance::{Gradient, StrategyCase as Case, costs, make, numbers};
use paceline_protocol::{Action, Buf, GradientScale, MsgId, Rank, Region, RegroupEnd, Setup, Time, WorkUnit};
use paceline_random::{Purpose, Stream};
use paceline_sim::{
    ChangingReport, ChangingRun, Costs, GenerationReport, NumericMemory, RankMemory, Revocation, SizesOnly,
    StepStart, run_changing, simulate,
};

use super::changing::{changing, kills, run, undisturbed_costs};

fn cases() -> Vec<Case> {
    changing(false)
}

/// A setup drawn from a seed: 4 workers, 2 or 3 servers.
fn drawn(case: &Case, seed: u64) -> Setup {
    let s = Stream::new(seed, Purpose::Virtual).fork(20);
    let servers = 2 + s.below(1, 2) as usize;
    case.setup(Setup { workers: 4, servers, steps: Some(4 + s.below(2, 8)), ..case.draw(seed) })
}

/// The time of the run that nothing happens to.
fn undisturbed(case: &Case, setup: &Setup, costs: &Costs) -> Time {
    let report = simulate(setup, make(case.strategy, setup), costs, &mut SizesOnly, None, &[]);
    assert_eq!(report.stuck, [0usize; 0]);
    report.end
}

/// What a unit adds to a parameter: whole numbers, so that no order of sums changes anything.
fn counted(unit: WorkUnit, i: usize) -> f32 {
    let s = Stream::new(unit.step * 100 + unit.share as u64, Purpose::Bench);
    1.0 + s.below(i as u64, 1_000) as f32
}

/// Parameters that tell which units were applied, and how often.
fn counting(setup: &Setup) -> NumericMemory<Gradient> {
    let gradient: Gradient = Box::new(|_, unit, scale, _, grads| {
        assert_eq!(scale, GradientScale::Own);
        grads.iter_mut().enumerate().for_each(|(i, grad)| *grad = counted(unit, i));
    });
    NumericMemory::new(&vec![0.0; setup.params], vec![Vec::new(); setup.world()], gradient).with_momentum(0.0)
}

/// The parameters after every unit of the run, once each.
fn all_units_once(setup: &Setup) -> Vec<f32> {
    let units = || (0..setup.end()).flat_map(|step| (0..4).map(move |share| WorkUnit { step, share }));
    (0..setup.params).map(|i| -units().map(|unit| counted(unit, i)).sum::<f32>()).collect()
}

/// The servers' parameters, if the copies of each shard that are left are the same.
fn model(report: &ChangingReport, memory: &NumericMemory<Gradient>, setup: &Setup, name: &str) -> Vec<f32> {
    assert_eq!(report.stuck, [0usize; 0], "{name}: {report:?}");
    assert_eq!(report.end, None, "{name}: {report:?}");
    let last = report.generations.last().unwrap();
    assert_eq!(last.to, setup.end(), "{name}");
    let alive = |member: &usize| last.lost.iter().all(|(lost, _)| lost != member);
    for member in last.membership.ranks().filter(alive) {
        assert_eq!(memory.held(member), 0, "{name}: member {member} releases every body");
    }
    let shard = |(shard, range): (usize, std::ops::Range<usize>)| {
        let held = last.membership.shards[shard];
        let holders = [Some(held.primary), held.backup].into_iter().flatten().filter(alive);
        let copies: Vec<_> = holders.map(|member| &memory.params(member)[range.clone()]).collect();
        assert!(copies.iter().all(|copy| *copy == copies[0]), "{name}: the copies of shard {shard} differ");
        copies[0].to_vec()
    };
    setup.shards().into_iter().enumerate().flat_map(shard).collect()
}

#[test]
fn every_model_whose_steps_are_of_one_kind_can_change_its_members() {
    let mut syncs: Vec<_> = cases().iter().map(|case| case.sync).collect();
    syncs.sort_unstable();
    syncs.dedup();
    // (Sync-Switch at 0 is asp.)
    assert_eq!(syncs, ["adaptive", "asp", "dssp", "essp", "ssp", "switch"]);
}

#[test]
fn whoever_is_killed_and_whenever_every_unit_is_applied_once_and_both_copies_are_the_same() {
    let (mut kinds, mut within_a_step, mut levelled, mut anew) = ([0; 3], 0, 0, 0);
    for case in cases() {
        for seed in 0..500 {
            let setup = drawn(&case, seed);
            let costs = costs(&setup, seed);
            let revocations = kills(&setup, seed, undisturbed(&case, &setup, &costs));
            let name = format!("{} seed {seed} {revocations:?}", case.name());
            let run = run(&case, &setup, &costs, &revocations);
            let mut memory = counting(&setup);
            let report = run_changing(&run, &mut memory);
            assert_eq!(model(&report, &memory, &setup, &name), all_units_once(&setup), "{name}: {report:?}");
            // The same with gradients that depend on parameters, and momentum: nothing may have been made of what a
            // member does not have.
            let mut memory = numbers(&setup, vec![Vec::new(); setup.world()]).with_momentum(0.9);
            let again = run_changing(&run, &mut memory);
            let params = model(&again, &memory, &setup, &name);
            assert!(params.iter().all(|param| param.is_finite()), "{name}");
            assert_eq!((again.ended, again.pauses()), (report.ended, report.pauses()), "{name}");
            let lost = report.generations.iter().flat_map(|generation| &generation.lost).count();
            kinds[lost.min(2)] += 1;
            for generation in &report.generations {
                within_a_step += usize::from(generation.lost.len() > 1);
                levelled += generation.levelled;
                anew += generation.open.len();
            }
        }
    }
    // The draws reach what they are for.
    let reached = (kinds, within_a_step, levelled, anew);
    assert!(kinds[1].min(kinds[2]) > 1_000, "{reached:?}");
    assert!(within_a_step > 50 && levelled > 1_000 && anew > 5_000, "{reached:?}");
}

#[test]
fn without_backups_a_lost_workers_units_are_done_by_the_others_and_a_lost_server_ends_the_run() {
    let mut anew = 0;
    for case in cases() {
        for seed in 0..200 {
            let setup = Setup { servers: 1 + seed as usize % 3, ..drawn(&case, seed) };
            let costs = costs(&setup, seed);
            let end = undisturbed(&case, &setup, &costs);
            let s = Stream::new(seed, Purpose::Virtual).fork(23);
            let gone = |n: u64, member| Revocation {
                at: s.below(n, end),
                member,
                notice: if s.below(10 + n, 4) == 0 { s.below(20 + n, end / 4 + 1) } else { 0 },
                back_after: (s.below(30 + n, 2) == 0).then(|| s.below(40 + n, end)),
            };
            let revocations = [gone(0, 0), gone(1, 1), gone(2, 3)];
            let name = format!("{} seed {seed} {revocations:?}", case.name());
            let run = ChangingRun { backups: false, ..run(&case, &setup, &costs, &revocations) };
            let mut memory = counting(&setup);
            let report = run_changing(&run, &mut memory);
            assert_eq!(model(&report, &memory, &setup, &name), all_units_once(&setup), "{name}: {report:?}");
            anew += report.generations.iter().map(|generation| generation.open.len()).sum::<usize>();
            let server = [Revocation { at: end / 2, member: 4, notice: 0, back_after: None }];
            let lost = run_changing(&ChangingRun { revocations: &server, ..run }, &mut SizesOnly);
            assert_eq!((lost.end, lost.stuck.len()), (Some(RegroupEnd::ShardLost(0)), 0), "{name}");
        }
    }
    assert!(anew > 1_000, "{anew} units were done again");
}

#[test]
fn a_spare_takes_a_lost_workers_place() {
    for case in cases() {
        for seed in 0..30 {
            let setup = drawn(&case, seed);
            let costs = costs(&setup, seed);
            let end = undisturbed(&case, &setup, &costs);
            let lost = [Revocation { at: end / 3, member: 2, notice: 0, back_after: None }];
            let run = ChangingRun { spares: 1, least: 4, ..run(&case, &setup, &costs, &lost) };
            let mut memory = counting(&setup);
            let report = run_changing(&run, &mut memory);
            let name = format!("{} seed {seed}", case.name());
            assert_eq!(model(&report, &memory, &setup, &name), all_units_once(&setup), "{name}");
            assert!(report.generations.last().unwrap().membership.workers.contains(&setup.world()), "{name}");
        }
    }
}

#[test]
fn a_server_together_with_its_backup_ends_the_run_and_says_which_shard_was_lost() {
    for case in cases() {
        let setup = case.setup(Setup { servers: 2, workers: 4, steps: Some(8), ..case.draw(3) });
        let costs = costs(&setup, 3);
        let end = undisturbed(&case, &setup, &costs);
        let lost = |member| Revocation { at: end / 2, member, notice: 0, back_after: None };
        let report = run_changing(&run(&case, &setup, &costs, &[lost(4), lost(5)]), &mut SizesOnly);
        assert_eq!((report.end, report.stuck.len()), (Some(RegroupEnd::ShardLost(0)), 0), "{}", case.name());
    }
}

#[test]
fn who_is_lost_while_copies_are_made_level_leaves_a_copy_that_goes_on() {
    let (mut torn, mut runs) = (0, 0);
    for case in cases() {
        for seed in 0..200 {
            let setup = drawn(&case, seed);
            let costs = costs(&setup, seed);
            let end = undisturbed(&case, &setup, &costs);
            let s = Stream::new(seed, Purpose::Virtual).fork(24);
            let first = Revocation { at: s.below(0, end), member: 3, notice: 0, back_after: None };
            let once = run_changing(&run(&case, &setup, &costs, &[first]), &mut SizesOnly);
            let Some(levelled) = once.generations.iter().position(|g| g.levelled > 0) else { continue };
            // A server is lost while the next generation begins.
            let at = once.generations[levelled + 1].began + s.below(1, end / setup.end() / 2 + 1);
            let member = 4 + s.below(2, setup.servers as u64) as usize;
            let revocations = [first, Revocation { at, member, notice: 0, back_after: None }];
            let name = format!("{} seed {seed} {revocations:?}", case.name());
            let mut memory = counting(&setup);
            let report = run_changing(&run(&case, &setup, &costs, &revocations), &mut memory);
            assert_eq!(model(&report, &memory, &setup, &name), all_units_once(&setup), "{name}: {report:?}");
            let before_a_step = |g: &GenerationReport| g.first_step.is_none() && !g.lost.is_empty();
            torn += usize::from(report.generations.iter().any(before_a_step));
            runs += 1;
        }
    }
    assert!(torn > 50, "{torn} of {runs} were lost before the first step");
}

/// Numbers, with what a worker was ahead of the slowest one that goes on when it began each of its steps.
struct Leads<'s> {
    setup: &'s Setup,
    inner: NumericMemory<Gradient>,
    /// Of each member in this generation, steps that it has begun, and elements of its gradients that have left.
    begun: Vec<u64>,
    left: Vec<usize>,
    /// Who began a step, and what everybody had begun and pushed by then.
    noted: Vec<(Rank, Vec<u64>, Vec<u64>)>,
    running: bool,
    greatest: u64,
}

impl<'s> Leads<'s> {
    fn new(setup: &'s Setup) -> Self {
        let none = || vec![0; setup.workers];
        Self {
            setup,
            inner: counting(setup),
            begun: none(),
            left: vec![0; setup.workers],
            noted: Vec::new(),
            running: false,
            greatest: 0,
        }
    }

    /// A generation is over: who began no further step is no slowest one.
    fn settle(&mut self) {
        let total = std::mem::replace(&mut self.begun, vec![0; self.setup.workers]);
        self.left.fill(0);
        self.running = false;
        for (member, begun, pushed) in self.noted.drain(..) {
            let goes_on = |other: &usize| total[*other] > begun[*other] || begun[*other] > pushed[*other];
            let slowest = (0..total.len()).filter(goes_on).map(|other| pushed[other]).min();
            let own = begun[member] - 1;
            self.greatest = self.greatest.max(own.saturating_sub(slowest.unwrap_or(own)));
        }
    }
}

impl RankMemory for Leads<'_> {
    type Body = Vec<f32>;

    fn gradient(&mut self, member: Rank, begin: StepStart) -> bool {
        self.running = true;
        self.begun[member] += 1;
        let pushed = self.left.iter().map(|left| (left / self.setup.params) as u64).collect();
        self.noted.push((member, self.begun.clone(), pushed));
        self.inner.gradient(member, begin)
    }
    fn read(&mut self, member: Rank, region: Region) -> Vec<f32> {
        if member < self.setup.workers && region.buf == Buf::Grad {
            self.left[member] += region.len;
        }
        self.inner.read(member, region)
    }
    fn hold(&mut self, member: Rank, msg: MsgId, body: Vec<f32>) {
        self.inner.hold(member, msg, body);
    }
    fn release(&mut self, member: Rank, msg: MsgId) {
        self.inner.release(member, msg);
    }
    fn compute(&mut self, member: Rank, action: &Action) {
        self.inner.compute(member, action);
    }
    fn seat(&mut self, member: usize, positions: usize, scratch: Vec<usize>) {
        if self.running {
            self.settle();
        }
        self.inner.seat(member, positions, scratch);
    }
    fn forget(&mut self, member: usize) {
        self.inner.forget(member);
    }
}

#[test]
fn bounds_of_leads_and_staleness_hold_across_every_change() {
    let (mut changes, mut leads, mut stale) = (0, 0, 0);
    for seed in 0..300 {
        let (bound, more) = (seed % 4, seed / 4 % 3);
        let (s, both) = (bound.to_string(), format!("{bound},{}", bound + more));
        for (sync, options, most) in [
            ("ssp", vec![("staleness", s.as_str())], bound),
            ("essp", vec![("staleness", s.as_str())], bound),
            ("dssp", vec![("staleness-bounds", both.as_str())], bound + more),
            ("adaptive", vec![("staleness", s.as_str()), ("staleness-bounds", both.as_str())], bound + more),
        ] {
            let case = Case::new("ps", sync, &options);
            let setup = Setup { steps: Some(10), ..drawn(&case, seed) };
            let mut costs = costs(&setup, seed);
            costs.compute[0] *= 1 + seed % 7;
            let revocations = kills(&setup, seed, undisturbed(&case, &setup, &costs));
            let name = format!("{} seed {seed} {revocations:?}", case.name());
            let mut memory = Leads::new(&setup);
            let report = run_changing(&run(&case, &setup, &costs, &revocations), &mut memory);
            memory.settle();
            assert_eq!(model(&report, &memory.inner, &setup, &name), all_units_once(&setup), "{name}");
            assert!(memory.greatest <= most, "{name}: a lead of {}, allowed {most}", memory.greatest);
            // Between read and write of an update each of the others pushes 2s + 1 times at most.
            let stalest = report.staleness.iter().copied().max().unwrap_or(0);
            assert!(stalest <= 3 * (2 * most + 1), "{name}: an update {stalest} versions old");
            changes += report.generations.len() - 1;
            leads += usize::from(memory.greatest == most && most > 0);
            stale += usize::from(stalest > 3);
        }
    }
    assert!(changes > 1_000 && leads > 100 && stale > 100, "{changes} {leads} {stale}");
}

#[test]
fn undisturbed_elasticity_costs_nothing_and_a_backup_half_of_what_push_and_pull_take() {
    for case in cases().into_iter().filter(|case| case.sync != "essp") {
        let setup = case.setup(Setup { bucket: 30, message: 20, ..Setup::new(5, 3, 100, 7) });
        let alone = undisturbed_costs(&case, &setup, None);
        assert_eq!(undisturbed_costs(&case, &setup, Some(false)), alone, "{}", case.name());
        let (bytes, messages) = undisturbed_costs(&case, &setup, Some(true));
        // Nothing is summed up: every push, as long as what comes back, goes to the backup.
        assert_eq!(bytes, alone.0 + alone.0 / 2, "{}", case.name());
        // Each part once more, a word to the worker per push and shard, and a last one per shard.
        let pushes = 5 * 7;
        let parts = (alone.1 - words(&case, &setup)) / (2 * pushes);
        assert_eq!(messages, alone.1 + pushes * (parts + 3) + 3, "{}", case.name());
    }
}

/// Messages without a body of a run without backups: goodbyes, and shard 0's words to the others.
fn words(case: &Case, setup: &Setup) -> u64 {
    let (workers, servers) = (setup.workers as u64, setup.servers as u64);
    let central = case.setup(setup.clone()).sync.central;
    let go = if central { (servers - 1) * workers * setup.end() } else { 0 };
    2 * workers * servers + go
}
