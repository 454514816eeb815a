//! How noisy runs are, and whether the machine drifted meanwhile: from repeats and from controls.

use paceline_statistics::{mean, median};
use serde::Serialize;

use crate::best::repeats_noise;
use crate::distributions::normal_quantile;
use crate::ranks::{kendall, ties};
use crate::table::{Run, StudyTable};

/// Noise and drift of a response.
#[derive(Clone, Debug, Serialize)]
pub struct Noise {
    /// Deviation of runs of one configuration on the response's scale, and its degrees of freedom.
    pub repeats: Option<(f64, f64)>,
    /// What the controls say.
    pub controls: Option<Controls>,
}

/// Runs of one configuration over the time of a study.
#[derive(Clone, Debug, Serialize)]
pub struct Controls {
    pub n: usize,
    /// Their deviation over their mean, as measured.
    pub variation: f64,
    /// Change on the response's scale per run of the study (Theil and Sen's slope).
    pub slope: f64,
    /// Its interval (95%).
    pub slope_interval: Option<(f64, f64)>,
    /// Chance of such an order by noise alone (Mann and Kendall's test).
    pub p: Option<f64>,
    /// The last control over the first along the slope: relative for logarithms, else in the response's unit.
    pub over_study: f64,
}

/// Theil and Sen's slope with its interval.
pub fn theil_sen(x: &[f64], y: &[f64]) -> Option<(f64, Option<(f64, f64)>)> {
    let mut slopes = Vec::new();
    for i in 0..x.len() {
        for j in 0..i {
            if x[i] != x[j] {
                slopes.push((y[i] - y[j]) / (x[i] - x[j]));
            }
        }
    }
    if slopes.is_empty() {
        return None;
    }
    slopes.sort_by(f64::total_cmp);
    let n = x.len() as f64;
    let groups =
        |values: &[f64]| ties(values).into_iter().map(|k| k * (k - 1.0) * (2.0 * k + 5.0)).sum::<f64>();
    let variance = (n * (n - 1.0) * (2.0 * n + 5.0) - groups(x) - groups(y)) / 18.0;
    let half = normal_quantile(0.975) * variance.max(0.0).sqrt();
    let count = slopes.len() as f64;
    // Places of the interval's ends among the sorted slopes.
    let upper = ((count + half) / 2.0).round_ties_even().min(count - 1.0);
    let lower = ((count - half) / 2.0).round_ties_even() - 1.0;
    let interval = (lower >= 0.0).then(|| (slopes[lower as usize], slopes[upper as usize]));
    Some((median(&slopes), interval))
}

impl Noise {
    /// Of a response.
    pub fn new(table: &StudyTable, response: usize) -> Self {
        let scale = &table.responses[response];
        let value = |run: &Run| Some((run.order, scale.scaled(run.values[response]?)?));
        let mut controls: Vec<(f64, f64)> =
            table.runs.iter().filter(|run| run.control).filter_map(value).collect();
        controls.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (x, y): (Vec<f64>, Vec<f64>) = controls.into_iter().unzip();
        let said = || {
            let (slope, slope_interval) = theil_sen(&x, &y)?;
            let raw: Vec<f64> = y.iter().map(|v| scale.unscaled(*v)).collect();
            let mean = mean(&raw);
            let variance = raw.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (raw.len() as f64 - 1.0);
            let span = slope * (x[x.len() - 1] - x[0]);
            Some(Controls {
                n: raw.len(),
                variation: variance.sqrt() / mean.abs(),
                slope,
                slope_interval,
                p: kendall(&x, &y).map(|c| c.p),
                over_study: if scale.log { span.exp_m1() } else { span },
            })
        };
        let controls = if x.len() >= 3 { said() } else { None };
        Self { repeats: repeats_noise(table, response), controls }
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
            control: i.is_multiple_of(4),
            ..RawRun::default()
        };
        let responses = vec![Response::parse("log(time_s)").unwrap()];
        StudyTable::new("t", &["f".into()], responses, (0..48).map(run).collect())
    }

    #[test]
    fn a_machine_that_becomes_slower_is_noticed_and_a_steady_one_is_not() {
        let wobble = |i: u64| 1.0 + 0.01 * ((i * 7 % 5) as f64 - 2.0);
        let drifting = Noise::new(&table(|i| wobble(i) * (1.0 + 0.01 * i as f64)), 0).controls.unwrap();
        assert!(drifting.p.unwrap() < 0.001 && (drifting.over_study - 0.44).abs() < 0.06, "{drifting:?}");
        let steady = Noise::new(&table(wobble), 0).controls.unwrap();
        assert!(steady.p.unwrap() > 0.05 && steady.variation < 0.02, "{steady:?}");
        assert_eq!(steady.n, 12);
    }
}
