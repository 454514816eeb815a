//! What came of a study: the best configuration, what mattered most, one worker beside several, and the machine.

use std::collections::BTreeMap;
use std::path::Path;

use paceline_analyze::importance::{Importance, LEAST_RUNS, SEED};
use paceline_explore::schedule::{End, Role, StudyRun, joined, observations};
use paceline_explore::{Drift, Observation, TrialOutcome};
use paceline_plan::{Goal, Point, Space, Value, printable};
use paceline_record::figures::Figures;
use serde_json::{Value as Json, json};

use crate::state::StudyHistory;
use crate::workload;

/// Different causes of failed runs that are listed.
const MOST_CAUSES: usize = 8;

pub fn configuration(levels: &BTreeMap<String, Value>) -> String {
    if levels.is_empty() {
        return "defaults".into();
    }
    let words = levels.iter().map(|(name, value)| format!("{name} {}", printable(&value.to_string())));
    words.collect::<Vec<_>>().join(", ")
}

/// The best of some runs: its levels and its first objective.
type Side = Option<(String, f64)>;

/// An axis: its importance, and the mean figure of each level.
struct AxisEffect {
    axis: String,
    /// As `analyze` has it; absent where the runs are too few.
    importance: Option<f64>,
    /// Means (geometric where all figures are positive), and of how many points.
    levels: Vec<(Value, f64, usize)>,
}

/// Axes with more than one level, the most important first.
fn effects(space: &Space, points: &[(Point, f64)], importance: Option<&Importance>) -> Vec<AxisEffect> {
    let log = points.iter().all(|(_, value)| *value > 0.0);
    let mut effects = Vec::new();
    for (i, axis) in space.axes().iter().enumerate() {
        let mean = |(l, level): (usize, &Value)| {
            let here = points.iter().filter(|(point, _)| point.0[i] == Some(l as u32));
            let here: Vec<f64> = here.map(|(_, value)| if log { value.ln() } else { *value }).collect();
            let mean = paceline_statistics::mean(&here);
            (!here.is_empty()).then(|| (level.clone(), if log { mean.exp() } else { mean }, here.len()))
        };
        let levels: Vec<_> = axis.levels.iter().enumerate().filter_map(mean).collect();
        if levels.len() > 1 {
            let importance = importance.and_then(|all| all.of(&axis.name));
            effects.push(AxisEffect { axis: axis.name.clone(), importance, levels });
        }
    }
    effects.sort_by(|a, b| b.importance.unwrap_or(0.0).total_cmp(&a.importance.unwrap_or(0.0)));
    effects
}

/// What a study found.
pub struct Findings<'a> {
    known: &'a StudyHistory,
    /// Points, their means corrected for drift.
    history: Vec<Observation>,
    /// The same, as they were measured.
    raw: Vec<Observation>,
    best: Vec<usize>,
    effects: Vec<AxisEffect>,
    /// By objective, where controls have shown a pace.
    drifts: Vec<(String, Drift)>,
    /// The best run of one worker alone: its levels and its first objective.
    single: Side,
    /// The best point of several workers.
    several: Side,
}

