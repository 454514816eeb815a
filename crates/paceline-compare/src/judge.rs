//! Differences between the first contender and each rival, paired by seed, and which of them are real.
//!
//! A seed decides initial values, the order of samples and who holds which, so runs of one seed are paired. What counts
//! is a run, never a step. A difference is real where it is beyond what matters (`JudgedFigure::margin`) after Holm's
//! correction over all cells, figures and rivals.

use paceline_analyze::{holm, t_quantile, t_two_sided};
use serde::Serialize;

use crate::cell::{CellClock, ComparedCell};
use crate::choice::Choices;
use crate::execute::RunFigures;
use crate::journal::{ComparedEnd, ComparisonHistory};

/// The chance that any difference of a comparison is wrongly said to be real.
pub(crate) const LEVEL: f64 = 0.05;

/// Pairs below which nothing is judged.
pub(crate) const LEAST_PAIRS: usize = 3;

/// What is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum JudgedFigure {
    /// Accuracy on the test split after the same number of samples: the difference.
    Accuracy,
    /// Time to the target: the ratio.
    Time,
}

impl JudgedFigure {
    /// The smallest difference that matters: of accuracy, or of the logarithm of a time.
    pub fn margin(self, clock: CellClock) -> f64 {
        match (self, clock) {
            (Self::Accuracy, _) => 0.005,
            (Self::Time, CellClock::Virtual) => 1.05f64.ln(),
            // Another program on the machine, or a rank that is placed otherwise, moves real times by a few percent.
            (Self::Time, CellClock::Real) => 1.1f64.ln(),
        }
    }
}

/// What can be said of a difference, from the first contender's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DifferenceVerdict {
    /// Better, by more than what matters.
    Better,
    /// Worse, by more than what matters.
    Worse,
    /// No difference that matters.
    Same,
    /// Not enough runs to tell.
    Unclear,
}

/// Differences of pairs: mean, spread and what they are exact to.
#[derive(Clone, Debug, PartialEq)]
pub struct PairedSample {
    differences: Vec<f64>,
    /// What a single difference is exact to.
    resolution: f64,
}

impl PairedSample {
    /// A sample of differences.
    pub fn new(differences: Vec<f64>, resolution: f64) -> Self {
        Self { differences, resolution }
    }

    fn n(&self) -> usize {
        self.differences.len()
    }

    /// The mean difference.
    pub fn mean(&self) -> f64 {
        paceline_statistics::mean(&self.differences)
    }

    /// The standard error of the mean. Two figures that are each rounded to the resolution have at least the variance of
    /// that: seeds that agree by chance do not make a difference certain.
    fn error(&self) -> f64 {
        let (n, mean) = (self.n() as f64, self.mean());
        let variance = self.differences.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / (n - 1.0);
        (variance.max(self.resolution.powi(2) / 6.0) / n).sqrt()
    }

    /// The 95% interval of the mean; none below two pairs.
    pub fn interval(&self) -> Option<(f64, f64)> {
        let n = self.n();
        let half = (n >= 2).then(|| t_quantile(0.05, (n - 1) as f64) * self.error())?;
        Some((self.mean() - half, self.mean() + half))
    }

    /// The chance of a mean this far out, if the true difference were no larger than `margin`; none below
    /// [`LEAST_PAIRS`].
    pub fn chance(&self, margin: f64) -> Option<f64> {
        let n = self.n();
        if n < LEAST_PAIRS {
            return None;
        }
        let (mean, error, df) = (self.mean().abs(), self.error(), (n - 1) as f64);
        let tail = |t: f64| match t >= 0.0 {
            true => 0.5 * t_two_sided(t, df),
            false => 1.0 - 0.5 * t_two_sided(t, df),
        };
        // The null difference lies at either end of the margin: both tails count.
        Some((tail((mean - margin) / error) + tail((mean + margin) / error)).min(1.0))
    }
}

/// One difference: the first contender and a rival in a cell.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct JudgedDifference {
    pub cell: ComparedCell,
    /// The rival's place among the contenders.
    pub rival: usize,
    pub figure: JudgedFigure,
    /// Pairs of runs, and those of them that say something.
    pub pairs: usize,
    pub n: usize,
    /// The mean difference of accuracies, or the ratio of times (mine to the rival's); none without pairs.
    pub estimate: Option<f64>,
    /// Its 95% interval, not corrected.
    pub interval: Option<(f64, f64)>,
    /// The chance of it without a difference that matters, and the same corrected over the comparison (Holm).
    pub p: Option<f64>,
    pub p_holm: Option<f64>,
    /// Runs that did not reach the target: mine and the rival's.
    pub missed: (usize, usize),
    /// Whether all runs came to the same parameters, bit for bit, at the same times.
    pub identical: bool,
    pub verdict: DifferenceVerdict,
}

