//! Does the answer carry over? How configurations rank on one workload and on another, and what it costs to use one
//! workload's best configuration on another.

use std::collections::BTreeMap;

use paceline_statistics::mean;
use serde::Serialize;

use crate::ranks::{Correlation, kendall, spearman, spearman_interval};
use crate::table::StudyTable;

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
    /// Configurations that were run on both.
    pub n: usize,
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
}

impl WorkloadTransfer {
    /// Of a response, by the factor whose levels are workloads; none if it has one level only.
    pub fn new(table: &StudyTable, response: usize, workload: usize) -> Option<Self> {
        let factor = &table.factors[workload];
        if factor.levels.len() < 2 {
            return None;
        }
        let scale = &table.responses[response];
        let mut by_rest: BTreeMap<Vec<usize>, Vec<Option<f64>>> = BTreeMap::new();
        for (levels, values) in table.cells(response) {
            let mut rest = levels.clone();
            rest[workload] = 0;
            let row = by_rest.entry(rest).or_insert_with(|| vec![None; factor.levels.len()]);
            row[levels[workload]] = Some(mean(&values));
        }
        let (mut agreements, mut losses) = (Vec::new(), Vec::new());
        let text = |i: usize| factor.levels[i].text.clone();
        for a in 0..factor.levels.len() {
            for b in 0..factor.levels.len() {
                let both: Vec<(&Vec<usize>, f64, f64)> =
                    by_rest.iter().filter_map(|(rest, row)| Some((rest, row[a]?, row[b]?))).collect();
                if a == b || both.is_empty() {
                    continue;
                }
                let (on_a, on_b): (Vec<f64>, Vec<f64>) = both.iter().map(|(_, a, b)| (*a, *b)).unzip();
                if a < b {
                    let spearman = spearman(&on_a, &on_b);
                    agreements.push(WorkloadAgreement {
                        a: text(a),
                        b: text(b),
                        n: both.len(),
                        spearman,
                        spearman_interval: spearman.and_then(|c| spearman_interval(c.value, both.len())),
                        kendall: kendall(&on_a, &on_b),
                    });
                }
                let best = |values: &[f64]| {
                    let all = 0..values.len();
                    all.reduce(|i, j| if scale.better(values[j], values[i]) { j } else { i }).unwrap_or(0)
                };
                let (chosen, ideal) = (best(&on_a), best(&on_b));
                let (value, reached) = (scale.unscaled(on_b[chosen]), scale.unscaled(on_b[ideal]));
                let mut levels = both[chosen].0.clone();
                levels[workload] = a;
                let others = table.factors.iter().zip(&levels).enumerate();
                let words: Vec<String> = others
                    .filter(|(i, (f, _))| *i != workload && f.levels.len() > 1)
                    .map(|(_, (f, level))| format!("{} {}", f.name, f.levels[*level].text))
                    .collect();
                losses.push(TransferLoss {
                    from: text(a),
                    to: text(b),
                    configuration: words.join(", "),
                    value,
                    best: reached,
                    loss: (value - reached).abs() / reached.abs(),
                    n: both.len(),
                });
            }
        }
        Some(Self { workload: factor.name.clone(), agreements, losses })
    }
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
        let transfer = WorkloadTransfer::new(&table, 0, 0).unwrap();
        let loss =
            |from: &str, to: &str| transfer.losses.iter().find(|l| l.from == from && l.to == to).unwrap();
        let there = loss("mlp", "lenet");
        assert!((there.loss - 0.5).abs() < 1e-12 && there.configuration == "servers 1", "{there:?}");
        assert!((loss("lenet", "mlp").loss - 1.0).abs() < 1e-12);
        assert_eq!(transfer.agreements.len(), 1);
        assert_eq!(transfer.agreements[0].n, 2, "eight servers were run on lenet alone");
    }
}
