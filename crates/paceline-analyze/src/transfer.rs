//! Does the answer carry over? How configurations rank on one workload and on another, and what it costs to use one
//! workload's best configuration on another.
//!
//! The interval of a loss knows of both choices. Who may be the best of the first workload is told by comparing all with
//! the one that seems best; on the second, each of those is compared with every configuration at once (Hsu's multiple
//! comparisons with the best). The bounds of these comparisons come from noise that is drawn again (a parametric
//! bootstrap), so that they hold whatever the numbers of runs and the drift are.

use std::collections::BTreeMap;

use paceline_random::{Purpose, Stream};
use paceline_statistics::{mean, quantile, sorted};
use serde::Serialize;

use crate::best::{Configuration, Ranking, configurations};
use crate::findings::LEVEL;
use crate::noise::Noise;
use crate::ranks::{Correlation, kendall, spearman, spearman_interval};
use crate::table::{Response, Run, StudyTable, WorkloadTraits};

/// Draws behind the bounds of comparisons; fewer of very many configurations.
const DRAWS: u64 = 500;
const FEWEST_DRAWS: u64 = 100;
const MOST_ERRORS: u64 = 1_000_000;

/// Two workloads beside each other.
#[derive(Clone, Debug, Serialize)]
pub struct WorkloadAgreement {
    pub a: String,
    pub b: String,
    /// Configurations that were run on both.
    pub n: usize,
    pub spearman: Option<Correlation>,
    /// Its interval (95%).
    pub spearman_interval: Option<(f64, f64)>,
    pub kendall: Option<Correlation>,
}

/// The best configuration of one workload, used on another.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct TransferLoss {
    /// Whose best configuration it is.
    pub from: String,
    pub to: String,
    pub configuration: String,
    /// What it reaches there, as measured.
    pub value: f64,
    /// What the best configuration there reaches, of those that were run on both.
    pub best: f64,
    /// What is lost: relative to the best there.
    pub loss: f64,
    /// The interval that the loss of the first one's true best lies in with a confidence of 95%; absent where the noise
    /// is not known.
    pub interval: Option<(f64, f64)>,
    /// Runs of it that missed there what was to be measured: they count with what it takes at least, and so does the loss.
    pub missed: usize,
    /// Configurations that were run on both.
    pub n: usize,
}

/// What workloads of a group have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SharedTrait {
    /// The same model on different data.
    Model,
    /// The same data with different models.
    Data,
    /// Neither.
    Neither,
}

/// How alike configurations rank in the pairs of workloads that have something in common.
#[derive(Clone, Debug, Serialize)]
pub struct GroupAgreement {
    /// What they have in common.
    pub shared: SharedTrait,
    /// Pairs of workloads.
    pub pairs: usize,
    /// Their mean of Spearman's correlation.
    pub spearman: f64,
    /// Means of the ends of their intervals: pairs share workloads and configurations, so many pairs do not tell more
    /// than one.
    pub interval: Option<(f64, f64)>,
}

/// How workloads compare.
#[derive(Clone, Debug, Serialize)]
pub struct WorkloadTransfer {
    /// The factor whose levels are workloads.
    pub workload: String,
    /// Each pair.
    pub agreements: Vec<WorkloadAgreement>,
    /// Each pair, both ways.
    pub losses: Vec<TransferLoss>,
    /// One configuration for all: what it loses on each workload; none where no configuration was run on all.
    pub for_all: Vec<TransferLoss>,
    /// Pairs that share a model, data, or neither; none where nobody says what workloads are.
    pub groups: Vec<GroupAgreement>,
    /// What is known about the workloads.
    pub traits: Vec<WorkloadTraits>,
}

/// Configurations of one workload that are compared with each other.
struct Rivals<'a> {
    table: &'a StudyTable,
    scale: &'a Response,
    workload: usize,
    noise: Option<&'a Noise>,
    all: Vec<&'a Configuration>,
    /// Noise, drawn again: bounds of comparisons come from it.
    stream: Stream,
}