/// A difference before it is corrected.
struct UncorrectedDifference {
    difference: JudgedDifference,
    sample: PairedSample,
    margin: f64,
}

/// All differences of a comparison.
pub(crate) fn differences(known: &ComparisonHistory, choices: &Choices) -> Vec<JudgedDifference> {
    let document = &known.document;
    let mut all = Vec::new();
    for cell in document.cells() {
        for rival in 1..document.contenders.len() {
            for figure in [JudgedFigure::Accuracy, JudgedFigure::Time] {
                all.push(raw(known, choices, cell, rival, figure));
            }
        }
    }
    corrected(all)
}

/// Corrects chances over all differences and judges them. Differences that are the same numbers, as those of learning
/// without and behind a link are, are one.
fn corrected(all: Vec<UncorrectedDifference>) -> Vec<JudgedDifference> {
    let bits = |raw: &UncorrectedDifference| {
        let numbers = raw.sample.differences.iter().chain([&raw.margin, &raw.sample.resolution]);
        numbers.map(|d| d.to_bits()).collect::<Vec<u64>>()
    };
    let mut kinds: Vec<Vec<u64>> = Vec::new();
    let mut chances: Vec<f64> = Vec::new();
    let of: Vec<usize> = all
        .iter()
        .map(|raw| {
            let bits = bits(raw);
            kinds.iter().position(|kind| *kind == bits).unwrap_or_else(|| {
                kinds.push(bits);
                chances.push(raw.difference.p.unwrap_or(f64::NAN));
                kinds.len() - 1
            })
        })
        .collect();
    let corrected = holm(&chances);
    let judged =
        |(UncorrectedDifference { mut difference, sample, margin }, kind): (UncorrectedDifference, usize)| {
            difference.p_holm = Some(corrected[kind]).filter(|p| !p.is_nan());
            let better = (sample.mean() > 0.0) == (difference.figure == JudgedFigure::Accuracy);
            // A time that is only a bound speaks for the other side alone: it may be any longer.
            let (mine_missed, rival_missed) = difference.missed;
            let within = sample.interval().is_some_and(|(low, high)| -margin < low && high < margin);
            difference.verdict = match difference.p_holm {
                Some(_) if difference.identical => DifferenceVerdict::Same,
                Some(p) if p <= LEVEL && better && mine_missed == 0 => DifferenceVerdict::Better,
                Some(p) if p <= LEVEL && !better && rival_missed == 0 => DifferenceVerdict::Worse,
                Some(_) if within && mine_missed + rival_missed == 0 => DifferenceVerdict::Same,
                _ => DifferenceVerdict::Unclear,
            };
            difference
        };
    all.into_iter().zip(of).map(judged).collect()
}

/// A run as it is judged: one that diverged has learned nothing.
enum Judged<'r> {
    Whole(&'r RunFigures),
    Diverged,
}

impl Judged<'_> {
    fn accuracy(&self) -> f64 {
        if let Self::Whole(figures) = self { figures.accuracy } else { 0.0 }
    }
}

fn raw(
    known: &ComparisonHistory,
    choices: &Choices,
    cell: ComparedCell,
    rival: usize,
    figure: JudgedFigure,
) -> UncorrectedDifference {
    let document = &known.document;
    let judged = |contender: usize, seed: u64| match known.end(&choices.key(cell, contender, seed))? {
        ComparedEnd::Ok { figures } => Some(Judged::Whole(figures)),
        ComparedEnd::Diverged => Some(Judged::Diverged),
        ComparedEnd::Failed { .. } => None,
    };
    let seeds = (0..document.most_seeds).map(|round| document.round_seed(round));
    let pairs: Vec<(Judged<'_>, Judged<'_>)> =
        seeds.filter_map(|seed| Some((judged(0, seed)?, judged(rival, seed)?))).collect();
    let identical = !pairs.is_empty()
        && pairs.iter().all(|pair| match pair {
            (Judged::Whole(mine), Judged::Whole(theirs)) => {
                let same_time = figure == JudgedFigure::Accuracy || mine.curve == theirs.curve;
                mine.params_sha256 == theirs.params_sha256 && same_time
            }
            _ => false,
        });
    let mut missed = (0, 0);
    let sample = match figure {
        JudgedFigure::Accuracy => {
            let difference = |(mine, theirs): &(Judged<'_>, Judged<'_>)| mine.accuracy() - theirs.accuracy();
            let resolution = 1.0 / document.test_samples.max(1) as f64;
            PairedSample::new(pairs.iter().map(difference).collect(), resolution)
        }
        JudgedFigure::Time => times(&pairs, choices.target(cell), &mut missed),
    };
    let margin = figure.margin(cell.clock);
    let told = |value: f64| if figure == JudgedFigure::Time { value.exp() } else { value };
    let difference = JudgedDifference {
        cell,
        rival,
        figure,
        pairs: pairs.len(),
        n: sample.n(),
        estimate: (sample.n() > 0).then(|| told(sample.mean())),
        interval: sample.interval().map(|(low, high)| (told(low), told(high))),
        p: sample.chance(margin),
        p_holm: None,
        missed,
        identical,
        verdict: DifferenceVerdict::Unclear,
    };
    UncorrectedDifference { difference, sample, margin }
}

