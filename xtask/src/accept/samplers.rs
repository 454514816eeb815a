//! Samplers on tables of runs made by others, beside Optuna's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use paceline_statistics::mean;
use serde_json::{Value, json};

use super::{Line, Report, Setup, number, peers};
use crate::process::{self, Outcome, last_json, root};

/// Seeds per sampler.
const SEEDS: usize = 50;
/// Resamples of a bootstrap.
const DRAWS: u64 = 4000;

/// What each table is asked; also read by the peer's script.
const SPECS: &[&str] = &["lynceus_rnn", "trimtuner_rnn"];

/// Where the tables lie.
pub fn tables() -> Outcome<PathBuf> {
    let folder =
        std::env::var_os("PACELINE_DATA").map_or_else(|| root().join("../shared/data"), PathBuf::from);
    let tables = folder.join("tables");
    if tables.is_dir() {
        Ok(tables)
    } else {
        Err(format!("no tables in {}: set PACELINE_DATA", tables.display()))
    }
}

/// One number per seed.
type Figure = fn(&Curves) -> Vec<f64>;

/// Regret after each evaluation, by seed, of a sampler.
struct Curves {
    name: String,
    regrets: Vec<Vec<f64>>,
    budget: usize,
}

impl Curves {
    fn at(&self, evaluations: usize) -> Vec<f64> {
        self.regrets.iter().map(|r| r[evaluations - 1]).collect()
    }

    fn until(&self) -> Vec<f64> {
        let first =
            |r: &Vec<f64>| r.iter().position(|v| *v <= 0.05).map_or(self.budget + 1, |i| i + 1) as f64;
        self.regrets.iter().map(first).collect()
    }

    fn from(value: &Value, budget: usize) -> Outcome<Self> {
        let rows = value["regrets"].as_array().ok_or("no regrets")?;
        let row = |r: &Value| -> Vec<f64> {
            r.as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
        };
        let mut regrets: Vec<Vec<f64>> = rows.iter().map(row).collect();
        for regret in &mut regrets {
            let last = *regret.last().ok_or("an empty curve")?;
            regret.resize(budget, last);
        }
        Ok(Self { name: value["sampler"].as_str().unwrap_or_default().into(), regrets, budget })
    }
}

/// The upper end of the 95% interval of `a`'s mean less `b`'s, by bootstrap over seeds; and its lower end.
fn difference(a: &[f64], b: &[f64]) -> (f64, f64) {
    // SplitMix64: a fixed sequence, so that a table gives the same line each time.
    let mut state = 1u64;
    let mut draw = |n: usize| {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % n as u64) as usize
    };
    let mut differences: Vec<f64> = (0..DRAWS)
        .map(|_| {
            let again = |of: &[f64], draw: &mut dyn FnMut(usize) -> usize| {
                (0..of.len()).map(|_| of[draw(of.len())]).sum::<f64>() / of.len() as f64
            };
            again(a, &mut draw) - again(b, &mut draw)
        })
        .collect();
    differences.sort_by(f64::total_cmp);
    let at = |share: f64| differences[((DRAWS - 1) as f64 * share) as usize];
    (at(0.025), at(0.975))
}

