//! Where a plan's network is cut by what a machine takes for its layers.

use paceline_data::Dataset;
use paceline_nn::Graph;
use paceline_pipeline::{CutCosts, Cuts, LayerCost};
use paceline_resolve::TypedPlan;

use crate::calibration::Calibration;
use crate::error::VirtualError;
use crate::pass::PassKey;

impl Calibration {
    /// Nanoseconds of each of a network's layers; nothing if no pass of it with so many threads was measured.
    pub fn layer_costs(&self, key: &PassKey, layers: usize) -> Option<Vec<LayerCost>> {
        let cost = |(f, b): (f64, f64)| LayerCost { forward: (1e9 * f) as u64, backward: (1e9 * b) as u64 };
        Some(self.layer_seconds(key, layers)?.into_iter().map(cost).collect())
    }

    /// The same of a network that is registered by this name, or described by this text, with one thread; else what is missing.
    pub fn costs_of(
        &self,
        (name, text): (&str, Option<&str>),
        graph: &Graph,
        samples: usize,
    ) -> Result<Vec<LayerCost>, String> {
        let key = PassKey::of(name, text, graph, samples, 1);
        let costs = self.layer_costs(&key, graph.nodes().len());
        costs.ok_or_else(|| format!("--calibration: no pass of this kind was measured: {key}"))
    }
}

/// The layers before which a plan's network is cut, by measured times of its micro-batches. The plan's own where it names
/// some or has no stages, and where the calibration has no pass of this kind: then costs are counted.
pub fn calibrated_cuts(
    plan: &TypedPlan<'_>,
    dataset: &Dataset,
    calibration: &Calibration,
) -> Result<Vec<String>, VirtualError> {
    if plan.stages < 2 || !plan.cuts.is_empty() {
        return Ok(plan.cuts.clone());
    }
    let graph = paceline_train::model::graph(plan, dataset)?;
    let key = PassKey::new(plan, &graph);
    let Some(layers) = calibration.layer_costs(&key, graph.nodes().len()) else { return Ok(Vec::new()) };
    let costs = CutCosts::measured(&graph, key.batch, layers);
    // What cannot be cut is refused where the plan is checked.
    let cuts = Cuts::Auto.find(&graph, &costs, plan.stages).unwrap_or_default();
    Ok(cuts.into_iter().map(|first| graph.nodes()[first].name.clone()).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use paceline_data::Folders;
    use paceline_plan::{Plan, Value};
    use paceline_resolve::{PlanSettings, Registries, SettingTable, resolve};

    use super::*;
    use crate::calibration::{Layer, MedianEstimate};
    use crate::pass::PassTime;

    fn plan(words: &str) -> Plan {
        let mut settings = PlanSettings::new(&Arc::new(SettingTable::new(Registries::default())));
        for word in words.split_whitespace() {
            let (name, value) = word.split_once('=').unwrap();
            settings.set(name, &Value::Text(value.into())).unwrap();
        }
        resolve(&settings).unwrap()
    }

    /// The cuts of lenet on digits, on a machine that spends nearly all of its time in the layers `slow`; and all its layers.
    fn cuts(words: &str, slow: [&str; 2]) -> (Vec<String>, Vec<String>) {
        let (plan, registries) = (plan(words), Registries::default());
        let typed = TypedPlan::new(&plan, &registries).unwrap();
        let settings = paceline_train::model::settings(&plan);
        let dataset = typed.dataset().unwrap().load(&Folders(Vec::new()), &settings).unwrap();
        let graph = paceline_train::model::graph(&typed, &dataset).unwrap();
        let layer = |name: &str| {
            let seconds = if slow.contains(&name) { 1.0 } else { 1e-6 };
            Layer { name: name.to_owned(), forward_s: seconds, backward_s: seconds }
        };
        let key = PassKey { threads: 1, ..PassKey::new(&plan, &graph) };
        let pass = PassTime {
            key,
            repetitions: 9,
            seconds: MedianEstimate::round(2.0),
            data_s: None,
            again_s: None,
            first_s: None,
            sharing: Vec::new(),
            quantiles: Vec::new(),
            layer: graph.nodes().iter().map(|node| layer(&node.name)).collect(),
        };
        let calibration = Calibration { pass: vec![pass], ..Calibration::defaults() };
        let layers = graph.nodes().iter().map(|node| node.name.clone()).collect();
        (calibrated_cuts(&typed, &dataset, &calibration).unwrap(), layers)
    }

    #[test]
    fn the_layers_that_take_all_the_time_are_in_different_stages() {
        for slow in [["conv1", "conv2"], ["conv2", "fc1"], ["conv1", "fc2"]] {
            let (cuts, layers) = cuts("model=lenet stages=2 micro-batches=4", slow);
            let at = |name: &str| layers.iter().position(|layer| layer == name);
            assert!(at(slow[0]) < at(&cuts[0]) && at(&cuts[0]) <= at(slow[1]), "{slow:?}: {cuts:?}");
        }
    }

    #[test]
    fn named_cuts_whole_networks_and_what_was_not_measured_keep_theirs() {
        let of = |words: &str| cuts(words, ["conv1", "conv2"]).0;
        assert_eq!(of("model=lenet stages=2 micro-batches=4 cuts=fc2"), ["fc2"]);
        for words in ["model=lenet", "model=lenet stages=2 micro-batches=4 threads=2"] {
            assert!(of(words).is_empty(), "{words}");
        }
    }
}
