//! What the launcher and the machines that join it say to each other, over an encrypted line.

use std::fmt;

use paceline_plan::{Plan, printable};
use paceline_record::{FailureKind, Recording};
use paceline_wire::VERSION;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::control::{self, RankCommand, RankEvent};

/// What a machine says first. Every version must be able to read it, so that both can be named.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Greeting {
    /// Its program.
    pub version: Version,
    /// Its name.
    pub name: String,
    /// Which host it wants to be, if it minds.
    pub host: Option<usize>,
    /// How many hosts it expects, if it does.
    pub hosts: Option<usize>,
}

/// What two machines must agree on to understand each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// Of the program.
    pub program: String,
    /// Of the wire.
    pub wire: u16,
}

impl Version {
    /// This program's.
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

/// What the launcher tells a machine.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
pub enum HostCommand {
    /// It cannot take part.
    Refused {
        /// Why.
        message: String,
        /// What to do.
        hint: String,
    },
    /// It takes part.
    Welcome {
        /// The launcher's name.
        name: String,
        /// The run's id.
        run: String,
        /// Which host it is.
        host: usize,
        /// How many there are.
        hosts: usize,
    },
    /// What to do, once everybody is here.
    Start {
        /// The plan.
        plan: Box<Plan>,
        /// The ranks to start.
        ranks: Vec<usize>,
        /// The run's own key.
        key: [u8; 32],
        /// What to record of each rank, if anything.
        recording: Option<Recording>,
    },
    /// A word for one of its ranks.
    Tell {
        /// The rank.
        rank: usize,
        /// The word.
        order: Box<RankCommand>,
    },
    /// The run has ended.
    RunEnd(RunEnd),
}

/// How a run ended.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RunEnd {
    /// Which kind of failure it was, if it did not end well.
    pub failure: Option<FailureKind>,
    /// What happened, if it did not end well.
    pub message: String,
    /// What to do.
    pub hint: String,
    /// The result, if it ended well.
    pub result: Option<serde_json::Value>,
}

/// What a machine tells the launcher.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
pub enum HostEvent {
    /// One of its ranks says something; its numbers follow.
    Rank {
        /// The rank.
        rank: usize,
        /// What it says.
        said: RankEvent,
    },
    /// One of its ranks will say nothing more.
    Closed {
        /// The rank.
        rank: usize,
    },
    /// The process of one of its ranks has ended.
    Exited {
        /// The rank.
        rank: usize,
        /// The process.
        pid: u32,
        /// How it ended.
        status: String,
    },
    /// It cannot do what it was told.
    Failed {
        /// What happened.
        message: String,
    },
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

/// What a document says.
pub fn decode<M: DeserializeOwned>(bytes: &[u8]) -> Result<(M, Vec<f32>), String> {
    match control::read(&mut &*bytes) {
        Ok(Some(message)) => Ok(message),
        Ok(None) => Err("it said something that is cut off".into()),
        Err(e) => Err(format!("it said something that cannot be understood: {e}")),
    }
}
