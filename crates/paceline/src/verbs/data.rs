//! `paceline data`: the datasets, and where their files are looked for.

use std::path::PathBuf;

use paceline_data::{DATASETS, Folders};
use serde::Serialize;

use crate::failure::Failure;
use crate::output::{self, Show};

/// Where Debian's dataset packages put their files.
const SYSTEM: &str = "/usr/share/datasets";

/// Flags of `paceline data`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    place: Place,
}

/// Where datasets lie.
#[derive(clap::Args, Debug)]
pub struct Place {
    /// Folder of datasets, tried as DIR/<name> and as the dataset's own folder [default: PACELINE_DATA,
    /// then the user's data directory]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

/// The folders to look into: the flag, else the environment, else the user's and the system's own.
pub fn folders(place: &Place) -> Folders {
    let from_environment = || std::env::var_os("PACELINE_DATA").filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(folder) = place.data_dir.clone() {
        return Folders(vec![folder]);
    }
    let share =
        std::env::var_os("XDG_DATA_HOME").filter(|v| !v.is_empty()).map(PathBuf::from).or_else(|| {
            std::env::var_os("HOME")
                .filter(|v| !v.is_empty())
                .map(|home| PathBuf::from(home).join(".local/share"))
        });
    let user = share.map(|share| share.join("paceline"));
    Folders(from_environment().into_iter().chain(user).chain([PathBuf::from(SYSTEM)]).collect())
}

#[derive(Serialize)]
struct Row {
    name: &'static str,
    about: &'static str,
    shape: [usize; 3],
    classes: usize,
    available: bool,
}

/// Lists the datasets.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    let folders = folders(&args.place);
    let rows: Vec<Row> = DATASETS
        .iter()
        .map(|d| Row {
            name: d.name,
            about: d.about,
            shape: d.shape,
            classes: d.classes,
            available: d.files().iter().all(|file| folders.find(d.name, file).is_ok()),
        })
        .collect();
    if show.json {
        output::json(&rows)?;
        return Ok(());
    }
    let mut text = String::new();
    for row in &rows {
        let here = if row.available { "ready" } else { "files not found" };
        text += &format!("{:<17} {:<16} {}\n", row.name, here, row.about);
    }
    text += "\nfolders that are looked into:\n";
    for folder in &folders.0 {
        text += &format!("  {}\n", folder.display());
    }
    output::text(&text)?;
    Ok(())
}
