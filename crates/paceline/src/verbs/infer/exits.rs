//! `paceline infer --exits`: devices, a gateway and the tiers above it, each a process of its own.

use paceline_bench::{DistributedExits, ExitRun, ExitTask};
use paceline_data::Folders;
use paceline_plan::{NetworkLimits, Plan};
use paceline_record::FailureKind;
use paceline_train::{ExitModel, ExitRequest, ExitsReport};
use serde::Serialize;

use crate::failure::Failure;
use crate::flags::{names, registries};
use crate::output::Show;
use crate::verbs::bench::program;

/// Flags of networks with early exits.
#[derive(clap::Args, Debug)]
pub struct ExitFlags {
    /// Answer the test split with a network with early exits: a sample leaves at the first exit whose normalised entropy is
    /// at most T, from 0 (only what is certain) to 1 (everything leaves at the first exit)
    #[arg(long, value_name = "T", value_parser = threshold)]
    exits: Option<f64>,
    /// What devices and the tiers above them talk over, with --exits: processes, or threads with inproc
    #[arg(long, value_name = "NAME", default_value = "tcp", value_parser = transports(), requires = "exits")]
    transport: String,
    /// Emulate links between devices and tiers, with --exits: BANDWIDTH,LATENCY, e.g. 10mbit,5ms
    #[arg(long, value_name = "BANDWIDTH,LATENCY", requires = "exits",
          value_parser = |s: &str| s.parse::<NetworkLimits>())]
    network: Option<NetworkLimits>,
    /// Devices whose view is blank, with --exits: numbers from 0, e.g. 2 or 2,3
    #[arg(long, value_name = "DEVICE,...", value_delimiter = ',', requires = "exits")]
    lost: Vec<usize>,
}

impl ExitFlags {
    /// The threshold, where exits are asked for.
    pub fn threshold(&self) -> Option<f64> {
        self.exits
    }
}

fn threshold(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|t| (0.0..=1.0).contains(t));
    number.ok_or_else(|| "between 0 and 1".into())
}

fn transports() -> clap::builder::PossibleValuesParser {
    names(registries().runs().transports.described())
}

#[derive(Serialize)]
struct Answered {
    #[serde(flatten)]
    evaluated: ExitsReport,
    /// Devices whose view was blank in the run over a transport.
    lost: Vec<usize>,
    distributed: ExitRun,
}

/// Answers the test split in this process, then tier by tier, and shows both.
pub fn answer(
    threshold: f64,
    flags: &ExitFlags,
    plan: Plan,
    folders: Folders,
    weights: Option<String>,
    show: Show,
) -> Result<(), Failure> {
    let runs = registries().runs();
    let model = ExitModel::load(&plan, &folders.0, runs)?;
    let devices = model.tiers.devices;
    if let Some(device) = flags.lost.iter().find(|device| **device >= devices) {
        let message = format!("--lost {device}: {} has devices 0 to {}", plan.model, devices - 1);
        return Err(Failure::new(FailureKind::Usage, message, "name devices that there are"));
    }
    let request = ExitRequest { plan: &plan, model: &model, threshold, threads: 1 };
    let (mut evaluated, mut answers) = request.evaluate(&|line| show.note(line))?;
    evaluated.weights = weights.or(evaluated.weights);
    let lost = flags.lost.clone();
    if !lost.is_empty() {
        answers = request.without(&lost)?;
    }
    let task = ExitTask { plan: plan.clone(), folders: folders.0, threshold, lost: lost.clone() };
    let run = DistributedExits { task, transport: flags.transport.clone(), network: flags.network };
    show.note(&format!(
        "the same over {}: {devices} devices and {} tiers above them",
        flags.transport,
        model.tiers.upper().len()
    ));
    let distributed = run.run(&model, &answers, &program()?)?;
    let answered = Answered { evaluated, lost, distributed };
    show.print(&answered, || answered.evaluated.text() + &answered.distributed.text())?;
    if answered.distributed.different > 0 {
        let message = format!(
            "{} of {} samples were answered differently over {}",
            answered.distributed.different, answered.evaluated.test_samples, flags.transport
        );
        let hint = "that is a mistake of this program: are all its processes of one version?";
        return Err(Failure::new(FailureKind::Other, message, hint));
    }
    Ok(())
}