/// `bayes` beside Optuna's multivariate TPE and GP, and beside chance.
pub fn measure(setup: &Setup) -> Outcome<Report> {
    let tables = tables()?;
    let folder = root().join("bench/samplers");
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    for name in SPECS {
        let spec_path = folder.join(format!("{name}.json"));
        let text = fs::read_to_string(&spec_path).map_err(|e| format!("{}: {e}", spec_path.display()))?;
        let spec: Value = serde_json::from_str(&text).map_err(|e| format!("{}: {e}", spec_path.display()))?;
        let table = tables.join(spec["table"].as_str().unwrap_or_default());
        let budget = spec["evaluations"].as_u64().unwrap_or(40) as usize;
        let raw = folder.join(format!("{name}.optuna.ndjson"));
        // Optuna takes an hour: what is there is used; remove the file to measure it again.
        if !raw.is_file() {
            let draft = raw.with_extension("tmp");
            let mut peer = Command::new(peers::python(setup));
            peer.env("OMP_NUM_THREADS", "1").arg(folder.join("optuna_tables.py")).arg(&table).arg(&spec_path);
            process::run(peer.arg(SEEDS.to_string()).arg(budget.to_string()).arg(&draft))?;
            fs::rename(&draft, &raw).map_err(|e| format!("{}: {e}", raw.display()))?;
        }
        let ours = bench(setup, &table, &spec, "random,bayes", budget, SEEDS)?;
        let of = |i: usize| Curves::from(&ours["curves"][i], budget);
        let (random, bayes) = (of(0)?, of(1)?);
        let peers = optuna(setup, &raw, &table, &spec, budget)?;
        report.runs.push(json!({"table": name, "spec": spec, "ours": ours["curves"]}));
        let figures: [(&str, Figure); 3] = [
            ("evaluations until within 5%", Curves::until),
            ("regret after 15", |c| c.at(15)),
            ("regret after 30", |c| c.at(30)),
        ];
        for (what, figure) in &figures {
            let own = figure(&bayes);
            let best = peers
                .iter()
                .min_by(|a, b| mean(&figure(a)).total_cmp(&mean(&figure(b))))
                .ok_or("no peer was measured")?;
            let all: Vec<String> = peers
                .iter()
                .chain([&random, &bayes])
                .map(|c| format!("{} {:.3}", c.name, mean(&figure(c))))
                .collect();
            println!("     {name}, {what}: {}", all.join(", "));
            report.lines.push(Line {
                claim: format!("{name}: {what}, bayes less {}, least of the 95% interval", best.name),
                reached: difference(&own, &figure(best)).0,
                wanted: 0.0,
                at_most: true,
            });
            report.lines.push(Line {
                claim: format!("{name}: {what}, bayes less random, most of the 95% interval"),
                reached: difference(&own, &figure(&random)).1,
                wanted: 0.0,
                at_most: true,
            });
        }
    }
    let spec: Value = serde_json::from_str(include_str!("../../../bench/samplers/lynceus_rnn.json"))
        .map_err(|e| e.to_string())?;
    let table = tables.join("lynceus_rnn.csv");
    let speed = bench(setup, &table, &spec, "bayes", 201, 5)?;
    report.lines.push(Line {
        claim: "seconds of one suggestion of bayes after 200 observations (median of 5)".into(),
        reached: number(&speed, "/curves/0/last_suggestion_s/0")?,
        wanted: 0.05,
        at_most: true,
    });
    Ok(report)
}

fn bench(
    setup: &Setup,
    table: &Path,
    spec: &Value,
    samplers: &str,
    budget: usize,
    seeds: usize,
) -> Outcome<Value> {
    let mut command = setup.program();
    command.args(["bench", "samplers", "--json", "--samplers", samplers]).arg("--table").arg(table);
    command.args(["--budget", &budget.to_string(), "--repeats", &seeds.to_string()]);
    for axis in spec["axes"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        command.args(["--axis", axis]);
    }
    let (metric, least) = (spec["constraint"][0].as_str().unwrap_or_default(), &spec["constraint"][1]);
    command.args(["--objective", spec["objective"].as_str().unwrap_or_default()]);
    last_json(command.args(["--constraint", &format!("{metric} >= {least}")]))
}

/// The peers' curves, out of the rows that they asked for: regret as `paceline bench samplers` defines it.
fn optuna(setup: &Setup, raw: &Path, table: &Path, spec: &Value, budget: usize) -> Outcome<Vec<Curves>> {
    let script = "import csv,gzip,json,sys\np,o,m,l=sys.argv[1:5]\nf=(gzip.open if p.endswith('.gz') else open)(p,'rt',encoding='utf-8-sig')\nprint(json.dumps([float(r[o]) if float(r[m])>=float(l) else None for r in csv.DictReader(f)]))";
    let mut read = Command::new(setup.python.as_deref().unwrap_or(Path::new("python3")));
    read.args(["-c", script]).arg(table).arg(spec["objective"].as_str().unwrap_or_default());
    read.arg(spec["constraint"][0].as_str().unwrap_or_default()).arg(spec["constraint"][1].to_string());
    let values = last_json(&mut read)?;
    let values: Vec<Option<f64>> = values.as_array().into_iter().flatten().map(Value::as_f64).collect();
    let feasible = || values.iter().flatten().copied();
    let (best, worst) = (feasible().fold(f64::INFINITY, f64::min), feasible().fold(0.0, f64::max));
    let text = fs::read_to_string(raw).map_err(|e| format!("{}: {e}", raw.display()))?;
    let mut peers: Vec<Curves> = Vec::new();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).map_err(|e| format!("{}: {e}", raw.display()))?;
        let name = line["sampler"].as_str().unwrap_or_default();
        let mut reached = worst;
        let mut regret: Vec<f64> = Vec::new();
        for row in line["rows"].as_array().into_iter().flatten().filter_map(Value::as_u64) {
            reached = values[row as usize].map_or(reached, |v| reached.min(v));
            regret.push(reached / best - 1.0);
        }
        // Whoever has nothing new to ask for stays where it is.
        regret.resize(budget, reached / best - 1.0);
        match peers.iter_mut().find(|c| c.name == name) {
            Some(curves) => curves.regrets.push(regret),
            None => peers.push(Curves { name: name.into(), regrets: vec![regret], budget }),
        }
    }
    if peers.iter().any(|c| c.regrets.len() < SEEDS) {
        return Err(format!("{} is incomplete: remove it", raw.display()));
    }
    Ok(peers)
}
