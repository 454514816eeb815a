//! Several tables as one: which of them a run is from is its workload.

use crate::analysis::noises;
use crate::anova::Anova;

use super::{RawRun, Response, Run, StudyTable, StudyTableError, WORKLOAD, WorkloadTraits};

/// Joins tables that measured the same. Each is a workload, or has its own; where two of these have one name, the table's
/// is put before it. A factor that a table does not have is joined by the setting that its runs all had; where nobody
/// knows that, it is left out. Drift is taken out of each table by itself, since they were not made together.
pub fn joined(tables: &[StudyTable]) -> Result<StudyTable, StudyTableError> {
    let title = tables.iter().map(|table| table.name.as_str()).collect::<Vec<_>>().join(", ");
    let apart = |problem: String| StudyTableError::Apart { names: title.clone(), problem };
    for (i, table) in tables.iter().enumerate() {
        if tables[..i].iter().any(|other| other.name == table.name) {
            return Err(apart(format!("{} is there twice, and names are what tells them apart", table.name)));
        }
    }
    let mut notes = Vec::new();
    let responses = responses(tables, &mut notes).map_err(apart)?;
    let names = workload_names(tables);
    let traits: Vec<Vec<WorkloadTraits>> =
        tables.iter().zip(&names).map(|(table, names)| renamed(table, names)).collect();
    // The setting that all workloads of a table have.
    let fixed = |t: usize, factor: &str| {
        let first = traits[t].first()?.settings.get(factor)?;
        traits[t].iter().all(|one| one.settings.get(factor) == Some(first)).then_some(first)
    };
    let mut factors: Vec<String> = Vec::new();
    let all = tables.iter().flat_map(|table| table.factors.iter().map(|f| f.name.clone()));
    for name in paceline_statistics::distinct(all).into_iter().filter(|name| name != WORKLOAD) {
        let lacks = |t: &usize| tables[*t].factor(&name).is_none() && fixed(*t, &name).is_none();
        match (0..tables.len()).find(lacks) {
            None => factors.push(name),
            Some(t) => notes.push(format!(
                "{name} is no factor here, since {} does not have it: what it does elsewhere counts as noise",
                tables[t].name
            )),
        }
    }
    if factors.is_empty() {
        return Err(apart("they have no factor in common".into()));
    }
    let mut raw: Vec<RawRun> = Vec::new();
    for (t, table) in tables.iter().enumerate() {
        let mut steady = table.steady(&noises(table, Anova::new(table, 0).as_ref()));
        steady.runs.sort_by(|a, b| a.order.total_cmp(&b.order));
        let own: Vec<usize> = responses.iter().filter_map(|response| place(table, response)).collect();
        let before = raw.len();
        let one = |(i, run): (usize, &Run)| {
            let level = |name: &String| match table.factor(name) {
                Some(f) => table.factors[f].levels[run.levels[f]].text.clone(),
                None => fixed(t, name).cloned().unwrap_or_default(),
            };
            let workload = names[t][table.workload.map_or(0, |f| run.levels[f])].clone();
            RawRun {
                id: if run.id.starts_with('#') {
                    format!("{} {}", table.name, run.id)
                } else {
                    run.id.clone()
                },
                levels: [workload].into_iter().chain(factors.iter().map(level)).collect(),
                values: own.iter().map(|r| run.values[*r]).collect(),
                bounds: own.iter().map(|r| run.bounds[*r]).collect(),
                order: (before + i) as f64,
                ..RawRun {
                    block: run.block.clone(),
                    role: run.role,
                    forbidden: run.forbidden,
                    ..RawRun::default()
                }
            }
        };
        raw.extend(steady.runs.iter().enumerate().map(one));
        notes.extend(table.notes.iter().map(|note| format!("{}: {note}", table.name)));
    }
    let all: Vec<String> = [WORKLOAD.to_owned()].into_iter().chain(factors).collect();
    let mut joined = StudyTable::new(&title, &all, responses, raw);
    let alone = &tables[0].alone;
    joined.alone = if tables.iter().all(|table| table.alone == *alone) { alone.clone() } else { Vec::new() };
    joined.workloads = traits.into_iter().flatten().collect();
    joined.notes = notes;
    Ok(joined)
}

fn place(table: &StudyTable, response: &Response) -> Option<usize> {
    table.responses.iter().position(|own| own.name == response.name)
}

/// What all tables measured; they must agree on what is explained.
fn responses(tables: &[StudyTable], notes: &mut Vec<String>) -> Result<Vec<Response>, String> {
    let first = &tables[0].responses[0];
    for table in tables {
        let own = &table.responses[0];
        if (&own.name, own.goal) != (&first.name, first.goal) {
            let goal = |r: &Response| format!("{:?} {}", r.goal, r.name).to_lowercase();
            return Err(format!(
                "{} wants to {}, {} to {}: their first objective must be the same",
                tables[0].name,
                goal(first),
                table.name,
                goal(own)
            ));
        }
    }
    let mut common = Vec::new();
    for response in &tables[0].responses {
        let own = tables.iter().map(|table| place(table, response).map(|r| &table.responses[r]));
        match own.collect::<Option<Vec<&Response>>>() {
            // A logarithm needs positive figures everywhere.
            Some(all) => common.push(Response { log: all.iter().all(|r| r.log), ..response.clone() }),
            None => notes.push(format!("{} is left out: not all measured it", response.name)),
        }
    }
    Ok(common)
}

