//! Where strategies are compared: a clock, a number of workers, data and link.

use serde::{Deserialize, Serialize};

/// What runs are timed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CellClock {
    /// Processes of this machine.
    Real,
    /// The simulator, with real gradients.
    Virtual,
}

/// Where strategies are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ComparedCell {
    /// What runs are timed by.
    pub clock: CellClock,
    /// Number of workers.
    pub workers: usize,
    /// Whether each worker sees few classes only.
    pub by_label: bool,
    /// Whether workers sit behind the link.
    pub link: bool,
}

impl ComparedCell {
    /// All cells: few workers in real runs, many in virtual time; a number that is 0 leaves its cells out.
    pub fn all(few: usize, many: usize) -> Vec<Self> {
        let clocks = [(CellClock::Virtual, many), (CellClock::Real, few)];
        let mut cells = Vec::new();
        for (clock, workers) in clocks.into_iter().filter(|(_, workers)| *workers > 0) {
            for (by_label, link) in [(false, false), (false, true), (true, false), (true, true)] {
                cells.push(Self { clock, workers, by_label, link });
            }
        }
        cells
    }

    /// Where its learning rates are searched: in virtual time and without the link, since workers that go on together
    /// learn the same whatever the link and the clock are.
    pub fn searched(self) -> Self {
        Self { clock: CellClock::Virtual, link: false, ..self }
    }

    /// Where its variants are timed before any real run: in virtual time.
    pub fn in_virtual_time(self) -> Self {
        Self { clock: CellClock::Virtual, ..self }
    }

    /// In words.
    pub fn words(self) -> String {
        let clock = if self.clock == CellClock::Real { "real" } else { "in virtual time" };
        let data = if self.by_label { "split by label" } else { "alike data" };
        let link = if self.link { "behind the link" } else { "no link" };
        format!("{} workers {clock}, {data}, {link}", self.workers)
    }

    /// In few characters, for charts and tables.
    pub fn short(self) -> String {
        let clock = if self.clock == CellClock::Real { "real" } else { "virtual" };
        let data = if self.by_label { "by label" } else { "alike" };
        let link = if self.link { ", link" } else { "" };
        format!("{} {clock}, {data}{link}", self.workers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_zero_workers_leaves_its_cells_out() {
        assert_eq!(ComparedCell::all(4, 16).len(), 8);
        assert!(ComparedCell::all(0, 16).iter().all(|cell| cell.clock == CellClock::Virtual));
        assert_eq!(ComparedCell::all(4, 0).len(), 4);
        let mut searched: Vec<_> = ComparedCell::all(4, 16).into_iter().map(ComparedCell::searched).collect();
        searched.sort();
        searched.dedup();
        assert_eq!(searched.len(), 4, "a link changes no number that is learned");
    }
}
