//! `paceline export RUN|STUDY`: a run, or every run of a study, for other tools.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use paceline_record::export::{ExportError, Exported, FORMATS, Target};
use paceline_study::{StudySheet, StudyState, ranks, run_folders, runs};

use super::store::Where;
use crate::failure::Failure;
use crate::flags::{names, registries};
use crate::output::Show;
use paceline_record::{FailureKind, Store};

/// Flags of `paceline export`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A run: its id or its name, the beginning of either, or `last`; or a study: its name or its file (as csv, json, parquet or tensorboard)
    #[arg(value_name = "RUN|STUDY")]
    run: String,
    /// Format
    #[arg(long, value_parser = names(FORMATS.iter().map(|f| (f.name, f.about))))]
    format: String,
    /// Only this table, as one file or on standard output (csv, parquet)
    #[arg(long, value_name = "NAME")]
    table: Option<String>,
    /// File or folder to write [default: standard output, or for folders RUN-FORMAT here]
    #[arg(long, value_name = "PATH")]
    out: Option<PathBuf>,
    #[command(flatten)]
    store: Where,
}

impl Args {
    /// Where files go that are not one.
    fn folder(&self, what: &str) -> PathBuf {
        self.out.clone().unwrap_or_else(|| format!("{what}-{}", self.format).into())
    }

    /// Writes what is one file; where it is, unless it went to standard output.
    fn put(&self, bytes: &[u8]) -> Result<Option<PathBuf>, Failure> {
        let Some(path) = self.out.clone() else {
            std::io::stdout().lock().write_all(bytes)?;
            return Ok(None);
        };
        std::fs::write(&path, bytes).map_err(|source| ExportError::File { path: path.clone(), source })?;
        Ok(Some(path))
    }

    /// The one table that is asked for: by its name, or by a file to write; there the main one is meant.
    fn one_table<'a>(&self, all: &[&'a str], main: Option<&'a str>) -> Result<Option<&'a str>, Failure> {
        let tables = all.join(", ");
        if let Some(name) = &self.table {
            let found = all.iter().find(|table| *table == name).copied();
            let missing = || Failure::usage(format!("--table {name}: there is none; possible: {tables}"));
            return found.ok_or_else(missing).map(Some);
        }
        let Some(file) = self.out.as_ref().filter(|out| out.extension() == Some(self.format.as_ref())) else {
            return Ok(None);
        };
        let message = format!("--out {}: one file holds one table, and there are {tables}", file.display());
        let folder = file.with_extension("");
        let hint = format!("--table NAME chooses one; --out {} writes all into a folder", folder.display());
        main.ok_or_else(|| Failure::new(FailureKind::Usage, message, hint)).map(Some)
    }
}

/// `paceline export`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    if args.table.is_some() && !["csv", "parquet"].contains(&args.format.as_str()) {
        return Err(Failure::usage("--table: only csv and parquet have a file per table"));
    }
    if let Some(study) = paceline_study::find(&args.store.folder(), &args.run, registries())? {
        return export_study(args, &study, show);
    }
    let store = args.store.open()?;
    let run = store.find(&args.run)?;
    let exported = Exported { store: &store, run: &run };
    let format =
        FORMATS.iter().find(|f| f.name == args.format).expect("clap lets registered names pass only");
    let path = match format.target {
        Target::Document(write) => match &args.out {
            None => {
                let mut out = BufWriter::new(std::io::stdout().lock());
                write(&exported, &mut out)?;
                return Ok(out.flush()?);
            }
            Some(path) => {
                let failed = |source| ExportError::File { path: path.clone(), source };
                let mut out = BufWriter::new(File::create(path).map_err(failed)?);
                write(&exported, &mut out).map_err(|error| match error {
                    ExportError::Document(source) => failed(source),
                    error => error,
                })?;
                out.flush().map_err(failed)?;
                path.clone()
            }
        },
        Target::Tables(bytes) => match args.one_table(&exported.names(), None)? {
            Some(table) => {
                let bytes = bytes(&exported.table(table)?);
                let Some(path) = args.put(&bytes)? else { return Ok(()) };
                path
            }
            None => {
                let path = args.folder(&run.run);
                exported.write_tables(format.name, bytes, &path)?;
                path
            }
        },
        Target::Folder(write) => {
            let path = args.folder(&run.run);
            write(&exported, &path)?;
            path
        }
    };
    show.note(&format!("{} as {} in {}", run.run, format.name, path.display()));
    Ok(())
}

/// A study: a row per run and one per rank, or a folder per run.
fn export_study(args: &Args, name: &str, show: Show) -> Result<(), Failure> {
    let known = StudyState::peek(&args.store.folder(), name, registries())?;
    // Runs of other programs leave no record.
    let store = known.runs.iter().any(Option::is_some).then(|| args.store.open()).transpose()?;
    let recorded = store.as_ref().map(Store::runs).transpose()?.unwrap_or_default();
    let mut sheets = vec![runs(&known, &recorded)];
    if let Some(store) = &store {
        sheets.push(ranks(&known, store, &recorded)?);
    }
    let names: Vec<&str> = sheets.iter().map(|sheet| sheet.name).collect();
    let tables = ["csv", "parquet"].contains(&args.format.as_str());
    let one = if tables { args.one_table(&names, Some("runs"))? } else { None };
    let bytes = |sheet: &StudySheet| match args.format.as_str() {
        "csv" => sheet.csv().into_bytes(),
        _ => sheet.parquet(),
    };
    let path = match (args.format.as_str(), one) {
        ("csv" | "parquet", Some(table)) => {
            sheets.retain(|sheet| sheet.name == table);
            let Some(path) = args.put(&bytes(&sheets[0]))? else { return Ok(()) };
            path
        }
        ("csv" | "parquet", None) => {
            let folder = args.folder(name);
            let failed = |source| ExportError::File { path: folder.clone(), source };
            std::fs::create_dir_all(&folder).map_err(failed)?;
            for sheet in &sheets {
                let path = folder.join(format!("{}.{}", sheet.name, args.format));
                std::fs::write(&path, bytes(sheet)).map_err(|source| ExportError::File { path, source })?;
            }
            folder
        }
        ("json", _) => {
            let document: serde_json::Map<String, serde_json::Value> =
                sheets.iter().map(|sheet| (sheet.name.to_owned(), sheet.json())).collect();
            let text = serde_json::Value::from(document).to_string() + "\n";
            let Some(path) = args.put(text.as_bytes())? else { return Ok(()) };
            path
        }
        (format, _) => {
            let target = FORMATS.iter().find(|known| known.name == format).map(|known| &known.target);
            let (Some(Target::Folder(write)), Some(store)) = (target, &store) else {
                let message =
                    format!("--format {format}: a study is exported as csv, json, parquet or tensorboard");
                let hint = "tensorboard needs recorded runs; single runs have every format: `paceline runs` lists them";
                return Err(Failure::new(FailureKind::Usage, message, hint));
            };
            let folder = args.folder(name);
            for (own, run) in run_folders(&known, &recorded) {
                write(&Exported { store, run }, &folder.join(own))?;
            }
            folder
        }
    };
    let what = one.map_or_else(String::new, |table| format!("the table {table} of "));
    show.note(&format!("{what}{} runs of {name} in {}", known.made.len(), path.display()));
    Ok(())
}
