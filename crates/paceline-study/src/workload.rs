//! What one run of a study is: how it is started, whether it can be run, and the figures it gives.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use paceline_data::Dataset;
use paceline_explore::schedule::{End, PlannedRun, Role};
use paceline_plan::study::MetricsFile;
use paceline_plan::{Plan, Point, Study, StudyError, Value, Workload, nearest};
use paceline_protocol::SINGLE;
use paceline_record::RunLabels;
use paceline_record::figures::{COST, Figures, INFER, REPORTED};
use paceline_resolve::{
    DEFAULT_EPOCHS, OWN_EXCHANGE, PlanSettings, SCRIPT_ARGUMENT, SettingKind, TypedPlan, command_line,
    resolve,
};
use regex::Regex;

use crate::acting::{OF_SEVERAL, delegated};
use crate::document::{TrialDocument, TrialTask};
use crate::error::StudyFailure;
use crate::prepare::of_study;
use crate::registries::AllRegistries;

/// The levels of a run, by name; the workload's own settings not among them.
pub fn levels(study: &Study, job: &PlannedRun) -> BTreeMap<String, Value> {
    match (job.role, &study.workload) {
        (Role::Point, _) => {
            // Older journals have levels of axes that cannot act.
            let mut point = Point(job.levels.clone());
            study.space.settle(&mut point);
            study.space.named(&point)
        }
        (Role::Baseline, _) => BTreeMap::new(),
        (_, Workload::Train(_)) => study.control.clone(),
        // A command needs a level for each of its placeholders.
        (_, Workload::Command { .. }) => {
            let first = |axis: &paceline_plan::Axis| (axis.name.clone(), axis.levels[0].clone());
            let mut levels: BTreeMap<String, Value> = study.space.axes().iter().map(first).collect();
            levels.extend(study.control.clone());
            levels
        }
    }
}

/// The program of a run, its arguments, and what it reads.
#[derive(Clone)]
pub(crate) struct Call {
    pub words: Vec<String>,
    pub document: Option<TrialDocument>,
    /// Machines that it wants for itself.
    pub hosts: usize,
}

impl Call {
    /// This program with work from a document.
    pub fn own(document: TrialDocument) -> Result<Self, StudyFailure> {
        let plan = &document.plan;
        // With a network hosts are emulated on one machine.
        let several = plan.hosts.is_some() && plan.network.is_none() && plan.strategy != SINGLE;
        let hosts = if several { plan.host_count() } else { 1 };
        Ok(Self { words: TrialDocument::words()?.into(), document: Some(document), hosts })
    }

    /// What the program reads.
    pub fn text(&self) -> io::Result<String> {
        self.document.as_ref().map_or_else(|| Ok(String::new()), TrialDocument::text)
    }
}

/// Settings of the workload, and those that a run has instead. What belongs to several workers means nothing where an
/// axis says that there is one, and how this program exchanges means nothing where an axis leaves that to a script's
/// framework.
fn joined(
    study: &Study,
    registries: &AllRegistries,
    fixed: &BTreeMap<String, Value>,
    own: BTreeMap<String, Value>,
) -> BTreeMap<String, Value> {
    let axis = study.space.axes().iter().any(|axis| axis.name == "workers");
    let one =
        axis && own.get("workers").or_else(|| fixed.get("workers")).is_none_or(|n| n.number() == Some(1.0));
    let mut base = if one { alone(fixed, registries) } else { fixed.clone() };
    if own.get("strategy").is_some_and(delegated) {
        base.retain(|name, _| !OWN_EXCHANGE.contains(&name.as_str()));
    }
    let mut all: BTreeMap<String, Value> = base.into_iter().chain(own).collect();
    all.iter_mut().for_each(|(name, value)| *value = beside(study, registries, name, value));
    all
}

/// A setting that names a file: relative to the study's own, where it lies there, or else to the current folder.
pub(crate) fn beside(study: &Study, registries: &AllRegistries, name: &str, value: &Value) -> Value {
    let file =
        registries.settings.find(name).is_some_and(|setting| matches!(setting.kind, SettingKind::Path));
    let Value::Text(text) = value else { return value.clone() };
    let program = name == "python" && text.contains('/');
    let folder = Path::new(&study.source.file).parent().filter(|_| file || program);
    let found = folder.map(|folder| folder.join(text)).filter(|path| path.exists());
    found.map_or_else(|| value.clone(), |path| Value::Text(path.to_string_lossy().into_owned()))
}

