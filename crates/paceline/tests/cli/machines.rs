//! Shared by the tests of runs on several machines: processes that listen and join, and what they say.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{PATIENCE, STORE};

/// The program.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_paceline");

/// A process under way whose words are kept. Dropping it kills it.
pub struct Process {
    child: Child,
    out: Arc<Mutex<String>>,
    err: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
}

fn keep(from: impl Read + Send + 'static, to: &Arc<Mutex<String>>) -> JoinHandle<()> {
    let to = Arc::clone(to);
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            *to.lock().unwrap() += &(line + "\n");
        }
    })
}

impl Process {
    /// Starts the program somewhere, e.g. `["ip", "netns", "exec", NAME]`, with words separated by spaces.
    pub fn start(somewhere: &[&str], words: &str, environment: &[(&str, &str)]) -> Self {
        let all: Vec<&str> =
            somewhere.iter().copied().chain([PROGRAM]).chain(words.split_whitespace()).collect();
        let mut child = Command::new(all[0])
            .args(&all[1..])
            .env("PACELINE_STORE", STORE)
            .env_remove("PACELINE_KEY_FILE")
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let (out, err) = <(Arc<Mutex<String>>, Arc<Mutex<String>>)>::default();
        let readers =
            vec![keep(child.stdout.take().unwrap(), &out), keep(child.stderr.take().unwrap(), &err)];
        Self { child, out, err, readers }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn stdout(&self) -> String {
        self.out.lock().unwrap().clone()
    }

    pub fn stderr(&self) -> String {
        self.err.lock().unwrap().clone()
    }

    /// Waits until it has said something on standard error; returns the first line with it.
    pub fn says(&self, what: &str) -> String {
        self.finds(what, |process| process.stderr())
    }

    /// The same for standard output, from a number of lines on.
    pub fn prints(&self, what: &str, after: usize) -> String {
        self.finds(what, |process| process.stdout().lines().skip(after).map(|l| format!("{l}\n")).collect())
    }

    fn finds(&self, what: &str, text: impl Fn(&Self) -> String) -> String {
        let begun = Instant::now();
        loop {
            if let Some(line) = text(self).lines().find(|line| line.contains(what)) {
                return line.to_owned();
            }
            let waited = begun.elapsed();
            assert!(waited < PATIENCE, "{what:?} was never said:\n{}\n{}", self.stdout(), self.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for its end: its exit code (-1 after a signal), and everything it said.
    pub fn end(mut self) -> (i32, String, String) {
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(begun.elapsed() < 3 * PATIENCE, "it never ends:\n{}\n{}", self.stdout(), self.stderr());
            std::thread::sleep(Duration::from_millis(5));
        };
        self.readers.drain(..).for_each(|reader| reader.join().unwrap());
        (status.code().unwrap_or(-1), self.stdout(), self.stderr())
    }

    /// Its end, which must be a good one; the result.
    pub fn result(self) -> Value {
        let (code, out, err) = self.end();
        assert_eq!(code, 0, "{err}");
        serde_json::from_str(out.lines().last().unwrap_or_default())
            .unwrap_or_else(|e| panic!("{e}: {out}\n{err}"))
    }

    /// Waits until training has come past another step.
    pub fn trains_on(&self) {
        let step = |line: &str| serde_json::from_str::<Value>(line).unwrap()["step"].as_u64().unwrap();
        let lines = self.stdout().lines().count();
        let first = step(&self.prints(r#""type":"progress""#, lines));
        let lines = self.stdout().lines().count();
        assert!(step(&self.prints(r#""type":"progress""#, lines)) > first);
    }

    /// Its children.
    pub fn children(&self) -> Vec<u32> {
        let id = self.id();
        let tasks = std::fs::read_dir(format!("/proc/{id}/task")).map(|tasks| tasks.flatten().collect());
        let tasks: Vec<_> = tasks.unwrap_or_default();
        let text = tasks.iter().filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        text.collect::<String>().split_whitespace().map(|pid| pid.parse().unwrap()).collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A launcher that waits, and what others must type: address and key file.
pub struct Listening {
    pub launcher: Process,
    pub address: String,
    pub key_file: String,
}

impl Listening {
    /// Starts `paceline train --json --listen ADDRESS` and waits until it listens.
    pub fn start(somewhere: &[&str], address: &str, words: &str) -> Self {
        Self::start_with(somewhere, address, words, &[])
    }

    /// The same with variables of the environment.
    pub fn start_with(somewhere: &[&str], address: &str, words: &str, environment: &[(&str, &str)]) -> Self {
        let launcher =
            Process::start(somewhere, &format!("train --json --listen {address} {words}"), environment);
        let line = launcher.says("paceline join ");
        let words: Vec<&str> = line.split_whitespace().collect();
        let [.., address, "--key-file", key_file] = words[..] else { panic!("{line}") };
        let (address, key_file) = (address.to_owned(), key_file.to_owned());
        Self { launcher, address, key_file }
    }

    /// Starts `paceline join` with what the launcher said.
    pub fn join(&self, somewhere: &[&str], words: &str) -> Process {
        self.join_with(somewhere, words, &[])
    }

    /// The same with variables of the environment.
    pub fn join_with(&self, somewhere: &[&str], words: &str, environment: &[(&str, &str)]) -> Process {
        let Self { address, key_file, .. } = self;
        Process::start(somewhere, &format!("join {address} --key-file {key_file} {words}"), environment)
    }
}

/// The line with the error.
pub fn error(stderr: &str) -> &str {
    stderr.lines().find(|line| line.starts_with("error:")).unwrap_or_else(|| panic!("no error:\n{stderr}"))
}

/// Waits until processes are gone.
pub fn all_gone(pids: &[u32]) {
    let begun = Instant::now();
    while !pids.iter().all(|&pid| crate::support::gone(pid)) {
        assert!(begun.elapsed() < PATIENCE, "processes are left behind");
        std::thread::sleep(Duration::from_millis(5));
    }
}
