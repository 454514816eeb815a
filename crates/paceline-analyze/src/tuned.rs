//! An honest comparison of techniques: the levels of one factor, each at its own best setting of other factors (a learning
//! rate, usually), over repeats.
//!
//! A setting that was chosen because it was lucky is not as good as it looked. So each repeat is judged with the setting
//! that the other repeats choose (one left out at a time); where nothing was repeated, choice and judgement are of the
//! same runs. Either way, the interval of a level is that of its truly best setting: below the best mean as far as noise
//! reaches, above it as far as noise reaches in the luckiest of the settings that may be best (Bonferroni). Intervals of
//! means and of differences are put together from such parts (Zou and Donner's method of variance estimates recovery).

use std::collections::{BTreeMap, BTreeSet};

use paceline_statistics::mean;
use serde::Serialize;

use crate::anova::Estimate;
use crate::distributions::{holm, t_quantile, t_two_sided};
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
    /// Nothing was repeated: choice and judgement are of the same runs.
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
    reach: Option<Reach>,
}

/// How far noise reaches below and above the mean of the best settings.
#[derive(Clone, Debug)]
struct Reach {
    /// The mean of the best settings, chosen and judged on the same runs.
    best: f64,
    df: f64,
    /// By combination of other factors: the error of the best setting's mean, and how many settings may be the best.
    parts: Vec<(f64, f64)>,
}

impl Reach {
    /// What leaves `outside` on both sides together; luck goes to the better side, the truth to the worse.
    fn sides(&self, outside: f64) -> (f64, f64) {
        let side = |lucky: bool| {
            let of = |(error, rivals): &(f64, f64)| {
                let choice = if lucky { *rivals } else { 1.0 };
                (error * t_quantile(outside / choice, self.df)).powi(2)
            };
            self.parts.iter().map(of).sum::<f64>().sqrt() / self.parts.len() as f64
        };
        (side(false), side(true))
    }
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
            pairs: pairs(&levels, scale),
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
                " (chosen and judged on the same runs; the intervals allow for that)".into()
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
    let (mut means, mut best_means, mut parts) = (Vec::new(), Vec::new(), Vec::new());
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
        let of_best = |run: &Run| cells[best].iter().any(|trial| std::ptr::eq(trial.0, run));
        agreed += judges.iter().filter(|trial| of_best(trial.0)).count();
        runs += judges.len();
        missed += judges.iter().chain(&cells[best]).filter(|trial| trial.2).count();
        means.push(values(&judges));
        best_means.push(values(&cells[best]));
        parts.extend(noise.map(|noise| (of_mean(noise, &cells[best]), rivals(cells, best, noise))));
    }
    let tried = trials.values().map(BTreeMap::len).sum::<usize>() / trials.len().max(1);
    let value = mean(&means);
    let known = noise.filter(|_| missed == 0);
    let reach = known.map(|noise| Reach { best: mean(&best_means), df: noise.df, parts });
    let ends = reach.as_ref().map(|reach| {
        let (better, worse) = reach.sides(LEVEL);
        if scale.better(0.0, 1.0) {
            (reach.best - better, reach.best + worse)
        } else {
            (reach.best - worse, reach.best + better)
        }
    });
    TunedLevel {
        level,
        settings: paceline_statistics::distinct(settings),
        tried,
        runs,
        agreed,
        missed,
        mean: around(value, ends),
        value: scale.unscaled(value),
        reach,
    }
}

fn values(trials: &[Trial<'_>]) -> f64 {
    mean(&trials.iter().map(|trial| trial.1).collect::<Vec<_>>())
}

/// An estimate and an interval that holds it.
fn around(value: f64, ends: Option<(f64, f64)>) -> Estimate {
    Estimate { value, low: ends.map(|(low, _)| low.min(value)), high: ends.map(|(_, high)| high.max(value)) }
}

/// How many runs there are, and when they were made on average.
fn known_by(noise: &Noise, trials: &[Trial<'_>]) -> (f64, f64) {
    let own: Vec<&Run> = trials.iter().map(|trial| trial.0).collect();
    (own.len() as f64, noise.time(&own))
}

fn of_mean(noise: &Noise, trials: &[Trial<'_>]) -> f64 {
    let (n, time) = known_by(noise, trials);
    noise.of_mean(n, time).0
}

/// Settings that may be the best, the best itself included: their difference from it could be noise.
fn rivals(cells: &BTreeMap<Vec<usize>, Vec<Trial<'_>>>, best: &Vec<usize>, noise: &Noise) -> f64 {
    let chance = |(_, cell): (&Vec<usize>, &Vec<Trial<'_>>)| {
        let (error, df) = noise.of_difference(known_by(noise, cell), known_by(noise, &cells[best]));
        t_two_sided((values(cell) - values(&cells[best])) / error, df)
    };
    let chances: Vec<f64> = cells.iter().filter(|(setting, _)| *setting != best).map(chance).collect();
    1.0 + holm(&chances).iter().filter(|p| **p > LEVEL).count() as f64
}

/// All pairs, the better one first; a level that missed what was to be measured is compared by its bound alone.
fn pairs(levels: &[TunedLevel], scale: &Response) -> Vec<TunedPair> {
    let mut found: Vec<(TunedPair, f64)> = Vec::new();
    for (i, better) in levels.iter().enumerate() {
        for other in &levels[i + 1..] {
            let both = better.reach.as_ref().zip(other.reach.as_ref());
            // How far the other one may be from the better one, as the response counts.
            let ends = |outside: f64| {
                let (one, two) = both?;
                let (a, b) = (one.sides(outside), two.sides(outside));
                let apart = two.best - one.best;
                let [nearer, further] = [(a.1, b.0), (a.0, b.1)].map(|(x, y)| x.hypot(y));
                Some(if scale.better(0.0, 1.0) {
                    (apart - nearer, apart + further)
                } else {
                    (apart - further, apart + nearer)
                })
            };
            let difference = around(other.mean.value - better.mean.value, ends(LEVEL));
            let chance = if both.is_some() { least_outside(&ends) } else { f64::NAN };
            let (better, other) = (better.level.clone(), other.level.clone());
            found.push((TunedPair { better, other, difference, p_holm: None }, chance));
        }
    }
    let corrected = holm(&found.iter().map(|(_, chance)| *chance).collect::<Vec<_>>());
    let told = found.into_iter().zip(corrected);
    told.map(|((pair, _), p)| TunedPair { p_holm: (!p.is_nan()).then_some(p), ..pair }).collect()
}

/// The chance of a difference by noise alone: what an interval leaves outside that just reaches zero.
fn least_outside(ends: &dyn Fn(f64) -> Option<(f64, f64)>) -> f64 {
    let told = |outside: f64| ends(outside).is_some_and(|(low, high)| low > 0.0 || high < 0.0);
    let (mut low, mut high) = (-40.0f64, 0.0f64);
    if told(low.exp()) {
        return low.exp();
    }
    for _ in 0..40 {
        let middle = 0.5 * (low + high);
        if told(middle.exp()) { high = middle } else { low = middle }
    }
    high.exp()
}
