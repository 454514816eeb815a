//! How a study's runs were made: the method section of its report.

use std::collections::HashMap;
use std::path::Path;

use paceline_analyze::report::{Method, MethodAxis, MethodWorkload, plural_of};
use paceline_explore::samplers;
use paceline_explore::schedule::{End, Role, StudyRun};
use paceline_plan::{Axis, Study, Value, Workload};
use paceline_record::store::RunRow;
use paceline_record::{RecordError, Store};

use crate::acting::delegated;
use crate::error::StudyFailure;
use crate::registries::AllRegistries;
use crate::state::StudyHistory;
use crate::{table, workload};

/// The method of a study: its records tell what was run and where, its file and its journal the rest.
pub fn method(known: &StudyHistory, store: &Path) -> Result<Method, StudyFailure> {
    let study = &known.study;
    let mut method = records(known, store)?;
    if method.workloads.is_empty() {
        method.workloads = crate::parts(study, &known.registries).iter().map(written).collect();
    }
    if method.versions.is_empty() {
        method.versions = vec![known.version.clone()];
    }
    method.period_s = known.period_s.or(method.period_s);
    let axis = |axis: &Axis| MethodAxis {
        name: axis.name.clone(),
        levels: axis.levels.iter().map(ToString::to_string).collect(),
        when: axis.when.as_ref().map(ToString::to_string).unwrap_or_default(),
    };
    method.axes = study.space.axes().iter().map(axis).collect();
    let conditions =
        study.space.constraints().iter().chain(study.outcomes.iter().map(|(_, condition)| condition));
    let conditions: Vec<String> = conditions.map(ToString::to_string).collect();
    method.conditions = (!conditions.is_empty()).then(|| conditions.join("; "));
    method.runs = Some(runs(known));
    method.sampler = Some(sampler(known));
    method.seeds = Some(seeds(study));
    method.repeats = Some(repeats(study));
    method.controls = Some(controls(known));
    method.unknown = "runs of other programs leave no record".into();
    let file = Path::new(&study.source.file).file_name();
    let file = file.map_or_else(|| study.source.file.clone(), |name| name.to_string_lossy().into_owned());
    method.commands = vec![format!("paceline explore {file}")];
    if known.added > 0 {
        method.commands.push(format!("paceline resume {} --add-budget {}", study.name, known.added));
    }
    method.commands.push(format!("paceline report {}", study.name));
    method.file = Some((file, study.source.text.clone()));
    described(&mut method, &known.registries);
    let mut method = method.or_of_table(&table(known));
    if let Some(measured) = method.measured.as_mut().filter(|_| delegates(study)) {
        *measured += "; where the script's own framework averages (ddp-gloo, ddp-nccl), links and waits were not observed";
    }
    Ok(method)
}

/// Whether a script's own framework averages in some runs of a study.
fn delegates(study: &Study) -> bool {
    let axis = study.space.axes().iter().find(|axis| axis.name == "strategy");
    let of = |study: &Study| match &study.workload {
        Workload::Train(fixed) => fixed.get("strategy").is_some_and(delegated),
        Workload::Command { .. } => false,
    };
    axis.is_some_and(|axis| axis.levels.iter().any(delegated)) || study.parts().iter().any(of)
}

/// What the store still has of the study's runs.
fn records(known: &StudyHistory, store: &Path) -> Result<Method, StudyFailure> {
    let store = match Store::open(store) {
        Ok(store) => store,
        Err(RecordError::Empty { .. }) => return Ok(Method::default()),
        Err(error) => return Err(error.into()),
    };
    let all: HashMap<String, RunRow> = store.runs()?.into_iter().map(|run| (run.run.clone(), run)).collect();
    let point = |(made, run): (&StudyRun, &Option<String>)| {
        let recorded =
            all.get(run.as_ref()?).filter(|_| made.job.role == Role::Point && made.job.share >= 1.0)?;
        Some((made.job.workload.clone().unwrap_or_else(|| known.study.name.clone()), recorded))
    };
    let points: Vec<(String, &RunRow)> = known.made.iter().zip(&known.runs).filter_map(point).collect();
    Ok(Method::of_records(&store, &points)?)
}

/// The workload as the study file has it, for runs that left no record.
fn written(study: &Study) -> MethodWorkload {
    let name = study.workload_name().unwrap_or(&study.name).to_owned();
    match &study.workload {
        Workload::Train(fixed) => {
            let find = |key: &str| fixed.get(key).map(Value::to_string).unwrap_or_default();
            let own =
                fixed.iter().filter(|(key, _)| !["data", "model", "target-accuracy"].contains(&key.as_str()));
            MethodWorkload {
                name,
                data: find("data"),
                model: find("model"),
                target: find("target-accuracy"),
                settings: own.map(|(key, value)| (key.clone(), value.to_string())).collect(),
            }
        }
        Workload::Command { run, .. } => MethodWorkload {
            name,
            settings: vec![("command".into(), run.join(" "))],
            ..MethodWorkload::default()
        },
    }
}

