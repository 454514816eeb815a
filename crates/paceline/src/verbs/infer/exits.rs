//! `paceline infer --exits`: devices, a gateway and the tiers above it, each a process of its own.

use paceline_bench::{DistributedExits, ExitTask};
use paceline_data::Folders;
use paceline_plan::{NetworkLimits, Plan};
use paceline_record::FailureKind;

use crate::failure::Failure;
use crate::flags::{names, registries};
use crate::output::Show;
use crate::verbs::bench::program;

/// Flags of networks with early exits.
#[derive(clap::Args, Debug)]
pub struct ExitFlags {
    /// Answer the test split with a network with early exits: a sample leaves at the first exit whose normalised entropy is
    /// at most T, from 0 (only what is certain) to 1 (everything leaves at the first exit)
    #[arg(id = "exits", long = "exits", value_name = "T", value_parser = threshold)]
    pub threshold: Option<f64>,
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

fn threshold(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|t| (0.0..=1.0).contains(t));
    number.ok_or_else(|| "between 0 and 1".into())
}

fn transports() -> clap::builder::PossibleValuesParser {
    names(registries().runs().transports.described())
}

/// Answers the test split in this process, then tier by tier, and shows both.
pub fn answer(
    threshold: f64,
    flags: &ExitFlags,
    [batches, threads]: [Vec<usize>; 2],
    plan: Plan,
    folders: Folders,
    weights: Option<String>,
    show: Show,
) -> Result<(), Failure> {
    let task = ExitTask::new(plan, folders.0, threshold, flags.lost.clone(), [&batches, &threads])?;
    let run = DistributedExits { task, transport: flags.transport.clone(), network: flags.network };
    let mut answered = run.answer(&program()?, &|line| show.note(line))?;
    answered.evaluated.weights = weights.or(answered.evaluated.weights);
    show.print(&answered, || answered.evaluated.text() + &answered.distributed.text())?;
    let different = answered.distributed.different;
    if different > 0 {
        let message = format!("{different} samples were answered differently over {}", flags.transport);
        let hint = "that is a mistake of this program: are all its processes of one version?";
        return Err(Failure::new(FailureKind::Other, message, hint));
    }
    Ok(())
}
