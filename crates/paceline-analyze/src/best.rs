//! The best configurations, which of them cannot be told apart, and the ones that no other beats in everything.

use std::collections::{BTreeMap, HashSet};

use paceline_statistics::mean;
use serde::Serialize;

use crate::anova::Estimate;
use crate::distributions::{holm, t_two_sided};
use crate::findings::LEVEL;
use crate::noise::Noise;
use crate::table::{Response, Run, StudyTable};

/// A configuration and what its runs measured.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct Configuration {
    #[serde(skip)]
    pub levels: Vec<usize>,
    pub configuration: String,
    pub runs: Vec<String>,
    /// Runs of it that did not reach what was to be measured: they count with what it takes at least, and so does
    /// the mean.
    pub missed: usize,
    /// Mean of the response's scale over its runs, with an interval where the noise is known.
    pub mean: Estimate,
    /// The same as it was measured: a geometric mean for logarithms.
    pub value: f64,
    /// Whether its difference from the best could be noise; absent where the noise is not known.
    pub may_be_best: Option<bool>,
    /// Whether it breaks a condition.
    #[serde(skip)]
    pub(crate) forbidden: bool,
    /// When its runs were made on average.
    #[serde(skip)]
    time: f64,
    /// So many runs of one configuration would tell its mean as well: all of them, unless it is a mean over workloads
    /// that have not equally many.
    #[serde(skip)]
    weight: f64,
}

impl Configuration {
    /// Whether a run of it reached what was to be measured.
    pub(crate) fn reached(&self) -> bool {
        self.missed < self.runs.len()
    }

    /// How well its mean is known: by how many runs, and when these were made on average.
    pub(crate) fn known_by(&self) -> (f64, f64) {
        (self.weight, self.time)
    }

    /// How this one differs from another, on the response's scale, and the chance of that by noise alone.
    pub fn against(&self, other: &Self, noise: &Noise, outside: f64) -> (Estimate, f64) {
        let difference = self.mean.value - other.mean.value;
        let (deviation, df) = noise.of_difference(self.known_by(), other.known_by());
        let chance = t_two_sided(difference / deviation, df);
        (Estimate::new(difference, Some((deviation, df)), outside), chance)
    }
}

/// Configurations from the best on.
#[derive(Clone, Debug, Serialize)]
pub struct Ranking {
    /// All of them that break no condition and were reached at least once. The first one's interval allows for its
    /// having been chosen among those that may be the best.
    pub configurations: Vec<Configuration>,
    /// How many others there are.
    pub left_out: usize,
}

/// The mean of some runs, figures as of the middle of the study.
pub fn configuration(
    table: &StudyTable,
    response: usize,
    runs: &[(&Run, f64)],
    missed: usize,
    noise: Option<&Noise>,
) -> Configuration {
    let values: Vec<f64> = runs.iter().map(|(_, value)| *value).collect();
    let of: Vec<&Run> = runs.iter().map(|(run, _)| *run).collect();
    let (mean, time) = (mean(&values), noise.map_or(0.0, |noise| noise.time(&of)));
    // A mean of bounds is a bound, not an estimate.
    let error = noise.filter(|_| missed == 0).map(|noise| noise.of_mean(values.len() as f64, time));
    Configuration {
        configuration: table.others(&of[0].levels, table.several_workloads().unwrap_or(usize::MAX)),
        runs: of.iter().map(|run| run.id.clone()).collect(),
        missed,
        mean: Estimate::new(mean, error, LEVEL),
        value: table.responses[response].unscaled(mean),
        may_be_best: None,
        levels: of[0].levels.clone(),
        forbidden: of.iter().any(|run| run.forbidden),
        time,
        weight: values.len() as f64,
    }
}

