//! What holds a run in stages up: a stage that takes longer than the others, or stages that fill and drain.

use paceline_plan::Plan;
use paceline_statistics::{mean, median};

use super::sentence::{Part, Sentence, count, counted, name, percent, seconds};
use super::verdict::{Case, Cause, Verdict};
use super::{Change, RankTimes, RecordedRun, RecordedStep, WhatIf};

/// How much longer than the mean a stage takes before it is named.
const UNEVEN: f64 = 0.1;

/// Where the time of a stage goes in a step: medians over the steps of all replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct RecordedStage {
    /// Samples and both passes.
    pub compute_s: f64,
    /// Samples and the forward pass, a part of it.
    pub forward_s: f64,
    pub backward_s: f64,
    /// Waiting for earlier stages.
    pub wait_up_s: f64,
    /// Waiting for later stages.
    pub wait_down_s: f64,
    /// Handing over, averaging with other replicas, updating.
    pub averaging_s: f64,
    /// Of all of it, the part in which it waits for other stages.
    pub idle: f64,
    /// Micro-batches that were under way at once, at most.
    pub live_slots: u64,
}

impl RecordedStage {
    fn of(steps: &[RecordedStep]) -> Option<Self> {
        let typical = |of: &dyn Fn(&RecordedStep) -> f64| {
            let values: Vec<f64> = steps.iter().map(of).collect();
            median(&values)
        };
        let idle = |step: &RecordedStep| step.wait_up_s + step.wait_down_s;
        (!steps.is_empty()).then(|| Self {
            compute_s: typical(&|step| step.compute_s),
            forward_s: typical(&|step| step.compute_s - step.backward_s),
            backward_s: typical(&|step| step.backward_s),
            wait_up_s: typical(&|step| step.wait_up_s),
            wait_down_s: typical(&|step| step.wait_down_s),
            averaging_s: typical(&|step| step.duration_s() - step.compute_s - idle(step)),
            idle: typical(&|step| idle(step) / step.duration_s().max(f64::MIN_POSITIVE)),
            live_slots: steps.iter().map(|step| step.live_slots).max().unwrap_or(0),
        })
    }
}

/// The part of their time in which even stages have nothing to do, while they fill and drain.
pub fn bubble_of(plan: &Plan) -> f64 {
    (plan.stages - 1) as f64 / (plan.micro_batches + plan.stages - 1) as f64
}

impl RecordedRun {
    /// Each stage's time in a step; none without stages.
    pub fn stages(&self) -> Option<Vec<RecordedStage>> {
        let stages = self.plan.as_ref()?.stages;
        let of = |stage: usize| {
            let own = self.workers().into_iter().filter(|rank| rank % stages == stage);
            RecordedStage::of(&own.flat_map(|rank| self.steady(rank)).collect::<Vec<_>>())
        };
        (0..stages).map(of).collect::<Option<Vec<_>>>().filter(|_| stages > 1)
    }

    /// The seconds that each stage computes in a step; none without stages.
    pub fn stage_seconds(&self) -> Option<Vec<f64>> {
        Some(self.stages()?.iter().map(|stage| stage.compute_s).collect())
    }
}

