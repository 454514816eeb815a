//! Messages between the launcher and its ranks: frames of a JSON document and, behind it, numbers.
//!
//! A frame is two little-endian `u32` (lengths of the document in bytes and of the numbers in elements),
//! the document, the numbers. The pipes are private to the launcher and its child.

use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::path::PathBuf;

use paceline_attach::ScriptOptimizer;
use paceline_plan::{NetworkLimits, Plan};
use paceline_protocol::RankStanding;
use paceline_record::{Batch, FailureKind, Recording};
use paceline_train::{Generation, Layout, Segment};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::devices::ScriptConditions;
use crate::pauses::PackedState;

/// Most bytes of a document: a server's account of every update is the largest.
const DOCUMENT: usize = 256 << 20;
/// Most numbers of a frame: 4 GiB.
pub const NUMBERS: usize = 1 << 30;

/// A rank's place on its machine, in a run of several.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Place {
    /// Where the other machines reach this one.
    pub address: IpAddr,
    /// Which of the machine's ranks it is, counted from 0.
    pub index: usize,
    /// How many ranks the machine has.
    pub ranks: usize,
}

/// What ranks do in place of training: `paceline-bench` defines such tasks and plays the ranks' parts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RankTask {
    /// What the ranks talk over.
    pub transport: String,
    /// Bytes of each connection's buffer.
    pub buffer: Option<usize>,
    /// Emulated links; each rank is then a host of its own.
    pub network: Option<NetworkLimits>,
    /// Number of workers.
    pub workers: usize,
    /// Number of ranks.
    pub world: usize,
    /// The ranks that this one talks with.
    pub links: Vec<usize>,
    /// What to do, as its crate writes it.
    pub document: serde_json::Value,
}

/// A command of the launcher to a rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
#[allow(missing_docs, reason = "what a command asks for says what its fields are")]
pub enum RankCommand {
    /// Train as this rank of the plan, with the datasets in these folders. The run's key travels over this pipe, and
    /// encrypted to other machines. The place is there in a run of several machines.
    Config {
        plan: Box<Plan>,
        run: String,
        rank: usize,
        key: [u8; 32],
        folders: Vec<PathBuf>,
        place: Option<Place>,
        recording: Option<Recording>,
        /// What its script is started with.
        conditions: ScriptConditions,
    },
    /// Do a task that is no training.
    Task { task: RankTask, rank: usize, key: [u8; 32] },
    /// The evaluation after this step, which the rank waits for, is over, and whether the run ends with it.
    Verdict { step: u64, ends: bool },
    /// Begin no further step, and say where you could stop, with the number of this request.
    Hold { request: u32 },
    /// Stop before this step, or where the servers decide.
    StopAt { step: u64, request: u32 },
    /// Stop where you are, and say where that is: the members of this generation change.
    Stand { generation: u32 },
    /// Go on as a member of this generation, with these addresses by rank; first make the update that was put off, if so.
    Regroup { generation: Box<Generation>, addresses: Vec<String>, commit: bool },
    /// Somebody waits to join: at the end of a step of this generation, stop, and hand over what that one begins with.
    HandOver { generation: u32 },
    /// All work is done everywhere: give your account.
    Conclude,
    /// The pause is over: the segment to do now; none if the run stops.
    Next { segment: Option<Segment> },
    /// Everybody's address, by rank; where the emulated hosts' interfaces are, if there are some; the steps to begin
    /// with; and what the rank had when the run paused, if it goes on (its numbers follow).
    Peers {
        addresses: Vec<String>,
        interfaces: Option<String>,
        segment: Segment,
        restored: Option<PackedState>,
        /// The rank's place in the first generation, where members may change.
        generation: Option<Box<Generation>>,
        /// What all scripts have in common, if there are some; the parameters that all start from follow behind.
        script: Option<ScriptCommon>,
        /// The worker that it stands for, if its script joins others: whose share of the data it reads.
        stands_for: Option<usize>,
    },
}

/// What the scripts of a run have in common.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScriptCommon {
    /// Their tensors.
    pub layout: Layout,
    /// Rank 0's optimiser, where servers need it.
    pub optimizer: Option<ScriptOptimizer>,
}