/// Logarithms of the ratio of times to a target. A run that does not reach it counts with the time that it took at least;
/// a pair of which neither does says nothing.
fn times(pairs: &[(Judged<'_>, Judged<'_>)], target: f64, missed: &mut (usize, usize)) -> PairedSample {
    let (mut differences, mut resolutions) = (Vec::new(), Vec::new());
    for (mine, theirs) in pairs {
        let reached = |run: &Judged<'_>| match run {
            Judged::Whole(figures) => figures.reached_s(target),
            Judged::Diverged => None,
        };
        let (own, other) = (reached(mine), reached(theirs));
        missed.0 += usize::from(own.is_none());
        missed.1 += usize::from(other.is_none());
        // A run that diverged tells no time at all.
        let at_least = |run: &Judged<'_>| match run {
            Judged::Whole(figures) => Some(figures.seconds),
            Judged::Diverged => None,
        };
        let bounds = match (own, other) {
            (None, None) => None,
            (own, other) => own.or_else(|| at_least(mine)).zip(other.or_else(|| at_least(theirs))),
        };
        let Some((own, other)) = bounds.filter(|(a, b)| *a > 0.0 && *b > 0.0) else { continue };
        differences.push((own / other).ln());
        let exact = |run: &Judged<'_>, time: f64| match run {
            Judged::Whole(figures) => figures.resolution_s() / time,
            Judged::Diverged => 0.0,
        };
        resolutions.push(exact(mine, own).max(exact(theirs, other)));
    }
    let resolution = if resolutions.is_empty() { 0.0 } else { paceline_statistics::mean(&resolutions) };
    PairedSample::new(differences, resolution)
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_random::{Purpose, Stream};

    fn made_up(figure: JudgedFigure, differences: Vec<f64>) -> UncorrectedDifference {
        let cell = ComparedCell { clock: CellClock::Virtual, workers: 16, by_label: false, link: false };
        let (margin, sample) = (figure.margin(cell.clock), PairedSample::new(differences, 1e-3));
        let difference = JudgedDifference {
            cell,
            rival: 1,
            figure,
            pairs: sample.n(),
            n: sample.n(),
            estimate: None,
            interval: None,
            p: sample.chance(margin),
            p_holm: None,
            missed: (0, 0),
            identical: false,
            verdict: DifferenceVerdict::Unclear,
        };
        UncorrectedDifference { difference, sample, margin }
    }

    /// Families of 64 differences whose truth is at the margin, where errors are the most frequent.
    #[test]
    fn less_than_one_comparison_in_twenty_says_of_anything_that_is_not_real_that_it_is() {
        let stream = Stream::new(7, Purpose::Analysis);
        for n in [3, 5, 12] {
            let families = 400;
            let wrong = (0..families).filter(|family| {
                let own = stream.fork(*family).fork(n);
                let one = |i: u64| {
                    let figure = [JudgedFigure::Accuracy, JudgedFigure::Time][i as usize % 2];
                    let margin = figure.margin(CellClock::Virtual);
                    let side = if i % 4 < 2 { margin } else { -margin };
                    made_up(figure, (0..n).map(|k| side + 0.01 * own.normal(100 * i + k)).collect())
                };
                let judged = corrected((0..64).map(one).collect());
                judged
                    .iter()
                    .any(|d| matches!(d.verdict, DifferenceVerdict::Better | DifferenceVerdict::Worse))
            });
            let share = wrong.count() as f64 / families as f64;
            assert!(share <= 0.07, "{n} pairs: {share} of the comparisons");
        }
    }

    #[test]
    fn intervals_hold_the_truth_in_nineteen_of_twenty_cases() {
        let stream = Stream::new(8, Purpose::Analysis);
        for n in [3, 6, 12] {
            let held = (0..2000).filter(|i| {
                let own = stream.fork(*i).fork(n);
                let sample = PairedSample::new((0..n).map(|k| 0.3 + own.normal(k)).collect(), 0.0);
                sample.interval().is_some_and(|(low, high)| low <= 0.3 && 0.3 <= high)
            });
            let share = held.count() as f64 / 2000.0;
            assert!((0.935..=0.965).contains(&share), "{n} pairs: {share}");
        }
    }

    #[test]
    fn large_differences_are_found_small_ones_are_said_to_be_small_and_few_pairs_say_nothing() {
        let stream = Stream::new(9, Purpose::Analysis);
        let around = |mean: f64, n: u64| (0..n).map(|k| mean + 0.002 * stream.normal(k)).collect::<Vec<_>>();
        let verdict = |raw: UncorrectedDifference| corrected(vec![raw])[0].verdict;
        let (accuracy, time) = (JudgedFigure::Accuracy, JudgedFigure::Time);
        assert_eq!(verdict(made_up(accuracy, around(0.05, 6))), DifferenceVerdict::Better);
        assert_eq!(verdict(made_up(accuracy, around(-0.05, 6))), DifferenceVerdict::Worse);
        assert_eq!(verdict(made_up(time, around(-0.5, 6))), DifferenceVerdict::Better, "less time is better");
        assert_eq!(verdict(made_up(accuracy, around(0.0005, 12))), DifferenceVerdict::Same);
        assert_eq!(verdict(made_up(accuracy, around(0.05, 2))), DifferenceVerdict::Unclear);
        assert_eq!(verdict(made_up(accuracy, Vec::new())), DifferenceVerdict::Unclear);
    }

    #[test]
    fn seeds_that_agree_by_chance_do_not_make_a_difference_certain() {
        let exact = PairedSample::new(vec![0.006; 3], 0.01);
        assert!(exact.chance(0.005).unwrap() > 0.2, "six thousandths, each exact to a hundredth");
        assert_eq!(PairedSample::new(vec![0.0; 5], 0.0).chance(0.005), Some(1.0));
    }

    #[test]
    fn a_bound_on_a_time_speaks_for_one_side_only() {
        let verdict = |mean: f64, missed: (usize, usize)| {
            let mut raw = made_up(JudgedFigure::Time, (0..6).map(|k| mean + 0.001 * f64::from(k)).collect());
            raw.difference.missed = missed;
            corrected(vec![raw])[0].verdict
        };
        assert_eq!(
            verdict(-0.7, (0, 6)),
            DifferenceVerdict::Better,
            "the rival takes at least twice as long"
        );
        assert_eq!(verdict(-0.7, (1, 0)), DifferenceVerdict::Unclear, "mine may take as long as it likes");
        assert_eq!(verdict(0.7, (6, 0)), DifferenceVerdict::Worse);
        assert_eq!(verdict(0.7, (0, 1)), DifferenceVerdict::Unclear);
        assert_eq!(verdict(0.0, (0, 0)), DifferenceVerdict::Same);
        assert_eq!(verdict(0.0, (0, 1)), DifferenceVerdict::Unclear);
    }

    #[test]
    fn the_same_numbers_count_once_in_the_correction() {
        let differences = vec![0.030, 0.036, 0.041, 0.028, 0.035];
        let alone = corrected(vec![made_up(JudgedFigure::Accuracy, differences.clone())]);
        let twice = corrected((0..9).map(|_| made_up(JudgedFigure::Accuracy, differences.clone())).collect());
        assert!(twice.iter().all(|one| one.p_holm == alone[0].p_holm));
    }

    #[test]
    fn a_target_that_is_missed_counts_with_the_time_that_it_took_at_least() {
        let figures = |at: f64, seconds: f64| RunFigures {
            accuracy: 0.9,
            loss: 0.1,
            steps: 10,
            seconds,
            sent_bytes: 0.0,
            params_sha256: String::new(),
            curve: vec![crate::execute::CurvePoint { step: 10, seconds: at, loss: 0.1, accuracy: 0.9 }],
        };
        let (fast, slow) = (figures(1.0, 2.0), figures(3.0, 4.0));
        let mut missed = (0, 0);
        let never = RunFigures { curve: Vec::new(), ..slow.clone() };
        let pairs = [
            (Judged::Whole(&fast), Judged::Whole(&slow)),
            (Judged::Whole(&fast), Judged::Whole(&never)),
            (Judged::Whole(&never), Judged::Whole(&never)),
            (Judged::Diverged, Judged::Whole(&slow)),
        ];
        let sample = times(&pairs, 0.9, &mut missed);
        assert_eq!(missed, (2, 2));
        let ratios: Vec<f64> = sample.differences.iter().map(|d| d.exp()).collect();
        assert_eq!(ratios.len(), 2, "{ratios:?}");
        for (ratio, wanted) in ratios.iter().zip([1.0 / 3.0, 0.25]) {
            assert!((ratio - wanted).abs() < 1e-12, "{ratios:?}");
        }
    }
}
