//! The whole program as a function: [`main_with`] reads the command line and does what its verb says, with what
//! Paceline brings and with what else was registered. `examples/own-strategy` is a program of that kind.
//!
//! # Layout
//! - `verbs`: one file per verb; `request`: one run from its plan to its record
//! - `flags`: the settings of runs as arguments, and what the program's names stand for
//! - `output`: data goes to standard output, everything else to standard error; `failure`: exit codes
//!
//! # Deliberately absent
//! Logic: it is in the libraries. Those that a strategy, model, sampler, … of one's own needs are modules here.

#![forbid(unsafe_code)]

mod failure;
mod flags;
mod output;
mod request;
mod verbs;

use std::process::ExitCode;
use std::sync::{Arc, LazyLock};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use paceline_record::process::Started;

pub use paceline_conformance as conformance;
pub use paceline_data as data;
pub use paceline_explore as explore;
pub use paceline_nn as nn;
pub use paceline_pipeline as pipeline;
pub use paceline_plan as plan;
pub use paceline_protocol as protocol;
pub use paceline_random as random;
pub use paceline_record as record;
pub use paceline_study::{AllRegistries, Registrable};
pub use paceline_wire as wire;

/// A laboratory for distributed training.
///
/// Without a verb, makes a small study of real runs on the built-in digits and shows which configuration
/// is the best, what mattered most, and how one worker compares.
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
    /// Train in virtual time, on a cluster that need not be there, and print what would come out
    Simulate(Box<verbs::simulate::Args>),
    /// Predict what the runs of a study will take, or compare predictions with them
    Predict(verbs::predict::Args),
    /// Measure what things cost on this machine, for `simulate --calibration`
    Calibrate(verbs::calibrate::Args),
    /// Take part in a run that another machine leads (`paceline train --listen`)
    Join(verbs::join::Args),
    /// Write the weights of a run's checkpoint to a file that PyTorch can load
    ExportWeights(verbs::weights::Args),
    /// Measure how long a network takes to answer, and how often it is right
    Infer(verbs::infer::Args),
    /// List the models, or show one layer by layer
    Model(verbs::model::Args),
    /// Check, show and begin strategy files: averaging rules of your own
    Strategy(verbs::strategy::Args),
    /// Compare an averaging rule with others, each at its own learning rate: one page of which differences are real
    Compare(Box<verbs::compare::Args>),
    /// List, fetch and describe the datasets
    Data(verbs::data::Args),
    /// Write a commented study file
    Init(verbs::init::Args),
    /// Check a study file: every mistake with its line and what would be right
    Check(verbs::check::Args),
    /// List what a study would run, and how long it will take
    Plan(verbs::plan::Args),
    /// Explore a space of configurations: a study of real runs, or a table of runs made by others
    Explore(Box<verbs::explore::Args>),
    /// Go on with a run from its last checkpoint, or with a study
    Resume(Box<verbs::resume::Args>),
    /// Let a run under way go on with more or fewer workers
    Resize(verbs::resize::ResizeArgs),
    /// Let a rank of a run under way hand its part over, and end
    Drain(verbs::resize::DrainArgs),
    /// Tell what runs say: best configurations, effects with intervals, what matters and what cannot be told
    Analyze(Box<verbs::analyze::Args>),
    /// Write what runs say as a page that needs nothing else, as Markdown, and charts as SVG and CSV
    Report(Box<verbs::report::Args>),
    /// Show studies and runs in a browser, live and read-only
    Serve(verbs::serve::Args),
    /// List the recorded runs; name, tag, archive and delete them
    Runs(Box<verbs::runs::Args>),
    /// Show where a run's time went, its links, evaluations and resources
    Show(verbs::show::Args),
    /// Show what is under way, and how far studies are
    Status(verbs::status::Args),
    /// Write a run for other tools
    Export(verbs::export::Args),
    /// Tell why a run took as long as it did, and what would help
    Explain(verbs::explain::Args),
    /// Tell what of this machine, and of the links to others, will hurt runs, and how to mend it
    Doctor(verbs::doctor::Args),
    /// Measure this machine
    Bench(verbs::bench::Args),
    /// Write a script that completes verbs and flags in a shell
    Completions(verbs::completions::Args),
}

