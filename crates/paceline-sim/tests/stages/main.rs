//! Runs with stages in virtual time: times are the program's timeline to the nanosecond, numbers are one process's bit for
//! bit whatever is delayed, and whatever breaks the rules is caught.

mod model;

use std::sync::Arc;

use model::{StagedNumbers, reference, setup};
use paceline_conformance::make;
use paceline_pipeline::{CheckedProgram, PIPELINES, StageTimes};
use paceline_protocol::{
    Action, Actions, Averages, BatchLengths, Buf, Input, Outcome, Participant, Region, STRATEGIES, Setup,
    StageSetup, Strategy, Time,
};
use paceline_random::{Purpose, Stream};
use paceline_sim::{Costs, Crash, SimulationReport, SizesOnly, StageCost, WorkCost, simulate};

fn strategy(name: &str) -> &'static Strategy {
    STRATEGIES.iter().find(|strategy| strategy.name == name).unwrap()
}

/// The strategies that replicas of stages can average with.
fn strategies() -> Vec<&'static Strategy> {
    STRATEGIES.iter().filter(|strategy| strategy.path.is_some() || strategy.servers).collect()
}

fn constant(setup: &Setup, times: &[StageTimes]) -> Costs {
    let stage = |rank: usize| {
        let StageTimes { forward, backward } = times[setup.stage_of(rank)];
        StageCost { forward, backward, parts: Vec::new() }
    };
    Costs { stages: (0..setup.workers).map(stage).collect(), ..Costs::constant(setup.workers, 0, 0, 0.0) }
}

/// Costs drawn from a seed.
fn drawn(setup: &Setup, seed: u64) -> Costs {
    let s = Stream::new(seed, Purpose::Virtual).fork(20);
    let stage = |rank: u64| StageCost {
        forward: 100 + s.below(2 * rank, 3_000),
        backward: 100 + s.below(2 * rank + 1, 5_000),
        parts: Vec::new(),
    };
    Costs {
        stages: (0..setup.workers as u64).map(stage).collect(),
        latency: s.below(1_000, 2_000),
        per_byte: s.unit(1_001) * 10.0,
        work: WorkCost::uniform(s.unit(1_002)),
        spread: 3.0 * s.unit(1_003),
        seed,
        ..Costs::constant(setup.workers, 0, 0, 0.0)
    }
}

/// A small case drawn from a seed: any strategy and pipeline, one to five stages, one to three replicas, up to five
/// micro-batches of up to seven samples; every third step has fewer, maybe none for a replica.
fn case(seed: u64) -> (&'static Strategy, Setup) {
    let s = Stream::new(seed, Purpose::Virtual).fork(21);
    let among = |n: u64, of: usize| s.below(n, of as u64) as usize;
    let strategy = strategies()[among(0, strategies().len())];
    let (stages, micro) = (1 + among(1, 5), 1 + among(2, 5));
    let program = PIPELINES[among(3, PIPELINES.len())].program(stages, micro).unwrap();
    (strategy, setup(strategy, &program, 1 + among(4, 3), micro.max(1 + among(5, 7)), 4))
}

