//! The page of pipelines: stages, schedules, tables.

use paceline_nn::models::MODELS;
use paceline_pipeline::{Cuts, PIPELINES, PipelineRequest, ProgramSource};

use super::markdown::{Page, code};
use crate::process::Outcome;

pub fn page() -> Outcome<String> {
    let mut page = Page::new("Pipelines: a network cut into stages");
    page.text(
        "A network can be cut into *stages*: consecutive layers, each computed by a rank of its own. The batch is cut \
         into *micro-batches* that follow each other through the stages, forward and then backward. Which rank does \
         what when is a *program*, and programs are data: shown, checked, read and written by `paceline model show`.",
    );
    running(&mut page);
    page.heading("Programs");
    page.text(
        "What `--pipeline` can name. s is the number of stages, m that of micro-batches, i a stage from 0.",
    );
    let row = |pipeline: &paceline_pipeline::Pipeline| {
        vec![
            code(pipeline.name),
            pipeline.about.to_owned(),
            pipeline.bubble.to_owned(),
            pipeline.slots.to_owned(),
        ]
    };
    page.table(
        &["pipeline", "what it does", "bubble", "slots of stage i"],
        &PIPELINES.iter().map(row).collect::<Vec<_>>(),
    );
    page.text(
        "The *bubble* is the idle part of the ranks' time; the formula holds where all stages take the same time and \
         messages take none, and is met to the nanosecond. A *slot* holds what a micro-batch leaves in a stage \
         between its forward and its backward pass.",
    );
    page.text("Stages that all take the same, backward twice as long as forward:");
    page.code(&drawn("paceline model show --stages 4 --micro-batches 8", None)?);
    page.text("A network in stages, each as long as its counted operations:");
    page.code(&drawn("paceline model show resnet20 --stages 4 --micro-batches 8", Some("resnet20"))?);
    page.items([
        "--svg FILE.svg draws the same as a picture.".into(),
        "--json: every figure, and the program.".into(),
        "--csv FILE.csv writes the program as a table: a line for each rank, a cell for each pass, as \
         `torch.distributed.pipelining` reads it (`0F0,0F1,0B0,…`: stage, forward or backward, micro-batch)."
            .into(),
        "--program FILE.csv reads such a table, checks it and draws it. Empty cells and `REDUCE_GRAD` say nothing \
         here. A rank may have several stages."
            .into(),
    ]);
    page.text(
        "A program is refused, with line, stage and cell, unless every stage has every micro-batch once forward and \
         once backward, each stage lies on one rank, micro-batches ascend in both directions (so that sums and running \
         statistics are those of one worker), and no ranks wait for each other in a circle.",
    );
    page.heading("Cuts");
    page.text(
        "--cuts auto cuts so that the longest stage is as short as possible; of several such cuts, so that the fewest \
         numbers are handed over. What layers cost is counted: floating-point operations, and bytes that are read and \
         written, a byte as eight operations; --calibration FILE (of `model show`, `train` and `simulate`) takes what \
         `paceline calibrate` has measured of such micro-batches instead. --cuts layer2.0,layer3.1 cuts before these layers; a name may be that of \
         a group of layers (`layer2.0` is the first of `layer2.0.…`). A cut may lie inside a residual block: a value \
         that several stages read goes from reader to reader, and its gradient back the same way.",
    );
    page.text(
        "*sent*, *returned*: activations that go on and gradients that go back, of one micro-batch. *per slot*: what a micro-batch \
         takes while it is under way, besides what goes over cuts. *activations*: all slots of the stage, and the gradients of \
         activations, which slots share. Parameters, gradients, the optimiser's memory and what goes over cuts come on top.",
    );
    page.heading("Exactness");
    page.text(
        "Stages along any of these programs give what one worker gives with the same micro-batches, bit for bit: \
         losses, parameters and running statistics, with batch norm, dropout and Adam, for uneven batches, wherever \
         the cuts are. Tested in one process for mlp, lenet, resnet20, transformer and gru in up to four stages, and \
         for every kind of layer (`crates/paceline-pipeline/tests/exactness.rs`); between ranks over every transport, with \
         replicas, servers, pauses and other stages after a pause (`crates/paceline-train/tests/stages.rs`).",
    );
    Ok(page.done())
}

