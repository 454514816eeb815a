//! What can go wrong on the wire.

use std::fmt;
use std::io;
use std::time::Duration;

use thiserror::Error;

use crate::transport::Span;

/// An error of the wire.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum WireError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen { address: String, source: io::Error },
    /// A call to the system failed that never should.
    #[error("cannot {what}: {source}")]
    System { what: &'static str, source: io::Error },
    /// An identity or a list of peers that makes no sense.
    #[error("rank {rank} of {world}: {problem}")]
    Identity { rank: usize, world: usize, problem: String },
    /// Some peers did not connect in time. A stranger refused meanwhile may have been a peer with other settings.
    #[error(
        "rank {rank} waited {:.1} s in vain for {}{}",
        .deadline.as_secs_f64(), list(.missing, ", "), meanwhile(.refused)
    )]
    Deadline { rank: usize, deadline: Duration, missing: Vec<MissingPeer>, refused: Vec<String> },
    /// A peer and this end do not belong together; the cause has both sides' values.
    #[error("rank {rank} at {address}: {cause}")]
    Refused { rank: usize, address: String, cause: String },
    /// A message for somebody this end was never connected to.
    #[error("rank {rank} has no connection to rank {to}")]
    NoPeer { rank: usize, to: usize },
    /// A message for a peer that was lost.
    #[error("rank {to} is gone: {cause}")]
    Gone { to: usize, cause: String },
    /// A message longer than the receiver would take.
    #[error("a message of {len} elements to rank {to}: at most {max} are allowed")]
    TooLong { to: usize, len: usize, max: usize },
    /// A source lent something else than a span says.
    #[error("the source lent {found} elements for {span:?}")]
    Span { span: Span, found: usize },
    /// A frame that is not as it must be.
    #[error("bad frame: expected {expected}, found {found}")]
    Frame { expected: String, found: String },
}

impl WireError {
    /// For `map_err` on calls to the system.
    pub fn system<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> Self {
        move |source| Self::System { what, source: source.into() }
    }
}

/// A peer that did not connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingPeer {
    pub rank: usize,
    /// The address it should have.
    pub address: String,
    /// What is known of it.
    pub cause: String,
}

impl fmt::Display for MissingPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} at {} ({})", self.rank, self.address, self.cause)
    }
}

fn list<T: fmt::Display>(items: &[T], between: &str) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(between)
}

fn meanwhile(refused: &[String]) -> String {
    if refused.is_empty() { String::new() } else { format!("; refused meanwhile: {}", list(refused, "; ")) }
}