fn run<'a>(
    strategy: &Strategy,
    setup: &'a Setup,
    costs: &Costs,
    crash: Option<Crash>,
) -> (SimulationReport, StagedNumbers<'a>) {
    let participants = make(strategy, setup);
    let scratch = participants.iter().map(|participant| participant.scratch()).collect();
    let mut memory = StagedNumbers::new(setup, scratch);
    let report = simulate(setup, participants, costs, &mut memory, crash, &[]);
    (report, memory)
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

/// Steps of a program take what its timeline says, to the nanosecond.
fn follows_the_timeline(program: &CheckedProgram, times: &[StageTimes]) {
    let (steps, samples) = (3, 12 * program.micro_batches());
    let uneven = setup(strategy("ring-allreduce"), program, 1, samples, steps);
    let stages = StageSetup {
        batches: BatchLengths::constant(samples),
        ..(**uneven.stages.as_ref().unwrap()).clone()
    };
    let setup = Setup { stages: Some(Arc::new(stages)), message: 1 << 20, ..uneven };
    let costs = constant(&setup, times);
    let report =
        simulate(&setup, make(strategy("ring-allreduce"), &setup), &costs, &mut SizesOnly, None, &[]);
    let timeline = program.timeline(times, 0);
    for (rank, want) in timeline.ranks.iter().enumerate() {
        let passes = report.passes.iter().filter(|pass| pass.rank == rank && pass.step == 0);
        let got: Vec<_> = passes.map(|pass| (pass.work, pass.start, pass.end)).collect();
        let want: Vec<_> = want.iter().map(|timed| (timed.work, timed.start, timed.end)).collect();
        assert_eq!(got, want, "stage {rank}");
        let busy: Time = times[rank].both() * program.micro_batches() as Time;
        assert_eq!(report.spent[rank].compute, steps * busy, "stage {rank}");
    }
    // A step's last pass is the first stage's, which then begins the next step: nothing of two steps overlaps.
    assert_eq!(report.finished[0], (1..=steps).map(|step| step * timeline.length).collect::<Vec<_>>());
    assert_eq!(report.end, steps * timeline.length);
    let idle: Time = report.spent.iter().map(|spent| report.end - spent.compute).sum();
    let bubble = idle as f64 / (report.end * program.stages() as Time) as f64;
    assert_eq!(bubble, timeline.bubble());
}

#[test]
fn with_constant_costs_and_no_latency_times_are_the_timeline_to_the_nanosecond() {
    for pipeline in PIPELINES {
        for (stages, micro_batches) in [(1, 1), (2, 8), (3, 5), (4, 4), (4, 2), (5, 20)] {
            let program = pipeline.program(stages, micro_batches).unwrap();
            let times = [StageTimes { forward: 1_000, backward: 2_000 }].repeat(stages);
            follows_the_timeline(&program, &times);
            let bubble = program.timeline(&times, 0).bubble();
            let (s, m) = (stages as f64, micro_batches as f64);
            assert!((bubble - (s - 1.0) / (m + s - 1.0)).abs() < 1e-12, "{}", pipeline.name);
        }
    }
}

#[test]
fn uneven_stages_follow_the_timeline_as_well() {
    for seed in 0..40 {
        let s = Stream::new(seed, Purpose::Virtual).fork(22);
        let (stages, micro_batches) = (1 + s.below(0, 5) as usize, 1 + s.below(1, 9) as usize);
        let times = |stage: u64| StageTimes {
            forward: 1 + s.below(10 + stage, 999),
            backward: 1 + s.below(20 + stage, 999),
        };
        let times: Vec<_> = (0..stages as u64).map(times).collect();
        for pipeline in PIPELINES {
            follows_the_timeline(&pipeline.program(stages, micro_batches).unwrap(), &times);
        }
    }
}

#[test]
fn numbers_are_those_of_one_process_bit_for_bit_whatever_is_delayed() {
    let (mut exact, mut seen) = (0, Vec::new());
    for seed in 0..500 {
        let (strategy, setup) = case(seed);
        assert_eq!(strategy.check(&setup), Ok(()), "seed {seed}");
        let (report, memory) = run(strategy, &setup, &drawn(&setup, seed), None);
        let name = format!("seed {seed}: {} {} × {}", strategy.name, setup.replicas(), setup.stage_count());
        assert_eq!(report.stuck, [0usize; 0], "{name}");
        let completed = report.outcomes.iter().all(|outcome| *outcome == Some(Outcome::Completed));
        assert!(completed, "{name}: {:?}", report.outcomes);
        assert_eq!(memory.held(), 0, "{name}: every body is released");
        for replica in 1..setup.replicas() {
            assert_eq!(bits(&memory.params(replica)), bits(&memory.params(0)), "{name}");
        }
        if setup.servers > 0 {
            assert_eq!(bits(&memory.served()), bits(&memory.params(0)), "{name}");
        }
        let want = reference(&setup);
        assert!(want.iter().all(|number| number.is_finite()), "{name}");
        // The sum of three is rounded along the path; servers take it in the order of the replicas.
        if setup.replicas() < 3 || strategy.servers {
            assert_eq!(bits(&memory.params(0)), bits(&want), "{name}");
            exact += 1;
        } else {
            let near = memory.params(0).iter().zip(&want).all(|(got, want)| (got - want).abs() < 1e-5);
            assert!(near, "{name}");
        }
        // Other delays: the same numbers and the same actions.
        let (again, other) = run(strategy, &setup, &drawn(&setup, seed + 1_000), None);
        assert_eq!(bits(&other.params(0)), bits(&memory.params(0)), "{name}");
        assert!(again.traces == report.traces, "{name}: other actions");
        seen.push((strategy.name, setup.replicas(), setup.stage_count()));
    }
    assert!(exact > 300, "{exact}");
    seen.sort_unstable();
    seen.dedup();
    assert!(seen.len() > 60, "{}", seen.len());
}

#[test]
fn every_run_ends_or_names_the_lost_rank() {
    for seed in 0..500 {
        let (strategy, setup) = case(seed);
        let costs = drawn(&setup, seed);
        let whole = simulate(&setup, make(strategy, &setup), &costs, &mut SizesOnly, None, &[]);
        let s = Stream::new(seed, Purpose::Virtual).fork(23);
        let rank = s.below(0, setup.world() as u64) as usize;
        let crash = Crash { rank, at: s.below(1, whole.end + 1), noticed_after: s.below(2, 5_000) };
        let (report, _) = run(strategy, &setup, &costs, Some(crash));
        assert_eq!(report.stuck, [0usize; 0], "seed {seed} {crash:?}");
        for (rank, outcome) in report.outcomes.iter().enumerate().filter(|(r, _)| *r != crash.rank) {
            let fine =
                matches!(outcome, Some(Outcome::Completed)) || *outcome == Some(Outcome::Lost(crash.rank));
            assert!(fine, "seed {seed} {crash:?}: rank {rank} {outcome:?}");
        }
        // Every wait names a rank that this one has a link to.
        for (rank, waits) in report.waits.iter().enumerate() {
            let links = strategy.links_of(&setup, rank);
            assert!(waits.iter().all(|peer| links.contains(peer)), "seed {seed}: rank {rank}, {waits:?}");
        }
    }
}

#[test]
fn what_stops_goes_on_as_if_it_had_not() {
    for seed in 0..500 {
        let (strategy, setup) = case(seed);
        let costs = drawn(&setup, seed);
        let (_, whole) = run(strategy, &setup, &costs, None);
        let rest = Setup { from: 2, generation: setup.generation + 1, ..setup.clone() };
        let participants = make(strategy, &setup);
        let scratch = participants.iter().map(|participant| participant.scratch()).collect();
        let mut memory = StagedNumbers::new(&setup, scratch);
        let first = simulate(&setup, participants, &costs, &mut memory, None, &[Input::StopAt(2)]);
        assert!(first.steps.iter().all(|started| started.step < 2), "seed {seed}");
        let second = simulate(&rest, make(strategy, &rest), &costs, &mut memory, None, &[]);
        assert_eq!((first.stuck, second.stuck), (vec![], vec![]), "seed {seed}");
        assert_eq!(bits(&memory.params(0)), bits(&whole.params(0)), "seed {seed}");
    }
}

#[test]
fn a_worker_that_leaves_ends_the_run_before_the_same_step_for_all() {
    for seed in 0..100 {
        let (strategy, setup) = case(seed);
        let open = Setup { steps: None, ..setup.clone() };
        let participants = make(strategy, &open);
        let scratch = participants.iter().map(|participant| participant.scratch()).collect();
        let mut memory = StagedNumbers::new(&open, scratch);
        memory.leaves = Some((0, 2));
        let report = simulate(&open, participants, &drawn(&open, seed), &mut memory, None, &[]);
        let left = Some(Outcome::Left { worker: 0, before: 2 });
        assert_eq!(report.stuck, [0usize; 0], "seed {seed}");
        assert!(report.outcomes.iter().all(|outcome| *outcome == left), "seed {seed}: {:?}", report.outcomes);
        let end = Setup { steps: Some(2), ..setup };
        let (_, whole) = run(strategy, &end, &drawn(&end, seed), None);
        assert_eq!(bits(&memory.params(0)), bits(&whole.params(0)), "seed {seed}");
    }
}

/// A participant that breaks a rule: what `breaks` says of an action decides whether it is done.
struct Mutant {
    inner: Box<dyn Participant>,
    actions: Actions,
    breaks: fn(&mut Action) -> bool,
}

impl Participant for Mutant {
    fn on(&mut self, now: Time, input: Input, out: &mut Actions) {
        self.inner.on(now, input, &mut self.actions);
        for mut action in self.actions.drain() {
            if (self.breaks)(&mut action) {
                out.push(action);
            }
        }
    }

    fn scratch(&self) -> Vec<usize> {
        self.inner.scratch()
    }
}

const TIMES: [StageTimes; 5] = [StageTimes { forward: 1_000, backward: 2_000 }; 5];

/// Whether a run whose participants break a rule gives something else than one process, or does not end.
fn is_caught(setup: &Setup, breaks: fn(&mut Action) -> bool) -> bool {
    let mutant = |inner: Box<dyn Participant>| -> Box<dyn Participant> {
        Box::new(Mutant { inner, actions: Actions::default(), breaks })
    };
    let participants: Vec<_> = make(strategy("ring-allreduce"), setup).into_iter().map(mutant).collect();
    let scratch = participants.iter().map(|participant| participant.scratch()).collect();
    let mut memory = StagedNumbers::new(setup, scratch);
    let report = simulate(setup, participants, &constant(setup, &TIMES), &mut memory, None, &[]);
    !report.stuck.is_empty() || bits(&memory.params(0)) != bits(&reference(setup))
}

#[test]
fn what_breaks_the_rules_is_caught() {
    for pipeline in PIPELINES {
        let name = pipeline.name;
        let setup = setup(strategy("ring-allreduce"), &pipeline.program(5, 4).unwrap(), 1, 8, 2);
        assert!(!is_caught(&setup, |_| true), "{name}: nothing is broken");
        // Stage 1 has two crossings: 0 and 2 are the values of its first two micro-batches.
        let swapped = |action: &mut Action| {
            if let Action::Send { to: 1, tag, src: Some(Region { buf: Buf::Value(_), .. }), .. } = action {
                tag.bucket = [2, 1, 0].get(tag.bucket as usize).copied().unwrap_or(tag.bucket);
            }
            true
        };
        assert!(is_caught(&setup, swapped), "{name}: swapped micro-batches");
        // Stage 2 receives two values, hands on one and makes one: what comes back of the one handed on is lost.
        let dropped = |action: &mut Action| {
            !matches!(action, Action::Copy { dst: Region { buf: Buf::Slope(3), .. }, .. })
        };
        assert!(is_caught(&setup, dropped), "{name}: a dropped skip gradient");
        let early = |action: &mut Action| {
            if let Action::Run { slot, .. } = action {
                *slot = 0;
            }
            true
        };
        assert!(is_caught(&setup, early), "{name}: a slot that is used again too early");
        let mut fewer = (**setup.stages.as_ref().unwrap()).clone();
        fewer.stages[1].slots -= 1;
        let fewer = Setup { stages: Some(Arc::new(fewer)), ..setup.clone() };
        assert!(is_caught(&fewer, |_| true), "{name}: fewer slots than the program needs");
    }
}

#[test]
fn what_cannot_be_run_with_stages_is_refused_with_its_flag() {
    let gpipe = PIPELINES.iter().find(|pipeline| pipeline.name == "gpipe").unwrap();
    let (ring, ps) = (strategy("ring-allreduce"), strategy("ps"));
    let fine = setup(ring, &gpipe.program(2, 2).unwrap(), 2, 4, 2);
    let half = Setup { coder: Some("fp16".parse().unwrap()), ..fine.clone() };
    assert_eq!((ring.check(&fine), ring.check(&half)), (Ok(()), Ok(())));
    for (strategy, setup, flag) in [
        (strategy("gossip"), fine.clone(), "--strategy"),
        (ring, Setup { averages: Averages::Weights, ..fine.clone() }, "--averages"),
        (ring, Setup { shares: Some(8), ..fine.clone() }, "--shares"),
        (ring, Setup { coder: Some("sign".parse().unwrap()), ..fine.clone() }, "--compression"),
        (ps, Setup { servers: 3, ..fine.clone() }, "--servers"),
        (ps, Setup { servers: 20, ..fine.clone() }, "--servers"),
        (ps, Setup { servers: 2, ..half }, "--compression"),
    ] {
        let refused = strategy.check(&setup).unwrap_err();
        assert_eq!(refused.flag, flag, "{refused:?}");
    }
}