/// What is said of runs in stages.
fn running(page: &mut Page) {
    page.heading("Train in stages");
    page.code(&["paceline train --model resnet20 --data cifar-10 --stages 2 --micro-batches 8".to_owned()]);
    page.items([
        "--stages S cuts the network into S stages, each on a worker of its own. `--workers` is S unless it is given, and a \
         multiple of S: each S workers are a *replica* of the model, worker w has stage w mod S of replica w / S. \
         `--batch` and `--steps` count replicas, as they count workers without stages."
            .into(),
        "--micro-batches M: micro-batch i has the samples B·i/M … B·(i+1)/M of the replica's batch of B. `--pipeline gpipe | 1f1b`: \
         in which order they pass. `--cuts auto | LAYER,…`: where the network is cut."
            .into(),
        "The ranks of one stage average among themselves, along any exact path (`--strategy ring-allreduce`, `tree`, …) or over \
         servers (`--strategy ps --servers N`, a multiple of S: server i has stage i mod S), with --sync bsp."
            .into(),
        "Every transport, `--listen` and `paceline join`, emulated links (`--network`) and `--straggler` (each pass is \
         stretched) are as without stages."
            .into(),
        "Evaluations are the launcher's: it puts the parameters of the first replica's stages together and evaluates \
         them while the ranks wait, and the training clock stands still. Besides the dataset, a rank has memory for its own layers only: their \
         parameters, gradients and optimiser's memory, the slots of its stage, and one buffer per slot and crossing for what it hands \
         over and takes back, in which its passes work."
            .into(),
        "Checkpoints hold each rank's range of the parameters. `paceline resume RUN --stages N` goes on with other stages (`--pipeline`, \
         `--cuts`: other ones too), or with --stages 1 with none, bit for bit; a checkpoint of a run without stages goes on in stages \
         as well. With three replicas or more, and with `--compression fp16`, the ring's chunks move with the cuts, and sums agree \
         within rounding. Of --hosts it keeps as many as the new workers fill, and a --straggler that is not there any more is left \
         out; both is said."
            .into(),
        "`--dry-run` says how many bytes the buffers of each stage's ranks will take (`buffer_bytes`); the result counts them when the \
         run ends (`ranks[].buffer_bytes`): the same number."
            .into(),
        "The record has, per step and rank, what it waited for earlier stages (`wait_up_ns`) and for later ones (`wait_down_ns`), the \
         slots that were in use (`live_slots`) and their bytes; with `--trace` each pass is a bar in `paceline export \
         RUN --format trace`. Reports and the run's page show where each stage's time goes, its idle time beside the bubble's formula, \
         and its slots. `paceline explain` names the stage that sets the pace and the layer to cut before, and predicts other cuts, \
         more micro-batches and another pipeline by simulating them."
            .into(),
    ]);
    page.text(
        "Refused with `--stages`: strategies that are not exact, `--sync` other than bsp, --averages weights, --shares, and codes \
         that keep a remainder. Scripts are not cut.",
    );
}

/// What a command draws.
fn drawn(command: &str, model: Option<&str>) -> Outcome<Vec<String>> {
    let pipeline = PIPELINES.iter().find(|pipeline| pipeline.name == "1f1b").ok_or("no 1f1b")?;
    let model = model.and_then(|name| MODELS.iter().find(|model| model.name == name));
    let graph = model.map(|model| model.build(model.native_input, 10)).transpose();
    let graph = graph.map_err(|error| error.to_string())?;
    let request = PipelineRequest {
        program: ProgramSource::Named(pipeline, 4),
        micro_batches: Some(8),
        cuts: &Cuts::Auto,
        batch: 64,
        measured: None,
    };
    let (_, report) = request.report(graph.as_ref()).map_err(|error| error.to_string())?;
    let (head, words, rows) = report.table();
    let table = paceline_analyze::sheet::aligned(&head, words, &rows);
    let text = format!("$ {command}\n{}\n\n{}\n{table}", report.headline(), report.text(80));
    Ok(text.trim_end().lines().map(str::to_owned).collect())
}
