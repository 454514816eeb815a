//! A performance-influence model: a short formula of the factors that foretells the response, its terms chosen one by
//! one (after Siegmund, Grebhahn, Apel and Kästner, 2015).
//!
//! Terms are added while Schwarz's criterion (BIC) falls, then removed while it falls. A product of two factors is
//! tried only where one of them is in already.

use paceline_statistics::mean;
use serde::Serialize;

use crate::anova::Estimate;
use crate::linear::{Fit, dot, subtract};
use crate::table::{FactorLevel, StudyTable, number};

/// A formula has no more terms.
const MOST_TERMS: usize = 16;

#[derive(Clone, Debug, Serialize)]
pub struct Influence {
    pub term: String,
    /// What it is multiplied with. The interval does not know that the term was chosen out of many.
    pub coefficient: Estimate,
}

/// The formula.
#[derive(Clone, Debug, Serialize)]
pub struct InfluenceModel {
    /// Its constant.
    pub constant: f64,
    /// Terms in the order in which they were chosen.
    pub terms: Vec<Influence>,
    /// Share of the variation that it accounts for.
    pub r_sq: f64,
    /// The same for runs that it has not seen (one at a time left out).
    pub foretold: f64,
    /// Typical error on such runs: on the response's scale, root mean square.
    pub error: f64,
    /// Runs.
    pub n: usize,
}

#[derive(Clone, Debug)]
struct Candidate {
    name: String,
    factors: Vec<usize>,
    values: Vec<f64>,
}

/// What one factor alone can contribute.
fn simple(table: &StudyTable, runs: &[&crate::table::Run], f: usize) -> Vec<Candidate> {
    let factor = &table.factors[f];
    if factor.acting() < 2 {
        return Vec::new();
    }
    let column = |name: String, value: &dyn Fn(usize) -> f64| Candidate {
        name,
        factors: vec![f],
        values: runs.iter().map(|run| value(run.levels[f])).collect(),
    };
    let name = &factor.name;
    match factor.numbers() {
        Some(numbers) => {
            let (positive, several) = (numbers[0] > 0.0, numbers.len() > 2);
            type Form = (bool, String, fn(f64) -> f64);
            let forms: [Form; 4] = [
                (true, name.clone(), |x| x),
                (positive, format!("log2({name})"), f64::log2),
                (several, format!("{name}^2"), |x| x.powi(2)),
                (several && positive, format!("1/{name}"), |x| 1.0 / x),
            ];
            let usable = forms.into_iter().filter(|(usable, ..)| *usable);
            usable.map(|(_, name, form)| column(name, &|l| form(numbers[l]))).collect()
        }
        None => {
            let name = |level: &FactorLevel| format!("[{name} = {}]", level.text);
            let levels = factor.levels[..factor.acting()].iter().enumerate();
            levels.map(|(i, level)| column(name(level), &|l| f64::from(u8::from(l == i)))).collect()
        }
    }
}

fn criterion(rss: f64, n: usize, terms: usize) -> f64 {
    // A perfect fit has no logarithm.
    n as f64 * (rss / n as f64).max(1e-300).ln() + (terms + 1) as f64 * (n as f64).ln()
}

fn fit(chosen: &[Candidate], values: &[f64]) -> Fit {
    let mut columns = vec![vec![1.0; values.len()]];
    columns.extend(chosen.iter().map(|c| c.values.clone()));
    Fit::new(&columns, values)
}

/// How much of residuals a column could take away, beyond an orthonormal basis.
fn gain(basis: &[Vec<f64>], residuals: &[f64], column: &[f64]) -> f64 {
    let mut rest = column.to_vec();
    for _ in 0..2 {
        for direction in basis {
            let along = dot(direction, &rest);
            subtract(&mut rest, along, direction);
        }
    }
    let (norm, whole) = (dot(&rest, &rest), dot(column, column));
    if norm <= 1e-16 * whole { 0.0 } else { dot(&rest, residuals).powi(2) / norm }
}

