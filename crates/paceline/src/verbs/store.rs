//! Where runs are recorded: what every verb that writes or reads them shares.

use std::path::PathBuf;

use paceline_record::store::Build;
use paceline_record::{RecordError, Store};

use crate::flags::registries;

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
        paceline_resolve::store_folder(self.store.as_deref())
    }

    /// The store, which must be there.
    pub fn open(&self) -> Result<Store, RecordError> {
        Store::open_with(&self.folder(), &registries().runs().metrics)
    }
}
