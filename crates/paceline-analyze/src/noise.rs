//! How noisy runs are, and whether the machine drifted meanwhile: the one model that every answer stands on.
//!
//! A run's figure is the mean of its configuration, plus a drift that is the same for all, plus noise. The drift is a
//! line over the order in which runs were made, and it is always there: figures are told as of the middle of the
//! study, and what is not known about the drift widens their intervals. Where configurations were repeated (controls
//! are repeats too), they alone tell noise and drift; otherwise what the model of effects leaves does.

use std::collections::BTreeMap;

use paceline_random::Stream;
use paceline_statistics::mean;
use serde::Serialize;

use crate::anova::{Anova, Estimate};
use crate::distributions::t_two_sided;
use crate::findings::LEVEL;
use crate::importance::drawn_variance;
use crate::table::{Run, RunRole, StudyTable};

/// Degrees of freedom below which nothing is said about noise.
const LEAST_DF: f64 = 3.0;
/// Degrees of freedom from which repeats alone are trusted.
const ENOUGH_DF: f64 = 8.0;

/// What tells the noise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoiseSource {
    /// Runs of one configuration differ.
    Repeats,
    /// What the model of effects leaves.
    Residuals,
}

/// How the machine's pace changed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Drift {
    /// From the first run to the last, on the response's scale.
    pub change: Estimate,
    /// Chance of such a change by noise alone.
    pub p: f64,
    /// Whether that is too small a chance.
    pub drifted: bool,
    /// Error of the change in units of the noise.
    #[serde(skip)]
    scale: f64,
}

/// Repeats of one configuration over a study.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Controls {
    /// How many.
    pub n: usize,
    /// Their deviation over their mean, as measured.
    pub variation: f64,
}

/// Noise and drift of a response.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Noise {
    /// Deviation of one run on the response's scale.
    pub deviation: f64,
    /// Degrees of freedom.
    pub df: f64,
    /// What tells them.
    pub source: NoiseSource,
    /// The drift; none where the order of runs says nothing.
    pub drift: Option<Drift>,
    /// What the controls alone show.
    pub controls: Option<Controls>,
    /// Runs that tell.
    pub n: usize,
    /// The first run's order, and how long a study is in it.
    #[serde(skip)]
    clock: StudyClock,
}

/// When runs were made: 0 in the middle of the study (the mean of all runs), 1 apart from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StudyClock {
    middle: f64,
    span: f64,
}

impl StudyClock {
    /// Of runs that were observed; none without a span of time.
    pub fn new(observed: &[(&Run, f64)]) -> Option<Self> {
        let orders: Vec<f64> = observed.iter().map(|(run, _)| run.order).collect();
        let ends = orders.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), o| (a.min(*o), b.max(*o)));
        let span = ends.1 - ends.0;
        (span > 0.0).then(|| Self { middle: mean(&orders), span })
    }

    /// When a run was made.
    pub fn at(&self, run: &Run) -> f64 {
        (run.order - self.middle) / self.span
    }
}

/// Sums over runs around the means of their configurations.
#[derive(Default)]
struct Within {
    tt: f64,
    ty: f64,
    yy: f64,
    df: f64,
}

impl Within {
    fn new(table: &StudyTable, observed: &[(&Run, f64)], clock: Option<StudyClock>) -> Self {
        type Key<'a> = (RunRole, Option<usize>, &'a [usize]);
        let mut cells: BTreeMap<Key<'_>, Vec<(f64, f64)>> = BTreeMap::new();
        for (run, value) in observed {
            // Controls may sit outside of the space that is analysed.
            let levels = if run.role == RunRole::Point { &run.levels[..] } else { &[] };
            let at = clock.map_or(0.0, |clock| clock.at(run));
            cells.entry((run.role, table.workload_of(run), levels)).or_default().push((at, *value));
        }
        let mut sums = Self::default();
        for cell in cells.values() {
            let n = cell.len() as f64;
            let (t, y) = cell.iter().fold((0.0, 0.0), |(t, y), (a, v)| (t + a / n, y + v / n));
            for (a, v) in cell {
                sums.tt += (a - t).powi(2);
                sums.ty += (a - t) * (v - y);
                sums.yy += (v - y).powi(2);
            }
            sums.df += n - 1.0;
        }
        sums
    }
}

