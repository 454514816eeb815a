//! What came of a study: the same analysis that `analyze`, `report` and `serve` show, in short.

use std::collections::BTreeMap;
use std::path::Path;

use paceline_analyze::sheet::{WIDTH, wrapped};
use paceline_analyze::table::{Factor, Response, Run, RunRole, number};
use paceline_analyze::{
    Analysis, AnalysisRequest, Anova, BestWords, Configuration, FactorEffect, FindingKind, LevelEffect,
    Noise, Ranking, StudyTable, WorkloadBest,
};
use paceline_explore::schedule::{End, StudyRun};
use paceline_plan::{Value, printable};
use paceline_record::figures::Figures;
use serde_json::{Map, Value as Json, json};

use crate::state::StudyHistory;
use crate::table::table;

/// Different causes of failed runs that are listed.
const MOST_CAUSES: usize = 8;
/// Configurations of a trade-off that are listed.
const MOST_BEST: usize = 8;
/// Configurations that a chart has, and the columns of their names and of their bars.
const MOST_BARS: usize = 12;
const LABEL: usize = 51;
const BAR: usize = 15;
/// Runs of a study whose best is worked out after each of them.
const MOST_AT_ONCE: usize = 1000;

pub fn configuration(levels: &BTreeMap<String, Value>) -> String {
    if levels.is_empty() {
        return "defaults".into();
    }
    let words = levels.iter().map(|(name, value)| format!("{name} {}", printable(&value.to_string())));
    words.collect::<Vec<_>>().join(", ")
}

/// The best configurations of a study so far, by the ranking that the analysis has; of many runs it would take too long
/// to know.
pub struct BestSoFar {
    table: StudyTable,
    /// Of all runs; of several workloads, for all of them.
    best: Option<Configuration>,
    /// By workload, where there are several.
    each: Vec<Option<Configuration>>,
}

impl BestSoFar {
    pub fn new(known: &StudyHistory) -> Option<Self> {
        if known.made.len() > MOST_AT_ONCE {
            return None;
        }
        let table = table(known);
        let anova = Anova::new(&table, 0);
        let noise = Noise::new(&table, 0, anova.as_ref());
        let steady = table.steady(std::slice::from_ref(&noise));
        let first = |ranking: Ranking| ranking.configurations.into_iter().next();
        let (best, each) = match table.several_workloads() {
            None => (Ranking::new(&steady, 0, noise.as_ref()), Vec::new()),
            Some(workload) => {
                let (each, for_all) = Ranking::by_workload(&steady, 0, noise.as_ref(), workload);
                (for_all, each.into_iter().map(first).collect())
            }
        };
        Some(Self { table, best: first(best), each })
    }

    /// The configuration and its figure: of several workloads, the mean over all.
    pub fn figure(self) -> Option<(String, f64)> {
        let Configuration { configuration, value, .. } = self.best?;
        let several = self.table.several_workloads().is_some();
        Some((if several { format!("all workloads: {configuration}") } else { configuration }, value))
    }

    /// In words; none before a run has ended well.
    pub fn words(&self) -> Option<String> {
        let response = &self.table.responses[0];
        let Some(workload) = self.table.several_workloads() else {
            return Some(format!("{} {}", response.name, response.show(self.best.as_ref()?.value)));
        };
        let levels = self.table.factors[workload].levels.iter().zip(&self.each);
        let known = levels.filter_map(|(level, best)| Some((&level.text, best.as_ref()?)));
        let words: Vec<String> =
            known.map(|(name, best)| format!("{name} {}", response.show(best.value))).collect();
        (!words.is_empty()).then(|| format!("{}: {}", response.name, words.join(", ")))
    }
}

/// What a study found.
pub struct Findings<'a> {
    known: &'a StudyHistory,
    table: StudyTable,
    analysis: Analysis,
}

