//! An honest comparison of techniques: the levels of one factor, each at its own best setting of other factors (a learning
//! rate, usually), over repeats.
//!
//! A setting that was chosen because it was lucky is not as good as it looked. So each repeat is judged with the setting
//! that the other repeats choose (one left out at a time). Where nothing was repeated, choice and judgement are of the
//! same runs, and intervals allow for the choice (Bonferroni over the settings).

use std::collections::{BTreeMap, BTreeSet};

use paceline_statistics::mean;
use serde::Serialize;

use crate::anova::Estimate;
use crate::distributions::{holm, t_two_sided};
use crate::findings::LEVEL;
use crate::noise::Noise;
use crate::phrases::{amount, list};
use crate::table::{Response, Run, StudyTable, number};

/// What is compared: the levels of a factor, each at its own best of some others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComparisonRequest {
    /// The factor whose levels are compared.
    pub factor: usize,
    /// The factors that each level chooses for itself.
    pub tuned: Vec<usize>,
}

impl ComparisonRequest {
    /// Strategies at their own learning rates, where both varied.
    pub fn of_settings(table: &StudyTable) -> Option<Self> {
        let varied = |name: &str| table.factor(name).filter(|f| table.factors[*f].acting() > 1);
        Some(Self { factor: varied("strategy")?, tuned: vec![varied("lr")?] })
    }
}

/// How settings were chosen and judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TuningMethod {
    /// Each repeat is judged with the setting that the others choose.
    LeaveOneOut,
    /// Nothing was repeated: the intervals allow for the choice.
    SameRuns,
}

/// One level at its best setting.
#[derive(Clone, Debug, Serialize)]
pub struct TunedLevel {
    /// The level.
    pub level: String,
    /// What all its runs choose; more than one where that depends on other factors.
    pub settings: Vec<String>,
    /// Settings that it was tried with.
    pub tried: usize,
    /// Runs that judge it.
    pub runs: usize,
    /// How many of those ran with what all runs choose.
    pub agreed: usize,
    /// Of these runs, those that missed what was to be measured: the mean is a bound then.
    pub missed: usize,
    /// Mean of the response's scale, with an interval where the noise is known.
    pub mean: Estimate,
    /// The same as it was measured.
    pub value: f64,
    #[serde(skip)]
    known_by: (f64, f64),
}

/// Two levels, each at its best setting.
#[derive(Clone, Debug, Serialize)]
pub struct TunedPair {
    /// The better one.
    pub better: String,
    /// The other one.
    pub other: String,
    /// The other less the better one, on the response's scale.
    pub difference: Estimate,
    /// Chance of such a difference by noise alone, corrected over all pairs (Holm); absent where the noise is not known.
    pub p_holm: Option<f64>,
}

/// Levels of a factor, each at its own best setting.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct TunedComparison {
    pub factor: String,
    /// What each level chose for itself.
    pub tuned: Vec<String>,
    /// Where there are several.
    pub workload: Option<String>,
    pub method: TuningMethod,
    /// Combinations of other factors at which all levels were run; their means count alike.
    pub combinations: usize,
    /// The best first.
    pub levels: Vec<TunedLevel>,
    pub pairs: Vec<TunedPair>,
}

/// A run, its value on the response's scale, and whether that is a bound.
type Trial<'a> = (&'a Run, f64, bool);
/// Trials of a level by what else varied, then by setting; in the order in which they were made.
type Trials<'a> = BTreeMap<Vec<usize>, BTreeMap<Vec<usize>, Vec<Trial<'a>>>>;

impl TunedComparison {
    /// Of the first response (figures as of the middle of the study), one per workload; none where fewer than two levels
    /// can be compared.
    pub fn all(table: &StudyTable, noise: Option<&Noise>, ask: &ComparisonRequest) -> Vec<Self> {
        let several = table.several_workloads();
        let workloads: Vec<Option<usize>> = match several {
            Some(f) => (0..table.factors[f].levels.len()).map(Some).collect(),
            None => vec![None],
        };
        let of = |workload: &Option<usize>| Self::new(table, noise, ask, *workload);
        workloads.iter().filter_map(of).collect()
    }

