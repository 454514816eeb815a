//! The machine that something was measured on: a figure without it says little.

use std::fs;

use serde::{Deserialize, Serialize};

/// A machine, without anything that names its owner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name; `unknown` where the kernel does not say.
    pub cpu: String,
    /// Logical cores of the machine.
    pub cores: usize,
    /// Cores that this process may use.
    pub usable_cores: usize,
    /// The kernel and its release.
    pub kernel: String,
}

impl Machine {
    /// This one.
    pub fn here() -> Self {
        let usable_cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (cpu, cores) = processors(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default());
        let read = |name: &str| {
            let text = fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
            text.trim().to_owned()
        };
        let kernel = format!("{} {}", read("ostype"), read("osrelease"));
        Self { cpu, cores: cores.max(usable_cores), usable_cores, kernel: kernel.trim().into() }
    }
}

/// The first processor's name, and how many there are.
fn processors(info: &str) -> (String, usize) {
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let name = name.map_or("unknown", |(_, name)| name.trim());
    (name.to_owned(), info.lines().filter(|line| line.starts_with("processor")).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_named_and_counted() {
        let info =
            "processor\t: 0\nmodel name\t: Abacus 9: fast\nprocessor\t: 1\nmodel name\t: Abacus 9: fast\n";
        assert_eq!(processors(info), ("Abacus 9: fast".into(), 2));
        assert_eq!(processors(""), ("unknown".into(), 0));
        assert!(Machine::here().cores >= 1);
    }
}
