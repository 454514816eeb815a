//! `paceline infer`: how long a trained network takes to answer, and how often it is right; with `--exits`, where the
//! samples of a network with early exits leave.

mod exits;

use std::path::{Path, PathBuf};

use paceline_data::Folders;
use paceline_plan::Plan;
use paceline_record::FailureKind;
use paceline_resolve::{PlanSettings, resolve};
use paceline_train::InferRequest;

use super::store::Where;
use super::weights::TrainedWeights;
use crate::failure::Failure;
use crate::flags::{NetworkFlags, registries};
use crate::output::Show;

/// Flags of `paceline infer`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A run whose network and weights are taken, from its last checkpoint: its id or its name, the beginning of either, or
    /// `last` [default: the flags below]
    run: Option<String>,
    #[command(flatten)]
    network: NetworkFlags,
    /// Its weights: a PyTorch state_dict saved as safetensors, e.g. from `paceline export-weights` [default: untrained]
    #[arg(long, value_name = "FILE")]
    init: Option<PathBuf>,
    /// Samples that are answered together, one measurement for each number [default: 1,8,64; one number with --exits: 64]
    #[arg(long, value_name = "N,...", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch: Vec<u32>,
    /// Threads, one measurement for each number; with --exits one number: those of each rank [default: 1]
    #[arg(long, value_name = "N,...", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Vec<u32>,
    /// Seconds of each measurement
    #[arg(long, value_name = "S", default_value = "2", value_parser = seconds)]
    seconds: f64,
    #[command(flatten)]
    exits: exits::ExitFlags,
    #[command(flatten)]
    store: Where,
}

fn seconds(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|s| (0.01..=3600.0).contains(s));
    number.ok_or_else(|| "between 0.01 and 3600 seconds".into())
}

/// `paceline infer`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    let mut settings = args.network.0.clone();
    args.init.iter().for_each(|file| settings.put("init", file));
    let folders = settings.data_folders();
    let (plan, _written) = match &args.run {
        None => (resolve(&settings)?, None),
        Some(run) => of_run(run, &settings, &folders, &args.store)?,
    };
    let weights = args.run.as_ref().map(|run| format!("run {run}"));
    let [batches, threads] =
        [&args.batch, &args.threads].map(|all| all.iter().map(|n| *n as usize).collect());
    if let Some(threshold) = args.exits.threshold {
        return exits::answer(threshold, &args.exits, [batches, threads], plan, folders, weights, show);
    }
    measure(InferRequest { plan, folders, batches, threads, seconds: args.seconds, weights }, show)
}

/// A file that goes when it is not needed any more.
struct Passing(PathBuf);

impl Drop for Passing {
    fn drop(&mut self) {
        // A file that is gone already is what was wanted.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The plan of a run, to begin with what it has learnt, which is written to a file for the time being.
fn of_run(
    run: &str,
    given: &PlanSettings,
    folders: &Folders,
    store: &Where,
) -> Result<(Plan, Option<Passing>), Failure> {
    if let Some(flag) = ["model", "model-file", "data", "init"].into_iter().find(|flag| given.given(flag)) {
        let message = format!("--{flag} beside the run {run}: the run says what its network is");
        return Err(Failure::new(FailureKind::Usage, message, "leave one of them out"));
    }
    let mut trained = TrainedWeights::read(run, folders, store)?;
    let file = Passing(std::env::temp_dir().join(format!("paceline-{}.safetensors", std::process::id())));
    trained.save(&file.0)?;
    trained.plan.init = named_weights(&file.0, given)?;
    Ok((trained.plan, Some(file)))
}

/// A file of weights, as plans name it.
fn named_weights(file: &Path, given: &PlanSettings) -> Result<Option<paceline_plan::Weights>, Failure> {
    let mut settings = given.clone();
    settings.put("init", file);
    Ok(resolve(&settings)?.init)
}

/// Times the answers and prints what came out.
pub fn measure(request: InferRequest, show: Show) -> Result<(), Failure> {
    let measured = request.measure(registries().runs(), &|line| show.note(line))?;
    show.print(&measured, || measured.text())
}