impl<'a> Findings<'a> {
    /// From what is known.
    pub fn new(known: &'a StudyHistory) -> Self {
        let table = table(known);
        let analysis = Analysis::new(&table, AnalysisRequest::of_settings(&table));
        Self { known, table, analysis }
    }

    fn count(&self, which: fn(&End) -> bool) -> usize {
        self.known.made.iter().filter(|m| m.end.as_ref().is_some_and(which)).count()
    }

    /// Runs that failed or were refused, and why.
    fn failures(&self) -> impl Iterator<Item = (&StudyRun, &'static str, &str)> {
        self.known.made.iter().filter_map(|made| match &made.end {
            Some(End::Failed { cause }) => Some((made, "failed", cause.as_str())),
            Some(End::Refused { cause }) => Some((made, "refused", cause.as_str())),
            _ => None,
        })
    }

    /// Levels by name, without those that cannot act.
    fn levels(&self, levels: &[usize]) -> Json {
        let there = self.table.factors.iter().zip(levels).filter(|(f, l)| !f.levels[**l].absent());
        let level = |(f, l): (&Factor, &usize)| {
            let level = &f.levels[*l];
            (f.name.clone(), level.number.map_or_else(|| json!(level.text), |n| json!(n)))
        };
        Json::Object(there.map(level).collect::<Map<_, _>>())
    }

    /// A configuration with the means of all its figures; objectives as of the middle of the study.
    fn point(&self, levels: &[usize]) -> Json {
        let objectives = self.objectives(levels);
        let mut metrics = self.measured(levels);
        metrics.extend(objectives);
        json!({"levels": self.levels(levels), "metrics": metrics, "measured": self.measured(levels), "share": 1.0})
    }

    fn objectives(&self, levels: &[usize]) -> BTreeMap<String, f64> {
        let steady = &self.analysis.steady;
        let mean = |(r, response): (usize, &Response)| {
            let own: Vec<f64> =
                steady.measured(r).iter().filter(|(run, _)| run.levels == levels).map(|(_, v)| *v).collect();
            let mean = paceline_statistics::mean(&own);
            (!own.is_empty()).then(|| (response.name.clone(), response.unscaled(mean)))
        };
        steady.responses.iter().enumerate().filter_map(mean).collect()
    }

    /// Means as they were measured.
    fn measured(&self, levels: &[usize]) -> BTreeMap<String, f64> {
        let of = |run: &&Run| run.levels == levels && run.role == RunRole::Point;
        let orders: Vec<f64> = self.table.runs.iter().filter(of).map(|run| run.order).collect();
        let own = self.known.made.iter().filter(|m| orders.contains(&(m.job.id as f64))).collect::<Vec<_>>();
        let problem = crate::problem(&self.known.study, &self.known.registries.figures);
        paceline_explore::schedule::joined(&problem, &own)
    }

    /// What nothing else beats: one configuration, or several if there are several objectives.
    fn best(&self) -> Vec<Vec<usize>> {
        let first = |one: &WorkloadBest| Some(one.best.configurations.first()?.levels.clone());
        match self.table.responses.len() {
            1 if !self.analysis.each.is_empty() => self.analysis.each.iter().filter_map(first).collect(),
            1 => self.analysis.best.configurations.first().map(|c| c.levels.clone()).into_iter().collect(),
            _ => self.analysis.front.iter().map(|point| point.levels.clone()).collect(),
        }
    }