/// The program's `main`: every verb, with these names. The processes that it starts are this program again, and so
/// know them too.
///
/// # Panics
/// If a process calls it twice.
pub fn main_with(registries: AllRegistries) -> ExitCode {
    let started = Started::now();
    LazyLock::force(&output::BEGUN);
    assert!(
        flags::REGISTRIES.set(registries).is_ok(),
        "`main_with` is called once: a process is one program"
    );
    // A file that reaches its size limit (`ulimit -f`) is an error of the write, with a message, not the end of the
    // process. Programs that are started have the usual handler again; ranks and runs of studies come through here.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    if let Some(done) = internal(started) {
        return done;
    }
    let matches = Cli::command().color(output::may_colour()).try_get_matches();
    let verb = matches.as_ref().ok().and_then(|matches| matches.subcommand_name());
    verb.into_iter().for_each(|verb| drop(failure::VERB.set(verb.to_owned())));
    let cli = matches.and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = cli.unwrap_or_else(|error| output::exit_usage(&error));
    let show = cli.show;
    let done = match cli.verb {
        None => verbs::home::run(show, started),
        Some(Verb::Train(args)) => verbs::train::train(&args, show, started),
        Some(Verb::Simulate(args)) => verbs::simulate::run(&args, show, started),
        Some(Verb::Predict(args)) => verbs::predict::run(&args, show),
        Some(Verb::Calibrate(args)) => verbs::calibrate::run(&args, show),
        Some(Verb::Join(args)) => verbs::join::run(&args, show),
        Some(Verb::Resume(args)) => verbs::resume::run(&args, show, started),
        Some(Verb::Resize(args)) => verbs::resize::resize(&args, show),
        Some(Verb::Drain(args)) => verbs::resize::drain(&args, show),
        Some(Verb::ExportWeights(args)) => verbs::weights::export(&args, show),
        Some(Verb::Infer(args)) => verbs::infer::run(&args, show),
        Some(Verb::Model(args)) => verbs::model::run(&args, show),
        Some(Verb::Strategy(args)) => verbs::strategy::run(&args, show),
        Some(Verb::Compare(args)) => verbs::compare::run(&args, show),
        Some(Verb::Data(args)) => verbs::data::run(&args, show),
        Some(Verb::Init(args)) => verbs::init::run(&args, show),
        Some(Verb::Check(args)) => verbs::check::run(&args, show),
        Some(Verb::Plan(args)) => verbs::plan::run(&args, show),
        Some(Verb::Status(args)) => verbs::status::run(&args, show),
        Some(Verb::Explore(args)) => verbs::explore::run(&args, show),
        Some(Verb::Analyze(args)) => verbs::analyze::run(&args, show),
        Some(Verb::Report(args)) => verbs::report::run(&args, show),
        Some(Verb::Serve(args)) => verbs::serve::run(&args, show),
        Some(Verb::Runs(args)) => verbs::runs::run(&args, show),
        Some(Verb::Show(args)) => verbs::show::run(&args, show),
        Some(Verb::Export(args)) => verbs::export::run(&args, show),
        Some(Verb::Explain(args)) => verbs::explain::run(&args, show),
        Some(Verb::Doctor(args)) => verbs::doctor::run(&args, show),
        Some(Verb::Bench(args)) => verbs::bench::run(&args, show),
        Some(Verb::Completions(args)) => verbs::completions::run(&args, Cli::command()),
    };
    exit_code(done)
}

fn exit_code(done: Result<(), failure::Failure>) -> ExitCode {
    done.map_or_else(failure::Failure::report, |()| ExitCode::SUCCESS)
}

/// What this program starts itself as, never by hand: no verbs, so that nothing lists, completes or suggests them.
fn internal(started: Started) -> Option<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    match words.next()?.to_str()? {
        // One rank of a run.
        "rank" => {
            paceline_launch::rank::main(flags::registries().runs(), paceline_bench::play);
            Some(ExitCode::SUCCESS)
        }
        // One run of a study, described on standard input.
        "trial" => Some(exit_code(verbs::trial::run(started))),
        // Whatever runs one run of a study, and ends it with the study: mark, cores, program and arguments.
        "keeper" => {
            let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
            let failed = |error: std::io::Error| {
                output::error(&error.to_string(), "");
                ExitCode::from(127)
            };
            Some(paceline_launch::trial::keep(&words).map_or_else(failed, ExitCode::from))
        }
        _ => None,
    }
}
