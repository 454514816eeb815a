//! What an analysis found, in sentences with their evidence, and what it could not find out.
//!
//! A factor or a pair is told as a finding only if its chance, corrected over all terms of the model (Holm), is below
//! 5%; intervals between levels hold for all pairs of a factor together. So no more than one study in twenty tells of
//! an effect that is not there.

use paceline_plan::Goal;
use serde::Serialize;

use crate::alone::AloneOrTogether;
use crate::analysis::WorkloadBest;
use crate::anova::{Anova, Estimate, FactorEffect, LevelContrast, VarianceSource};
use crate::best::Ranking;
use crate::chart::duration;
use crate::importance::Importance;
use crate::misses::Misses;
use crate::noise::{Controls, Noise, NoiseSource, controls};
use crate::phrases::{BestWords, amount, list, one_at_a_time, signed, times_as_fast};
use crate::scaling::{Rung, Series};
use crate::table::{Response, StudyTable, number};
use crate::transfer::WorkloadTransfer;

mod transfer;

use transfer::lost;

/// The chance below which something is told.
pub const LEVEL: f64 = 0.05;
/// Effects below this are not worth a word: of a logarithm, or of the deviation of all runs.
const SMALL: f64 = 0.1;

/// What a sentence is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub enum FindingKind {
    /// Runs that did not reach what was to be measured.
    Missed,
    Best,
    /// One worker beside several.
    Alone,
    /// The shares of factors.
    Shares,
    Effect,
    Together,
    Scaling,
    Transfer,
    /// Levels of a factor, each at its own best setting.
    Comparison,
    Noise,
    /// A factor whose effect is small at most.
    NoEffect,
    CannotTell,
}

/// One sentence and what it stands on.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct Finding {
    pub kind: FindingKind,
    pub sentence: String,
    pub factors: Vec<String>,
    /// The least size that the interval allows, on the response's scale: what findings are ordered by.
    pub assured: f64,
    /// The chance of such data if there were no effect, corrected.
    pub p: Option<f64>,
    /// The runs behind it.
    pub runs: Vec<String>,
}

/// Everything that sentences are made of.
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct Evidence<'a> {
    pub table: &'a StudyTable,
    pub response: usize,
    pub ranking: &'a Ranking,
    /// By workload, where there are several.
    pub each: &'a [WorkloadBest],
    pub alone: Option<&'a AloneOrTogether>,
    pub misses: Option<&'a Misses>,
    pub anova: Option<&'a Anova>,
    pub importance: Option<&'a Importance>,
    pub scaling: &'a [Series],
    pub transfer: Option<&'a WorkloadTransfer>,
    pub noise: Option<&'a Noise>,
}

/// The end of an interval that is nearer to zero; zero if it contains it.
fn assured(change: &Estimate) -> f64 {
    match (change.low, change.high) {
        (Some(low), _) if low > 0.0 => low,
        (_, Some(high)) if high < 0.0 => -high,
        _ => 0.0,
    }
}

/// Findings, the most important first. Those of several workloads begin with what a first page has to say: the best, what
/// mattered, transfer, and what cannot be told.
pub fn findings(evidence: &Evidence<'_>) -> Vec<Finding> {
    let mut told = evidence.effects();
    told.extend(evidence.scaling());
    told.sort_by(|a, b| b.assured.total_cmp(&a.assured));
    let (small, unknown) = evidence.without_effect();
    let gaps = evidence.cannot_tell(&unknown);
    let mut all = Vec::new();
    if evidence.each.is_empty() {
        all.extend(evidence.missed());
        all.extend(evidence.best());
        all.extend(evidence.alone.map(|alone| evidence.alone(alone)));
        all.extend(evidence.shares());
        all.extend(evidence.transfer());
        all.extend(told);
        all.extend(evidence.machine());
        all.extend(small);
        all.extend(gaps);
    } else {
        all.extend(evidence.best_of_each());
        all.extend(evidence.shares());
        all.extend(evidence.transfer());
        all.extend(gaps);
        all.extend(evidence.missed());
        all.extend(evidence.alone_on_each());
        all.extend(told);
        all.extend(evidence.machine());
        all.extend(small);
    }
    all
}

