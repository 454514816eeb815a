//! What holds a run in stages up: a stage that takes longer than the others, or stages that fill and drain.

use paceline_plan::Plan;
use paceline_statistics::{mean, median};

use super::sentence::{Part, Sentence, count, counted, name, percent, seconds};
use super::verdict::{Case, Cause, Verdict};
use super::{RecordedRun, RecordedStep};

/// How much longer than the mean a stage takes before it is named.
const UNEVEN: f64 = 0.1;

impl RecordedRun {
    /// The seconds that each stage computes in a step, the median over the steps of all replicas; none without stages.
    pub fn stage_seconds(&self) -> Option<Vec<f64>> {
        let stages = self.plan.as_ref()?.stages;
        let of = |stage: usize| {
            let own = self.workers().into_iter().filter(|rank| rank % stages == stage);
            let steps: Vec<RecordedStep> = own.flat_map(|rank| self.steady(rank)).collect();
            let times: Vec<f64> = steps.iter().map(|step| step.compute_s).collect();
            (!times.is_empty()).then(|| median(&times))
        };
        (0..stages).map(of).collect::<Option<Vec<f64>>>().filter(|_| stages > 1)
    }
}

impl Case<'_> {
    /// Verdicts on the stages of a run; none without stages.
    pub fn stages(&self) -> Option<Vec<Verdict>> {
        let plan = self.recorded.plan.as_ref()?;
        let took = self.recorded.stage_seconds()?;
        let even = mean(&took);
        let (longest, most) = took.iter().copied().enumerate().max_by(|a, b| a.1.total_cmp(&b.1))?;
        Some(self.bottleneck(longest, most, even).into_iter().chain([self.bubble(plan, even)]).collect())
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
        let share = (stages - 1) as f64 / (micro_batches + stages - 1) as f64;
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
    fn even_stages_with_few_micro_batches_fill_and_drain() {
        let said = Explanation::new(&run([1.0, 1.0], 1)).unwrap().verdict;
        assert_eq!(said.cause, Cause::Bubble, "{said:?}");
        assert!(said.sentence.contains("are idle for 50% of a step"), "{}", said.sentence);
        let said = Explanation::new(&run([1.0, 1.0], 30)).unwrap().verdict;
        assert_eq!(said.cause, Cause::Compute, "{said:?}");
    }
}