/// The configurations of some runs, and what is said of them; those that no run reached are bounds alone.
pub fn configurations(
    table: &StudyTable,
    response: usize,
    noise: Option<&Noise>,
    which: &dyn Fn(&Run) -> bool,
) -> Vec<Configuration> {
    // Runs with their values, and how many of them are bounds.
    type Cell<'a> = (Vec<(&'a Run, f64)>, usize);
    let mut cells: BTreeMap<&[usize], Cell<'_>> = BTreeMap::new();
    for (run, value) in table.measured(response).into_iter().filter(|(run, _)| which(run)) {
        cells.entry(&run.levels).or_default().0.push((run, value));
    }
    for (run, bound) in table.missed(response).into_iter().filter(|(run, _)| which(run)) {
        let (runs, missed) = cells.entry(&run.levels).or_default();
        runs.push((run, bound));
        *missed += 1;
    }
    let of = |(runs, missed): (Vec<(&Run, f64)>, usize)| configuration(table, response, &runs, missed, noise);
    cells.into_values().map(of).collect()
}

/// Those that break no condition and were reached at least once, and how many others there are.
fn reached(mut all: Vec<Configuration>) -> (Vec<Configuration>, usize) {
    let count = all.len();
    all.retain(|c| c.reached() && !c.forbidden);
    let left_out = count - all.len();
    (all, left_out)
}

impl Ranking {
    /// Of a response, figures as of the middle of the study.
    pub fn new(table: &StudyTable, response: usize, noise: Option<&Noise>) -> Self {
        let (configurations, left_out) = reached(configurations(table, response, noise, &|_| true));
        Self::of(&table.responses[response], configurations, left_out, noise)
    }

    /// By workload, and one for all of them: of configurations that each workload has, by their means over workloads.
    pub fn by_workload(
        table: &StudyTable,
        response: usize,
        noise: Option<&Noise>,
        workload: usize,
    ) -> (Vec<Self>, Self) {
        let levels = table.factors[workload].levels.len();
        let own = |w: usize| {
            let all = configurations(table, response, noise, &|run: &Run| run.levels[workload] == w);
            let (reached, left_out) = reached(all);
            Self::of(&table.responses[response], reached, left_out, noise)
        };
        let each: Vec<Self> = (0..levels).map(own).collect();
        let mut cells: BTreeMap<Vec<usize>, Vec<&Configuration>> = BTreeMap::new();
        for configuration in each.iter().flat_map(|ranking| &ranking.configurations) {
            let mut rest = configuration.levels.clone();
            rest[workload] = 0;
            cells.entry(rest).or_default().push(configuration);
        }
        let all = cells.len();
        cells.retain(|_, own| own.len() == levels);
        let left_out = all - cells.len();
        let count = levels as f64;
        let joined = |(rest, own): (Vec<usize>, Vec<&Configuration>)| {
            let of = |figure: fn(&Configuration) -> f64| own.iter().map(|c| figure(c)).sum::<f64>() / count;
            let (mean, time, missed) =
                (of(|c| c.mean.value), of(|c| c.time), own.iter().map(|c| c.missed).sum());
            let weight = count / of(|c| 1.0 / c.weight);
            let error = noise.filter(|_| missed == 0).map(|noise| noise.of_mean(weight, time));
            Configuration {
                levels: rest,
                configuration: own[0].configuration.clone(),
                runs: own.iter().flat_map(|c| c.runs.clone()).collect(),
                missed,
                mean: Estimate::new(mean, error, LEVEL),
                value: table.responses[response].unscaled(mean),
                may_be_best: None,
                forbidden: false,
                time,
                weight,
            }
        };
        let joined = cells.into_iter().map(joined).collect();
        let for_all = Self::of(&table.responses[response], joined, left_out, noise);
        (each, for_all)
    }

    fn of(
        scale: &Response,
        mut configurations: Vec<Configuration>,
        left_out: usize,
        noise: Option<&Noise>,
    ) -> Self {
        configurations.sort_by(|a, b| {
            let order = a.mean.value.total_cmp(&b.mean.value);
            if scale.better(0.0, 1.0) { order } else { order.reverse() }
        });
        if let (Some(noise), Some(best)) = (noise, configurations.first().cloned()) {
            let chance = |other: &Configuration| other.against(&best, noise, LEVEL).1;
            let chances: Vec<f64> = configurations[1..].iter().map(chance).collect();
            configurations[0].may_be_best = Some(true);
            for (configuration, p) in configurations[1..].iter_mut().zip(holm(&chances)) {
                configuration.may_be_best = Some(p > LEVEL);
            }
            let chosen_of = configurations.iter().filter(|c| c.may_be_best == Some(true)).count() as f64;
            if best.missed == 0 {
                let error = noise.of_mean(best.weight, best.time);
                configurations[0].mean = Estimate::new(best.mean.value, Some(error), LEVEL / chosen_of);
            }
        }
        Self { configurations, left_out }
    }

