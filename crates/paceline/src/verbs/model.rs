//! `paceline model`: the models, and one of them layer by layer or as a pipeline of stages.

mod stages;

use std::path::PathBuf;

use clap::Subcommand;
use paceline_analyze::sheet::aligned;
use paceline_data::{DatasetSettings, SampleForm};
use paceline_nn::models::Model;
use paceline_nn::{GraphSummary, LayerSummary, Shape};
use paceline_pipeline::PipelineReport;
use paceline_record::FailureKind;
use serde::Serialize;

use crate::failure::Failure;
use crate::flags::{PlaceFlags, names, registries};
use crate::output::{self, Show};

/// Flags of `paceline model`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// List the models
    List,
    /// Show a model's layers, shapes, parameters and cost, or a pipeline of its stages
    Show(Box<ShowArgs>),
}

#[derive(clap::Args, Debug)]
struct ShowArgs {
    /// The model
    #[arg(required_unless_present_any = ["model_file", "stages", "program"], value_parser = names(registries().runs().models.described()))]
    model: Option<String>,
    /// The network that a file describes: a list of layers in TOML
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    model_file: Option<PathBuf>,
    /// For this dataset's samples
    #[arg(long, conflicts_with = "input", value_parser = names(registries().runs().datasets.described()))]
    data: Option<String>,
    #[command(flatten)]
    place: PlaceFlags,
    /// For samples of this height, width and channels, e.g. 28x28x1 [default: the model's own; 28x28x1
    /// for a file]
    #[arg(long, value_name = "HxWxC", value_parser = parse_shape)]
    input: Option<Shape>,
    /// Number of classes
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    classes: u16,
    /// Samples of a worker's batch, for the memory of a training pass
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    batch: u32,
    /// Passes in which the batch is computed, as `train --micro-batches` [default: 1, or those of --program]
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    micro_batches: Option<u32>,
    #[command(flatten)]
    stages: stages::StageFlags,
}

fn parse_shape(text: &str) -> Result<Shape, String> {
    let sides: Option<Vec<usize>> =
        text.split('x').map(|s| s.parse().ok().filter(|&n| n > 0 && n <= 4096)).collect();
    match sides.as_deref() {
        Some(&[h, w, c]) => Ok(Shape::new(h, w, c)),
        _ => Err("three sizes between 1 and 4096 are needed, e.g. 28x28x1".into()),
    }
}

#[derive(Serialize)]
struct ListedModel {
    name: &'static str,
    about: &'static str,
    input: String,
}

#[derive(Serialize)]
struct Shown<'a> {
    model: &'a str,
    #[serde(flatten)]
    network: GraphSummary,
    micro_batch: usize,
    pass_bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pipeline: Option<PipelineReport>,
}

/// `paceline model list` and `paceline model show`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    match &args.what {
        What::List => list(show),
        What::Show(args) => show_one(args, show),
    }
}

fn list(show: Show) -> Result<(), Failure> {
    let row = |m: &Model| ListedModel { name: m.name, about: m.about, input: m.native_input.to_string() };
    let rows: Vec<ListedModel> = registries().runs().models.iter().map(row).collect();
    if show.json {
        return Ok(output::json(&rows)?);
    }
    let cells: Vec<_> = rows.iter().map(|r| vec![r.name.to_owned(), r.about.to_owned()]).collect();
    let text = aligned(&["model", "what it is"], 2, &cells);
    Ok(output::text(&text)?)
}

