//! The script's process: started, listened to, watched, and ended with all that it has started.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::socket::ScriptSocket;

/// How often the process is looked at.
const LOOK: Duration = Duration::from_millis(200);
/// Time to take over what was settled, and that a script may be stopped within an exchange.
const EXCHANGE: Duration = Duration::from_secs(5);
/// Least time between two tickets of a backward; of the first one, which may compile.
const BACKWARD: Duration = Duration::from_secs(60);
const FIRST_BACKWARD: Duration = Duration::from_secs(600);
/// Silence outside of exchanges that is told of, each time in which it grows sixfold.
const NOTICE: Duration = Duration::from_secs(10);
/// Lines of output that are kept for a failure.
const TAIL: usize = 20;
/// Longest line that is passed on, in bytes.
const LINE: usize = 2000;
/// Time that the watching thread has to find out why the script is gone.
const VERDICT: Duration = Duration::from_secs(3);
/// Time in which the last output of a script that has ended is waited for.
const LAST_OUTPUT: Duration = Duration::from_millis(500);
/// Time in which the rank is given to read the last messages of a script that has ended: they tell where it was.
const LAST_MESSAGES: Duration = Duration::from_secs(3);
/// Time that a script has to end by itself once it has told of its failure: threads, children and exit handlers of its own
/// may hold it up for long.
const FAULTED: Duration = Duration::from_secs(1);

/// Time that a script has to end by itself once it may.
const END: Duration = Duration::from_secs(2);

/// Process groups of scripts that run.
static SCRIPTS: Mutex<Vec<Pid>> = Mutex::new(Vec::new());
/// Descriptors that are inherited must not go to another script that is started at the same moment.
static SPAWN: Mutex<()> = Mutex::new(());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends every script of this process, with all that it has started: to be called before this process ends.
pub fn end_scripts() {
    lock(&SCRIPTS).drain(..).for_each(end_group);
}

/// Ends a process group. (One that has ended already is none.)
fn end_group(group: Pid) {
    let _ = kill_process_group(group, Signal::KILL);
}

/// How a script is started.
pub struct ScriptCommand {
    /// The program that runs it.
    pub python: String,
    /// A module of Python's that runs the script, if it does not run by itself.
    pub module: Option<&'static str>,
    /// The script.
    pub file: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// What it finds in its environment, besides this process's own.
    pub environment: Vec<(String, String)>,
    /// A folder that Python looks for packages in first.
    pub packages: Option<PathBuf>,
}

/// Where a script is, as far as it has told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptPlace {
    /// It has not attached yet.
    Starting,
    /// It has attached, and waits for the run.
    Attached,
    /// Between exchanges: loading, computing, validating, compiling.
    Outside,
    /// Between the first ticket of a backward pass and its end.
    Backward,
    /// Waiting for what is exchanged.
    Exchange,
    /// Taking over what was exchanged.
    Settled,
}

/// Why a script cannot go on.
#[derive(Clone, Debug)]
pub struct ScriptFailure {
    /// What happened.
    pub message: String,
    /// What to do.
    pub hint: String,
    /// Whether somebody else ended or stopped it: started again, it might go on.
    pub lost: bool,
}

/// What is told of a script.
#[derive(Clone, Debug)]
pub enum ScriptEvent {
    /// It has written a line.
    Said(String),
    /// It is waited for.
    Notice(String),
    /// It cannot go on.
    Failed(ScriptFailure),
    /// Its process has ended, and all that it had started.
    Ended,
}

/// Takes what is told of a script, from other threads.
pub type ScriptListener = Arc<dyn Fn(ScriptEvent) + Send + Sync>;

struct State {
    place: ScriptPlace,
    step: u64,
    /// Counts changes of place and tickets.
    moves: u64,
    /// The longest time between two tickets so far.
    longest: Duration,
    since: Instant,
    /// Whether it may end now.
    released: bool,
    ended: Option<ExitStatus>,
    failure: Option<ScriptFailure>,
    /// What it said of its own failure.
    fault: Option<String>,
    /// Whether all that it said was taken in, to the end of its connection.
    heard_out: bool,
    tail: VecDeque<String>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    listener: ScriptListener,
    /// Whether its output is passed on line by line.
    shown: bool,
}

/// Variables with which schedulers and launchers number the processes that they start.
const ENGINE_VARIABLES: &[&str] = &[
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_NAME",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "MPI_LOCALNRANKS",
    "MPI_LOCALRANKID",
];
/// How the names of others of them begin.
const ENGINE_PREFIXES: &[&str] = &["SLURM_", "OMPI_", "PMI_", "PMIX_", "TORCHELASTIC_"];

