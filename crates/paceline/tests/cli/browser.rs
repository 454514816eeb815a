//! Pages and reports in a real browser: Debian's Chromium, driven by playwright-core.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use paceline_testing::{Need, install, skip};

use crate::support::{ENDLESS, Ran, Running, run, signal};

/// Where screenshots are kept.
const SHOTS: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/browser");

/// More points than can be run while it is looked at.
const STUDY: &str = r#"
sampler = "random"
[workload]
epochs = 1
target-accuracy = 0.3
[axes]
workers = [1, 2]
batch = [16, 32, 64]
transport = ["tcp", "shm"]
lr = { from = 0.01, to = 0.1, count = 400, scale = "log" }
[[objectives]]
metric = "seconds.train"
goal = "minimize"
[[objectives]]
metric = "final_accuracy"
goal = "maximize"
[budget]
runs = 4000
[control]
every = 10
"#;

/// Where playwright-core is; none, and a counted skip, where there is no browser.
fn browser() -> Option<PathBuf> {
    let folder = std::env::var_os(install::BROWSER).map(PathBuf::from);
    if folder.is_none() {
        skip(Need::Browser, install::reason(install::BROWSER));
    }
    folder
}

fn script(browser: &Path, name: &str, words: &[&str]) -> Ran {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/browser").join(name);
    run(Command::new("node").arg(path).args(words).env("PACELINE_TEST_BROWSER", browser))
}

/// A process that is ended with the test.
struct Beside(Child);

impl Beside {
    fn start(folder: &Path, words: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
        command.args(words).current_dir(folder).env("PACELINE_STORE", folder.join("store"));
        Self(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts"))
    }

    /// The first line that it says.
    fn says(&mut self) -> String {
        use std::io::{BufRead, BufReader};
        let mut line = String::new();
        BufReader::new(self.0.stdout.take().expect("a pipe")).read_line(&mut line).unwrap();
        line.trim().to_owned()
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // A study ends its runs when it is interrupted.
        signal("INT", self.0.id());
        let _ = self.0.wait();
    }
}

fn ended(journal: &Path) -> usize {
    fs::read_to_string(journal).unwrap_or_default().matches("\"entry\":\"end\"").count()
}

#[test]
fn pages_are_drawn_filtered_and_followed_in_a_browser_during_a_live_study() {
    let Some(browser) = browser() else { return };
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("live.toml"), STUDY).unwrap();
    let store = folder.path().join("store");
    // Its links are slow: the browser needs the cores.
    let endless = Running::start(&format!(
        "--workers 2 --batch 16 --network 10mbit,20ms --store {} {ENDLESS}",
        store.display()
    ));
    let mut study = Beside::start(folder.path(), &["explore", "live.toml", "--quiet"]);
    let (journal, begun) = (store.join("studies/live/journal.ndjson"), Instant::now());
    while ended(&journal) < 12 {
        assert!(begun.elapsed() < Duration::from_secs(180), "the study makes no runs");
        assert!(study.0.try_wait().unwrap().is_none(), "the study has ended");
        std::thread::sleep(Duration::from_millis(50));
    }
    let listed =
        run(Command::new(env!("CARGO_BIN_EXE_paceline")).args(["status", "--json", "--store"]).arg(&store))
            .result();
    // The endless run has no target.
    let runs = listed["runs"].as_array().unwrap();
    let longest = runs.iter().max_by_key(|run| run["steps"].as_u64()).expect("one is under way");
    let mut served = Beside::start(folder.path(), &["serve", "--quiet", "--listen", "127.0.0.1:0"]);
    let address = served.says();
    let ran = script(&browser, "live.mjs", &[&address, "live", longest["run"].as_str().unwrap(), SHOTS]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    eprintln!("{}screenshots are in {SHOTS}", ran.stdout);
    drop((served, study, endless));
}

#[test]
fn a_report_opens_from_disk_without_a_network_and_its_charts_are_drawn() {
    let Some(browser) = browser() else { return };
    let folder = tempfile::tempdir().unwrap();
    let study = STUDY.replace("runs = 4000", "runs = 12");
    fs::write(folder.path().join("small.toml"), study).unwrap();
    let at = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
        command.args(words).current_dir(folder.path()).args(["--store", "store"]);
        run(&mut command)
    };
    let explored = at(&["explore", "small.toml", "--quiet"]);
    assert_eq!(explored.code, 0, "{}", explored.stderr);
    let reported = at(&["report", "small", "--out", "report"]);
    assert_eq!(reported.code, 0, "{}", reported.stderr);
    let file = folder.path().join("report/report.html");
    let ran = script(&browser, "report.mjs", &[file.to_str().unwrap(), SHOTS]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    let charts = ran.result()["charts"].as_array().unwrap().len();
    assert!(charts >= 8, "{}", ran.stdout);
    // The charts of a study and of a single run: no text meets another one.
    let single = at(&["report", "last", "--out", "single"]);
    assert_eq!(single.code, 0, "{}", single.stderr);
    let folders = ["report", "single"].map(|name| folder.path().join(name));
    let [study, single] = folders.each_ref().map(|folder| folder.to_str().unwrap());
    let measured = script(&browser, "texts.mjs", &[SHOTS, study, single]);
    assert_eq!(measured.code, 0, "{}{}", measured.stdout, measured.stderr);
}
