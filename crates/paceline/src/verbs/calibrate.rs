//! `paceline calibrate`: what things cost on this machine, for `simulate` and `predict`.

use std::path::PathBuf;

use paceline_resolve::{PlanSettings, quoted, resolve};
use paceline_study::CalibrationRequest;
use paceline_virtual::calibrate::{self, ScriptSubject};

use crate::failure::Failure;
use crate::flags::registries;
use crate::output::{self, Show};

/// Flags of `paceline calibrate`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// File to write; with --study or --script, what is there stays, and what they lack is added
    #[arg(long, value_name = "FILE", default_value = "calibration.toml")]
    out: PathBuf,
    /// Measure the models, inputs, batches and threads of a study that the file lacks, in seconds each
    #[arg(long, value_name = "STUDY.toml")]
    study: Option<PathBuf>,
    /// Measure the steps of this Python script with the arguments behind --, by short runs of it (docs/pytorch.md)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["study", "dry_run"])]
    script: Option<PathBuf>,
    /// Workers of the script that are measured at once, e.g. 1,2: how much slower each is then
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1", requires = "script", conflicts_with = "study",
        value_parser = clap::value_parser!(u32).range(1..=4096))]
    workers: Vec<u32>,
    /// Steps of each run of the script, at most
    #[arg(long, value_name = "N", default_value = "60", requires = "script", conflicts_with = "study",
        value_parser = clap::value_parser!(u64).range(5..))]
    steps: u64,
    /// Threads of each worker of the script
    #[arg(long, value_name = "N", default_value = "1", requires = "script", conflicts_with = "study")]
    threads: usize,
    /// GPUs that the workers of the script take in turn, e.g. 0,1 [default: the script chooses]
    #[arg(long, value_name = "LIST", requires = "script", conflicts_with = "study")]
    gpus: Option<String>,
    /// Program that runs the script [default: PACELINE_PYTHON, else python3]
    #[arg(long, value_name = "PROGRAM", requires = "script", conflicts_with = "study")]
    python: Option<String>,
    /// List what would be measured for the study
    #[arg(long, requires = "study")]
    dry_run: bool,
    /// A few seconds instead of a minute: one model, wider intervals
    #[arg(long)]
    quick: bool,
    /// Arguments of the script
    #[arg(last = true, value_name = "ARGS", requires = "script", conflicts_with = "study")]
    script_args: Vec<String>,
}

impl Args {
    /// The script that is to be measured, if any is.
    fn subject(&self) -> Result<Option<ScriptSubject>, Failure> {
        let Some(file) = &self.script else { return Ok(None) };
        let mut settings = PlanSettings::new(&registries().settings);
        settings.put("script", file);
        settings.put("threads", self.threads.to_string());
        self.python.iter().for_each(|python| settings.put("python", python));
        self.gpus.iter().for_each(|gpus| settings.put("gpus", gpus));
        let words: Vec<String> = self.script_args.iter().map(|word| quoted(word)).collect();
        if !words.is_empty() {
            settings.put("args", words.join(" "));
        }
        let plan = resolve(&settings)?;
        let workers = self.workers.iter().map(|count| *count as usize).collect();
        let subject = |script| ScriptSubject { script, threads: plan.threads, workers, steps: self.steps };
        Ok(plan.script.map(subject))
    }
}

/// `paceline calibrate`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    let Args { out, study, dry_run, quick, .. } = args;
    let program = super::bench::program()?;
    let subject = args.subject()?;
    let request = CalibrationRequest {
        out,
        study: study.as_deref(),
        script: subject.as_ref().map(|subject| (subject, program.program.as_path())),
        dry_run: *dry_run,
        quick: *quick,
    };
    let machine = |say: &mut dyn FnMut(&str)| calibrate::measure(&program, *quick, say);
    let summary = request.execute(registries(), &machine, &|line| show.note(line))?;
    if show.to_people() {
        return Ok(());
    }
    Ok(output::json(&summary)?)
}