    /// Configurations that may be as good as the best, itself not among them; none where the noise is not known.
    pub fn as_good(&self) -> Option<Vec<&Configuration>> {
        self.configurations.first()?.may_be_best?;
        Some(self.configurations[1..].iter().filter(|c| c.may_be_best == Some(true)).collect())
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

/// The configurations that no other (of the same workload) beats in everything, the best by the first response first.
pub fn front(table: &StudyTable) -> Vec<FrontPoint> {
    let mut means = means(table);
    let forbidden: HashSet<&Vec<usize>> =
        table.runs.iter().filter(|run| run.forbidden).map(|run| &run.levels).collect();
    means.retain(|(levels, _)| !forbidden.contains(levels));
    let beats = |a: &[f64], b: &[f64]| {
        let sides = || table.responses.iter().zip(a.iter().zip(b));
        sides().all(|(r, (a, b))| !r.better(*b, *a)) && sides().any(|(r, (a, b))| r.better(*a, *b))
    };
    let workload = |levels: &[usize]| table.several_workloads().map(|f| levels[f]);
    let rivals = |levels: &[usize]| {
        let own = workload(levels);
        means.iter().filter(move |(other, _)| workload(other) == own)
    };
    let mut front: Vec<FrontPoint> = means
        .iter()
        .filter(|(levels, values)| !rivals(levels).any(|(_, other)| beats(other, values)))
        .map(|(levels, values)| FrontPoint {
            levels: levels.clone(),
            configuration: table.configuration(levels),
            values: values.clone(),
        })
        .collect();
    front.sort_by(|a, b| {
        let order = a.values[0].total_cmp(&b.values[0]);
        let order = if table.responses[0].better(0.0, 1.0) { order } else { order.reverse() };
        workload(&a.levels).cmp(&workload(&b.levels)).then(order)
    });
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
        let (table, noise) = (table(&rows), Noise::new(&table(&rows), 0, None));
        let ranking = Ranking::new(&table, 0, noise.as_ref());
        let said: Vec<_> =
            ranking.configurations.iter().map(|c| (c.configuration.as_str(), c.may_be_best)).collect();
        assert_eq!(said, [("f a", Some(true)), ("f b", Some(true)), ("f c", Some(false))]);
        assert_eq!(ranking.as_good().unwrap().len(), 1);
        assert_eq!(ranking.configurations[0].runs.len(), 3);
        let worst = Ranking::new(&table, 1, None);
        assert_eq!(worst.configurations.len(), 3, "more is better for the second response");
    }

    #[test]
    fn a_run_that_missed_counts_with_what_it_takes_at_least_and_what_is_forbidden_is_not_best() {
        let run = |level: &str, value: Option<f64>, bound: Option<f64>, forbidden| RawRun {
            levels: vec![level.into()],
            values: vec![value],
            bounds: vec![bound],
            forbidden,
            ..RawRun::default()
        };
        let runs = vec![
            run("a", Some(1.0), None, false),
            run("a", None, Some(9.0), false),
            run("b", Some(3.0), None, false),
            run("c", Some(0.5), None, true),
            run("d", None, Some(0.1), false),
        ];
        let table = StudyTable::new("t", &["f".into()], vec![Response::parse("time_s").unwrap()], runs);
        let ranking = Ranking::new(&table, 0, None);
        let told: Vec<_> =
            ranking.configurations.iter().map(|c| (c.configuration.as_str(), c.value, c.missed)).collect();
        assert_eq!(told, [("f b", 3.0, 0), ("f a", 5.0, 1)]);
        assert_eq!(ranking.left_out, 2, "one breaks a condition, one never reached it");
    }

    #[test]
    fn without_repeats_and_model_nothing_is_said_about_ties() {
        let ranking = Ranking::new(&table(&[("a", 1.0, 0.0), ("b", 2.0, 0.0)]), 0, None);
        assert!(ranking.configurations.iter().all(|c| c.may_be_best.is_none() && c.mean.low.is_none()));
    }
}