impl InfluenceModel {
    /// Of a response; none with fewer than 8 runs or without variation.
    pub fn new(table: &StudyTable, response: usize) -> Option<Self> {
        let measured = table.measured(response);
        let runs: Vec<_> = measured.iter().map(|(run, _)| *run).collect();
        let values: Vec<f64> = measured.iter().map(|(_, value)| *value).collect();
        let n = values.len();
        let mean = mean(&values);
        let total: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
        if n < 8 || total <= 0.0 {
            return None;
        }
        let simple: Vec<Candidate> = (0..table.factors.len()).flat_map(|f| simple(table, &runs, f)).collect();
        let mut chosen: Vec<Candidate> = Vec::new();
        let mut now = fit(&chosen, &values);
        while chosen.len() < MOST_TERMS.min(n / 4) {
            let mut products: Vec<Candidate> = Vec::new();
            for first in chosen.iter().filter(|c| c.factors.len() == 1) {
                for second in simple.iter().filter(|s| s.factors != first.factors) {
                    let (a, b) =
                        if first.factors < second.factors { (first, second) } else { (second, first) };
                    products.push(Candidate {
                        name: format!("{}·{}", a.name, b.name),
                        factors: vec![a.factors[0], b.factors[0]],
                        values: a.values.iter().zip(&b.values).map(|(a, b)| a * b).collect(),
                    });
                }
            }
            let mut best: Option<(&Candidate, f64)> = None;
            // What is the workload's own was taken away before.
            let own = |c: &&Candidate| Some(c.factors[0]) != table.several_workloads();
            for candidate in simple.iter().filter(own).chain(&products) {
                let gain = gain(now.basis(), &now.residuals, &candidate.values);
                // The first of equally good ones stays, rounding aside: simple ones come first.
                if best.as_ref().is_none_or(|(_, most)| gain > most * (1.0 + 1e-9)) {
                    best = Some((candidate, gain));
                }
            }
            let Some((candidate, gain)) = best else { break };
            let (before, after) = (now.rss, (now.rss - gain).max(0.0));
            if gain <= 1e-12 * total
                || criterion(after, n, chosen.len() + 1) >= criterion(before, n, chosen.len())
            {
                break;
            }
            chosen.push(candidate.clone());
            now = fit(&chosen, &values);
        }
        loop {
            let without = |i: usize| {
                let rest: Vec<_> =
                    chosen.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, c)| c.clone()).collect();
                (criterion(fit(&rest, &values).rss, n, rest.len()), rest)
            };
            let least = (0..chosen.len()).map(without).min_by(|a, b| a.0.total_cmp(&b.0));
            match least {
                Some((reached, rest)) if reached < criterion(now.rss, n, chosen.len()) => {
                    chosen = rest;
                    now = fit(&chosen, &values);
                }
                _ => break,
            }
        }
        Some(Self::of(&chosen, &now, total, n))
    }

    fn of(chosen: &[Candidate], now: &Fit, total: f64, n: usize) -> Self {
        let noise = now.variance().map(f64::sqrt);
        let influence = |(i, candidate): (usize, &Candidate)| {
            let mut weights = vec![0.0; chosen.len() + 1];
            weights[i + 1] = 1.0;
            let (value, scale) = now.combination(&weights)?;
            let error = noise.map(|s| (s * scale, now.df as f64));
            Some(Influence { term: candidate.name.clone(), coefficient: Estimate::new(value, error, 0.05) })
        };
        let residuals = now.residuals.iter().zip(now.leverages());
        let unseen: f64 = residuals.map(|(r, leverage)| (r / (1.0 - leverage).max(1e-12)).powi(2)).sum();
        Self {
            constant: now.coefficients[0],
            terms: chosen.iter().enumerate().filter_map(influence).collect(),
            r_sq: 1.0 - now.rss / total,
            foretold: 1.0 - unseen / total,
            error: (unseen / n as f64).sqrt(),
            n,
        }
    }

    /// The formula in one line.
    pub fn formula(&self, response: &str) -> String {
        let mut text = format!("{response} = {}", number(self.constant));
        for term in &self.terms {
            let value = term.coefficient.value;
            let sign = if value < 0.0 { '−' } else { '+' };
            text += &format!(" {sign} {}·{}", number(value.abs()), term.term);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{RawRun, Response};
    use paceline_random::{Purpose, Stream};

    fn table(noise: f64) -> StudyTable {
        let stream = Stream::new(3, Purpose::Bench);
        let runs = (0..96u64).map(|i| {
            let (workers, sync, batch) = (1 << (i % 4), i / 4 % 2, 16 << (i / 8 % 3));
            let truth = 2.0 - 0.5 * f64::from(workers as u32).log2() + if sync == 1 { 0.8 } else { 0.0 };
            let words = ["asp", "bsp"][sync as usize];
            RawRun {
                levels: vec![workers.to_string(), words.into(), batch.to_string()],
                values: vec![Some(truth + noise * stream.normal(i))],
                ..RawRun::default()
            }
        });
        let names = ["workers", "sync", "batch"].map(String::from);
        StudyTable::new("t", &names, vec![Response::parse("y").unwrap()], runs.collect())
    }

    #[test]
    fn the_formula_that_made_the_values_is_found() {
        let model = InfluenceModel::new(&table(0.02), 0).unwrap();
        let names: Vec<&str> = model.terms.iter().map(|t| t.term.as_str()).collect();
        assert_eq!(&names[..2], ["log2(workers)", "[sync = asp]"], "{names:?}");
        assert!(names.len() <= 3 && model.foretold > 0.99, "{model:?}");
        let slope = model.terms[0].coefficient;
        assert!(slope.covers(-0.5) == Some(true), "{slope:?}");
        assert!(model.formula("y").contains("·log2(workers)"), "{}", model.formula("y"));
    }

    #[test]
    fn noise_alone_gives_hardly_any_terms() {
        let mut table = table(0.0);
        let stream = Stream::new(4, Purpose::Bench);
        table.runs.iter_mut().enumerate().for_each(|(i, r)| r.values = vec![Some(stream.normal(i as u64))]);
        let model = InfluenceModel::new(&table, 0).unwrap();
        assert!(model.terms.len() <= 2 && model.foretold < 0.2, "{model:?}");
    }
}
