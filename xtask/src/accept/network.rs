//! Emulated links: whether they are what was asked for, what they cost, and how they compare with the kernel's.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use paceline_record::process::children_cpu_seconds;
use paceline_statistics::median;
use serde_json::{Value, json};

use super::{Line, Report, Setup, number};
use crate::process::{Outcome, last_json};

/// Runs that each median is made from.
const RUNS: usize = 5;
/// Bandwidths as users write them, in bits per second, and two lengths in KiB whose difference is pure transmission.
const BANDWIDTHS: [(&str, f64, [usize; 2]); 4] = [
    ("10mbit", 10e6, [16, 64]),
    ("100mbit", 100e6, [64, 256]),
    ("1gbit", 1e9, [256, 1024]),
    ("2gbit", 2e9, [256, 1024]),
];
/// Latencies in seconds.
const LATENCIES: [(&str, f64); 4] = [("50us", 50e-6), ("200us", 200e-6), ("2ms", 2e-3), ("20ms", 20e-3)];
/// Bytes of a message's header.
const HEADER: f64 = 72.0;

/// Bandwidth and latency as measured, beside what was asked for; the cost of waiting.
pub fn honest(setup: &Setup) -> Outcome<Report> {
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    let (mut worst_bandwidth, mut worst_latency) = ((0.0, String::new()), (0.0, String::new()));
    for transport in ["tcp", "shm"] {
        for (bandwidth, bits_per_s, [short, long]) in BANDWIDTHS {
            for (latency, latency_s) in LATENCIES {
                let network = format!("{bandwidth},{latency}");
                let (mut bandwidths, mut latencies) = (Vec::new(), Vec::new());
                for round in 0..RUNS {
                    let mut command = setup.program();
                    let sizes = format!("4,{short}KiB,{long}KiB");
                    command.args(["bench", "p2p", "--json", "--seconds", "0.3", "--sizes", &sizes]);
                    let result = last_json(command.args(["--transport", transport, "--network", &network]))?;
                    let seconds = |row: usize| number(&result, &format!("/results/{row}/seconds_median"));
                    // There and back: 4 bytes, and an empty answer, each with a header.
                    let headers = (2.0 * HEADER + 4.0) * 8.0 / bits_per_s;
                    latencies.push((seconds(0)? - headers) / 2.0);
                    bandwidths.push((long - short) as f64 * 8192.0 / (seconds(2)? - seconds(1)?));
                    report.runs.push(json!({
                        "round": round, "transport": transport, "network": network, "result": result
                    }));
                }
                let off = |reached: f64, asked: f64| (reached / asked - 1.0).abs();
                for (worst, off) in [
                    (&mut worst_bandwidth, off(median(&bandwidths), bits_per_s)),
                    (&mut worst_latency, off(median(&latencies), latency_s)),
                ] {
                    if off > worst.0 {
                        *worst = (off, format!("{network} over {transport}"));
                    }
                }
            }
        }
    }
    let mut line = |claim: String, reached: f64, wanted: f64| {
        report.lines.push(Line { claim, reached, wanted, at_most: true });
    };
    let (off, at) = worst_bandwidth;
    line(format!("bandwidth off by at most (worst: {at})"), off, 0.05);
    let (off, at) = worst_latency;
    line(format!("latency off by at most (worst: {at})"), off, 0.05);
    let mut shares = Vec::new();
    for _ in 0..RUNS {
        // What starting costs is in both.
        let (short, long) = (waiting(setup, "0.2")?, waiting(setup, "4")?);
        shares.push((long.0 - short.0) / (long.1 - short.1) / 2.0);
        report.runs.push(json!({"waiting": {"short_cpu_wall_s": short, "long_cpu_wall_s": long}}));
    }
    line("cores that a rank needs to wait for messages 20 ms away".into(), median(&shares), 0.02);
    Ok(report)
}

/// CPU and wall seconds of two ranks that wait for each other's small messages nearly all the time.
fn waiting(setup: &Setup, seconds: &str) -> Outcome<(f64, f64)> {
    let (cpu, start) = (children_cpu_seconds(), Instant::now());
    let mut command = setup.program();
    command.args(["bench", "p2p", "--json", "--sizes", "4", "--network", "1gbit,20ms", "--seconds", seconds]);
    last_json(&mut command)?;
    Ok((children_cpu_seconds() - cpu, start.elapsed().as_secs_f64()))
}