impl Rivals<'_> {
    /// How much worse one is than another, on the response's scale.
    fn worse(&self, one: usize, other: usize) -> f64 {
        let apart = self.all[one].mean.value - self.all[other].mean.value;
        if self.scale.better(0.0, 1.0) { apart } else { -apart }
    }

    /// The best of those that break no condition and were reached.
    fn best(&self) -> Option<usize> {
        let able = (0..self.all.len()).filter(|i| self.all[*i].reached() && !self.all[*i].forbidden);
        able.reduce(|i, j| if self.worse(i, j) > 0.0 { j } else { i })
    }

    /// So many standard errors hold for the comparisons of one with all others together.
    fn bound(&self, noise: &Noise, one: usize, both_sides: bool) -> f64 {
        let means: Vec<(f64, f64)> = self.all.iter().map(|c| c.known_by()).collect();
        let errors: Vec<f64> = means.iter().map(|other| noise.of_difference(means[one], *other).0).collect();
        let greatest = |draw: u64| {
            let drawn = noise.drawn(&means, &self.stream.fork(draw));
            let others = (0..means.len()).filter(|i| *i != one);
            let sizes = others.map(|i| (drawn[one] - drawn[i]) / errors[i]);
            sizes.map(|t| if both_sides { t.abs() } else { t }).fold(0.0, f64::max)
        };
        let draws = (MOST_ERRORS / means.len().max(1) as u64).clamp(FEWEST_DRAWS, DRAWS);
        quantile(&sorted(&(0..draws).map(greatest).collect::<Vec<_>>()), 1.0 - LEVEL)
    }

    /// Those that may be the best.
    fn may_be_best(&self, noise: &Noise) -> Vec<usize> {
        let Some(best) = self.best() else { return Vec::new() };
        let bound = self.bound(noise, best, false);
        let near = |i: &usize| {
            let error = noise.of_difference(self.all[*i].known_by(), self.all[best].known_by()).0;
            self.all[*i].reached() && !self.all[*i].forbidden && self.worse(*i, best) <= bound * error
        };
        (0..self.all.len()).filter(near).collect()
    }

    /// How much worse the worst and the best of some may be than the best of all.
    fn interval(&self, noise: &Noise, some: &[usize]) -> Option<(f64, f64)> {
        let bound = self.bound(noise, *some.first()?, true);
        let ends = some.iter().map(|one| {
            let able = |other: &usize| self.all[*other].reached() && !self.all[*other].forbidden;
            let rivals = (0..self.all.len()).filter(|other| other != one).filter(able);
            rivals.fold((0.0f64, 0.0f64), |(low, high), other| {
                let error = noise.of_difference(self.all[*one].known_by(), self.all[other].known_by()).0;
                let apart = self.worse(*one, other);
                (low.max(apart - bound * error), high.max(apart + bound * error))
            })
        });
        ends.reduce(|(low, high), (l, h)| (low.min(l), high.max(h)))
    }

    /// What it costs to use one of them, which stands for those that may as well have been chosen.
    fn loss(
        &self,
        chosen: usize,
        candidates: Option<&[usize]>,
        (from, to): (&str, &str),
    ) -> Option<TransferLoss> {
        let ideal = self.best()?;
        let (one, best) = (self.all[chosen], self.all[ideal]);
        // Worse by so much, as a part of the best.
        let part = |worse: f64| match (self.scale.log, self.scale.better(0.0, 1.0)) {
            (true, true) => worse.exp_m1(),
            (true, false) => -(-worse).exp_m1(),
            (false, _) => worse / best.value.abs(),
        };
        let exact = |some: &&[usize]| some.iter().all(|i| self.all[*i].missed == 0);
        let known = self.noise.zip(candidates.filter(exact));
        let interval = known.and_then(|(noise, some)| self.interval(noise, some));
        Some(TransferLoss {
            from: from.into(),
            to: to.into(),
            configuration: self.table.others(&one.levels, self.workload),
            value: one.value,
            best: best.value,
            loss: part(self.worse(chosen, ideal)) + 0.0,
            interval: interval.map(|(low, high)| (part(low), part(high))),
            missed: one.missed,
            n: self.all.len(),
        })
    }
}

