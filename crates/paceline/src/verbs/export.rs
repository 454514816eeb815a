//! `paceline export RUN|STUDY`: a run, or every run of a study, for other tools.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use paceline_record::export::{ExportError, Exported, FORMATS, Target};
use paceline_study::{StudyState, ranks, runs};

use super::store::Where;
use crate::failure::Failure;
use crate::flags::{names, registries};
use crate::output::Show;
use paceline_record::FailureKind;

/// Flags of `paceline export`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The beginning of a run's id, or `last`; or a study: its name or its file (as csv or json)
    #[arg(value_name = "RUN|STUDY")]
    run: String,
    /// Format
    #[arg(long, value_parser = names(FORMATS.iter().map(|f| (f.name, f.about))))]
    format: String,
    /// File or folder to write [default: standard output, or for folders RUN-FORMAT here]
    #[arg(long, value_name = "PATH")]
    out: Option<PathBuf>,
    #[command(flatten)]
    store: Where,
}

/// `paceline export`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
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
        Target::Folder(write) => {
            let path = args.out.clone().unwrap_or_else(|| format!("{}-{}", run.run, format.name).into());
            write(&exported, &path)?;
            path
        }
    };
    show.note(&format!("{} as {} in {}", run.run, format.name, path.display()));
    Ok(())
}

/// A study: a row per run, and one per rank.
fn export_study(args: &Args, name: &str, show: Show) -> Result<(), Failure> {
    let known = StudyState::peek(&args.store.folder(), name, registries())?;
    // Runs of other programs leave no record.
    let recorded = known.runs.iter().any(Option::is_some);
    let mut sheets = vec![runs(&known)];
    if recorded {
        sheets.push(ranks(&known, &args.store.open()?)?);
    }
    let write = |path: &Path, text: String| -> Result<(), Failure> {
        let failed = |source| ExportError::File { path: path.to_owned(), source };
        Ok(std::fs::write(path, text).map_err(failed)?)
    };
    let path = match args.format.as_str() {
        "csv" => {
            let folder = args.out.clone().unwrap_or_else(|| format!("{name}-csv").into());
            let failed = |source| ExportError::File { path: folder.clone(), source };
            std::fs::create_dir_all(&folder).map_err(failed)?;
            for sheet in &sheets {
                write(&folder.join(format!("{}.csv", sheet.name)), sheet.csv())?;
            }
            folder
        }
        "json" => {
            let document: serde_json::Map<String, serde_json::Value> =
                sheets.iter().map(|sheet| (sheet.name.to_owned(), sheet.json())).collect();
            let text = serde_json::Value::from(document).to_string() + "\n";
            let Some(path) = args.out.clone() else {
                return Ok(std::io::stdout().lock().write_all(text.as_bytes())?);
            };
            write(&path, text)?;
            path
        }
        other => {
            let message = format!("--format {other}: a study is exported as csv or json");
            return Err(Failure::new(
                FailureKind::Usage,
                message,
                "single runs have every format: `paceline runs` lists them",
            ));
        }
    };
    show.note(&format!("{} runs of {name} in {}", known.made.len(), path.display()));
    Ok(())
}
