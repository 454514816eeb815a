//! What each change of members cost: the pause, the step that was made anew, and what steps took afterwards.

use paceline_record::MembershipChange;
use paceline_statistics::median;

use super::sentence::{Part, Sentence, percent, seconds};
use super::{RecordedRun, RecordedStep};

/// Steps between two changes from which on their median is told.
const STEPS: usize = 3;
/// A difference that is told as one.
const DIFFERENT: f64 = 0.03;

/// A sentence for each change.
pub(super) fn sentences(recorded: &RecordedRun) -> Vec<Sentence> {
    let changes = &recorded.membership;
    let ends = |i: usize| changes.get(i).map_or(u64::MAX, |change| change.step);
    let between = |i: usize| {
        let begins = if i == 0 { 0 } else { changes[i - 1].step };
        typical(recorded, begins, ends(i))
    };
    changes.iter().enumerate().map(|(i, change)| sentence(i, change, between(i), between(i + 1))).collect()
}

/// What a step took typically, of the members that the run began with: behind step `from`, and up to step `to`.
fn typical(recorded: &RecordedRun, from: u64, to: u64) -> Option<f64> {
    let first = recorded.plan.as_ref().map_or(usize::MAX, |plan| plan.workers);
    let of = |step: &&RecordedStep| {
        // The first step after a change holds the pause.
        let settled = step.step > from + 1 && step.step <= to;
        step.rank < first && recorded.ranks[step.rank].worker && settled
    };
    let took: Vec<f64> = recorded.steps.iter().filter(of).map(RecordedStep::duration_s).collect();
    (took.len() >= STEPS).then(|| median(&took))
}

fn sentence(i: usize, change: &MembershipChange, before: Option<f64>, after: Option<f64>) -> Sentence {
    let id = |name: &str| format!("change_{}_{name}", i + 1);
    let figures = [
        (id("at_s"), change.at_s),
        (id("pause_s"), change.pause_s),
        (id("step"), change.step as f64),
        (id("steps_anew"), change.steps_anew as f64),
        (id("workers"), change.workers as f64),
        (id("servers"), change.servers as f64),
    ];
    let told = Sentence::told(change.words(), figures);
    let (Some(before), Some(after)) = (before, after) else { return told };
    let slower = after / before - 1.0;
    let compared = match slower {
        slower if slower.abs() < DIFFERENT => Sentence::new(", as before", []),
        slower if slower > 0.0 => Sentence::new(", {} longer", [percent(id("slower"), slower)]),
        slower => Sentence::new(", {} less", [percent(id("faster"), -slower)]),
    };
    told.then(Sentence::new(
        "; a step took {} before and takes {} since then{}",
        [seconds(id("before_s"), before), seconds(id("after_s"), after), Part::Sentence(compared)],
    ))
}

#[cfg(test)]
mod tests {
    use super::super::{Explanation, RecordedRank};
    use super::*;

    fn step(rank: usize, step: u64, took: f64) -> RecordedStep {
        RecordedStep {
            rank,
            step,
            begin_s: step as f64,
            compute_s: took,
            samples: 8,
            ..RecordedStep::default()
        }
    }

    fn run(membership: Vec<MembershipChange>) -> RecordedRun {
        let worker = || RecordedRank { worker: true, host: "h".into(), ..RecordedRank::default() };
        let took = |n: u64| if n <= 20 { 0.01 } else { 0.014 };
        let steps = (0..3).flat_map(|rank| (1..=40).map(move |n| step(rank, n, took(n))));
        // Rank 2 was lost after step 20.
        let steps = steps.filter(|step| step.rank < 2 || step.step <= 20).collect();
        RecordedRun {
            run: "r".into(),
            ranks: vec![worker(), worker(), worker()],
            steps,
            membership,
            ..RecordedRun::default()
        }
    }

    #[test]
    fn a_change_is_told_with_the_pause_the_step_made_anew_and_slower_steps_afterwards() {
        let change = MembershipChange {
            at_s: 0.25,
            lost: vec![2],
            took_over: vec![0],
            workers: 2,
            step: 20,
            steps_anew: 1,
            pause_s: 0.004,
            ..MembershipChange::default()
        };
        let explained = Explanation::new(&run(vec![change])).unwrap();
        let [told] = explained.membership.as_slice() else { panic!("{:?}", explained.membership) };
        assert_eq!(
            &**told,
            "at 0.250 s: lost rank 2; the work went to rank 0; 2 workers went on after 0.004 s, from step 20, 1 step made \
             anew; a step took 10 ms before and takes 14 ms since then, 40% longer"
        );
        assert_eq!(told.figures()["change_1_pause_s"], 0.004);
        assert!(explained.text().contains("Changes of members\n- at 0.250 s"), "{}", explained.text());
        assert!(explained.sentences().iter().any(|sentence| sentence == told));
    }

    #[test]
    fn nothing_is_compared_that_was_not_seen_and_without_changes_nothing_is_told() {
        let late = MembershipChange { lost: vec![1], workers: 1, step: 40, ..MembershipChange::default() };
        let explained = Explanation::new(&run(vec![late])).unwrap();
        assert!(explained.membership[0].ends_with("made anew"), "{}", &*explained.membership[0]);
        let explained = Explanation::new(&run(Vec::new())).unwrap();
        assert!(explained.membership.is_empty() && !explained.text().contains("members"));
    }
}