impl Evidence<'_> {
    fn scale(&self) -> &Response {
        &self.table.responses[self.response]
    }

    /// A part in percent for logarithms, else an amount with its unit.
    fn size(&self, value: f64) -> String {
        if self.scale().log { format!("{}%", number(100.0 * value)) } else { self.scale().show(value) }
    }

    fn finding(&self, kind: FindingKind, sentence: String, factors: Vec<String>) -> Finding {
        Finding { kind, sentence, factors, assured: 0.0, p: None, runs: Vec::new() }
    }

    fn missed(&self) -> Option<Finding> {
        let misses = self.misses?;
        let (scale, missed) = (self.scale(), misses.missed.len());
        let all = if missed == 1 { "it".to_owned() } else { format!("all {missed}") };
        let pattern = match &misses.pattern {
            Some(pattern) => {
                let others = match pattern.reached {
                    0 => "no other run did".to_owned(),
                    1 => "1 other run did too".to_owned(),
                    n => format!("{n} other runs did too"),
                };
                format!("{all} had {}, {others}", pattern.words)
            }
            None => "no level or pair of levels tells them from the others".into(),
        };
        let ((p, low, high), (mean, up_to)) = (misses.chance, misses.restricted_mean);
        let [p, low, high] = [p, low, high].map(|v| number((100.0 * v).round()));
        let sentence = format!(
            "{missed} of {} runs ended without {}: {pattern}. The chance to reach it is {p}% [{low}, {high}]; the mean \
             up to {} is {}, those that missed it counting with the time they were given",
            misses.runs,
            scale.name,
            scale.show(up_to),
            scale.show(mean),
        );
        let finding = self.finding(FindingKind::Missed, sentence, Vec::new());
        Some(Finding { runs: misses.missed.clone(), ..finding })
    }

    fn best(&self) -> Option<Finding> {
        let BestWords { configuration, figure, n, beside } =
            BestWords::new(self.scale(), self.ranking, self.noise)?;
        let (all, scale) = (self.ranking.configurations.len(), self.scale());
        let sentence = format!(
            "The {} {} of {all} configurations: {figure} with {configuration} ({n}){beside}",
            if scale.goal == Goal::Minimize { "lowest" } else { "highest" },
            scale.name,
        );
        let runs = self.ranking.configurations[0].runs.clone();
        Some(Finding { runs, ..self.finding(FindingKind::Best, sentence, Vec::new()) })
    }

    /// The best of each workload, and the best for all of them.
    fn best_of_each(&self) -> Vec<Finding> {
        let (scale, few) =
            (self.scale(), if self.scale().goal == Goal::Minimize { "lowest" } else { "highest" });
        let words = |one: &WorkloadBest| {
            let BestWords { configuration, figure, n, beside } =
                BestWords::new(scale, &one.best, self.noise)?;
            Some(format!("{}: {figure} with {configuration} ({n}{beside})", one.workload))
        };
        let parts: Vec<String> = self.each.iter().filter_map(words).collect();
        let mut found = Vec::new();
        if !parts.is_empty() {
            let sentence = format!("The {few} {} on each workload: {}", scale.name, parts.join("; "));
            let runs = self.each.iter().filter_map(|one| one.best.configurations.first());
            let runs = runs.flat_map(|best| best.runs.clone()).collect();
            found.push(Finding { runs, ..self.finding(FindingKind::Best, sentence, Vec::new()) });
        }
        found.extend(self.best_for_all());
        found
    }

    fn best_for_all(&self) -> Option<Finding> {
        let BestWords { configuration, n, beside, .. } =
            BestWords::new(self.scale(), self.ranking, self.noise)?;
        let losses = &self.transfer?.for_all;
        let worst = losses.iter().max_by(|a, b| a.loss.total_cmp(&b.loss))?;
        let mean = losses.iter().map(|l| l.loss).sum::<f64>() / losses.len() as f64;
        let sentence = format!(
            "One configuration for all workloads: {configuration} ({n}) loses {}% against each one's own best on average, \
             {} on {} at most{beside}",
            number(100.0 * mean),
            lost(worst),
            worst.to,
        );
        let runs = self.ranking.configurations[0].runs.clone();
        Some(Finding { runs, ..self.finding(FindingKind::Best, sentence, Vec::new()) })
    }

    /// How many times as good as the other whatever is better is, or how much better.
    fn gained(&self, change: Estimate) -> String {
        let scale = self.scale();
        match (scale.log, change.low.zip(change.high)) {
            (true, Some((low, high))) => {
                let [value, low, high] = [change.value, low, high].map(|v| number(v.exp()));
                format!("{value} times [{low}, {high}]")
            }
            (true, None) => format!("{} times", number(change.value.exp())),
            (false, _) => amount(scale, &change),
        }
    }

    /// One worker beside several, on each of several workloads.
    fn alone_on_each(&self) -> Option<Finding> {
        let as_good = if self.scale().log { " as good" } else { "" };
        let on = |wanted: Option<bool>| {
            let told = self.each.iter().filter_map(|one| Some((one, one.alone.as_ref()?)));
            let told = told.filter(|(_, sides)| sides.distribution_loses == wanted);
            let words = told.map(|(one, sides)| {
                // The difference is that of the scale: of whatever is better, it is a gain.
                let gain =
                    if sides.difference.value < 0.0 { sides.difference.negated() } else { sides.difference };
                let size = wanted.map(|_| format!(" ({}{as_good})", self.gained(gain)));
                format!("{}{}", one.workload, size.unwrap_or_default())
            });
            let words: Vec<String> = words.collect();
            (!words.is_empty()).then(|| list(&words, "and"))
        };
        let parts = [
            on(Some(true)).map(|on| format!("one worker alone beats the best of several on {on}")),
            on(Some(false)).map(|on| format!("the best of several workers beats one alone on {on}")),
            on(None)
                .map(|on| format!("one worker alone and the best of several cannot be told apart on {on}")),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        let mut sentence = parts.join("; ");
        sentence.get_mut(..1)?.make_ascii_uppercase();
        Some(self.finding(FindingKind::Alone, sentence, Vec::new()))
    }

    fn alone(&self, sides: &AloneOrTogether) -> Finding {
        let AloneOrTogether { one, several, difference, distribution_loses } = sides;
        let scale = self.scale();
        let sides = format!(
            "{} ({}) against {} ({})",
            scale.show(several.value),
            several.configuration,
            scale.show(one.value),
            one.configuration
        );
        let gain = if scale.goal == Goal::Minimize { difference.negated() } else { *difference };
        let good = if scale.log { " as good as" } else { " better than" };
        let sentence = match distribution_loses {
            Some(true) => {
                format!(
                    "One worker alone is {}{good} the best of several: {sides}: distribution loses here",
                    self.gained(gain.negated())
                )
            }
            Some(false) => {
                format!("The best of several workers is {}{good} one alone: {sides}", self.gained(gain))
            }
            None if difference.low.is_some() => {
                format!("One worker alone and the best of several cannot be told apart: {sides}")
            }
            None => {
                format!("Whether one worker alone is as good as the best of several cannot be told: {sides}")
            }
        };
        self.finding(FindingKind::Alone, sentence, Vec::new())
    }

    fn shares(&self) -> Option<Finding> {
        let importance = self.importance?;
        let percent = |v: f64| number((100.0 * v).round());
        let part = |(share, percents): &(&crate::importance::Share, u32)| {
            let name = importance.label(share);
            format!("{name} {percents}% [{}, {}]", percent(share.low), percent(share.high))
        };
        let parts: Vec<String> = importance.percents().iter().map(part).collect();
        // What a share of an axis by workload means is said once.
        let (beyond, meaning) = match &importance.by_workload[..] {
            [] if self.each.is_empty() => ("", ""),
            [] => (", the workloads' own aside,", ""),
            _ => (", the workloads' own aside,", "; by workload: that it acts differently on each"),
        };
        let sentence = format!(
            "What the variation of {}{beyond} is due to: {}{meaning}",
            self.scale().name,
            parts.join(", ")
        );
        Some(self.finding(FindingKind::Shares, sentence, Vec::new()))
    }

    fn certain(&self) -> Vec<(&VarianceSource, &crate::design::Term)> {
        let Some(anova) = self.anova else { return Vec::new() };
        let sources = anova.sources.iter().zip(&anova.design.terms);
        sources.filter(|(s, _)| s.p_holm.is_some_and(|p| p < LEVEL)).collect()
    }

    fn effects(&self) -> Vec<Finding> {
        let Some(anova) = self.anova else { return Vec::new() };
        let mut found = Vec::new();
        for (source, term) in self.certain() {
            match term.factors[..] {
                [f] => found.extend(self.effect(anova, source, f)),
                [f, g] => found.extend(self.together(anova, source, f, g)),
                _ => {}
            }
        }
        found
    }

    /// From the worse level to the better one: who cuts or raises what by how much.
    fn effect(&self, anova: &Anova, source: &VarianceSource, f: usize) -> Option<Finding> {
        let effect: &FactorEffect = anova.effects.iter().find(|e| e.factor == source.term)?;
        let surest = |step: &&LevelContrast| assured(&step.change);
        let step = effect.steps.iter().max_by(|a, b| surest(a).total_cmp(&surest(b)))?;
        if !step.change.signed() {
            return None;
        }
        let (scale, factor) = (self.scale(), &self.table.factors[f]);
        let improves = scale.better(step.change.value, 0.0);
        let (from, to, change) = if improves {
            (step.from, step.to, step.change)
        } else {
            (step.to, step.from, step.change.negated())
        };
        let verb = if scale.goal == Goal::Minimize { "cuts" } else { "raises" };
        let runs = self.runs(&|levels| levels[f] == from || levels[f] == to);
        let pairs = match step.pairs {
            0 => "no two of them alike otherwise".into(),
            1 => "1 pair alike otherwise".to_owned(),
            n => format!("{n} pairs alike otherwise"),
        };
        let sentence = format!(
            "{} {} instead of {} {verb} {} by {} (n = {} runs, {pairs})",
            factor.name,
            factor.levels[to].text,
            factor.levels[from].text,
            scale.name,
            amount(scale, &change),
            runs.len(),
        );
        let finding = self.finding(FindingKind::Effect, sentence, vec![factor.name.clone()]);
        Some(Finding { assured: assured(&change), p: source.p_holm, runs, ..finding })
    }

    /// The change of one factor at the levels of another where it differs most.
    fn together(&self, anova: &Anova, source: &VarianceSource, f: usize, g: usize) -> Option<Finding> {
        let (scale, table) = (self.scale(), self.table);
        let mut widest: Option<(f64, String)> = None;
        let given = |i: usize| self.table.several_workloads() == Some(i);
        // A workload is given: what is asked is how others act on it.
        for (own, other) in [(f, g), (g, f)].into_iter().filter(|(own, _)| !given(*own)) {
            let workload = given(other);
            let (levels, others) = (anova.design.told_levels(own), anova.design.told_levels(other));
            let count = levels.len();
            for (from, to) in (0..count).flat_map(|i| levels[i + 1..].iter().map(move |to| (i, *to))) {
                let from = levels[from];
                // All changes that could be told hold together.
                let outside = LEVEL / (others.len() * count * (count - 1) / 2) as f64;
                let change =
                    |&level: &usize| Some((level, anova.change_at(own, (from, to), other, level, outside)?));
                let changes: Vec<(usize, Estimate)> = others.iter().filter_map(change).collect();
                let least = changes.iter().min_by(|a, b| a.1.value.total_cmp(&b.1.value))?;
                let most = changes.iter().max_by(|a, b| a.1.value.total_cmp(&b.1.value))?;
                let apart = most.1.value - least.1.value;
                if widest.as_ref().is_some_and(|(widest, _)| *widest >= apart) {
                    continue;
                }
                let (own, other) = (&table.factors[own], &table.factors[other]);
                let at = |(level, change): &(usize, Estimate)| {
                    let seen = if change.signed() { "" } else { ", no sure effect" };
                    let at = if workload {
                        format!("on {}", other.levels[*level].text)
                    } else {
                        format!("with {}", other.at(*level).replace(" = ", " "))
                    };
                    format!("{} {at}{seen}", signed(scale, change))
                };
                let begin = if workload {
                    let [a, b] = [least.0, most.0].map(|level| &other.levels[level].text);
                    format!("{} acts differently on {a} and {b}", own.name)
                } else {
                    format!("What {} does depends on {}", own.name, other.name)
                };
                let words = format!(
                    "{begin}: {} instead of {} changes {} by {}, but by {} (n = {} runs)",
                    own.levels[to].text,
                    own.levels[from].text,
                    scale.name,
                    at(least),
                    at(most),
                    anova.n,
                );
                widest = Some((apart, words));
            }
        }
        let (_, sentence) = widest?;
        let interaction = anova.interactions.iter().find(|i| i.term == source.term)?;
        let size = interaction.cells.iter().flatten().flatten().map(assured).fold(0.0, f64::max);
        let factors = [f, g].map(|i| table.factors[i].name.clone()).to_vec();
        let (runs, finding) = (self.runs(&|_| true), self.finding(FindingKind::Together, sentence, factors));
        Some(Finding { assured: size, p: source.p_holm, runs, ..finding })
    }

    fn runs(&self, which: &dyn Fn(&[usize]) -> bool) -> Vec<String> {
        let measured = self.table.measured(self.response);
        measured.iter().filter(|(run, _)| which(&run.levels)).map(|(run, _)| run.id.clone()).collect()
    }

    fn scaling(&self) -> Option<Finding> {
        let best = |s: &&Series| s.rungs.iter().map(|r| r.speed_up).fold(0.0, f64::max);
        let series = self.scaling.iter().max_by(|a, b| best(a).total_cmp(&best(b)))?;
        let (first, last) = (series.rungs.first()?, series.rungs.last()?);
        let top = series.rungs.iter().max_by(|a, b| a.speed_up.total_cmp(&b.speed_up))?;
        let whose = match series.configuration.as_str() {
            "" => String::new(),
            configuration => format!(" ({configuration})"),
        };
        // What is within the noise is no gain and no loss.
        let unsure = |rung: &Rung| {
            let noise = self.noise.filter(|_| self.scale().log)?;
            let (deviation, df) = noise.of_difference((rung.n as f64, 0.0), (first.n as f64, 0.0));
            Some(!Estimate::new(rung.speed_up.ln(), Some((deviation, df)), LEVEL).signed())
        };
        let same = |rung: &Rung| unsure(rung).unwrap_or(false);
        let fewest = number(first.workers);
        let mut sentence = if top.workers == first.workers && same(last) {
            let last = number(last.workers);
            format!("More workers never help: {last} are as fast as {fewest}, within the noise{whose}")
        } else if top.workers == first.workers {
            let (workers, times) = (number(last.workers), times_as_fast(last.speed_up));
            format!("More workers never help: {workers} are {times} {fewest}{whose}")
        } else if same(top) {
            let top = number(top.workers);
            format!(
                "More workers do not help: at best, {top} are as fast as {fewest}, within the noise{whose}"
            )
        } else {
            format!(
                "{} workers are {} {fewest} at best, an efficiency of {}%{whose}",
                number(top.workers),
                times_as_fast(top.speed_up),
                number(100.0 * top.efficiency)
            )
        };
        if let Some(law) = &series.usl.as_ref().or(series.amdahl.as_ref()) {
            sentence += &one_at_a_time(&law.contention);
            if let Some(peak) = law.peak.filter(|peak| *peak < 4.0 * last.workers) {
                sentence += &format!(", and about {} workers are the fastest", number(peak.round().max(1.0)));
            }
        }
        let slower = self.scaling.iter().filter(|s| s.rungs.get(1).is_some_and(|r| r.speed_up < 1.0)).count();
        if slower > 0 {
            sentence += &format!(
                "; in {slower} of {} configurations the second number of workers is slower than the first",
                self.scaling.len()
            );
        }
        let size = top.speed_up.max(1.0).ln();
        Some(Finding { assured: size, ..self.finding(FindingKind::Scaling, sentence, Vec::new()) })
    }

    /// Noise and drift, with their evidence.
    fn machine(&self) -> Vec<Finding> {
        let Some(noise) = self.noise else {
            let few = |controls: Controls| {
                let (n, variation) = (controls.n, number(100.0 * controls.variation));
                let words = format!("The {n} controls deviate by {variation}% of their mean");
                self.finding(FindingKind::Noise, words, Vec::new())
            };
            return controls(self.table, self.response).map(few).into_iter().collect();
        };
        let scale = self.scale();
        let size = self.size(if scale.log { noise.deviation.exp_m1() } else { noise.deviation });
        let mut sentence = match noise.source {
            NoiseSource::Repeats => format!("Runs of one configuration deviate by {size}"),
            NoiseSource::Residuals => format!("Runs deviate by {size} from what the model says"),
        };
        sentence += &format!(" ({} degrees of freedom)", noise.df);
        if let Some(controls) = noise.controls {
            let variation = number(100.0 * controls.variation);
            sentence += &format!(", the {} controls by {variation}% of their mean", controls.n);
        }
        if let Some(drift) = noise.drift {
            let change = signed(scale, &drift.change);
            let evidence = format!("{change} from the first run to the last (p = {})", number(drift.p));
            sentence += &if drift.drifted {
                format!(
                    "; the machine drifted: {evidence}, so figures are told as of the middle of the study"
                )
            } else {
                format!("; no drift shows: {evidence}")
            };
        }
        vec![self.finding(FindingKind::Noise, sentence, Vec::new())]
    }

    /// Factors whose effect is small at most, and the names of those of which nothing can be said.
    fn without_effect(&self) -> (Vec<Finding>, Vec<String>) {
        let Some(anova) = self.anova else { return Default::default() };
        let certain = self.certain();
        let named = |f: usize| certain.iter().any(|(_, term)| term.factors.contains(&f));
        let limit = if self.scale().log {
            SMALL
        } else {
            5.0 * SMALL * (anova.total_sum_sq / (anova.n.max(2) - 1) as f64).sqrt()
        };
        let (mut small, mut unknown) = (Vec::new(), Vec::new());
        for effect in &anova.effects {
            if self.table.factor(&effect.factor).is_none_or(named) {
                continue;
            }
            let ends = effect.steps.iter().filter_map(|s| Some((s.change.low?, s.change.high?)));
            let widest = ends.fold(None, |widest: Option<(f64, f64)>, (low, high)| {
                Some(widest.map_or((low, high), |(l, h)| (l.min(low), h.max(high))))
            });
            let name = &effect.factor;
            let Some((low, high)) = widest.filter(|(low, high)| low.abs().max(high.abs()) <= limit) else {
                unknown.push(name.clone());
                continue;
            };
            let change = Estimate { value: 0.0, low: Some(low), high: Some(high) };
            let range = signed(self.scale(), &change);
            let range = range.split_once(' ').map_or(range.as_str(), |(_, range)| range);
            let unit = if self.scale().log { "%" } else { self.scale().unit };
            let sentence = format!("{name} has no effect worth a word: at most {range} {unit}");
            small.push(self.finding(
                FindingKind::NoEffect,
                sentence.trim_end().to_owned(),
                vec![name.clone()],
            ));
        }
        (small, unknown)
    }

    /// Everything that cannot be told, in one sentence, and what would help.
    fn cannot_tell(&self, factors: &[String]) -> Option<Finding> {
        let mut gaps = Vec::new();
        if !factors.is_empty() {
            let verb = if factors.len() == 1 { "matters" } else { "matter" };
            gaps.push(format!("whether {} {verb}", list(factors, "and")));
        }
        match self.anova {
            Some(anova) => gaps.extend(anova.cannot_tell.iter().cloned()),
            None => gaps.push("effects of factors (fewer than two runs, or nothing varied)".into()),
        }
        if self.noise.is_none() {
            gaps.push("noise and drift (too few runs are repeats of each other)".into());
        }
        gaps.extend(self.transfer_gaps());
        if gaps.is_empty() && !self.each.is_empty() {
            let n = self.table.measured(self.response).len();
            let sentence = format!("Nothing was asked that these {n} runs do not tell");
            return Some(self.finding(FindingKind::CannotTell, sentence, Vec::new()));
        }
        if gaps.is_empty() {
            return None;
        }
        // More runs help against noise, not against levels that follow from each other.
        let noisy = |anova: &Anova| anova.residual_df == 0 || anova.design.without_pairs;
        let helps = !factors.is_empty() || self.noise.is_none() || self.anova.is_some_and(noisy);
        let cure = self.table.repeats.filter(|_| helps).map_or_else(String::new, |cost| {
            let repeats = (cost.repeats + 1).max(3);
            let seconds = (repeats - cost.repeats) as f64 * cost.seconds;
            let time = if seconds < 1.0 { "less than a second".into() } else { duration(seconds) };
            format!("; `repeats = {repeats}` would take {time} more")
        });
        let n = self.table.measured(self.response).len();
        let sentence = format!("Cannot be told from {n} runs: {}{cure}", gaps.join("; "));
        Some(self.finding(FindingKind::CannotTell, sentence, factors.to_vec()))
    }
}
