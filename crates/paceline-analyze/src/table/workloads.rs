//! What is known about workloads, and figures without what is the workload's own.

use serde::Serialize;

use super::StudyTable;
use crate::anova::Anova;

/// What a workload is, as far as that is known: workloads that share a dataset or a model are compared as groups.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WorkloadTraits {
    /// The level of the workload factor.
    pub name: String,
    /// Its dataset.
    pub data: Option<String>,
    /// Its model.
    pub model: Option<String>,
    /// Bytes of a gradient over floating-point operations of a step.
    pub bytes_per_flop: Option<f64>,
    /// Part of the workers' time in which they send or wait for others, 0 to 1: the mean of its runs.
    pub wait_share: Option<f64>,
}

impl StudyTable {
    /// What is known about a workload.
    pub fn traits(&self, workload: &str) -> Option<&WorkloadTraits> {
        self.workloads.iter().find(|known| known.name == workload)
    }

    /// The same without the workloads' own effects on a response: figures as they would be on an average workload.
    pub fn levelled(&self, response: usize, anova: Option<&Anova>) -> Self {
        let mut level = self.clone();
        let Some((workload, anova)) = self.several_workloads().zip(anova) else { return level };
        let scale = &self.responses[response];
        let effects = anova.workload_effects(self.factors[workload].levels.len());
        for run in &mut level.runs {
            let effect = effects[run.levels[workload]];
            let correct = |value: f64| Some(scale.unscaled(scale.scaled(value)? - effect));
            run.values[response] = run.values[response].and_then(correct);
            run.bounds[response] = run.bounds[response].and_then(correct);
        }
        level
    }
}