impl<'a> Findings<'a> {
    /// From what is known.
    pub fn new(known: &'a StudyHistory) -> Self {
        let (study, made) = (&known.study, &known.made);
        let problem = crate::problem(study, &known.registries.figures);
        let paced = study.objectives.iter().filter(|o| known.registries.figures.follows_pace(&o.metric));
        let drifts: Vec<(String, Drift)> =
            paced.filter_map(|o| Some((o.metric.clone(), Drift::new(made, &o.metric)?))).collect();
        let corrected: Vec<StudyRun> = made.iter().map(|m| correct(m, &drifts)).collect();
        let history = observations(&problem, &corrected);
        let raw = observations(&problem, made);
        // What a run had when it was ended early is a bound, not a figure.
        let whole: Vec<StudyRun> = corrected.iter().filter(|m| !beaten(m)).cloned().collect();
        let best =
            problem.best(&observations(&problem, &corrected.iter().map(unmeasured).collect::<Vec<_>>()));
        let objective = &study.objectives[0];
        let full = history.iter().filter(|o| o.share >= 1.0);
        let figure = |o: &Observation| match &o.outcome {
            TrialOutcome::Measured(metrics) => metrics.get(&objective.metric).copied(),
            _ => None,
        };
        let values: Vec<_> = full.filter_map(|o| Some((o.point.clone(), figure(o)?))).collect();
        let importance = Importance::new(&super::table::table(known), 0, SEED);
        let effects = effects(&study.space, &values, importance.as_ref());
        let (mut single, mut several): (Side, Side) = (None, None);
        let better = |a: f64, b: f64| objective.goal.better(a, b);
        for group in groups(&whole) {
            let (count, figures) = (workload::workers(study, &group[0].job), joined(&problem, &group));
            let one = Observation {
                point: Point(vec![None; study.space.axes().len()]),
                share: 1.0,
                outcome: TrialOutcome::Measured(figures.clone()),
            };
            let (Some(count), Some(value)) = (count, figures.get(&objective.metric).copied()) else {
                continue;
            };
            if !problem.feasible(&one) {
                continue;
            }
            let slot = if count <= 1.0 { &mut single } else { &mut several };
            if slot.as_ref().is_none_or(|(_, reached)| better(value, *reached)) {
                *slot = Some((configuration(&workload::levels(study, &group[0].job)), value));
            }
        }
        Self { known, history, raw, best, effects, drifts, single, several }
    }

    fn levels(&self, at: usize) -> BTreeMap<String, Value> {
        self.known.study.space.named(&self.history[at].point)
    }

    fn metrics(&self, at: usize) -> BTreeMap<String, f64> {
        match &self.history[at].outcome {
            TrialOutcome::Measured(metrics) => metrics.clone(),
            _ => BTreeMap::new(),
        }
    }

    /// A point, with its figures as measured and as corrected for drift.
    fn point(&self, at: usize) -> Json {
        let one = &self.history[at];
        let raw = self.raw.iter().find(|o| o.point == one.point && o.share == one.share);
        let figures = |o: &Observation| match &o.outcome {
            TrialOutcome::Measured(metrics) => json!(metrics),
            _ => Json::Null,
        };
        json!({
            "levels": self.levels(at), "share": one.share, "metrics": figures(one),
            "measured": raw.map(figures),
        })
    }

    fn count(&self, which: fn(&End) -> bool) -> usize {
        self.known.made.iter().filter(|m| m.end.as_ref().is_some_and(which)).count()
    }

    fn failures(&self) -> impl Iterator<Item = (&StudyRun, &str)> {
        self.known.made.iter().filter_map(|made| match &made.end {
            Some(End::Failed { cause }) => Some((made, cause.as_str())),
            _ => None,
        })
    }

    /// Whether one worker alone is at least as good as several.
    fn distribution_loses(&self) -> Option<bool> {
        let ((_, one), (_, several)) = (self.single.as_ref()?, self.several.as_ref()?);
        let minimize = self.known.study.objectives[0].goal == Goal::Minimize;
        Some(if minimize { one <= several } else { one >= several })
    }

