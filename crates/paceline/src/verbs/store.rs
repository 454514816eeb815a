//! Where and how runs are recorded: what every verb that writes or reads them shares.

use std::path::PathBuf;

use paceline_record::recorder::SAMPLE_HZ;
use paceline_record::store::Build;
use paceline_record::{RecordError, Recording, Store};

/// This program.
pub const BUILD: Build = Build {
    version: env!("CARGO_PKG_VERSION"),
    commit: env!("PACELINE_COMMIT"),
    rustc: env!("PACELINE_RUSTC"),
};

/// The folder of the store.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Where {
    /// Folder that studies and runs are recorded in [default: PACELINE_STORE, then .paceline]
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
}

impl Where {
    /// The flag, else the environment, else a folder here.
    pub fn folder(&self) -> PathBuf {
        let from_environment =
            || std::env::var_os("PACELINE_STORE").filter(|v| !v.is_empty()).map(PathBuf::from);
        self.store.clone().or_else(from_environment).unwrap_or_else(|| ".paceline".into())
    }

    /// The store, which must be there.
    pub fn open(&self) -> Result<Store, RecordError> {
        Store::open(&self.folder())
    }
}

/// What is recorded of a run.
#[derive(clap::Args, Clone, Debug)]
pub struct RecordingArgs {
    /// Samples of each rank's resources per second; 0 for none
    #[arg(long, default_value_t = SAMPLE_HZ, value_parser = hertz)]
    sample_hz: f64,
    /// Record single messages and waits for `export --format trace`, at most so many per rank
    #[arg(long, value_name = "MESSAGES", num_args = 0..=1, default_missing_value = "50000", default_value_t = 0, hide_default_value = true)]
    trace: u64,
}

impl RecordingArgs {
    /// What each rank is told.
    pub fn recording(&self) -> Recording {
        Recording { sample_hz: self.sample_hz, trace: self.trace(), ..Recording::default() }
    }

    /// Messages and waits of a rank to record at most.
    pub fn trace(&self) -> u64 {
        self.trace
    }
}

/// A rate of samples.
fn hertz(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|hz| (0.0..=1000.0).contains(hz));
    value.ok_or_else(|| "a number of samples per second from 0 to 1000 is needed".into())
}
