//! What a comparison says: where each contender stands, and where the first one wins, loses, or cannot be told apart.

use paceline_analyze::t_quantile;
use paceline_statistics::mean;
use serde::Serialize;

use crate::cell::{CellClock, ComparedCell};
use crate::choice::{Choices, TunedSettings};
use crate::execute::RunFigures;
use crate::journal::{ComparedEnd, ComparisonHistory};
use crate::judge::{DifferenceVerdict, JudgedDifference, JudgedFigure, LEAST_PAIRS, differences};

/// A mean over seeds, and its 95% interval where there are at least two.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct SeedMean {
    pub mean: f64,
    pub interval: Option<(f64, f64)>,
}

impl SeedMean {
    fn of(values: &[f64]) -> Option<Self> {
        let (n, mean) = (values.len() as f64, mean(values));
        if values.is_empty() {
            return None;
        }
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0);
        let half = t_quantile(0.05, n - 1.0) * (variance / n).sqrt();
        Some(Self { mean, interval: (values.len() > 1).then_some((mean - half, mean + half)) })
    }
}

/// A contender in a cell.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct Standing {
    pub cell: ComparedCell,
    /// Its place among the contenders.
    pub contender: usize,
    /// Its variant, as the search chose it.
    pub variant: String,
    pub learning_rate: f64,
    /// Whether the best rate was the smallest or the greatest that was tried.
    pub rate_at_edge: bool,
    /// The accuracy whose time is asked for.
    pub target: f64,
    /// Runs, and those of them that diverged.
    pub n: usize,
    pub diverged: usize,
    pub accuracy: Option<SeedMean>,
    pub loss: Option<SeedMean>,
    /// Runs that reached the target, and their time to it.
    pub reached: usize,
    pub target_s: Option<SeedMean>,
    pub step_s: Option<SeedMean>,
    /// Bytes that a worker sends in a step.
    pub sent_bytes_per_step: Option<f64>,
}

/// What a comparison says.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct ComparisonFindings {
    /// Labels of the contenders; the first one is whom the comparison is about.
    pub contenders: Vec<String>,
    pub steps: Option<u64>,
    pub search_seeds: Option<u64>,
    pub spent_s: f64,
    pub standings: Vec<Standing>,
    pub differences: Vec<JudgedDifference>,
    /// What went wrong, or is not there, in sentences.
    pub notes: Vec<String>,
    /// The differences in sentences, by verdict.
    pub wins: Vec<String>,
    pub losses: Vec<String>,
    pub same: Vec<String>,
    pub unclear: Vec<String>,
}

impl ComparisonFindings {
    /// What the runs of a journal say.
    pub fn new(known: &ComparisonHistory) -> Self {
        let document = &known.document;
        let choices = known.choices();
        let (standings, judged) = match &choices {
            Some(choices) => (standings(known, choices), differences(known, choices)),
            None => (Vec::new(), Vec::new()),
        };
        let contenders: Vec<String> = document.contenders.iter().map(|c| c.label.clone()).collect();
        let told = |verdict: DifferenceVerdict| {
            let of = judged.iter().filter(|difference| difference.verdict == verdict);
            of.map(|difference| sentence(difference, &contenders, choices.as_ref())).collect::<Vec<_>>()
        };
        let [wins, losses, same, unclear] = [
            DifferenceVerdict::Better,
            DifferenceVerdict::Worse,
            DifferenceVerdict::Same,
            DifferenceVerdict::Unclear,
        ]
        .map(told);
        let notes = notes(known, &standings);
        Self {
            contenders,
            steps: known.extent.map(|extent| extent.steps),
            search_seeds: known.extent.map(|extent| extent.search_seeds),
            spent_s: known.spent_s,
            standings,
            differences: judged,
            notes,
            wins,
            losses,
            same,
            unclear,
        }
    }

    /// Differences with a rival, by verdict: better, worse, same, unclear.
    pub fn counts(&self, rival: usize) -> [usize; 4] {
        use DifferenceVerdict::{Better, Same, Unclear, Worse};
        let count =
            |verdict| self.differences.iter().filter(|d| d.rival == rival && d.verdict == verdict).count();
        [Better, Worse, Same, Unclear].map(count)
    }

