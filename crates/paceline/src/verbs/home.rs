//! `paceline` alone: the main job.

use clap::Parser;
use paceline_record::process::Started;

use super::train;
use crate::failure::Failure;
use crate::output::{self, Show};

/// The built-in run, as a user would type it.
const RUN: &str = "train --data digits --model mlp --epochs 20 --target-accuracy 0.95";

#[derive(Parser)]
#[command(no_binary_name = true)]
struct Words {
    #[command(flatten)]
    args: train::Args,
}

/// Trains the built-in digits and shows what came of it.
pub fn run(show: Show, started: Started) -> Result<(), Failure> {
    if !show.quiet {
        output::note(&format!("paceline {RUN}"));
    }
    let words = Words::parse_from(RUN.split(' ').skip(1));
    let (result, summary) = train::execute(&words.args, show, started)?;
    if show.json {
        output::json(&paceline_record::Event::Result(result))?;
    } else {
        output::text(&summary)?;
        if !show.quiet {
            output::note(
                "next: `paceline show last`, `paceline train --help`, `paceline model list`, `paceline data`",
            );
        }
    }
    Ok(())
}
