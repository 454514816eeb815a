//! Prometheus text: the run's figures, and the last sample of every rank, link and machine.

use std::fmt::Write as _;
use std::io::Write;

use super::{ExportError, Exported};
use crate::store::{Value, number};

pub fn write(exported: &Exported<'_>, out: &mut dyn Write) -> Result<(), ExportError> {
    let run = exported.run;
    let mut text = String::new();
    let mut one = |name: &str, kind: &str, about: &str, value: Option<f64>| {
        if let Some(value) = value {
            let _ = writeln!(text, "# HELP paceline_run_{name} {about}\n# TYPE paceline_run_{name} {kind}");
            let _ = writeln!(text, "paceline_run_{name}{{run=\"{}\"}} {value}", label(&run.run));
        }
    };
    one("steps_done", "counter", "Steps done.", Some(run.steps_done as f64));
    one("samples_done", "counter", "Samples done.", run.samples_done.map(|n| n as f64));
    one("train_seconds", "counter", "The training clock in s.", run.train_s);
    one("train_loss", "gauge", "Mean loss of the last step.", run.train_loss);
    one("accuracy", "gauge", "Fraction of the test split that was right.", run.accuracy);
    one(
        "dropped_rows",
        "counter",
        "Rows of the record that there was no room for.",
        Some(run.dropped_rows as f64),
    );
    let state = format!("{{run=\"{}\",state=\"{}\"}}", label(&run.run), label(&run.state));
    let _ = writeln!(text, "# HELP paceline_run_state The run's state.\n# TYPE paceline_run_state gauge");
    let _ = writeln!(text, "paceline_run_state{state} 1");
    for (table, metrics) in exported.store.metrics.tables() {
        let rows = exported.table(table)?;
        let keys: Vec<usize> =
            rows.table.key.iter().filter(|k| **k != "t_ns").map(|k| rows.column(k)).collect();
        // Rows lie in the order of their keys, time last: the last of each group is the latest.
        let groups = rows.rows.chunk_by(|a, b| keys.iter().all(|&k| a[k] == b[k]));
        let last: Vec<&Vec<Value>> = groups.filter_map(|group| group.last()).collect();
        let subject = match table {
            "samples" => "rank",
            "links" => "link",
            "host_samples" => "host",
            "gpus" => "gpu",
            _ => "interface",
        };
        for m in metrics {
            let name = format!("paceline_{subject}_{}", m.name);
            let column = rows.column(m.name);
            let mut head =
                Some(format!("# HELP {name} {} ({})\n# TYPE {name} {}\n", m.about, m.unit, m.kind.name()));
            for row in &last {
                let Some(value) = number(&row[column]) else { continue };
                text += &head.take().unwrap_or_default();
                let mut labels = vec![format!("run=\"{}\"", label(&run.run))];
                labels.extend(keys.iter().skip(1).map(|&k| {
                    let value = match &row[k] {
                        Value::Text(text) => label(text),
                        value => number(value).unwrap_or(0.0).to_string(),
                    };
                    format!("{}=\"{value}\"", rows.table.columns[k].name)
                }));
                let _ = writeln!(text, "{name}{{{}}} {value}", labels.join(","));
            }
        }
    }
    Ok(out.write_all(text.as_bytes())?)
}

fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
