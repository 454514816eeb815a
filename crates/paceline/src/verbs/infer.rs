//! `paceline infer`: how long a trained network takes to answer, and how often it is right.

use std::path::PathBuf;

use paceline_data::DATASETS;
use paceline_nn::models::MODELS;
use paceline_resolve::{PlanSettings, resolve};
use paceline_train::InferRequest;

use super::data::Place;
use crate::failure::Failure;
use crate::flags::names;
use crate::flags::registries;
use crate::output::{self, Show};

/// Flags of `paceline infer`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Dataset
    #[arg(long, default_value = "digits", value_parser = names(DATASETS.iter().map(|d| (d.name, d.about))))]
    data: String,
    #[command(flatten)]
    place: Place,
    /// Network
    #[arg(long, default_value = "mlp", value_parser = names(MODELS.iter().map(|m| (m.name, m.about))))]
    model: String,
    /// Network from a file: a list of layers in TOML, e.g. examples/models/lenet.toml
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    model_file: Option<PathBuf>,
    /// Its weights: a PyTorch state_dict saved as safetensors, e.g. from `paceline export-weights` [default: untrained]
    #[arg(long, value_name = "FILE")]
    init: Option<PathBuf>,
    /// Samples that are answered together, one measurement for each number
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,8,64",
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch: Vec<u32>,
    /// Threads, one measurement for each number
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1",
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Vec<u32>,
    /// Seconds of each measurement
    #[arg(long, value_name = "S", default_value = "2", value_parser = seconds)]
    seconds: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|s| (0.01..=3600.0).contains(s));
    number.ok_or_else(|| "between 0.01 and 3600 seconds".into())
}

/// `paceline infer`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    let mut settings = PlanSettings::default();
    settings.put("data", &args.data);
    match &args.model_file {
        Some(file) => settings.put("model-file", file),
        None => settings.put("model", &args.model),
    }
    args.init.iter().for_each(|file| settings.put("init", file));
    let numbers = |numbers: &[u32]| numbers.iter().map(|n| *n as usize).collect();
    let (batches, threads) = (numbers(&args.batch), numbers(&args.threads));
    let (plan, folders) = (resolve(&settings)?, args.place.folders());
    measure(InferRequest { plan, folders, batches, threads, seconds: args.seconds }, show)
}

/// Times the answers and prints what came out.
pub fn measure(request: InferRequest, show: Show) -> Result<(), Failure> {
    let measured = request.measure(registries(), &|line| show.note(line))?;
    if show.json {
        return Ok(output::json(&measured)?);
    }
    Ok(output::text(&measured.text())?)
}
