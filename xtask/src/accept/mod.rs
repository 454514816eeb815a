//! `cargo xtask accept`: what needs time or a quiet machine. Every raw run is kept in `bench/accept/`;
//! speed is the ratio of medians of at least five runs that alternate with the peer's.
//!
//! A measurement lists what it needs ([`need`]). Where that is missing, it is not measured, which is no failure. With
//! `--binary` and `--python`, this program measures on machines without cargo, pip, apt and the repository ([`setup`]).

mod accuracy;
mod averaging;
mod before;
mod build;
mod chaos;
mod compare;
mod compression;
mod compute;
mod coverage;
mod datasets;
mod drift;
mod ecosystem;
mod elastic_peers;
mod engines;
mod exchange;
mod exits;
mod explain;
mod first_run;
mod footprint;
mod many_workers;
mod need;
mod network;
mod options;
mod overhead;
mod pages;
mod peers;
mod pipeline;
mod prediction;
mod project;
mod report;
mod samplers;
mod setup;
mod simulate;
mod staged;
mod stragglers;
mod studies;
mod survive;
mod survive_predicted;
mod systems;
mod table;
#[cfg(test)]
mod tests;
mod torch;

use std::fs;

use need::Need;
use options::Options;
use serde_json::{Value, json};
pub use setup::Setup;
use table::MEASUREMENTS;

use crate::process::{self, Outcome, cargo};

/// One line of the contract, measured.
pub struct Line {
    /// What must hold.
    pub claim: String,
    /// The figure reached.
    pub reached: f64,
    /// The figure that is asked for.
    pub wanted: f64,
    /// Whether smaller is better.
    pub at_most: bool,
}

impl Line {
    /// A line of these words.
    pub fn new(claim: &str, reached: f64, wanted: f64, at_most: bool) -> Self {
        Self { claim: claim.into(), reached, wanted, at_most }
    }

    fn holds(&self) -> bool {
        if self.at_most { self.reached <= self.wanted } else { self.reached >= self.wanted }
    }
}

/// A measurement: its lines, and every raw run.
pub struct Report {
    /// The lines.
    pub lines: Vec<Line>,
    /// The runs, in the order in which they were made.
    pub runs: Vec<Value>,
}

/// Something to measure.
pub struct Measurement {
    name: &'static str,
    about: &'static str,
    /// Checked before it runs, in this order.
    needs: &'static [Need],
    /// Flags that it alone has.
    flags: &'static [&'static str],
    run: Run,
}

/// How a measurement is made.
enum Run {
    /// In one piece.
    Whole(fn(&Setup) -> Outcome<Report>),
    /// Part by part: each is kept as soon as it is over, and `--only` measures one and leaves what is kept of the others.
    Parts(&'static [&'static str], fn(&Setup, &str) -> Outcome<Report>),
    /// In parts that it tells apart, and keeps, by itself.
    OwnParts(&'static [&'static str], fn(&Setup) -> Outcome<Report>),
}

impl Measurement {
    /// What `--only` can name.
    fn parts(&self) -> &'static [&'static str] {
        match self.run {
            Run::Whole(_) => &[],
            Run::Parts(parts, _) | Run::OwnParts(parts, _) => parts,
        }
    }

    /// Makes it, part by part; how many lines do not hold.
    fn make(&self, setup: &Setup) -> Outcome<usize> {
        let (parts, run) = match self.run {
            Run::Whole(run) | Run::OwnParts(_, run) => return judge(self.name, setup, None, &run(setup)?),
            Run::Parts(parts, run) => (parts, run),
        };
        let wanted = |part: &&&str| setup.only.as_deref().is_none_or(|only| only == **part);
        let mut misses = 0;
        for part in parts.iter().filter(wanted) {
            misses += judge(self.name, setup, Some(part), &run(setup, part)?)?;
        }
        Ok(misses)
    }
}

/// Runs the named measurements (all without a name) and fails if a line does not hold.
pub fn run(words: &[&str]) -> Outcome {
    let options = Options::parse(words, MEASUREMENTS)?;
    if options.list {
        MEASUREMENTS.iter().for_each(|m| println!("{}", listed(m)));
        return Ok(());
    }
    let setup = Setup::new(&options)?;
    let chosen = |m: &&Measurement| options.names.is_empty() || options.names.contains(&m.name);
    let chosen: Vec<&Measurement> = MEASUREMENTS.iter().filter(chosen).collect();
    if setup.installs && chosen.iter().any(|m| m.needs.contains(&Need::Paceline)) {
        process::run(&mut cargo(&["build", "--release"]))?;
    }
    missed(measure(&chosen, &setup)?)
}

