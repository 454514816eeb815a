//! A trace that chrome://tracing and ui.perfetto.dev open: a process per rank, all on the launcher's clock.
//!
//! Track 0 has the steps and their phases, track 1 single messages, track 2 single waits, track 3 the passes of a stage
//! (these three with `train --trace`).
//! An arrow leads from each message's sending to its receiving. CPU use and memory are counters.

use std::collections::HashMap;
use std::io::{self, Write};

use serde_json::{Value as Json, json};

use super::{ExportError, Exported};
use crate::store::{TableRows, Value, number};

pub fn write(exported: &Exported<'_>, out: &mut dyn Write) -> Result<(), ExportError> {
    let mut events = Vec::new();
    names(&exported.table("ranks")?, &mut events);
    steps(&exported.table("steps")?, &mut events);
    messages(&exported.table("trace")?, &mut events);
    counters(&exported.table("samples")?, &mut events);
    evaluations(&exported.table("evaluations")?, &mut events);
    let document = json!({
        "displayTimeUnit": "ms",
        "otherData": {"run": exported.run.run, "state": exported.run.state, "clock": "CLOCK_MONOTONIC of the launcher's host"},
        "traceEvents": events,
    });
    serde_json::to_writer(&mut *out, &document).map_err(io::Error::from)?;
    Ok(out.write_all(b"\n")?)
}

/// A row's numbers by name; what is not there counts as 0.
fn reader<'a>(rows: &'a TableRows, row: &'a [Value]) -> impl Fn(&str) -> f64 + 'a {
    move |name| number(&row[rows.column(name)]).unwrap_or(0.0)
}

fn names(ranks: &TableRows, events: &mut Vec<Json>) {
    for row in &ranks.rows {
        let rank = reader(ranks, row)("rank") as u64;
        let role = match &row[ranks.column("role")] {
            Value::Text(role) => role,
            _ => "rank",
        };
        events.push(json!({"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": format!("{role} {rank}")}}));
        for (tid, name) in [(0, "steps"), (1, "messages"), (2, "waits"), (3, "passes")] {
            events.push(
                json!({"ph": "M", "name": "thread_name", "pid": rank, "tid": tid, "args": {"name": name}}),
            );
        }
    }
}

fn steps(rows: &TableRows, events: &mut Vec<Json>) {
    for row in &rows.rows {
        let get = reader(rows, row);
        let (rank, step, begin) = (get("rank") as u64, get("step") as u64, get("t_ns"));
        let [data, forward, backward, overlap, send, wait, apply] =
            ["data_ns", "forward_ns", "backward_ns", "overlap_ns", "send_ns", "wait_ns", "apply_ns"]
                .map(&get);
        let mut slice = |name: &str, from: f64, ns: f64, args: Json| {
            if ns > 0.0 {
                events.push(json!({
                    "ph": "X", "cat": "step", "name": name, "pid": rank, "tid": 0,
                    "ts": from / 1e3, "dur": ns / 1e3, "args": args,
                }));
            }
        };
        let whole = data + forward + backward + send + wait + apply;
        let loss = number(&row[rows.column("loss")]);
        slice("step", begin, whole, json!({"step": step, "loss": loss, "samples": get("samples") as u64}));
        slice("data", begin, data, json!({}));
        slice("forward", begin + data, forward, json!({}));
        let at = begin + data + forward;
        slice("backward", at, backward + overlap, json!({"sending_us": overlap / 1e3}));
        let exchange = send - overlap + wait + apply;
        let wait_for = number(&row[rows.column("wait_for")]).map(|rank| rank as u64);
        slice(
            "exchange",
            at + backward + overlap,
            exchange,
            json!({"send_us": (send - overlap) / 1e3, "wait_us": wait / 1e3, "wait_for": wait_for, "apply_us": apply / 1e3}),
        );
    }
}

