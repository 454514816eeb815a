//! How often each configuration of a study was run: what its pages say of differences stands on that.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use paceline_plan::Sheet;

use super::{Folder, names, pages_of, read};
use crate::process::{Outcome, root};

/// The repeats that every configuration has.
pub const LEAST: usize = 3;

/// The kept runs of a study, counted.
pub struct KeptStudy {
    /// Its name.
    pub name: String,
    /// Each part by name: how often its configurations were run.
    pub parts: BTreeMap<String, Vec<usize>>,
    /// Whether its pages are those of the kept runs.
    pub pages_agree: bool,
}

impl KeptStudy {
    /// How often each configuration was run.
    fn counted(&self) -> impl Iterator<Item = usize> + '_ {
        self.parts.values().flatten().copied()
    }

    /// Configurations.
    pub fn configurations(&self) -> usize {
        self.counted().count()
    }

    /// Their repeats.
    pub fn runs(&self) -> usize {
        self.counted().sum()
    }

    /// Repeats of the configuration that has the fewest.
    pub fn least(&self) -> usize {
        self.counted().min().unwrap_or(0)
    }
}

/// Counts what is kept of every study.
pub fn kept() -> Outcome<Vec<KeptStudy>> {
    names().iter().map(|name| count(&Folder::open(name)?)).collect()
}

fn count(folder: &Folder) -> Outcome<KeptStudy> {
    let part = |part: &String| {
        let runs = folder.path.join("data").join(part).join("runs.csv");
        Ok((part.clone(), repeats(&folder.text(part)?, &runs)?))
    };
    let parts = folder.parts.iter().map(part).collect::<Outcome<_>>()?;
    let pages = pages_of(folder)?;
    let pages_agree =
        pages.iter().all(|(path, text)| read(&root().join(path)).is_ok_and(|there| there == *text));
    Ok(KeptStudy { name: folder.name.clone(), parts, pages_agree })
}

/// How often each configuration was run to its end, in the order of their levels. A run that diverges has ended: that is
/// what it tells.
fn repeats(study: &str, runs: &Path) -> Outcome<Vec<usize>> {
    let study: toml::Table = toml::from_str(study).map_err(|e| e.to_string())?;
    let axes = study.get("axes").and_then(toml::Value::as_table).ok_or("a study has axes")?;
    let sheet = Sheet::read(runs).map_err(|e| format!("{}: {e}", runs.display()))?;
    let column = |name: &str| sheet.columns.iter().position(|column| column == name);
    let needed = |name: &str| column(name).ok_or_else(|| format!("{}: no column `{name}`", runs.display()));
    let [purpose, state, repeat] = ["for", "state", "repeat"].map(needed);
    let (purpose, state, repeat) = (purpose?, state?, repeat?);
    let mut levels: Vec<usize> = axes.keys().map(|axis| needed(axis)).collect::<Outcome<_>>()?;
    levels.extend(column("workload"));
    let mut counted: BTreeMap<Vec<&str>, BTreeSet<&str>> = BTreeMap::new();
    for row in &sheet.rows {
        let field = |column: usize| row.fields[column].as_str();
        if field(purpose) == "point" {
            let made = counted.entry(levels.iter().map(|column| field(*column)).collect()).or_default();
            if ["ok", "missed", "diverged"].contains(&field(state)) {
                made.insert(field(repeat));
            }
        }
    }
    Ok(counted.values().map(BTreeSet::len).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn repeats_are_counted_by_configuration_and_workload() {
        let path = std::env::temp_dir().join(format!("paceline-repeats-{}.csv", std::process::id()));
        let study = "[axes]\nworkers = [1, 2]\nservers = [1]\n";
        let runs = "for,state,repeat,workload,workers,servers,s\r\n\
            control,ok,0,a,1,,1\r\npoint,ok,0,a,1,,1\r\npoint,diverged,1,a,1,,\r\npoint,failed,2,a,1,,\r\n\
            point,ok,0,b,1,,1\r\npoint,ok,0,b,2,1,1\r\npoint,ok,1,b,2,1,1\r\npoint,ok,2,b,2,1,1\r\n";
        fs::write(&path, runs).unwrap();
        assert_eq!(repeats(study, &path).unwrap(), [2, 1, 3]);
        assert!(repeats("[axes]\nbatch = [1]\n", &path).unwrap_err().contains("no column `batch`"));
        fs::remove_file(&path).unwrap();
    }
}
