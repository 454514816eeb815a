//! What an analysis found, in sentences with their evidence, and what it could not find out.
//!
//! A factor or a pair is told as a finding only if its chance, corrected over all terms of the model (Holm), is below
//! 5%; intervals between levels hold for all pairs of a factor together. So no more than one study in twenty tells of
//! an effect that is not there.

use paceline_plan::Goal;
use serde::Serialize;

use crate::anova::{Anova, Estimate, FactorEffect, LevelContrast, VarianceSource};
use crate::best::{NoiseSource, Ranking};
use crate::noise::Noise;
use crate::scaling::Series;
use crate::table::{Response, StudyTable, number};
use crate::transfer::WorkloadTransfer;

/// The chance below which something is told.
pub const LEVEL: f64 = 0.05;
/// Effects below this are not worth a word: of a logarithm, or of the deviation of all runs.
const SMALL: f64 = 0.1;

/// What a sentence is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub enum FindingKind {
    Best,
    Effect,
    Together,
    Scaling,
    Transfer,
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
    pub anova: Option<&'a Anova>,
    pub scaling: &'a [Series],
    pub transfer: Option<&'a WorkloadTransfer>,
    pub noise: &'a Noise,
}

/// An amount without its sign, and its interval, e.g. `31% [24, 37]`.
pub fn amount(response: &Response, change: &Estimate) -> String {
    let down = change.value < 0.0;
    // Percentages of a decrease are parts of what was there before.
    let show = |value: f64| {
        let size = if response.log { 100.0 * value.exp_m1() } else { value };
        number(if down { -size } else { size })
    };
    let unit = if response.log { "%".into() } else { format!(" {}", response.unit) };
    let interval = match (change.low, change.high) {
        (Some(low), Some(high)) => {
            let (low, high) = if down { (high, low) } else { (low, high) };
            format!(" [{}, {}]", show(low), show(high))
        }
        _ => " (no interval: the noise is not known)".into(),
    };
    format!("{}{}{interval}", show(change.value), unit.trim_end())
}

/// A change with its sign and interval, e.g. `−3% [−9, 4]`.
fn signed(response: &Response, change: &Estimate) -> String {
    let show = |value: f64| number(if response.log { 100.0 * value.exp_m1() } else { value });
    let unit = if response.log { "%".into() } else { format!(" {}", response.unit) };
    let interval = change.low.zip(change.high);
    let interval = interval.map_or_else(String::new, |(l, h)| format!(" [{}, {}]", show(l), show(h)));
    format!("{}{}{interval}", show(change.value), unit.trim_end()).replace('-', "−")
}

/// The end of an interval that is nearer to zero; zero if it contains it.
fn assured(change: &Estimate) -> f64 {
    match (change.low, change.high) {
        (Some(low), _) if low > 0.0 => low,
        (_, Some(high)) if high < 0.0 => -high,
        _ => 0.0,
    }
}

