//! A run of a random plan, in a store of its own, that can be found wherever its processes are.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use paceline_random::{Purpose, Stream};
use serde_json::Value;

use crate::fault::Fault;
use crate::terminal::{CTRL_C, Terminal};

/// No single wait is longer.
pub const PATIENCE: Duration = Duration::from_secs(240);
/// The environment's name of what marks all processes of a round.
const MARK: &str = "PACELINE_CHAOS_MARK";

/// Draws of a round, one after the other.
pub struct Draws(Stream, u64);

impl Draws {
    pub fn new(seed: u64, round: u64) -> Self {
        Self(Stream::new(seed, Purpose::Virtual).fork(round), 0)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.1 += 1;
        self.0.below(self.1, n)
    }

    pub fn of<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// A plan and its store.
pub struct Scene {
    /// Flags of `paceline train`.
    pub words: String,
    /// More of them, which change no number.
    pub saving: String,
    pub workers: usize,
    pub servers: usize,
    /// Passes over the training split.
    epochs: u64,
    /// Whether a run ends with the same bits whatever happens on the way.
    pub exact: bool,
    pub store: tempfile::TempDir,
    mark: String,
}

/// Samples of the digits' training split, and passes over it.
const SAMPLES: u64 = 1438;
const EPOCHS: u64 = 20;

/// Those of a run that is long enough to be interrupted at any moment. One worker alone waits for nobody, and needs
/// most.
fn long_epochs(workers: usize) -> u64 {
    if workers == 1 { 6 * EPOCHS } else { 2 * EPOCHS }
}

impl Scene {
    pub fn draw(fault: &Fault, draws: &mut Draws) -> Self {
        let (strategy, servers, exact) = match draws.below(if fault.needs_server() { 4 } else { 11 }) {
            0 => ("--strategy ps", 2, true),
            1 => ("--strategy ps --sync asp --lr 0.01", 2, false),
            2 => ("--strategy ps --sync ssp --staleness 2 --lr 0.01", 1, false),
            3 => ("--strategy ps --compression 2bit", 1, true),
            4 => ("--strategy ring-allreduce", 0, true),
            5 => ("--strategy stepwise", 0, true),
            6 => ("--strategy gossip", 0, true),
            7 => ("--strategy local", 0, true),
            8 => ("--strategy tree --compression topk,ratio=0.1", 0, true),
            9 => ("--strategy halving-doubling", 0, true),
            _ => ("--strategy ring-reduce", 0, true),
        };
        let transport = draws.of(&["tcp", "uds", "shm", "grpc"]);
        let workers = 2 + draws.below(2) as usize;
        let every = 20 + draws.below(60);
        let words = format!(
            "--epochs {EPOCHS} --batch 8 --workers {workers} --servers {servers} {strategy} --transport \
             {transport} --seed {}",
            1 + draws.below(1000)
        );
        Self::new(words, format!("--checkpoint-every {every}"), workers, servers, exact)
    }

    /// A run for signals: one to four workers, every transport, strategies that end with the same bits.
    pub fn deterministic(draws: &mut Draws) -> Self {
        let workers = 1 + draws.below(4) as usize;
        let transport = draws.of(&["tcp", "uds", "shm", "grpc", "inproc"]);
        let (strategy, servers) = match draws.below(8) {
            _ if workers == 1 => (String::new(), 0),
            0 => ("--strategy ps".into(), 1),
            1 => ("--strategy ps --compression 2bit".into(), 2),
            _ => {
                let path = draws.of(&["ring-allreduce", "stepwise", "gossip", "local", "halving-doubling"]);
                (format!("--strategy {path}"), 0)
            }
        };
        let transport = if workers == 1 { String::new() } else { format!("--transport {transport}") };
        let words = format!(
            "--epochs {} --batch 8 --workers {workers} --servers {servers} {strategy} {transport} --seed {}",
            long_epochs(workers),
            1 + draws.below(1000)
        );
        let mut scene = Self::new(words, String::new(), workers, servers, true);
        scene.epochs = long_epochs(workers);
        scene
    }

    fn new(words: String, saving: String, workers: usize, servers: usize, exact: bool) -> Self {
        let store = tempfile::tempdir().unwrap();
        let mark = store.path().display().to_string();
        Self { words, saving, workers, servers, epochs: EPOCHS, exact, store, mark }
    }

    /// Samples that the whole run takes.
    pub fn samples(&self) -> u64 {
        SAMPLES * self.epochs
    }

    /// Steps of a run without tails: whole global batches, and one smaller per epoch.
    pub fn steps(&self) -> u64 {
        let batch = 8 * self.workers as u64;
        SAMPLES.div_ceil(batch) * self.epochs
    }

    pub fn command(&self, words: &str) -> Command {
        // A shell's background jobs ignore SIGINT, and so would whatever they start.
        let mut command = Command::new("env");
        command.args(["--default-signal=INT,TERM", env!("CARGO_BIN_EXE_paceline")]);
        command.args(words.split_whitespace()).arg("--store").arg(self.store.path()).env(MARK, &self.mark);
        command
    }

    /// Starts `paceline train`, with more flags and perhaps a rank that dies by itself.
    pub fn train(&self, more: &str, dies: Option<(usize, u64)>) -> Running {
        let mut command = self.command(&format!("train --json {} {} {more}", self.words, self.saving));
        if let Some((rank, step)) = dies {
            command.env("PACELINE_TEST_DIE", format!("{rank}:{step}"));
        }
        Running::start(command, self.store.path().join("first"))
    }

    /// Starts `paceline train` so that it can be signalled in one of these ways.
    pub fn train_for(&self, way: Way) -> Running {
        let command = self.command(&format!("train --json {}", self.words));
        Running::start_for(command, self.store.path().join("first"), way)
    }

