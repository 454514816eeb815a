//! What the launcher and the machines that join it say to each other, over an encrypted line.

use std::fmt;
use std::path::PathBuf;

use paceline_plan::{Plan, printable};
use paceline_record::{FailureKind, Recording};
use paceline_wire::VERSION;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::control::{self, RankCommand, RankEvent};
use crate::error::LaunchError;

/// What a machine says first. Every version must be able to read it, so that both can be named.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Greeting {
    pub version: Version,
    pub name: String,
    /// Which host it wants to be, if it minds.
    pub host: Option<usize>,
    /// How many hosts it expects, if it does.
    pub hosts: Option<usize>,
}

/// What two machines must agree on to understand each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    pub program: String,
    pub wire: u16,
}

impl Version {
    pub fn own() -> Self {
        Self { program: env!("CARGO_PKG_VERSION").into(), wire: VERSION }
    }
}

/// For people; everything that came from outside is cut and escaped.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "paceline {}, wire version {}", excerpt(&self.program), self.wire)
    }
}

/// The beginning of a text from another machine, as it may be shown.
pub fn excerpt(text: &str) -> String {
    printable(&text.chars().take(80).collect::<String>()).into_owned()
}

/// A command of the launcher to a machine.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
pub enum HostCommand {
    /// It cannot take part.
    Refused { message: String, hint: String },
    /// It takes part as this host; whether the run is under way already, so that it may have to wait until it is needed.
    Welcome { name: String, run: String, host: usize, hosts: usize, under_way: bool },
    /// Which ranks it has now, and whose processes it is to start; the key is the run's own.
    Start {
        plan: Box<Plan>,
        ranks: Vec<usize>,
        begin: Vec<usize>,
        key: [u8; 32],
        recording: Option<Recording>,
    },
    /// It is a node of a study: from now on it is told in words of `nodes`. Where the study is led from, and whether that
    /// folder must be here, too.
    Serve { folder: PathBuf, needed: bool },
    /// A command for one of its ranks.
    Tell { rank: usize, order: Box<RankCommand> },
    /// Send a signal to the process of one of its ranks: the notice that it will be killed, or the end.
    Signal { rank: usize, signal: ProcessSignal },
    /// The run is over.
    RunEnd(RunEnd),
}

/// What is done to a rank's process from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProcessSignal {
    /// SIGTERM: it will be killed.
    Notice,
    /// SIGKILL.
    Kill,
}

/// How a run or a study ended, as the other machines are told it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RunEnd {
    /// Which kind of failure it was, if it did not end well.
    pub failure: Option<FailureKind>,
    /// What happened, if it did not end well.
    pub message: String,
    /// What to do about it.
    pub hint: String,
    /// The result, if it ended well.
    pub result: Option<serde_json::Value>,
}

impl RunEnd {
    /// The end of a run that failed.
    pub fn failed(error: &LaunchError) -> Self {
        Self { failure: Some(error.kind()), message: error.to_string(), hint: error.hint(), result: None }
    }
}

/// An event that a machine reports to the launcher.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
pub enum HostEvent {
    /// One of its ranks says something; its numbers follow.
    Rank { rank: usize, said: RankEvent },
    /// One of its ranks will say nothing more.
    Closed { rank: usize },
    /// The process of one of its ranks has ended.
    Exited { rank: usize, pid: u32, status: String },
    /// It was asked to end by whoever started it.
    Ending { cause: String },
    /// Somebody asks for the run to be saved and stopped.
    Interrupted,
    /// It was asked to leave an elastic run: it goes once its ranks have handed over what they have.
    Leaving,
    /// It cannot do what it was asked to.
    Failed { message: String },
}

/// Most bytes that come with numbers: lengths and a document.
pub const DOCUMENT: usize = 2 << 20;
/// Most bytes that a machine takes from the launcher that it has joined: what a rank goes on from.
pub const LARGEST: usize = 4 << 30;

/// A document as it travels.
pub fn encode(message: &impl Serialize, numbers: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    control::write(&mut bytes, message, numbers).expect("memory takes everything");
    bytes
}

pub fn decode<M: DeserializeOwned>(bytes: &[u8]) -> Result<(M, Vec<f32>), String> {
    match control::read(&mut &*bytes) {
        Ok(Some(message)) => Ok(message),
        Ok(None) => Err("it said something that is cut off".into()),
        Err(e) => Err(format!("it said something that cannot be understood: {e}")),
    }
}
