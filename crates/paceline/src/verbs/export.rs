//! `paceline export RUN`: a run for other tools.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use paceline_record::export::{ExportError, Exported, FORMATS, Target};

use super::store::Where;
use super::train::names;
use crate::failure::Failure;
use crate::output::{self, Show};

/// Flags of `paceline export`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The beginning of a run's id, or `last`
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
    if !show.quiet {
        output::note(&format!("{} as {} in {}", run.run, format.name, path.display()));
    }
    Ok(())
}