    /// The whole comparison in a sentence per rival.
    pub fn in_short(&self) -> Vec<String> {
        let one = |(rival, label): (usize, &String)| {
            let [better, worse, same, unclear] = self.counts(rival);
            let all = better + worse + same + unclear;
            format!(
                "Against {label}: better in {better} of {all} differences, worse in {worse}, the same to within what \
                 matters in {same}; {unclear} cannot be told."
            )
        };
        if self.differences.is_empty() {
            return Vec::new();
        }
        self.contenders.iter().enumerate().skip(1).map(one).collect()
    }

    /// For people, on a terminal.
    pub fn text(&self) -> String {
        let mut text = String::new();
        self.in_short().iter().for_each(|line| text += &format!("{line}\n"));
        let parts = [
            ("Where it wins:", &self.wins),
            ("Where it loses:", &self.losses),
            ("No difference that matters:", &self.same),
        ];
        for (title, lines) in parts.into_iter().filter(|(_, lines)| !lines.is_empty()) {
            text += &format!("\n{title}\n");
            lines.iter().for_each(|line| text += &format!("  {line}\n"));
        }
        if !self.unclear.is_empty() {
            text += &format!(
                "\nNot enough runs to tell: {} differences; the page lists them\n",
                self.unclear.len()
            );
        }
        self.notes.iter().for_each(|note| text += &format!("note: {note}\n"));
        text
    }
}

fn standings(known: &ComparisonHistory, choices: &Choices) -> Vec<Standing> {
    let document = &known.document;
    let mut all = Vec::new();
    for cell in document.cells() {
        for (contender, entry) in document.contenders.iter().enumerate() {
            let choice: TunedSettings = choices.get(cell, contender);
            let seeds = (0..document.most_seeds).map(|round| document.round_seed(round));
            let ends: Vec<&ComparedEnd> =
                seeds.filter_map(|seed| known.end(&choices.key(cell, contender, seed))).collect();
            let whole: Vec<&RunFigures> = ends
                .iter()
                .filter_map(|end| if let ComparedEnd::Ok { figures } = end { Some(figures) } else { None })
                .collect();
            let of = |figure: &dyn Fn(&RunFigures) -> f64| {
                SeedMean::of(&whole.iter().map(|run| figure(run)).collect::<Vec<_>>())
            };
            let target = choices.target(cell);
            let times: Vec<f64> = whole.iter().filter_map(|run| run.reached_s(target)).collect();
            all.push(Standing {
                cell,
                contender,
                variant: entry.variants[choice.variant].label.clone(),
                learning_rate: choice.rate(),
                rate_at_edge: choice.tuned.edge,
                target,
                n: ends.iter().filter(|end| !matches!(end, ComparedEnd::Failed { .. })).count(),
                diverged: ends.iter().filter(|end| matches!(end, ComparedEnd::Diverged)).count(),
                accuracy: of(&|run| run.accuracy),
                loss: of(&|run| run.loss),
                reached: times.len(),
                target_s: SeedMean::of(&times),
                step_s: of(&|run| run.seconds / run.steps.max(1) as f64),
                sent_bytes_per_step: of(&|run| run.sent_bytes / run.steps.max(1) as f64).map(|m| m.mean),
            });
        }
    }
    all
}

fn notes(known: &ComparisonHistory, standings: &[Standing]) -> Vec<String> {
    let document = &known.document;
    let mut notes = Vec::new();
    if known.choices().is_none() {
        notes.push(
            "The search did not end within the budget, so nothing is compared: give more minutes.".into(),
        );
    }
    if let Some(extent) = known.extent.filter(|extent| extent.steps < document.steps) {
        notes.push(format!(
            "Runs have {} steps instead of {}, so that the comparison fits into {} minutes.",
            extent.steps, document.steps, document.minutes
        ));
    }
    for (clock, what) in [(CellClock::Virtual, "in virtual time"), (CellClock::Real, "of real runs")] {
        let seeds = standings.iter().filter(|s| s.cell.clock == clock).map(|s| s.n).min();
        if let Some(seeds) = seeds.filter(|seeds| *seeds < LEAST_PAIRS) {
            let few = if seeds == 1 { "1 round".into() } else { format!("{seeds} rounds") };
            notes.push(format!(
                "There was time for {few} {what}: below {LEAST_PAIRS} nothing of them is judged. Give more minutes."
            ));
        }
    }
    let edges: Vec<String> = standings
        .iter()
        .filter(|s| s.rate_at_edge && !s.cell.link)
        .map(|s| format!("{} ({}, rate {})", s.variant, s.cell.short(), s.learning_rate))
        .collect();
    if !edges.is_empty() {
        notes.push(format!(
            "The best rate was the smallest or the greatest that was tried, so that a better one may lie beyond it: {}.",
            paceline_statistics::distinct(edges).join("; ")
        ));
    }
    let failed: Vec<String> = known
        .failed()
        .map(|(key, cause)| {
            format!(
                "{}, {}, seed {}: {cause}",
                document.contenders[key.contender].label,
                key.cell.short(),
                key.seed
            )
        })
        .collect();
    if !failed.is_empty() {
        notes.push(format!("{} runs failed and are left out: {}.", failed.len(), failed.join("; ")));
    }
    notes
}