fn messages(rows: &TableRows, events: &mut Vec<Json>) {
    let kind = rows.column("kind");
    let text = |row: &[Value]| if let Value::Text(text) = &row[kind] { text.clone() } else { String::new() };
    // Of each start of the run, the n-th message that one side sends is the n-th that the other receives.
    let mut ends: HashMap<(u64, u64, u64, u64), u8> = HashMap::new();
    let link = |row: &[Value], kind: &str| {
        let get = reader(rows, row);
        let (rank, peer, n) = (get("rank") as u64, get("peer") as u64, get("n") as u64);
        let attempt = get("attempt") as u64;
        if kind == "send" { (attempt, rank, peer, n) } else { (attempt, peer, rank, n) }
    };
    for row in &rows.rows {
        let kind = text(row);
        if kind == "send" || kind == "receive" {
            *ends.entry(link(row, &kind)).or_default() |= if kind == "send" { 1 } else { 2 };
        }
    }
    let mut ids: HashMap<(u64, u64, u64, u64), usize> = HashMap::new();
    for row in &rows.rows {
        let (get, kind) = (reader(rows, row), text(row));
        let whole = |name: &str| get(name) as u64;
        let (rank, peer, ts) = (whole("rank"), get("peer"), get("t_ns") / 1e3);
        if kind == "wait" {
            events.push(json!({
                "ph": "X", "cat": "wait", "name": if peer < 0.0 { "wait".into() } else { format!("wait for {peer}") }, "pid": rank, "tid": 2,
                "ts": ts, "dur": get("duration_ns") / 1e3, "args": {"step": whole("step")},
            }));
            continue;
        }
        if kind == "forward" || kind == "backward" {
            let letter = if kind == "forward" { 'F' } else { 'B' };
            events.push(json!({
                "ph": "X", "cat": "pass", "name": format!("{letter}{}", whole("bucket")), "pid": rank, "tid": 3,
                "ts": ts, "dur": get("duration_ns") / 1e3,
                "cname": if kind == "forward" { "thread_state_running" } else { "thread_state_runnable" },
                "args": {"step": whole("step"), "micro_batch": whole("bucket"), "slot": whole("phase")},
            }));
            continue;
        }
        let args = json!({"step": whole("step"), "bucket": whole("bucket"), "phase": whole("phase"), "bytes": whole("bytes")});
        let (name, ph) = if kind == "send" { ("send to", "s") } else { ("receive from", "f") };
        events.push(json!({
            "ph": "X", "cat": "message", "name": format!("{name} {peer}"), "pid": rank, "tid": 1,
            "ts": ts, "dur": 1, "args": args,
        }));
        let link = link(row, &kind);
        // An arrow needs both ends.
        if ends.get(&link) == Some(&3) {
            let next = ids.len();
            let id = *ids.entry(link).or_insert(next);
            events.push(json!({
                "ph": ph, "bp": "e", "cat": "message", "name": "message", "id": id,
                "pid": rank, "tid": 1, "ts": ts,
            }));
        }
    }
}

fn counters(rows: &TableRows, events: &mut Vec<Json>) {
    for pair in rows.rows.windows(2) {
        let (before, now) = (reader(rows, &pair[0]), reader(rows, &pair[1]));
        if ["rank", "attempt"].iter().any(|name| before(name) != now(name)) {
            continue;
        }
        let (rank, ts) = (now("rank") as u64, now("t_ns") / 1e3);
        let percent = |name: &str| 100e9 * (now(name) - before(name)) / (now("t_ns") - before("t_ns"));
        events.push(json!({
            "ph": "C", "name": "CPU %", "pid": rank, "ts": ts,
            "args": {"user": percent("cpu_user_s"), "system": percent("cpu_system_s")},
        }));
        events.push(json!({
            "ph": "C", "name": "memory MB", "pid": rank, "ts": ts,
            "args": {"resident": now("resident_bytes") / 1e6},
        }));
    }
}

fn evaluations(rows: &TableRows, events: &mut Vec<Json>) {
    for row in &rows.rows {
        let get = reader(rows, row);
        events.push(json!({
            "ph": "i", "s": "g", "name": "evaluation", "pid": 0, "tid": 0, "ts": get("t_ns") / 1e3,
            "args": {"step": get("step") as u64, "loss": get("loss"), "accuracy": get("accuracy")},
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::tests::recorded;

    #[test]
    fn slices_lie_within_their_step_and_arrows_have_both_ends() {
        let folder = tempfile::tempdir().unwrap();
        let (store, run) = recorded(folder.path());
        let exported = Exported { store: &store, run: &run };
        let mut bytes = Vec::new();
        write(&exported, &mut bytes).unwrap();
        let document: Json = serde_json::from_slice(&bytes).unwrap();
        let events = document["traceEvents"].as_array().unwrap();
        let count = |ph: &str| events.iter().filter(|e| e["ph"] == ph).count();
        assert_eq!((count("s"), count("f")), (2, 2), "one message each way");
        let steps: Vec<&Json> = events.iter().filter(|e| e["name"] == "step").collect();
        assert_eq!(steps.len(), 6);
        let end = |e: &Json| e["ts"].as_f64().unwrap() + e["dur"].as_f64().unwrap();
        let within = |e: &Json| {
            let inside = |s: &&&Json| {
                s["pid"] == e["pid"] && s["ts"].as_f64() <= e["ts"].as_f64() && end(s) >= end(e) - 1e-6
            };
            steps.iter().any(|s| inside(&s))
        };
        assert!(events.iter().filter(|e| e["cat"] == "step").all(within));
    }
}
