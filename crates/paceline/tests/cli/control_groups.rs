//! Control groups that tests make for themselves: limits of CPU time and memory, and the kernel's own counters.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use paceline_testing::{Need, is_root, skip};

/// The mount point of a controller, and whether it is of version 2; none where it cannot be used.
fn mounted(controller: &str) -> Option<(PathBuf, bool)> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let point = PathBuf::from(place.split(' ').nth(4)?);
        let mut kind = kind.split(' ');
        match kind.next()? {
            "cgroup" if kind.nth(1)?.split(',').any(|name| name == controller) => Some((point, false)),
            "cgroup2" => {
                let handed_down =
                    fs::read_to_string(point.join("cgroup.subtree_control")).unwrap_or_default();
                handed_down.split_whitespace().any(|name| name == controller).then_some((point, true))
            }
            _ => None,
        }
    })
}

/// A group of this test's, in every hierarchy that it needs. Dropping it removes it, once its processes have ended.
pub struct ControlGroup {
    /// Controller, folder, version 2.
    folders: Vec<(&'static str, PathBuf, bool)>,
}

impl ControlGroup {
    /// A group with these controllers; `None` and a counted skip where it cannot be made.
    pub fn new(controllers: &[&'static str]) -> Option<Self> {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        if !is_root() {
            skip(Need::Root, "control groups");
            return None;
        }
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("paceline-test-{}-{number}", std::process::id());
        let mut group = Self { folders: Vec::new() };
        for controller in controllers {
            let Some((point, two)) = mounted(controller) else {
                skip(Need::System, format!("the {controller} controller of control groups"));
                return None;
            };
            let folder = point.join(&name);
            if let Err(error) = fs::create_dir_all(&folder) {
                skip(Need::System, format!("{}: {error}", folder.display()));
                return None;
            }
            group.folders.push((controller, folder, two));
        }
        Some(group)
    }

    /// The folder of a controller, and whether it is of version 2.
    pub fn folder(&self, controller: &str) -> (&Path, bool) {
        let (_, folder, two) = self.folders.iter().find(|(name, ..)| *name == controller).unwrap();
        (folder, *two)
    }

    fn write(&self, controller: &str, one: (&str, String), two: (&str, String)) {
        let (folder, is_two) = self.folder(controller);
        let (file, text) = if is_two { two } else { one };
        fs::write(folder.join(file), text).unwrap_or_else(|e| panic!("{controller}, {file}: {e}"));
    }

    /// Lets it have so much of a core.
    pub fn limit_cpu(&self, cores: f64) {
        let quota = (cores * 100_000.0) as u64;
        self.write("cpu", ("cpu.cfs_quota_us", quota.to_string()), ("cpu.max", format!("{quota} 100000")));
    }

    /// What starts a program in it: words that its own go after.
    pub fn within(&self) -> Vec<String> {
        let enter: Vec<_> = self
            .folders
            .iter()
            .map(|(_, folder, _)| format!("echo $$ > {}/cgroup.procs", folder.display()))
            .collect();
        let script = format!("{} && exec \"$0\" \"$@\"", enter.join(" && "));
        vec!["sh".into(), "-c".into(), script]
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        for (_, folder, _) in &self.folders {
            // The kernel forgets processes a moment after they have ended.
            for _ in 0..500 {
                if fs::remove_dir(folder).is_ok() || !folder.exists() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
    }
}
