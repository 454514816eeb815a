//! Reports of several kinds of studies in a real browser: no text of a chart meets another one, or is cut off.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use paceline_analyze::charts::{self, ChartInput};
use paceline_analyze::report::{Method, Report};
use paceline_analyze::table::{Goal, RawRun, Response, StudyTable};
use paceline_analyze::{Analysis, AnalysisRequest, RecordedStage};
use paceline_plan::Plan;
use paceline_random::{Purpose, Stream};
use paceline_testing::{Need, install, skip};

/// Where reports and screenshots are kept.
const KEPT: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/charts");

/// Numbers between 0 and 1.
struct Draws(Stream, u64);

impl Draws {
    fn new() -> Self {
        Self(Stream::new(7, Purpose::Bench), 0)
    }

    fn next(&mut self) -> f64 {
        self.1 += 1;
        self.0.unit(self.1)
    }

    /// A factor around 1.
    fn noise(&mut self, size: f64) -> f64 {
        (size * (self.next() + self.next() - 1.0)).exp()
    }

    fn pick<'a>(&mut self, of: &[&'a str]) -> (&'a str, f64) {
        let at = (self.next() * of.len() as f64) as usize;
        (of[at], at as f64)
    }
}

fn table(name: &str, factors: &[&str], responses: &[&str], runs: Vec<(Vec<String>, Vec<f64>)>) -> StudyTable {
    let run = |(i, (levels, values)): (usize, (Vec<String>, Vec<f64>))| RawRun {
        id: format!("run-{i}"),
        levels,
        values: values.into_iter().map(Some).collect(),
        order: i as f64,
        ..RawRun::default()
    };
    let factors: Vec<String> = factors.iter().map(|name| (*name).to_owned()).collect();
    let response = |(i, name): (usize, &&str)| {
        let goal = if i == 0 { Goal::Minimize } else { Goal::Maximize };
        Response::parse(name).unwrap().wanted(goal)
    };
    let responses = responses.iter().enumerate().map(response).collect();
    StudyTable::new(name, &factors, responses, runs.into_iter().enumerate().map(run).collect())
}

/// Two levels of four factors, each configuration once.
fn factorial() -> StudyTable {
    let mut draws = Draws::new();
    let runs = (0..16usize).map(|i| {
        let [a, b, c, d] = [0, 1, 2, 3].map(|bit| i >> bit & 1);
        let levels = [["asp", "bsp"][a], ["tcp", "shm"][b], ["none", "top-k"][c], ["16", "64"][d]];
        let time = (0.5 * a as f64 - 0.3 * b as f64).exp() * draws.noise(0.05);
        (levels.map(String::from).to_vec(), vec![time])
    });
    table("factorial", &["sync", "transport", "compression", "batch"], &["log(time_s)"], runs.collect())
}

/// Many levels, most of them with long names.
fn long_names() -> StudyTable {
    const STRATEGIES: [&str; 9] = [
        "ring-allreduce",
        "recursive-halving-and-doubling",
        "parameter-server-asynchronous",
        "gossip-over-an-exponential-graph",
        "tree-reduce-and-broadcast",
        "two-dimensional-torus-allreduce",
        "hierarchical-ring-of-rings",
        "double-binary-tree",
        "local-steps-with-periodic-averaging",
    ];
    const CODECS: [&str; 6] = [
        "none",
        "top-k (0.1% of the gradient)",
        "one bit with error feedback",
        "rank 4",
        "WWWWWWWWWWWWWWWW",
        "圧縮なし",
    ];
    let mut draws = Draws::new();
    let mut runs = Vec::new();
    for (s, strategy) in STRATEGIES.iter().enumerate() {
        for (c, codec) in CODECS.iter().enumerate() {
            for workers in [1, 2, 4, 8, 16, 32] {
                for _ in 0..2 {
                    let time =
                        20.0 / f64::from(workers).powf(0.8) * (1.0 + 0.2 * s as f64) * (1.0 + 0.1 * c as f64);
                    let levels = vec![(*strategy).to_owned(), (*codec).to_owned(), workers.to_string()];
                    runs.push((levels, vec![time * draws.noise(0.1), 0.9 + 0.01 * draws.next()]));
                }
            }
        }
    }
    let factors = ["the strategy that averages gradients", "compression of what is sent", "workers"];
    table("long names", &factors, &["log(time_until_the_accuracy_is_reached_s)", "final_accuracy"], runs)
}

