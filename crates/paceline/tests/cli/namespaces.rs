//! Network namespaces as machines: each has addresses and links of its own. Needs root and iproute2; counts as
//! skipped where they are missing.

use std::io::Write;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use paceline_random::{Purpose, Stream};
use paceline_testing::has_network_namespaces;

use crate::machines::{Listening, Process, all_gone, error};
use crate::support::{ENDLESS, result, signal};
use crate::transports::lying_about;

/// From a loss to the end of everybody: 6 s, and threefold where a busy machine is no fault.
fn limit() -> Duration {
    Duration::from_secs(if std::env::var_os("PACELINE_CHAOS_STRICT").is_some() { 6 } else { 18 })
}
/// What is called after these tests' namespaces.
const PREFIX: &str = "paceline-t";

fn ip(words: &str) -> bool {
    done("ip", words)
}

fn done(program: &str, words: &str) -> bool {
    let out = Command::new(program).args(words.split_whitespace()).output();
    let done = out.as_ref().is_ok_and(|out| out.status.success());
    if !done {
        eprintln!("{program} {words}: {out:?}");
    }
    done
}

/// Machines on one switch, in namespaces of their own; nothing of this machine's network is touched. Dropping
/// them removes them.
pub struct Machines {
    /// The switch, then the machines.
    names: Vec<String>,
}

impl Machines {
    /// So many machines; `None` and a counted skip where they cannot be made.
    pub fn new(count: usize) -> Option<Self> {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        if !has_network_namespaces() {
            return None;
        }
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = |what: String| format!("{PREFIX}{}-{number}-{what}", std::process::id());
        let names = (0..=count).map(|i| name(if i == 0 { "switch".into() } else { (i - 1).to_string() }));
        let mut machines = Self { names: Vec::new() };
        for (i, name) in names.enumerate() {
            assert!(ip(&format!("netns add {name}")));
            machines.names.push(name);
            let switch = &machines.names[0];
            let Some(host) = i.checked_sub(1) else {
                assert!(ip(&format!("-n {switch} link add bridge type bridge")));
                assert!(ip(&format!("-n {switch} link set bridge up")));
                continue;
            };
            let (name, address) = (&machines.names[i], machines.address(host));
            assert!(ip(&format!("-n {switch} link add port{host} type veth peer name eth0 netns {name}")));
            assert!(ip(&format!("-n {switch} link set port{host} master bridge up")));
            assert!(ip(&format!("-n {name} addr add {address}/24 dev eth0")));
            assert!(ip(&format!("-n {name} link set eth0 up")) && ip(&format!("-n {name} link set lo up")));
        }
        Some(machines)
    }

    pub fn address(&self, host: usize) -> String {
        format!("10.77.0.{}", host + 1)
    }

    /// What starts a program on a machine.
    pub fn on(&self, host: usize) -> [&str; 4] {
        ["ip", "netns", "exec", &self.names[host + 1]]
    }

    /// Pulls a machine's plug.
    pub fn cut(&self, host: usize) {
        assert!(ip(&format!("-n {} link set port{host} down", self.names[0])));
    }

    /// Plugs it in again.
    pub fn heal(&self, host: usize) {
        assert!(ip(&format!("-n {} link set port{host} up", self.names[0])));
    }

    /// Lets a machine send no more than 1 Mbit/s, or as much as it likes again.
    pub fn slow(&self, host: usize, slow: bool) {
        let name = &self.names[host + 1];
        let words = if slow {
            format!("-n {name} qdisc add dev eth0 root tbf rate 1mbit burst 32kbit latency 400ms")
        } else {
            format!("-n {name} qdisc del dev eth0 root")
        };
        assert!(done("tc", &words));
    }

