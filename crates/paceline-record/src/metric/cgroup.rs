//! The cgroups that this process runs in: where their files are, and what they say.
//!
//! Controllers are looked for one by one: each is part of one hierarchy, and on machines with both versions some are
//! in version 1 and some in version 2.

use std::fs;
use std::path::{Component, Path, PathBuf};

use super::{field, number};

/// Limits at or above this are what version 1 writes for "none".
const NO_LIMIT: f64 = (1u64 << 62) as f64;

/// What a process's cgroups say; none where there is no such controller, or no limit.
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
    /// Bytes read from disks.
    pub disk_read_bytes: Option<f64>,
    /// Bytes written to disks.
    pub disk_write_bytes: Option<f64>,
}

/// The folder of a process's group in one hierarchy.
#[derive(Clone, Debug, PartialEq)]
enum Group {
    One(PathBuf),
    Two(PathBuf),
}

impl Group {
    /// The text of a file: by its name in version 1 or in version 2.
    fn text(&self, one: &str, two: &str) -> Option<String> {
        let path = match self {
            Self::One(folder) => folder.join(one),
            Self::Two(folder) => folder.join(two),
        };
        fs::read_to_string(path).ok()
    }

    /// This group and those around it, as far as they can be seen.
    fn and_around(&self) -> Vec<Self> {
        let (Self::One(folder) | Self::Two(folder)) = self;
        let seen = folder.ancestors().take_while(|folder| folder.join("cgroup.procs").exists());
        let of = |folder: &Path| match self {
            Self::One(_) => Self::One(folder.into()),
            Self::Two(_) => Self::Two(folder.into()),
        };
        let around = seen.skip(1).map(of);
        std::iter::once(self.clone()).chain(around).collect()
    }

    /// A file with one number.
    fn number(&self, one: &str, two: &str) -> Option<f64> {
        self.text(one, two)?.trim().parse().ok()
    }
}

/// Where the figures are.
#[derive(Clone, Debug, Default)]
pub struct Cgroup {
    time: Option<Group>,
    cpu: Option<Group>,
    memory: Option<Group>,
    disk: Option<Group>,
    /// Limits hardly change: they are read once.
    limits: CgroupReading,
}

impl Cgroup {
    /// The cgroups of this process.
    pub fn own() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Self::of(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"))
    }

    /// The cgroups that a table like `/proc/self/cgroup` names, among mounts like those of `/proc/self/mountinfo`.
    fn of(table: &str, mounts: &str) -> Self {
        let mounts: Vec<Mount> = mounts.lines().filter_map(Mount::parse).collect();
        // Where version 1 has a controller, version 2 has it not: its files there would be those of another group.
        let group = |controller: &str| {
            let find = |one: Option<&str>| {
                let lines = table.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
                let own = |(named, _): &(&str, &str)| match one {
                    Some(controller) => named.split(',').any(|name| name == controller),
                    None => named.is_empty(),
                };
                lines.filter(own).map(|(_, path)| path).next()
            };
            match find(Some(controller)) {
                Some(path) => folder(&mounts, Some(controller), path).map(Group::One),
                None => folder(&mounts, None, find(None)?).map(Group::Two),
            }
        };
        let mut cgroup = Self {
            time: group("cpuacct"),
            cpu: group("cpu"),
            memory: group("memory"),
            disk: group("blkio"),
            limits: CgroupReading::default(),
        };
        cgroup.limits = cgroup.limits();
        cgroup
    }