    /// For programs.
    pub fn json(&self, folder: &Path) -> Json {
        let (study, analysis) = (&self.known.study, &self.analysis);
        let scale = &analysis.response;
        let effect = |e: &FactorEffect| {
            let levels = e.levels.iter().map(|l| {
                json!({"level": l.level, "runs": l.n, "mean": l.mean.map(|mean| scale.unscaled(mean.value))})
            });
            let share = analysis.importance.as_ref().and_then(|importance| importance.of(&e.factor));
            json!({
                "axis": e.factor, "share": share.map(|s| s.share), "low": share.map(|s| s.low),
                "high": share.map(|s| s.high), "levels": levels.collect::<Vec<_>>(),
            })
        };
        let effects = analysis.anova.iter().flat_map(|anova| &anova.effects);
        let side = |c: &Configuration| json!({"configuration": c.configuration, "value": c.value});
        let best: Vec<Json> = self.best().iter().map(|levels| self.point(levels)).collect();
        let points = paceline_analyze::distinct(
            self.table.runs.iter().filter(|r| r.role == RunRole::Point).map(|r| &r.levels),
        );
        let levels_of =
            |of: Vec<&Configuration>| of.iter().map(|c| self.levels(&c.levels)).collect::<Vec<_>>();
        let interval = |ranking: &Ranking| {
            let best = ranking.configurations.first()?;
            Some([scale.unscaled(best.mean.low?), scale.unscaled(best.mean.high?)])
        };
        // Of several workloads, each has a best of its own.
        let one = analysis.each.is_empty().then_some(&analysis.best);
        let each = |of: &WorkloadBest| {
            json!({
                "workload": of.workload,
                "best": of.best.configurations.first().map(|c| self.point(&c.levels)),
                "best_interval": interval(&of.best),
                "as_good": of.best.as_good().map(levels_of),
            })
        };
        json!({
            "type": "result",
            "study": study.name,
            "sampler": study.sampler,
            "objectives": study.objectives.iter().map(|o| json!({"metric": o.metric, "goal": o.goal})).collect::<Vec<_>>(),
            "runs": self.known.made.len(),
            "expected": self.known.expected(),
            "ended": self.count(|_| true),
            "failed": self.count(|e| matches!(e, End::Failed { .. })),
            "refused": self.count(|e| matches!(e, End::Refused { .. })),
            "diverged": self.count(|e| matches!(e, End::Diverged { .. })),
            "beaten": self.count(|e| matches!(e, End::Beaten { .. })),
            "nodes_lost": self.known.nodes_lost,
            "points": self.points(),
            "failures": self.failures().map(|(made, state, cause)| json!({
                "number": made.job.id, "levels": self.known.levels(&made.job), "state": state, "cause": cause,
                "exit": self.known.exits[made.job.id as usize],
            })).collect::<Vec<_>>(),
            "finished": self.known.finished,
            "best": best.first().filter(|_| one.is_some()),
            "best_interval": one.and_then(interval),
            "as_good": one.and_then(Ranking::as_good).map(levels_of),
            "each": analysis.each.iter().map(each).collect::<Vec<_>>(),
            "transfer": analysis.transfer.as_ref().filter(|_| one.is_none()),
            "history": points.into_iter().map(|levels| self.point(levels)).collect::<Vec<_>>(),
            "front": best,
            "effects": effects.map(effect).collect::<Vec<_>>(),
            "shares": analysis.importance,
            "noise": analysis.noise,
            "misses": analysis.misses,
            "one_worker": analysis.alone.as_ref().map(|alone| side(&alone.one)),
            "several_workers": analysis.alone.as_ref().map(|alone| side(&alone.several)),
            "distribution_loses": analysis.alone.as_ref().and_then(|alone| alone.distribution_loses),
            "findings": analysis.findings,
            "record": folder,
        })
    }

    /// Different configurations that were begun.
    fn points(&self) -> usize {
        self.known.observations().len()
    }

    fn sentences(&self, kind: FindingKind) -> String {
        let own = self.analysis.findings.iter().filter(|finding| finding.kind == kind);
        own.map(|finding| wrapped(&finding.sentence, WIDTH, 0) + "\n").collect()
    }

