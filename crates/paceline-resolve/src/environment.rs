//! Folders that the environment decides where no setting does.

use std::path::{Path, PathBuf};

use paceline_data::Folders;

/// Where Debian's dataset packages put their files.
const SYSTEM: &str = "/usr/share/datasets";

/// A variable of the environment that is not empty.
pub fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The user's data directory.
pub fn own_data_folder() -> Option<PathBuf> {
    let share = variable("XDG_DATA_HOME").or_else(|| Some(variable("HOME")?.join(".local/share")));
    share.map(|share| share.join("paceline"))
}

/// Where datasets are looked for: the folder given, else the environment's, the user's and the system's.
pub fn data_folders(given: Option<&Path>) -> Folders {
    let given = given.map(Path::to_owned);
    Folders(given.map_or_else(
        || {
            let system = PathBuf::from(SYSTEM);
            variable("PACELINE_DATA").into_iter().chain(own_data_folder()).chain([system]).collect()
        },
        |folder| vec![folder],
    ))
}

/// Where runs are recorded: the folder given, else the environment's, else one here.
pub fn store_folder(given: Option<&Path>) -> PathBuf {
    given.map(Path::to_owned).or_else(|| variable("PACELINE_STORE")).unwrap_or_else(|| ".paceline".into())
}
