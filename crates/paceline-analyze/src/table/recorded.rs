//! A study table out of recorded runs: what differs between their plans are the factors, what their results say the
//! responses.

use paceline_plan::TableError;
use paceline_record::figures::Figures;
use paceline_record::store::RunRow;
use serde_json::Value;

use super::{RawRun, Response, StudyTable, StudyTableError};

/// What of a plan is no factor: it names repeats, or where a run ends early.
const NO_FACTORS: [&str; 4] = ["seed", "stop-after-step", "model-file", "strategy-file"];

/// The level of a setting that a plan does not have.
pub const NONE: &str = "none";

/// A plan's settings by name, one level deep; those that name repeats are left out.
pub fn settings(run: &RunRow) -> Vec<(String, String)> {
    let mut settings = all_settings(run);
    settings.retain(|(name, _)| !NO_FACTORS.contains(&name.as_str()));
    settings
}

/// Every setting of a plan by name, one level deep. (Which paths buckets take follows from the others.)
pub fn all_settings(run: &RunRow) -> Vec<(String, String)> {
    let Some(plan) = run.plan.as_ref().map(paceline_plan::Plan::settings) else { return Vec::new() };
    let text = |value: &Value| match value {
        Value::Null => NONE.to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut found = Vec::new();
    for (name, value) in plan.iter().filter(|(name, _)| *name != "paths") {
        match value {
            Value::Object(parts) if name == "options" || name == "work" => {
                found.extend(parts.iter().map(|(part, value)| (part.clone(), text(value))));
            }
            value => found.push((name.clone(), text(value))),
        }
    }
    found
}

/// Names of settings that are not the same in all runs, in the order of the plans.
pub fn varied(all: &[&[(String, String)]]) -> Vec<String> {
    let mut seen: Vec<(&String, &String, usize, bool)> = Vec::new();
    for of in all {
        for (i, (name, value)) in of.iter().enumerate() {
            // Plans have their settings in one order: the place is right nearly always.
            let here = seen.get(i).is_some_and(|(known, ..)| *known == name).then_some(i);
            let known = here.or_else(|| seen.iter().position(|(known, ..)| *known == name));
            let Some(at) = known else {
                seen.push((name, value, 1, false));
                continue;
            };
            let (_, first, count, differs) = &mut seen[at];
            (*count, *differs) = (*count + 1, *differs || *first != value);
        }
    }
    // A setting that some plans do not have differs too.
    let differing = seen.into_iter().filter(|(.., count, differs)| *differs || *count < all.len());
    differing.map(|(name, ..)| name.clone()).collect()
}

/// Runs that ended well. Without names, factors are all settings that differ, and responses speed and accuracy.
pub fn recorded(
    name: &str,
    runs: &[RunRow],
    factors: &[String],
    responses: &[Response],
    figures: &Figures,
) -> Result<StudyTable, StudyTableError> {
    let ask = |flag, value: &str, problem: String| -> StudyTableError {
        TableError::Ask { flag, value: value.into(), problem }.into()
    };
    let ended: Vec<&RunRow> = runs.iter().filter(|run| run.result.is_some() && run.plan.is_some()).collect();
    let all: Vec<Vec<(String, String)>> = ended.iter().map(|run| settings(run)).collect();
    let setting = |of: &[(String, String)], name: &str| {
        of.iter().find(|(known, _)| known == name).map_or_else(|| NONE.to_owned(), |(_, value)| value.clone())
    };
    let varied = varied(&all.iter().map(Vec::as_slice).collect::<Vec<_>>());
    // Runs that differ in a setting that is no factor would pass for repeats of each other.
    let pooled: Vec<String> = match factors {
        [] => Vec::new(),
        _ => varied.iter().filter(|name| !factors.contains(name)).cloned().collect(),
    };
    let factors = if factors.is_empty() { varied } else { factors.to_vec() };
    for factor in &factors {
        if !all.iter().flatten().any(|(name, _)| name == factor) {
            let problem = "no plan of these runs has such a setting".to_owned();
            return Err(ask("--factor", factor, problem));
        }
    }
    let of = |name: &str, log| Response::figure(figures, name, log);
    let usual = || vec![of("samples_per_s", true), of("final_accuracy", false)];
    let asked = || responses.iter().map(|response| of(&response.name, response.log)).collect();
    let responses: Vec<Response> = if responses.is_empty() { usual() } else { asked() };
    let read = |name: &str| figures.find(name)?.read;
    if let Some(response) = responses.iter().find(|response| read(&response.name).is_none()) {
        let names: Vec<&str> = figures.of_runs().filter(|f| f.read.is_some()).map(|f| f.name).collect();
        return Err(ask("--response", &response.words(), format!("results have {}", names.join(", "))));
    }
    let raw = ended.iter().zip(&all).map(|(run, of)| RawRun {
        id: run.run.clone(),
        levels: factors.iter().map(|name| setting(of, name)).collect(),
        values: responses.iter().map(|r| read(&r.name)?(run.result.as_ref()?)).collect(),
        order: run.id as f64,
        ..RawRun::default()
    });
    let mut table = StudyTable::new(name, &factors, responses.clone(), raw.collect());
    let without = runs.len() - ended.len();
    if without > 0 {
        let note = format!("{without} of {} runs have no result: they failed, or are under way", runs.len());
        table.notes.push(note);
    }
    if !pooled.is_empty() {
        table.notes.push(format!(
            "these runs differ in {} too, which is no --factor: what that does counts as noise; add it, or analyse \
             fewer runs",
            pooled.join(", ")
        ));
    }
    if ended.is_empty() {
        return Err(ask("--store", "", "no run in it has ended well".into()));
    }
    Ok(table)
}
