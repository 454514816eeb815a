//! The command line: one file per verb under `verbs/`, no logic of its own.
//!
//! Data goes to standard output, everything else to standard error; see [`failure`] for exit codes.

#![forbid(unsafe_code)]

mod failure;
mod output;
mod verbs;
mod voyage;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use paceline_record::process::Started;

/// A laboratory for distributed training.
///
/// Without a verb, trains a small network on the built-in digits and shows how well, how fast, and
/// where the time went.
#[derive(Parser)]
#[command(name = "paceline", version, propagate_version = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    show: output::Show,
}

#[derive(Subcommand)]
enum Verb {
    /// Train a network once and print the result
    Train(Box<verbs::train::Args>),
    /// Take part in a run that another machine leads (`paceline train --listen`)
    Join(verbs::join::Args),
    /// Go on with a run that was interrupted or failed, from its last checkpoint
    Resume(verbs::resume::Args),
    /// Write the weights of a run's checkpoint to a file that PyTorch can load
    ExportWeights(verbs::weights::Args),
    /// Measure how long a network takes to answer, and how often it is right
    Infer(verbs::infer::Args),
    /// List the models, or show one layer by layer
    Model(verbs::model::Args),
    /// List, fetch and describe the datasets
    Data(verbs::data::Args),
    /// Tell what runs say: best configurations, effects with intervals, what matters and what cannot be told
    Analyze(Box<verbs::analyze::Args>),
    /// Write what runs say as a page that needs nothing else, as Markdown, and charts as SVG and CSV
    Report(Box<verbs::report::Args>),
    /// List the recorded runs
    Runs(verbs::runs::Args),
    /// Show where a run's time went, its links, evaluations and resources
    Show(verbs::show::Args),
    /// List the runs that are under way
    Status(verbs::runs::Args),
    /// Write a run for other tools
    Export(verbs::export::Args),
    /// Tell why a run took as long as it did, and what would help
    Explain(verbs::explain::Args),
    /// Show the recorded runs in a browser, live and read-only
    Serve(verbs::serve::Args),
    /// Measure this machine
    Bench(verbs::bench::Args),
    /// Be one rank of a run (started by the launcher, never by hand)
    #[command(hide = true)]
    Rank,
}

fn main() -> ExitCode {
    let started = Started::now();
    let matches = Cli::command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let show = cli.show;
    let done = match cli.verb {
        None => verbs::home::run(show, started),
        Some(Verb::Train(args)) => verbs::train::train(&args, show, started),
        Some(Verb::Join(args)) => verbs::join::run(&args, show),
        Some(Verb::Resume(args)) => verbs::resume::run(&args, show, started),
        Some(Verb::ExportWeights(args)) => verbs::weights::export(&args, show),
        Some(Verb::Infer(args)) => verbs::infer::run(&args, show),
        Some(Verb::Model(args)) => verbs::model::run(&args, show),
        Some(Verb::Data(args)) => verbs::data::run(&args, show),
        Some(Verb::Analyze(args)) => verbs::analyze::run(&args, show),
        Some(Verb::Report(args)) => verbs::report::run(&args, show),
        Some(Verb::Runs(args)) => verbs::runs::run(&args, show),
        Some(Verb::Show(args)) => verbs::show::run(&args, show),
        Some(Verb::Status(args)) => verbs::runs::status(&args, show),
        Some(Verb::Export(args)) => verbs::export::run(&args, show),
        Some(Verb::Explain(args)) => verbs::explain::run(&args, show),
        Some(Verb::Serve(args)) => verbs::serve::run(&args, show),
        Some(Verb::Bench(args)) => verbs::bench::run(&args, show),
        Some(Verb::Rank) => {
            paceline_launch::rank::main();
            Ok(())
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