    /// Goes on with the run, to its end.
    pub fn resume(&self) -> (Running, i32) {
        let mut running =
            Running::start(self.command("resume last --json"), self.store.path().join("second"));
        let code = running.end();
        (running, code)
    }

    /// Processes of this round that live.
    pub fn processes(&self) -> Vec<u32> {
        let mark = format!("{MARK}={}", self.mark);
        let marked = |pid: &u32| {
            let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            environ.split(|&b| b == 0).any(|v| v == mark.as_bytes()) && !stat.contains(") Z ")
        };
        let all = fs::read_dir("/proc").unwrap().flatten();
        all.filter_map(|e| e.file_name().to_str()?.parse().ok()).filter(marked).collect()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // Only a round that failed has left any.
        for pid in self.processes() {
            signal("KILL", pid);
        }
    }
}

/// Who is signalled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Way {
    /// The launcher's process alone.
    Process,
    /// Its process group, as `timeout` and service managers do.
    Group,
    /// The foreground group of its terminal, by the kernel.
    Terminal,
}

/// The program under way; what it says goes to files, which outlive it.
pub struct Running {
    launcher: Child,
    out: PathBuf,
    way: Way,
    terminal: Option<Terminal>,
}

impl Running {
    fn start(command: Command, out: PathBuf) -> Self {
        Self::start_for(command, out, Way::Process)
    }

    fn start_for(mut command: Command, out: PathBuf, way: Way) -> Self {
        let file = |name: &str| File::create(out.with_extension(name)).unwrap();
        command.stdin(Stdio::null());
        let mut terminal = None;
        match way {
            Way::Process => {}
            Way::Group => drop(command.process_group(0)),
            Way::Terminal => {
                let (opened, session) = Terminal::run(&command);
                (terminal, command) = (Some(opened), session);
            }
        }
        let launcher = command.stdout(file("out")).stderr(file("err")).spawn().expect("the program starts");
        // Until `env` has set the signals, SIGINT may still be ignored.
        let status = || fs::read_to_string(format!("/proc/{}/status", launcher.id())).unwrap_or_default();
        let ignored = |status: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:\t"));
            line.is_some_and(|mask| u64::from_str_radix(mask, 16).is_ok_and(|mask| mask & 2 != 0))
        };
        while ignored(&status()) {
            std::thread::sleep(Duration::from_micros(100));
        }
        if terminal.is_some() {
            // Before it is the terminal's foreground group, a key reaches nobody.
            let stat = || fs::read_to_string(format!("/proc/{}/stat", launcher.id())).unwrap_or_default();
            let foreground = |stat: &str| stat.rsplit(')').next()?.split_whitespace().nth(5)?.parse().ok();
            while foreground(&stat()).is_some_and(|group: i32| group != launcher.id() as i32) {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        Self { launcher, out, way, terminal }
    }

    /// Sends a signal the way that the run was started for; a terminal sends SIGINT.
    pub fn signal(&mut self, name: &str) {
        match (&mut self.terminal, self.way) {
            (Some(terminal), _) => terminal.press(CTRL_C),
            (None, Way::Group) => drop(send(name, &format!("-{}", self.launcher.id()))),
            (None, _) => drop(signal(name, self.launcher.id())),
        }
    }

    /// How the program ended.
    pub fn status(&mut self) -> ExitStatus {
        self.end();
        self.launcher.wait().unwrap()
    }

    pub fn id(&self) -> u32 {
        self.launcher.id()
    }

    /// Every whole line that was printed.
    pub fn events(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.out.with_extension("out")).unwrap();
        let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        whole.map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
    }

    pub fn errors(&self) -> String {
        fs::read_to_string(self.out.with_extension("err")).unwrap()
    }

    /// Waits until it has said something of a type, or has ended.
    pub fn said(&mut self, kind: &str) -> bool {
        self.until(|run| run.events().iter().any(|event| event["type"] == kind))
    }

    /// Waits until something holds, or the run has ended; whether it holds.
    pub fn until(&mut self, mut holds: impl FnMut(&Self) -> bool) -> bool {
        let start = Instant::now();
        loop {
            if holds(self) {
                return true;
            }
            if self.launcher.try_wait().unwrap().is_some() {
                return holds(self);
            }
            assert!(start.elapsed() < PATIENCE, "waited in vain; {}", self.errors());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Its rank processes, in the order of the ranks.
    pub fn ranks(&self) -> Vec<u32> {
        let id = self.launcher.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        children.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
    }

    /// Waits for its end: the exit code, -1 if a signal ended it.
    pub fn end(&mut self) -> i32 {
        let start = Instant::now();
        loop {
            if let Some(status) = self.launcher.try_wait().unwrap() {
                return status.code().unwrap_or(-1);
            }
            assert!(start.elapsed() < PATIENCE, "it does not end; {}", self.errors());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
    }
}

/// Stops a process; false if it has ended.
pub fn stop(pid: u32) -> bool {
    let state = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let lives = |stat: &str| !stat.is_empty() && !stat.contains(") Z ");
    if !lives(&state()) || !signal("STOP", pid) {
        return false;
    }
    while !state().contains(") T ") {
        if !lives(&state()) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Sends a signal to a process; false if there is none.
pub fn signal(name: &str, pid: u32) -> bool {
    send(name, &pid.to_string())
}

fn send(name: &str, target: &str) -> bool {
    let kill = format!("kill -s {name} -- {target}");
    Command::new("sh").args(["-c", &kill]).stderr(Stdio::null()).status().unwrap().success()
}

/// Files below a folder.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() { all.extend(files(&path)) } else { all.push(path) }
    }
    all
}
