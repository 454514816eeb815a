//! `paceline data`: the datasets, where they lie, what is in them, and fetching them.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use paceline_analyze::sheet::aligned;
use paceline_data::origin::{DownloadItem, Origin};
use paceline_data::{DatasetContents, DatasetKind, DatasetSettings, FileState, SampleForm, common_path};
use paceline_fetch::{Client, FetchEvent};
use paceline_resolve::{own_data_folder, variable};
use serde::Serialize;
use serde_json::json;

use crate::failure::Failure;
use crate::flags::{PlaceFlags, names, registries};
use crate::output::{self, Bar, Show};
use paceline_record::FailureKind;

/// Flags of `paceline data`.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    place: PlaceFlags,
}

#[derive(Subcommand, Debug)]
enum What {
    /// List the datasets and where their files are looked for (as without a word)
    List(PlaceFlags),
    /// Fetch a dataset: resumes, and checks the SHA-256 of every file
    Get(Get),
    /// Print where a dataset lies
    Path(One),
    /// Show what is in a dataset: samples, shape, classes, files, licence
    Info(One),
    /// Write a dataset as NumPy's files, for other programs: normalised samples and their classes
    Export(Export),
}

/// A dataset, and where to look for it.
#[derive(clap::Args, Debug)]
struct One {
    /// The dataset
    #[arg(value_parser = names(registries().runs().datasets.described()))]
    name: String,
    #[command(flatten)]
    place: PlaceFlags,
}

#[derive(clap::Args, Debug)]
struct Get {
    /// The dataset
    #[arg(value_parser = names(registries().runs().datasets.described()))]
    name: String,
    /// Folder of datasets to put it into, as DIR/<name> [default: PACELINE_DATA, then the user's data
    /// directory]
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
    /// Fetch from here instead: a folder of datasets on the net (URL/<name>/<file>), or an address with
    /// {name} and {file} in it; several are tried in order [default: PACELINE_MIRROR, then the publisher's]
    #[arg(long, value_name = "URL")]
    mirror: Vec<String>,
}

#[derive(clap::Args, Debug)]
struct Export {
    #[command(flatten)]
    one: One,
    /// Folder to write train-x.npy, train-y.npy, test-x.npy and test-y.npy into; existing files are not overwritten
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
}

fn source(name: &str) -> &'static DatasetKind {
    registries().runs().datasets.find(name).expect("clap lets registered names pass only")
}

/// `paceline data list | get | path | info | export`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    match &args.what {
        None => list(&args.place, show),
        Some(What::List(place)) => list(place, show),
        Some(What::Get(args)) => get(args, show),
        Some(What::Path(args)) => path(args, show),
        Some(What::Info(args)) => info(args, show),
        Some(What::Export(args)) => export(args, show),
    }
}

#[derive(Serialize)]
struct Row {
    name: &'static str,
    about: &'static str,
    /// None where the files decide.
    shape: Option<[usize; 3]>,
    classes: Option<usize>,
    available: bool,
}

fn list(place: &PlaceFlags, show: Show) -> Result<(), Failure> {
    let folders = place.0.data_folders();
    let datasets = &registries().runs().datasets;
    let rows: Vec<Row> = datasets
        .iter()
        .map(|d| {
            let (shape, classes) = match d.form {
                SampleForm::Fixed { shape, classes } => (Some(shape), Some(classes)),
                SampleForm::FromFiles(_) => (None, None),
            };
            Row { name: d.name, about: d.about, shape, classes, available: d.locate(&folders).is_ok() }
        })
        .collect();
    if show.json {
        return Ok(output::json(&rows)?);
    }
    let mut cells = Vec::new();
    for (row, source) in rows.iter().zip(datasets.iter()) {
        let here = match (row.available, &source.origin) {
            (true, _) => "ready",
            (false, Origin::Yours) => "give --data-dir",
            (false, _) => "files not found",
        };
        cells.push(vec![row.name.into(), here.into(), row.about.into()]);
    }
    let mut text = aligned(&["dataset", "here", "what it is"], 3, &cells);
    text += "\nfolders that are looked into:\n";
    for folder in &folders.0 {
        text += &format!("  {}\n", folder.display());
    }
    Ok(output::text(&text)?)
}

#[derive(Serialize)]
struct Lies<'a> {
    name: &'a str,
    path: Option<&'a Path>,
    files: &'a [PathBuf],
}

fn path(args: &One, show: Show) -> Result<(), Failure> {
    let files = source(&args.name).locate(&args.place.0.data_folders())?;
    let path = common_path(&files);
    if show.json {
        return Ok(output::json(&Lies { name: &args.name, path, files: &files })?);
    }
    match path {
        Some(path) => output::text(&format!("{}\n", path.display()))?,
        None => output::note(&format!("{} is part of the program: it has no files", args.name)),
    }
    Ok(())
}