    /// Nobody is left on any machine, and nobody listens or talks there.
    pub fn are_empty(&self) {
        for name in &self.names[1..] {
            let out = |words: &[&str]| {
                let out = Command::new("ip").args(["netns"]).args(words).output().unwrap();
                String::from_utf8(out.stdout).unwrap()
            };
            let begun = Instant::now();
            while !out(&["pids", name]).is_empty() {
                assert!(begun.elapsed() < limit(), "processes are left on {name}");
                std::thread::sleep(Duration::from_millis(10));
            }
            let table = out(&["exec", name, "cat", "/proc/net/tcp", "/proc/net/tcp6"]);
            // Established or listening; the kernel still says good-bye for those that are gone.
            let alive = |line: &&str| matches!(line.split_whitespace().nth(3), Some("01" | "0A"));
            assert_eq!(
                table.lines().filter(alive).collect::<Vec<_>>(),
                [""; 0],
                "sockets are left on {name}"
            );
        }
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        let names = std::mem::take(&mut self.names);
        let removed = names.iter().filter(|name| ip(&format!("netns del {name}"))).count();
        if !std::thread::panicking() {
            assert_eq!(removed, names.len(), "namespaces are left behind");
        }
    }
}

/// A run on machines of their own: a listening launcher, and joiners as host 1 and up.
struct Run {
    listening: Listening,
    joiners: Vec<Process>,
    _key: tempfile::TempDir,
}

impl Run {
    fn start(machines: &Machines, words: &str) -> Self {
        Self::start_at(machines, &machines.address(0), words)
    }

    /// The same, listening somewhere else; it is reached at its machine's address.
    fn start_at(machines: &Machines, listen: &str, words: &str) -> Self {
        let key = tempfile::tempdir().unwrap();
        let (hosts, file) = (machines.names.len() - 1, key.path().join("run.key"));
        let words = format!("--hosts {hosts} --key-file {} {words}", file.display());
        let mut listening = Listening::start(&machines.on(0), &format!("{listen}:7700"), &words);
        listening.address = format!("{}:7700", machines.address(0));
        let join = |host: usize| listening.join(&machines.on(host), &format!("--host {host}"));
        let joiners = (1..hosts).map(join).collect();
        Self { listening, joiners, _key: key }
    }

    fn ranks(&self) -> Vec<u32> {
        let processes = [&self.listening.launcher].into_iter().chain(&self.joiners);
        processes.flat_map(Process::children).collect()
    }
}

const RING: &str = "--workers 3 --strategy ring-allreduce";
const PS: &str = "--workers 3 --servers 2 --strategy ps";
/// Shared memory within a machine, TCP between them.
const MIXED: &str = "--workers 5 --transport shm --strategy ring-allreduce";

#[test]
fn machines_of_their_own_give_the_parameters_of_one_machine_bit_for_bit() {
    for (hosts, words) in [(2, RING), (2, PS), (2, MIXED), (3, RING), (3, PS)] {
        let Some(machines) = Machines::new(hosts) else { return };
        let before = lying_about();
        let words = format!("{words} --steps 6 --batch 24 --bucket 64KiB");
        let run = match hosts {
            2 => Run::start(&machines, &words),
            _ => Run::start_at(&machines, "0.0.0.0", &words),
        };
        let together = run.listening.launcher.result();
        for joiner in run.joiners {
            let (code, _, text) = joiner.end();
            assert_eq!(code, 0, "{words}: {text}");
        }
        let alone = result(&format!("train --quiet {words}"));
        for field in ["params_sha256", "steps", "samples", "final_accuracy"] {
            assert_eq!(alone[field], together[field], "{hosts} machines, {words}: {field}");
        }
        // One name, so that each has its address.
        let mut seen: Vec<_> =
            together["ranks"].as_array().unwrap().iter().map(|rank| rank["host"].to_string()).collect();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), hosts, "{seen:?}");
        assert!(
            (0..hosts).all(|host| seen[host].contains(&format!("({})", machines.address(host)))),
            "{seen:?}"
        );
        machines.are_empty();
        assert_eq!(lying_about(), before);
    }
}

#[test]
fn a_joiner_that_is_killed_is_named_everywhere() {
    for (hosts, words, ranks) in
        [(2, RING, "worker 2"), (2, MIXED, "worker 3, worker 4"), (3, PS, "worker 1, server 4")]
    {
        let Some(machines) = Machines::new(hosts) else { return };
        let run = Run::start(&machines, &format!("{words} {ENDLESS}"));
        run.listening.launcher.trains_on();
        let pids = run.ranks();
        assert!(signal("KILL", run.joiners[0].id()));
        let begun = Instant::now();
        named(run, &machines.address(1), ranks, 1);
        assert!(begun.elapsed() < limit(), "{words}: {:?}", begun.elapsed());
        all_gone(&pids);
        machines.are_empty();
    }
}