impl Noise {
    /// Of a response; none where too few runs tell.
    pub fn new(table: &StudyTable, response: usize, anova: Option<&Anova>) -> Option<Self> {
        let observed = table.observed(response);
        let clock = if table.timed { StudyClock::new(&observed) } else { None };
        let within = Within::new(table, &observed, clock);
        let told = within.tt > 1e-9;
        let repeats_df = within.df - f64::from(u8::from(told));
        let model = anova.filter(|anova| anova.fit.df as f64 >= LEAST_DF);
        let model_drift = model.and_then(|anova| anova.drift());
        // By the design alone, so that the choice does not follow the noise.
        let informed = model_drift.is_none_or(|(_, scale)| within.tt >= 0.5 / scale.powi(2));
        let by_repeats = repeats_df >= ENOUGH_DF && (informed || clock.is_none());
        let repeats = repeats_df >= LEAST_DF && (by_repeats || model.is_none());
        let (deviation, df, source, slope) = if repeats {
            let slope = told.then(|| (within.ty / within.tt, 1.0 / within.tt.sqrt()));
            let rss = within.yy - slope.map_or(0.0, |(slope, _)| slope * within.ty);
            ((rss.max(0.0) / repeats_df).sqrt(), repeats_df, NoiseSource::Repeats, slope)
        } else {
            let (deviation, df) = model?.noise()?;
            (deviation, df, NoiseSource::Residuals, model_drift)
        };
        let drift = slope.filter(|_| clock.is_some()).map(|(value, scale)| {
            let p = t_two_sided(value / (deviation * scale), df);
            let change = Estimate::new(value, Some((deviation * scale, df)), LEVEL);
            Drift { change, p, drifted: p < LEVEL, scale }
        });
        let clock = clock.unwrap_or(StudyClock { middle: 0.0, span: 1.0 });
        let n = observed.len();
        Some(Self { deviation, df, source, drift, controls: controls(table, response), n, clock })
    }

    /// How much a run's figure owes to the drift, on the response's scale.
    pub fn owed(&self, run: &Run) -> f64 {
        self.drift.map_or(0.0, |drift| drift.change.value * self.clock.at(run))
    }

    /// When runs were made on average, relative to the middle of the study.
    pub fn time(&self, runs: &[&Run]) -> f64 {
        mean(&runs.iter().map(|run| self.clock.at(run)).collect::<Vec<_>>())
    }

    /// Deviation and degrees of freedom of the mean of `n` runs made at `time` on average.
    pub fn of_mean(&self, n: f64, time: f64) -> (f64, f64) {
        self.error(1.0 / n, time)
    }

    /// The same of the difference of two means.
    pub fn of_difference(&self, a: (f64, f64), b: (f64, f64)) -> (f64, f64) {
        self.error(1.0 / a.0 + 1.0 / b.0, a.1 - b.1)
    }

    /// Errors of means (of so many runs, made at a time on average) as noise could have made them, the deviation drawn
    /// too: over errors by [`Noise::of_difference`] they are distributed as Student's t.
    pub fn drawn(&self, means: &[(f64, f64)], normals: &Stream) -> Vec<f64> {
        let size = self.deviation / drawn_variance(1.0, self.df, normals.normal(0)).sqrt().max(1e-6);
        let drift = self.drift.map_or(0.0, |drift| drift.scale * normals.normal(1));
        let error = |(i, (n, time)): (usize, &(f64, f64))| {
            size * (normals.normal(2 + i as u64) / n.sqrt() + time * drift)
        };
        means.iter().enumerate().map(error).collect()
    }

    fn error(&self, parts: f64, time: f64) -> (f64, f64) {
        let drift = self.drift.map_or(0.0, |drift| time * drift.scale);
        (self.deviation * (parts + drift * drift).sqrt(), self.df)
    }
}

/// How much controls vary; none with fewer than two.
pub fn controls(table: &StudyTable, response: usize) -> Option<Controls> {
    let scale = &table.responses[response];
    let observed = table.observed(response).into_iter().filter(|(run, _)| run.role == RunRole::Control);
    let mut by_workload: BTreeMap<Option<usize>, Vec<f64>> = BTreeMap::new();
    for (run, value) in observed {
        by_workload.entry(table.workload_of(run)).or_default().push(scale.unscaled(value));
    }
    let around = |own: &Vec<f64>| {
        let mean = mean(own);
        own.iter().map(|v| (v / mean - 1.0).powi(2)).sum::<f64>()
    };
    let n: usize = by_workload.values().map(Vec::len).sum();
    let df = n - by_workload.len();
    let squares: f64 = by_workload.values().map(around).sum();
    (df >= 1).then(|| Controls { n, variation: (squares / df as f64).sqrt() })
}

