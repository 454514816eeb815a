//! What must hold for every strategy. Each function panics with what does not.

#![allow(clippy::missing_panics_doc, reason = "that is what they are for")]

use paceline_protocol::{
    Action, Actions, GradientScale, Input, MsgId, Outcome, ReplicaAgreement, Setup, Tag, WorkUnit,
};
use paceline_random::{Purpose, Stream};
use paceline_sim::{Crash, SimulationReport, SizesOnly, simulate};

use crate::case::StrategyCase;
use crate::driving::{costs, gradient, make, norm, numbers, run, start};

/// One worker that computes all shares itself, in f64.
fn reference(setup: &Setup) -> Vec<f64> {
    let mut params: Vec<f64> = start(setup.params).iter().map(|&p| f64::from(p)).collect();
    for step in 0..setup.end() {
        let mut sum = vec![0.0; setup.params];
        for share in 0..setup.workers {
            let s = Stream::new(step * 100 + share as u64, Purpose::Bench);
            for (i, g) in sum.iter_mut().enumerate() {
                *g += 0.2 * (params[i] - f64::from(s.uniform(i as u64, -1.0, 1.0) as f32))
                    / setup.workers as f64;
            }
        }
        params.iter_mut().zip(sum).for_each(|(p, g)| *p -= g);
    }
    params
}

/// Replicas that are said to be common are identical, and those that are said to be exact equal one worker with the whole
/// batch. How many runs were exact.
pub fn replicas_are_what_is_said(case: &StrategyCase, seeds: u64) -> usize {
    let mut exact = 0;
    for seed in 0..seeds {
        let setup = case.draw(seed);
        let agreement = case.agreement(&setup);
        if agreement == ReplicaAgreement::Apart {
            continue;
        }
        let (report, params) = run(case, &setup, &costs(&setup, seed), None);
        assert_eq!(report.stuck, [0usize; 0], "{} seed {seed}", case.name());
        for rank in 0..setup.workers {
            assert!(params[rank] == params[0], "{} seed {seed}: replica {rank}", case.name());
        }
        if agreement != ReplicaAgreement::Exact {
            continue;
        }
        exact += 1;
        let (want, begin) = (reference(&setup), start(setup.params));
        let error = norm(params[0].iter().zip(&want).map(|(p, w)| f64::from(*p) - w));
        let moved = norm(begin.iter().zip(&want).map(|(b, w)| f64::from(*b) - w));
        assert!(error <= 1e-5 * moved, "{} seed {seed}: {error:e} of {moved:e}", case.name());
    }
    exact
}

/// One worker alone is plain gradient descent, bit for bit. (Codecs and outer optimisers change it.)
pub fn one_worker_is_plain_gradient_descent(case: &StrategyCase) {
    let outer = case.options.0.get("outer").is_some_and(|outer| outer == "nesterov");
    if case.coder.is_some() || outer {
        return;
    }
    let setup = case.setup(Setup { workers: 1, steps: Some(9), ..case.draw(4) });
    let (_, params) = run(case, &setup, &costs(&setup, 4), None);
    let mut want = start(setup.params);
    for step in 0..setup.end() {
        let mut grads = vec![0.0; setup.params];
        let unit = WorkUnit { step, share: 0 };
        gradient(1, unit, GradientScale::Part, &want, &mut grads);
        want.iter_mut().zip(grads).for_each(|(w, g)| *w -= g);
    }
    assert_eq!(params[0], want, "{}", case.name());
}

/// Results of a deterministic strategy do not depend on timing, and with `actions` neither does what each rank does. (How
/// often a schedule's code of the same chunks is made anew may.)
pub fn timing_decides_nothing(case: &StrategyCase, seeds: u64, actions: bool) {
    for seed in 0..seeds {
        let setup = case.draw(seed);
        if !case.strategy.deterministic(&setup) {
            continue;
        }
        let (one, params) = run(case, &setup, &costs(&setup, seed), None);
        let (two, again) = run(case, &setup, &costs(&setup, seed + 1_000), None);
        assert_eq!(params, again, "{} seed {seed}", case.name());
        assert!(!actions || one.traces == two.traces, "{} seed {seed}: other actions", case.name());
    }
}

/// Every unit of work is done exactly once, and everybody ends.
pub fn every_unit_is_done_once(case: &StrategyCase, seeds: u64) {
    for seed in 0..seeds {
        let setup = case.draw(seed);
        let (report, _) = run(case, &setup, &costs(&setup, seed), None);
        let done = report.outcomes.iter().all(|o| *o == Some(Outcome::Completed));
        assert!(done, "{} seed {seed}: {:?}", case.name(), report.outcomes);
        let mut units: Vec<_> = report.steps.iter().map(|s| (s.unit.step, s.unit.share)).collect();
        units.sort_unstable();
        let want: Vec<_> =
            (0..setup.end()).flat_map(|t| (0..setup.workers).map(move |share| (t, share))).collect();
        assert_eq!(units, want, "{} seed {seed}", case.name());
    }
}

