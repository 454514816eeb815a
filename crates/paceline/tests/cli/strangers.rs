//! Those who knock at the ranks of a real run: each is turned away and told of, and the run goes on.
//!
//! They come over TCP, or over gRPC, which they speak by hand.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use paceline_wire::{HELLO, Hello, Identity, Key, VERDICT};
use serde_json::Value;

use crate::rpc::{Answer, DATA, END_STREAM, call, chunk, frame};
use crate::support::{ENDLESS, PATIENCE, Running, paceline, signal};

/// Workers of the runs here; ranks behind them are servers.
const WORKERS: u32 = 2;

/// Keeps a process from doing anything until it is dropped, even by a test that fails.
struct Still(u32);

impl Still {
    fn new(pid: u32) -> Self {
        assert!(signal("STOP", pid), "process {pid} has ended");
        Self(pid)
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        signal("CONT", self.0);
    }
}

/// Where a rank listens.
struct Door {
    pid: u32,
    address: SocketAddr,
    /// Whether gRPC is spoken there.
    calls: bool,
}

impl Door {
    /// A process's door as the kernel knows it: the run itself tells nobody.
    fn of(pid: u32, calls: bool) -> Self {
        let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        let links: Vec<_> = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok()).collect();
        let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap();
        let listening = table.lines().skip(1).find_map(|line| {
            let columns: Vec<&str> = line.split_whitespace().collect();
            let (address, state, inode) = (columns[1], columns[3], columns[9]);
            let own = links.iter().any(|link| link.to_str() == Some(&format!("socket:[{inode}]")));
            (state == "0A" && own).then(|| address.to_owned())
        });
        let address = listening.unwrap_or_else(|| panic!("process {pid} does not listen:\n{table}"));
        let port = address.strip_prefix("0100007F:").expect("ranks listen on loopback alone");
        let port = u16::from_str_radix(port, 16).unwrap();
        Self { pid, address: SocketAddr::from(([127, 0, 0, 1], port)), calls }
    }

    /// Somebody comes and says something. The rank takes no notice before all is said, so that a stranger who
    /// is slow on a busy machine is not taken for a silent one.
    fn knock(&self, bytes: &[u8]) -> Stranger {
        match (self.calls, bytes) {
            (false, bytes) => self.say(bytes),
            (true, []) => self.say(&call()),
            (true, bytes) => self.say(&[call(), chunk(bytes)].concat()),
        }
    }

    /// The same, as it is.
    fn say(&self, bytes: &[u8]) -> Stranger {
        let _still = Still::new(self.pid);
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(bytes).unwrap();
        Stranger { stream: Answer::new(stream), calls: self.calls }
    }
}

/// A connection of somebody without the run's key.
struct Stranger {
    stream: Answer<TcpStream>,
    calls: bool,
}