    /// For people.
    pub fn text(&self, folder: &Path) -> String {
        let runs = self.known.made.len();
        let mut text = format!("{} different configurations in {runs} runs", self.points());
        for (what, count) in [
            ("failed", self.count(|e| matches!(e, End::Failed { .. }))),
            ("refused", self.count(|e| matches!(e, End::Refused { .. }))),
            ("diverged", self.count(|e| matches!(e, End::Diverged { .. }))),
            ("ended early because they could no longer win", self.count(|e| matches!(e, End::Beaten { .. }))),
            ("begun again because their nodes were lost", self.known.nodes_lost as usize),
        ] {
            if count > 0 {
                text += &format!(", {count} {what}");
            }
        }
        text += "\n";
        let mut causes: Vec<((&str, &str), usize)> = Vec::new();
        for (_, state, cause) in self.failures() {
            match causes.iter_mut().find(|(known, _)| *known == (state, cause)) {
                Some((_, times)) => *times += 1,
                None => causes.push(((state, cause), 1)),
            }
        }
        for ((state, cause), times) in causes.iter().take(MOST_CAUSES) {
            text += &format!("  {times} {state}: {}\n", printable(cause));
        }
        if causes.len() > MOST_CAUSES {
            text += &format!("  and {} other causes\n", causes.len() - MOST_CAUSES);
        }
        let missed = self.sentences(FindingKind::Missed);
        if !missed.is_empty() {
            text += &format!("\n{missed}");
        }
        text += &format!("\n{}", self.best_text());
        text += &self.mattered();
        text += "\n";
        let kinds: &[FindingKind] = if self.analysis.each.is_empty() {
            &[FindingKind::Alone, FindingKind::Noise, FindingKind::CannotTell]
        } else {
            &[FindingKind::Transfer, FindingKind::CannotTell, FindingKind::Alone, FindingKind::Noise]
        };
        kinds.iter().for_each(|kind| text += &self.sentences(*kind));
        text + &format!("recorded in {}\n", folder.display())
    }

    /// The configurations as bars, the best first, for a terminal of 80 columns.
    pub fn chart(&self) -> String {
        let scale = &self.analysis.response;
        let rankings: Vec<(Option<&str>, &Ranking)> = if self.analysis.each.is_empty() {
            vec![(None, &self.analysis.best)]
        } else {
            self.analysis.each.iter().map(|one| (Some(one.workload.as_str()), &one.best)).collect()
        };
        let room = (MOST_BARS / rankings.len()).max(1);
        let shown: usize = rankings.iter().map(|(_, of)| of.configurations.len().min(room)).sum();
        let mut text = format!(
            "{}, mean of runs{}\n",
            scale.named(),
            if shown < self.points() { ", the best" } else { "" }
        );
        for (workload, ranking) in rankings {
            text += &workload.map_or_else(String::new, |name| format!("  on {}:\n", printable(name)));
            text += &self.bars(&ranking.configurations[..ranking.configurations.len().min(room)]);
        }
        text + "  * the best, or as good as the noise can tell\n"
    }

    fn bars(&self, shown: &[Configuration]) -> String {
        let most = shown.iter().map(|c| c.value).fold(0.0, f64::max);
        let mut text = String::new();
        for c in shown {
            let label = self.short_label(&c.levels);
            let length = if most > 0.0 { (c.value / most).max(0.0) * BAR as f64 } else { 0.0 };
            let bar = "█".repeat(length.round().max(1.0) as usize);
            let mark = if c.may_be_best == Some(true) { " *" } else { "" };
            text += &format!("  {label:<LABEL$} {bar:<BAR$} {}{mark}\n", number(c.value));
        }
        text
    }

    /// A configuration in few words: names speak for themselves, numbers have theirs.
    fn short_label(&self, levels: &[usize]) -> String {
        let there = self.table.factors.iter().zip(levels).enumerate().filter(|(i, (f, l))| {
            f.levels.len() > 1 && !f.levels[**l].absent() && Some(*i) != self.table.workload
        });
        let word = |(_, (f, l)): (usize, (&Factor, &usize))| match (&f.levels[*l].text, f.levels[*l].number) {
            (text, Some(_)) => format!("{} {text}", f.name),
            (text, None) if text == "false" => format!("no {}", f.name),
            (text, None) if text == "true" => f.name.clone(),
            (text, None) => text.clone(),
        };
        let label = printable(&there.map(word).collect::<Vec<_>>().join(", ")).into_owned();
        match label.chars().count() {
            n if n > LABEL => label.chars().take(LABEL - 1).chain(['…']).collect(),
            _ => label,
        }
    }