    fn limits(&self) -> CgroupReading {
        let quota = |group: &Group| match group {
            Group::One(folder) => {
                let quota = number(&folder.join("cpu.cfs_quota_us")).filter(|quota| *quota > 0.0)?;
                Some(quota / number(&folder.join("cpu.cfs_period_us"))?)
            }
            Group::Two(folder) => {
                let text = fs::read_to_string(folder.join("cpu.max")).ok()?;
                let mut words = text.split_whitespace().map(|word| word.parse::<f64>().ok());
                Some(words.next()?? / words.next()??)
            }
        };
        let memory = |group: &Group| group.number("memory.limit_in_bytes", "memory.max");
        // A group has no more than the groups around it.
        let least = |group: &Option<Group>, limit: &dyn Fn(&Group) -> Option<f64>| {
            group.iter().flat_map(Group::and_around).filter_map(|group| limit(&group)).reduce(f64::min)
        };
        CgroupReading {
            cpu_limit: least(&self.cpu, &quota),
            memory_limit_bytes: least(&self.memory, &memory).filter(|limit| *limit < NO_LIMIT),
            ..CgroupReading::default()
        }
    }

    /// Their figures now.
    pub fn now(&self) -> CgroupReading {
        let time = || match self.time.as_ref()? {
            Group::One(folder) => number(&folder.join("cpuacct.usage")).map(|ns| ns * 1e-9),
            two => field(&two.text("", "cpu.stat")?, "usage_usec").map(|us: f64| us * 1e-6),
        };
        let throttled = || {
            let text = self.cpu.as_ref()?.text("cpu.stat", "cpu.stat")?;
            let nanoseconds = || field(&text, "throttled_time").map(|ns: f64| ns * 1e-9);
            field(&text, "throttled_usec").map(|us: f64| us * 1e-6).or_else(nanoseconds)
        };
        let disk = self.disk.as_ref().and_then(|group| {
            let text = |one: &str| group.text(one, "io.stat");
            text("blkio.throttle.io_service_bytes_recursive")
                .or_else(|| text("blkio.throttle.io_service_bytes"))
        });
        CgroupReading {
            cpu_s: time(),
            throttled_s: throttled(),
            memory_bytes: self
                .memory
                .as_ref()
                .and_then(|g| g.number("memory.usage_in_bytes", "memory.current")),
            disk_read_bytes: disk.as_ref().map(|text| transferred(text, "Read", "rbytes=")),
            disk_write_bytes: disk.as_ref().map(|text| transferred(text, "Write", "wbytes=")),
            ..self.limits
        }
    }
}

/// Bytes of all devices: lines `8:0 Read 4096` of version 1, `8:0 rbytes=4096 wbytes=0` of version 2.
fn transferred(text: &str, one: &str, two: &str) -> f64 {
    let bytes = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().skip(1).collect();
        let found = match words[..] {
            [kind, count] if kind == one => Some(count),
            _ => words.iter().find_map(|word| word.strip_prefix(two)),
        };
        found.and_then(|count| count.parse::<f64>().ok())
    };
    text.lines().filter_map(bytes).sum()
}

/// A mounted hierarchy, or a part of one.
struct Mount {
    /// What of the hierarchy is mounted: its path from where this process sees the hierarchy begin.
    root: String,
    point: PathBuf,
    /// Its version 1 controllers; none for version 2.
    controllers: Option<Vec<String>>,
}

impl Mount {
    /// A line of `/proc/self/mountinfo`; none if it is of something else.
    fn parse(line: &str) -> Option<Self> {
        let (place, kind) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, point) = (place.next()?, place.next()?);
        let mut kind = kind.split(' ');
        let controllers = match kind.next()? {
            "cgroup" => Some(kind.nth(1)?.split(',').map(str::to_owned).collect()),
            "cgroup2" => None,
            _ => return None,
        };
        Some(Self { root: root.to_owned(), point: point.replace("\\040", " ").into(), controllers })
    }
}

