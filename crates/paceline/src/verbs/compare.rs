//! `paceline compare`: one averaging rule against others, each tuned alike; a page of what is real.

use std::path::PathBuf;

use paceline_compare::{
    CompareEvent, ComparisonFindings, ComparisonFlags, ComparisonState, Contender, DEFAULT_RIVALS,
    StrategyComparison, drive, write,
};
use paceline_plan::NetworkLimits;
use paceline_resolve::quoted;

use super::store::Where;
use crate::failure::Failure;
use crate::flags::{NetworkFlags, registries};
use crate::output::{Bar, Show};

/// Flags of `paceline compare`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The rule: a strategy file, or the name of a strategy (stepwise: the best of its variants; stepwise:naive: one)
    #[arg(value_name = "MINE")]
    mine: String,
    /// Whom it is compared with: names of strategies and strategy files; the first one sets the target accuracy
    #[arg(long, value_name = "A,B,FILE.toml", value_delimiter = ',', default_values = DEFAULT_RIVALS)]
    against: Vec<String>,
    /// Minutes that it may take: they decide how many seeds there are, and shorten runs where they must
    #[arg(long, value_name = "MINUTES", default_value_t = 20.0, value_parser = minutes)]
    budget: f64,
    /// Seed of everything random; another one repeats the comparison
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seeds that strategies are compared on, at most
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u64).range(1..=400))]
    seeds: u64,
    /// Workers of the real runs; 0 for none
    #[arg(long, value_name = "N", default_value_t = 4)]
    workers: usize,
    /// Workers of the runs in virtual time; 0 for none
    #[arg(long, value_name = "N", default_value_t = 16)]
    virtual_workers: usize,
    /// The link of each worker, in the cells that have one: BANDWIDTH,LATENCY
    #[arg(long, default_value = "1gbit,200us")]
    network: NetworkLimits,
    /// Steps of each run; fewer where the minutes do not suffice
    #[arg(long, default_value_t = 160, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,
    /// Samples per worker and step
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    #[command(flatten)]
    network_and_data: NetworkFlags,
    /// What things cost in virtual time, as `paceline calibrate` measured it [default: round numbers]
    #[arg(long, value_name = "FILE")]
    calibration: Option<PathBuf>,
    /// Folder for the page (compare.html, compare.md), its charts and tables (differences.csv, runs.csv)
    /// [default: beside the comparison's journal in the store]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    store: Where,
}

fn minutes(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|minutes| (0.05..=100_000.0).contains(minutes));
    number.ok_or_else(|| "a number of minutes from 0.05 to 100000 is needed".into())
}

/// `paceline compare`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    let contenders = Contender::parse_all(&args.mine, &args.against, registries().runs())?;
    let mut base = args.network_and_data.0.clone();
    base.put("batch", args.batch.to_string());
    let flags = ComparisonFlags {
        base,
        few: args.workers,
        many: args.virtual_workers,
        network: args.network.to_string(),
        steps: args.steps,
        seed: args.seed,
        minutes: args.budget,
        most_seeds: args.seeds,
        calibration: args.calibration.clone(),
    };
    // Where the page goes is no part of what it says.
    let words: Vec<String> = std::env::args().skip(1).map(|word| quoted(&word)).collect();
    let comparison =
        StrategyComparison::new(contenders, flags, format!("paceline {}", words.join(" ")), registries())?;
    let (store, bar) = (args.store.folder(), Bar::new(show, "{bar:20.cyan} {percent}% of the budget  {msg}"));
    let folder = comparison.folder(&store);
    let mut state = ComparisonState::open(&folder, &comparison.document)?;
    show.detail(|| format!("the comparison's journal is in {}", folder.display()));
    let done = drive(&comparison, &mut state, &store, &mut |event| {
        match event {
            CompareEvent::Note(line) => bar.note(line),
            CompareEvent::Progress { spent_s, budget_s, message } => {
                bar.length(budget_s.ceil() as u64);
                bar.position(spent_s.min(budget_s) as u64);
                bar.message(&message);
            }
        }
        Ok(())
    });
    bar.clear();
    done?;
    let out = args.out.clone().unwrap_or_else(|| folder.join("page"));
    write(&state.known, &out).map_err(|(path, error)| Failure::file(&path, &error))?;
    let findings = ComparisonFindings::new(&state.known);
    show.print(&findings, || findings.text())?;
    show.note(&format!("the page: {}", out.join("compare.html").display()));
    Ok(())
}
