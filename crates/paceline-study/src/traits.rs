//! What is known about a study's workloads: from their settings, and from the figures of their runs.

use std::collections::BTreeMap;

use paceline_analyze::WorkloadTraits;
use paceline_data::SampleForm;
use paceline_explore::schedule::{End, Role, StudyRun};
use paceline_nn::Shape;
use paceline_plan::{Plan, Study, Value, Workload};
use paceline_record::figures::WAIT_SHARE;
use paceline_resolve::{PlanSettings, TypedPlan, resolve};

use crate::registries::AllRegistries;
use crate::state::StudyHistory;
use crate::workload::{alone, beside, scripted, workers};

/// Bytes of a parameter's gradient.
const BYTES: f64 = 4.0;

/// Of each workload; of one alone, under the study's name.
pub fn traits(known: &StudyHistory) -> Vec<WorkloadTraits> {
    let of = |(study, made): (&Study, Vec<StudyRun>)| {
        let name = study.workload_name().unwrap_or(&study.name).to_owned();
        let wait_share = wait_share(study, &made);
        match &study.workload {
            Workload::Train(flags) => {
                WorkloadTraits { name, wait_share, ..of_flags(study, flags, &known.registries) }
            }
            Workload::Command { .. } => WorkloadTraits { name, ..WorkloadTraits::default() },
        }
    };
    known.by_workload().into_iter().map(of).collect()
}

fn of_flags(study: &Study, flags: &BTreeMap<String, Value>, registries: &AllRegistries) -> WorkloadTraits {
    let axis = |name: &str| study.space.axes().iter().find(|axis| axis.name == name);
    // A script decides itself what is about networks, data and optimisers.
    let script = scripted(study);
    let counts = registries.settings.iter().filter(|setting| !(script && setting.native));
    let defaults = counts.filter_map(|s| Some((s.name.to_owned(), s.default?.to_owned())));
    let given = flags.iter().map(|(name, value)| (name.clone(), value.to_string()));
    let mut settings: BTreeMap<String, String> = defaults.chain(given).collect();
    settings.retain(|name, _| axis(name).is_none());
    // What belongs to several workers would be refused without an axis that says how many there are.
    let mut own = alone(flags, registries);
    own.iter_mut().for_each(|(name, value)| *value = beside(study, registries, name, value));
    let plan = PlanSettings::from_values(&registries.settings, &own).ok().and_then(|s| resolve(&s).ok());
    let Some(plan) = plan else { return WorkloadTraits { settings, ..WorkloadTraits::default() } };
    // What varies is no trait.
    let batch = match axis("batch") {
        None => Some(plan.batch as f64),
        Some(axis) => {
            let logarithms: Option<Vec<f64>> = axis.levels.iter().map(|l| Some(l.number()?.ln())).collect();
            logarithms.map(|of| paceline_statistics::mean(&of).exp())
        }
    };
    let fixed = axis("model").is_none() && axis("data").is_none() && !script;
    WorkloadTraits {
        data: (axis("data").is_none() && !script).then(|| plan.data.clone()),
        model: axis("model").is_none().then(|| plan.model.clone()),
        bytes_per_flop: batch.filter(|_| fixed).and_then(|batch| bytes_per_flop(&plan, batch, registries)),
        settings,
        ..WorkloadTraits::default()
    }
}

/// Bytes of a gradient over the operations of a step; none where only the dataset's files tell what a sample is.
fn bytes_per_flop(plan: &Plan, batch: f64, registries: &AllRegistries) -> Option<f64> {
    let typed = TypedPlan::new(plan, &registries.settings.registries).ok()?;
    let SampleForm::Fixed { shape: [h, w, c], classes } = typed.dataset().ok()?.form else { return None };
    let graph = typed.model?.build(Shape::new(h, w, c), classes).ok()?;
    Some(BYTES * graph.param_count() as f64 / (graph.training_flops() as f64 * batch))
}

/// Mean over the points' runs of several workers.
fn wait_share(study: &Study, made: &[StudyRun]) -> Option<f64> {
    let several = |run: &&StudyRun| {
        run.job.role == Role::Point && workers(study, &run.job).is_some_and(|workers| workers > 1.0)
    };
    let share = |run: &StudyRun| match &run.end {
        Some(End::Ok { metrics }) => metrics.get(WAIT_SHARE).copied(),
        _ => None,
    };
    let shares: Vec<f64> = made.iter().filter(several).filter_map(share).collect();
    (!shares.is_empty()).then(|| paceline_statistics::mean(&shares))
}