impl Case<'_> {
    /// Verdicts on the stages of a run; none without stages.
    pub fn stages(&self) -> Option<Vec<Verdict>> {
        let plan = self.recorded.plan.as_ref()?;
        let took = self.recorded.stage_seconds()?;
        let even = mean(&took);
        let (longest, most) = took.iter().copied().enumerate().max_by(|a, b| a.1.total_cmp(&b.1))?;
        let changes = self.stage_changes(plan, ((most - even) / self.step_s).clamp(0.0, 1.0));
        let found = self.bottleneck(longest, most, even).into_iter().chain([self.bubble(plan, even)]);
        Some(found.map(|verdict| Verdict { changes: changes.clone(), ..verdict }).collect())
    }

    /// Seconds of a step in which a rank's stage has nothing to do although no message is late: the longest stage sets the
    /// pace, and stages fill and drain. None without stages.
    pub(super) fn filling_s(&self, rank: &RankTimes) -> f64 {
        let Some((plan, took)) = self.recorded.plan.as_ref().zip(self.recorded.stage_seconds()) else {
            return 0.0;
        };
        let longest = took.iter().copied().fold(0.0, f64::max);
        (longest / (1.0 - bubble_of(plan)) - rank.compute_s).max(0.0)
    }

    /// What changes where a stage's time goes, whichever of both causes it is; even stages would save a part of a step.
    fn stage_changes(&self, plan: &Plan, uneven: f64) -> Vec<Change> {
        let cuts = self.recorded.better_cuts.join(",");
        let words = Sentence::new("more even stages: {}", [name(&format!("--cuts {cuts}"))]);
        let cuts = (!cuts.is_empty()).then(|| Change::new(WhatIf::Cuts, uneven, words));
        let filled =
            WhatIf::MicroBatches.changed(plan, None).map_or(0.0, |new| bubble_of(plan) - bubble_of(&new));
        let others = self.changes([(WhatIf::MicroBatches, filled)]);
        cuts.into_iter().chain(others).collect()
    }

    /// The stage that sets the pace, if it is much longer than the others.
    fn bottleneck(&self, stage: usize, took: f64, even: f64) -> Option<Verdict> {
        let over = took / even - 1.0;
        let share = ((took - even) / self.step_s).clamp(0.0, 1.0);
        let advice = match self.recorded.better_cuts.as_slice() {
            [] => Sentence::new("", []),
            [layer] => Sentence::new("; cut before {}", [name(layer)]),
            layers => Sentence::new("; cut before {}", [name(&layers.join(","))]),
        };
        let sentence = Sentence::new(
            "Stage {} is the bottleneck: it computes {} per step, {} longer than the mean of the stages{}",
            [
                count("stage", stage),
                seconds("stage_s", took),
                percent("stage_over_mean", over),
                Part::Sentence(advice),
            ],
        );
        (over >= UNEVEN).then(|| Verdict::of(Cause::Stage, share, sentence, Vec::new()))
    }

    /// The time in which stages wait for each other although they take the same.
    fn bubble(&self, plan: &Plan, even: f64) -> Verdict {
        let (stages, micro_batches) = (plan.stages, plan.micro_batches);
        let share = bubble_of(plan);
        let sentence = Sentence::new(
            "{} with {} are idle for {} of a step while they fill and drain, however even they are (each computes {}); \
             more `--micro-batches` make that less",
            [
                counted("stages", stages, "stage", "stages"),
                counted("micro_batches", micro_batches, "micro-batch", "micro-batches"),
                percent("bubble_share", share),
                seconds("stage_mean_s", even),
            ],
        );
        Verdict::of(Cause::Bubble, share, sentence, Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Explanation, RecordedRank};
    use super::*;

    /// Ten steps of two stages that compute for so long, with so many micro-batches.
    fn run(compute: [f64; 2], micro_batches: usize) -> RecordedRun {
        let plan = Plan { workers: 2, stages: 2, micro_batches, ..Plan::example() };
        let longest = compute[0].max(compute[1]);
        let step_s = longest * (micro_batches + 1) as f64 / micro_batches as f64;
        let step = |(step, rank): (u64, usize)| RecordedStep {
            rank,
            step,
            begin_s: step_s * step as f64,
            compute_s: compute[rank],
            wait_s: step_s - compute[rank],
            samples: if rank == 1 { 64 } else { 0 },
            ..RecordedStep::default()
        };
        let rank = RecordedRank { worker: true, host: "a".into(), cores: Some(2), ..RecordedRank::default() };
        RecordedRun {
            run: "r".into(),
            ranks: vec![rank; 2],
            steps: (1..=10).flat_map(|at| [(at, 0), (at, 1)]).map(step).collect(),
            plan: Some(plan),
            ..RecordedRun::default()
        }
    }

    #[test]
    fn the_longest_stage_is_named_with_a_better_cut() {
        let uneven = RecordedRun { better_cuts: vec!["layer3.1".into()], ..run([1.0, 2.0], 8) };
        let said = Explanation::new(&uneven).unwrap().verdict;
        assert_eq!(said.cause, Cause::Stage);
        let sentence = said.sentence.to_string();
        assert!(sentence.contains("Stage 1 is the bottleneck"), "{sentence}");
        assert!(sentence.contains("33% longer than the mean"), "{sentence}");
        assert!(sentence.ends_with("cut before `layer3.1`"), "{sentence}");
        assert_eq!(uneven.stage_seconds(), Some(vec![1.0, 2.0]));
    }

    #[test]
    fn waiting_for_passes_of_other_stages_is_not_exchanging() {
        let run = run([1.0, 0.25], 4);
        let said = Explanation::new(&run).unwrap();
        assert_eq!(said.verdict.cause, Cause::Stage, "{:?}", said.verdict);
        let exchanging = |late_s: f64| {
            let mut ranks = said.ranks.clone();
            ranks.iter_mut().for_each(|rank| rank.wait_s += late_s);
            let case = Case { recorded: &run, ranks: &ranks, path: None, wires: None, step_s: 1.25 + late_s };
            case.exchanging()
        };
        assert!(exchanging(0.0) < 1e-9, "{}", exchanging(0.0));
        // What messages take comes on top.
        assert!((exchanging(0.5) - 0.5 / 1.75).abs() < 1e-9, "{}", exchanging(0.5));
    }

    #[test]
    fn a_stages_time_is_divided_without_rest() {
        let mut run = run([1.0, 2.0], 8);
        for step in &mut run.steps {
            (step.backward_s, step.apply_s) = (0.6 * step.compute_s, 0.01);
            let wait = if step.rank == 0 { &mut step.wait_down_s } else { &mut step.wait_up_s };
            *wait = 0.9 * step.wait_s;
            step.live_slots = step.step.min(3);
        }
        let stages = run.stages().unwrap();
        let near = |found: f64, want: f64| assert!((found - want).abs() < 1e-9, "{found} {want}");
        for (stage, step_s) in stages.iter().zip([2.26, 2.26]) {
            near(stage.forward_s + stage.backward_s, stage.compute_s);
            near(stage.compute_s + stage.wait_up_s + stage.wait_down_s + stage.averaging_s, step_s);
            assert_eq!(stage.live_slots, 3);
        }
        near(stages[0].idle, 0.9 * 1.25 / 2.26);
        near(stages[1].wait_up_s, 0.9 * 0.25);
        let figure = crate::charts::run::of_stages(run.plan.as_ref().unwrap(), &stages).unwrap();
        let svg = figure.svg();
        assert!(
            svg.contains("stage 1: backward 1200.000 ms") && svg.contains("wait for later stages"),
            "{svg}"
        );
    }

    #[test]
    fn changes_of_stages_are_named_whatever_holds_the_run_up() {
        let uneven = RecordedRun { better_cuts: vec!["layer3.1".into()], ..run([1.0, 1.1], 16) };
        let said = Explanation::new(&uneven).unwrap().verdict;
        assert_eq!(said.cause, Cause::Compute, "{said:?}");
        let named: Vec<WhatIf> = said.changes.iter().map(|change| change.if_).collect();
        assert!(named.contains(&WhatIf::Cuts) && named.contains(&WhatIf::MicroBatches), "{named:?}");
    }

    #[test]
    fn even_stages_with_few_micro_batches_fill_and_drain() {
        let said = Explanation::new(&run([1.0, 1.0], 1)).unwrap().verdict;
        assert_eq!(said.cause, Cause::Bubble, "{said:?}");
        assert!(said.sentence.contains("are idle for 50% of a step"), "{}", said.sentence);
        let said = Explanation::new(&run([1.0, 1.0], 30)).unwrap().verdict;
        assert_eq!(said.cause, Cause::Compute, "{said:?}");
    }
}
