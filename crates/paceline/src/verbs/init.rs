//! `paceline init`: a commented study file to start from.

use std::path::PathBuf;

use crate::failure::Failure;
use crate::flags::{names, registries};
use crate::output::{self, Show};

/// Flags of `paceline init`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The file to write; an existing one is never overwritten
    #[arg(value_name = "STUDY.toml", default_value = "study.toml")]
    file: PathBuf,
    /// A study of another program instead of `paceline train`
    #[arg(long)]
    command: bool,
    /// A study of several workloads: does the best configuration of one carry over to another?
    #[arg(long, conflicts_with = "command")]
    workloads: bool,
    /// A study of a Python script; what is written behind -- are its arguments
    #[arg(long, value_name = "FILE", conflicts_with_all = ["command", "workloads"])]
    script: Option<PathBuf>,
    /// Arguments of the script
    #[arg(last = true, requires = "script", value_name = "ARGS")]
    args: Vec<String>,
    /// A study of other systems beside ours, each in its own program, which lie in a folder beside the file; several
    /// are separated by commas
    #[arg(long, value_delimiter = ',', value_parser = names(registries().peers.described()))]
    #[arg(conflicts_with_all = ["command", "workloads", "script"])]
    peer: Vec<String>,
}

/// `paceline init`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    if !args.peer.is_empty() {
        return peers(args, show);
    }
    let text: String = match args {
        Args { command: true, .. } => include_str!("init/command.toml").into(),
        Args { workloads: true, .. } => include_str!("init/workloads.toml").into(),
        Args { script: Some(script), .. } => {
            let written = paceline_study::script_study(&args.file, script, &args.args)?;
            written.note.iter().for_each(|note| show.note(note));
            written.text
        }
        _ => include_str!("init/train.toml").into(),
    };
    output::write_new(&args.file, &text)?;
    written_note(args, show);
    Ok(())
}

/// Tells what comes next.
fn written_note(args: &Args, show: Show) {
    if !show.quiet {
        let file = args.file.display();
        output::note(&format!(
            "wrote {file}; next: `paceline check {file}`, `paceline plan {file}`, `paceline explore {file}`"
        ));
    }
}

fn peers(args: &Args, show: Show) -> Result<(), Failure> {
    let peers: Vec<_> = args.peer.iter().filter_map(|name| registries().peers.find(name)).collect();
    let python = std::env::var("PACELINE_PYTHON").ok().filter(|python| !python.is_empty());
    let study = paceline_study::peer_study(&args.file, &peers, python.as_deref().unwrap_or("python3"));
    study.write()?;
    show.note(&format!("the programs of all systems are in {}", study.programs().display()));
    written_note(args, show);
    Ok(())
}