/// Whether a variable is one with which schedulers and launchers number their processes: scripts do not see it.
pub fn of_engines(name: &str) -> bool {
    ENGINE_VARIABLES.contains(&name) || ENGINE_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// A script's process. Dropping it ends it, with all that it has started.
pub struct ScriptProcess {
    shared: Arc<Shared>,
    group: Pid,
}

impl ScriptProcess {
    /// Starts a script; the listener is told what becomes of it, and each line of its output if it is to be `shown`.
    pub fn start(
        command: &ScriptCommand,
        shown: bool,
        listener: ScriptListener,
    ) -> io::Result<(Self, ScriptSocket)> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut python = Command::new(&command.python);
        python.args(command.module.iter().flat_map(|module| ["-m", module]));
        python.arg(&command.file).args(&command.args);
        python.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Whoever started this process as one of several did not start the script: its own frameworks must not think so.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(of_engines)) {
            python.env_remove(name);
        }
        python.env("PACELINE_ATTACH", theirs.as_raw_fd().to_string()).env("PYTHONUNBUFFERED", "1");
        python.envs(command.environment.iter().map(|(name, value)| (name, value)));
        if let Some(folder) = &command.packages {
            let known = std::env::var_os("PYTHONPATH");
            let folders = [folder.clone()].into_iter().chain(known.iter().flat_map(std::env::split_paths));
            python.env("PYTHONPATH", std::env::join_paths(folders).map_err(io::Error::other)?);
        }
        // A group of its own: a terminal's Ctrl-C is the launcher's, and what the script starts ends with it.
        python.process_group(0);
        let mut child = {
            let _alone = lock(&SPAWN);
            fcntl_setfd(&theirs, FdFlags::empty())?;
            let child = python.spawn();
            drop(theirs);
            child?
        };
        let group = Pid::from_child(&child);
        lock(&SCRIPTS).push(group);
        let state = State {
            place: ScriptPlace::Starting,
            step: 0,
            moves: 0,
            longest: Duration::ZERO,
            since: Instant::now(),
            released: false,
            ended: None,
            failure: None,
            fault: None,
            heard_out: false,
            tail: VecDeque::new(),
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new(), listener, shown });
        let process = Self { shared: Arc::clone(&shared), group };
        let (read, silent) = channel();
        for stream in [child.stdout.take().map(OwnedFd::from), child.stderr.take().map(OwnedFd::from)] {
            let (shared, read) = (Arc::clone(&shared), read.clone());
            let stream = stream.expect("output is a pipe");
            std::thread::Builder::new().name("output".into()).spawn(move || {
                listen(std::fs::File::from(stream), &shared);
                drop(read);
            })?;
        }
        drop(read);
        let pidfd = pidfd_open(group, PidfdFlags::empty())?;
        std::thread::Builder::new()
            .name("script".into())
            .spawn(move || watch(child, &pidfd, &shared, &silent))?;
        Ok((process, ScriptSocket::new(ours)?))
    }

    /// The script's process, and the group of all that it has started.
    pub fn pid(&self) -> u32 {
        self.group.as_raw_nonzero().get() as u32
    }

    /// Most memory that the script's process has had resident.
    pub fn peak_memory_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or_default() * 1024
    }

    /// Notes where the script is now, and in which step.
    pub fn at(&self, place: ScriptPlace, step: u64) {
        let mut state = lock(&self.shared.state);
        if state.place == ScriptPlace::Backward {
            state.longest = state.longest.max(state.since.elapsed());
        }
        (state.place, state.step, state.since) = (place, step, Instant::now());
        state.moves += 1;
    }

    /// Begins the present deadline anew: nobody has listened to the script for a while.
    pub fn bear_with(&self) {
        lock(&self.shared.state).moves += 1;
    }

    /// Notes what the script said of its own failure.
    pub fn fault(&self, message: String) {
        lock(&self.shared.state).fault = Some(message);
    }

    /// From now on the script may end.
    pub fn release(&self) {
        lock(&self.shared.state).released = true;
        self.shared.changed.notify_all();
    }

    /// Waits until the process has ended; whether it has.
    pub fn ended(&self, wait: Duration) -> bool {
        let state = lock(&self.shared.state);
        let waited = self.shared.changed.wait_timeout_while(state, wait, |state| state.ended.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.ended.is_some()
    }

    /// Waits a moment until a script that may end has ended; why that is a failure, if its exit status says so.
    pub fn end(&self) -> Option<ScriptFailure> {
        self.ended(END);
        let state = lock(&self.shared.state);
        let status = state.ended.filter(|status| !status.success())?;
        let ended = status.to_string().replacen(": ", " ", 1);
        let words = state.tail.back().map_or(String::new(), |line| format!(": {line}"));
        let message = format!("its script had done its work, and then ended with {ended}{words}");
        Some(ScriptFailure { message, hint: "what it wrote stands above".into(), lost: false })
    }

    /// Why the script is gone: to be asked when its connection is closed.
    pub fn why(&self) -> ScriptFailure {
        let mut state = lock(&self.shared.state);
        state.heard_out = true;
        self.shared.changed.notify_all();
        let unknown = |state: &mut State| state.failure.is_none() && state.ended.is_none();
        let waited = self.shared.changed.wait_timeout_while(state, VERDICT, unknown);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.failure.clone().unwrap_or_else(|| ScriptFailure {
            message: format!("its script closed its connection {}, and goes on", place(&state)),
            hint: "does it close descriptors that it did not open?".into(),
            lost: false,
        })
    }
}

