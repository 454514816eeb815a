//! How long pages of many runs take: a store of 5,000 runs and a study of as many, made out of a few real ones.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use paceline_record::Journal;
use paceline_record::store::FILE;
use paceline_statistics::median;
use serde_json::{Value, json};

use super::{Line, Report, Setup};
use crate::process::{self, Outcome};

/// Runs of the store, and of the study.
const RUNS: u64 = 5000;
/// Servers that are started, each asked while it knows nothing yet.
const ROUNDS: usize = 5;

const STUDY: &str = r#"
sampler = "random"
[workload]
epochs = 1
[axes]
workers = [1, 2]
batch = [16, 32, 64]
lr = { from = 0.01, to = 0.1, count = 1000, scale = "log" }
[[objectives]]
metric = "seconds.train"
goal = "minimize"
[[objectives]]
metric = "final_accuracy"
goal = "maximize"
[budget]
runs = 5000
"#;

/// Time from a request to the last byte of the page.
pub fn measure(setup: &Setup) -> Outcome<Report> {
    let folder = setup.work("pages");
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(failed)?;
    }
    fs::create_dir_all(&folder).map_err(failed)?;
    fs::write(folder.join("big.toml"), STUDY).map_err(failed)?;
    let store = folder.join("store");
    templates(setup, &folder, &store)?;
    many_runs(&store)?;
    many_jobs(&store)?;
    let pages = [
        ("5,000 runs: the page of all runs, first request, s", "/runs"),
        ("5,000 runs: a study's page, first request, s", "/study/big"),
        ("5,000 runs: the overview, first request, s", "/"),
        ("5,000 runs: lines of parallel coordinates, first request, s", "/runs/parallel.json"),
    ];
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    for (claim, path) in pages {
        let mut times = Vec::new();
        for round in 0..ROUNDS {
            let mut served = Served::start(setup, &store)?;
            let (first, bytes) = served.get(path)?;
            let (again, _) = served.get(path)?;
            times.push(first);
            report.runs.push(
                json!({"page": path, "round": round, "first_s": first, "again_s": again, "bytes": bytes}),
            );
        }
        report.lines.push(Line { claim: claim.into(), reached: median(&times), wanted: 1.0, at_most: true });
    }
    Ok(report)
}

/// A few real runs of the study, which the others are made after.
fn templates(setup: &Setup, folder: &Path, store: &Path) -> Outcome {
    let small = STUDY.replace("runs = 5000", "runs = 6");
    fs::write(folder.join("small.toml"), small).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut explore = setup.program();
    explore.args(["explore", "--quiet"]).arg(folder.join("small.toml")).arg("--store").arg(store);
    process::run(&mut explore)
}

/// The runs again and again, with other names, times, rates and speeds.
fn many_runs(store: &Path) -> Outcome {
    let path = store.join(FILE);
    let failed = |error: rusqlite::Error| format!("{}: {error}", path.display());
    let database = rusqlite::Connection::open(&path).map_err(failed)?;
    let mut columns = database.prepare("SELECT name FROM pragma_table_info('runs')").map_err(failed)?;
    let names: Vec<String> =
        columns.query_map([], |row| row.get(0)).and_then(Iterator::collect).map_err(failed)?;
    drop(columns);
    let new = |name: &String| match name.as_str() {
        "id" => "10000 + n".to_owned(),
        "run" => "printf('rx%06d', n)".into(),
        "started_s" | "seen_s" | "ended_s" => format!("{name} + n"),
        "plan" => "json_set(plan, '$.lr', 0.01 + 0.01 * (n % 9))".into(),
        "result" => "json_set(result, '$.samples_per_s', 1000.0 + (n * 7919) % 500)".into(),
        "train_s" => "train_s * (1 + (n * 31 % 17) / 20.0)".into(),
        _ => name.clone(),
    };
    let values: Vec<String> = names.iter().map(new).collect();
    let sql = format!(
        "WITH RECURSIVE count(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM count WHERE n < {RUNS}) \
         INSERT INTO runs ({}) SELECT {} FROM count JOIN runs ON runs.id = 1 + n % (SELECT count(*) FROM runs)",
        names.join(", "),
        values.join(", ")
    );
    database.execute(&sql, []).map(drop).map_err(failed)
}

/// A journal of as many runs.
fn many_jobs(store: &Path) -> Outcome {
    let place = |name: &str| store.join("studies").join(name).join("journal.ndjson");
    let entries = Journal::peek(&place("small")).map_err(|e| e.to_string())?;
    let find = |kind: &str, role: Option<&str>| {
        let fits =
            |entry: &&Value| entry["entry"] == kind && role.is_none_or(|role| entry["job"]["role"] == role);
        entries.iter().find(fits).cloned().ok_or_else(|| format!("the small study has no {kind}"))
    };
    let (mut study, begin) = (find("study", None)?, find("begin", Some("point"))?);
    let end = find("end", None)?;
    (study["name"], study["text"]) = ("big".into(), STUDY.into());
    let (mut journal, _) = Journal::open(&place("big")).map_err(|e| e.to_string())?;
    let mut put = |entry: &Value| journal.append(entry).map_err(|e| e.to_string());
    put(&study)?;
    for n in 0..RUNS {
        let (mut begin, mut end) = (begin.clone(), end.clone());
        begin["job"]["id"] = n.into();
        begin["job"]["levels"] = json!([n % 2, n % 3, n * 7919 % 1000]);
        (end["id"], end["run"]) = (n.into(), format!("rx{:06}", n + 1).into());
        end["end"]["metrics"]["seconds.train"] =
            (0.1 * (1 + n % 3) as f64 + 1e-4 * (n * 31 % 97) as f64).into();
        put(&begin)?;
        put(&end)?;
    }
    Ok(())
}

struct Served {
    process: Child,
    address: String,
}

impl Served {
    fn start(setup: &Setup, store: &Path) -> Outcome<Self> {
        let mut command = setup.program();
        command.args(["serve", "--quiet", "--listen", "127.0.0.1:0", "--store"]).arg(store);
        let mut process =
            command.stdout(Stdio::piped()).spawn().map_err(|e| format!("paceline serve: {e}"))?;
        let mut line = String::new();
        let out = process.stdout.take().ok_or("paceline serve has no output")?;
        BufReader::new(out).read_line(&mut line).map_err(|e| format!("paceline serve: {e}"))?;
        let address = line.trim().trim_start_matches("http://").trim_end_matches('/').to_owned();
        Ok(Self { process, address })
    }

    /// Seconds, and bytes of the answer.
    fn get(&mut self, path: &str) -> Outcome<(f64, usize)> {
        let begun = Instant::now();
        let ask = || -> std::io::Result<Vec<u8>> {
            let mut stream = TcpStream::connect(&self.address)?;
            stream.set_read_timeout(Some(Duration::from_secs(60)))?;
            write!(stream, "GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", self.address)?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer)?;
            Ok(answer)
        };
        let answer = ask().map_err(|e| format!("{}{path}: {e}", self.address))?;
        if !answer.starts_with(b"HTTP/1.1 200") {
            return Err(format!("{path}: {}", String::from_utf8_lossy(&answer[..answer.len().min(200)])));
        }
        Ok((begun.elapsed().as_secs_f64(), answer.len()))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
