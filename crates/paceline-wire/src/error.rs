//! What can go wrong on the wire.

use std::fmt;
use std::io;
use std::time::Duration;

use thiserror::Error;

use crate::transport::Span;

/// An error of the wire.
#[derive(Debug, Error)]
pub enum WireError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address asked for.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// A call to the system failed that never should.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// An identity or a list of peers that makes no sense.
    #[error("rank {rank} of {world}: {problem}")]
    Identity {
        /// The rank of this end.
        rank: usize,
        /// The number of ranks.
        world: usize,
        /// What is wrong.
        problem: String,
    },
    /// Some peers did not connect in time.
    #[error(
        "rank {rank} waited {:.1} s in vain for {}{}",
        .deadline.as_secs_f64(), list(.missing, ", "), meanwhile(.refused)
    )]
    Deadline {
        /// The rank of this end.
        rank: usize,
        /// How long it waited.
        deadline: Duration,
        /// For whom.
        missing: Vec<Missing>,
        /// Strangers refused meanwhile: one of them may have been a peer with other settings.
        refused: Vec<String>,
    },
    /// A peer and this end do not belong together.
    #[error("rank {rank} at {address}: {cause}")]
    Refused {
        /// The peer that was dialled.
        rank: usize,
        /// Its address.
        address: String,
        /// Why, with both sides' values.
        cause: String,
    },
    /// A message for somebody this end was never connected to.
    #[error("rank {rank} has no connection to rank {to}")]
    NoPeer {
        /// The rank of this end.
        rank: usize,
        /// The rank addressed.
        to: usize,
    },
    /// A message for a peer that was lost.
    #[error("rank {to} is gone: {cause}")]
    Gone {
        /// The rank addressed.
        to: usize,
        /// Why it was lost.
        cause: String,
    },
    /// A message longer than the receiver would take.
    #[error("a message of {len} elements to rank {to}: at most {max} are allowed")]
    TooLong {
        /// The rank addressed.
        to: usize,
        /// Elements of the body.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// A source lent something else than a span says.
    #[error("the source lent {found} elements for {span:?}")]
    Span {
        /// The span asked for.
        span: Span,
        /// The number of elements lent.
        found: usize,
    },
    /// A frame that is not as it must be.
    #[error("bad frame: expected {expected}, found {found}")]
    Frame {
        /// What must be there.
        expected: String,
        /// What is there.
        found: String,
    },
}

impl WireError {
    /// For `map_err` on calls to the system.
    pub fn system<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> Self {
        move |source| Self::System { what, source: source.into() }
    }
}

/// A peer that did not connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    pub rank: usize,
    /// The address it should have.
    pub address: String,
    /// What is known of it.
    pub cause: String,
}

impl fmt::Display for Missing {
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