    fn best_text(&self) -> String {
        let best = self.best();
        if best.is_empty() {
            return "no configuration meets every condition with every objective measured\n".into();
        }
        let analysis = &self.analysis;
        if !analysis.each.is_empty() && self.table.responses.len() == 1 {
            return self.sentences(FindingKind::Best);
        }
        let words = BestWords::new(&analysis.response, &analysis.best, analysis.noise.as_ref());
        if let Some(words) = words.filter(|_| self.table.responses.len() == 1) {
            let BestWords { configuration, figure, n, beside } = words;
            let line = format!("      {} {figure} ({n}){beside}", analysis.response.name);
            return format!(
                "{}\n{}\n",
                wrapped(&format!("best: {}", printable(&configuration)), WIDTH, 6),
                wrapped(&line, WIDTH, 0)
            );
        }
        let mut text = String::new();
        for levels in best.iter().take(MOST_BEST) {
            let of = self.objectives(levels);
            let one = |r: &Response| format!("{} {}", r.name, r.show(of[&r.name]));
            let figures: Vec<String> = self.table.responses.iter().map(one).collect();
            let words = format!("best: {}: {}", self.table.configuration(levels), figures.join(", "));
            text += &(wrapped(&words, WIDTH, 6) + "\n");
        }
        text
    }

    /// Shares that add up, and means by level.
    fn mattered(&self) -> String {
        let Some(anova) = &self.analysis.anova else { return String::new() };
        let scale = &self.analysis.response;
        let means = |factor: &str| {
            let mean = |l: &LevelEffect| {
                let level = printable(&l.level);
                Some(format!("{level}: {}", number(scale.unscaled(l.mean?.value))))
            };
            let effect = anova.effects.iter().filter(|e| e.factor == factor);
            effect.flat_map(|e| e.levels.iter().filter_map(mean)).collect::<Vec<_>>().join(", ")
        };
        let unit = if scale.unit.is_empty() { String::new() } else { format!(" in {}", scale.unit) };
        let importance = self.analysis.importance.as_ref();
        let shares = match importance {
            Some(_) => "shares of its variation with 95% intervals",
            None => "shares cannot be told from these runs",
        };
        let own = if self.analysis.each.is_empty() { "" } else { ", the workloads' own aside" };
        let head = format!("what mattered for {}{own} ({shares}; means by level{unit}):", scale.name);
        let mut lines: Vec<String> = Vec::new();
        let told = importance.iter().flat_map(|all| all.percents().into_iter().map(move |one| (all, one)));
        for (all, (share, percent)) in told {
            let name = all.label(share);
            let [low, high] = [share.low, share.high].map(|v| number((100.0 * v).round()));
            lines.push(format!("  {name:<12} {percent:>3}% [{low}, {high}]  {}", means(&share.term)));
        }
        if importance.is_none() {
            lines.extend(anova.effects.iter().map(|e| format!("  {:<12} {}", e.factor, means(&e.factor))));
        }
        let lines: String = lines.iter().map(|line| wrapped(line.trim_end(), WIDTH, 14) + "\n").collect();
        format!("\n{}\n{lines}", wrapped(&head, WIDTH, 0))
    }
}

/// The unit of a figure, behind a space; nothing for plain numbers and for what commands print.
fn unit(figures: &Figures, metric: &str) -> String {
    let known = figures.find(metric).filter(|figure| !figure.unit.is_empty());
    known.map(|figure| format!(" {}", figure.unit)).unwrap_or_default()
}

pub fn figure(figures: &Figures, metric: &str, value: f64) -> String {
    format!("{metric} {}{}", number(value), unit(figures, metric))
}