impl Stranger {
    fn hears<const N: usize>(&mut self) -> [u8; N] {
        if self.calls {
            return self.stream.hears();
        }
        let mut bytes = [0; N];
        self.stream.connection().read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Hears a refusal as its last words: why.
    fn refused(&mut self) -> String {
        let verdict: [u8; VERDICT] = self.hears();
        let [kind, length, text @ ..] = &verdict;
        assert_eq!(*kind, 2, "a refusal");
        if self.calls {
            // It hangs up as gRPC has it. An error means that the connection has ended already.
            let _ = self.stream.connection().write_all(&frame(DATA, END_STREAM, 1, &[]));
        }
        String::from_utf8(text[..usize::from(*length)].to_vec()).unwrap()
    }

    /// The run's account of this stranger, once it has hung up.
    fn account(mut self, cause: &str) -> String {
        let address = self.stream.connection().local_addr().unwrap();
        if self.calls {
            assert!(self.stream.rest().is_empty(), "{cause}: nothing more is said");
            return format!("{address}: {cause}");
        }
        match self.stream.connection().read(&mut [0]) {
            Ok(n) => assert_eq!(n, 0, "{cause}: nothing more is said"),
            // What the stranger still said was thrown away unread.
            Err(e) => assert_eq!(e.kind(), ErrorKind::ConnectionReset, "{cause}: {e}"),
        }
        format!("{address}: {cause}")
    }
}

fn padded<const N: usize>(text: &str) -> [u8; N] {
    std::array::from_fn(|i| text.as_bytes().get(i).copied().unwrap_or(0))
}

/// Lets every kind of stranger knock at a rank's door; returns what the run must tell of each.
fn visit(pid: u32, transport: &str) -> Vec<String> {
    let door = Door::of(pid, transport == "grpc");
    let mut accounts = Vec::new();
    let silent = door.knock(b"");

    // The first knows nothing of the run, not even the version. What it hears, the others use.
    let (run, model_hash, key) = ("another run".to_owned(), [1; 32], Key::from([8; 32]));
    let ignorant = Identity { run, rank: 1, workers: 2, world: 2, model_hash, key };
    let theirs = Hello { version: 99, ..Hello::new(&ignorant, [0; 32]) };
    let mut stranger = door.knock(&theirs.encode());
    let ours = Hello::decode(&stranger.hears::<HELLO>());
    assert_eq!((stranger.refused().as_str(), ours.version), ("wire version differs", 1));
    let account = |stranger: Stranger, what: &str, theirs: &dyn std::fmt::Display| {
        stranger.account(&format!("{what} (theirs: {theirs}; ours: {ours})"))
    };
    accounts.push(account(stranger, "wire version differs", &theirs));

    let rank = (ours.rank + 1) % ours.world;
    let (role, other) = if rank < WORKERS { ("worker", "server") } else { ("server", "worker") };
    let right = Hello { rank, role: padded(role), nonce: [0; 32], ..ours };
    let misplaced = format!("expected rank {rank} to be a {role}, found role {other:?}");
    for (theirs, what) in [
        (Hello { run: padded("another run"), ..right }, "run id differs"),
        (Hello { world: 9, ..right }, "number of ranks differs"),
        (Hello { model_hash: [1; 32], ..right }, "model hash differs"),
        (Hello { role: padded(other), ..right }, misplaced.as_str()),
    ] {
        let mut stranger = door.knock(&theirs.encode());
        stranger.hears::<HELLO>();
        assert_eq!(stranger.refused(), what);
        accounts.push(account(stranger, what, &theirs));
    }

    // Whether a rank is wanted is told only to those who hold the key; both ranks are named all the same.
    let mut proof = [0; VERDICT];
    proof[..2].copy_from_slice(&[1, 32]);
    for theirs in [right, Hello { rank: 7, ..right }, Hello { rank: ours.rank, role: ours.role, ..right }] {
        let mut stranger = door.knock(&[&theirs.encode()[..], &proof].concat());
        stranger.hears::<HELLO>();
        assert_eq!(stranger.refused(), "wrong key");
        accounts.push(account(stranger, "wrong key", &theirs));
    }

    let garbage = door.knock(b"GET / HTTP/1.1\r\n\r\n");
    accounts.push(account(garbage, r#"expected a hello, found "GET / HT""#, &"no hello"));
    accounts.push(silent.account("no proof before the deadline of the handshake"));
    if door.calls {
        let browser = door.say(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        accounts
            .push(browser.account("no gRPC: connection error detected: unspecific protocol error detected"));
    }
    accounts
}

/// Rank and cause of a refusal.
fn refusal(event: &Value) -> (usize, String) {
    (event["rank"].as_u64().unwrap() as usize, event["cause"].as_str().unwrap().to_owned())
}

#[test]
fn strangers_are_turned_away_with_both_sides_values_and_training_goes_on() {
    for (transport, words, world) in [
        ("tcp", "--workers 2", 2),
        ("tcp", "--workers 2 --servers 1 --strategy ps", 3),
        ("grpc", "--workers 2", 2),
        ("grpc", "--workers 2 --servers 1 --strategy ps", 3),
    ] {
        let words = format!("{words} --transport {transport}");
        let run = Running::start(&format!("{ENDLESS} {words}"));
        let ranks = run.ranks();
        assert_eq!(ranks.len(), world, "{words}");
        for (rank, pid) in ranks.into_iter().enumerate() {
            let mut expected = visit(pid, transport);
            let mut told: Vec<_> = expected.iter().map(|_| refusal(&run.next("refused"))).collect();
            expected.sort();
            told.sort();
            assert_eq!(told, expected.into_iter().map(|cause| (rank, cause)).collect::<Vec<_>>(), "{words}");
            let step = || run.next("progress")["step"].as_u64().unwrap();
            assert!(step() < step(), "{words}: rank {rank} goes on");
        }
    }
}

#[test]
fn strangers_change_neither_the_result_nor_the_parameters() {
    disturb("tcp", "--workers 2 --epochs 200 --eval-every 1000000000 --seed 3");
}

#[test]
fn nor_do_they_over_grpc() {
    disturb("grpc", "--workers 2 --epochs 100 --eval-every 1000000000 --seed 3");
}

/// Lets strangers knock at a run, which must come to the same as undisturbed.
fn disturb(transport: &str, words: &str) {
    let undisturbed = paceline(&format!("train --quiet {words} --transport {transport}")).result();
    let run = Running::start(&format!("{words} --transport {transport}"));
    let ranks = run.ranks();
    let mut expected = Vec::new();
    for (rank, other) in [(0, 1), (1, 0)] {
        // While one worker stands still the other cannot finish, however slow the strangers are.
        let _still = Still::new(ranks[other]);
        expected.extend(visit(ranks[rank], transport).into_iter().map(|cause| (rank, cause)));
    }
    let events = run.rest();
    let (code, text) = run.end();
    assert_eq!(code, 0, "{text}");
    let mut told: Vec<_> = events.iter().filter(|e| e["type"] == "refused").map(refusal).collect();
    expected.sort();
    told.sort();
    assert_eq!(told, expected);
    let result = events.last().unwrap();
    assert_eq!(result["type"], "result");
    for field in ["params_sha256", "steps", "samples", "final_accuracy"] {
        assert_eq!(result[field], undisturbed[field], "{words}: {field}");
    }
}

/// Words of 64 hexadecimal digits, as a key would be written.
fn key_like(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_hexdigit()).filter(|word| word.len() == 64)
}

#[test]
fn a_run_on_one_machine_tells_its_key_to_no_one_but_its_ranks() {
    // It is made for the run and goes through a pipe. (Where machines join, its file is known and looked for.)
    let read = |pid: u32, file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap();
    for transport in ["tcp", "grpc"] {
        let words = format!("{ENDLESS} --workers 2 --servers 1 --strategy ps --transport {transport}");
        let run = Running::start(&words);
        let launcher = run.id();
        for pid in run.ranks() {
            let program = env!("CARGO_BIN_EXE_paceline");
            assert_eq!(read(pid, "cmdline"), format!("{program}\0rank\0").into_bytes());
            assert_eq!(read(pid, "environ"), read(launcher, "environ"));
        }
    }
    for transport in ["tcp", "grpc"] {
        let store = tempfile::tempdir().unwrap();
        let words = format!("train --workers 2 --steps 3 --transport {transport}");
        let ran = paceline(&format!("{words} --store {}", store.path().display()));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        let known: Vec<&str> = key_like(&ran.stdout).collect();
        let result: Value = serde_json::from_str(ran.stdout.trim()).unwrap();
        assert!(known.iter().all(|word| *word == result["params_sha256"]), "{}", ran.stdout);
        assert_eq!(key_like(&ran.stderr).next(), None, "{}", ran.stderr);
    }
}