    /// For programs.
    pub fn json(&self, folder: &Path) -> Json {
        let study = &self.known.study;
        let best = |at: &usize| json!({"levels": self.levels(*at), "metrics": self.metrics(*at)});
        let drift = |(metric, drift): &(String, Drift)| json!({"metric": metric, "spread": drift.spread(), "corrected": drift.noticed()});
        let effect = |e: &AxisEffect| {
            let levels: Vec<_> =
                e.levels.iter().map(|(v, mean, n)| json!({"level": v, "mean": mean, "points": n})).collect();
            json!({"axis": e.axis, "share": e.importance, "levels": levels})
        };
        let side =
            |side: &Side| side.as_ref().map(|(what, value)| json!({"configuration": what, "value": value}));
        json!({
            "type": "result",
            "study": study.name,
            "sampler": study.sampler,
            "objectives": study.objectives.iter().map(|o| json!({"metric": o.metric, "goal": o.goal})).collect::<Vec<_>>(),
            "runs": self.known.made.len(),
            "ended": self.count(|_| true),
            "failed": self.count(|e| matches!(e, End::Failed { .. })),
            "diverged": self.count(|e| matches!(e, End::Diverged { .. })),
            "beaten": self.count(|e| matches!(e, End::Beaten { .. })),
            "points": self.history.len(),
            "failures": self.failures().map(|(made, cause)| json!({
                "number": made.job.id, "levels": workload::levels(study, &made.job), "cause": cause,
                "exit": self.known.exits[made.job.id as usize],
            })).collect::<Vec<_>>(),
            "finished": self.known.finished,
            "best": self.best.first().map(best),
            "history": (0..self.history.len()).map(|at| self.point(at)).collect::<Vec<_>>(),
            "front": self.best.iter().map(best).collect::<Vec<_>>(),
            "effects": self.effects.iter().map(effect).collect::<Vec<_>>(),
            "drift": self.drifts.iter().map(drift).collect::<Vec<_>>(),
            "one_worker": side(&self.single),
            "several_workers": side(&self.several),
            "distribution_loses": self.distribution_loses(),
            "record": folder,
        })
    }

    /// For people.
    pub fn text(&self, folder: &Path) -> String {
        let study = &self.known.study;
        let objective = &study.objectives[0];
        let mut text = String::new();
        let runs = self.known.made.len();
        text += &format!("{} different configurations in {runs} runs", self.history.len());
        let early = self.count(|e| matches!(e, End::Beaten { .. }));
        for (what, count) in [
            ("failed", self.count(|e| matches!(e, End::Failed { .. }))),
            ("diverged", self.count(|e| matches!(e, End::Diverged { .. }))),
            ("ended early because they could no longer win", early),
        ] {
            if count > 0 {
                text += &format!(", {count} {what}");
            }
        }
        text += "\n";
        let mut causes: Vec<(&str, usize)> = Vec::new();
        for (_, cause) in self.failures() {
            match causes.iter_mut().find(|(known, _)| *known == cause) {
                Some((_, times)) => *times += 1,
                None => causes.push((cause, 1)),
            }
        }
        for (cause, times) in causes.iter().take(MOST_CAUSES) {
            text += &format!("  {times} failed: {}\n", printable(cause));
        }
        if causes.len() > MOST_CAUSES {
            text += &format!("  and {} other causes\n", causes.len() - MOST_CAUSES);
        }
        text += "\n";
        if self.best.is_empty() {
            text += "no configuration meets every condition with every objective measured\n";
        }
        for at in self.best.iter().take(8) {
            let metrics = self.metrics(*at);
            let one = |o: &paceline_plan::Objective| {
                figure(&self.known.registries.figures, &o.metric, metrics[&o.metric])
            };
            let figures: Vec<String> = study.objectives.iter().map(one).collect();
            text += &format!("best: {}\n      {}\n", configuration(&self.levels(*at)), figures.join(", "));
        }
        if !self.effects.is_empty() {
            let known = self.effects.iter().any(|effect| effect.importance.is_some());
            let few = format!("shares need {LEAST_RUNS} runs that differ");
            text += &format!(
                "\nwhat mattered most for {} ({}; means by level{}):\n",
                objective.metric,
                if known { "share of its variation" } else { &few },
                unit(&self.known.registries.figures, &objective.metric).replacen(' ', " in ", 1)
            );
        }
        for effect in self.effects.iter().take(6) {
            let level = |(value, mean, _): &(Value, f64, usize)| {
                format!("{}: {}", printable(&value.to_string()), number(*mean))
            };
            let levels: Vec<String> = effect.levels.iter().map(level).collect();
            let share =
                effect.importance.map_or_else(|| "–".into(), |share| format!("{:.0}%", 100.0 * share));
            text += &format!("  {:<12} {share:>5}  {}\n", effect.axis, levels.join(", "));
        }
        if early > 0 && !self.effects.is_empty() {
            text += &format!(
                "  ({early} runs that were ended early count in the means, with what their clocks said by then)\n"
            );
        }
        text += "\n";
        if let (Some((one, a)), Some((several, b)), Some(loses)) =
            (&self.single, &self.several, self.distribution_loses())
        {
            let shown = |value: &f64| figure(&self.known.registries.figures, &objective.metric, *value);
            let ratio = if a > b { a / b } else { b / a };
            text +=
                &format!("one worker: {} ({one}); the best of several: {} ({several})", shown(a), shown(b));
            text += &if loses {
                format!("\ndistribution loses here: one worker alone is {ratio:.2} times as good\n")
            } else {
                format!(", {ratio:.2} times as good\n")
            };
        }
        for (metric, drift) in &self.drifts {
            let spread = 100.0 * (drift.spread() - 1.0);
            text += &if drift.noticed() {
                format!(
                    "the machine's pace drifted: {metric} of the controls differs by {spread:.0}%; figures are corrected for it\n"
                )
            } else {
                format!("the machine was steady: {metric} of the controls differs by {spread:.0}%\n")
            };
        }
        text + &format!("recorded in {}\n", folder.display())
    }
}

