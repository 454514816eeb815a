//! `paceline completions`: what a shell needs to complete verbs and flags.

use std::io::Write;

use clap_complete::Shell;

use crate::failure::Failure;

/// Flags of `paceline completions`.
#[derive(clap::Args, Debug)]
#[command(after_help = HELP)]
pub struct Args {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

const HELP: &str = "\
Examples:
  paceline completions bash > ~/.local/share/bash-completion/completions/paceline
  paceline completions fish > ~/.config/fish/completions/paceline.fish
  paceline completions zsh > ~/.zfunc/_paceline     (a folder of $fpath)";

/// `paceline completions`.
pub fn run(args: &Args, mut command: clap::Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "paceline", &mut script);
    Ok(std::io::stdout().lock().write_all(&script)?)
}