fn show_one(args: &ShowArgs, show: Show) -> Result<(), Failure> {
    let (batch, given) = (args.batch as usize, args.micro_batches.map(|passes| passes as usize));
    if args.model.is_none() && args.model_file.is_none() {
        let report =
            args.stages.report(None, batch, given, show)?.expect("clap asks for a model or a schedule");
        return show.print(&report, || stages::text(&report));
    }
    let file = args.model_file.as_deref().map(paceline_resolve::model_description).transpose()?;
    // clap lets registered names pass only.
    let model = args.model.as_deref().and_then(|name| registries().runs().models.find(name));
    let data = args.data.as_deref().and_then(|name| registries().runs().datasets.find(name));
    let sample = match data.map(|source| (source, source.form)) {
        Some((_, SampleForm::Fixed { shape, classes })) => Some((shape, classes)),
        Some((source, SampleForm::FromFiles(_))) => {
            let dataset = source.load(&args.place.0.data_folders(), &DatasetSettings::default())?;
            Some((dataset.shape, dataset.classes))
        }
        None => None,
    };
    let input = match (sample, args.input) {
        (Some(([h, w, c], _)), _) => Shape::new(h, w, c),
        (None, Some(input)) => input,
        (None, None) => model.map_or(Shape::new(28, 28, 1), |m| m.native_input),
    };
    let classes = sample.map_or(usize::from(args.classes), |(_, classes)| classes);
    let (name, graph) = match (&file, model) {
        (Some((name, text)), _) => {
            let refused = |error| Failure::description(name, &error);
            (name.as_str(), paceline_nn::description::build(text, input, classes).map_err(refused)?)
        }
        (None, model) => {
            let model = model.expect("clap asks for a model or a file");
            (model.name, model.build(input, classes)?)
        }
    };
    let text = file.as_ref().map(|(_, text)| text.as_str());
    let report = args.stages.report(Some((&graph, name, text)), batch, given, show)?;
    let passes = report.as_ref().map_or(given.unwrap_or(1), |report| report.micro_batches);
    if passes > batch {
        let message = format!("--micro-batches {passes}: must be between 1 and --batch ({batch})");
        return Err(Failure::new(FailureKind::Plan, message, "each pass needs a sample"));
    }
    let micro_batch = batch.div_ceil(passes);
    let (network, pass_bytes) = (graph.summary(), graph.pass_memory().bytes(micro_batch, 1));
    let shown = Shown { model: name, network, micro_batch, pass_bytes, pipeline: report };
    if show.json {
        return Ok(output::json(&shown)?);
    }
    if let Some(report) = &shown.pipeline {
        let head = format!("{name} on {input}, micro-batches of up to {} samples", shown.micro_batch);
        return Ok(output::text(&format!("{head}\n{}", stages::text(report)))?);
    }
    let mut text = format!("{name} on {input}\n\n");
    let row = |(layer, node): (&LayerSummary, &paceline_nn::Node)| {
        let kind = if layer.relu { format!("{} + relu", layer.kind) } else { layer.kind.to_owned() };
        let (output, parameters) = (node.output.to_string(), layer.parameters.to_string());
        vec![layer.name.clone(), kind, layer.settings.clone(), output, parameters]
    };
    let rows: Vec<_> = shown.network.layers.iter().zip(graph.nodes()).map(row).collect();
    text += &aligned(&["layer", "kind", "settings", "output", "parameters"], 3, &rows);
    text += &format!(
        "\nparameters         {:>12}   ({:.2} MB; as many bytes of gradient per step)\n\
         state              {:>12}   (running statistics)\n\
         forward pass       {:>12.3} MFLOP per sample\n\
         training           {:>12.3} MFLOP per sample\n\
         a pass of {:<8} {:>12.3} MB for activations and their gradients\n",
        shown.network.parameters,
        shown.network.gradient_bytes_per_step as f64 / 1e6,
        shown.network.state,
        shown.network.forward_flops_per_sample as f64 / 1e6,
        shown.network.training_flops_per_sample as f64 / 1e6,
        shown.micro_batch,
        shown.pass_bytes as f64 / 1e6,
    );
    if passes > 1 {
        let normalised = graph.nodes().iter().any(|node| node.op.kind() == "batch-norm");
        text += &format!(
            "\na batch of {} in {} passes: gradients are added up{}\n",
            batch,
            passes,
            match normalised {
                true => "; batch norm sees one pass at a time, so training is not that of one pass",
                false => ", bit for bit those of one pass",
            }
        );
    }
    Ok(output::text(&text)?)
}
