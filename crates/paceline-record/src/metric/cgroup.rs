//! The cgroup that this process runs in, version 1 or 2: where its files are, and what they say.

use std::fs;
use std::path::{Path, PathBuf};

use super::{field, number};

/// Limits at or above this are what version 1 writes for "none".
const NO_LIMIT: f64 = (1u64 << 62) as f64;

/// What a cgroup says of itself; none where there is no such controller, or no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CgroupReading {
    /// CPU time in seconds.
    pub cpu_s: Option<f64>,
    /// Time that it was throttled, in seconds.
    pub throttled_s: Option<f64>,
    /// Its quota in cores.
    pub cpu_limit: Option<f64>,
    /// Memory in bytes.
    pub memory_bytes: Option<f64>,
    /// Limit of memory in bytes.
    pub memory_limit_bytes: Option<f64>,
}

/// Where the figures are.
#[derive(Clone, Debug, Default)]
pub struct Cgroup {
    /// Folders of the version 1 controllers `cpuacct`, `cpu` and `memory`.
    one: [Option<PathBuf>; 3],
    /// Folder of version 2.
    two: Option<PathBuf>,
    /// Limits hardly change: they are read once.
    limits: CgroupReading,
}

impl Cgroup {
    /// The cgroup of this process.
    pub fn own() -> Self {
        let table = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self::of(&table, Path::new("/sys/fs/cgroup"))
    }

    /// The cgroup that a table like `/proc/self/cgroup` names, with its files under `root`. Inside a container
    /// the named folder may not be there; then the root's files are those of the container.
    fn of(table: &str, root: &Path) -> Self {
        let find = |mount: PathBuf, path: &str, probe: &str| {
            let own = mount.join(path.trim_start_matches('/'));
            [own, mount].into_iter().find(|folder| folder.join(probe).is_file())
        };
        let mut cgroup = Self::default();
        for line in table.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
            if controllers.is_empty() {
                cgroup.two = [root.to_owned(), root.join("unified")]
                    .into_iter()
                    .find_map(|mount| find(mount, path, "cgroup.procs"));
            }
            for (slot, name, probe) in [
                (0, "cpuacct", "cpuacct.usage"),
                (1, "cpu", "cpu.cfs_quota_us"),
                (2, "memory", "memory.usage_in_bytes"),
            ] {
                if controllers.split(',').any(|c| c == name) {
                    let mounts = [root.join(controllers), root.join(name)];
                    cgroup.one[slot] = mounts.into_iter().find_map(|mount| find(mount, path, probe));
                }
            }
        }
        cgroup.limits = cgroup.limits();
        cgroup
    }

    fn limits(&self) -> CgroupReading {
        let two = |file: &str| fs::read_to_string(self.two.as_ref()?.join(file)).ok();
        let one = |slot: usize, file: &str| number(&self.one[slot].as_ref()?.join(file));
        let quota_two = || {
            let text = two("cpu.max")?;
            let mut words = text.split_whitespace().map(|word| word.parse::<f64>().ok());
            Some(words.next()?? / words.next()??)
        };
        let quota_one = || {
            let quota = one(1, "cpu.cfs_quota_us").filter(|quota| *quota > 0.0)?;
            Some(quota / one(1, "cpu.cfs_period_us")?)
        };
        let memory = two("memory.max").and_then(|text| text.trim().parse::<f64>().ok());
        CgroupReading {
            cpu_limit: quota_two().or_else(quota_one),
            memory_limit_bytes: memory
                .or_else(|| one(2, "memory.limit_in_bytes"))
                .filter(|limit| *limit < NO_LIMIT),
            ..CgroupReading::default()
        }
    }

    /// Its figures now.
    pub fn now(&self) -> CgroupReading {
        let one = |slot: usize, file: &str| number(&self.one[slot].as_ref()?.join(file));
        let stat = |folder: &Option<PathBuf>| {
            folder.as_ref().and_then(|f| fs::read_to_string(f.join("cpu.stat")).ok()).unwrap_or_default()
        };
        let (two, first) = (stat(&self.two), stat(&self.one[1]));
        let memory = self.two.as_ref().and_then(|folder| number(&folder.join("memory.current")));
        CgroupReading {
            cpu_s: field(&two, "usage_usec")
                .map(|us| us * 1e-6)
                .or_else(|| one(0, "cpuacct.usage").map(|ns| ns * 1e-9)),
            throttled_s: field(&two, "throttled_usec")
                .map(|us| us * 1e-6)
                .or_else(|| field(&first, "throttled_time").map(|ns| ns * 1e-9)),
            memory_bytes: memory.or_else(|| one(2, "memory.usage_in_bytes")),
            ..self.limits
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, files: &[(&str, &str)]) {
        for (path, text) in files {
            let file = root.join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
    }

    #[test]
    fn version_2_is_read_with_its_limits() {
        let root = tempfile::tempdir().unwrap();
        write(
            root.path(),
            &[
                ("a/b/cgroup.procs", ""),
                ("a/b/cpu.stat", "usage_usec 2500000\nuser_usec 2\nnr_throttled 1\nthrottled_usec 500000\n"),
                ("a/b/cpu.max", "150000 100000\n"),
                ("a/b/memory.current", "4096\n"),
                ("a/b/memory.max", "max\n"),
            ],
        );
        let reading = Cgroup::of("0::/a/b\n", root.path()).now();
        let expected = CgroupReading {
            cpu_s: Some(2.5),
            throttled_s: Some(0.5),
            cpu_limit: Some(1.5),
            memory_bytes: Some(4096.0),
            memory_limit_bytes: None,
        };
        assert_eq!(reading, expected);
    }

    #[test]
    fn version_1_is_read_from_each_controller_and_a_container_from_its_root() {
        let root = tempfile::tempdir().unwrap();
        write(
            root.path(),
            &[
                ("cpu,cpuacct/cpuacct.usage", "3000000000\n"),
                ("cpu,cpuacct/cpu.cfs_quota_us", "50000\n"),
                ("cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
                ("cpu,cpuacct/cpu.stat", "nr_periods 0\nthrottled_time 1000000000\n"),
                ("memory/job/memory.usage_in_bytes", "8192\n"),
                ("memory/job/memory.limit_in_bytes", "1048576\n"),
            ],
        );
        let table = "4:memory:/job\n2:cpu,cpuacct:/somewhere/else\n1:name=systemd:/\n";
        let reading = Cgroup::of(table, root.path()).now();
        let expected = CgroupReading {
            cpu_s: Some(3.0),
            throttled_s: Some(1.0),
            cpu_limit: Some(0.5),
            memory_bytes: Some(8192.0),
            memory_limit_bytes: Some(1_048_576.0),
        };
        assert_eq!(reading, expected);
        assert_eq!(Cgroup::of("", root.path()).now(), CgroupReading::default());
    }
}