/// Names of the workloads of each table, by level of its workload factor.
fn workload_names(tables: &[StudyTable]) -> Vec<Vec<String>> {
    let own = |table: &StudyTable| match table.workload {
        Some(f) => table.factors[f].levels.iter().map(|level| level.text.clone()).collect(),
        None => vec![table.name.clone()],
    };
    let mut names: Vec<Vec<String>> = tables.iter().map(own).collect();
    let all: Vec<String> = names.iter().flatten().cloned().collect();
    let twice = |name: &String| all.iter().filter(|other| *other == name).count() > 1;
    for (table, names) in tables.iter().zip(&mut names) {
        names
            .iter_mut()
            .filter(|name| twice(name))
            .for_each(|name| *name = format!("{}: {name}", table.name));
    }
    names
}

/// What is known about a table's workloads, under the names that they have now.
fn renamed(table: &StudyTable, names: &[String]) -> Vec<WorkloadTraits> {
    let old = |i: usize| table.workload.map_or(&table.name, |f| &table.factors[f].levels[i].text);
    let known = |(i, name): (usize, &String)| {
        let known = table.traits(old(i)).cloned().unwrap_or_default();
        WorkloadTraits { name: name.clone(), ..known }
    };
    names.iter().enumerate().map(known).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn table(name: &str, factors: &[&str], rows: &[(&[&str], f64)], response: &str) -> StudyTable {
        let run = |(i, (levels, value)): (usize, &(&[&str], f64))| RawRun {
            id: format!("#{i}"),
            levels: levels.iter().map(ToString::to_string).collect(),
            values: vec![Some(*value)],
            order: i as f64,
            ..RawRun::default()
        };
        let factors: Vec<String> = factors.iter().map(ToString::to_string).collect();
        let responses = vec![Response::parse(response).unwrap()];
        StudyTable::new(name, &factors, responses, rows.iter().enumerate().map(run).collect())
    }

    #[test]
    fn tables_are_workloads_and_fixed_settings_are_levels() {
        let a = table("a", &["batch", "lr"], &[(&["16", "0.1"], 1.0), (&["64", "0.1"], 2.0)], "log(t_s)");
        let mut b = table("b", &["batch"], &[(&["16"], 3.0), (&["64"], 4.0)], "log(t_s)");
        let without = joined(&[a.clone(), b.clone()]).unwrap();
        let names = |t: &StudyTable| t.factors.iter().map(|f| f.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&without), ["workload", "batch"]);
        assert!(
            without.notes[0].starts_with("lr is no factor here, since b does not have it"),
            "{:?}",
            without.notes
        );
        b.workloads = vec![WorkloadTraits {
            name: "b".into(),
            settings: BTreeMap::from([("lr".into(), "0.1".into())]),
            ..WorkloadTraits::default()
        }];
        let both = joined(&[a.clone(), b.clone()]).unwrap();
        assert_eq!(
            (names(&both), both.workload),
            (vec!["workload".into(), "batch".into(), "lr".into()], Some(0))
        );
        assert_eq!(both.factors[2].levels.len(), 1, "what was fixed in one is a level of the other");
        assert_eq!(both.runs[2].id, "b #0");
        assert!(both.notes.is_empty(), "{:?}", both.notes);
        // Workloads of one name in two studies are told apart.
        let c =
            table("c", &["workload", "batch"], &[(&["mlp", "16"], 1.0), (&["lenet", "16"], 1.0)], "log(t_s)");
        let d = table("d", &["workload", "batch"], &[(&["mlp", "16"], 1.0), (&["x", "64"], 1.0)], "log(t_s)");
        let levels: Vec<String> =
            joined(&[c, d]).unwrap().factors[0].levels.iter().map(|l| l.text.clone()).collect();
        assert_eq!(levels, ["c: mlp", "d: mlp", "lenet", "x"]);
    }

    #[test]
    fn what_measured_something_else_is_not_joined() {
        let a = table("a", &["batch"], &[(&["16"], 1.0)], "t_s");
        let b = table("b", &["batch"], &[(&["16"], 1.0)], "accuracy");
        let wrong = |tables: &[StudyTable]| joined(tables).unwrap_err().to_string();
        let objectives = wrong(&[a.clone(), b]);
        assert_eq!(
            objectives,
            "a, b cannot be analysed together: a wants to minimize t_s, b to minimize accuracy: their first objective must \
             be the same"
        );
        assert!(wrong(&[a.clone(), a.clone()]).contains("a is there twice"));
        let c = table("c", &["lr"], &[(&["1"], 1.0)], "t_s");
        assert!(wrong(&[a, c]).ends_with("they have no factor in common"));
    }
}