/// Rates at which emulated links are compared with the kernel's.
const RATES: [&str; 2] = ["50mbit", "200mbit"];
/// Ring all-reduce of 0.2 MB in each step.
const TRAINING: &str = "train --quiet --workers 2 --steps 60 --eval-every 1000000";

/// The same training run over emulated links and between two network namespaces whose links the kernel shapes.
pub fn beside_the_kernel(setup: &Setup) -> Outcome<Report> {
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    let folder = std::env::temp_dir().join(format!("paceline-accept-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for rate in RATES {
        let machines = Machines::new(rate)?;
        let (mut emulated, mut shaped) = (Vec::new(), Vec::new());
        for round in 0..RUNS {
            let key = folder.join(format!("{rate}-{round}.key"));
            let by_kernel = machines.train(setup, &key)?;
            let mut command = setup.program();
            command.args(TRAINING.split(' ')).args(["--network", &format!("{rate},50us")]);
            let by_us = last_json(command.env("PACELINE_STORE", &folder))?;
            for (side, times, result) in
                [("kernel", &mut shaped, by_kernel), ("emulated", &mut emulated, by_us)]
            {
                times.push(number(&result, "/seconds/train")?);
                report.runs.push(json!({"round": round, "rate": rate, "side": side, "result": result}));
            }
        }
        let off = (median(&emulated) / median(&shaped) - 1.0).abs();
        let claim = format!("ring all-reduce training at {rate}: emulated beside tbf, off by");
        report.lines.push(Line { claim, reached: off, wanted: 0.10, at_most: true });
    }
    std::fs::remove_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    Ok(report)
}

/// Two network namespaces with a link of a given rate; removed when dropped.
struct Machines([String; 2]);

impl Machines {
    fn new(rate: &str) -> Outcome<Self> {
        let name = |host: usize| format!("paceline-a{}-{host}", std::process::id());
        let machines = Self([name(0), name(1)]);
        let [one, two] = &machines.0;
        for words in [
            format!("netns add {one}"),
            format!("netns add {two}"),
            format!("-n {one} link add eth0 type veth peer name eth0 netns {two}"),
        ] {
            ip(&words)?;
        }
        for (host, name) in machines.0.iter().enumerate() {
            ip(&format!("-n {name} addr add 10.78.0.{}/24 dev eth0", host + 1))?;
            ip(&format!("-n {name} link set eth0 up"))?;
            ip(&format!("-n {name} link set lo up"))?;
            let shape = format!("netns exec {name} tc qdisc add dev eth0 root tbf rate {rate}");
            ip(&format!("{shape} burst 32kb latency 400ms"))?;
        }
        Ok(machines)
    }

    /// A run of two machines; its result.
    fn train(&self, setup: &Setup, key: &Path) -> Outcome<Value> {
        let on = |host: usize| {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &self.0[host]]).arg(&setup.binary);
            command.env("PACELINE_STORE", key.with_extension("store"));
            command
        };
        let mut listening = on(0);
        listening.args(TRAINING.split(' ')).args([
            "--listen",
            "10.78.0.1:7700",
            "--hosts",
            "2",
            "--key-file",
        ]);
        let listening = listening.arg(key).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let listening = listening.map_err(|e| format!("ip netns exec: {e}"))?;
        let begun = Instant::now();
        while !key.is_file() && begun.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let joined = on(1).args(["join", "10.78.0.1:7700", "--key-file"]).arg(key).output();
        let out = listening.wait_with_output().map_err(|e| format!("waiting for the launcher: {e}"))?;
        let text = String::from_utf8_lossy(&out.stdout);
        let last = text.lines().last().unwrap_or_default();
        serde_json::from_str(last).map_err(|e| format!("no result between namespaces ({e}): {joined:?}"))
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        // One that was never made is not there either.
        self.0.iter().for_each(|name| drop(ip(&format!("netns del {name}"))));
    }
}

fn ip(words: &str) -> Outcome {
    let out = Command::new("ip").args(words.split(' ')).output();
    match out {
        Ok(out) if out.status.success() => Ok(()),
        Ok(out) => Err(format!("ip {words}: {}", String::from_utf8_lossy(&out.stderr).trim())),
        Err(e) => Err(format!("ip {words}: {e}")),
    }
}
