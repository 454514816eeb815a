//! Whether a machine, and the links between machines, are fit for runs: what is there, what will hurt, and how to
//! mend it.
//!
//! # Layout
//! - [`Diagnosis`]: what was found of one thing; [`HostReport`]: all of one machine;
//!   [`Checkup`]: of several, as a text and as JSON
//! - `limits`: cores, memory, descriptors, processes, file sizes; `system`: the kernel, clocks, shared memory
//! - `places`: the store and the datasets; `software`: GPUs and Python
//! - [`links`]: round trips, bandwidth and clocks between machines, asked of [`responder`]s over the line that
//!   `train --listen` and `join` use; `message`: what they say to each other
//!
//! # Deliberately absent
//! Mending anything; command lines.

#![forbid(unsafe_code)]

mod diagnosis;
mod limits;
pub mod links;
mod message;
mod places;
pub mod responder;
mod software;
mod system;

use std::path::Path;

use paceline_data::{DatasetKind, Folders};
use paceline_launch::capacity::Room;
use paceline_record::metric::cgroup::Cgroup;
use paceline_record::{Machine, process};
use paceline_registry::Registry;

pub use diagnosis::{Checkup, Diagnosis, HostReport, Severity};
pub use links::LinkMeasurement;

/// What of a machine is looked at besides the machine itself.
pub struct Examination<'a> {
    /// The folder that runs are recorded in.
    pub store: &'a Path,
    /// Where datasets are looked for.
    pub folders: &'a Folders,
    /// The datasets that there are.
    pub datasets: &'a Registry<DatasetKind>,
}

impl Examination<'_> {
    /// Looks at this machine; takes well below a second, but for a Python that starts slowly.
    pub fn here(&self) -> HostReport {
        let (room, cgroup, machine) = (Room::here(), Cgroup::own().now(), Machine::here());
        let mut found = vec![
            limits::cores(limits::affinity(), &cgroup),
            limits::memory(&room, &cgroup),
            limits::descriptors(&room),
            limits::tasks(&room),
            limits::file_size(),
            system::kernel(&machine.kernel),
            system::shared_memory(Path::new("/dev/shm")),
            system::clocks(),
        ];
        found.extend(software::gpus(&software::GpuPlaces::default()));
        found.push(software::python());
        found.push(places::store(self.store));
        found.extend(places::datasets(self.datasets, self.folders));
        HostReport { host: process::host(), cpu: machine.cpu, found }
    }
}