/// Where the group of this path is in the hierarchy of a controller, or in that of version 2; none if it is not mounted.
/// A path that leads out of this process's namespace (`/../job`) names nothing that can be seen from here.
fn folder(mounts: &[Mount], controller: Option<&str>, path: &str) -> Option<PathBuf> {
    let has = |mount: &&Mount| match (&mount.controllers, controller) {
        (Some(there), Some(controller)) => there.iter().any(|name| name == controller),
        (None, None) => true,
        _ => false,
    };
    let within = |mount: &Mount| {
        let rest = Path::new(path).strip_prefix(&mount.root).ok()?;
        let outside = rest.components().any(|part| part == Component::ParentDir);
        // Joining nothing would add a slash.
        let folder = if rest.as_os_str().is_empty() { mount.point.clone() } else { mount.point.join(rest) };
        (!outside && folder.is_dir()).then_some(folder)
    };
    mounts.iter().filter(has).find_map(within)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A made-up `/sys/fs/cgroup` of these files.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let file = root.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        root
    }

    /// Mounts of parts of hierarchies: (what of it, where below the root, type, controllers).
    fn mounts(root: &Path, mounts: &[(&str, &str, &str, &str)]) -> String {
        let line = |(part, point, kind, controllers): &(&str, &str, &str, &str)| {
            let point = root.join(point);
            format!(
                "33 31 0:30 {part} {} rw,relatime shared:9 - {kind} {kind} rw{controllers}\n",
                point.display()
            )
        };
        let others = "24 1 0:22 / /proc rw - proc proc rw\n31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n";
        others.to_owned() + &mounts.iter().map(line).collect::<String>()
    }

    const TWO: &[(&str, &str)] = &[
        ("a/b/cpu.stat", "usage_usec 2500000\nuser_usec 2\nnr_throttled 1\nthrottled_usec 500000\n"),
        ("a/b/cpu.max", "150000 100000\n"),
        ("a/b/memory.current", "4096\n"),
        ("a/b/memory.max", "max\n"),
        ("a/b/io.stat", "8:0 rbytes=10 wbytes=20 rios=1 wios=1\n8:16 rbytes=5 wbytes=0 rios=1 wios=0\n"),
    ];

    const READ_TWO: CgroupReading = CgroupReading {
        cpu_s: Some(2.5),
        throttled_s: Some(0.5),
        cpu_limit: Some(1.5),
        memory_bytes: Some(4096.0),
        memory_limit_bytes: None,
        disk_read_bytes: Some(15.0),
        disk_write_bytes: Some(20.0),
    };

    const ONE: &[(&str, &str)] = &[
        ("cpu,cpuacct/job/cpuacct.usage", "3000000000\n"),
        ("cpu,cpuacct/job/cpu.cfs_quota_us", "50000\n"),
        ("cpu,cpuacct/job/cpu.cfs_period_us", "100000\n"),
        ("cpu,cpuacct/job/cpu.stat", "nr_periods 0\nthrottled_time 1000000000\n"),
        ("memory/job/memory.usage_in_bytes", "8192\n"),
        ("memory/job/memory.limit_in_bytes", "1048576\n"),
        ("blkio/job/blkio.throttle.io_service_bytes", "8:0 Read 7\n8:0 Write 9\n8:0 Total 16\nTotal 16\n"),
    ];

    const READ_ONE: CgroupReading = CgroupReading {
        cpu_s: Some(3.0),
        throttled_s: Some(1.0),
        cpu_limit: Some(0.5),
        memory_bytes: Some(8192.0),
        memory_limit_bytes: Some(1_048_576.0),
        disk_read_bytes: Some(7.0),
        disk_write_bytes: Some(9.0),
    };

    const MOUNTS_ONE: &[(&str, &str, &str, &str)] = &[
        ("/", "cpu,cpuacct", "cgroup", ",cpu,cpuacct"),
        ("/", "memory", "cgroup", ",memory"),
        ("/", "blkio", "cgroup", ",blkio"),
    ];

    const TABLE_ONE: &str = "5:blkio:/job\n4:memory:/job\n2:cpu,cpuacct:/job\n1:name=systemd:/\n";

    #[test]
    fn version_2_alone() {
        let root = tree(TWO);
        let mounts = mounts(root.path(), &[("/", "", "cgroup2", "")]);
        assert_eq!(Cgroup::of("0::/a/b\n", &mounts).now(), READ_TWO);
    }

    #[test]
    fn limits_of_the_groups_around_hold_too() {
        let around = [("a/cpu.max", "50000 100000\n"), ("a/memory.max", "1000\n")];
        let seen = [("a/b/cgroup.procs", ""), ("a/cgroup.procs", ""), ("cgroup.procs", "")];
        let root = tree(&[TWO, &around, &seen].concat());
        let read = Cgroup::of("0::/a/b\n", &mounts(root.path(), &[("/", "", "cgroup2", "")])).now();
        assert_eq!((read.cpu_limit, read.memory_limit_bytes), (Some(0.5), Some(1000.0)));
    }

    #[test]
    fn version_1_alone() {
        let root = tree(ONE);
        assert_eq!(Cgroup::of(TABLE_ONE, &mounts(root.path(), MOUNTS_ONE)).now(), READ_ONE);
    }

    #[test]
    fn with_both_versions_each_controller_is_read_where_it_is() {
        // The files of version 2 are those of the whole machine.
        let whole =
            [("unified/cpu.stat", "usage_usec 99000000\n"), ("unified/io.stat", "8:0 rbytes=99 wbytes=99\n")];
        let root = tree(&[ONE, &whole].concat());
        let both = [MOUNTS_ONE, &[("/", "unified", "cgroup2", "")]].concat();
        let table = TABLE_ONE.to_owned() + "0::/\n";
        assert_eq!(Cgroup::of(&table, &mounts(root.path(), &both)).now(), READ_ONE);
        // Without a hierarchy of its own in version 1, the disk's controller may be in version 2.
        let table = table.replace("5:blkio:/job\n", "");
        let read = Cgroup::of(&table, &mounts(root.path(), &both)).now();
        assert_eq!(
            read,
            CgroupReading { disk_read_bytes: Some(99.0), disk_write_bytes: Some(99.0), ..READ_ONE }
        );
        // A controller of version 1 that is not mounted here is not read from version 2.
        let some = [&MOUNTS_ONE[1..], &[("/", "unified", "cgroup2", "")]].concat();
        let read = Cgroup::of(TABLE_ONE, &mounts(root.path(), &some)).now();
        assert_eq!((read.cpu_s, read.throttled_s, read.memory_bytes), (None, None, Some(8192.0)));
    }

    #[test]
    fn in_namespaces_only_what_can_be_seen_is_read() {
        let root = tree(TWO);
        let of = |table: &str, part: &str, point: &str| {
            Cgroup::of(table, &mounts(root.path(), &[(part, point, "cgroup2", "")])).now()
        };
        // A namespace of its own: the group is where the hierarchy begins.
        assert_eq!(of("0::/\n", "/", "a/b"), READ_TWO);
        // A container that sees its own part of the machine's hierarchy.
        assert_eq!(of("0::/docker/c1\n", "/docker/c1", "a/b"), READ_TWO);
        assert_eq!(of("0::/docker/c1/b\n", "/docker/c1", "a"), READ_TWO);
        // Both outside of the namespace: the way from one to the other is known.
        assert_eq!(of("0::/../..\n", "/../..", "a/b"), READ_TWO);
        assert_eq!(of("0::/../../b\n", "/../..", "a"), READ_TWO);
        // Outside of its namespace, or under a mount from outside: where the group is cannot be told.
        for (table, part) in
            [("0::/../..\n", "/"), ("0::/../job\n", "/"), ("0::/\n", "/../.."), ("0::/x\n", "/y")]
        {
            assert_eq!(of(table, part, "a/b"), CgroupReading::default(), "{table}{part}");
        }
    }

    #[test]
    fn without_cgroups_nothing_is_read() {
        let root = tree(TWO);
        let mounts = mounts(root.path(), &[("/", "", "cgroup2", "")]);
        for (table, mounts) in
            [("", &mounts[..]), ("0::/a/b\n", ""), ("0::/a/none\n", &mounts), ("nonsense\n", "x")]
        {
            assert_eq!(Cgroup::of(table, mounts).now(), CgroupReading::default(), "{table}");
        }
        let _own = Cgroup::own().now();
    }
}
