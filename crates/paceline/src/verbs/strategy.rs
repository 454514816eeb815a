//! `paceline strategy`: an averaging rule in a file: what it does, its rounds, and a file to begin with.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Subcommand;
use paceline_analyze::sheet::aligned;
use paceline_plan::NetworkLimits;
use paceline_record::FailureKind;
use paceline_resolve::strategy_description;
use paceline_rounds::{
    LinkConditions, Program, StrategyFileError, StrategyReport, TEMPLATE, report_text, rounds_svg,
    worker_counts,
};

use crate::failure::Failure;
use crate::output::{self, Show};

/// Flags of `paceline strategy`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Check a strategy file and tell what it does: matrices, contraction, bias, bytes, period, losses
    Check(CheckArgs),
    /// Show the rounds of a strategy file, as text or as a picture
    Show(ShowArgs),
    /// Write a strategy file to begin with
    New(NewArgs),
}

#[derive(clap::Args, Debug)]
struct CheckArgs {
    /// The strategy file
    #[arg(value_name = "FILE.toml")]
    file: PathBuf,
    /// Numbers of workers: one, a list (2,4,8) or a range (2..64)
    #[arg(long, default_value = "2..16", value_parser = counts)]
    workers: Counts,
    /// Seed of the file's random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Parameters of the model whose iterations are timed
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    params: u64,
    /// Milliseconds of a forward and backward pass
    #[arg(long, value_name = "MS", default_value_t = 20.0, value_parser = milliseconds)]
    compute: f64,
    /// The link of each worker: BANDWIDTH,LATENCY
    #[arg(long, default_value = "1gbit,200us")]
    network: NetworkLimits,
}

#[derive(clap::Args, Debug)]
struct ShowArgs {
    /// The strategy file
    #[arg(value_name = "FILE.toml")]
    file: PathBuf,
    /// Number of workers
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: u16,
    /// The iteration, from 0
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..2048))]
    step: u64,
    /// Seed of the file's random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write a picture of the rounds to this file
    #[arg(long, value_name = "FILE.svg")]
    svg: Option<PathBuf>,
}

#[derive(clap::Args, Debug)]
struct NewArgs {
    /// The file to write; an existing one is never overwritten
    #[arg(value_name = "FILE.toml", default_value = "strategy.toml")]
    file: PathBuf,
}

/// Numbers of workers.
#[derive(Clone, Debug)]
struct Counts(Vec<usize>);

fn counts(text: &str) -> Result<Counts, String> {
    worker_counts(text).map(Counts)
}

fn milliseconds(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|ms| (0.0..=1e6).contains(ms));
    number.ok_or_else(|| "a number of milliseconds from 0 to 1000000 is needed".into())
}

/// `paceline strategy`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    match &args.what {
        What::Check(args) => check(args, show),
        What::Show(args) => show_rounds(args, show),
        What::New(args) => new(args, show),
    }
}

/// Reads a file. Mistakes name it as the user did.
fn read(file: &Path) -> Result<Arc<Program>, Failure> {
    let (_, text) = strategy_description(file)?;
    Program::parse(&file.display().to_string(), &text).map(Arc::new).map_err(wrong)
}

fn wrong(error: StrategyFileError) -> Failure {
    let hint = "docs/own-strategy.md says what a strategy file can say; `paceline strategy new` writes one that works";
    Failure::new(FailureKind::Plan, error.to_string(), hint)
}

fn check(args: &CheckArgs, show: Show) -> Result<(), Failure> {
    let program = read(&args.file)?;
    let conditions = LinkConditions {
        params: args.params as usize,
        compute_s: 1e-3 * args.compute,
        bits_per_s: args.network.bits_per_s as f64,
        latency_s: 1e-9 * args.network.latency_ns as f64,
    };
    let file = args.file.display().to_string();
    let report = |workers: &usize| {
        StrategyReport::new(&file, &program, *workers, args.seed, conditions).map_err(wrong)
    };
    let reports = args.workers.0.iter().map(report).collect::<Result<Vec<_>, _>>()?;
    let broken = reports.iter().find(|r| !r.virtual_time.stuck.is_empty() || !r.virtual_time.hung.is_empty());
    show.print(&reports, || report_text(&program, &reports, &|head, rows| aligned(head, 2, rows)))?;
    match broken {
        None => Ok(()),
        Some(report) => {
            let message = format!("{file}: with {} workers some worker never ends", report.workers);
            Err(Failure::new(FailureKind::Plan, message, "this is a bug of Paceline: please report the file"))
        }
    }
}

fn show_rounds(args: &ShowArgs, show: Show) -> Result<(), Failure> {
    let program = read(&args.file)?;
    let (workers, step) = (usize::from(args.workers), args.step);
    let rounds = program.rounds(workers, step, args.seed).map_err(wrong)?;
    if let Some(file) = &args.svg {
        let svg = rounds_svg(&program, workers, step, args.seed).map_err(wrong)?;
        std::fs::write(file, svg).map_err(|error| Failure::file(file, &error))?;
        show.note(&format!("wrote {}", file.display()));
    }
    show.print(&rounds, || {
        let mut text = format!("{}: {}\n", program.name(), program.about());
        for worker in &rounds {
            text.push_str(&format!("worker {}, step {step}\n", worker.rank));
            worker.does.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
        }
        text
    })
}

fn new(args: &NewArgs, show: Show) -> Result<(), Failure> {
    output::write_new(&args.file, TEMPLATE)?;
    let file = args.file.display();
    show.note(&format!(
        "wrote {file}; next: `paceline strategy check {file}`, `paceline train --strategy-file {file} --workers 4`"
    ));
    Ok(())
}