fn beaten(made: &StudyRun) -> bool {
    matches!(made.end, Some(End::Beaten { .. }))
}

/// A run; if it was ended early, without its figures.
fn unmeasured(made: &StudyRun) -> StudyRun {
    let end = if beaten(made) { Some(End::Failed { cause: String::new() }) } else { made.end.clone() };
    StudyRun { job: made.job.clone(), end }
}

fn correct(made: &StudyRun, drifts: &[(String, Drift)]) -> StudyRun {
    let mut made = made.clone();
    if let Some(End::Ok { metrics } | End::Beaten { metrics }) = &mut made.end {
        for (metric, drift) in drifts {
            if let Some(value) = metrics.get_mut(metric) {
                *value = drift.corrected(made.job.id, *value);
            }
        }
    }
    made
}

/// Runs of whole work that are repeats of each other; the warm-up is none.
fn groups(made: &[StudyRun]) -> Vec<Vec<&StudyRun>> {
    let mut groups: Vec<Vec<&StudyRun>> = Vec::new();
    for one in made.iter().filter(|m| m.job.role != Role::WarmUp && m.job.share >= 1.0) {
        let same = |group: &&mut Vec<&StudyRun>| {
            group[0].job.role == one.job.role && group[0].job.levels == one.job.levels
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(one),
            None => groups.push(vec![one]),
        }
    }
    groups
}

/// The unit of a figure, behind a space; nothing for plain numbers and for what commands print.
fn unit(figures: &Figures, metric: &str) -> String {
    let known = figures.find(metric).filter(|figure| !figure.unit.is_empty());
    known.map(|figure| format!(" {}", figure.unit)).unwrap_or_default()
}

pub fn figure(figures: &Figures, metric: &str, value: f64) -> String {
    format!("{metric} {}{}", number(value), unit(figures, metric))
}

/// A figure with three or four digits that matter.
pub fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 10_000.0 => format!("{value:.0}"),
        v if v >= 100.0 => format!("{value:.1}"),
        v if v >= 0.1 || v == 0.0 => format!("{value:.3}"),
        v if v >= 0.01 => format!("{value:.4}"),
        v if v >= 1e-4 => format!("{value:.6}").trim_end_matches('0').to_owned(),
        _ => format!("{value:.2e}"),
    }
}

/// Seconds, as people say them.
pub fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{s:.0} s"),
        s if s < 5400.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn small_figures_are_not_powers_of_ten_unless_they_must_be() {
        let shown = [52_345.6, 123.45, 0.5, 0.0, 0.04321, 0.00721, 0.0043, 0.000012].map(number);
        assert_eq!(shown, ["52346", "123.5", "0.500", "0.000", "0.0432", "0.00721", "0.0043", "1.20e-5"]);
    }
}