    fn new(
        table: &StudyTable,
        noise: Option<&Noise>,
        ask: &ComparisonRequest,
        workload: Option<usize>,
    ) -> Option<Self> {
        let (factor, scale) = (&table.factors[ask.factor], &table.responses[0]);
        // What only some levels have (servers, say) is theirs to choose, too.
        let nested = |f: &usize| table.factors[*f].acting() < table.factors[*f].levels.len();
        let tuned: BTreeSet<usize> = (0..table.factors.len())
            .filter(|f| ask.tuned.contains(f) || nested(f))
            .filter(|f| *f != ask.factor)
            .collect();
        let mut by_level: BTreeMap<usize, Trials<'_>> = BTreeMap::new();
        let measured = table.measured(0).into_iter().map(|(run, value)| (run, value, false));
        let missed = table.missed(0).into_iter().map(|(run, bound)| (run, bound, true));
        for trial in measured.chain(missed) {
            let run = trial.0;
            let level = run.levels[ask.factor];
            if run.forbidden || level >= factor.acting() || table.workload_of(run) != workload {
                continue;
            }
            let setting = tuned.iter().map(|f| run.levels[*f]).collect();
            let mut rest = run.levels.clone();
            tuned.iter().chain([&ask.factor]).for_each(|f| rest[*f] = 0);
            by_level
                .entry(level)
                .or_default()
                .entry(rest)
                .or_default()
                .entry(setting)
                .or_default()
                .push(trial);
        }
        let all = |key: &&Vec<usize>| by_level.values().all(|trials| trials.contains_key(*key));
        let common: Vec<Vec<usize>> = by_level.values().next()?.keys().filter(all).cloned().collect();
        for trials in by_level.values_mut() {
            trials.retain(|key, _| common.contains(key));
            trials.values_mut().flat_map(BTreeMap::values_mut).for_each(|cell| {
                cell.sort_by(|a, b| a.0.order.total_cmp(&b.0.order));
            });
        }
        if by_level.len() < 2 || common.is_empty() {
            return None;
        }
        let repeated = |cells: &BTreeMap<_, Vec<Trial<'_>>>| cells.values().any(|cell| cell.len() > 1);
        let method = if by_level.values().all(|trials| trials.values().all(repeated)) {
            TuningMethod::LeaveOneOut
        } else {
            TuningMethod::SameRuns
        };
        let words = |setting: &[usize]| {
            let parts = tuned.iter().zip(setting).map(|(f, level)| (&table.factors[*f], *level));
            let told = parts.filter(|(f, level)| f.levels.len() > 1 && !f.levels[*level].absent());
            told.map(|(f, level)| f.at(level).replace(" = ", " ")).collect::<Vec<_>>().join(", ")
        };
        let judge = |(level, trials): (&usize, &Trials<'_>)| {
            judged(trials, method, (scale, noise), &words, factor.levels[*level].text.clone())
        };
        let mut levels: Vec<TunedLevel> = by_level.iter().map(judge).collect();
        levels.sort_by(|a, b| {
            let order = a.mean.value.total_cmp(&b.mean.value);
            if scale.better(0.0, 1.0) { order } else { order.reverse() }
        });
        Some(Self {
            factor: factor.name.clone(),
            tuned: tuned.iter().map(|f| table.factors[*f].name.clone()).collect(),
            workload: table
                .several_workloads()
                .zip(workload)
                .map(|(f, w)| table.factors[f].levels[w].text.clone()),
            method,
            combinations: common.len(),
            pairs: pairs(&levels, method, noise),
            levels,
        })
    }

    /// What is compared how, and what came of it.
    pub fn sentence(&self, scale: &Response) -> String {
        let on = self.workload.as_ref().map_or_else(String::new, |name| format!("{name}: "));
        let own = match &self.tuned[..] {
            [] => String::new(),
            tuned => format!(", each at its own best {}", list(tuned, "and")),
        };
        let level = |l: &TunedLevel| {
            let settings: Vec<String> = l.settings.iter().filter(|s| !s.is_empty()).cloned().collect();
            let with =
                if settings.is_empty() { String::new() } else { format!(" with {}", list(&settings, "or")) };
            format!("{} {}{with}", l.level, l.figure(scale))
        };
        let levels: Vec<String> = self.levels.iter().map(level).collect();
        let mut sentence = format!("{on}{}{own}: {}", self.factor, levels.join(", "));
        let first = &self.levels[0].level;
        let of_first = || self.pairs.iter().filter(|pair| pair.better == *first);
        let told = |pair: &&TunedPair| pair.p_holm.is_some_and(|p| p < LEVEL);
        let better: Vec<String> = of_first()
            .filter(told)
            .map(|pair| format!("than {} by {}", pair.other, amount(scale, &worse(scale, pair))))
            .collect();
        let unsure: Vec<String> =
            of_first().filter(|pair| !told(pair)).map(|pair| pair.other.clone()).collect();
        if !better.is_empty() {
            sentence += &format!("; {first} is better {}", list(&better, "and"));
        }
        if !unsure.is_empty() {
            sentence += &format!("; {} cannot be told from {first}", list(&unsure, "and"));
        }
        sentence += &match self.method {
            TuningMethod::LeaveOneOut => {
                let most = self.levels.iter().map(|l| l.runs / self.combinations).max().unwrap_or(0);
                format!(" (over {most} repeats, each judged with the setting that the others choose)")
            }
            TuningMethod::SameRuns => {
                " (chosen and judged on the same runs: the intervals allow for that)".into()
            }
        };
        let (least, most) = self.budget();
        if least != most {
            let tried = self.levels.iter().map(|l| format!("{} {}", l.level, l.tried)).collect::<Vec<_>>();
            sentence += &format!("; not all had as many settings to choose from: {}", tried.join(", "));
        }
        sentence
    }

    /// The fewest and the most settings that a level was tried with.
    fn budget(&self) -> (usize, usize) {
        let tried = || self.levels.iter().map(|l| l.tried);
        (tried().min().unwrap_or(0), tried().max().unwrap_or(0))
    }
}

