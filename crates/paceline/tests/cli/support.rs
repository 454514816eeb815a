//! Shared by the tests of the program: running it and reading what it says.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use paceline_testing::{Need, skip};
use serde_json::Value;

/// Where the tests' runs are recorded.
pub const STORE: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/store");

/// No single wait for a run under way is longer.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Options of a run that ends only when somebody ends it.
pub const ENDLESS: &str = "--epochs 1000000 --eval-every 1000000000";

/// What the program did.
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// The last line of standard output.
    pub fn result(&self) -> Value {
        let last = self.stdout.lines().last().unwrap_or_default();
        serde_json::from_str(last).unwrap_or_else(|e| panic!("{e}: {last:?}\n{}", self.stderr))
    }
}

/// Runs the program with words separated by spaces, away from the user's settings.
pub fn paceline(words: &str) -> Ran {
    run(Command::new(env!("CARGO_BIN_EXE_paceline")).args(words.split_whitespace()))
}

/// The result line of a run that must end well.
pub fn result(words: &str) -> Value {
    let ran = paceline(words);
    assert_eq!(ran.code, 0, "{words}: {}", ran.stderr);
    ran.result()
}

pub fn run(command: &mut Command) -> Ran {
    let out = command.env("PACELINE_STORE", STORE).output().expect("the program starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    Ran { code: out.status.code().unwrap_or(-1), stdout: text(out.stdout), stderr: text(out.stderr) }
}

/// Lines that were broken to fit a terminal, as one.
pub fn joined(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A training run under way, told of as events. Dropping it kills the launcher, so that no test leaves an
/// endless one behind.
pub struct Running {
    launcher: Child,
    events: Receiver<Value>,
}

impl Running {
    /// Starts `paceline train` with these words; returns when training has begun.
    pub fn start(words: &str) -> Self {
        Self::verb("train", words)
    }

    /// The same with `paceline resume`; what is left may also be over by then.
    pub fn resume(words: &str) -> Self {
        Self::verb("resume", words)
    }

    fn verb(verb: &str, words: &str) -> Self {
        let mut launcher = Command::new(env!("CARGO_BIN_EXE_paceline"))
            .args([verb, "--json"])
            .args(words.split_whitespace())
            .env("PACELINE_STORE", STORE)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let out = BufReader::new(launcher.stdout.take().expect("a pipe"));
        let (sender, events) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let event = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"));
                if sender.send(event).is_err() {
                    return;
                }
            }
        });
        let run = Self { launcher, events };
        match verb {
            // What is left of a run may be over before it tells of progress.
            "resume" => {
                while run.events.recv_timeout(PATIENCE).is_ok_and(|event| event["type"] != "progress") {}
            }
            _ => drop(run.next("progress")),
        }
        run
    }

    /// The next event of a type; those before it are passed over.
    pub fn next(&self, kind: &str) -> Value {
        let start = Instant::now();
        loop {
            let left = PATIENCE.saturating_sub(start.elapsed());
            let event = self.events.recv_timeout(left);
            let event = event.unwrap_or_else(|e| panic!("waiting for an event of type {kind}: {e}"));
            if event["type"] == kind {
                return event;
            }
        }
    }

    /// All events to come, up to the end of the run.
    pub fn rest(&self) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            match self.events.recv_timeout(PATIENCE) {
                Ok(event) => events.push(event),
                Err(RecvTimeoutError::Disconnected) => return events,
                Err(RecvTimeoutError::Timeout) => panic!("the run stands still after {:?}", events.last()),
            }
        }
    }

    /// The launcher's process.
    pub fn id(&self) -> u32 {
        self.launcher.id()
    }

    /// Its rank processes, in the order of the ranks.
    pub fn ranks(&self) -> Vec<u32> {
        let id = self.launcher.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        children.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
    }

    /// Exit code and messages of the run, which must end by itself.
    pub fn end(mut self) -> (i32, String) {
        let status = self.launcher.wait().unwrap();
        let mut text = String::new();
        self.launcher.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        (status.code().unwrap_or(-1), text)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
    }
}

/// Sends a signal to a process; false if there is none.
pub fn signal(name: &str, pid: u32) -> bool {
    // The shell's own: minimal systems have no program of this name.
    Command::new("sh").args(["-c", &format!("kill -s {name} {pid}")]).status().unwrap().success()
}

/// A process that has ended, or is only waiting to be reaped.
pub fn gone(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.is_empty() || status.contains(") Z ")
}

/// The folder of real datasets, or `None` and a counted skip where there is none.
pub fn datasets(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("PACELINE_DATA").map(PathBuf::from);
    let folder = folder.filter(|f| f.join(name).is_dir());
    if folder.is_none() {
        skip(Need::Datasets, name);
    }
    folder
}