/// Whether a workload is a script.
pub(crate) fn scripted(study: &Study) -> bool {
    let Workload::Train(fixed) = &study.workload else { return false };
    fixed.contains_key("script") || study.space.axes().iter().any(|axis| axis.name == "script")
}

/// Whether runs of a study name files or programs by where the study is led from.
pub fn needs_folder(study: &Study, registries: &AllRegistries) -> bool {
    let own = |part: &Study| matches!(part.workload, Workload::Command { .. }) || scripted(part);
    crate::parts(study, registries).iter().any(own)
}

/// The settings of a run of `paceline train`.
fn settings(
    study: &Study,
    registries: &AllRegistries,
    fixed: &BTreeMap<String, Value>,
    job: &PlannedRun,
) -> BTreeMap<String, Value> {
    let base = if job.role == Role::Baseline { &alone(fixed, registries) } else { fixed };
    let mut settings = joined(study, registries, base, levels(study, job));
    if job.share < 1.0 {
        let epochs = Some(DEFAULT_EPOCHS).filter(|_| !scripted(study));
        for (name, default) in [("steps", None), ("epochs", epochs)] {
            let whole = settings.get(name).and_then(Value::number).or(default);
            if let Some(whole) = whole.filter(|_| name == "steps" || !settings.contains_key("steps")) {
                let part = whole * job.share;
                let part = if name == "steps" { part.ceil().max(1.0) } else { part };
                settings.insert(name.into(), Value::Number(part));
            }
        }
    }
    let seed = study.seed.wrapping_add(job.repeat);
    settings.entry("seed".into()).or_insert(Value::Number(seed as f64));
    settings
}

/// How a run is started; a plan that cannot be run is refused.
pub(crate) fn call(
    study: &Study,
    registries: &AllRegistries,
    job: &PlannedRun,
    store: &Path,
    cores: usize,
) -> Result<Call, StudyFailure> {
    match &study.workload {
        Workload::Train(fixed) => {
            let settings =
                PlanSettings::from_values(&registries.settings, &settings(study, registries, fixed, job))?;
            let recording = Some(settings.recording()?);
            let task = TrialTask::Train { store: store.to_owned(), recording, meeting: None };
            let (name, command) = (study.name.clone(), command_line("train", &settings, &[]));
            let workload = study.workload_name().map(str::to_owned);
            let labels = RunLabels { study: Some(name), workload, command, ..RunLabels::default() };
            Call::own(TrialDocument::new(task, resolve(&settings)?, &settings).labelled(labels))
        }
        Workload::Command { run, .. } => {
            let (levels, seed) = (levels(study, job), study.seed.wrapping_add(job.repeat));
            let fill = |word: &String| {
                let mut filled = word.replace("{seed}", &seed.to_string());
                filled = filled.replace("{cores}", &cores.to_string());
                for axis in study.space.axes() {
                    // An axis that is not there leaves an empty word.
                    let level = levels.get(&axis.name).map(ToString::to_string).unwrap_or_default();
                    filled = filled.replace(&format!("{{{}}}", axis.name), &level);
                }
                filled
            };
            // An axis of such a name wins.
            let words = of_study(study, &run.iter().map(fill).collect::<Vec<_>>())?;
            Ok(Call { words, document: None, hosts: 1 })
        }
    }
}

/// How the answers of a run's network are timed; `None` where nobody wants to know.
pub(crate) fn inference(
    study: &Study,
    registries: &AllRegistries,
    job: &PlannedRun,
) -> Result<Option<Call>, StudyFailure> {
    let Workload::Train(fixed) = &study.workload else { return Ok(None) };
    if !study.figures().iter().any(|(_, name)| name.starts_with(INFER)) {
        return Ok(None);
    }
    let mut values = joined(study, registries, fixed, levels(study, job));
    values.retain(|name, _| ["data", "data-dir", "model", "model-file"].contains(&name.as_str()));
    let settings = PlanSettings::from_values(&registries.settings, &values)?;
    let paceline_plan::study::Infer { batch, threads, seconds } = study.infer;
    let task = TrialTask::Infer { batch: batch as usize, threads: threads as usize, seconds };
    Call::own(TrialDocument::new(task, resolve(&settings)?, &settings)).map(Some)
}