impl WorkloadTransfer {
    /// Of a response, by the factor whose levels are workloads (figures as of the middle of the study); none if it has
    /// one level only.
    pub fn new(
        table: &StudyTable,
        response: usize,
        workload: usize,
        noise: Option<&Noise>,
        seed: u64,
    ) -> Option<Self> {
        let factor = &table.factors[workload];
        if factor.levels.len() < 2 {
            return None;
        }
        let name = |i: usize| factor.levels[i].text.as_str();
        let (_, for_all) = Ranking::by_workload(table, response, noise, workload);
        let on = |w: usize| configurations(table, response, noise, &|run: &Run| run.levels[workload] == w);
        let each: Vec<Vec<Configuration>> = (0..factor.levels.len()).map(on).collect();
        let rivals = |all: Vec<_>| Rivals {
            table,
            scale: &table.responses[response],
            workload,
            noise,
            all,
            stream: Stream::new(seed, Purpose::Analysis),
        };
        let key = |c: &Configuration| {
            let mut rest = c.levels.clone();
            rest[workload] = 0;
            rest
        };
        let by_key = |all: &Vec<Configuration>| -> BTreeMap<Vec<usize>, usize> {
            all.iter().enumerate().map(|(i, c)| (key(c), i)).collect()
        };
        let places: Vec<BTreeMap<Vec<usize>, usize>> = each.iter().map(by_key).collect();
        let mut losses = Vec::new();
        for (a, b) in (0..each.len()).flat_map(|a| (0..each.len()).map(move |b| (a, b))) {
            let both = places[a].iter().filter_map(|(rest, on_a)| Some((*on_a, *places[b].get(rest)?)));
            let (on_a, on_b): (Vec<_>, Vec<_>) = both.map(|(i, j)| (&each[a][i], &each[b][j])).unzip();
            let (on_a, on_b) = (rivals(on_a), rivals(on_b));
            let Some(chosen) = on_a.best().filter(|_| a != b) else { continue };
            let candidates = noise.map(|noise| on_a.may_be_best(noise));
            losses.extend(on_b.loss(chosen, candidates.as_deref(), (name(a), name(b))));
        }
        let compromise: Vec<Vec<usize>> = {
            let as_good = for_all.as_good().unwrap_or_default();
            for_all.configurations.first().into_iter().chain(as_good).map(key).collect()
        };
        let on_each = |w: usize| {
            let on_w = rivals(each[w].iter().collect());
            let some: Vec<usize> = compromise.iter().filter_map(|key| places[w].get(key).copied()).collect();
            on_w.loss(*some.first()?, noise.map(|_| &some[..]), (FOR_ALL, name(w)))
        };
        let for_all = (0..each.len()).filter_map(on_each).collect();
        let agreements = agreements(table, response, workload);
        Some(Self {
            workload: factor.name.clone(),
            groups: groups(table, &agreements),
            agreements,
            losses,
            for_all,
            traits: table.workloads.clone(),
        })
    }
}

/// Whose best configuration the one for all is.
const FOR_ALL: &str = "all together";