/// Adds what datasets and models are to their names.
pub fn described(method: &mut Method, registries: &AllRegistries) {
    for workload in &mut method.workloads {
        if let Some(kind) = registries.runs().datasets.find(&workload.data) {
            workload.data = format!("{}: {}", kind.name, kind.about);
        }
        if let Some(kind) = registries.runs().models.find(&workload.model) {
            workload.model = format!("{}: {}", kind.name, kind.about);
        }
    }
}

fn runs(known: &StudyHistory) -> String {
    let figures = &known.registries.figures;
    let (first, clock) = (&known.study.objectives[0].metric, crate::clock(&known.study, figures));
    let count = |which: &dyn Fn(&StudyRun) -> bool| known.made.iter().filter(|made| which(made)).count();
    let point = |made: &StudyRun| made.job.role == Role::Point;
    let ended = |which: fn(&End) -> bool| count(&|made| point(made) && made.end.as_ref().is_some_and(which));
    let missed = count(&|made| {
        point(made) && matches!(made.end, Some(End::Ok { .. })) && made.bound(first, clock).is_some()
    });
    let parts = [
        (ended(|end| matches!(end, End::Ok { .. })) - missed, "ended well"),
        (missed, "missed the target"),
        (ended(|end| matches!(end, End::Beaten { .. })), "were ended early because they could no longer win"),
        (ended(|end| matches!(end, End::Diverged { .. })), "diverged"),
        (ended(|end| matches!(end, End::Failed { .. })), "failed"),
        (ended(|end| matches!(end, End::Refused { .. })), "were refused"),
        (count(&|made| point(made) && made.end.is_none()), "have not ended"),
    ];
    let told: Vec<String> =
        parts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
    let points = plural_of(count(&point), "run");
    let others =
        [(Role::Control, "control"), (Role::Baseline, "run of one worker alone"), (Role::WarmUp, "warm-up")];
    let others: Vec<String> = others
        .iter()
        .map(|(role, word)| (count(&|made| made.job.role == *role), word))
        .filter(|(n, _)| *n > 0)
        .map(|(n, word)| {
            if *word == "run of one worker alone" && n > 1 {
                format!("{n} runs of one worker alone")
            } else {
                plural_of(n, word)
            }
        })
        .collect();
    let beside =
        if others.is_empty() { String::new() } else { format!("; beside them {}", others.join(", ")) };
    format!("{points} of configurations: {}{beside}", told.join(", "))
}

fn sampler(known: &StudyHistory) -> String {
    let study = &known.study;
    let about = samplers::find(&known.registries.samplers, &study.sampler).map_or("", |(kind, _)| kind.about);
    let mut text = format!("{}: {about}", study.sampler).trim_end_matches([':', ' ']).to_owned();
    let budget = [
        study.runs.map(|runs| plural_of((runs + known.added) as usize, "run")),
        study.minutes.map(|minutes| format!("{} min", minutes + known.added_minutes)),
    ];
    let budget: Vec<String> = budget.into_iter().flatten().collect();
    if !budget.is_empty() {
        text += &format!("; budget: {}", budget.join(", "));
    }
    if study.prior.is_some() {
        text += "; it begins with what the simulator expects";
    }
    text
}

fn seeds(study: &Study) -> String {
    let own = match &study.workload {
        Workload::Train(fixed) => fixed.get("seed").map(|seed| format!("every run trains with seed {seed}")),
        Workload::Command { .. } => None,
    };
    let axis = study.space.axes().iter().any(|axis| axis.name == "seed");
    let (first, last) = (study.seed, study.seed.wrapping_add(study.max_repeats - 1));
    let runs = match own {
        _ if axis => "the seed of a run is an axis".into(),
        Some(own) => own,
        None if first == last => format!("every run has seed {first}"),
        None => format!("repeats have the seeds {first} to {last}"),
    };
    format!("sampler and order of the runs: {}; {runs}", study.seed)
}

fn repeats(study: &Study) -> String {
    let times = |n: u64| plural_of(n as usize, "run");
    let more = if study.max_repeats > study.repeats {
        format!(", up to {} where the objective varies by more than 5%", study.max_repeats)
    } else {
        String::new()
    };
    let spread = if study.repeats > 1 { ", spread over the study" } else { "" };
    format!("{} of each configuration{spread}{more}", times(study.repeats))
}