/// What a run costs by the study's prices.
pub(crate) fn cost(study: &Study, job: &PlannedRun, metrics: &BTreeMap<String, f64>) -> Option<f64> {
    let prices = study.prices.as_ref()?;
    let hours = metrics.get("seconds.total").or_else(|| metrics.get("wall_s"))? / 3600.0;
    let workers = workers(study, job).unwrap_or(0.0);
    let servers = number(study, job, "servers").filter(|_| job.role != Role::Baseline).unwrap_or(0.0);
    let gigabytes = metrics.get("sent_bytes").filter(|_| prices.gigabyte > 0.0).map_or(0.0, |b| b / 1e9);
    let hourly = prices.run_hour + prices.worker_hour * workers + prices.server_hour * servers;
    Some(hours * hourly + gigabytes * prices.gigabyte)
}

/// A number that a run of `paceline train` is given, by its levels or by the workload.
fn number(study: &Study, job: &PlannedRun, name: &str) -> Option<f64> {
    let Workload::Train(fixed) = &study.workload else { return None };
    levels(study, job).get(name).or_else(|| fixed.get(name)).and_then(Value::number)
}

/// Settings of the workload that make sense for one worker alone.
pub(crate) fn alone(fixed: &BTreeMap<String, Value>, registries: &AllRegistries) -> BTreeMap<String, Value> {
    let of_strategies = registries.settings.registries.protocols.parameters();
    let own = |name: &str| {
        OF_SEVERAL.split_whitespace().chain(["workers"]).all(|several| several != name)
            && of_strategies.iter().all(|p| p.name != name)
    };
    fixed.iter().filter(|(name, _)| own(name)).map(|(n, v)| (n.clone(), v.clone())).collect()
}

/// The number of workers of a run of `paceline train`.
pub(crate) fn workers(study: &Study, job: &PlannedRun) -> Option<f64> {
    matches!(study.workload, Workload::Train(_)).then_some(())?;
    if job.role == Role::Baseline {
        return Some(1.0);
    }
    Some(number(study, job, "workers").unwrap_or(1.0))
}

/// Whether one worker alone has to be run apart from the control.
pub(crate) fn needs_baseline(study: &Study) -> bool {
    let control = PlannedRun::control(0);
    matches!(study.workload, Workload::Train(_))
        && (study.control_every == 0 || workers(study, &control) != Some(1.0))
}

/// Points of a large space that are tried.
const TRIED: usize = 2000;

/// The same with figures under the names that they have now; programs other than this one name theirs themselves.
pub fn renamed(study: Study, figures: &Figures) -> Study {
    let train = matches!(study.workload, Workload::Train(_));
    if train { study.renamed(&|name| figures.name(name).into()) } else { study }
}

/// The same for how a run ended.
pub fn renamed_end(study: &Study, mut end: End, figures: &Figures) -> End {
    if let (Workload::Train(_), End::Ok { metrics } | End::Beaten { metrics }) = (&study.workload, &mut end) {
        *metrics = figures.renamed(std::mem::take(metrics));
    }
    end
}

/// Whether every run of a study can be run.
pub fn check(study: &Study, registries: &AllRegistries) -> Result<(), StudyError> {
    mistakes(study, registries).into_iter().next().map_or(Ok(()), Err)
}

/// Everything that keeps runs of a study from being run.
pub fn mistakes(study: &Study, registries: &AllRegistries) -> Vec<StudyError> {
    let sampler = paceline_explore::samplers::find(&registries.samplers, &study.sampler);
    let mut all: Vec<StudyError> =
        sampler.err().map(|e| study.source.error("sampler", e.0)).into_iter().collect();
    let parts = crate::parts(study, registries);
    if matches!(study.workload, Workload::Train(_)) {
        all.extend(check_axes(study, &parts, registries));
    }
    for part in &parts {
        all.extend(mistakes_of(part, registries));
    }
    // What is wrong with an axis is wrong for every workload.
    paceline_statistics::distinct(all)
}

/// Whether every axis can act for one of the workloads, where they are scripts or native networks.
fn check_axes(study: &Study, parts: &[Study], registries: &AllRegistries) -> Vec<StudyError> {
    let scripts = parts.iter().filter(|part| scripted(part)).count();
    let wrong = |axis: &paceline_plan::Axis| {
        let native = registries.settings.find(&axis.name).is_some_and(|setting| setting.native);
        let problem = match axis.name.strip_prefix(SCRIPT_ARGUMENT) {
            Some(name) if scripts == 0 => {
                format!("--{name} is an argument of a script: write script = \"train.py\" into [workload]")
            }
            None if native && scripts == parts.len() => {
                format!("the script decides that; if it has such an argument, the axis is args.{}", axis.name)
            }
            _ => return None,
        };
        Some(study.source.error(&format!("axes.{}", axis.name), problem))
    };
    study.space.axes().iter().filter_map(wrong).collect()
}