/// An event that a rank reports to the launcher.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
#[allow(missing_docs, reason = "what an event reports says what its fields are")]
pub enum RankEvent {
    /// It listens at this address.
    Bound { address: String },
    /// It lives, whatever it does; several times per second.
    Alive,
    /// SIGINT or SIGTERM came to its process: the run is to save itself and stop.
    Interrupted,
    /// Its first step begins.
    Started,
    /// This many steps are done (not every step is reported), with the mean loss of its share and its training clock.
    Step { step: u64, samples: u64, loss: Option<f64>, train_s: f64 },
    /// This many steps are done: every step that is not reported otherwise, where the launcher counts them.
    Stepped { step: u64 },
    /// Its script, a process that leads a group of its own, has been started; or has ended (0).
    Script { pid: u32 },
    /// Its script has written a line.
    Said { line: String },
    /// Its script is waited for: where it is.
    Waiting { text: String },
    /// Its script has attached: what it is; its parameters follow, where they count.
    Attached { common: ScriptCommon, framework: String },
    /// Its script has reported figures after this many steps; those that are no numbers are absent.
    Reported { step: u64, samples: u64, train_s: f64, values: Vec<(String, Option<f64>)> },
    /// It has evaluated its part of the test split after this many steps; the loss is summed over its samples.
    Evaluated {
        step: u64,
        train_s: f64,
        #[serde(deserialize_with = "paceline_record::number")]
        loss: f64,
        correct: usize,
        predictions: usize,
        samples: usize,
    },
    /// Its model, or its part of it, at an evaluation; the numbers follow. Only workers have a training clock.
    Snapshot { step: u64, train_s: Option<f64> },
    /// It could stop before this step, as it was asked by this request.
    Held { step: u64, request: u32 },
    /// It has paused; the steps done by everybody together, if it knows, and what it needs to go on. Its numbers follow.
    Paused { step: Option<u64>, part: PackedState },
    /// Its generation has ended for it, and its parameters stand here; it listens at this address for the next one.
    /// What it hands over to who joins there follows, if it was asked to.
    Standing { generation: u32, standing: RankStanding, address: String, handed: Option<Box<PackedState>> },
    /// It has nothing to hand over to who joins, and goes on.
    HandsNothing { problem: String },
    /// The first step of its generation begins.
    Resumed { generation: u32 },
    /// It has done all its work, and waits until everybody has.
    Concluded { generation: u32 },
    /// SIGTERM came to its process, in an elastic run: it is to leave.
    Drained,
    /// A stranger was turned away: who, and why.
    Refused { cause: String },
    /// Rows of its record; those of steps and traces follow as numbers.
    Recorded(Box<Batch>),
    /// It has finished. A server's parameters, or a worker's state (after its parameters, where they count),
    /// follow.
    Done(Box<RankAccount>),
    /// It cannot go on; `lost` is the peer it lost, if that is why.
    Failed { message: String, hint: String, kind: FailureKind, lost: Option<usize> },
}

/// A rank's own account.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RankAccount {
    /// Steps done.
    pub steps: u64,
    /// Samples done.
    pub samples: u64,
    /// Training clock.
    pub train_s: f64,
    /// Summed loss of its last step; no number where a script has none.
    #[serde(deserialize_with = "paceline_record::number")]
    pub last_loss: f64,
    /// Samples of its last step.
    pub last_samples: usize,
    /// SHA-256 of its parameters.
    pub params_sha256: String,
    /// Accuracy of its own replica, where replicas differ.
    pub accuracy: Option<f64>,
    /// Data, forward and backward pass.
    pub phases: [f64; 3],
    /// Sending and receiving.
    pub send_s: f64,
    /// Waiting.
    pub wait_s: f64,
    /// Waiting, by the rank that was waited for.
    pub wait_for_s: Vec<f64>,
    /// Updating.
    pub apply_s: f64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// CPU time.
    pub cpu_s: f64,
    /// Peak memory.
    pub rss_peak_bytes: u64,
    /// What its buffers took, counted at the end (stages).
    #[serde(default)]
    pub buffer_bytes: Option<u64>,
    /// The machine.
    pub host: String,
    /// Versions between reading and writing, of every update (servers).
    pub staleness: Vec<u64>,
    /// Copying gradients in its script.
    #[serde(default)]
    pub staging_s: f64,
    /// Microseconds from the start of backward until each of its script's tensors was final.
    #[serde(default)]
    pub ready_us: Vec<u32>,
}

pub fn write(to: &mut impl Write, message: &impl Serialize, numbers: &[f32]) -> io::Result<()> {
    let document = serde_json::to_vec(message)?;
    to.write_all(&(document.len() as u32).to_le_bytes())?;
    to.write_all(&(numbers.len() as u32).to_le_bytes())?;
    to.write_all(&document)?;
    for part in numbers.chunks(16 * 1024) {
        let bytes: Vec<u8> = part.iter().flat_map(|n| n.to_le_bytes()).collect();
        to.write_all(&bytes)?;
    }
    to.flush()
}

/// Reads a frame; `None` at the end of the pipe.
pub fn read<M: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<(M, Vec<f32>)>> {
    let mut lengths = [0; 8];
    match from.read_exact(&mut lengths) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let length = |i: usize| u32::from_le_bytes(lengths[i..i + 4].try_into().expect("four bytes")) as usize;
    let (document, numbers) = (length(0), length(4));
    if document > DOCUMENT || numbers > NUMBERS {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame beyond the limits"));
    }
    let mut text = vec![0; document];
    from.read_exact(&mut text)?;
    let mut bytes = vec![0; numbers * 4];
    from.read_exact(&mut bytes)?;
    let numbers =
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect();
    Ok(Some((serde_json::from_slice(&text)?, numbers)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_written_and_a_broken_off_one_is_an_error() {
        let mut pipe = Vec::new();
        write(&mut pipe, &RankEvent::Started, &[]).unwrap();
        write(&mut pipe, &RankEvent::Snapshot { step: 3, train_s: None }, &[1.5, -2.0]).unwrap();
        let mut from = &pipe[..];
        assert!(matches!(read(&mut from).unwrap(), Some((RankEvent::Started, _))));
        let Some((RankEvent::Snapshot { step: 3, train_s: None }, numbers)) = read(&mut from).unwrap() else {
            panic!()
        };
        assert_eq!(numbers, [1.5, -2.0]);
        assert!(read::<RankEvent>(&mut from).unwrap().is_none());
        let mut broken = &pipe[..pipe.len() - 1];
        read::<RankEvent>(&mut broken).unwrap();
        assert!(read::<RankEvent>(&mut broken).is_err());
        let mut huge = &[0xff; 8][..];
        assert!(read::<RankEvent>(&mut huge).is_err());
    }
}
