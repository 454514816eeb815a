//! Paceline with a strategy, a network and a figure of one's own.

use std::process::ExitCode;

use paceline::AllRegistries;
use paceline::nn::layers::Dense;
use paceline::nn::models::{Model, Output};
use paceline::nn::{Graph, Shape};
use paceline::record::figures::{FigureKind, RunFigure, less};

mod pairwise;

/// One hidden layer of 32.
static NARROW: Model = Model {
    name: "narrow",
    about: "a hidden layer of 32",
    native_input: Shape::new(28, 28, 1),
    output: Output::PerSample,
    build: |input, classes| {
        let mut graph = Graph::new(input);
        graph.then("fc1", Dense { outputs: 32 })?;
        graph.relu();
        graph.then("fc2", Dense { outputs: classes })?;
        Ok(graph)
    },
};

static SENT_PER_SAMPLE: RunFigure =
    less("sent_bytes_per_sample", "bytes", FigureKind::Amount, "sent by all ranks, for each sample").read(
        |run| {
            let sent: u64 = run.ranks.iter().map(|rank| rank.sent_bytes).sum();
            (run.samples > 0).then(|| sent as f64 / run.samples as f64)
        },
    );

fn main() -> ExitCode {
    paceline::main_with(
        AllRegistries::default().with(&pairwise::PAIRWISE).with(&NARROW).with(&SENT_PER_SAMPLE),
    )
}