#[test]
fn a_machine_behind_a_cut_link_is_named_everywhere_and_ends_by_itself() {
    for (hosts, words, ranks) in [(2, PS, "worker 2, server 4"), (3, RING, "worker 1")] {
        let Some(machines) = Machines::new(hosts) else { return };
        let mut run = Run::start(&machines, &format!("{words} {ENDLESS}"));
        run.listening.launcher.trains_on();
        let pids = run.ranks();
        machines.cut(1);
        let begun = Instant::now();
        let alone = run.joiners.remove(0);
        let said = named(run, &machines.address(1), ranks, 0);
        assert!(said.contains("nothing was heard from it for 5."), "{said}");
        let (code, _, text) = alone.end();
        assert_eq!(code, 4, "{text}");
        let said = error(&text);
        assert!(said.contains("the launcher ") && said.contains(&machines.address(0)), "{text}");
        assert!(said.contains(&format!("by host 1, with {ranks}")), "{text}");
        assert!(
            text.contains("nothing heard from the launcher") && said.contains("nothing was heard"),
            "{text}"
        );
        assert!(begun.elapsed() < limit(), "{words}: {:?}", begun.elapsed());
        all_gone(&pids);
        machines.are_empty();
    }
}

/// F7: a link that is slow or cut for a while, and heals: updates are made exactly once, so the parameters are those of
/// an undisturbed run. `PACELINE_CHAOS_SEED`, `_ROUNDS` and `_LOG` are those of the campaigns.
#[test]
fn a_link_that_heals_costs_time_and_nothing_else() {
    let setting = |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (seed, rounds) = (setting("PACELINE_CHAOS_SEED", 1), setting("PACELINE_CHAOS_ROUNDS", 2));
    for round in 0..rounds {
        let Some(machines) = Machines::new(2) else { return };
        let draws = Stream::new(seed, Purpose::Virtual).fork(round);
        let slow = round % 2 == 0;
        let words = [RING, PS, "--workers 3 --strategy halving-doubling"][draws.below(0, 3) as usize];
        let words = format!("{words} --epochs 60 --batch 8 --seed {}", 1 + draws.below(1, 1000));
        let run = Run::start(&machines, &words);
        run.listening.launcher.trains_on();
        let pause = Duration::from_millis(500 + draws.below(2, if slow { 3000 } else { 1500 }));
        if slow {
            machines.slow(1, true)
        } else {
            machines.cut(1)
        }
        std::thread::sleep(pause);
        if slow {
            machines.slow(1, false)
        } else {
            machines.heal(1)
        }
        let together = run.listening.launcher.result();
        for joiner in run.joiners {
            let (code, _, text) = joiner.end();
            assert_eq!(code, 0, "{words}: {text}");
        }
        let alone = result(&format!("train --quiet {words}"));
        let what = format!("{} for {pause:?}, {words}", if slow { "1 Mbit/s" } else { "cut" });
        for field in ["params_sha256", "steps", "samples", "final_accuracy"] {
            assert_eq!(alone[field], together[field], "seed {seed}, round {round}: {what}: {field}");
        }
        machines.are_empty();
        if let Some(path) = std::env::var_os("PACELINE_CHAOS_LOG") {
            let mut log = std::fs::File::options().append(true).create(true).open(path).unwrap();
            let line =
                serde_json::json!({"seed": seed, "round": round, "fault": "F7", "run": what, "ok": true});
            writeln!(log, "{line}").unwrap();
        }
    }
}

/// Everybody ends and names the lost machine, its ranks and the step; those before `skip` are gone already. The
/// launcher's error.
fn named(run: Run, address: &str, ranks: &str, skip: usize) -> String {
    let (code, _, text) = run.listening.launcher.end();
    assert_eq!(code, 4, "{text}");
    let said = error(&text).to_owned();
    for what in [format!("({address})"), format!("with {ranks} was lost after step ")] {
        assert!(said.contains(&what), "{what}: {text}");
    }
    assert!(text.contains("hint:"), "{text}");
    for joiner in run.joiners.into_iter().skip(skip) {
        let (code, _, text) = joiner.end();
        assert_eq!(code, 4, "{text}");
        assert!(error(&text).contains(&format!("({address})")), "{text}");
    }
    said
}