/// How configurations rank on each pair of workloads, by what was measured.
fn agreements(table: &StudyTable, response: usize, workload: usize) -> Vec<WorkloadAgreement> {
    let levels = &table.factors[workload].levels;
    let mut by_rest: BTreeMap<Vec<usize>, Vec<Option<f64>>> = BTreeMap::new();
    for (mut rest, values) in table.cells(response) {
        let own = std::mem::take(&mut rest[workload]);
        by_rest.entry(rest).or_insert_with(|| vec![None; levels.len()])[own] = Some(mean(&values));
    }
    let pairs = (0..levels.len()).flat_map(|a| (a + 1..levels.len()).map(move |b| (a, b)));
    let agreement = |(a, b): (usize, usize)| {
        let (on_a, on_b): (Vec<f64>, Vec<f64>) =
            by_rest.values().filter_map(|row| Some((row[a]?, row[b]?))).unzip();
        let (n, spearman) = (on_a.len(), spearman(&on_a, &on_b));
        (n > 0).then(|| WorkloadAgreement {
            a: levels[a].text.clone(),
            b: levels[b].text.clone(),
            n,
            spearman,
            spearman_interval: spearman.and_then(|c| spearman_interval(c.value, n)),
            kendall: kendall(&on_a, &on_b),
        })
    };
    pairs.filter_map(agreement).collect()
}

/// Means over pairs of workloads that have something in common.
fn groups(table: &StudyTable, agreements: &[WorkloadAgreement]) -> Vec<GroupAgreement> {
    let shared = |pair: &WorkloadAgreement| {
        let (a, b) = (table.traits(&pair.a)?, table.traits(&pair.b)?);
        match (a.model.as_ref()? == b.model.as_ref()?, a.data.as_ref()? == b.data.as_ref()?) {
            (true, false) => Some(SharedTrait::Model),
            (false, true) => Some(SharedTrait::Data),
            (false, false) => Some(SharedTrait::Neither),
            // They differ in something else.
            (true, true) => None,
        }
    };
    let group = |of: SharedTrait| {
        let own = agreements.iter().filter(|pair| shared(pair) == Some(of));
        let own: Vec<(f64, Option<(f64, f64)>)> =
            own.filter_map(|pair| Some((pair.spearman?.value, pair.spearman_interval))).collect();
        let values: Vec<f64> = own.iter().map(|(value, _)| *value).collect();
        let ends: Option<Vec<(f64, f64)>> = own.iter().map(|(_, ends)| *ends).collect();
        let interval = ends.map(|ends| {
            let (low, high): (Vec<f64>, Vec<f64>) = ends.into_iter().unzip();
            (mean(&low), mean(&high))
        });
        let pairs = own.len();
        (pairs > 0).then(|| GroupAgreement { shared: of, pairs, spearman: mean(&values), interval })
    };
    [SharedTrait::Model, SharedTrait::Data, SharedTrait::Neither].into_iter().filter_map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{RawRun, Response};

    #[test]
    fn the_loss_is_what_a_borrowed_configuration_costs() {
        // On `mlp` one server is best, on `lenet` four are; one server costs lenet 50%.
        let rows = [
            ("mlp", "1", 1.0),
            ("mlp", "4", 2.0),
            ("lenet", "1", 6.0),
            ("lenet", "4", 4.0),
            ("lenet", "8", 3.0),
        ];
        let runs = rows.map(|(model, servers, time)| RawRun {
            levels: vec![model.into(), servers.into()],
            values: vec![Some(time)],
            ..RawRun::default()
        });
        let names = ["model", "servers"].map(String::from);
        let table = StudyTable::new("t", &names, vec![Response::parse("log(t_s)").unwrap()], runs.to_vec());
        let transfer = WorkloadTransfer::new(&table, 0, 0, None, 1).unwrap();
        let loss =
            |from: &str, to: &str| transfer.losses.iter().find(|l| l.from == from && l.to == to).unwrap();
        let there = loss("mlp", "lenet");
        assert!((there.loss - 0.5).abs() < 1e-12 && there.configuration == "servers 1", "{there:?}");
        assert!((loss("lenet", "mlp").loss - 1.0).abs() < 1e-12);
        assert_eq!(transfer.agreements.len(), 1);
        assert_eq!(transfer.agreements[0].n, 2, "eight servers were run on lenet alone");
    }
}