fn mistakes_of(study: &Study, registries: &AllRegistries) -> Vec<StudyError> {
    let figures = &registries.figures;
    match &study.workload {
        Workload::Train(fixed) => check_train(study, fixed, registries),
        Workload::Command { metrics: MetricsFile::Patterns(patterns), .. } => {
            check_patterns(study, patterns, figures)
        }
        Workload::Command { .. } => check_figures(study, &|name| !name.starts_with(INFER), &[]),
    }
}

fn check_patterns(study: &Study, patterns: &BTreeMap<String, String>, figures: &Figures) -> Vec<StudyError> {
    let mut all = Vec::new();
    for (name, pattern) in patterns {
        let problem = match Regex::new(pattern) {
            Err(e) => e.to_string().lines().last().unwrap_or_default().to_owned(),
            Ok(regex) if regex.captures_len() != 2 => {
                "one group ( ) around the number is needed, e.g. 'accuracy: ([0-9.]+)'".into()
            }
            Ok(_) => continue,
        };
        all.push(study.source.error(&format!("command.metrics.{name}"), problem));
    }
    let always = figures.of_commands().map(|f| f.name);
    let known: Vec<&str> = patterns.keys().map(String::as_str).chain(always).collect();
    all.extend(check_figures(study, &|name| known.contains(&name), &known));
    all
}

/// Whether everything that is wanted is measured.
fn check_figures(study: &Study, known: &dyn Fn(&str) -> bool, names: &[&str]) -> Vec<StudyError> {
    let wrong = |(key, name): (String, &str)| {
        let problem = if !known(name) {
            let near = nearest(name, names.iter().copied());
            let hint = near.map(|n| format!("did you mean `{n}`? ")).unwrap_or_default();
            let all = if names.is_empty() { "what the command prints".into() } else { names.join(", ") };
            let script = if scripted(study) {
                format!(
                    ", and what the script reports: {REPORTED}{}",
                    name.rsplit('.').next().unwrap_or(name)
                )
            } else {
                String::new()
            };
            format!("`{name}` is not measured; {hint}possible: {all}{script}")
        } else if name == COST && study.prices.is_none() {
            "needs prices: write worker-hour = 0.5 (or another price) into [prices]".into()
        } else {
            return None;
        };
        Some(study.source.error(&key, problem))
    };
    study.figures().into_iter().filter_map(wrong).collect()
}

fn check_train(
    study: &Study,
    fixed: &BTreeMap<String, Value>,
    registries: &AllRegistries,
) -> Vec<StudyError> {
    let figures = &registries.figures;
    let source = &study.source;
    let check = |key: String, name: &String, value: &Value| {
        let problem = check_setting(registries, name, value).err()?;
        Some(source.error(&key, problem))
    };
    let flag = |(name, value): (&String, &Value)| check(study.workload_key(name), name, value);
    let mut all: Vec<StudyError> = fixed.iter().filter_map(flag).collect();
    for axis in study.space.axes() {
        let mut wrong: Vec<_> = axis
            .levels
            .iter()
            .filter_map(|value| check(format!("axes.{}", axis.name), &axis.name, value))
            .collect();
        // Of an axis that is no setting, every level says the same.
        wrong.dedup();
        all.extend(wrong);
    }
    let script = scripted(study);
    let of_run = figures.of_runs().map(|f| f.name).filter(|name| !(script && name.starts_with(INFER)));
    let names: Vec<&str> = of_run.collect();
    let reported = |name: &str| script && name.strip_prefix(REPORTED).is_some_and(|name| !name.is_empty());
    all.extend(check_figures(study, &|name| names.contains(&name) || reported(name), &names));
    if script {
        all.extend(check_script(study, fixed, registries));
    }
    let named = |name: &str| fixed.contains_key(name) || study.space.axes().iter().any(|a| a.name == name);
    for (i, objective) in study.objectives.iter().enumerate() {
        if objective.metric == "time_to_accuracy_s" && !named("target-accuracy") {
            let place =
                study.workload_name().map_or("[workload]".into(), |name| format!("the workload {name}"));
            let problem = format!("needs a target: write target-accuracy = 0.9 into {place}");
            all.push(source.error(&format!("objectives[{i}].metric"), problem));
        }
    }
    let predicted = figures.predicted();
    let unpredicted = study.objectives.first().filter(|o| !predicted.contains(&o.metric.as_str()));
    if let Some(objective) = unpredicted.filter(|_| study.prior.is_some()) {
        let possible = predicted.join(", ");
        let problem = format!("{} is not predicted; possible objectives: {possible}", objective.metric);
        all.push(source.error("prior", problem));
    }
    // Plans of wrong settings would say the same again.
    if all.is_empty() {
        all.extend(check_control(study, registries, fixed).err());
        all.extend(check_points(study, registries, fixed));
    }
    all
}

