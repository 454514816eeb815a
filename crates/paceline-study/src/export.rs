//! A study for other tools: a sheet with a row per run (its levels, how it ended, its figures) and one with a row per
//! rank of every recorded run (where its time went, what it took).

use std::collections::BTreeSet;

use paceline_explore::schedule::StudyRun;
use paceline_plan::{Terminator, to_csv};
use paceline_record::export::{Exported, RunSummary};
use paceline_record::store::{RecordError, RunRow, Store};
use serde_json::{Map, Value, json};

use crate::state::StudyHistory;

/// Named columns and rows.
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct StudySheet {
    pub name: &'static str,
    pub columns: Vec<String>,
    pub rows: Vec<Vec<Value>>,
}

/// What ranks are told with, in this order.
const OF_RANKS: &str = "rank role steps data_s forward_s backward_s send_s wait_s wait_for apply_s staleness cpu_percent \
                        memory_bytes disk_bytes switches sent_bytes received_bytes";

/// Every run, in the order in which they were made. What `recorded` runs of the store say is added: their workload,
/// dataset and network.
pub fn runs(known: &StudyHistory, recorded: &[RunRow]) -> StudySheet {
    let factors = known.factors();
    let axes: Vec<&String> = factors.iter().collect();
    let names: BTreeSet<&String> =
        known.made.iter().filter_map(StudyRun::metrics).flatten().map(|(n, _)| n).collect();
    let of = |run: &Option<String>| recorded.iter().find(|row| Some(&row.run) == run.as_ref());
    let own: Vec<&RunRow> = known.runs.iter().filter_map(of).collect();
    let is_axis = |name: &str| axes.iter().any(|axis| *axis == name);
    let mut said = OF_RECORDS.to_vec();
    said.retain(|(name, read)| !is_axis(name) && own.iter().any(|run| read(run).is_some()));
    let mut columns: Vec<String> =
        ["number", "for", "state", "share", "repeat", "run"].map(String::from).into();
    columns.extend(said.iter().map(|(name, _)| (*name).to_owned()));
    columns.extend(axes.iter().map(|axis| (*axis).clone()));
    // A figure may be called like an axis: `steps` asked for and done.
    let figure =
        |name: &&String| if columns.contains(name) { format!("result.{name}") } else { (*name).clone() };
    let titles: Vec<String> = names.iter().map(figure).collect();
    let row = |(made, run): (&StudyRun, &Option<String>)| {
        let job = &made.job;
        let state = made.end.as_ref().map(|end| json!(end)["state"].clone());
        let state = state.unwrap_or_else(|| "begun".into());
        let mut row =
            vec![json!(job.id), json!(job.role), state, json!(job.share), json!(job.repeat), json!(run)];
        let record = of(run);
        row.extend(said.iter().map(|(_, read)| json!(record.and_then(*read))));
        let levels = known.levels(job);
        row.extend(axes.iter().map(|axis| json!(levels.get(*axis))));
        row.extend(names.iter().map(|name| json!(made.metrics().and_then(|figures| figures.get(*name)))));
        row
    };
    let rows = known.made.iter().zip(&known.runs).map(row).collect();
    columns.extend(titles);
    StudySheet { name: "runs", columns, rows }
}

/// Reads a column from a recorded run.
type ReadColumn = fn(&RunRow) -> Option<String>;

/// What records say of runs that the journal does not.
const OF_RECORDS: [(&str, ReadColumn); 5] = [
    ("workload", |run| run.labels.workload.clone()),
    ("data", |run| Some(run.plan.as_ref()?.data.clone())),
    ("model", |run| Some(run.plan.as_ref()?.model.clone())),
    ("name", |run| run.labels.name.clone()),
    ("tags", |run| Some(run.labels.tags.join(" ")).filter(|tags| !tags.is_empty())),
];

/// The recorded runs of a study, each with a name for a folder of its own: its number and its levels.
pub fn run_folders<'a>(known: &StudyHistory, recorded: &'a [RunRow]) -> Vec<(String, &'a RunRow)> {
    let folder = |made: &StudyRun| {
        let levels = known.levels(&made.job);
        let levels: Vec<String> = levels.iter().map(|(name, level)| format!("{name}={level}")).collect();
        let kept = |c: char| if c.is_alphanumeric() || "=.,-".contains(c) { c } else { '_' };
        let name = format!("{:03}-{}", made.job.id, levels.join(","));
        name.chars().take(LONGEST_FOLDER).map(kept).collect::<String>().trim_end_matches('-').to_owned()
    };
    let found = |run: &Option<String>| recorded.iter().find(|row| Some(&row.run) == run.as_ref());
    let runs = known.made.iter().zip(&known.runs);
    runs.filter_map(|(made, run)| Some((folder(made), found(run)?))).collect()
}

/// Most characters of a folder's name.
const LONGEST_FOLDER: usize = 120;

/// Every rank of every run that is recorded in the store.
pub fn ranks(known: &StudyHistory, store: &Store, recorded: &[RunRow]) -> Result<StudySheet, RecordError> {
    let columns = ["number"].into_iter().chain(OF_RANKS.split(' ')).map(String::from).collect();
    let mut rows = Vec::new();
    for (made, run) in known.made.iter().zip(&known.runs) {
        let Some(run) = recorded.iter().find(|row| Some(&row.run) == run.as_ref()) else { continue };
        let summary = RunSummary::of(&Exported { store, run })?;
        for rank in &summary.ranks {
            let sum = |of: &dyn Fn(&paceline_record::export::LinkSummary) -> u64| -> u64 {
                summary.links.iter().filter(|link| of(link) == rank.rank).map(|link| link.bytes).sum()
            };
            let mut told = json!(rank);
            told["sent_bytes"] = json!(sum(&|link| link.from));
            told["received_bytes"] = json!(sum(&|link| link.to));
            let cells = OF_RANKS.split(' ').map(|name| told[name].take());
            rows.push([json!(made.job.id)].into_iter().chain(cells).collect());
        }
    }
    Ok(StudySheet { name: "ranks", columns, rows })
}

impl StudySheet {
    /// As comma-separated values with a header; what is not there is an empty field.
    pub fn csv(&self) -> String {
        let field = |value: &Value| match value {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let rows = self.rows.iter().map(|row| row.iter().map(field).collect());
        to_csv(Terminator::CRLF, [self.columns.clone()].into_iter().chain(rows))
    }

    /// As a Parquet file: numbers as numbers, what is not there as null.
    pub fn parquet(&self) -> Vec<u8> {
        paceline_record::export::parquet(self.name, &self.columns, &self.rows)
    }

    /// As a list of objects.
    pub fn json(&self) -> Value {
        let row = |row: &Vec<Value>| -> Value {
            let pairs = self.columns.iter().cloned().zip(row.iter().cloned());
            pairs.filter(|(_, value)| !value.is_null()).collect::<Map<_, _>>().into()
        };
        self.rows.iter().map(row).collect()
    }
}
