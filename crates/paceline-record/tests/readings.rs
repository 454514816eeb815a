//! What is sampled of this process agrees with other readings of the same things, taken at the same moments, after a
//! known amount of work. One test: readings of a process are disturbed by whatever else it does.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsFd;

use nix::sys::resource::{UsageWho, getrusage};
use paceline_record::metric::cgroup::Cgroup;
use paceline_record::metric::{PROCESS, ProcessReading};
use paceline_record::process;
use paceline_testing::{Need, skip};
use rustix::fs::{Advice, fadvise};

fn sampled(name: &str) -> f64 {
    let metric = PROCESS.iter().find(|m| m.name == name).unwrap_or_else(|| panic!("no metric {name}"));
    (metric.read)(&ProcessReading::now(&Cgroup::own())).unwrap_or_else(|| panic!("{name} cannot be read"))
}

/// Resident memory out of `/proc/self/smaps_rollup`, in bytes: the sum over all mappings.
fn resident() -> f64 {
    let text = fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() * 1024.0
}

/// User and system time out of `/proc/self/stat`, in seconds.
fn ticks() -> [f64; 2] {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<f64> =
        stat.rsplit(')').next().unwrap().split_whitespace().filter_map(|f| f.parse().ok()).collect();
    // The state is no number: utime and stime are the 11th and 12th behind it.
    [fields[10] / 100.0, fields[11] / 100.0]
}

fn agree(what: &str, sampled: f64, independent: f64) {
    let off = (sampled / independent - 1.0).abs();
    assert!(off < 0.05, "{what}: sampled {sampled}, independent reading {independent}");
}

#[test]
fn sampled_cpu_memory_and_disk_agree_with_independent_readings() {
    cpu();
    memory();
    disk();
}

fn cpu() {
    let (user, system, clock, stat) =
        (sampled("cpu_user_s"), sampled("cpu_system_s"), process::cpu_seconds(), ticks());
    // Two threads work until the process has spent two seconds, however long that takes; one of them mostly in the
    // kernel.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut x = 1u64;
            while process::cpu_seconds() - clock < 2.0 {
                (0..100_000u64).for_each(|i| x = std::hint::black_box(x.wrapping_mul(31).wrapping_add(i)));
            }
        });
        scope.spawn(|| {
            let mut bytes = vec![0; 1 << 16];
            while process::cpu_seconds() - clock < 2.0 {
                File::open("/dev/zero").unwrap().read_exact(&mut bytes).unwrap();
            }
        });
    });
    let spent = process::cpu_seconds() - clock;
    let (user, system) = (sampled("cpu_user_s") - user, sampled("cpu_system_s") - system);
    agree("CPU time by the process's clock", user + system, spent);
    let now = ticks();
    agree("CPU time by /proc/self/stat", user + system, now[0] + now[1] - stat[0] - stat[1]);
    agree("user time by /proc/self/stat", user, now[0] - stat[0]);
    assert!(system > 0.0 && (system - (now[1] - stat[1])).abs() < 0.1, "system time {system}");
}

fn memory() {
    const BYTES: usize = 128 << 20;
    let (before, faults) = (sampled("resident_bytes"), sampled("minor_faults"));
    let mut block = vec![0u8; BYTES];
    block.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    std::hint::black_box(&block);
    agree("resident memory by its mappings", sampled("resident_bytes"), resident());
    let peak = getrusage(UsageWho::RUSAGE_SELF).unwrap().max_rss() as f64 * 1024.0;
    agree("peak memory by rusage", sampled("resident_peak_bytes"), peak);
    agree("memory that was touched", sampled("resident_bytes") - before, BYTES as f64);
    assert!(sampled("minor_faults") > faults);
    drop(block);
    assert!(sampled("resident_peak_bytes") > sampled("resident_bytes"), "a peak stays");
}

fn disk() {
    const BYTES: usize = 64 << 20;
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("block");
    let blocks = || {
        let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
        [usage.block_reads() as f64 * 512.0, usage.block_writes() as f64 * 512.0]
    };
    let (read, written, usage) = (sampled("disk_read_bytes"), sampled("disk_write_bytes"), blocks());
    let mut file = File::create(&path).unwrap();
    // No file system makes this shorter.
    let mut state = 1u64;
    let noise: Vec<u8> = (0..BYTES)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .collect();
    file.write_all(&noise).unwrap();
    file.sync_all().unwrap();
    if blocks()[1] - usage[1] < 1.0 {
        return skip(Need::System, format_args!("a disk ({} is on none)", folder.path().display()));
    }
    agree("bytes written", sampled("disk_write_bytes") - written, BYTES as f64);
    agree("bytes written by rusage", sampled("disk_write_bytes") - written, blocks()[1] - usage[1]);
    let mut file = File::open(&path).unwrap();
    // Out of the page cache, so that it has to be read again.
    fadvise(file.as_fd(), 0, None, Advice::DontNeed).unwrap();
    let mut back = Vec::new();
    file.read_to_end(&mut back).unwrap();
    assert!(back == noise);
    if blocks()[0] - usage[0] < BYTES as f64 / 2.0 {
        return skip(Need::System, "a file system whose page cache can be emptied");
    }
    agree("bytes read", sampled("disk_read_bytes") - read, BYTES as f64);
    agree("bytes read by rusage", sampled("disk_read_bytes") - read, blocks()[0] - usage[0]);
}