fn info(args: &One, show: Show) -> Result<(), Failure> {
    let contents = DatasetContents::read(source(&args.name), &args.place.0.data_folders())?;
    if show.json {
        return Ok(output::json(&contents)?);
    }
    Ok(output::text(&contents.text())?)
}

fn export(args: &Export, show: Show) -> Result<(), Failure> {
    let source = source(&args.one.name);
    let dataset = source.load(&args.one.place.0.data_folders(), &DatasetSettings::default())?;
    let files = paceline_data::export(&dataset, &args.to)?;
    let document =
        json!({"name": source.name, "folder": args.to, "classes": dataset.classes, "files": files});
    show.print(&document, || format!("{}\n", args.to.display()))
}

#[derive(Serialize)]
struct Fetched<'a> {
    name: &'a str,
    folder: PathBuf,
    files: Vec<FileState>,
}

/// The mirrors to use instead of the publisher's address.
fn mirrors(args: &Get) -> Vec<String> {
    if !args.mirror.is_empty() {
        return args.mirror.clone();
    }
    let from_environment = std::env::var("PACELINE_MIRROR").unwrap_or_default();
    from_environment.split_whitespace().map(str::to_owned).collect()
}

fn get(args: &Get, show: Show) -> Result<(), Failure> {
    let source = source(&args.name);
    let parcels = source.origin.parcels();
    if matches!(source.origin, Origin::Yours) {
        let message = format!("{} is for files of your own: there is nothing to fetch", source.name);
        let hint =
            format!("`paceline train --data {} --data-dir DIR` takes them from where they are", source.name);
        return Err(Failure::new(FailureKind::Usage, message, hint));
    }
    let root = args.to.clone().or_else(|| variable("PACELINE_DATA")).or_else(own_data_folder);
    let Some(root) = root else {
        let message = "there is no folder to put it into: neither PACELINE_DATA nor HOME is set";
        return Err(Failure::new(FailureKind::Usage, message, "name one with --to DIR"));
    };
    // MNIST cut into views is MNIST: the same folder.
    let place = source.places.first().copied().unwrap_or(source.name);
    let folder = root.join(place);
    let (client, mirrors, mut files) = (Client::default(), mirrors(args), Vec::new());
    for parcel in parcels {
        let addresses = paceline_fetch::addresses(place, parcel, &mirrors);
        let mut follow = Follow::new(parcel, show);
        let fetched =
            paceline_fetch::fetch(&client, parcel, &addresses, &folder, &mut |news| follow.take(&news));
        follow.bar.clear();
        let paths = fetched.map_err(|error| {
            let names: Vec<&str> = parcel.files.iter().map(|file| file.name).collect();
            let mut hint = error.hint(&folder, &names.join(", "));
            if let (true, Origin::Published(published)) = (addresses.is_empty(), source.origin) {
                hint += &format!("; {} has it", published.home);
            }
            let kind = if error.is_ours() { FailureKind::Storage } else { FailureKind::Other };
            Failure::new(kind, error.to_string(), hint)
        })?;
        for path in paths {
            files.push(FileState::of(source, &path)?);
        }
    }
    if parcels.is_empty() && !show.json {
        output::note(&format!("{} is part of the program: there is nothing to fetch", source.name));
        return Ok(());
    }
    if show.json {
        return Ok(output::json(&Fetched { name: source.name, folder, files })?);
    }
    show.note(&format!("{}: {} files are there, SHA-256 verified", source.name, files.len()));
    Ok(output::text(&format!("{}\n", folder.display()))?)
}

/// Shows how a parcel comes in: a bar on a terminal, a line where something happens.
struct Follow {
    bar: Bar,
    name: &'static str,
}

impl Follow {
    fn new(parcel: &DownloadItem, show: Show) -> Self {
        let bar = Bar::new(show, "{msg} {bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left");
        bar.message(parcel.name);
        Self { bar, name: parcel.name }
    }

    fn take(&mut self, news: &FetchEvent<'_>) {
        let note = |line: String| self.bar.note(&line);
        match news {
            FetchEvent::Asking { address, have: 0 } => note(format!("{}: from {address}", self.name)),
            FetchEvent::Asking { address, have } => {
                note(format!("{}: from {address}, going on after {have} bytes", self.name));
            }
            FetchEvent::Bytes { have, total } => {
                self.bar.length(total.unwrap_or(*have));
                self.bar.position(*have);
            }
            FetchEvent::Resuming { cause } => {
                note(format!("{}: broken off ({cause}), trying again", self.name))
            }
            FetchEvent::GaveUp(error) => note(format!("{error}; trying the next address")),
        }
    }
}