/// Runs measurements whose needs are met; how many lines do not hold.
fn measure(measurements: &[&Measurement], setup: &Setup) -> Outcome<usize> {
    let mut misses = 0;
    for measurement in measurements {
        println!("== {}: {}", measurement.name, measurement.about);
        match measurement.needs.iter().find_map(|need| need.missing(setup)) {
            Some(why) => unmeasured(measurement.name, setup, &why).iter().for_each(|line| println!("{line}")),
            None => misses += measurement.make(setup)?,
        }
    }
    Ok(misses)
}

/// The lines of a measurement that cannot be made here, by the raw runs that are kept of it.
fn unmeasured(name: &str, setup: &Setup, why: &str) -> Vec<String> {
    let kept = kept(name, setup);
    let claims = kept["lines"].as_array().into_iter().flatten().filter_map(|line| line["claim"].as_str());
    let mut claims: Vec<&str> = claims.collect();
    if claims.is_empty() {
        claims.push(name);
    }
    claims.iter().map(|claim| format!("-    {claim:<62} not measured here: {why}")).collect()
}

/// A measurement's line of `--list`.
fn listed(measurement: &Measurement) -> String {
    let needs: Vec<String> = measurement.needs.iter().map(Need::to_string).collect();
    let needs = if needs.is_empty() { "nothing".into() } else { needs.join(", ") };
    let parts = match measurement.parts() {
        [] => String::new(),
        parts => format!(" [--only {}]", parts.join("|")),
    };
    format!("{:<16} {}{parts}\n{:<16} needs {needs}", measurement.name, measurement.about, "")
}

fn missed(lines: usize) -> Outcome {
    if lines == 0 { Ok(()) } else { Err(format!("{lines} lines were not reached")) }
}

/// Shows and keeps what was measured of a part, or of the whole; how many lines do not hold.
fn judge(name: &str, setup: &Setup, part: Option<&str>, report: &Report) -> Outcome<usize> {
    for line in &report.lines {
        let (mark, sign) = (if line.holds() { "ok  " } else { "MISS" }, if line.at_most { "≤" } else { "≥" });
        println!("{mark} {:<62} {:>9.3} {sign} {}", line.claim, line.reached, line.wanted);
    }
    save(name, setup, part, report)?;
    Ok(report.lines.iter().filter(|line| !line.holds()).count())
}

/// Keeps what was measured: of a part beside what is kept of the others.
fn save(name: &str, setup: &Setup, part: Option<&str>, report: &Report) -> Outcome {
    let path = setup.out.join(format!("{name}.json"));
    let lines = report.lines.iter().map(
        |l| json!({"claim": l.claim, "reached": l.reached, "wanted": l.wanted, "at_most": l.at_most, "holds": l.holds()}),
    );
    let (mut lines, mut runs) = (lines.collect::<Vec<_>>(), report.runs.clone());
    if let Some(part) = part {
        let kept = kept(name, setup);
        for (all, key) in [(&mut lines, "lines"), (&mut runs, "runs")] {
            all.iter_mut().for_each(|value| value["part"] = part.into());
            let others = kept[key].as_array().into_iter().flatten();
            all.splice(
                0..0,
                others.filter(|value| value["part"].is_string() && value["part"] != part).cloned(),
            );
        }
    }
    let document = json!({"machine": process::machine(), "lines": lines, "runs": runs});
    let text = serde_json::to_string_pretty(&document).expect("plain data") + "\n";
    fs::create_dir_all(&setup.out)
        .and_then(|()| fs::write(&path, text))
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// What is kept of a measurement; null if there is nothing.
fn kept(name: &str, setup: &Setup) -> Value {
    let kept = fs::read_to_string(setup.out.join(format!("{name}.json"))).unwrap_or_default();
    serde_json::from_str(&kept).unwrap_or_default()
}

/// A number out of a JSON document.
pub fn number(value: &Value, path: &str) -> Outcome<f64> {
    value.pointer(path).and_then(Value::as_f64).ok_or_else(|| format!("no number at {path} in {value}"))
}
