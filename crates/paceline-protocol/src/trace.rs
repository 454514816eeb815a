//! What a participant did, in a form that can be compared between drivers: for each link and bucket, and
//! for each place of the flat buffer, the sequence of actions. Arrivals may interleave differently across
//! buckets; within one, a deterministic strategy does the same everywhere.

use std::collections::BTreeMap;

use crate::vocabulary::{Action, Buf, Rank, Region, Tag};

/// What a sequence is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// Messages of a bucket to a rank.
    Link(Rank, u16),
    /// Computations on a place of the flat buffer.
    Place(usize),
}

/// One action, without what only the driver chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Did {
    /// Sent a region under a tag.
    Sent(Tag, Option<Region>),
    /// Added a message of this length.
    Reduced(Region),
    /// Took over a message of this length.
    Copied(Region),
    /// Updated parameters, at the rate of this step.
    Applied(Region, u64),
}

/// The sequences of one participant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace(pub BTreeMap<Subject, Vec<Did>>);

impl Trace {
    /// Notes an action; what is no communication or computation is passed over.
    pub fn note(&mut self, action: &Action) {
        let (subject, did) = match *action {
            Action::Send { to, tag, src, .. } => (Subject::Link(to, tag.bucket), Did::Sent(tag, src)),
            Action::Reduce { dst, .. } => (Subject::Place(dst.offset), Did::Reduced(dst)),
            Action::Copy { dst, .. } if !matches!(dst.buf, Buf::Scratch(_)) => {
                (Subject::Place(dst.offset), Did::Copied(dst))
            }
            Action::Apply { params, step, .. } => (Subject::Place(params.offset), Did::Applied(params, step)),
            _ => return,
        };
        self.0.entry(subject).or_default().push(did);
    }
}
