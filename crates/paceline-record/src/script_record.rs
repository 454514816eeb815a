//! What the record says of a run's scripts: their tensors, when gradients were ready, what was reported.

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::event::AssignedGpu;
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
    /// The GPUs of the workers' machines, where anybody told of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuUse>,
    /// Whether workers of one GPU used NVIDIA's multi-process service: `started`, `running`, `absent` or `not-needed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mps: Option<String>,
}

/// A GPU, and how busy it was over the whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GpuUse {
    /// The first rank of its machine.
    pub machine: usize,
    /// Its number or UUID.
    pub gpu: String,
    /// Its model, where anybody told.
    pub name: Option<String>,
    /// Its memory.
    pub memory_bytes: Option<f64>,
    /// The workers that it was given to; empty where scripts chose themselves.
    pub workers: Vec<usize>,
    /// Mean utilisation, in percent; none where it was not sampled.
    pub utilisation_percent: Option<f64>,
    /// Most memory in use.
    pub memory_used_bytes: Option<f64>,
    /// Mean of what it drew, in watts.
    pub power_w: Option<f64>,
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
        let mut assigned: Vec<AssignedGpu> = Vec::new();
        for text in store.events(run, &["attached", "devices", "staging", "reported"])? {
            let Ok(event) = serde_json::from_str::<Json>(&text) else { continue };
            match event["type"].as_str() {
                Some("attached") => {
                    record.framework = event["framework"].as_str().unwrap_or_default().into();
                    record.tensors = Deserialize::deserialize(&event["tensors"]).unwrap_or_default();
                }
                Some("devices") => {
                    assigned = Deserialize::deserialize(&event["gpus"]).unwrap_or_default();
                    record.mps = event["mps"].as_str().map(str::to_owned);
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
        let sampled = store.numbers(
            "SELECT (SELECT min(rank) FROM ranks r WHERE r.run = g.run AND r.host = g.host), CAST(gpu AS INTEGER), \
             avg(utilisation_percent), max(memory_used_bytes), max(memory_total_bytes), avg(power_w) \
             FROM gpus g WHERE run = ? GROUP BY host, gpu",
            run,
        )?;
        record.gpus = used(assigned, &sampled);
        Ok(Some(record))
    }

    /// The GPUs that the workers were given, or, where scripts chose, all.
    pub fn own_gpus(&self) -> Vec<&GpuUse> {
        let given = self.gpus.iter().any(|gpu| !gpu.workers.is_empty());
        self.gpus.iter().filter(|gpu| !given || !gpu.workers.is_empty()).collect()
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
        lines.extend(self.mps.iter().filter(|mps| *mps != "not-needed").map(|mps| match &mps[..] {
            "absent" => "MPS was not used: workers of one GPU took turns".to_owned(),
            mps => format!("MPS was used ({mps})"),
        }));
        if !self.observed {
            lines.push(NOT_OBSERVED.into());
        }
        lines
    }
}

/// GPUs that were given and those that were sampled, brought together: the launcher's machine is that of rank 0.
fn used(assigned: Vec<AssignedGpu>, sampled: &[Vec<f64>]) -> Vec<GpuUse> {
    let known = |value: f64| Some(value).filter(|value| !value.is_nan());
    let mut all: Vec<GpuUse> = sampled
        .iter()
        .map(|row| GpuUse {
            machine: row[0] as usize,
            gpu: (row[1] as usize).to_string(),
            memory_bytes: known(row[4]),
            utilisation_percent: known(row[2]),
            memory_used_bytes: known(row[3]),
            power_w: known(row[5]),
            ..GpuUse::default()
        })
        .collect();
    for AssignedGpu { gpu, name, memory_bytes, ranks, index, .. } in assigned {
        let number = index.map_or_else(|| gpu.clone(), |index| index.to_string());
        let at = all.iter().position(|one| one.machine == 0 && one.gpu == number);
        let at = at.unwrap_or_else(|| {
            all.push(GpuUse { gpu: gpu.clone(), ..GpuUse::default() });
            all.len() - 1
        });
        let one = &mut all[at];
        one.name = name;
        one.memory_bytes = one.memory_bytes.or(memory_bytes.map(|bytes| bytes as f64));
        one.workers = ranks;
    }
    all.sort_by(|a, b| (a.machine, &a.gpu).cmp(&(b.machine, &b.gpu)));
    all
}

/// What a run says whose script averages by itself.
pub const NOT_OBSERVED: &str =
    "the script's own framework averages, within its backward pass: links and waits were not observed";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_that_were_given_and_those_that_were_sampled_are_brought_together() {
        let given = |gpu: &str, index, ranks: &[usize]| AssignedGpu {
            gpu: gpu.into(),
            index,
            name: Some("H200".into()),
            uuid: Some("GPU-b".into()),
            memory_bytes: Some(100),
            ranks: ranks.to_vec(),
        };
        // Rank, number, utilisation, memory, all memory, power.
        let sampled = [
            vec![0.0, 0.0, 10.0, 1.0, 100.0, 50.0],
            vec![0.0, 1.0, 90.0, 2.0, 100.0, f64::NAN],
            vec![3.0, 1.0, 20.0, 3.0, 100.0, 60.0],
        ];
        let all = used(vec![given("GPU-b", Some(1), &[0, 2]), given("MIG-1", None, &[1])], &sampled);
        let names: Vec<(usize, &str)> = all.iter().map(|one| (one.machine, &one.gpu[..])).collect();
        assert_eq!(names, [(0, "0"), (0, "1"), (0, "MIG-1"), (3, "1")]);
        assert_eq!((all[1].utilisation_percent, all[1].power_w), (Some(90.0), None));
        assert_eq!((&all[1].workers[..], all[1].name.as_deref()), (&[0, 2][..], Some("H200")));
        assert_eq!((all[2].utilisation_percent, all[2].memory_bytes), (None, Some(100.0)));
        assert_eq!(all[3].workers, [0; 0], "another machine's is another one");
        let record = ScriptRecord { gpus: all, mps: Some("started".into()), ..ScriptRecord::default() };
        assert_eq!(record.own_gpus().len(), 2, "those that workers were given");
        assert!(record.lines().iter().any(|line| line == "MPS was used (started)"), "{:?}", record.lines());
    }
}