impl Drop for ScriptProcess {
    fn drop(&mut self) {
        let grace = if std::mem::replace(&mut lock(&self.shared.state).released, true) {
            END
        } else {
            Duration::ZERO
        };
        self.shared.changed.notify_all();
        if !self.ended(grace) {
            end_group(self.group);
            self.ended(VERDICT);
        }
    }
}

/// Passes a script's output on, line by line.
fn listen(mut stream: std::fs::File, shared: &Shared) {
    let (mut line, mut buffer) = (Vec::new(), [0; 4096]);
    let tell = |line: &mut Vec<u8>| {
        // Progress bars write over the same line.
        let last = line.rsplit(|b| *b == b'\r').find(|part| !part.is_empty()).unwrap_or_default();
        let text = String::from_utf8_lossy(&last[..last.len().min(LINE)]).into_owned();
        line.clear();
        if text.trim().is_empty() {
            return;
        }
        {
            let mut state = lock(&shared.state);
            state.tail.push_back(text.clone());
            if state.tail.len() > TAIL {
                state.tail.pop_front();
            }
        }
        if shared.shown {
            (shared.listener)(ScriptEvent::Said(text));
        }
    };
    while let Ok(n) = stream.read(&mut buffer) {
        if n == 0 {
            break;
        }
        for &byte in &buffer[..n] {
            match byte {
                b'\n' => tell(&mut line),
                byte if line.len() < 16 * LINE => line.push(byte),
                _ => {}
            }
        }
    }
    tell(&mut line);
}

/// Where a script is, for people.
fn place(state: &State) -> String {
    let step = state.step + 1;
    match state.place {
        ScriptPlace::Starting => "before it had attached".into(),
        ScriptPlace::Attached => "while it waited for the run".into(),
        ScriptPlace::Outside if state.step == 0 => "before the first step".into(),
        ScriptPlace::Outside => format!("after step {}", state.step),
        ScriptPlace::Backward => format!("in the backward pass of step {step}"),
        ScriptPlace::Exchange | ScriptPlace::Settled => format!("in the exchange of step {step}"),
    }
}

/// Watches the process until it has ended, and says if that, or where it stays, is a failure.
fn watch(mut child: Child, pidfd: &OwnedFd, shared: &Shared, silent: &Receiver<()>) {
    let group = Pid::from_child(&child);
    let mut clock = Watchdog::default();
    loop {
        let mut polled = [PollFd::new(pidfd, PollFlags::IN)];
        let wait = Timespec { tv_sec: 0, tv_nsec: i64::from(LOOK.subsec_nanos()) };
        if poll(&mut polled, Some(&wait)).is_ok_and(|ready| ready > 0) {
            break;
        }
        if let Some(failure) = clock.look(shared, group) {
            fail(shared, failure);
            end_group(group);
        }
    }
    // As long as nobody has asked how it ended, its number belongs to nobody else.
    end_group(group);
    let status = child.wait();
    lock(&SCRIPTS).retain(|other| *other != group);
    // What it wrote last; somebody who left its group may hold the pipes open.
    let _ = silent.recv_timeout(LAST_OUTPUT);
    // During an exchange the rank is busy with its peers, and the script has nothing to say.
    let state = lock(&shared.state);
    let unheard = |state: &mut State| !state.heard_out && !state.released && state.failure.is_none();
    let patience = if state.place == ScriptPlace::Exchange { LAST_OUTPUT } else { LAST_MESSAGES };
    let waited = shared.changed.wait_timeout_while(state, patience, unheard);
    let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
    let failure = (!state.released && state.failure.is_none()).then(|| died(&state, status.as_ref().ok()));
    drop(state);
    if let Some(failure) = failure {
        fail(shared, failure);
    }
    state = lock(&shared.state);
    state.ended = Some(status.unwrap_or_default());
    shared.changed.notify_all();
    drop(state);
    (shared.listener)(ScriptEvent::Ended);
}

