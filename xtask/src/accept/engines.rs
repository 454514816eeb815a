//! Engines in Python: three processes on a local Ray cluster and on a local Spark cluster give the parameters of one
//! machine, bit for bit (`examples/engines/`).

use std::process::Command;

use serde_json::json;

use super::{Line, Report, Setup, peers};
use crate::process::{Outcome, last_json, root};

/// A run that is soon over; the way is the same on one machine and on several.
const FLAGS: &[&str] =
    &["--steps", "40", "--batch", "24", "--bucket", "64KiB", "--strategy", "ring-allreduce", "--quiet"];

/// Trains on each, and alone.
pub fn measure(setup: &Setup) -> Outcome<Report> {
    let folder = setup.work("engines");
    let _ = std::fs::remove_dir_all(&folder);
    let mut command = setup.program();
    let alone = last_json(command.args(["train", "--no-record", "--workers", "3"]).args(FLAGS))?;
    let mut report = Report { lines: Vec::new(), runs: vec![json!({"engine": "none", "result": alone})] };
    for (engine, script) in
        [("Ray, three raylets", "on_ray.py"), ("Spark, local-cluster[3,1,1024]", "on_spark.py")]
    {
        let mut command = Command::new(peers::python(setup));
        command.arg(root().join("examples/engines").join(script)).arg(&setup.binary).arg(folder.join(script));
        command.args(FLAGS).env("PYTHONPATH", root().join("python")).env("PYTHONDONTWRITEBYTECODE", "1");
        let result = last_json(&mut command)?;
        let same = ["params_sha256", "steps", "samples"].iter().all(|field| result[field] == alone[field]);
        let hosts = result["ranks"].as_array().map_or(0, Vec::len);
        let claim = format!("{engine}: runs on 3 hosts with the bits of one machine");
        report.lines.push(Line::new(&claim, f64::from(same && hosts == 3), 1.0, false));
        report.runs.push(json!({"engine": engine, "result": result}));
    }
    Ok(report)
}