/// Four workloads, two of each architecture.
fn workloads() -> StudyTable {
    let mut draws = Draws::new();
    let mut runs = Vec::new();
    for name in ["lenet on mnist", "mlp on mnist", "lenet on fashion-mnist", "mlp on fashion-mnist"] {
        let lenet = name.starts_with("lenet");
        for workers in [1, 2, 4] {
            for sync in ["asp", "bsp", "ssp"] {
                for batch in ["16", "64"] {
                    for _ in 0..2 {
                        let speed = f64::from(workers).powf(if lenet { 0.9 } else { -0.2 });
                        let slow = if (sync == "bsp") == lenet { 1.3 } else { 1.0 };
                        let time = if lenet { 60.0 } else { 5.0 } / speed * slow * draws.noise(0.06);
                        let levels = [name, &workers.to_string(), sync, batch].map(String::from).to_vec();
                        runs.push((levels, vec![time]));
                    }
                }
            }
        }
    }
    table("workloads", &["workload", "workers", "sync", "batch"], &["log(seconds)"], runs)
}

fn one_run() -> StudyTable {
    let runs = vec![(vec!["1".to_owned(), "bsp".to_owned()], vec![3.25])];
    table("one run", &["workers", "sync"], &["time_s"], runs)
}

/// Half of the runs do not reach the target.
fn censored() -> StudyTable {
    let mut draws = Draws::new();
    let mut runs = Vec::new();
    for workers in ["1", "2", "4"] {
        for lr in ["0.001", "0.0031622776601683794", "0.01", "0.1"] {
            for _ in 0..2 {
                runs.push((vec![workers.to_owned(), lr.to_owned()], vec![0.02 * draws.noise(1.0)]));
            }
        }
    }
    let mut table = table("censored", &["workers", "lr"], &["log(time_to_accuracy_s)"], runs);
    for run in table.runs.iter_mut().step_by(2) {
        run.bounds = vec![run.values[0].take()];
    }
    table
}

/// Hundreds of runs, one axis of which has as many numbers.
fn hundreds() -> StudyTable {
    let mut draws = Draws::new();
    let runs = (0..300).map(|_| {
        let lr = 10f64.powf(4.0 * draws.next() - 4.0);
        let (batch, b) = draws.pick(&["8", "16", "32", "64", "128", "256", "512", "1024"]);
        let (workers, w) = draws.pick(&["1", "2", "3", "4", "6", "8"]);
        let (sync, _) = draws.pick(&["asp", "bsp", "ssp"]);
        let (optimiser, o) = draws.pick(&["sgd", "momentum", "adam", "adamw"]);
        let time = 100.0 / (1.0 + w)
            * (1.0 + (lr.log10() + 1.5).powi(2))
            * (1.0 + (b - 3.0).abs() / 8.0)
            * (1.0 + 0.1 * o)
            * draws.noise(0.2);
        let levels = [&format!("{lr:.7}"), batch, workers, sync, optimiser].map(String::from).to_vec();
        (levels, vec![time, 1.0 - 1.0 / time])
    });
    let factors = ["lr", "batch", "workers", "sync", "optimiser"];
    table("hundreds", &factors, &["log(time_to_accuracy_s)", "final_accuracy"], runs.collect())
}

/// Writes the report of a table into a folder of its own.
fn report(table: &StudyTable) -> PathBuf {
    let find = |name: &str| table.factor(name).filter(|f| table.factors[*f].levels.len() > 1);
    let ask = AnalysisRequest { workload: find("workload"), workers: find("workers"), seed: 1 };
    let analysis = Analysis::new(table, ask);
    let report = Report {
        title: table.name.clone(),
        about: format!("{} runs", table.runs.len()),
        notes: Vec::new(),
        figures: charts::charts(&ChartInput { table, analysis: &analysis, ask }),
        method: Method::default().or_of_table(table),
        sheets: analysis.sheets(),
        findings: analysis.findings,
        explanations: Vec::new(),
        version: "0",
    };
    let folder = Path::new(KEPT).join(table.name.replace(' ', "-"));
    // Charts of an earlier program would be measured too.
    let _ = fs::remove_dir_all(&folder);
    report.write(&folder).unwrap();
    folder
}

