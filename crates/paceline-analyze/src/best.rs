//! The best configurations, which of them cannot be told apart, and the ones that no other beats in everything.

use std::collections::HashMap;

use paceline_statistics::mean;
use serde::Serialize;

use crate::anova::{Anova, Estimate};
use crate::distributions::{holm, t_two_sided};
use crate::table::StudyTable;

/// A configuration and what its runs measured.
#[derive(Clone, Debug, Serialize)]
pub struct Configuration {
    #[serde(skip)]
    pub levels: Vec<usize>,
    pub configuration: String,
    pub runs: Vec<String>,
    /// Mean of the response's scale over its runs, with an interval where the noise is known.
    pub mean: Estimate,
    /// The same as it was measured: a geometric mean for logarithms.
    pub value: f64,
    /// Whether its difference from the best could be noise; absent where the noise is not known.
    pub may_be_best: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoiseSource {
    /// Runs of one configuration differ.
    Repeats,
    /// What the model of effects leaves.
    Residuals,
}

/// Configurations from the best on.
#[derive(Clone, Debug, Serialize)]
pub struct Ranking {
    /// All of them.
    pub configurations: Vec<Configuration>,
    /// Deviation of one run on the response's scale, and its degrees of freedom.
    pub noise: Option<(f64, f64)>,
    /// Where that comes from.
    pub noise_from: Option<NoiseSource>,
}

/// Deviation of repeats around the means of their configurations, with degrees of freedom; none without repeats.
pub fn repeats_noise(table: &StudyTable, response: usize) -> Option<(f64, f64)> {
    let (mut sum, mut df) = (0.0, 0);
    for values in table.cells(response).into_values() {
        let mean = mean(&values);
        sum += values.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
        df += values.len() - 1;
    }
    (df > 0).then(|| ((sum / df as f64).sqrt(), df as f64))
}

impl Ranking {
    /// Of a response.
    pub fn new(table: &StudyTable, response: usize, anova: Option<&Anova>) -> Self {
        let scale = &table.responses[response];
        // With two degrees of freedom or fewer, repeats say less about the noise than the model does.
        let repeats = repeats_noise(table, response).filter(|(_, df)| *df >= 3.0);
        let (noise, noise_from) = match (repeats, anova.and_then(Anova::noise)) {
            (Some(noise), _) => (Some(noise), Some(NoiseSource::Repeats)),
            (None, Some(noise)) => (Some(noise), Some(NoiseSource::Residuals)),
            (None, None) => (None, None),
        };
        let mut runs: HashMap<&[usize], Vec<String>> = HashMap::new();
        for (run, _) in table.measured(response) {
            runs.entry(&run.levels).or_default().push(run.id.clone());
        }
        let mut configurations: Vec<Configuration> = table
            .cells(response)
            .into_iter()
            .map(|(levels, values)| {
                let (n, mean) = (values.len() as f64, mean(&values));
                Configuration {
                    configuration: table.configuration(&levels),
                    runs: runs.remove(levels.as_slice()).unwrap_or_default(),
                    mean: Estimate::new(mean, noise.map(|(s, df)| (s / n.sqrt(), df)), 0.05),
                    value: scale.unscaled(mean),
                    may_be_best: None,
                    levels,
                }
            })
            .collect();
        configurations.sort_by(|a, b| {
            let order = a.mean.value.total_cmp(&b.mean.value);
            if scale.better(0.0, 1.0) { order } else { order.reverse() }
        });
        if let (Some((s, df)), Some(best)) = (noise, configurations.first().cloned()) {
            let chance = |other: &Configuration| {
                let error = s * (1.0 / best.runs.len() as f64 + 1.0 / other.runs.len() as f64).sqrt();
                t_two_sided((other.mean.value - best.mean.value) / error, df)
            };
            let chances: Vec<f64> = configurations[1..].iter().map(chance).collect();
            configurations[0].may_be_best = Some(true);
            for (configuration, p) in configurations[1..].iter_mut().zip(holm(&chances)) {
                configuration.may_be_best = Some(p > 0.05);
            }
        }
        Self { configurations, noise, noise_from }
    }
}

/// A configuration that no other beats in every response.
#[derive(Clone, Debug, Serialize)]
pub struct FrontPoint {
    #[serde(skip)]
    pub levels: Vec<usize>,
    pub configuration: String,
    /// Means as measured, in the order of the responses.
    pub values: Vec<f64>,
}

/// Means of every response by configuration, as measured; configurations without one of them are left out.
pub fn means(table: &StudyTable) -> Vec<(Vec<usize>, Vec<f64>)> {
    let by_response: Vec<_> = (0..table.responses.len()).map(|r| table.cells(r)).collect();
    let mean = |r: usize, levels: &Vec<usize>| {
        let values = by_response[r].get(levels)?;
        Some(table.responses[r].unscaled(mean(values)))
    };
    let all = |levels: &Vec<usize>| {
        (0..table.responses.len()).map(|r| mean(r, levels)).collect::<Option<Vec<f64>>>()
    };
    by_response[0].keys().filter_map(|levels| Some((levels.clone(), all(levels)?))).collect()
}

/// The configurations that no other beats in everything, by the first response.
pub fn front(table: &StudyTable) -> Vec<FrontPoint> {
    let means = means(table);
    let beats = |a: &[f64], b: &[f64]| {
        let sides = || table.responses.iter().zip(a.iter().zip(b));
        sides().all(|(r, (a, b))| !r.better(*b, *a)) && sides().any(|(r, (a, b))| r.better(*a, *b))
    };
    let mut front: Vec<FrontPoint> = means
        .iter()
        .filter(|(_, values)| !means.iter().any(|(_, other)| beats(other, values)))
        .map(|(levels, values)| FrontPoint {
            levels: levels.clone(),
            configuration: table.configuration(levels),
            values: values.clone(),
        })
        .collect();
    front.sort_by(|a, b| a.values[0].total_cmp(&b.values[0]));
    front
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{RawRun, Response};
    use paceline_plan::Goal;

    fn table(rows: &[(&str, f64, f64)]) -> StudyTable {
        let run = |(level, time, accuracy): &(&str, f64, f64)| RawRun {
            id: format!("r{time}"),
            levels: vec![level.to_string()],
            values: vec![Some(*time), Some(*accuracy)],
            ..RawRun::default()
        };
        let responses = vec![
            Response::parse("time_s").unwrap(),
            Response::parse("accuracy").unwrap().wanted(Goal::Maximize),
        ];
        StudyTable::new("t", &["f".into()], responses, rows.iter().map(run).collect())
    }

    #[test]
    fn the_front_has_what_nothing_beats_in_everything() {
        let table =
            table(&[("a", 1.0, 0.8), ("b", 2.0, 0.9), ("c", 3.0, 0.85), ("d", 2.0, 0.9), ("e", 0.5, 0.1)]);
        let names: Vec<String> = front(&table).into_iter().map(|p| p.configuration).collect();
        assert_eq!(names, ["f e", "f a", "f b", "f d"]);
    }

    #[test]
    fn what_differs_by_less_than_the_noise_may_be_best_too() {
        let rows = [
            ("a", 10.0, 0.0),
            ("a", 10.2, 0.0),
            ("a", 9.8, 0.0),
            ("b", 10.1, 0.0),
            ("b", 10.3, 0.0),
            ("b", 9.9, 0.0),
            ("c", 15.0, 0.0),
            ("c", 15.2, 0.0),
        ];
        let ranking = Ranking::new(&table(&rows), 0, None);
        let said: Vec<_> =
            ranking.configurations.iter().map(|c| (c.configuration.as_str(), c.may_be_best)).collect();
        assert_eq!(said, [("f a", Some(true)), ("f b", Some(true)), ("f c", Some(false))]);
        assert_eq!(ranking.noise_from, Some(NoiseSource::Repeats));
        assert_eq!(ranking.configurations[0].runs.len(), 3);
        let worst = Ranking::new(&table(&rows), 1, None);
        assert_eq!(worst.configurations.len(), 3, "more is better for the second response");
    }

    #[test]
    fn without_repeats_and_model_nothing_is_said_about_ties() {
        let ranking = Ranking::new(&table(&[("a", 1.0, 0.0), ("b", 2.0, 0.0)]), 0, None);
        assert!(ranking.configurations.iter().all(|c| c.may_be_best.is_none() && c.mean.low.is_none()));
    }
}