/// A run that stops goes on with exactly the work that is left, as if it had not stopped.
pub fn what_stops_goes_on_as_if_it_had_not(case: &StrategyCase, seeds: u64) {
    for seed in 0..seeds {
        let drawn = Setup { steps: Some(6), workers: 4, ..case.draw(seed) };
        let setup = case.setup(drawn);
        let (costs, name) = (costs(&setup, seed), case.name());
        let rest = Setup { from: 3, generation: setup.generation + 1, ..setup.clone() };
        let participants = make(case.strategy, &setup);
        let scratch = participants.iter().map(|p| p.scratch()).collect();
        let mut memory = numbers(&setup, scratch);
        let stop = [Input::StopAt(3)];
        let first = simulate(&setup, participants, &costs, &mut memory, None, &stop);
        let second = simulate(&rest, make(case.strategy, &rest), &costs, &mut memory, None, &[]);
        let units = |report: &SimulationReport| {
            let mut units: Vec<_> = report.steps.iter().map(|s| (s.unit.step, s.unit.share)).collect();
            units.sort_unstable();
            units
        };
        let all = |steps: std::ops::Range<u64>| -> Vec<_> {
            steps.flat_map(|step| (0..4).map(move |share| (step, share))).collect()
        };
        assert_eq!(units(&first), all(0..3), "{name}, seed {seed}");
        assert_eq!(units(&second), all(3..6), "{name}, seed {seed}");
        if setup.servers == 0 || setup.sync.is_bsp() {
            let (_, whole) = run(case, &setup, &costs, None);
            for (rank, params) in whole.iter().enumerate() {
                assert_eq!(memory.params(rank), params, "{name}, seed {seed}, rank {rank}");
            }
        }
    }
}

/// A message of another generation is given back and changes nothing.
pub fn other_generations_change_nothing(case: &StrategyCase) {
    let strategy = case.strategy;
    let setup = case.setup(Setup { generation: 5, ..Setup::new(3, usize::from(strategy.servers), 9, 4) });
    // Where paths are chosen by length, there have to be some.
    let setup = Setup { paths: case.draw(0).paths, ..setup };
    for rank in 0..setup.world() {
        let mut participant = strategy.participant(&setup, rank);
        let mut out = Actions::default();
        participant.on(0, Input::Start, &mut out);
        out.drain().count();
        for generation in [4, 6] {
            let tag = Tag { generation, step: 0, bucket: 0, phase: 0 };
            let (from, head, body) = ((rank + 1) % 3, Default::default(), Some(MsgId(1)));
            participant.on(1, Input::Message { from, tag, head, body }, &mut out);
            let done: Vec<Action> = out.drain().collect();
            let released = done.iter().filter(|a| **a == Action::Release(MsgId(1))).count();
            let others = done.iter().all(|a| matches!(a, Action::Release(_) | Action::WaitingFor(_)));
            assert!(released == 1 && others, "{} rank {rank}: {done:?}", case.name());
        }
    }
}

/// With a crash, every run ends or every survivor names the lost rank.
pub fn every_run_ends_or_names_the_lost_rank(case: &StrategyCase, seeds: u64) {
    for seed in 0..seeds {
        let (setup, name) = (case.draw(seed), case.name());
        let costs = costs(&setup, seed);
        let whole = simulate(&setup, make(case.strategy, &setup), &costs, &mut SizesOnly, None, &[]);
        assert_eq!(whole.stuck, [0usize; 0], "{name} seed {seed}: a deadlock");
        let s = Stream::new(seed, Purpose::Virtual).fork(11);
        let crash = Crash {
            rank: s.below(0, setup.world() as u64) as usize,
            at: s.below(1, whole.end + 1),
            noticed_after: s.below(2, 5_000),
        };
        let (report, _) = run(case, &setup, &costs, Some(crash));
        assert_eq!(report.stuck, [0usize; 0], "{name} seed {seed} {crash:?}");
        for (rank, outcome) in report.outcomes.iter().enumerate().filter(|(r, _)| *r != crash.rank) {
            let fine =
                matches!(outcome, Some(Outcome::Completed)) || *outcome == Some(Outcome::Lost(crash.rank));
            assert!(fine, "{name} seed {seed} {crash:?}: rank {rank} {outcome:?}");
        }
    }
}