/// By how much the other one is worse, as a change of the response.
pub fn worse(scale: &Response, pair: &TunedPair) -> Estimate {
    if scale.better(0.0, 1.0) { pair.difference } else { pair.difference.negated() }
}

impl TunedLevel {
    /// Its mean with unit and interval.
    pub fn figure(&self, scale: &Response) -> String {
        match self.mean.low.zip(self.mean.high) {
            _ if self.missed > 0 => format!("at least {}", scale.show(self.value)),
            Some((low, high)) => {
                let [low, high] = [low, high].map(|v| number(scale.unscaled(v)));
                format!("{} [{low}, {high}]", scale.show(self.value))
            }
            None => scale.show(self.value),
        }
    }
}

/// The best setting by the mean of its trials, leaving out one repeat.
fn chosen<'c>(
    cells: &'c BTreeMap<Vec<usize>, Vec<Trial<'_>>>,
    scale: &Response,
    without: Option<usize>,
) -> Option<&'c Vec<usize>> {
    let known = cells.iter().filter_map(|(setting, cell)| {
        let own = cell.iter().enumerate().filter(|(i, _)| Some(*i) != without);
        let own: Vec<f64> = own.map(|(_, trial)| trial.1).collect();
        (!own.is_empty()).then(|| (setting, mean(&own)))
    });
    known.reduce(|a, b| if scale.better(b.1, a.1) { b } else { a }).map(|(setting, _)| setting)
}

fn judged(
    trials: &Trials<'_>,
    method: TuningMethod,
    (scale, noise): (&Response, Option<&Noise>),
    words: &dyn Fn(&[usize]) -> String,
    level: String,
) -> TunedLevel {
    let (mut means, mut parts, mut times) = (Vec::new(), Vec::new(), Vec::new());
    let (mut runs, mut agreed, mut missed, mut settings) = (0, 0, 0, Vec::new());
    for cells in trials.values() {
        let Some(best) = chosen(cells, scale, None) else { continue };
        settings.push(words(best));
        let judges: Vec<Trial<'_>> = match method {
            TuningMethod::SameRuns => cells[best].clone(),
            TuningMethod::LeaveOneOut => {
                let repeats = cells.values().map(Vec::len).max().unwrap_or(0);
                let left_out = |i: usize| Some((chosen(cells, scale, Some(i))?, i));
                let folds = (0..repeats).filter_map(left_out);
                folds.filter_map(|(setting, i)| cells[setting].get(i).copied()).collect()
            }
        };
        let own: Vec<&Run> = judges.iter().map(|trial| trial.0).collect();
        agreed +=
            own.iter().filter(|run| cells[best].iter().any(|trial| std::ptr::eq(trial.0, **run))).count();
        runs += own.len();
        missed += judges.iter().filter(|trial| trial.2).count();
        means.push(mean(&judges.iter().map(|trial| trial.1).collect::<Vec<_>>()));
        parts.push(1.0 / own.len() as f64);
        times.push(noise.map_or(0.0, |noise| noise.time(&own)));
    }
    let tried = trials.values().map(BTreeMap::len).sum::<usize>() / trials.len().max(1);
    let (value, known_by) = (mean(&means), (means.len() as f64 / mean(&parts), mean(&times)));
    let error = noise.filter(|_| missed == 0).map(|noise| noise.of_mean(known_by.0, known_by.1));
    TunedLevel {
        level,
        settings: paceline_statistics::distinct(settings),
        tried,
        runs,
        agreed,
        missed,
        mean: Estimate::new(value, error, LEVEL / choices(method, tried)),
        value: scale.unscaled(value),
        known_by,
    }
}

/// What a choice on the same runs costs.
fn choices(method: TuningMethod, tried: usize) -> f64 {
    if method == TuningMethod::SameRuns { tried.max(1) as f64 } else { 1.0 }
}

/// All pairs, the better one first; a level that missed what was to be measured is compared by its bound alone.
fn pairs(levels: &[TunedLevel], method: TuningMethod, noise: Option<&Noise>) -> Vec<TunedPair> {
    let mut found: Vec<(TunedPair, f64)> = Vec::new();
    for (i, better) in levels.iter().enumerate() {
        for other in &levels[i + 1..] {
            let difference = other.mean.value - better.mean.value;
            let noise = noise.filter(|_| better.missed + other.missed == 0);
            let error = noise.map(|noise| noise.of_difference(better.known_by, other.known_by));
            let both = choices(method, better.tried) * choices(method, other.tried);
            let chance = error.map_or(f64::NAN, |(deviation, df)| {
                (t_two_sided(difference / deviation, df) * both).min(1.0)
            });
            let difference = Estimate::new(difference, error, LEVEL / both);
            let (better, other) = (better.level.clone(), other.level.clone());
            found.push((TunedPair { better, other, difference, p_holm: None }, chance));
        }
    }
    let corrected = holm(&found.iter().map(|(_, chance)| *chance).collect::<Vec<_>>());
    let told = found.into_iter().zip(corrected);
    told.map(|((pair, _), p)| TunedPair { p_holm: (!p.is_nan()).then_some(p), ..pair }).collect()
}
