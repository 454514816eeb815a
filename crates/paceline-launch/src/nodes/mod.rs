//! A study over several machines: each is a *node*, which makes whole runs, one at a time. Node 0 is the process that
//! leads the study; the others join it as they would join a run, and are told to [`serve`](node).
//!
//! - this file: what the leader and a node say to each other
//! - `leader`: all nodes, as the leader sees them ([`Nodes`]), and a run on one of them ([`NodeTrial`])
//! - `node`: what a node does
//!
//! A run is made on its node as on the leader's machine: a program under a keeper ([`crate::trial`]), with its record in a
//! folder of its own. What it prints is passed on as it comes; its record is passed on when it has ended, and only then is it
//! over. So a node that is lost leaves nothing half-stored, and its run can be made again elsewhere.

mod leader;
pub(crate) mod node;

pub use leader::{NodeChange, NodeTrial, NodeWork, Nodes};

use std::path::{Component, Path};

use serde::{Deserialize, Serialize};

use crate::joining::RunEnd;
use crate::trial::Ended;

/// A command of the leader to a node.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
enum NodeCommand {
    /// Make this run.
    Work(WorkOrder),
    /// End the run under way, if it is this one.
    Abort { work: u64 },
    /// The study is over.
    End(RunEnd),
}

/// A run that a node makes.
#[derive(Debug, Serialize, Deserialize)]
struct WorkOrder {
    /// Its number, in the order in which this node is given work.
    work: u64,
    /// The program with its arguments; none for this program as the run that the document describes.
    words: Vec<String>,
    /// What the program reads, or null; the node adds what only it knows.
    document: serde_json::Value,
    /// Cores that the run may use; all of the node's if none is named.
    cores: Vec<usize>,
    /// Whether its process tree is sampled.
    tree: bool,
}

/// An event that a node reports to the leader. Bytes follow as numbers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
enum NodeEvent {
    /// It is ready, on this machine (by its boot id), and may use these cores of it.
    Ready { machine: String, cores: Vec<usize> },
    /// What the run's program has written next.
    Output { work: u64, bytes: usize },
    /// The next part of a file that the run has left.
    File { work: u64, name: String, bytes: usize },
    /// The run has ended, and everything that it has left was sent.
    Ended { work: u64, ended: Box<Ended> },
    /// It ends: it was asked to, or cannot do what it was told.
    Leaving { cause: String },
}

/// Name of the file with samples of a run's process tree.
pub const TREE: &str = "tree.ndjson";

/// Bytes that are sent at once.
const PART: usize = 256 << 10;

/// Whether a file of a node may have this name below the folder of its run.
fn fit(name: &str) -> bool {
    let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    !name.is_empty() && Path::new(name).components().all(plain)
}

/// Bytes as numbers, whose bits are all that counts.
fn pack(bytes: &[u8]) -> Vec<f32> {
    let word = |part: &[u8]| {
        let mut whole = [0; 4];
        whole[..part.len()].copy_from_slice(part);
        f32::from_bits(u32::from_le_bytes(whole))
    };
    bytes.chunks(4).map(word).collect()
}

/// So many of the bytes that [`pack`] was given; fewer if they are cut off.
fn unpack(numbers: &[f32], bytes: usize) -> Vec<u8> {
    let mut all: Vec<u8> = numbers.iter().flat_map(|number| number.to_bits().to_le_bytes()).collect();
    all.truncate(bytes);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::joining::{decode, encode};

    #[test]
    fn bytes_survive_their_way_as_numbers() {
        // Among them a signalling NaN.
        let all: Vec<u8> = (0..=255).chain([0x01, 0x00, 0xa0, 0x7f, 0xff]).collect();
        for length in [0, 1, 3, 4, 5, all.len()] {
            let event = NodeEvent::Output { work: 7, bytes: length };
            let sent = encode(&event, &pack(&all[..length]));
            let (said, numbers) = decode::<NodeEvent>(&sent).unwrap();
            let NodeEvent::Output { work: 7, bytes } = said else { panic!("{said:?}") };
            assert_eq!(unpack(&numbers, bytes), all[..length]);
        }
        assert!(unpack(&[], 9).is_empty());
    }

    #[test]
    fn files_of_a_node_stay_in_their_folder() {
        for name in ["paceline.db", "runs/r1/checkpoints/manifest.json", TREE] {
            assert!(fit(name), "{name}");
        }
        for name in ["", "/etc/passwd", "../x", "runs/../../x", ".", "./x"] {
            assert!(!fit(name), "{name}");
        }
    }
}