fn fail(shared: &Shared, failure: ScriptFailure) {
    let mut state = lock(&shared.state);
    if state.failure.is_some() || state.released {
        return;
    }
    state.failure = Some(failure.clone());
    let tail: Vec<String> = if shared.shown { Vec::new() } else { state.tail.iter().cloned().collect() };
    shared.changed.notify_all();
    drop(state);
    tail.into_iter().for_each(|line| (shared.listener)(ScriptEvent::Said(line)));
    (shared.listener)(ScriptEvent::Failed(failure));
}

/// The failure of a script that has ended.
fn died(state: &State, status: Option<&ExitStatus>) -> ScriptFailure {
    let ended = status.map_or("nobody saw how it ended".into(), ToString::to_string).replacen(": ", " ", 1);
    let (place, last) = (place(state), state.tail.back());
    let clean = status.is_some_and(ExitStatus::success);
    if let Some(fault) = &state.fault {
        let hint =
            "what it wrote stands above; it was started as the script says, with the arguments behind --";
        let message = format!("its script failed {place}: {fault}");
        return ScriptFailure { message, hint: hint.into(), lost: false };
    }
    let hint = match (clean, state.place) {
        (true, ScriptPlace::Starting) => {
            "does it call paceline.torch.attach(model, optimizer), or train at all where it is unchanged (--auto)? docs/pytorch.md \
             shows where"
        }
        (true, _) => {
            "it ended without a word (os._exit, or its end was not seen): let its main program return"
        }
        (false, _) => "what it wrote stands above",
    };
    let words = last.map_or(String::new(), |line| format!(": {line}"));
    let lost = status.is_none_or(|status| status.code().is_none());
    ScriptFailure { message: format!("its script ended {place} ({ended}){words}"), hint: hint.into(), lost }
}

/// How long a script has been where it is. Time is added up in pieces: a process that was suspended itself has waited no
/// longer than one.
#[derive(Default)]
struct Watchdog {
    moves: u64,
    here: Duration,
    stopped: Duration,
    /// Since it told of its failure.
    faulted: Duration,
    noticed: Duration,
    last: Option<Instant>,
}

impl Watchdog {
    fn look(&mut self, shared: &Shared, pid: Pid) -> Option<ScriptFailure> {
        let passed = self.last.map_or(Duration::ZERO, |last| last.elapsed().min(2 * LOOK));
        self.last = Some(Instant::now());
        let state = lock(&shared.state);
        if state.released || state.failure.is_some() {
            return None;
        }
        if state.moves != self.moves {
            let (moves, faulted, last) = (state.moves, self.faulted, self.last);
            *self = Self { moves, faulted, last, ..Self::default() };
        }
        if state.fault.is_some() {
            self.faulted += passed;
            if self.faulted >= FAULTED {
                return Some(died(&state, None));
            }
        }
        self.here += passed;
        self.stopped = if stopped(pid) { self.stopped + passed } else { Duration::ZERO };
        let inside =
            !matches!(state.place, ScriptPlace::Starting | ScriptPlace::Attached | ScriptPlace::Outside);
        let late = match state.place {
            ScriptPlace::Settled => EXCHANGE,
            ScriptPlace::Backward if state.longest.is_zero() => FIRST_BACKWARD,
            ScriptPlace::Backward => BACKWARD.max(20 * state.longest),
            _ => Duration::MAX,
        };
        if inside && self.stopped >= EXCHANGE {
            let message = format!("its script was stopped {} for {} s", place(&state), EXCHANGE.as_secs());
            let hint = "somebody sent it SIGSTOP, or a debugger holds it; the run ends for all";
            return Some(ScriptFailure { message, hint: hint.into(), lost: true });
        }
        if self.here >= late {
            let message = format!("its script made no progress {} for {} s", place(&state), late.as_secs());
            let hint = "does a hook of its own wait for something?";
            return Some(ScriptFailure { message, hint: hint.into(), lost: true });
        }
        let next = if self.noticed.is_zero() { NOTICE } else { 6 * self.noticed };
        if !inside && state.place != ScriptPlace::Attached && self.here >= next {
            self.noticed = next;
            let (seconds, what) =
                (next.as_secs(), if self.stopped.is_zero() { "" } else { " (it is stopped)" });
            let text = match state.place {
                ScriptPlace::Starting => format!("its script has not attached for {seconds} s{what}"),
                _ => format!(
                    "its script has been at work for {seconds} s {} without an exchange{what}",
                    place(&state)
                ),
            };
            drop(state);
            (shared.listener)(ScriptEvent::Notice(text));
        }
        None
    }
}

/// Whether a process is stopped.
fn stopped(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    // The name in parentheses may hold anything.
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().next());
    matches!(state, Some("T" | "t"))
}
