//! Slurm on one machine: a controller and three `slurmd`, each a node, with a key, ports and folders of their own. Needs
//! root and Debian's packages munge, slurmctld, slurmd and slurm-client.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use paceline_testing::process::in_path;
use paceline_testing::{Need, is_root, skip};

use crate::machines::{Process, all_gone};
use crate::study_nodes;
use crate::support::{ENDLESS, gone, result, signal};

/// From a loss to the end of everybody: 6 s, and threefold where a busy machine is no fault.
const LIMIT: Duration = Duration::from_secs(18);
/// Time until three nodes are idle.
const START: Duration = Duration::from_secs(60);

/// A cluster of three nodes on this machine. Dropping it ends it.
struct Cluster {
    folder: tempfile::TempDir,
    daemons: Vec<Child>,
}

/// Ports that nobody listens at now.
fn free_ports(count: usize) -> Vec<u16> {
    let bound: Vec<_> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    bound.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}

impl Cluster {
    /// Starts it; `None` and a counted skip where that is not possible.
    fn start() -> Option<Self> {
        if !is_root() {
            skip(Need::Root, "slurmd");
            return None;
        }
        let missing: Vec<_> = ["munged", "slurmctld", "slurmd", "srun", "sinfo"]
            .into_iter()
            .filter(|name| !in_path(name))
            .collect();
        if !missing.is_empty() {
            skip(
                Need::DebianPackage,
                format!("munge, slurmctld, slurmd, slurm-client: no {}", missing.join(", ")),
            );
            return None;
        }
        let mut cluster = Self { folder: tempfile::tempdir().unwrap(), daemons: Vec::new() };
        let at = |name: &str| cluster.folder.path().join(name);
        fs::create_dir(at("state")).unwrap();
        fs::write(at("munge.key"), [0x5a; 1024]).unwrap();
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(at("munge.key"), private).unwrap();
        let munge: Vec<_> = [
            ("key-file", "munge.key"),
            ("socket", "munge.sock"),
            ("pid-file", "munge.pid"),
            ("log-file", "munge.log"),
            ("seed-file", "munge.seed"),
        ]
        .iter()
        .map(|(flag, name)| format!("--{flag}={}", at(name).display()))
        .collect();
        fs::write(at("slurm.conf"), cluster.configuration()).unwrap();
        let conf = at("slurm.conf");
        cluster.daemon(Command::new("munged").args(["--force", "--foreground"]).args(&munge), "munged");
        cluster.waits_for("munge.sock");
        cluster.daemon(Command::new("slurmctld").arg("-D").arg("-f").arg(&conf), "slurmctld");
        for node in 0..3 {
            let name = format!("n{node}");
            fs::create_dir(cluster.folder.path().join(format!("spool-{name}"))).unwrap();
            cluster.daemon(Command::new("slurmd").args(["-D", "-N", &name]).arg("-f").arg(&conf), &name);
        }
        let begun = Instant::now();
        loop {
            let out = Command::new("sinfo").args(["-h", "-N", "-o", "%T"]).env("SLURM_CONF", &conf).output();
            let text = out.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default();
            if text.lines().filter(|state| *state == "idle").count() == 3 {
                return Some(cluster);
            }
            let ended = cluster.daemons.iter_mut().any(|daemon| daemon.try_wait().unwrap().is_some());
            if ended || begun.elapsed() > START {
                // Slurm that was built for one slurmd per machine, say.
                skip(Need::System, format!("Slurm with three slurmd on one machine: {}", cluster.words()));
                return None;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn configuration(&self) -> String {
        let (folder, ports) = (self.folder.path().display(), free_ports(4));
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let host = host.trim().split('.').next().unwrap();
        let mut text = format!(
            "ClusterName=paceline-test\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={}\nAuthType=auth/munge\n\
             AuthInfo=socket={folder}/munge.sock\nSlurmUser=root\nSlurmdUser=root\nStateSaveLocation={folder}/state\n\
             SlurmdSpoolDir={folder}/spool-%n\nSlurmctldPidFile={folder}/slurmctld.pid\n\
             SlurmdPidFile={folder}/slurmd-%n.pid\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n\
             SelectType=select/linear\nReturnToService=2\nMpiDefault=none\nSlurmdParameters=config_overrides\n\
             SwitchType=switch/none\nJobAcctGatherType=jobacct_gather/none\nKillWait=5\n",
            ports[0]
        );
        for (node, port) in ports[1..].iter().enumerate() {
            text += &format!("NodeName=n{node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=1\n");
        }
        text + "PartitionName=p Nodes=ALL Default=YES State=UP MaxTime=INFINITE\n"
    }

    fn log(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.out"))
    }

    fn daemon(&mut self, command: &mut Command, name: &str) {
        let log = fs::File::create(self.log(name)).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.daemons.push(command.spawn().unwrap());
    }

    fn waits_for(&self, name: &str) {
        let begun = Instant::now();
        while !self.folder.path().join(name).exists() && begun.elapsed() < START {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The last words of every daemon.
    fn words(&self) -> String {
        let last = |name: &&str| {
            let text = fs::read_to_string(self.log(name)).unwrap_or_default();
            format!("{name}: {}; ", text.lines().last().unwrap_or_default())
        };
        ["munged", "slurmctld", "n0", "n1", "n2"].iter().map(last).collect()
    }

    /// `srun` of one task on each node.
    fn srun(&self, words: &str) -> Process {
        let conf = self.folder.path().join("slurm.conf").display().to_string();
        let store = self.folder.path().join("store").display().to_string();
        let somewhere = ["srun", "-N3", "-n3", "--quiet"];
        Process::start(&somewhere, &format!("{words} --store {store}"), &[("SLURM_CONF", &conf)])
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Nodes first, so that the controller has nobody to talk to.
        for daemon in self.daemons.iter_mut().rev() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        // Their helpers are processes of their own.
        for pid in processes_with(self.folder.path()) {
            signal("KILL", pid);
        }
    }
}

/// Processes whose environment or arguments name a folder.
fn processes_with(folder: &Path) -> Vec<u32> {
    let name = folder.display().to_string();
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let names = |pid: u32, file: &str| {
        let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).contains(&name)
    };
    let own = std::process::id();
    pids.filter(|&pid| pid != own && !gone(pid) && (names(pid, "cmdline") || names(pid, "environ"))).collect()
}

/// The tasks of a job, and their ranks.
fn tasks(cluster: &Cluster) -> Vec<u32> {
    let store = cluster.folder.path().join("store");
    let all = processes_with(&store);
    let is_task = |pid: &u32| {
        let bytes = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        bytes.starts_with(b"paceline")
    };
    all.into_iter().filter(is_task).collect()
}

#[test]
fn three_nodes_of_slurm_are_three_hosts_and_nothing_is_left_when_a_part_is_killed() {
    let Some(cluster) = Cluster::start() else { return };
    let short = "--steps 6 --batch 24 --bucket 64KiB --strategy ring-allreduce";
    let together = cluster.srun(&format!("train --quiet {short}")).result();
    let alone = result(&format!("train --quiet --workers 3 {short}"));
    for field in ["params_sha256", "steps", "samples", "final_accuracy"] {
        assert_eq!(alone[field], together[field], "{field}");
    }
    // The same nodes make the runs of a study.
    let study = cluster.folder.path().join("nodes.toml");
    fs::write(&study, study_nodes::TRAIN).unwrap();
    let explored = cluster.srun(&format!("explore {} --parallel 3 --json", study.display())).result();
    let runs = study_nodes::RUNS as u64;
    assert_eq!(
        (explored["ended"].as_u64(), explored["failed"].as_u64()),
        (Some(runs), Some(0)),
        "{explored}"
    );
    for victim in ["task", "leader", "slurmstepd"] {
        let job = cluster.srun(&format!("train --json {ENDLESS}"));
        job.trains_on();
        let tasks = tasks(&cluster);
        assert_eq!(tasks.len(), 3, "{victim}: {tasks:?}");
        let rank = |pid: u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
            let text = String::from_utf8_lossy(&environment).into_owned();
            text.split('\0')
                .find_map(|line| line.strip_prefix("SLURM_PROCID=")?.parse::<usize>().ok())
                .unwrap()
        };
        let task = |number: usize| *tasks.iter().find(|&&pid| rank(pid) == number).unwrap();
        let killed = match victim {
            "task" => task(1),
            "leader" => task(0),
            _ => parent(task(2)),
        };
        let begun = Instant::now();
        assert!(signal("KILL", killed), "{victim}");
        all_gone(&tasks);
        assert!(begun.elapsed() < LIMIT, "{victim}: {:?}", begun.elapsed());
        if victim != "slurmstepd" {
            let (code, _, text) = job.end();
            assert_ne!(code, 0, "{victim}: {text}");
            let named = if victim == "task" { "with worker 1 was lost" } else { "the launcher " };
            assert!(text.contains(named), "{victim}: {text}");
        }
    }
}

fn parent(pid: u32) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(')').next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
}