/// Findings, the most important first.
pub fn findings(evidence: &Evidence<'_>) -> Vec<Finding> {
    let mut told = Vec::new();
    told.extend(evidence.effects());
    told.extend(evidence.scaling());
    told.extend(evidence.transfer());
    told.sort_by(|a, b| b.assured.total_cmp(&a.assured));
    let mut all: Vec<Finding> = evidence.best().into_iter().collect();
    all.extend(told);
    all.extend(evidence.machine());
    all.extend(evidence.without_effect());
    all.extend(evidence.gaps());
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

    fn best(&self) -> Option<Finding> {
        let best = self.ranking.configurations.first()?;
        let (all, scale) = (self.ranking.configurations.len(), self.scale());
        let mean = match (best.mean.low, best.mean.high) {
            (Some(low), Some(high)) => {
                let [low, high] = [low, high].map(|v| number(scale.unscaled(v)));
                format!("{} [{low}, {high}]", scale.show(best.value))
            }
            _ => scale.show(best.value),
        };
        let others = self.ranking.configurations[1..].iter().filter(|c| c.may_be_best == Some(true)).count();
        let beside = match self.ranking.noise_from {
            None => "; whether others are as good cannot be told: no configuration was repeated".into(),
            Some(_) if others == 0 => "; no other can be as good".to_owned(),
            Some(from) => {
                let plural = if others == 1 { "one other" } else { &format!("{others} others") };
                let from = match from {
                    NoiseSource::Repeats => "the noise of repeats",
                    NoiseSource::Residuals => "what the model leaves as noise",
                };
                format!("; {plural} may be as good, given {from}")
            }
        };
        let n = best.runs.len();
        let sentence = format!(
            "The {} {} of {all} configurations: {mean} with {} (n = {n} {}){beside}",
            if scale.goal == Goal::Minimize { "lowest" } else { "highest" },
            scale.name,
            if best.configuration.is_empty() { "the only configuration" } else { &best.configuration },
            if n == 1 { "run" } else { "runs" },
        );
        let runs = best.runs.clone();
        Some(Finding { runs, ..self.finding(FindingKind::Best, sentence, Vec::new()) })
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
        for (own, other) in [(f, g), (g, f)] {
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
                    format!("{} with {}{seen}", signed(scale, change), other.at(*level).replace(" = ", " "))
                };
                let words = format!(
                    "What {} does depends on {}: {} instead of {} changes {} by {}, but by {} (n = {} runs)",
                    own.name,
                    other.name,
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
        let mut sentence = if top.workers == first.workers {
            format!(
                "More workers never help: {} are {} times as fast as {}{whose}",
                number(last.workers),
                number(last.speed_up),
                number(first.workers)
            )
        } else {
            format!(
                "{} workers are {} times as fast as {} at best, an efficiency of {}%{whose}",
                number(top.workers),
                number(top.speed_up),
                number(first.workers),
                number(100.0 * top.efficiency)
            )
        };
        if let Some(law) = &series.usl.as_ref().or(series.amdahl.as_ref()) {
            sentence += &format!("; {}% of the work is queued for", number(100.0 * law.contention.value));
            if let Some((low, high)) = law.contention.low.zip(law.contention.high) {
                sentence += &format!(" [{}, {}]", number(100.0 * low.max(0.0)), number(100.0 * high));
            }
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

    fn transfer(&self) -> Vec<Finding> {
        let Some(transfer) = self.transfer else { return Vec::new() };
        let worst = transfer.losses.iter().max_by(|a, b| a.loss.total_cmp(&b.loss));
        let Some(worst) = worst else { return Vec::new() };
        let carried = transfer.losses.iter().filter(|l| l.loss < 0.05).count();
        let sentence = format!(
            "The best configuration of {} {} loses {}% on {} against the best one there (n = {} configurations); \
             {carried} of {} such changes lose less than 5%",
            transfer.workload,
            worst.from,
            number(100.0 * worst.loss),
            worst.to,
            worst.n,
            transfer.losses.len(),
        );
        let finding = self.finding(FindingKind::Transfer, sentence, vec![transfer.workload.clone()]);
        vec![Finding { assured: worst.loss.ln_1p(), ..finding }]
    }

    fn machine(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        if let Some(controls) = &self.noise.controls {
            let drift = match controls.p {
                Some(p) if p < LEVEL => {
                    let over = self.size(controls.over_study);
                    format!("the machine drifted by {over} over the study (p = {})", number(p))
                }
                Some(p) => format!("no drift shows (p = {})", number(p)),
                None => "drift cannot be told".into(),
            };
            let sentence = format!(
                "Controls vary by {}% (n = {}); {drift}",
                number(100.0 * controls.variation),
                controls.n
            );
            found.push(self.finding(FindingKind::Noise, sentence, Vec::new()));
        }
        if let Some((deviation, df)) = self.noise.repeats {
            let size = self.size(if self.scale().log { deviation.exp_m1() } else { deviation });
            let sentence =
                format!("Repeats of one configuration deviate by {size} ({df} degrees of freedom)");
            found.push(self.finding(FindingKind::Noise, sentence, Vec::new()));
        }
        found
    }

    fn without_effect(&self) -> Vec<Finding> {
        let Some(anova) = self.anova else { return Vec::new() };
        let certain = self.certain();
        let named = |f: usize| certain.iter().any(|(_, term)| term.factors.contains(&f));
        let limit = if self.scale().log {
            SMALL
        } else {
            5.0 * SMALL * (anova.total_sum_sq / (anova.n.max(2) - 1) as f64).sqrt()
        };
        let mut found = Vec::new();
        for effect in &anova.effects {
            let Some(f) = self.table.factor(&effect.factor) else { continue };
            let ends = effect.steps.iter().filter_map(|s| Some((s.change.low?, s.change.high?)));
            let widest = ends.fold(None, |widest: Option<(f64, f64)>, (low, high)| {
                Some(widest.map_or((low, high), |(l, h)| (l.min(low), h.max(high))))
            });
            let Some((low, high)) = widest.filter(|_| !named(f)) else { continue };
            let change = Estimate { value: 0.0, low: Some(low), high: Some(high) };
            let range = signed(self.scale(), &change);
            let range = range.split_once(' ').map_or(range.as_str(), |(_, range)| range);
            let unit = if self.scale().log { "%" } else { self.scale().unit };
            let name = &effect.factor;
            let (kind, sentence) = if low.abs().max(high.abs()) <= limit {
                (FindingKind::NoEffect, format!("{name} has no effect worth a word: at most {range} {unit}"))
            } else {
                let words = format!(
                    "Whether {name} matters cannot be told from {} runs: anything within {range} {unit} is possible",
                    anova.n
                );
                (FindingKind::CannotTell, words)
            };
            found.push(self.finding(kind, sentence.trim_end().to_owned(), vec![name.clone()]));
        }
        found
    }

    fn gaps(&self) -> Vec<Finding> {
        let gaps = self.anova.map_or(&[][..], |anova| &anova.cannot_tell);
        let few = self.anova.is_none().then(|| {
            "Effects cannot be told: fewer than two runs, or nothing varied between them".to_owned()
        });
        let all = gaps.iter().cloned().chain(few);
        all.map(|gap| self.finding(FindingKind::CannotTell, gap, Vec::new())).collect()
    }
}