fn controls(known: &StudyHistory) -> String {
    let study = &known.study;
    if study.control_every == 0 {
        return "none".into();
    }
    let job = known.made.iter().map(|made| &made.job).find(|job| job.role == Role::Control);
    let levels = job.map(|job| workload::levels(study, job)).unwrap_or_default();
    let what = crate::report::configuration(&levels);
    format!(
        "one configuration ({what}) again before every {} runs: its figures tell noise and drift",
        study.control_every
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StudyState;
    use paceline_explore::schedule::PlannedRun;
    use serde_json::json;

    const TRAIN: &str = r#"
sampler = "grid"
seed = 7
repeats = 2
constraints = ["servers <= workers", "final_accuracy >= 0.5"]
[workload]
data = "digits"
model = "mlp"
epochs = 2
target-accuracy = 0.9
strategy = "ps"
[axes]
workers = [1, 2]
servers = [1, 2]
[[objectives]]
metric = "time_to_accuracy_s"
goal = "minimize"
[control]
every = 4
"#;

    const COMMAND: &str = r#"
sampler = "random"
[command]
run = ["./measure", "{size}", "{seed}"]
[axes]
size = [1, 2, 3]
[[objectives]]
metric = "time_s"
goal = "minimize"
[budget]
runs = 6
[control]
every = 0
"#;

    /// The method of a study whose points ended so, without any record.
    fn told(text: &str, ends: &[End]) -> Method {
        let (registries, folder) = (AllRegistries::default(), tempfile::tempdir().unwrap());
        let (mut journal, _) = paceline_record::Journal::open(&crate::journal(folder.path(), "s")).unwrap();
        let mut put = |entry: serde_json::Value| journal.append(&entry).unwrap();
        put(
            json!({"entry": "study", "file": "there/s.toml", "name": "s", "text": text, "version": "0.9", "at_ms": 0}),
        );
        for (id, end) in ends.iter().enumerate() {
            let levels = vec![Some(id as u32 % 2); text.matches("= [1, 2").count()];
            let job = PlannedRun {
                id: id as u64,
                role: Role::Point,
                workload: None,
                levels,
                share: 1.0,
                repeat: 0,
            };
            put(json!({"entry": "begin", "job": job, "at_ms": 1000}));
            put(
                json!({"entry": "end", "id": id, "end": end, "wall_s": 1.0, "run": null, "at_ms": 3_600_000}),
            );
        }
        let known = StudyState::peek(folder.path(), "s", &registries).unwrap();
        method(&known, folder.path()).unwrap()
    }

    fn ok(metrics: &[(&str, f64)]) -> End {
        End::Ok { metrics: metrics.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect() }
    }

    #[test]
    fn a_study_tells_what_was_run_and_how_to_make_it_again() {
        let reached = || ok(&[("time_to_accuracy_s", 1.0), ("seconds.train", 2.0)]);
        let failed = End::Failed { cause: "gone".into() };
        let method = told(TRAIN, &[reached(), reached(), ok(&[("seconds.train", 2.0)]), failed]);
        let (page, text) = (method.html(), method.markdown());
        for part in [
            "4 runs of configurations: 2 ended well, 1 missed the target, 1 failed",
            "grid: every combination",
            "2 runs of each configuration, spread over the study",
            "sampler and order of the runs: 7; repeats have the seeds 7 to 8",
            "again before every 4 runs",
            "digits: built in: handwritten digits",
            "epochs 2",
            "paceline explore s.toml",
            "1970-01-01 00:00 UTC to 1970-01-01 01:00 UTC",
            "0.9",
        ] {
            assert!(page.contains(part) && text.contains(part), "{part}: {text}");
        }
        // Sentences that each form writes in its own way.
        assert_eq!(method.conditions.as_deref(), Some("servers <= workers; final_accuracy >= 0.5"));
        assert_eq!(method.axes.len(), 2);
        assert!(method.measured.unwrap().starts_with("time_to_accuracy_s, s (less is better"));
        assert_eq!(method.file.unwrap().1, TRAIN);
    }

    #[test]
    fn a_study_of_another_program_names_its_command_and_what_is_not_known() {
        let method = told(COMMAND, &[ok(&[("time_s", 1.0)]), ok(&[("time_s", 2.0)])]);
        let text = method.markdown();
        for part in ["./measure {size} {seed}", "budget: 6 runs", "leave no record", "every run has seed 1"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(method.controls.as_deref(), Some("none"));
    }
}
