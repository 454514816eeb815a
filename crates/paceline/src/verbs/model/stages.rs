//! `paceline model show --stages`: a pipeline's schedule, with its bubble and memory.

use std::path::PathBuf;

use paceline_analyze::sheet::aligned;
use paceline_nn::Graph;
use paceline_pipeline::{Cuts, MeasuredCosts, PipelineReport, PipelineRequest, ProgramSource};
use paceline_record::FailureKind;
use paceline_virtual::Calibration;

use crate::failure::Failure;
use crate::flags::{names, registries};
use crate::output::{self, Show};

#[derive(clap::Args, Debug)]
pub struct StageFlags {
    /// Cut the network into this many stages and draw their schedule; without a model, stages that all take the same
    #[arg(long, value_name = "S", group = "schedule", value_parser = clap::value_parser!(u16).range(1..=1024))]
    stages: Option<u16>,
    /// Check and draw the schedule of a table instead, as `torch.distributed.pipelining` writes it
    #[arg(long, value_name = "FILE.csv", group = "schedule", conflicts_with = "pipeline")]
    program: Option<PathBuf>,
    /// Order of the stages' work
    #[arg(long, default_value = "1f1b", requires = "schedule", value_parser = names(registries().runs().pipelines.described()))]
    pipeline: String,
    /// Where the network is cut: before these layers, or so that the longest stage is as short as possible (auto)
    #[arg(long, value_name = "LAYER,…", default_value = "auto", requires = "schedule")]
    cuts: Cuts,
    /// Cut and draw by the times of this file (`paceline calibrate`), with one thread, instead of counted operations
    #[arg(long, value_name = "FILE", requires = "schedule")]
    calibration: Option<PathBuf>,
    /// Write the drawing to this file
    #[arg(long, value_name = "FILE.svg", requires = "schedule")]
    svg: Option<PathBuf>,
    /// Write the schedule to this file, as a table that `torch.distributed.pipelining` reads
    #[arg(long, value_name = "FILE.csv", requires = "schedule")]
    csv: Option<PathBuf>,
}

impl StageFlags {
    /// The schedule that is asked for, of a network with its name and what its file says; its files are written.
    pub fn report(
        &self,
        network: Option<(&Graph, &str, Option<&str>)>,
        batch: usize,
        micro_batches: Option<usize>,
        show: Show,
    ) -> Result<Option<PipelineReport>, Failure> {
        let program = match (self.stages, &self.program) {
            (None, None) => return Ok(None),
            (_, Some(file)) => ProgramSource::File(file),
            (Some(stages), None) => {
                // clap lets registered names pass only.
                let pipeline = registries().runs().pipelines.find(&self.pipeline).expect("a registered name");
                ProgramSource::Named(pipeline, stages.into())
            }
        };
        if network.is_none() && (self.calibration.is_some() || self.cuts != Cuts::Auto) {
            return Err(Failure::usage("--cuts and --calibration are for a network: name a model"));
        }
        let calibration = self.calibration.as_deref().map(Calibration::load).transpose()?;
        let nanoseconds = |graph: &Graph, samples: usize| {
            let (calibration, (_, name, text)) = calibration.as_ref().zip(network).expect("only asked then");
            calibration.costs_of((name, text), graph, samples)
        };
        let measured = calibration.as_ref().map(|_| &nanoseconds as &MeasuredCosts<'_>);
        let request = PipelineRequest { program, micro_batches, cuts: &self.cuts, batch, measured };
        let refused = |error: paceline_pipeline::PipelineError| {
            Failure::new(FailureKind::Plan, error.to_string(), "docs/pipelines.md says what a schedule is")
        };
        let (program, report) = request.report(network.map(|(graph, ..)| graph)).map_err(refused)?;
        for (file, text) in [(&self.svg, report.svg()), (&self.csv, program.to_csv())] {
            let Some(file) = file else { continue };
            std::fs::write(file, text).map_err(|error| Failure::file(file, &error))?;
            show.note(&format!("wrote {}", file.display()));
        }
        Ok(Some(report))
    }
}

pub fn text(report: &PipelineReport) -> String {
    let (head, words, rows) = report.table();
    let (drawing, table) = (report.text(output::width()), aligned(&head, words, &rows));
    format!("{}\n\n{drawing}\n{table}", report.headline())
}