impl StudyTable {
    /// The same with figures as of the middle of the study; `noises` by response.
    pub fn steady(&self, noises: &[Option<Noise>]) -> Self {
        let mut steady = self.clone();
        for (run, before) in steady.runs.iter_mut().zip(&self.runs) {
            for (r, noise) in noises.iter().enumerate() {
                let Some(noise) = noise.as_ref().filter(|noise| noise.drift.is_some()) else { continue };
                let scale = &self.responses[r];
                let correct = |value: f64| Some(scale.unscaled(scale.scaled(value)? - noise.owed(before)));
                run.values[r] = run.values[r].and_then(correct);
                run.bounds[r] = run.bounds[r].and_then(correct);
            }
        }
        steady
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{RawRun, Response};

    fn table(control: impl Fn(u64) -> f64) -> StudyTable {
        let run = |i: u64| RawRun {
            levels: vec!["a".into()],
            values: vec![Some(control(i))],
            order: i as f64,
            role: if i.is_multiple_of(4) { RunRole::Control } else { RunRole::Point },
            ..RawRun::default()
        };
        let responses = vec![Response::parse("log(time_s)").unwrap()];
        let table = StudyTable::new("t", &["f".into()], responses, (0..48).map(run).collect());
        StudyTable { timed: true, ..table }
    }

    #[test]
    fn a_machine_that_becomes_slower_is_noticed_and_a_steady_one_is_not() {
        let wobble = |i: u64| 1.0 + 0.01 * ((i * 7 % 5) as f64 - 2.0);
        let slower = table(|i| wobble(i) * (1.0 + 0.01 * i as f64));
        let noise = Noise::new(&slower, 0, None).unwrap();
        let drift = noise.drift.unwrap();
        assert!(drift.drifted && (drift.change.value.exp_m1() - 0.44).abs() < 0.06, "{drift:?}");
        let steady = slower.steady(&[Some(noise)]);
        let values: Vec<f64> = steady.measured(0).iter().map(|(_, v)| v.exp()).collect();
        assert!(values.iter().all(|v| (v / values[0] - 1.0).abs() < 0.1), "{values:?}");
        let noise = Noise::new(&table(wobble), 0, None).unwrap();
        assert!(!noise.drift.unwrap().drifted && noise.controls.unwrap().variation < 0.02, "{noise:?}");
        assert_eq!((noise.controls.unwrap().n, noise.source), (12, NoiseSource::Repeats));
    }

    #[test]
    fn the_drift_is_the_line_of_least_squares() {
        // By hand: x = 0..4, y = 1 3 2 5 4: slope 0.8 per run, rss 3.6 with 3 degrees of freedom, sxx 10.
        let run = |(i, y): (usize, f64)| RawRun {
            levels: vec!["a".into()],
            values: vec![Some(y)],
            order: i as f64,
            ..RawRun::default()
        };
        let runs = [1.0, 3.0, 2.0, 5.0, 4.0].into_iter().enumerate().map(run).collect();
        let responses = vec![Response::parse("y").unwrap()];
        let table = StudyTable { timed: true, ..StudyTable::new("t", &["f".into()], responses, runs) };
        let noise = Noise::new(&table, 0, None).unwrap();
        let drift = noise.drift.unwrap();
        assert!((drift.change.value - 3.2).abs() < 1e-12 && (noise.deviation - 1.2f64.sqrt()).abs() < 1e-12);
        assert!((noise.df, drift.drifted) == (3.0, false));
        // The mean of all, made in the middle, owes the drift nothing; a single run at the end much.
        assert!((noise.of_mean(5.0, 0.0).0 - (1.2f64 / 5.0).sqrt()).abs() < 1e-12);
        assert!((noise.of_mean(1.0, 0.5).0 - (1.2f64 * (1.0 + 4.0 / 10.0)).sqrt()).abs() < 1e-12);
    }

    #[test]
    fn an_order_that_says_nothing_has_no_drift() {
        let untimed = StudyTable { timed: false, ..table(|i| 1.0 + 0.01 * i as f64) };
        assert!(Noise::new(&untimed, 0, None).unwrap().drift.is_none());
    }
}