/// What cannot be with a script, whatever its points are.
fn check_script(
    study: &Study,
    fixed: &BTreeMap<String, Value>,
    registries: &AllRegistries,
) -> Vec<StudyError> {
    let mut all = Vec::new();
    let mut refuse = |key: &str, problem: &str| all.push(study.source.error(key, problem));
    if study.prior.is_some() {
        let problem = "the simulator knows nothing of a script before it has run: leave it out (`paceline explain` \
                       answers what-ifs from a recorded run)";
        refuse("prior", problem);
    }
    let shortens = paceline_explore::samplers::find(&registries.samplers, &study.sampler);
    let counted = fixed.contains_key("steps") || study.space.axes().iter().any(|axis| axis.name == "steps");
    if shortens.is_ok_and(|(kind, _)| kind.shortens) && !counted {
        let problem = "it begins with shorter runs, and only the script knows how long it is: write steps = 300 (or \
                       another number) into [workload]";
        refuse("sampler", problem);
    }
    all
}

/// Why a run of a script cannot be judged: it has not reported what is wanted.
pub(crate) fn unreported(study: &Study, metrics: &BTreeMap<String, f64>) -> Option<String> {
    let name = |figure: &str| match figure {
        "final_accuracy" => Some("accuracy".to_owned()),
        "final_loss" => Some("loss".to_owned()),
        figure => figure.strip_prefix(REPORTED).map(str::to_owned),
    };
    let wanted = study.objectives.iter().map(|objective| objective.metric.as_str());
    let missing = wanted.filter(|figure| !metrics.contains_key(*figure)).find_map(name);
    let missing = missing.filter(|_| scripted(study))?;
    Some(format!(
        "the script reported no {missing}, which is an objective: call run.report({missing}=…) in it, or choose another"
    ))
}

/// What a check of a study cannot know before runs are made.
pub fn notes(study: &Study) -> Vec<String> {
    let reported = study.figures().into_iter().filter_map(|(_, name)| name.strip_prefix(REPORTED));
    let note = |name: &str| {
        format!("whether the script reports {name} shows when it runs: run.report({name}=…) in the script")
    };
    paceline_statistics::distinct(reported.map(note))
}

/// Whether runs can have a setting with this value.
fn check_setting(registries: &AllRegistries, name: &str, value: &Value) -> Result<(), String> {
    match name {
        "json" | "quiet" | "store" | "no-record" => Err("is set by the study itself: leave it out".into()),
        "listen" | "key-file" | "join-timeout" => {
            Err("runs of a study stay on this machine: leave it out".into())
        }
        name => PlanSettings::new(&registries.settings).set(name, value).map_err(|error| error.to_string()),
    }
}

/// The control is run first and again and again: it must be a plan.
fn check_control(
    study: &Study,
    registries: &AllRegistries,
    fixed: &BTreeMap<String, Value>,
) -> Result<(), StudyError> {
    let settings = joined(study, registries, fixed, study.control.clone());
    try_plan(&settings, registries, &mut Datasets::new()).map(drop).map_err(|problem| {
        let problem = format!(
            "the control{} cannot be run: {problem}; it is [workload] with the defaults: write what it needs into \
             point of [control]",
            of_workload(study)
        );
        study.source.error("control", problem)
    })
}

/// Which of several workloads, in a sentence.
fn of_workload(study: &Study) -> String {
    study.workload_name().map(|name| format!(" of the workload {name}")).unwrap_or_default()
}