/// A ratio of times in words.
fn of_time(ratio: f64) -> String {
    match ratio {
        r if r > 9.95 => format!("{r:.0} ×"),
        r if r > 1.995 => format!("{r:.1} ×"),
        r => format!("{:.0}% of", 100.0 * r),
    }
}

fn sentence(difference: &JudgedDifference, contenders: &[String], choices: Option<&Choices>) -> String {
    let JudgedDifference { cell, rival, figure, n, .. } = *difference;
    let (mine, rival, place) = (&contenders[0], &contenders[rival], cell.words());
    let chance = difference.p_holm.map_or_else(String::new, |p| match p < 1e-4 {
        true => ", p < 0.0001".into(),
        false => format!(", p = {p:.2}").replace("p = 0.00", "p < 0.01"),
    });
    if difference.missed != (0, 0) && difference.verdict == DifferenceVerdict::Unclear {
        let target = choices.map_or(0.0, |choices| 100.0 * choices.target(cell));
        let ((own, other), pairs) = (difference.missed, difference.pairs);
        return format!(
            "{place}: {target:.0}% accuracy is reached in {} of {pairs} runs, by {rival} in {} of {pairs}: which of them \
             is sooner cannot be told",
            pairs - own,
            pairs - other
        );
    }
    let (Some(estimate), Some((low, high))) = (difference.estimate, difference.interval) else {
        let what = match figure {
            JudgedFigure::Accuracy => "accuracy",
            JudgedFigure::Time => "time to the target",
        };
        let pairs = if n == 1 { "pair" } else { "pairs" };
        return format!("{place}: {what} against {rival}: {n} {pairs} of runs");
    };
    if difference.identical && n >= LEAST_PAIRS {
        let what = if figure == JudgedFigure::Accuracy { "parameters" } else { "parameters and times" };
        return format!("{place}: {mine} and {rival} come to the same {what}, bit for bit (n = {n})");
    }
    let verdict = difference.verdict;
    let negligible = match verdict {
        DifferenceVerdict::Same if low > 0.0 && figure == JudgedFigure::Accuracy => "; real, but negligible",
        DifferenceVerdict::Same if high < 0.0 && figure == JudgedFigure::Accuracy => "; real, but negligible",
        DifferenceVerdict::Same if figure == JudgedFigure::Time && (low > 1.0 || high < 1.0) => {
            "; real, but negligible"
        }
        _ => "",
    };
    match figure {
        JudgedFigure::Accuracy => {
            let points = |value: f64| format!("{:+.1}", 100.0 * value);
            format!(
                "{place}: accuracy {} points against {rival} ({} to {}, n = {n}{chance}){negligible}",
                points(estimate),
                points(low),
                points(high)
            )
        }
        JudgedFigure::Time => {
            let target = choices.map_or(0.0, |choices| 100.0 * choices.target(cell));
            let missed = match difference.missed {
                (0, 0) => String::new(),
                (own, other) => format!(
                    "; {own} of its runs and {other} of {rival}'s do not reach it and count with the time that they took"
                ),
            };
            // Real differences with a miss are bounds of one side.
            let bound = match difference.missed {
                (0, 0) => "",
                (0, _) => "at most ",
                _ => "at least ",
            };
            format!(
                "{place}: {target:.0}% accuracy in {bound}{} {rival}'s time ({} to {}, n = {n}{chance}){missed}{negligible}",
                of_time(estimate),
                of_time(low).trim_end_matches(" of"),
                of_time(high).trim_end_matches(" of")
            )
        }
    }
}
