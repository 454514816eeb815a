//! A study for other tools: a sheet with a row per run (its levels, how it ended, its figures) and one with a row per
//! rank of every recorded run (where its time went, what it took).

use std::collections::BTreeSet;

use paceline_explore::schedule::StudyRun;
use paceline_plan::{Terminator, to_csv};
use paceline_record::export::{Exported, RunSummary};
use paceline_record::store::{RecordError, Store};
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

/// Every run, in the order in which they were made.
pub fn runs(known: &StudyHistory) -> StudySheet {
    let factors = known.factors();
    let axes: Vec<&String> = factors.iter().collect();
    let names: BTreeSet<&String> =
        known.made.iter().filter_map(StudyRun::metrics).flatten().map(|(n, _)| n).collect();
    let mut columns: Vec<String> =
        ["number", "for", "state", "share", "repeat", "run"].map(String::from).into();
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
        let levels = known.levels(job);
        row.extend(axes.iter().map(|axis| json!(levels.get(*axis).map(ToString::to_string))));
        row.extend(names.iter().map(|name| json!(made.metrics().and_then(|figures| figures.get(*name)))));
        row
    };
    let rows = known.made.iter().zip(&known.runs).map(row).collect();
    columns.extend(titles);
    StudySheet { name: "runs", columns, rows }
}

/// Every rank of every run that is recorded in the store.
pub fn ranks(known: &StudyHistory, store: &Store) -> Result<StudySheet, RecordError> {
    let columns = ["number"].into_iter().chain(OF_RANKS.split(' ')).map(String::from).collect();
    let mut rows = Vec::new();
    let recorded: Vec<_> = store.runs()?;
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

    /// As a list of objects.
    pub fn json(&self) -> Value {
        let row = |row: &Vec<Value>| -> Value {
            let pairs = self.columns.iter().cloned().zip(row.iter().cloned());
            pairs.filter(|(_, value)| !value.is_null()).collect::<Map<_, _>>().into()
        };
        self.rows.iter().map(row).collect()
    }
}