/// The report of a run in so many stages, some of them much longer than others.
fn staged(count: usize) -> PathBuf {
    let plan = Plan { workers: count, stages: count, micro_batches: 4 * count, ..Plan::example() };
    let stage = |i: usize| RecordedStage {
        forward_s: 1e-3 * (i + 1) as f64,
        backward_s: 2e-3 * (i + 1) as f64,
        compute_s: 3e-3 * (i + 1) as f64,
        wait_up_s: 1e-5 * i as f64,
        wait_down_s: 3e-3 * (count - i) as f64,
        averaging_s: 1e-4,
        idle: 1.0 - i as f64 / count as f64,
        live_slots: (count - i) as u64,
    };
    let stages: Vec<RecordedStage> = (0..count).map(stage).collect();
    let mut table = one_run();
    table.name = format!("{count} stages");
    let folder = Path::new(KEPT).join(format!("stages-{count}"));
    let _ = fs::remove_dir_all(&folder);
    let report = Report {
        title: table.name.clone(),
        about: String::new(),
        notes: Vec::new(),
        figures: charts::run::of_stages(&plan, &stages).into_iter().collect(),
        method: Method::default().or_of_table(&table),
        sheets: Vec::new(),
        findings: Vec::new(),
        explanations: Vec::new(),
        version: "0",
    };
    report.write(&folder).unwrap();
    folder
}

/// Whether all texts of the reports stand apart, and what the browser says.
fn measured(folders: &[PathBuf]) -> Option<(bool, String)> {
    let Some(browser) = std::env::var_os(install::BROWSER) else {
        skip(Need::Browser, install::reason(install::BROWSER));
        return None;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../paceline/tests/cli/browser/texts.mjs");
    let mut node = Command::new("node");
    node.arg(script).arg(Path::new(KEPT).join("shots")).args(folders).env(install::BROWSER, browser);
    let out = node.output().expect("node starts");
    let text = [out.stdout, out.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    Some((out.status.success(), text))
}

#[test]
fn no_text_of_any_chart_of_any_kind_of_study_meets_another_or_is_cut_off() {
    let tables = [factorial(), long_names(), workloads(), one_run(), censored(), hundreds()];
    let folders: Vec<PathBuf> = tables.iter().map(report).chain([2, 4, 8].map(staged)).collect();
    let Some((apart, text)) = measured(&folders) else { return };
    assert!(apart, "{text}");
}

#[test]
fn texts_that_meet_are_noticed_in_pages_and_in_files() {
    let mut table = one_run();
    table.name = "planted".into();
    let folder = report(&table);
    let (page, file) = (folder.join("report.html"), folder.join("charts/history.svg"));
    let (html, svg) = (fs::read_to_string(&page).unwrap(), fs::read_to_string(&file).unwrap());
    let note = |text: &str| {
        format!(
            "{{\"text\":\"{text}\",\"x\":0.5,\"y\":0.5,\"xref\":\"paper\",\"yref\":\"paper\",\"showarrow\":false}}"
        )
    };
    let planted = format!("\"annotations\":[{},{}]", note("one"), note("other"));
    assert!(html.contains("\"annotations\":[]"));
    fs::write(&page, html.replacen("\"annotations\":[]", &planted, 1)).unwrap();
    let planted = "<text x=\"90\" y=\"150\">this</text><text x=\"95\" y=\"152\">that</text></svg>";
    fs::write(&file, svg.replace("</svg>", planted)).unwrap();
    let Some((apart, text)) = measured(&[folder]) else { return };
    assert!(!apart);
    for fault in [
        "planted at 1400 px history: \"one\" and \"other\" share",
        "history.svg : \"this\" and \"that\" share",
    ] {
        assert!(text.contains(fault), "{fault} is not in {text}");
    }
    assert!(text.contains("3 faults"), "two widths and a file: {text}");
}
