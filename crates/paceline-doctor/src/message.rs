//! What doctors on two machines say to each other: a document of JSON, and bytes that only fill the link.

use std::net::SocketAddr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::diagnosis::HostReport;
use crate::links::LinkMeasurement;

/// Most bytes that fill a link at once.
pub(crate) const LARGEST_PAYLOAD: usize = 64 << 20;
/// Most bytes of a message.
pub(crate) const LARGEST: usize = LARGEST_PAYLOAD + (1 << 20);

/// The first document of whoever comes.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ProbeGreeting {
    /// The version of the program.
    pub doctor: String,
}

impl ProbeGreeting {
    pub(crate) fn own() -> Self {
        Self { doctor: env!("CARGO_PKG_VERSION").into() }
    }
}

/// What a doctor is asked.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub(crate) enum ProbeRequest {
    /// What is found of its machine.
    Examine,
    /// Its clock; nothing else is sent, so that it also measures a round trip.
    Clock,
    /// To take the bytes that follow.
    Take,
    /// To send so many bytes.
    Give { bytes: usize },
    /// To measure its link to another one.
    Measure { address: SocketAddr },
}

/// What it answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub(crate) enum ProbeAnswer {
    Examined { report: HostReport },
    Clock { unix_s: f64 },
    Taken { bytes: usize },
    Given,
    Measured { link: LinkMeasurement },
    Failed { problem: String },
}

/// A message as it travels: the length of its document in four bytes, the document, the payload.
pub(crate) fn encode(message: &impl Serialize, payload: &[u8]) -> Vec<u8> {
    let document = serde_json::to_vec(message).expect("messages are plain data");
    [&(document.len() as u32).to_le_bytes()[..], &document, payload].concat()
}

/// The message, and how many bytes follow it; none if it is something else.
pub(crate) fn decode<M: DeserializeOwned>(bytes: &[u8]) -> Option<(M, usize)> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (document, payload) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    Some((serde_json::from_slice(document).ok()?, payload.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_travel_and_anything_else_is_none() {
        let bytes = encode(&ProbeRequest::Take, &[7; 10]);
        assert!(matches!(decode(&bytes), Some((ProbeRequest::Take, 10))));
        for other in [&b""[..], b"\xff\xff\xff\xff{}", b"\x02\0\0\0{}", b"\x02\0\0\0"] {
            assert!(decode::<ProbeRequest>(other).is_none(), "{other:?}");
        }
    }
}