/// Every point as a plan, as far as there are not too many: what is wrong with them, each problem once.
fn check_points(
    study: &Study,
    registries: &AllRegistries,
    fixed: &BTreeMap<String, Value>,
) -> Vec<StudyError> {
    let points = study.space.points(paceline_plan::ENUMERABLE).unwrap_or_default();
    let tried: Vec<&Point> = points.iter().step_by(points.len().div_ceil(TRIED).max(1)).collect();
    let mut datasets = Datasets::new();
    let mut refused: Vec<(String, BTreeMap<String, Value>, usize)> = Vec::new();
    // The same problem of another number is the same.
    let kind = |problem: &str| problem.chars().filter(|c| !c.is_ascii_digit()).collect::<String>();
    for point in &tried {
        let levels = study.space.named(point);
        let Err(problem) =
            try_plan(&joined(study, registries, fixed, levels.clone()), registries, &mut datasets)
        else {
            continue;
        };
        match refused.iter_mut().find(|(other, ..)| kind(other) == kind(&problem)) {
            Some((_, _, points)) => *points += 1,
            None => refused.push((problem, levels, 1)),
        }
    }
    let key = if study.space.constraints().is_empty() { "axes" } else { "constraints" };
    let told = |(problem, levels, points): (String, BTreeMap<String, Value>, usize)| {
        let words: Vec<String> = levels.iter().map(|(name, value)| format!("{name} {value}")).collect();
        let problem = format!(
            "{points} of {} points{} cannot be run, e.g. {}: {problem}; exclude them with a constraint, or give the \
             axis a `when`",
            tried.len(),
            of_workload(study),
            words.join(", ")
        );
        study.source.error(key, problem)
    };
    refused.into_iter().map(told).collect()
}

/// Datasets that were looked for, by what was asked of them; none where a dataset is not at hand.
pub(crate) type Datasets = BTreeMap<String, Option<Dataset>>;

fn asked(plan: &Plan) -> String {
    format!("{} {:?} {:?}", plan.data, plan.image_size, plan.window)
}

/// The plan of a point, and its dataset.
pub(crate) fn planned<'d>(
    study: &Study,
    registries: &AllRegistries,
    levels: &BTreeMap<String, Value>,
    datasets: &'d mut Datasets,
) -> Result<(Plan, &'d Dataset), String> {
    let Workload::Train(fixed) = &study.workload else {
        return Err("only runs of paceline train can be predicted".into());
    };
    let mut settings = joined(study, registries, fixed, levels.clone());
    settings.entry("seed".into()).or_insert(Value::Number(study.seed as f64));
    let plan = try_plan(&settings, registries, datasets)?;
    let missing =
        || format!("the dataset {} is not at hand (`paceline data` says where it is looked for)", plan.data);
    let dataset = loaded(&plan, datasets).ok_or_else(missing)?;
    Ok((plan, dataset))
}

/// The dataset of a plan, where it was looked for and is at hand.
pub(crate) fn loaded<'d>(plan: &Plan, datasets: &'d Datasets) -> Option<&'d Dataset> {
    datasets.get(&asked(plan)).and_then(Option::as_ref)
}

/// The plan of a point of a script.
pub(crate) fn planned_script(
    study: &Study,
    registries: &AllRegistries,
    levels: &BTreeMap<String, Value>,
) -> Result<Plan, String> {
    let Workload::Train(fixed) = &study.workload else { return Err("it is no script".into()) };
    let mut settings = joined(study, registries, fixed, levels.clone());
    settings.entry("seed".into()).or_insert(Value::Number(study.seed as f64));
    try_plan(&settings, registries, &mut Datasets::new())
}

fn try_plan(
    values: &BTreeMap<String, Value>,
    registries: &AllRegistries,
    datasets: &mut Datasets,
) -> Result<Plan, String> {
    let settings = PlanSettings::from_values(&registries.settings, values).map_err(|e| e.to_string())?;
    let plan = resolve(&settings).map_err(|e| e.to_string())?;
    let typed = TypedPlan::new(&plan, settings.registries()).map_err(|e| e.to_string())?;
    if plan.script.is_some() {
        paceline_launch::run::check(&typed, settings.registries(), None).map_err(|e| e.to_string())?;
        return Ok(plan);
    }
    // Where the dataset is not at hand, the runs will tell.
    let wanted = paceline_train::model::settings(&plan);
    let load = || typed.dataset().ok()?.load(&settings.data_folders(), &wanted).ok();
    if let Some(dataset) = datasets.entry(asked(&plan)).or_insert_with(load) {
        plan.check(dataset.train.len()).map_err(|e| e.to_string())?;
        paceline_launch::run::check(&typed, settings.registries(), Some(dataset))
            .map_err(|e| e.to_string())?;
    }
    Ok(plan)
}
