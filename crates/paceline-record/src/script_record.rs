//! What the record says of a run's scripts: their tensors, when gradients were ready, what was reported.

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::store::{RecordError, RunRow};
use crate::{Store, short_number};

/// Tensors that a summary shows: those that were ready last.
const LATE: usize = 8;

/// What the record says of the scripts of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ScriptRecord {
    /// What they compute with.
    pub framework: String,
    /// Names and lengths of their tensors, in the order of the parameters.
    pub tensors: Vec<(String, usize)>,
    /// Each worker's copying of gradients.
    pub staging: Vec<ScriptStaging>,
    /// What rank 0's script has reported.
    pub reported: Vec<ScriptReport>,
    /// Whether links and waits were observed: not where the script's own framework averages.
    pub observed: bool,
}

/// A worker's copying of gradients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct ScriptStaging {
    pub rank: usize,
    /// Over the whole run.
    pub staging_s: f64,
    /// When each tensor was final after the start of backward, in the last step that was told of.
    pub ready_s: Vec<Option<f64>>,
}

/// Figures that a script has reported.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct ScriptReport {
    pub step: u64,
    pub train_s: f64,
    /// Names and numbers; none where it was no number.
    pub values: Vec<(String, Option<f64>)>,
}

impl ScriptReport {
    /// The figures in words.
    pub fn words(&self) -> String {
        let one = |(name, value): &(String, Option<f64>)| match value {
            Some(value) => format!("{name} {}", short_number(*value)),
            None => format!("{name} no number"),
        };
        self.values.iter().map(one).collect::<Vec<_>>().join(", ")
    }
}

impl ScriptRecord {
    /// Of a run; none where it has no script.
    pub fn read(store: &Store, run: &RunRow) -> Result<Option<Self>, RecordError> {
        let Some(plan) = run.plan.as_ref().filter(|plan| plan.script.is_some()) else { return Ok(None) };
        let mut record = Self { observed: !plan.delegated(), ..Self::default() };
        for text in store.events(run, &["attached", "staging", "reported"])? {
            let Ok(event) = serde_json::from_str::<Json>(&text) else { continue };
            match event["type"].as_str() {
                Some("attached") => {
                    record.framework = event["framework"].as_str().unwrap_or_default().into();
                    record.tensors = Deserialize::deserialize(&event["tensors"]).unwrap_or_default();
                }
                // Of a run that was begun again, the last attempt counts.
                Some("staging") => {
                    let Ok(own) = ScriptStaging::deserialize(&event) else { continue };
                    record.staging.retain(|known| known.rank != own.rank);
                    record.staging.push(own);
                }
                Some("reported") => {
                    let values = event["values"].as_object().into_iter().flatten();
                    record.reported.push(ScriptReport {
                        step: event["step"].as_u64().unwrap_or(0),
                        train_s: event["train_s"].as_f64().unwrap_or(0.0),
                        values: values.map(|(name, value)| (name.clone(), value.as_f64())).collect(),
                    });
                }
                _ => {}
            }
        }
        record.staging.sort_by_key(|own| own.rank);
        Ok(Some(record))
    }

    /// When each tensor was final in the slowest worker, after the start of backward; none where nobody used it.
    pub fn ready_s(&self) -> Vec<Option<f64>> {
        let at = |i: usize| {
            let all = self.staging.iter().filter_map(|own| own.ready_s.get(i).copied().flatten());
            all.reduce(f64::max)
        };
        (0..self.tensors.len()).map(at).collect()
    }

    /// The tensors that were ready last, the latest first: name, elements, seconds after the start of backward.
    pub fn late(&self) -> Vec<(&str, usize, f64)> {
        let tensors = self.tensors.iter().zip(self.ready_s());
        let mut all: Vec<_> =
            tensors.filter_map(|((name, len), ready)| Some((name.as_str(), *len, ready?))).collect();
        all.sort_by(|a, b| b.2.total_cmp(&a.2));
        all.truncate(LATE);
        all
    }

    /// What they are, in words; and, where it is so, that nothing of their exchange is known.
    pub fn lines(&self) -> Vec<String> {
        let numbers: usize = self.tensors.iter().map(|(_, len)| len).sum();
        let (tensors, framework) = (self.tensors.len(), &self.framework);
        let with = if framework.is_empty() { String::new() } else { format!("{framework}, ") };
        let mut lines = vec![format!("script: {with}{tensors} tensors of {numbers} numbers")];
        if self.tensors.is_empty() {
            lines[0] = "script: it did not attach".into();
        }
        if !self.observed {
            lines.push(NOT_OBSERVED.into());
        }
        lines
    }
}

/// What a run says whose script averages by itself.
pub const NOT_OBSERVED: &str =
    "the script's own framework averages, within its backward pass: links and waits were not observed";
